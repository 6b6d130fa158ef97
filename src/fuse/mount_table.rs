//! Mount table, as `/proc/self/mountinfo` has it.
//!
//! Reading the table involves no file system, so it works for a mount whose daemon is dead, where any access to the mountpoint
//! itself fails with `ENOTCONN`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// Type of icechunkfs mounts.
pub const FILE_SYSTEM_TYPE: &str = "fuse.icechunkfs";

/// Mount in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mountpoint.
    pub mountpoint: PathBuf,
    /// File system type, for example `ext4` or `fuse.icechunkfs`.
    pub fs_type: String,
    /// Source; the repository for an icechunkfs mount.
    pub source: String,
    /// Device number, as `major:minor`.
    pub device: String,
    /// True if the mount is read-only.
    pub read_only: bool,
    /// User who mounted it, for a FUSE file system.
    pub owner: Option<u32>,
}

/// Returns the mount at `mountpoint`, which must be absolute; the topmost of several. None if nothing is mounted at this very
/// path.
pub fn find(mountpoint: &Path) -> Result<Option<Mount>> {
    Ok(read()?.into_iter().rfind(|mount| mount.mountpoint == mountpoint))
}

/// Returns all icechunkfs mounts.
pub fn own_mounts() -> Result<Vec<Mount>> {
    Ok(read()?.into_iter().filter(|mount| mount.fs_type == FILE_SYSTEM_TYPE).collect())
}

/// Returns the absolute path of `mountpoint`. Fails if no icechunkfs mount is there.
pub fn require_mount(mountpoint: &Path) -> Result<PathBuf> {
    let mountpoint = absolute(mountpoint)?;
    let place = mountpoint.display();
    match find(&mountpoint)? {
        None => Err(Error::new(ErrorKind::NotFound, format!("nothing is mounted at {place}"))),
        Some(mount) if mount.fs_type != FILE_SYSTEM_TYPE => {
            Err(Error::invalid(format!("{place} is a mount of type {}, not of icechunkfs", mount.fs_type)))
        }
        Some(_) => Ok(mountpoint),
    }
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
    Some(Mount {
        device: text(fields.get(2)?),
        read_only: text(fields.get(5)?).split(',').any(|option| option == "ro"),
        mountpoint: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
        fs_type: text(fields.get(separator + 1)?),
        source: text(fields.get(separator + 2)?),
        owner: text(fields.get(separator + 3)?)
            .split(',')
            .find_map(|option| option.strip_prefix("user_id=")?.parse().ok()),
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

/// Makes `path` absolute. If a mount is there, only the parent directory is resolved, since the table has no symbolic links: the
/// mount itself may be dead or hang.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|e| Error::io(path.display(), e))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return path.canonicalize().map_err(|e| Error::io(path.display(), e));
    };
    let parent = parent.canonicalize().map_err(|e| Error::io(parent.display(), e))?;
    let unresolved = parent.join(name);
    if find(&unresolved)?.is_some() {
        return Ok(unresolved);
    }
    Ok(path.canonicalize().unwrap_or(unresolved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_their_escapes() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            90 22 0:51 / /mnt/a\\040b rw,nosuid shared:7 master:3 - fuse.icechunkfs /repo\\134x ro,user_id=0\nbroken line\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            mounts.last(),
            Some(&Mount {
                mountpoint: "/mnt/a b".into(),
                fs_type: FILE_SYSTEM_TYPE.into(),
                source: "/repo\\x".into(),
                device: "0:51".into(),
                read_only: false,
                owner: Some(0),
            })
        );
    }
}
