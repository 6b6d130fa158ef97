//! Mounts of icechunkfs among those of the kernel, by their type and source.

use super::mounts::Mount;

/// Type of icechunkfs mounts.
pub const FILE_SYSTEM_TYPE: &str = "fuse.icechunkfs";

/// Beginnings of the ref in the source of an icechunkfs mount.
const REFS: [&str; 3] = ["@branch:", "@tag:", "@snapshot:"];

impl Mount {
    /// Returns the repositories of which an icechunkfs mount can be: all readings of its source, as
    /// names of repositories and refs may have any character.
    pub fn repositories(&self) -> impl Iterator<Item = &str> {
        let cuts = REFS.into_iter().flat_map(|mark| self.source.match_indices(mark)).map(|(at, _)| at);
        std::iter::once(self.source.len()).chain(cuts).filter_map(|end| self.source.get(..end))
    }

    /// Returns true if it is an icechunkfs mount.
    pub fn is_icechunkfs(&self) -> bool {
        self.fs_type == FILE_SYSTEM_TYPE
    }

    /// Returns the major and the minor number of the device.
    pub fn device_numbers(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.device.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }
}
