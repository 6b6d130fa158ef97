//! Looking whether something waits for a commit, without opening a scratch directory.
//!
//! For commands that are about to do something to a branch: they warn, and whoever uses the directory is not disturbed. Only
//! the place is looked at where a mount keeps changes when its user names none.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use serde::Deserialize;

use super::place::default_path;

/// Bytes of a journal that are looked at. One that goes on beyond them has changes.
const LOOKED_AT: u64 = 1 << 16;
/// Bytes of a lock file: a process and a mountpoint.
const MAX_HOLDER: u64 = 4096;

/// What there is of a branch on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The scratch directory.
    pub path: PathBuf,
    /// Whether something in it waits for a commit.
    pub has_changes: bool,
    /// Who uses it now: a process and a mountpoint, in words.
    pub holder: Option<String>,
}

#[derive(Deserialize)]
struct Line {
    op: String,
    #[serde(default)]
    parent: Option<u64>,
}

/// What there is of `branch` of the repository at `location`; none if there is nothing, or nothing that may be seen.
pub fn look(location: &str, branch: &str) -> Option<Waiting> {
    let path = default_path(location, branch).ok()?;
    let journal = File::open(path.join("journal")).ok()?;
    let holder = holder(&path);
    Some(Waiting { has_changes: has_changes(journal), path, holder })
}

fn has_changes(journal: File) -> bool {
    if journal.metadata().is_ok_and(|metadata| metadata.len() > LOOKED_AT) {
        return true;
    }
    // Each line is a checksum, a space and a record. One that cannot be read is for the next mount to judge.
    let lines = BufReader::new(journal.take(LOOKED_AT)).split(b'\n').map_while(Result::ok);
    let mut records = lines.filter_map(|line| serde_json::from_slice::<Line>(line.get(9..)?).ok());
    records.any(|record| match record.op.as_str() {
        "base" | "attributes" | "publishing" | "unpublished" => false,
        // The root is in every journal.
        "promote" => record.parent.is_some(),
        _ => true,
    })
}

fn holder(path: &std::path::Path) -> Option<String> {
    let mut lock = File::open(path.join("lock")).ok()?;
    // A daemon that begins in this moment waits a little for the lock.
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    let mut text = String::new();
    Read::by_ref(&mut lock).take(MAX_HOLDER).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}
