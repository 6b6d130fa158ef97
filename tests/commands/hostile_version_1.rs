//! Pulls from a hostile repository of version 1, where each commit names its parent in a file of
//! its own.

use std::path::{Path, PathBuf};

use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::error::{ErrorKind, Result};
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::snapshot::Snapshot;
use icechunkfs::repo::Repository;
use icechunkfs::repo::change_refs::RefKind;
use icechunkfs::repo::import_ref::{RefImport, StoredCommits, import_refs};
use icechunkfs::storage;
use icechunkfs::sync::Counters;
use icechunkfs::sync::push::{PushOptions, Pushed, push};
use icechunkfs::times::system_clock;

use super::hostile_source::{copy_of_a_stranger, tip};
use super::merge::{Setup, setup};
use crate::common::changing::Changing;
use crate::common::writing::Reference;
use crate::common::{block_on, copy_tree, place, run_on};

/// The user's repository, with a commit on `main` and one on `dev`, and a copy of it in which a
/// stranger has added one to `main`.
struct Family {
    mine: Setup,
    theirs: PathBuf,
    begin: ObjectId,
    main: ObjectId,
    added: ObjectId,
    directory: tempfile::TempDir,
}

/// None where the tests run over a store.
fn family() -> Option<Family> {
    if !place::needs_directory() {
        return None;
    }
    let mine = setup(SpecVersionBin::V1);
    let begin = tip(&mine.place, "main");
    let (theirs, added, directory) = copy_of_a_stranger(&mine, "main");
    let main = tip(&mine.place, "main");
    Some(Family { mine, theirs, begin, main, added, directory })
}

impl Family {
    /// Pulls `main` from the stranger, who is told of each read of an object.
    fn pull_while(&self, before_read: impl FnMut(&str) + Send + 'static) -> Result<Pushed> {
        let mut before_read = before_read;
        let open = |place: &Path| storage::open_directory(place).unwrap();
        let source = Changing::new(open(&self.theirs), move |key| {
            before_read(key);
            Ok(())
        });
        block_on(async {
            let from = Repository::open(source).await?;
            let to = Repository::open(open(&self.mine.place)).await?;
            let options = PushOptions { refs: vec!["main".to_owned()], memory: 64 << 20, ..PushOptions::default() };
            push(from, to, &options, &Counters::default(), system_clock).await
        })
    }

    /// Makes a copy of version 2 with one more commit.
    fn newer(&self) -> PathBuf {
        let newer = self.directory.path().join("newer");
        copy_tree(&self.mine.place, &newer);
        run_on(&newer, &["migrate", "--yes"]).success();
        Reference::open(&newer).commit(&[("a/c/5", b"stranger")], "of version 2");
        newer
    }

    fn snapshot(&self, id: ObjectId) -> PathBuf {
        self.theirs.join(format!("snapshots/{id}"))
    }

    fn assert_kept(&self, how: &str) {
        let history = self.mine.history("main");
        assert!(history.iter().any(|(id, _)| *id == self.main.to_string()), "{how}: {history:?}");
        run_on(&self.mine.place, &["verify"]).success();
    }
}

/// Gives the commit in `file` another parent.
fn change_parent(file: &Path, parent: ObjectId) -> Vec<u8> {
    let bytes = std::fs::read(file).unwrap();
    Snapshot::decode(&bytes, 1 << 20).unwrap().with_parent(parent).unwrap()
}

#[test]
fn a_pull_stores_the_parents_by_which_it_has_decided() {
    let mut pulled = 0;
    for at in 2..8 {
        let Some(family) = family() else { return };
        let file = family.snapshot(family.added);
        let key = format!("snapshots/{}", family.added);
        let forged = change_parent(&file, family.begin);
        let mut reads = 0;
        let result = family.pull_while(move |read| {
            reads += usize::from(read == key);
            if read == key && reads == at {
                std::fs::write(&file, &forged).unwrap();
            }
        });
        family.assert_kept(&format!("another parent at read {at}: {result:?}"));
        pulled += usize::from(tip(&family.mine.place, "main") == family.added);
    }
    // After the last read, an exchange changes nothing.
    assert!(pulled > 0);
}

#[test]
fn a_branch_goes_forward_only_by_the_files_that_are_here() {
    let Some(family) = family() else { return };
    let dev = tip(&family.mine.place, "dev");
    let import =
        RefImport { kind: RefKind::Branch, name: "main", expected: Some(family.main), target: dev, is_forward: true };
    let commits = StoredCommits { records: &[], stored_since: None, has_moves: false };
    let imported = block_on(async {
        let mine = Repository::open(storage::open_directory(&family.mine.place).unwrap()).await.unwrap();
        import_refs(&mine, &[import], commits, system_clock).await
    });
    let error = imported.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    family.assert_kept("a commit that does not follow");
    // It is a move, too, if it is not said to be forward.
    let forced = RefImport { is_forward: false, ..import };
    block_on(async {
        let mine = Repository::open(storage::open_directory(&family.mine.place).unwrap()).await.unwrap();
        import_refs(&mine, &[forced], commits, system_clock).await
    })
    .unwrap()
    .remove(0)
    .unwrap();
    assert_eq!(tip(&family.mine.place, "main"), dev);
}

/// A stranger exchanges the repository for one of version 2 in the middle of a pull, which begins
/// again because an object is missing.
#[test]
fn a_pull_that_begins_again_takes_no_other_version() {
    let Some(family) = family() else { return };
    let newer = family.newer();
    let theirs = family.theirs.clone();
    let result = family.pull_while(move |read| {
        if read.starts_with("manifests/") && !theirs.join("repo").exists() {
            for folder in ["chunks", "manifests", "refs", "snapshots", "transactions"] {
                let _ = std::fs::remove_dir_all(theirs.join(folder));
            }
            copy_tree(&newer, &theirs);
        }
    });
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(tip(&family.mine.place, "main"), family.main);
    family.assert_kept("another version");
}

/// A file of version 2 names no parent: the commits before it would be lost to the history.
#[test]
fn a_pull_takes_no_snapshot_of_another_version() {
    let Some(family) = family() else { return };
    let newer = family.newer();
    let other = tip(&newer, "main");
    copy_tree(&newer, &family.theirs);
    std::fs::remove_file(family.theirs.join("repo")).unwrap();
    let branch = family.theirs.join("refs/branch.new");
    std::fs::create_dir_all(&branch).unwrap();
    std::fs::write(branch.join("ref.json"), format!("{{\"snapshot\":\"{other}\"}}")).unwrap();
    let why = run_on(&family.mine.place, &["pull", family.theirs.to_str().unwrap(), "new"]).failure();
    assert!(why.contains(&other.to_string()) && why.contains("version 2"), "{why}");
    assert!(!family.mine.place.join(format!("snapshots/{other}")).exists());
}

/// No ref leads to the user's commit at the moment, and the stranger's file of it has another
/// parent.
#[test]
fn a_pull_replaces_no_snapshot_that_no_ref_leads_to() {
    let Some(family) = family() else { return };
    family.mine.commit("dev", &[("a/c/5", b"dev again")]);
    let work = tip(&family.mine.place, "dev");
    let name = format!("snapshots/{work}");
    let theirs = family.directory.path().join("others");
    copy_tree(&family.mine.place, &theirs);
    Reference::open(&family.mine.place).delete_branch("dev");
    let forged = change_parent(&theirs.join(&name), family.begin);
    std::fs::write(theirs.join(&name), forged).unwrap();
    let before = std::fs::read(family.mine.place.join(&name)).unwrap();
    let why = run_on(&family.mine.place, &["pull", theirs.to_str().unwrap(), "dev"]).failure();
    for named in [&name, family.mine.place.to_str().unwrap(), theirs.to_str().unwrap()] {
        assert!(why.contains(named), "{named} in: {why}");
    }
    assert_eq!(std::fs::read(family.mine.place.join(&name)).unwrap(), before);
}
