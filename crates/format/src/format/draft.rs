//! Encodes new snapshots and transaction logs, in either version of the format.
//!
//! Encoding sorts the lists that files have sorted, and refuses a draft that the reference
//! implementation would not read, or would panic on later.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use flatbuffers::WIPOffset;

use super::envelope::{self, Compression, FileType, SpecVersion};
use super::generated::icechunk as fb;
use super::ids::{NodeId, ObjectId};
use super::kept_nodes::{KeptNodes, ListedNode, Tail};
use super::repo_state::{Builder, RawItem, Tables, tables, write_items};
use super::snapshot::{ArrayData, Dimension, ManifestInfo, ManifestRef, Node, NodeData};
use super::transaction_log::{Move, NodeChange};
use super::unknown;
use icechunkfs_base::error::{Error, Result};

/// Bytes that a snapshot may have more than the one whose nodes it keeps, before its buffer has to
/// grow.
const ROOM_TO_GROW: usize = 64 << 10;

/// Snapshot to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotDraft {
    /// Id of the snapshot, and name of its file.
    pub id: ObjectId,
    /// Time of the commit, in microseconds since 1970-01-01 UTC.
    pub flushed_at: u64,
    /// Format version to write.
    pub version: SpecVersion,
    /// Parent, which only files of version 1 contain.
    pub parent: Option<ObjectId>,
    /// Commit message.
    pub message: String,
    /// Metadata of the commit, in the encoding of `version`.
    pub metadata: Vec<RawItem>,
    /// All groups and arrays, in any order.
    pub nodes: Vec<NodeDraft>,
    /// All manifests that the nodes refer to, and no others, in any order.
    pub manifests: Vec<ManifestInfo>,
    /// Bytes that newer releases give a meaning.
    pub extra: Option<Vec<u8>>,
}

/// Group or array of a [`SnapshotDraft`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDraft {
    /// Id that the node keeps for its lifetime.
    pub id: NodeId,
    /// Absolute, canonical path.
    pub path: String,
    /// Content of `zarr.json`, byte for byte.
    pub zarr_json: Vec<u8>,
    /// Shape and manifests of an array; `None` for a group.
    pub array: Option<ArrayDraft>,
    /// Bytes that newer releases give a meaning.
    pub extra: Option<Vec<u8>>,
}

/// Shape of an array, and the manifests that list its chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayDraft {
    /// Dimensions of the array.
    pub shape: Vec<Dimension>,
    /// Names of the dimensions, one per dimension, if `zarr.json` has any.
    pub dimension_names: Option<Vec<Option<String>>>,
    /// Manifests, in the order in which a lookup tries them.
    pub manifests: Vec<ManifestRef>,
}

/// Node to be written: a new one, or one that stays as it is.
#[derive(Debug)]
enum Entry<'a> {
    Drafted(&'a NodeDraft),
    Kept(u32, Node<'a>),
}

impl Entry<'_> {
    /// Fails if the node cannot be written again without a loss.
    fn check(&self) -> Result<()> {
        match self {
            Entry::Drafted(_) => Ok(()),
            Entry::Kept(_, node) => node.extra().map(drop),
        }
    }

    fn path(&self) -> &str {
        match self {
            Entry::Drafted(node) => &node.path,
            Entry::Kept(_, node) => node.path,
        }
    }
}

impl ArrayDraft {
    /// Returns the draft of an array that stays as `stored`; none if a stored length is impossible.
    pub fn of(stored: &ArrayData<'_>) -> Option<Self> {
        Some(ArrayDraft {
            shape: stored.dimensions()?,
            dimension_names: stored.copied_names(),
            manifests: stored.manifests(),
        })
    }
}

impl SnapshotDraft {
    /// Drafts a snapshot of version 2 without metadata and nodes.
    pub fn new(id: ObjectId, flushed_at: u64, message: impl Into<String>) -> Self {
        SnapshotDraft {
            id,
            flushed_at,
            version: SpecVersion::V2,
            parent: None,
            message: message.into(),
            metadata: Vec::new(),
            nodes: Vec::new(),
            manifests: Vec::new(),
            extra: None,
        }
    }

    /// Encodes the file. Fails if two nodes have the same path, or if `manifests` lists other
    /// manifests than the nodes use.
    pub fn encode(&self) -> Result<Vec<u8>> {
        envelope::encode(self.version, FileType::Snapshot, &self.payload()?, Compression::default())
    }

    /// Returns the uncompressed payload of the file.
    pub(crate) fn payload(&self) -> Result<Vec<u8>> {
        self.payload_with(None)
    }

    /// Returns the uncompressed payload of the file, which has the nodes `kept`, too. Their
    /// manifests are among those of the draft.
    pub fn payload_with(&self, kept: Option<&KeptNodes>) -> Result<Vec<u8>> {
        let extras = match kept {
            Some(kept) => unknown::extras_of_manifests(kept.snapshot.root())?,
            None => HashMap::new(),
        };
        let kept = kept.filter(|kept| !kept.positions.is_empty());
        let (nodes, used) = self.entries(kept)?;
        let mut manifests = self.manifests.clone();
        manifests.sort_by_key(|info| info.id);
        manifests.dedup_by_key(|info| info.id);
        self.check_manifests(used, &manifests)?;

        // The time, which is never 0, gives the front the alignment that the tail has.
        let tail = kept.filter(|_| self.flushed_at > 0).and_then(|kept| Tail::of(kept, &self.nodes));
        if tail.is_none() {
            nodes.iter().try_for_each(Entry::check)?;
        }
        let kept_bytes = kept.filter(|_| tail.is_none()).map_or(0, |kept| kept.snapshot.size());
        // Growing copies what is there.
        let mut b = Builder::with_capacity(kept_bytes + nodes.len() * size_of::<u32>() + ROOM_TO_GROW);
        let (nodes, listed) = match &tail {
            None => (self.write_all(&mut b, nodes), Vec::new()),
            Some(tail) => self.write_before(tail, &mut b, nodes)?,
        };
        let list = nodes.value() as usize;
        let (old, new) = match self.version {
            SpecVersion::V1 => {
                let info = |info: &ManifestInfo| {
                    fb::ManifestFileInfo::new(&fb::ObjectId12(info.id.0), info.size, info.chunk_refs)
                };
                (b.create_vector_from_iter(manifests.iter().map(info)), None)
            }
            SpecVersion::V2 => {
                let infos = tables(&mut b, &manifests, |b, info| write_info(b, info, extras.get(&info.id)));
                (b.create_vector::<fb::ManifestFileInfo>(&[]), Some(infos))
            }
        };
        let parent = self.parent.filter(|_| self.version == SpecVersion::V1).map(|id| fb::ObjectId12(id.0));
        let args = fb::SnapshotArgs {
            id: Some(&fb::ObjectId12(self.id.0)),
            parent_id: parent.as_ref(),
            nodes: Some(nodes),
            flushed_at: self.flushed_at,
            message: Some(b.create_string(&self.message)),
            metadata: Some(write_items(&mut b, &self.metadata)),
            manifest_files: Some(old),
            manifest_files_v2: new,
            extra: self.extra.as_ref().map(|extra| b.create_vector(extra)),
        };
        let root = fb::Snapshot::create(&mut b, &args);
        b.finish(root, Some(envelope::FILE_IDENTIFIER));
        let (mut payload, start) = b.collapse();
        payload.drain(..start);
        match tail {
            Some(tail) => tail.join(payload, list, &listed),
            None => Ok(payload),
        }
    }

    /// Returns the nodes of the draft and those that are `kept`, in the order of the file, with the
    /// manifests that the kept ones use.
    fn entries<'a>(&'a self, kept: Option<&'a KeptNodes>) -> Result<(Vec<Entry<'a>>, Vec<ObjectId>)> {
        if let Some(kept) = kept.filter(|kept| kept.snapshot.version() != self.version) {
            return Err(Error::invalid(format!("nodes of snapshot {} are of another version", kept.snapshot.id())));
        }
        let mut nodes = Vec::with_capacity(self.nodes.len() + kept.map_or(0, |kept| kept.positions.len()));
        // Neighbors share manifests.
        let mut used: Vec<ObjectId> = Vec::new();
        for (position, node) in kept.into_iter().flat_map(KeptNodes::nodes) {
            if !node.is_stored_as(self.version) {
                return Err(Error::invalid(format!("node {:?} cannot stay as it is stored", node.path)));
            }
            if let NodeData::Array(array) = &node.data {
                for (id, _) in array.places() {
                    if used.last() != Some(&id) {
                        used.push(id);
                    }
                }
            }
            nodes.push(Entry::Kept(position, node));
        }
        if kept.is_some_and(|kept| kept.positions.len() != nodes.len()) {
            return Err(Error::invalid("a node to keep is not in its snapshot"));
        }
        nodes.extend(self.nodes.iter().map(Entry::Drafted));
        sort(&mut nodes)?;
        Ok((nodes, used))
    }

    /// Writes all nodes, and their list.
    fn write_all(&self, b: &mut Builder, nodes: Vec<Entry<'_>>) -> Tables<fb::NodeSnapshot<'static>> {
        tables(b, nodes, |b, node| match node {
            Entry::Drafted(node) => write_node(b, self.version, node),
            Entry::Kept(_, node) => write_kept(b, self.version, &node),
        })
    }

    /// Writes the nodes that `tail` does not have, and a list of the right length: its offsets
    /// follow when the places, which are returned, are known.
    fn write_before(
        &self,
        tail: &Tail<'_>,
        b: &mut Builder,
        nodes: Vec<Entry<'_>>,
    ) -> Result<(Tables<fb::NodeSnapshot<'static>>, Vec<ListedNode>)> {
        let mut listed = Vec::with_capacity(nodes.len());
        for node in nodes {
            listed.push(match node {
                Entry::Drafted(node) => ListedNode::InFront(write_node(b, self.version, node).value() as usize),
                Entry::Kept(position, node) => {
                    let place = tail.place(position).map(ListedNode::InTail);
                    place.ok_or_else(|| {
                        Error::invalid(format!("node {:?} is not where its snapshot has it", node.path))
                    })?
                }
            });
        }
        let list = WIPOffset::new(b.create_vector(&vec![0_u32; listed.len()]).value());
        Ok((list, listed))
    }

    /// Fails if the list of manifests is not exactly what the nodes refer to: the reference
    /// implementation would refuse to commit onto the snapshot.
    fn check_manifests(&self, kept: Vec<ObjectId>, listed: &[ManifestInfo]) -> Result<()> {
        let arrays = self.nodes.iter().filter_map(|node| node.array.as_ref());
        let mut used: BTreeSet<ObjectId> = arrays.flat_map(|array| array.manifests.iter().map(|m| m.id)).collect();
        used.extend(kept);
        if used.iter().eq(listed.iter().map(|info| &info.id)) {
            return Ok(());
        }
        Err(Error::invalid(format!("snapshot {} lists other manifests than its arrays refer to", self.id)))
    }
}

/// Sorts nodes by the bytes of their paths, whatever the specification states: the reference
/// implementation bisects this order. Fails if two have the same path.
fn sort(nodes: &mut [Entry<'_>]) -> Result<()> {
    let is_ascending = |pair: &[Entry<'_>]| matches!(pair, [x, y] if x.path().as_bytes() < y.path().as_bytes());
    if nodes.windows(2).all(is_ascending) {
        return Ok(());
    }
    nodes.sort_by(|x, y| x.path().as_bytes().cmp(y.path().as_bytes()));
    match nodes.windows(2).find(|pair| !is_ascending(pair)).and_then(<[_]>::first) {
        Some(twice) => Err(Error::invalid(format!("node {:?} is in the snapshot twice", twice.path()))),
        None => Ok(()),
    }
}

fn write_info(
    b: &mut Builder,
    info: &ManifestInfo,
    extra: Option<&Vec<u8>>,
) -> WIPOffset<fb::ManifestFileInfoV2<'static>> {
    let id = Some(&fb::ObjectId12(info.id.0));
    let num_chunk_refs = info.chunk_refs;
    let extra = extra.map(|extra| b.create_vector(extra));
    let args = fb::ManifestFileInfoV2Args { id, size_bytes: info.size, num_chunk_refs, extra };
    fb::ManifestFileInfoV2::create(b, &args)
}

pub(super) fn write_node(
    b: &mut Builder,
    version: SpecVersion,
    node: &NodeDraft,
) -> WIPOffset<fb::NodeSnapshot<'static>> {
    let NodeDraft { id, path, zarr_json, array, extra, .. } = node;
    let parts = NodeParts { id: *id, path, zarr_json, array: array.as_ref(), extra: extra.as_deref() };
    write_parts(b, version, parts)
}

fn write_kept(b: &mut Builder, version: SpecVersion, node: &Node<'_>) -> WIPOffset<fb::NodeSnapshot<'static>> {
    let array = match &node.data {
        // It is stored as in this version: see `payload_with`.
        NodeData::Array(stored) => Some(ArrayDraft::of(stored).unwrap_or_default()),
        _ => None,
    };
    let extra = node.stored.extra().map(|extra| extra.bytes());
    let Node { id, path, zarr_json, .. } = *node;
    write_parts(b, version, NodeParts { id, path, zarr_json, array: array.as_ref(), extra })
}

/// Content of a node's table.
struct NodeParts<'a> {
    id: NodeId,
    path: &'a str,
    zarr_json: &'a [u8],
    array: Option<&'a ArrayDraft>,
    extra: Option<&'a [u8]>,
}

fn write_parts(
    b: &mut Builder,
    version: SpecVersion,
    NodeParts { id, path, zarr_json, array, extra }: NodeParts<'_>,
) -> WIPOffset<fb::NodeSnapshot<'static>> {
    let (node_data_type, node_data) = match array {
        None => (fb::NodeData::Group, fb::GroupNodeData::create(b, &fb::GroupNodeDataArgs {}).as_union_value()),
        Some(array) => (fb::NodeData::Array, write_array(b, version, array).as_union_value()),
    };
    let args = fb::NodeSnapshotArgs {
        id: Some(&fb::ObjectId8(id.0)),
        path: Some(b.create_string(path)),
        user_data: Some(b.create_vector(zarr_json)),
        node_data_type,
        node_data: Some(node_data),
        extra: extra.map(|extra| b.create_vector(extra)),
    };
    fb::NodeSnapshot::create(b, &args)
}

fn write_array(b: &mut Builder, version: SpecVersion, array: &ArrayDraft) -> WIPOffset<fb::ArrayNodeData<'static>> {
    // In version 2, `shape` must be present and empty, and `shape_v2` present even for 0-d arrays:
    // otherwise the reference implementation reads the array as version 1.
    let (shape, shape_v2) = match version {
        SpecVersion::V1 => {
            let dimensions = array.shape.iter().map(|d| fb::DimensionShape::new(d.array_length, d.chunk_length));
            (b.create_vector_from_iter(dimensions), None)
        }
        SpecVersion::V2 => {
            let dimensions = tables(b, &array.shape, |b, d| {
                let args = fb::DimensionShapeV2Args { array_length: d.array_length, num_chunks: d.num_chunks };
                fb::DimensionShapeV2::create(b, &args)
            });
            (b.create_vector::<fb::DimensionShape>(&[]), Some(dimensions))
        }
    };
    let dimension_names = array.dimension_names.as_ref().map(|names| {
        tables(b, names, |b, name| {
            // An empty name counts as no name.
            let name = name.as_deref().filter(|name| !name.is_empty()).map(|name| b.create_string(name));
            fb::DimensionName::create(b, &fb::DimensionNameArgs { name })
        })
    });
    let manifests = tables(b, &array.manifests, |b, manifest| {
        let ranges = manifest.extents.iter().map(|(from, to)| fb::ChunkIndexRange::new(*from, *to));
        let object_id = Some(&fb::ObjectId12(manifest.id.0));
        let extents = Some(b.create_vector_from_iter(ranges));
        fb::ManifestRef::create(b, &fb::ManifestRefArgs { object_id, extents })
    });
    let shape = Some(shape);
    let manifests = Some(manifests);
    fb::ArrayNodeData::create(b, &fb::ArrayNodeDataArgs { shape, dimension_names, manifests, shape_v2 })
}

/// Transaction log to write. Lists may be in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransactionLogDraft {
    /// Nodes created, deleted (including those below a deleted group) and updated, without those
    /// that only moved. A node has one change: the format allows it in one list only.
    pub nodes: BTreeMap<NodeId, NodeChange>,
    /// Chunks written or deleted, per array.
    pub updated_chunks: Vec<(NodeId, Vec<Vec<u32>>)>,
    /// Nodes moved, each together with everything below it.
    pub moves: Vec<Move>,
}

impl TransactionLogDraft {
    /// Encodes the file for snapshot `id`, in the format of `version`.
    pub fn encode(&self, id: ObjectId, version: SpecVersion, compression: Compression) -> Result<Vec<u8>> {
        let mut b = Builder::new();
        let [new_groups, new_arrays, deleted_groups, deleted_arrays, updated_groups, updated_arrays] = NodeChange::ALL
            .map(|change| {
                let ids = self.nodes.iter().filter(|(_, of)| **of == change);
                let ids: Vec<_> = ids.map(|(id, _)| fb::ObjectId8(id.0)).collect();
                Some(b.create_vector(&ids))
            });
        let mut updated: Vec<&(NodeId, Vec<Vec<u32>>)> = self.updated_chunks.iter().collect();
        updated.sort_by_key(|(node, _)| *node);
        let updated_chunks = Some(tables(&mut b, updated, |b, (node, chunks)| write_chunks(b, *node, chunks)));
        let mut moves: Vec<&Move> = self.moves.iter().collect();
        // Sort by component, unlike the nodes of a snapshot: no component has a NUL, so it suffices
        // to let `/` sort first.
        moves.sort_by_cached_key(|m| m.to.replace('/', "\0"));
        let moved_nodes = Some(tables(&mut b, moves, write_move));
        let args = fb::TransactionLogArgs {
            id: Some(&fb::ObjectId12(id.0)),
            new_groups,
            new_arrays,
            deleted_groups,
            deleted_arrays,
            updated_arrays,
            updated_groups,
            updated_chunks,
            moved_nodes,
            extra: None,
        };
        let root = fb::TransactionLog::create(&mut b, &args);
        b.finish(root, Some(envelope::FILE_IDENTIFIER));
        envelope::encode(version, FileType::TransactionLog, b.finished_data(), compression)
    }
}

fn write_chunks(b: &mut Builder, node: NodeId, chunks: &[Vec<u32>]) -> WIPOffset<fb::ArrayUpdatedChunks<'static>> {
    let mut sorted: Vec<&Vec<u32>> = chunks.iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    let chunks = Some(tables(b, sorted, |b, coords| {
        let coords = Some(b.create_vector(coords));
        fb::ChunkIndices::create(b, &fb::ChunkIndicesArgs { coords })
    }));
    fb::ArrayUpdatedChunks::create(b, &fb::ArrayUpdatedChunksArgs { node_id: Some(&fb::ObjectId8(node.0)), chunks })
}

fn write_move(b: &mut Builder, moved: &Move) -> WIPOffset<fb::MoveOperation<'static>> {
    let args = fb::MoveOperationArgs {
        from: Some(b.create_string(&moved.from)),
        to: Some(b.create_string(&moved.to)),
        node_id: Some(&fb::ObjectId8(moved.node.0)),
        node_type: if moved.is_array { fb::NodeType::Array } else { fb::NodeType::Group },
    };
    fb::MoveOperation::create(b, &args)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::format::snapshot::{NodeData, Snapshot};
    use crate::format::testing::{id, node_id};
    use crate::format::transaction_log::NodeChange;
    use crate::format::transaction_log::TransactionLog;

    fn group(n: u8, path: &str) -> NodeDraft {
        NodeDraft { id: node_id(n), path: path.into(), zarr_json: b"{}".to_vec(), array: None, extra: None }
    }

    fn draft(nodes: Vec<NodeDraft>, manifests: Vec<ManifestInfo>) -> SnapshotDraft {
        let metadata = vec![RawItem::new(SpecVersion::V2, "b", &serde_json::json!([1])).unwrap()];
        SnapshotDraft { metadata, nodes, manifests, ..SnapshotDraft::new(id(1), 7, "m") }
    }

    const DIMENSION: Dimension = Dimension { array_length: 10, num_chunks: 3, chunk_length: 4 };
    const INFO: ManifestInfo = ManifestInfo { id: ObjectId([9; 12]), size: 100, chunk_refs: 3 };

    fn array(path: &str) -> NodeDraft {
        let manifests = vec![ManifestRef { id: id(9), extents: vec![(0, 3)] }];
        let dimension_names = Some(vec![Some("x".into())]);
        NodeDraft { array: Some(ArrayDraft { shape: vec![DIMENSION], dimension_names, manifests }), ..group(4, path) }
    }

    #[test]
    fn snapshots_survive_the_round_trip_and_are_sorted_by_bytes() {
        let draft = draft(vec![array("/a/b"), group(1, "/"), group(2, "/a-b"), group(3, "/a")], vec![INFO]);
        let snapshot = Snapshot::decode(&draft.encode().unwrap(), 1 << 20).unwrap();
        let paths: Vec<&str> = snapshot.nodes().map(|node| node.path).collect();
        assert_eq!(paths, ["/", "/a", "/a-b", "/a/b"]);
        let said = (snapshot.id(), snapshot.flushed_at(), snapshot.message(), snapshot.parent_id());
        assert_eq!(said, (id(1), 7, "m", None));
        assert_eq!(serde_json::Value::from(snapshot.metadata().unwrap().into_inner()), serde_json::json!({"b": [1]}));
        assert_eq!(snapshot.manifests(), [INFO]);
        let last = snapshot.nodes().last().unwrap();
        let NodeData::Array(data) = last.data else { unreachable!("an array") };
        assert_eq!(data.copied_names(), Some(vec![Some("x".into())]));
        let manifests = vec![ManifestRef { id: id(9), extents: vec![(0, 3)] }];
        assert_eq!((data.grid(), data.manifests()), (Some(vec![3]), manifests));
    }

    #[test]
    fn version_1_has_other_lists() {
        let mut draft = draft(vec![array("/a")], vec![INFO]);
        draft.version = SpecVersion::V1;
        draft.parent = Some(id(5));
        let value = serde_json::json!({"x": [1, -2, 0.5, null, "s"]});
        draft.metadata = vec![RawItem::new(SpecVersion::V1, "b", &value).unwrap()];
        let snapshot = Snapshot::decode(&draft.encode().unwrap(), 1 << 20).unwrap();
        assert_eq!((snapshot.version(), snapshot.parent_id()), (SpecVersion::V1, Some(id(5))));
        assert_eq!(snapshot.manifests(), [INFO]);
        assert_eq!(snapshot.metadata().unwrap().get("b"), Some(&value));
        let NodeData::Array(data) = snapshot.node(0).unwrap().data else { unreachable!("an array") };
        assert_eq!((data.grid(), data.dimensions()), (Some(vec![3]), Some(vec![DIMENSION])));
    }

    #[test]
    fn drafts_that_the_reference_cannot_read_are_refused() {
        assert!(draft(vec![group(1, "/")], vec![INFO]).encode().is_err());
        assert!(draft(vec![group(1, "/a"), group(2, "/a")], vec![]).encode().is_err());
    }

    #[test]
    fn transaction_logs_survive_the_round_trip() {
        let moved = |to: &str| Move { from: "/x".into(), to: to.into(), node: node_id(5), is_array: true };
        let draft = TransactionLogDraft {
            nodes: [node_id(2), node_id(1), node_id(2)].map(|id| (id, NodeChange::NewGroups)).into(),
            updated_chunks: vec![(node_id(4), vec![]), (node_id(3), vec![vec![1, 0], vec![0, 5], vec![1, 0]])],
            moves: vec![moved("/a-b"), moved("/a/b"), moved("/a")],
        };
        let log =
            TransactionLog::decode(&draft.encode(id(1), SpecVersion::V2, Compression::default()).unwrap(), 1 << 20)
                .unwrap();
        assert_eq!(log.id(), id(1));
        assert_eq!(log.nodes(NodeChange::NewGroups).collect::<Vec<_>>(), [node_id(1), node_id(2)]);
        assert_eq!(log.nodes(NodeChange::NewArrays).count(), 0);
        let chunks: Vec<(NodeId, Vec<Vec<u32>>)> =
            log.updated_chunks().map(|(node, all)| (node, all.map(|one| one.coords().collect()).collect())).collect();
        assert_eq!(chunks, [(node_id(3), vec![vec![0, 5], vec![1, 0]]), (node_id(4), vec![])]);
        let to: Vec<String> = log.moves().unwrap().into_iter().map(|m| m.to).collect();
        assert_eq!(to, ["/a", "/a/b", "/a-b"]);
    }
}
