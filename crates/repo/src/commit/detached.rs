//! Snapshots that no branch leads to, as the reference implementation's `flush` makes them: for
//! results that are looked at before a branch or a tag points to them.

use std::sync::Arc;

use super::attempts::Prepared;
use super::changes::ChangeSet;
use super::engine::{Engine, Request};
use super::progress::{CommitProgress, Stage};
use super::publish::unknown;
use super::times::RenewedTimes;
use crate::repo::collect::mark::LogPosition;
use crate::repo::flags::FeatureFlag;
use crate::repo::update::{RepoFile, Update, UpdateOptions};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{Operation, RepoState};
use icechunkfs_format::format::snapshot::Snapshot;

impl Engine {
    /// Stores `changes`, made for snapshot `base`, as a snapshot that follows it, and moves no
    /// branch. Returns its id; none if there is nothing to store. Garbage collection removes it
    /// when it is old enough, unless a ref leads to it by then.
    ///
    /// Files of chunks must not be linked ([`super::changes::ChunkFile::can_link`]): the changes
    /// stay with the caller, whose files change.
    ///
    /// Errors: [`ErrorKind::Stale`] if `base` was collected, or garbage was collected meanwhile;
    /// otherwise as for [`Engine::commit`].
    pub async fn commit_detached(
        &self,
        base: &Arc<Snapshot>,
        changes: &ChangeSet,
        request: &Request,
        progress: &CommitProgress,
    ) -> Result<Option<ObjectId>> {
        let repository = self.open(&request.branch).await?;
        let Some((mut work, config)) = self.begin(&repository, base, changes, request, progress).await? else {
            return Ok(None);
        };
        self.renew_ids(&mut work, &repository).await?;
        // Files that are not linked get no new times, and none is flushed.
        let renewed = RenewedTimes::default();
        self.store_chunks(&mut work, &repository, self.options.sizes(&config), &renewed).await?;
        if work.changes.is_empty() {
            return Ok(None);
        }
        let mut current = repository.repo_file();
        let prepared = self.prepare(&mut work, 0, None, current.as_mut()).await?;
        progress.begin_publication()?;
        progress.enter(Stage::Publish);
        match work.version {
            SpecVersion::V2 => self.list(&prepared, work.stored_since, current).await?,
            SpecVersion::V1 => self.refuse_migrated().await?,
        }
        Ok(Some(prepared.id))
    }

    /// Fails with [`ErrorKind::Migrated`] if the repository of version 1 has been migrated
    /// meanwhile: the new list of snapshots does not have one that no ref leads to.
    async fn refuse_migrated(&self) -> Result<()> {
        match self.storage.get_range("repo", 0, 1).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(Error::new(
                ErrorKind::Migrated,
                "the repository was migrated to version 2 meanwhile, which does not know the snapshot: try again",
            )),
        }
    }

    /// Lists the snapshot in `repo`, beginning with the state `known`.
    async fn list(
        &self,
        prepared: &Prepared,
        stored_since: Option<LogPosition>,
        known: Option<RepoFile>,
    ) -> Result<()> {
        let Prepared { parent, id, has_moves, snapshot } = prepared;
        let mut is_listed = false;
        let change = |state: &mut RepoState| {
            // The answer to an attempt was lost, and it had succeeded.
            if state.snapshots.contains_key(id) {
                is_listed = true;
                return Err(Error::new(ErrorKind::AlreadyExists, "the snapshot is listed"));
            }
            if *has_moves {
                FeatureFlag::MoveNode.check(state, "moving groups and arrays")?;
            }
            if !state.snapshots.contains_key(parent) {
                let why = format!("commit {parent}, which the changes are based on, has expired or was collected");
                return Err(Error::new(ErrorKind::Stale, why + ": refresh the mount, and try again"));
            }
            if stored_since.is_some_and(|mark| mark.may_have_collected_since(state)) {
                let why = "garbage was collected, and may have included what the snapshot needs: try again";
                return Err(Error::new(ErrorKind::Stale, why));
            }
            let mut record = snapshot.record.clone();
            record.parent = Some(*parent);
            state.snapshots.insert(*id, record);
            Ok(Operation::NewDetachedSnapshot { new: *id })
        };
        let options = UpdateOptions { clock_is_checked: true, ..UpdateOptions::default() };
        let updated =
            Update::new(&*self.storage, self.clock, options).beginning_with(known).run(change, || Ok(())).await;
        match updated {
            Err(_) if is_listed => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Io | ErrorKind::Contended) => {
                match RepoFile::read(&*self.storage).await {
                    Ok(current) if current.has(*id) => Ok(()),
                    Ok(_) => Err(error),
                    Err(_) => Err(error.context(unknown(*id))),
                }
            }
            updated => updated.map(drop),
        }
    }
}
