//! Expiration of old commits (format notes 6.4).
//!
//! A commit that is older than a given time leaves the history, unless a branch or tag points to it
//! or it is a root. Later commits then get the root of their tree as parent. Only histories become
//! shorter: the targets of refs stay as they are, and a garbage collection ([`super::collect`])
//! removes the objects that nothing needs any more.
//!
//! In version 2 an expiration is one change of `repo`, computed anew after each lost race. In
//! version 1 a commit names its parent in its own file: the file of the oldest commit that stays is
//! rewritten with the root as its parent and no other change. A concurrent reader sees one history
//! or the other. Files are written one after another; repeating an interrupted expiration completes
//! it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::clock::ChangeTime;
use super::refs::DEFAULT_BRANCH;
use super::{MAX_SNAPSHOT, Repository, check_storage_writable, prune, update, v1};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{Operation, RepoState, SnapshotRecord};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_store::storage::{Condition, Storage, decoded};

/// Options of an expiration.
#[derive(Clone, Copy, Debug)]
pub struct ExpireOptions {
    /// Time before which commits expire: microseconds since 1970-01-01 UTC.
    pub older_than: u64,
    /// True if tags that point to expired commits are deleted.
    pub delete_tags: bool,
    /// True if branches whose tip has expired are deleted, except `main`.
    pub delete_branches: bool,
    /// True if nothing is written and only the result is computed.
    pub dry_run: bool,
}

/// Result of an expiration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Commits that are in no history any more. In version 1 a ref may still point to one.
    pub released: BTreeSet<ObjectId>,
    /// Commits that have another parent now.
    pub edited: BTreeSet<ObjectId>,
    /// Deleted branches and their last targets.
    pub branches: BTreeMap<String, ObjectId>,
    /// Deleted tags and their targets.
    pub tags: BTreeMap<String, ObjectId>,
}

impl Expired {
    /// Returns true if there was nothing to do.
    pub fn is_empty(&self) -> bool {
        self.released.is_empty() && self.edited.is_empty() && self.branches.is_empty() && self.tags.is_empty()
    }
}

/// Expires the commits that `options` select. Fails with [`ErrorKind::ReadOnly`] if the repository
/// takes no writes.
pub async fn expire(repository: &Repository, options: ExpireOptions, clock: Clock) -> Result<Expired> {
    repository.check_writable()?;
    let storage = repository.storage();
    check_storage_writable(&**storage)?;
    match repository.version() {
        SpecVersion::V1 => expire_v1(repository, options, clock).await,
        SpecVersion::V2 => expire_v2(&**storage, options, clock).await,
    }
}

async fn expire_v2(storage: &dyn Storage, options: ExpireOptions, clock: Clock) -> Result<Expired> {
    let mut expired = apply(&mut update::read_state(storage).await?, options)?;
    if expired.is_empty() || options.dry_run {
        return Ok(expired);
    }
    let updated = update::update(storage, clock, |state| {
        expired = apply(state, options)?;
        // Another expiration has done the same meanwhile.
        if expired.is_empty() {
            return Err(Error::new(ErrorKind::Stale, "there is nothing left to expire"));
        }
        Ok(Operation::ExpirationRan)
    })
    .await;
    match updated {
        Err(_) if expired.is_empty() => Ok(expired),
        other => other.map(|_| expired),
    }
}

/// Expires commits in `state` and returns the changes.
fn apply(state: &mut RepoState, options: ExpireOptions) -> Result<Expired> {
    let is_old: BTreeSet<ObjectId> = state
        .snapshots
        .iter()
        .filter(|(_, record)| record.parent.is_some() && record.flushed_at < options.older_than)
        .map(|(id, _)| *id)
        .collect();
    let mut expired = Expired::default();
    let main = state.branches.get(DEFAULT_BRANCH).copied();
    let mut kept: BTreeSet<ObjectId> = main.into_iter().collect();
    for (refs, delete, deleted) in [
        (&state.tags, options.delete_tags, &mut expired.tags),
        (&state.branches, options.delete_branches, &mut expired.branches),
    ] {
        for (name, tip) in refs {
            if !delete {
                kept.insert(*tip);
            } else if is_old.contains(tip) && !(std::ptr::eq(refs, &state.branches) && name == DEFAULT_BRANCH) {
                deleted.insert(name.clone(), *tip);
            }
        }
    }
    expired.released = is_old.difference(&kept).copied().collect();
    let is_root = |_, ancestor: &SnapshotRecord| ancestor.parent.is_none();
    expired.edited = prune::remove(&mut state.snapshots, &expired.released, is_root, None)?;
    state.branches.retain(|name, _| !expired.branches.contains_key(name));
    state.tags.retain(|name, _| !expired.tags.contains_key(name));
    state.deleted_tags.extend(expired.tags.keys().cloned());
    Ok(expired)
}

async fn expire_v1(repository: &Repository, options: ExpireOptions, clock: Clock) -> Result<Expired> {
    let storage = repository.storage();
    let refs = repository.complete_refs().await?;
    if !options.dry_run {
        ChangeTime::check_by_responses(&**storage, clock)?;
    }
    let mut expired = Expired::default();
    let all = refs.tags.iter().map(|(name, tip)| (true, name, *tip));
    let all = all.chain(refs.branches.iter().map(|(name, tip)| (false, name, *tip)));
    for (is_tag, name, tip) in all {
        let history = history_v1(storage, tip).await.context(|| format!("the history of `{name}`"))?;
        expire_history(storage, &history, options, &mut expired).await?;
        let is_old = history.first().is_some_and(|commit| commit.flushed_at < options.older_than);
        if is_old && is_tag && options.delete_tags {
            if !options.dry_run {
                accept_concurrent_change(v1::delete_tag(&**storage, name, tip).await)?;
            }
            expired.tags.insert(name.clone(), tip);
        }
        if is_old && !is_tag && options.delete_branches && name != DEFAULT_BRANCH {
            if !options.dry_run {
                accept_concurrent_change(v1::replace_branch(&**storage, name, tip, None).await)?;
            }
            expired.branches.insert(name.clone(), tip);
        }
    }
    // A commit that a remaining ref points to is not released.
    let kept: BTreeSet<ObjectId> = refs
        .tags
        .iter()
        .filter(|(name, _)| !expired.tags.contains_key(*name))
        .chain(refs.branches.iter().filter(|(name, _)| !expired.branches.contains_key(*name)))
        .map(|(_, tip)| *tip)
        .collect();
    expired.released.retain(|id| !kept.contains(id));
    Ok(expired)
}

/// Accepts that the ref was deleted concurrently, or has moved to a commit that is not old.
fn accept_concurrent_change(deleted: Result<()>) -> Result<()> {
    match deleted {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => Ok(()),
        deleted => deleted,
    }
}

/// Reads the commits from `tip` to the root from the store itself: a cache may hold files from
/// before an earlier expiration.
async fn history_v1(storage: &Arc<dyn Storage>, tip: ObjectId) -> Result<Vec<SnapshotInfo>> {
    let mut seen = HashSet::new();
    let mut history = Vec::new();
    let mut next = Some(tip);
    while let Some(id) = next {
        if !seen.insert(id) {
            return Err(Error::corrupt(format!("it is a cycle: {id} is its own ancestor")));
        }
        let (snapshot, _) = read_v1(storage, id).await?;
        next = snapshot.parent_id();
        history.push(SnapshotInfo::new(id, next, snapshot.flushed_at(), ""));
    }
    Ok(history)
}

async fn read_v1(
    storage: &Arc<dyn Storage>,
    id: ObjectId,
) -> Result<(Snapshot, Option<icechunkfs_store::storage::Version>)> {
    let decode = |file: &[u8]| Snapshot::decode(file, MAX_SNAPSHOT);
    let found = decoded::changing(&**storage, &format!("snapshots/{id}"), MAX_SNAPSHOT, decode).await;
    let missing = |e: Error| e.not_found_as_corrupt(format!("snapshot {id} is missing from the repository"));
    let found = found.map_err(missing)?;
    Ok((found.value, found.version))
}

/// Makes the root the parent of the oldest commit of `history` (newest first) that is not too old.
/// The newest commit always stays, because a ref points to it.
async fn expire_history(
    storage: &Arc<dyn Storage>,
    history: &[SnapshotInfo],
    options: ExpireOptions,
    expired: &mut Expired,
) -> Result<()> {
    let Some((root, later)) = history.split_last() else { return Ok(()) };
    let is_young = |commit: &&SnapshotInfo| commit.flushed_at >= options.older_than;
    let Some(stays) = later.iter().rfind(is_young).or(later.first()) else { return Ok(()) };
    let released = later.iter().skip_while(|commit| commit.id != stays.id).skip(1);
    expired.released.extend(released.filter(|commit| !is_young(commit)).map(|commit| commit.id));
    if stays.parent == Some(root.id) || root.flushed_at >= options.older_than {
        return Ok(());
    }
    expired.edited.insert(stays.id);
    if options.dry_run {
        return Ok(());
    }
    let (snapshot, version) = read_v1(storage, stays.id).await?;
    let condition = version.map_or(Condition::Always, Condition::Unchanged);
    // Beside `repo`, the parents in the files of commits mean nothing.
    let file = snapshot.with_parent(root.id)?;
    let key = format!("snapshots/{}", stays.id);
    storage.discard_cached(&key).await;
    match v1::put(&**storage, &key, file.into(), condition).await {
        // Another expiration is running.
        Err(error) if error.kind() == ErrorKind::Contended => {
            Err(error.context("another program changes the history: run this again"))
        }
        done => done,
    }
}
