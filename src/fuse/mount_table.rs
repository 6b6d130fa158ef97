//! Mount table, as `/proc/self/mountinfo` has it.
//!
//! Reading the table involves no file system, so it works for a mount whose daemon is dead, where any access to the mountpoint
//! itself fails with `ENOTCONN`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::trust;

/// Type of icechunkfs mounts.
pub const FILE_SYSTEM_TYPE: &str = "fuse.icechunkfs";

/// Mount in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount in this mount namespace, which no other one has as long as a descriptor of it is open.
    pub id: u64,
    /// Mountpoint.
    pub mountpoint: PathBuf,
    /// File system type, for example `ext4` or `fuse.icechunkfs`.
    pub fs_type: String,
    /// Source; for an icechunkfs mount the repository and its ref, as [`crate::mount_facts::MountFacts::source`] joins them.
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

/// Beginnings of the ref in the source of an icechunkfs mount.
const REFS: [&str; 3] = ["@branch:", "@tag:", "@snapshot:"];

impl Mount {
    /// Returns the repositories of which an icechunkfs mount can be: all readings of its source, as names of repositories and refs
    /// may have any character.
    pub fn repositories(&self) -> impl Iterator<Item = &str> {
        let cuts = REFS.into_iter().flat_map(|mark| self.source.match_indices(mark)).map(|(at, _)| at);
        std::iter::once(self.source.len()).chain(cuts).filter_map(|end| self.source.get(..end))
    }

    /// Returns true if it is an icechunkfs mount.
    pub fn is_icechunkfs(&self) -> bool {
        self.fs_type == FILE_SYSTEM_TYPE
    }

    /// Returns true if the user who mounted it is the current one or root: commands speak to no other daemon. The kernel, not the daemon,
    /// names that user.
    pub fn is_own(&self) -> bool {
        self.owner.is_some_and(trust::is_trusted)
    }

    /// Returns true if another user may answer requests to its files. Such a file system can answer anything, or never.
    pub fn is_foreign(&self) -> bool {
        let is_fuse = self.fs_type.split('.').next().is_some_and(|family| ["fuse", "fuseblk"].contains(&family));
        is_fuse && !self.is_own()
    }

    /// Returns the major and the minor number of the device.
    pub fn device_numbers(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.device.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }
}

/// Returns the mount at `mountpoint`, which must be absolute; the topmost of several. None if nothing is mounted at this very
/// path.
pub fn find(mountpoint: &Path) -> Result<Option<Mount>> {
    Ok(read()?.into_iter().rfind(|mount| mount.mountpoint == mountpoint))
}

/// Returns the mounts of the file system with this device number, such as `0:51`: more than one if it is also bound elsewhere.
pub fn mounts_of_device(device: &str) -> Result<Vec<Mount>> {
    Ok(read()?.into_iter().filter(|mount| mount.device == device).collect())
}

/// Returns the mount with number `id`; none if it is in no directory that this process can reach.
pub fn find_id(id: u64) -> Result<Option<Mount>> {
    Ok(read()?.into_iter().find(|mount| mount.id == id))
}

/// Returns all icechunkfs mounts.
pub fn own_mounts() -> Result<Vec<Mount>> {
    Ok(read()?.into_iter().filter(Mount::is_icechunkfs).collect())
}

fn read() -> Result<Vec<Mount>> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|e| Error::io("/proc/self/mountinfo", e))?;
    Ok(parse(&table))
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// Parses `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue` (proc_pid_mountinfo(5)).
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
                fs_type: FILE_SYSTEM_TYPE.into(),
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
