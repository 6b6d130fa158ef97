//! Reads `$ROOT/transactions/ID`: the nodes and chunks that one commit changed (spec, "Transaction Log Files").
//!
//! A log can name tens of millions of chunks, so it is read in place.

use std::collections::BTreeSet;

use super::envelope::{self, FileType};
use super::generated::icechunk as fb;
use super::ids::{NodeId, ObjectId};
use super::verified::VerifiedFlatbuffer;
use crate::error::{Error, Result};

/// Decoded transaction log.
#[derive(Debug)]
pub struct TransactionLog {
    pub(crate) buffer: VerifiedFlatbuffer<fb::TransactionLog<'static>>,
}

/// Kind of change to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// Groups created.
    NewGroups,
    /// Arrays created.
    NewArrays,
    /// Groups deleted.
    DeletedGroups,
    /// Arrays deleted.
    DeletedArrays,
    /// Groups whose `zarr.json` changed.
    UpdatedGroups,
    /// Arrays whose `zarr.json` changed.
    UpdatedArrays,
}

/// Node that a commit moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Path in the parent snapshot.
    pub from: String,
    /// Path in this snapshot.
    pub to: String,
    /// Id of the node, which the move keeps.
    pub node: NodeId,
    /// True for an array, false for a group.
    pub is_array: bool,
}

/// Nodes that several logs name, by kind of change.
#[derive(Clone, Debug, Default)]
pub struct ChangedNodes {
    /// Groups created.
    pub new_groups: BTreeSet<NodeId>,
    /// Arrays created.
    pub new_arrays: BTreeSet<NodeId>,
    /// Groups deleted.
    pub deleted_groups: BTreeSet<NodeId>,
    /// Arrays deleted.
    pub deleted_arrays: BTreeSet<NodeId>,
    /// Groups whose `zarr.json` was written.
    pub updated_groups: BTreeSet<NodeId>,
    /// Arrays whose `zarr.json` was written.
    pub updated_arrays: BTreeSet<NodeId>,
}

impl ChangedNodes {
    /// Adds the nodes that `log` names.
    pub fn add(&mut self, log: &TransactionLog) {
        self.new_groups.extend(log.nodes(NodeChange::NewGroups));
        self.new_arrays.extend(log.nodes(NodeChange::NewArrays));
        self.deleted_groups.extend(log.nodes(NodeChange::DeletedGroups));
        self.deleted_arrays.extend(log.nodes(NodeChange::DeletedArrays));
        self.updated_groups.extend(log.nodes(NodeChange::UpdatedGroups));
        self.updated_arrays.extend(log.nodes(NodeChange::UpdatedArrays));
    }
}

impl TransactionLog {
    /// Decodes a transaction log whose payload may take `limit` bytes of memory.
    pub fn decode(file: &[u8], limit: u64) -> Result<Self> {
        let (_, payload) = envelope::decode(file, FileType::TransactionLog, limit)?;
        Ok(TransactionLog { buffer: VerifiedFlatbuffer::new(payload)? })
    }

    /// Returns the id of the snapshot that the log belongs to.
    pub fn id(&self) -> ObjectId {
        ObjectId::from(self.buffer.root().id())
    }

    /// Returns the nodes with this change, sorted by id.
    pub fn nodes(&self, change: NodeChange) -> impl Iterator<Item = NodeId> + '_ {
        let root = self.buffer.root();
        let list = match change {
            NodeChange::NewGroups => root.new_groups(),
            NodeChange::NewArrays => root.new_arrays(),
            NodeChange::DeletedGroups => root.deleted_groups(),
            NodeChange::DeletedArrays => root.deleted_arrays(),
            NodeChange::UpdatedGroups => root.updated_groups(),
            NodeChange::UpdatedArrays => root.updated_arrays(),
        };
        list.iter().map(NodeId::from)
    }

    /// Returns the arrays whose chunks were written or deleted, with the coordinates of those chunks.
    pub fn updated_chunks(&self) -> impl Iterator<Item = (NodeId, impl Iterator<Item = Vec<u32>> + '_)> + '_ {
        self.buffer.root().updated_chunks().iter().map(|array| {
            let chunks = array.chunks();
            (NodeId::from(array.node_id()), chunks.iter().map(|chunk| chunk.coords().iter().collect()))
        })
    }

    /// Returns the moved nodes. Fails if a move lacks a member: all are required, though the schema does not state it.
    pub fn moves(&self) -> Result<Vec<Move>> {
        let moves = self.buffer.root().moved_nodes();
        moves
            .iter()
            .flatten()
            .map(|stored| match (stored.from(), stored.to(), stored.node_id()) {
                (Some(from), Some(to), Some(node)) => Ok(Move {
                    from: from.to_owned(),
                    to: to.to_owned(),
                    node: NodeId::from(node),
                    is_array: stored.node_type() == fb::NodeType::Array,
                }),
                _ => Err(Error::corrupt(format!("transaction log {}: a move lacks a member", self.id()))),
            })
            .collect()
    }
}
