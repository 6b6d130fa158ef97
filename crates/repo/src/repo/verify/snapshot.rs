//! Rules of one snapshot file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::nodes::{self, Uses};
use super::repo_file::{check_time, metadata_problem};
use super::report::Subject;
use super::{Context, check_envelope};
use icechunkfs_base::error::{Context as _, ErrorKind, Result};
use icechunkfs_format::format::envelope::{FileType, SpecVersion};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::{ManifestInfo, Snapshot};
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::zarr::document;

/// Beginning of the names of the metadata items that this program writes.
const OWN_ITEMS: &str = "icechunkfs.";

/// Checks snapshot `id`, which `repo` describes as `record`. Returns the uses of manifests by its
/// arrays.
///
/// Errors: [`ErrorKind::OutOfMemory`], before anything is reported.
pub(super) fn check(
    context: &Context,
    id: ObjectId,
    snapshot: &Snapshot,
    file: &[u8],
    record: Option<&SnapshotInfo>,
) -> Result<Uses> {
    let key = format!("snapshots/{id}");
    let documents = snapshot.nodes().map(|node| node.zarr_json);
    let mut room = document::reserve_largest(documents).context(|| key.clone())?;
    let _table = snapshot.room_for_table().context(|| key.clone())?;
    let uses = Uses::with_room_for(snapshot).context(|| key.clone())?;
    let metadata = match snapshot.metadata() {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error.context(&key)),
        metadata => metadata,
    };
    let object = context.object(&key);
    check_envelope(context, &key, file, FileType::Snapshot, snapshot.has_identifier());
    if snapshot.id() != id {
        object.error("id", format!("the file states that it is snapshot {}", snapshot.id()));
    }
    check_time(context, &key, "the snapshot", snapshot.flushed_at());
    if let Some(why) = metadata_problem(Some(snapshot.root().metadata())) {
        object.warning("metadata", why);
    }
    let metadata = match metadata {
        Ok(metadata) => Some(metadata),
        Err(error) => {
            object.error("metadata", error.to_string());
            None
        }
    };
    if let Some(record) = record {
        let same = [
            ("time", record.flushed_at == snapshot.flushed_at()),
            ("message", record.message() == snapshot.message()),
            ("metadata", metadata.is_none_or(|metadata| has_same_names(&metadata, record))),
        ];
        for (what, _) in same.iter().filter(|(_, is_same)| !is_same) {
            object.warning("repo-record", format!("`repo` has another {what} for it than the file"));
        }
    }
    match (snapshot.version(), snapshot.parent_id()) {
        (SpecVersion::V2, Some(parent)) => {
            object.warning("parent", format!("a file of version 2 names a parent ({parent}), which only `repo` does"));
        }
        (SpecVersion::V1, Some(parent)) if parent == snapshot.id() => object.error("parent", "it is its own parent"),
        _ => {}
    }
    let infos = check_infos(object, snapshot);
    let uses = nodes::check(context, id, snapshot, &infos, &mut room, uses)?;
    let used: BTreeSet<ObjectId> = uses.keys().copied().collect();
    let idle: Vec<&ObjectId> = infos.keys().filter(|id| !used.contains(id)).collect();
    if let Some(first) = idle.first() {
        let message = format!(
            "{} manifests are listed without an array that refers to them, such as {first}: other clients refuse to commit onto it",
            idle.len()
        );
        object.warning("manifest-unused", message);
    }
    Ok(uses)
}

/// Returns true if the description of a commit in `repo` has the names of the snapshot's metadata,
/// apart from records that a copy has added. Only names are compared: conversion between encodings
/// may have narrowed numbers.
fn has_same_names(metadata: &Map<String, Value>, record: &SnapshotInfo) -> bool {
    let is_added = |name: &&str| name.starts_with(OWN_ITEMS) && !metadata.contains_key(*name);
    metadata.keys().eq(record.text.metadata_names().filter(|name| !is_added(name)))
}

/// Checks the list of manifests and returns it by id.
fn check_infos(object: Subject<'_>, snapshot: &Snapshot) -> BTreeMap<ObjectId, ManifestInfo> {
    let old = snapshot.root().manifest_files();
    let new = snapshot.root().manifest_files_v2();
    match snapshot.version() {
        SpecVersion::V1 if new.is_some() => {
            object.warning("manifest-list", "a file of version 1 has the list of manifests that version 2 has");
        }
        SpecVersion::V2 if new.is_none() => {
            object.warning("manifest-list", "a file of version 2 has no list of manifests (manifest_files_v2)");
        }
        SpecVersion::V2 if !old.is_empty() => {
            object.warning("manifest-list", "a file of version 2 has the list of manifests that version 1 has");
        }
        _ => {}
    }
    if new.is_some_and(|infos| infos.iter().any(|info| info.id().is_none())) {
        object.error("manifest-list", "a manifest is listed without its id");
    }
    let listed = snapshot.manifests();
    if !listed.is_sorted_by(|a, b| a.id < b.id) {
        object.warning("manifests-sorted", "the manifests are not sorted by id, or contain a duplicate");
    }
    let mut infos = BTreeMap::new();
    for info in listed {
        if infos.insert(info.id, info).is_some_and(|other: ManifestInfo| other != info) {
            object.error("manifest-twice", format!("manifest {} is listed twice, with different sizes", info.id));
        }
    }
    infos
}
