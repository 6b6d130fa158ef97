//! Merges a branch, tag or snapshot into a branch: what it changed since the common ancestor
//! becomes one commit there.
//!
//! Both sides are compared with the common ancestor ([`ancestor`], [`base`]), snapshot by snapshot
//! ([`crate::compare::changes`]), and with each other ([`sides`], [`crate::commit::three_way`]):
//! the conflicts are those of a commit in a mount. Chunks are referred to, not copied. The commit
//! goes through the engine, so that it is atomic, and commits that other writers make meanwhile are
//! taken into account; where those conflict, or bring commits of the source
//! ([`crate::commit::merge_record`]), the merge is planned again on the new tip.
//!
//! [`commit_by_commit`] keeps the commits of the source instead. [`revert`] takes commits back.

mod ancestor;
mod authors;
mod base;
mod claims;
mod commit_by_commit;
mod doubt;
mod obstacles;
mod repacked;
pub mod revert;
mod sameness;
mod sides;
pub mod ways_out;

use std::sync::Arc;

use serde_json::{Map, Value};
use tracing::info;

use self::ancestor::History;
use self::sides::Applied;
use crate::commit::changes::ChangeSet;
use crate::commit::conflict::Conflict;
use crate::commit::engine::{CommitOutcome, Engine, OnConflict, Request};
use crate::commit::merge_record::MergeCommit;
use crate::commit::progress::CommitProgress;
use crate::commit::request::KnownObjects;
use crate::reader::Reader;
use crate::repo::refs::RefSpec;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_base::stages::Stages;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Number of plans after which a merge gives up: as often, another writer changed the same things
/// during a commit.
const MAX_PLANS: usize = 20;

/// Description of a merge.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// Snapshot that is merged.
    pub source: ObjectId,
    /// Name of the source, for the commit's metadata.
    pub source_name: String,
    /// Branch that gets the commit.
    pub into: String,
    /// True if each commit of the source becomes a commit of the branch, false if all become one.
    pub keep_commits: bool,
    /// Message of the one commit.
    pub message: String,
    /// Further metadata of the commits.
    pub metadata: Map<String, Value>,
    /// Treatment of chunks and members of documents that both sides changed; [`OnConflict::Ours`]
    /// takes those of the source.
    pub on_conflict: OnConflict,
    /// Common ancestor to compare with, whatever is known of others.
    pub ancestor: Option<ObjectId>,
}

/// Result of comparing both sides.
#[derive(Debug)]
pub struct Plan {
    /// Common ancestor, or the newest of several.
    pub base: ObjectId,
    /// Tip of the branch.
    pub tip: Arc<Snapshot>,
    /// Description of the tip, which conflicts name.
    pub tip_commit: SnapshotInfo,
    /// Commits of the source that the branch does not have, newest first.
    pub commits: Vec<SnapshotInfo>,
    /// Changes that the merge makes in the branch.
    pub changes: Metered<ChangeSet>,
    /// Conflicts that prevent the merge.
    pub conflicts: Vec<Conflict>,
}

/// Outcome of a merge.
#[derive(Debug)]
pub struct Merged {
    /// New snapshot; none if the branch had all commits already, or if conflicts were found.
    pub snapshot: Option<ObjectId>,
    /// All snapshots that were made, oldest first.
    pub made: Vec<ObjectId>,
    /// Plan that was carried out.
    pub plan: Plan,
    /// Commit of the source whose conflicts the plan has, if they are those of one commit.
    pub refused: Option<ObjectId>,
}

impl Merged {
    /// Returns the result of a merge by `plan` that changed nothing.
    pub fn nothing(plan: Plan) -> Self {
        Merged { snapshot: None, made: Vec::new(), plan, refused: None }
    }

    fn made(made: Vec<ObjectId>, plan: Plan) -> Self {
        Merged { snapshot: made.last().copied(), made, plan, refused: None }
    }
}

/// Compares the source with the branch, without changing anything. Where they have several common
/// ancestors, a snapshot is stored that nothing refers to.
///
/// Fails with [`ErrorKind::NotFound`] if there is no such branch, and with
/// [`ErrorKind::InvalidInput`] if both have no common ancestor.
pub async fn plan(
    repository: &Repository,
    reader: &Arc<Reader>,
    engine: &Engine,
    options: &MergeOptions,
) -> Result<Plan> {
    plan_on(repository, reader, engine, options).await.map(|(plan, _)| plan)
}

/// Plans the merge, and returns also the history of both sides.
async fn plan_on(
    repository: &Repository,
    reader: &Arc<Reader>,
    engine: &Engine,
    options: &MergeOptions,
) -> Result<(Plan, History)> {
    let stages = Stages::begin("finding the common ancestor");
    let into = repository.resolve(&RefSpec::Branch(options.into.clone())).await?;
    let mut history = History::read(repository, [options.source, into]).await?;
    let parts = base::Parts { repository, reader, engine };
    let base::CommonAncestor { base, others } = base::find(parts, &mut history, options, into).await?;
    base::reject_false_additions(parts, &mut history, options.source, into).await?;
    let load = |id| repository.snapshot(id, MAX_SNAPSHOT);
    let (source, tip) = tokio::try_join!(load(options.source), load(into))?;
    base::check(options, &base, &source, &tip)?;
    base::check_disputed(reader, options, &base, &source, &tip).await?;
    stages.enter("comparing both sides");
    let before = &base.snapshot;
    let known = history.ancestors(into);
    let commits = history.beyond(options.source, &known);
    let commits: Vec<SnapshotInfo> = commits.into_iter().filter_map(|id| history.get(id).cloned()).collect();
    let tip_commit = history.get(into).cloned();
    let tip_commit = tip_commit.ok_or_else(|| Error::corrupt(format!("{into} is not in its own history")))?;
    let Applied { changes, mut conflicts, .. } =
        sides::apply(reader, before, &source, &tip, &tip_commit, options.on_conflict).await?;
    if !conflicts.is_empty() {
        let below = history.ancestors(base.id);
        let line = history.first_parents(into).map(|commit| commit.id).take_while(|id| !below.contains(id));
        authors::name_commits(repository, line, [&tip, before], &mut conflicts).await;
    }
    if conflicts.is_empty() && options.ancestor.is_none() {
        let around = base::Surroundings { repository, reader, engine, history: &history };
        let sides = base::Sides { source: &source, tip: &tip, tip_commit: &tip_commit };
        base::check_others(around, options, &base, others, sides, &changes).await?;
    }
    Ok((Plan { base: base.id, tip: Arc::new(tip), tip_commit, commits, changes, conflicts }, history))
}

/// Returns true if the branch of `source`, which was merged into branch `into` with the result
/// `merged`, is not needed any more: both were compared where their lines of parents parted, or
/// `into` has all that `source` changed since. Records are no proof of it, as a commit of another
/// person may claim to have merged what it never had.
pub async fn is_safe_to_delete(
    repository: &Repository,
    reader: &Arc<Reader>,
    engine: &Engine,
    merged: &Merged,
    source: ObjectId,
    into: &str,
) -> Result<bool> {
    let into = repository.resolve(&RefSpec::Branch(into.to_owned())).await?;
    let history = History::read(repository, [source, into]).await?;
    let around = base::Surroundings { repository, reader, engine, history: &history };
    let compared_with = merged.snapshot.map(|_| merged.plan.base);
    claims::has_content(around, into, source, compared_with).await
}

/// Merges the source into the branch.
///
/// Nothing is changed if there are conflicts, which [`Merged::plan`] lists, or nothing to merge.
/// Errors: as for [`plan`] and [`Engine::commit`]; [`ErrorKind::InvalidInput`] if commits are to be
/// kept that do not lead back to one of the branch.
pub async fn merge(
    mut repository: Repository,
    reader: &Arc<Reader>,
    engine: &Engine,
    options: &MergeOptions,
) -> Result<Merged> {
    for _ in 0..MAX_PLANS {
        let (plan, history) = plan_on(&repository, reader, engine, options).await?;
        if !plan.conflicts.is_empty() || plan.commits.is_empty() {
            return Ok(Merged::nothing(plan));
        }
        // Without changes there is a commit, too: it records how conflicts were resolved, and what
        // later changes of either side begin at.
        let merged = if options.keep_commits && !plan.changes.is_empty() {
            commit_by_commit::carry_out(plan, &history, &repository, reader, engine, options).await?
        } else {
            carry_out(plan, &history, &repository, engine, options).await?
        };
        if let Some(merged) = merged {
            return Ok(merged);
        }
        info!("branch {} was changed during the merge, which is planned again", options.into);
        repository = Repository::open(Arc::clone(repository.storage())).await?;
    }
    Err(contended(&options.into))
}

/// Makes the changes of `plan` one commit. Returns none if other commits came first that conflict
/// with it.
async fn carry_out(
    plan: Plan,
    history: &History,
    repository: &Repository,
    engine: &Engine,
    options: &MergeOptions,
) -> Result<Option<Merged>> {
    let merge = history.merge(&options.source_name, options.source, &history.ancestors(plan.tip.id()));
    let known_objects = KnownObjects::of(repository, options.source, &plan.changes).await?;
    let request = Request { known_objects, ..request(options, &options.message, Map::new(), merge) };
    Ok(match engine.commit(&plan.tip, &plan.changes, &request, &CommitProgress::default()).await? {
        CommitOutcome::Committed { snapshot, .. } => Some(Merged::made(vec![snapshot], plan)),
        CommitOutcome::Nothing => Some(Merged::nothing(plan)),
        CommitOutcome::Conflicts(_) => None,
    })
}

/// Describes a commit with a message and `metadata` that makes `merge`.
fn request(options: &MergeOptions, message: &str, mut metadata: Map<String, Value>, merge: MergeCommit) -> Request {
    metadata.extend(options.metadata.clone());
    let merge = Some(merge);
    // Conflicts were resolved by the plan.
    let branch = options.into.clone();
    let message = message.to_owned();
    Request { branch, message, metadata, merge, records: true, ..Request::default() }
}

fn contended(into: &str) -> Error {
    Error::new(
        ErrorKind::Contended,
        format!(
            "commits to branch `{into}` came first during {MAX_PLANS} attempts to merge: nothing was changed; merge again"
        ),
    )
}
