//! Operations on a whole working tree: commit, refresh, discard, status and diff.
//!
//! [`changes`] detects the change set, the engine ([`crate::commit`]) commits it, and [`rebase`] puts the tree on the new
//! snapshot. One commit, refresh or discard runs at a time; requests that change the tree wait for it, reads do not.

pub mod changes;
mod commit;
mod diff;
mod eager_upload;
mod identity;
mod invalidation;
mod rebase;
mod recovery;
mod refresh;
pub mod request;
pub mod status;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::changes::nodes::detect_changes;
use self::changes::{DetectedChanges, NewIds};
pub use self::commit::{CommitOptions, Committed};
pub use self::eager_upload::UploadMode;
pub use self::invalidation::{Invalidator, invalidate_all};
pub use self::recovery::{RecoveryOptions, open};
use crate::commit::conflicts::Conflict;
use crate::commit::engine::Engine;
use crate::commit::progress::{CommitProgress, CommitState};
use crate::error::Result;
use crate::overlay::WorkingTree;
use crate::overlay::frozen::Frozen;
use crate::printable;
use crate::reader::Reader;
use crate::repo::Repository;
use crate::storage::Storage;
use crate::times::format_time;

/// Working tree of a mount, with the repository that it is committed to.
pub struct Session {
    working: Arc<WorkingTree>,
    storage: Arc<dyn Storage>,
    reader: Arc<Reader>,
    engine: Engine,
    facts: Facts,
    /// Receiver of invalidations; set once the mount is up.
    kernel: OnceLock<Arc<dyn Invalidator>>,
    /// Held by one commit, discard or refresh at a time.
    turn: tokio::sync::Mutex<()>,
    progress: Mutex<Arc<CommitProgress>>,
    conflicts: Mutex<Vec<Conflict>>,
    new_ids: NewIds,
    /// Task of the eager upload.
    uploading: OnceLock<tokio::task::AbortHandle>,
}

/// Constant facts about a mount.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Mountpoint.
    pub mountpoint: PathBuf,
    /// Spec version of the repository.
    pub spec_version: u8,
    /// Options of the mount.
    pub options: Map<String, Value>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("working", &self.working).finish_non_exhaustive()
    }
}

/// Content of the control file `info.json`: facts about a mount.
#[derive(Debug, Serialize, Deserialize)]
pub struct MountInfo {
    repository: String,
    branch: String,
    snapshot: String,
    spec_version: u8,
    /// Scratch directory.
    pub scratch: String,
    mountpoint: String,
    options: Map<String, Value>,
    pid: u32,
    version: String,
}

impl Session {
    /// Creates a session of `working`, which `engine` commits to the repository in `storage`; `reader` reads that repository.
    pub fn new(
        working: Arc<WorkingTree>,
        storage: Arc<dyn Storage>,
        reader: Arc<Reader>,
        engine: Engine,
        facts: Facts,
    ) -> Self {
        Session {
            working,
            storage,
            reader,
            engine,
            facts,
            kernel: OnceLock::new(),
            turn: tokio::sync::Mutex::new(()),
            progress: Mutex::default(),
            conflicts: Mutex::default(),
            new_ids: NewIds::default(),
            uploading: OnceLock::new(),
        }
    }

    /// Returns the working tree.
    pub fn working(&self) -> &Arc<WorkingTree> {
        &self.working
    }

    /// Sets the receiver of invalidations for changes that did not come through the kernel.
    pub fn attach(&self, kernel: Arc<dyn Invalidator>) {
        // The first value stays: there is one mount.
        let _ = self.kernel.set(kernel);
    }

    async fn repository(&self) -> Result<Repository> {
        Repository::open(Arc::clone(&self.storage)).await
    }

    /// Freezes the working tree and detects the changes that it would commit now.
    async fn detect_changes(&self) -> Result<(Frozen, DetectedChanges)> {
        let frozen = self.working.freeze();
        let detected = detect_changes(self.working.base(), &*self.working, &frozen, &self.new_ids).await?;
        Ok((frozen, detected))
    }

    /// Returns the commits that led to the base as text, newest first.
    pub async fn log(&self) -> Result<String> {
        let repository = self.repository().await?;
        let base = self.working.base().id();
        let mut text = String::new();
        for commit in repository.history(base, usize::MAX).await? {
            let time = format_time(commit.flushed_at);
            text += &format!("{} {} {}\n", commit.id, time, printable::line(&commit.message));
        }
        Ok(text)
    }

    /// Returns the facts about this mount.
    pub fn info(&self) -> MountInfo {
        let origin = self.working.origin();
        MountInfo {
            repository: origin.repository.clone(),
            branch: origin.branch.clone(),
            snapshot: self.working.base().id().to_string(),
            spec_version: self.facts.spec_version,
            scratch: self.working.scratch().path().to_string_lossy().into_owned(),
            mountpoint: self.facts.mountpoint.to_string_lossy().into_owned(),
            options: self.facts.options.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Returns the progress of a running commit.
    pub fn progress(&self) -> CommitState {
        self.progress.lock().now()
    }

    /// Returns the conflicts of the last commit or refresh as text.
    pub fn conflicts_text(&self) -> String {
        let conflicts = self.conflicts.lock();
        if conflicts.is_empty() {
            return "no conflicts\n".to_owned();
        }
        conflicts.iter().map(to_text).collect()
    }
}

fn to_text(conflict: &Conflict) -> String {
    let mut text = format!("{}: {:?}: {}", printable::line(&conflict.path), conflict.kind, conflict.kind.describe());
    if !conflict.coords.is_empty() {
        text += &format!("; chunks {:?}", conflict.coords);
    }
    text + &format!(" (commit {} \"{}\")\n", conflict.other, printable::line(&conflict.message))
}
