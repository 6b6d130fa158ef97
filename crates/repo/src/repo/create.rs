//! Creation of a repository of version 2 (format notes 1.8).
//!
//! The writes and their order are those of the reference implementation: the initial snapshot and
//! its empty transaction log under their well-known id, then `repo` if there is none yet. The
//! repository exists only once `repo` does. A creation that ended before has left one or both of
//! the former: the next one takes them, so that no object is replaced.

use bytes::Bytes;

use super::refs::DEFAULT_BRANCH;
use super::{MAX_REPO_FILE, MAX_SNAPSHOT, check_storage_writable, update};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::draft::{NodeDraft, SnapshotDraft, TransactionLogDraft};
use icechunkfs_format::format::envelope::{Compression, SpecVersion};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::repo_state::{LogEntry, Operation, RawItem, RepoState, SnapshotRecord, Status};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::transaction_log::{NodeChange, TransactionLog};
use icechunkfs_store::storage::{Condition, Storage};

/// Message of the initial snapshot: the reference implementation's text.
const INITIAL_MESSAGE: &str = "Repository initialized";
const GROUP_MESSAGE: &str = "Create the root group";
/// `zarr.json` of a group without attributes.
pub const GROUP_DOCUMENT: &[u8] = br#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;

/// Creates a repository in `storage`, which must have no [`occupant`]; with `zarr_group`, its first
/// commit adds a root group.
///
/// Fails with [`ErrorKind::AlreadyExists`] if the storage has one.
pub async fn create(storage: &dyn Storage, zarr_group: bool, clock: Clock) -> Result<()> {
    check_storage_writable(storage)?;
    refuse(storage, "created in", occupant(storage).await?)?;
    let id = ObjectId::INITIAL;
    let snapshot = write_initial(storage, initial_draft(clock)?).await?;
    let now = clock().max(snapshot.flushed_at);
    let state = RepoState {
        branches: [(DEFAULT_BRANCH.to_owned(), id)].into(),
        snapshots: [(id, SnapshotRecord::of(&snapshot, None))].into(),
        status: Status { set_at: now, ..Status::default() },
        updates: vec![LogEntry { operation: Operation::RepoInitialized, updated_at: now, backup_path: None }],
        ..RepoState::default()
    };
    storage.check_conditions(&log_key(id), MAX_REPO_FILE).await?;
    storage.put("repo", state.encode()?.into(), Condition::Absent).await.context(|| storage.location().to_owned())?;
    if zarr_group { add_root_group(storage, clock).await } else { Ok(()) }
}

/// Returns the initial snapshot of a repository that does not exist yet.
pub fn initial(clock: Clock) -> Result<Snapshot> {
    Snapshot::decode(&initial_draft(clock)?.encode()?, MAX_SNAPSHOT)
}

fn initial_draft(clock: Clock) -> Result<SnapshotDraft> {
    let metadata = vec![RawItem::new(SpecVersion::V2, "__icechunk", &serde_json::json!({"is_root": true}))?];
    Ok(SnapshotDraft { metadata, ..SnapshotDraft::new(ObjectId::INITIAL, clock(), INITIAL_MESSAGE) })
}

/// Returns the key of an object beside which no repository is created, as the reference
/// implementation creates none; none if there is nothing, or only what a creation that ended before
/// there was a repository has left.
pub async fn occupant(storage: &dyn Storage) -> Result<Option<String>> {
    any_key(storage, &[snapshot_key(ObjectId::INITIAL), log_key(ObjectId::INITIAL)]).await
}

/// Fails if the storage holds any object. The error says that a repository is `verb` an empty place
/// only.
pub(super) async fn refuse_occupied(storage: &dyn Storage, verb: &str) -> Result<()> {
    refuse(storage, verb, any_key(storage, &[]).await?)
}

/// Returns the key of an object that is none of `known`; that of a repository if there is one.
async fn any_key(storage: &dyn Storage, known: &[String]) -> Result<Option<String>> {
    match storage.get("repo", MAX_REPO_FILE).await {
        Ok(_) => Ok(Some("repo".to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => storage.any_key(known).await,
        Err(error) => Err(error.context(storage.location())),
    }
}

fn refuse(storage: &dyn Storage, verb: &str, occupant: Option<String>) -> Result<()> {
    let what = match occupant {
        None => return Ok(()),
        Some(key) if key == "repo" => "holds a repository already".to_owned(),
        Some(key) => format!("is not empty (there is `{key}`)"),
    };
    let message = format!("{} {what}: a repository can only be {verb} an empty place", storage.location());
    Err(Error::new(ErrorKind::AlreadyExists, message))
}

/// Writes the first snapshot and its empty log, or takes what is there. Returns the snapshot.
async fn write_initial(storage: &dyn Storage, mut draft: SnapshotDraft) -> Result<SnapshotDraft> {
    let [snapshot, log] = [snapshot_key(draft.id), log_key(draft.id)];
    let foreign = |key: &str| refuse(storage, "created in", Some(key.to_owned()));
    if !put_new(storage, &snapshot, draft.encode()?).await? {
        let found = Snapshot::decode(&storage.get(&snapshot, MAX_REPO_FILE).await?, MAX_SNAPSHOT);
        let found = found.context(|| snapshot.clone())?;
        draft.flushed_at = found.flushed_at();
        if !Snapshot::from_draft(&draft)?.is_same_but_for_parent(&found) {
            foreign(&snapshot)?;
        }
    }
    if !put_new(storage, &log, encoded(&TransactionLogDraft::default(), draft.id)?).await? {
        let found = TransactionLog::decode(&storage.get(&log, MAX_REPO_FILE).await?, MAX_REPO_FILE);
        let found = found.context(|| log.clone())?;
        let is_empty = found.changed_nodes().next().is_none() && found.updated_chunks().next().is_none();
        if found.id() != draft.id || !is_empty || found.has_moves() {
            foreign(&log)?;
        }
    }
    Ok(draft)
}

/// Writes object `key`, unless there is one: then returns false. What a store without conditions
/// lacks is said when those are checked.
async fn put_new(storage: &dyn Storage, key: &str, bytes: Vec<u8>) -> Result<bool> {
    let bytes = Bytes::from(bytes);
    let put = match storage.put(key, bytes.clone(), Condition::Absent).await {
        Err(error) if error.kind() == ErrorKind::Contended => return Ok(false),
        Err(error) if error.kind() == ErrorKind::Unsupported => storage.put(key, bytes, Condition::Always).await,
        put => put,
    };
    put.map(|()| true)
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
    storage.put(&snapshot_key(id), snapshot.encode()?.into(), Condition::Always).await?;
    storage.put(&log_key(id), encoded(log, id)?.into(), Condition::Always).await
}

fn encoded(log: &TransactionLogDraft, id: ObjectId) -> Result<Vec<u8>> {
    log.encode(id, SpecVersion::V2, Compression::default())
}

fn snapshot_key(id: ObjectId) -> String {
    format!("snapshots/{id}")
}

fn log_key(id: ObjectId) -> String {
    format!("transactions/{id}")
}
