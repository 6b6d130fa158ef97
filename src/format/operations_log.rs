//! Reads the operations log of one file, for display.
//!
//! A program that rewrites a log must understand all of it ([`super::repo_state`]); a program that displays it can skip
//! an operation that a newer program wrote.

use super::repo_info::RepoInfo;
use super::repo_state::{self, LogEntry, Operation};

/// Entry with its operation, or the number of the operation's kind if this version does not know it.
pub type DisplayedEntry = LogEntry<std::result::Result<Operation, u8>>;

/// Part of the log that one file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries, newest first.
    pub entries: Vec<DisplayedEntry>,
    /// Bare name of the file that holds the preceding entries.
    pub previous_file: Option<String>,
}

/// Returns the entries of `info`.
pub fn read(info: &RepoInfo) -> Page {
    let root = info.root();
    Page {
        entries: root.latest_updates().iter().map(repo_state::read_entry).collect(),
        previous_file: root.repo_before_updates().map(str::to_owned),
    }
}
