//! Takes over what a table of nodes has in common with that of another snapshot.
//!
//! A commit of a chunk leaves all nodes as they are: paths, documents and inode numbers, and all
//! arrays but one. A mount of very many nodes shows such a snapshot after a fraction of the time
//! that a new table takes, and shares the memory of the arrays.

use std::collections::HashMap;
use std::sync::Arc;

use super::array::Array;
use super::nodes::{NodeIndex, NodeTable};
use super::numbering::{Numbering, Renumbered};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::{NodeData, Snapshot};

/// Arrays of another snapshot. Both are walked in the order of paths, so that most are found
/// without a search.
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
        let table = self.table;
        let count = self.table.nodes.len() as NodeIndex;
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
    /// Returns the table of `snapshot`, if that has the same nodes as `before`, the snapshot of
    /// this table, and other manifests at most.
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
        let _room = snapshot.room_for_table()?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::tree::nodes::TreePlace;
    use icechunkfs_format::format::draft::{ArrayDraft, NodeDraft, SnapshotDraft};
    use icechunkfs_format::format::snapshot::{Dimension, ManifestInfo, ManifestRef};
    use icechunkfs_format::format::testing::{id, node_id};

    /// Returns a snapshot of a group and arrays, of which each has the manifest and the length that
    /// `arrays` gives.
    fn snapshot(arrays: &[(u8, u64)]) -> Snapshot {
        let group = NodeDraft { id: node_id(0), path: "/".into(), zarr_json: b"{}".to_vec(), array: None, extra: None };
        let array = |(number, &(manifest, length)): (usize, &(u8, u64))| {
            let document = format!(
                r#"{{"zarr_format":3,"node_type":"array","shape":[{length}],"data_type":"uint8","fill_value":0,"codecs":["bytes"],
                "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[1]}}}},"chunk_key_encoding":{{"name":"default"}}}}"#
            );
            let shape = vec![Dimension { array_length: length, num_chunks: length as u32, chunk_length: 1 }];
            let manifests = vec![ManifestRef { id: id(manifest), extents: vec![(0, length as u32)] }];
            NodeDraft {
                id: node_id(number as u8 + 1),
                path: format!("/a{number}"),
                zarr_json: document.into_bytes(),
                array: Some(ArrayDraft { shape, dimension_names: None, manifests }),
                extra: None,
            }
        };
        let mut manifests: Vec<ManifestInfo> =
            arrays.iter().map(|(manifest, _)| ManifestInfo { id: id(*manifest), size: 9, chunk_refs: 3 }).collect();
        manifests.dedup();
        let nodes = std::iter::once(group).chain(arrays.iter().enumerate().map(array)).collect();
        Snapshot::from_draft(&SnapshotDraft { nodes, manifests, ..SnapshotDraft::new(id(9), 7, "m") }).unwrap()
    }

    /// Returns all that a table says of its nodes, as text.
    fn content(table: &NodeTable) -> Vec<String> {
        let describe = |index: NodeIndex| {
            let array = table.array(index);
            let facts = array.map(|array| (array.id, &array.grid, &array.manifests, array.first_number));
            let places = [
                TreePlace::Directory(index),
                TreePlace::Metadata(index),
                TreePlace::Chunk(index, icechunkfs_format::zarr::Coords::from_slice(&[1])),
            ];
            let numbers = places.map(|place| (table.inode(&place), table.place(table.inode(&place)) == Some(place)));
            format!("{} {facts:?} {numbers:?} {:?}", table.path(index), table.children(index))
        };
        (0..table.len() as NodeIndex).map(describe).collect()
    }

    #[test]
    fn the_table_of_a_commit_of_chunks_is_the_one_that_would_be_built() {
        let mut numbering = Numbering::default();
        let first = snapshot(&[(1, 5), (1, 6), (1, 7)]);
        let table = NodeTable::build_below(&first, &mut numbering, "").unwrap();
        let chunks = snapshot(&[(1, 5), (2, 6), (1, 7)]);
        let shared = table.with_manifests_of(&first, &chunks, &numbering).unwrap().unwrap();
        let built = NodeTable::build_below(&chunks, &mut numbering, "").unwrap();
        assert_eq!(content(&shared), content(&built));
        assert_eq!(shared.manifests(), built.manifests());
        assert!(Arc::ptr_eq(&shared.arrays[0], &table.arrays[0]) && !Arc::ptr_eq(&shared.arrays[1], &table.arrays[1]));
        assert!(shared.has_numbers_of(&table));
        // Another document, another number of nodes, and numbers that have moved on are for a new
        // table.
        for other in [snapshot(&[(1, 5), (1, 6), (1, 8)]), snapshot(&[(1, 5), (1, 6)])] {
            assert!(table.with_manifests_of(&first, &other, &numbering).unwrap().is_none());
        }
        let longer = snapshot(&[(1, 5), (1, 60), (1, 7)]);
        let after = NodeTable::build_after(&longer, &mut numbering, &first, &table).unwrap();
        assert!(!after.has_numbers_of(&table));
        assert!(table.with_manifests_of(&first, &chunks, &numbering).unwrap().is_none());
        // Back to the first grid: the numbers are the first ones again.
        let back = NodeTable::build_after(&chunks, &mut numbering, &longer, &after).unwrap();
        assert_eq!(content(&back), content(&built));
    }
}
