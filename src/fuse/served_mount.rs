//! The mount that this process serves, found again when it has to be asked or unmounted.
//!
//! A path could mean another mount by then, and an open descriptor, of the mount or of a directory
//! around it, would keep its file system from being unmounted. The device number stays the mount's
//! own as long as it is served.

use std::path::PathBuf;
use std::time::Duration;

use super::health::Health;
use super::mount_table::{self, Mount};
use super::mountpoint::Mountpoint;
use super::open_mount::{Deadline, OpenMount};
use super::unmount::{self, UnmountMode};
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Longest time until a new mount answers.
const STARTING: Duration = Duration::from_secs(60);

/// Mount of this process.
#[derive(Clone, Debug)]
pub struct ServedMount {
    mountpoint: PathBuf,
    /// Device number, such as `0:51`; none if it is not known.
    device: Option<String>,
}

impl ServedMount {
    /// Creates the record of the mount with this device number, which was made at `mountpoint`.
    pub(super) fn new(mountpoint: PathBuf, device: Option<String>) -> Self {
        ServedMount { mountpoint, device }
    }

    /// Returns the path at which it was mounted.
    pub fn mountpoint(&self) -> &std::path::Path {
        &self.mountpoint
    }

    /// Returns where it is mounted now; none if it is not.
    pub fn find(&self) -> Result<Option<Mount>> {
        let Some(device) = &self.device else { return Ok(None) };
        let mut mounts = mount_table::mounts_of_device(device)?;
        let at = mounts.iter().position(|mount| mount.mountpoint == self.mountpoint).unwrap_or_default();
        Ok((at < mounts.len()).then(|| mounts.swap_remove(at)))
    }

    /// Returns the health; none if it is not mounted any more, or if another mount covers it.
    pub fn health(&self, timeout: Duration) -> Option<Health> {
        let mount = self.find().ok().flatten()?;
        match OpenMount::of(&mount, Deadline::after(timeout)) {
            Ok(found) => found.map(|(_, health)| health),
            Err(error) if error.kind() == ErrorKind::Timeout => Some(Health::Hanging),
            Err(_) => Some(Health::Unknown),
        }
    }

    /// Fails if it is mounted and does not answer.
    pub fn require_answers(&self) -> Result<()> {
        let Some(mount) = self.find()? else { return Ok(()) };
        let deadline = Deadline::after(STARTING);
        match OpenMount::of(&mount, deadline)? {
            None | Some((_, Health::Alive)) => Ok(()),
            Some((_, health)) => {
                let message = format!("{}: the mount does not answer ({health:?})", mount.mountpoint.display());
                Err(Error::new(ErrorKind::Io, message))
            }
        }
    }

    /// Unmounts it, if it is mounted.
    ///
    /// Errors: [`ErrorKind::Busy`] while files in it are open, or while another mount covers it.
    pub fn unmount(&self, mode: UnmountMode) -> Result<()> {
        let Some(mount) = self.find()? else { return Ok(()) };
        let mountpoint = Mountpoint::find(&mount.mountpoint)?;
        let open = OpenMount::at(&mountpoint)?;
        if open.mount().id != mount.id {
            let place = mount.mountpoint.display();
            return Err(Error::new(ErrorKind::Busy, format!("{place}: another mount covers it")));
        }
        unmount::unmount(&mountpoint, open, mode)
    }
}
