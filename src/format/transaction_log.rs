//! Reads `$ROOT/transactions/ID`: the nodes and chunks that one commit changed (spec, "Transaction Log Files").
//!
//! A log can name tens of millions of chunks, so it is read in place.

use std::collections::HashSet;

use super::envelope::{self, FileType};
use super::generated::icechunk as fb;
use super::ids::{NodeId, ObjectId};
use super::unknown;
use super::verified::VerifiedFlatbuffer;
use crate::error::{Error, Result};

/// Decoded transaction log.
#[derive(Debug)]
pub struct TransactionLog {
    pub(crate) buffer: VerifiedFlatbuffer<fb::TransactionLog<'static>>,
}

/// Kind of change to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

impl NodeChange {
    /// All kinds, in the order of the format's lists.
    pub const ALL: [NodeChange; 6] = [
        NodeChange::NewGroups,
        NodeChange::NewArrays,
        NodeChange::DeletedGroups,
        NodeChange::DeletedArrays,
        NodeChange::UpdatedGroups,
        NodeChange::UpdatedArrays,
    ];

    /// Returns the kind of the creation of an array or a group.
    pub fn creation(is_array: bool) -> Self {
        if is_array { NodeChange::NewArrays } else { NodeChange::NewGroups }
    }

    /// Returns the kind of the deletion of an array or a group.
    pub fn deletion(is_array: bool) -> Self {
        if is_array { NodeChange::DeletedArrays } else { NodeChange::DeletedGroups }
    }

    /// Returns the kind of a change to the `zarr.json` of an array or a group.
    pub fn update(is_array: bool) -> Self {
        if is_array { NodeChange::UpdatedArrays } else { NodeChange::UpdatedGroups }
    }

    /// Returns true for a creation.
    pub fn is_creation(self) -> bool {
        matches!(self, NodeChange::NewGroups | NodeChange::NewArrays)
    }

    /// Returns true for a deletion.
    pub fn is_deletion(self) -> bool {
        matches!(self, NodeChange::DeletedGroups | NodeChange::DeletedArrays)
    }

    /// Returns true for a change of `zarr.json`.
    pub fn is_update(self) -> bool {
        matches!(self, NodeChange::UpdatedGroups | NodeChange::UpdatedArrays)
    }

    /// Returns true for a change of an array.
    pub fn is_array(self) -> bool {
        matches!(self, NodeChange::NewArrays | NodeChange::DeletedArrays | NodeChange::UpdatedArrays)
    }
}

impl TransactionLog {
    /// Decodes a transaction log whose payload may take `limit` bytes of memory.
    pub fn decode(file: &[u8], limit: u64) -> Result<Self> {
        let (_, payload) = envelope::decode(file, FileType::TransactionLog, limit)?;
        Ok(TransactionLog { buffer: VerifiedFlatbuffer::new(payload)? })
    }

    /// Fails if the log has members that its net changes together with other logs would lose.
    pub fn check_known(&self) -> Result<()> {
        if unknown::is_in_log(self.buffer.root()) {
            return Err(unknown::would_lose_members(format!("transaction log {}", self.id())));
        }
        Ok(())
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

    /// Returns the new nodes.
    pub fn made(&self) -> HashSet<NodeId> {
        self.nodes(NodeChange::NewGroups).chain(self.nodes(NodeChange::NewArrays)).collect()
    }

    /// Returns all changed nodes with their changes.
    pub fn changed_nodes(&self) -> impl Iterator<Item = (NodeChange, NodeId)> + '_ {
        NodeChange::ALL.into_iter().flat_map(|change| self.nodes(change).map(move |node| (change, node)))
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
