//! Migration of version 1 to version 2 in place (format notes 4).
//!
//! Snapshots, manifests, logs and chunks stay the files that they are: readers check each file's
//! own version. Only refs and history move, into the object `repo`, which is created whole or not
//! at all; from that moment on the repository has version 2. Then the old refs are removed, `main`
//! first, so that programs which know only version 1 find no repository any more instead of
//! committing where no reader looks; then `config.yaml`, whose content `repo` now has.
//!
//! Programs that have the repository open as version 1 may change refs meanwhile. Once `repo` is
//! there, those of this program change nothing any more ([`crate::repo::v1`]); what was changed
//! before, and what others change yet, is moved to `repo` before the old refs are removed
//! ([`super::late_refs`]). An old ref under whose name `repo` has something else stays, and is
//! reported; its commits are added, so that they can be read and get another ref. A migration that
//! was killed is completed by the next one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, stream};

use super::late_refs::LateRefs;
use super::old_refs::OldRefs;
use super::{Contents, operations};
use crate::repo::history::{cycle, read_commit};
use crate::repo::ref_files::Layout;
use crate::repo::{Generation, Repository, check_storage_writable, v1};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_base::memory::Meter;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::config_edit::encode;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{LogEntry, Operation, RepoState, SnapshotRecord, Status};
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_store::storage::local::RepositoryLock;
use icechunkfs_store::storage::{Condition, Storage};

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
    /// Snapshots that appeared in a store during the migration and are on no ref: a program of
    /// version 1 may have committed them to a ref that was being removed, which no store prevents.
    pub stray_snapshots: Vec<ObjectId>,
}

/// Old ref that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmigratedRef {
    /// Its target.
    pub target: ObjectId,
    /// Name under which a branch keeps what the ref leads to: with it, the next migration removes
    /// the ref. None if that is not possible.
    pub other_name: Option<String>,
    /// Reason.
    pub why: String,
}

/// Migrates `repository`. With `dry_run` nothing is written, and the planned result is returned.
///
/// Fails with [`ErrorKind::ReadOnly`] if the storage takes no writes, with [`ErrorKind::Corrupt`]
/// before any change if a snapshot is missing or a ref is damaged.
pub async fn migrate(
    repository: &Repository,
    clock: Clock,
    dry_run: bool,
    progress: &MigrationProgress,
) -> Result<Summary> {
    let storage = repository.storage();
    if let Generation::Alpha(_) = repository.generation {
        return Err(Error::invalid(format!(
            "{} is of an Icechunk release before 0.2, which cannot be migrated in place: pass the new place with --to",
            storage.location()
        )));
    }
    if !dry_run {
        check_storage_writable(&**storage)?;
    }
    let stored_config = v1::config(&**storage).await?;
    let mut summary = Summary { has_config: stored_config.is_some(), ..Summary::default() };
    let mut late = LateRefs::new(storage, clock, progress);
    match &repository.generation {
        Generation::Alpha(_) | Generation::V1(_) => {
            // First, so that a damaged ref is found before `repo` is there.
            let old = OldRefs::read(&**storage).await?;
            let listed = snapshots(&**storage).await?;
            summary.contents = read_contents(repository, listed.iter().copied(), progress).await?;
            let config =
                |config: Option<RepoConfig>| config.map(|config| encode::flexbuffer(config.members())).transpose();
            if dry_run {
                build_repo(&summary.contents, config(stored_config)?, clock)?.encode()?;
                summary.removed = old.len() + usize::from(summary.has_config);
                return Ok(summary);
            }
            failpoints::pass("migrate.repo")?;
            // Reading the history took its time. Under the lock, what was read last is what `repo`
            // gets, and changes of version 1 come before or fail.
            let lock = lock(storage).await?;
            update_contents(repository, &mut summary.contents).await?;
            let config = config(v1::config(&**storage).await?)?;
            let file = build_repo(&summary.contents, config.clone(), clock)?.encode()?;
            let created = storage.put("repo", file.into(), Condition::Absent).await;
            created.map_err(|error| match error.kind() {
                ErrorKind::Contended => error.context("another migration was faster: run this again to finish it"),
                _ => error,
            })?;
            drop(lock);
            failpoints::pass("migrate.repo.done")?;
            late.follow(&mut summary.contents, config).await?;
            late.expect_no_snapshots_but(listed);
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
    late.finish(&mut summary).await?;
    Ok(summary)
}

/// Locks a local repository.
async fn lock(storage: &Arc<dyn Storage>) -> Result<Option<RepositoryLock>> {
    let storage = Arc::clone(storage);
    blocking(move || storage.local_files().map(|files| files.lock()).transpose()).await
}

/// Reads the refs again, and the commits that they lead to now.
async fn update_contents(repository: &Repository, contents: &mut Contents) -> Result<()> {
    read_refs(repository, contents).await?;
    add_commits(repository, contents, BTreeMap::new()).await
}

/// Reads the refs into `contents`.
async fn read_refs(repository: &Repository, contents: &mut Contents) -> Result<()> {
    let refs = repository.complete_refs().await?;
    contents.branches = refs.branches;
    contents.tags = refs.tags;
    contents.deleted_tags = Layout::V1.deleted_tags(&**repository.storage()).await?;
    // They were read one after the other.
    let Contents { tags, deleted_tags, .. } = contents;
    tags.retain(|name, _| !deleted_tags.contains_key(name));
    Ok(())
}

/// Returns the ids of all stored snapshots.
pub(super) async fn snapshots(storage: &dyn Storage) -> Result<HashSet<ObjectId>> {
    let objects = storage.list("snapshots/").await?;
    Ok(objects.iter().filter_map(|object| object.key.strip_prefix("snapshots/")?.parse().ok()).collect())
}

/// Reads everything that refs of version 1 lead to. Reads the snapshots `ids` first: walking the
/// histories would take a round trip for each commit, and most snapshot files belong to needed
/// commits.
pub(super) async fn read_contents(
    repository: &Repository,
    ids: impl ExactSizeIterator<Item = ObjectId>,
    progress: &MigrationProgress,
) -> Result<Contents> {
    let mut contents = Contents::default();
    read_refs(repository, &mut contents).await?;
    progress.snapshots.store(ids.len() as u64, Ordering::Relaxed);
    let read = stream::iter(ids).map(|id| async move {
        let commit = read_commit(repository, id).await;
        progress.read.fetch_add(1, Ordering::Relaxed);
        commit.ok()
    });
    // A commit that cannot be read is read again if a history needs it, which then reports the
    // error.
    let all: BTreeMap<ObjectId, SnapshotInfo> =
        read.buffer_unordered(READ_AT_ONCE).filter_map(std::future::ready).map(|c| (c.id, c)).collect().await;
    add_commits(repository, &mut contents, all).await?;
    Ok(contents)
}

/// Adds the commits that the refs lead to. Those that are not in `all` are read.
async fn add_commits(
    repository: &Repository,
    contents: &mut Contents,
    mut all: BTreeMap<ObjectId, SnapshotInfo>,
) -> Result<()> {
    let tips: Vec<ObjectId> = contents.branches.values().chain(contents.tags.values()).copied().collect();
    for tip in tips {
        let mut next = Some(tip);
        let mut path = HashSet::new();
        while let Some(id) = next.filter(|id| !contents.commits.contains_key(id)) {
            let commit = match all.remove(&id) {
                Some(commit) => commit,
                None => read_commit(repository, id).await.context(|| format!("the history of {tip}"))?,
            };
            path.insert(id);
            next = commit.parent;
            contents.commits.insert(id, commit);
        }
        if let Some(id) = next.filter(|id| path.contains(id)) {
            return Err(cycle(tip, id));
        }
    }
    Ok(())
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
    let mut meter = Meter::new("the content of `repo`");
    for (id, commit) in &contents.commits {
        commit.count(&mut meter)?;
        snapshots.insert(*id, record(commit, &mut meter)?);
    }
    Ok(RepoState {
        tags: contents.tags.clone(),
        branches: contents.branches.clone(),
        deleted_tags: contents.deleted_tags.keys().cloned().collect(),
        snapshots,
        status: Status { set_at: began, ..Status::default() },
        updates,
        config,
        memory: meter.into(),
        ..RepoState::default()
    })
}

/// Returns the description of a commit in `repo`, where metadata values are FlexBuffers whatever
/// the snapshot's own file has.
pub(super) fn record(commit: &SnapshotInfo, meter: &mut Meter) -> Result<SnapshotRecord> {
    meter.count(commit.message().len() as u64)?;
    Ok(SnapshotRecord {
        parent: commit.parent,
        flushed_at: commit.flushed_at,
        message: commit.message().to_owned(),
        metadata: commit.text.metadata_for_repo(meter).context(|| format!("snapshot {}", commit.id))?,
        pruned_ancestor_tx_logs: Vec::new(),
    })
}
