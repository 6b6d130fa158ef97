//! Recovery of a working tree from the scratch directory that the last mount left.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tracing::{info, warn};

use super::changes::NewIds;
use super::changes::nodes::detect_changes;
use super::identity;
use super::invalidation::base_invalidations;
use super::rebase::{self, Rebased};
use super::status_text::deleted_branch;
use crate::overlay::invalidation::Invalidation;
use crate::overlay::rebase::Others;
use crate::overlay::replace::TreeGuard;
use crate::overlay::{Recovered, WorkingTree};
use crate::scratch::directory::ScratchDirectory;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::size;
use icechunkfs_base::stages::Stages;
use icechunkfs_base::trust;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_repo::commit::documents::MergedDocuments;
use icechunkfs_repo::commit::rebase::commits_since;
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::repo::history::is_ancestor;
use icechunkfs_repo::repo::refs::RefSpec;
use icechunkfs_repo::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeTable;
use icechunkfs_tree::tree::numbering::Numbering;

/// Options for opening a working tree.
#[derive(Clone, Debug)]
pub struct RecoveryOptions<'a> {
    /// Branch.
    pub branch: &'a str,
    /// Scratch directory.
    pub scratch: &'a Path,
    /// Mountpoint.
    pub mountpoint: &'a Path,
    /// Directory of the repository, if it is local.
    pub local: Option<&'a Path>,
    /// True if uncommitted changes are discarded.
    pub discard: bool,
    /// Most memory that the snapshot may take, in bytes.
    pub limit: u64,
}

/// Opens the working tree of a branch on the base that its scratch directory records, or else on
/// the tip.
///
/// `reader` creates the reader once the snapshot is known. Returns, besides, a message for the user
/// about uncommitted work.
pub async fn open(
    repository: &Repository,
    opening: &RecoveryOptions<'_>,
    reader: impl FnOnce(u64) -> Result<Reader>,
) -> Result<(Arc<WorkingTree>, Arc<Reader>, Option<String>)> {
    let stages = Stages::begin("reading the scratch directory");
    // A mistyped name leaves no directory. A descriptor of a path alone asks no file system of
    // another user.
    let place = trust::private_place_of(opening.scratch);
    let found =
        place.map(|place| rustix::fs::open(place, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()));
    if matches!(found, Ok(Err(Errno::NOENT))) {
        repository.resolve(&RefSpec::Branch(opening.branch.to_owned())).await?;
    }
    let scratch = ScratchDirectory::open(opening.scratch, opening.mountpoint, opening.local)?;
    let origin = identity::origin_of(repository, opening.branch).await?;
    let recovered = if opening.discard { Recovered::empty() } else { Recovered::read(&scratch, &origin)? };
    let mut moved = None;
    let mut is_of_other = false;
    if let Some(recorded) = &recovered.origin {
        match identity::compare(repository, recorded, &origin, scratch.path()).await {
            // A scratch directory of another repository, without any work, concerns nobody.
            Err(error) if error.kind() == ErrorKind::InvalidInput && !recovered.has_work => is_of_other = true,
            compared => moved = compared?,
        }
    }
    let recovered = if is_of_other { Recovered::empty() } else { recovered };
    stages.enter("loading the snapshot");
    let (recovered, loaded) = load_base(repository, opening, recovered).await?;
    let publishing = recovered.publishing;
    let mut numbering = Numbering::default();
    let snapshot = Arc::new(loaded);
    let table = NodeTable::build_below(&snapshot, &mut numbering, "")?;
    let reader = reader(snapshot.size() as u64 + table.size())?;
    let reader = Arc::new(reader.with_virtuals(repository.virtuals().await));
    let tree = Arc::new(Tree::new(Arc::clone(&snapshot), table, Arc::clone(&reader)));
    stages.enter("finding uncommitted changes");
    let working = Arc::new(WorkingTree::open(tree, numbering, scratch, origin, recovered)?);
    working.upper().begin_upkeep();
    if let Some(publishing) = publishing {
        let guard = working.upper().quiesce().await;
        let finished = match finish(repository, &working, &reader, &guard, publishing).await {
            // It may be found at the next commit.
            Err(error) if error.kind() == ErrorKind::Offline => None,
            finished => finished.context(|| "a commit that was interrupted")?,
        };
        if finished.is_none() {
            info!("a commit was interrupted before it was visible: its changes are still here");
            working.upper().set_may_land();
        }
    }
    let message = resume(repository, &working, &reader).await?;
    // No kernel has anything to drop yet.
    working.moves().settle();
    if let Some(moved) = &moved {
        info!("{moved}");
    }
    let message = message.map(|message| moved.map_or(message.clone(), |moved| format!("{message}; {moved}")));
    let message =
        [working.upper().salvaged(), message].into_iter().flatten().reduce(|one, other| format!("{one}; {other}"));
    Ok((working, reader, message))
}

/// Loads the snapshot that `recovered` is based on, or else the tip. Without work to resume, a base
/// that was removed is given up.
async fn load_base(
    repository: &Repository,
    opening: &RecoveryOptions<'_>,
    recovered: Recovered,
) -> Result<(Recovered, Snapshot)> {
    // Other failures may pass.
    let is_unreadable = |error: &Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt);
    if let Some(base) = recovered.base {
        match repository.snapshot(base, opening.limit).await {
            Err(error) if is_unreadable(&error) && !recovered.has_work => {
                info!(
                    "the snapshot that was last mounted is gone, and there are no uncommitted changes: the branch is \
                     mounted as it is now"
                );
            }
            Err(error) => {
                let place = opening.scratch.display();
                let missing = if error.kind() == ErrorKind::NotFound {
                    " (an older copy of the repository does not have it: pull or push it from a newer one)"
                } else {
                    ""
                };
                let what = format!("the changes in {place} are based on a snapshot that cannot be read{missing}");
                return Err(error.context(what));
            }
            Ok(snapshot) => return Ok((recovered, snapshot)),
        }
    }
    let tip = repository.resolve(&RefSpec::Branch(opening.branch.to_owned())).await?;
    let snapshot = repository.snapshot(tip, opening.limit).await;
    let recovered = if recovered.base.is_some() { Recovered::empty() } else { recovered };
    Ok((recovered, snapshot.context(|| repository.storage().location().to_owned())?))
}

/// Returns the tree of snapshot `id`, for `working` to be put on.
pub(super) async fn tree_at(
    repository: &Repository,
    working: &WorkingTree,
    reader: &Arc<Reader>,
    id: ObjectId,
) -> Result<Arc<Tree>> {
    let snapshot = Arc::new(repository.snapshot(id, MAX_SNAPSHOT).await?);
    working.moves().tree_of(snapshot, Arc::clone(reader))
}

/// Finishes a commit that was interrupted around its publication as `id`: if the branch has it,
/// rebases the tree onto it; and returns what the kernel must forget; otherwise returns none.
/// Nothing may have changed the tree since.
pub(super) async fn finish(
    repository: &Repository,
    working: &WorkingTree,
    reader: &Arc<Reader>,
    guard: &TreeGuard<'_>,
    id: ObjectId,
) -> Result<Option<Vec<Invalidation>>> {
    let branch = RefSpec::Branch(working.upper().origin().branch.clone());
    let history = match repository.resolve(&branch).await {
        Ok(tip) => repository.ancestors(tip, usize::MAX).await?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(at) = history.iter().position(|commit| commit.id == id) else { return Ok(None) };
    let base = working.upper().base();
    let below = history.iter().skip(at + 1).map(|commit| commit.id);
    let remote_commits: Vec<ObjectId> = below.take_while(|commit| *commit != base.id()).collect();
    let frozen = working.upper().freeze();
    let detected = detect_changes(working.upper().base(), working.contents(), &frozen, &NewIds::default()).await?;
    working.moves().preserve(guard, &detected.untracked_entries(), &detected.foreign_places()).await?;
    let tree = tree_at(repository, working, reader, id).await?;
    // Nothing records which conflicts with the commits between were resolved, and how.
    let given_up = detected.data_files();
    let others = if remote_commits.is_empty() { Others::Absent } else { Others::Merged { given_up: &given_up } };
    let moved = &detected.changes.moved;
    let mut invalidations = base_invalidations(repository, &base.tree, &tree, &remote_commits, moved).await;
    invalidations.extend(rebase::follow_commit(working, guard, &tree, &detected, others, &NewIds::default()).await?);
    working.upper().clear_publishing();
    info!("a commit was interrupted after it was visible: it is snapshot {id}");
    Ok(Some(invalidations))
}

/// Returns the commit of this mount that is on the branch although it was given up and the tree has
/// changed since.
pub(super) async fn find_landed(
    repository: &Repository,
    working: &WorkingTree,
    base: ObjectId,
) -> Result<Option<ObjectId>> {
    let unpublished = working.upper().unpublished();
    if unpublished.is_empty() {
        return Ok(None);
    }
    let commits = commits_since(repository, &working.upper().origin().branch, base).await?;
    Ok(commits.iter().map(|commit| commit.id).find(|id| unpublished.contains(id)))
}

pub(super) fn landed_message(landed: ObjectId) -> String {
    format!(
        "commit {landed} of this mount is on the branch, though its publication seemed to have failed: the mount was \
         changed since. Commit those changes first"
    )
}

/// Rebases a tree without changes onto the tip; returns a message about uncommitted changes or
/// obstacles.
async fn resume(repository: &Repository, working: &WorkingTree, reader: &Arc<Reader>) -> Result<Option<String>> {
    let frozen = working.upper().freeze();
    let mut detected = detect_changes(working.upper().base(), working.contents(), &frozen, &NewIds::default()).await?;
    let base = working.upper().base().id();
    let branch = &working.upper().origin().branch;
    let tip = repository.resolve(&RefSpec::Branch(branch.clone())).await;
    let switch = &repository.storage().capabilities().offline;
    let tip = match tip {
        // The branch as it was seen last may be older than the base, or newer and not in the cache.
        // The cache has the base as far as it was read here.
        Ok(_) if switch.is_some() => Ok(base),
        tip => tip,
    };
    match find_landed(repository, working, base).await {
        Ok(None) => {}
        Ok(Some(landed)) => return Ok(Some(warning(landed_message(landed)))),
        // The branch was reset, and there are no changes that a landed commit could have.
        Err(error) if error.kind() == ErrorKind::Stale && detected.changes.is_empty() => {}
        // To go on as if it had not landed could show changes again that were discarded since.
        Err(error) => {
            return Ok(Some(warning(format!(
                "it is not known whether a commit of this mount has reached the branch: {error}. The mount stays on \
                 snapshot {base}; refresh it later"
            ))));
        }
    }
    if detected.changes.is_empty() && detected.violations.is_empty() {
        let tip = tip?;
        if tip != base {
            let guard = working.upper().quiesce().await;
            working.moves().preserve(&guard, &detected.untracked_entries(), &detected.foreign_places()).await?;
            let tree = tree_at(repository, working, reader, tip).await?;
            // No commit depends on this: remote changes must not keep a mount from starting.
            let merged = MergedDocuments::new();
            match rebase::rebase_uncommitted(working, &guard, &tree, &mut detected, merged, &NewIds::default()).await {
                Ok(Rebased::Done(_)) => {}
                Ok(Rebased::Collisions(collisions)) => {
                    let path = collisions.first().map(|collision| collision.path.as_str()).unwrap_or_default();
                    return Ok(Some(warning(format!(
                        "{path} is untracked here, and a remote commit has that name: the mount stays on \
                         snapshot {base} until that is moved away and the mount refreshed"
                    ))));
                }
                Err(error) if error.kind() == ErrorKind::Stale => {
                    return Ok(Some(warning(format!("the mount stays on snapshot {base}: {error}"))));
                }
                Err(error) => return Err(error),
            }
        }
        return Ok(None);
    }
    let counts = detected.changes.counted();
    let moved = match tip {
        Ok(tip) if tip == base => String::new(),
        Ok(tip) if matches!(is_ancestor(repository, base, tip).await, Ok(false)) => {
            "; the branch was reset since".to_owned()
        }
        Ok(_) => "; the branch has moved on since".to_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let branch = &working.upper().origin().branch;
            format!("; {}", deleted_branch(repository.storage().location(), branch, base))
        }
        Err(_) => "; the branch cannot be read now".to_owned(),
    };
    Ok(Some(warning(format!(
        "resuming uncommitted work: {counts}, {}, based on snapshot {base}, in {}{moved}",
        size::text(detected.bytes),
        working.upper().scratch().path().display()
    ))))
}

/// Logs a message about uncommitted work, and returns it for the user.
fn warning(message: String) -> String {
    warn!("{message}");
    message
}
