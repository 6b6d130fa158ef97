//! A plain Zarr tree out of a repository, and into one, without a mount.
//!
//! [`export`] writes the keys of a snapshot, as a mount of it shows them, below a directory; [`import`] makes one commit of a
//! directory's files, by the rules by which a mount makes one of what programs wrote. Neither needs a kernel that takes part,
//! so that many files are on their way at a time:
//!
//! | part | what it knows |
//! |---|---|
//! | [`walk`] | the files of a snapshot, a batch at a time |
//! | [`fetch`] | a batch's bytes: neighbours in one object are read together |
//! | [`destination`] | a directory that files are put into, whole or not at all, and never beside it |
//! | [`new_file`] | a file that takes its name when it is complete |
//! | [`put`] | one file of it: whether it is there, and writing it |
//! | [`export`] | all these, side by side |
//! | [`prune`] | what a destination has and the snapshot does not |
//! | [`scan`] | a directory as a working tree in which every file is new |
//! | [`known`] | chunks that the branch has already, byte for byte |
//! | [`import`] | these two, and the commit |

pub mod destination;
pub mod export;
mod fetch;
pub mod import;
mod known;
mod new_file;
mod prune;
mod put;
mod scan;
mod walk;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, DirEntry, FileType};
use rustix::io::Errno;
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};

/// How far a transfer is, for other threads to look at.
#[derive(Debug, Default)]
pub struct Counters {
    /// Files there are, as far as that is known.
    found: AtomicU64,
    /// Files that are done with.
    done: AtomicU64,
    /// Bytes of those.
    bytes: AtomicU64,
}

impl Counters {
    /// Files there are, as far as that is known, files that are done with, and bytes of those.
    pub fn now(&self) -> (u64, u64, u64) {
        let [found, done, bytes] = [&self.found, &self.done, &self.bytes].map(|count| count.load(Ordering::Relaxed));
        (found.max(done), done, bytes)
    }

    fn expect(&self, files: u64) {
        self.found.store(files, Ordering::Relaxed);
    }

    fn more(&self, files: u64) {
        self.found.fetch_add(files, Ordering::Relaxed);
    }

    fn did(&self, files: u64, bytes: u64) {
        self.done.fetch_add(files, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A path, and why it was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Where.
    pub path: String,
    /// Why.
    pub why: String,
}

/// Runs `work` on a thread that may wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Error::with_source(ErrorKind::Io, "a step of the transfer ended early", e))?
}

/// What the file of `entry` is, which was listed in `folder`. A symbolic link is one.
fn kind_of(folder: impl AsFd, entry: &DirEntry) -> std::result::Result<FileType, Errno> {
    match entry.file_type() {
        // Not every file system says it in listings.
        FileType::Unknown => {
            let stat = rustix::fs::statat(folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(FileType::from_raw_mode(stat.st_mode))
        }
        kind => Ok(kind),
    }
}
