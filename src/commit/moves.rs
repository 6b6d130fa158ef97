//! The moves that a transaction log may contain.
//!
//! The format allows a move only to a path that was free or that another move left, and only below a group: a move never
//! deletes or overwrites a node, and never leaves one without its parent. Other moves are stored as a deletion and a new node
//! ([`super::replace_moves`]); the working tree shows the same.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::changes::ChangeSet;
use super::nodes::parent;
use crate::error::Result;
use crate::format::ids::NodeId;
use crate::format::snapshot::{NodeData, Snapshot};
use crate::format::transaction_log::Move;

pub(super) type Paths = HashSet<String>;

pub(super) fn paths(snapshot: &Snapshot) -> Paths {
    snapshot.nodes().map(|node| node.path.to_owned()).collect()
}

/// Returns the paths of the groups of `snapshot` with `changes` applied.
pub(super) fn groups_after(snapshot: &Snapshot, changes: &ChangeSet) -> Paths {
    let (deleted, moved) = (changes.deleted_ids(), changes.moved_to());
    let kept = snapshot
        .nodes()
        .filter(|node| matches!(node.data, NodeData::Group) && !deleted.contains(&node.id))
        .map(|node| moved.get(&node.id).map_or(node.path, |to| *to).to_owned());
    let created = changes.created.iter().filter(|node| !node.is_array).map(|node| node.path.clone());
    kept.chain(created).collect()
}

/// Returns the nodes among `moves` that the log must not list as moved. `occupied` holds the paths of all nodes before the
/// commit, `groups` those of the groups after it.
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

/// Assigns a new id to each of `nodes` that has none in `ids`, and drops the ids of all other nodes.
pub(super) fn renew(ids: &mut BTreeMap<NodeId, NodeId>, nodes: BTreeSet<NodeId>) -> Result<()> {
    ids.retain(|id, _| nodes.contains(id));
    for node in nodes {
        ids.entry(node).or_insert(NodeId::random()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::node_id;

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
    fn moves_go_to_free_places_below_groups() {
        let all = ["/a", "/b", "/c", "/d"];
        assert!(check(&[("/a", "/e"), ("/b", "/a"), ("/c", "/b")], &all, &[]).is_empty());
        assert!(check(&[("/a", "/b"), ("/b", "/c"), ("/c", "/a")], &all, &[]).is_empty(), "a ring");
        assert_eq!(check(&[("/a", "/b")], &all, &[]), [0], "occupied");
        assert_eq!(check(&[("/a", "/b"), ("/c", "/a"), ("/d", "/e")], &all, &[]), [0, 1], "what follows");
        assert_eq!(check(&[("/a", "/g/a"), ("/b", "/a"), ("/c", "/h/c")], &all, &["/h"]), [0, 1], "no group");
    }
}
