//! A change set said without moves, for version 1 of the format, which has none.
//!
//! A moved node is deleted, and one with a new id created at its new path; the new array takes over the chunk references of
//! the old one, which is why its manifests have to be written anew.

use std::collections::HashMap;

use bytes::Bytes;

use super::changes::{ChangeSet, DeletedNode, WrittenNode};
use super::nodes::Sources;
use crate::error::{Error, Result};
use crate::format::ids::NodeId;
use crate::format::snapshot::{Node, NodeData, Snapshot};

/// `changes`, made for `base`, without moves, and from which node each new one takes its chunks.
pub(super) fn without_moves(base: &Snapshot, changes: &ChangeSet) -> Result<(ChangeSet, Sources)> {
    let mut out = changes.clone();
    let mut sources = Sources::new();
    let mut new_ids: HashMap<NodeId, NodeId> = HashMap::new();
    let mut updated: HashMap<NodeId, Bytes> =
        std::mem::take(&mut out.updated).into_iter().map(|node| (node.id, node.zarr_json)).collect();
    let stored: HashMap<NodeId, Node<'_>> = base.nodes().map(|node| (node.id, node)).collect();
    for moved in std::mem::take(&mut out.moved) {
        let node = stored.get(&moved.node).ok_or_else(|| missing(&moved.from))?;
        let zarr_json = updated.remove(&moved.node).unwrap_or_else(|| Bytes::copy_from_slice(node.zarr_json));
        let is_array = matches!(node.data, NodeData::Array(_));
        let id = NodeId::random()?;
        new_ids.insert(moved.node, id);
        out.deleted.push(DeletedNode { id: moved.node, path: moved.from, is_array });
        out.created.push(WrittenNode { id, path: moved.to, zarr_json, is_array });
        if is_array {
            sources.insert(id, moved.node);
        }
    }
    out.updated = changes.updated.iter().filter(|node| updated.contains_key(&node.id)).cloned().collect();
    out.chunks = std::mem::take(&mut out.chunks)
        .into_iter()
        .map(|(id, chunks)| (new_ids.get(&id).copied().unwrap_or(id), chunks))
        .collect();
    Ok((out, sources))
}

fn missing(path: &str) -> Error {
    Error::invalid(format!("{path} was moved, but is not in the snapshot that the changes are based on"))
}
