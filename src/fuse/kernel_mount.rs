//! Mounting by ourselves, where we may.
//!
//! fuser mounts too, but by itself only as plain `fuse`: the type `fuse.icechunkfs`, by which users, fstab and our own
//! `unmount` know a mount, is lost on that way. Without the privilege, fuser asks `fusermount3`, which keeps the type.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::mount_table::FILE_SYSTEM_TYPE;
use super::session::{Flag, Options, checks_modes};
use crate::error::{Error, Result};

/// Mode of the root directory as the kernel wants it before it can ask: a directory.
const ROOT_MODE: u32 = libc::S_IFDIR;

/// Mounts at `mountpoint` and returns the connection to the kernel. None where this process may not mount.
pub fn mount(mountpoint: &Path, options: &Options) -> Result<Option<OwnedFd>> {
    let device = match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(device) => OwnedFd::from(device),
        // Reported with more words by the way that follows.
        Err(_) => return Ok(None),
    };
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let mut data = format!("fd={},rootmode={ROOT_MODE:o},user_id={uid},group_id={gid}", device.as_raw_fd());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if checks_modes(options) {
        data.push_str(",default_permissions");
    }
    let wrong = |_| Error::invalid("the repository's name has a NUL byte");
    let data = std::ffi::CString::new(data).map_err(wrong)?;
    match rustix::mount::mount(options.source.as_str(), mountpoint, FILE_SYSTEM_TYPE, flags(options), data.as_c_str()) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM | Errno::ACCESS) => Ok(None),
        Err(errno) => Err(Error::io(format!("mounting at {}", mountpoint.display()), errno.into())),
    }
}

fn flags(options: &Options) -> MountFlags {
    let has = |flag| options.flags.contains(&flag);
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, !options.writable);
    flags.set(MountFlags::NOSUID, !has(Flag::Suid));
    flags.set(MountFlags::NODEV, !has(Flag::Dev));
    flags.set(MountFlags::NOEXEC, has(Flag::NoExec) && !has(Flag::Exec));
    flags
}
