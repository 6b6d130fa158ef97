//! The most recent failures that programs met, for `.icechunk/errors`.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind};
use crate::times::{format_time, system_clock};

/// Failures that are kept.
const KEPT: usize = 100;

/// Operations on names, for which a missing name is usual.
const BY_NAME: [&str; 8] = ["lookup", "unlink", "rmdir", "rename", "mknod", "mkdir", "symlink", "link"];

/// The most recent failures.
#[derive(Debug, Default)]
pub struct RecentErrors {
    lines: Mutex<VecDeque<String>>,
}

impl RecentErrors {
    /// Records that `operation` failed. Returns false, and records nothing, for failures that
    /// programs commonly provoke.
    pub fn record(&self, operation: &str, error: &Error) -> bool {
        let usual = matches!(
            error.kind(),
            ErrorKind::NotFound
                | ErrorKind::AlreadyExists
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::NotEmpty
                | ErrorKind::Executed
                | ErrorKind::NameTooLong
                | ErrorKind::NotPermitted
        );
        // A missing name is usual; an inode that the kernel knows and the mount does not is not.
        let lost = error.kind() == ErrorKind::NotFound && !BY_NAME.contains(&operation);
        if usual && !lost && operation != "commit" {
            return false;
        }
        let mut lines = self.lines.lock();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(format!("{} {operation}: {error}\n", format_time(system_clock())));
        true
    }

    /// Returns all failures, oldest first.
    pub fn render(&self) -> String {
        self.lines.lock().iter().map(String::as_str).collect()
    }
}
