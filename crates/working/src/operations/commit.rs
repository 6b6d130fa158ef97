//! Commit: the frozen tree is checked, the engine publishes a snapshot, and the tree is rebased
//! onto it.

mod host;
mod prepare;
mod run;
mod show;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(super) use self::prepare::refuse_open;
use self::run::Ran;
use super::Session;
use super::committed::Committed;
use super::hook::NewCommit;
use super::recovery::finish;
use crate::overlay::invalidation::Invalidation;
use crate::overlay::replace::TreeGuard;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::commit::engine::OnConflict;
use icechunkfs_repo::commit::progress::{CommitProgress, Stage};

/// Longest wait for files to be closed before a commit is refused. Closes under way take
/// microseconds.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval between checks for open or mapped files.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Violations and files that an error lists; the rest is counted.
const LISTED: usize = 20;

/// Options of a commit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitOptions {
    /// Commit message; a default one if empty.
    pub message: String,
    /// Metadata of the commit.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// True if the commit replaces the branch tip.
    #[serde(default)]
    pub amend: bool,
    /// Resolution of chunks that a concurrent commit changed too.
    #[serde(default)]
    pub on_conflict: Option<OnConflict>,
    /// True if the commit is refused where it would only warn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// True if chunks with the bytes that they had are stored again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_unchanged: bool,
    /// True for a snapshot that no branch leads to; the changes stay uncommitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// Name by which the program that asks for the commit can cancel it; none if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ticket: String,
}

/// A commit on its way. No operation changes the tree while it exists.
struct Commit<'a> {
    session: &'a Session,
    guard: TreeGuard<'a>,
    options: CommitOptions,
    progress: &'a CommitProgress,
}

impl Session {
    /// Commits the change set of the working tree.
    ///
    /// Fails with [`ErrorKind::Busy`] if files are open for writing, [`ErrorKind::InvalidInput`] if
    /// there are violations (the message lists them), [`ErrorKind::Stale`] if a concurrent commit
    /// conflicts; the working tree then stays as it is.
    ///
    /// [`ErrorKind::Busy`]: icechunkfs_base::error::ErrorKind::Busy
    /// [`ErrorKind::InvalidInput`]: icechunkfs_base::error::ErrorKind::InvalidInput
    /// [`ErrorKind::Stale`]: icechunkfs_base::error::ErrorKind::Stale
    pub async fn commit(&self, options: CommitOptions) -> Result<Committed> {
        let _turn = self.take_turn().await;
        // From here on it can be cancelled.
        let progress = Ended(Arc::new(CommitProgress::with_ticket(options.ticket.clone())));
        *self.progress.lock() = Arc::clone(&progress.0);
        progress.0.enter(Stage::Closing);
        let was_offline = self.go_online().await?;
        progress.0.check()?;
        let committed = self.commit_online(options, &progress.0).await;
        if let (Err(error), true) = (&committed, was_offline) {
            self.go_offline_after(error);
        }
        committed
    }

    async fn commit_online(&self, options: CommitOptions, progress: &CommitProgress) -> Result<Committed> {
        self.resolve_pending().await?;
        let mut options = options;
        if options.amend && options.message.is_empty() {
            // As in git, whatever else is amended.
            options.message = self.working.upper().base().tree.snapshot().message().to_owned();
        }
        let message = options.message.clone();
        let (parent, committed, invalidations) = {
            let guard = self.working.upper().quiesce().await;
            let commit = Commit { session: self, guard, options, progress };
            let mut prepared = commit.prepare().await?;
            if !prepared.is_needed {
                return Ok(prepared.report);
            }
            let _linking = self.working.handles().allow_linking();
            let (committed, invalidations) = match commit.run(&mut prepared).await? {
                Ran::Nothing => (Committed::default(), Vec::new()),
                Ran::Detached(committed) => (committed, Vec::new()),
                Ran::Found(committed, invalidations) => (committed, invalidations),
                Ran::Published(publication) => commit.show(&prepared, publication).await?,
            };
            let Committed { untracked, unchanged, ungrouped, warnings, .. } = prepared.report;
            (prepared.base.id(), Committed { untracked, unchanged, ungrouped, warnings, ..committed }, invalidations)
        };
        // Sent once the tree lock is open: an invalidation may wait for requests that wait for the
        // tree lock.
        let shown = self.invalidate(invalidations).await;
        let on_branch = committed.snapshot.filter(|_| !committed.detached);
        if let (Some(hook), Some(snapshot)) = (self.hook.get(), on_branch) {
            hook.notify(NewCommit { snapshot, parent, message });
        }
        shown?;
        Ok(committed)
    }

    /// Ends a commit whose snapshot the tree shows now.
    fn close_commit(&self, _guard: &TreeGuard<'_>) {
        self.working.upper().clear_publishing();
        self.working.uploads().forget_uploads();
        self.new_ids.lock().clear();
        self.conflicts.clear();
    }

    /// Determines the outcome of a commit that failed while publishing, if it is still unknown.
    /// Each operation that moves the tree begins with it.
    pub(super) async fn resolve_pending(&self) -> Result<()> {
        self.remember_root().await?;
        if !self.working.upper().is_undecided() && !self.working.upper().may_land() {
            return Ok(());
        }
        let decided = {
            let guard = self.working.upper().quiesce().await;
            self.resolve_with(&guard).await.context(|| "finding out whether the last commit was published")?
        };
        self.invalidate(decided.map(|(_, invalidations)| invalidations).unwrap_or_default()).await
    }

    /// Finds out what became of the last commit, and shows it if it was published.
    async fn resolve_with(&self, guard: &TreeGuard<'_>) -> Result<Option<(ObjectId, Vec<Invalidation>)>> {
        let repository = self.repository().await?;
        let finished = match self.working.upper().publishing() {
            Some(id) => finish(&repository, &self.working, &self.reader, guard, id).await?.map(|done| (id, done)),
            None => None,
        };
        let Some((id, invalidations)) = finished else {
            self.working.upper().set_may_land();
            return Ok(None);
        };
        self.close_commit(guard);
        Ok(Some((id, invalidations)))
    }

    /// Waits for files to be closed. The kernel reports a close only after `close` has returned: a
    /// program that closes a file and then commits must not be refused because of that file.
    pub(super) async fn wait_for_closes(&self) {
        let deadline = tokio::time::Instant::now() + CLOSE_TIMEOUT;
        while self.working.handles().any_open_for_writing() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Progress of a commit that ends, whatever its outcome, with this.
struct Ended(Arc<CommitProgress>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.enter(Stage::Done);
    }
}

fn listed(items: &[String]) -> String {
    let mut text = items.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
    if items.len() > LISTED {
        text += &format!("; and {} more", items.len() - LISTED);
    }
    text
}
