//! Reads the operations log of one file, for display.
//!
//! A program that rewrites a log must understand all of it ([`super::repo_state`]); a program that displays it can skip
//! an operation that a newer program wrote.

use super::generated::icechunk as fb;
use super::repo_info::RepoInfo;
use super::repo_state::{self, Operation};

/// Entry of the operations log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Operation; the number of its kind if this version does not know it.
    pub operation: std::result::Result<Operation, u8>,
    /// Time of the operation, in microseconds since 1970-01-01 UTC.
    pub updated_at: u64,
    /// Bare name, below `overwritten/`, of the file that ended with this entry; `None` for the newest.
    pub file: Option<String>,
}

/// Part of the log that one file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries, newest first.
    pub entries: Vec<Entry>,
    /// Bare name of the file that holds the preceding entries.
    pub before: Option<String>,
}

/// Returns the entries of `info`.
pub fn read(info: &RepoInfo) -> Page {
    let root = info.root();
    let entry = |stored: fb::Update<'_>| Entry {
        operation: repo_state::read_operation(stored).ok_or(stored.update_type_type().0),
        updated_at: stored.updated_at(),
        file: stored.backup_path().map(str::to_owned),
    };
    Page {
        entries: root.latest_updates().iter().map(entry).collect(),
        before: root.repo_before_updates().map(str::to_owned),
    }
}
