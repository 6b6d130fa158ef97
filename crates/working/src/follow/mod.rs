//! Follow: a read-only mount that moves to the tip of its branch by itself, and as a whole.
//!
//! Three invariants hold. A program reads an open file to its end unchanged. A file that is opened
//! after the move is of the new commit. Unchanged files stay in the kernel's caches.
//!
//! The kernel has one page cache per inode, so a file whose bytes change while it is open becomes
//! another inode ([`icechunkfs_tree::tree::numbering::Renumbered`]); the old number means the old
//! bytes until the file is closed. All other files keep their numbers, and those that changed are
//! invalidated. A move has four steps:
//!
//! 1. [`mod@difference`] compares the snapshots.
//! 2. The kernel may no longer cache replies, and everything that will change is invalidated.
//!    Requests are still answered from the old snapshot, for this moment only.
//! 3. The new tree replaces the old one, under the lock that counts open files ([`shown`]).
//! 4. The kernel may cache replies again, and everything that was looked up in between is
//!    invalidated.
//!
//! Step 3 is thus the one moment of the switch: every name and file is the old snapshot's before it
//! and the new one's after it. Nothing waits except an open of a file that was read in between,
//! until step 4 has ended.

pub mod difference;
pub mod shown;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{info, warn};

use self::difference::difference;
use self::shown::ViewState;
use crate::operations::{Invalidator, announce_head, invalidate_all};
use crate::overlay::invalidation::Invalidation;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::repo::watch::{BranchWatch, CheckResult};
use icechunkfs_repo::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeTable;
use icechunkfs_tree::tree::numbering::Numbering;

/// Longest wait of a move for requests that began before the switch. Requests that take longer
/// began long before.
const OLD_REQUESTS: Duration = Duration::from_secs(5);

/// Branch that a mount follows.
pub struct Follower {
    shown: Arc<ViewState>,
    reader: Arc<Reader>,
    branch: String,
    interval: Duration,
    numbering: Mutex<Numbering>,
    watch: tokio::sync::Mutex<BranchWatch>,
    /// Receiver of invalidations; set once the mount is up.
    kernel: OnceLock<Arc<dyn Invalidator>>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("branch", &self.branch)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

impl Follower {
    /// Creates a follower of `branch` of `repository` from `tree` on, numbered by `numbering`, that
    /// polls every `interval`.
    pub fn new(
        repository: &Repository,
        branch: &str,
        tree: Arc<Tree>,
        numbering: Numbering,
        interval: Duration,
    ) -> Arc<Self> {
        Arc::new(Follower {
            reader: Arc::clone(tree.reader()),
            shown: Arc::new(ViewState::followed(tree)),
            branch: branch.to_owned(),
            interval,
            numbering: Mutex::new(numbering),
            watch: tokio::sync::Mutex::new(BranchWatch::new(repository, branch)),
            kernel: OnceLock::new(),
        })
    }

    /// Returns the state that requests are answered from.
    pub fn shown(&self) -> &Arc<ViewState> {
        &self.shown
    }

    /// Starts to follow, on the current runtime, until that ends.
    pub fn begin(self: &Arc<Self>, kernel: Arc<dyn Invalidator>) {
        let _ = self.kernel.set(kernel);
        let follower = Arc::clone(self);
        drop(tokio::spawn(async move {
            // A failure is logged when it begins and when it has ended.
            let mut last_failure: Option<String> = None;
            loop {
                tokio::time::sleep(follower.interval).await;
                let failure = follower.poll().await.err().map(|error| error.to_string());
                match (&last_failure, &failure) {
                    (None, Some(failure)) => {
                        let shown = follower.shown.view().tree().snapshot().id();
                        warn!("following branch {}: {failure}; still showing snapshot {shown}", follower.branch);
                    }
                    (Some(_), None) => info!("following branch {} again", follower.branch),
                    _ => {}
                }
                last_failure = failure;
            }
        }));
    }

    /// Polls the branch once, and moves if the tip is new.
    async fn poll(&self) -> Result<()> {
        let mut watch = self.watch.lock().await;
        match watch.check().await? {
            CheckResult::Unchanged => {}
            CheckResult::NotFound => {
                return Err(Error::new(ErrorKind::NotFound, "the branch no longer exists"));
            }
            CheckResult::Changed(repository, tip) => {
                if tip != self.shown.view().tree().snapshot().id() {
                    self.move_to(&repository, tip).await?;
                }
                watch.confirm();
            }
        }
        Ok(())
    }

    async fn move_to(&self, repository: &Repository, tip: ObjectId) -> Result<()> {
        let old = Arc::clone(self.shown.view().tree());
        let snapshot = Arc::new(repository.snapshot(tip, MAX_SNAPSHOT).await?);
        let table = NodeTable::build_after(&snapshot, &mut self.numbering.lock(), old.snapshot(), old.table())?;
        let new = Tree::new(snapshot, table, Arc::clone(&self.reader));
        let difference = Arc::new(difference(repository, &old, &new).await?);
        let open = self.shown.stop_caching();
        self.invalidate(difference.before(&old, &open)).await?;
        let moved = self.shown.replace(&old, new, &difference);
        // A reply from the old snapshot must not enter the kernel's caches after the last
        // invalidation.
        let deadline = tokio::time::Instant::now() + OLD_REQUESTS;
        while Arc::strong_count(&moved.before) > 1 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.invalidate(difference.after(&old, &moved.stale, &moved.retired)).await?;
        self.shown.caches_invalidated();
        self.numbering.lock().forget_old_grids();
        if let Some(kernel) = self.kernel.get() {
            announce_head(Arc::clone(kernel)).await?;
        }
        let branch = &self.branch;
        let names = difference.names.len();
        let files = difference.files.len();
        info!("branch {branch} is followed to snapshot {tip}: {names} names and the bytes of {files} files differ");
        Ok(())
    }

    async fn invalidate(&self, invalidations: Vec<Invalidation>) -> Result<()> {
        match self.kernel.get() {
            Some(kernel) => invalidate_all(Arc::clone(kernel), invalidations).await,
            None => Ok(()),
        }
    }
}
