//! Mounts, and the users who serve them.
//!
//! The daemon of a FUSE file system claims the owner and the mode of every file. In a mount of
//! another user they therefore prove nothing: everything there counts as that user's. The kernel
//! names the user of a mount in `/proc/self/mountinfo`, and the number of the mount in a descriptor
//! finds it there. Neither sends a request to a daemon, which need not answer: both work for a
//! mount that hangs or whose daemon is dead, where any access fails with `ENOTCONN`.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;

use super::path::is_declared_safe;
use super::{UNKNOWN_USER, is_trusted, name_of};
use crate::error::{Error, Result};

/// Attempts to find a mount in the table. Old kernels can leave a mount out while another one is
/// added or removed.
const TRIES: usize = 3;

/// Mount in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount in this mount namespace, which no other one has as long as a descriptor
    /// of it is open.
    pub id: u64,
    /// Mountpoint.
    pub mountpoint: PathBuf,
    /// File system type, for example `ext4` or `fuse.icechunkfs`.
    pub fs_type: String,
    /// Source; for an icechunkfs mount the repository and its ref, as
    /// `icechunkfs_tree::mount_facts::MountFacts::source` joins them.
    pub source: String,
    /// Device number, as `major:minor`.
    pub device: String,
    /// True if the mount is read-only.
    pub read_only: bool,
    /// User who mounted it, for a FUSE file system.
    pub owner: Option<u32>,
    /// Group of that user.
    pub group: Option<u32>,
}

impl Mount {
    /// Returns true if the user who mounted it is the current one or root: commands speak to no
    /// other daemon. The kernel, not the daemon, names that user.
    pub fn is_own(&self) -> bool {
        self.owner.is_some_and(is_trusted)
    }

    /// Returns true if another user may answer requests to its files. Such a file system can answer
    /// anything, or never.
    pub fn is_foreign(&self) -> bool {
        let is_fuse = self.fs_type.split('.').next().is_some_and(|family| ["fuse", "fuseblk"].contains(&family));
        is_fuse && !self.is_own()
    }
}

/// Mount that another user serves, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignMount {
    /// The user; none if unknown.
    pub owner: Option<u32>,
    /// Mountpoint; none if the mount is not in the table.
    pub mountpoint: Option<PathBuf>,
}

impl ForeignMount {
    /// Returns the user as whose everything in the mount counts, or [`UNKNOWN_USER`].
    pub fn user(&self) -> u32 {
        self.owner.unwrap_or(UNKNOWN_USER)
    }
}

impl fmt::Display for ForeignMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mountpoint {
            Some(mountpoint) => {
                let owner = name_of(self.user());
                let place = mountpoint.display();
                write!(f, "{place} is a file system of user {owner}, who controls everything below it")
            }
            None => f.write_str(
                "its file system is not in the mount table, so its user is not known: it may have been unmounted just \
                 now",
            ),
        }
    }
}

/// Returns the mount that the open `file` is in if a user who is not trusted serves it, unless its
/// mountpoint is declared safe. Sends no request to its daemon.
///
/// A mount that is not in the table counts as such: its user may have detached it a moment ago. The
/// mount of the root directory is trusted, from which this program and its libraries come. After
/// `chroot`, the table may not have it.
pub fn foreign_mount(file: impl AsFd) -> Result<Option<ForeignMount>> {
    let failed = |errno: Errno| Error::io("the mount of an open file", errno.into());
    let id = mount_id(file).map_err(failed)?;
    let root = openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    if id == mount_id(root).map_err(failed)? {
        return Ok(None);
    }
    for _ in 0..TRIES {
        if let Some(mount) = find_id(id)? {
            let is_foreign = mount.is_foreign() && !is_declared_safe(&mount.mountpoint);
            return Ok(is_foreign.then_some(ForeignMount { owner: mount.owner, mountpoint: Some(mount.mountpoint) }));
        }
    }
    Ok(Some(ForeignMount { owner: None, mountpoint: None }))
}

/// Returns the number of the mount that an open file is in, which no other mount has as long as the
/// file is open. Device numbers do not tell: a directory can be mounted on another of its file
/// system.
pub fn mount_id(file: impl AsFd) -> Result<u64, Errno> {
    let file = file.as_fd();
    if let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())) {
        let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        return id.and_then(|id| id.trim().parse().ok()).ok_or(Errno::XDEV);
    }
    // There is no `/proc`. The kernel answers a request for no attributes by itself, since version
    // 5.8.
    let found = statx(file, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 { Ok(found.stx_mnt_id) } else { Err(Errno::XDEV) }
}

/// Returns the mount with number `id`; none if it is in no directory that this process can reach.
pub fn find_id(id: u64) -> Result<Option<Mount>> {
    Ok(read()?.into_iter().find(|mount| mount.id == id))
}

/// Returns all mounts that this process can reach.
pub fn read() -> Result<Vec<Mount>> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|e| Error::io("/proc/self/mountinfo", e))?;
    Ok(parse(&table))
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// Parses `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
/// (proc_pid_mountinfo(5)).
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    let options = text(fields.get(separator + 3)?);
    let number = |name: &str| options.split(',').find_map(|option| option.strip_prefix(name)?.parse().ok());
    Some(Mount {
        id: std::str::from_utf8(fields.first()?).ok()?.parse().ok()?,
        device: text(fields.get(2)?),
        read_only: text(fields.get(5)?).split(',').any(|option| option == "ro"),
        mountpoint: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
        fs_type: text(fields.get(separator + 1)?),
        source: text(fields.get(separator + 2)?),
        owner: number("user_id="),
        group: number("group_id="),
    })
}

/// Decodes space, tab, newline and backslash, which are three octal digits after a backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_read_with_their_escapes() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            90 22 0:51 / /mnt/a\\040b rw,nosuid shared:7 master:3 - fuse.icechunkfs /repo\\134x ro,user_id=0,group_id=5\nbroken line\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            mounts.last(),
            Some(&Mount {
                id: 90,
                mountpoint: "/mnt/a b".into(),
                fs_type: "fuse.icechunkfs".into(),
                source: "/repo\\x".into(),
                device: "0:51".into(),
                read_only: false,
                owner: Some(0),
                group: Some(5),
            })
        );
    }

    #[test]
    fn a_file_system_of_another_user_is_foreign() {
        let is_foreign = |fs_type: &str, user: u32| {
            let line = format!("9 1 0:5 / /m rw - {fs_type} x rw,user_id={user},group_id=0");
            parse(line.as_bytes()).first().map(Mount::is_foreign)
        };
        let own = rustix::process::geteuid().as_raw();
        for fs_type in ["fuse", "fuseblk", "fuse.icechunkfs", "fuse.sshfs", "fuseblk.ntfs"] {
            assert_eq!(is_foreign(fs_type, own.wrapping_add(1_000_000)), Some(true), "{fs_type}");
            assert_eq!((is_foreign(fs_type, own), is_foreign(fs_type, 0)), (Some(false), Some(false)), "{fs_type}");
        }
        assert_eq!(is_foreign("fusectl", own.wrapping_add(1_000_000)), Some(false));
        // Which user answers is not known.
        let unknown = parse(b"9 1 0:5 / /m rw - fuse.x x rw");
        assert!(unknown.first().is_some_and(Mount::is_foreign));
    }
}
