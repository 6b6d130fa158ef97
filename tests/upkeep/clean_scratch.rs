//! Scratch directories without work, as each mount leaves one after its last commit: nothing counts
//! them as uncommitted changes.

use std::path::{Path, PathBuf};

use crate::common::writing::{self, GROUP, Writable, array, put};
use crate::common::{entries, is_root, place, run_on};

/// A new repository with a commit, made through a mount with the default scratch directory of
/// `main`. Both are removed when it is dropped.
struct Committed {
    mount: Writable,
    repo: PathBuf,
    scratch: PathBuf,
    _directory: tempfile::TempDir,
}

impl Drop for Committed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.scratch.parent().unwrap());
    }
}

/// Commits an array of one chunk, and finds the mount clean. None where it cannot run.
fn committed() -> Option<Committed> {
    if !writing::needed(is_root(), "root, whose scratch directories have a known place") || !place::needs_directory() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    writing::create(&repo);
    let name = icechunkfs::file_name::encode(repo.canonicalize().unwrap().to_str().unwrap());
    let scratch = Path::new("/var/lib/icechunkfs").join(name).join("main");
    let mount = Writable::placed(&repo, &scratch, &[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    put(&mount.root().join("a/zarr.json"), array(&[8], &[1])).unwrap();
    put(&mount.root().join("a/c/0"), vec![7; 300_000]).unwrap();
    mount.commit("to be erased").unwrap();
    run_on(mount.root(), &["unmount", "--require-clean"]).success();
    Some(Committed { mount, repo, scratch, _directory: directory })
}

#[test]
fn a_clean_scratch_directory_is_no_reason_for_a_warning() {
    let Some(place) = committed() else { return };
    let said = run_on(&place.repo, &["branch", "reset", "main", "--to", "main~1", "--yes"]).all();
    assert!(!said.contains("uncommitted"), "{said}");
    let amended = run_on(&place.repo, &["amend", "-m", "again"]).all();
    assert!(!amended.contains("uncommitted"), "{amended}");
}

#[test]
fn a_clean_scratch_directory_keeps_nothing_from_being_collected() {
    let Some(place) = committed() else { return };
    run_on(&place.repo, &["branch", "reset", "main", "--to", "main~1", "--yes"]).success();
    let report = run_on(&place.repo, &["gc", "--older-than", "0s", "--yes", "--json"]).json();
    assert_eq!(report["uncommitted"], serde_json::json!([]), "{report:#}");
    assert_eq!(entries(&place.repo.join("chunks")).len(), 0, "{report:#}");
    // The base is gone, and with it nothing that anybody waits for.
    place.mount.mount_again(None).success();
    assert!(!place.mount.root().join("a").exists());
    // The base of a mount is kept, also of one without work.
    put(&place.mount.root().join("zarr.json"), GROUP).unwrap();
    place.mount.commit("shown").unwrap();
    run_on(&place.repo, &["branch", "reset", "main", "--to", "main~1", "--yes"]).success();
    let report = run_on(&place.repo, &["gc", "--older-than", "0s", "--yes", "--json"]).json();
    assert_eq!((&report["uncommitted"][0]["changes"], &report["commits"]), (&false.into(), &serde_json::json!([])));
    let gc = || run_on(&place.repo, &["gc", "--older-than", "0s", "--yes"]).text();
    assert!(gc().contains("kept for a mount of branch `main`"), "{}", gc());
    put(&place.mount.root().join("zarr.json"), GROUP.replace("{}", "{\"x\":1}")).unwrap();
    assert!(gc().contains("kept for uncommitted work on branch `main`"), "{}", gc());
    run_on(place.mount.root(), &["discard"]).success();
    place.mount.unmount();
    assert!(!gc().contains("kept for"), "{}", gc());
}

#[test]
fn a_clean_scratch_directory_of_another_repository_is_taken_over() {
    let Some(place) = committed() else { return };
    for is_clean in [true, false] {
        std::fs::remove_dir_all(&place.repo).unwrap();
        writing::create(&place.repo);
        let mounted = place.mount.mount_again(None);
        if is_clean {
            mounted.success();
            assert!(!place.mount.root().join("a").exists());
            // An untracked file is no change, and is not lost.
            put(&place.mount.root().join("notes"), "mine").unwrap();
            place.mount.unmount();
        } else {
            assert!(mounted.failure().contains("--discard"));
        }
    }
}
