//! The transaction log of a commit: the nodes and chunks that it touched.

use std::collections::{BTreeMap, BTreeSet};

use super::changes::ChangeSet;
use super::upload::StoredChunks;
use crate::error::Result;
use crate::format::draft::TransactionLogDraft;
use crate::format::ids::NodeId;
use crate::format::transaction_log::{ChangedNodes, Move, TransactionLog};
use crate::zarr::Coords;

/// Returns the log of `changes`, whose chunks are `chunks`.
pub(super) fn of(changes: &ChangeSet, chunks: &StoredChunks) -> TransactionLogDraft {
    let mut log = TransactionLogDraft::default();
    for node in &changes.deleted {
        if node.is_array { &mut log.deleted_arrays } else { &mut log.deleted_groups }.push(node.id);
    }
    for node in &changes.created {
        if node.is_array { &mut log.new_arrays } else { &mut log.new_groups }.push(node.id);
    }
    for node in &changes.updated {
        if node.is_array { &mut log.updated_arrays } else { &mut log.updated_groups }.push(node.id);
    }
    log.moves.clone_from(&changes.moved);
    let changed = chunks.iter().filter(|(_, list)| !list.is_empty());
    log.updated_chunks =
        changed.map(|(node, list)| (*node, list.iter().map(|(coords, _)| coords.to_vec()).collect())).collect();
    log
}

/// Returns the log of a commit that replaces the one with log `previous`: the union, as the reference implementation makes
/// it. A node that the replaced commit created and this one changed is then in two lists.
pub(super) fn amended(previous: &TransactionLog, log: TransactionLogDraft) -> Result<TransactionLogDraft> {
    let mut union = Union::default();
    union.add(previous)?;
    union.nodes.new_groups.extend(log.new_groups);
    union.nodes.new_arrays.extend(log.new_arrays);
    union.nodes.deleted_groups.extend(log.deleted_groups);
    union.nodes.deleted_arrays.extend(log.deleted_arrays);
    union.nodes.updated_groups.extend(log.updated_groups);
    union.nodes.updated_arrays.extend(log.updated_arrays);
    for (node, coords) in log.updated_chunks {
        union.chunks.entry(node).or_default().extend(coords.into_iter().map(Coords::from_vec));
    }
    union.moves = merge_moves(union.moves, log.moves);
    Ok(union.finish())
}

/// Union of the logs of consecutive commits.
#[derive(Debug, Default)]
pub(super) struct Union {
    nodes: ChangedNodes,
    chunks: BTreeMap<NodeId, BTreeSet<Coords>>,
    moves: Vec<Move>,
}

impl Union {
    /// Adds the log of the next commit; the oldest commit comes first.
    pub(super) fn add(&mut self, log: &TransactionLog) -> Result<()> {
        self.nodes.add(log);
        for (node, coords) in log.updated_chunks() {
            self.chunks.entry(node).or_default().extend(coords.map(Coords::from_vec));
        }
        self.moves = merge_moves(std::mem::take(&mut self.moves), log.moves()?);
        Ok(())
    }

    pub(super) fn finish(self) -> TransactionLogDraft {
        let chunks = |coords: BTreeSet<Coords>| coords.into_iter().map(Coords::into_vec).collect();
        TransactionLogDraft {
            new_groups: self.nodes.new_groups.into_iter().collect(),
            new_arrays: self.nodes.new_arrays.into_iter().collect(),
            deleted_groups: self.nodes.deleted_groups.into_iter().collect(),
            deleted_arrays: self.nodes.deleted_arrays.into_iter().collect(),
            updated_groups: self.nodes.updated_groups.into_iter().collect(),
            updated_arrays: self.nodes.updated_arrays.into_iter().collect(),
            updated_chunks: self.chunks.into_iter().map(|(node, coords)| (node, chunks(coords))).collect(),
            moves: self.moves,
        }
    }
}

/// Merges two lists of moves: each node moves from its path before the first to its path after the second, or not at all if
/// those are equal.
pub(super) fn merge_moves(first: Vec<Move>, second: Vec<Move>) -> Vec<Move> {
    let mut merged: BTreeMap<NodeId, Move> = first.into_iter().map(|m| (m.node, m)).collect();
    for later in second {
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
        assert_eq!(merge_moves(first, second), expected);
    }
}
