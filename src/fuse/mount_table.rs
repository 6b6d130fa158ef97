//! Mounts of icechunkfs in the table of the kernel, which [`icechunkfs_base::trust::mounts`] reads.

use std::path::Path;

use icechunkfs_base::error::Result;
pub(super) use icechunkfs_base::trust::mounts::read;
pub use icechunkfs_base::trust::mounts::{Mount, find_id};
pub use icechunkfs_base::trust::own_mounts::FILE_SYSTEM_TYPE;

/// Returns the mount at `mountpoint`, which must be absolute; the topmost of several. None if
/// nothing is mounted at this very path.
pub fn find(mountpoint: &Path) -> Result<Option<Mount>> {
    Ok(read()?.into_iter().rfind(|mount| mount.mountpoint == mountpoint))
}

/// Returns the mounts of the file system with this device number, such as `0:51`: more than one if
/// it is also bound elsewhere.
pub fn mounts_of_device(device: &str) -> Result<Vec<Mount>> {
    Ok(read()?.into_iter().filter(|mount| mount.device == device).collect())
}

/// Returns all icechunkfs mounts.
pub fn own_mounts() -> Result<Vec<Mount>> {
    Ok(read()?.into_iter().filter(Mount::is_icechunkfs).collect())
}
