//! Takes over what a table of nodes has in common with that of another snapshot.
//!
//! A commit of a chunk leaves all nodes as they are: paths, documents and inode numbers, and all arrays but one. A mount of very many nodes
//! moves on to such a snapshot in a fraction of the time that a new table takes, and shares the memory of the arrays.

use std::collections::HashMap;
use std::sync::Arc;

use super::array::Array;
use super::nodes::{NodeIndex, NodeTable};
use super::numbering::{Numbering, Renumbered};
use crate::error::Result;
use crate::format::ids::NodeId;
use crate::format::snapshot::{NodeData, Snapshot};
use crate::memory;

/// Arrays of another snapshot. Both are walked in the order of paths, so that most are found without a search.
pub(super) struct KnownArrays<'a> {
    snapshot: &'a Snapshot,
    table: &'a NodeTable,
    /// Node from which on the next array is expected.
    next: NodeIndex,
    /// All arrays by id, made when an expectation fails.
    by_id: Option<HashMap<NodeId, NodeIndex>>,
}

impl<'a> KnownArrays<'a> {
    /// Prepares to look for arrays of `snapshot` in its `table`.
    pub(super) fn new(snapshot: &'a Snapshot, table: &'a NodeTable) -> Self {
        KnownArrays { snapshot, table, next: 0, by_id: None }
    }

    /// Returns array `id` if it has this `zarr.json` in the other snapshot, too.
    pub(super) fn find(&mut self, id: NodeId, zarr_json: &[u8]) -> Option<&'a Array> {
        let (table, count) = (self.table, self.table.nodes.len() as NodeIndex);
        let next = (self.next..count).find(|index| table.array(*index).is_some());
        let expected = next.filter(|index| table.array(*index).is_some_and(|array| array.id == id));
        let index = expected.or_else(|| {
            let all = || (0..count).filter_map(|index| Some((table.array(index)?.id, index))).collect();
            self.by_id.get_or_insert_with(all).get(&id).copied()
        })?;
        self.next = index + 1;
        let array = table.array(index).filter(|array| !array.is_resharded())?;
        let stored = self.snapshot.node(table.get(index)?.stored? as usize)?;
        (stored.zarr_json == zarr_json).then_some(array)
    }
}

impl NodeTable {
    /// Returns the table of `snapshot`, if that has the same nodes as `before`, the snapshot of this table, and other manifests at most.
    pub(super) fn with_manifests_of(
        &self,
        before: &Snapshot,
        snapshot: &Snapshot,
        numbering: &Numbering,
    ) -> Result<Option<NodeTable>> {
        let is_numbered_now = self.numbered == numbering.state();
        if !is_numbered_now || before.node_count() != snapshot.node_count() {
            return Ok(None);
        }
        // As for a new table: it may have other manifests for all arrays.
        let _room = memory::reserve_blocking(snapshot.node_table_size(), "the table of its nodes")?;
        let mut is_same = std::iter::zip(before.nodes(), snapshot.nodes()).map(|(old, new)| {
            old.id == new.id
                && old.path == new.path
                && old.zarr_json == new.zarr_json
                && std::mem::discriminant(&old.data) == std::mem::discriminant(&new.data)
        });
        if !is_same.all(|same| same) {
            return Ok(None);
        }
        let mut arrays = self.arrays.clone();
        for node in &self.nodes {
            let Some(array) = node.array.and_then(|array| arrays.get_mut(array as usize)) else { continue };
            let stored = node.stored.and_then(|position| snapshot.node(position as usize));
            let Some(NodeData::Array(data)) = stored.map(|stored| stored.data) else { return Ok(None) };
            if array.is_resharded() {
                return Ok(None);
            }
            if !data.has_manifests(&array.manifests) {
                *array = Arc::new(Array::with_manifests_of(array, &data));
            }
        }
        Ok(Some(NodeTable {
            root: self.root.clone(),
            nodes: self.nodes.clone(),
            runs: self.runs.clone(),
            chunk_numbers: self.chunk_numbers.clone(),
            names: self.names.clone(),
            children: self.children.clone(),
            arrays,
            manifests: snapshot.manifest_infos(),
            chunk_dirs: self.chunk_dirs.clone(),
            renumbered: Renumbered::default(),
            numbered: self.numbered,
            ids: Arc::clone(&self.ids),
        }))
    }
}
