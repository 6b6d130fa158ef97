//! Restores a path from another snapshot: what is at and below it becomes what that snapshot has
//! there.
//!
//! A plan ([`plan`]) is the change set that leads from one snapshot to that state. It is computed
//! from the two snapshots and their manifests, so that no chunk is read: chunks are references to
//! what the source has. A mount makes the change set an uncommitted change
//! (`icechunkfs_working::operations`); without a mount, [`restore`] commits it through the engine.
//!
//! Nodes are matched ([`nodes`]) by id first, so that a node that was moved below the path is moved
//! back, then by path; only nodes that have no counterpart are created. The path is found as it was
//! named then ([`target`]).

mod nodes;
mod report;
mod target;

use std::sync::Arc;

use serde_json::{Map, Value};

pub use self::nodes::Notes;
pub use self::target::{Scope, Target};
use crate::commit::changes::ChangeSet;
use crate::commit::engine::{CommitOutcome, Engine, Request};
use crate::commit::gc_guard;
use crate::commit::progress::CommitProgress;
use crate::commit::request::KnownObjects;
use crate::reader::Reader;
use crate::repo::history::is_on_a_ref;
use crate::repo::refs::RefSpec;
use crate::repo::revision::Resolved;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::times::{parse_past, system_clock};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;

/// Changes that restore a path.
#[derive(Debug)]
pub struct Plan {
    /// The path, and what of the source it becomes.
    pub target: Target,
    /// Changes relative to the snapshot that the plan was made for.
    pub changes: ChangeSet,
    /// Remarks for the user.
    pub notes: Notes,
}

/// Plans to restore `path` (absolute) of snapshot `now` from snapshot `source`. `reader` reads the
/// manifests of both. `uncommitted` are changes to snapshot `now`: what one file means depends on
/// them.
///
/// Errors: [`ErrorKind::NotFound`] if the source has nothing at the path,
/// [`ErrorKind::NotADirectory`] if an array is above the path now, [`ErrorKind::InvalidInput`] if
/// one file cannot be restored alone.
pub async fn plan(
    reader: &Arc<Reader>,
    now: &Snapshot,
    source: &Snapshot,
    path: &str,
    uncommitted: &ChangeSet,
) -> Result<Plan> {
    let target = Target::find(now, source, path)?;
    let (changes, notes) = match &target.scope {
        Scope::Subtree => nodes::subtree(reader, now, source, &target).await?,
        Scope::Document => nodes::document(now, source, &target)?,
        Scope::Chunks(chunks) => {
            (nodes::some_chunks(reader, now, source, &target, chunks, uncommitted).await?, Notes::default())
        }
    };
    Ok(Plan { target, changes, notes })
}

/// Checks that a plan fits the chunks that are there: a document alone must leave each of them its
/// place and its meaning. `uncommitted` are changes to snapshot `now`.
///
/// Fails with [`ErrorKind::InvalidInput`] for chunks that the document does not fit.
pub async fn check_chunks(
    reader: &Arc<Reader>,
    now: &Snapshot,
    source: &Snapshot,
    plan: &Plan,
    uncommitted: &ChangeSet,
) -> Result<()> {
    if plan.target.scope != Scope::Document {
        return Ok(());
    }
    nodes::check_chunks_of_document(reader, now, source, &plan.target, uncommitted).await
}

/// Checks that the chunks that a plan takes from snapshot `source` exist, unless a branch or tag
/// leads to that snapshot: otherwise a collection of garbage may have removed some of its objects.
///
/// Fails with [`ErrorKind::Corrupt`] and the name of the first chunk whose object is missing.
pub async fn check_objects(repository: &Repository, now: &Snapshot, source: ObjectId, plan: &Plan) -> Result<()> {
    if plan.changes.chunk_count() == 0 || is_on_a_ref(repository, source).await? {
        return Ok(());
    }
    gc_guard::check_objects(repository.storage(), now, &plan.changes).await.map_err(|error| match error.kind() {
        ErrorKind::Corrupt => error.context(format!(
            "nothing was restored, since a part of snapshot {source} is gone: no branch or tag was found that leads to \
             it"
        )),
        _ => error.context("nothing was restored"),
    })
}

/// Resolves the source of a restore: a revision, or a time (RFC 3339 or a date), which means the
/// newest commit of `branch` that is not after it.
pub async fn resolve_source(repository: &Repository, word: &str, branch: &str) -> Result<Resolved> {
    match repository.resolve_revision(word).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let Ok(time) = parse_past(word, system_clock()) else { return Err(error) };
            let spec = RefSpec::AsOf { branch: branch.to_owned(), time };
            Ok(Resolved { id: repository.resolve(&spec).await?, spec })
        }
        found => found,
    }
}

/// Description of a restore without a mount.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// Absolute path.
    pub path: String,
    /// Snapshot that the path is restored from.
    pub source: ObjectId,
    /// Branch that gets the commit.
    pub branch: String,
    /// Commit message.
    pub message: String,
    /// Metadata of the commit.
    pub metadata: Map<String, Value>,
}

/// Plans a restore on the tip of the branch. Returns the tip, too.
pub async fn plan_on_branch(
    repository: &Repository,
    reader: &Arc<Reader>,
    options: &RestoreOptions,
) -> Result<(Arc<Snapshot>, Plan)> {
    let tip = repository.resolve(&RefSpec::Branch(options.branch.clone())).await?;
    let load = |id| repository.snapshot(id, MAX_SNAPSHOT);
    let (now, source) = tokio::try_join!(load(tip), load(options.source))?;
    let plan = plan(reader, &now, &source, &options.path, &ChangeSet::default()).await?;
    check_chunks(reader, &now, &source, &plan, &ChangeSet::default()).await?;
    check_objects(repository, &now, options.source, &plan).await?;
    Ok((Arc::new(now), plan))
}

/// Restores a path on a branch with one commit. Returns the plan, and the outcome: nothing if the
/// branch has that state already.
///
/// Errors: as for [`plan`] and [`Engine::commit`].
pub async fn restore(
    repository: &Repository,
    reader: &Arc<Reader>,
    engine: &Engine,
    options: &RestoreOptions,
) -> Result<(Plan, CommitOutcome)> {
    let (now, plan) = plan_on_branch(repository, reader, options).await?;
    if plan.changes.is_empty() {
        return Ok((plan, CommitOutcome::Nothing));
    }
    let request = Request {
        branch: options.branch.clone(),
        message: options.message.clone(),
        metadata: options.metadata.clone(),
        known_objects: KnownObjects::of(repository, options.source, &plan.changes).await?,
        ..Request::default()
    };
    let outcome = engine.commit(&now, &plan.changes, &request, &CommitProgress::default()).await?;
    Ok((plan, outcome))
}

/// Returns `path`, as a user gave it, as an absolute path. Fails if it has components that name no
/// node.
pub fn absolute_path(path: &str) -> Result<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(Error::invalid(format!("`{path}`: name it without `..`")));
    }
    Ok(format!("/{}", parts.join("/")))
}
