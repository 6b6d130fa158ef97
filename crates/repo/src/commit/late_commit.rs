//! Rebases changes onto a late commit: a commit of this mount that the store published after the
//! mount had discarded it and changed the tree further.
//!
//! The next change set contains the changes of the late commit, as they were then and changed
//! since. To commit it on top of the late commit, it is made relative to that commit, and not to
//! the base that both were made for. This causes no conflict, since both are the work of one mount,
//! and the rule is simple: whatever the late commit touched becomes what the mount shows. The
//! changes decide about the rest.
//!
//! Nodes are the same if their ids are. A mount that was started again gives other ids to the nodes
//! that it creates, and version 1 of the format has a new node for every move: a node that the late
//! commit created is taken for the node of the same kind that the changes have at its path. A node
//! that the late commit deleted and that shows again is created again, with the chunks that it had.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::changes::{ChangeSet, ChunkChange, DeletedNode, WrittenNode};
use super::references::References;
use crate::reader::Reader;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::{Node, Snapshot};
use icechunkfs_format::format::transaction_log::{Move, TransactionLog};
use icechunkfs_format::zarr::{Coords, is_in_grid};

/// Node as the mount shows it.
struct VisibleNode {
    node: WrittenNode,
    /// True if the changes create the node.
    is_created: bool,
}

/// Chunk changes of one array.
type Changed = BTreeMap<Coords, ChunkChange>;

/// Returns `changes`, which were made for the snapshot `before` a late commit, relative to the
/// snapshot `after` it. `log` is that of the commit; `reader` reads the manifests of both
/// snapshots.
pub(super) async fn rebase(
    changes: &ChangeSet,
    before: &Snapshot,
    after: &Snapshot,
    log: &TransactionLog,
    reader: &Arc<Reader>,
) -> Result<ChangeSet> {
    let shown = shown(changes, before);
    let made = log.made()?;
    let nodes_after: HashMap<NodeId, Node<'_>> = after.nodes().map(|node| (node.id, node)).collect();
    let same = same_nodes(&shown, &nodes_after, &made);
    let mut meter = Meter::new("the chunks of a transaction log");
    let mut touched: HashMap<NodeId, BTreeSet<Coords>> = HashMap::new();
    for (id, chunks) in log.updated_chunks() {
        let known = touched.entry(id).or_default();
        for chunk in chunks {
            known.insert(chunk.kept(&mut meter)?);
        }
    }
    let in_both = (References::new(before, reader, |_| true), References::new(after, reader, |_| true));

    let mut out = ChangeSet::default();
    for visible in &shown {
        let node = &visible.node;
        let ours = changes.chunks.get(&node.id);
        let Some(there) = same.get(&node.id).and_then(|id| nodes_after.get(id)) else {
            make(visible, ours, &in_both.0, &mut out).await?;
            continue;
        };
        if there.path != node.path {
            let from = there.path.to_owned();
            let to = node.path.clone();
            out.moved.push(Move { from, to, node: there.id, is_array: node.is_array });
        }
        if there.zarr_json != node.zarr_json {
            out.updated.push(WrittenNode { id: there.id, ..node.clone() });
        }
        let mut touched = touched.remove(&there.id).unwrap_or_default();
        if made.contains(&there.id) && node.is_array {
            // A created array may have the chunks of one that was moved.
            touched.extend(in_both.1.all(there.id).await?.into_iter().map(|(coords, _)| coords));
        }
        let chunks = chunks(visible, there.id, ours, touched, &in_both).await?;
        if !chunks.is_empty() {
            out.chunks.insert(there.id, chunks);
        }
    }
    let kept: HashSet<&NodeId> = same.values().collect();
    let unwanted: HashSet<NodeId> = changes.deleted.iter().map(|node| node.id).chain(made.iter().copied()).collect();
    let deleted = nodes_after.values().filter(|node| unwanted.contains(&node.id) && !kept.contains(&node.id));
    out.deleted.extend(deleted.map(|node| DeletedNode {
        id: node.id,
        path: node.path.to_owned(),
        is_array: node.is_array(),
    }));
    Ok(out)
}

/// Returns all nodes that the mount shows.
fn shown(changes: &ChangeSet, before: &Snapshot) -> Vec<VisibleNode> {
    let deleted = changes.deleted_ids();
    let moved = changes.moved_to();
    let updated: HashMap<NodeId, &Bytes> = changes.updated.iter().map(|node| (node.id, &node.zarr_json)).collect();
    let kept = before.nodes().filter(|node| !deleted.contains(&node.id)).map(|node| WrittenNode {
        id: node.id,
        path: moved.get(&node.id).map_or(node.path, |to| *to).to_owned(),
        zarr_json: match updated.get(&node.id) {
            Some(bytes) => (*bytes).clone(),
            None => Bytes::copy_from_slice(node.zarr_json),
        },
        is_array: node.is_array(),
    });
    let kept = kept.map(|node| VisibleNode { node, is_created: false });
    let created = changes.created.iter().map(|node| VisibleNode { node: node.clone(), is_created: true });
    kept.chain(created).collect()
}

/// Creates a node that the late commit does not have, with all of its chunks.
async fn make(
    VisibleNode { node, is_created }: &VisibleNode,
    ours: Option<&Changed>,
    before: &References<'_>,
    out: &mut ChangeSet,
) -> Result<()> {
    let id = if *is_created { node.id } else { NodeId::random()? };
    out.created.push(WrittenNode { id, ..node.clone() });
    let mut chunks = Changed::new();
    if !is_created {
        let stored = before.all(node.id).await?.into_iter();
        chunks.extend(stored.map(|(coords, payload)| (coords, ChunkChange::Stored(payload))));
    }
    chunks.extend(ours.into_iter().flatten().map(|(coords, change)| (coords.clone(), change.clone())));
    chunks.retain(|_, change| !matches!(change, ChunkChange::Delete));
    if !chunks.is_empty() {
        let grid = node.grid()?;
        chunks.retain(|coords, _| is_in_grid(coords, &grid));
        out.chunks.insert(id, chunks);
    }
    Ok(())
}

/// Returns the id in `after` of each of the nodes `shown` that is there. `made` holds the nodes
/// that the late commit created.
fn same_nodes(
    shown: &[VisibleNode],
    after: &HashMap<NodeId, Node<'_>>,
    made: &HashSet<NodeId>,
) -> HashMap<NodeId, NodeId> {
    let (known, unknown): (Vec<_>, Vec<_>) =
        shown.iter().map(|visible| &visible.node).partition(|node| after.contains_key(&node.id));
    let mut same: HashMap<NodeId, NodeId> = known.into_iter().map(|node| (node.id, node.id)).collect();
    let made = after.values().filter(|node| made.contains(&node.id) && !same.contains_key(&node.id));
    let by_path: HashMap<&str, &Node<'_>> = made.map(|node| (node.path, node)).collect();
    let other_ids = unknown.into_iter().filter_map(|node| {
        let there = by_path.get(node.path.as_str()).filter(|there| there.is_array() == node.is_array)?;
        Some((node.id, there.id))
    });
    same.extend(other_ids);
    same
}

/// Returns the changes that give `node`, whose id after the late commit is `there`, the chunks that
/// the mount shows. Only chunks in `ours`, or `touched` by that commit, can differ.
async fn chunks(
    VisibleNode { node, is_created }: &VisibleNode,
    there: NodeId,
    ours: Option<&Changed>,
    mut touched: BTreeSet<Coords>,
    (before, after): &(References<'_>, References<'_>),
) -> Result<Changed> {
    touched.extend(ours.into_iter().flat_map(BTreeMap::keys).cloned());
    let mut chunks = Changed::new();
    if touched.is_empty() {
        return Ok(chunks);
    }
    let grid = node.grid()?;
    for coords in touched.into_iter().filter(|coords| is_in_grid(coords, &grid)) {
        let wanted: Option<ChunkChange> = match ours.and_then(|ours| ours.get(&coords)) {
            Some(ChunkChange::Delete) => None,
            Some(change) => Some(change.clone()),
            None if *is_created => None,
            None => before.find(node.id, &coords).await?.map(ChunkChange::Stored),
        };
        let present: Option<ChunkPayload> = after.find(there, &coords).await?;
        match (wanted, present) {
            (Some(ChunkChange::Stored(wanted)), Some(present)) if wanted == present => {}
            (Some(change), _) => drop(chunks.insert(coords, change)),
            (None, Some(_)) => drop(chunks.insert(coords, ChunkChange::Delete)),
            (None, None) => {}
        }
    }
    Ok(chunks)
}
