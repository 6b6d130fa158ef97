//! Reading the operations log of one file, for people.
//!
//! Whoever writes a log anew must understand all of it ([`super::repo_state`]); whoever only looks at it can go on past
//! an operation that a newer program wrote.

use super::generated::icechunk as fb;
use super::repo_info::RepoInfo;
use super::repo_state::{self, Operation};

/// One entry of the operations log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What was done; the number of its kind if that is not known here.
    pub operation: std::result::Result<Operation, u8>,
    /// When, in microseconds since 1970-01-01 UTC.
    pub updated_at: u64,
    /// Bare name, below `overwritten/`, of the file that ended with this entry; none for the newest.
    pub file: Option<String>,
}

/// What one file has of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its entries, newest first.
    pub entries: Vec<Entry>,
    /// Bare name of the file that has the entries before.
    pub before: Option<String>,
}

/// The entries of `info`.
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
