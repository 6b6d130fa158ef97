//! Creation of local objects with deferred durability: a commit stores them before anything refers to them.
//!
//! These objects need no staging file. Their names are random, so nothing reads one before the commit that refers to it is published; a
//! torn object is garbage, like that of any unpublished commit. The bytes are flushed here, by as many threads as store at the same time,
//! since the disk combines many flushes that wait together into one journal entry; [`sync`] flushes each directory once.
//!
//! A file on the same file system is *linked*: the object is another name of the file. The file must not be written to any more, which
//! the scratch layer ensures by checking the number of links.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::changed_file;
use super::replace::{open_beneath, open_folder};
use crate::error::{Error, Result};

/// Stores `bytes` as the new object `key` below `root`, and flushes them.
pub(super) fn put_new(root: &OwnedFd, key: &str, bytes: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(key, e);
    let mut file = create(root, key).map_err(|e| failed(e.into()))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_data());
    written.map_err(|e| failed(remove_partial(root, key, e)))
}

/// Removes an object that could not be written completely, since on a full disk it would obstruct the next attempt. Returns `error`.
fn remove_partial(root: &OwnedFd, key: &str, error: std::io::Error) -> std::io::Error {
    let (folder, name) = split(key);
    if let Ok(folder) = open_beneath(root, folder) {
        // An object that remains is only garbage.
        let _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
    }
    error
}

/// Makes `file`, of `length` bytes, the object `key` below `root`: by a link if possible, else as a copy.
pub(super) fn put_file(root: &OwnedFd, key: &str, mut file: File, length: u64) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(key, e);
    if file.metadata().map_err(failed)?.len() != length {
        return Err(changed_file(length));
    }
    match link(root, key, &file) {
        Ok(()) => file.sync_data().map_err(failed),
        // Another file system, no links on this one, too many links to this file, an unlinked file, or a file of another user.
        Err(Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::NOENT | Errno::ACCESS) => {
            let copy = copy(root, key, &mut file, length)?;
            copy.sync_data().map_err(|e| failed(remove_partial(root, key, e)))
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Stores a copy of `file`, of `length` bytes, as the new object `key` below `root`. Where the file system supports it, both share blocks
/// until one is written to. The copy is flushed once [`sync_all`] has returned.
pub(super) fn put_copy(root: &OwnedFd, key: &str, mut file: File, length: u64) -> Result<()> {
    copy(root, key, &mut file, length).map(drop)
}

fn copy(root: &OwnedFd, key: &str, file: &mut File, length: u64) -> Result<File> {
    let failed = |e: std::io::Error| Error::io(key, e);
    let mut copy = create(root, key).map_err(|e| failed(e.into()))?;
    let copied = std::io::copy(file, &mut copy).map_err(|e| failed(remove_partial(root, key, e)))?;
    if copied == length {
        return Ok(copy);
    }
    let changed = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
    drop(remove_partial(root, key, changed));
    Err(changed_file(length))
}

/// Flushes the whole file system of `root`, which is faster than flushing many files one by one.
pub(super) fn sync_all(root: &OwnedFd) -> Result<()> {
    rustix::fs::syncfs(root).map_err(|e| Error::io("flushing what was stored", e.into()))
}

pub(super) fn sync(root: &OwnedFd, folders: &[String]) -> Result<()> {
    for folder in folders {
        let flushed = match open_beneath(root, folder) {
            Ok(opened) => rustix::fs::fsync(&opened),
            // Nothing was stored in this folder.
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        };
        flushed.map_err(|e| Error::io(folder, e.into()))?;
    }
    Ok(())
}

fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('/').unwrap_or(("", key))
}

fn create(root: &OwnedFd, key: &str) -> Result<File, Errno> {
    let (folder, name) = split(key);
    let folder = open_folder(root, folder)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(&folder, name, flags, Mode::from_raw_mode(0o666)).map(File::from)
}

fn link(root: &OwnedFd, key: &str, file: &File) -> Result<(), Errno> {
    let (folder, name) = split(key);
    let folder = open_folder(root, folder)?;
    // Older kernels let only privileged users link a descriptor directly; linking its name in `/proc` always works.
    match rustix::fs::linkat(file, "", &folder, name, AtFlags::EMPTY_PATH) {
        Ok(()) => return Ok(()),
        Err(errno @ (Errno::XDEV | Errno::MLINK)) => return Err(errno),
        Err(_) => {}
    }
    let place = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::linkat(rustix::fs::CWD, place, &folder, name, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_become_objects_without_a_copy() {
        let directory = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(File::open(directory.path()).unwrap());
        let place = directory.path().join("scratch");
        std::fs::write(&place, "chunk").unwrap();
        put_file(&root, "chunks/A", File::open(&place).unwrap(), 5).unwrap();
        sync(&root, &["chunks".into()]).unwrap();
        let inode = |path: &std::path::Path| std::fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&place), inode(&directory.path().join("chunks/A")));
        assert!(put_file(&root, "chunks/B", File::open(&place).unwrap(), 4).is_err(), "its size has changed");
        assert!(!directory.path().join("chunks/B").exists());
        // A file on another file system is copied. Not every machine has one.
        if let Ok(other) = tempfile::tempfile_in("/dev/shm") {
            (&other).write_all(b"chunk").unwrap();
            let again = File::open(format!("/proc/self/fd/{}", other.as_raw_fd())).unwrap();
            put_file(&root, "chunks/C", again, 5).unwrap();
            assert_eq!(std::fs::read(directory.path().join("chunks/C")).unwrap(), b"chunk");
        }
    }

    #[test]
    fn new_objects_replace_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(File::open(directory.path()).unwrap());
        put_new(&root, "chunks/A", b"one").unwrap();
        assert!(put_new(&root, "chunks/A", b"two").is_err());
        assert_eq!(std::fs::read(directory.path().join("chunks/A")).unwrap(), b"one");
    }
}
