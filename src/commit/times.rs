//! The times of chunk files that are linked into a repository.
//!
//! A collection of garbage tells by an object's age whether a commit that is being made may still need it. A linked object is
//! the chunk's file itself and would be as old as that, so the file gets the present time before it is linked. If the commit
//! fails, the files get the times back that they had: a commit that fails changes nothing.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use parking_lot::Mutex;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use tracing::warn;

use super::changes::ChunkFile;

/// Files that have the present time, and when they were modified before. Gives the times back when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Renewed(Mutex<Vec<(ChunkFile, Timespec)>>);

impl Renewed {
    /// Gives `opened`, which is `file`, the present time as the one of its last modification. Returns whether that was done; only
    /// its owner may do it.
    pub(super) fn renew(&self, file: &ChunkFile, opened: &File) -> bool {
        let Ok(metadata) = opened.metadata() else { return false };
        if set_modified(opened, Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }).is_err() {
            return false;
        }
        let before = Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() };
        self.0.lock().push((file.clone(), before));
        true
    }

    /// Leaves the files as they are now: they are objects of the repository.
    pub(super) fn keep(&self) {
        self.0.lock().clear();
    }
}

impl Drop for Renewed {
    fn drop(&mut self) {
        // A file may be here twice: what it had at first comes last.
        for (file, before) in self.0.get_mut().drain(..).rev() {
            let restored = file.open().and_then(|opened| {
                set_modified(&opened, before)
                    .map_err(|e| crate::error::Error::io(format!("the times of {}", file.name), e.into()))
            });
            if let Err(error) = restored {
                warn!("a chunk's file has the time of a commit that failed: {error}");
            }
        }
    }
}

fn set_modified(file: &File, time: Timespec) -> Result<(), rustix::io::Errno> {
    let unchanged = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    rustix::fs::futimens(file, &Timestamps { last_access: unchanged, last_modification: time })
}
