//! Expiration of old commits (format notes 6.4).
//!
//! A commit that is older than a given time leaves the history, unless a branch or tag points to it or it is a root. Later commits then
//! get the root of their tree as parent. Only histories become shorter: the targets of refs stay as they are, and a garbage collection
//! ([`super::collect`]) removes the objects that nothing needs any more.
//!
//! In version 2 an expiration is one change of `repo`, computed anew after each lost race. In version 1 a commit names its parent in its
//! own file: the file of the oldest commit that stays is rewritten with the root as its parent and no other change. A concurrent reader
//! sees one history or the other. Files are written one after another; repeating an interrupted expiration completes it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::prune::reparented;
use super::refs::DEFAULT_BRANCH;
use super::update::{self, Clock};
use super::{MAX_REPO_FILE, MAX_SNAPSHOT, Repository, v1};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::envelope::SpecVersion;
use crate::format::ids::ObjectId;
use crate::format::repo_info::RepoInfo;
use crate::format::repo_state::{Operation, RepoState};
use crate::format::snapshot::Snapshot;
use crate::storage::{Condition, Storage, decoded};

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

/// Expires the commits that `wanted` selects. Fails with [`ErrorKind::ReadOnly`] if the repository takes no writes.
pub async fn expire(repository: &Repository, wanted: ExpireOptions, clock: Clock) -> Result<Expired> {
    repository.check_writable()?;
    let storage = repository.storage();
    if let Some(why) = storage.read_only() {
        return Err(Error::new(ErrorKind::ReadOnly, format!("{}: {why}", storage.location())));
    }
    match repository.version() {
        SpecVersion::V1 => expire_v1(repository, wanted).await,
        SpecVersion::V2 => expire_v2(&**storage, wanted, clock).await,
    }
}

async fn expire_v2(storage: &dyn Storage, wanted: ExpireOptions, clock: Clock) -> Result<Expired> {
    let found = decoded::changing(storage, "repo", MAX_REPO_FILE, RepoInfo::decode).await;
    let mut state = RepoState::from_info(&found.context(|| storage.location().to_owned())?.value)?;
    let mut expired = apply(&mut state, wanted)?;
    if expired.is_empty() || wanted.dry_run {
        return Ok(expired);
    }
    let updated = update::update(storage, clock, |state| {
        expired = apply(state, wanted)?;
        // Another expiration has done the same meanwhile.
        if expired.is_empty() {
            return Err(Error::new(ErrorKind::Stale, "nothing to expire any more"));
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
fn apply(state: &mut RepoState, wanted: ExpireOptions) -> Result<Expired> {
    let is_old: BTreeSet<ObjectId> = state
        .snapshots
        .iter()
        .filter(|(_, record)| record.parent.is_some() && record.flushed_at < wanted.older_than)
        .map(|(id, _)| *id)
        .collect();
    let mut expired = Expired::default();
    let main = state.branches.get(DEFAULT_BRANCH).copied();
    let mut kept: BTreeSet<ObjectId> = main.into_iter().collect();
    for (refs, delete, gone) in [
        (&state.tags, wanted.delete_tags, &mut expired.tags),
        (&state.branches, wanted.delete_branches, &mut expired.branches),
    ] {
        for (name, tip) in refs {
            if !delete {
                kept.insert(*tip);
            } else if is_old.contains(tip) && !(std::ptr::eq(refs, &state.branches) && name == DEFAULT_BRANCH) {
                gone.insert(name.clone(), *tip);
            }
        }
    }
    expired.released = is_old.difference(&kept).copied().collect();
    for (id, record) in &state.snapshots {
        let loses_parent = record.parent.is_some_and(|parent| expired.released.contains(&parent));
        if loses_parent && !expired.released.contains(id) {
            expired.edited.insert(*id);
        }
    }
    // Computed before anything is changed: one chain may hold several edited commits.
    let mut changed = Vec::new();
    for id in &expired.edited {
        changed.push((*id, reparented(&state.snapshots, *id, |_, ancestor| ancestor.parent.is_none())?));
    }
    for (id, (parent, logs)) in changed {
        if let Some(record) = state.snapshots.get_mut(&id) {
            (record.parent, record.pruned_ancestor_tx_logs) = (parent, logs);
        }
    }
    state.snapshots.retain(|id, _| !expired.released.contains(id));
    state.branches.retain(|name, _| !expired.branches.contains_key(name));
    state.tags.retain(|name, _| !expired.tags.contains_key(name));
    state.deleted_tags.extend(expired.tags.keys().cloned());
    Ok(expired)
}

/// A commit of version 1.
struct Commit {
    id: ObjectId,
    flushed_at: u64,
    parent: Option<ObjectId>,
}

async fn expire_v1(repository: &Repository, wanted: ExpireOptions) -> Result<Expired> {
    let storage = repository.storage();
    let refs = repository.refs().await?;
    let mut expired = Expired::default();
    let all = refs.tags.iter().map(|(name, tip)| (true, name, *tip));
    let all = all.chain(refs.branches.iter().map(|(name, tip)| (false, name, *tip)));
    for (is_tag, name, tip) in all {
        let history = history_v1(storage, tip).await.context(|| format!("the history of `{name}`"))?;
        expire_history(storage, &history, wanted, &mut expired).await?;
        let is_old = history.first().is_some_and(|commit| commit.flushed_at < wanted.older_than);
        if is_old && is_tag && wanted.delete_tags {
            if !wanted.dry_run {
                gone_or_changed(v1::delete_tag(&**storage, name, tip).await)?;
            }
            expired.tags.insert(name.clone(), tip);
        }
        if is_old && !is_tag && wanted.delete_branches && name != DEFAULT_BRANCH {
            if !wanted.dry_run {
                gone_or_changed(v1::delete_branch(&**storage, name, tip).await)?;
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
fn gone_or_changed(deleted: Result<()>) -> Result<()> {
    match deleted {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => Ok(()),
        deleted => deleted,
    }
}

/// Reads the commits from `tip` to the root from the store itself: a cache may hold files from before an earlier expiration.
async fn history_v1(storage: &Arc<dyn Storage>, tip: ObjectId) -> Result<Vec<Commit>> {
    let mut seen = HashSet::new();
    let mut history = Vec::new();
    let mut next = Some(tip);
    while let Some(id) = next {
        if !seen.insert(id) {
            return Err(Error::corrupt(format!("it is a cycle: {id} is its own ancestor")));
        }
        let (snapshot, _) = read_v1(storage, id).await?;
        next = snapshot.parent_id();
        history.push(Commit { id, flushed_at: snapshot.flushed_at(), parent: next });
    }
    Ok(history)
}

async fn read_v1(storage: &Arc<dyn Storage>, id: ObjectId) -> Result<(Snapshot, Option<crate::storage::Version>)> {
    let decode = |file: &[u8]| Snapshot::decode(file, MAX_SNAPSHOT);
    let found = decoded::changing(&**storage, &format!("snapshots/{id}"), MAX_SNAPSHOT, decode).await;
    let missing = |e: Error| e.absence_is_damage(format!("snapshot {id} is missing from the repository"));
    let found = found.map_err(missing)?;
    Ok((found.value, found.version))
}

/// Makes the root the parent of the oldest commit of `history` (newest first) that is not too old. The newest commit always stays,
/// because a ref points to it.
async fn expire_history(
    storage: &Arc<dyn Storage>,
    history: &[Commit],
    wanted: ExpireOptions,
    expired: &mut Expired,
) -> Result<()> {
    let Some((root, later)) = history.split_last() else { return Ok(()) };
    let is_young = |commit: &&Commit| commit.flushed_at >= wanted.older_than;
    let Some(stays) = later.iter().rfind(is_young).or(later.first()) else { return Ok(()) };
    let released = later.iter().skip_while(|commit| commit.id != stays.id).skip(1);
    expired.released.extend(released.filter(|commit| !is_young(commit)).map(|commit| commit.id));
    if stays.parent == Some(root.id) || root.flushed_at >= wanted.older_than {
        return Ok(());
    }
    expired.edited.insert(stays.id);
    if wanted.dry_run {
        return Ok(());
    }
    let (snapshot, version) = read_v1(storage, stays.id).await?;
    let condition = version.map_or(Condition::Always, Condition::Unchanged);
    let file = snapshot.with_parent(root.id)?;
    let key = format!("snapshots/{}", stays.id);
    storage.discard_cached(&key).await;
    match storage.put(&key, file.into(), condition).await {
        // Another expiration is running.
        Err(error) if error.kind() == ErrorKind::Contended => {
            Err(error.context("another program changes the history: run this again"))
        }
        done => done,
    }
}
