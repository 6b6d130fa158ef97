//! Files that are open, by inode number.
//!
//! The kernel names the inode and whether the handle writes with every request, so that a handle needs no state of its own;
//! what all handles of a file share is here.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

/// All open files.
#[derive(Debug, Default)]
pub struct Opens {
    open: HashMap<u64, Open>,
}

/// An open file.
#[derive(Debug, Default)]
pub struct Open {
    /// Handles, writing ones included.
    pub handles: u32,
    /// Handles that may write. A shared mapping keeps its handle.
    pub writers: u32,
    /// Handles whose bytes the kernel moves by itself.
    pub backed: u32,
    /// The data file that those have, as long as it has the file's bytes. After a commit it may be nobody's but theirs.
    pub backing: Option<(u64, Arc<File>)>,
    /// The data file, while it is the file's bytes.
    pub file: Option<Arc<File>>,
    /// Bytes that are being written over the snapshot's.
    pub partial: Option<Partial>,
}

/// A file of the snapshot that is being written from its beginning on. If the program writes all of it, as most do, nothing of
/// the old bytes is ever fetched.
#[derive(Clone, Debug)]
pub struct Partial {
    /// Number of the data file.
    pub number: u64,
    /// The data file.
    pub file: Arc<File>,
    /// Bytes at its beginning that were written.
    pub covered: u64,
    /// Bytes of the old file.
    pub old_size: u64,
}

impl Opens {
    /// One handle more.
    pub fn add(&mut self, number: u64, writes: bool) -> &mut Open {
        let open = self.open.entry(number).or_default();
        open.handles += 1;
        open.writers += u32::from(writes);
        open
    }

    /// One handle less. True if it was the last.
    pub fn remove(&mut self, number: u64, writes: bool, backed: bool) -> bool {
        let Some(open) = self.open.get_mut(&number) else { return false };
        open.handles = open.handles.saturating_sub(1);
        open.writers = open.writers.saturating_sub(u32::from(writes));
        open.backed = open.backed.saturating_sub(u32::from(backed));
        if open.handles > 0 {
            return false;
        }
        self.open.remove(&number);
        true
    }

    /// Everything that is open.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Open)> {
        self.open.iter_mut().map(|(number, open)| (*number, open))
    }

    /// What is open of `number`.
    pub fn get(&self, number: u64) -> Option<&Open> {
        self.open.get(&number)
    }

    /// What is open of `number`, to change it.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Open> {
        self.open.get_mut(&number)
    }

    /// Numbers of files that are open.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.open.keys().copied()
    }

    /// Numbers of files that are open for writing.
    pub fn written(&self) -> impl Iterator<Item = u64> {
        self.open.iter().filter(|(_, open)| open.writers > 0).map(|(number, _)| *number)
    }

    /// The size that a file has which is being written over.
    pub fn partial_size(&self, number: u64) -> Option<u64> {
        let partial = self.open.get(&number)?.partial.as_ref()?;
        Some(partial.covered.max(partial.old_size))
    }
}
