//! Replaces the newest commits of a branch by one with the content of the last.
//!
//! For a single commit this amends its message and metadata. The new snapshot has the tree of the
//! branch's tip, manifest by manifest, and takes its place; its parent is the parent of the oldest
//! commit that is replaced. Its transaction log is the net result of their logs, and it keeps the
//! logs of expired commits that they kept, so that a comparison across it gives the same result.
//! The replaced commits stay in the repository, for tags, other branches and recovery, until
//! garbage is collected.
//!
//! The branch moves only if it still points to the tip and the commits below are the same: a
//! concurrent commit is never removed.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::changes::ChangeSet;
use super::log::NetLog;
use super::moves;
use super::nodes::{self, Planned, PlannedNode, Sources};
use super::publish::{self, Publication, Published, SnapshotFiles, Start, no_amend_of_the_first};
use super::rebase::read_log;
use super::replace_record::{Records, records_of_replacement};
use crate::repo::clock::ChangeTime;
use crate::repo::update::TRIES;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::draft::{SnapshotDraft, TransactionLogDraft};
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::kept_nodes::KeptNodes;
use icechunkfs_format::format::repo_state::RawItem;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Parameters of a squash.
#[derive(Clone, Debug)]
pub struct SquashOptions<'a> {
    /// Branch to change.
    pub branch: &'a str,
    /// Commits to replace, as they were when the user was asked: the branch's tip and its
    /// ancestors, newest first.
    pub commits: &'a [SnapshotInfo],
    /// Message of the new commit.
    pub message: String,
    /// Metadata of the new commit, without records ([`super::replace_record::RESERVED_ITEMS`]),
    /// which are added.
    pub metadata: Map<String, Value>,
}

/// Fails if the repository's history cannot be rewritten, or not by this user.
///
/// Errors: [`ErrorKind::ReadOnly`] if nothing can be written, [`ErrorKind::Unsupported`] in
/// version 1. That version has the parent in each snapshot's file, and expiration removes commits
/// by writing such files again: if both happen at once, nothing tells them apart.
pub async fn check(repository: &Repository) -> Result<()> {
    repository.check_writable()?;
    if repository.version() == SpecVersion::V1 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} is of version 1, whose commits cannot be replaced safely: migrate it to version 2 first (icechunkfs migrate)",
                repository.storage().location()
            ),
        ));
    }
    repository.check_changes_allowed().await
}

/// Replaces several commits by one in `repository`, and returns its snapshot.
///
/// Errors: [`ErrorKind::Unsupported`] in a repository of version 1, [`ErrorKind::Stale`] if the
/// branch has moved or its history was changed, [`ErrorKind::ReadOnly`] if the repository is set
/// read-only. Nothing is changed then.
pub async fn squash(repository: &Repository, clock: Clock, options: &SquashOptions<'_>) -> Result<ObjectId> {
    check(repository).await?;
    let storage = repository.storage();
    let compression = repository.config().await?.compression();
    let SquashOptions { branch, commits, message, metadata } = options;
    let (Some(tip), Some(oldest)) = (commits.first(), commits.last()) else {
        return Err(Error::invalid("there are no commits to combine"));
    };
    if oldest.parent.is_none() {
        return Err(no_amend_of_the_first());
    }
    let mut net = NetLog::new();
    for commit in commits.iter().rev() {
        net.add(&read_log(&**storage, commit.id).await?)?;
    }
    let log = net.finish();
    let snapshot = repository.snapshot(tip.id, MAX_SNAPSHOT).await?;
    if let Some(parent) = oldest.parent.filter(|_| !log.moves.is_empty()) {
        check_moves(&log, &snapshot, &repository.snapshot(parent, MAX_SNAPSHOT).await?)?;
    }
    let last = snapshot.flushed_at().max(tip.flushed_at);
    let moment = ChangeTime::after(clock, last).await;
    let planned = nodes::apply(&snapshot, &ChangeSet::default(), &Sources::new(), SpecVersion::V2)?;
    let used: HashSet<ObjectId> = planned.iter().filter_map(Planned::manifests).flatten().map(|(id, _)| id).collect();
    let mut nodes = Vec::new();
    let mut positions = Vec::new();
    for planned in planned {
        match planned.node {
            PlannedNode::Kept(position, _) => positions.push(position),
            PlannedNode::Drafted(node) => nodes.push(node),
        }
    }
    let id = ObjectId::random()?;
    let replaced: Vec<Records> = commits.iter().map(Records::of).collect::<Result<_>>()?;
    let mut metadata = metadata.clone();
    metadata.extend(records_of_replacement(id, &replaced));
    let items =
        metadata.iter().map(|(name, value)| RawItem::new(SpecVersion::V2, name, value)).collect::<Result<Vec<_>>>();
    let draft = SnapshotDraft {
        id,
        flushed_at: moment.time,
        version: SpecVersion::V2,
        parent: None,
        message: message.clone(),
        metadata: items.context(|| "metadata of the commit")?,
        nodes,
        manifests: snapshot.manifests().into_iter().filter(|info| used.contains(&info.id)).collect(),
        extra: snapshot.extra().map(<[u8]>::to_vec),
    };
    let kept = KeptNodes { snapshot: Arc::new(snapshot), positions };
    let files = SnapshotFiles { log, draft, kept };
    let record = publish::store_snapshot(&**storage, moment, clock, files, compression, None).await?.record;
    failpoints::pass("commit.publish")?;
    let replaces: Vec<ObjectId> = commits.iter().map(|commit| commit.id).collect();
    // The feature flag for moves was checked when the nodes were moved.
    let stored_since = repository.log_position();
    let publication =
        Publication { branch, tip: tip.id, replaces: &replaces, has_moves: false, new: id, stored_since, record };
    match publish::v2(storage, clock, &publication, Start { known: None, tries: TRIES }).await? {
        Published::Done(_) => {}
        Published::Collected => {
            return Err(Error::new(
                ErrorKind::Contended,
                "garbage was collected concurrently: nothing was changed; try again",
            ));
        }
        Published::Lost(_) => {
            return Err(Error::new(
                ErrorKind::Stale,
                format!(
                    "branch `{branch}` does not point to {} any more: nothing was changed; check it, and try again",
                    tip.id
                ),
            ));
        }
    }
    // The commit is published, whatever happens from here on.
    let _ = failpoints::pass("commit.publish.done");
    Ok(id)
}

/// Fails if one log cannot express what all commits did together: the format has no move onto a
/// node that is deleted, and nodes keep their ids when commits are squashed.
fn check_moves(log: &TransactionLogDraft, snapshot: &Snapshot, parent: &Snapshot) -> Result<()> {
    let groups = moves::groups_after(snapshot, &ChangeSet::default());
    let refused = moves::not_allowed(&log.moves, &moves::paths(parent), &groups);
    let present = snapshot.node_ids();
    match log.moves.iter().find(|one| refused.contains(&one.node) && present.contains(&one.node)) {
        None => Ok(()),
        Some(one) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "these commits delete {} and move {} to its place, which the format cannot record in one commit: squash the \
                 commits before and after the move separately",
                one.to, one.from
            ),
        )),
    }
}
