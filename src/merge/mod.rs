//! Merges a branch, tag or snapshot into a branch: what it changed since the common ancestor becomes one commit there.
//!
//! Both sides are compared with the common ancestor ([`ancestor`]), snapshot by snapshot ([`crate::compare::changes`]), and with each
//! other ([`crate::commit::three_way`]): the conflicts are those of a commit in a mount. Chunks are referred to, not copied. The commit
//! goes through the engine, so that it is atomic, and commits that other writers make meanwhile are taken into account; where those
//! conflict, the merge is planned again on the new tip, which may be a merge of the same source.

mod ancestor;

use std::sync::Arc;

use serde_json::{Map, Value};
use tracing::info;

use self::ancestor::History;
pub use self::ancestor::RECORD;
use crate::commit::changes::ChangeSet;
use crate::commit::conflicts::Conflict;
use crate::commit::engine::{CommitOutcome, Engine, OnConflict, Request};
use crate::commit::progress::CommitProgress;
use crate::commit::three_way::{self, Theirs};
use crate::compare::changes::changes_between;
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::format::snapshot::Snapshot;
use crate::reader::Reader;
use crate::repo::refs::RefSpec;
use crate::repo::{MAX_SNAPSHOT, Repository};

/// Number of plans after which a merge gives up: as often, another writer changed the same things during a commit.
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
    /// Commit message.
    pub message: String,
    /// Further metadata of the commit.
    pub metadata: Map<String, Value>,
    /// Treatment of chunks that both sides changed; [`OnConflict::Ours`] takes those of the source.
    pub on_conflict: OnConflict,
}

/// Result of comparing both sides.
#[derive(Debug)]
pub struct Plan {
    /// Common ancestor.
    pub base: ObjectId,
    /// Tip of the branch.
    pub tip: Arc<Snapshot>,
    /// Commits of the source that the branch does not have, newest first.
    pub commits: Vec<SnapshotInfo>,
    /// Changes that the merge makes in the branch.
    pub changes: ChangeSet,
    /// Conflicts that prevent the merge.
    pub conflicts: Vec<Conflict>,
}

/// Outcome of a merge.
#[derive(Debug)]
pub struct Merged {
    /// New snapshot; none if the branch had all changes already, or if conflicts were found.
    pub snapshot: Option<ObjectId>,
    /// Plan that was carried out.
    pub plan: Plan,
}

/// Compares the source with the branch, without changing anything.
///
/// Fails with [`ErrorKind::NotFound`] if there is no such branch, and with [`ErrorKind::InvalidInput`] if both have no common ancestor.
pub async fn plan(repository: &Repository, reader: &Arc<Reader>, options: &MergeOptions) -> Result<Plan> {
    let into = repository.resolve(&RefSpec::Branch(options.into.clone())).await?;
    let history = History::read(repository, [options.source, into]).await?;
    let base = history.common_ancestor(options.source, into).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{} and branch `{}` have no common ancestor: their histories were expired or rewritten, so that nothing tells what \
                 either of them changed",
                options.source_name, options.into
            ),
        )
    })?;
    let load = |id| repository.snapshot(id, MAX_SNAPSHOT);
    let (before, source, tip) = tokio::try_join!(load(base), load(options.source), load(into))?;
    let known = history.ancestors(into);
    let mut commits: Vec<SnapshotInfo> =
        history.ancestors(options.source).difference(&known).filter_map(|id| history.get(*id).cloned()).collect();
    commits.sort_by_key(|commit| std::cmp::Reverse((commit.flushed_at, commit.id)));
    let (ours, theirs) =
        tokio::try_join!(changes_between(reader, &before, &source), changes_between(reader, &before, &tip))?;
    let commit = history.get(into).ok_or_else(|| Error::corrupt(format!("{into} is not in its own history")))?;
    let (mut changes, theirs) = (ours, Theirs { snapshot: &tip, commit, changes: theirs });
    let conflicts = three_way::reduce(&before, &mut changes, theirs, options.on_conflict)?;
    Ok(Plan { base, tip: Arc::new(tip), commits, changes, conflicts })
}

/// Merges the source into the branch.
///
/// Nothing is changed if there are conflicts, which [`Merged::plan`] lists, or nothing to merge. Errors: as for [`plan`] and
/// [`Engine::commit`].
pub async fn merge(
    repository: Repository,
    reader: &Arc<Reader>,
    engine: &Engine,
    options: &MergeOptions,
) -> Result<Merged> {
    let storage = Arc::clone(repository.storage());
    let mut repository = repository;
    let mut metadata = options.metadata.clone();
    metadata.insert(RECORD.to_owned(), ancestor::record(&options.source_name, options.source));
    for _ in 0..MAX_PLANS {
        let plan = self::plan(&repository, reader, options).await?;
        // Without changes, a commit would only record that there were none.
        if !plan.conflicts.is_empty() || plan.changes.is_empty() {
            return Ok(Merged { snapshot: None, plan });
        }
        let request = Request {
            branch: options.into.clone(),
            message: options.message.clone(),
            metadata: metadata.clone(),
            on_conflict: OnConflict::Fail,
            ..Request::default()
        };
        match engine.commit(&plan.tip, &plan.changes, &request, &CommitProgress::default()).await? {
            CommitOutcome::Committed { snapshot, .. } => return Ok(Merged { snapshot: Some(snapshot), plan }),
            CommitOutcome::Nothing => return Ok(Merged { snapshot: None, plan }),
            CommitOutcome::Conflicts(_) => {
                info!("branch {} was changed during the merge, which is planned again", options.into);
                repository = Repository::open(Arc::clone(&storage)).await?;
            }
        }
    }
    Err(Error::new(
        ErrorKind::Contended,
        format!(
            "commits to branch `{}` changed the same things during {MAX_PLANS} attempts to merge: nothing was changed; merge again",
            options.into
        ),
    ))
}
