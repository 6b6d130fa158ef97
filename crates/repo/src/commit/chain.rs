//! Commits that are stored one after another, and published together.
//!
//! A branch that gets several commits at once shows all of them or none: the caller stores each
//! commit on top of the one before, then publishes them ([`Engine::publish_chain`]). Until then
//! nothing leads to them, like to the objects of any commit before its publication; the position of
//! the log from before the first one says whether garbage was collected meanwhile.

use std::sync::Arc;

use super::changes::ChangeSet;
use super::engine::Engine;
use super::progress::CommitProgress;
use super::publish;
use super::request::Request;
use super::times::RenewedTimes;
use crate::repo::Repository;
use crate::repo::change_refs::RefKind;
use crate::repo::import_ref::{RefImport, StoredCommits, import_refs};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::SnapshotRecord;
use icechunkfs_format::format::snapshot::Snapshot;

/// Commit whose objects are stored, and which nothing leads to yet.
#[derive(Debug)]
pub struct StoredCommit {
    /// The new snapshot.
    pub snapshot: Arc<Snapshot>,
    /// Its record in the file `repo`, with its parent.
    pub record: SnapshotRecord,
    /// True if the commit moves nodes.
    pub has_moves: bool,
}

impl StoredCommit {
    /// Returns the id of the new snapshot.
    pub fn id(&self) -> ObjectId {
        self.snapshot.id()
    }
}

impl Engine {
    /// Stores a commit of `changes` on top of `parent`, for which they are made. Returns none if
    /// there is nothing to commit.
    ///
    /// Of the request, only message and metadata count. Errors: as for [`Engine::commit`].
    pub async fn store_after(
        &self,
        repository: &Repository,
        parent: &Arc<Snapshot>,
        changes: &ChangeSet,
        request: &Request,
    ) -> Result<Option<StoredCommit>> {
        if request.amend || request.rewrite.is_some() {
            return Err(Error::invalid("a commit of a chain replaces nothing and rewrites nothing"));
        }
        let progress = CommitProgress::default();
        let renewed = RenewedTimes::default();
        let Some((mut work, config)) = self.begin(repository, parent, changes, request, &progress).await? else {
            return Ok(None);
        };
        self.renew_ids(&mut work, repository).await?;
        self.store_chunks(&mut work, repository, self.options.sizes(&config), &renewed).await?;
        let prepared = self.prepare(&mut work, 0, None, None).await?;
        renewed.keep();
        let snapshot = Arc::new(prepared.snapshot.snapshot);
        let record = SnapshotRecord { parent: Some(parent.id()), ..prepared.snapshot.record };
        Ok(Some(StoredCommit { snapshot, record, has_moves: prepared.has_moves }))
    }

    /// Points `branch` from `tip` to the last commit of `chain`, which begins on top of `tip`.
    /// `repository` is in a state from before the first of them was stored. Returns false if the
    /// branch has moved, or if garbage was collected meanwhile, so that objects of the chain may be
    /// gone: then nothing was changed.
    pub async fn publish_chain(
        &self,
        repository: &Repository,
        branch: &str,
        tip: ObjectId,
        chain: &[StoredCommit],
    ) -> Result<bool> {
        let Some(last) = chain.last() else { return Ok(true) };
        let is_whole = chain.iter().zip(chain.iter().skip(1)).all(|(one, next)| next.record.parent == Some(one.id()));
        if !is_whole || chain.first().and_then(|first| first.record.parent) != Some(tip) {
            return Err(Error::invalid(format!("the commits to publish do not follow each other on top of {tip}")));
        }
        failpoints::pass("commit.publish")?;
        let records: Vec<_> = chain.iter().map(|commit| (commit.id(), commit.record.clone())).collect();
        let import =
            RefImport { kind: RefKind::Branch, name: branch, expected: Some(tip), target: last.id(), is_forward: true };
        let commits = StoredCommits {
            records: &records,
            stored_since: repository.log_position(),
            has_moves: chain.iter().any(|commit| commit.has_moves),
        };
        let outcome = import_refs(repository, &[import], commits, self.clock).await;
        let error = match outcome.and_then(|outcomes| outcomes.into_iter().collect()) {
            Ok(()) => {
                let _ = failpoints::pass("commit.publish.done");
                return Ok(true);
            }
            Err(error) => error,
        };
        // The answer to a successful change may have been lost, and its repetition refused.
        match publish::is_published(&self.storage, branch, last.id()).await {
            Ok(true) => Ok(true),
            Ok(false) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::Busy | ErrorKind::Contended) => Ok(false),
            Ok(false) => Err(error),
            Err(_) => Err(error.context(publish::unknown(last.id()))),
        }
    }
}
