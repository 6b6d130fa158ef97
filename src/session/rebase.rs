//! Rebase with its check: a working tree is put on another snapshot only if nothing but that becomes of its changes.
//!
//! The check does not know how the merge works. It compares what would be committed before and after, as `detect_changes` finds it out
//! from the files, and refuses whatever it cannot account for.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::changes::DetectedChanges;
use super::changes::walk::{NewIds, detect_changes_in};
use crate::commit::changes::ChunkChange;
use crate::commit::conflicts::{Conflict, ConflictKind};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::NodeId;
use crate::format::snapshot::Snapshot;
use crate::scratch::record::{Id, Name};
use crate::tree::Tree;
use crate::tree::nodes::Place;
use crate::working::WorkingTree;
use crate::working::frozen::FrozenEntry;
use crate::working::rebase::{Candidate, Collision, Purpose};
use crate::working::replace::{Invalidation, TreeGuard, node_ids};
use crate::zarr::Coords;

/// What a move came to.
pub(super) enum Rebased {
    /// The tree is on the new base; the kernel must be told this.
    Done(Vec<Invalidation>),
    /// Nothing was moved: these names are in the way.
    Collisions(Vec<Collision>),
}

/// Puts `working` on `tree`; its changes, which are `before`, stay uncommitted.
pub(super) async fn keep(
    working: &WorkingTree,
    guard: &TreeGuard<'_>,
    tree: &Arc<Tree>,
    before: &DetectedChanges,
    new_ids: &NewIds,
) -> Result<Rebased> {
    let untracked = before.untracked_entries();
    let candidate = working.plan_rebase(tree, Purpose::Keep { untracked: &untracked }, false).await?;
    if !candidate.collisions.is_empty() {
        let collisions = candidate.collisions.clone();
        working.abandon(candidate);
        return Ok(Rebased::Collisions(collisions));
    }
    let checked = async {
        let after = detect(working, &candidate, new_ids).await?;
        let kept = check_kept(before, &after, tree).await;
        kept.map_err(|error| if before.violations.is_empty() { error } else { settle_first(&error) })
    };
    install(working, guard, checked.await, candidate).map(Rebased::Done)
}

/// Puts `working` on `tree`, a snapshot that its changes, which are `before`, were committed as.
pub(super) async fn follow_commit(
    working: &WorkingTree,
    guard: &TreeGuard<'_>,
    tree: &Arc<Tree>,
    before: &DetectedChanges,
    new_ids: &NewIds,
) -> Result<Vec<Invalidation>> {
    let candidate = working.plan_rebase(tree, Purpose::Published { tracked: &before.tracked }, false).await?;
    let checked = async {
        if let Some(collision) = candidate.collisions.first() {
            return Err(unaccounted(&format!("{} is in the way of what was committed", collision.path)));
        }
        let after = detect(working, &candidate, new_ids).await?;
        check_committed(before, &after)
    };
    install(working, guard, checked.await, candidate)
}

/// Gives up the changes at and below `path`, but not untracked files.
pub(super) async fn discard(
    working: &WorkingTree,
    guard: &TreeGuard<'_>,
    path: &str,
    before: &DetectedChanges,
    new_ids: &NewIds,
) -> Result<Vec<Invalidation>> {
    let mut untracked = before.untracked_entries();
    let candidate = working.plan_discard(path, &mut untracked).await?;
    let checked = async {
        let after = detect(working, &candidate, new_ids).await?;
        check_discarded(before, &after, &candidate)
    };
    install(working, guard, checked.await, candidate)
}

/// Names of `working` that stand in the way of what `tip` has, though no change does: they would be lost, or hide something.
pub(super) async fn collisions(
    working: &WorkingTree,
    tree: &Arc<Tree>,
    untracked: &HashSet<(Id, Name)>,
) -> Result<Vec<Collision>> {
    let candidate = working.plan_rebase(tree, Purpose::Keep { untracked }, true).await?;
    let collisions = candidate.collisions.clone();
    working.abandon(candidate);
    Ok(collisions)
}

/// Collisions as conflicts with the newest commit, which is `tip`.
pub(super) fn as_conflicts(collisions: Vec<Collision>, tip: &Snapshot) -> Vec<Conflict> {
    let conflict = |collision: Collision| Conflict {
        kind: ConflictKind::UntrackedNameExists,
        path: collision.path,
        coords: Vec::new(),
        other: tip.id(),
        message: tip.message().to_owned(),
    };
    collisions.into_iter().map(conflict).collect()
}

async fn detect(working: &WorkingTree, candidate: &Candidate, new_ids: &NewIds) -> Result<DetectedChanges> {
    detect_changes_in(Arc::clone(candidate.base()), &candidate.contents(working), &candidate.frozen(), new_ids).await
}

fn install(
    working: &WorkingTree,
    guard: &TreeGuard<'_>,
    checked: Result<()>,
    candidate: Candidate,
) -> Result<Vec<Invalidation>> {
    match checked {
        Ok(()) => working.install(guard, candidate),
        Err(error) => {
            working.abandon(candidate);
            Err(error)
        }
    }
}

/// How a chunk is changed that is deleted.
const DELETED: &str = "deleted";

/// One thing that a commit would do, and how.
type Summary = BTreeMap<Item, String>;

/// What a change is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Deleted(NodeId),
    Created(String),
    Updated(NodeId),
    Moved(NodeId),
    Chunk(Owner, Coords),
    Violation(String),
    Untracked(String),
}

/// The array of a chunk: one of the base by its id, a new one by its path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Base(NodeId),
    Created(String),
}

fn summary(detected: &DetectedChanges) -> Summary {
    let changes = &detected.changes;
    let mut all = Summary::new();
    all.extend(changes.deleted.iter().map(|node| (Item::Deleted(node.id), node.path.clone())));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    all.extend(changes.created.iter().map(|node| (Item::Created(node.path.clone()), text(&node.zarr_json))));
    all.extend(changes.updated.iter().map(|node| (Item::Updated(node.id), text(&node.zarr_json))));
    all.extend(changes.moved.iter().map(|moved| (Item::Moved(moved.node), moved.to.clone())));
    let created: BTreeMap<NodeId, &str> = changes.created.iter().map(|node| (node.id, node.path.as_str())).collect();
    for (id, chunks) in &changes.chunks {
        let owner = match created.get(id) {
            Some(path) => Owner::Created((*path).to_owned()),
            None => Owner::Base(*id),
        };
        for (coords, change) in chunks {
            let how = match change {
                ChunkChange::Delete => DELETED.to_owned(),
                ChunkChange::File(file) => format!("scratch file {} of {} bytes", file.name, file.length),
                ChunkChange::Stored(payload) => format!("{payload:?}"),
            };
            all.insert(Item::Chunk(owner.clone(), coords.clone()), how);
        }
    }
    all.extend(
        detected.violations.iter().map(|violation| (Item::Violation(violation.path.clone()), violation.why.clone())),
    );
    all.extend(detected.untracked.iter().map(|file| (Item::Untracked(file.path.clone()), String::new())));
    all
}

/// What stays uncommitted must be the same over the new base, but for what was deleted on both sides.
async fn check_kept(before: &DetectedChanges, after: &DetectedChanges, tree: &Tree) -> Result<()> {
    let (before, after) = (summary(before), summary(after));
    // What keeps a commit from being made is found in the files that programs touched: which of them are told of, and in which
    // words, may differ. That there is something must not.
    let is_violation = |item: &&Item| matches!(item, Item::Violation(_));
    if before.keys().any(|item| is_violation(&item)) != after.keys().any(|item| is_violation(&item)) {
        let (of, what) =
            if before.keys().any(|item| is_violation(&item)) { (&before, "gone") } else { (&after, "new") };
        let violation = of.iter().find(|(item, _)| is_violation(item));
        return Err(unaccounted(&format!("{violation:?} would be {what}")));
    }
    let is_other = |(item, how): &(&Item, &String)| !is_violation(item) && before.get(item) != Some(how);
    if let Some((item, how)) = after.iter().find(is_other) {
        return Err(unaccounted(&format!("{item:?} would be {how}, and is {:?}", before.get(item))));
    }
    let ids = node_ids(tree);
    for (item, how) in before.iter().filter(|(item, _)| !is_violation(item) && !after.contains_key(item)) {
        let is_done = match item {
            Item::Deleted(id) => !ids.contains_key(id),
            Item::Chunk(Owner::Base(id), coords) if how == DELETED => match ids.get(id) {
                Some(index) => !tree.has(&Place::Chunk(*index, coords.clone())).await?,
                None => true,
            },
            _ => false,
        };
        if !is_done {
            return Err(unaccounted(&format!("{item:?} ({how}) would be lost")));
        }
    }
    Ok(())
}

/// After a commit nothing is left, and nothing untracked is gone.
fn check_committed(before: &DetectedChanges, after: &DetectedChanges) -> Result<()> {
    let untracked = |item: &&Item| matches!(item, Item::Untracked(_));
    let (before, after) = (summary(before), summary(after));
    if let Some((item, how)) = after.iter().find(|(item, _)| !untracked(item)) {
        return Err(unaccounted(&format!("{item:?} would still be {how}")));
    }
    match before.keys().filter(untracked).find(|item| !after.contains_key(item)) {
        Some(item) => Err(unaccounted(&format!("{item:?} would be lost"))),
        None => Ok(()),
    }
}

/// A discard adds no change, and takes no untracked file away. It may bring one back to where its directory was.
fn check_discarded(before: &DetectedChanges, after: &DetectedChanges, candidate: &Candidate) -> Result<()> {
    // Without the array that was above it, a file may look like a chunk that has none: what counts is that it is there.
    let frozen = candidate.frozen();
    let entries = frozen.directories().iter().flat_map(|directory| directory.entries.values());
    let there: HashSet<Id> = entries
        .filter_map(|entry| match entry {
            FrozenEntry::File(file) => Some(file.id),
            FrozenEntry::Other(id) => Some(*id),
            FrozenEntry::Hidden | FrozenEntry::Directory(_) => None,
        })
        .collect();
    let (before, after) = (summary(before), summary(after));
    let is_new = |(item, how): &(&Item, &String)| {
        // A file that goes back with its directory may have the name of a chunk there.
        let is_free = match item {
            Item::Untracked(_) | Item::Violation(_) => true,
            Item::Chunk(..) => *how != DELETED,
            _ => false,
        };
        !is_free && before.get(item) != Some(how)
    };
    if let Some((item, how)) = after.iter().find(is_new) {
        return Err(unaccounted(&format!("{item:?} would be {how}, and is {:?}", before.get(item))));
    }
    match candidate.kept.difference(&there).next() {
        Some(id) => Err(unaccounted(&format!("untracked file {id} would be lost"))),
        None => Ok(()),
    }
}

/// The error of a move over files that cannot be committed: what they would be on the new base is not certain.
fn settle_first(error: &Error) -> Error {
    Error::new(
        ErrorKind::Stale,
        format!("settle what cannot be committed first (status lists it), then refresh; nothing was moved ({error})"),
    )
}

fn unaccounted(what: &str) -> Error {
    tracing::error!("the working tree was not moved, since its changes would not be the same afterwards: {what}");
    Error::new(
        ErrorKind::Stale,
        format!("the working tree cannot be moved without changing what it would commit ({what}): nothing was done"),
    )
}
