//! Mountpoints of `icechunkfs run`, and what killed runs have left.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;

use crate::fuse::health::Health;
use crate::fuse::mount_table;
use crate::fuse::mountpoint::Mountpoint;
use crate::fuse::open_mount::{self, Deadline, OpenMount};
use crate::fuse::unmount::{self, UnmountMode};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_working::scratch::directory::make_private;

/// Beginning of the names of temporary mountpoints.
const PREFIX: &str = "icechunkfs-run-";
/// Longest time for the look at mounts that other runs may have left.
const GLANCE: Duration = Duration::from_secs(1);
/// Age of a temporary mountpoint below which its run may be about to mount there.
const YOUNG: Duration = Duration::from_secs(60);

/// Mountpoint of a job.
#[derive(Debug)]
pub(super) enum JobMountpoint {
    /// Directory of the user. It is locked: a second run would mount over the first one.
    Given(PathBuf, #[expect(dead_code, reason = "holds the lock while it is open")] File),
    /// Directory that is removed when this is dropped.
    Temporary(PathBuf),
}

impl JobMountpoint {
    /// Returns the directory `given`, or a new one.
    pub(super) fn new(given: Option<&Path>) -> Result<Self> {
        let Some(path) = given else {
            let failed = |e| Error::io("making a temporary mountpoint", e);
            let made = make_private(&std::env::temp_dir(), OsStr::new(PREFIX)).map_err(failed)?;
            // The mount table has no symbolic links.
            return std::fs::canonicalize(made).map(JobMountpoint::Temporary).map_err(failed);
        };
        let failed = |e| Error::io(format!("the mountpoint {}", path.display()), e);
        let path = std::path::absolute(path).map_err(failed)?;
        let busy = || Error::new(ErrorKind::Busy, format!("the mountpoint {} is in use", path.display()));
        if open_mount::is_mountpoint(&path) {
            return Err(busy());
        }
        let directory = Mountpoint::find(&path)?.open().map_err(|errno| failed(errno.into()))?;
        let directory = File::open(format!("/proc/self/fd/{}", directory.as_raw_fd())).map_err(failed)?;
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => Err(busy()),
            Err(errno) => Err(failed(errno.into())),
            Ok(()) => Ok(JobMountpoint::Given(path, directory)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        let (JobMountpoint::Given(path, _) | JobMountpoint::Temporary(path)) = self;
        path
    }

    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, JobMountpoint::Temporary(_))
    }

    /// Removes the mount of a daemon that failed, or was killed.
    pub(super) fn abandon(&self) {
        let removed = Mountpoint::find(self.path()).and_then(|mountpoint| unmount::remove_dead(&mountpoint));
        if let Err(error) = removed {
            tracing::warn!("{error}");
        }
    }

    /// Removes the mounts and directories of runs that were killed together with their daemons.
    /// Failures do not concern this run.
    pub(super) fn remove_others(&self) {
        let JobMountpoint::Temporary(own) = self else { return };
        let is_other = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(PREFIX) && path != own && path.parent() == own.parent()
        };
        let deadline = Deadline::after(GLANCE);
        for mount in mount_table::own_mounts().unwrap_or_default() {
            if !is_other(&mount.mountpoint) || !mount.is_own() {
                continue;
            }
            if let Ok(Some((open, Health::Dead))) = OpenMount::of(&mount, deadline)
                && let Ok(mountpoint) = Mountpoint::find(&mount.mountpoint)
            {
                match unmount::unmount(&mountpoint, open, UnmountMode::Detach) {
                    Ok(()) => drop(std::fs::remove_dir(&mount.mountpoint)),
                    Err(error) => tracing::debug!("{error}"),
                }
            }
        }
        let Some(entries) = own.parent().and_then(|parent| std::fs::read_dir(parent).ok()) else { return };
        for entry in entries.flatten().filter(|entry| is_other(&entry.path())) {
            // A mount hides the directory, whose age is not known then.
            let changed = entry.path().symlink_metadata().and_then(|metadata| metadata.modified());
            let is_old = changed.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age >= YOUNG));
            if is_old {
                // It is removed only if it is this user's, empty, and nothing is mounted there.
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }
}

impl Drop for JobMountpoint {
    fn drop(&mut self) {
        if let JobMountpoint::Temporary(path) = self {
            // The daemon removes it, too.
            let _ = std::fs::remove_dir(path);
        }
    }
}
