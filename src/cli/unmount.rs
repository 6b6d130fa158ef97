//! `icechunkfs unmount`: takes a mount away, also one whose daemon has died.

use super::args::UnmountArgs;
use super::logging;
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::mount_table::{self, FILE_SYSTEM_TYPE};
use crate::fuse::unmount::{self, Force};

/// Unmounts what is mounted at the mountpoint, if it is ours.
pub fn run(arguments: &UnmountArgs) -> Result<()> {
    logging::to_stderr(0);
    let mountpoint = mount_table::absolute(&arguments.mountpoint)?;
    let place = mountpoint.display();
    match mount_table::find(&mountpoint)? {
        None => Err(Error::new(ErrorKind::NotFound, format!("nothing is mounted at {place}"))),
        Some(mount) if mount.fs_type != FILE_SYSTEM_TYPE => Err(Error::invalid(format!(
            "{place} is a mount of type {}, not of icechunkfs: use umount for it",
            mount.fs_type
        ))),
        Some(_) if unmount::clean_dead(&mountpoint)? => Ok(()),
        Some(_) => unmount::unmount(&mountpoint, Force::Polite),
    }
}
