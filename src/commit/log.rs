//! The transaction log of a commit: the nodes and chunks that it touched.

use std::collections::{BTreeMap, BTreeSet};

use super::changes::ChangeSet;
use super::upload::StoredChunks;
use crate::error::Result;
use crate::format::draft::TransactionLogDraft;
use crate::format::ids::NodeId;
use crate::format::transaction_log::{Move, NodeChange, TransactionLog};
use crate::zarr::Coords;

/// Returns the log of `changes`, whose chunks are `chunks`.
pub(super) fn of(changes: &ChangeSet, chunks: &StoredChunks) -> TransactionLogDraft {
    let mut log = TransactionLogDraft::default();
    log.nodes.extend(changes.deleted.iter().map(|node| (NodeChange::deletion(node.is_array), node.id)));
    log.nodes.extend(changes.created.iter().map(|node| (NodeChange::creation(node.is_array), node.id)));
    log.nodes.extend(changes.updated.iter().map(|node| (NodeChange::update(node.is_array), node.id)));
    log.moves.clone_from(&changes.moved);
    let changed = chunks.iter().filter(|(_, list)| !list.is_empty());
    log.updated_chunks =
        changed.map(|(node, list)| (*node, list.iter().map(|(coords, _)| coords.to_vec()).collect())).collect();
    log
}

/// Returns the log of a commit that replaces the one with log `previous`: the union, as the reference implementation makes
/// it. A node that the replaced commit created and this one changed is then in two lists.
pub(super) fn amended(previous: &TransactionLog, log: TransactionLogDraft) -> Result<TransactionLogDraft> {
    let mut union = LogUnion::default();
    union.add(previous)?;
    union.nodes.extend(log.nodes);
    for (node, coords) in log.updated_chunks {
        union.chunks.entry(node).or_default().extend(coords.into_iter().map(Coords::from_vec));
    }
    union.moves.extend(log.moves);
    Ok(union.finish())
}

/// Union of the logs of consecutive commits.
#[derive(Clone, Debug, Default)]
pub struct LogUnion {
    /// Nodes that were created, deleted or updated.
    pub nodes: BTreeSet<(NodeChange, NodeId)>,
    /// Chunks written or deleted.
    pub chunks: BTreeMap<NodeId, BTreeSet<Coords>>,
    /// Moves, in order.
    pub moves: Vec<Move>,
}

impl LogUnion {
    /// Adds the log of the next commit; the oldest commit comes first.
    pub fn add(&mut self, log: &TransactionLog) -> Result<()> {
        self.nodes.extend(log.changed_nodes());
        for (node, coords) in log.updated_chunks() {
            self.chunks.entry(node).or_default().extend(coords.map(Coords::from_vec));
        }
        self.moves.extend(log.moves()?);
        Ok(())
    }

    pub(super) fn finish(self) -> TransactionLogDraft {
        let chunks = |coords: BTreeSet<Coords>| coords.into_iter().map(Coords::into_vec).collect();
        TransactionLogDraft {
            nodes: self.nodes,
            updated_chunks: self.chunks.into_iter().map(|(node, coords)| (node, chunks(coords))).collect(),
            moves: merge_moves(self.moves),
        }
    }
}

/// Merges consecutive moves, by node: each node moves from its path before the first to its path after the last, or not at all
/// if those are equal.
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
    use super::*;
    use crate::format::testing::node_id;

    #[test]
    fn moves_are_merged_by_node() {
        let moved =
            |n, from: &str, to: &str| Move { from: from.into(), to: to.into(), node: node_id(n), is_array: true };
        let first = vec![moved(1, "/a", "/b"), moved(2, "/c", "/d"), moved(3, "/e", "/f")];
        let second = vec![moved(1, "/b", "/x"), moved(2, "/d", "/c"), moved(4, "/g", "/h")];
        let expected = [moved(1, "/a", "/x"), moved(3, "/e", "/f"), moved(4, "/g", "/h")];
        assert_eq!(merge_moves(first.into_iter().chain(second)), expected);
    }
}
