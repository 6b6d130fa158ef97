//! Which moves a transaction log may contain.
//!
//! The format allows a move only to a place that was free, or that another move left, and only below a group: a move never
//! deletes or overwrites a node, and never leaves one without its parent. Moves that break this rule are stored as a deletion
//! and a new node instead ([`super::without_moves`]); what the working tree shows is the same.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::changes::ChangeSet;
use crate::error::Result;
use crate::format::ids::NodeId;
use crate::format::snapshot::{NodeData, Snapshot};
use crate::format::transaction_log::Move;

/// Paths of nodes.
pub(super) type Paths = HashSet<String>;

/// The paths of all nodes of `snapshot`.
pub(super) fn paths(snapshot: &Snapshot) -> Paths {
    snapshot.nodes().map(|node| node.path.to_owned()).collect()
}

/// The paths of the groups that `snapshot` has with `changes` applied.
pub(super) fn groups_after(snapshot: &Snapshot, changes: &ChangeSet) -> Paths {
    let deleted: HashSet<NodeId> = changes.deleted.iter().map(|node| node.id).collect();
    let moved: HashMap<NodeId, &str> = changes.moved.iter().map(|one| (one.node, one.to.as_str())).collect();
    let kept = snapshot
        .nodes()
        .filter(|node| matches!(node.data, NodeData::Group) && !deleted.contains(&node.id))
        .map(|node| moved.get(&node.id).map_or(node.path, |to| *to).to_owned());
    let created = changes.created.iter().filter(|node| !node.is_array).map(|node| node.path.clone());
    kept.chain(created).collect()
}

/// The nodes among `moves` that must not be called moved. `occupied` are the paths of all nodes before, `groups` those of the
/// groups after the commit.
pub(super) fn not_allowed(moves: &[Move], occupied: &Paths, groups: &Paths) -> BTreeSet<NodeId> {
    let left: HashSet<&str> = moves.iter().map(|one| one.from.as_str()).collect();
    let by_target: HashMap<&str, &Move> = moves.iter().map(|one| (one.to.as_str(), one)).collect();
    let is_refused = |one: &&Move| occupied.contains(&one.to) && !left.contains(one.to.as_str());
    let mut next: Vec<&Move> = moves.iter().filter(|one| is_refused(one) || !has_group(&one.to, groups)).collect();
    let mut refused = BTreeSet::new();
    while let Some(one) = next.pop() {
        // What it would have left is occupied then.
        if refused.insert(one.node) && occupied.contains(&one.from) {
            next.extend(by_target.get(one.from.as_str()));
        }
    }
    refused
}

/// Whether the node at `path` is in a group. The root of the hierarchy is always there.
fn has_group(path: &str, groups: &Paths) -> bool {
    match path.rsplit_once('/') {
        None | Some(("", _)) => true,
        Some((above, _)) => groups.contains(above),
    }
}

/// Gives each of `nodes` a new id, or the one that it has in `ids` already; all others lose theirs.
pub(super) fn renew(ids: &mut BTreeMap<NodeId, NodeId>, nodes: BTreeSet<NodeId>) -> Result<()> {
    ids.retain(|id, _| nodes.contains(id));
    for node in nodes {
        if let Entry::Vacant(free) = ids.entry(node) {
            free.insert(NodeId::random()?);
        }
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
