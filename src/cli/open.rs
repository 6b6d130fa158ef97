//! What every command that looks into a repository begins with.

use std::sync::Arc;

use tokio::runtime::Runtime;

use super::virtual_args::{self, VirtualArgs};
use crate::error::{Context, Error, Result};
use crate::memory;
use crate::reader::Reader;
use crate::reader::memory::Budget;
use crate::repo::refs::RefSpec;
use crate::repo::{MAX_SNAPSHOT, Repository};
use crate::storage::{self, settings::Settings};
use crate::tree::Tree;
use crate::tree::nodes::NodeTable;
use crate::tree::numbering::Numbering;

/// Threads that carry out requests which had to wait. They do not wait themselves, so that few are enough.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;
/// Threads that wait for local disks.
const WAITING_THREADS: usize = 32;

/// Bytes of chunks on their way to a store at a time, at most, and what part of the user's bound they may be.
const MOST_UPLOADS: u64 = 32 << 20;
const UPLOADS_SHARE: u64 = 8;

/// Snapshots that a commit holds at a time, with what it reads besides: its base, the newest one, and the one it writes.
const SNAPSHOTS: u64 = 4;

/// The threads on which everything asynchronous runs.
pub fn runtime() -> Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(*THREADS.start(), *THREADS.end()))
        .max_blocking_threads(WAITING_THREADS)
        .thread_name("icechunkfs")
        .enable_all()
        .build()
        .map_err(|e| Error::io("starting threads", e))
}

/// Opens the repository that `repo` names.
pub async fn repository(repo: &str, settings: &Settings) -> Result<Repository> {
    Repository::open(storage::open(repo, settings).await?).await
}

/// As [`repository`], for a command that reads chunks: virtual ones as far as `virtuals` allow it.
pub async fn repository_with(repo: &str, settings: &Settings, virtuals: &VirtualArgs) -> Result<Repository> {
    let permissions = virtuals.permissions()?;
    Ok(virtual_args::allow(repository(repo, settings).await?, permissions, settings).await)
}

/// What the user says about memory, where he does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Bytes that are fetched ahead of one reader.
    pub ahead: Option<u64>,
}

impl Limits {
    /// Bytes that a snapshot may take. What the user asked for is looked at before anything is read within it.
    pub fn of_snapshot(&self) -> Result<u64> {
        let said = memory::explicit_bound();
        if let Some(total) = said {
            Budget::new(total, 0)?;
        }
        Ok(said.unwrap_or(MAX_SNAPSHOT))
    }

    /// Bytes of chunks on their way to a store at a time.
    pub fn uploads(&self) -> u64 {
        memory::explicit_bound().map_or(MOST_UPLOADS, |total| (total / UPLOADS_SHARE).min(MOST_UPLOADS))
    }

    /// The budget of a mount of which `fixed` bytes are taken already.
    pub fn budget(&self, fixed: u64) -> Result<Budget> {
        // The default makes room for a large snapshot; a bound that the user gave does not.
        let total = memory::explicit_bound().unwrap_or_else(|| {
            memory::raise_default_bound(SNAPSHOTS * fixed);
            memory::default_memory().max(2 * fixed)
        });
        Ok(Budget::new(total, fixed)?.with_ahead(self.ahead))
    }
}

/// The tree of the snapshot that `spec` picks, within `limits`, or the default ones.
pub async fn tree(repository: &Repository, spec: &RefSpec, limits: Limits) -> Result<Arc<Tree>> {
    tree_after(repository, spec, limits, &mut Numbering::default()).await
}

/// As [`tree`], with numbers of `numbering`.
pub async fn tree_after(
    repository: &Repository,
    spec: &RefSpec,
    limits: Limits,
    numbering: &mut Numbering,
) -> Result<Arc<Tree>> {
    let limit = limits.of_snapshot()?;
    let id = repository.resolve(spec).await?;
    let snapshot = repository.snapshot(id, limit).await.context(|| repository.storage().location().to_owned())?;
    let table = NodeTable::build_after(&snapshot, numbering)?;
    let fixed = snapshot.size() as u64 + table.size();
    let reader = Reader::new(Arc::clone(repository.storage()), limits.budget(fixed)?);
    let reader = reader.with_virtuals(Arc::clone(repository.virtuals()));
    Ok(Arc::new(Tree::new(snapshot, table, Arc::new(reader))))
}
