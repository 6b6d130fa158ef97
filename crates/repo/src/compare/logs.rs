//! Reads the transaction logs of the commits between two snapshots.
//!
//! A log lists what a commit touched, not the result: what one commit created and another removed
//! again is in both. Logs of commits that expiration has removed are kept by the commit after them
//! ("pruned") and count in their place.

use std::collections::{BTreeMap, BTreeSet};

use crate::commit::log::LogUnion;
use crate::commit::rebase::{no_log, read_log, read_log_if_any};
use crate::repo::Repository;
use crate::repo::history::commits_after;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::zarr::Coords;

/// Returns what the commits after `from` up to `to` touched; none if `from` is neither `to` nor one
/// of its ancestors.
///
/// Missing pruned logs (old releases collected them) are returned too, by their ids: their changes
/// are not included. Any other missing log is an error.
pub async fn between(
    repository: &Repository,
    from: ObjectId,
    to: ObjectId,
) -> Result<Option<(LogUnion, Vec<ObjectId>)>> {
    let Some(commits) = commits_after(repository, from, to).await? else { return Ok(None) };
    let mut logged = LogUnion::default();
    let mut missing = Vec::new();
    for commit in commits {
        missing.extend(add_commit(repository, &commit, &mut logged).await?);
    }
    Ok(Some((logged, missing)))
}

/// Returns what one commit touched, and the expired commits in whose place it is. A missing pruned
/// log counts for nothing.
pub async fn of_commit<T>(repository: &Repository, commit: &SnapshotInfo<T>) -> Result<LogUnion> {
    let mut logged = LogUnion::default();
    add_commit(repository, commit, &mut logged).await?;
    Ok(logged)
}

/// Adds the logs of one commit, and returns the ids of missing pruned ones.
async fn add_commit<T>(
    repository: &Repository,
    commit: &SnapshotInfo<T>,
    logged: &mut LogUnion,
) -> Result<Vec<ObjectId>> {
    let mut missing = Vec::new();
    for id in &commit.pruned_ancestor_tx_logs {
        match read_log_if_any(&**repository.storage(), *id).await? {
            Some(log) => logged.add(&log)?,
            None => missing.push(*id),
        }
    }
    // The first commit of a repository of version 1 has no log, nor does it after a migration.
    let log = read_log_if_any(&**repository.storage(), commit.id).await?;
    match (log, commit.parent) {
        (Some(log), _) => logged.add(&log)?,
        (None, None) => {}
        (None, Some(_)) => return Err(no_log(commit.id)),
    }
    Ok(missing)
}

/// Returns the chunks that the commits after `old` up to `new` wrote or deleted, by array. None if
/// `old` is not among the `most` nearest ancestors of `new`, or a log cannot be read.
pub async fn written(
    repository: &Repository,
    old: ObjectId,
    new: ObjectId,
    most: usize,
) -> Result<Option<BTreeMap<NodeId, BTreeSet<Coords>>>> {
    let history = repository.ancestors(new, most.saturating_add(1)).await?;
    let Some(commits) = history.iter().position(|commit| commit.id == old) else { return Ok(None) };
    let mut written = LogUnion::default();
    for commit in history.iter().take(commits) {
        for id in commit.log_ids() {
            let read = read_log(&**repository.storage(), id).await;
            if read.and_then(|log| written.add(&log)).is_err() {
                return Ok(None);
            }
        }
    }
    Ok(Some(written.chunks))
}
