//! The attempts of a commit: each makes a snapshot on top of the branch tip and publishes it, until
//! one wins its race.
//!
//! Chunks and manifests are stored once; a lost race costs `repo`, the logs and the snapshot that
//! are new, and a snapshot and a log of one's own. After two losses a writer lines up ([`queue`]).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracing::info;

use super::changes::ChangeSet;
use super::conflict::Conflict;
use super::conflicts::ChunkSet;
use super::documents::take_merged;
use super::engine::{Engine, RESERVED, WrittenCommit};
use super::gc_guard;
use super::hierarchy::{Extent, write_nodes};
use super::late_commit;
use super::log;
use super::manifests::ManifestWriter;
use super::merge_record::MERGE_RECORD;
use super::moves;
use super::nodes;
use super::progress::{CommitProgress, Stage};
use super::publish::{self, Publication, Published, SnapshotFiles, Start, StoredSnapshot};
use super::queue::{self, PlaceInLine};
use super::rebase::{self, ReadAhead};
use super::replace_moves::without_moves;
use super::replace_record::{Records, records_of_replacement};
use super::request::{CommitOutcome, Request, Sizes};
use super::times::RenewedTimes;
use super::upload::{self, StoredChunks};
use crate::repo::clock::ChangeTime;
use crate::repo::collect::mark::LogPosition;
use crate::repo::update::RepoFile;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::draft::{SnapshotDraft, TransactionLogDraft};
use icechunkfs_format::format::envelope::{Compression, SpecVersion};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::repo_state::RawItem;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Longest pause after a lost race where writers cannot line up.
const MAX_PAUSE: Duration = Duration::from_millis(128);
/// Lost races after which a writer lines up. The first loss is usual where two writers work beside
/// each other.
const LOSSES_BEFORE_LINE: u32 = 2;
/// Attempts to replace `repo` with one snapshot before the writer counts a loss: the second one is
/// for writers of other branches.
const PUBLISH_TRIES: u32 = 2;

/// State of a commit from attempt to attempt.
pub(super) struct CommitWork<'a> {
    pub(super) request: &'a Request,
    pub(super) progress: &'a CommitProgress,
    pub(super) version: SpecVersion,
    pub(super) compression: Compression,
    /// Snapshot that `changes` are relative to.
    pub(super) base: Arc<Snapshot>,
    pub(super) changes: ChangeSet,
    /// New ids of moved nodes that cannot be stored as moves.
    pub(super) new_ids: BTreeMap<NodeId, NodeId>,
    pub(super) chunks: StoredChunks,
    pub(super) manifests: ManifestWriter,
    /// Splitting rules for rewriting all manifests, if requested.
    pub(super) rewrite: Option<Value>,
    pub(super) rebased_over: Vec<ObjectId>,
    /// GC mark from before any of the objects was stored; none in version 1.
    pub(super) stored_since: Option<LogPosition>,
    /// Chunk objects that the caller guarantees to exist.
    pub(super) known_objects: HashSet<ObjectId>,
    /// True if the chunks must be stored: at first, after a garbage collection, and after a rebase
    /// onto a late commit.
    pub(super) must_store: bool,
    /// True if a late commit ([`super::late_commit`]) is at or below the base.
    pub(super) has_landed: bool,
    /// Snapshot that lost its race to a change of something else than the branch: it can still be
    /// published.
    pub(super) stored: Option<Prepared>,
}

/// Stored snapshot that follows `parent`.
pub(super) struct Prepared {
    pub(super) parent: ObjectId,
    pub(super) id: ObjectId,
    pub(super) has_moves: bool,
    pub(super) snapshot: StoredSnapshot,
}

impl Engine {
    /// Attempts to commit until an attempt wins its race. Lines up with other writers after losses,
    /// and before the first attempt if others wait already (`must_line_up`).
    pub(super) async fn attempts(
        &self,
        work: &mut CommitWork<'_>,
        mut repository: Repository,
        config: &RepoConfig,
        renewed: &RenewedTimes,
        mut must_line_up: bool,
        line: &mut Option<PlaceInLine>,
    ) -> Result<CommitOutcome> {
        let mut losses = 0;
        let mut attempt = 0;
        let mut can_line_up = true;
        let mut conflicts = self.rebase_onto_tip(work, &repository).await?;
        while attempt <= self.options.max_rebases {
            if !conflicts.is_empty() {
                return Ok(CommitOutcome::Conflicts(conflicts));
            }
            work.progress.check()?;
            self.renew_ids(work, &repository).await?;
            if work.must_store {
                self.store_chunks(work, &repository, self.options.sizes(config), renewed).await?;
            }
            if work.changes.is_empty() && !work.request.may_be_empty() {
                return Ok(CommitOutcome::Nothing);
            }
            repository = if std::mem::take(&mut must_line_up) {
                let repository = self.line_up(work, repository, line).await?;
                can_line_up = line.is_some();
                must_line_up = line.as_ref().is_some_and(|line| !line.is_turn());
                repository
            } else {
                attempt += 1;
                match self.attempt(work, attempt - 1, &repository).await? {
                    (snapshot, Published::Done(_)) => {
                        let rebased_over = std::mem::take(&mut work.rebased_over);
                        let mut kept = ChunkSet::new();
                        if work.request.settlements.may_give_way() && !rebased_over.is_empty() {
                            let chunks = std::mem::take(&mut work.changes.chunks).into_iter();
                            kept.extend(chunks.map(|(id, chunks)| (id, chunks.into_keys().collect())));
                        }
                        return Ok(CommitOutcome::Committed { snapshot, rebased_over, kept });
                    }
                    (_, Published::Lost(current)) => {
                        losses += 1;
                        let repository = match current {
                            Some(current) => Repository::of_file(Arc::clone(&self.storage), current),
                            None => self.open(&work.request.branch).await?,
                        };
                        must_line_up = losses >= LOSSES_BEFORE_LINE;
                        repository
                    }
                    (_, Published::Collected) => {
                        info!("garbage was collected during the commit: storing its objects again");
                        let repository = self.open(&work.request.branch).await?;
                        work.stored_since = repository.log_position();
                        work.known_objects.clear();
                        work.must_store = true;
                        work.manifests.forget();
                        repository
                    }
                }
            };
            let (is_line_used, rebased) = tokio::join!(
                self.is_line_used(losses > 0 && line.is_none() && can_line_up),
                self.rebase_onto_tip(work, &repository)
            );
            must_line_up |= is_line_used;
            conflicts = rebased?;
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!(
                "concurrent commits to branch `{}` came first {} times: commit again",
                work.request.branch, self.options.max_rebases
            ),
        ))
    }

    /// Returns true if writers wait in a line, unless the caller need not know.
    pub(super) async fn is_line_used(&self, must_look: bool) -> bool {
        must_look && queue::is_in_use(&*self.storage, self.clock).await
    }

    /// Waits for this writer's turn, and returns the repository as it is then; or as it is before,
    /// so that the changes are rebased while the writer waits.
    async fn line_up(
        &self,
        work: &CommitWork<'_>,
        repository: Repository,
        line: &mut Option<PlaceInLine>,
    ) -> Result<Repository> {
        work.progress.enter(Stage::Queue);
        if line.is_none() {
            *line = PlaceInLine::take(&*self.storage, self.clock).await;
        }
        match line {
            Some(line) => line.wait(&self.storage, repository, &work.request.branch, work.progress).await,
            None => {
                pause().await?;
                self.open(&work.request.branch).await
            }
        }
    }

    /// Rebases the changes onto the branch tip, or returns the conflicts.
    async fn rebase_onto_tip(&self, work: &mut CommitWork<'_>, repository: &Repository) -> Result<Vec<Conflict>> {
        let branch = &work.request.branch;
        let (commits, mut ahead) = match rebase::commits_to_compare(repository, branch, work.base.id()).await {
            // A rewrite has no changes of the user that would have to be kept.
            Err(error) if error.kind() == ErrorKind::Stale && work.rewrite.is_some() => {
                return Err(Error::new(
                    ErrorKind::Stale,
                    format!("the history of branch `{branch}` changed concurrently: nothing was done; try again"),
                ));
            }
            commits => commits?,
        };
        let Some(tip) = commits.last().map(|commit| commit.id) else { return Ok(Vec::new()) };
        if let Some(merge) = &work.request.merge
            && let Some(conflict) = merge.conflict_with(&commits)?
        {
            return Ok(vec![conflict]);
        }
        if work.request.amend {
            return Err(Error::new(
                ErrorKind::Stale,
                format!(
                    "branch `{branch}` has a newer commit ({tip}) than the one to amend: refresh, then amend that one"
                ),
            ));
        }
        work.progress.enter(Stage::Rebase);
        // A commit with pruned logs stands for expired commits too, not only for the late commit.
        let is_ours = |commit: &SnapshotInfo| {
            work.request.unconfirmed.contains(&commit.id) && commit.pruned_ancestor_tx_logs.is_empty()
        };
        let mut rest = commits.as_slice();
        loop {
            let (before, after) = rest.split_at(rest.iter().position(is_ours).unwrap_or(rest.len()));
            let conflicts = self.rebase(work, repository, before, &mut ahead).await?;
            if !conflicts.is_empty() {
                return Ok(conflicts);
            }
            let [landed, after @ ..] = after else { break };
            self.rebase_onto_landed(work, repository, landed.id).await?;
            rest = after;
        }
        match &work.request.host {
            Some(host) => host.conflicts_with(&work.base, work.has_landed).await,
            None => Ok(Vec::new()),
        }
    }

    /// Rebases the changes onto `landed`, a late commit of an earlier state of the changes, which
    /// follows the base.
    async fn rebase_onto_landed(
        &self,
        work: &mut CommitWork<'_>,
        repository: &Repository,
        landed: ObjectId,
    ) -> Result<()> {
        info!("commit {landed}, which seemed to have failed, is on the branch: this commit follows it");
        let after = Arc::new(repository.snapshot(landed, MAX_SNAPSHOT).await?);
        let log = rebase::read_log(&**repository.storage(), landed).await?;
        work.changes = late_commit::rebase(&work.changes, &work.base, &after, &log, &self.reader).await?;
        work.base = after;
        (work.must_store, work.has_landed) = (true, true);
        Ok(())
    }

    /// Rebases the changes over the concurrent `commits`, oldest first, or returns the conflicts.
    async fn rebase(
        &self,
        work: &mut CommitWork<'_>,
        repository: &Repository,
        commits: &[SnapshotInfo],
        ahead: &mut ReadAhead,
    ) -> Result<Vec<Conflict>> {
        let settlements = &work.request.settlements;
        let found =
            rebase::compare(repository, &self.reader, &work.base, commits, ahead, &work.changes, settlements).await?;
        let Some(found) = found else { return Ok(Vec::new()) };
        rebase::drop_chunks(&mut work.changes, &mut work.chunks, &found.same_in_tip);
        take_merged(&mut work.changes, found.merged, &found.tip);
        if work.rewrite.is_some() {
            // A rewrite leaves arrays and chunks with concurrent changes alone: it would only have
            // moved their bytes.
            rebase::drop_conflicting(&work.base, &mut work.changes, &mut work.chunks, &found.conflicts);
        } else if !found.conflicts.is_empty() {
            return Ok(found.conflicts);
        }
        rebase::drop_chunks(&mut work.changes, &mut work.chunks, &found.giving_way);
        work.base = found.tip;
        work.rebased_over.extend(found.commits);
        // A node that a concurrent commit deleted too needs no deletion.
        let present = work.base.node_ids();
        work.changes.deleted.retain(|node| present.contains(&node.id));
        Ok(Vec::new())
    }

    /// Assigns new ids to moved nodes that are stored as new ones: all in version 1, else those
    /// whose move the log may not contain.
    pub(super) async fn renew_ids(&self, work: &mut CommitWork<'_>, repository: &Repository) -> Result<()> {
        if work.changes.moved.is_empty() {
            return Ok(());
        }
        let moved: BTreeSet<NodeId> = work.changes.moved.iter().map(|one| one.node).collect();
        let replaced = match work.version {
            SpecVersion::V1 => moved,
            SpecVersion::V2 => {
                let groups = moves::groups_after(&work.base, &work.changes);
                // The log of an amend is relative to the parent of the replaced commit.
                let (all, occupied) = match self.parent_of_replaced(work, repository).await? {
                    None => (work.changes.moved.clone(), moves::paths(&work.base)),
                    Some(parent) => {
                        let previous = rebase::read_log(&*self.storage, work.base.id()).await?;
                        let moves = previous.moves()?.into_iter().chain(work.changes.moved.iter().cloned());
                        (log::merge_moves(moves), moves::paths(&parent))
                    }
                };
                let not_allowed = moves::not_allowed(&all, &occupied, &groups);
                not_allowed.into_iter().filter(|node| moved.contains(node)).collect()
            }
        };
        // Most moves keep their ids, and those of all nodes are many.
        let mut taken = HashSet::new();
        if !replaced.is_empty() {
            taken = work.base.node_ids();
            taken.extend(work.changes.created.iter().map(|node| node.id));
        }
        moves::renew(&mut work.new_ids, replaced, &taken)
    }

    /// Returns the parent of the commit that is amended; none without an amend.
    async fn parent_of_replaced(&self, work: &CommitWork<'_>, repository: &Repository) -> Result<Option<Snapshot>> {
        if !work.request.amend {
            return Ok(None);
        }
        match repository.ancestors(work.base.id(), 2).await?.get(1) {
            Some(parent) => repository.snapshot(parent.id, MAX_SNAPSHOT).await.map(Some),
            None => Ok(None),
        }
    }

    /// Stores the chunks of the changes, and protects those that are stored already from garbage
    /// collection. A change set that cannot be committed because of its nodes is refused before
    /// anything is stored.
    pub(super) async fn store_chunks(
        &self,
        work: &mut CommitWork<'_>,
        repository: &Repository,
        sizes: Sizes,
        renewed: &RenewedTimes,
    ) -> Result<()> {
        if work.changes.node_count() > 0 {
            let storable = without_moves(&work.base, &work.changes, &work.chunks, &work.new_ids)?;
            nodes::apply(&work.base, &storable.changes, &storable.sources, work.version)?;
        }
        failpoints::pass("commit.chunks")?;
        work.progress.enter(Stage::Chunks);
        let now = (self.clock)();
        let base = Arc::clone(&work.base);
        gc_guard::guard(repository, &base, &mut work.changes, &work.known_objects, now, &self.memory).await?;
        work.chunks = upload::upload(&self.storage, &work.changes, sizes, &self.memory, renewed, work.progress).await?;
        work.must_store = false;
        failpoints::pass("commit.chunks.done")
    }

    /// Writes manifests, log and snapshot on top of the current base, and publishes the snapshot,
    /// whose id is returned. `repository` is in the state in which the base is the branch's tip.
    async fn attempt(
        &self,
        work: &mut CommitWork<'_>,
        attempt: u32,
        repository: &Repository,
    ) -> Result<(ObjectId, Published)> {
        let mut current = repository.repo_file();
        let parent = work.base.id();
        let prepared = match work.stored.take().filter(|stored| stored.parent == parent) {
            Some(prepared) => prepared,
            None => {
                work.progress.check()?;
                let replaced = if work.request.amend { Some(repository.commit(parent).await?) } else { None };
                self.prepare(work, attempt, replaced.as_ref(), current.as_mut()).await?
            }
        };
        work.progress.begin_publication()?;
        work.progress.enter(Stage::Publish);
        let id = prepared.id;
        if let Some(host) = work.request.host.clone() {
            blocking(move || host.on_publish(id)).await.inspect_err(|_| work.progress.refuse())?;
        }
        failpoints::pass("commit.publish")?;
        let Request { branch, amend, .. } = work.request;
        let replaced = [parent];
        let publication = Publication {
            branch,
            tip: parent,
            replaces: if *amend { replaced.as_slice() } else { &[] },
            has_moves: prepared.has_moves,
            new: id,
            stored_since: work.stored_since,
            record: prepared.snapshot.record.clone(),
        };
        let published = match work.version {
            SpecVersion::V1 => publish::v1(&self.storage, &publication, repository.branch_file()).await?,
            SpecVersion::V2 => {
                let start = Start { known: current, tries: PUBLISH_TRIES };
                publish::v2(&self.storage, self.clock, &publication, start).await?
            }
        };
        match &published {
            Published::Done(repo) => {
                // The commit is published, whatever happens from here on.
                let _ = failpoints::pass("commit.publish.done");
                let branch = branch.clone();
                let repo = repo.clone();
                let is_known = repo.is_some() || work.version == SpecVersion::V1;
                let snapshot = prepared.snapshot.snapshot;
                let written = || WrittenCommit { id, branch, repo, snapshot };
                *self.written.lock() = is_known.then(written);
            }
            Published::Lost(_) => {
                work.progress.end_lost_publication();
                work.stored = Some(prepared);
            }
            Published::Collected => work.progress.end_lost_publication(),
        }
        Ok((id, published))
    }

    /// Writes manifests, log and snapshot on top of the current base. An amend needs the
    /// description of the commit that it replaces.
    pub(super) async fn prepare(
        &self,
        work: &mut CommitWork<'_>,
        attempt: u32,
        replaced: Option<&SnapshotInfo>,
        current: Option<&mut RepoFile>,
    ) -> Result<Prepared> {
        let id = ObjectId::random()?;
        let parent = work.base.id();
        work.progress.enter(Stage::Manifests);
        let mut draft = SnapshotDraft {
            id,
            flushed_at: 0,
            version: work.version,
            parent: Some(parent),
            message: work.request.message.clone(),
            metadata: metadata(work, attempt, id, replaced)?,
            nodes: Vec::new(),
            manifests: Vec::new(),
            extra: None,
        };
        failpoints::pass("commit.manifests")?;
        let stored = without_moves(&work.base, &work.changes, &work.chunks, &work.new_ids)?;
        let extent = match work.rewrite {
            Some(_) => Extent::All,
            // Not while others commit: they may gather the same, and it takes time.
            None if attempt == 0 => Extent::Gathered,
            None => Extent::Changed,
        };
        let kept = write_nodes(&work.base, &stored, &mut work.manifests, extent, &mut draft).await?;
        failpoints::pass("commit.manifests.done")?;

        work.progress.check()?;
        work.progress.enter(Stage::Snapshot);
        let moment = ChangeTime::after(self.clock, work.base.flushed_at()).await;
        draft.flushed_at = moment.time;
        // A rewrite moves bytes without changing them, so its log is empty.
        let mut log = match work.rewrite {
            Some(_) => TransactionLogDraft::default(),
            None => log::of(&stored.changes, &stored.chunks),
        };
        drop(stored);
        if work.request.amend {
            if parent == ObjectId::INITIAL {
                return Err(publish::no_amend_of_the_first());
            }
            log = log::amended(&rebase::read_log(&*self.storage, parent).await?, log)?;
        }
        let has_moves = !log.moves.is_empty();
        let snapshot = publish::store_snapshot(
            &*self.storage,
            moment,
            self.clock,
            SnapshotFiles { log, draft, kept },
            work.compression,
            current,
        )
        .await?;
        Ok(Prepared { parent, id, has_moves, snapshot })
    }
}

/// Returns the metadata as the commit's files store it, sorted by name. Like in the reference
/// implementation, every commit except an amend notes the number of its rebase attempts.
fn metadata(
    work: &CommitWork<'_>,
    attempt: u32,
    id: ObjectId,
    replaced: Option<&SnapshotInfo>,
) -> Result<Vec<RawItem>> {
    let request = work.request;
    let version = work.version;
    let mut all = request.metadata.clone();
    if let Some(merge) = &request.merge {
        all.insert(MERGE_RECORD.to_owned(), merge.record.to_value(id));
    }
    if let Some(replaced) = replaced {
        all.extend(records_of_replacement(id, &[Records::of(replaced)?]));
    }
    if let Some(rules) = &work.rewrite {
        all.insert(RESERVED.to_owned(), serde_json::json!({ "splitting_config": rules }));
    } else if !request.amend {
        all.insert(RESERVED.to_owned(), serde_json::json!({ "rebase_attempts": attempt }));
    }
    let item = |(name, value): (&String, &Value)| RawItem::new(version, name, value);
    all.iter().map(item).collect::<Result<_>>().context(|| "metadata of the commit")
}

/// Waits for a random time, so that racing writers do not meet again.
async fn pause() -> Result<()> {
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::io("random bytes", e.into()))?;
    tokio::time::sleep(MAX_PAUSE * (u32::from_le_bytes(random) % 1024) / 1024).await;
    Ok(())
}
