//! Exports and imports plain Zarr trees, without a mount.
//!
//! [`export`] writes the keys of a snapshot, as a mount shows them, below a directory; [`import`]
//! makes one commit of a directory's files, by the rules by which a mount commits. Neither depends
//! on the kernel, so that many files are processed concurrently:
//!
//! | part | task |
//! |---|---|
//! | [`walk`] | lists the files of a snapshot, a batch at a time |
//! | [`fetch`] | reads a batch: neighbors in one object together |
//! | [`destination`] | directory that files are written into, complete or not at all, and never outside it |
//! | [`new_file`] | file that gets its name when it is complete |
//! | [`put`] | checks and writes one file |
//! | [`export`] | runs all these concurrently |
//! | [`prune`] | finds and removes what a destination has and the snapshot does not |
//! | [`scan`] | presents a directory as a working tree in which every file is new |
//! | [`version_2`] | does that with a tree of Zarr 2 |
//! | [`references`] | does that with kerchunk references |
//! | [`sources`] | parses the names of what is imported |
//! | [`opened`] | reads a file of this machine, or an object of a store |
//! | [`planned`] | does that with the groups and arrays that a file of another format becomes |
//! | [`series`] | appends such files to arrays, which [`archive`] reads, in the [`order`] of their coordinate |
//! | [`virtual_refs`] | refers to chunks of such a file instead of copying them |
//! | [`containers`] | finds and adds the containers that references need |
//! | [`relocate`] | gives references to files that were moved their new locations |
//! | [`known`] | leaves out chunks that the branch has already, byte for byte |
//! | [`import`] | runs these two, and commits |

mod archive;
pub mod containers;
pub mod destination;
pub mod export;
mod fetch;
pub mod import;
pub mod in_parts;
mod known;
mod new_file;
mod opened;
pub mod order;
mod planned;
mod prune;
mod put;
mod references;
pub mod relocate;
mod repositories;
mod scan;
mod series;
pub mod sources;
mod version_2;
pub mod virtual_refs;
mod walk;

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, DirEntry, FileType, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::Serialize;

use icechunkfs_base::beneath;
use icechunkfs_base::printable;

/// Paths of one kind that a report lists; the rest is counted.
const MAX_LISTED: usize = 1000;

/// Lines of a list that an error has; the rest is counted.
const NAMED: usize = 20;

/// Returns the first of `lines`, each on a line of its own, and the number of the others.
fn first_lines(lines: impl ExactSizeIterator<Item = String>) -> String {
    let count = lines.len();
    let mut text: String =
        lines.take(NAMED).map(|line| format!("{}\n", printable::line(&format!("  {line}")))).collect();
    if count > NAMED {
        text += &format!("  and {} more\n", count - NAMED);
    }
    text
}

/// Progress of a transfer, for other threads to read.
#[derive(Debug, Default)]
pub struct Counters {
    /// Files known so far.
    found: AtomicU64,
    /// Files that are finished.
    done: AtomicU64,
    /// Bytes of finished files.
    bytes: AtomicU64,
}

impl Counters {
    /// Returns the number of files known so far, of files that are finished, and the bytes of the
    /// latter.
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

    fn add_done(&self, files: u64, bytes: u64) {
        self.done.fetch_add(files, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Path that was left out, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedPath {
    /// Path of the file or node.
    pub path: String,
    /// Reason, for display.
    pub why: String,
}

/// Opens `path` below `folder` for reading; an empty path is `folder` itself. No component may be a
/// symbolic link: another user could put one in the place of a directory at any time.
fn open_beneath(folder: impl AsFd, path: &[u8], flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path = if path.is_empty() { b"." } else { path };
    beneath::open(folder, OsStr::from_bytes(path), OFlags::RDONLY | OFlags::CLOEXEC | flags, resolve)
}

/// Returns the type of `entry`, which was listed in `folder`. Links are not followed.
fn kind_of(folder: impl AsFd, entry: &DirEntry) -> std::result::Result<FileType, Errno> {
    match entry.file_type() {
        // Some file systems do not return the type in listings.
        FileType::Unknown => {
            let stat = rustix::fs::statat(folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(FileType::from_raw_mode(stat.st_mode))
        }
        kind => Ok(kind),
    }
}
