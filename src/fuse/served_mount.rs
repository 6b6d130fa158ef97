//! The mount that this process serves, found again when it has to be asked or unmounted.
//!
//! A path could mean another mount by then, and an open descriptor, of the mount or of a directory
//! around it, would keep its file system from being unmounted. The device number is the mount's own
//! as long as it is mounted, and from then on that of the next mount that anybody makes: so the
//! kernel is asked, after each look at that number, whether the connection to the mount exists
//! still.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

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
    connection: Connection,
}

/// Connection of a mount to the kernel, as far as this process has it.
#[derive(Clone, Debug)]
pub(super) enum Connection {
    /// Descriptor of `/dev/fuse` that serves the mount. The process that serves it keeps it open,
    /// and nobody else: an open one keeps a mount from failing that nobody serves.
    Served(Weak<OwnedFd>),
    /// The mount was made a moment ago, and is not served.
    New,
}

impl Connection {
    /// Returns the connection that `descriptor` is.
    pub(super) fn of(descriptor: &Arc<OwnedFd>) -> Self {
        Connection::Served(Arc::downgrade(descriptor))
    }

    /// Returns true if the mount has not been unmounted. Its device number is then its own.
    fn exists(&self) -> bool {
        let Connection::Served(descriptor) = self else { return true };
        let Some(descriptor) = descriptor.upgrade() else { return false };
        let mut polled = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::empty())];
        // The kernel reports an error from when it takes the mount away, before the number is free.
        let asked = loop {
            match poll(&mut polled, Some(&Timespec::default())) {
                Err(Errno::INTR) => {}
                asked => break asked,
            }
        };
        let [polled] = polled;
        asked.is_ok() && !polled.revents().intersects(PollFlags::ERR | PollFlags::NVAL)
    }
}

impl ServedMount {
    /// Creates the record of the mount with this device number, which was made at `mountpoint`.
    pub(super) fn new(mountpoint: PathBuf, device: Option<String>, connection: Connection) -> Self {
        ServedMount { mountpoint, device, connection }
    }

    /// Returns the path at which it was mounted.
    pub fn mountpoint(&self) -> &std::path::Path {
        &self.mountpoint
    }

    /// Returns its device number, such as `0:51`; none if it is not known.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns where it is mounted now; none if it is not.
    pub fn find(&self) -> Result<Option<Mount>> {
        let Some(device) = &self.device else { return Ok(None) };
        let mut mounts = mount_table::mounts_of_device(device)?;
        let at = mounts.iter().position(|mount| mount.mountpoint == self.mountpoint).unwrap_or_default();
        // Otherwise another mount may have had the number when the table was read.
        Ok((at < mounts.len() && self.connection.exists()).then(|| mounts.swap_remove(at)))
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
        // The open mount keeps its number from now on, but may have had it from the one that is
        // looked for.
        if !self.connection.exists() {
            return Ok(());
        }
        unmount::unmount(&mountpoint, open, mode)
    }
}
