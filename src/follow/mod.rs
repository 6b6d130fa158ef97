//! A read-only mount that follows its branch: it moves to the branch's newest commit as a whole.
//!
//! Three things must hold. What a program has open, it reads to its end as it was. Whatever it opens after the move is of the
//! new commit. And what did not change stays in the kernel's caches.
//!
//! The kernel has one cache of bytes for each inode, so a file whose bytes are others while somebody reads it becomes another
//! inode ([`crate::tree::nodes::Renumbered`]); the old number goes on meaning the old bytes until it is closed. All other
//! files keep their numbers, and those that changed are told to the kernel. A move is made of these steps:
//!
//! 1. [`mod@difference`] finds out what is not the same.
//! 2. Answers are not remembered by the kernel any more, and it is told to forget all that will not be the same. What it asks
//!    for again is still the old snapshot's, for this moment only.
//! 3. The new tree takes the old one's place, under the lock that counts open files ([`shown`]).
//! 4. Answers are remembered again, and the kernel is told of what was looked at in between.
//!
//! So there is one moment, in step 3, before which every name and every file is the old snapshot's and after which it is the new
//! one's. Nothing waits for it but a file that was read in between and is opened again before step 4 has ended.

pub mod difference;
pub mod shown;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{info, warn};

use self::difference::difference;
use self::shown::Shown;
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::reader::Reader;
use crate::repo::watch::{Look, Watch};
use crate::repo::{MAX_SNAPSHOT, Repository};
use crate::session::{Invalidator, invalidate_all};
use crate::tree::Tree;
use crate::tree::nodes::NodeTable;
use crate::tree::numbering::Numbering;
use crate::working::replace::Invalidation;

/// How long requests that began before a move may take until the next step. What takes longer had begun long before.
const OLD_REQUESTS: Duration = Duration::from_secs(5);

/// A branch that is followed.
pub struct Follower {
    shown: Arc<Shown>,
    reader: Arc<Reader>,
    branch: String,
    interval: Duration,
    numbering: Mutex<Numbering>,
    watch: tokio::sync::Mutex<Watch>,
    /// Whom to tell; known once the mount is up.
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
    /// Follows `branch` of `repository` from `tree` on, whose numbers are of `numbering`; looks every `interval`.
    pub fn new(
        repository: &Repository,
        branch: &str,
        tree: Arc<Tree>,
        numbering: Numbering,
        interval: Duration,
    ) -> Arc<Self> {
        Arc::new(Follower {
            reader: Arc::clone(tree.reader()),
            shown: Arc::new(Shown::followed(tree)),
            branch: branch.to_owned(),
            interval,
            numbering: Mutex::new(numbering),
            watch: tokio::sync::Mutex::new(Watch::new(repository, branch)),
            kernel: OnceLock::new(),
        })
    }

    /// What it shows.
    pub fn shown(&self) -> &Arc<Shown> {
        &self.shown
    }

    /// Begins to follow, on the current runtime, until that ends.
    pub fn begin(self: &Arc<Self>, kernel: Arc<dyn Invalidator>) {
        let _ = self.kernel.set(kernel);
        let follower = Arc::clone(self);
        drop(tokio::spawn(async move {
            // What is wrong is said when it begins, and when it is over.
            let mut trouble: Option<String> = None;
            loop {
                tokio::time::sleep(follower.interval).await;
                let said = follower.look().await.err().map(|error| error.to_string());
                match (&trouble, &said) {
                    (None, Some(said)) => {
                        let shown = follower.shown.view().tree().snapshot().id();
                        warn!("following branch {}: {said}; snapshot {shown} stays shown", follower.branch);
                    }
                    (Some(_), None) => info!("following branch {} again", follower.branch),
                    _ => {}
                }
                trouble = said;
            }
        }));
    }

    /// Looks once, and moves if there is something new.
    async fn look(&self) -> Result<()> {
        let mut watch = self.watch.lock().await;
        match watch.look().await? {
            Look::Same => {}
            Look::Gone => {
                return Err(Error::new(ErrorKind::NotFound, "there is no such branch any more"));
            }
            Look::Tip(repository, tip) => {
                if tip != self.shown.view().tree().snapshot().id() {
                    self.move_to(&repository, tip).await?;
                }
                watch.followed();
            }
        }
        Ok(())
    }

    async fn move_to(&self, repository: &Repository, tip: ObjectId) -> Result<()> {
        let old = Arc::clone(self.shown.view().tree());
        let snapshot = Arc::new(repository.snapshot(tip, MAX_SNAPSHOT).await?);
        let table = NodeTable::build_after(&snapshot, &mut self.numbering.lock())?;
        let new = Tree::new(snapshot, table, Arc::clone(&self.reader));
        let difference = Arc::new(difference(repository, &old, &new).await?);
        let open = self.shown.forgetting();
        self.invalidate(difference.before(&old, &open)).await?;
        let moved = self.shown.replace(&old, new, &difference);
        // An answer of before must not be what the kernel remembers.
        let patience = tokio::time::Instant::now() + OLD_REQUESTS;
        while Arc::strong_count(&moved.before) > 1 && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.invalidate(difference.after(&old, &moved.stale, &moved.retired)).await?;
        self.shown.told();
        self.numbering.lock().forget_old_grids();
        info!("branch {} is followed to snapshot {tip}: {}", self.branch, difference);
        Ok(())
    }

    async fn invalidate(&self, invalidations: Vec<Invalidation>) -> Result<()> {
        match self.kernel.get() {
            Some(kernel) => invalidate_all(Arc::clone(kernel), invalidations).await,
            None => Ok(()),
        }
    }
}
