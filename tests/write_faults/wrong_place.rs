//! Scratch directories that are somebody else's, or where none may be.

use std::path::Path;

use crate::common::{Mount, read_files, watchdog};
use crate::writing::{GROUP, Reference, Writable, create, put};

#[track_caller]
fn refused(mount: &Mount, repository: &Path, scratch: &Path, more: &[&str], words: &[&str]) {
    let mut all = vec!["--scratch", scratch.to_str().unwrap()];
    all.extend(more);
    let said = mount.command(repository, &all).failure();
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
    assert!(mount.mounted_as().is_none());
}

#[test]
fn a_scratch_directory_of_another_repository_or_branch() {
    watchdog();
    let first = Writable::new(&[]);
    put(&first.root().join("zarr.json"), GROUP).unwrap();
    let shown = read_files(&first.root());
    Reference::open(first.repository()).create_branch("dev");
    first.unmount();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = elsewhere.path().join("other");
    create(&other);
    let mount = Mount::prepare();
    let named = first.repository().to_str().unwrap();
    refused(&mount, &other, first.scratch(), &[], &["branch main of", named, "--scratch", "--discard"]);
    let more = ["--branch", "dev"];
    refused(&mount, first.repository(), first.scratch(), &more, &["branch main", "branch dev", "--scratch"]);
    // A repository that was made anew in the same place does not have the snapshot.
    let moved = first.repository().with_file_name("moved");
    std::fs::rename(first.repository(), &moved).unwrap();
    create(first.repository());
    let kept = read_files(first.scratch());
    drop(mount);
    first.mount_again(None);
    std::fs::remove_dir_all(first.repository()).unwrap_or_default();
    first.take_away();
    std::fs::rename(&moved, first.repository()).unwrap();
    first.mount_again(None).success();
    assert!(read_files(&first.root()) == shown);
    assert!(kept.contains_key("journal"));
    first.commit("the changes").unwrap();
}

#[test]
fn a_scratch_directory_where_none_may_be() {
    watchdog();
    let elsewhere = tempfile::tempdir().unwrap();
    let repository = elsewhere.path().join("repo");
    create(&repository);
    let stored = read_files(&repository);
    let mount = Mount::prepare();
    refused(&mount, &repository, &repository.join("scratch"), &[], &["inside the repository"]);
    refused(&mount, &repository, &repository, &[], &["inside the repository"]);
    std::os::unix::fs::symlink(&repository, elsewhere.path().join("link")).unwrap();
    refused(&mount, &repository, &elsewhere.path().join("link/scratch"), &[], &["inside the repository"]);
    refused(&mount, &repository, &mount.path().join("scratch"), &[], &["inside the mountpoint"]);
    // A directory that has other things in it was named by mistake.
    let photos = elsewhere.path().join("photos");
    put(&photos.join("holiday.jpg"), "snow").unwrap();
    for more in [&[][..], &["--discard"]] {
        refused(&mount, &repository, &photos, more, &["holiday.jpg", "no scratch directory"]);
    }
    put(&elsewhere.path().join("file"), "").unwrap();
    refused(&mount, &repository, &elsewhere.path().join("file"), &[], &["file"]);
    assert_eq!(read_files(&photos).into_keys().collect::<Vec<_>>(), ["holiday.jpg"]);
    assert!(read_files(&repository) == stored);
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 0);
}

#[test]
fn two_mounts_of_one_branch_with_one_scratch_directory() {
    watchdog();
    let first = Writable::new(&[]);
    put(&first.root().join("zarr.json"), GROUP).unwrap();
    let second = Mount::prepare();
    let place = first.root();
    for more in [&[][..], &["--discard"]] {
        let words = ["in use", place.to_str().unwrap(), "--scratch"];
        refused(&second, first.repository(), first.scratch(), more, &words);
    }
    assert_eq!(std::fs::read(place.join("zarr.json")).unwrap(), GROUP.as_bytes());
    first.commit("the first one's").unwrap();
    // With one of its own the second is as good.
    second.command(first.repository(), &[]).success();
    assert!(read_files(&second.path()) == read_files(&place));
}
