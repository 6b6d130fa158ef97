//! Unmounting, also of a mount whose daemon has died.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use super::mount_table::{self, FILE_SYSTEM_TYPE};
use super::probe;
use crate::error::{Error, ErrorKind, Result};

/// Longest time for a killed process to end. Only after this does a live mount count as busy.
const DYING: Duration = Duration::from_millis(500);
/// Longest wait for programs that have just closed their files, or are about to: a process that another thread of such a program forks
/// holds copies of its descriptors until it runs its own program, and desktops look into files that were just written.
const CLOSING: Duration = Duration::from_secs(1);
/// Interval between checks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Mode of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Fails with [`ErrorKind::Busy`] if files stay open for [`CLOSING`].
    Polite,
    /// Removes the mount from the tree now; it ends when the last file is closed.
    Detach,
}

/// Unmounts `mountpoint`, directly where this process may, otherwise through `fusermount3`. May block for [`CLOSING`].
pub fn unmount(mountpoint: &Path, force: UnmountMode) -> Result<()> {
    let begin = Instant::now();
    loop {
        match try_unmount(mountpoint, force) {
            Err(error) if error.kind() == ErrorKind::Busy && begin.elapsed() < CLOSING => {
                std::thread::sleep(LOOK_EVERY)
            }
            done => return done,
        }
    }
}

fn try_unmount(mountpoint: &Path, force: UnmountMode) -> Result<()> {
    // The path must not be followed: the mount may be dead.
    let flags = UnmountFlags::NOFOLLOW
        | if force == UnmountMode::Detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
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

fn with_helper(mountpoint: &Path, force: UnmountMode) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if force == UnmountMode::Detach {
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

/// Unmounts an icechunkfs mount at `mountpoint` (absolute) whose daemon has died. Leaves anything else as it is. Returns true if
/// there was one.
///
/// Fails with [`ErrorKind::Timeout`] if the mount does not answer but has a daemon.
pub fn remove_dead(mountpoint: &Path) -> Result<bool> {
    if mount_table::find(mountpoint)?.is_none_or(|mount| mount.fs_type != FILE_SYSTEM_TYPE) || !is_dead(mountpoint)? {
        return Ok(false);
    }
    unmount(mountpoint, UnmountMode::Detach)?;
    Ok(true)
}

/// Unmounts as [`remove_dead`] does, but waits for the end of a daemon that is just being killed: for some milliseconds it still
/// answers, or the kernel still aborts its requests.
pub fn wait_and_remove_dead(mountpoint: &Path) -> Result<bool> {
    let begin = Instant::now();
    loop {
        if remove_dead(mountpoint)? {
            return Ok(true);
        }
        let is_ours = mount_table::find(mountpoint)?.is_some_and(|mount| mount.fs_type == FILE_SYSTEM_TYPE);
        if !is_ours || begin.elapsed() > DYING {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns true if no daemon answers for `mountpoint`. The attributes of the root do not tell, since the kernel caches them
/// forever. For a name made up on the spot it must ask.
fn is_dead(mountpoint: &Path) -> Result<bool> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let unheard_of = mountpoint.join(format!(".icechunkfs-probe-{}-{}", std::process::id(), now.as_nanos()));
    // The kernel aborts a request that was in flight when the daemon died.
    let errno = probe::exists(mountpoint, &unheard_of)?.err().and_then(|error| error.raw_os_error());
    Ok(matches!(errno, Some(libc::ENOTCONN | libc::ECONNABORTED)))
}
