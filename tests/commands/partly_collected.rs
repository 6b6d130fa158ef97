//! Snapshots on no branch or tag, of which a garbage collection has removed some objects: nothing
//! may refer to these again.

use std::fs::{self, FileTimes};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use icechunk::format::format_constants::SpecVersionBin;

use super::restore::empty;
use crate::common::writing::{GROUP, Reference, Writable, array};
use crate::common::{Output, entries, errno, read_files, run_on};

struct Setup {
    place: PathBuf,
    /// Snapshot on no branch or tag.
    lost: String,
    /// Its chunk object that is old enough to be collected.
    object: String,
    _directory: tempfile::TempDir,
}

/// A repository whose branch was reset away from a young snapshot with an old and a young chunk,
/// and where garbage was collected since.
fn setup(version: SpecVersionBin) -> Setup {
    let (directory, place, reference) = empty(version);
    let document = array(&[4], &[1]);
    let keys =
        [("zarr.json", GROUP.as_bytes()), ("g/zarr.json", GROUP.as_bytes()), ("g/a/zarr.json", document.as_bytes())];
    reference.commit(&keys, "one");
    let one = reference.history()[0].0.clone();
    reference.commit(&[("g/a/c/0", &[2; 300 << 10])], "two");
    let object = entries(&place.join("chunks")).pop().unwrap();
    let old = SystemTime::now() - Duration::from_secs(2 * 86_400);
    fs::File::options().write(true).open(&object).unwrap().set_times(FileTimes::new().set_modified(old)).unwrap();
    reference.commit(&[("g/a/c/1", &[3; 300 << 10])], "three");
    let lost = reference.history()[0].0.clone();
    run_on(&place, &["branch", "reset", "main", "--to", &one, "--yes"]).success();
    run_on(&place, &["gc", "--older-than", "1d", "--yes"]).success();
    let object = object.file_name().unwrap().to_str().unwrap().to_owned();
    Setup { place, lost, object, _directory: directory }
}

impl Setup {
    fn run(&self, words: &[&str]) -> Output {
        run_on(&self.place, words)
    }

    fn has_object(&self) -> bool {
        self.place.join("chunks").join(&self.object).exists()
    }

    #[track_caller]
    fn assert_refused(&self, refused: Output) {
        let why = refused.failure();
        assert!(why.contains(&self.object) && why.contains("/g/a") && why.contains("[0]"), "{why}");
    }

    /// Checks that the branches and tags are as they were, and whole.
    #[track_caller]
    fn assert_unchanged(&self) {
        let reference = Reference::open(&self.place);
        let messages: Vec<String> = reference.history().into_iter().map(|(_, message)| message).collect();
        assert_eq!(messages[0], "one");
        let refs = ["branch", "tag"].map(|kind| self.run(&[kind, "list", "--json"]).json().as_array().unwrap().len());
        assert_eq!(refs, [1, 0]);
        self.run(&["verify"]).success();
    }
}

#[test]
fn a_restore_from_a_snapshot_with_missing_chunks_is_refused() {
    let repo = setup(SpecVersionBin::V1);
    assert!(!repo.has_object(), "the collection has removed it");
    for path in [".", "g/a", "g/a/c", "g/a/c/0"] {
        for more in [&["--dry-run"][..], &[]] {
            repo.assert_refused(repo.run(&[&["restore", path, "--from", &repo.lost], more].concat()));
        }
    }
    repo.assert_unchanged();
    // The other chunk is restored.
    repo.run(&["restore", "g/a/c/1", "--from", &repo.lost]).success();
    assert_eq!(Reference::open(&repo.place).keys()["g/a/c/1"], [3; 300 << 10]);
    repo.run(&["verify"]).success();
}

#[test]
fn a_restore_in_a_mount_from_a_snapshot_with_missing_chunks_is_refused() {
    let repo = setup(SpecVersionBin::V1);
    let mount = Writable::of(&repo.place, &[]);
    let before = read_files(&mount.root());
    repo.assert_refused(run_on(mount.root(), &["restore", "g/a", "--from", &repo.lost]));
    assert_eq!(read_files(&mount.root()), before);
    assert!(mount.read_control("status").contains("nothing to commit"));
    repo.assert_unchanged();
}

#[test]
fn a_commit_of_a_copied_chunk_that_is_missing_is_refused() {
    let repo = setup(SpecVersionBin::V1);
    // With passthrough, the file of the missing object cannot be opened.
    let mount = Writable::of(&repo.place, &["--io", "cached"]);
    let lost = mount.control("at/snapshot").join(&repo.lost).join("g/a/c");
    let gone = mount.root().join("g/a/c/2");
    let there = mount.root().join("g/a/c/3");
    fs::create_dir_all(gone.parent().unwrap()).unwrap();
    fs::copy(lost.join("0"), &gone).unwrap();
    fs::copy(lost.join("1"), &there).unwrap();
    assert_eq!(errno(mount.commit("copied")), libc::ESTALE);
    let why = mount.read_control("commit");
    assert!(why.contains("chunk [2] of /g/a"), "{why}");
    repo.assert_unchanged();
    fs::remove_file(&gone).unwrap();
    mount.commit("the other").unwrap();
    assert_eq!(Reference::open(&repo.place).keys()["g/a/c/3"], [3; 300 << 10]);
    repo.run(&["verify"]).success();
}

#[test]
fn refs_to_a_snapshot_with_missing_chunks_are_refused() {
    let repo = setup(SpecVersionBin::V1);
    repo.assert_refused(repo.run(&["branch", "create", "x", "--at", &repo.lost]));
    repo.assert_refused(repo.run(&["tag", "create", "x", "--at", &repo.lost]));
    repo.assert_refused(repo.run(&["branch", "reset", "main", "--to", &repo.lost, "--yes"]));
    let why = repo.run(&["merge", &repo.lost, "--into", "main"]).failure();
    assert!(why.contains("chunk [0] of /g/a"), "{why}");
    repo.assert_unchanged();
}

/// In version 2, a collection keeps all that the snapshots need that it leaves in the list.
#[test]
fn a_young_snapshot_of_version_2_stays_whole() {
    let repo = setup(SpecVersionBin::V2);
    assert!(repo.has_object());
    repo.run(&["restore", "g/a", "--from", &repo.lost]).success();
    repo.run(&["branch", "create", "x", "--at", &repo.lost]).success();
    assert_eq!(Reference::open(&repo.place).keys()["g/a/c/0"], [2; 300 << 10]);
    repo.run(&["verify"]).success();
}

/// Commits that refs lead to, and whole snapshots on no ref, can be used as before.
#[test]
fn whole_snapshots_of_version_1_can_be_used() {
    let repo = setup(SpecVersionBin::V1);
    fs::write(repo.place.join("chunks").join(&repo.object), [2; 300 << 10]).unwrap();
    repo.run(&["restore", "g/a", "--from", &repo.lost]).success();
    repo.run(&["branch", "create", "x", "--at", &repo.lost]).success();
    repo.run(&["tag", "create", "before", "--at", "x~1"]).success();
    assert_eq!(Reference::open(&repo.place).keys()["g/a/c/0"], [2; 300 << 10]);
    repo.run(&["verify"]).success();
}
