//! Mounting without a helper, where this process may.
//!
//! fuser can mount directly too, but only as plain `fuse`: the type `fuse.icechunkfs`, by which
//! users, fstab and `icechunkfs unmount` recognize a mount, would be lost. Without the privilege,
//! fuser calls `fusermount3`, which keeps the type.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::mount::{Flag, Options};
use super::mount_table::FILE_SYSTEM_TYPE;
use super::mount_target::MountTarget;
use icechunkfs_base::error::{Error, Result};

/// Mode of the root directory, which the kernel needs before it can ask: a directory.
const ROOT_MODE: u32 = libc::S_IFDIR;

/// Mounts at `target` and returns the connection to the kernel; none if this process may not mount.
pub fn mount(target: &MountTarget, options: &Options) -> Result<Option<OwnedFd>> {
    let failed = |errno: Errno| Error::io(format!("mounting at {}", target.path().display()), errno.into());
    // By the open directory: its path may lead to another one by now.
    let directory = target.directory().ok_or_else(|| failed(Errno::BADF))?;
    let mountpoint = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let device = match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(device) => OwnedFd::from(device),
        // The fallback reports this in more detail.
        Err(_) => return Ok(None),
    };
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let mut data = format!("fd={},rootmode={ROOT_MODE:o},user_id={uid},group_id={gid}", device.as_raw_fd());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if options.checks_modes() {
        data.push_str(",default_permissions");
    }
    let wrong = |_| Error::invalid("the repository's name has a NUL byte");
    let data = std::ffi::CString::new(data).map_err(wrong)?;
    match rustix::mount::mount(
        options.source.as_str(),
        mountpoint.as_str(),
        FILE_SYSTEM_TYPE,
        flags(options),
        data.as_c_str(),
    ) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM | Errno::ACCESS) => Ok(None),
        Err(errno) => Err(failed(errno)),
    }
}

fn flags(options: &Options) -> MountFlags {
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, !options.writable);
    flags.set(MountFlags::NOSUID, !options.has(Flag::Suid));
    flags.set(MountFlags::NODEV, !options.has(Flag::Dev));
    flags.set(MountFlags::NOEXEC, options.is_noexec());
    flags
}
