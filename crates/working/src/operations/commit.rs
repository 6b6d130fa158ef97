//! Commit: the frozen tree is checked, the engine publishes a snapshot, and the tree is rebased
//! onto it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::changes::guard::reject_unexplained_deletions;
use super::committed::Committed;
use super::hook::NewCommit;
use super::invalidation::base_invalidations;
use super::rebase;
use super::recovery::{finish, tree_at};
use super::{DetectedChanges, Session};
use crate::overlay::frozen::Frozen;
use crate::overlay::invalidation::Invalidation;
use crate::overlay::rebase::Others;
use crate::overlay::replace::TreeGuard;
use crate::scratch::data::{FLUSH_FAILED, Files, WriterState};
use crate::scratch::record::DataFileId;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::commit::changes::ChunkChange;
use icechunkfs_repo::commit::conflicts::ChunkSet;
use icechunkfs_repo::commit::engine::{CommitOutcome, OnConflict, RebaseCheck, Request};
use icechunkfs_repo::commit::membership::ungrouped_by;
use icechunkfs_repo::commit::progress::{CommitProgress, Stage};
use icechunkfs_repo::commit::rebase::commits_since;
use icechunkfs_repo::commit::warnings::{Warning, warnings_of};

/// Longest wait for files to be closed before a commit is refused. Closes under way take
/// microseconds.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval between checks for open or mapped files.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const DEFAULT_MESSAGE: &str = "Changes made through a mount";
/// Violations and files that an error lists; the rest is counted.
const LISTED: usize = 20;

/// Options of a commit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitOptions {
    /// Commit message; a default one if empty.
    pub message: String,
    /// Metadata of the commit.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// True if the commit replaces the branch tip.
    #[serde(default)]
    pub amend: bool,
    /// Resolution of chunks that a concurrent commit changed too.
    #[serde(default)]
    pub on_conflict: Option<OnConflict>,
    /// True if the commit is refused where it would only warn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
}

impl Session {
    /// Commits the change set of the working tree.
    ///
    /// Fails with [`ErrorKind::Busy`] if files are open for writing, [`ErrorKind::InvalidInput`] if
    /// there are violations (the message lists them), [`ErrorKind::Stale`] if a concurrent commit
    /// conflicts; the working tree then stays as it is.
    pub async fn commit(&self, options: CommitOptions) -> Result<Committed> {
        let _turn = self.take_turn().await;
        self.resolve_pending().await?;
        let message = options.message.clone();
        let progress = Ended(Arc::new(CommitProgress::default()));
        *self.progress.lock() = Arc::clone(&progress.0);
        progress.0.enter(Stage::Closing);
        let (parent, (committed, invalidations)) = {
            let guard = self.working.upper().quiesce().await;
            self.wait_for_closes().await;
            progress.0.enter(Stage::Detecting);
            let (frozen, detected) = self.detect_changes().await?;
            refuse_open(&frozen)?;
            refuse_violations(&detected)?;
            reject_unexplained_deletions(&self.working.upper().base().tree, &frozen, &detected.changes)?;
            let detected = self.refuse_mapped(detected).await?;
            let detected = self.own_foreign(&guard, detected).await?;
            let untracked = detected.untracked_paths();
            // An earlier commit that seemed to fail may have landed; an empty change set then has
            // to undo it.
            if detected.changes.is_empty() && !options.amend && self.working.upper().unpublished().is_empty() {
                return Ok(Committed { untracked, ..Committed::default() });
            }
            let base = self.working.upper().base();
            let ungrouped = ungrouped_by(base.tree.snapshot(), &detected.changes);
            let (detected, warnings) = self.find_warnings(detected).await?;
            if options.strict {
                refuse_warnings(&ungrouped, &warnings)?;
            }
            self.working.handles().set_linking(true);
            let published = self.publish(&guard, detected, options, &progress.0).await;
            self.working.handles().set_linking(false);
            let (committed, invalidations) = published?;
            (base.id(), (Committed { untracked, ungrouped, warnings, ..committed }, invalidations))
        };
        // Sent once the tree lock is open: an invalidation may wait for requests that wait for the
        // tree lock.
        let shown = self.invalidate(invalidations).await;
        if let (Some(hook), Some(snapshot)) = (self.hook.get(), committed.snapshot) {
            hook.notify(NewCommit { snapshot, parent, message });
        }
        shown?;
        Ok(committed)
    }

    /// Makes the foreign chunks inodes of the working tree with their own bytes: the commit deletes
    /// those that they show. They are then untracked files like others.
    async fn own_foreign(&self, guard: &TreeGuard<'_>, detected: DetectedChanges) -> Result<DetectedChanges> {
        if detected.foreign.is_empty() {
            return Ok(detected);
        }
        self.working.moves().preserve(guard, &detected.untracked_entries(), &detected.foreign_places()).await?;
        Ok(self.detect_changes().await?.1)
    }

    /// Returns the warnings about a change set, with the change set itself.
    pub(super) async fn find_warnings(&self, detected: DetectedChanges) -> Result<(DetectedChanges, Vec<Warning>)> {
        let base = self.working.upper().base();
        blocking(move || {
            let warnings = warnings_of(base.tree.snapshot(), &detected.changes);
            Ok((detected, warnings))
        })
        .await
    }

    async fn publish(
        &self,
        guard: &TreeGuard<'_>,
        mut detected: DetectedChanges,
        options: CommitOptions,
        progress: &CommitProgress,
    ) -> Result<(Committed, Vec<Invalidation>)> {
        self.working.moves().preserve(guard, &detected.untracked_entries(), &[]).await?;
        self.working.contents().complete_sparse(&detected.data_files()).await?;
        self.spare_open_files(&mut detected);
        let base = self.working.upper().base();
        let working = Arc::clone(&self.working);
        let marking = Arc::clone(&self.working);
        let message = if options.message.is_empty() { DEFAULT_MESSAGE.to_owned() } else { options.message };
        let request = Request {
            branch: self.working.upper().origin().branch.clone(),
            message,
            metadata: options.metadata,
            merge: None,
            amend: options.amend,
            on_conflict: options.on_conflict.unwrap_or_default(),
            records: false,
            rewrite: None,
            about_to_publish: Some(Arc::new(move |id| working.upper().about_to_publish(id))),
            flush_failed: Some(Arc::new(move |name| {
                DataFileId::from_file_name(name)
                    .into_iter()
                    .for_each(|data| marking.upper().durable().mark_flush_failed(data));
            })),
            known_objects: None,
            unconfirmed: self.working.upper().unpublished(),
            may_rebase_onto: Some(self.may_rebase_onto(&detected)),
        };
        let mut may_give_way: Vec<(DataFileId, NodeId, Coords)> = Vec::new();
        if request.on_conflict == OnConflict::Theirs {
            may_give_way.extend(detected.chunk_files().map(|(data, id, coords)| (data, id, coords.clone())));
        }
        let mut files = self.working.uploads().eager().is_enabled().then(|| detected.changes.clone());
        let (_hold, known_objects) = self.use_uploads(&mut detected.changes).await?;
        files = files.filter(|_| known_objects.as_ref().is_some_and(|known_objects| !known_objects.chunks.is_empty()));
        let mut request = Request { known_objects, ..request };
        let failed_before = self.working.upper().durable().flush_failures();
        let outcome = loop {
            // Boxed: the compiler cannot prove that futures this deep are `Send`.
            let commit: BoxFuture<'_, Result<CommitOutcome>> =
                Box::pin(self.engine.commit(base.tree.snapshot(), &detected.changes, &request, progress));
            match (commit.await, files.take()) {
                // A garbage collection may just have removed the uploaded objects. The files still
                // exist: they are uploaded again.
                (Err(error), Some(files)) if error.kind() == ErrorKind::Stale => {
                    detected.changes = files;
                    request.known_objects = self.use_uploads(&mut detected.changes).await?.1;
                }
                (Ok(outcome), _) => break outcome,
                (Err(error), _) => {
                    let error = self.after_flush_failure(error, &failed_before).await;
                    return self.after_failure(guard, &detected, error).await;
                }
            }
        };
        progress.enter(Stage::Showing);
        let mut kept = ChunkSet::new();
        let published = match outcome {
            CommitOutcome::Conflicts(conflicts) => {
                let named: Vec<&str> = conflicts.iter().map(|conflict| conflict.path.as_str()).take(LISTED).collect();
                let message = format!(
                    "concurrent commits changed the same things ({} conflicts: {}): .icechunk/conflicts lists all of them. \
                     Nothing was committed, and nothing is lost",
                    conflicts.len(),
                    named.join(", ")
                );
                *self.conflicts.lock() = conflicts;
                self.working.upper().clear_publishing();
                return Err(Error::new(ErrorKind::Stale, message));
            }
            CommitOutcome::Nothing if detected.changes.is_empty() => return Ok(Default::default()),
            // A concurrent commit won every conflict (`theirs`), or an earlier commit of this mount
            // landed late with the changes: the tree is still rebased.
            CommitOutcome::Nothing => None,
            CommitOutcome::Committed { snapshot, rebased_over, kept: chunks } => {
                kept = chunks;
                Some((snapshot, rebased_over))
            }
        };
        // Nothing may change until the tree is rebased onto the snapshot.
        if published.is_some() {
            self.working.upper().set_undecided(guard);
        }
        self.conflicts.lock().clear();
        failpoints::pass(failpoints::COMMITTED).context(not_shown)?;
        let snapshot = published.as_ref().map(|(snapshot, _)| *snapshot);
        let written = match snapshot {
            Some(snapshot) => self.engine.take_written(snapshot).await,
            None => None,
        };
        let (repository, written) = match written {
            Some((repository, written)) => (repository, Some(written)),
            None => (self.repository().await.context(not_shown)?, None),
        };
        let (new_base, remote_commits) = match published {
            Some(published) => published,
            None => {
                let commits = commits_since(&repository, &request.branch, base.id()).await?;
                (commits.last().map_or(base.id(), |tip| tip.id), commits.iter().map(|commit| commit.id).collect())
            }
        };
        let tree = match written {
            Some(written) => self.working.moves().tree_of(Arc::new(written), Arc::clone(&self.reader)),
            None => tree_at(&repository, &self.working, &self.reader, new_base).await,
        };
        let tree = tree.context(not_shown)?;
        let has_given_way =
            |(_, id, coords): &&(_, NodeId, Coords)| kept.get(id).is_none_or(|kept| !kept.contains(coords));
        // With several names, one that has given way is enough: the others have its number and its
        // handles.
        let given_up = may_give_way.iter().filter(has_given_way).map(|(data, ..)| *data).collect();
        let others = match remote_commits.as_slice() {
            [] => Others::Absent,
            _ => Others::Merged { given_up: &given_up },
        };
        let changes = (&detected, others);
        let moved = &detected.changes.moved;
        let mut invalidations = base_invalidations(&repository, (&base.tree, &tree), &remote_commits, moved).await;
        let followed = rebase::follow_commit(&self.working, guard, &tree, changes, &self.new_ids).await;
        invalidations.extend(followed.context(not_shown)?);
        let committed = Committed {
            snapshot,
            rebased_over: remote_commits,
            nodes: detected.changes.node_count(),
            chunks: detected.changes.chunk_count(),
            ..Committed::default()
        };
        self.close_commit(guard);
        Ok((committed, invalidations))
    }

    /// Ends a commit whose snapshot the tree shows now.
    fn close_commit(&self, _guard: &TreeGuard<'_>) {
        self.working.upper().clear_publishing();
        self.working.uploads().forget_uploads();
        self.new_ids.lock().clear();
        self.conflicts.lock().clear();
    }

    /// Returns a check for names of the tree that collide with a commit that it would be rebased
    /// onto.
    fn may_rebase_onto(&self, detected: &DetectedChanges) -> RebaseCheck {
        let working = Arc::clone(&self.working);
        let reader = Arc::clone(&self.reader);
        let untracked = Arc::new(detected.untracked_entries());
        let paths: Arc<HashSet<String>> = Arc::new(detected.untracked_paths().into_iter().collect());
        Arc::new(move |snapshot, has_landed| {
            let working = Arc::clone(&working);
            let reader = Arc::clone(&reader);
            let untracked = Arc::clone(&untracked);
            let paths = Arc::clone(&paths);
            Box::pin(async move {
                let tree = working.moves().tree_of(Arc::clone(&snapshot), reader)?;
                let mut collisions = working.moves().collisions(&tree, &untracked).await?;
                // A landed commit of this mount contains the names created here: only untracked
                // names can collide with it.
                collisions.retain(|collision| !has_landed || paths.contains(&collision.path));
                Ok(rebase::as_conflicts(collisions, &snapshot))
            })
        })
    }

    /// Finds the files whose bytes a failed commit could not write to the disk. Returns `error`,
    /// with the paths of files that are marked since `before`.
    async fn after_flush_failure(&self, error: Error, before: &HashSet<DataFileId>) -> Error {
        if self.storage.local_files().is_some() && matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace) {
            let working = Arc::clone(&self.working);
            // The commit fails in any case.
            if let Err(other) = blocking(move || working.upper().check_disk(true)).await {
                tracing::error!("{other}");
            }
        }
        let failed = self.working.upper().durable().flush_failures().difference(before).copied().collect();
        match self.working.upper().paths_of_data(&failed).as_slice() {
            [] => error,
            paths => {
                let message = format!("not committed; {}: {FLUSH_FAILED}", listed(paths));
                Error::with_source(ErrorKind::Io, message, error)
            }
        }
    }

    /// Handles a failed commit. If it failed while publishing, it may be visible all the same, and
    /// then it is done.
    async fn after_failure(
        &self,
        guard: &TreeGuard<'_>,
        detected: &DetectedChanges,
        error: Error,
    ) -> Result<(Committed, Vec<Invalidation>)> {
        if self.working.upper().publishing().is_none() {
            return Err(error);
        }
        self.working.upper().set_undecided(guard);
        match self.resolve_with(guard).await {
            Ok(Some((id, invalidations))) => {
                tracing::warn!("the commit is visible as snapshot {id}, although: {error}");
                let nodes = detected.changes.node_count();
                let chunks = detected.changes.chunk_count();
                Ok((Committed { snapshot: Some(id), nodes, chunks, ..Committed::default() }, invalidations))
            }
            Ok(None) => Err(error),
            Err(other) => {
                tracing::error!("{other}");
                Err(error.context("whether the commit is visible could not be found out; commit again to try"))
            }
        }
    }

    /// Determines the outcome of a commit that failed while publishing, if it is still unknown.
    /// Each operation that moves the tree begins with it.
    pub(super) async fn resolve_pending(&self) -> Result<()> {
        self.remember_root().await?;
        if !self.working.upper().is_undecided() && !self.working.upper().may_land() {
            return Ok(());
        }
        let decided = {
            let guard = self.working.upper().quiesce().await;
            self.resolve_with(&guard).await.context(|| "finding out whether the last commit was published")?
        };
        self.invalidate(decided.map(|(_, invalidations)| invalidations).unwrap_or_default()).await
    }

    async fn resolve_with(&self, guard: &TreeGuard<'_>) -> Result<Option<(ObjectId, Vec<Invalidation>)>> {
        let repository = self.repository().await?;
        let finished = match self.working.upper().publishing() {
            Some(id) => finish(&repository, &self.working, &self.reader, guard, id).await?.map(|done| (id, done)),
            None => None,
        };
        let Some((id, invalidations)) = finished else {
            self.working.upper().set_may_land();
            return Ok(None);
        };
        self.close_commit(guard);
        Ok(Some((id, invalidations)))
    }

    /// Waits for files to be closed. The kernel reports a close only after `close` has returned: a
    /// program that closes a file and then commits must not be refused because of that file.
    pub(super) async fn wait_for_closes(&self) {
        let deadline = tokio::time::Instant::now() + CLOSE_TIMEOUT;
        while self.working.handles().any_open_for_writing() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Refuses files that are mapped for writing. A mapping of a passthrough file outlives the
    /// handle, and the kernel does not report its end; bytes written through it after the commit
    /// would be lost, or change the object that the file was linked to.
    async fn refuse_mapped(&self, mut detected: DetectedChanges) -> Result<DetectedChanges> {
        if !self.working.handles().was_passthrough_used() {
            return Ok(detected);
        }
        // The kernel's passthrough handles are open for writing, whatever programs do with them.
        // Their files are not linked.
        let backed = self.working.handles().passthrough_data();
        let look = move || {
            let mut mapped = Vec::new();
            for change in detected.changes.chunk_changes_mut() {
                let ChunkChange::File(file) = change else { continue };
                let Some(number) = DataFileId::from_file_name(&file.name).filter(|number| !backed.contains(number))
                else {
                    continue;
                };
                match Files::writer_state(&file.open()?) {
                    WriterState::AtRest => {}
                    WriterState::Written => mapped.push((number, file.clone())),
                    WriterState::Unknown => file.can_link = false,
                }
            }
            // The kernel drops its reference to a file shortly after the close.
            let deadline = std::time::Instant::now() + CLOSE_TIMEOUT;
            while !mapped.is_empty() && std::time::Instant::now() < deadline {
                std::thread::sleep(POLL_INTERVAL);
                mapped.retain(|(_, file)| {
                    file.open().is_ok_and(|file| Files::writer_state(&file) == WriterState::Written)
                });
            }
            Ok((detected, mapped))
        };
        let (detected, mapped) = blocking(look).await?;
        if mapped.is_empty() {
            return Ok(detected);
        }
        let numbers = mapped.iter().map(|(number, _)| *number).collect();
        Err(busy("mapped", &self.working.upper().paths_of_data(&numbers)))
    }

    /// Prevents linking of data files with passthrough, which must stay the working tree's: they
    /// are copied into the repository.
    fn spare_open_files(&self, detected: &mut DetectedChanges) {
        let backed = self.working.handles().passthrough_data();
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
}

/// Progress of a commit that ends, whatever its outcome, with this.
struct Ended(Arc<CommitProgress>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.enter(Stage::Done);
    }
}

fn not_shown() -> &'static str {
    "the commit is published, but the mount cannot show it yet; commit again to retry"
}

pub(super) fn refuse_open(frozen: &Frozen) -> Result<()> {
    match frozen.open_for_writing.as_slice() {
        [] => Ok(()),
        open => Err(busy("open", open)),
    }
}

fn busy(how: &str, paths: &[String]) -> Error {
    let paths = listed(paths);
    Error::new(
        ErrorKind::Busy,
        format!("{how} for writing: {paths}. Close them, or try again when their program has ended"),
    )
}

fn refuse_violations(detected: &DetectedChanges) -> Result<()> {
    if detected.violations.is_empty() {
        return Ok(());
    }
    let violations: Vec<String> =
        detected.violations.iter().map(|violation| format!("{}: {}", violation.path, violation.why)).collect();
    let has_flush_failed = detected.violations.iter().any(|violation| violation.why == FLUSH_FAILED);
    let kind = if has_flush_failed { ErrorKind::Io } else { ErrorKind::InvalidInput };
    Err(Error::new(kind, format!("not committed; {}", listed(&violations))))
}

/// Refuses a change set with warnings.
fn refuse_warnings(ungrouped: &[String], warnings: &[Warning]) -> Result<()> {
    let no_group = ungrouped.iter().map(|path| format!("{path}: it is in a directory without zarr.json"));
    let all: Vec<String> = no_group.chain(warnings.iter().map(Warning::to_string)).collect();
    if all.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(format!("not committed, because warnings are refused (--strict); {}", listed(&all))))
}

fn listed(items: &[String]) -> String {
    let mut text = items.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
    if items.len() > LISTED {
        text += &format!("; and {} more", items.len() - LISTED);
    }
    text
}
