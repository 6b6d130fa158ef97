//! Entries of the operations log, as `repo` holds them.

use flatbuffers::{UnionWIPOffset, WIPOffset};

use super::{Builder, Status, write_status};
use crate::format::generated::icechunk as fb;
use crate::format::ids::ObjectId;
use crate::format::json::TEXT;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Operation on a repository (spec, "Update").
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the members are the specification's own, by its names")]
pub enum Operation {
    RepoInitialized,
    RepoMigrated { from_version: u8, to_version: u8 },
    ConfigChanged,
    MetadataChanged,
    TagCreated { name: String },
    TagDeleted { name: String, previous: ObjectId },
    BranchCreated { name: String },
    BranchDeleted { name: String, previous: ObjectId },
    BranchReset { name: String, previous: ObjectId },
    NewCommit { branch: String, new: ObjectId },
    CommitAmended { branch: String, previous: ObjectId, new: ObjectId },
    NewDetachedSnapshot { new: ObjectId },
    GcRan,
    ExpirationRan,
    FeatureFlagChanged { id: u16, new_value: bool, is_set: bool },
    StatusChanged { status: Option<Status> },
}

/// Entry of the operations log. `O` is the operation, or a result if it may be of an unknown kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry<O = Operation> {
    /// Operation that the entry records.
    pub operation: O,
    /// Time of the operation, in microseconds since 1970-01-01 UTC.
    pub updated_at: u64,
    /// Bare name, below `overwritten/`, of the copy of the file that ended with this entry. Never
    /// set on the newest.
    pub backup_path: Option<String>,
}

/// Reads one entry of the operations log. Fails on a kind that the schema does not have: a rewrite
/// of the log would lose it.
pub(super) fn read_known_entry(stored: fb::Update<'_>) -> Result<LogEntry> {
    let LogEntry { operation, updated_at, backup_path } = read_entry(stored);
    let operation = operation.map_err(|kind| {
        let why = "a newer program wrote it and may change this repository";
        Error::new(ErrorKind::Unsupported, format!("an operation of unknown kind {kind}: {why}"))
    })?;
    Ok(LogEntry { operation, updated_at, backup_path })
}

/// Reads one entry of the operations log; the operation is the number of its kind if the schema
/// does not have it.
pub(in crate::format) fn read_entry(stored: fb::Update<'_>) -> LogEntry<std::result::Result<Operation, u8>> {
    LogEntry {
        operation: read_operation(stored).ok_or(stored.update_type_type().0),
        updated_at: stored.updated_at(),
        backup_path: stored.backup_path().map(str::to_owned),
    }
}

/// Returns the most bytes that the names in an entry of the operations log take.
pub(super) fn entry_text(stored: fb::Update<'_>) -> u64 {
    let name = match read_operation(stored) {
        Some(
            Operation::TagCreated { name }
            | Operation::TagDeleted { name, .. }
            | Operation::BranchCreated { name }
            | Operation::BranchDeleted { name, .. }
            | Operation::BranchReset { name, .. }
            | Operation::NewCommit { branch: name, .. }
            | Operation::CommitAmended { branch: name, .. },
        ) => name.len(),
        Some(Operation::StatusChanged { status: Some(status) }) => status.reason.map_or(0, |reason| reason.len()),
        _ => 0,
    };
    2 * TEXT + (name + stored.backup_path().map_or(0, str::len)) as u64
}

/// Returns the operation of an entry; `None` for a kind that the schema does not have.
fn read_operation(stored: fb::Update<'_>) -> Option<Operation> {
    let id = |id: &fb::ObjectId12| ObjectId::from(id);
    let name = str::to_owned;
    use fb::UpdateType as Kind;
    Some(match stored.update_type_type() {
        Kind::RepoInitializedUpdate => Operation::RepoInitialized,
        Kind::RepoMigratedUpdate => {
            let table = stored.update_type_as_repo_migrated_update()?;
            Operation::RepoMigrated { from_version: table.from_version(), to_version: table.to_version() }
        }
        Kind::ConfigChangedUpdate => Operation::ConfigChanged,
        Kind::MetadataChangedUpdate => Operation::MetadataChanged,
        Kind::TagCreatedUpdate => {
            Operation::TagCreated { name: name(stored.update_type_as_tag_created_update()?.name()) }
        }
        Kind::TagDeletedUpdate => {
            let table = stored.update_type_as_tag_deleted_update()?;
            Operation::TagDeleted { name: name(table.name()), previous: id(table.previous_snap_id()) }
        }
        Kind::BranchCreatedUpdate => {
            Operation::BranchCreated { name: name(stored.update_type_as_branch_created_update()?.name()) }
        }
        Kind::BranchDeletedUpdate => {
            let table = stored.update_type_as_branch_deleted_update()?;
            Operation::BranchDeleted { name: name(table.name()), previous: id(table.previous_snap_id()) }
        }
        Kind::BranchResetUpdate => {
            let table = stored.update_type_as_branch_reset_update()?;
            Operation::BranchReset { name: name(table.name()), previous: id(table.previous_snap_id()) }
        }
        Kind::NewCommitUpdate => {
            let table = stored.update_type_as_new_commit_update()?;
            Operation::NewCommit { branch: name(table.branch()), new: id(table.new_snap_id()) }
        }
        Kind::CommitAmendedUpdate => {
            let table = stored.update_type_as_commit_amended_update()?;
            let previous = id(table.previous_snap_id());
            let new = id(table.new_snap_id());
            Operation::CommitAmended { branch: name(table.branch()), previous, new }
        }
        Kind::NewDetachedSnapshotUpdate => {
            let table = stored.update_type_as_new_detached_snapshot_update()?;
            Operation::NewDetachedSnapshot { new: id(table.new_snap_id()) }
        }
        Kind::GCRanUpdate => Operation::GcRan,
        Kind::ExpirationRanUpdate => Operation::ExpirationRan,
        Kind::FeatureFlagChangedUpdate => {
            let table = stored.update_type_as_feature_flag_changed_update()?;
            Operation::FeatureFlagChanged { id: table.id(), new_value: table.new_value(), is_set: table.is_set() }
        }
        Kind::RepoStatusChangedUpdate => Operation::StatusChanged {
            status: stored.update_type_as_repo_status_changed_update()?.status().map(Status::of),
        },
        _ => return None,
    })
}

pub(super) fn write_entry(b: &mut Builder, entry: &LogEntry) -> WIPOffset<fb::Update<'static>> {
    let (update_type_type, update_type) = write_operation(b, &entry.operation);
    let backup_path = entry.backup_path.as_ref().map(|path| b.create_string(path));
    let args =
        fb::UpdateArgs { update_type_type, update_type: Some(update_type), updated_at: entry.updated_at, backup_path };
    fb::Update::create(b, &args)
}

/// Writes a member of the union, and returns it with its discriminant.
fn write_operation(b: &mut Builder, operation: &Operation) -> (fb::UpdateType, WIPOffset<UnionWIPOffset>) {
    use fb::UpdateType as Kind;
    let id = |id: &ObjectId| fb::ObjectId12(id.0);
    macro_rules! table {
        ($table:ident, $args:expr) => {{
            let args = $args;
            (Kind::$table, fb::$table::create(b, &args).as_union_value())
        }};
    }
    match operation {
        Operation::RepoInitialized => table!(RepoInitializedUpdate, fb::RepoInitializedUpdateArgs {}),
        Operation::RepoMigrated { from_version, to_version } => {
            table!(
                RepoMigratedUpdate,
                fb::RepoMigratedUpdateArgs { from_version: *from_version, to_version: *to_version }
            )
        }
        Operation::ConfigChanged => table!(ConfigChangedUpdate, fb::ConfigChangedUpdateArgs {}),
        Operation::MetadataChanged => table!(MetadataChangedUpdate, fb::MetadataChangedUpdateArgs {}),
        Operation::TagCreated { name } => {
            table!(TagCreatedUpdate, fb::TagCreatedUpdateArgs { name: Some(b.create_string(name)) })
        }
        Operation::TagDeleted { name, previous } => {
            let name = Some(b.create_string(name));
            table!(TagDeletedUpdate, fb::TagDeletedUpdateArgs { name, previous_snap_id: Some(&id(previous)) })
        }
        Operation::BranchCreated { name } => {
            table!(BranchCreatedUpdate, fb::BranchCreatedUpdateArgs { name: Some(b.create_string(name)) })
        }
        Operation::BranchDeleted { name, previous } => {
            let name = Some(b.create_string(name));
            table!(BranchDeletedUpdate, fb::BranchDeletedUpdateArgs { name, previous_snap_id: Some(&id(previous)) })
        }
        Operation::BranchReset { name, previous } => {
            let name = Some(b.create_string(name));
            table!(BranchResetUpdate, fb::BranchResetUpdateArgs { name, previous_snap_id: Some(&id(previous)) })
        }
        Operation::NewCommit { branch, new } => {
            let branch = Some(b.create_string(branch));
            table!(NewCommitUpdate, fb::NewCommitUpdateArgs { branch, new_snap_id: Some(&id(new)) })
        }
        Operation::CommitAmended { branch, previous, new } => {
            let branch = Some(b.create_string(branch));
            let previous_snap_id = Some(&id(previous));
            let new_snap_id = Some(&id(new));
            table!(CommitAmendedUpdate, fb::CommitAmendedUpdateArgs { branch, previous_snap_id, new_snap_id })
        }
        Operation::NewDetachedSnapshot { new } => {
            table!(NewDetachedSnapshotUpdate, fb::NewDetachedSnapshotUpdateArgs { new_snap_id: Some(&id(new)) })
        }
        Operation::GcRan => table!(GCRanUpdate, fb::GCRanUpdateArgs {}),
        Operation::ExpirationRan => table!(ExpirationRanUpdate, fb::ExpirationRanUpdateArgs {}),
        Operation::FeatureFlagChanged { id, new_value, is_set } => table!(
            FeatureFlagChangedUpdate,
            fb::FeatureFlagChangedUpdateArgs { id: *id, new_value: *new_value, is_set: *is_set }
        ),
        Operation::StatusChanged { status } => {
            let status = status.as_ref().map(|status| write_status(b, status));
            table!(RepoStatusChangedUpdate, fb::RepoStatusChangedUpdateArgs { status })
        }
    }
}
