//! Progress of a commit, for other threads to read.

use parking_lot::Mutex;
use serde::Serialize;

use icechunkfs_base::stages::{StageTime, Stages};

/// Stage of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum Stage {
    /// Not started.
    #[default]
    Waiting,
    /// Waiting for programs that are about to close what they have written.
    Closing,
    /// Finding out what was changed.
    Detecting,
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
    /// Showing the new snapshot in the mount.
    Showing,
    /// Finished.
    Done,
}

impl From<Stage> for &'static str {
    /// Returns the name for display.
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Waiting => "waiting",
            Stage::Closing => "waiting for open files",
            Stage::Detecting => "finding changes",
            Stage::Chunks => "storing chunks",
            Stage::Rebase => "comparing with other commits",
            Stage::Queue => "waiting for other writers",
            Stage::Manifests => "writing manifests",
            Stage::Snapshot => "writing the snapshot",
            Stage::Publish => "publishing",
            Stage::Showing => "showing the new snapshot",
            Stage::Done => "done",
        }
    }
}

/// Stage and counters of a commit.
#[derive(Clone, Debug, Default, Serialize)]
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
    /// Stages so far, and their seconds.
    pub stages: Vec<StageTime>,
}

/// State that a running commit updates.
#[derive(Debug, Default)]
pub struct CommitProgress {
    state: Mutex<CommitState>,
    stages: Stages,
}

impl CommitProgress {
    /// Returns the current state.
    pub fn now(&self) -> CommitState {
        CommitState { stages: self.stages.taken(), ..self.state.lock().clone() }
    }

    /// The present stage ends, and `stage` begins.
    pub fn enter(&self, stage: Stage) {
        self.state.lock().stage = stage;
        if stage == Stage::Done { self.stages.end() } else { self.stages.enter(stage.into()) }
    }

    pub(super) fn expect(&self, chunks: u64, bytes: u64) {
        let mut state = self.state.lock();
        *state = CommitState { stage: state.stage, chunks, bytes, ..CommitState::default() };
    }

    pub(super) fn stored(&self, chunks: u64, bytes: u64) {
        let mut state = self.state.lock();
        state.chunks_done += chunks;
        state.bytes_done += bytes;
    }
}
