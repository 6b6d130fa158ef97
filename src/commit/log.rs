//! The transaction log of a commit: which nodes and chunks it touched.

use std::collections::{BTreeMap, BTreeSet};

use super::changes::ChangeSet;
use super::upload::StoredChunks;
use crate::error::Result;
use crate::format::draft::TransactionLogDraft;
use crate::format::ids::NodeId;
use crate::format::transaction_log::{Change, Move, TransactionLog};

/// The log of `changes`, whose chunks are `chunks`.
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

/// The log of a commit that replaces the one whose log is `previous`: the union, as the reference makes it. A node that the
/// replaced commit made and this one changed is in two lists then.
pub(super) fn amended(previous: &TransactionLog, log: TransactionLogDraft) -> Result<TransactionLogDraft> {
    let union = |change: Change, new: Vec<NodeId>| -> Vec<NodeId> {
        previous.nodes(change).chain(new).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let mut chunks: BTreeMap<NodeId, BTreeSet<Vec<u32>>> = BTreeMap::new();
    for (node, coords) in previous.updated_chunks() {
        chunks.entry(node).or_default().extend(coords);
    }
    for (node, coords) in log.updated_chunks {
        chunks.entry(node).or_default().extend(coords);
    }
    Ok(TransactionLogDraft {
        new_groups: union(Change::NewGroups, log.new_groups),
        new_arrays: union(Change::NewArrays, log.new_arrays),
        deleted_groups: union(Change::DeletedGroups, log.deleted_groups),
        deleted_arrays: union(Change::DeletedArrays, log.deleted_arrays),
        updated_groups: union(Change::UpdatedGroups, log.updated_groups),
        updated_arrays: union(Change::UpdatedArrays, log.updated_arrays),
        updated_chunks: chunks.into_iter().map(|(node, coords)| (node, coords.into_iter().collect())).collect(),
        moves: merge_moves(previous.moves()?, log.moves),
    })
}

/// From where each node was before the first to where it is after the second; a node that is back does not count.
fn merge_moves(first: Vec<Move>, second: Vec<Move>) -> Vec<Move> {
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
