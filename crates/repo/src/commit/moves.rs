//! The moves that a transaction log may contain.
//!
//! The format allows a move only to a path that was free or that another move left, and only below
//! a group: a move never deletes or overwrites a node, and never leaves one without its parent.
//! Other moves are stored as a deletion and a new node ([`super::replace_moves`]); the working tree
//! shows the same. The id of the new node follows from that of the old one, so that the other side
//! of a merge can tell such a move from a deletion ([`find_moved`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::changes::ChangeSet;
use super::nodes::parent;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::{NodeData, Snapshot};
use icechunkfs_format::format::transaction_log::Move;

pub(super) type Paths = HashSet<String>;

/// Moves of one node between two snapshots that are recognized, if each was stored as a deletion
/// and a new node.
const MAX_MOVES: usize = 16;

pub(super) fn paths(snapshot: &Snapshot) -> Paths {
    snapshot.nodes().map(|node| node.path.to_owned()).collect()
}

/// Returns the paths of the groups of `snapshot` with `changes` applied.
pub(super) fn groups_after(snapshot: &Snapshot, changes: &ChangeSet) -> Paths {
    let deleted = changes.deleted_ids();
    let moved = changes.moved_to();
    let kept = snapshot
        .nodes()
        .filter(|node| matches!(node.data, NodeData::Group) && !deleted.contains(&node.id))
        .map(|node| moved.get(&node.id).map_or(node.path, |to| *to).to_owned());
    let created = changes.created.iter().filter(|node| !node.is_array).map(|node| node.path.clone());
    kept.chain(created).collect()
}

/// Returns the nodes among `moves` that the log must not list as moved. `occupied` holds the paths
/// of all nodes before the commit, `groups` those of the groups after it.
pub(super) fn not_allowed(moves: &[Move], occupied: &Paths, groups: &Paths) -> BTreeSet<NodeId> {
    let left: HashSet<&str> = moves.iter().map(|one| one.from.as_str()).collect();
    let by_target: HashMap<&str, &Move> = moves.iter().map(|one| (one.to.as_str(), one)).collect();
    let is_refused = |one: &&Move| occupied.contains(&one.to) && !left.contains(one.to.as_str());
    let mut next: Vec<&Move> = moves.iter().filter(|one| is_refused(one) || !has_group(&one.to, groups)).collect();
    let mut refused = BTreeSet::new();
    while let Some(one) = next.pop() {
        // A node that is not moved still occupies its old path.
        if refused.insert(one.node) && occupied.contains(&one.from) {
            next.extend(by_target.get(one.from.as_str()));
        }
    }
    refused
}

/// Returns true if the node at `path` is in a group. The root of the hierarchy always exists.
fn has_group(path: &str, groups: &Paths) -> bool {
    parent(path).is_none_or(|above| above == "/" || groups.contains(above))
}

/// Assigns a new id to each of `nodes` that has none in `ids`, and drops the ids of all other
/// nodes. No new id is one of those `taken`.
pub(super) fn renew(
    ids: &mut BTreeMap<NodeId, NodeId>,
    nodes: BTreeSet<NodeId>,
    taken: &HashSet<NodeId>,
) -> Result<()> {
    ids.retain(|id, new| nodes.contains(id) && !taken.contains(new));
    for node in nodes {
        // It is taken where the node before the move was restored beside the one after it.
        let new = Some(id_after(node)).filter(|new| !taken.contains(new));
        let new = new.map_or_else(NodeId::random, Ok)?;
        ids.entry(node).or_insert(new);
    }
    Ok(())
}

/// Returns the id that `node` gets by a move that is stored as a deletion and a new node. Different
/// nodes get different ids.
fn id_after(node: NodeId) -> NodeId {
    // The steps of SplitMix64, each of which can be undone.
    let mut bits = u64::from_le_bytes(node.0).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    NodeId((bits ^ (bits >> 31)).to_le_bytes())
}

/// Returns the id that the deleted `node` has after moves that were stored as deletions and new
/// nodes, if there is a new node of such an id.
pub fn find_moved(node: NodeId, is_new: impl Fn(&NodeId) -> bool) -> Option<NodeId> {
    std::iter::successors(Some(node), |id| Some(id_after(*id))).skip(1).take(MAX_MOVES).find(is_new)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use icechunkfs_format::format::testing::node_id;

    fn check(moves: &[(&str, &str)], occupied: &[&str], groups: &[&str]) -> Vec<usize> {
        let moves: Vec<Move> = moves
            .iter()
            .enumerate()
            .map(|(n, (from, to))| Move {
                from: (*from).into(),
                to: (*to).into(),
                node: node_id(n as u8 + 1),
                is_array: true,
            })
            .collect();
        let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        let refused = not_allowed(&moves, &owned(occupied), &owned(groups));
        (0..moves.len()).filter(|n| moves.get(*n).is_some_and(|one| refused.contains(&one.node))).collect()
    }

    #[test]
    fn nodes_with_new_ids_are_found() {
        let one = node_id(1);
        let other = node_id(2);
        let mut ids = BTreeMap::new();
        let nodes = || BTreeSet::from([one, other]);
        renew(&mut ids, nodes(), &HashSet::from([one, other])).unwrap();
        let [first, second] = [ids[&one], ids[&other]];
        assert!(first != second && !nodes().contains(&first) && !nodes().contains(&second));
        assert_eq!(find_moved(one, |id| *id == first), Some(first));
        assert_eq!(find_moved(one, |id| *id == second), None);
        // It was moved again, and the node between is gone.
        let mut again = BTreeMap::new();
        renew(&mut again, BTreeSet::from([first]), &HashSet::from([first])).unwrap();
        assert_eq!(find_moved(one, |id| *id == again[&first]), Some(again[&first]));
        // Ids stay from attempt to attempt, unless they are taken.
        let before = ids.clone();
        renew(&mut ids, nodes(), &HashSet::from([one, other])).unwrap();
        assert_eq!(ids, before);
        renew(&mut ids, nodes(), &HashSet::from([one, other, first])).unwrap();
        assert!(ids[&one] != first && ids[&other] == second);
        renew(&mut ids, BTreeSet::from([other]), &HashSet::new()).unwrap();
        assert_eq!(ids, BTreeMap::from([(other, second)]));
    }

    #[test]
    fn moves_go_to_free_places_below_groups() {
        let all = ["/a", "/b", "/c", "/d"];
        assert!(check(&[("/a", "/e"), ("/b", "/a"), ("/c", "/b")], &all, &[]).is_empty());
        assert!(check(&[("/a", "/b"), ("/b", "/c"), ("/c", "/a")], &all, &[]).is_empty(), "a ring");
        assert_eq!(check(&[("/a", "/b")], &all, &[]), [0], "occupied");
        assert_eq!(check(&[("/a", "/b"), ("/c", "/a"), ("/d", "/e")], &all, &[]), [0, 1], "what follows");
        assert_eq!(check(&[("/a", "/g/a"), ("/b", "/a"), ("/c", "/h/c")], &all, &["/h"]), [0, 1], "no group");
    }
}
