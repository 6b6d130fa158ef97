//! Mountpoints of the form `/dev/fd/N`: the caller has opened `/dev/fuse` as descriptor N and
//! mounts it, as with libfuse.
//!
//! A privileged caller can so mount for a daemon that may not: container runtimes and storage
//! drivers do. The caller chooses the mount options, and unmounts.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::FdFlags;

use super::mount_table;
use icechunkfs_base::error::{Error, Result};

/// Device number of `/dev/fuse`.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// Returns the descriptor that `mountpoint` names, if it names one.
pub fn descriptor(mountpoint: &Path) -> Option<RawFd> {
    let number = mountpoint.to_str()?.strip_prefix("/dev/fd/")?;
    number.parse().ok().filter(|number| *number >= 0)
}

/// Checks that descriptor `number` is `/dev/fuse`.
///
/// Errors: [`InvalidInput`](icechunkfs_base::error::ErrorKind::InvalidInput) if it is closed or
/// another file.
pub fn check(number: RawFd) -> Result<()> {
    let found = std::fs::metadata(format!("/proc/self/fd/{number}")).map_err(|_| {
        Error::invalid(format!(
            "/dev/fd/{number} is not open: open /dev/fuse and let icechunkfs inherit the descriptor"
        ))
    })?;
    let numbers = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    match FileType::from_raw_mode(found.mode()) {
        FileType::CharacterDevice if numbers == FUSE_DEVICE => Ok(()),
        _ => Err(Error::invalid(format!("/dev/fd/{number} is not /dev/fuse: open that and mount the descriptor"))),
    }
}

/// Takes descriptor `number`, which no other code of this process may use.
pub(super) fn take(number: RawFd) -> Result<OwnedFd> {
    check(number)?;
    // SAFETY: the descriptor is open, as was just checked. The command line gives it to this
    // function alone, which is called once.
    let device = unsafe { OwnedFd::from_raw_fd(number) };
    // A helper that inherited it would keep the mount alive after the daemon's end.
    rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC).map_err(|e| Error::io(format!("/dev/fd/{number}"), e.into()))?;
    Ok(device)
}

/// Returns the device number of the file system that `device` serves, if the kernel tells: new ones
/// do (6.18), in `fdinfo`.
pub(super) fn device_number(device: impl AsFd) -> Option<String> {
    let number = device.as_fd().as_raw_fd();
    let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
    let connection: u32 = facts.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()?;
    Some(format!("0:{connection}"))
}

/// Returns where the file system with this device number is mounted.
pub(super) fn mountpoint_of(device: &str) -> Option<PathBuf> {
    mount_table::mounts_of_device(device).ok()?.into_iter().next().map(|mount| mount.mountpoint)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;

    use super::*;

    #[test]
    fn only_descriptors_of_the_device_are_taken() {
        assert_eq!(descriptor(Path::new("/dev/fd/7")), Some(7));
        for other in ["/dev/fd/", "/dev/fd/-1", "/dev/fd/7/x", "/mnt/fd/7"] {
            assert_eq!(descriptor(Path::new(other)), None, "{other}");
        }
        let null = File::open("/dev/null").unwrap();
        assert!(check(null.as_raw_fd()).unwrap_err().to_string().contains("is not /dev/fuse"));
        assert!(check(1 << 20).unwrap_err().to_string().contains("inherit"));
    }
}
