//! Compares the changes of two sides since a common base, whatever commits made them.
//!
//! A commit of a mount is compared with the logs of concurrent commits ([`super::rebase`]). Here
//! both sides are change sets between snapshots, so that what a side changed and changed back is no
//! change, and what both did in the same way needs nothing.

use std::collections::{HashMap, HashSet};

use super::changes::{ChangeSet, ChunkChange, DeletedNode, WrittenNode};
use super::conflict::{Conflict, ConflictKind, OwnChange};
use super::conflicts::{self, ChunkSet, Concurrent, ConcurrentChanges, ConcurrentCommit};
use super::documents::take_merged;
use super::moves::find_moved;
use super::rebase;
use super::settlements::Settlements;
use super::upload::StoredChunks;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Metered;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::zarr::Coords;

/// The side that changes are applied to.
pub struct Theirs<'a> {
    /// Newest snapshot of the side.
    pub snapshot: &'a Snapshot,
    /// Description of that snapshot, which conflicts name.
    pub commit: &'a SnapshotInfo,
    /// Changes of the side since the base.
    pub changes: Metered<ChangeSet>,
}

/// Reduces `ours`, which was made for `base`, to what it changes in their snapshot. Returns the
/// conflicts that `settlements` leave open; `ours` can be committed on their snapshot if there
/// are none.
pub fn reduce(
    base: &Snapshot,
    ours: &mut ChangeSet,
    mut theirs: Theirs<'_>,
    settlements: &Settlements,
) -> Result<Vec<Conflict>> {
    let created_by_both = drop_same(ours, &mut theirs.changes);
    let commit = theirs.commit;
    let commits = [ConcurrentCommit { id: commit.id, message: commit.title(), logs: Vec::new() }];
    let concurrent = ConcurrentChanges::of(&theirs.changes);
    let concurrent = Concurrent { commits: &commits, changes: &concurrent, agreed: &ChunkSet::new() };
    let found = conflicts::find(base, theirs.snapshot, ours, &concurrent, settlements)?;
    take_merged(ours, found.merged, theirs.snapshot);
    rebase::drop_chunks(ours, &mut StoredChunks::new(), &found.giving_way);
    let mut conflicts = found.conflicts;
    conflicts.extend(created_by_both.into_iter().map(|path| Conflict {
        kind: ConflictKind::NewNodeConflictsWithExistingNode,
        path,
        coords: Vec::new(),
        members: Vec::new(),
        other: commit.id,
        message: commit.title(),
        own: OwnChange::default(),
    }));
    Ok(conflicts)
}

/// Drops from both sides what they did in the same way. Returns the paths of nodes that both
/// created with one id, but not in the same way.
fn drop_same(ours: &mut ChangeSet, theirs: &mut ChangeSet) -> Vec<String> {
    for (id, chunks) in &mut ours.chunks {
        let Some(others) = theirs.chunks.get_mut(id) else { continue };
        let same: Vec<Coords> = chunks
            .iter()
            .filter(|(coords, change)| others.get(*coords).is_some_and(|other| is_same(change, other)))
            .map(|(coords, _)| coords.clone())
            .collect();
        for coords in same {
            chunks.remove(&coords);
            others.remove(&coords);
        }
    }
    ours.chunks.retain(|_, chunks| !chunks.is_empty());
    theirs.chunks.retain(|_, chunks| !chunks.is_empty());
    let created: HashMap<NodeId, &WrittenNode> = theirs.created.iter().map(|node| (node.id, node)).collect();
    // Nodes that theirs has moved by a deletion and a new node, with the ids of these.
    let is_new = |id: &NodeId| created.contains_key(id);
    let moved: HashMap<NodeId, NodeId> =
        ours.deleted.iter().filter_map(|node| Some((node.id, find_moved(node.id, is_new)?))).collect();
    let apart = moved_apart(ours, &moved);
    // Of a node that both moved, a chunk that one side lacks is one that it has deleted, or that
    // the other has added: nothing tells which.
    let moved: HashSet<NodeId> = moved.into_values().collect();
    let mut different = Vec::new();
    ours.created.retain(|node| {
        let Some(other) = created.get(&node.id) else { return true };
        let is_longer = moved.contains(&node.id) && theirs.chunks.contains_key(&node.id);
        if *other != node || ours.chunks.contains_key(&node.id) || is_longer {
            different.push(node.path.clone());
        }
        false
    });
    let is_same_deletion = |one: &DeletedNode, _: &DeletedNode| !apart.contains(&one.id);
    drop_common(&mut ours.deleted, &mut theirs.deleted, is_same_deletion, |node| node.id);
    drop_common(&mut ours.moved, &mut theirs.moved, |one, other| one.to == other.to, |moved| moved.node);
    let is_same_document = |one: &WrittenNode, other: &WrittenNode| one.zarr_json == other.zarr_json;
    drop_common(&mut ours.updated, &mut theirs.updated, is_same_document, |node| node.id);
    different
}

/// Returns the nodes deleted in `ours` that only one side has moved, or each side in another way,
/// by a deletion and a new node. `moved` has the ids of those that the other side has moved.
fn moved_apart(ours: &ChangeSet, moved: &HashMap<NodeId, NodeId>) -> HashSet<NodeId> {
    let own: HashSet<NodeId> = ours.created.iter().map(|node| node.id).collect();
    let is_apart = |node: &NodeId| find_moved(*node, |id| own.contains(id)) != moved.get(node).copied();
    ours.deleted.iter().map(|node| node.id).filter(is_apart).collect()
}

/// Drops from both lists the changes of a node that are the same.
fn drop_common<T>(ours: &mut Vec<T>, theirs: &mut Vec<T>, is_same: impl Fn(&T, &T) -> bool, id: impl Fn(&T) -> NodeId) {
    let others: HashMap<NodeId, &T> = theirs.iter().map(|change| (id(change), change)).collect();
    let common: HashSet<NodeId> = ours
        .iter()
        .filter(|change| others.get(&id(change)).is_some_and(|other| is_same(change, other)))
        .map(&id)
        .collect();
    ours.retain(|change| !common.contains(&id(change)));
    theirs.retain(|change| !common.contains(&id(change)));
}

fn is_same(one: &ChunkChange, other: &ChunkChange) -> bool {
    match (one, other) {
        (ChunkChange::Delete, ChunkChange::Delete) => true,
        (ChunkChange::Stored(one), ChunkChange::Stored(other)) => one == other,
        _ => false,
    }
}
