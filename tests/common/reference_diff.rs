//! The reference's own diff of two snapshots.

use std::collections::{BTreeMap, BTreeSet};

use icechunk::format::SnapshotId;
use icechunk::repository::VersionInfo;
use icechunkfs::format::ids::ObjectId;
use serde_json::{Value, json};

/// Returns the content of the logs between two snapshots, as the reference gives it.
pub async fn reference_logs(repository: &icechunk::Repository, from: ObjectId, to: ObjectId) -> Option<Value> {
    let version = |id: ObjectId| VersionInfo::SnapshotId(SnapshotId::from(id.0));
    let diff = repository.diff(&version(from), &version(to)).await.ok()?;
    let paths = |set: &BTreeSet<icechunk::format::Path>| set.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let chunks: BTreeMap<String, Vec<Vec<u32>>> = diff
        .updated_chunks
        .iter()
        .map(|(path, all)| (path.to_string(), all.iter().map(|c| c.0.clone()).collect()))
        .collect();
    let moves: Vec<Value> =
        diff.moved_nodes.iter().map(|m| json!({"from": m.from.to_string(), "to": m.to.to_string()})).collect();
    Some(json!({
        "new_groups": paths(&diff.new_groups), "new_arrays": paths(&diff.new_arrays),
        "deleted_groups": paths(&diff.deleted_groups), "deleted_arrays": paths(&diff.deleted_arrays),
        "updated_groups": paths(&diff.updated_groups), "updated_arrays": paths(&diff.updated_arrays),
        "updated_chunks": chunks, "moved_nodes": moves,
    }))
}
