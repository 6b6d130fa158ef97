//! Reads the operations log of one file, for display.
//!
//! A program that rewrites a log must understand all of it ([`super::repo_state`]); a program that
//! displays it can skip an operation that a newer program wrote, and needs one entry at a time.

use super::repo_info::RepoInfo;
use super::repo_state::{self, LogEntry, Operation};

/// Entry with its operation, or the number of the operation's kind if this version does not know
/// it.
pub type DisplayedEntry = LogEntry<std::result::Result<Operation, u8>>;

/// Returns entry `at` of the log in `info`, of which the first is the newest; none after the last.
pub fn entry(info: &RepoInfo, at: usize) -> Option<DisplayedEntry> {
    let updates = info.root().latest_updates();
    (at < updates.len()).then(|| repo_state::read_entry(updates.get(at)))
}

/// Returns the bare name of the file that holds the entries before those of `info`.
pub fn previous_file(info: &RepoInfo) -> Option<&str> {
    info.root().repo_before_updates()
}
