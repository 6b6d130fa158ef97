//! Chunk references of a snapshot, looked up through its manifests.

use std::collections::HashMap;
use std::sync::Arc;

use crate::reader::Reader;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::manifest::Manifest;
use icechunkfs_format::format::snapshot::{ManifestInfo, ManifestRef, NodeData, Snapshot};
use icechunkfs_format::zarr::Coords;

pub(super) struct References<'a> {
    snapshot: &'a Snapshot,
    reader: &'a Arc<Reader>,
    infos: HashMap<ObjectId, ManifestInfo>,
    arrays: HashMap<NodeId, Vec<ManifestRef>>,
}

impl<'a> References<'a> {
    /// Returns the references of the arrays for which `is_wanted` returns true.
    pub(super) fn new(
        snapshot: &'a Snapshot,
        reader: &'a Arc<Reader>,
        is_wanted: impl Fn(&NodeId) -> bool,
    ) -> References<'a> {
        let infos = snapshot.manifest_infos();
        let arrays = snapshot
            .nodes()
            .filter(|node| is_wanted(&node.id))
            .filter_map(|node| match &node.data {
                NodeData::Array(array) => Some((node.id, array.manifests())),
                _ => None,
            })
            .collect();
        References { snapshot, reader, infos, arrays }
    }

    /// Returns true if `node` is one of these arrays.
    pub(super) fn has_array(&self, node: NodeId) -> bool {
        self.arrays.contains_key(&node)
    }

    /// Finds chunk `coords` of array `node`.
    pub(super) async fn find(&self, node: NodeId, coords: &Coords) -> Result<Option<ChunkPayload>> {
        // Only the first manifest whose extents cover the chunk may list it.
        let mut manifests = self.arrays.get(&node).into_iter().flatten();
        let Some(reference) = manifests.find(|manifest| manifest.covers(coords)) else { return Ok(None) };
        let manifest = self.manifest(reference).await?;
        let Some(refs) = manifest.array(node)? else { return Ok(None) };
        refs.find(coords).map(|at| refs.payload(at).map(ChunkPayload::from)).transpose()
    }

    /// Returns all chunks of array `node`.
    pub(super) async fn all(&self, node: NodeId) -> Result<Vec<(Coords, ChunkPayload)>> {
        let mut all = Vec::new();
        for reference in self.arrays.get(&node).into_iter().flatten() {
            let manifest = self.manifest(reference).await?;
            let Some(refs) = manifest.array(node)? else { continue };
            for at in 0..refs.len() {
                let coords: Coords = refs.coords(at).iter().collect();
                all.push((coords, ChunkPayload::from(refs.payload(at)?)));
            }
        }
        Ok(all)
    }

    async fn manifest(&self, reference: &ManifestRef) -> Result<Arc<Manifest>> {
        let info = self.infos.get(&reference.id).ok_or_else(|| {
            Error::corrupt(format!("snapshot {}: manifest {} is not listed", self.snapshot.id(), reference.id))
        })?;
        self.reader.manifest(*info).await
    }
}
