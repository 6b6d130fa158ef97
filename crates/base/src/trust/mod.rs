//! Decides which files and directories of this machine other users cannot tamper with.
//!
//! Trusted owners are root and the effective user of this process. A file is trusted if such a user
//! owns it and no other user may write to it. A path is trusted if each directory on it belongs to
//! a trusted owner and no other user may write to it; the sticky bit, as on `/tmp`, is as good,
//! because the next component must have a trusted owner itself. sshd has that rule for
//! `authorized_keys`. A group whose only member is the owner counts as the owner, as in Debian's
//! sshd for users with a private group, unless there is an access control list. Directories that
//! the user declares safe with `ICECHUNKFS_SAFE_DIRECTORY` are trusted, regardless of who may write
//! to them.
//!
//! In a file system that another user serves ([`mounts`]) no owner or mode proves anything:
//! everything there counts as that user's.
//!
//! Paths are walked by descriptors ([`path`]), so that what was checked is what is used.

pub mod mounts;
pub mod own_mounts;
mod path;
mod users;

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use self::mounts::{ForeignMount, foreign_mount};
use self::path::Strictness;
pub use self::path::{
    MAX_LINKS, SAFE_DIRECTORY_VARIABLE, create_directory, is_declared_safe, is_trusted_link, open_directory,
    open_place, place_of, private_place_of, push_names,
};
pub use self::users::{UNKNOWN_USER, name_of};
use crate::error::{Error, ErrorKind, Result};

/// Write permissions that go beyond those of the owner.
const WRITABLE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Reason why a file or directory is not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// The owner, a user who is not trusted.
    Owner(u32),
    /// Another user serves its file system.
    Served(ForeignMount),
    /// Other users may write to it: its permissions.
    Writable(u32),
    /// The file has other names.
    Linked,
    /// The file is not of the required kind: a FIFO, a device, a link.
    Kind,
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distrust::Owner(user) => write!(f, "it belongs to user {}", name_of(*user)),
            Distrust::Served(mount) => mount.fmt(f),
            Distrust::Writable(mode) => write!(f, "other users may write to it (mode {mode:04o})"),
            Distrust::Linked => f.write_str("it has more than one name"),
            Distrust::Kind => f.write_str("it is not a regular file"),
        }
    }
}

/// Returns true if `user` may decide what this process reads and writes.
pub fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Returns the user as whose the open `file` counts: its owner, or the user who serves its file
/// system.
pub fn owner_of(file: impl AsFd) -> Result<u32> {
    let file = file.as_fd();
    if let Some(mount) = foreign_mount(file)? {
        return Ok(mount.user());
    }
    let stat = rustix::fs::fstat(file).map_err(|errno| Error::io("the owner of an open file", errno.into()))?;
    Ok(stat.st_uid)
}

/// Finds the users as whom the files below an open directory count, as [`owner_of`] does, with one
/// look at the mount table for most of them.
#[derive(Clone, Debug)]
pub struct Owners {
    /// Device of the directory, which no other file system has while the directory is open.
    device: u64,
    /// User who serves its file system, unless trusted.
    server: Option<u32>,
}

impl Owners {
    /// Looks at the file system of the open `directory`.
    pub fn below(directory: impl AsFd) -> Result<Self> {
        let directory = directory.as_fd();
        let stat =
            rustix::fs::fstat(directory).map_err(|errno| Error::io("the file system of a directory", errno.into()))?;
        Ok(Owners { device: stat.st_dev, server: foreign_mount(directory)?.map(|mount| mount.user()) })
    }

    /// Returns the user as whom the entry `name` of `folder`, which has the attributes `stat`,
    /// counts.
    pub fn owner(&self, folder: impl AsFd, name: impl rustix::path::Arg, stat: &Stat) -> Result<u32> {
        if stat.st_dev == self.device {
            return Ok(self.server.unwrap_or(stat.st_uid));
        }
        // It is a mount, a subvolume, or from a lower layer of an overlay.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(folder, name, flags, Mode::empty());
        owner_of(opened.map_err(|errno| Error::io("the owner of a file", errno.into()))?)
    }
}

/// Checks that no other user serves the file system of the open `file`. Sends it no request.
fn check_mount(file: impl AsFd) -> Result<(), Distrust> {
    match foreign_mount(file) {
        Ok(None) => Ok(()),
        Ok(Some(mount)) => Err(Distrust::Served(mount)),
        Err(_) => Err(Distrust::Served(ForeignMount { owner: None, mountpoint: None })),
    }
}

/// Checks that the owner of the open `file` is trusted, and that no other user may write to it.
pub fn check(file: impl AsFd) -> Result<Stat, Distrust> {
    check_owner(file, is_trusted)
}

/// Checks `file` like [`check`], but trusts the users for whom `is_trusted` returns true.
pub fn check_owner(file: impl AsFd, is_trusted: impl Fn(u32) -> bool) -> Result<Stat, Distrust> {
    let file = file.as_fd();
    check_mount(file)?;
    let stat = rustix::fs::fstat(file).map_err(|_| Distrust::Kind)?;
    if !is_trusted(stat.st_uid) {
        return Err(Distrust::Owner(stat.st_uid));
    }
    if is_writable_by_others(file, &stat) {
        return Err(Distrust::Writable(stat.st_mode & 0o7777));
    }
    Ok(stat)
}

/// Checks `file` like [`check`], and that it is a regular file.
pub fn check_file(file: impl AsFd) -> Result<Stat, Distrust> {
    let file = file.as_fd();
    let stat = rustix::fs::fstat(file).map_err(|_| Distrust::Kind)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Distrust::Kind);
    }
    check(file)
}

fn is_writable_by_others(file: impl AsFd, stat: &Stat) -> bool {
    let by_group = stat.st_mode & 0o020 != 0;
    stat.st_mode & WRITABLE & !0o020 != 0
        || (by_group && (has_access_list(file) || !users::is_private(stat.st_gid, stat.st_uid)))
}

/// Returns true if there is an access control list: the group permissions are then an upper bound
/// for everyone named in it.
fn has_access_list(file: impl AsFd) -> bool {
    let place = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let absent = [Errno::NODATA, Errno::OPNOTSUPP];
    rustix::fs::getxattr(place, "system.posix_acl_access", &mut [0_u8; 0][..])
        .map_or_else(|e| !absent.contains(&e), |_| true)
}

/// Opens the log file at `path` for appending, and creates it if necessary: for its owner alone,
/// since it names files that other users may not see. The mode of an existing file stays.
///
/// Errors: [`ErrorKind::PermissionDenied`] if another user could have put it there or may write to
/// it. Devices of root, such as `/dev/null`, may be writable for everyone.
pub fn open_log(path: &Path) -> Result<File> {
    let failed = |errno: Errno| Error::io(path.display(), errno.into());
    let (directory, name, shown) = path::open_parent(path, None, Strictness::LogFile, &is_trusted)?;
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let made = flags | OFlags::CREATE | OFlags::EXCL;
    let file = match rustix::fs::openat(&directory, &name, made, Mode::from_raw_mode(0o600)) {
        Err(Errno::EXIST) => {
            // Another user may have mounted on a file of theirs in a directory such as `/tmp`. A
            // daemon need not answer an open.
            let place = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = rustix::fs::openat(&directory, &name, place, Mode::empty()).map_err(failed)?;
            check_mount(&found).map_err(|why| distrust_error(&shown, &why))?;
            rustix::fs::openat(&directory, &name, flags, Mode::empty())
        }
        opened => opened,
    };
    // ENXIO means a FIFO without a reader.
    let file = file
        .map_err(|errno| if errno == Errno::NXIO { distrust_error(&shown, &Distrust::Kind) } else { failed(errno) })?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice if stat.st_uid == 0 => {}
        _ => drop(check_file(&file).map_err(|why| distrust_error(&shown, &why))?),
    }
    // In a directory where other users may create names, as in `/tmp`, a name can be a link to an
    // unrelated file.
    if stat.st_nlink > 1 {
        return Err(distrust_error(&shown, &Distrust::Linked));
    }
    Ok(file.into())
}

/// Returns the error for `path`, which is not trusted.
pub fn distrust_error(path: &Path, why: &Distrust) -> Error {
    let advice = match why {
        Distrust::Served(_) => "name a place outside of it",
        Distrust::Owner(_) => "name a place that belongs to you or to root",
        Distrust::Writable(_) => "if no other user has put anything there, run `chmod go-w` on it",
        Distrust::Linked | Distrust::Kind => "name another place",
    };
    Error::new(ErrorKind::PermissionDenied, format!("{}: {why}: {advice}", path.display()))
}
