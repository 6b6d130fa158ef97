//! Creation of local objects with deferred durability: a commit stores them before anything refers
//! to them.
//!
//! An object is written to a file without a name (`O_TMPFILE`), which is then linked: a process
//! that is killed leaves a whole object or none. Where files need a name from the beginning (NFS,
//! some FUSE file systems), the object has its own name while it is written. Names are random, so
//! nothing reads an object before the commit that refers to it is published; a torn one is garbage,
//! like that of any unpublished commit. The bytes are flushed here, by as many threads as store at
//! the same time, since the disk combines many flushes that wait together into one journal entry;
//! [`sync`] flushes each directory once.
//!
//! An object whose key another writer may use, too, is staged ([`Staged`]): it gets its name when
//! its bytes are on the disk, and only if nothing has that name.
//!
//! A file on the same file system is *linked*: the object is another name of the file. The file
//! must not be written to any more, which the scratch layer ensures by checking the number of
//! links.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::replace::{open_beneath, open_folder};
use super::staging::StagingName;
use super::{Body, changed, changed_file};
use icechunkfs_base::beneath;
use icechunkfs_base::error::{Error, Result};

/// Stores `bytes` as the new object `key` below `root`, and flushes them.
pub(super) fn put_new(root: &OwnedFd, key: &str, bytes: &[u8]) -> Result<()> {
    store(root, key, Flush::Now, |file| file.write_all(bytes).map_err(|e| Error::io(key, e)))
}

/// Makes `file`, of `length` bytes, the object `key` below `root`: by a link if possible, else as a
/// copy.
pub(super) fn put_file(root: &OwnedFd, key: &str, file: File, length: u64) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(key, e);
    if file.metadata().map_err(failed)?.len() != length {
        return Err(changed_file(length));
    }
    let (folder, name) = split(key);
    match open_folder(root, folder).and_then(|folder| beneath::link(&file, &folder, name).map(|()| folder)) {
        Ok(folder) => {
            // The bytes are not all on the disk, and the next flush may succeed without them.
            file.sync_data().map_err(|error| {
                let _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
                failed(error)
            })
        }
        // Another file system, no links on this one, too many links to this file, an unlinked file,
        // or a file of another user.
        Err(Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::NOENT | Errno::ACCESS) => {
            store(root, key, Flush::Now, |object| copy(&file, object, key, length))
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Stores a copy of `file`, of `length` bytes, as the new object `key` below `root`. Where the file
/// system supports it, both share blocks until one is written to. The copy is flushed once
/// [`sync_all`] has returned.
pub(super) fn put_copy(root: &OwnedFd, key: &str, file: File, length: u64) -> Result<()> {
    store(root, key, Flush::Later, |object| copy(&file, object, key, length))
}

fn copy(mut file: &File, object: &mut File, key: &str, length: u64) -> Result<()> {
    // Another user's file may grow meanwhile: one byte more is enough to know.
    let mut bounded = file.take(length.saturating_add(1));
    let copied = file.rewind().and_then(|()| std::io::copy(&mut bounded, object)).map_err(|e| Error::io(key, e))?;
    if copied == length { Ok(()) } else { Err(changed_file(length)) }
}

/// Time at which the bytes of an object are flushed.
#[derive(Clone, Copy, PartialEq)]
enum Flush {
    Now,
    /// With [`sync_all`].
    Later,
}

/// Creates the object `key` below `root` with the content that `fill` writes; replaces nothing.
fn store(root: &OwnedFd, key: &str, flush: Flush, fill: impl Fn(&mut File) -> Result<()>) -> Result<()> {
    let failed = |errno: Errno| Error::io(key, errno.into());
    let (folder, name) = split(key);
    let folder = open_folder(root, folder).map_err(failed)?;
    // On a full disk, a partial object would obstruct the next attempt. One that remains is only
    // garbage.
    let remove = || {
        let _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
    };
    let file = match nameless(&folder, &fill)? {
        Some(file) if named(&file, &folder, name).map_err(failed)? => file,
        _ => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = rustix::fs::openat(&folder, name, flags, Mode::from_raw_mode(0o666)).map_err(failed)?;
            let mut file = File::from(file);
            fill(&mut file).inspect_err(|_| remove())?;
            file
        }
    };
    if flush == Flush::Now {
        // Not before it has a name: Btrfs flushes no metadata, such as its size, of a file without
        // a name.
        file.sync_data().inspect_err(|_| remove()).map_err(|e| Error::io(key, e))?;
    }
    Ok(())
}

/// Returns a file without a name, with the content that `fill` writes; `None` where the file system
/// has no such files.
fn nameless(folder: &OwnedFd, fill: impl Fn(&mut File) -> Result<()>) -> Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(folder, ".", flags, Mode::from_raw_mode(0o666)) else { return Ok(None) };
    let mut file = File::from(file);
    fill(&mut file)?;
    Ok(Some(file))
}

/// Gives `file` its name. Returns false if it cannot have one, which a security policy may forbid.
fn named(file: &File, folder: &OwnedFd, name: &str) -> Result<bool, Errno> {
    match beneath::link(file, folder, name) {
        Err(Errno::EXIST) => Err(Errno::EXIST),
        linked => Ok(linked.is_ok()),
    }
}

/// Object below its folder that is written and does not have its name yet. What is dropped before
/// that is gone.
#[derive(Debug)]
pub(super) struct Staged {
    key: String,
    folder: OwnedFd,
    file: File,
    /// Name for the time being, where the file system has no files without names.
    staging: Option<StagingName>,
}

impl Staged {
    /// Writes `body`, the object `key` below `root`.
    pub(super) fn write(root: &OwnedFd, key: &str, body: &Body) -> Result<Self> {
        let (folder, name) = split(key);
        let folder = open_folder(root, folder).map_err(|errno| Error::io(key, errno.into()))?;
        let fill = |file: &mut File| match body {
            Body::Bytes(bytes) => file.write_all(bytes).map_err(|e| Error::io(key, e)),
            Body::File(source, length) => copy(source, file, key, *length),
        };
        if let Some(file) = nameless(&folder, fill)? {
            return Ok(Staged { key: key.to_owned(), folder, file, staging: None });
        }
        let (mut file, staging) = StagingName::create(&folder, name).map_err(|e| Error::io(key, e))?;
        fill(&mut file)?;
        Ok(Staged { key: key.to_owned(), folder, file, staging: Some(staging) })
    }

    /// Gives the object its name, when the caller has flushed its bytes. Fails with
    /// [`icechunkfs_base::error::ErrorKind::Contended`] if there is one of that name.
    pub(super) fn publish(self) -> Result<()> {
        let Staged { key, folder, file, staging } = self;
        let (_, name) = split(&key);
        let published = match staging {
            Some(staging) => staging.publish(name),
            None => match beneath::link(&file, &folder, name) {
                Err(errno) if errno != Errno::EXIST => {
                    // A security policy may forbid that a file without a name gets one.
                    copied(&file, &folder, name).map_err(|e| Error::io(&key, e))?.publish(name)
                }
                linked => linked,
            },
        };
        published.map_err(|errno| if errno == Errno::EXIST { changed(&key) } else { Error::io(&key, errno.into()) })
    }
}

/// Copies `file` to a staging file for the object `name` in `folder`, and flushes it.
fn copied(mut file: &File, folder: &OwnedFd, name: &str) -> std::io::Result<StagingName> {
    let (mut copy, staging) = StagingName::create(folder, name)?;
    file.rewind()?;
    std::io::copy(&mut file, &mut copy)?;
    copy.sync_all()?;
    Ok(staging)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_base::error::ErrorKind;
    use std::os::fd::AsRawFd;
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

    #[test]
    fn a_staged_object_has_no_name_before_it_is_published_and_replaces_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(File::open(directory.path()).unwrap());
        let read = || std::fs::read_to_string(directory.path().join("chunks/A"));
        let stage = |text: &'static str| Staged::write(&root, "chunks/A", &Body::Bytes(text.into())).unwrap();
        let first = stage("first");
        let second = stage("second");
        assert!(read().is_err());
        first.publish().unwrap();
        assert_eq!(second.publish().unwrap_err().kind(), ErrorKind::Contended);
        assert_eq!(read().unwrap(), "first");
        // Where files without names cannot get one.
        let file = tempfile::tempfile_in(directory.path()).unwrap();
        (&file).write_all(b"third").unwrap();
        let folder = open_folder(&root, "chunks").unwrap();
        copied(&file, &folder, "B").unwrap().publish("B").unwrap();
        assert_eq!(std::fs::read_to_string(directory.path().join("chunks/B")).unwrap(), "third");
        assert_eq!(std::fs::read_dir(directory.path().join("chunks")).unwrap().count(), 2);
    }

    /// A process that is killed while it writes leaves nothing.
    #[test]
    fn an_object_has_no_name_until_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(File::open(directory.path()).unwrap());
        let entries = || std::fs::read_dir(directory.path().join("chunks")).unwrap().count();
        let nameless = OFlags::TMPFILE | OFlags::WRONLY;
        let supported = rustix::fs::openat(&root, ".", nameless, Mode::from_raw_mode(0o600)).is_ok();
        let filled = std::cell::Cell::new(0);
        store(&root, "chunks/A", Flush::Now, |file| {
            file.write_all(b"half").unwrap();
            filled.set(filled.get() + 1);
            assert_eq!(entries() == 0, supported);
            file.write_all(b" whole").map_err(|e| Error::io("A", e))
        })
        .unwrap();
        assert_eq!((filled.get(), entries()), (1, 1));
        assert_eq!(std::fs::read(directory.path().join("chunks/A")).unwrap(), b"half whole");
        store(&root, "chunks/B", Flush::Now, |_| Err(changed_file(1))).unwrap_err();
        assert_eq!(entries(), 1);
    }
}
