//! Replaces moves that the repository cannot store: version 1 of the format has none, version 2
//! does not allow all of them ([`super::moves`]).
//!
//! A moved node is deleted, and a node with a new id is created at its new path. The new array
//! takes over the chunk references of the old one, which is why its manifests have to be written
//! again.
//!
//! Only the stored files use this form. Conflicts are detected in the change set with its moves: a
//! node that a concurrent commit deleted or moved must not be mistaken for one that both sides
//! deleted, and chunks that the commit wrote into it belong to the moved array.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::changes::{ChangeSet, DeletedNode, WrittenNode};
use super::nodes::Sources;
use super::upload::StoredChunks;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::{Node, Snapshot};

/// Change set as the repository's version can store it.
pub(super) struct StorableChanges<'a> {
    /// The changes. Their `chunks` are empty if moves were replaced.
    pub(super) changes: Cow<'a, ChangeSet>,
    /// Node that each new array takes its chunks from.
    pub(super) sources: Sources,
    pub(super) chunks: Cow<'a, StoredChunks>,
}

/// Replaces in `changes`, made for `base`, and in the `chunks` that are stored for them the moves
/// of the nodes in `new_ids`. Returns both as they are if there are none.
pub(super) fn without_moves<'a>(
    base: &Snapshot,
    changes: &'a ChangeSet,
    chunks: &'a StoredChunks,
    new_ids: &BTreeMap<NodeId, NodeId>,
) -> Result<StorableChanges<'a>> {
    if new_ids.is_empty() {
        let changes = Cow::Borrowed(changes);
        let chunks = Cow::Borrowed(chunks);
        return Ok(StorableChanges { changes, sources: Sources::new(), chunks });
    }
    let mut out = ChangeSet {
        deleted: changes.deleted.clone(),
        created: changes.created.clone(),
        updated: Vec::new(),
        moved: Vec::new(),
        chunks: BTreeMap::new(),
    };
    let mut sources = Sources::new();
    let mut updated: HashMap<NodeId, &Bytes> = changes.updated.iter().map(|node| (node.id, &node.zarr_json)).collect();
    let stored: HashMap<NodeId, Node<'_>> = base.nodes().map(|node| (node.id, node)).collect();
    for moved in &changes.moved {
        let Some(&id) = new_ids.get(&moved.node) else {
            out.moved.push(moved.clone());
            continue;
        };
        let missing = || Error::invalid(format!("{} was moved, but is not in snapshot {}", moved.from, base.id()));
        let node = stored.get(&moved.node).ok_or_else(missing)?;
        let zarr_json = updated.remove(&moved.node).cloned();
        let zarr_json = zarr_json.unwrap_or_else(|| Bytes::copy_from_slice(node.zarr_json));
        let is_array = node.is_array();
        out.deleted.push(DeletedNode { id: moved.node, path: moved.from.clone(), is_array });
        out.created.push(WrittenNode { id, path: moved.to.clone(), zarr_json, is_array });
        if is_array {
            sources.insert(id, moved.node);
        }
    }
    out.updated = changes.updated.iter().filter(|node| updated.contains_key(&node.id)).cloned().collect();
    let chunks = chunks.iter().map(|(id, chunks)| (new_ids.get(id).copied().unwrap_or(*id), chunks.clone())).collect();
    Ok(StorableChanges { changes: Cow::Owned(out), sources, chunks: Cow::Owned(chunks) })
}
