//! Progress of a commit, for other threads to read.

use parking_lot::Mutex;
use serde::Serialize;

/// Stage of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum Stage {
    /// Not started.
    #[default]
    Waiting,
    /// Storing chunks.
    Chunks,
    /// Comparing with concurrent commits.
    Rebase,
    /// Waiting for other writers, one of whom commits.
    Queue,
    /// Writing manifests.
    Manifests,
    /// Writing the transaction log and the snapshot.
    Snapshot,
    /// Moving the branch.
    Publish,
    /// Finished.
    Done,
}

impl From<Stage> for &'static str {
    /// Returns the name for display.
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Waiting => "waiting",
            Stage::Chunks => "storing chunks",
            Stage::Rebase => "comparing with other commits",
            Stage::Queue => "waiting for other writers",
            Stage::Manifests => "writing manifests",
            Stage::Snapshot => "writing the snapshot",
            Stage::Publish => "publishing",
            Stage::Done => "done",
        }
    }
}

/// Stage and counters of a commit.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CommitState {
    /// Current stage.
    pub stage: Stage,
    /// Chunks to store.
    pub chunks: u64,
    /// Chunks that are stored.
    pub chunks_done: u64,
    /// Bytes of chunks to store.
    pub bytes: u64,
    /// Bytes of chunks that are stored.
    pub bytes_done: u64,
}

/// State that a running commit updates.
#[derive(Debug, Default)]
pub struct CommitProgress(Mutex<CommitState>);

impl CommitProgress {
    /// Returns the current state.
    pub fn now(&self) -> CommitState {
        *self.0.lock()
    }

    pub(super) fn enter(&self, stage: Stage) {
        self.0.lock().stage = stage;
    }

    pub(super) fn expect(&self, chunks: u64, bytes: u64) {
        let mut state = self.0.lock();
        *state = CommitState { stage: state.stage, chunks, bytes, ..CommitState::default() };
    }

    pub(super) fn stored(&self, chunks: u64, bytes: u64) {
        let mut state = self.0.lock();
        state.chunks_done += chunks;
        state.bytes_done += bytes;
    }
}
