//! The disk does not take bytes that programs have written. The kernel reports that once, and
//! flushes succeed afterwards although the bytes may be gone: they must not become a part of the
//! history.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::common::disk::ThinDisk;
use crate::common::writing::{GROUP, Reference, Writable, array, create, put};
use crate::common::{errno, read_files, wait_until, watchdog};

const SIZE: usize = 4 << 20;
const MESSAGE: &str = "its last bytes could not be written to the disk";

/// Returns a mount of a repository with a chunk `a/c/0`; repository and scratch directory are on
/// `disk`.
fn mounted(disk: &ThinDisk) -> Writable {
    let place = disk.path().join("repo");
    create(&place);
    let document = array(&[4], &[1]);
    let chunk = vec![1; SIZE];
    let keys: [(&str, &[u8]); 3] =
        [("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes()), ("a/c/0", &chunk)];
    Reference::open(&place).commit(&keys, "the array");
    Writable::placed(&place, &disk.path().join("scratch"), &[])
}

/// Drops what the page cache has of the files below `directory`.
fn drop_cache(directory: &Path) {
    for name in read_files(directory).keys() {
        let file = File::open(directory.join(name)).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// Checks that a commit is refused because of chunk `name`, also in the next mount, until the chunk
/// is written again.
#[track_caller]
fn is_refused_until_it_is_written_again(mount: &Writable, name: &str) {
    let chunk = mount.root().join(name);
    assert_eq!(errno(mount.commit("zeros")), libc::EIO);
    let errors = mount.read_control("errors");
    assert!(errors.lines().any(|line| line.contains(name) && line.contains(MESSAGE)), "{errors}");
    assert_eq!(errno(File::open(&chunk).unwrap().sync_all()), libc::EIO);
    mount.kill_and_remount();
    assert_eq!(errno(mount.commit("zeros")), libc::EIO);
    let status = mount.control_json("status.json");
    assert!(status["faults"].to_string().contains(name), "{status}");
    // A write in the middle does not bring the other bytes back.
    std::os::unix::fs::FileExt::write_all_at(&File::options().write(true).open(&chunk).unwrap(), b"N", 5).unwrap();
    assert_eq!(errno(mount.commit("zeros")), libc::EIO);
    put(&chunk, vec![b'N'; SIZE]).unwrap();
    File::open(&chunk).unwrap().sync_all().unwrap();
    mount.commit("whole").unwrap();
    mount.unmount();
    drop_cache(&mount.repository().join("chunks"));
    assert!(mount.fresh()[name] == vec![b'N'; SIZE], "the chunk of the commit is not what was written");
    mount.mount_again(None).success();
}

#[test]
fn bytes_that_a_flush_lost_are_not_committed() {
    watchdog();
    let Some(disk) = ThinDisk::ext4() else { return };
    let mount = mounted(&disk);
    disk.fill_backing();
    // Its bytes replace others, so that the mount flushes them by itself.
    let mut chunk = File::options().write(true).open(mount.root().join("a/c/0")).unwrap();
    chunk.write_all(&vec![b'N'; SIZE]).unwrap();
    drop(chunk);
    wait_until("the flush fails", || mount.log().contains(MESSAGE));
    disk.free_backing();
    is_refused_until_it_is_written_again(&mount, "a/c/0");
}

#[test]
fn bytes_that_a_commit_could_not_flush_are_not_committed_by_the_next() {
    watchdog();
    let Some(disk) = ThinDisk::ext4() else { return };
    let mount = mounted(&disk);
    disk.fill_backing();
    put(&mount.root().join("a/c/1"), vec![b'N'; SIZE]).unwrap();
    let objects = read_files(&mount.repository().join("chunks")).len();
    mount.commit("fails").unwrap_err();
    assert_eq!(read_files(&mount.repository().join("chunks")).len(), objects, "an object without its bytes stays");
    disk.free_backing();
    is_refused_until_it_is_written_again(&mount, "a/c/1");
}

#[test]
fn bytes_whose_loss_another_process_was_told_of_are_not_committed() {
    watchdog();
    let Some(disk) = ThinDisk::ext4() else { return };
    let mount = mounted(&disk);
    disk.fill_backing();
    put(&mount.root().join("a/c/2"), vec![b'N'; SIZE]).unwrap();
    let data = mount.scratch().join("data");
    let flushed = |name: &String| File::open(data.join(name)).unwrap().sync_all();
    assert!(read_files(&data).keys().map(flushed).any(|flushed| flushed.is_err()), "nothing was lost");
    disk.free_backing();
    assert!(read_files(&data).keys().map(flushed).all(|flushed| flushed.is_ok()), "the kernel reports it again");
    is_refused_until_it_is_written_again(&mount, "a/c/2");
}
