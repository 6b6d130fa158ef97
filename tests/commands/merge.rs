//! `icechunkfs merge`: each promise of its help, as the reference implementation sees the result.
//! Random merges are in `tests/oracles/branches.rs`.

use std::path::{Path, PathBuf};

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use serde_json::{Value, json};

use crate::common::writing::{GROUP, Reference, Writable, array};
use crate::common::{
    Files, Mount, Output, all_together, block_on, entries, icechunkfs, lab, place, run_on, run_with_fault,
};

/// Versions of the repositories. In a store they are made by this program, which makes the newer
/// one.
pub(super) fn versions() -> impl Iterator<Item = SpecVersionBin> {
    [SpecVersionBin::V1, SpecVersionBin::V2]
        .into_iter()
        .filter(|version| place::is_local() || *version == SpecVersionBin::V2)
}

pub(super) struct Setup {
    pub(super) place: PathBuf,
    _directory: tempfile::TempDir,
}

/// A repository with an array `a` of eight chunks, of which two exist, on `main` and `dev`.
pub(super) fn setup(version: SpecVersionBin) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let place = place::place(directory.path());
    if place::is_local() {
        block_on(lab::create(&place, version, RepositoryConfig::default()));
    } else {
        run_on(&place, &["init"]).success();
    }
    let reference = Reference::open(&place);
    let document = array(&[8], &[1]);
    let keys: [(&str, &[u8]); 4] =
        [("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes()), ("a/c/0", b"0"), ("a/c/1", b"1")];
    reference.commit(&keys, "begin");
    reference.create_branch("dev");
    Setup { place, _directory: directory }
}

impl Setup {
    pub(super) fn commit(&self, branch: &str, keys: &[(&str, &[u8])]) {
        Reference::open(&self.place).on(branch).commit(keys, &format!("work on {branch}"));
    }

    pub(super) fn keys(&self, branch: &str) -> Files {
        Reference::open(&self.place).on(branch).keys()
    }

    pub(super) fn history(&self, branch: &str) -> Vec<(String, String)> {
        Reference::open(&self.place).on(branch).history()
    }

    pub(super) fn merge(&self, words: &[&str]) -> Output {
        run_on(&self.place, &[&["merge"], words].concat())
    }

    pub(super) fn newest(&self) -> Value {
        run_on(&self.place, &["log", "--json", "-n", "1"]).json()[0].clone()
    }
}

pub(super) fn chunk<'a>(keys: &'a Files, name: &str) -> Option<&'a [u8]> {
    keys.get(name).map(Vec::as_slice)
}

#[test]
fn changes_of_both_sides_are_in_one_commit() {
    for version in versions() {
        let repo = setup(version);
        let new = array(&[2], &[1]);
        repo.commit("dev", &[("n/zarr.json", new.as_bytes()), ("n/c/0", b"n"), ("a/c/2", b"dev")]);
        repo.commit("dev", &[("a/c/3", b"dev")]);
        repo.commit("main", &[("a/c/4", b"main")]);
        let said = repo.merge(&["dev", "-m", "Both", "--metadata", "run=7", "--json"]).json();
        assert_eq!((&said["nodes"], &said["chunks"], &said["conflicts"]), (&json!(1), &json!(3), &json!([])));
        assert_eq!(said["commits"].as_array().unwrap().len(), 2);
        let keys = repo.keys("main");
        for (name, bytes) in [("n/c/0", "n"), ("a/c/2", "dev"), ("a/c/3", "dev"), ("a/c/4", "main"), ("a/c/0", "0")] {
            assert_eq!(chunk(&keys, name), Some(bytes.as_bytes()), "{name}");
        }
        let history = repo.history("main");
        assert_eq!((history[0].1.as_str(), history[1].1.as_str()), ("Both", "work on main"));
        assert_eq!(said["snapshot"], json!(history[0].0));
        let commit = repo.newest();
        assert_eq!(commit["metadata"]["run"], json!(7));
        let others = [&said["commits"][1]];
        let record = json!({
            "commit": said["snapshot"],
            "source": "branch `dev`",
            "snapshot": said["source"],
            "commits": others
        });
        assert_eq!(commit["metadata"]["icechunkfs.merge"], record);
        assert_eq!(repo.keys("dev").len(), keys.len() - 1, "the source stays as it is");
        run_on(&repo.place, &["verify"]).success();
        let again = repo.merge(&["dev"]).text();
        assert!(again.contains("branch `main` has all changes of branch `dev` already"), "{again}");
        assert_eq!(repo.history("main"), history);
    }
}

#[test]
fn a_branch_is_merged_again_when_it_has_gone_on() {
    for version in versions() {
        let repo = setup(version);
        let new = array(&[4], &[1]);
        repo.commit("dev", &[("n/zarr.json", new.as_bytes()), ("n/c/0", b"1"), ("a/c/0", b"dev 1")]);
        repo.merge(&["dev"]).success();
        // It changes what the first merge brought.
        repo.commit("dev", &[("n/c/0", b"2"), ("n/c/1", b"2"), ("a/c/0", b"dev 2")]);
        repo.commit("main", &[("a/c/5", b"main")]);
        repo.merge(&["dev"]).success();
        let keys = repo.keys("main");
        assert_eq!(
            (chunk(&keys, "n/c/0"), chunk(&keys, "a/c/0"), chunk(&keys, "a/c/5")),
            (Some(&b"2"[..]), Some(&b"dev 2"[..]), Some(&b"main"[..]))
        );
        // And the other way round, from where both were last the same.
        repo.commit("main", &[("n/c/0", b"main 3")]);
        repo.merge(&["main", "--into", "dev"]).success();
        assert_eq!(repo.keys("dev"), repo.keys("main"));
        // A change that main made after the merge is no change of dev.
        repo.commit("dev", &[("n/c/1", b"dev 4")]);
        repo.commit("main", &[("n/c/1", b"main 4")]);
        assert!(repo.merge(&["dev"]).failure().contains("/n: ChunkDoubleUpdate"));
    }
}

#[test]
fn sides_whose_common_commits_have_expired_are_not_merged() {
    if !place::is_local() {
        return;
    }
    for version in versions() {
        let repo = setup(version);
        let cut = icechunkfs::times::format_time(icechunkfs::times::system_clock());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let begin = repo.keys("main");
        let mut less = begin.clone();
        less.remove("a/c/0");
        Reference::open(&repo.place).on("dev").change(&begin, &less);
        repo.commit("main", &[("a/c/5", b"main")]);
        run_on(&repo.place, &["expire", "--older-than", &cut, "--yes"]).success();
        let before = (repo.keys("main"), repo.keys("dev"));
        for words in [
            &["dev", "--delete-source"][..],
            &["main", "--into", "dev"],
            &["dev", "--keep-commits"],
            &["dev", "--dry-run"],
        ] {
            let why = repo.merge(words).failure();
            assert!(why.contains("do not have a known common ancestor: the history before commit"), "{words:?}: {why}");
        }
        assert_eq!((repo.keys("main"), repo.keys("dev")), before);
        // A branch from a commit that is still there can be merged.
        Reference::open(&repo.place).create_branch("more");
        repo.commit("more", &[("a/c/6", b"more")]);
        repo.merge(&["more"]).success();
        assert_eq!(chunk(&repo.keys("main"), "a/c/6"), Some(&b"more"[..]));
    }
}

/// Both branches merge a third one by themselves: the fork and the third one are both common
/// ancestors, and neither has all that both have.
#[test]
fn what_one_side_undid_stays_so_with_several_common_ancestors() {
    for version in versions() {
        let repo = setup(version);
        let reference = Reference::open(&repo.place);
        reference.create_branch("feat");
        let new = array(&[2], &[1]);
        repo.commit("main", &[("x/zarr.json", new.as_bytes()), ("x/c/0", b"x"), ("a/c/2", b"main")]);
        run_on(&repo.place, &["branch", "create", "late", "--at", "main"]).success();
        repo.commit("feat", &[("a/c/3", b"feat"), ("a/c/4", b"feat")]);
        repo.merge(&["feat"]).success();
        repo.merge(&["feat", "--into", "late"]).success();
        // Of each ancestor, main takes something back.
        let before = repo.keys("main");
        let mut less = before.clone();
        less.retain(|key, _| !key.starts_with("x/") && key != "a/c/3" && key != "a/c/2");
        Reference::open(&repo.place).change(&before, &less);
        repo.commit("late", &[("a/c/6", b"late"), ("a/c/4", b"late")]);
        let late = repo.keys("late");
        let mut wanted = less;
        wanted.extend(
            late.iter()
                .filter(|(key, _)| ["a/c/6", "a/c/4"].contains(&key.as_str()))
                .map(|(k, b)| (k.clone(), b.clone())),
        );
        run_on(&repo.place, &["branch", "create", "other", "--at", "late"]).success();
        repo.merge(&["late", "--dry-run"]).success();
        assert_ne!(repo.keys("main"), wanted);
        repo.merge(&["late"]).success();
        assert_eq!(repo.keys("main"), wanted, "{version}");
        repo.merge(&["main~1", "--into", "other"]).success();
        assert_eq!(repo.keys("other"), wanted, "{version}");
        run_on(&repo.place, &["verify"]).success();
    }
}

/// Two merges that cross: each side has the other one's first commit, and both first commits
/// changed a chunk.
#[test]
fn chunks_that_common_ancestors_dispute_are_taken_from_nobody() {
    for version in versions() {
        let repo = setup(version);
        repo.commit("main", &[("a/c/0", b"main"), ("a/c/2", b"main")]);
        repo.commit("dev", &[("a/c/0", b"dev"), ("a/c/3", b"dev")]);
        let old = repo.history("main")[0].0.clone();
        repo.merge(&["dev", "--on-conflict", "ours"]).success();
        repo.merge(&[&old, "--into", "dev", "--on-conflict", "ours"]).success();
        repo.commit("main", &[("a/c/3", b"again")]);
        repo.commit("dev", &[("a/c/5", b"dev")]);
        let before = repo.keys("main");
        for words in [&["dev"][..], &["dev", "--on-conflict", "theirs"], &["main", "--into", "dev"]] {
            let why = repo.merge(words).failure();
            assert!(
                why.contains("several common ancestors, which changed the same 1 chunks of /a"),
                "{words:?}: {why}"
            );
        }
        assert_eq!(repo.keys("main"), before);
        // Once both have the same bytes there is nothing to decide. A restored chunk is the same
        // stored bytes.
        run_on(&repo.place, &["restore", "a/c/0", "--from", "main", "--branch", "dev"]).success();
        repo.merge(&["dev"]).success();
        let keys = repo.keys("main");
        for (name, bytes) in [("a/c/0", "main"), ("a/c/2", "main"), ("a/c/3", "again"), ("a/c/5", "dev")] {
            assert_eq!(chunk(&keys, name), Some(bytes.as_bytes()), "{name}");
        }
    }
}

#[test]
fn what_was_merged_into_both_and_is_gone_is_asked_for() {
    if !place::is_local() {
        return;
    }
    for version in versions() {
        let repo = setup(version);
        run_on(&repo.place, &["branch", "create", "release", "--at", "main"]).success();
        let fork = repo.history("main")[0].0.clone();
        let new = array(&[2], &[1]);
        repo.commit("dev", &[("x/zarr.json", new.as_bytes()), ("x/c/0", b"x")]);
        repo.merge(&["dev", "--into", "release"]).success();
        repo.merge(&["dev", "--delete-source"]).success();
        let before = repo.keys("main");
        let mut less = before.clone();
        less.retain(|key, _| !key.starts_with("x/"));
        Reference::open(&repo.place).change(&before, &less);
        run_on(&repo.place, &["gc", "--older-than", "0s", "--yes"]).success();
        let release = repo.keys("release");
        let why = repo.merge(&["main", "--into", "release"]).failure();
        assert!(why.contains("which no longer exists") && why.contains("--ancestor"), "{version}: {why}");
        assert_eq!(repo.keys("release"), release);
        // Merges of other branches are not affected.
        Reference::open(&repo.place).create_branch("more");
        repo.commit("more", &[("a/c/6", b"more")]);
        repo.merge(&["more"]).success();
        // The user may say so. With this ancestor both have made the same array, so that it stays
        // where it is.
        let said = repo.merge(&["main", "--into", "release", "--ancestor", &fork, "--json"]).json();
        assert_eq!(said["base"], json!(fork));
        assert_eq!(chunk(&repo.keys("release"), "a/c/6"), Some(&b"more"[..]));
        let why = repo.merge(&["main", "--into", "release", "--ancestor", "release"]).failure();
        assert!(why.contains("were not both made from"), "{why}");
    }
}

#[test]
fn chunks_that_were_only_repacked_conflict_with_nothing() {
    for version in versions() {
        let repo = setup(version);
        let chunks: Vec<Vec<u8>> = (0..8).map(|n| vec![n + 1; 2000]).collect();
        let new = array(&[8], &[1]);
        let mut keys =
            vec![("p/zarr.json".to_owned(), new.clone().into_bytes()), ("q/zarr.json".to_owned(), new.into_bytes())];
        keys.extend(
            chunks
                .iter()
                .enumerate()
                .flat_map(|(n, bytes)| ["p", "q"].map(|name| (format!("{name}/c/{n}"), bytes.clone()))),
        );
        let keys: Vec<(&str, &[u8])> = keys.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
        repo.commit("main", &keys);
        run_on(&repo.place, &["branch", "create", "work", "--at", "main"]).success();
        let before = repo.keys("work");
        let mut changed = before.clone();
        changed.insert("p/c/3".to_owned(), vec![77; 2000]);
        changed.retain(|key, _| !key.starts_with("q/"));
        Reference::open(&repo.place).on("work").change(&before, &changed);
        let repacked = run_on(&repo.place, &["rewrite-manifests", "--repack", "--yes", "--json"]).json();
        assert!(repacked["repacked"]["chunks"].as_u64().unwrap() >= 16, "{repacked}");
        run_on(&repo.place, &["branch", "create", "packed", "--at", "main"]).success();
        run_on(&repo.place, &["branch", "create", "kept", "--at", "main"]).success();
        repo.merge(&["work", "--into", "kept", "--keep-commits"]).success();
        assert_eq!(repo.keys("kept"), changed, "{version}");
        repo.merge(&["work"]).success();
        assert_eq!(repo.keys("main"), changed, "{version}");
        // The other way, and a chunk that the repacked side has written, too.
        repo.merge(&["packed", "--into", "work"]).success();
        assert_eq!(repo.keys("work"), changed, "{version}");
        repo.commit("packed", &[("p/c/3", &[78; 2000])]);
        let why = repo.merge(&["packed"]).failure();
        assert!(why.contains("ChunkDoubleUpdate") && why.contains("[[3]]"), "{version}: {why}");
    }
}

/// Version 1 stores every move as a deletion and a new node, version 2 one into a directory without
/// `zarr.json`.
#[test]
fn a_node_that_one_side_deleted_and_the_other_moved_is_a_conflict() {
    for version in versions() {
        for (to, again) in [("b", None), ("plain/a", None), ("plain/a", Some("other/a"))] {
            let repo = setup(version);
            run_on(&repo.place, &["branch", "create", "kept", "--at", "dev"]).success();
            for (from, to) in [("a", Some(to)), (to, again)] {
                let Some(to) = to else { continue };
                let mount = Writable::of(&repo.place, &["--branch", "dev"]);
                std::fs::create_dir_all(mount.root().join(to).parent().unwrap()).unwrap();
                std::fs::rename(mount.root().join(from), mount.root().join(to)).unwrap();
                run_on(mount.root(), &["commit", "-m", "Move"]).success();
            }
            let base = repo.keys("main");
            let mut less = base.clone();
            less.retain(|key, _| !key.starts_with("a/"));
            Reference::open(&repo.place).change(&base, &less);
            let moved = repo.keys("dev");
            for words in [
                &["dev"][..],
                &["main", "--into", "dev"],
                &["dev", "--on-conflict", "ours"],
                &["dev", "--on-conflict", "theirs"],
                &["dev", "--keep-commits"],
            ] {
                let why = repo.merge(words).failure();
                assert!(why.contains("/a: MoveOperationCannotBeRebased"), "{version}, {to}, {words:?}: {why}");
            }
            assert_eq!((repo.keys("main"), repo.keys("dev")), (less, moved.clone()));
            // A side that did nothing else gets the move, and one that moved it, too, has it.
            repo.merge(&["dev", "--into", "kept"]).success();
            assert_eq!(repo.keys("kept"), moved, "{version}, {to}");
        }
    }
}

#[test]
fn a_node_that_both_sides_moved_needs_no_other_ancestor() {
    for version in versions() {
        for folder in ["", "plain/"] {
            let repo = setup(version);
            for branch in ["same", "other"] {
                run_on(&repo.place, &["branch", "create", branch, "--at", "dev"]).success();
            }
            for (branch, name) in [("dev", "b"), ("same", "b"), ("other", "c")] {
                let mount = Writable::of(&repo.place, &["--branch", branch]);
                let to = mount.root().join(format!("{folder}{name}"));
                std::fs::create_dir_all(to.parent().unwrap()).unwrap();
                std::fs::rename(mount.root().join("a"), to).unwrap();
                run_on(mount.root(), &["commit", "-m", "Move"]).success();
            }
            let same = repo.keys("same");
            let other = repo.keys("other");
            // One side has moved it, and deleted a chunk or written one.
            let is_new = version == SpecVersionBin::V1 || !folder.is_empty();
            for (branch, delete) in [("less", true), ("more", false)].into_iter().filter(|_| is_new) {
                run_on(&repo.place, &["branch", "create", branch, "--at", "same"]).success();
                let mut keys = same.clone();
                let chunk = format!("{folder}b/c/1");
                if delete {
                    keys.remove(&chunk);
                } else {
                    keys.insert(chunk, b"more".to_vec());
                }
                Reference::open(&repo.place).on(branch).change(&same, &keys);
                for words in [[branch, "--into", "dev"], ["dev", "--into", branch]] {
                    repo.merge(&words).failure();
                    assert!(repo.keys(branch) == keys && repo.keys("dev") == same, "{version}, {folder}, {words:?}");
                }
            }
            repo.merge(&["same", "--into", "dev"]).success();
            assert_eq!(repo.keys("dev"), same, "{version}, {folder}");
            let why = repo.merge(&["other", "--into", "dev"]).failure();
            assert!(why.contains("changed the same things"), "{version}, {folder}: {why}");
            assert_eq!((repo.keys("dev"), repo.keys("other")), (same, other));
        }
    }
}

#[test]
fn an_amended_merge_is_still_one() {
    let repo = setup(SpecVersionBin::V2);
    repo.commit("dev", &[("a/c/2", b"dev")]);
    repo.commit("main", &[("a/c/5", b"main")]);
    repo.merge(&["dev", "-m", "Both", "--metadata", "run=7"]).success();
    let mut record = repo.newest()["metadata"]["icechunkfs.merge"].clone();
    assert_eq!(record["commit"], repo.newest()["id"]);
    let replaced = repo.newest()["id"].clone();
    run_on(&repo.place, &["rewrite-manifests", "--amend", "--yes", "--metadata", "more=1"]).success();
    let commit = repo.newest();
    // The record is that of the new commit, which says for which one it stands.
    record["commit"] = commit["id"].clone();
    let stands_for = json!({"commit": commit["id"], "commits": [replaced]});
    assert_eq!(commit["metadata"]["icechunkfs.replaces"], stands_for);
    assert_eq!((&commit["message"], &commit["metadata"]["run"]), (&json!("Both"), &json!(7)));
    assert_eq!((&commit["metadata"]["more"], &commit["metadata"]["icechunkfs.merge"]), (&json!(1), &record));
    let mount = Writable::of(&repo.place, &["--branch", "main"]);
    std::fs::write(mount.root().join("a/c/5"), "more").unwrap();
    run_on(mount.root(), &["commit", "--amend", "-m", "Amended"]).success();
    // Nobody else makes such a record, or changes it.
    std::fs::write(mount.root().join("a/c/6"), "more").unwrap();
    for amend in [&[][..], &["--amend"]] {
        let words = [&["commit", "-m", "No merge", "--metadata", "icechunkfs.merge={}"], amend].concat();
        let why = run_on(mount.root(), &words).failure();
        assert!(why.contains("`icechunkfs.merge` is reserved"), "{why}");
    }
    drop(mount);
    let commit = repo.newest();
    record["commit"] = commit["id"].clone();
    assert_eq!((&commit["message"], &commit["metadata"]["icechunkfs.merge"]), (&json!("Amended"), &record));
    // A chunk that main takes back stays away: the source has nothing new.
    repo.commit("main", &[("a/c/2", b"again")]);
    assert!(repo.merge(&["dev"]).text().contains("has all changes"));
    for words in [
        &["amend", "--yes", "--metadata", "icechunkfs.merge=1"][..],
        &["squash", "--last", "2", "--yes", "--metadata", "icechunkfs.merge=1"],
    ] {
        let why = run_on(&repo.place, words).failure();
        assert!(why.contains("`icechunkfs.merge` is reserved"), "{why}");
    }
}

#[test]
fn kept_commits_do_not_bring_back_what_the_branch_has_changed_since() {
    for version in versions() {
        let repo = setup(version);
        repo.commit("dev", &[("a/c/2", b"dev 1")]);
        repo.commit("main", &[("a/c/0", b"main 1")]);
        repo.merge(&["main", "--into", "dev"]).success();
        repo.commit("dev", &[("a/c/3", b"dev 2"), ("a/c/5", b"dev")]);
        repo.commit("main", &[("a/c/0", b"main 2"), ("a/c/5", b"main")]);
        run_on(&repo.place, &["branch", "create", "other", "--at", "main"]).success();
        repo.merge(&["dev", "--keep-commits", "--on-conflict", "theirs"]).success();
        let keys = repo.keys("main");
        for (name, bytes) in [("a/c/0", "main 2"), ("a/c/2", "dev 1"), ("a/c/3", "dev 2"), ("a/c/5", "dev")] {
            assert_eq!(chunk(&keys, name), Some(bytes.as_bytes()), "{version} {name}");
        }
        let messages: Vec<String> = repo.history("main").into_iter().map(|(_, message)| message).take(3).collect();
        assert_eq!(messages, ["work on dev", "work on dev", "work on main"], "the merge itself is none of them");

        // A merge that changed more than it merged is not taken apart.
        let tip = repo.history("other")[0].0.clone();
        repo.commit("other", &[("a/c/2", b"other")]);
        repo.merge(&["other", "--into", "dev", "--on-conflict", "ours"]).success();
        repo.commit("other", &[("a/c/6", b"other")]);
        let why = repo.merge(&["dev", "--into", "other", "--keep-commits", "--on-conflict", "ours"]).failure();
        assert!(why.contains("is a merge") && why.contains("merge without --keep-commits"), "{version}: {why}");
        assert_ne!(repo.history("other")[0].0, tip);
    }
}

#[test]
fn a_merge_that_changes_nothing_is_recorded() {
    for version in versions() {
        let repo = setup(version);
        repo.commit("dev", &[("a/c/0", b"dev"), ("a/c/3", b"same")]);
        repo.commit("main", &[("a/c/0", b"main"), ("a/c/3", b"same")]);
        repo.merge(&["dev"]).failure();
        let before = repo.keys("main");
        let said = repo.merge(&["dev", "--on-conflict", "ours", "--json"]).json();
        assert!(said["snapshot"].is_string() && repo.keys("main") == before, "{said}");
        assert!(repo.merge(&["dev"]).text().contains("has all changes"));
        // A resolved conflict does not come back, and a later change on main is its own.
        repo.commit("dev", &[("a/c/4", b"dev")]);
        repo.commit("main", &[("a/c/3", b"main")]);
        repo.merge(&["dev"]).success();
        let keys = repo.keys("main");
        for (name, bytes) in [("a/c/0", "main"), ("a/c/3", "main"), ("a/c/4", "dev")] {
            assert_eq!(chunk(&keys, name), Some(bytes.as_bytes()), "{name}");
        }
    }
}

#[test]
fn conflicts_are_named_and_change_nothing() {
    let repo = setup(SpecVersionBin::V2);
    repo.commit("dev", &[("a/c/0", b"dev"), ("a/c/2", b"dev")]);
    repo.commit("main", &[("a/c/0", b"main"), ("a/c/1", b"main")]);
    let before = (repo.history("main"), repo.keys("main"));
    let said = repo.merge(&["dev"]).failure();
    assert!(
        said.contains("branch `dev` and branch `main` changed the same things (1 conflict): nothing was merged")
            && said.contains("/a: ChunkDoubleUpdate: both sides changed the same chunks; chunks [[0]]"),
        "{said}"
    );
    let output = repo.merge(&["dev", "--json", "--dry-run"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["snapshot"], &report["conflicts"][0]["coords"]), (&Value::Null, &json!([[0]])));
    assert_eq!((repo.history("main"), repo.keys("main")), before);
    // As in git, ours is the branch that gets the commit.
    repo.merge(&["dev", "--on-conflict", "ours"]).success();
    let keys = repo.keys("main");
    assert_eq!(
        ["a/c/0", "a/c/1", "a/c/2"].map(|name| chunk(&keys, name).unwrap()),
        [b"main".as_slice(), b"main", b"dev"]
    );
    repo.commit("dev", &[("a/c/0", b"dev again")]);
    repo.merge(&["dev", "--on-conflict", "theirs"]).success();
    assert_eq!(chunk(&repo.keys("main"), "a/c/0"), Some(&b"dev again"[..]));
    // So are members of documents.
    let document = |n: u64| array(&[8], &[1]).replace("\"attributes\":{}", &format!("\"attributes\":{{\"n\":{n}}}"));
    repo.commit("dev", &[("a/zarr.json", document(1).as_bytes())]);
    repo.commit("main", &[("a/zarr.json", document(2).as_bytes())]);
    let said = repo.merge(&["dev"]).failure();
    assert!(
        said.contains("/a: ZarrMetadataDoubleUpdate: both sides changed zarr.json; members attributes/n"),
        "{said}"
    );
    repo.merge(&["dev", "--on-conflict", "theirs"]).success();
    assert_eq!(repo.keys("main")["a/zarr.json"], document(1).into_bytes());
    repo.commit("main", &[("a/zarr.json", document(2).as_bytes())]);
    // The same change on both sides is none.
    repo.commit("dev", &[("a/zarr.json", document(2).as_bytes()), ("a/c/6", b"6")]);
    repo.merge(&["dev"]).success();
    assert_eq!(chunk(&repo.keys("main"), "a/c/6"), Some(&b"6"[..]));
}

#[test]
fn commits_are_kept_with_their_messages_and_metadata() {
    for version in versions() {
        let repo = setup(version);
        let metadata = |name: &str| json!({"author": name, "nested": {"n": [1, 2]}});
        for (n, who) in [(2, "one"), (3, "two"), (4, "three")] {
            let mount = Writable::of(&repo.place, &["--branch", "dev"]);
            std::fs::write(mount.root().join(format!("a/c/{n}")), who).unwrap();
            let root = mount.root();
            let words = ["commit", root.to_str().unwrap(), "-m", who, "--metadata"];
            let author = format!("author={who}");
            let nested = "nested={\"n\":[1,2]}";
            icechunkfs([&words[..], &[&author, "--metadata", nested]].concat()).success();
        }
        // This one changes nothing that main has not.
        repo.commit("dev", &[("a/c/5", b"same")]);
        repo.commit("main", &[("a/c/5", b"same"), ("a/c/6", b"main")]);
        let dev: Vec<Value> =
            run_on(&repo.place, &["log", "--branch", "dev", "--json"]).json().as_array().unwrap().clone();
        let said = repo.merge(&["dev", "--keep-commits", "--metadata", "run=7", "--json"]).json();
        let history = run_on(&repo.place, &["log", "--json"]).json();
        let ids: Vec<&Value> = history.as_array().unwrap().iter().take(3).map(|commit| &commit["id"]).rev().collect();
        assert_eq!(said["made"].as_array().unwrap().iter().collect::<Vec<_>>(), ids);
        assert_eq!((&said["snapshot"], history.as_array().unwrap().len()), (&history[0]["id"], 6));
        // The newest one stands for the one that changes nothing, too.
        for (n, who, of) in [(0, "three", 0), (1, "two", 2), (2, "one", 3)] {
            let commit = &history[n];
            let expected = metadata(who);
            assert_eq!(commit["message"], json!(who));
            for key in ["author", "nested"] {
                assert_eq!(commit["metadata"][key], expected[key]);
            }
            assert_eq!(commit["metadata"]["run"], json!(7));
            let record = &commit["metadata"]["icechunkfs.merge"];
            assert_eq!(
                (&record["source"], &record["snapshot"], &record["incomplete"]),
                (&json!("branch `dev`"), &dev[of]["id"], &Value::Null)
            );
            // Each has what the ones before do not have.
            let others: &[&Value] = if n == 0 { &[&dev[1]["id"]] } else { &[] };
            assert_eq!(record["commits"], json!(others));
        }
        let keys = repo.keys("main");
        for (n, bytes) in [(2, "one"), (3, "two"), (4, "three"), (5, "same"), (6, "main")] {
            assert_eq!(chunk(&keys, &format!("a/c/{n}")), Some(bytes.as_bytes()));
        }
        // Each commit shows what it had: the second one not yet what the third one brought.
        let past = history[1]["id"].as_str().unwrap();
        run_on(&repo.place, &["branch", "create", "past", "--at", past]).success();
        let past = repo.keys("past");
        assert!(past.contains_key("a/c/3") && past.contains_key("a/c/6") && !past.contains_key("a/c/4"));
        run_on(&repo.place, &["verify"]).success();
        let again = repo.merge(&["dev", "--keep-commits"]).text();
        assert!(again.contains("has all changes of branch `dev` already"), "{again}");
        // The reference goes on, and so does a merge of what is new since.
        repo.commit("main", &[("a/c/7", b"on")]);
        repo.commit("dev", &[("a/c/0", b"dev")]);
        let said = repo.merge(&["dev", "--keep-commits", "--delete-source"]).text();
        assert!(said.contains("merged 1 commit of branch `dev` into main as 1 commit:"), "{said}");
        assert_eq!(chunk(&repo.keys("main"), "a/c/0"), Some(&b"dev"[..]));
    }
}

#[test]
fn kept_commits_appear_together_or_not_at_all() {
    for step in ["commit.log", "commit.snapshot.done", "commit.publish", "commit.publish.done"] {
        let repo = setup(SpecVersionBin::V2);
        repo.commit("dev", &[("a/c/2", b"dev")]);
        repo.commit("dev", &[("a/c/3", b"dev")]);
        repo.commit("main", &[("a/c/4", b"main")]);
        let before = repo.history("main");
        let killed = run_with_fault(&repo.place, &["merge", "dev", "--keep-commits"], &format!("{step}=abort"));
        assert!(!killed.status.success(), "{step} is not passed");
        let made = if step == "commit.publish.done" { 2 } else { 0 };
        assert_eq!(repo.history("main").len(), before.len() + made, "{step}");
        repo.merge(&["dev", "--keep-commits"]).success();
        let keys = repo.keys("main");
        let history = repo.history("main");
        assert_eq!((history.len(), keys.contains_key("a/c/2"), keys.contains_key("a/c/3")), (5, true, true), "{step}");
        run_on(&repo.place, &["verify"]).success();
    }
}

#[test]
fn a_dry_run_shows_what_would_change() {
    let repo = setup(SpecVersionBin::V2);
    repo.commit("dev", &[("a/c/2", b"dev")]);
    let before = repo.history("main");
    let said = repo.merge(&["dev", "--dry-run"]).text();
    assert_eq!(said, "1 commit of branch `dev` can be merged into main: 0 nodes, 1 chunk\n");
    assert_eq!(repo.history("main"), before);
}

#[test]
fn the_source_is_a_ref_or_a_snapshot_and_may_be_deleted() {
    let repo = setup(SpecVersionBin::V2);
    repo.commit("dev", &[("a/c/2", b"tagged")]);
    run_on(&repo.place, &["tag", "create", "v1", "--at", "dev"]).success();
    repo.commit("dev", &[("a/c/3", b"last")]);
    repo.merge(&["v1"]).success();
    assert_eq!(
        (repo.newest()["message"].clone(), repo.keys("main").contains_key("a/c/3")),
        (json!("Merge tag `v1`"), false)
    );
    for (words, why) in [
        (&["main"][..], "cannot be merged into itself"),
        (&["v1", "--delete-source"], "is not a branch"),
        (&["main", "--into", "dev", "--delete-source"], "main"),
        (&["nothing"], "nothing"),
        (&["dev", "--into", "nowhere"], "nowhere"),
        (&["dev", "--metadata", "icechunkfs.merge=1"], "reserved"),
    ] {
        let said = repo.merge(words).failure();
        assert!(said.contains(why), "{words:?}: {said}");
    }
    let said = repo.merge(&["dev~0", "--json"]).json();
    assert_eq!(said["chunks"], json!(1));
    let said = repo.merge(&["dev", "--delete-source"]).text();
    assert!(said.contains("deleted branch `dev`"), "{said}");
    let refs = run_on(&repo.place, &["refs", "--json"]).json();
    assert!(refs["branches"].get("dev").is_none(), "{refs}");
}

/// Returns the names of the chunk objects.
pub(super) fn objects(place: &Path) -> Vec<PathBuf> {
    entries(&place.join("chunks"))
}

#[test]
fn no_chunk_is_copied() {
    if !place::needs_directory() {
        return;
    }
    let repo = setup(SpecVersionBin::V2);
    let large = vec![7; 1 << 20];
    let keys: Vec<String> = (2..8).map(|n| format!("a/c/{n}")).collect();
    let keys: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), large.as_slice())).collect();
    repo.commit("dev", &keys);
    repo.commit("main", &[("a/c/0", b"main")]);
    let before = objects(&repo.place);
    assert!(before.len() >= 6);
    repo.merge(&["dev"]).success();
    assert_eq!(objects(&repo.place), before);
    assert_eq!(chunk(&repo.keys("main"), "a/c/7"), Some(large.as_slice()));
}

#[test]
fn branches_of_eight_writers_are_merged_at_once() {
    for version in versions() {
        let repo = setup(version);
        let names: Vec<String> = (0..8).map(|n| format!("job-{n}")).collect();
        for (n, name) in names.iter().enumerate() {
            run_on(&repo.place, &["branch", "create", name]).success();
            let own = format!("job{n}/zarr.json");
            let shared = format!("a/c/{n}");
            let document = array(&[1], &[1]);
            repo.commit(
                name,
                &[(&own, document.as_bytes()), (&format!("job{n}/c/0"), b"own"), (&shared, name.as_bytes())],
            );
        }
        // Each twice, by two programs at the same time: one of them finds that it is done.
        let twice: Vec<&String> = names.iter().chain(&names).collect();
        let outputs = all_together(&twice, |n, name| {
            let keep: &[&str] = if n % 2 == 0 { &["--keep-commits"] } else { &[] };
            repo.merge(&[&[name.as_str(), "--json"], keep].concat())
        });
        let made = outputs.into_iter().filter(|output| !output_snapshot(output).is_null()).count();
        let keys = repo.keys("main");
        for (n, name) in names.iter().enumerate() {
            assert_eq!(chunk(&keys, &format!("a/c/{n}")), Some(name.as_bytes()));
            assert_eq!(chunk(&keys, &format!("job{n}/c/0")), Some(&b"own"[..]));
        }
        assert_eq!((made, repo.history("main").len()), (8, 10), "one commit for each, two before");
        run_on(&repo.place, &["verify"]).success();
    }
}

fn output_snapshot(output: &Output) -> Value {
    assert!(output.status.success(), "{}", output.stderr);
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["snapshot"].clone()
}

#[test]
fn a_merge_that_is_killed_is_there_or_not() {
    for step in ["commit.log", "commit.snapshot", "commit.publish", "commit.publish.done"] {
        let repo = setup(SpecVersionBin::V2);
        repo.commit("dev", &[("a/c/2", b"dev")]);
        let before = repo.keys("main");
        let killed = run_with_fault(&repo.place, &["merge", "dev"], &format!("{step}=abort"));
        assert!(!killed.status.success(), "{step} is not passed");
        let is_there = step == "commit.publish.done";
        assert_eq!(repo.keys("main") != before, is_there, "{step}");
        repo.merge(&["dev"]).success();
        assert_eq!(chunk(&repo.keys("main"), "a/c/2"), Some(&b"dev"[..]));
        assert_eq!(repo.history("main").len(), 3, "{step}: merged once");
    }
}

#[test]
fn jobs_write_into_branches_of_their_own() {
    for version in versions() {
        let repo = setup(version);
        let mount = Writable::of(&repo.place, &["--branch", "job-42", "--create"]);
        std::fs::write(mount.root().join("a/c/2"), b"job").unwrap();
        mount.commit("the job").unwrap();
        drop(mount);
        assert!(!repo.keys("main").contains_key("a/c/2"), "nobody sees half of it");
        // A job that is started again goes on in its branch.
        let mount = Writable::of(&repo.place, &["--branch", "job-42", "--create", "--from", "dev"]);
        assert_eq!(std::fs::read(mount.root().join("a/c/2")).unwrap(), b"job");
        // Its scratch directory is not in the usual place.
        if place::is_local() {
            let why = repo.merge(&["job-42", "--delete-source"]).failure();
            assert!(why.contains(&format!("The branch is mounted at {}", mount.root().display())), "{why}");
            assert!(!repo.keys("main").contains_key("a/c/2"));
        }
        drop(mount);
        let older = Writable::of(&repo.place, &["--branch", "old", "--create", "--from", "main~1"]);
        assert!(!older.root().join("a/c/0").exists());
        drop(older);
        repo.merge(&["job-42", "--delete-source"]).success();
        assert_eq!(chunk(&repo.keys("main"), "a/c/2"), Some(&b"job"[..]));
        let mount = Mount::prepare();
        for (words, why) in [
            (&["--create", "-o", "ro"][..], "a writable mount of a branch"),
            (&["--create", "--tag", "v1"], "a writable mount of a branch"),
            (&["--branch", "new", "--from", "dev"], "--create"),
            (&["--branch", "new", "--create", "--from", "nothing"], "nothing"),
        ] {
            let said = mount.command(&repo.place, words).failure();
            assert!(said.contains(why), "{words:?}: {said}");
        }
        let refs = run_on(&repo.place, &["refs", "--json"]).json();
        assert!(refs["branches"].get("new").is_none(), "{refs}");
    }
}

#[test]
fn mounts_that_create_a_branch_at_once_share_it() {
    let repo = setup(SpecVersionBin::V2);
    let mounts: Vec<Mount> = (0..4).map(|_| Mount::prepare()).collect();
    let outputs = all_together(&mounts, |_, mount| mount.command(&repo.place, &["--branch", "job", "--create"]));
    outputs.into_iter().for_each(|output| drop(output.success()));
    assert_eq!(repo.keys("job"), repo.keys("main"));
}
