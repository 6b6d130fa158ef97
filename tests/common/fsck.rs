//! Checks every file of a repository that our engine wrote, for the rules of the format and for
//! some of our own: only small arrays share a manifest, and extents are tight and disjoint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::format::chunk_payload::ChunkPayload;
use icechunkfs::format::envelope::{Header, SpecVersion};
use icechunkfs::format::ids::{NodeId, ObjectId};
use icechunkfs::format::manifest::Manifest;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::{Operation, RepoState};
use icechunkfs::format::snapshot::{ManifestInfo, NodeData, Snapshot};
use icechunkfs::format::transaction_log::{NodeChange, TransactionLog};
use icechunkfs::zarr::array::ArrayMetadata;

const LIMIT: u64 = 1 << 31;

/// Returns true if our engine wrote the file, by its header.
fn is_ours(file: &[u8]) -> bool {
    Header::parse(file).unwrap().0.implementation.starts_with("icechunkfs-")
}

fn read(repo: &Path, folder: &str, id: ObjectId) -> Vec<u8> {
    let path = repo.join(folder).join(id.to_string());
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Checks a repository; panics at the first broken rule. Returns the number of our snapshots.
pub fn check(repo: &Path, version: SpecVersionBin) -> usize {
    let version = if version == SpecVersionBin::V1 { SpecVersion::V1 } else { SpecVersion::V2 };
    let mut seen = 0;
    let reachable = reachable(repo, version);
    for entry in std::fs::read_dir(repo.join("snapshots")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Ok(id) = name.parse::<ObjectId>() else { continue };
        let file = read(repo, "snapshots", id);
        if is_ours(&file) {
            let ids = check_snapshot(repo, id, &file, version);
            // A failed commit may leave a snapshot without its log, since both are stored at the
            // same time. Nothing leads to it.
            if reachable.contains(&id) || repo.join("transactions").join(id.to_string()).exists() {
                check_log(repo, id, &ids, version);
            }
            seen += 1;
        }
    }
    if version == SpecVersion::V2 {
        check_repo(repo);
    }
    for folder in [".", "chunks", "manifests", "snapshots", "transactions", "overwritten"] {
        let Ok(entries) = std::fs::read_dir(repo.join(folder)) else { continue };
        for entry in entries {
            let name = entry.unwrap().file_name().into_string().unwrap();
            // The lock file lies among the objects.
            assert!(name == "lock#0" || !name.contains('#'), "a staging file stayed: {folder}/{name}");
        }
    }
    seen
}

/// Removes the staging files of objects that were being stored when a process was killed.
pub fn remove_staging_files(repo: &Path) {
    for folder in ["overwritten", "snapshots", "transactions"] {
        for entry in std::fs::read_dir(repo.join(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.to_string_lossy().contains('#') {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}

/// Returns the snapshots that `repo`, or in version 1 a ref, leads to.
fn reachable(repo: &Path, version: SpecVersion) -> BTreeSet<ObjectId> {
    if version == SpecVersion::V2 {
        let info = Arc::new(RepoInfo::decode(&std::fs::read(repo.join("repo")).unwrap()).unwrap());
        return (0..info.snapshot_count()).map(|at| info.snapshot(at).unwrap().id).collect();
    }
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(repo.join("refs")).unwrap() {
        let Ok(file) = std::fs::read(entry.unwrap().path().join("ref.json")) else { continue };
        let target: serde_json::Value = serde_json::from_slice(&file).unwrap();
        let mut next = target["snapshot"].as_str().map(|id| id.parse::<ObjectId>().unwrap());
        while let Some(id) = next.filter(|id| found.insert(*id)) {
            next = Snapshot::decode(&read(repo, "snapshots", id), LIMIT).unwrap().parent_id();
        }
    }
    found
}

/// Checks a snapshot, and returns the ids of its nodes.
fn check_snapshot(repo: &Path, id: ObjectId, file: &[u8], version: SpecVersion) -> BTreeSet<NodeId> {
    let what = format!("snapshot {id}");
    check_header(file, version, 1);
    let snapshot = Snapshot::decode(file, LIMIT).unwrap();
    assert_eq!((snapshot.id(), snapshot.version()), (id, version), "{what}");
    assert_eq!(snapshot.parent_id().is_some(), version == SpecVersion::V1, "{what}: only version 1 names the parent");
    snapshot.metadata().unwrap();
    let paths: Vec<&str> = snapshot.nodes().map(|node| node.path).collect();
    assert!(paths.is_sorted_by(|a, b| a.as_bytes() < b.as_bytes()), "{what}: {paths:?}");
    let ids: BTreeSet<NodeId> = snapshot.nodes().map(|node| node.id).collect();
    assert_eq!(ids.len(), paths.len(), "{what}: ids are unique");

    let listed = snapshot.manifests();
    assert!(listed.is_sorted_by(|a, b| a.id < b.id), "{what}: manifests are sorted");
    let listed: BTreeMap<ObjectId, ManifestInfo> = listed.into_iter().map(|info| (info.id, info)).collect();
    let mut used = BTreeSet::new();
    for node in snapshot.nodes() {
        let NodeData::Array(array) = &node.data else { continue };
        let metadata = ArrayMetadata::parse(node.zarr_json).unwrap();
        assert_eq!(array.grid().as_ref(), Some(&metadata.grid), "{what}: {}", node.path);
        let manifests = array.manifests();
        for (n, a) in manifests.iter().enumerate() {
            for b in &manifests[n + 1..] {
                let apart = a.extents.iter().zip(&b.extents).any(|(a, b)| a.1 <= b.0 || b.1 <= a.0);
                assert!(apart, "{what}: {}: {a:?} and {b:?} overlap", node.path);
            }
        }
        for reference in &manifests {
            used.insert(reference.id);
            check_manifest(repo, node.id, &metadata.grid, &reference.extents, listed[&reference.id]);
        }
    }
    assert_eq!(used, listed.keys().copied().collect(), "{what}: listed and used manifests");
    ids
}

fn check_header(file: &[u8], version: SpecVersion, file_type: u8) {
    assert_eq!(&file[..12], b"ICE\xF0\x9F\xA7\x8ACHUNK");
    assert_eq!(&file[36..39], [version.number(), file_type, 1]);
}

fn check_manifest(repo: &Path, node: NodeId, grid: &[u32], extents: &[(u32, u32)], info: ManifestInfo) {
    let what = format!("manifest {}", info.id);
    let file = read(repo, "manifests", info.id);
    assert_eq!(info.size, file.len() as u64, "{what}: its size");
    let manifest = Manifest::decode(&file, LIMIT).unwrap();
    assert_eq!(manifest.id(), info.id);
    let refs = manifest.array(node).unwrap().unwrap();
    if !is_ours(&file) {
        // This manifest was kept unchanged.
        return;
    }
    let lengths: Vec<usize> = manifest.iter_arrays().map(|(_, refs)| refs.len()).collect();
    assert!(manifest.node_ids().is_sorted_by(|a, b| a < b), "{what}: arrays are sorted");
    assert!(lengths.len() == 1 || lengths.iter().all(|length| *length <= 512), "{what}: large arrays have their own");
    assert_eq!(info.chunk_refs as usize, lengths.iter().sum::<usize>(), "{what}: its count");
    assert!(lengths.iter().all(|length| *length > 0), "{what}: empty");
    let all: Vec<Vec<u32>> = (0..refs.len()).map(|at| refs.coords(at).iter().collect()).collect();
    assert!(all.is_sorted_by(|a, b| a < b), "{what}: sorted, none twice");
    let tight: Vec<(u32, u32)> = (0..grid.len())
        .map(|axis| {
            let on_axis = || all.iter().map(|coords| coords[axis]);
            (on_axis().min().unwrap(), on_axis().max().unwrap() + 1)
        })
        .collect();
    assert_eq!(tight, extents, "{what}: tight extents");
    for (at, coords) in all.iter().enumerate() {
        assert_eq!(coords.len(), grid.len(), "{what}: rank of {coords:?}");
        assert!(coords.iter().zip(grid).all(|(c, n)| c < n), "{what}: {coords:?} outside {grid:?}");
        match refs.payload(at).unwrap() {
            ChunkPayload::Inline(bytes) => assert!(!bytes.is_empty(), "{what}: {coords:?}"),
            ChunkPayload::Native { chunk, offset, length } => {
                let size = std::fs::metadata(repo.join("chunks").join(chunk.to_string())).unwrap().len();
                assert!(length > 0 && offset + length <= size, "{what}: {coords:?}: {offset}+{length} of {size}");
            }
            ChunkPayload::Virtual { length, location, .. } => assert!(length > 0 && location.contains("://"), "{what}"),
        }
    }
}

fn check_log(repo: &Path, id: ObjectId, nodes: &BTreeSet<NodeId>, version: SpecVersion) {
    let what = format!("transaction log {id}");
    let file = read(repo, "transactions", id);
    check_header(&file, version, 4);
    let log = TransactionLog::decode(&file, LIMIT).unwrap();
    assert_eq!(log.id(), id);
    let list = |change| log.nodes(change).collect::<Vec<_>>();
    for change in NodeChange::ALL {
        assert!(list(change).is_sorted_by(|a, b| a < b), "{what}: {change:?}");
    }
    for change in [NodeChange::DeletedGroups, NodeChange::DeletedArrays] {
        assert!(list(change).iter().all(|node| !nodes.contains(node)), "{what}: a deleted node is there");
    }
    let mut seen = BTreeSet::new();
    for (change, node) in log.changed_nodes() {
        assert!(!is_ours(&file) || seen.insert(node), "{what}: {node} is in two lists, one of them {change:?}");
    }
    let arrays: Vec<NodeId> = log.updated_chunks().map(|(node, _)| node).collect();
    assert!(arrays.is_sorted_by(|a, b| a < b), "{what}: chunks by array");
    for (_, chunks) in log.updated_chunks() {
        let chunks: Vec<Vec<u32>> = chunks.map(|chunk| chunk.coords().collect()).collect();
        assert!(chunks.is_sorted_by(|a, b| a < b), "{what}: chunks");
    }
    let moves = log.moves().unwrap();
    assert!(moves.is_sorted_by(|a, b| a.to.split('/').lt(b.to.split('/'))), "{what}: moves");
    assert!(moves.is_empty() || version == SpecVersion::V2, "{what}: version 1 has no moves");
}

/// Checks that a move replaces only a node that is moved away itself, and leads to a place below a
/// group.
fn check_moves(repo: &Path, id: ObjectId, snapshot: &Snapshot, parent: ObjectId) {
    let log = TransactionLog::decode(&read(repo, "transactions", id), LIMIT).unwrap();
    let moves = log.moves().unwrap();
    if moves.is_empty() {
        return;
    }
    let before = Snapshot::decode(&read(repo, "snapshots", parent), LIMIT).unwrap();
    let occupied: BTreeSet<&str> = before.nodes().map(|node| node.path).collect();
    let groups: BTreeSet<&str> =
        snapshot.nodes().filter(|node| matches!(node.data, NodeData::Group)).map(|node| node.path).collect();
    let deleted: BTreeSet<NodeId> =
        log.nodes(NodeChange::DeletedGroups).chain(log.nodes(NodeChange::DeletedArrays)).collect();
    let left: BTreeSet<&str> = moves.iter().map(|one| one.from.as_str()).collect();
    for one in moves.iter().filter(|one| !deleted.contains(&one.node)) {
        let to = one.to.as_str();
        let what = format!("transaction log {id}: {} to {}", one.from, one.to);
        assert!(!occupied.contains(to) || left.contains(to), "{what}: the place was occupied");
        let above = to.rsplit_once('/').map_or("", |(above, _)| above);
        assert!(above.is_empty() || groups.contains(above), "{what}: there is no group above");
    }
}

fn check_repo(repo: &Path) {
    let info = RepoInfo::decode(&std::fs::read(repo.join("repo")).unwrap()).unwrap();
    let state = RepoState::from_info(&info).unwrap();
    assert!(state.updates.is_sorted_by(|a, b| a.updated_at > b.updated_at), "newest first, no two at one time");
    assert!(state.updates[0].backup_path.is_none(), "the newest operation has no copy");
    for update in &state.updates[1..] {
        let Some(backup) = &update.backup_path else { continue };
        assert!(!backup.contains('/') && repo.join("overwritten").join(backup).exists(), "{backup}");
    }
    for (id, record) in &state.snapshots {
        let file = read(repo, "snapshots", *id);
        let snapshot = Snapshot::decode(&file, LIMIT).unwrap();
        assert_eq!((record.flushed_at, record.message.as_str()), (snapshot.flushed_at(), snapshot.message()));
        if let Some(parent) = record.parent {
            assert!(state.snapshots[&parent].flushed_at < record.flushed_at, "later than its parent");
        }
    }
    for (id, record) in &state.snapshots {
        let file = read(repo, "snapshots", *id);
        // Expiration replaced the parent; the log is relative to the old one.
        if let Some(parent) = record.parent.filter(|_| record.pruned_ancestor_tx_logs.is_empty() && is_ours(&file)) {
            check_moves(repo, *id, &Snapshot::decode(&file, LIMIT).unwrap(), parent);
        }
    }
    let newest = state.updates.iter().find_map(|update| match &update.operation {
        Operation::NewCommit { branch, new } | Operation::CommitAmended { branch, new, .. } => Some((branch, new)),
        _ => None,
    });
    if let Some((branch, new)) = newest {
        assert_eq!(state.branches.get(branch), Some(new), "the newest commit is its branch's tip");
    }
}
