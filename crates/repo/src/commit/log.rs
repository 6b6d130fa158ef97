//! The transaction log of a commit: the nodes and chunks that it touched.

use std::collections::{BTreeMap, BTreeSet};

use super::changes::ChangeSet;
use super::upload::StoredChunks;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::draft::TransactionLogDraft;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::transaction_log::{Move, NODE_BYTES, NodeChange, TransactionLog};
use icechunkfs_format::zarr::Coords;

/// Returns the log of `changes`, whose chunks are `chunks`.
pub(super) fn of(changes: &ChangeSet, chunks: &StoredChunks) -> TransactionLogDraft {
    let mut log = TransactionLogDraft::default();
    log.nodes.extend(changes.updated.iter().map(|node| (node.id, NodeChange::update(node.is_array))));
    log.nodes.extend(changes.deleted.iter().map(|node| (node.id, NodeChange::deletion(node.is_array))));
    log.nodes.extend(changes.created.iter().map(|node| (node.id, NodeChange::creation(node.is_array))));
    log.moves.clone_from(&changes.moved);
    let changed = chunks.iter().filter(|(_, list)| !list.is_empty());
    log.updated_chunks =
        changed.map(|(node, list)| (*node, list.iter().map(|(coords, _)| coords.to_vec()).collect())).collect();
    log
}

/// Returns the log of a commit that replaces the one with log `previous`: the net changes of both.
pub(super) fn amended(previous: &TransactionLog, log: TransactionLogDraft) -> Result<TransactionLogDraft> {
    let mut net = NetLog::new();
    net.add(previous)?;
    let nodes: Vec<(NodeChange, NodeId)> = log.nodes.iter().map(|(node, change)| (*change, *node)).collect();
    net.add_parts(&nodes, log.updated_chunks, log.moves);
    Ok(net.finish())
}

/// Net changes of consecutive commits, as one log has them: each node is in one list at most. The
/// reference implementation's amend makes the union of both logs instead, so that logs that are
/// read can have a node in several lists.
#[derive(Debug)]
pub(super) struct NetLog {
    nodes: BTreeMap<NodeId, NodeChange>,
    chunks: BTreeMap<NodeId, BTreeSet<Coords>>,
    moves: Vec<Move>,
    memory: Meter,
}

impl NetLog {
    /// Creates the net changes of no commits.
    pub(super) fn new() -> Self {
        let memory = Meter::new("the changes of commits");
        NetLog { nodes: BTreeMap::new(), chunks: BTreeMap::new(), moves: Vec::new(), memory }
    }

    /// Adds the log of the next commit; the oldest commit comes first.
    pub(super) fn add(&mut self, log: &TransactionLog) -> Result<()> {
        log.check_known()?;
        let mut nodes = Vec::new();
        for changed in log.changed_nodes() {
            // It is in this list, in one of the sets, and in the result.
            self.memory.count(3 * NODE_BYTES)?;
            nodes.push(changed);
        }
        let deleted = self.add_nodes(&nodes);
        for (node, chunks) in log.updated_chunks().filter(|(node, _)| !deleted.contains(node)) {
            self.memory.count(NODE_BYTES)?;
            let known = self.chunks.entry(node).or_default();
            for chunk in chunks {
                known.insert(chunk.kept(&mut self.memory)?);
            }
        }
        let moves = self.memory.add(log.moves()?);
        self.moves.extend(moves.into_iter().filter(|moved| !deleted.contains(&moved.node)));
        Ok(())
    }

    /// Adds the parts of a log that this program has made.
    fn add_parts(&mut self, nodes: &[(NodeChange, NodeId)], chunks: Vec<(NodeId, Vec<Vec<u32>>)>, moves: Vec<Move>) {
        let deleted = self.add_nodes(nodes);
        for (node, coords) in chunks.into_iter().filter(|(node, _)| !deleted.contains(node)) {
            self.chunks.entry(node).or_default().extend(coords.into_iter().map(Coords::from_vec));
        }
        self.moves.extend(moves.into_iter().filter(|moved| !deleted.contains(&moved.node)));
    }

    /// Adds the changed nodes of the next commit. Returns those that it deleted, of which the rest
    /// of its log does not count.
    fn add_nodes(&mut self, nodes: &[(NodeChange, NodeId)]) -> BTreeSet<NodeId> {
        let of_kind = |is_kind: fn(NodeChange) -> bool| -> BTreeSet<NodeId> {
            nodes.iter().filter(|(change, _)| is_kind(*change)).map(|(_, node)| *node).collect()
        };
        let created = of_kind(NodeChange::is_creation);
        let deleted = of_kind(NodeChange::is_deletion);
        for (change, node) in nodes {
            // A node in both lists was created by an amended commit, and deleted by the commit that
            // amends it.
            let is_gone = created.contains(node) && deleted.contains(node);
            let is_superseded = !change.is_deletion() && deleted.contains(node);
            let is_part_of_creation = change.is_update() && created.contains(node);
            if !(is_gone || is_superseded || is_part_of_creation) {
                self.record(*node, *change);
            }
        }
        deleted
    }

    fn record(&mut self, node: NodeId, change: NodeChange) {
        let before = self.nodes.get(&node).copied();
        if change.is_deletion() {
            self.chunks.remove(&node);
            self.moves.retain(|moved| moved.node != node);
        }
        let net = match before {
            Some(before) if before.is_creation() && change.is_deletion() => None,
            Some(before) if before.is_creation() => Some(before),
            // A restored node has the id that it had.
            Some(before) if change.is_creation() => Some(NodeChange::update(before.is_array())),
            _ => Some(change),
        };
        match net {
            Some(net) => drop(self.nodes.insert(node, net)),
            None => drop(self.nodes.remove(&node)),
        }
    }

    pub(super) fn finish(self) -> TransactionLogDraft {
        let is_new = |node: &NodeId| self.nodes.get(node).is_some_and(|change| change.is_creation());
        let chunks = |coords: BTreeSet<Coords>| coords.into_iter().map(Coords::into_vec).collect();
        // A new node has no path in the parent that it could have been moved from.
        let moves = merge_moves(self.moves.into_iter().filter(|moved| !is_new(&moved.node)));
        TransactionLogDraft {
            updated_chunks: self.chunks.into_iter().map(|(node, coords)| (node, chunks(coords))).collect(),
            nodes: self.nodes,
            moves,
        }
    }
}

/// Union of the logs of consecutive commits: everything that they touched.
#[derive(Debug)]
pub struct LogUnion {
    /// Nodes that were created, deleted or updated.
    pub nodes: BTreeSet<(NodeChange, NodeId)>,
    /// Chunks written or deleted.
    pub chunks: BTreeMap<NodeId, BTreeSet<Coords>>,
    /// Moves, in order.
    pub moves: Vec<Move>,
    memory: Meter,
}

impl Default for LogUnion {
    fn default() -> Self {
        let memory = Meter::new("the changes of commits");
        LogUnion { nodes: BTreeSet::new(), chunks: BTreeMap::new(), moves: Vec::new(), memory }
    }
}

impl LogUnion {
    /// Adds the log of the next commit; the oldest commit comes first.
    pub fn add(&mut self, log: &TransactionLog) -> Result<()> {
        let memory = &mut self.memory;
        for changed in log.changed_nodes() {
            memory.count(NODE_BYTES)?;
            self.nodes.insert(changed);
        }
        for (node, chunks) in log.updated_chunks() {
            memory.count(NODE_BYTES)?;
            let known = self.chunks.entry(node).or_default();
            for chunk in chunks {
                known.insert(chunk.kept(memory)?);
            }
        }
        self.moves.extend(memory.add(log.moves()?));
        Ok(())
    }
}

/// Merges consecutive moves, by node: each node moves from its path before the first to its path
/// after the last, or not at all if those are equal.
pub(super) fn merge_moves(moves: impl IntoIterator<Item = Move>) -> Vec<Move> {
    let mut merged: BTreeMap<NodeId, Move> = BTreeMap::new();
    for later in moves {
        match merged.get_mut(&later.node) {
            Some(earlier) => earlier.to = later.to,
            None => drop(merged.insert(later.node, later)),
        }
    }
    merged.into_values().filter(|m| m.from != m.to).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_format::format::envelope::{Compression, SpecVersion};
    use icechunkfs_format::format::testing::{id, node_id};

    use NodeChange::{DeletedArrays as Deleted, NewArrays as New, UpdatedArrays as Updated};

    fn draft(nodes: &[(u8, NodeChange)], chunks: &[(u8, u32)], moves: &[(u8, &str, &str)]) -> TransactionLogDraft {
        TransactionLogDraft {
            nodes: nodes.iter().map(|(n, change)| (node_id(*n), *change)).collect(),
            updated_chunks: chunks.iter().map(|(n, at)| (node_id(*n), vec![vec![*at]])).collect(),
            moves: moves.iter().map(|(n, from, to)| moved(*n, from, to)).collect(),
        }
    }

    fn moved(n: u8, from: &str, to: &str) -> Move {
        Move { from: from.into(), to: to.into(), node: node_id(n), is_array: true }
    }

    fn net(logs: impl IntoIterator<Item = TransactionLogDraft>) -> TransactionLogDraft {
        let mut net = NetLog::new();
        for log in logs {
            let file = log.encode(id(1), SpecVersion::V2, Compression::default()).unwrap();
            net.add(&TransactionLog::decode(&file, 1 << 20).unwrap()).unwrap();
        }
        net.finish()
    }

    #[test]
    fn a_node_is_in_one_list_of_the_net_changes() {
        let cases: [(&[NodeChange], Option<NodeChange>); 9] = [
            (&[New, Updated], Some(New)),
            (&[New, Updated, Deleted], None),
            (&[Updated, Updated], Some(Updated)),
            (&[Updated, Deleted], Some(Deleted)),
            (&[Deleted, New], Some(Updated)),
            (&[Deleted, New, Updated], Some(Updated)),
            (&[Deleted, New, Deleted], Some(Deleted)),
            (&[New, Deleted, New], Some(New)),
            (&[New], Some(New)),
        ];
        for (changes, expected) in cases {
            let found = net(changes.iter().map(|change| draft(&[(1, *change)], &[], &[])));
            assert_eq!(found.nodes.get(&node_id(1)).copied(), expected, "{changes:?}");
        }
    }

    #[test]
    fn chunks_and_moves_of_deleted_nodes_are_not_among_the_net_changes() {
        let created = draft(&[(1, New), (2, New)], &[(1, 0), (2, 0)], &[(3, "/x", "/y"), (4, "/p", "/q")]);
        let changed = draft(&[(3, Updated)], &[(2, 1), (3, 1)], &[(2, "/b", "/c"), (3, "/y", "/z")]);
        let deleted = draft(&[(1, Deleted), (4, Deleted)], &[], &[]);
        let expected = TransactionLogDraft {
            nodes: [(node_id(2), New), (node_id(3), Updated), (node_id(4), Deleted)].into(),
            updated_chunks: vec![(node_id(2), vec![vec![0], vec![1]]), (node_id(3), vec![vec![1]])],
            moves: vec![moved(3, "/x", "/z")],
        };
        assert_eq!(net([created, changed, deleted]), expected);
    }

    #[test]
    fn a_log_with_a_node_in_several_lists_counts_as_its_net_changes() {
        // As amends of the reference implementation are: the union of two logs.
        let mut read = NetLog::new();
        let nodes = [(1, New), (1, Updated), (2, New), (2, Deleted), (3, Updated), (3, Deleted)];
        let nodes = nodes.map(|(n, change)| (change, node_id(n)));
        let chunks = [(1, 5), (2, 5), (3, 5)].map(|(n, at)| (node_id(n), vec![vec![at]]));
        read.add_parts(&nodes, chunks.to_vec(), vec![moved(2, "/b", "/c")]);
        assert_eq!(read.finish(), draft(&[(1, New), (3, Deleted)], &[(1, 5)], &[]));
    }

    #[test]
    fn moves_are_merged_by_node() {
        let first = vec![moved(1, "/a", "/b"), moved(2, "/c", "/d"), moved(3, "/e", "/f")];
        let second = vec![moved(1, "/b", "/x"), moved(2, "/d", "/c"), moved(4, "/g", "/h")];
        let expected = [moved(1, "/a", "/x"), moved(3, "/e", "/f"), moved(4, "/g", "/h")];
        assert_eq!(merge_moves(first.into_iter().chain(second)), expected);
    }
}
