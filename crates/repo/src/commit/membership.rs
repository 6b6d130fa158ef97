//! Finds nodes that are in no group: Zarr opens them by their path, but no listing of a group has
//! them.

use std::collections::HashSet;

use super::changes::ChangeSet;
use super::moves::groups_after;
use super::nodes::parent;
use icechunkfs_format::format::snapshot::Snapshot;

/// Returns the paths of the nodes of `changes`, made for `base`, that will be in no group: those
/// that it creates or moves, and those whose group it deletes or moves away. Sorted. A `newer`
/// snapshot, over which the changes will be rebased, may have groups that the base lacks.
pub fn ungrouped_by(base: &Snapshot, newer: Option<&Snapshot>, changes: &ChangeSet) -> Vec<String> {
    if changes.created.is_empty() && changes.moved.is_empty() && changes.deleted.is_empty() {
        return Vec::new();
    }
    let mut groups = groups_after(base, changes);
    if let Some(newer) = newer {
        let known: HashSet<&str> = base.nodes().map(|node| node.path).collect();
        let new = newer.nodes().filter(|node| !node.is_array() && !known.contains(node.path));
        groups.extend(new.map(|node| node.path.to_owned()));
    }
    let removed_ids = changes.removed_ids();
    let removed_paths = changes.removed_paths();
    let created = changes.created.iter().map(|node| node.path.as_str());
    let placed = created.chain(changes.moved.iter().map(|one| one.to.as_str()));
    let left = base
        .nodes()
        .filter(|node| !removed_ids.contains(&node.id))
        .map(|node| node.path)
        .filter(|path| parent(path).is_some_and(|above| removed_paths.contains(above)));
    let is_ungrouped = |path: &&str| parent(path).is_some_and(|above| !groups.contains(above));
    let mut found: Vec<String> = placed.chain(left).filter(is_ungrouped).map(str::to_owned).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;

    use super::super::changes::{DeletedNode, WrittenNode};
    use super::*;
    use icechunkfs_format::format::testing::{group, id, node_id, snapshot};
    use icechunkfs_format::format::transaction_log::Move;

    #[test]
    fn only_nodes_that_changes_leave_without_a_group_are_listed() {
        let nodes = [group(0, "/"), group(1, "/a"), group(2, "/a/b"), group(3, "/c/d"), group(4, "/e")];
        let base = Snapshot::decode(&snapshot(id(1), &nodes), 1 << 20).unwrap();
        let created =
            |path: &str| WrittenNode { id: node_id(100), path: path.into(), zarr_json: Bytes::new(), is_array: false };
        let changes = ChangeSet {
            deleted: vec![DeletedNode { id: node_id(1), path: "/a".into(), is_array: false }],
            created: vec![created("/x/y"), created("/x/y/z"), created("/top")],
            moved: vec![Move { from: "/e".into(), to: "/none/e".into(), node: node_id(4), is_array: false }],
            ..ChangeSet::default()
        };
        assert_eq!(ungrouped_by(&base, None, &changes), ["/a/b", "/none/e", "/x/y"]);
        assert!(ungrouped_by(&base, None, &ChangeSet::default()).is_empty());
        // Groups that others have made meanwhile count; those that are deleted here do not.
        let newer = [group(0, "/"), group(1, "/a"), group(2, "/a/b"), group(5, "/x")];
        let newer = Snapshot::decode(&snapshot(id(2), &newer), 1 << 20).unwrap();
        assert_eq!(ungrouped_by(&base, Some(&newer), &changes), ["/a/b", "/none/e"]);
    }
}
