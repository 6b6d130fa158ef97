//! Migration of version 1 to version 2 in place (format notes 4).
//!
//! Snapshots, manifests, logs and chunks stay the files that they are: readers check each file's own version. Only refs and history move,
//! into the object `repo`, which is created whole or not at all; from that moment on the repository has version 2. Then the old refs are
//! removed, `main` first, so that programs which know only version 1 find no repository any more instead of committing where no reader
//! looks; then `config.yaml`, whose content `repo` now has.
//!
//! A program of version 1 may commit during the migration. The refs are therefore read again once `repo` exists, and once more before
//! they are removed; commits made meanwhile are added to `repo`, if the branch has not moved there. An old ref whose commit cannot be
//! added that way stays, and is reported. A migration that was killed is completed by the next one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, stream};

use super::{Contents, operations};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::failpoints;
use crate::format::config_edit::encode;
use crate::format::envelope::SpecVersion;
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::format::repo_state::{LogEntry, Operation, RawItem, RepoState, SnapshotRecord, Status};
use crate::repo::history::cycle;
use crate::repo::ref_files::{Layout, branch_key};
use crate::repo::refs::DEFAULT_BRANCH;
use crate::repo::update;
use crate::repo::{Generation, Repository, check_storage_writable, v1};
use crate::storage::{Condition, Storage};
use crate::times::Clock;

/// Snapshot files read at a time.
const READ_AT_ONCE: usize = 16;

/// Progress of a migration.
#[derive(Debug, Default)]
pub struct MigrationProgress {
    /// Number of snapshot files; 0 while unknown.
    pub snapshots: AtomicU64,
    /// Number of snapshot files that were read.
    pub read: AtomicU64,
}

/// Result of a migration, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Contents of `repo`.
    pub contents: Contents,
    /// True if there is a `config.yaml`.
    pub has_config: bool,
    /// Number of removed old objects.
    pub removed: usize,
    /// Keys of old refs that lead to commits which `repo` does not have; these refs stay.
    pub unmigrated_refs: Vec<String>,
    /// True if `repo` existed before, and an earlier migration was completed.
    pub was_completed: bool,
}

/// Migrates `repository`. With `dry_run` nothing is written, and the planned result is returned.
///
/// Fails with [`ErrorKind::ReadOnly`] if the storage takes no writes, with [`ErrorKind::Corrupt`] before any change if a snapshot is
/// missing.
pub async fn migrate(
    repository: &Repository,
    clock: Clock,
    dry_run: bool,
    progress: &MigrationProgress,
) -> Result<Summary> {
    let storage = repository.storage();
    if let Generation::Alpha(_) = repository.generation {
        return Err(Error::invalid(format!(
            "{} is of a release before 0.2, which cannot be migrated in place: pass the new place with --to",
            storage.location()
        )));
    }
    if !dry_run {
        check_storage_writable(&**storage)?;
    }
    let config = v1::config(&**storage).await?;
    let mut summary = Summary { has_config: config.is_some(), ..Summary::default() };
    match &repository.generation {
        Generation::Alpha(_) | Generation::V1(_) => {
            summary.contents = read_contents(repository, progress).await?;
            let config = config.map(|config| encode::flexbuffer(config.members())).transpose()?;
            let state = build_repo(&summary.contents, config, clock)?;
            let file = state.encode()?;
            if dry_run {
                summary.removed = old_refs(&**storage).await?.len() + usize::from(summary.has_config);
                return Ok(summary);
            }
            failpoints::pass("migrate.repo")?;
            let created = storage.put("repo", file.into(), Condition::Absent).await;
            created.map_err(|error| match error.kind() {
                ErrorKind::Contended => error.context("another migration was faster: run this again to finish it"),
                _ => error,
            })?;
            failpoints::pass("migrate.repo.done")?;
        }
        Generation::V2(_) => {
            let old = old_refs(&**storage).await?;
            if old.is_empty() && !summary.has_config {
                return Err(Error::invalid(format!("{} is of version 2 already", storage.location())));
            }
            summary.was_completed = true;
            if dry_run {
                summary.removed = old.len() + usize::from(summary.has_config);
                return Ok(summary);
            }
        }
    }
    finish(storage, clock, &mut summary, progress).await?;
    Ok(summary)
}

/// Adds commits that programs of version 1 made since, and removes the objects that `repo` replaces.
async fn finish(
    storage: &Arc<dyn Storage>,
    clock: Clock,
    summary: &mut Summary,
    progress: &MigrationProgress,
) -> Result<()> {
    // Once the ref of `main` is gone, programs of version 1 neither commit to `main` nor open the repository.
    for only_main in [true, false] {
        catch_up(storage, clock, summary, progress).await?;
        let known = Repository::open(Arc::clone(storage)).await?;
        let mut removed = Vec::new();
        summary.unmigrated_refs.clear();
        for (key, target) in old_refs(&**storage).await? {
            let is_main = key == branch_key(DEFAULT_BRANCH);
            // The marker of a deleted tag has no target. A ref is removed only if `repo` has its target.
            let is_known = target.is_none_or(|target| has_snapshot(&known, target));
            if !is_known {
                summary.unmigrated_refs.push(key);
            } else if is_main || !only_main {
                removed.push(key);
            }
        }
        summary.removed += removed.len();
        storage.delete(&removed).await?;
        failpoints::pass(if only_main { "migrate.main.done" } else { "migrate.refs.done" })?;
    }
    if summary.unmigrated_refs.is_empty() {
        summary.removed += usize::from(summary.has_config);
        storage.delete(&[v1::CONFIG_KEY.to_owned()]).await?;
    }
    failpoints::pass("migrate.done")
}

fn has_snapshot(repository: &Repository, id: ObjectId) -> bool {
    matches!(&repository.generation, Generation::V2(info) if info.position(id).is_some())
}

/// Adds to `repo` the commits that programs of version 1 made to branches that have not moved in `repo`.
async fn catch_up(
    storage: &Arc<dyn Storage>,
    clock: Clock,
    summary: &mut Summary,
    progress: &MigrationProgress,
) -> Result<()> {
    let known = Repository::open(Arc::clone(storage)).await?;
    let old = Repository::new(Arc::clone(storage), Generation::V1(None));
    let refs = old.refs().await?;
    for (branch, tip) in refs.branches {
        if has_snapshot(&known, tip) {
            continue;
        }
        let Some(before) = known.branch_tip(&branch).await? else { continue };
        let Some(new) = old.since(tip, before).await? else { continue };
        progress.read.fetch_add(new.len() as u64, Ordering::Relaxed);
        let change = |state: &mut RepoState| {
            if state.branches.get(&branch) != Some(&before) {
                return Err(Error::new(ErrorKind::Contended, format!("branch `{branch}` has moved concurrently")));
            }
            for commit in &new {
                state.snapshots.insert(commit.id, record(commit)?);
            }
            state.branches.insert(branch.clone(), tip);
            Ok(Operation::NewCommit { branch: branch.clone(), new: tip })
        };
        match update::update(&**storage, clock, change).await {
            Ok(_) => {
                summary.contents.branches.insert(branch, tip);
                summary.contents.commits.extend(new.into_iter().map(|commit| (commit.id, commit)));
            }
            // The old ref stays, and is reported.
            Err(error) if error.kind() == ErrorKind::Contended => tracing::warn!("{error}"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the objects below `refs/` and their targets; none for the marker of a deleted tag.
async fn old_refs(storage: &dyn Storage) -> Result<BTreeMap<String, Option<ObjectId>>> {
    let mut refs = BTreeMap::new();
    for object in storage.list("refs/").await? {
        if object.key.ends_with("/ref.json.deleted") {
            refs.insert(object.key, None);
        } else if object.key.ends_with("/ref.json")
            && let Some(target) = Layout::V1.read(storage, &object.key).await?
        {
            refs.insert(object.key, Some(target));
        }
    }
    Ok(refs)
}

/// Reads everything that refs of version 1 lead to.
pub(super) async fn read_contents(repository: &Repository, progress: &MigrationProgress) -> Result<Contents> {
    let storage = &**repository.storage();
    let refs = repository.complete_refs().await?;
    let deleted_tags = Layout::V1.deleted_tags(storage).await?;
    let mut contents = Contents { branches: refs.branches, tags: refs.tags, deleted_tags, commits: BTreeMap::new() };
    // Walking the histories would take a round trip for each commit, and most snapshot files belong to needed commits.
    let ids: Vec<ObjectId> = storage
        .list("snapshots/")
        .await?
        .iter()
        .filter_map(|object| object.key.strip_prefix("snapshots/")?.parse().ok())
        .collect();
    progress.snapshots.store(ids.len() as u64, Ordering::Relaxed);
    let read = stream::iter(ids).map(|id| async move {
        let commit = repository.read_commit(id).await;
        progress.read.fetch_add(1, Ordering::Relaxed);
        commit.ok()
    });
    // A commit that cannot be read is read again if a history needs it, which then reports the error.
    let mut all: BTreeMap<ObjectId, SnapshotInfo> =
        read.buffer_unordered(READ_AT_ONCE).filter_map(std::future::ready).map(|c| (c.id, c)).collect().await;
    let tips: Vec<ObjectId> = contents.branches.values().chain(contents.tags.values()).copied().collect();
    for tip in tips {
        let mut next = Some(tip);
        let mut path = std::collections::HashSet::new();
        while let Some(id) = next.filter(|id| !contents.commits.contains_key(id)) {
            let commit = match all.remove(&id) {
                Some(commit) => commit,
                None => repository.read_commit(id).await.context(|| format!("the history of {tip}"))?,
            };
            path.insert(id);
            next = commit.parent;
            contents.commits.insert(id, commit);
        }
        if let Some(id) = next.filter(|id| path.contains(id)) {
            return Err(cycle(tip, id));
        }
    }
    Ok(contents)
}

/// Returns the content of `repo` for `contents`.
pub(super) fn build_repo(contents: &Contents, config: Option<Vec<u8>>, clock: Clock) -> Result<RepoState> {
    let mut updates = operations::reconstruct_log(contents)?;
    let last = updates.first().map_or(0, |newest| newest.updated_at);
    let now = clock();
    if now <= last {
        return Err(Error::new(
            ErrorKind::Io,
            "this machine's clock is behind the repository's last commit: set the clock, or wait",
        ));
    }
    let operation = Operation::RepoMigrated { from_version: 1, to_version: 2 };
    updates.insert(0, LogEntry { operation, updated_at: now, backup_path: None });
    let began = contents.main()?.last().map_or(now, |root| root.flushed_at);
    let mut snapshots = BTreeMap::new();
    for (id, commit) in &contents.commits {
        snapshots.insert(*id, record(commit)?);
    }
    Ok(RepoState {
        tags: contents.tags.clone(),
        branches: contents.branches.clone(),
        deleted_tags: contents.deleted_tags.keys().cloned().collect(),
        snapshots,
        status: Status { set_at: began, ..Status::default() },
        updates,
        config,
        ..RepoState::default()
    })
}

/// Returns the description of a commit in `repo`, where metadata values are FlexBuffers whatever the snapshot's own file has.
fn record(commit: &SnapshotInfo) -> Result<SnapshotRecord> {
    Ok(SnapshotRecord {
        parent: commit.parent,
        flushed_at: commit.flushed_at,
        message: commit.message.clone(),
        metadata: RawItem::list(SpecVersion::V2, &commit.metadata)?,
        pruned_ancestor_tx_logs: Vec::new(),
    })
}
