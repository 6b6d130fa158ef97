//! Operations on a whole working tree: commit, refresh, discard, status and diff.
//!
//! [`changes`] detects the change set, the engine ([`icechunkfs_repo::commit`]) commits it, and
//! [`rebase`] puts the tree on the new snapshot. One commit, refresh or discard runs at a time;
//! requests that change the tree wait for it, reads do not.

pub mod changes;
mod commit;
mod committed;
mod diff;
mod discarded;
mod eager_upload;
mod hook;
mod identity;
mod invalidation;
pub mod paths;
mod rebase;
mod recovery;
mod refresh;
pub mod request;
mod resolve;
mod restore;
mod revert;
pub mod status;
mod status_text;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use self::changes::nodes::detect_changes;
use self::changes::{DetectedChanges, NewIds};
pub use self::commit::CommitOptions;
pub use self::committed::Committed;
pub use self::eager_upload::UploadMode;
use self::eager_upload::Uploader;
use self::hook::Hook;
pub use self::invalidation::{Invalidator, announce_head, invalidate_all};
pub use self::recovery::{RecoveryOptions, open};
use self::resolve::OpenConflicts;
use crate::overlay::frozen::Frozen;
use crate::overlay::{Ino, WorkingTree};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_base::metrics;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::commit::engine::Engine;
use icechunkfs_repo::commit::progress::{CommitProgress, CommitState};
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::repo::Repository;
use icechunkfs_store::storage::{Contact, OfflineSwitch, Storage};
use icechunkfs_tree::mount_facts::{MountFacts, log_text};

/// Working tree of a mount, with the repository that it is committed to.
pub struct Session {
    working: Arc<WorkingTree>,
    storage: Arc<dyn Storage>,
    reader: Arc<Reader>,
    engine: Arc<Engine>,
    facts: Arc<MountFacts>,
    /// Receiver of invalidations; set once the mount is up.
    kernel: OnceLock<Arc<dyn Invalidator>>,
    /// Base that programs were told of last; none before the mount is up.
    announced: Mutex<Option<ObjectId>>,
    /// Command that runs after each commit.
    hook: OnceLock<Hook>,
    /// Held by one commit, discard or refresh at a time.
    turn: tokio::sync::Mutex<()>,
    progress: Mutex<Arc<CommitProgress>>,
    conflicts: OpenConflicts,
    new_ids: NewIds,
    /// Directory that the mount shows, once an operation has looked for it; none if there was none.
    shown_inode: OnceLock<Option<Ino>>,
    uploader: Arc<Uploader>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("working", &self.working).finish_non_exhaustive()
    }
}

/// Turn of an operation that may move the tree. At its end files can be opened, even if it failed.
struct Turn<'a> {
    working: &'a WorkingTree,
    _lock: tokio::sync::MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.working.moves().settle();
    }
}

/// Attempt to go online, which ends offline unless it succeeds.
struct Attempt<'a>(&'a OfflineSwitch);

impl<'a> Attempt<'a> {
    fn begin(switch: &'a OfflineSwitch) -> Self {
        switch.set(Contact::Trying);
        Attempt(switch)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.0.contact() == Contact::Trying {
            self.0.set(Contact::Offline);
        }
    }
}

/// Returns true if the store was probably not reached.
fn is_of_network(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Timeout)
}

impl Session {
    /// Creates a session of `working`, which `engine` commits to the repository in `storage`;
    /// `reader` reads that repository.
    pub fn new(
        working: Arc<WorkingTree>,
        storage: Arc<dyn Storage>,
        reader: Arc<Reader>,
        engine: Engine,
        facts: Arc<MountFacts>,
    ) -> Self {
        let engine = Arc::new(engine);
        Session {
            uploader: Uploader::new(&working, &storage, &engine),
            working,
            storage,
            reader,
            engine,
            facts,
            kernel: OnceLock::new(),
            announced: Mutex::default(),
            hook: OnceLock::new(),
            turn: tokio::sync::Mutex::new(()),
            progress: Mutex::default(),
            conflicts: OpenConflicts::default(),
            new_ids: NewIds::default(),
            shown_inode: OnceLock::new(),
        }
    }

    /// Returns the text of `.icechunk/stats`.
    pub async fn stats(&self) -> Result<String> {
        let working = Arc::clone(&self.working);
        let reader = Arc::clone(&self.reader);
        blocking(move || Ok(metrics::render(&[reader.gauges().metrics(), working.upper().gauges()].concat()))).await
    }

    /// Returns the constant facts about the mount.
    pub fn facts(&self) -> &Arc<MountFacts> {
        &self.facts
    }

    /// Returns the working tree.
    pub fn working(&self) -> &Arc<WorkingTree> {
        &self.working
    }

    /// Sets the receiver of invalidations for changes that did not come through the kernel.
    pub fn attach(&self, kernel: Arc<dyn Invalidator>) {
        // The first value stays: there is one mount.
        let _ = self.kernel.set(kernel);
        *self.announced.lock() = Some(self.working.upper().base().id());
    }

    /// Runs `command` after each commit from now on. Needs a runtime.
    pub fn run_on_commit(&self, command: String) {
        // The first one stays: there is one option.
        let _ = self.hook.set(Hook::new(command, Arc::clone(&self.facts)));
    }

    /// Starts to store chunks before the commit that will refer to them. Needs a runtime.
    pub fn begin_uploads(&self) {
        self.uploader.begin();
    }

    /// Stops that at once.
    pub fn end_uploads(&self) {
        self.uploader.end();
    }

    /// Waits for the operations before this one.
    async fn take_turn(&self) -> Turn<'_> {
        Turn { _lock: self.turn.lock().await, working: &self.working }
    }

    /// Returns true if the store is not asked yet, since the mount began offline.
    pub fn is_offline(&self) -> bool {
        self.storage.capabilities().contact() != Contact::Online
    }

    /// Asks the store from now on, if the mount is offline, the store answers and is the one that
    /// the changes were made to, and this mount may write to it. Called by operations that need the
    /// branch as it is now. Returns true if the mount was offline.
    ///
    /// Errors: those of the store, and [`ErrorKind::ReadOnly`]; the mount is offline still.
    async fn go_online(&self) -> Result<bool> {
        let Some(switch) = self.storage.capabilities().offline.as_ref().filter(|_| self.is_offline()) else {
            return Ok(false);
        };
        let attempt = Attempt::begin(switch);
        let checked = self.check_store().await;
        if checked.is_ok() {
            switch.set(Contact::Online);
        }
        drop(attempt);
        match checked {
            Ok(()) => Ok(true),
            Err(error) if is_of_network(&error) => Err(error
                .context("the mount stays offline, and its changes are kept: try again when the store can be reached")),
            Err(error) => Err(error.context("the mount stays offline, and its changes are kept")),
        }
    }

    /// Takes that back after a failed operation: requests of programs would wait for a store that
    /// is gone again.
    fn go_offline_after(&self, error: &Error) {
        let is_decided = !self.working.upper().is_undecided();
        if let Some(switch) =
            self.storage.capabilities().offline.as_ref().filter(|_| is_decided && is_of_network(error))
        {
            switch.set(Contact::Offline);
        }
    }

    /// Checks what a mount that begins online checks first.
    async fn check_store(&self) -> Result<()> {
        let recorded = self.working.upper().origin();
        let repository = self.repository().await?;
        let found = identity::origin_of(&repository, &recorded.branch).await?;
        identity::compare(&repository, recorded, &found, self.working.upper().scratch().path()).await?;
        match repository.read_only_reason(&recorded.branch).await? {
            None => Ok(()),
            Some(why) => Err(Error::new(ErrorKind::ReadOnly, format!("nothing can be committed: {why}"))),
        }
    }

    async fn repository(&self) -> Result<Repository> {
        Repository::open(Arc::clone(&self.storage)).await
    }

    /// Freezes the working tree and detects the changes that it would commit now.
    async fn detect_changes(&self) -> Result<(Frozen, DetectedChanges)> {
        let frozen = self.working.upper().freeze();
        let detected =
            detect_changes(self.working.upper().base(), self.working.contents(), &frozen, &self.new_ids).await?;
        Ok((frozen, detected))
    }

    /// Returns the commits that led to the base as text, newest first.
    pub async fn log(&self) -> Result<Metered<String>> {
        let repository = self.repository().await?;
        log_text(&repository, self.working.upper().base().id(), usize::MAX).await
    }

    /// Cancels the commit whose ticket is `ticket`, or whichever runs if that is empty; see
    /// [`CommitProgress::cancel`]. It takes no turn: it is for the operation that has it.
    pub fn cancel(&self, ticket: &str) -> Result<()> {
        let progress = Arc::clone(&*self.progress.lock());
        progress.cancel(ticket)
    }

    /// Returns the progress of a running commit.
    pub fn progress(&self) -> CommitState {
        self.progress.lock().now()
    }
}
