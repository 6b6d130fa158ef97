//! Reads snapshots of releases before 0.2: every node with the fields of its `zarr.json`, and a
//! part of the history.
//!
//! The structure changed with every release. Members of MessagePack arrays have no names, so their
//! number identifies the structure:
//!
//! | members | releases | order |
//! |---|---|---|
//! | 7 | none: the first layout | as alpha 1, without the first four |
//! | 11 | alpha 1 to 9 | version, flags, manifests, attribute files, two history lengths, history, own commit, start, properties, nodes |
//! | 9 | alpha 10 and later | as alpha 1, without version and flags |
//! | 8 | 0.1.0 to 0.1.3 | id, parent, time, message, properties, manifests, attribute files, nodes |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::super::draft::{ArrayDraft, NodeDraft, SnapshotDraft};
use super::super::envelope::{FileType, SpecVersion};
use super::super::ids::ObjectId;
use super::super::json;
use super::super::repo_state::RawItem;
use super::super::snapshot::{ManifestInfo, ManifestRef};
use super::attributes::{Attributes, AttributesFile};
use super::values::{AlphaNodeId, AlphaObjectId, IdAndNumbers, Time};
use super::wrapping::{self, Body, Unwrapped};
use super::zarr_json::{self, ArrayFields};
use super::{bounds, parse};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::{self, Meter, Metered};

/// Bytes of a node, a dimension, a manifest or a metadata item in a draft, and in the file that is
/// made of it, apart from texts.
const DRAFTED: u64 = 256;

/// Decoded snapshot file of a release before 0.2.
#[derive(Debug)]
pub struct AlphaSnapshot {
    /// Commit that wrote the snapshot.
    pub commit: Commit,
    /// Metadata of the commit.
    pub properties: Map<String, Value>,
    /// Ancestors that the file describes, newest first; from 0.1.0 on, only the parent's id.
    ancestors: Ancestors,
    nodes: Vec<NodeFields>,
    manifests: BTreeMap<ObjectId, ManifestInfo>,
    meter: Meter,
}

/// Commit, as its own snapshot or a later one describes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "StoredCommit")]
pub struct Commit {
    /// Id of the snapshot.
    pub id: ObjectId,
    /// Time of the commit, in microseconds since 1970-01-01 UTC.
    pub flushed_at: u64,
    /// Commit message.
    pub message: String,
}

#[derive(Debug)]
enum Ancestors {
    Parent(Option<ObjectId>),
    Listed(Vec<Commit>),
}

#[derive(Debug, Deserialize)]
struct NodeFields {
    id: AlphaNodeId,
    path: String,
    user_attributes: Option<StoredAttributes>,
    node_data: NodeData,
}

#[derive(Debug, Deserialize)]
enum NodeData {
    Array(Box<ArrayFields>, Vec<IdAndNumbers>),
    Group,
}

#[derive(Debug, Deserialize)]
enum StoredAttributes {
    Inline(Attributes),
    Ref(AttributesRef),
}

#[derive(Debug, Deserialize)]
struct AttributesRef {
    object_id: AlphaObjectId,
    location: u64,
    #[serde(default, rename = "flags")]
    _flags: IgnoredAny,
}

#[derive(Debug, Deserialize)]
struct StoredCommit {
    id: AlphaObjectId,
    written_at: Time,
    message: String,
}

/// Nodes of a snapshot: a map from paths, which the nodes repeat.
#[derive(Debug)]
struct Nodes(Vec<NodeFields>);

type Properties = Option<Map<String, Value>>;
type Skip = IgnoredAny;

/// Snapshot of alpha 10 and later.
type SnapshotAlpha10 = (Vec<IdAndNumbers>, Skip, Skip, Skip, Vec<Commit>, Commit, Skip, Properties, Nodes);

/// Snapshot of alpha 1 to 9.
type SnapshotAlpha1 = (Skip, Skip, Vec<IdAndNumbers>, Skip, Skip, Skip, Vec<Commit>, Commit, Skip, Properties, Nodes);

/// Snapshot of 0.1.0 to 0.1.3.
type Snapshot010 = (AlphaObjectId, Option<AlphaObjectId>, Time, String, Properties, Vec<IdAndNumbers>, Skip, Nodes);

/// Snapshot of the first layout, with or without names of members.
#[derive(Deserialize)]
struct SnapshotFirstLayout {
    #[serde(rename = "total_parents")]
    _total_parents: Skip,
    #[serde(rename = "short_term_parents")]
    _short_term_parents: Skip,
    short_term_history: Vec<Commit>,
    metadata: Commit,
    #[serde(rename = "started_at")]
    _started_at: Skip,
    properties: Properties,
    nodes: Nodes,
}

impl AlphaSnapshot {
    /// Decodes a snapshot file whose payload may take `limit` bytes of memory.
    pub fn decode(file: &[u8], limit: u64) -> Result<Self> {
        let body = match wrapping::open(file, FileType::Snapshot, limit)? {
            Unwrapped::Alpha(body) => body,
            Unwrapped::Flatbuffer(..) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "a snapshot of 0.2 or later in a repository from before",
                ));
            }
        };
        let elements = bounds::check(&body)?;
        Self::parse(&body, elements)
    }

    fn parse(body: &Body, elements: Option<u64>) -> Result<Self> {
        fn read<T: DeserializeOwned>(body: &Body, meter: &mut Meter) -> Result<T> {
            parse(body, "snapshot", meter)
        }
        let mut meter = Meter::new("what a snapshot says");
        match elements {
            Some(11) => {
                let (_, _, manifests, _, _, _, history, commit, _, properties, nodes): SnapshotAlpha1 =
                    read(body, &mut meter)?;
                // Each manifest has an id and the version of its file.
                let manifests = manifests.into_iter().map(|m| (m.id, 0, 0));
                Ok(Self::with_history(commit, history, properties, nodes, manifests, meter))
            }
            Some(9) => {
                let (manifests, _, _, _, history, commit, _, properties, nodes): SnapshotAlpha10 =
                    read(body, &mut meter)?;
                // Each manifest has an id, the version of its file, and its size.
                let manifests = manifests.into_iter().map(|m| (m.id, m.numbers[1], 0));
                Ok(Self::with_history(commit, history, properties, nodes, manifests, meter))
            }
            Some(8) => {
                let (id, parent, time, message, properties, manifests, _, nodes): Snapshot010 = read(body, &mut meter)?;
                // Each manifest has an id, its size, and the number of its references.
                let manifests = manifests.into_iter().map(|m| (m.id, m.numbers[0], m.numbers[1]));
                Ok(AlphaSnapshot {
                    commit: Commit { id: id.0, flushed_at: time.0, message },
                    properties: properties.unwrap_or_default(),
                    ancestors: Ancestors::Parent(parent.map(|id| id.0)),
                    nodes: nodes.0,
                    manifests: manifest_infos(manifests),
                    meter,
                })
            }
            Some(7) | None => {
                let SnapshotFirstLayout { short_term_history, metadata, properties, nodes, .. } =
                    read(body, &mut meter)?;
                let manifests = std::iter::empty();
                Ok(Self::with_history(metadata, short_term_history, properties, nodes, manifests, meter))
            }
            Some(other) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("a snapshot of {other} members, which no known Icechunk release before 0.2 wrote"),
            )),
        }
    }

    fn with_history(
        commit: Commit,
        history: Vec<Commit>,
        properties: Properties,
        nodes: Nodes,
        manifests: impl Iterator<Item = (ObjectId, u64, u64)>,
        meter: Meter,
    ) -> Self {
        AlphaSnapshot {
            commit,
            properties: properties.unwrap_or_default(),
            ancestors: Ancestors::Listed(history),
            nodes: nodes.0,
            manifests: manifest_infos(manifests),
            meter,
        }
    }

    /// Returns the parent's id; `None` for the first commit.
    pub fn parent(&self) -> Option<ObjectId> {
        match &self.ancestors {
            Ancestors::Parent(parent) => *parent,
            Ancestors::Listed(commits) => commits.first().map(|commit| commit.id),
        }
    }

    /// Returns the ancestors that the file describes, newest first; the list may be incomplete.
    pub fn ancestors(&self) -> &[Commit] {
        match &self.ancestors {
            Ancestors::Parent(_) => &[],
            Ancestors::Listed(commits) => commits,
        }
    }

    /// Returns the commit, its metadata, and its ancestors as in [`AlphaSnapshot::ancestors`], with
    /// their memory.
    pub fn into_history(self) -> (Commit, Map<String, Value>, Metered<Vec<Commit>>) {
        let listed = match self.ancestors {
            Ancestors::Parent(_) => Vec::new(),
            Ancestors::Listed(commits) => commits,
        };
        (self.commit, self.properties, self.meter.finish(listed))
    }

    /// Returns the attribute files that [`AlphaSnapshot::into_draft`] still needs.
    pub fn attribute_files(&self) -> BTreeSet<ObjectId> {
        let files = self.nodes.iter().filter_map(|node| match &node.user_attributes {
            Some(StoredAttributes::Ref(reference)) => Some(reference.object_id.0),
            _ => None,
        });
        files.collect()
    }

    /// Sets the attributes of the nodes that refer to file `id`.
    pub fn set_attributes(&mut self, id: ObjectId, file: &AttributesFile) -> Result<()> {
        for node in &mut self.nodes {
            let location = match &node.user_attributes {
                Some(StoredAttributes::Ref(reference)) if reference.object_id.0 == id => reference.location,
                _ => continue,
            };
            let found = file.at(location).context(|| format!("attributes of {}", node.path))?;
            // Any number of nodes may have the same ones.
            json::count_members(found, &mut self.meter)?;
            node.user_attributes = Some(StoredAttributes::Inline(found.clone()));
        }
        Ok(())
    }

    /// Converts the snapshot into an equivalent draft of version 1, the version that stores the
    /// parent in the snapshot.
    ///
    /// The extents of manifests, which 0.1.0 stores, are left out: a lookup then searches every
    /// manifest, and nothing depends on them.
    pub fn into_draft(self) -> Result<Metered<SnapshotDraft>> {
        let parent = self.parent();
        // The values of one node after another are copied into a document.
        let _room = memory::reserve_blocking(self.meter.counted(), "a snapshot, to be translated,")?;
        let mut meter = Meter::new("a translated snapshot");
        meter.count(self.commit.message.len() as u64)?;
        let metadata = RawItem::list(SpecVersion::V1, &self.properties)?;
        meter.count(metadata.iter().map(|item| (item.name.len() + item.value.capacity()) as u64 + DRAFTED).sum())?;
        let mut used = BTreeMap::new();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in self.nodes {
            let path = node.path.clone();
            let draft = node_draft(node, &self.manifests, &mut used).context(|| path)?;
            let array = draft.array.as_ref();
            let parts = array.map_or(0, |array| array.shape.len() + array.manifests.len());
            meter.count(DRAFTED * (1 + parts as u64) + (draft.path.len() + draft.zarr_json.capacity()) as u64)?;
            nodes.push(draft);
        }
        meter.count(DRAFTED * used.len() as u64)?;
        Ok(meter.finish(SnapshotDraft {
            id: self.commit.id,
            flushed_at: self.commit.flushed_at,
            version: SpecVersion::V1,
            parent,
            message: self.commit.message,
            metadata,
            nodes,
            manifests: used.into_values().collect(),
            extra: None,
        }))
    }
}

fn node_draft(
    node: NodeFields,
    known: &BTreeMap<ObjectId, ManifestInfo>,
    used: &mut BTreeMap<ObjectId, ManifestInfo>,
) -> Result<NodeDraft> {
    let attributes = match node.user_attributes {
        None => Attributes::new(),
        Some(StoredAttributes::Inline(attributes)) => attributes,
        Some(StoredAttributes::Ref(reference)) => {
            let id = reference.object_id.0;
            return Err(Error::corrupt(format!("its attributes are in file {id}, which was not read")));
        }
    };
    let (zarr_json, array) = match node.node_data {
        NodeData::Group => (zarr_json::group(&attributes), None),
        NodeData::Array(fields, refs) => {
            let mut manifests: Vec<ManifestRef> = Vec::with_capacity(refs.len());
            for IdAndNumbers { id, .. } in refs {
                let unknown = ManifestInfo { id, size: 0, chunk_refs: 0 };
                used.insert(id, known.get(&id).copied().unwrap_or(unknown));
                manifests.push(ManifestRef { id, extents: Vec::new() });
            }
            let array = ArrayDraft {
                shape: fields.dimensions()?,
                dimension_names: fields.dimension_names.clone().filter(|names| names.len() == fields.shape.len()),
                manifests,
            };
            (fields.document(&attributes)?, Some(array))
        }
    };
    Ok(NodeDraft { id: node.id.0, path: node.path, zarr_json, array, extra: None })
}

fn manifest_infos(manifests: impl Iterator<Item = (ObjectId, u64, u64)>) -> BTreeMap<ObjectId, ManifestInfo> {
    let info = |(id, size, refs)| (id, ManifestInfo { id, size, chunk_refs: u32::try_from(refs).unwrap_or(u32::MAX) });
    manifests.map(info).collect()
}

impl From<StoredCommit> for Commit {
    fn from(stored: StoredCommit) -> Self {
        Commit { id: stored.id.0, flushed_at: stored.written_at.0, message: stored.message }
    }
}

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodesVisitor;
        impl<'de> Visitor<'de> for NodesVisitor {
            type Value = Nodes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("nodes by their paths")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Nodes, A::Error> {
                let mut nodes = Vec::new();
                while let Some((_, node)) = map.next_entry::<IgnoredAny, NodeFields>()? {
                    nodes.push(node);
                }
                Ok(Nodes(nodes))
            }
        }
        deserializer.deserialize_map(NodesVisitor)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::format::snapshot::Snapshot;
    use serde_json::json;

    fn id(n: u8, bytes: u8) -> Value {
        (0..bytes).map(|at| Value::from(at + n)).collect()
    }

    /// Returns a snapshot of the first layout, by its schema.
    fn first() -> Value {
        let commit = |n: u8| json!({"id": id(n, 16), "written_at": "2024-09-10T00:00:00.5Z", "message": n.to_string()});
        let array = json!({
            "shape": [4], "data_type": "int8", "fill_value": {"Int8": 1}, "chunk_shape": [2], "codecs": [],
            "chunk_key_encoding": "Slash", "storage_transformers": null, "dimension_names": ["x"],
        });
        let manifest = json!({"object_id": id(50, 16), "flags": [], "extents": [[0], [2]]});
        let attributes = json!({"Ref": {"object_id": id(60, 16), "flags": [], "location": 1}});
        json!({
            "total_parents": 2, "short_term_parents": 2, "started_at": "2024-09-10T00:00:00Z", "properties": {"by": "me"},
            "short_term_history": [commit(2), commit(1)], "metadata": commit(3),
            "nodes": {
                "/": {"id": 1, "path": "/", "user_attributes": {"Inline": {"a": 1}}, "node_data": "Group"},
                "/x": {"id": 2, "path": "/x", "user_attributes": attributes, "node_data": {"Array": [array, [manifest]]}},
            },
        })
    }

    #[test]
    fn the_first_layout_is_read_and_translated() {
        for file in [first().to_string().into_bytes(), rmp_serde::to_vec(&first()).unwrap()] {
            let mut snapshot = AlphaSnapshot::decode(&file, 1 << 20).unwrap();
            let messages: Vec<&str> = snapshot.ancestors().iter().map(|commit| commit.message.as_str()).collect();
            assert_eq!((messages, snapshot.commit.flushed_at), (vec!["2", "1"], 1_725_926_400_500_000));
            let files: Vec<ObjectId> = snapshot.attribute_files().into_iter().collect();
            assert_eq!(files.len(), 1);
            let attributes = AttributesFile::decode(br#"[{}, {"units": "m"}]"#, 1000).unwrap();
            snapshot.set_attributes(files[0], &attributes).unwrap();
            let draft = snapshot.into_draft().unwrap();
            let translated = Snapshot::from_draft(&draft).unwrap();
            assert_eq!(translated.parent_id().unwrap().0[0], 2);
            assert_eq!(Value::from(translated.metadata().unwrap().into_inner()), json!({"by": "me"}));
            let documents: Vec<Value> =
                translated.nodes().map(|node| serde_json::from_slice(node.zarr_json).unwrap()).collect();
            assert_eq!(documents[0]["attributes"], json!({"a": 1}));
            assert_eq!(documents[1]["attributes"], json!({"units": "m"}));
            assert_eq!(translated.manifests().len(), 1);
        }
    }

    #[test]
    fn nesting_of_attributes_is_bounded() {
        for (levels, is_read) in [(100, true), (1000, false)] {
            let mut deep = json!(1);
            for _ in 0..levels {
                deep = json!([deep]);
            }
            let mut snapshot = first();
            snapshot["nodes"]["/x"]["user_attributes"] = json!({"Inline": {"deep": deep}});
            let file = rmp_serde::to_vec(&snapshot).unwrap();
            assert_eq!(AlphaSnapshot::decode(&file, 1 << 20).and_then(AlphaSnapshot::into_draft).is_ok(), is_read);
        }
    }

    #[test]
    fn incomplete_nodes_are_errors_that_name_the_node() {
        let snapshot = AlphaSnapshot::decode(first().to_string().as_bytes(), 1 << 20).unwrap();
        assert!(snapshot.into_draft().unwrap_err().to_string().contains("/x"));
        let mut twice = first();
        twice["nodes"]["/x"]["path"] = "/".into();
        twice["nodes"]["/x"]["user_attributes"] = Value::Null;
        let twice = AlphaSnapshot::decode(twice.to_string().as_bytes(), 1 << 20).unwrap();
        assert!(Snapshot::from_draft(&twice.into_draft().unwrap()).is_err());
        for wrong in [&b"{}"[..], b"\x90", b"\x9a", b"[", b"{\"nodes\": 7}"] {
            assert!(AlphaSnapshot::decode(wrong, 1 << 20).is_err());
        }
    }
}
