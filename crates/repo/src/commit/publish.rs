//! Publishes a commit: moves the branch, if it still points to the expected tip.
//!
//! The store's answer can be lost: the change is made, but this program sees a failure. The id of
//! the snapshot is then looked for in the history, where no other writer can have put it.

use std::sync::Arc;

use bytes::Bytes;

use crate::repo::Repository;
use crate::repo::clock::ChangeTime;
use crate::repo::collect::mark::LogPosition;
use crate::repo::flags::FeatureFlag;
use crate::repo::history::is_ancestor;
use crate::repo::update::{RepoFile, Update, UpdateOptions};
use crate::repo::v1::{self, BranchFile};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::draft::{SnapshotDraft, TransactionLogDraft};
use icechunkfs_format::format::envelope::{self, Compression, FileType};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::kept_nodes::KeptNodes;
use icechunkfs_format::format::repo_state::{Operation, RepoState, SnapshotRecord};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_store::storage::Storage;

/// Snapshot that is stored with its log: nothing refers to it yet.
#[derive(Debug)]
pub(super) struct StoredSnapshot {
    /// The snapshot's record in `repo`.
    pub(super) record: SnapshotRecord,
    /// The snapshot, decoded from what was written.
    pub(super) snapshot: Snapshot,
}

/// Snapshot to be stored, with its log.
pub(super) struct SnapshotFiles {
    pub(super) log: TransactionLogDraft,
    pub(super) draft: SnapshotDraft,
    /// Nodes that the snapshot has from its parent.
    pub(super) kept: KeptNodes,
}

/// Writes the log and the snapshot of a commit at `moment`, under new names, and at the same time
/// the copy of `repo` that the publication needs. When this returns, everything that the snapshot
/// refers to is durable.
pub(super) async fn store_snapshot(
    storage: &dyn Storage,
    moment: ChangeTime,
    clock: Clock,
    SnapshotFiles { log, draft, kept }: SnapshotFiles,
    compression: Compression,
    current: Option<&mut RepoFile>,
) -> Result<StoredSnapshot> {
    let record = SnapshotRecord::of(&draft, None);
    let snapshot_key = format!("snapshots/{}", draft.id);
    let log_key = format!("transactions/{}", draft.id);
    let encode = move || {
        let payload = draft.payload_with(Some(&kept))?;
        Ok((log.encode(draft.id, draft.version, compression)?, Bytes::from(payload), (draft, kept)))
    };
    let (log, payload, (draft, kept)) = blocking(encode).await?;
    // A snapshot that readers would refuse is not stored.
    let version = draft.version;
    let written = payload.clone();
    let decode = move || {
        let snapshot = Snapshot::of_payload(written, version)?;
        kept.check(draft.nodes.len(), &snapshot)?;
        Ok(snapshot)
    };
    let compress = move || envelope::encode(version, FileType::Snapshot, &payload, compression);
    let (snapshot, file) = tokio::join!(blocking(decode), blocking(compress));
    let snapshot = snapshot?;
    let file = file?;
    // The objects do not depend on each other, since nothing leads to them yet: over a network this
    // is one round trip.
    let store_log = async {
        failpoints::pass("commit.log")?;
        storage.put_new(&log_key, log.into()).await?;
        failpoints::pass("commit.log.done")?;
        moment.check(storage, &log_key).await
    };
    let store_snapshot = async {
        failpoints::pass("commit.snapshot")?;
        storage.put_new(&snapshot_key, file.into()).await
    };
    let copy_repo = async {
        match current {
            Some(current) => current.copy(storage, clock).await,
            None => Ok(()),
        }
    };
    let (log_stored, stored, copied) = tokio::join!(store_log, store_snapshot, copy_repo);
    log_stored.and(stored).and(copied)?;
    storage.sync(&["chunks", "manifests", "transactions", "snapshots"]).await?;
    failpoints::pass("commit.snapshot.done")?;
    Ok(StoredSnapshot { record, snapshot })
}

#[derive(Debug)]
pub(super) struct Publication<'a> {
    pub(super) branch: &'a str,
    /// Commit that the branch must point to.
    pub(super) tip: ObjectId,
    /// Commits that the new snapshot replaces, newest first: the tip and its ancestors. Empty if
    /// the new snapshot follows the tip.
    pub(super) replaces: &'a [ObjectId],
    pub(super) has_moves: bool,
    pub(super) new: ObjectId,
    /// GC mark from before anything that the snapshot needs beside its parent was stored.
    pub(super) stored_since: Option<LogPosition>,
    /// Record in `repo`; the parent and the pruned logs are filled in here.
    pub(super) record: SnapshotRecord,
}

/// Outcome of an attempt to publish.
#[derive(Debug)]
pub(super) enum Published {
    /// The branch points to the new snapshot. Holds `repo` as it was written, if this attempt wrote
    /// it; none in version 1.
    Done(Option<Bytes>),
    /// Another writer came first. Holds `repo` as that writer left it, if it was read.
    Lost(Option<RepoFile>),
    /// Garbage was collected meanwhile, and may have included what was stored for the snapshot.
    Collected,
}

/// State of `repo` to begin a publication with, and the number of attempts.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) known: Option<RepoFile>,
    pub(super) tries: u32,
}

/// Publishes in a repository of version 2. The caller has checked the clock.
pub(super) async fn v2(
    storage: &Arc<dyn Storage>,
    clock: Clock,
    publication: &Publication<'_>,
    Start { known, tries }: Start,
) -> Result<Published> {
    #[derive(PartialEq)]
    enum Verdict {
        Published,
        Moved,
        Collected,
    }
    let mut verdict = None;
    let change = |state: &mut RepoState| {
        verdict = Some(if state.snapshots.contains_key(&publication.new) {
            Verdict::Published
        } else if state.branches.get(publication.branch).is_some_and(|tip| *tip != publication.tip) {
            Verdict::Moved
        } else if publication.stored_since.is_some_and(|mark| mark.may_have_collected_since(state)) {
            Verdict::Collected
        } else {
            return insert(state, publication);
        });
        Err(Error::new(ErrorKind::Stale, "the branch has moved"))
    };
    let options = UpdateOptions { clock_is_checked: true, tries, ..UpdateOptions::default() };
    let backed_up = || failpoints::pass("commit.backup.done");
    let mut update = Update::new(&**storage, clock, options).beginning_with(known);
    let updated = update.run(change, backed_up).await;
    let last_read = update.into_last_read();
    match (verdict, updated) {
        (Some(Verdict::Published), _) => Ok(Published::Done(None)),
        (Some(Verdict::Moved), _) => Ok(Published::Lost(last_read)),
        (Some(Verdict::Collected), _) => Ok(Published::Collected),
        (None, Ok(updated)) => Ok(Published::Done(Some(updated.bytes))),
        (None, Err(error)) if error.kind() == ErrorKind::Contended => {
            // The last attempt may have succeeded all the same: its answer can have been lost, and
            // its repetition refused.
            let current = RepoFile::read(&**storage).await.context(|| unknown(publication.new))?;
            let is_done = current.has(publication.new);
            Ok(if is_done { Published::Done(None) } else { Published::Lost(Some(current)) })
        }
        (None, Err(error)) => recover(storage, publication, error).await,
    }
}

fn insert(state: &mut RepoState, publication: &Publication<'_>) -> Result<Operation> {
    let &Publication { branch, tip, new, .. } = publication;
    if !state.branches.contains_key(branch) {
        return Err(branch_is_gone(branch));
    }
    if publication.has_moves {
        FeatureFlag::MoveNode.check(state, "moving groups and arrays")?;
    }
    if !state.snapshots.contains_key(&tip) {
        return Err(not_listed(branch, tip));
    }
    let mut record = publication.record.clone();
    let operation = match publication.replaces {
        [] => {
            record.parent = Some(tip);
            Operation::NewCommit { branch: branch.to_owned(), new }
        }
        replaced => {
            (record.parent, record.pruned_ancestor_tx_logs) = parent_and_pruned_logs(state, publication, replaced)?;
            Operation::CommitAmended { branch: branch.to_owned(), previous: tip, new }
        }
    };
    state.snapshots.insert(new, record);
    state.branches.insert(branch.to_owned(), new);
    Ok(operation)
}

/// Returns the parent of a snapshot that replaces `replaced`, and the logs of expired commits that
/// it has to keep: all that the replaced commits had.
fn parent_and_pruned_logs(
    state: &RepoState,
    publication: &Publication<'_>,
    replaced: &[ObjectId],
) -> Result<(Option<ObjectId>, Vec<ObjectId>)> {
    let mut next = Some(publication.tip);
    let mut pruned = Vec::new();
    for id in replaced {
        // The new log was made of these commits, so exactly these must be replaced.
        if next != Some(*id) {
            return Err(Error::new(
                ErrorKind::Stale,
                format!(
                    "commits before {} expired or were collected concurrently: nothing was changed; try again",
                    publication.tip
                ),
            ));
        }
        let record = state.snapshots.get(id).ok_or_else(|| not_listed(publication.branch, *id))?;
        next = record.parent;
        pruned.push(record.pruned_ancestor_tx_logs.as_slice());
    }
    if next.is_none() {
        return Err(no_amend_of_the_first());
    }
    Ok((next, pruned.into_iter().rev().flatten().copied().collect()))
}

fn not_listed(branch: &str, id: ObjectId) -> Error {
    Error::corrupt(format!("repo: branch `{branch}` has snapshot {id}, which is not listed"))
}

/// Publishes in a repository of version 1, which has one small file per branch.
pub(super) async fn v1(
    storage: &Arc<dyn Storage>,
    publication: &Publication<'_>,
    known: Option<&BranchFile>,
) -> Result<Published> {
    match v1::move_branch(&**storage, publication.branch, publication.tip, publication.new, known).await {
        Ok(tip) if tip == publication.new => Ok(Published::Done(None)),
        Ok(_) => Ok(Published::Lost(None)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(branch_is_gone(publication.branch)),
        Err(error) => recover(storage, publication, error).await,
    }
}

/// Finds out if the change was made after all, although `error` was reported.
async fn recover(storage: &Arc<dyn Storage>, publication: &Publication<'_>, error: Error) -> Result<Published> {
    match is_published(storage, publication.branch, publication.new).await {
        Ok(true) => Ok(Published::Done(None)),
        Err(_) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Io) => {
            Err(error.context(unknown(publication.new)))
        }
        Ok(false) | Err(_) => Err(error),
    }
}

pub(super) fn unknown(new: ObjectId) -> String {
    format!(
        "it is not known whether commit {new} was published, as the storage does not answer: see `icechunkfs log` later"
    )
}

/// Returns true if `snapshot` is in the history of `branch`.
pub(super) async fn is_published(storage: &Arc<dyn Storage>, branch: &str, snapshot: ObjectId) -> Result<bool> {
    let repository = Repository::open(Arc::clone(storage)).await?;
    match repository.branch_tip(branch).await? {
        Some(tip) => is_ancestor(&repository, snapshot, tip).await,
        None => Ok(false),
    }
}

/// Returns the error for a branch that does not exist any more.
pub(super) fn branch_is_gone(branch: &str) -> Error {
    Error::new(
        ErrorKind::Stale,
        format!(
            "branch `{branch}` has been deleted: the changes are kept; create the branch again, or mount another branch and \
             copy them"
        ),
    )
}

/// Returns the error for an attempt to amend the first snapshot of a repository.
pub(super) fn no_amend_of_the_first() -> Error {
    Error::invalid("the first commit of a repository cannot be amended: make a new commit instead")
}
