//! What every command that looks into a repository begins with.

use std::sync::Arc;

use tokio::runtime::Runtime;

use crate::error::{Context, Error, Result};
use crate::reader::Reader;
use crate::reader::memory::{self, Budget};
use crate::repo::refs::RefSpec;
use crate::repo::{MAX_SNAPSHOT, Repository};
use crate::storage;
use crate::tree::Tree;
use crate::tree::nodes::NodeTable;

/// Threads that carry out requests which had to wait. They do not wait themselves, so that few are enough.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;
/// Threads that wait for local disks.
const WAITING_THREADS: usize = 32;

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
pub async fn repository(repo: &str) -> Result<Repository> {
    Repository::open(storage::open(repo)?).await
}

/// The tree of the snapshot that `spec` picks, which may use `memory` bytes (all told) or, without one, the default.
pub async fn tree(repository: &Repository, spec: &RefSpec, memory: Option<u64>) -> Result<Tree> {
    // What the user asked for is looked at before anything is read within it.
    if let Some(total) = memory {
        Budget::new(total, 0)?;
    }
    let id = repository.resolve(spec).await?;
    let limit = memory.unwrap_or(MAX_SNAPSHOT);
    let snapshot = repository.snapshot(id, limit).await.context(|| repository.storage().location().to_owned())?;
    let table = NodeTable::build(&snapshot)?;
    let fixed = snapshot.size() as u64 + table.size();
    let budget = match memory {
        Some(total) => Budget::new(total, fixed)?,
        // The default makes room for a large snapshot; a bound that the user gave does not.
        None => Budget::new(memory::default_memory().max(2 * fixed), fixed)?,
    };
    let reader = Reader::new(Arc::clone(repository.storage()), budget);
    Ok(Tree::new(snapshot, table, Arc::new(reader)))
}
