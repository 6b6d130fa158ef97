//! Members of stored tables that this release does not know.
//!
//! A newer release may add members to the tables of the format, and give the reserved members
//! `extra` a meaning. Readers pass over both. A table that is written again keeps its `extra` where
//! the table stands for the same thing as before; where it does not, and for members without a name
//! here, the write is refused: what they say may be wrong afterwards, or needed.

use std::collections::HashMap;
use std::fmt::Display;

use flatbuffers::{Table, VOffsetT};

use super::generated::icechunk as fb;
use super::ids::ObjectId;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Offset of the first member in a vtable, in bytes.
const FIRST: VOffsetT = 4;

/// Returns the error for a write of `what` that would lose members.
pub(crate) fn would_lose_members(what: impl Display) -> Error {
    let message = format!(
        "{what} has members that this release does not know, and this write would lose them: use a newer release"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Returns true if `table` has a member behind `last`, the last one of the schema.
pub(crate) fn has_members_behind(table: Table<'_>, last: VOffsetT) -> bool {
    let known = usize::from(last - FIRST) / size_of::<VOffsetT>() + 1;
    has_members_from(table, known)
}

/// Returns true if `table` has more members than the first `known`.
fn has_members_from(table: Table<'_>, known: usize) -> bool {
    let vtable = table.vtable();
    (known..vtable.num_fields()).any(|member| vtable.get_field(member) != 0)
}

/// Fails if a table of `repo`, all of which an update writes again, has unknown members.
pub(super) fn check_repo(root: fb::Repo<'_>) -> Result<()> {
    let is_unknown = |item: fb::MetadataItem<'_>| has_members_behind(item._tab, fb::MetadataItem::VT_VALUE);
    let is_unknown_ref = |one: fb::Ref<'_>| has_members_behind(one._tab, fb::Ref::VT_SNAPSHOT_INDEX);
    let is_unknown_snapshot = |one: fb::SnapshotInfo<'_>| {
        has_members_behind(one._tab, fb::SnapshotInfo::VT_PRUNED_ANCESTOR_TX_LOGS)
            || one.metadata().into_iter().flatten().any(is_unknown)
    };
    let is_unknown_update = |one: fb::Update<'_>| {
        has_members_behind(one._tab, fb::Update::VT_BACKUP_PATH)
            || members_of_update(one.update_type_type()).is_some_and(|known| has_members_from(one.update_type(), known))
    };
    let has_unknown = has_members_behind(root._tab, fb::Repo::VT_EXTRA)
        || has_members_behind(root.status()._tab, fb::RepoStatus::VT_LIMITED_AVAILABILITY_REASON)
        || root.metadata().into_iter().flatten().any(is_unknown)
        || root.branches().iter().chain(root.tags()).any(is_unknown_ref)
        || root.snapshots().iter().any(is_unknown_snapshot)
        || root.latest_updates().iter().any(is_unknown_update);
    if has_unknown { Err(would_lose_members("`repo`")) } else { Ok(()) }
}

/// Returns the number of members of an entry of the operations log; `None` for an unknown kind.
fn members_of_update(kind: fb::UpdateType) -> Option<usize> {
    use fb::UpdateType as Kind;
    match kind {
        Kind::RepoInitializedUpdate
        | Kind::ConfigChangedUpdate
        | Kind::MetadataChangedUpdate
        | Kind::GCRanUpdate
        | Kind::ExpirationRanUpdate => Some(0),
        Kind::TagCreatedUpdate
        | Kind::BranchCreatedUpdate
        | Kind::NewDetachedSnapshotUpdate
        | Kind::RepoStatusChangedUpdate => Some(1),
        Kind::RepoMigratedUpdate
        | Kind::TagDeletedUpdate
        | Kind::BranchDeletedUpdate
        | Kind::BranchResetUpdate
        | Kind::NewCommitUpdate => Some(2),
        Kind::CommitAmendedUpdate | Kind::FeatureFlagChangedUpdate => Some(3),
        _ => None,
    }
}

/// Fails if a table of a node, which is written again, has unknown members. Its `extra` is kept.
pub(super) fn check_node(stored: fb::NodeSnapshot<'_>) -> Result<()> {
    let has_unknown = has_members_behind(stored._tab, fb::NodeSnapshot::VT_EXTRA)
        || stored.node_data_as_group().is_some_and(|group| has_members_from(group._tab, 0))
        || stored.node_data_as_array().is_some_and(has_unknown_in_array);
    if has_unknown { Err(would_lose_members(format!("node {}", stored.path()))) } else { Ok(()) }
}

fn has_unknown_in_array(array: fb::ArrayNodeData<'_>) -> bool {
    let names = array.dimension_names();
    let shape = array.shape_v2();
    has_members_behind(array._tab, fb::ArrayNodeData::VT_SHAPE_V2)
        || names.into_iter().flatten().any(|name| has_members_behind(name._tab, fb::DimensionName::VT_NAME))
        || shape.into_iter().flatten().any(|one| has_members_behind(one._tab, fb::DimensionShapeV2::VT_NUM_CHUNKS))
        || array.manifests().iter().any(|one| has_members_behind(one._tab, fb::ManifestRef::VT_EXTENTS))
}

/// Returns the `extra` of the manifests that `snapshot` lists. Fails if an entry has other unknown
/// members.
pub(super) fn extras_of_manifests(snapshot: fb::Snapshot<'_>) -> Result<HashMap<ObjectId, Vec<u8>>> {
    let mut extras = HashMap::new();
    for info in snapshot.manifest_files_v2().into_iter().flatten() {
        let Some(id) = info.id() else { continue };
        if has_members_behind(info._tab, fb::ManifestFileInfoV2::VT_EXTRA) {
            return Err(would_lose_members(format!("manifest {} in the snapshot's list", ObjectId::from(id))));
        }
        extras.extend(info.extra().map(|extra| (ObjectId::from(id), extra.bytes().to_vec())));
    }
    Ok(extras)
}

/// Returns true if the tables around a manifest's references have members that a manifest with
/// other references would lose. Nothing tells whether they are still right there.
pub(super) fn is_in_manifest(root: fb::Manifest<'_>) -> bool {
    let is_in_array = |array: fb::ArrayManifest<'_>| {
        array.extra().is_some() || has_members_behind(array._tab, fb::ArrayManifest::VT_EXTRA)
    };
    root.extra().is_some()
        || has_members_behind(root._tab, fb::Manifest::VT_EXTRA)
        || root.arrays().iter().any(is_in_array)
}

/// Returns true if a transaction log has members that the net changes of several logs would lose.
pub(super) fn is_in_log(root: fb::TransactionLog<'_>) -> bool {
    let is_in_chunks = |one: fb::ArrayUpdatedChunks<'_>| {
        has_members_behind(one._tab, fb::ArrayUpdatedChunks::VT_CHUNKS)
            || one.chunks().iter().any(|chunk| has_members_behind(chunk._tab, fb::ChunkIndices::VT_COORDS))
    };
    let is_in_move = |one: fb::MoveOperation<'_>| has_members_behind(one._tab, fb::MoveOperation::VT_NODE_TYPE);
    root.extra().is_some()
        || has_members_behind(root._tab, fb::TransactionLog::VT_EXTRA)
        || root.updated_chunks().iter().any(is_in_chunks)
        || root.moved_nodes().into_iter().flatten().any(is_in_move)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use flatbuffers::{FlatBufferBuilder, WIPOffset};

    use super::super::draft::SnapshotDraft;
    use super::super::envelope::{Compression, SpecVersion};
    use super::super::kept_nodes::KeptNodes;
    use super::super::manifest::Manifest;
    use super::super::manifest_builder::ManifestBuilder;
    use super::super::repo_info::RepoInfo;
    use super::super::repo_state::RepoState;
    use super::super::snapshot::Snapshot;
    use super::super::testing::{self, file, id, node_id};
    use super::super::transaction_log::TransactionLog;
    use super::*;

    type Builder = FlatBufferBuilder<'static>;

    /// Member behind all those of a schema.
    const UNKNOWN: VOffsetT = 4 + 2 * 40;

    fn is_refused<T>(done: Result<T>) -> bool {
        done.is_err_and(|error| error.kind() == ErrorKind::Unsupported && error.to_string().contains("newer release"))
    }

    #[test]
    fn a_repo_file_with_unknown_members_is_read_and_not_written() {
        let file = testing::repo_with(&[(id(1), -1)], &[("main", 0)], |b, name, index| {
            let name = b.create_string(name);
            let table = b.start_table();
            b.push_slot_always(fb::Ref::VT_NAME, name);
            b.push_slot(fb::Ref::VT_SNAPSHOT_INDEX, index, 0);
            b.push_slot_always(UNKNOWN, 7_u32);
            WIPOffset::new(b.end_table(table).value())
        });
        let info = RepoInfo::decode(&file).unwrap();
        assert_eq!(info.branch("main").unwrap().unwrap(), id(1));
        assert!(is_refused(RepoState::from_info(&info)));
        let known = RepoInfo::decode(&testing::repo(&[(id(1), -1)], &[("main", 0)])).unwrap();
        RepoState::from_info(&known).unwrap();
    }

    /// Returns a snapshot with an array and a manifest, both with an `extra`; the array has another
    /// member if `is_unknown`.
    fn snapshot(is_unknown: bool) -> Arc<Snapshot> {
        let mut b: Builder = FlatBufferBuilder::new();
        let extents = Some(b.create_vector(&[fb::ChunkIndexRange::new(0, 1)]));
        let manifest = fb::ManifestRef::create(
            &mut b,
            &fb::ManifestRefArgs { object_id: Some(&fb::ObjectId12(id(1).0)), extents },
        );
        let shape = b.create_vector::<fb::DimensionShape>(&[]);
        let manifests = b.create_vector(&[manifest]);
        let args = fb::DimensionShapeV2Args { array_length: 1, num_chunks: 1 };
        let dimension = fb::DimensionShapeV2::create(&mut b, &args);
        let args = fb::ArrayNodeDataArgs {
            shape: Some(shape),
            dimension_names: None,
            manifests: Some(manifests),
            shape_v2: Some(b.create_vector(&[dimension])),
        };
        let array = fb::ArrayNodeData::create(&mut b, &args);
        let path = b.create_string("/a");
        let document = b.create_vector(b"{}");
        let extra = b.create_vector(b"of the node");
        let table = b.start_table();
        b.push_slot_always(fb::NodeSnapshot::VT_ID, fb::ObjectId8(node_id(1).0));
        b.push_slot_always(fb::NodeSnapshot::VT_PATH, path);
        b.push_slot_always(fb::NodeSnapshot::VT_USER_DATA, document);
        b.push_slot_always(fb::NodeSnapshot::VT_NODE_DATA_TYPE, fb::NodeData::Array);
        b.push_slot_always(fb::NodeSnapshot::VT_NODE_DATA, array);
        b.push_slot_always(fb::NodeSnapshot::VT_EXTRA, extra);
        if is_unknown {
            b.push_slot_always(UNKNOWN, 7_u32);
        }
        let node: WIPOffset<fb::NodeSnapshot<'_>> = WIPOffset::new(b.end_table(table).value());
        let extra = Some(b.create_vector(b"of the manifest"));
        let args =
            fb::ManifestFileInfoV2Args { id: Some(&fb::ObjectId12(id(1).0)), size_bytes: 9, num_chunk_refs: 1, extra };
        let info = fb::ManifestFileInfoV2::create(&mut b, &args);
        let args = fb::SnapshotArgs {
            id: Some(&fb::ObjectId12(id(2).0)),
            nodes: Some(b.create_vector(&[node])),
            flushed_at: 5,
            message: Some(b.create_string("old")),
            metadata: Some(b.create_vector::<flatbuffers::ForwardsUOffset<fb::MetadataItem<'_>>>(&[])),
            manifest_files: Some(b.create_vector::<fb::ManifestFileInfo>(&[])),
            manifest_files_v2: Some(b.create_vector(&[info])),
            ..Default::default()
        };
        let root = fb::Snapshot::create(&mut b, &args);
        b.finish(root, Some("Ichk"));
        Arc::new(Snapshot::decode(&file(1, b.finished_data()), 1 << 20).unwrap())
    }

    /// Returns the next snapshot, which keeps the array of `base`.
    fn next(base: &Arc<Snapshot>) -> Result<Snapshot> {
        let draft = SnapshotDraft { manifests: base.manifests(), ..SnapshotDraft::new(id(3), 6, "new") };
        let kept = KeptNodes { snapshot: Arc::clone(base), positions: vec![0] };
        Snapshot::of_payload(draft.payload_with(Some(&kept))?, SpecVersion::V2)
    }

    #[test]
    fn a_snapshot_keeps_the_extra_of_nodes_and_manifests() {
        let new = next(&snapshot(false)).unwrap();
        assert_eq!(new.node(0).unwrap().extra().unwrap(), Some(&b"of the node"[..]));
        let extras = extras_of_manifests(new.root()).unwrap();
        assert_eq!(extras, HashMap::from([(id(1), b"of the manifest".to_vec())]));
    }

    #[test]
    fn a_node_with_unknown_members_is_not_written_again() {
        let base = snapshot(true);
        assert!(is_refused(next(&base)));
        assert!(is_refused(base.node(0).unwrap().extra()));
    }

    /// Returns a manifest with a reference that has an `extra`, in an array that has `of_array`.
    fn manifest(of_array: Option<&[u8]>) -> Manifest {
        let mut b: Builder = FlatBufferBuilder::new();
        let args = fb::ChunkRefArgs {
            index: Some(b.create_vector(&[0_u32])),
            inline: Some(b.create_vector(b"chunk")),
            extra: Some(b.create_vector(b"of the reference")),
            ..Default::default()
        };
        let reference = fb::ChunkRef::create(&mut b, &args);
        let args = fb::ArrayManifestArgs {
            node_id: Some(&fb::ObjectId8(node_id(1).0)),
            refs: Some(b.create_vector(&[reference])),
            extra: of_array.map(|extra| b.create_vector(extra)),
        };
        let array = fb::ArrayManifest::create(&mut b, &args);
        let arrays = Some(b.create_vector(&[array]));
        let args = fb::ManifestArgs { id: Some(&fb::ObjectId12(id(1).0)), arrays, ..Default::default() };
        let root = fb::Manifest::create(&mut b, &args);
        b.finish(root, Some("Ichk"));
        Manifest::decode(&file(2, b.finished_data()), 1 << 20).unwrap()
    }

    #[test]
    fn a_manifest_keeps_the_extra_of_references_and_is_refused_with_another() {
        let copied = |manifest: &Manifest| {
            let mut builder = ManifestBuilder::new(id(2), SpecVersion::V2, node_id(1), 0);
            builder.copy(&manifest.array(node_id(1)).unwrap().unwrap(), 0)?;
            builder.push(&[1], &super::super::chunk_payload::ChunkPayload::Inline(b"plain"))?;
            Manifest::decode(&builder.finish()?.file, 1 << 20)
        };
        let new = copied(&manifest(None)).unwrap();
        let refs = new.array(node_id(1)).unwrap().unwrap();
        let extras = [0, 1].map(|at| refs.raw(at).extra().map(|extra| extra.bytes().to_vec()));
        assert_eq!(extras, [Some(b"of the reference".to_vec()), None]);
        assert!(is_refused(copied(&manifest(Some(b"of the array")))));
    }

    #[test]
    fn a_log_with_an_extra_is_not_joined_with_others() {
        use super::super::draft::TransactionLogDraft;

        let plain = TransactionLogDraft::default().encode(id(1), SpecVersion::V2, Compression::default()).unwrap();
        TransactionLog::decode(&plain, 1 << 20).unwrap().check_known().unwrap();
        let mut b: Builder = FlatBufferBuilder::new();
        let ids = Some(b.create_vector::<fb::ObjectId8>(&[]));
        let chunks = Some(b.create_vector::<flatbuffers::ForwardsUOffset<fb::ArrayUpdatedChunks<'_>>>(&[]));
        let args = fb::TransactionLogArgs {
            id: Some(&fb::ObjectId12(id(1).0)),
            new_groups: ids,
            new_arrays: ids,
            deleted_groups: ids,
            deleted_arrays: ids,
            updated_arrays: ids,
            updated_groups: ids,
            updated_chunks: chunks,
            moved_nodes: None,
            extra: Some(b.create_vector(b"extra")),
        };
        let root = fb::TransactionLog::create(&mut b, &args);
        b.finish(root, Some("Ichk"));
        assert!(is_refused(TransactionLog::decode(&file(4, b.finished_data()), 1 << 20).unwrap().check_known()));
    }
}
