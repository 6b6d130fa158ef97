//! The middle of a commit: the engine stores the changes and publishes a snapshot.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::super::DetectedChanges;
use super::super::committed::Committed;
use super::super::resolve::refusal;
use super::host::WorkingHost;
use super::prepare::Prepared;
use super::{Commit, CommitOptions, listed};
use crate::overlay::invalidation::Invalidation;
use crate::scratch::data::FLUSH_FAILED;
use crate::scratch::record::DataFileId;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::commit::changes::ChunkChange;
use icechunkfs_repo::commit::conflict::Conflict;
use icechunkfs_repo::commit::conflicts::ChunkSet;
use icechunkfs_repo::commit::engine::{CommitOutcome, Request};

const DEFAULT_MESSAGE: &str = "Changes made through a mount";

/// End of the engine's work on a commit that did not fail.
pub(super) enum Ran {
    /// There was nothing to commit.
    Nothing,
    /// No branch leads to it, and the tree stays as it is.
    Detached(Committed),
    /// It failed at its end, and was found to be published all the same: the tree shows it.
    Found(Committed, Vec<Invalidation>),
    /// The branch has it, and the tree is to follow.
    Published(Publication),
}

/// State of the branch that the tree is to follow.
pub(super) struct Publication {
    /// The new snapshot, and the concurrent commits that it follows, oldest first. None if a
    /// concurrent commit won every conflict, or an earlier commit of this mount landed late with
    /// the changes.
    pub(super) new: Option<(ObjectId, Vec<ObjectId>)>,
    /// Data files whose bytes gave way to those of concurrent commits.
    pub(super) given_up: HashSet<DataFileId>,
}

impl Commit<'_> {
    /// Publishes the changes, of which bytes that are in no object yet become files before.
    pub(super) async fn run(&self, prepared: &mut Prepared) -> Result<Ran> {
        if self.options.detach {
            return self.detach(prepared).await;
        }
        let working = &self.session.working;
        let detected = &mut prepared.detected;
        working.moves().preserve(&self.guard, &detected.untracked_entries(), &[]).await?;
        self.spare_open_files(detected);
        let request = self.request(detected);
        let mut may_give_way: Vec<(DataFileId, NodeId, Coords)> = Vec::new();
        if request.settlements.may_give_way() {
            may_give_way.extend(detected.chunk_files().map(|(data, id, coords)| (data, id, coords.clone())));
        }
        let failed_before = working.upper().durable().flush_failures();
        let outcome = match self.publish(prepared, request).await {
            Ok(outcome) => outcome,
            Err(error) => {
                let error = self.after_flush_failure(error, &failed_before).await;
                return self.after_failure(&prepared.detected, error).await;
            }
        };
        let (new, kept) = match outcome {
            CommitOutcome::Conflicts(conflicts) => return Err(self.refused(conflicts)),
            CommitOutcome::Nothing if prepared.detected.changes.is_empty() && prepared.report.unchanged == 0 => {
                return Ok(Ran::Nothing);
            }
            CommitOutcome::Nothing => (None, ChunkSet::new()),
            CommitOutcome::Committed { snapshot, rebased_over, kept } => (Some((snapshot, rebased_over)), kept),
        };
        let has_given_way =
            |(_, id, coords): &&(_, NodeId, Coords)| kept.get(id).is_none_or(|kept| !kept.contains(coords));
        // With several names, one that has given way is enough: the others have its number and its
        // handles.
        let given_up = may_give_way.iter().filter(has_given_way).map(|(data, ..)| *data).collect();
        Ok(Ran::Published(Publication { new, given_up }))
    }

    /// Stores the changes as a snapshot that no branch leads to.
    async fn detach(&self, prepared: &mut Prepared) -> Result<Ran> {
        if self.options.amend {
            return Err(Error::invalid("a detached snapshot does not replace a commit: leave out --amend or --detach"));
        }
        let request = self.request(&prepared.detected);
        let changes = &mut prepared.detected.changes;
        // Programs go on writing to these files: an object must not be the same file.
        for change in changes.chunk_changes_mut() {
            if let ChunkChange::File(file) = change {
                file.can_link = false;
            }
        }
        let base = prepared.base.tree.snapshot();
        let stored: BoxFuture<'_, Result<Option<ObjectId>>> =
            Box::pin(self.session.engine.commit_detached(base, changes, &request, self.progress));
        let Some(snapshot) = stored.await? else { return Ok(Ran::Nothing) };
        Ok(Ran::Detached(Committed {
            snapshot: Some(snapshot),
            detached: true,
            nodes: changes.node_count(),
            deleted: changes.deleted.len(),
            chunks: changes.chunk_count(),
            ..Committed::default()
        }))
    }

    fn request(&self, detected: &DetectedChanges) -> Request {
        let upper = self.session.working.upper();
        let CommitOptions { message, metadata, amend, on_conflict, .. } = self.options.clone();
        Request {
            branch: upper.origin().branch.clone(),
            message: if message.is_empty() { DEFAULT_MESSAGE.to_owned() } else { message },
            metadata,
            amend,
            settlements: self.session.settlements(detected).with_others(on_conflict.unwrap_or_default()),
            unconfirmed: upper.unpublished(),
            host: Some(Arc::new(WorkingHost::new(self.session, detected))),
            ..Request::default()
        }
    }

    /// Has the engine commit the changes, with the uploads so far.
    async fn publish(&self, prepared: &mut Prepared, request: Request) -> Result<CommitOutcome> {
        let session = self.session;
        let changes = &mut prepared.detected.changes;
        let mut files = session.working.uploads().eager().is_enabled().then(|| changes.clone());
        let (pause, known_objects) = session.uploader.use_uploads(changes).await?;
        prepared.uploads_wait = Some(pause);
        files = files.filter(|_| known_objects.as_ref().is_some_and(|known_objects| !known_objects.chunks.is_empty()));
        let mut request = Request { known_objects, ..request };
        loop {
            // Boxed: the compiler cannot prove that futures this deep are `Send`.
            let commit: BoxFuture<'_, Result<CommitOutcome>> =
                Box::pin(session.engine.commit(prepared.base.tree.snapshot(), changes, &request, self.progress));
            match (commit.await, files.take()) {
                // A garbage collection may just have removed the uploaded objects. The files still
                // exist: they are uploaded again.
                (Err(error), Some(files)) if error.kind() == ErrorKind::Stale => {
                    // Nothing of the failed attempt was published.
                    self.progress.end_lost_publication();
                    *changes = files;
                    request.known_objects = session.uploader.use_uploads(changes).await?.1;
                }
                (outcome, _) => return outcome,
            }
        }
    }

    /// Keeps the conflicts for those who ask for them, and returns the error.
    fn refused(&self, conflicts: Vec<Conflict>) -> Error {
        let error = refusal(&conflicts, "nothing was committed", &self.session.mountpoint());
        self.session.conflicts.found(conflicts);
        self.session.working.upper().clear_publishing();
        error
    }

    /// Prevents linking of data files with passthrough, which must stay the working tree's: they
    /// are copied into the repository.
    fn spare_open_files(&self, detected: &mut DetectedChanges) {
        let backed = self.session.working.handles().passthrough_data();
        if backed.is_empty() {
            return;
        }
        for change in detected.changes.chunk_changes_mut() {
            if let ChunkChange::File(file) = change
                && DataFileId::from_file_name(&file.name).is_some_and(|number| backed.contains(&number))
            {
                file.can_link = false;
            }
        }
    }

    /// Finds the files whose bytes a failed commit could not write to the disk. Returns `error`,
    /// with the paths of files that are marked since `before`.
    async fn after_flush_failure(&self, error: Error, before: &HashSet<DataFileId>) -> Error {
        if self.session.storage.local_files().is_some() && matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace) {
            let working = Arc::clone(&self.session.working);
            // The commit fails in any case.
            if let Err(other) = blocking(move || working.upper().check_disk(true)).await {
                tracing::error!("{other}");
            }
        }
        let failed = self.session.working.upper().durable().flush_failures().difference(before).copied().collect();
        match self.session.working.upper().paths_of_data(&failed).as_slice() {
            [] => error,
            paths => {
                let message = format!("not committed; {}: {FLUSH_FAILED}", listed(paths));
                Error::with_source(ErrorKind::Io, message, error)
            }
        }
    }

    /// Handles a failed commit. If it failed while publishing, it may be visible all the same, and
    /// then it is done.
    async fn after_failure(&self, detected: &DetectedChanges, error: Error) -> Result<Ran> {
        if self.session.working.upper().publishing().is_none() {
            return Err(error);
        }
        self.session.working.upper().set_undecided(&self.guard);
        match self.session.resolve_with(&self.guard).await {
            Ok(Some((id, invalidations))) => {
                tracing::warn!("the commit is visible as snapshot {id}, although: {error}");
                let nodes = detected.changes.node_count();
                let chunks = detected.changes.chunk_count();
                Ok(Ran::Found(Committed { snapshot: Some(id), nodes, chunks, ..Committed::default() }, invalidations))
            }
            Ok(None) => Err(error),
            Err(other) => {
                tracing::error!("{other}");
                Err(error.context("it is not known whether the commit is visible; commit again to find out"))
            }
        }
    }
}
