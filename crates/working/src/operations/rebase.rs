//! Rebase with a check: the working tree moves to another snapshot only if its changes survive.
//!
//! The check does not know the merge. It compares the changes that `detect_changes` finds in the
//! files before and after, and refuses every difference that it cannot explain.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::changes::nodes::detect_changes;
use super::changes::{DetectedChanges, NewIds};
use super::discarded;
use super::invalidation::changed_numbers;
use super::restore::Check;
use crate::overlay::WorkingTree;
use crate::overlay::frozen::FrozenEntry;
use crate::overlay::invalidation::Invalidation;
use crate::overlay::listing::join;
use crate::overlay::rebase::{Candidate, Collision, MergedFiles, Others, Purpose};
use crate::overlay::replace::{TreeGuard, node_ids};
use crate::scratch::record::EntryId;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::commit::changes::ChunkChange;
use icechunkfs_repo::commit::conflict::{Conflict, ConflictKind, OwnChange};
use icechunkfs_repo::commit::documents::{MergedDocuments, take_merged};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{TreePlace, ZARR_JSON};

pub(super) enum Rebased {
    /// The tree is on the new base, and these invalidations must be sent.
    Done(Vec<Invalidation>),
    /// Nothing was moved: these names collide.
    Collisions(Vec<Collision>),
}

/// Rebases `working` onto `tree`; its changes, `before`, stay uncommitted. Documents that both
/// sides changed become the `merged` ones.
pub(super) async fn rebase_uncommitted(
    working: &WorkingTree,
    guard: &TreeGuard<'_>,
    tree: &Arc<Tree>,
    before: &mut DetectedChanges,
    merged: MergedDocuments,
    new_ids: &NewIds,
) -> Result<Rebased> {
    let untracked = before.untracked_entries();
    let documents = before.changes.updated.iter().filter_map(|node| {
        let document = merged.get(&node.id)?;
        Some((join(&node.path, ZARR_JSON), document.clone()))
    });
    let documents: MergedFiles = documents.collect();
    let purpose = Purpose::Keep { untracked: &untracked, documents: &documents };
    let candidate = working.moves().plan_rebase(guard, tree, purpose).await?;
    take_merged(&mut before.changes, merged, tree.snapshot());
    if !candidate.collisions.is_empty() {
        let collisions = candidate.collisions.clone();
        working.moves().abandon(candidate);
        return Ok(Rebased::Collisions(collisions));
    }
    install(working, guard, candidate, new_ids, &Accept::Kept(before, tree)).await.map(Rebased::Done)
}

/// Rebases `working` onto `tree`, the snapshot that its changes, `before`, were committed as over
/// the commits of `others`.
pub(super) async fn follow_commit(
    working: &WorkingTree,
    guard: &TreeGuard<'_>,
    tree: &Arc<Tree>,
    before: &DetectedChanges,
    others: Others<'_>,
    new_ids: &NewIds,
) -> Result<Vec<Invalidation>> {
    let changed = changed_numbers(working, &before.changes);
    let purpose = Purpose::Published { tracked: &before.tracked, changed: &changed, others };
    let candidate = working.moves().plan_rebase(guard, tree, purpose).await?;
    let mut invalidations = install(working, guard, candidate, new_ids, &Accept::Committed(before)).await?;
    invalidations.extend(changed.into_iter().map(Invalidation::Inode));
    Ok(invalidations)
}

/// Discards the changes at and below `path`, but not untracked files.
pub(super) async fn discard(
    working: &WorkingTree,
    guard: &TreeGuard<'_>,
    path: &str,
    before: &DetectedChanges,
    new_ids: &NewIds,
) -> Result<Vec<Invalidation>> {
    let mut untracked = before.untracked_entries();
    let candidate = working.moves().plan_discard(guard, path, &mut untracked).await?;
    install(working, guard, candidate, new_ids, &Accept::Discarded(before)).await
}

/// Installs a restored candidate that `check` accepts; with `dry_run` only checks it.
pub(super) async fn install_restored(
    working: &WorkingTree,
    guard: &TreeGuard<'_>,
    candidate: Candidate,
    new_ids: &NewIds,
    dry_run: bool,
    check: &Check<'_>,
) -> Result<Vec<Invalidation>> {
    let accept = Accept::Restored(check);
    if !dry_run {
        return install(working, guard, candidate, new_ids, &accept).await;
    }
    let checked = check_candidate(working, &candidate, new_ids, &accept).await;
    working.moves().abandon(candidate);
    checked.map(|()| Vec::new())
}

/// Converts collisions to conflicts with the newest commit, `tip`.
pub(super) fn as_conflicts(collisions: Vec<Collision>, tip: &Snapshot) -> Vec<Conflict> {
    let conflict = |collision: Collision| Conflict {
        kind: ConflictKind::UntrackedNameExists,
        path: collision.path,
        coords: Vec::new(),
        members: Vec::new(),
        other: tip.id(),
        message: tip.message().to_owned(),
        own: OwnChange::default(),
    };
    collisions.into_iter().map(conflict).collect()
}

/// Requirement on the changes that are detected in a candidate.
enum Accept<'a> {
    /// Those before a move to another snapshot, the tree.
    Kept(&'a DetectedChanges, &'a Tree),
    /// None: these were committed.
    Committed(&'a DetectedChanges),
    /// Those before, without discarded ones.
    Discarded(&'a DetectedChanges),
    /// Those of a restore.
    Restored(&'a Check<'a>),
}

impl Accept<'_> {
    /// Fails if `after`, detected in `candidate`, is not as it must be.
    async fn check(&self, after: &DetectedChanges, candidate: &Candidate) -> Result<()> {
        match self {
            Accept::Kept(before, tree) => check_kept(before, after, tree)
                .await
                .map_err(|error| if before.violations.is_empty() { error } else { violations_error(&error) }),
            Accept::Committed(before) => match candidate.collisions.first() {
                Some(Collision { path, .. }) => {
                    Err(unaccounted(&format!("{path} has the name of something that was committed")))
                }
                None => check_committed(before, after),
            },
            Accept::Discarded(before) => {
                check_discarded(before, after, candidate)?;
                discarded::check_elsewhere(before, after, candidate.base(), &candidate.returned)
            }
            Accept::Restored(check) => {
                check.accept(after)?;
                check_untracked_kept(candidate)
            }
        }
    }
}

/// Installs `candidate` if `accept` takes the changes that are detected in it. Files of the base
/// that programs have open keep their bytes.
async fn install(
    working: &WorkingTree,
    guard: &TreeGuard<'_>,
    mut candidate: Candidate,
    new_ids: &NewIds,
    accept: &Accept<'_>,
) -> Result<Vec<Invalidation>> {
    let checked = async {
        working.moves().keep_open_files(guard, &mut candidate).await?;
        check_candidate(working, &candidate, new_ids, accept).await?;
        // The check takes long enough for other files to be opened. They are few, and each of them
        // changes one name alone.
        working.moves().hold_opens(&candidate);
        working.moves().keep_open_files(guard, &mut candidate).await
    };
    match checked.await {
        Ok(()) => working.moves().install(guard, candidate),
        Err(error) => {
            working.moves().abandon(candidate);
            Err(error)
        }
    }
}

/// Detects the changes in `candidate`, and lets `accept` judge them.
async fn check_candidate(
    working: &WorkingTree,
    candidate: &Candidate,
    new_ids: &NewIds,
    accept: &Accept<'_>,
) -> Result<()> {
    let base = Arc::clone(candidate.base());
    let frozen = candidate.frozen();
    let after = detect_changes(base, &candidate.contents(working.contents()), &frozen, new_ids).await?;
    accept.check(&after, candidate).await
}

/// Description of the change of a deleted chunk.
const DELETED: &str = "deleted";

/// Items that a commit would change, with a description of each change.
type Summary = BTreeMap<Item, String>;

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

/// Array of a chunk: one of the base by its ID, a new one by its path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Base(NodeId),
    Created(String),
}

/// Returns a description of the change of a chunk.
pub(super) fn description(change: &ChunkChange) -> String {
    match change {
        ChunkChange::Delete => DELETED.to_owned(),
        ChunkChange::File(file) => format!("scratch file {} of {} bytes", file.name, file.length),
        ChunkChange::Made(made) => made.describe(),
        ChunkChange::Stored(payload) => format!("{payload:?}"),
    }
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
            all.insert(Item::Chunk(owner.clone(), coords.clone()), description(change));
        }
    }
    all.extend(
        detected.violations.iter().map(|violation| (Item::Violation(violation.path.clone()), violation.why.clone())),
    );
    all.extend(detected.untracked.iter().map(|file| (Item::Untracked(file.path.clone()), String::new())));
    all
}

/// Checks that all of `after` but the changes for which `is_free` returns true are in `before` too.
fn check_same(before: &Summary, after: &Summary, is_free: impl Fn(&Item, &str) -> bool) -> Result<()> {
    match after.iter().find(|(item, how)| !is_free(item, how) && before.get(item) != Some(how)) {
        Some((item, how)) => Err(unaccounted(&format!("{item:?} would be {how}, but is {:?}", before.get(item)))),
        None => Ok(()),
    }
}

/// Checks that the changes are the same over the new base, except for deletions made on both sides.
async fn check_kept(before: &DetectedChanges, after: &DetectedChanges, tree: &Tree) -> Result<()> {
    let before = summary(before);
    let after = summary(after);
    // Violations are found in the files that programs touched: their number and wording may differ,
    // their existence may not.
    let is_violation = |item: &Item| matches!(item, Item::Violation(_));
    let violation = |changes: &Summary| changes.keys().find(|item| is_violation(item)).cloned();
    match (violation(&before), violation(&after)) {
        (Some(violation), None) => return Err(unaccounted(&format!("{violation:?} would be gone"))),
        (None, Some(violation)) => return Err(unaccounted(&format!("{violation:?} would be new"))),
        _ => {}
    }
    check_same(&before, &after, |item, _| is_violation(item))?;
    let ids = node_ids(tree);
    for (item, how) in before.iter().filter(|(item, _)| !is_violation(item) && !after.contains_key(item)) {
        let is_done = match item {
            Item::Deleted(id) => !ids.contains_key(id),
            Item::Chunk(Owner::Base(id), coords) if how == DELETED => match ids.get(id) {
                Some(index) => !tree.has(&TreePlace::Chunk(*index, coords.clone())).await?,
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

/// Checks that no change is left after a commit, and that no untracked file is lost.
fn check_committed(before: &DetectedChanges, after: &DetectedChanges) -> Result<()> {
    let untracked = |item: &&Item| matches!(item, Item::Untracked(_));
    let before = summary(before);
    let after = summary(after);
    if let Some((item, how)) = after.iter().find(|(item, _)| !untracked(item)) {
        return Err(unaccounted(&format!("{item:?} would still be {how}")));
    }
    match before.keys().filter(untracked).find(|item| !after.contains_key(item)) {
        Some(item) => Err(unaccounted(&format!("{item:?} would be lost"))),
        None => Ok(()),
    }
}

/// Checks that a discard adds no change and loses no untracked file. A file may return to the old
/// place of its directory.
fn check_discarded(before: &DetectedChanges, after: &DetectedChanges, candidate: &Candidate) -> Result<()> {
    let before = summary(before);
    let after = summary(after);
    // A file that returns with its directory may have the name of a chunk there.
    check_same(&before, &after, |item, how| match item {
        Item::Untracked(_) | Item::Violation(_) => true,
        Item::Chunk(..) => how != DELETED,
        _ => false,
    })?;
    check_untracked_kept(candidate)
}

/// Checks that a candidate has all untracked files that it must keep.
fn check_untracked_kept(candidate: &Candidate) -> Result<()> {
    // Without the array above it, a file may look like a stray chunk: only its presence counts.
    let frozen = candidate.frozen();
    let entries = frozen.directories().iter().flat_map(|directory| directory.entries.values());
    let there: HashSet<EntryId> = entries
        .filter_map(|entry| match entry {
            FrozenEntry::File(file) => Some(file.id),
            FrozenEntry::Other(id) => Some(*id),
            FrozenEntry::Whiteout | FrozenEntry::Directory(_) => None,
        })
        .collect();
    match candidate.kept.difference(&there).next() {
        Some(id) => Err(unaccounted(&format!("untracked file {id} would be lost"))),
        None => Ok(()),
    }
}

/// Returns the error of a rebase with violations: the meaning of these files on the new base is not
/// certain.
fn violations_error(error: &Error) -> Error {
    Error::new(
        ErrorKind::Stale,
        format!(
            "first resolve what cannot be committed (status lists it), then refresh; nothing was changed ({error})"
        ),
    )
}

fn unaccounted(what: &str) -> Error {
    tracing::error!("the working tree was not moved, since its changes would not be the same afterwards: {what}");
    Error::new(
        ErrorKind::Stale,
        format!(
            "the working tree cannot be moved without changing what it would commit ({what}): it was left as it was"
        ),
    )
}
