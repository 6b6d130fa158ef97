//! Progress of a commit, for other threads to read.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Stage of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Not started.
    #[default]
    Waiting,
    /// Storing chunks.
    Chunks,
    /// Comparing with concurrent commits.
    Rebase,
    /// Writing manifests.
    Manifests,
    /// Writing the transaction log and the snapshot.
    Snapshot,
    /// Moving the branch.
    Publish,
    /// Finished.
    Done,
}

impl Stage {
    const ALL: [Stage; 7] =
        [Stage::Waiting, Stage::Chunks, Stage::Rebase, Stage::Manifests, Stage::Snapshot, Stage::Publish, Stage::Done];

    /// Returns the name for display.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Waiting => "waiting",
            Stage::Chunks => "storing chunks",
            Stage::Rebase => "comparing with other commits",
            Stage::Manifests => "writing manifests",
            Stage::Snapshot => "writing the snapshot",
            Stage::Publish => "publishing",
            Stage::Done => "done",
        }
    }
}

/// Counters that a running commit updates.
#[derive(Debug, Default)]
pub struct CommitProgress {
    stage: AtomicU8,
    chunks: AtomicU64,
    chunks_done: AtomicU64,
    bytes: AtomicU64,
    bytes_done: AtomicU64,
}

impl CommitProgress {
    /// Returns the current stage.
    pub fn stage(&self) -> Stage {
        let number = usize::from(self.stage.load(Ordering::Relaxed));
        Stage::ALL.get(number).copied().unwrap_or_default()
    }

    /// Returns the number of chunks to store, and how many of them are stored.
    pub fn chunks(&self) -> (u64, u64) {
        (self.chunks.load(Ordering::Relaxed), self.chunks_done.load(Ordering::Relaxed))
    }

    /// Returns the bytes of chunks to store, and how many of them are stored.
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.bytes_done.load(Ordering::Relaxed))
    }

    pub(super) fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    pub(super) fn expect(&self, chunks: u64, bytes: u64) {
        self.chunks.store(chunks, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.chunks_done.store(0, Ordering::Relaxed);
        self.bytes_done.store(0, Ordering::Relaxed);
    }

    pub(super) fn stored(&self, chunks: u64, bytes: u64) {
        self.chunks_done.fetch_add(chunks, Ordering::Relaxed);
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }
}
