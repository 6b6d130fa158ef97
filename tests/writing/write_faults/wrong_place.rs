//! Scratch directories of another repository, or in forbidden places.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::writing::{GROUP, Reference, Writable, create, echo, needed, put};
use crate::common::{Mount, copy_tree, icechunkfs, is_root, program, read_files, run, watchdog};

#[track_caller]
fn refused(mount: &Mount, repository: &Path, scratch: &Path, more: &[&str], words: &[&str]) {
    let mut all = vec!["--scratch", scratch.to_str().unwrap()];
    all.extend(more);
    let output = mount.command(repository, &all).failure();
    for word in words {
        assert!(output.contains(word), "`{word}` is not in: {output}");
    }
    assert!(mount.mounted_as().is_none());
}

#[test]
fn a_scratch_directory_of_another_repository_or_branch_is_refused() {
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
    // A repository that was created again in the same place does not have the snapshot.
    let moved = first.repository().with_file_name("moved");
    std::fs::rename(first.repository(), &moved).unwrap();
    create(first.repository());
    let kept = read_files(first.scratch());
    drop(mount);
    first.mount_again(None);
    std::fs::remove_dir_all(first.repository()).unwrap_or_default();
    first.remove_dead_mount();
    std::fs::rename(&moved, first.repository()).unwrap();
    first.mount_again(None).success();
    assert!(read_files(&first.root()) == shown);
    assert!(kept.contains_key("journal"));
    first.commit("the changes").unwrap();
}

/// A repository is recognized by its first snapshot, wherever it lies and by whatever path it is
/// named.
#[test]
fn a_moved_or_linked_repository_resumes_its_work() {
    watchdog();
    let first = Writable::new(&[]);
    put(&first.root().join("zarr.json"), GROUP).unwrap();
    first.commit("a group").unwrap();
    put(&first.root().join("a/zarr.json"), GROUP).unwrap();
    let shown = read_files(&first.root());
    first.unmount();
    let scratch = ["--scratch", first.scratch().to_str().unwrap()];
    let link = first.repository().with_file_name("link");
    std::os::unix::fs::symlink(first.repository(), &link).unwrap();
    let mount = Mount::prepare();
    let output = mount.command(&link, &scratch);
    assert!(
        output.stderr.contains("resuming") && !output.stderr.contains("the repository was at"),
        "{}",
        output.stderr
    );
    assert!(read_files(&mount.path()) == shown);
    drop(mount);
    let moved = first.repository().with_file_name("moved");
    std::fs::rename(first.repository(), &moved).unwrap();
    let mount = Mount::prepare();
    let output = mount.command(&moved, &scratch);
    let was = first.repository().to_str().unwrap();
    for words in ["resuming", "the repository was at", was, moved.to_str().unwrap()] {
        assert!(output.stderr.contains(words), "`{words}` is not in: {}", output.stderr);
    }
    assert!(read_files(&mount.path()) == shown);
    drop(mount);
    // Another one in its place is refused, though it has a snapshot of the same id.
    create(first.repository());
    let mount = Mount::prepare();
    refused(&mount, first.repository(), first.scratch(), &[], &["which has been replaced", "--discard"]);
    drop(mount);
    // Expired history does not make it another one.
    let mount = Mount::prepare();
    mount.command(&moved, &scratch).success();
    echo(&mount.path().join(".icechunk/commit"), "more").unwrap();
    put(&mount.path().join("b/zarr.json"), GROUP).unwrap();
    let shown = read_files(&mount.path());
    drop(mount);
    for command in ["expire", "gc"] {
        icechunkfs([command, moved.to_str().unwrap(), "--older-than", "0s", "--yes"]).success();
    }
    let mount = Mount::prepare();
    mount.command(&moved, &scratch).success();
    assert!(read_files(&mount.path()) == shown);
}

/// The default scratch directory is found by the repository's identity, too; that of a copy stays
/// its own.
#[test]
fn a_moved_repository_keeps_its_default_scratch_directory() {
    watchdog();
    let made = Writable::new(&[]);
    put(&made.root().join("zarr.json"), GROUP).unwrap();
    made.commit("a group").unwrap();
    made.unmount();
    let mut defaults = Defaults::default();
    let mut mounted = |repository: &Path| {
        let mount = Mount::prepare();
        let output = run(Command::new(program()).arg("mount").arg(repository).arg(mount.path()));
        let status = mount.control_json("status.json");
        defaults.0.push(Path::new(status["scratch"].as_str().unwrap()).parent().unwrap().to_owned());
        (mount, output.stderr)
    };
    let (mount, _) = mounted(made.repository());
    put(&mount.path().join("a/zarr.json"), GROUP).unwrap();
    let shown = read_files(&mount.path());
    drop(mount);
    let copy = made.repository().with_file_name("copy");
    copy_tree(made.repository(), &copy);
    let (mount, output) = mounted(&copy);
    assert!(!output.contains("resuming") && !mount.path().join("a").exists(), "{output}");
    drop(mount);
    let moved = made.repository().with_file_name("moved");
    std::fs::rename(made.repository(), &moved).unwrap();
    let (mount, output) = mounted(&moved);
    for words in ["were moved to", "resuming", "the repository was at"] {
        assert!(output.contains(words), "`{words}` is not in: {output}");
    }
    assert!(read_files(&mount.path()) == shown);
    echo(&mount.path().join(".icechunk/commit"), "moved").unwrap();
}

/// A new scratch directory would hide the work from every later mount.
#[test]
fn a_moved_repository_is_not_mounted_while_its_scratch_directory_cannot_be_read() {
    watchdog();
    if !needed(is_root(), "root, whose scratch directories have a known place") {
        return;
    }
    // A name of its own: other tests must not find the damaged directory.
    const BRANCH: &str = "not-readable";
    let made = Writable::new(&[]);
    put(&made.root().join("zarr.json"), GROUP).unwrap();
    made.commit("a group").unwrap();
    made.unmount();
    Reference::open(made.repository()).create_branch(BRANCH);
    let mut defaults = Defaults::default();
    let all = Path::new("/var/lib/icechunkfs");
    let default = |path: &Path| all.join(icechunkfs::file_name::encode(path.canonicalize().unwrap().to_str().unwrap()));
    let mount = Mount::prepare();
    let mounted = |repository: &Path| {
        run(Command::new(program()).args(["mount", "--branch", BRANCH]).arg(repository).arg(mount.path()))
    };
    defaults.0.push(default(made.repository()));
    mounted(made.repository()).success();
    put(&mount.path().join("a/zarr.json"), GROUP).unwrap();
    let shown = read_files(&mount.path());
    icechunkfs(["unmount", mount.path().to_str().unwrap()]).success();
    let journal = default(made.repository()).join(BRANCH).join("journal");
    let text = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, "not\nreadable\n").unwrap();
    // A repository in another place is not in the way.
    let copy = made.repository().with_file_name("copy");
    copy_tree(made.repository(), &copy);
    defaults.0.push(default(&copy));
    mounted(&copy).success();
    icechunkfs(["unmount", mount.path().to_str().unwrap()]).success();
    let moved = made.repository().with_file_name("moved");
    std::fs::rename(made.repository(), &moved).unwrap();
    defaults.0.push(default(&moved));
    let output = mounted(&moved).failure();
    for words in [journal.parent().unwrap().to_str().unwrap(), "cannot be read", "--scratch"] {
        assert!(output.contains(words), "`{words}` is not in: {output}");
    }
    assert!(mount.mounted_as().is_none() && !default(&moved).join(BRANCH).exists());
    // So is a link to a disk that is not mounted.
    let directory = journal.parent().unwrap();
    let disk = made.repository().with_file_name("disk");
    std::fs::rename(directory, &disk).unwrap();
    std::os::unix::fs::symlink(made.repository().with_file_name("nothing"), directory).unwrap();
    assert!(mounted(&moved).failure().contains("cannot be read"));
    // Behind a link that leads there, the work is found.
    std::fs::remove_file(directory).unwrap();
    std::os::unix::fs::symlink(&disk, directory).unwrap();
    std::fs::write(disk.join("journal"), text).unwrap();
    let output = mounted(&moved);
    assert!(output.status.success() && output.stderr.contains("were moved to"), "{}", output.stderr);
    assert!(read_files(&mount.path()) == shown);
    icechunkfs(["unmount", mount.path().to_str().unwrap()]).success();
}

/// Directories in the place of root's scratch directories, which are removed with the test.
#[derive(Default)]
struct Defaults(Vec<PathBuf>);

impl Drop for Defaults {
    fn drop(&mut self) {
        for directory in &self.0 {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// A journal of a release that did not record the repository's identity.
#[test]
fn a_journal_without_a_repository_identity_is_matched_by_path() {
    watchdog();
    let first = Writable::new(&[]);
    put(&first.root().join("zarr.json"), GROUP).unwrap();
    let shown = read_files(&first.root());
    first.unmount();
    let path = first.scratch().join("journal");
    let text = std::fs::read_to_string(&path).unwrap();
    let (line, rest) = text.split_once('\n').unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&line[9..]).unwrap();
    assert!(record.as_object_mut().unwrap().remove("identity").is_some(), "{line}");
    let record = record.to_string();
    std::fs::write(&path, format!("{:08x} {record}\n{rest}", crc32fast::hash(record.as_bytes()))).unwrap();
    first.mount_again(None).success();
    assert!(read_files(&first.root()) == shown);
}

#[test]
fn a_scratch_directory_in_a_forbidden_place_is_refused() {
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
    // A directory with other files in it was named by mistake.
    let photos = elsewhere.path().join("photos");
    put(&photos.join("holiday.jpg"), "snow").unwrap();
    for more in [&[][..], &["--discard"]] {
        refused(&mount, &repository, &photos, more, &["holiday.jpg", "not a scratch directory"]);
    }
    put(&elsewhere.path().join("file"), "").unwrap();
    refused(&mount, &repository, &elsewhere.path().join("file"), &[], &["file"]);
    assert_eq!(read_files(&photos).into_keys().collect::<Vec<_>>(), ["holiday.jpg"]);
    assert!(read_files(&repository) == stored);
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 0);
}

#[test]
fn a_scratch_directory_in_use_is_refused() {
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
    // With its own scratch directory the second mount works.
    second.command(first.repository(), &[]).success();
    assert!(read_files(&second.path()) == read_files(&place));
}
