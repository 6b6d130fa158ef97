//! Publishes a commit: moves the branch, if it still points to the expected tip.
//!
//! The store's answer can be lost: the change is made, but this program sees a failure. The id of the snapshot is then looked
//! for in the history, where no other writer can have put it.

use std::sync::Arc;

use crate::blocking::blocking;
use crate::error::{Error, ErrorKind, Result};
use crate::failpoints;
use crate::format::draft::{SnapshotDraft, TransactionLogDraft};
use crate::format::ids::ObjectId;
use crate::format::repo_state::{Operation, RepoState, SnapshotRecord};
use crate::repo::Repository;
use crate::repo::clock::ChangeTime;
use crate::repo::collect::mark::LogPosition;
use crate::repo::update::{self, UpdateOptions};
use crate::repo::v1;
use crate::storage::Storage;
use crate::times::Clock;

/// The feature flag that allows commits with moves.
const MOVE_NODE: u16 = 3;

/// Writes the log and the snapshot of a commit at `moment`, under new names: nothing refers to them yet. Returns the snapshot's
/// record in `repo`. When this returns, everything that the snapshot refers to is durable.
pub(super) async fn store_snapshot(
    storage: &dyn Storage,
    moment: ChangeTime,
    log: TransactionLogDraft,
    draft: SnapshotDraft,
) -> Result<SnapshotRecord> {
    let record = SnapshotRecord::of(&draft, None);
    let (snapshot_key, log_key) = (format!("snapshots/{}", draft.id), format!("transactions/{}", draft.id));
    let encode = move || Ok((log.encode(draft.id, draft.version)?, draft.encode()?));
    let (log, snapshot) = blocking(encode).await?;
    failpoints::pass("commit.log")?;
    storage.put_new(&log_key, log.into()).await?;
    failpoints::pass("commit.log.done")?;
    failpoints::pass("commit.snapshot")?;
    let stored = storage.put_new(&snapshot_key, snapshot.into());
    let (stored, checked) = tokio::join!(stored, moment.check(storage, &log_key));
    stored.and(checked)?;
    storage.sync(&["chunks", "manifests", "transactions", "snapshots"]).await?;
    failpoints::pass("commit.snapshot.done")?;
    Ok(record)
}

#[derive(Debug)]
pub(super) struct Publication<'a> {
    pub(super) branch: &'a str,
    /// Commit that the branch must point to.
    pub(super) tip: ObjectId,
    /// Commits that the new snapshot replaces, newest first: the tip and its ancestors. Empty if the new snapshot follows the tip.
    pub(super) replaces: &'a [ObjectId],
    pub(super) has_moves: bool,
    pub(super) new: ObjectId,
    /// GC mark from before anything that the snapshot needs beside its parent was stored.
    pub(super) stored_since: Option<LogPosition>,
    /// Record in `repo`; the parent and the pruned logs are filled in here.
    pub(super) record: SnapshotRecord,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// The branch points to the new snapshot.
    Done,
    /// Another writer has moved the branch.
    Moved,
    /// Garbage was collected meanwhile, and may have included what was stored for the snapshot.
    Collected,
}

/// Publishes in a repository of version 2. The caller has checked the clock.
pub(super) async fn v2(storage: &Arc<dyn Storage>, clock: Clock, publication: &Publication<'_>) -> Result<Published> {
    let mut outcome = None;
    let change = |state: &mut RepoState| {
        outcome = Some(if state.snapshots.contains_key(&publication.new) {
            Published::Done
        } else if state.branches.get(publication.branch).is_some_and(|tip| *tip != publication.tip) {
            Published::Moved
        } else if publication.stored_since.is_some_and(|mark| mark.may_have_collected_since(state)) {
            Published::Collected
        } else {
            return insert(state, publication);
        });
        Err(Error::new(ErrorKind::Stale, "the branch has moved"))
    };
    let options = UpdateOptions { clock_is_checked: true, names_copy: true };
    let backed_up = || failpoints::pass("commit.backup.done");
    let updated = update::update_with(&**storage, clock, options, change, backed_up).await;
    match (outcome, updated) {
        (Some(found), _) => Ok(found),
        (None, Ok(_)) => Ok(Published::Done),
        (None, Err(error)) => recover(storage, publication, error).await,
    }
}

fn insert(state: &mut RepoState, publication: &Publication<'_>) -> Result<Operation> {
    let &Publication { branch, tip, new, .. } = publication;
    if !state.branches.contains_key(branch) {
        return Err(branch_is_gone(branch));
    }
    if publication.has_moves && state.disabled_feature_flags.iter().flatten().any(|flag| *flag == MOVE_NODE) {
        return Err(Error::new(
            ErrorKind::NotPermitted,
            "moving groups and arrays is switched off in this repository (feature flag move_node): copy them instead",
        ));
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

/// Returns the parent of a snapshot that replaces `replaced`, and the logs of expired commits that it has to keep: all that
/// the replaced commits had.
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
pub(super) async fn v1(storage: &Arc<dyn Storage>, publication: &Publication<'_>) -> Result<Published> {
    match v1::move_branch(&**storage, publication.branch, publication.tip, publication.new).await {
        Ok(tip) if tip == publication.new => Ok(Published::Done),
        Ok(_) => Ok(Published::Moved),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(branch_is_gone(publication.branch)),
        Err(error) => recover(storage, publication, error).await,
    }
}

/// Finds out if the change was made after all, although `error` was reported.
async fn recover(storage: &Arc<dyn Storage>, publication: &Publication<'_>, error: Error) -> Result<Published> {
    match is_published(storage, publication.branch, publication.new).await {
        Ok(true) => Ok(Published::Done),
        Err(_) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Io) => Err(error.context(format!(
            "whether commit {} was published is not known, as the storage does not answer: `icechunkfs log` tells later",
            publication.new
        ))),
        Ok(false) | Err(_) => Err(error),
    }
}

/// Returns true if `snapshot` is in the history of `branch`.
async fn is_published(storage: &Arc<dyn Storage>, branch: &str, snapshot: ObjectId) -> Result<bool> {
    let repository = Repository::open(Arc::clone(storage)).await?;
    match repository.branch_tip(branch).await? {
        Some(tip) => Ok(repository.since(tip, snapshot).await?.is_some()),
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
