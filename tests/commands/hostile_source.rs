//! Pulls from a repository whose descriptions of commits are made up: whatever it says of commits
//! that the user has, these keep their parents, and the branch keeps its commits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::{RawItem, RepoState};
use icechunkfs::times::system_clock;
use serde_json::json;

use super::merge::{Setup, chunk, setup};
use crate::common::writing::Reference;
use crate::common::{Output, copy_tree, place, run_on};

pub(super) fn tip(place: &Path, branch: &str) -> ObjectId {
    Reference::open(place).on(branch).history()[0].0.parse().unwrap()
}

/// Rewrites the file `repo` of a repository of version 2.
pub(super) fn edit(place: &Path, change: impl FnOnce(&mut RepoState)) {
    let file = place.join("repo");
    let mut state = RepoState::from_info(&RepoInfo::decode(&std::fs::read(&file).unwrap()).unwrap()).unwrap();
    change(&mut state);
    std::fs::write(&file, state.encode().unwrap()).unwrap();
}

/// The user's repository, with a commit on `main` and one on `dev`, and a copy of it in which a
/// stranger has added one to `dev`.
struct Family {
    mine: Setup,
    theirs: PathBuf,
    main: ObjectId,
    dev: ObjectId,
    begin: ObjectId,
    added: ObjectId,
    _directory: tempfile::TempDir,
}

fn family() -> Family {
    let mine = setup(SpecVersionBin::V2);
    let begin = tip(&mine.place, "main");
    let (theirs, added, directory) = copy_of_a_stranger(&mine, "dev");
    let [main, dev] = ["main", "dev"].map(|branch| tip(&mine.place, branch));
    Family { mine, theirs, main, dev, begin, added, _directory: directory }
}

/// Commits to `main` and `dev`, and copies the repository for a stranger, who adds a commit to
/// `branch`. Returns the place and that commit.
pub(super) fn copy_of_a_stranger(mine: &Setup, branch: &str) -> (PathBuf, ObjectId, tempfile::TempDir) {
    mine.commit("main", &[("a/c/2", b"main")]);
    mine.commit("dev", &[("a/c/3", b"dev")]);
    let directory = tempfile::tempdir().unwrap();
    let theirs = directory.path().join("theirs");
    copy_tree(&mine.place, &theirs);
    Reference::open(&theirs).on(branch).commit(&[("a/c/4", b"stranger")], "added");
    let added = tip(&theirs, branch);
    (theirs, added, directory)
}

impl Family {
    fn pull(&self) -> Output {
        run_on(&self.mine.place, &["pull", self.theirs.to_str().unwrap(), "main"])
    }

    fn assert_kept(&self, how: &str) {
        let history = self.mine.history("main");
        assert!(history.iter().any(|(id, _)| *id == self.main.to_string()), "{how}: {history:?}");
    }
}

#[test]
fn a_pull_keeps_the_commits_of_a_branch_whatever_the_source_says_of_their_parents() {
    for how in ["a parent of mine", "a commit twice", "expired ones", "expired ones in another order"] {
        let family = family();
        edit(&family.theirs, |state| {
            state.branches.insert("main".to_owned(), family.added);
            let added = state.snapshots.get_mut(&family.added).unwrap();
            match how {
                "a parent of mine" => state.snapshots.get_mut(&family.dev).unwrap().parent = Some(family.main),
                "a commit twice" => added.parent = Some(family.begin),
                "expired ones" => {
                    added.parent = None;
                    added.pruned_ancestor_tx_logs = vec![family.main, family.begin];
                }
                _ => {
                    added.parent = None;
                    added.pruned_ancestor_tx_logs = vec![family.main, family.dev];
                }
            }
        });
        let pulled = family.pull();
        assert_eq!(pulled.status.code(), Some(1), "{how}: {}", pulled.all());
        family.assert_kept(how);
        run_on(&family.mine.place, &["verify"]).success();
    }
    // Commits that have expired there and are here stay before new ones.
    let family = family();
    edit(&family.theirs, |state| {
        state.branches.insert("main".to_owned(), family.added);
        let added = state.snapshots.get_mut(&family.added).unwrap();
        added.parent = None;
        added.pruned_ancestor_tx_logs = vec![family.begin, family.main];
    });
    family.pull().success();
    family.assert_kept("expired ones in their order");
}

/// The user's `repo` gets only what can be read there.
#[test]
fn a_pull_copies_no_metadata_that_cannot_be_read() {
    let family = family();
    let damage = |state: &mut RepoState| {
        let record = state.snapshots.get_mut(&family.added).unwrap();
        record.metadata = vec![RawItem { name: "note".to_owned(), value: vec![0xff; 3] }];
    };
    edit(&family.theirs, damage);
    let pull = ["pull", family.theirs.to_str().unwrap(), "dev"];
    let why = run_on(&family.mine.place, &pull).failure();
    assert!(why.contains(&family.added.to_string()) && why.contains("nothing was changed"), "{why}");
    assert_eq!(tip(&family.mine.place, "dev"), family.dev);
    let copy = family.theirs.with_file_name("copy");
    run_on(&family.theirs, &["clone", copy.to_str().unwrap()]).failure();
}

/// A commit of a stranger claims to have merged `dev`. A merge of it must not vouch for that: the
/// next merge of `dev` would bring nothing, and delete it.
#[test]
fn a_merge_does_not_vouch_for_what_a_stranger_claims() {
    for name in ["icechunkfs.merge", "icechunkfs.replaces"] {
        // Ids are random, and so is the order in which claims are looked at.
        for _ in 0..6 {
            let repo = setup(SpecVersionBin::V2);
            run_on(&repo.place, &["branch", "create", "stranger", "--at", "main"]).success();
            repo.commit("main", &[("a/c/2", b"main")]);
            repo.commit("dev", &[("a/c/3", b"dev")]);
            let dev = tip(&repo.place, "dev").to_string();
            let record = json!({"source": "dev", "snapshot": dev, "commits": [dev]});
            let mut stranger = Reference::open(&repo.place);
            stranger.on("stranger").commit_with(
                &[("a/c/7", b"stranger")],
                "forged",
                BTreeMap::from([(name.to_owned(), record)]),
            );
            repo.merge(&["stranger"]).success();
            let merged = repo.merge(&["dev", "--delete-source"]);
            let is_there = chunk(&repo.keys("main"), "a/c/3") == Some(b"dev");
            let branches = run_on(&repo.place, &["branch", "list"]).text();
            assert!(is_there || branches.contains("dev"), "{name}: {}", merged.stderr);
            assert!(is_there || !merged.status.success(), "{name}");
        }
    }
}

/// A branch is deleted after a merge only if its changes are there; what a record says of them is
/// no proof.
#[test]
fn a_branch_whose_changes_are_not_there_is_not_deleted() {
    let repo = setup(SpecVersionBin::V2);
    repo.commit("dev", &[("a/c/3", b"dev")]);
    repo.commit("main", &[("a/c/2", b"main")]);
    repo.merge(&["dev"]).success();
    let before = repo.keys("main");
    let mut less = before.clone();
    less.remove("a/c/3");
    Reference::open(&repo.place).change(&before, &less);
    let why = repo.merge(&["dev", "--delete-source"]).failure();
    assert!(why.contains("branch `dev` was merged, but not deleted") && why.contains("delete 'dev'"), "{why}");
    assert!(run_on(&repo.place, &["branch", "list"]).text().contains("dev"));
    // With the changes it is.
    repo.commit("main", &[("a/c/3", b"dev")]);
    repo.merge(&["dev", "--delete-source"]).success();
    assert!(!run_on(&repo.place, &["branch", "list"]).text().contains("dev"));
}

/// The user's repository lacks files of a commit that the stranger has, too. Whatever the stranger
/// has under these names, a pull does not bring it.
#[test]
fn a_pull_brings_files_only_of_commits_that_are_new() {
    if !place::needs_directory() {
        return;
    }
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        for is_pruned in [false, true] {
            let mine = setup(version);
            let old = tip(&mine.place, "main");
            mine.commit("main", &[("a/c/2", b"main")]);
            let directory = tempfile::tempdir().unwrap();
            let theirs = directory.path().join("theirs");
            copy_tree(&mine.place, &theirs);
            Reference::open(&theirs).commit(&[("a/c/4", b"stranger")], "added");
            let added = tip(&theirs, "main");
            if is_pruned {
                if version == SpecVersionBin::V1 {
                    continue;
                }
                let main = tip(&mine.place, "main");
                edit(&theirs, |state| {
                    let record = state.snapshots.get_mut(&added).unwrap();
                    record.parent = None;
                    record.pruned_ancestor_tx_logs = vec![old, main];
                });
            }
            let log = mine.place.join(format!("transactions/{old}"));
            std::fs::remove_file(&log).unwrap();
            run_on(&mine.place, &["pull", theirs.to_str().unwrap(), "main"]).success();
            assert_eq!(tip(&mine.place, "main"), added);
            assert!(!log.exists(), "{version:?}, {is_pruned}");
            assert_eq!(mine.keys("main"), Reference::open(&theirs).keys());
        }
    }
}

#[test]
fn names_that_are_revisions_of_other_commits_are_not_taken_over() {
    let mine = setup(SpecVersionBin::V2);
    mine.commit("main", &[("a/c/2", b"mine")]);
    let kept = tip(&mine.place, "main").to_string();
    let directory = tempfile::tempdir().unwrap();
    let theirs = directory.path().join("theirs");
    copy_tree(&mine.place, &theirs);
    Reference::open(&theirs).commit(&[("a/c/3", b"theirs")], "theirs");
    let said = format!("snapshot/{kept}");
    let shadow = format!("{said}~1");
    let misleading = ["main~1", &kept, &said, &shadow, "branch/main", "branch/none", "tag/none"];
    for name in misleading.into_iter().chain(["good"]) {
        // This program refuses such names for new refs.
        Reference::open(&theirs).create_tag(name);
    }
    let pulled = run_on(&mine.place, &["pull", theirs.to_str().unwrap()]);
    assert_eq!(pulled.status.code(), Some(1), "{}", pulled.all());
    let tags = run_on(&mine.place, &["tag", "list"]).text();
    assert_eq!(tags.lines().count(), 1, "{tags}");
    assert!(tags.contains("good"), "{tags}");
    run_on(&mine.place, &["branch", "reset", "main", "--to", &said, "--yes"]).success();
    assert_eq!(tip(&mine.place, "main").to_string(), kept);
}

/// Times of commits rise: after one of the future, no program could commit until then.
#[test]
fn a_pull_brings_no_commit_of_the_future() {
    let year = Duration::from_secs(365 * 86_400);
    let in_a_year = system_clock() + u64::try_from(year.as_micros()).unwrap();
    for time in [in_a_year, u64::MAX] {
        let family = family();
        edit(&family.theirs, |state| state.snapshots.get_mut(&family.added).unwrap().flushed_at = time);
        run_on(&family.theirs, &["tag", "create", "good", "--at", "main"]).success();
        let pulled = run_on(&family.mine.place, &["pull", family.theirs.to_str().unwrap()]);
        assert_eq!(pulled.status.code(), Some(1), "{}", pulled.all());
        assert!(pulled.all().contains("later than this machine's clock"), "{}", pulled.all());
        assert!(run_on(&family.mine.place, &["tag", "list"]).text().contains("good"));
        assert_eq!(tip(&family.mine.place, "dev"), family.dev);
        // Whatever a stranger's commits claim, the log of a clone begins now.
        let copy = family.theirs.with_file_name("copy");
        run_on(&family.theirs, &["clone", copy.to_str().unwrap()]).success();
        let created = run_on(&copy, &["tag", "create", "mine", "--at", "main"]);
        created.success();
    }
}

/// The time after which the next commit is dated is that of the snapshot, and what was compared is
/// that of the description.
#[test]
fn a_snapshot_is_not_of_later_than_its_description() {
    let family = family();
    edit(&family.theirs, |state| state.snapshots.get_mut(&family.added).unwrap().flushed_at -= 1);
    let why = run_on(&family.mine.place, &["pull", family.theirs.to_str().unwrap(), "dev"]).failure();
    assert!(why.contains("a later time than the history"), "{why}");
    assert_eq!(tip(&family.mine.place, "dev"), family.dev);
}
