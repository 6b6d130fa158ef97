//! Refs that programs of version 1 change while a migration in place is under way, and the removal
//! of the old refs.
//!
//! Once `repo` is there, the old refs are read again: what was made, moved or deleted since the
//! first reading is done in `repo`, too. Then each old ref is removed on the condition that it is
//! still what `repo` has; else it is looked at again. On a local disk the condition holds in the
//! moment of the removal, and no program of this release changes a ref beside `repo`. A store
//! compares before it removes, so that a change may come between: the refs are read until none is
//! left, and snapshots that came meanwhile and are on no ref are reported.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Contents;
use super::in_place::{MigrationProgress, Summary, UnmigratedRef, record, snapshots};
use super::old_refs::{Migrated, OldRef, OldRefs, Verdict};
use crate::repo::change_refs::{RefKind, refs_of};
use crate::repo::ref_files::{MAX_REF_FILE, branch_key};
use crate::repo::refs::DEFAULT_BRANCH;
use crate::repo::{update, v1};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_base::memory::Meter;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::config_edit::encode;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{Operation, RepoState};
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_store::storage::Storage;

/// Readings of the old refs after which those that are left stay.
const PASSES: usize = 20;
/// Pause before a reading that only looks whether other programs have taken back what they wrote
/// beside `repo`.
const PAUSE: Duration = Duration::from_millis(100);
/// Readings in a row that removed nothing, after which the old refs that are left stay.
const IDLE_PASSES: usize = 5;

/// Old refs of a migration.
pub(super) struct LateRefs<'a> {
    storage: &'a Arc<dyn Storage>,
    clock: Clock,
    progress: &'a MigrationProgress,
    /// Snapshots that were stored before the migration; none if that is not known.
    known_snapshots: Option<HashSet<ObjectId>>,
}

/// Move of a ref in `repo`.
struct Move<'a> {
    old: &'a OldRef,
    /// Target that the ref must have; none if it must not exist.
    from: Option<ObjectId>,
    /// Commits to list first, oldest first.
    commits: &'a [SnapshotInfo],
    /// True if the new target follows the one before.
    is_forward: bool,
}

impl<'a> LateRefs<'a> {
    pub(super) fn new(storage: &'a Arc<dyn Storage>, clock: Clock, progress: &'a MigrationProgress) -> Self {
        LateRefs { storage, clock, progress, known_snapshots: None }
    }

    /// Tells which snapshots were stored before the migration. Others that are on no ref in the end
    /// are reported, where a store cannot keep programs of version 1 from committing meanwhile.
    pub(super) fn expect_no_snapshots_but(&mut self, known: HashSet<ObjectId>) {
        self.known_snapshots = Some(known).filter(|_| self.storage.local_path().is_none());
    }

    /// Brings `repo`, which was just made of `contents` and `config`, to where the old refs and the
    /// configuration are now.
    pub(super) async fn follow(&self, contents: &mut Contents, config: Option<Vec<u8>>) -> Result<()> {
        let storage = &**self.storage;
        let now = OldRefs::read(storage).await?;
        let is_there = |kind, name: &str| now.refs.iter().any(|old| old.kind == kind && old.name == name);
        let gone = |name: &String| name != DEFAULT_BRANCH && !is_there(RefKind::Branch, name);
        for (name, target) in contents.branches.clone().into_iter().filter(|(name, _)| gone(name)) {
            let operation = Operation::BranchDeleted { name: name.clone(), previous: target };
            if self.delete(RefKind::Branch, &name, target, operation).await? {
                contents.branches.remove(&name);
            }
        }
        for old in &now.refs {
            let refs = if old.kind == RefKind::Branch { &mut contents.branches } else { &mut contents.tags };
            let before = refs.get(&old.name).copied();
            if before.is_none_or(|before| before == old.target) {
                continue;
            }
            let state = update::read_state(storage).await?;
            let commits = Migrated::new(&state).unlisted(self.storage, old.target).await?;
            let follows = Migrated::new(&state).follows(&commits, old.target, before.unwrap_or(old.target));
            if self.apply(&Move { old, from: before, commits: &commits, is_forward: follows }).await?.is_some() {
                refs.insert(old.name.clone(), old.target);
                contents.commits.extend(commits.into_iter().map(|commit| (commit.id, commit)));
            }
        }
        let config_now = v1::config(storage).await?.map(|config| encode::flexbuffer(config.members())).transpose()?;
        if config_now == config {
            return Ok(());
        }
        let change = |state: &mut RepoState| {
            if state.config != config {
                return Ok(None);
            }
            state.config.clone_from(&config_now);
            Ok(Some(Operation::ConfigChanged))
        };
        update::update_if(storage, self.clock, update::UpdateOptions::default(), change).await.map(drop)
    }

    /// Adds to `repo` what programs of version 1 did since, and removes the objects that `repo`
    /// replaces.
    pub(super) async fn finish(&self, summary: &mut Summary) -> Result<()> {
        // Once the ref of `main` is gone, programs of version 1 neither commit to `main` nor open
        // the repository.
        self.pass(summary, true).await?;
        failpoints::pass("migrate.main.done")?;
        let mut idle = 0;
        for _ in 0..PASSES {
            let before = summary.removed;
            if self.pass(summary, false).await? == 0 {
                break;
            }
            idle = if summary.removed == before { idle + 1 } else { 0 };
            // On a local disk nobody takes anything back.
            if idle >= IDLE_PASSES || (idle > 0 && self.storage.local_path().is_some()) {
                break;
            }
            if idle > 0 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        failpoints::pass("migrate.refs.done")?;
        if summary.unmigrated_refs.is_empty() && summary.has_config {
            summary.removed += 1;
            self.storage.delete(&[v1::CONFIG_KEY.to_owned()]).await?;
        }
        summary.stray_snapshots = self.stray_snapshots().await?;
        failpoints::pass("migrate.done")
    }

    /// Reads the old refs and removes those that `repo` has, of `main` only if so wanted. Returns
    /// the number of files that were found.
    async fn pass(&self, summary: &mut Summary, only_main: bool) -> Result<usize> {
        let storage = &**self.storage;
        let old = OldRefs::read(storage).await?;
        summary.unmigrated_refs.clear();
        if !only_main && !old.deleted.is_empty() {
            for tag in &old.deleted_tags {
                self.delete_tag(tag).await?;
            }
            summary.removed += old.deleted.len();
            storage.delete(&old.deleted).await?;
        }
        let is_main = |found: &OldRef| found.key == branch_key(DEFAULT_BRANCH);
        let mut state = update::read_state(storage).await?;
        for found in old.refs.iter().filter(|found| !only_main || is_main(found)) {
            let why = self.settle(found, &mut state, &mut summary.contents).await?;
            if let Some(unmigrated) = why {
                summary.unmigrated_refs.insert(found.key.clone(), unmigrated);
                continue;
            }
            match storage.delete_unchanged(&found.key, MAX_REF_FILE, &found.version).await {
                Ok(()) => summary.removed += 1,
                // It was written or deleted since: the next pass reads it.
                Err(error) if error.kind() == ErrorKind::Contended => {}
                Err(error) => return Err(error),
            }
        }
        Ok(old.len())
    }

    /// Brings `repo` to where it has all that `found` says. Returns the reason if that is not
    /// possible.
    async fn settle(
        &self,
        found: &OldRef,
        state: &mut RepoState,
        contents: &mut Contents,
    ) -> Result<Option<UnmigratedRef>> {
        let left = |is_readable: bool, why: String| UnmigratedRef {
            target: found.target,
            other_name: is_readable.then(|| found.other_name()),
            why,
        };
        match Migrated::new(state).judge(self.storage, found).await? {
            Verdict::Settled => Ok(None),
            Verdict::Missing(from, commits) => {
                self.progress.read.fetch_add(commits.len() as u64, Ordering::Relaxed);
                let moved = Move { old: found, from, commits: &commits, is_forward: true };
                let Some(written) = self.apply(&moved).await? else {
                    return Ok(Some(left(false, "it changed concurrently: run this again".to_owned())));
                };
                *state = written;
                let refs = match found.kind {
                    RefKind::Branch => &mut contents.branches,
                    RefKind::Tag => &mut contents.tags,
                };
                refs.insert(found.name.clone(), found.target);
                contents.commits.extend(commits.into_iter().map(|commit| (commit.id, commit)));
                Ok(None)
            }
            Verdict::Left(commits, why) => {
                // The ref can then be made anew under another name, and its commits be read.
                let unlisted = commits.as_ref().filter(|commits| !commits.is_empty());
                if let Some(commits) = unlisted
                    && let Some(written) = self.list(found.target, commits).await?
                {
                    *state = written;
                }
                Ok(Some(left(commits.is_some(), why)))
            }
        }
    }

    /// Does `moved` in `repo`. Returns the written state; none if the ref has changed concurrently.
    async fn apply(&self, moved: &Move<'_>) -> Result<Option<RepoState>> {
        let Move { old, from, commits, is_forward } = *moved;
        let OldRef { kind, ref name, target, .. } = *old;
        let changed = || Error::new(ErrorKind::Contended, format!("{kind} `{name}` has changed concurrently"));
        let change = |state: &mut RepoState| {
            insert(state, commits)?.then_some(()).ok_or_else(changed)?;
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
                (RefKind::Branch, Some(previous)) if commits.is_empty() || !is_forward => {
                    Operation::BranchReset { name, previous }
                }
                (RefKind::Branch, Some(_)) => Operation::NewCommit { branch: name, new: target },
            })
        };
        unless_contended(update::update(&**self.storage, self.clock, change).await)
    }

    /// Lists `commits`, which lead to `target`, in `repo`, without a ref.
    async fn list(&self, target: ObjectId, commits: &[SnapshotInfo]) -> Result<Option<RepoState>> {
        let change = |state: &mut RepoState| {
            let changed = || Error::new(ErrorKind::Contended, "the history has changed concurrently");
            insert(state, commits)?.then_some(()).ok_or_else(changed)?;
            Ok(Operation::NewDetachedSnapshot { new: target })
        };
        unless_contended(update::update(&**self.storage, self.clock, change).await)
    }

    /// Deletes a ref in `repo` that a program of version 1 has deleted, if it still has its target.
    /// Returns true if that was done.
    async fn delete(&self, kind: RefKind, name: &str, target: ObjectId, operation: Operation) -> Result<bool> {
        let change = |state: &mut RepoState| {
            let refs = refs_of(state, kind);
            if refs.get(name) != Some(&target) {
                return Ok(None);
            }
            refs.remove(name);
            if kind == RefKind::Tag {
                state.deleted_tags.insert(name.to_owned());
            }
            Ok(Some(operation.clone()))
        };
        let options = update::UpdateOptions::default();
        Ok(update::update_if(&**self.storage, self.clock, options, change).await?.is_some())
    }

    /// Deletes a tag in `repo` that a program of version 1 has deleted. One that `repo` never had
    /// is made first, since its name stays taken.
    async fn delete_tag(&self, tag: &OldRef) -> Result<()> {
        let state = update::read_state(&**self.storage).await?;
        if state.deleted_tags.contains(&tag.name) {
            return Ok(());
        }
        if !state.tags.contains_key(&tag.name) {
            let commits = match Migrated::new(&state).unlisted(self.storage, tag.target).await {
                Ok(commits) => commits,
                // It leads nowhere.
                Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(()),
                Err(error) => return Err(error),
            };
            self.apply(&Move { old: tag, from: None, commits: &commits, is_forward: true }).await?;
        }
        let operation = Operation::TagDeleted { name: tag.name.clone(), previous: tag.target };
        self.delete(RefKind::Tag, &tag.name, tag.target, operation).await.map(drop)
    }

    async fn stray_snapshots(&self) -> Result<Vec<ObjectId>> {
        let Some(known) = &self.known_snapshots else { return Ok(Vec::new()) };
        let state = update::read_state(&**self.storage).await?;
        let found = snapshots(&**self.storage).await?;
        let mut stray: Vec<ObjectId> =
            found.into_iter().filter(|id| !known.contains(id) && !state.snapshots.contains_key(id)).collect();
        stray.sort_unstable();
        Ok(stray)
    }
}

/// Lists `commits`, oldest first. Returns false if the commit that the first one follows is not
/// listed.
fn insert(state: &mut RepoState, commits: &[SnapshotInfo]) -> Result<bool> {
    let mut meter = Meter::new("commits to be added");
    for commit in commits {
        if commit.parent.is_some_and(|parent| !state.snapshots.contains_key(&parent)) {
            return Ok(false);
        }
        let record = record(commit, &mut meter)?;
        state.snapshots.entry(commit.id).or_insert(record);
    }
    Ok(true)
}

/// Returns none for an update that a concurrent change has made impossible.
fn unless_contended(updated: Result<RepoState>) -> Result<Option<RepoState>> {
    match updated {
        Ok(state) => Ok(Some(state)),
        Err(error) if error.kind() == ErrorKind::Contended => {
            tracing::warn!("{error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
