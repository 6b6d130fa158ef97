//! State of a detection: what is known of nodes and directories, and what was found.

use std::collections::HashSet;
use std::sync::Arc;

use super::{DetectedChanges, NewIds, Untracked, Violation, below};
use crate::overlay::Base;
use crate::overlay::frozen::{Contents, Frozen, FrozenDirectory};
use crate::scratch::record::{EntryId, Name};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Node as SnapshotNode;
use icechunkfs_format::format::transaction_log::Move;
use icechunkfs_repo::commit::changes::DeletedNode;
use icechunkfs_tree::tree::nodes::{NodeIndex, ZARR_JSON};

/// Detection in progress.
pub(super) struct Detection<'a> {
    pub(super) contents: &'a dyn Contents,
    pub(super) base: Arc<Base>,
    pub(super) frozen: &'a Frozen,
    pub(super) out: DetectedChanges,
    pub(super) new_ids: &'a NewIds,
    /// True for each node of the snapshot that still exists, by index.
    pub(super) kept: Vec<bool>,
    /// Directories still to be walked, with their paths.
    pub(super) pending: Vec<(usize, String)>,
    /// Groups with the name of an array's chunk directory.
    pub(super) groups_like_chunks: HashSet<String>,
    /// Directories whose path has a name that is not UTF-8. Printed, it looks like another one.
    pub(super) not_text: HashSet<EntryId>,
    /// Chunks that an array has in the directory of a node below it, by directory and name: they
    /// are not files of that node.
    pub(super) shared_chunks: HashSet<(EntryId, Name)>,
    /// Directories of an array that belong to a node below it, too.
    pub(super) shared_directories: HashSet<EntryId>,
    /// Ids that a restored node cannot get: those of the snapshot and of restored nodes that have
    /// been met. Filled when the first one is met.
    pub(super) taken_ids: Option<HashSet<NodeId>>,
}

impl<'a> Detection<'a> {
    pub(super) fn get(&self, position: usize) -> Result<&'a FrozenDirectory> {
        self.frozen.get(position).ok_or_else(|| Error::corrupt("a directory without entries"))
    }

    pub(super) fn report_violation(&mut self, path: impl Into<String>, why: impl ToString) {
        self.out.violations.push(Violation { path: path.into(), why: why.to_string() });
    }

    pub(super) fn report_untracked(&mut self, path: String, id: EntryId, entry: (EntryId, Name)) {
        self.out.untracked.push(Untracked { path, id, entry, why: None });
    }

    pub(super) fn stored(&self, index: NodeIndex) -> Option<SnapshotNode<'_>> {
        let at = self.base.tree.table().get(index)?.stored?;
        self.base.tree.snapshot().node(at as usize)
    }

    /// Records that node `index` of the snapshot still exists, at `path`.
    pub(super) fn keep(&mut self, index: NodeIndex, path: &str) {
        if let Some(kept) = self.kept.get_mut(index as usize) {
            *kept = true;
        }
        let moved = self.stored(index).filter(|node| node.path != path).map(|node| Move {
            from: node.path.to_owned(),
            to: path.to_owned(),
            node: node.id,
            is_array: node.is_array(),
        });
        self.out.changes.moved.extend(moved);
    }

    /// Records directory `position` if its path is not UTF-8.
    pub(super) fn note_name(&mut self, parent: EntryId, name: &Name, position: usize) {
        if (self.not_text.contains(&parent) || name.text().is_none())
            && let Some(directory) = self.frozen.get(position)
        {
            self.not_text.insert(directory.id);
        }
    }

    /// Keeps the nodes below `index` of the snapshot that `directory` still shows unchanged.
    pub(super) fn untouched_children(&mut self, directory: &FrozenDirectory, path: &str, index: NodeIndex) {
        let base = Arc::clone(&self.base);
        let table = base.tree.table();
        for &child in table.children(index) {
            let name = table.name(child);
            if directory.entries.contains_key(&Name::new(name.as_bytes())) {
                continue;
            }
            self.keep_subtree(child, &below(path, name));
        }
    }

    fn keep_subtree(&mut self, top: NodeIndex, path: &str) {
        let base = Arc::clone(&self.base);
        let table = base.tree.table();
        let old = format!("/{}", table.path(top));
        if old == path {
            for index in table.subtree(top) {
                if let Some(kept) = self.kept.get_mut(index as usize) {
                    *kept = true;
                }
            }
            return;
        }
        for index in table.subtree(top) {
            let at = format!("/{}", table.path(index));
            let rest = at.strip_prefix(&old).unwrap_or_default();
            self.keep(index, &format!("{path}{rest}"));
        }
    }

    /// Adds the nodes of the snapshot that were not kept to the deletions.
    pub(super) fn add_deleted_nodes(&mut self) {
        let gone = (0..self.kept.len()).filter(|&at| !self.kept.get(at).copied().unwrap_or(true));
        let gone: Vec<DeletedNode> = gone
            .filter_map(|at| self.stored(NodeIndex::try_from(at).ok()?))
            .map(|node| DeletedNode { id: node.id, path: node.path.to_owned(), is_array: node.is_array() })
            .collect();
        self.out.changes.deleted = gone;
    }
}

pub(super) fn document_name() -> Name {
    Name::new(ZARR_JSON.as_bytes())
}
