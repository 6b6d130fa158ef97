//! Takes commits back: what they changed becomes as it was before them, and everything else that
//! the branch has stays.
//!
//! That is a merge whose sides parted at the newest of the commits: one side leads back to the
//! commit before the oldest, the other one to the tip. Chunks are referred to, not copied.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use serde_json::{Map, Value};
use tracing::info;

use super::authors;
use super::obstacles::obstacles;
use super::sides::{self, Applied};
use super::ways_out::{NodeThen, nodes_of};
use super::{MAX_PLANS, contended};
use crate::commit::changes::ChangeSet;
use crate::commit::conflict::Conflict;
use crate::commit::conflicts::are_logged;
use crate::commit::engine::{CommitOutcome, Engine, OnConflict, Request};
use crate::commit::progress::CommitProgress;
use crate::commit::rebase::read_log;
use crate::commit::request::KnownObjects;
use crate::reader::Reader;
use crate::repo::refs::RefSpec;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Most commits that are told to be taken back before others.
const MAX_OBSTACLES: usize = 12;

/// Description of a revert without a mount.
#[derive(Clone, Debug)]
pub struct RevertOptions {
    /// Commits to take back, in any order. They follow one another on the branch.
    pub commits: Vec<ObjectId>,
    /// Branch that gets the commit.
    pub branch: String,
    /// Commit message; none for one that names what is taken back.
    pub message: Option<String>,
    /// Metadata of the commit.
    pub metadata: Map<String, Value>,
    /// Treatment of chunks that were changed again since; [`OnConflict::Ours`] takes those from
    /// before the commits.
    pub on_conflict: OnConflict,
}

/// Changes that take commits back.
#[derive(Debug)]
pub struct RevertPlan {
    /// Commits that are taken back, newest first.
    pub reverted: Vec<SnapshotInfo>,
    /// Snapshot before the oldest of them, which has all chunks that the changes refer to.
    pub before: ObjectId,
    /// Changes relative to the snapshot that the plan was made for.
    pub changes: Metered<ChangeSet>,
    /// Later changes of the same things, which prevent it.
    pub conflicts: Vec<Conflict>,
    /// Later commits that made them, and those that keep these from being taken back, newest first:
    /// once they are taken back in this order, nothing of the conflicts is left. Empty where that
    /// could not be found out.
    pub obstacles: Vec<SnapshotInfo>,
    /// True if there are conflicts, and changes of the commits that no later commit made again.
    pub has_rest: bool,
    /// Nodes of the conflicts, by the paths of these.
    pub nodes: HashMap<String, NodeThen>,
}

impl RevertPlan {
    /// Returns the message of a commit that makes the changes.
    pub fn message(&self) -> String {
        let ids: Vec<String> = self.reverted.iter().map(|commit| commit.id.to_string()).collect();
        match self.reverted.as_slice() {
            [commit] => format!("Revert \"{}\"\n\nThis takes back commit {}.", commit.title(), commit.id),
            commits => format!("Revert {} commits\n\nThis takes back commits {}.", commits.len(), ids.join(", ")),
        }
    }
}

/// Plans to take back `commits`, ancestors of snapshot `now` or itself, with changes to that
/// snapshot.
///
/// The changes are only to what the commits' transaction logs list: an expiration gives a commit
/// another parent, and what the commits between changed must not be taken back with it.
///
/// Errors: [`InvalidInput`](icechunkfs_base::error::ErrorKind::InvalidInput) if a commit is not in
/// the history of `now`, if they do not follow one another, or if nothing is before them, or
/// something else than they were made for.
pub async fn plan_on(
    repository: &Repository,
    reader: &Arc<Reader>,
    now: &Snapshot,
    commits: &[ObjectId],
    on_conflict: OnConflict,
) -> Result<RevertPlan> {
    let mut plan = plan_alone(repository, reader, now, commits, on_conflict).await?;
    let own = std::mem::take(&mut plan.obstacles);
    // The conflicts are told without them, too.
    let found = with_their_own(repository, reader, now, own).await;
    plan.obstacles =
        found.inspect_err(|error| info!("the later commits of a revert are not known: {error}")).unwrap_or_default();
    Ok(plan)
}

/// Returns the commits `obstacles` and those that stand in their own way, newest first; nothing if
/// these are too many, or not known.
async fn with_their_own(
    repository: &Repository,
    reader: &Arc<Reader>,
    now: &Snapshot,
    obstacles: Vec<SnapshotInfo>,
) -> Result<Vec<SnapshotInfo>> {
    let mut waiting: Vec<ObjectId> = obstacles.iter().map(|commit| commit.id).collect();
    let mut all: HashMap<ObjectId, SnapshotInfo> = obstacles.into_iter().map(|commit| (commit.id, commit)).collect();
    while let Some(next) = waiting.pop() {
        let plan = plan_alone(repository, reader, now, &[next], OnConflict::Fail).await?;
        if !plan.conflicts.is_empty() && plan.obstacles.is_empty() {
            return Ok(Vec::new());
        }
        for commit in plan.obstacles {
            if let Entry::Vacant(new) = all.entry(commit.id) {
                waiting.push(commit.id);
                new.insert(commit);
            }
        }
        if all.len() > MAX_OBSTACLES {
            return Ok(Vec::new());
        }
    }
    let history = repository.ancestors(now.id(), usize::MAX).await?;
    Ok(history.iter().filter_map(|commit| all.remove(&commit.id)).collect())
}

/// Makes the plan, with only those obstacles that stand in the way of `commits` themselves.
async fn plan_alone(
    repository: &Repository,
    reader: &Arc<Reader>,
    now: &Snapshot,
    commits: &[ObjectId],
    on_conflict: OnConflict,
) -> Result<RevertPlan> {
    let history = repository.ancestors(now.id(), usize::MAX).await?;
    let place =
        |commit: &ObjectId| {
            let at = history.iter().position(|info| info.id == *commit);
            at.ok_or_else(|| Error::invalid(format!(
                "commit {commit} is not in the history of {}: name the branch that has it with --branch, or mount that",
                now.id()
            )))
        };
    let mut places: Vec<usize> = commits.iter().map(place).collect::<Result<_>>()?;
    places.sort_unstable();
    places.dedup();
    let range = places.first().zip(places.last()).and_then(|(newest, oldest)| history.get(*newest..=*oldest));
    let Some(range @ ([after @ last] | [after, .., last])) = range else {
        return Err(Error::invalid("no commit is named"));
    };
    if range.len() != places.len() {
        return Err(Error::invalid(
            "there are other commits between these: take them back one after another, the newest first",
        ));
    }
    let before = last.parent.ok_or_else(|| {
        Error::invalid(format!("commit {} is the first one of its history and cannot be taken back", last.id))
    })?;
    let mut reverted = Vec::new();
    let mut logs = Vec::new();
    for commit in range {
        reverted.push(repository.commit(commit.id).await?);
        logs.push(read_log(&**repository.storage(), commit.id).await?);
    }
    let missing = || format!("what was before commit {}", last.id);
    let side = repository.snapshot(before, MAX_SNAPSHOT).await.context(missing)?;
    let common = repository.snapshot(after.id, MAX_SNAPSHOT).await?;
    let tip = repository.commit(now.id()).await?;
    let Applied { changes, mut conflicts, .. } = sides::apply(reader, &common, &side, now, &tip, on_conflict).await?;
    let has_rest = !conflicts.is_empty() && {
        let kept = sides::apply(reader, &common, &side, now, &tip, OnConflict::Theirs).await?;
        kept.conflicts.is_empty() && !kept.changes.is_empty()
    };
    let later: Vec<ObjectId> = history.iter().map(|info| info.id).take_while(|id| *id != after.id).collect();
    let obstacles = if conflicts.is_empty() {
        Vec::new()
    } else {
        let found = obstacles(repository, reader, &later, [now, &common], &conflicts).await;
        // The conflicts are told without them, too.
        found.inspect_err(|error| info!("the later commits of a revert are not known: {error}")).unwrap_or_default()
    };
    let named: Vec<ObjectId> = obstacles.iter().map(|commit| commit.id).chain(later).collect();
    authors::name_commits(repository, named.into_iter(), [now, &common], &mut conflicts).await;
    // An expiration gives a commit another parent than it was made for.
    if !are_logged(&logs, &changes)? {
        return Err(Error::invalid(format!(
            "commits before {} were removed from the history, so that what was there before is not known: `icechunkfs restore` \
             brings back paths of an older snapshot",
            last.id
        )));
    }
    let nodes = nodes_of(&conflicts, [now, &common], &side);
    Ok(RevertPlan { reverted, before, changes, conflicts, obstacles, has_rest, nodes })
}

/// Plans a revert on the tip of the branch. Returns the tip, too.
pub async fn plan_on_branch(
    repository: &Repository,
    reader: &Arc<Reader>,
    options: &RevertOptions,
) -> Result<(Arc<Snapshot>, RevertPlan)> {
    let tip = repository.resolve(&RefSpec::Branch(options.branch.clone())).await?;
    let now = Arc::new(repository.snapshot(tip, MAX_SNAPSHOT).await?);
    let plan = plan_on(repository, reader, &now, &options.commits, options.on_conflict).await?;
    Ok((now, plan))
}

/// Takes commits back with one commit on their branch. Returns the plan, and the new snapshot; none
/// if there are conflicts, or nothing is left of what they changed.
///
/// Errors: as for [`plan_on`] and [`Engine::commit`].
pub async fn revert(
    mut repository: Repository,
    reader: &Arc<Reader>,
    engine: &Engine,
    options: &RevertOptions,
) -> Result<(RevertPlan, Option<ObjectId>)> {
    for _ in 0..MAX_PLANS {
        let (now, plan) = plan_on_branch(&repository, reader, options).await?;
        if !plan.conflicts.is_empty() || plan.changes.is_empty() {
            return Ok((plan, None));
        }
        let request = Request {
            branch: options.branch.clone(),
            message: options.message.clone().unwrap_or_else(|| plan.message()),
            metadata: options.metadata.clone(),
            known_objects: KnownObjects::of(&repository, plan.before, &plan.changes).await?,
            ..Request::default()
        };
        match engine.commit(&now, &plan.changes, &request, &CommitProgress::default()).await? {
            CommitOutcome::Committed { snapshot, .. } => return Ok((plan, Some(snapshot))),
            CommitOutcome::Nothing => return Ok((plan, None)),
            CommitOutcome::Conflicts(_) => {
                info!("branch {} was changed meanwhile: the revert is planned again", options.branch);
                repository = Repository::open(Arc::clone(repository.storage())).await?;
            }
        }
    }
    Err(contended(&options.branch))
}

/// Returns why a revert comes to no change; `is_ours` if conflicts were to leave things as they
/// are.
pub fn nothing_left(is_ours: bool) -> &'static str {
    if is_ours {
        "later commits changed the same things, which --on-conflict=ours leaves as they are"
    } else {
        "later commits did it already"
    }
}
