//! Progress of a garbage collection, a verification or statistics, for other threads to read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Files done and files known so far.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    is_removing: AtomicBool,
}

impl Progress {
    /// Returns the number of files that were read or removed, and the number of files known so far.
    pub fn files(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// Returns true if objects are being removed.
    pub fn is_removing(&self) -> bool {
        self.is_removing.load(Ordering::Relaxed)
    }

    pub(super) fn restart(&self) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
    }

    pub(super) fn begin_removing(&self) {
        self.restart();
        self.is_removing.store(true, Ordering::Relaxed);
    }

    /// Adds `files` to those that are to be done.
    pub fn expect(&self, files: usize) {
        self.total.fetch_add(files as u64, Ordering::Relaxed);
    }

    /// Adds `files` to those that are done.
    pub fn step(&self, files: usize) {
        self.done.fetch_add(files as u64, Ordering::Relaxed);
    }
}
