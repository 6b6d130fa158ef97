//! Migration of version 1 to version 2 in place (format notes 4).
//!
//! Snapshots, manifests, logs and chunks stay the files that they are: readers check each file's own version. Only refs and history move,
//! into the object `repo`, which is created whole or not at all; from that moment on the repository has version 2. Then the old refs are
//! removed, `main` first, so that programs which know only version 1 find no repository any more instead of committing where no reader
//! looks; then `config.yaml`, whose content `repo` now has.
//!
//! A program of version 1 may commit and make refs during the migration. The refs are therefore read again once `repo` exists, and once
//! more before they are removed; what was made meanwhile is added to `repo` ([`super::old_refs`]). An old ref under whose name `repo` has
//! something else stays, and is reported; its commits are added all the same, so that they can be read and get another ref. A migration
//! that was killed is completed by the next one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, stream};

use super::old_refs::{Migrated, OldRef, OldRefs, Verdict};
use super::{Contents, operations};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::failpoints;
use crate::format::config_edit::encode;
use crate::format::envelope::SpecVersion;
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::format::repo_state::{LogEntry, Operation, RawItem, RepoState, SnapshotRecord, Status};
use crate::repo::change_refs::{RefKind, refs_of};
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
    /// Old refs that stay, by the keys of their files: `repo` has something else under their names.
    pub unmigrated_refs: BTreeMap<String, UnmigratedRef>,
    /// True if `repo` existed before, and an earlier migration was completed.
    pub was_completed: bool,
}

/// Old ref that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmigratedRef {
    /// Its target.
    pub target: ObjectId,
    /// Name under which a branch keeps what the ref leads to: with it, the next migration removes the ref. None if that is not possible.
    pub other_name: Option<String>,
    /// Reason.
    pub why: String,
}

/// Migrates `repository`. With `dry_run` nothing is written, and the planned result is returned.
///
/// Fails with [`ErrorKind::ReadOnly`] if the storage takes no writes, with [`ErrorKind::Corrupt`] before any change if a snapshot is
/// missing or a ref is damaged.
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
            // First, so that a damaged ref is found before `repo` is there.
            let old = OldRefs::read(&**storage).await?;
            summary.contents = read_contents(repository, progress).await?;
            let config = config.map(|config| encode::flexbuffer(config.members())).transpose()?;
            let state = build_repo(&summary.contents, config, clock)?;
            let file = state.encode()?;
            if dry_run {
                summary.removed = old.len() + usize::from(summary.has_config);
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
            let old = OldRefs::read(&**storage).await?;
            if old.len() == 0 && !summary.has_config {
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

/// Adds to `repo` what programs of version 1 did since, and removes the objects that `repo` replaces.
async fn finish(
    storage: &Arc<dyn Storage>,
    clock: Clock,
    summary: &mut Summary,
    progress: &MigrationProgress,
) -> Result<()> {
    // Once the ref of `main` is gone, programs of version 1 neither commit to `main` nor open the repository.
    for only_main in [true, false] {
        let old = OldRefs::read(&**storage).await?;
        let mut removed = if only_main { Vec::new() } else { old.deleted };
        summary.unmigrated_refs.clear();
        let mut state = update::read_state(&**storage).await?;
        for found in old.refs {
            let left = match Migrated::new(&state).judge(storage, &found).await? {
                Verdict::Settled => None,
                Verdict::Missing(from, commits) => {
                    progress.read.fetch_add(commits.len() as u64, Ordering::Relaxed);
                    let added = add(storage, clock, &found, Some(from), &commits).await?;
                    if added.is_some() {
                        let refs = match found.kind {
                            RefKind::Branch => &mut summary.contents.branches,
                            RefKind::Tag => &mut summary.contents.tags,
                        };
                        refs.insert(found.name.clone(), found.target);
                        summary.contents.commits.extend(commits.into_iter().map(|commit| (commit.id, commit)));
                    }
                    match renew(&mut state, added) {
                        Some(()) => None,
                        None => Some((false, "it changed concurrently: run this again".to_owned())),
                    }
                }
                Verdict::Left(commits, why) => {
                    // The ref can then be made anew under another name, and its commits be read.
                    if let Some(commits) = commits.as_ref().filter(|commits| !commits.is_empty()) {
                        renew(&mut state, add(storage, clock, &found, None, commits).await?);
                    }
                    Some((commits.is_some(), why))
                }
            };
            let is_main = found.key == branch_key(DEFAULT_BRANCH);
            match left {
                Some((is_readable, why)) => {
                    let other_name = is_readable.then(|| found.other_name());
                    let unmigrated = UnmigratedRef { target: found.target, other_name, why };
                    summary.unmigrated_refs.insert(found.key, unmigrated);
                }
                None if is_main || !only_main => removed.push(found.key),
                None => {}
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

/// Replaces `state` by the `written` one; returns none if nothing was written.
fn renew(state: &mut RepoState, written: Option<RepoState>) -> Option<()> {
    *state = written?;
    Some(())
}

/// Lists `commits` in `repo`, oldest first, and points the ref `old` to its target if it still points to `from`. Without `from`, no ref
/// is changed. Returns the written state; none if the ref has changed concurrently.
async fn add(
    storage: &Arc<dyn Storage>,
    clock: Clock,
    old: &OldRef,
    from: Option<Option<ObjectId>>,
    commits: &[SnapshotInfo],
) -> Result<Option<RepoState>> {
    let OldRef { kind, ref name, target, .. } = *old;
    let change = |state: &mut RepoState| {
        let changed = || Error::new(ErrorKind::Contended, format!("{kind} `{name}` has changed concurrently"));
        for commit in commits {
            if commit.parent.is_some_and(|parent| !state.snapshots.contains_key(&parent)) {
                return Err(changed());
            }
            state.snapshots.entry(commit.id).or_insert(record(commit)?);
        }
        let Some(from) = from else { return Ok(Operation::NewDetachedSnapshot { new: target }) };
        let is_deleted = kind == RefKind::Tag && state.deleted_tags.contains(name);
        let is_listed = state.snapshots.contains_key(&target);
        let refs = refs_of(state, kind);
        if is_deleted || !is_listed || refs.get(name) != from.as_ref() {
            return Err(changed());
        }
        refs.insert(name.clone(), target);
        let name = name.clone();
        Ok(match (kind, from) {
            (RefKind::Tag, _) => Operation::TagCreated { name },
            (RefKind::Branch, None) => Operation::BranchCreated { name },
            (RefKind::Branch, Some(previous)) if commits.is_empty() => Operation::BranchReset { name, previous },
            (RefKind::Branch, Some(_)) => Operation::NewCommit { branch: name, new: target },
        })
    };
    match update::update(&**storage, clock, change).await {
        Ok(state) => Ok(Some(state)),
        Err(error) if error.kind() == ErrorKind::Contended => {
            tracing::warn!("{error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
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
