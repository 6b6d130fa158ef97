//! Modification times of chunk files that are linked into a repository.
//!
//! Garbage collection decides by an object's age if a running commit may still need it. A linked
//! object is the chunk's file itself and would be as old as that, so the file gets the current time
//! before it is linked. A commit that fails changes nothing: its files get their old times back.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use parking_lot::Mutex;
use rustix::fs::{Timespec, UTIME_NOW};
use tracing::warn;

use super::changes::ChunkFile;
use icechunkfs_base::times::set_modified;

/// Files with the current time, each with its old modification time, which is restored on drop.
#[derive(Debug, Default)]
pub(super) struct RenewedTimes {
    files: Mutex<Vec<(ChunkFile, Timespec)>>,
    /// Names of files that could not be flushed.
    unflushed: Mutex<Vec<String>>,
}

impl RenewedTimes {
    /// Sets the modification time of `file`, open as `opened`, to now. Returns true on success;
    /// only the file's owner may do it.
    pub(super) fn renew(&self, file: &ChunkFile, opened: &File) -> bool {
        let Ok(metadata) = opened.metadata() else { return false };
        if set_modified(opened, Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }).is_err() {
            return false;
        }
        let before = Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() };
        self.files.lock().push((file.clone(), before));
        true
    }

    /// Keeps the new times: the files are objects of the repository.
    pub(super) fn keep(&self) {
        self.files.lock().clear();
    }

    /// Records that the file called `name` could not be flushed.
    pub(super) fn record_unflushed(&self, name: String) {
        self.unflushed.lock().push(name);
    }

    /// Returns the names of files that could not be flushed.
    pub(super) fn take_unflushed(&self) -> Vec<String> {
        std::mem::take(&mut self.unflushed.lock())
    }
}

impl Drop for RenewedTimes {
    fn drop(&mut self) {
        // A file may be listed twice: its first recorded time is restored last.
        for (file, before) in self.files.get_mut().drain(..).rev() {
            let restored = file.open().and_then(|opened| {
                set_modified(&opened, before)
                    .map_err(|e| icechunkfs_base::error::Error::io(format!("the times of {}", file.name), e.into()))
            });
            if let Err(error) = restored {
                warn!("a chunk's file has the time of a commit that failed: {error}");
            }
        }
    }
}
