//! Values of the moment of a working tree, for `.icechunk/stats`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::upper::Upper;
use icechunkfs_base::metrics::Gauge;

/// Age from which on the bytes of the scratch directory are counted again: each file costs a
/// microsecond.
const FRESH: Duration = Duration::from_secs(5);
/// Bytes of a block that `stat` counts.
const BLOCK: u64 = 512;

/// Bytes of the scratch directory, and the time at which they were counted.
pub(super) type CountedBytes = Option<(Instant, u64)>;

impl Upper {
    /// Returns the current values. May block on the scratch directory's disk.
    pub fn gauges(&self) -> Vec<Gauge> {
        let gauge = |name, help, value| Gauge { name, help, value };
        let (open, writing, old) = {
            let locked = self.lock();
            let writing = locked.open_files.values().filter(|open| open.writers > 0).count();
            (locked.open_files.len(), writing, locked.kernel.old_version_count())
        };
        let free =
            rustix::fs::statvfs(self.scratch().path()).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        vec![
            gauge("open_files", "Files that programs have open, as far as the daemon knows.", open as u64),
            gauge("open_files_writing", "Files that programs have open for writing.", writing as u64),
            gauge("old_versions", "Old versions of files that programs may read.", old as u64),
            gauge("scratch_bytes", "Bytes that uncommitted changes take on disk.", self.scratch_bytes()),
            gauge("scratch_free_bytes", "Free bytes of the disk of the scratch directory.", free),
        ]
    }

    fn scratch_bytes(&self) -> u64 {
        if let Some((at, bytes)) = *self.counted_bytes.lock()
            && at.elapsed() < FRESH
        {
            return bytes;
        }
        let bytes = bytes_below(self.scratch().path());
        *self.counted_bytes.lock() = Some((Instant::now(), bytes));
        bytes
    }
}

/// Returns the bytes that the files in and below `directory` take. What vanishes meanwhile does not
/// count.
fn bytes_below(directory: &Path) -> u64 {
    let mut bytes: u64 = 0;
    let mut directories: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(BLOCK));
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    bytes
}
