//! Group to which files are appended: its arrays, and the chunks that it has.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::planned::{Original, named, node_at};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_ingest::coordinate::Coordinate;
use icechunkfs_ingest::plan::{Array, Plan};
use icechunkfs_ingest::series::{self, Existing, Growing};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeIndex;

/// Group to which files are appended.
pub(super) struct Archive<'a> {
    pub(super) tree: &'a Arc<Tree>,
    pub(super) group: Option<NodeIndex>,
    /// Its arrays; none if it has none yet.
    pub(super) arrays: Option<Vec<Existing>>,
}

impl<'a> Archive<'a> {
    pub(super) fn at(tree: &'a Arc<Tree>, path: &str) -> Result<Self> {
        let Some(group) = node_at(tree, path) else { return Ok(Archive { tree, group: None, arrays: None }) };
        if tree.table().array(group).is_some() {
            return Err(Error::invalid(format!("{path} is an array: files are appended to the arrays of a group")));
        }
        let mut arrays = Vec::new();
        for node in tree.table().children(group).iter().copied().filter(|node| tree.table().array(*node).is_some()) {
            let name = tree.table().name(node).to_owned();
            let document = serde_json::from_slice(tree.zarr_json(node).unwrap_or_default());
            let document: Map<String, Value> =
                document.map_err(|e| Error::with_source(ErrorKind::Corrupt, format!("{name}: zarr.json"), e))?;
            arrays.push(Existing { name, document });
        }
        Ok(Archive { tree, group: Some(group), arrays: Some(arrays).filter(|arrays| !arrays.is_empty()) })
    }

    /// Returns true if the group has attributes of its own, which stay.
    pub(super) fn has_attributes(&self) -> bool {
        let document = self.group.and_then(|group| self.tree.zarr_json(group));
        let document: Option<Value> = document.and_then(|document| serde_json::from_slice(document).ok());
        let attributes = document.as_ref().and_then(|document| document.get("attributes")?.as_object());
        attributes.is_some_and(|attributes| !attributes.is_empty())
    }

    pub(super) fn node(&self, name: &str) -> Option<NodeIndex> {
        self.tree.table().child(self.group?, name).filter(|node| self.tree.table().array(*node).is_some())
    }

    /// Reads the coordinate of `dimension`, the array `node` of plain elements.
    pub(super) async fn coordinate(
        &self,
        files: &[Arc<Original>],
        node: NodeIndex,
        dimension: &str,
    ) -> Result<Option<Coordinate>> {
        let Some(original) = files.first() else { return Ok(None) };
        let plan: &Plan = &original.plan;
        let array = named(plan, dimension).zip(self.existing(dimension));
        let Some((array, existing)) = array else { return Ok(None) };
        let array = array.in_chunks_of(&existing.document)?;
        let Some(stored) = self.tree.table().array(node) else { return Ok(None) };
        let ([length], [chunks]) = (&*stored.shape, &*stored.grid) else { return Ok(None) };
        let bytes_of_all = length.saturating_mul(array.fill().len() as u64);
        let mut meter = Meter::new("the coordinate of an archive");
        meter.count(bytes_of_all.saturating_add(array.chunk_bytes()))?;
        let mut bytes = Vec::new();
        for chunk in 0..*chunks {
            match self.elements(node, existing, &array, &[chunk]).await? {
                Some(mut elements) => bytes.append(&mut elements),
                None => {
                    return Err(Error::invalid(format!("{dimension}: the archive does not have chunk {chunk} of it")));
                }
            }
        }
        let wanted = usize::try_from(bytes_of_all).unwrap_or(usize::MAX);
        bytes.truncate(wanted);
        if bytes.len() != wanted {
            return Err(Error::corrupt(format!("{dimension}: its chunks are shorter than the array")));
        }
        Coordinate::of_bytes(plan, dimension, &bytes)
    }

    /// Reads the elements of a chunk of the array `node`, in the byte order of `array`, which has
    /// the same chunks; none if it is not stored.
    pub(super) async fn elements(
        &self,
        node: NodeIndex,
        existing: &Existing,
        array: &Array,
        coords: &[u32],
    ) -> Result<Option<Vec<u8>>> {
        let bound = Bound::new(array.chunk_bytes(), series::longest(&existing.document, array.chunk_bytes()));
        let stored = stored_chunk(self.tree, node, coords, bound).await?;
        stored.map(|stored| series::decoded(&existing.document, &stored, array)).transpose()
    }

    pub(super) fn existing(&self, name: &str) -> Option<&Existing> {
        self.arrays.iter().flatten().find(|existing| existing.name == name)
    }
}

/// Bytes that a chunk of an archive may have.
#[derive(Clone, Copy)]
pub(super) enum Bound {
    Exactly(u64),
    /// Compressed ones may be a little longer than their elements, and texts have any length.
    UpTo(u64),
}

impl Bound {
    pub(super) fn of(array: &Growing) -> Self {
        Bound::new(array.chunk_bytes(), array.longest())
    }

    fn new(bytes: u64, longest: Option<u64>) -> Self {
        longest.map_or(Bound::Exactly(bytes), Bound::UpTo)
    }
}

/// Reads a chunk of the archive, of so many bytes; none if it is not stored.
///
/// Errors: [`ErrorKind::Corrupt`] if it has others.
pub(super) async fn stored_chunk(
    tree: &Arc<Tree>,
    node: NodeIndex,
    coords: &[u32],
    bound: Bound,
) -> Result<Option<Bytes>> {
    let Some(payload) = tree.payload_at(node, coords).await? else { return Ok(None) };
    // Before there is memory for it.
    let wrong = match bound {
        Bound::Exactly(bytes) => (payload.length() != bytes).then(|| format!("not {bytes}")),
        Bound::UpTo(bytes) => (payload.length() > bytes).then(|| format!("more than {bytes}")),
    };
    if let Some(wrong) = wrong {
        let path = tree.table().path(node);
        return Err(Error::corrupt(format!("{path}: chunk {coords:?} has {} bytes, {wrong}", payload.length())));
    }
    tree.reader().read_payload(&payload).await.map(Some)
}
