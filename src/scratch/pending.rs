//! Tests whether a branch has uncommitted work, without opening its scratch directory.
//!
//! Commands use this to warn before they change a branch; the daemon that uses the directory is not disturbed. Only the default scratch
//! directory is examined.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::directory::default_path;
use super::journal;
use super::record::Record;

/// Bytes of a journal that are read. A longer one has changes.
const LOOKED_AT: u64 = 1 << 16;
/// Bytes read of a lock file: a process and a mountpoint.
const MAX_HOLDER: u64 = 4096;

/// Uncommitted work of a branch on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingWork {
    /// Path of the scratch directory.
    pub path: PathBuf,
    /// True if it has uncommitted changes.
    pub has_changes: bool,
    /// Process and mountpoint that use the directory, as text.
    pub holder: Option<String>,
}

/// Finds the scratch directory of `branch` of the repository at `location`; returns `None` if there is none or it may not be read.
pub fn look(location: &str, branch: &str) -> Option<PendingWork> {
    let path = default_path(location, branch).ok()?;
    let journal = File::open(path.join("journal")).ok()?;
    let holder = holder(&path);
    Some(PendingWork { has_changes: has_changes(journal, &path), path, holder })
}

fn has_changes(journal: File, path: &Path) -> bool {
    if journal.metadata().is_ok_and(|metadata| metadata.len() > LOOKED_AT) {
        return true;
    }
    let mut has_changes = false;
    let looked = journal::look(journal, path, |record| {
        has_changes |= match record {
            Record::Base { .. } | Record::Attributes { .. } => false,
            Record::Publishing { .. } | Record::Unpublished { .. } => false,
            // Every journal has the root.
            Record::Promote { parent, .. } => parent.is_some(),
            _ => true,
        };
        Ok(())
    });
    // The next mount reports damage.
    has_changes || looked.is_err()
}

fn holder(path: &Path) -> Option<String> {
    let mut lock = File::open(path.join("lock")).ok()?;
    // A daemon that starts at this moment waits a little for the lock.
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    let mut text = String::new();
    Read::by_ref(&mut lock).take(MAX_HOLDER).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}
