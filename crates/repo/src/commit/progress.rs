//! Progress of a commit, for other threads to read, and its cancellation.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

use icechunkfs_base::error::{Error, ErrorKind, Result};
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

/// Possibility of a cancellation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing is visible.
    #[default]
    Open,
    /// It stops at its next step; it does not publish.
    Cancelled,
    /// It is about to publish: too late.
    Closed,
}

/// State that a running commit updates.
///
/// It owns the rule of cancellation: **a commit that was cancelled never publishes, and one that
/// may have published is never said to be cancelled.** Both go through one lock.
#[derive(Debug, Default)]
pub struct CommitProgress {
    /// Name by which the program that asked for the commit can cancel it; empty for none.
    ticket: String,
    phase: Mutex<Phase>,
    /// True if the program that commits has refused the publication, not the store.
    is_refused: AtomicBool,
    state: Mutex<CommitState>,
    stages: Stages,
}

impl CommitProgress {
    /// Returns the progress of a commit that can be cancelled by `ticket`.
    pub fn with_ticket(ticket: String) -> Self {
        CommitProgress { ticket, ..CommitProgress::default() }
    }

    /// Cancels the commit. Fails with [`ErrorKind::NotFound`] if it has not begun or has ended, or
    /// `ticket` is that of another one (an empty one is for any), with [`ErrorKind::Busy`] if it is
    /// too late.
    pub fn cancel(&self, ticket: &str) -> Result<()> {
        let is_running = !matches!(self.state.lock().stage, Stage::Waiting | Stage::Done);
        if !is_running || !(ticket.is_empty() || ticket == self.ticket) {
            return Err(Error::new(
                ErrorKind::NotFound,
                "there is no commit to cancel: it has not begun, or has ended",
            ));
        }
        let mut phase = self.phase.lock();
        if *phase == Phase::Closed {
            return Err(Error::new(ErrorKind::Busy, "the commit is being published and cannot be canceled"));
        }
        *phase = Phase::Cancelled;
        Ok(())
    }

    /// Returns true if the program that commits has refused the publication.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// The program that commits refuses the publication.
    pub(super) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }

    /// Fails with [`ErrorKind::Cancelled`] if the commit was cancelled.
    pub fn check(&self) -> Result<()> {
        match *self.phase.lock() {
            Phase::Cancelled => Err(cancelled()),
            Phase::Open | Phase::Closed => Ok(()),
        }
    }

    /// Fails as [`CommitProgress::check`] does; otherwise the commit cannot be cancelled from here
    /// on.
    pub(super) fn begin_publication(&self) -> Result<()> {
        let mut phase = self.phase.lock();
        if *phase == Phase::Cancelled {
            return Err(cancelled());
        }
        *phase = Phase::Closed;
        Ok(())
    }

    /// The attempt to publish has failed for certain: the commit can be cancelled again.
    pub fn end_lost_publication(&self) {
        let mut phase = self.phase.lock();
        if *phase == Phase::Closed {
            *phase = Phase::Open;
        }
    }

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

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the commit was canceled: nothing was committed, and the changes stay")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn kind(result: Result<()>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }

    fn running() -> CommitProgress {
        let progress = CommitProgress::with_ticket("mine".to_owned());
        progress.enter(Stage::Closing);
        progress
    }

    #[test]
    fn what_was_cancelled_is_not_published() {
        let progress = running();
        assert_eq!(kind(progress.cancel("another")), Some(ErrorKind::NotFound));
        assert_eq!(kind(progress.check()), None);
        assert_eq!(kind(progress.cancel("mine")), None);
        assert_eq!(kind(progress.check()), Some(ErrorKind::Cancelled));
        assert_eq!(kind(progress.begin_publication()), Some(ErrorKind::Cancelled));
        assert_eq!(kind(progress.cancel("")), None);
    }

    #[test]
    fn what_may_be_published_is_not_cancelled() {
        let progress = running();
        progress.begin_publication().unwrap();
        assert_eq!(kind(progress.cancel("mine")), Some(ErrorKind::Busy));
        assert_eq!(kind(progress.check()), None);
        // After a lost race there is another attempt.
        progress.end_lost_publication();
        assert_eq!(kind(progress.cancel("mine")), None);
        assert_eq!(kind(progress.begin_publication()), Some(ErrorKind::Cancelled));
    }

    #[test]
    fn what_does_not_run_is_not_cancelled() {
        let progress = CommitProgress::with_ticket("mine".to_owned());
        assert_eq!(kind(progress.cancel("mine")), Some(ErrorKind::NotFound));
        progress.enter(Stage::Closing);
        progress.enter(Stage::Done);
        assert_eq!(kind(progress.cancel("")), Some(ErrorKind::NotFound));
        assert_eq!(kind(progress.check()), None);
    }
}
