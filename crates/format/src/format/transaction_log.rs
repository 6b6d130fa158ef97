//! Reads `$ROOT/transactions/ID`: the nodes and chunks that one commit changed (spec, "Transaction
//! Log Files").
//!
//! A log can name tens of millions of chunks, so it is read in place. Code that keeps what it names
//! counts that with a [`Meter`].

use std::collections::HashSet;

use super::envelope::{self, FileType};
use super::generated::icechunk as fb;
use super::ids::{NodeId, ObjectId};
use super::unknown;
use super::verified::VerifiedFlatbuffer;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::{Meter, Metered};

/// Bytes that a node takes in a set or a map.
pub const NODE_BYTES: u64 = 64;
/// Bytes that a chunk takes in a set or a map, besides its coordinates if they are many.
const CHUNK_BYTES: u64 = 128;

/// Decoded transaction log.
#[derive(Debug)]
pub struct TransactionLog {
    pub(super) buffer: VerifiedFlatbuffer<fb::TransactionLog<'static>>,
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

/// Chunk that a commit wrote or deleted, by its coordinates.
#[derive(Clone, Copy, Debug)]
pub struct LoggedChunk<'a>(flatbuffers::Vector<'a, u32>);

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

    /// Returns true if the file has the identifier of Icechunk's files.
    pub fn has_identifier(&self) -> bool {
        self.buffer.has_identifier()
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
    pub fn made(&self) -> Result<Metered<HashSet<NodeId>>> {
        self.either(NodeChange::NewGroups, NodeChange::NewArrays)
    }

    /// Returns the deleted nodes.
    pub fn deleted(&self) -> Result<Metered<HashSet<NodeId>>> {
        self.either(NodeChange::DeletedGroups, NodeChange::DeletedArrays)
    }

    fn either(&self, one: NodeChange, other: NodeChange) -> Result<Metered<HashSet<NodeId>>> {
        let mut nodes = HashSet::new();
        let mut meter = Meter::new("the nodes of a transaction log");
        for node in self.nodes(one).chain(self.nodes(other)) {
            meter.count(NODE_BYTES)?;
            nodes.insert(node);
        }
        Ok(meter.finish(nodes))
    }

    /// Returns all changed nodes with their changes.
    pub fn changed_nodes(&self) -> impl Iterator<Item = (NodeChange, NodeId)> + '_ {
        NodeChange::ALL.into_iter().flat_map(|change| self.nodes(change).map(move |node| (change, node)))
    }

    /// Returns the arrays whose chunks were written or deleted, with those chunks.
    pub fn updated_chunks(&self) -> impl Iterator<Item = (NodeId, impl Iterator<Item = LoggedChunk<'_>>)> {
        self.buffer.root().updated_chunks().iter().map(|array| {
            let chunks = array.chunks().iter().map(|chunk| LoggedChunk(chunk.coords()));
            (NodeId::from(array.node_id()), chunks)
        })
    }

    /// Returns true if the log names moved nodes.
    pub fn has_moves(&self) -> bool {
        self.buffer.root().moved_nodes().is_some_and(|moves| !moves.is_empty())
    }

    /// Returns the moved nodes. Fails if a move lacks a member: all are required, though the schema
    /// does not state it.
    pub fn moves(&self) -> Result<Metered<Vec<Move>>> {
        let mut moves = Vec::new();
        let mut meter = Meter::new("the moves of a transaction log");
        for stored in self.buffer.root().moved_nodes().into_iter().flatten() {
            let (Some(from), Some(to), Some(node)) = (stored.from(), stored.to(), stored.node_id()) else {
                return Err(Error::corrupt(format!("transaction log {}: a move does not have a member", self.id())));
            };
            // Each is also looked up by its paths.
            meter.count_items::<Move>(2)?;
            meter.count(2 * (from.len() + to.len()) as u64)?;
            moves.push(Move {
                from: from.to_owned(),
                to: to.to_owned(),
                node: NodeId::from(node),
                is_array: stored.node_type() == fb::NodeType::Array,
            });
        }
        Ok(meter.finish(moves))
    }
}

impl LoggedChunk<'_> {
    /// Returns the coordinates, in a set of those that `meter` counts.
    pub fn kept<C: FromIterator<u32>>(self, meter: &mut Meter) -> Result<C> {
        meter.count(CHUNK_BYTES + 4 * self.0.len() as u64)?;
        Ok(self.coords().collect())
    }

    /// Returns the coordinates, one by one.
    pub fn coords(self) -> impl ExactSizeIterator<Item = u32> {
        self.0.iter()
    }
}
