//! Compares a change set with the commits made since its base, and drops the changes that give way
//! to them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::{BoxFuture, try_join_all};
use futures_util::{StreamExt, TryStreamExt};

use super::changes::{ChangeSet, ChunkChange};
use super::conflict::{Conflict, ConflictKind};
use super::conflicts::{self, ChunkSet, Concurrent, ConcurrentChanges, ConcurrentCommit, FoundConflicts};
use super::documents::MergedDocuments;
use super::publish::branch_is_gone;
use super::references::References;
use super::settlements::Settlements;
use super::unchanged::{CONCURRENT_CHUNKS, has_bytes_of};
use super::upload::StoredChunks;
use crate::reader::Reader;
use crate::repo::{MAX_SNAPSHOT, Repository, history};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_format::format::MAX_FILE;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::format::transaction_log::TransactionLog;
use icechunkfs_format::zarr::Coords;
use icechunkfs_store::storage::{Storage, decoded};

/// Logs that are read at the same time. Most have a few hundred bytes.
const CONCURRENT_LOGS: usize = 32;

/// Files of concurrent commits that were read while the commits were looked for.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// Branch tip.
    tip: Option<Arc<Snapshot>>,
    logs: HashMap<ObjectId, TransactionLog>,
}

/// Concurrent commits, and their effect on a change set.
#[derive(Debug)]
pub struct Comparison {
    /// Newest commit.
    pub tip: Arc<Snapshot>,
    /// Commits after the base, oldest first; the last one is the tip.
    pub commits: Vec<ObjectId>,
    /// Conflicts of the change set with them that are not settled.
    pub conflicts: Vec<Conflict>,
    /// Documents that both changed, with the changes of both.
    pub merged: MergedDocuments,
    /// Chunks that are settled to give way to those of the commits.
    pub giving_way: ChunkSet,
    /// Chunks that the tip has as the changes would leave them: with the same bytes, or deleted.
    pub(super) same_in_tip: ChunkSet,
}

impl Comparison {
    /// Returns the comparison of no changes with `tip`, in whose history their base is not.
    pub fn elsewhere(tip: Arc<Snapshot>) -> Self {
        Comparison {
            tip,
            commits: Vec::new(),
            conflicts: Vec::new(),
            merged: MergedDocuments::default(),
            giving_way: ChunkSet::new(),
            same_in_tip: ChunkSet::new(),
        }
    }
}

/// Returns the commits that `branch` got since `base`, oldest first. Fails with
/// [`ErrorKind::Stale`] if `base` is not in its history.
pub async fn commits_since(
    repository: &Repository,
    branch: &str,
    base: ObjectId,
) -> Result<Metered<Vec<SnapshotInfo>>> {
    let tip = repository.branch_tip(branch).await?.ok_or_else(|| branch_is_gone(branch))?;
    if tip == base {
        return Ok(Metered::default());
    }
    history::commits_after(repository, base, tip).await?.ok_or_else(|| was_reset(branch, base))
}

/// Returns the same as [`commits_since`]. In version 1 a commit is found in the snapshot that
/// follows it, one round trip for each: the log is read in the same one.
pub(super) async fn commits_to_compare(
    repository: &Repository,
    branch: &str,
    base: ObjectId,
) -> Result<(Metered<Vec<SnapshotInfo>>, ReadAhead)> {
    let mut ahead = ReadAhead::default();
    if repository.version() != SpecVersion::V1 {
        return Ok((commits_since(repository, branch, base).await?, ahead));
    }
    let tip = repository.branch_tip(branch).await?.ok_or_else(|| branch_is_gone(branch))?;
    let mut commits = Vec::new();
    let mut meter = Meter::new("the commits since the base");
    let mut seen = HashSet::new();
    let mut next = tip;
    while next != base {
        if !seen.insert(next) {
            return Err(history::cycle(tip, next));
        }
        let (snapshot, log) =
            tokio::join!(repository.snapshot(next, MAX_SNAPSHOT), read_log_if_any(&**repository.storage(), next));
        let snapshot = snapshot?;
        // A log that is missing matters only if the base is in the history.
        ahead.logs.extend(log?.map(|log| (next, log)));
        let commit = SnapshotInfo::of_snapshot(&snapshot)?;
        commit.count(&mut meter)?;
        ahead.tip.get_or_insert_with(|| Arc::new(snapshot));
        next = commit.parent.ok_or_else(|| was_reset(branch, base))?;
        commits.push(commit);
    }
    commits.reverse();
    Ok((meter.finish(commits), ahead))
}

/// Compares `changes`, made for `base`, with the following `commits`, oldest first. Returns `None`
/// if there are no commits.
pub(super) async fn compare(
    repository: &Repository,
    reader: &Arc<Reader>,
    base: &Snapshot,
    commits: &[SnapshotInfo],
    ahead: &mut ReadAhead,
    changes: &ChangeSet,
    settlements: &Settlements,
) -> Result<Option<Comparison>> {
    let Some(tip) = commits.last() else { return Ok(None) };
    let storage = repository.storage();
    let read = commits.iter().map(|commit| -> BoxFuture<'_, Result<ConcurrentCommit>> {
        let mut known = ahead.logs.remove(&commit.id);
        Box::pin(async move {
            let mut logs = Vec::new();
            for id in commit.log_ids() {
                logs.push(match known.take_if(|_| id == commit.id) {
                    Some(log) => log,
                    None => read_log(&**storage, id).await?,
                });
            }
            Ok(ConcurrentCommit { id: commit.id, message: commit.title(), logs })
        })
    });
    let read: Vec<BoxFuture<'_, Result<ConcurrentCommit>>> = read.collect();
    // A writer that waited for its turn has many to read: one after another, each would cost a
    // round trip.
    let others = futures_util::stream::iter(read).buffered(CONCURRENT_LOGS).try_collect::<Vec<_>>();
    let known = ahead.tip.take_if(|known| known.id() == tip.id);
    let tip = async {
        match known {
            Some(tip) => Ok(tip),
            None => repository.snapshot(tip.id, MAX_SNAPSHOT).await.map(Arc::new),
        }
    };
    let (others, tip) = tokio::try_join!(others, tip)?;
    let theirs = ConcurrentChanges::read(&others, changes)?;
    let both = theirs.changed_by_both(changes);
    let nodes: HashSet<NodeId> = both.iter().map(|(node, ..)| *node).collect();
    let [before, after] = [base, &*tip].map(|snapshot| References::new(snapshot, reader, |node| nodes.contains(node)));
    let sides = &ComparedSides { reader, before, after };
    let mut agreed = ChunkSet::new();
    let mut same_in_tip = ChunkSet::new();
    for some in both.chunks(CONCURRENT_CHUNKS) {
        let compared: Vec<_> =
            some.iter().map(|(node, coords, change)| sides.agreement(*node, coords, change)).collect();
        for ((node, coords, _), agreement) in std::iter::zip(some, try_join_all(compared).await?) {
            if agreement != Agreement::Absent {
                agreed.entry(*node).or_default().insert((*coords).clone());
            }
            if agreement == Agreement::Same {
                same_in_tip.entry(*node).or_default().insert((*coords).clone());
            }
        }
    }
    let concurrent = Concurrent { commits: &others, changes: &theirs, agreed: &agreed };
    let FoundConflicts { conflicts, merged, giving_way } =
        conflicts::find(base, &tip, changes, &concurrent, settlements)?;
    let commits = commits.iter().map(|commit| commit.id).collect();
    Ok(Some(Comparison { tip, commits, conflicts, merged, giving_way, same_in_tip }))
}

/// Result of comparing a chunk that both sides changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agreement {
    /// The tip has what the change makes.
    Same,
    /// The tip has what the base had: commits in between have changed the chunk and changed it
    /// back.
    Unchanged,
    Absent,
}

/// The chunks of both ends of the concurrent commits.
struct ComparedSides<'a> {
    reader: &'a Arc<Reader>,
    before: References<'a>,
    after: References<'a>,
}

impl ComparedSides<'_> {
    /// Compares a chunk that commits changed with what `change` makes of it.
    async fn agreement(&self, node: NodeId, coords: &Coords, change: &ChunkChange) -> Result<Agreement> {
        let there = self.after.find(node, coords).await?;
        let is_same = match (change, &there) {
            (ChunkChange::Delete, None) if self.after.has_array(node) => true,
            (ChunkChange::Delete, _) => return Ok(Agreement::Absent),
            (_, None) => false,
            (change, Some(payload)) => has_bytes_of(self.reader, change, payload).await,
        };
        if is_same {
            Ok(Agreement::Same)
        } else if there == self.before.find(node, coords).await? {
            Ok(Agreement::Unchanged)
        } else {
            Ok(Agreement::Absent)
        }
    }
}

/// Drops the changes of conflicting chunks, and all chunk changes of arrays with other conflicts.
/// `base` is the snapshot that the changes were made for.
pub(super) fn drop_conflicting(
    base: &Snapshot,
    changes: &mut ChangeSet,
    stored: &mut StoredChunks,
    conflicts: &[Conflict],
) {
    let ids: HashMap<&str, NodeId> = base.nodes().map(|node| (node.path, node.id)).collect();
    let mut dropped = ChunkSet::new();
    for conflict in conflicts {
        let Some(id) = ids.get(conflict.path.as_str()) else { continue };
        if conflict.kind == ConflictKind::ChunkDoubleUpdate {
            dropped.entry(*id).or_default().extend(conflict.coords.iter().map(|coords| Coords::from_slice(coords)));
        } else {
            changes.chunks.remove(id);
            stored.remove(id);
        }
    }
    drop_chunks(changes, stored, &dropped);
}

/// Removes `chunks` from the changes and from the stored chunks.
pub(super) fn drop_chunks(changes: &mut ChangeSet, stored: &mut StoredChunks, chunks: &ChunkSet) {
    for (id, dropped) in chunks {
        if let Some(ours) = changes.chunks.get_mut(id) {
            ours.retain(|coords, _| !dropped.contains(coords));
        }
        if let Some(list) = stored.get_mut(id) {
            let kept = list.iter().filter(|(coords, _)| !dropped.contains(coords)).cloned();
            *list = Arc::new(kept.collect());
        }
    }
    changes.chunks.retain(|_, chunks| !chunks.is_empty());
    stored.retain(|_, chunks| !chunks.is_empty());
}

/// Reads the transaction log of snapshot `id`. Fails if it is missing, because nothing can be
/// compared without it.
pub async fn read_log(storage: &dyn Storage, id: ObjectId) -> Result<TransactionLog> {
    read_log_if_any(storage, id).await?.ok_or_else(|| no_log(id))
}

/// Returns the error for a missing transaction log.
pub fn no_log(id: ObjectId) -> Error {
    Error::corrupt(format!("transactions/{id}: missing, so the changes of commit {id} are not known"))
}

/// Reads the transaction log of snapshot `id`, if there is one.
pub async fn read_log_if_any(storage: &dyn Storage, id: ObjectId) -> Result<Option<TransactionLog>> {
    let decode = |file: &[u8]| TransactionLog::decode(file, MAX_FILE);
    match decoded::fixed(storage, &format!("transactions/{id}"), MAX_FILE, decode).await {
        Ok(log) => Ok(Some(log.value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn was_reset(branch: &str, base: ObjectId) -> Error {
    Error::new(
        ErrorKind::Stale,
        format!(
            "branch `{branch}` has been reset or amended, or the commit has expired: {base}, which the changes are based on, is no \
             longer in its history. The changes are kept: copy them to a mount of `{branch}`, or of a branch that you create at {base}, with another scratch \
             directory"
        ),
    )
}
