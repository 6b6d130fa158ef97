//! Replacement and removal of local objects: whole or not at all, durable, and compared with the
//! previous object.
//!
//! The bytes go to a staging file ([`super::staging`]) and are flushed to the disk. A rename or a
//! link then gives the file its name, and the directory is flushed. A crash leaves the old object
//! or the new one, and at worst a staging file.
//!
//! A rename cannot compare. A replacement under [`Condition::Unchanged`] therefore holds the
//! repository's locks ([`super::file_locks`]), checks the object again, past the caches of a
//! network file system, and renames. That keeps any number of icechunkfs processes from losing each
//! other's changes. The reference implementation takes no lock and cannot be kept from overwriting
//! on a local disk; the check just before the rename leaves it a window of microseconds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::deadline::timed_out;
use super::file_locks::{lock, refresh};
use super::local::{WITHIN, is_stale, version_of};
use super::lock_reach::Locks;
use super::staging::StagingName;
use super::{Condition, Version, changed, migrated};
use icechunkfs_base::beneath;
use icechunkfs_base::error::{Error, Result};

/// Arbiter between the thread that replaces an object and the caller that waits for it: either the
/// object is replaced, or the wait times out and the object is not replaced any more.
#[derive(Debug, Default)]
pub(super) struct ReplaceArbiter(AtomicBool);

impl ReplaceArbiter {
    /// Decides for the caller: begins the replacement, or ends the wait. Returns false if the other
    /// side was first.
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Begins the replacement. Fails if the caller does not wait any more.
    fn begin(&self, key: &str, deadline: Duration) -> Result<()> {
        if self.take() { Ok(()) } else { Err(timed_out(key, deadline)) }
    }
}

/// Locks of a change, and its caller.
#[derive(Clone, Copy)]
pub(super) struct Waits<'a> {
    pub(super) locks: Locks,
    pub(super) deadline: Duration,
    pub(super) arbiter: &'a ReplaceArbiter,
}

/// Stores `bytes` as `key` below `root` if `condition` holds, if there is no object `unless`, and
/// if the caller still waits when all is prepared.
pub(super) fn put(
    root: &OwnedFd,
    key: &str,
    bytes: &[u8],
    condition: &Condition,
    unless: Option<&str>,
    Waits { locks, deadline, arbiter }: Waits<'_>,
) -> Result<()> {
    let (folder, name) = key.rsplit_once('/').unwrap_or(("", key));
    if name.is_empty() {
        return Err(Error::invalid(format!("`{key}` is not a valid object name")));
    }
    let folder = open_folder(root, folder).map_err(|e| Error::io(key, e.into()))?;
    let staged = staged(&folder, name, bytes).map_err(|e| Error::io(key, e))?;
    let needs_lock = unless.is_some() || matches!(condition, Condition::Unchanged(_));
    let _lock = needs_lock.then(|| lock(root, key, locks, deadline)).transpose()?;
    check_not_migrated(root, key, unless)?;
    match condition {
        Condition::Always => {
            arbiter.begin(key, deadline)?;
            staged.replace(name)
        }
        Condition::Absent => {
            arbiter.begin(key, deadline)?;
            staged.publish(name)
        }
        Condition::Unchanged(version) => {
            check_version(&folder, key, name, version)?;
            arbiter.begin(key, deadline)?;
            staged.replace(name)
        }
    }
    .map_err(|errno| if errno == Errno::EXIST { changed(key) } else { Error::io(key, errno.into()) })?;
    rustix::fs::fsync(&folder).map_err(|e| Error::io(key, e.into()))
}

/// Writes `bytes` to a staging file for the object `name` in `folder`, and flushes them.
fn staged(folder: &OwnedFd, name: &str, bytes: &[u8]) -> std::io::Result<StagingName> {
    let (mut file, staging) = StagingName::create(folder, name)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(staging)
}

/// Fails with [`icechunkfs_base::error::ErrorKind::Migrated`] if there is an object `unless`. The
/// result is reliable only under the lock.
fn check_not_migrated(root: &OwnedFd, key: &str, unless: Option<&str>) -> Result<()> {
    let Some(unless) = unless else { return Ok(()) };
    refresh(root);
    match rustix::fs::statat(root, unless, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Ok(_) => Err(migrated(key, unless)),
        Err(errno) => Err(Error::io(unless, errno.into())),
    }
}

/// Removes `key` below `root` if it has `version` and there is no object `unless`, and if the
/// caller still waits, under the same locks as a replacement.
pub(super) fn remove(
    root: &OwnedFd,
    key: &str,
    version: &Version,
    unless: Option<&str>,
    Waits { locks, deadline, arbiter }: Waits<'_>,
) -> Result<()> {
    let failed = |errno: Errno| Error::io(key, errno.into());
    let (folder, name) = key.rsplit_once('/').unwrap_or((".", key));
    let _lock = lock(root, key, locks, deadline)?;
    check_not_migrated(root, key, unless)?;
    let folder = match open_beneath(root, folder) {
        Err(Errno::NOENT) => return Err(changed(key)),
        opened => opened.map_err(failed)?,
    };
    check_version(&folder, key, name, version)?;
    arbiter.begin(key, deadline)?;
    rustix::fs::unlinkat(&folder, name, AtFlags::empty()).map_err(failed)?;
    rustix::fs::fsync(&folder).map_err(failed)
}

/// Removes the objects `keys` below `root`, and flushes their directories. A missing object is no
/// error.
pub(super) fn remove_all(root: &OwnedFd, keys: &[String]) -> Result<()> {
    let mut by_folder: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for key in keys {
        let (folder, name) = key.rsplit_once('/').unwrap_or((".", key));
        by_folder.entry(folder).or_default().push(name);
    }
    for (folder, names) in by_folder {
        let opened = match open_beneath(root, folder) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(Error::io(folder, errno.into())),
        };
        for name in names {
            match rustix::fs::unlinkat(&opened, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(Error::io(format!("{folder}/{name}"), errno.into())),
            }
        }
        rustix::fs::fsync(&opened).map_err(|e| Error::io(folder, e.into()))?;
    }
    Ok(())
}

/// Checks that the object `name` in `folder` has `version`. The result is reliable only under the
/// lock.
fn check_version(folder: &OwnedFd, key: &str, name: &str, version: &Version) -> Result<()> {
    // Another machine may have replaced the object, while this kernel still resolves the name to
    // the old file.
    refresh(folder);
    let current = open_beneath(folder, name).map(File::from).map_err(std::io::Error::from);
    let current = current.and_then(|file| {
        refresh(&file);
        file.metadata()
    });
    match current.map(|metadata| (version_of(&metadata), metadata.nlink())) {
        Ok((current, 1..)) if current == *version => Ok(()),
        Ok(_) => Err(changed(key)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound || is_stale(&e) => Err(changed(key)),
        Err(e) => Err(Error::io(key, e)),
    }
}

/// Opens the directory `folder` below `root`, and creates it if it is missing.
pub(super) fn open_folder(root: &OwnedFd, folder: &str) -> Result<OwnedFd, Errno> {
    let mut at = rustix::fs::openat(root, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for name in folder.split('/').filter(|name| !name.is_empty()) {
        match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
            // The parent is flushed: a power loss could otherwise remove the new directory with the
            // object in it.
            Ok(()) => rustix::fs::fsync(&at)?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        at = open_beneath(&at, name)?;
    }
    Ok(at)
}

pub(super) fn open_beneath(folder: &impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    beneath::open(folder, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, WITHIN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_base::error::ErrorKind;

    #[test]
    fn comparing_waits_for_whoever_compares_already() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("repo"), "old").unwrap();
        let root = OwnedFd::from(File::open(directory.path()).unwrap());
        let version = version_of(&std::fs::metadata(directory.path().join("repo")).unwrap());
        let attempt = || {
            let condition = Condition::Unchanged(version.clone());
            let arbiter = ReplaceArbiter::default();
            let waits = Waits { locks: Locks::OneMachine, deadline: Duration::from_millis(20), arbiter: &arbiter };
            put(&root, "repo", b"new", &condition, None, waits)
        };
        let held = lock(&root, "repo", Locks::OneMachine, Duration::ZERO).unwrap();
        assert_eq!(attempt().unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(std::fs::read(directory.path().join("repo")).unwrap(), b"old");
        drop(held);
        attempt().unwrap();
        assert_eq!(std::fs::read(directory.path().join("repo")).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "no staging file stays beside the lock");
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_not_done() {
        let directory = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(File::open(directory.path()).unwrap());
        let arbiter = ReplaceArbiter::default();
        assert!(arbiter.take());
        let waits = Waits { locks: Locks::OneMachine, deadline: Duration::ZERO, arbiter: &arbiter };
        let late = put(&root, "repo", b"new", &Condition::Always, None, waits);
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let arbiter = ReplaceArbiter::default();
        let waits = Waits { locks: Locks::OneMachine, deadline: Duration::ZERO, arbiter: &arbiter };
        put(&root, "repo", b"new", &Condition::Always, None, waits).unwrap();
        assert!(!arbiter.take());
    }

    #[test]
    fn no_change_of_version_1_is_made_beside_repo() {
        let directory = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(File::open(directory.path()).unwrap());
        let put = |key: &str, unless| {
            let arbiter = ReplaceArbiter::default();
            let waits = Waits { locks: Locks::OneMachine, deadline: Duration::from_millis(20), arbiter: &arbiter };
            super::put(&root, key, b"new", &Condition::Absent, unless, waits).map_err(|error| error.kind())
        };
        assert_eq!(put("ref", Some("repo")), Ok(()));
        // A migration holds the lock while it makes `repo`.
        let held = lock(&root, "repo", Locks::OneMachine, Duration::ZERO).unwrap();
        assert_eq!(put("other", Some("repo")), Err(ErrorKind::Timeout));
        assert_eq!(put("repo", None), Ok(()));
        drop(held);
        assert_eq!(put("other", Some("repo")), Err(ErrorKind::Migrated));
        let version = version_of(&std::fs::metadata(directory.path().join("ref")).unwrap());
        let arbiter = ReplaceArbiter::default();
        let waits = Waits { locks: Locks::OneMachine, deadline: Duration::from_millis(20), arbiter: &arbiter };
        let removed = remove(&root, "ref", &version, Some("repo"), waits);
        assert_eq!(removed.unwrap_err().kind(), ErrorKind::Migrated);
        assert!(directory.path().join("ref").exists() && !directory.path().join("other").exists());
    }

    #[test]
    fn what_is_named_goes_and_nothing_else() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("x"), "").unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("chunks")).unwrap();
        for name in ["repo", "chunks/A", "chunks/B"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(outside.path(), directory.path().join("away")).unwrap();
        let root = OwnedFd::from(std::fs::File::open(directory.path()).unwrap());
        let keys = |keys: &[&str]| keys.iter().map(|key| key.to_string()).collect::<Vec<_>>();
        remove_all(&root, &keys(&["chunks/A", "chunks/C", "manifests/D", "repo"])).unwrap();
        remove_all(&root, &keys(&["away/x"])).unwrap_err();
        remove_all(&root, &keys(&["chunks/../../x"])).unwrap_err();
        assert!(outside.path().join("x").exists() && directory.path().join("chunks/B").exists());
        assert!(!directory.path().join("chunks/A").exists() && !directory.path().join("repo").exists());
    }
}
