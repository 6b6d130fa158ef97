//! Finds nodes that are in no group: Zarr opens them by their path, but no listing of a group has them.

use super::changes::ChangeSet;
use super::moves::{Paths, groups_after};
use super::nodes::parent;
use crate::format::snapshot::Snapshot;

/// Node whose parent directory has no `zarr.json`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ungrouped {
    /// Path of the node.
    pub path: String,
    /// Path of the parent, which is no group.
    pub parent: String,
}

/// Returns the nodes of `changes`, made for `base`, that will be in no group: those that it creates or moves, and those
/// whose group it deletes or moves away. Sorted by path.
pub fn ungrouped_by(base: &Snapshot, changes: &ChangeSet) -> Vec<Ungrouped> {
    let groups = groups_after(base, changes);
    let (removed_ids, removed_paths) = (changes.removed_ids(), changes.removed_paths());
    let placed = changes
        .created
        .iter()
        .map(|node| node.path.as_str())
        .chain(changes.moved.iter().map(|one| one.to.as_str()))
        .map(str::to_owned);
    let left = base
        .nodes()
        .filter(|node| !removed_ids.contains(&node.id))
        .filter(|node| parent(node.path).is_some_and(|above| removed_paths.contains(above)))
        .map(|node| node.path.to_owned());
    let mut found: Vec<Ungrouped> = placed.chain(left).filter_map(|path| without_group(path, &groups)).collect();
    found.sort();
    found
}

/// Returns all nodes of `snapshot` that are in no group, sorted by path.
pub fn ungrouped(snapshot: &Snapshot) -> Vec<Ungrouped> {
    let groups = groups_after(snapshot, &ChangeSet::default());
    let mut found: Vec<Ungrouped> =
        snapshot.nodes().filter_map(|node| without_group(node.path.to_owned(), &groups)).collect();
    found.sort();
    found
}

fn without_group(path: String, groups: &Paths) -> Option<Ungrouped> {
    let above = parent(&path)?;
    if groups.contains(above) {
        return None;
    }
    let above = above.to_owned();
    Some(Ungrouped { path, parent: above })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::changes::{DeletedNode, WrittenNode};
    use super::*;
    use crate::format::draft::{NodeDraft, SnapshotDraft};
    use crate::format::envelope::SpecVersion;
    use crate::format::ids::ObjectId;
    use crate::format::testing::node_id;
    use crate::format::transaction_log::Move;

    fn snapshot(groups: &[&str]) -> Snapshot {
        let node = |(n, path): (usize, &&str)| NodeDraft {
            id: node_id(n as u8),
            path: (*path).to_owned(),
            zarr_json: Vec::new(),
            array: None,
        };
        let draft = SnapshotDraft {
            id: ObjectId::INITIAL,
            flushed_at: 1,
            version: SpecVersion::V2,
            parent: None,
            message: String::new(),
            metadata: Vec::new(),
            nodes: groups.iter().enumerate().map(node).collect(),
            manifests: Vec::new(),
        };
        #[allow(clippy::unwrap_used)]
        Snapshot::from_draft(&draft).unwrap()
    }

    fn paths(found: &[Ungrouped]) -> Vec<(&str, &str)> {
        found.iter().map(|node| (node.path.as_str(), node.parent.as_str())).collect()
    }

    #[test]
    fn nodes_without_a_group_above_are_listed() {
        assert_eq!(paths(&ungrouped(&snapshot(&["/", "/a", "/a/b", "/c/d"]))), [("/c/d", "/c")]);
        assert_eq!(paths(&ungrouped(&snapshot(&["/a", "/a/b"]))), [("/a", "/")]);
    }

    #[test]
    fn only_nodes_that_changes_leave_without_a_group_are_listed() {
        let base = snapshot(&["/", "/a", "/a/b", "/c/d", "/e"]);
        let created =
            |path: &str| WrittenNode { id: node_id(100), path: path.into(), zarr_json: Bytes::new(), is_array: false };
        let changes = ChangeSet {
            deleted: vec![DeletedNode { id: node_id(1), path: "/a".into(), is_array: false }],
            created: vec![created("/x/y"), created("/x/y/z"), created("/top")],
            moved: vec![Move { from: "/e".into(), to: "/none/e".into(), node: node_id(4), is_array: false }],
            ..ChangeSet::default()
        };
        let found = ungrouped_by(&base, &changes);
        assert_eq!(paths(&found), [("/a/b", "/a"), ("/none/e", "/none"), ("/x/y", "/x")]);
        assert!(ungrouped_by(&base, &ChangeSet::default()).is_empty());
    }
}
