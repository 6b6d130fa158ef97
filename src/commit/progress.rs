//! How far a commit has come, for other threads to look at.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What a commit is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// It has not begun.
    #[default]
    Waiting,
    /// Storing chunks.
    Chunks,
    /// Comparing with what others committed.
    Rebase,
    /// Writing manifests.
    Manifests,
    /// Writing the transaction log and the snapshot.
    Snapshot,
    /// Moving the branch.
    Publish,
    /// It is over.
    Done,
}

impl Stage {
    const ALL: [Stage; 7] =
        [Stage::Waiting, Stage::Chunks, Stage::Rebase, Stage::Manifests, Stage::Snapshot, Stage::Publish, Stage::Done];

    /// As a person reads it.
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

/// Counters that a commit keeps up to date.
#[derive(Debug, Default)]
pub struct Progress {
    stage: AtomicU8,
    chunks: AtomicU64,
    chunks_done: AtomicU64,
    bytes: AtomicU64,
    bytes_done: AtomicU64,
}

impl Progress {
    /// What the commit is doing.
    pub fn stage(&self) -> Stage {
        let number = usize::from(self.stage.load(Ordering::Relaxed));
        Stage::ALL.get(number).copied().unwrap_or_default()
    }

    /// Chunks to be stored, and how many are.
    pub fn chunks(&self) -> (u64, u64) {
        (self.chunks.load(Ordering::Relaxed), self.chunks_done.load(Ordering::Relaxed))
    }

    /// Bytes of chunks to be stored, and how many are.
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
