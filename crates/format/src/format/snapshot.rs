//! Reads `$ROOT/snapshots/ID`: every node of the hierarchy at one commit (spec, "Snapshot Files").
//!
//! Nodes come in the file's order, which is by the bytes of the path in files of current libraries
//! and by component in files of 0.2 to 1.1.2; nothing here relies on either. Callers take the chunk
//! grid from `zarr.json`: version 1 stores a chunk length that version 2 libraries got wrong.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde_json::{Map, Value};

use super::draft::SnapshotDraft;
use super::envelope::{self, Compression, FileType, SpecVersion};
use super::generated::icechunk as fb;
use super::ids::{NodeId, ObjectId};
use super::metadata;
use super::unknown;
use super::verified::VerifiedFlatbuffer;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::{self, Metered, Reservation, ReservedBytes};

/// Decoded snapshot file.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) buffer: VerifiedFlatbuffer<fb::Snapshot<'static>>,
    version: SpecVersion,
    /// Most bytes that a table of the nodes takes.
    node_table_size: u64,
}

/// Group or array, read in place.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// Id that stays the same when the node moves; manifests use it as key.
    pub id: NodeId,
    /// Absolute path, as stored: it may break the rules for names.
    pub path: &'a str,
    /// Content of `zarr.json`, byte for byte.
    pub zarr_json: &'a [u8],
    /// Kind of the node, with its data.
    pub data: NodeData<'a>,
    /// The table as it is stored.
    pub(crate) stored: fb::NodeSnapshot<'a>,
}

impl Node<'_> {
    /// Returns bytes that newer releases give a meaning, for a node that is written again. Fails if
    /// that would lose other members.
    pub fn extra(&self) -> Result<Option<&[u8]>> {
        unknown::check_node(self.stored)?;
        Ok(self.stored.extra().map(|extra| extra.bytes()))
    }

    /// Returns true if the node is an array.
    pub fn is_array(&self) -> bool {
        matches!(self.data, NodeData::Array(_))
    }

    /// Returns true if a snapshot of `version` can have the node as it is stored here.
    pub fn is_stored_as(&self, version: SpecVersion) -> bool {
        match &self.data {
            NodeData::Group => true,
            NodeData::Array(array) => array.is_shaped_as(version),
            NodeData::Unknown(_) => false,
        }
    }
}

/// Kind of a node, with its data beyond `zarr.json`.
#[derive(Clone, Debug)]
pub enum NodeData<'a> {
    /// Group.
    Group,
    /// Array, with the manifests of its chunks.
    Array(ArrayData<'a>),
    /// Kind that this format version does not have.
    Unknown(u8),
}

/// Shape, dimension names and manifests of an array, as the snapshot stores them.
#[derive(Clone, Debug)]
pub struct ArrayData<'a>(fb::ArrayNodeData<'a>);

/// Manifest that lists chunks of an array, and the box of the chunk grid that contains them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestRef {
    /// Id of the manifest.
    pub id: ObjectId,
    /// Half-open ranges of chunk coordinates, one per dimension. Empty for 0-d arrays; an empty
    /// list sets no bound.
    pub extents: Vec<(u32, u32)>,
}

impl ManifestRef {
    /// Returns the number of chunks that an array of `rank` dimensions may have within the extents;
    /// the largest number if they set no bound.
    pub fn places(&self, rank: usize) -> u64 {
        places(self.extents.iter().copied(), rank)
    }
}

fn places(extents: impl ExactSizeIterator<Item = (u32, u32)>, rank: usize) -> u64 {
    if extents.len() != rank {
        return u64::MAX;
    }
    extents.map(|(from, to)| u64::from(to.saturating_sub(from))).fold(1, u64::saturating_mul)
}

/// Dimension of an array, as the snapshot stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimension {
    /// Number of elements.
    pub array_length: u64,
    /// Number of chunks.
    pub num_chunks: u32,
    /// Elements per chunk. Version 2 does not store it; the value in version 1 may be wrong.
    pub chunk_length: u64,
}

/// Entry of a snapshot's list of manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestInfo {
    /// Id of the manifest.
    pub id: ObjectId,
    /// Exact size of the file, in bytes.
    pub size: u64,
    /// Number of chunk references in the manifest, of all arrays.
    pub chunk_refs: u32,
}

/// Bytes that a node takes in tables, without its name and its manifests.
const NODE_BYTES: u64 = 160;
/// Most bytes that the nodes may take in tables per byte of the snapshot. In files that clients
/// write, every node has at least 44 bytes that no other node shares, and every reference to a
/// manifest 32.
const MAX_EXPANSION: u64 = 6;

impl Snapshot {
    /// Decodes a snapshot file whose payload may take `limit` bytes of memory.
    pub fn decode(file: &[u8], limit: u64) -> Result<Self> {
        let (header, payload) = envelope::decode(file, FileType::Snapshot, limit)?;
        Self::from_verified(VerifiedFlatbuffer::new(payload)?, header.version)
    }

    /// Returns bytes of the snapshot that newer releases give a meaning.
    pub fn extra(&self) -> Option<&[u8]> {
        self.buffer.root().extra().map(|extra| extra.bytes())
    }

    /// Returns true if the file has the identifier of Icechunk's files.
    pub fn has_identifier(&self) -> bool {
        self.buffer.has_identifier()
    }

    /// Returns the root table, for `icechunkfs_repo::repo::verify`, which checks members that
    /// nothing else reads.
    pub fn root(&self) -> fb::Snapshot<'_> {
        self.buffer.root()
    }

    /// Returns the bytes of the file with another parent; all else stays the same, bit for bit.
    /// Fails if the file names no parent: only files of version 1 do.
    pub fn with_parent(&self, parent: ObjectId) -> Result<Vec<u8>> {
        let stored = self.buffer.root().parent_id().filter(|_| self.version == SpecVersion::V1);
        let place = stored.and_then(|stored| self.buffer.range_of(&stored.0));
        let mut payload = self.bytes().to_vec();
        let slot = place.and_then(|place| payload.get_mut(place));
        let slot = slot.ok_or_else(|| Error::invalid(format!("snapshot {} names no parent in its file", self.id())))?;
        slot.copy_from_slice(&parent.0);
        envelope::encode(SpecVersion::V1, FileType::Snapshot, &payload, Compression::default())
    }

    /// Returns the snapshot that `draft` describes, as if it were written and decoded.
    pub fn from_draft(draft: &SnapshotDraft) -> Result<Self> {
        Self::of_payload(draft.payload()?, draft.version)
    }

    /// Returns the snapshot that `draft`, the content of a file of a release before 0.2, describes.
    /// Its memory is reserved like that of a file.
    pub fn translated(draft: &Metered<SnapshotDraft>) -> Result<Self> {
        const WHAT: &str = "a translated snapshot";
        let mut held = memory::reserve_blocking(2 * draft.reserved(), WHAT)?;
        let mut payload = draft.payload()?;
        payload.shrink_to_fit();
        held.resize(payload.len() as u64, WHAT)?;
        let payload = ReservedBytes::new(Bytes::from(payload), held);
        Self::from_verified(VerifiedFlatbuffer::new(payload)?, draft.version)
    }

    /// Returns the snapshot whose file has the uncompressed `payload`.
    pub fn of_payload(payload: impl Into<Bytes>, version: SpecVersion) -> Result<Self> {
        Self::from_verified(VerifiedFlatbuffer::new(payload.into())?, version)
    }

    /// Returns the uncompressed payload of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.slice(0..self.buffer.len())
    }

    fn from_verified(buffer: VerifiedFlatbuffer<fb::Snapshot<'static>>, version: SpecVersion) -> Result<Self> {
        let mut snapshot = Snapshot { buffer, version, node_table_size: 0 };
        snapshot.node_table_size = snapshot.measure_node_table()?;
        Ok(snapshot)
    }

    /// Returns the bytes that a table of the nodes takes, with their names and manifest references.
    ///
    /// Fails with [`icechunkfs_base::error::ErrorKind::Corrupt`] if that is out of proportion:
    /// parts of a flatbuffer may be shared, so that a few bytes could expand to very many.
    fn measure_node_table(&self) -> Result<u64> {
        let max = MAX_EXPANSION * self.buffer.len() as u64;
        let mut expanded = 0_u64;
        for stored in self.buffer.root().nodes() {
            expanded += NODE_BYTES + stored.path().len() as u64;
            if let Some(array) = stored.node_data_as_array() {
                expanded += ArrayData(array).table_size();
            }
            if expanded > max {
                return Err(Error::corrupt(
                    "the snapshot's nodes share parts of their manifest lists: decoding would take too much memory",
                ));
            }
        }
        Ok(expanded)
    }

    /// Reserves memory for tables of the nodes, by id or path, while a caller needs them. May block
    /// the thread.
    pub fn room_for_table(&self) -> Result<Reservation> {
        memory::reserve_blocking(self.node_table_size, "the table of its nodes")
    }

    /// Returns the most bytes that a table of the nodes takes.
    pub fn node_table_size(&self) -> u64 {
        self.node_table_size
    }

    /// Returns the version of this file, which may be older than the repository's.
    pub fn version(&self) -> SpecVersion {
        self.version
    }

    /// Returns the id that the file contains.
    pub fn id(&self) -> ObjectId {
        ObjectId::from(self.buffer.root().id())
    }

    /// Returns the parent's id, which only files of version 1 contain; in a migrated repository,
    /// `repo` takes precedence.
    pub fn parent_id(&self) -> Option<ObjectId> {
        self.buffer.root().parent_id().map(ObjectId::from)
    }

    /// Returns the time of the commit, in microseconds since 1970-01-01 UTC.
    pub fn flushed_at(&self) -> u64 {
        self.buffer.root().flushed_at()
    }

    /// Returns the commit message.
    pub fn message(&self) -> &str {
        self.buffer.root().message()
    }

    /// Returns the metadata of the commit.
    pub fn metadata(&self) -> Result<Metered<Map<String, Value>>> {
        metadata::to_json(Some(self.buffer.root().metadata()), self.version)
            .context(|| format!("snapshot {}", self.id()))
    }

    /// Returns the memory that the snapshot takes, in bytes.
    pub fn size(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the number of nodes.
    pub fn node_count(&self) -> usize {
        self.buffer.root().nodes().len()
    }

    /// Returns the ids of all nodes.
    pub fn node_ids(&self) -> HashSet<NodeId> {
        self.nodes().map(|node| node.id).collect()
    }

    /// Returns all nodes, in the file's order.
    pub fn nodes(&self) -> impl Iterator<Item = Node<'_>> {
        self.buffer.root().nodes().iter().map(node)
    }

    /// Returns the node at `position` of the file's order.
    pub fn node(&self, position: usize) -> Option<Node<'_>> {
        let nodes = self.buffer.root().nodes();
        (position < nodes.len()).then(|| node(nodes.get(position)))
    }

    /// Returns all manifest files that the snapshot lists.
    pub fn manifests(&self) -> Vec<ManifestInfo> {
        let root = self.buffer.root();
        let info = |id: &fb::ObjectId12, size, chunk_refs| ManifestInfo { id: id.into(), size, chunk_refs };
        let old = root.manifest_files().iter().map(|i| info(i.id(), i.size_bytes(), i.num_chunk_refs()));
        let new = root.manifest_files_v2().into_iter().flatten();
        let new = new.filter_map(|i| Some(info(i.id()?, i.size_bytes(), i.num_chunk_refs())));
        old.chain(new).collect()
    }

    /// Returns true if `other` says the same but for the parent, which an expiration of version 1
    /// changes in the file.
    pub fn is_same_but_for_parent(&self, other: &Snapshot) -> bool {
        let is_same_node = |(one, two): (Node<'_>, Node<'_>)| {
            let is_same_data = match (&one.data, &two.data) {
                (NodeData::Group, NodeData::Group) => true,
                (NodeData::Array(one), NodeData::Array(two)) => one.is_same(two),
                _ => false,
            };
            one.id == two.id && one.path == two.path && one.zarr_json == two.zarr_json && is_same_data
        };
        let items = |snapshot: &Snapshot| {
            let items = snapshot.buffer.root().metadata().iter();
            items.map(|item| (item.name().to_owned(), item.value().bytes().to_vec())).collect::<Vec<_>>()
        };
        self.version == other.version
            && self.id() == other.id()
            && self.flushed_at() == other.flushed_at()
            && self.message() == other.message()
            && items(self) == items(other)
            && self.manifests() == other.manifests()
            && self.node_count() == other.node_count()
            && std::iter::zip(self.nodes(), other.nodes()).all(is_same_node)
    }

    /// Returns all manifest files that the snapshot lists, by id.
    pub fn manifest_infos(&self) -> HashMap<ObjectId, ManifestInfo> {
        self.manifests().into_iter().map(|info| (info.id, info)).collect()
    }
}

fn node(stored: fb::NodeSnapshot<'_>) -> Node<'_> {
    let data = if let Some(array) = stored.node_data_as_array() {
        NodeData::Array(ArrayData(array))
    } else if stored.node_data_as_group().is_some() {
        NodeData::Group
    } else {
        NodeData::Unknown(stored.node_data_type().0)
    };
    Node { id: NodeId::from(stored.id()), path: stored.path(), zarr_json: stored.user_data().bytes(), data, stored }
}

/// Returns a dimension as version 1 stores it; none if a stored length is impossible.
fn dimension_of_version_1(stored: &fb::DimensionShape) -> Option<Dimension> {
    let array_length = stored.array_length();
    let chunk_length = stored.chunk_length();
    let num_chunks = match chunk_length {
        0 => (array_length == 0).then_some(0),
        chunk => u32::try_from(array_length.div_ceil(chunk)).ok(),
    };
    Some(Dimension { array_length, num_chunks: num_chunks?, chunk_length })
}

impl ManifestRef {
    /// Returns true if the chunk at `coords` lies within the extents.
    pub fn covers(&self, coords: &[u32]) -> bool {
        std::iter::zip(coords, &self.extents).all(|(coord, (from, to))| from <= coord && coord < to)
    }

    /// Returns true if some coordinates may lie within the extents of both. Missing extents
    /// restrict nothing.
    pub fn overlaps(&self, other: &ManifestRef) -> bool {
        overlap(&self.extents, &other.extents)
    }
}

/// Makes one of those of `manifests` that are the same, in the place of the first, with extents
/// that include those of all.
fn unite_repeated(manifests: &mut Vec<ManifestRef>) {
    let mut boxes: HashMap<ObjectId, Vec<(u32, u32)>> = HashMap::new();
    for manifest in manifests.iter() {
        match boxes.entry(manifest.id) {
            Entry::Occupied(entry) => {
                let known = entry.into_mut();
                *known = including(known, &manifest.extents);
            }
            Entry::Vacant(entry) => drop(entry.insert(manifest.extents.clone())),
        }
    }
    // The first of each takes its box, and the others find none.
    manifests.retain_mut(|manifest| match boxes.remove(&manifest.id) {
        Some(extents) => {
            manifest.extents = extents;
            true
        }
        None => false,
    });
}

/// Returns a box that includes both. Missing extents restrict nothing, so that the result has as
/// many as both have.
fn including(a: &[(u32, u32)], b: &[(u32, u32)]) -> Vec<(u32, u32)> {
    std::iter::zip(a, b).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1))).collect()
}

/// Returns true if some coordinates may lie within both boxes. Missing extents restrict nothing.
pub fn overlap(a: &[(u32, u32)], b: &[(u32, u32)]) -> bool {
    std::iter::zip(a, b).all(|(a, b)| a.0.max(b.0) < a.1.min(b.1))
}

impl<'a> ArrayData<'a> {
    /// Returns the table, for `icechunkfs_repo::repo::verify`.
    pub fn table(&self) -> fb::ArrayNodeData<'a> {
        self.0
    }

    /// Returns the manifests that list the array's chunks, in the order in which a lookup must try
    /// them. One that is listed again, which no writer does, is there once, with extents that
    /// include all.
    pub fn manifests(&self) -> Vec<ManifestRef> {
        let mut all: Vec<ManifestRef> =
            self.references().map(|(id, extents)| ManifestRef { id, extents: extents.collect() }).collect();
        if all.len() > 1 && all.iter().map(|manifest| manifest.id).collect::<HashSet<_>>().len() < all.len() {
            unite_repeated(&mut all);
        }
        all
    }

    /// Returns the ids of these manifests, each with the number of chunks that the array may have
    /// within its extents.
    pub fn places(&self) -> impl ExactSizeIterator<Item = (ObjectId, u64)> {
        let rank = self.rank();
        self.references().map(move |(id, extents)| (id, places(extents, rank)))
    }

    /// Returns true if [`ArrayData::manifests`] are `others`.
    pub fn has_manifests(&self, others: &[ManifestRef]) -> bool {
        let stored = self.references();
        let is_same = |((id, extents), other): ((ObjectId, _), &ManifestRef)| {
            id == other.id && Iterator::eq(extents, other.extents.iter().copied())
        };
        stored.len() == others.len() && std::iter::zip(stored, others).all(is_same)
    }

    /// Returns true if `other` is stored with the same shape, names and manifests.
    pub fn is_same(&self, other: &ArrayData<'_>) -> bool {
        let one = &self.0;
        let two = &other.0;
        let is_same_shape = match (one.shape_v2(), two.shape_v2()) {
            (Some(one), Some(two)) => {
                let sizes = |d: fb::DimensionShapeV2<'_>| (d.array_length(), d.num_chunks());
                one.iter().map(sizes).eq(two.iter().map(sizes))
            }
            (one, two) => one.is_none() && two.is_none(),
        };
        let has_same_names = match (one.dimension_names(), two.dimension_names()) {
            (Some(one), Some(two)) => one.iter().map(|d| d.name()).eq(two.iter().map(|d| d.name())),
            (one, two) => one.is_none() && two.is_none(),
        };
        let references = self.references();
        let others = other.references();
        is_same_shape
            && one.shape().iter().eq(two.shape().iter())
            && has_same_names
            && references.len() == others.len()
            && std::iter::zip(references, others).all(|(one, two)| one.0 == two.0 && one.1.eq(two.1))
    }

    /// Returns the ids and extents of the manifests.
    fn references(
        &self,
    ) -> impl ExactSizeIterator<Item = (ObjectId, impl ExactSizeIterator<Item = (u32, u32)> + 'a)> + 'a {
        self.0.manifests().iter().map(|stored| {
            let extents = stored.extents().iter().map(|range| (range.from(), range.to()));
            (ObjectId::from(stored.object_id()), extents)
        })
    }

    /// Returns the number of dimensions, as stored.
    pub fn rank(&self) -> usize {
        self.0.shape_v2().map_or_else(|| self.0.shape().len(), |dimensions| dimensions.len())
    }

    /// Returns true if the shape is stored as in `version`, and no stored length is impossible.
    pub fn is_shaped_as(&self, version: SpecVersion) -> bool {
        match (self.0.shape_v2(), version) {
            (Some(_), SpecVersion::V2) => true,
            (None, SpecVersion::V1) => self.0.shape().iter().all(|stored| dimension_of_version_1(stored).is_some()),
            _ => false,
        }
    }

    /// Returns copies of the names of the dimensions, if there are any.
    pub fn copied_names(&self) -> Option<Vec<Option<String>>> {
        Some(self.dimension_names()?.map(|name| name.map(str::to_owned)).collect())
    }

    /// Returns the names of the dimensions, if there are any.
    pub fn dimension_names(&self) -> Option<impl ExactSizeIterator<Item = Option<&'a str>> + 'a> {
        Some(self.0.dimension_names()?.iter().map(|d| d.name()))
    }

    /// Returns the bytes that the array takes in tables: its shape, names and references to
    /// manifests.
    fn table_size(&self) -> u64 {
        let names = self.dimension_names().into_iter().flatten();
        let names = names.map(|name| size_of::<String>() + name.map_or(0, str::len));
        let manifests = self.references();
        let manifests =
            manifests.map(|(_, extents)| size_of::<ManifestRef>() + extents.len() * size_of::<(u32, u32)>());
        let shape = self.rank() * size_of::<Dimension>();
        (shape as u64)
            .saturating_add(names.map(|bytes| bytes as u64).sum())
            .saturating_add(manifests.map(|bytes| bytes as u64).sum())
    }

    /// Returns the dimensions as stored; `None` if a stored length is impossible.
    pub fn dimensions(&self) -> Option<Vec<Dimension>> {
        let new = |d: fb::DimensionShapeV2<'_>| {
            let array_length = d.array_length();
            let num_chunks = d.num_chunks();
            let chunk_length = if num_chunks == 0 { 0 } else { array_length.div_ceil(u64::from(num_chunks)) };
            Dimension { array_length, num_chunks, chunk_length }
        };
        match self.0.shape_v2() {
            Some(dimensions) => Some(dimensions.iter().map(new).collect()),
            None => self.0.shape().iter().map(dimension_of_version_1).collect(),
        }
    }

    /// Returns the chunks per dimension as stored, for arrays whose `zarr.json` does not state
    /// them; `None` if a stored length is impossible.
    pub fn grid(&self) -> Option<Vec<u32>> {
        Some(self.dimensions()?.iter().map(|d| d.num_chunks).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
    use flatbuffers::FlatBufferBuilder;

    use super::super::testing;
    use super::*;

    /// Returns a snapshot with `arrays` arrays that share references to `references` manifests,
    /// which share extents of `rank` dimensions.
    fn shared(arrays: u32, references: usize, rank: usize) -> Vec<u8> {
        let mut b = FlatBufferBuilder::new();
        let extents = Some(b.create_vector(&vec![fb::ChunkIndexRange::new(0, 1); rank]));
        let manifest = fb::ObjectId12::new(&[7; 12]);
        let args = fb::ManifestRefArgs { object_id: Some(&manifest), extents };
        let references: Vec<_> = (0..references).map(|_| fb::ManifestRef::create(&mut b, &args)).collect();
        let shape = Some(b.create_vector::<fb::DimensionShape>(&[]));
        let manifests = Some(b.create_vector(&references));
        let args = fb::ArrayNodeDataArgs { shape, manifests, ..Default::default() };
        let array = fb::ArrayNodeData::create(&mut b, &args).as_union_value();
        let user_data = Some(b.create_vector(b"{}"));
        let nodes: Vec<_> = (0..arrays)
            .map(|n| {
                let path = Some(b.create_string(&format!("/{n}")));
                let id = fb::ObjectId8::new(&u64::from(n).to_be_bytes());
                let node_data = Some(array);
                let id = Some(&id);
                let node_data_type = fb::NodeData::Array;
                let args = fb::NodeSnapshotArgs { id, path, user_data, node_data_type, node_data, extra: None };
                fb::NodeSnapshot::create(&mut b, &args)
            })
            .collect();
        testing::snapshot_of(b, ObjectId([7; 12]), &nodes)
    }

    #[test]
    fn a_manifest_that_is_listed_again_is_there_once() {
        let snapshot = Snapshot::decode(&shared(1, 100, 2), 1 << 30).unwrap();
        let node = snapshot.nodes().next().unwrap();
        let NodeData::Array(array) = node.data else { panic!("no array") };
        let manifests = array.manifests();
        assert_eq!((manifests.len(), manifests[0].extents.as_slice()), (1, [(0, 1), (0, 1)].as_slice()));
        assert_eq!(including(&[(2, 3), (0, 9)], &[(5, 6), (1, 2)]), [(2, 6), (0, 9)]);
    }

    #[test]
    fn disproportionate_sharing_is_refused() {
        let decode = |file: Vec<u8>| Snapshot::decode(&file, 1 << 30);
        assert_eq!(decode(shared(1000, 0, 0)).unwrap().nodes().count(), 1000);
        assert_eq!(decode(shared(1, 100, 4)).unwrap().nodes().count(), 1);
        // Each of these files has a few kilobytes.
        let error = decode(shared(1, 100, 1000)).unwrap_err().to_string();
        assert!(error.contains("too much memory"), "{error}");
        assert!(decode(shared(100, 40, 4)).is_err());
    }

    #[test]
    fn extents_bound_the_chunks_of_their_rank_only() {
        let places = |extents: &[(u32, u32)], rank| {
            ManifestRef { id: ObjectId([0; 12]), extents: extents.to_vec() }.places(rank)
        };
        assert_eq!((places(&[], 0), places(&[(2, 5), (0, 4)], 2), places(&[(5, 5)], 1)), (1, 12, 0));
        assert_eq!((places(&[], 2), places(&[(0, 3)], 2)), (u64::MAX, u64::MAX));
        assert_eq!(places(&[(0, u32::MAX); 3], 3), u64::MAX);
    }
}
