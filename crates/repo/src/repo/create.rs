//! Creation of a repository of version 2 (format notes 1.8).
//!
//! The writes and their order are those of the reference implementation: the initial snapshot and
//! its empty transaction log under their well-known id, then `repo` if there is none yet. The
//! repository exists only once `repo` does.

use super::refs::DEFAULT_BRANCH;
use super::{MAX_REPO_FILE, check_storage_writable, update};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::draft::{NodeDraft, SnapshotDraft, TransactionLogDraft};
use icechunkfs_format::format::envelope::{Compression, SpecVersion};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::repo_state::{LogEntry, Operation, RawItem, RepoState, SnapshotRecord, Status};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::transaction_log::NodeChange;
use icechunkfs_store::storage::{Condition, Storage};

/// Message of the initial snapshot: the reference implementation's text.
const INITIAL_MESSAGE: &str = "Repository initialized";
const GROUP_MESSAGE: &str = "Create the root group";
/// `zarr.json` of a group without attributes.
pub const GROUP_DOCUMENT: &[u8] = br#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;

/// Creates a repository in `storage`, which must be empty; with `zarr_group`, its first commit adds
/// a root group.
///
/// Fails with [`ErrorKind::AlreadyExists`] if the storage holds any object.
pub async fn create(storage: &dyn Storage, zarr_group: bool, clock: Clock) -> Result<()> {
    check_storage_writable(storage)?;
    refuse_occupied(storage, "created in").await?;
    let id = ObjectId::INITIAL;
    let snapshot = initial_draft(clock)?;
    write_commit(storage, &snapshot, &TransactionLogDraft::default()).await?;
    let now = clock().max(snapshot.flushed_at);
    let state = RepoState {
        branches: [(DEFAULT_BRANCH.to_owned(), id)].into(),
        snapshots: [(id, SnapshotRecord::of(&snapshot, None))].into(),
        status: Status { set_at: now, ..Status::default() },
        updates: vec![LogEntry { operation: Operation::RepoInitialized, updated_at: now, backup_path: None }],
        ..RepoState::default()
    };
    storage.check_conditions(&format!("transactions/{id}"), MAX_REPO_FILE).await?;
    storage.put("repo", state.encode()?.into(), Condition::Absent).await.context(|| storage.location().to_owned())?;
    if zarr_group { add_root_group(storage, clock).await } else { Ok(()) }
}

/// Returns the initial snapshot of a repository that does not exist yet.
pub fn initial(clock: Clock) -> Result<Snapshot> {
    Snapshot::decode(&initial_draft(clock)?.encode()?, super::MAX_SNAPSHOT)
}

fn initial_draft(clock: Clock) -> Result<SnapshotDraft> {
    let metadata = vec![RawItem::new(SpecVersion::V2, "__icechunk", &serde_json::json!({"is_root": true}))?];
    Ok(SnapshotDraft { metadata, ..SnapshotDraft::new(ObjectId::INITIAL, clock(), INITIAL_MESSAGE) })
}

/// Fails if the storage holds any object: the reference implementation refuses to create a
/// repository beside one. The error says that a repository is `verb` an empty place only.
pub(super) async fn refuse_occupied(storage: &dyn Storage, verb: &str) -> Result<()> {
    let occupied = |what: &str| {
        Err(Error::new(
            ErrorKind::AlreadyExists,
            format!("{} {what}: a repository can only be {verb} an empty place", storage.location()),
        ))
    };
    match storage.get("repo", MAX_REPO_FILE).await {
        Ok(_) => return occupied("holds a repository already"),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.context(storage.location())),
    }
    match storage.any_key().await? {
        Some(key) => occupied(&format!("is not empty (there is `{key}`)")),
        None => Ok(()),
    }
}

async fn add_root_group(storage: &dyn Storage, clock: Clock) -> Result<()> {
    let node = NodeId::random()?;
    let parent = ObjectId::INITIAL;
    let nodes = vec![NodeDraft {
        id: node,
        path: "/".to_owned(),
        zarr_json: GROUP_DOCUMENT.to_vec(),
        array: None,
        extra: None,
    }];
    let snapshot = SnapshotDraft { nodes, ..SnapshotDraft::new(ObjectId::random()?, clock(), GROUP_MESSAGE) };
    let log = TransactionLogDraft { nodes: [(node, NodeChange::NewGroups)].into(), ..TransactionLogDraft::default() };
    write_commit(storage, &snapshot, &log).await?;
    update::update(storage, clock, |state| {
        if state.branches.get(DEFAULT_BRANCH) != Some(&parent) {
            return Err(Error::new(ErrorKind::Contended, "the new repository already has a commit"));
        }
        state.branches.insert(DEFAULT_BRANCH.to_owned(), snapshot.id);
        state.snapshots.insert(snapshot.id, SnapshotRecord::of(&snapshot, Some(parent)));
        Ok(Operation::NewCommit { branch: DEFAULT_BRANCH.to_owned(), new: snapshot.id })
    })
    .await
    .map(drop)
}

/// Writes the two files of a commit, which nothing refers to yet.
async fn write_commit(storage: &dyn Storage, snapshot: &SnapshotDraft, log: &TransactionLogDraft) -> Result<()> {
    let id = snapshot.id;
    storage.put(&format!("snapshots/{id}"), snapshot.encode()?.into(), Condition::Always).await?;
    storage
        .put(
            &format!("transactions/{id}"),
            log.encode(id, SpecVersion::V2, Compression::default())?.into(),
            Condition::Always,
        )
        .await
}
