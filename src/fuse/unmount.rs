//! Taking mounts down.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use super::inquiry;
use super::mount_table::{self, FILE_SYSTEM_TYPE};
use crate::error::{Error, ErrorKind, Result};

/// How long a process that was killed may take to end. A mount that is alive is busy only after this.
const DYING: Duration = Duration::from_millis(500);
/// Between two looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How hard to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Fail with [`ErrorKind::Busy`] while files are open.
    Polite,
    /// Take it out of the tree now; it ends when the last file is closed.
    Detach,
}

/// Unmounts `mountpoint`, directly where this process may, otherwise through `fusermount3`.
pub fn unmount(mountpoint: &Path, force: Force) -> Result<()> {
    // The path must not be followed: the mount itself may be dead.
    let flags =
        UnmountFlags::NOFOLLOW | if force == Force::Detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => with_helper(mountpoint, force),
        Err(rustix::io::Errno::BUSY) => Err(busy(mountpoint)),
        Err(errno) => Err(Error::io(format!("unmounting {}", mountpoint.display()), errno.into())),
    }
}

fn busy(mountpoint: &Path) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "{} is in use: a program has a file open in it or its working directory there (`fuser -vm {}` names it). `icechunkfs unmount \
             --force` takes it out of the tree all the same",
            mountpoint.display(),
            mountpoint.display()
        ),
    )
}

fn with_helper(mountpoint: &Path, force: Force) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if force == Force::Detach {
        command.arg("-z");
    }
    let output = command.arg("--").arg(mountpoint).output().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, "fusermount3 is missing: install the package fuse3, or unmount as root")
        }
        _ => Error::io("fusermount3", e),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if words.contains("busy") {
        return Err(busy(mountpoint));
    }
    let kind = if words.contains("not permitted") { ErrorKind::PermissionDenied } else { ErrorKind::Io };
    Err(Error::new(kind, words))
}

/// Takes away a mount of ours at `mountpoint` (absolute) whose daemon has died. Anything else is left as it is.
///
/// True if there was one. Errors: [`ErrorKind::Timeout`] if the mount does not answer, but somebody serves it.
pub fn clean_dead(mountpoint: &Path) -> Result<bool> {
    if mount_table::find(mountpoint)?.is_none_or(|mount| mount.fs_type != FILE_SYSTEM_TYPE) || !is_dead(mountpoint)? {
        return Ok(false);
    }
    unmount(mountpoint, Force::Detach)?;
    Ok(true)
}

/// As [`clean_dead`], and waits for the end of a daemon that is being killed at this moment: for some milliseconds it goes on
/// answering, or the kernel on ending its requests.
pub fn clean_dying(mountpoint: &Path) -> Result<bool> {
    let begin = Instant::now();
    loop {
        if clean_dead(mountpoint)? {
            return Ok(true);
        }
        let is_ours = mount_table::find(mountpoint)?.is_some_and(|mount| mount.fs_type == FILE_SYSTEM_TYPE);
        if !is_ours || begin.elapsed() > DYING {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether nobody answers for `mountpoint`. Its own attributes do not tell: the kernel has them for ever. It has never heard
/// of a name made up on the spot, so that it must ask.
fn is_dead(mountpoint: &Path) -> Result<bool> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let unheard_of = mountpoint.join(format!(".icechunkfs-probe-{}-{}", std::process::id(), now.as_nanos()));
    // A request that was on its way when the daemon died is aborted.
    let errno = inquiry::exists(mountpoint, &unheard_of)?.err().and_then(|error| error.raw_os_error());
    Ok(matches!(errno, Some(libc::ENOTCONN | libc::ECONNABORTED)))
}
