//! Tests whether a branch has uncommitted work, without opening its scratch directory.
//!
//! Commands use this to warn before they change a branch; the daemon that uses the directory is not disturbed. Only default scratch
//! directories are examined. Those of a store are named after the URL that the mount was made with, which has several spellings.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::directory::{name_of, state_directory};
use super::journal;
use super::record::Record;
use super::requirements::Requirements;
use crate::file_name;

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

/// Finds the scratch directories of `branch` of the repository at `location`, and at other locations for which `is_same` returns true. Leaves out
/// those that may not be read.
pub fn look(location: &str, branch: &str, is_same: Option<&dyn Fn(&str) -> bool>) -> Vec<PendingWork> {
    let Ok(all) = state_directory() else { return Vec::new() };
    let branch = name_of(branch);
    let mut names = vec![name_of(location)];
    if let Some(is_same) = is_same {
        names.extend(other_names(&all, &branch, is_same).into_iter().filter(|name| *name != name_of(location)));
    }
    names.into_iter().filter_map(|name| look_in(all.join(name).join(&branch))).collect()
}

/// Returns the names of the directories in `all` of repositories at locations for which `is_same` returns true, sorted.
fn other_names(all: &Path, branch: &str, is_same: &dyn Fn(&str) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(all).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_of_repository = |name: &String| match file_name::decode(name) {
        Some(location) => is_same(&location),
        // The name is cut off, and the journal has the whole text.
        None => {
            let needs = Requirements::of(&all.join(name).join(branch));
            needs.ok().flatten().is_some_and(|needs| is_same(&needs.repository))
        }
    };
    let mut names: Vec<String> = names.filter(is_of_repository).collect();
    names.sort();
    names
}

fn look_in(path: PathBuf) -> Option<PendingWork> {
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
