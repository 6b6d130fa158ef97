//! Detects conflicts between a change set and concurrent commits.
//!
//! A `zarr.json` that both sides changed is merged by member
//! ([`icechunkfs_format::zarr::three_way`]). Chunks of one side and a new `zarr.json` of the other
//! go together as long as the chunks have a place in the array and their bytes keep their meaning.
//!
//! The kinds are those of the reference implementation, and others that it does not detect: work
//! below a group that the other side removed, which would leave nodes without a group; concurrently
//! written chunks that an array's new `zarr.json` drops or decodes in another way; and nodes that
//! both sides brought with one id, or merges of the same commits. The caller adds
//! [`ConflictKind::UntrackedNameExists`].
//!
//! Nodes are compared by id, so that their current paths do not matter. Paths matter where a side
//! creates a node or moves one to: the path must be free, and the nodes above must be those that
//! the change set was made for. A concurrent move is no conflict by itself, unless it affects a
//! node that the change set touches, or the place where the change set puts one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use smallvec::SmallVec;

use super::changes::{ChangeSet, ChunkChange, WrittenNode};
use super::conflict::{Conflict, ConflictKind, OwnChange};
use super::documents::{DocumentChange, KeptPlaces, MergedDocuments, merge_document};
use super::moves::find_moved;
use super::nodes::parent;
use super::settlements::Settlements;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::{Meter, SharedReservation};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::{Node, Snapshot};
use icechunkfs_format::format::transaction_log::{NODE_BYTES, NodeChange, TransactionLog};
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::array::ArrayMetadata;
use icechunkfs_format::zarr::three_way::{MergedDocument, Side};

/// Commit that another writer made after the base of the changes.
#[derive(Debug)]
pub(super) struct ConcurrentCommit {
    pub(super) id: ObjectId,
    pub(super) message: String,
    /// Transaction logs, oldest first: those of expired ancestors, then the commit's.
    pub(super) logs: Vec<TransactionLog>,
}

/// Positions of the commits that changed something, in their order.
type CommitPositions = SmallVec<[usize; 1]>;

/// Concurrent changes by node, each with the position of the first commit that made it; of
/// documents the last one.
#[derive(Default)]
pub(super) struct ConcurrentChanges {
    created: HashMap<NodeId, usize>,
    deleted: HashMap<NodeId, usize>,
    updated: HashMap<NodeId, usize>,
    moved: HashMap<NodeId, usize>,
    /// Chunks of the arrays that the change set touches, each with all commits that changed it.
    chunks: HashMap<NodeId, BTreeMap<Coords, CommitPositions>>,
    memory: SharedReservation,
}

impl ConcurrentChanges {
    /// Reads what `commits` did, oldest first; of chunks only those of arrays that `changes`
    /// touches.
    pub(super) fn read(commits: &[ConcurrentCommit], changes: &ChangeSet) -> Result<Self> {
        let logs = commits.iter().enumerate().flat_map(|(at, commit)| commit.logs.iter().map(move |log| (at, log)));
        Self::read_logs(logs, changes)
    }

    /// Reads `logs`, each with the position of its commit.
    fn read_logs<'l>(logs: impl Iterator<Item = (usize, &'l TransactionLog)>, changes: &ChangeSet) -> Result<Self> {
        let touched: HashSet<NodeId> = touched(changes).collect();
        let mut theirs = ConcurrentChanges::default();
        let mut meter = Meter::new("the changes of concurrent commits");
        for (at, log) in logs {
            for (change, node) in log.changed_nodes() {
                meter.count(NODE_BYTES)?;
                let list = match change {
                    NodeChange::NewGroups | NodeChange::NewArrays => &mut theirs.created,
                    NodeChange::DeletedGroups | NodeChange::DeletedArrays => &mut theirs.deleted,
                    NodeChange::UpdatedGroups | NodeChange::UpdatedArrays => {
                        // The last one: what is settled is what the user saw of it.
                        theirs.updated.insert(node, at);
                        continue;
                    }
                };
                list.entry(node).or_insert(at);
            }
            for moved in log.moves()? {
                meter.count(NODE_BYTES)?;
                theirs.moved.entry(moved.node).or_insert(at);
            }
            for (node, chunks) in log.updated_chunks().filter(|(node, _)| touched.contains(node)) {
                let known = theirs.chunks.entry(node).or_default();
                for chunk in chunks {
                    let by = known.entry(chunk.kept(&mut meter)?).or_default();
                    // Several logs of one commit may list the same chunk.
                    if by.last() != Some(&at) {
                        by.push(at);
                    }
                }
            }
        }
        theirs.memory = meter.into();
        Ok(theirs)
    }

    /// Returns `changes` as those of a single commit.
    pub(super) fn of(changes: &ChangeSet) -> Self {
        let first = |ids: Vec<NodeId>| ids.into_iter().map(|id| (id, 0)).collect();
        let by_one = |chunks: &BTreeMap<Coords, ChunkChange>| {
            chunks.keys().map(|coords| (coords.clone(), CommitPositions::from_slice(&[0]))).collect()
        };
        ConcurrentChanges {
            created: first(changes.created.iter().map(|node| node.id).collect()),
            deleted: first(changes.deleted.iter().map(|node| node.id).collect()),
            updated: first(changes.updated.iter().map(|node| node.id).collect()),
            moved: first(changes.moved.iter().map(|moved| moved.node).collect()),
            chunks: changes.chunks.iter().map(|(id, chunks)| (*id, by_one(chunks))).collect(),
            memory: SharedReservation::default(),
        }
    }

    /// Returns true if each of `changes` is to a thing that these change, too.
    fn cover(&self, changes: &ChangeSet) -> bool {
        let ConcurrentChanges { created, deleted, updated, moved, chunks, .. } = self;
        let is_whole = |id: &NodeId| created.contains_key(id) || deleted.contains_key(id);
        let has_all = |(id, coords): (&NodeId, &BTreeMap<Coords, ChunkChange>)| {
            let known = chunks.get(id);
            is_whole(id) || coords.keys().all(|coords| known.is_some_and(|known| known.contains_key(coords)))
        };
        changes.created.iter().all(|node| is_whole(&node.id))
            && changes.deleted.iter().all(|node| is_whole(&node.id))
            && changes.updated.iter().all(|node| is_whole(&node.id) || updated.contains_key(&node.id))
            && changes.moved.iter().all(|one| is_whole(&one.node) || moved.contains_key(&one.node))
            && changes.chunks.iter().all(has_all)
    }

    /// Returns the chunks that both `changes` and concurrent commits have changed, with the
    /// former's change of each.
    pub(super) fn changed_by_both<'a>(&self, changes: &'a ChangeSet) -> Vec<(NodeId, &'a Coords, &'a ChunkChange)> {
        let arrays = changes.chunks.iter().filter_map(|(id, ours)| Some((*id, ours, self.chunks.get(id)?)));
        let both = arrays.flat_map(|(id, ours, theirs)| {
            let both = ours.iter().filter(|(coords, _)| theirs.contains_key(*coords));
            both.map(move |(coords, change)| (id, coords, change))
        });
        both.collect()
    }
}

/// Returns true if each of `changes` is to a node or chunk that one of `logs` lists.
pub(crate) fn are_logged(logs: &[TransactionLog], changes: &ChangeSet) -> Result<bool> {
    Ok(ConcurrentChanges::read_logs(logs.iter().map(|log| (0, log)), changes)?.cover(changes))
}

/// Node of a snapshot.
struct StoredNode<'a> {
    path: &'a str,
    is_array: bool,
    zarr_json: &'a [u8],
}

/// Nodes of a snapshot, by id and by path.
struct Hierarchy<'a> {
    by_id: HashMap<NodeId, StoredNode<'a>>,
    by_path: HashMap<&'a str, NodeId>,
}

impl<'a> Hierarchy<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let stored =
            |node: Node<'a>| StoredNode { path: node.path, is_array: node.is_array(), zarr_json: node.zarr_json };
        let by_id: HashMap<NodeId, StoredNode<'a>> = snapshot.nodes().map(|node| (node.id, stored(node))).collect();
        let by_path = by_id.iter().map(|(id, node)| (node.path, *id)).collect();
        Hierarchy { by_id, by_path }
    }

    /// Returns the content of a node's `zarr.json`.
    fn document(&self, id: &NodeId) -> Option<&'a [u8]> {
        self.by_id.get(id).map(|node| node.zarr_json)
    }
}

struct ConflictSet<'a> {
    commits: &'a [ConcurrentCommit],
    settlements: &'a Settlements,
    /// Nodes whose documents are in conflict. Which of their chunks have a place depends on how
    /// that is settled.
    undecided: HashSet<NodeId>,
    /// Chunks of the change set that give way, as the user has settled.
    giving_way: ChunkSet,
    /// Keyed by path, kind and position of the commit.
    conflicts: BTreeMap<(String, ConflictKind, usize), Conflict>,
}

impl ConflictSet<'_> {
    /// Adds a conflict, or more chunks of it, and returns it; none if there is no commit that it
    /// could be with.
    fn add(&mut self, kind: ConflictKind, path: &str, coords: Vec<Vec<u32>>, at: usize) -> Option<&mut Conflict> {
        let at = at.min(self.commits.len().saturating_sub(1));
        let commit = self.commits.get(at)?;
        let conflict = self.conflicts.entry((path.to_owned(), kind, at)).or_insert_with(|| {
            let path = path.to_owned();
            let message = commit.message.clone();
            let other = commit.id;
            Conflict { kind, path, coords: Vec::new(), members: Vec::new(), other, message, own: OwnChange::Path }
        });
        conflict.coords.extend(coords);
        Some(conflict)
    }

    /// Adds a conflict about `members` of the `zarr.json` at `path`.
    fn add_members(&mut self, path: &str, members: Vec<String>, at: usize) {
        if let Some(conflict) = self.add(ConflictKind::ZarrMetadataDoubleUpdate, path, Vec::new(), at) {
            conflict.members = members;
        }
    }

    /// Adds a conflict at `path` with what of the change set it is about.
    fn add_with(&mut self, kind: ConflictKind, path: &str, own: OwnChange, at: usize) {
        if let Some(conflict) = self.add(kind, path, Vec::new(), at) {
            conflict.own = own;
        }
    }

    /// Returns the side that wins `member` of the document at `path`, which the commit at position
    /// `at` changed.
    fn side_of_member(&self, path: &str, member: &str, at: usize) -> Option<Side> {
        self.settlements.member(path, member, self.commits.get(at)?.id)
    }

    /// Returns the side that wins the chunk at `coords`, which the commits at positions `by`
    /// changed.
    fn side_of_chunk(&self, path: &str, coords: &Coords, by: &CommitPositions) -> Option<Side> {
        let commits: Option<Vec<ObjectId>> = by.iter().map(|at| Some(self.commits.get(*at)?.id)).collect();
        self.settlements.chunk(path, coords, &commits?)
    }

    /// Adds one conflict per commit that changed any of `chunks`, with the chunks that it changed.
    fn add_chunks<'c>(
        &mut self,
        kind: ConflictKind,
        path: &str,
        chunks: impl Iterator<Item = (&'c Coords, &'c CommitPositions)>,
    ) {
        let mut by_commit: BTreeMap<usize, Vec<Vec<u32>>> = BTreeMap::new();
        for (coords, by) in chunks {
            by.iter().for_each(|at| by_commit.entry(*at).or_default().push(coords.to_vec()));
        }
        for (at, coords) in by_commit {
            self.add(kind, path, coords, at);
        }
    }
}

/// Chunks, by array.
pub type ChunkSet = BTreeMap<NodeId, BTreeSet<Coords>>;

/// Result of a search for conflicts.
#[derive(Debug)]
pub(super) struct FoundConflicts {
    /// Conflicts that are not settled.
    pub(super) conflicts: Vec<Conflict>,
    /// Documents that both sides changed, with the changes of both.
    pub(super) merged: MergedDocuments,
    /// Chunks that are settled to give way to those of the commits.
    pub(super) giving_way: ChunkSet,
}

/// Commits after a snapshot.
pub(super) struct Concurrent<'a> {
    /// The commits, oldest first.
    pub(super) commits: &'a [ConcurrentCommit],
    /// Changes that they made.
    pub(super) changes: &'a ConcurrentChanges,
    /// Chunks for which both sides end up with the same bytes, or the commits with those of the
    /// snapshot before them.
    pub(super) agreed: &'a ChunkSet,
}

/// Returns all conflicts of `changes`, made for `base`, with the commits of `concurrent`, which led
/// to `tip`, but for those that are settled.
pub(super) fn find(
    base: &Snapshot,
    tip: &Snapshot,
    changes: &ChangeSet,
    concurrent: &Concurrent<'_>,
    settlements: &Settlements,
) -> Result<FoundConflicts> {
    let Concurrent { commits, changes: theirs, agreed } = concurrent;
    let _room = (base.room_for_table()?, tip.room_for_table()?);
    let before = Hierarchy::new(base);
    let after = Hierarchy::new(tip);
    let mut found = ConflictSet {
        commits,
        settlements,
        undecided: HashSet::new(),
        giving_way: ChunkSet::new(),
        conflicts: BTreeMap::new(),
    };
    let path_of = |id: &NodeId| before.by_id.get(id).map_or("", |node| node.path);
    for id in touched(changes) {
        if let Some(&at) = theirs.moved.get(&id) {
            found.add(ConflictKind::MoveOperationCannotBeRebased, path_of(&id), Vec::new(), at);
        }
    }
    for moved in &changes.moved {
        if let Some(&at) = theirs.deleted.get(&moved.node) {
            found.add(ConflictKind::MoveOperationCannotBeRebased, &moved.from, Vec::new(), at);
        }
    }
    deletions(changes, theirs, &before, &after, &mut found);
    let merged = updates(changes, theirs, &before, &after, &mut found)?;
    chunks(changes, theirs, agreed, &path_of, &mut found);
    chunks_without_place(changes, theirs, [&before, &after], &merged, &mut found)?;
    // Two nodes with one id would share their chunks. One that they have deleted again does not
    // come back.
    let deleted = changes.deleted_ids();
    for node in changes.created.iter().filter(|node| !deleted.contains(&node.id)) {
        let at = theirs.created.get(&node.id).copied();
        if let Some(at) = at.or_else(|| after.by_id.contains_key(&node.id).then_some(usize::MAX)) {
            found.add(ConflictKind::NewNodeConflictsWithExistingNode, &node.path, Vec::new(), at);
        }
    }
    path_conflicts(changes, theirs, &before, &after, &mut found);
    Ok(FoundConflicts { conflicts: found.conflicts.into_values().collect(), merged, giving_way: found.giving_way })
}

/// Returns the nodes of the base that a change set touches.
fn touched(changes: &ChangeSet) -> impl Iterator<Item = NodeId> + '_ {
    let deleted = changes.deleted.iter().map(|node| node.id);
    let updated = changes.updated.iter().map(|node| node.id);
    deleted.chain(updated).chain(changes.moved.iter().map(|m| m.node)).chain(changes.chunks.keys().copied())
}

fn deletions(
    changes: &ChangeSet,
    theirs: &ConcurrentChanges,
    before: &Hierarchy<'_>,
    after: &Hierarchy<'_>,
    found: &mut ConflictSet<'_>,
) {
    let created: HashSet<NodeId> = changes.created.iter().map(|node| node.id).collect();
    for node in &changes.deleted {
        let kind = if node.is_array { ConflictKind::DeleteOfUpdatedArray } else { ConflictKind::DeleteOfUpdatedGroup };
        // A node that both sides deleted is no conflict, whatever the commits did to it before. But
        // one side may have moved it.
        if let Some(&deleted) = theirs.deleted.get(&node.id) {
            let there = |id: &NodeId| after.by_id.contains_key(id) && !before.by_id.contains_key(id);
            let moved = find_moved(node.id, there).map(|new| theirs.created.get(&new).copied().unwrap_or(deleted));
            let moved = moved.or_else(|| find_moved(node.id, |id| created.contains(id)).map(|_| deleted));
            if let Some(at) = moved {
                found.add(ConflictKind::MoveOperationCannotBeRebased, &node.path, Vec::new(), at);
            }
            continue;
        }
        if let Some(&at) = theirs.updated.get(&node.id) {
            found.add(kind, &node.path, Vec::new(), at);
        }
        found.add_chunks(kind, &node.path, theirs.chunks.get(&node.id).into_iter().flatten());
    }
}

/// Finds conflicts of changed documents. Returns those that were merged.
fn updates(
    changes: &ChangeSet,
    theirs: &ConcurrentChanges,
    before: &Hierarchy<'_>,
    after: &Hierarchy<'_>,
    found: &mut ConflictSet<'_>,
) -> Result<MergedDocuments> {
    let mut merged = MergedDocuments::new();
    for node in &changes.updated {
        if let Some(&at) = theirs.deleted.get(&node.id) {
            let kind = if node.is_array {
                ConflictKind::ZarrMetadataUpdateOfDeletedArray
            } else {
                ConflictKind::ZarrMetadataUpdateOfDeletedGroup
            };
            found.add(kind, &node.path, Vec::new(), at);
        }
        if let Some(&at) = theirs.updated.get(&node.id) {
            let side_of = |member: &str| found.side_of_member(&node.path, member, at);
            let merging = merge_document(node, before.document(&node.id), after.document(&node.id), &side_of)?;
            match merging {
                MergedDocument::Whole(_) if is_smaller_and_larger(node, [before, after]) => {
                    let kind = ConflictKind::ChunksUpdatedOutsideNewShape;
                    found.add(kind, &node.path, Vec::new(), at);
                    found.undecided.insert(node.id);
                    continue;
                }
                MergedDocument::Whole(document) => drop(merged.insert(node.id, document.into())),
                MergedDocument::Conflict(members) => {
                    found.add_members(&node.path, members, at);
                    found.undecided.insert(node.id);
                    continue;
                }
            }
        }
        let Some(written) = theirs.chunks.get(&node.id).filter(|_| node.is_array) else { continue };
        let old = before.document(&node.id).unwrap_or_default();
        let grid_of = merged.get(&node.id).unwrap_or(&node.zarr_json);
        let keeps = DocumentChange { old, new: &node.zarr_json, grid_of }.kept_places()?;
        let lost = written.iter().filter(|(coords, _)| !keeps.has(coords));
        found.add_chunks(ConflictKind::ChunksUpdatedOutsideNewShape, &node.path, lost);
    }
    Ok(merged)
}

/// Returns true if both sides gave the array other shapes along the same dimension, and one of them
/// made it smaller there. The chunks that it deleted for that would be missing in the larger one.
///
/// A document that cannot be read has no chunks that anything was deleted of.
fn is_smaller_and_larger(node: &WrittenNode, [before, after]: [&Hierarchy<'_>; 2]) -> bool {
    let grid = |document: &[u8]| ArrayMetadata::parse(document).ok().map(|array| array.grid);
    let theirs_and_old = || Some([grid(after.document(&node.id)?)?, grid(before.document(&node.id)?)?]);
    let (true, Some(ours), Some([theirs, old])) = (node.is_array, grid(&node.zarr_json), theirs_and_old()) else {
        return false;
    };
    if ours == old || theirs == old || ours == theirs {
        return false;
    }
    if old.len() != ours.len() || old.len() != theirs.len() {
        return true;
    }
    let mut dimensions = std::iter::zip(&old, std::iter::zip(&ours, &theirs));
    dimensions
        .any(|(old, (ours, theirs))| ours != theirs && ours != old && theirs != old && (ours < old || theirs < old))
}

/// Finds chunks of `changes` for which the documents of commits have no place.
fn chunks_without_place(
    changes: &ChangeSet,
    theirs: &ConcurrentChanges,
    [before, after]: [&Hierarchy<'_>; 2],
    merged: &MergedDocuments,
    found: &mut ConflictSet<'_>,
) -> Result<()> {
    let is_decided = |id: &NodeId| !found.undecided.contains(id);
    let changed: Vec<_> = changes.chunks.iter().filter(|(id, ours)| !ours.is_empty() && is_decided(id)).collect();
    for (id, ours) in changed {
        // Conflicts of an array that is deleted or moved are found elsewhere.
        let (Some(&at), Some(old), Some(new)) = (theirs.updated.get(id), before.by_id.get(id), after.document(id))
        else {
            continue;
        };
        let grid_of = merged.get(id).map_or(new, |document| document);
        let keeps = DocumentChange { old: old.zarr_json, new, grid_of }.kept_places()?;
        // Where the array ends now there is nothing left to delete.
        let needs_place =
            |change: &ChunkChange| !matches!((change, &keeps), (ChunkChange::Delete, KeptPlaces::Grid(_)));
        let lost = ours.iter().filter(|(coords, change)| needs_place(change) && !keeps.has(coords));
        let lost: Vec<Vec<u32>> = lost.map(|(coords, _)| coords.to_vec()).collect();
        if !lost.is_empty() {
            found.add(ConflictKind::ChunksUpdatedInUpdatedArray, old.path, lost, at);
        }
    }
    Ok(())
}

fn chunks<'a>(
    changes: &ChangeSet,
    theirs: &ConcurrentChanges,
    agreed: &ChunkSet,
    path_of: &impl Fn(&NodeId) -> &'a str,
    found: &mut ConflictSet<'_>,
) {
    for (id, ours) in changes.chunks.iter().filter(|(_, ours)| !ours.is_empty()) {
        let path = path_of(id);
        if let Some(&at) = theirs.deleted.get(id) {
            found.add(ConflictKind::ChunksUpdatedInDeletedArray, path, Vec::new(), at);
        }
        let Some(others) = theirs.chunks.get(id) else { continue };
        // The smaller of the two lists is iterated.
        let both: Vec<(&Coords, &CommitPositions)> = if ours.len() < others.len() {
            ours.keys().filter_map(|coords| Some((coords, others.get(coords)?))).collect()
        } else {
            others.iter().filter(|(coords, _)| ours.contains_key(*coords)).collect()
        };
        let is_open = |coords: &Coords| !agreed.get(id).is_some_and(|agreed| agreed.contains(coords));
        let mut open = Vec::new();
        for (coords, by) in both.into_iter().filter(|(coords, _)| is_open(coords)) {
            match found.side_of_chunk(path, coords, by) {
                None => open.push((coords, by)),
                Some(Side::Ours) => {}
                Some(Side::Theirs) => drop(found.giving_way.entry(*id).or_default().insert(coords.clone())),
            }
        }
        found.add_chunks(ConflictKind::ChunkDoubleUpdate, path, open.into_iter());
    }
}

/// Finds conflicts at the paths where either side puts a node.
fn path_conflicts(
    changes: &ChangeSet,
    theirs: &ConcurrentChanges,
    before: &Hierarchy<'_>,
    after: &Hierarchy<'_>,
    found: &mut ConflictSet<'_>,
) {
    let ours: HashMap<&str, bool> = changes
        .created
        .iter()
        .map(|node| (node.path.as_str(), node.is_array))
        .chain(changes.moved.iter().map(|m| (m.to.as_str(), m.is_array)))
        .collect();
    let removed_ids = changes.removed_ids();
    let removed_paths = changes.removed_paths();
    let last = usize::MAX;
    let by = |id: &NodeId| theirs.created.get(id).or(theirs.moved.get(id)).copied().unwrap_or(last);
    let moved_to = changes.moved_to();
    let moved_here: HashSet<&str> = moved_to.values().copied().collect();
    for (path, is_array) in &ours {
        if let Some(id) = after.by_path.get(path).filter(|id| !removed_ids.contains(id)) {
            // One that was moved there, or that takes the place of the base's, has more than its
            // document that is new.
            let is_new = !before.by_path.contains_key(path) && !moved_here.contains(path);
            let is_of_groups = is_new && !is_array && after.by_id.get(id).is_some_and(|node| !node.is_array);
            let own = if is_of_groups { OwnChange::NewGroup } else { OwnChange::Path };
            found.add_with(ConflictKind::NewNodeConflictsWithExistingNode, path, own, by(id));
        }
        for above in ancestors(path) {
            let there = after.by_path.get(above).filter(|id| !removed_ids.contains(id));
            let was = before.by_path.get(above).filter(|id| !removed_ids.contains(id));
            if let Some(id) =
                there.filter(|id| was != Some(id) && after.by_id.get(id).is_some_and(|node| node.is_array))
            {
                found.add(ConflictKind::NewNodeInInvalidGroup, path, Vec::new(), by(id));
            }
        }
        // The nearest node above in the base must still be there, unless the change set itself puts
        // one there.
        for above in ancestors(path) {
            if ours.contains_key(above) {
                break;
            }
            let Some(id) = before.by_path.get(above).filter(|id| !removed_ids.contains(id)) else { continue };
            if after.by_path.get(above) != Some(id) {
                let at = theirs.deleted.get(id).or(theirs.moved.get(id)).copied().unwrap_or(last);
                found.add(ConflictKind::NewNodeInDeletedGroup, path, Vec::new(), at);
            }
            break;
        }
    }
    for (id, at) in theirs.created.iter().chain(&theirs.moved) {
        let Some(StoredNode { path, .. }) = after.by_id.get(id).filter(|_| !removed_ids.contains(id)) else { continue };
        for above in ancestors(path) {
            if removed_paths.contains(above) {
                let now = before.by_path.get(above).and_then(|id| moved_to.get(id)).copied();
                let own = OwnChange::Removal(now.unwrap_or(above).to_owned());
                found.add_with(ConflictKind::NewNodeInDeletedGroup, path, own, *at);
            } else if ours.get(above) == Some(&true) {
                found.add(ConflictKind::NewNodeInInvalidGroup, path, Vec::new(), *at);
            }
        }
    }
}

/// Returns the paths above `path`, nearest first, the root last.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent(path), |path| parent(path))
}
