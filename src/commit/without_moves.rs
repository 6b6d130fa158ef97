//! A change set said without moves, for version 1 of the format, which has none.
//!
//! A moved node is deleted, and one with a new id created at its new path; the new array takes over the chunk references of
//! the old one, which is why its manifests have to be written anew.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::changes::{ChangeSet, DeletedNode, WrittenNode};
use super::nodes::Sources;
use crate::error::{Error, Result};
use crate::format::ids::NodeId;
use crate::format::snapshot::{NodeData, Snapshot};

/// `changes`, made for `base`, without moves, and from which node each new one takes its chunks.
pub(super) fn without_moves(base: &Snapshot, changes: &ChangeSet) -> Result<(ChangeSet, Sources)> {
    let mut out = changes.clone();
    let mut sources = Sources::new();
    let mut new_ids: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    for moved in std::mem::take(&mut out.moved) {
        new_ids.insert(moved.node, NodeId::random()?);
        let updated = out.updated.iter().position(|node| node.id == moved.node).map(|at| out.updated.swap_remove(at));
        let stored = || base.nodes().find(|node| node.id == moved.node);
        let zarr_json = match updated {
            Some(written) => written.zarr_json,
            None => stored().map(|node| Bytes::copy_from_slice(node.zarr_json)).ok_or_else(|| missing(&moved.from))?,
        };
        let is_array = stored().is_some_and(|node| matches!(node.data, NodeData::Array(_)));
        let Some(&id) = new_ids.get(&moved.node) else { continue };
        out.deleted.push(DeletedNode { id: moved.node, path: moved.from, is_array });
        out.created.push(WrittenNode { id, path: moved.to, zarr_json, is_array });
        if is_array {
            sources.insert(id, moved.node);
        }
    }
    out.chunks = std::mem::take(&mut out.chunks)
        .into_iter()
        .map(|(id, chunks)| (new_ids.get(&id).copied().unwrap_or(id), chunks))
        .collect();
    Ok((out, sources))
}

fn missing(path: &str) -> Error {
    Error::invalid(format!("{path} was moved, but is not in the snapshot that the changes are based on"))
}
