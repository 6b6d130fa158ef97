//! Builds files for tests: valid ones, and ones that break a rule on purpose.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use flatbuffers::{FlatBufferBuilder, WIPOffset};

use super::draft::{ArrayDraft, NodeDraft, write_node};
use super::envelope::{MAGIC, SpecVersion};
use super::generated::icechunk as fb;
use super::ids::{NodeId, ObjectId};
use super::repo_state::{Builder, tables};
use super::snapshot::ManifestRef;

/// Returns a file with these bytes in its header.
pub fn file_of(version: u8, file_type: u8, compression: u8, body: &[u8]) -> Vec<u8> {
    [MAGIC, b"icechunkfs-test         ".as_slice(), &[version, file_type, compression], body].concat()
}

/// Returns a file of version 2 with a compressed payload.
pub fn file(file_type: u8, payload: &[u8]) -> Vec<u8> {
    file_of(2, file_type, 1, &zstd::encode_all(payload, 3).unwrap())
}

/// Encodes MessagePack.
#[cfg(test)]
pub fn pack(value: &rmpv::Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

pub fn id(n: u8) -> ObjectId {
    ObjectId([n; 12])
}

pub fn node_id(n: u8) -> NodeId {
    NodeId([n; 8])
}

/// Returns a `repo` with snapshots (id, parent's position), the `n`th committed at second `n`, and
/// branches (name, position).
pub fn repo(snapshots: &[(ObjectId, i32)], branches: &[(&str, u32)]) -> Vec<u8> {
    repo_with(snapshots, branches, |b, name, snapshot_index| {
        let name = Some(b.create_string(name));
        fb::Ref::create(b, &fb::RefArgs { name, snapshot_index })
    })
}

/// Writes the table of a ref.
type WriteRef = fn(&mut Builder, &str, u32) -> WIPOffset<fb::Ref<'static>>;

/// Returns a `repo` like [`repo`], with branches as `write` writes them.
pub fn repo_with(snapshots: &[(ObjectId, i32)], branches: &[(&str, u32)], write: WriteRef) -> Vec<u8> {
    let mut b = FlatBufferBuilder::new();
    let branches = Some(tables(&mut b, branches, |b, (name, index)| write(b, name, *index)));
    let tags = Some(tables(&mut b, [(); 0], |b, ()| fb::Ref::create(b, &Default::default())));
    let deleted_tags = Some(tables(&mut b, [""; 0], |b, name| b.create_string(name)));
    let snapshots = Some(tables(&mut b, snapshots.iter().enumerate(), |b, (n, (id, parent_offset))| {
        let args = fb::SnapshotInfoArgs {
            id: Some(&fb::ObjectId12(id.0)),
            parent_offset: *parent_offset,
            flushed_at: n as u64 * 1_000_000,
            message: Some(b.create_string(&format!("commit {n}"))),
            ..Default::default()
        };
        fb::SnapshotInfo::create(b, &args)
    }));
    let status = Some(fb::RepoStatus::create(&mut b, &Default::default()));
    let kind = fb::RepoInitializedUpdate::create(&mut b, &Default::default());
    let args = fb::UpdateArgs {
        update_type_type: fb::UpdateType::RepoInitializedUpdate,
        update_type: Some(kind.as_union_value()),
        ..Default::default()
    };
    let update = fb::Update::create(&mut b, &args);
    let latest_updates = Some(b.create_vector(&[update]));
    let args = fb::RepoArgs {
        spec_version: 2,
        tags,
        branches,
        deleted_tags,
        snapshots,
        status,
        latest_updates,
        ..Default::default()
    };
    let root = fb::Repo::create(&mut b, &args);
    b.finish(root, Some("Ichk"));
    file(6, b.finished_data())
}

/// Manifest and its extents.
pub type TestManifestRef = (ObjectId, Vec<(u32, u32)>);
/// Node and its chunks: coordinates and payloads.
pub type TestRefs = (NodeId, Vec<(Vec<u32>, TestPayload)>);

/// Node of [`snapshot`].
pub struct TestNode<'a> {
    pub id: NodeId,
    pub path: &'a str,
    pub zarr_json: &'a str,
    /// Manifests and their extents; `None` for a group.
    pub manifests: Option<Vec<TestManifestRef>>,
}

pub fn group<'a>(n: u8, path: &'a str) -> TestNode<'a> {
    TestNode { id: node_id(n), path, zarr_json: r#"{"zarr_format":3,"node_type":"group"}"#, manifests: None }
}

/// Returns a snapshot with `nodes` in the given order.
pub fn snapshot(id: ObjectId, nodes: &[TestNode<'_>]) -> Vec<u8> {
    let mut b = FlatBufferBuilder::new();
    let manifest = |(id, extents): &TestManifestRef| ManifestRef { id: *id, extents: extents.clone() };
    let array = |manifests: &Vec<TestManifestRef>| {
        let manifests = manifests.iter().map(manifest).collect();
        ArrayDraft { shape: Vec::new(), dimension_names: None, manifests }
    };
    let nodes = nodes.iter().map(|node| NodeDraft {
        id: node.id,
        path: node.path.to_owned(),
        zarr_json: node.zarr_json.into(),
        array: node.manifests.as_ref().map(array),
        extra: None,
    });
    let nodes: Vec<_> = nodes.map(|node| write_node(&mut b, SpecVersion::V1, &node)).collect();
    snapshot_of(b, id, &nodes)
}

/// Returns a snapshot with nodes that `b` already contains.
pub fn snapshot_of<'b>(
    mut b: FlatBufferBuilder<'b>,
    id: ObjectId,
    nodes: &[WIPOffset<fb::NodeSnapshot<'b>>],
) -> Vec<u8> {
    let nodes = Some(b.create_vector(nodes));
    let message = Some(b.create_string("test"));
    let metadata = Some(b.create_vector::<flatbuffers::ForwardsUOffset<fb::MetadataItem<'_>>>(&[]));
    let manifest_files = Some(b.create_vector::<fb::ManifestFileInfo>(&[]));
    let args = fb::SnapshotArgs {
        id: Some(&fb::ObjectId12(id.0)),
        nodes,
        flushed_at: 1_000_000,
        message,
        metadata,
        manifest_files,
        ..Default::default()
    };
    let root = fb::Snapshot::create(&mut b, &args);
    b.finish(root, Some("Ichk"));
    file(1, b.finished_data())
}

/// Payload of a chunk reference of [`manifest`].
#[derive(Clone)]
pub enum TestPayload {
    Inline(Vec<u8>),
    Native(ObjectId, u64, u64),
    Virtual(String, u64, u64),
    Nothing,
}

/// Returns a manifest with arrays and their references in the given order.
pub fn manifest(id: ObjectId, arrays: &[TestRefs]) -> Vec<u8> {
    let mut b = FlatBufferBuilder::new();
    let arrays = Some(tables(&mut b, arrays, |b, (node, refs)| {
        let refs = Some(tables(b, refs, |b, (coords, payload)| {
            let mut args = fb::ChunkRefArgs { index: Some(b.create_vector(coords)), ..Default::default() };
            let chunk;
            match payload {
                TestPayload::Inline(bytes) => args.inline = Some(b.create_vector(bytes)),
                TestPayload::Native(object, offset, length) => {
                    chunk = fb::ObjectId12(object.0);
                    (args.chunk_id, args.offset, args.length) = (Some(&chunk), *offset, *length);
                }
                TestPayload::Virtual(location, offset, length) => {
                    args.location = Some(b.create_string(location));
                    (args.offset, args.length) = (*offset, *length);
                }
                TestPayload::Nothing => {}
            }
            fb::ChunkRef::create(b, &args)
        }));
        let node_id = Some(&fb::ObjectId8(node.0));
        fb::ArrayManifest::create(b, &fb::ArrayManifestArgs { node_id, refs, extra: None })
    }));
    let id = Some(&fb::ObjectId12(id.0));
    let root = fb::Manifest::create(&mut b, &fb::ManifestArgs { id, arrays, ..Default::default() });
    b.finish(root, Some("Ichk"));
    file(2, b.finished_data())
}
