//! Detects conflicts between a change set and concurrent commits.
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

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::changes::{ChangeSet, ChunkChange, WrittenNode};
use super::moves::find_moved;
use super::nodes::parent;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::{Meter, SharedReservation};
use icechunkfs_base::printable;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::transaction_log::{NODE_BYTES, NodeChange, TransactionLog};
use icechunkfs_format::zarr::array::ArrayMetadata;
use icechunkfs_format::zarr::document;
use icechunkfs_format::zarr::{Coords, is_in_grid};

/// Reason why a change set conflicts with a concurrent commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ConflictKind {
    /// The commit moved a node that the change set touches, or deleted one that the change set
    /// moves.
    MoveOperationCannotBeRebased,
    /// A node exists already where the change set creates one.
    NewNodeConflictsWithExistingNode,
    /// One side created an array where the other created a node below.
    NewNodeInInvalidGroup,
    /// One side removed or moved a group, the other created a node in it.
    NewNodeInDeletedGroup,
    /// Both sides changed the same `zarr.json`.
    ZarrMetadataDoubleUpdate,
    /// The change set updates the `zarr.json` of an array that the commit deleted.
    ZarrMetadataUpdateOfDeletedArray,
    /// The change set updates the `zarr.json` of a group that the commit deleted.
    ZarrMetadataUpdateOfDeletedGroup,
    /// Both sides changed the same chunks.
    ChunkDoubleUpdate,
    /// The change set changes chunks of an array that the commit deleted.
    ChunksUpdatedInDeletedArray,
    /// The change set changes chunks of an array whose `zarr.json` the commit changed.
    ChunksUpdatedInUpdatedArray,
    /// The commit changed chunks that the change set's new `zarr.json` drops or decodes in another
    /// way.
    ChunksUpdatedOutsideNewShape,
    /// The change set deletes an array that the commit changed.
    DeleteOfUpdatedArray,
    /// The change set deletes a group whose `zarr.json` the commit changed.
    DeleteOfUpdatedGroup,
    /// The commit has a node or a chunk under a name that is untracked here.
    UntrackedNameExists,
    /// The commit brings commits to the branch that the merge brings, too, or may do so: the merge
    /// has to be planned again.
    MergedByBoth,
}

impl ConflictKind {
    /// Returns a text for display: what happened at the conflict's path.
    pub fn describe(self) -> &'static str {
        match self {
            ConflictKind::MoveOperationCannotBeRebased => "one side moved a node that the other changed",
            ConflictKind::NewNodeConflictsWithExistingNode => "both created a node here",
            ConflictKind::NewNodeInInvalidGroup => "a node was created below an array",
            ConflictKind::NewNodeInDeletedGroup => "a node was created in a group that the other side removed or moved",
            ConflictKind::ZarrMetadataDoubleUpdate => "both changed zarr.json",
            ConflictKind::ZarrMetadataUpdateOfDeletedArray => "zarr.json of an array that they deleted was changed",
            ConflictKind::ZarrMetadataUpdateOfDeletedGroup => "zarr.json of a group that they deleted was changed",
            ConflictKind::ChunkDoubleUpdate => "both changed the same chunks",
            ConflictKind::ChunksUpdatedInDeletedArray => "chunks of an array that they deleted were changed",
            ConflictKind::ChunksUpdatedInUpdatedArray => "chunks were changed, and they changed zarr.json",
            ConflictKind::ChunksUpdatedOutsideNewShape => {
                "they changed chunks for which the new zarr.json has no place"
            }
            ConflictKind::DeleteOfUpdatedArray => "an array was deleted that they changed",
            ConflictKind::DeleteOfUpdatedGroup => "a group was deleted that they changed",
            ConflictKind::UntrackedNameExists => "the name is untracked here, and they committed something under it",
            ConflictKind::MergedByBoth => "both brought the same commits to the branch",
        }
    }
}

/// Change that conflicts with a concurrent commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// Kind of conflict.
    pub kind: ConflictKind,
    /// Path of the node in the change set.
    pub path: String,
    /// Chunks in conflict, if the conflict is about chunks.
    pub coords: Vec<Vec<u32>>,
    /// Id of the concurrent commit.
    pub other: ObjectId,
    /// Beginning of the message of the concurrent commit.
    pub message: String,
}

/// Returns true if `--on-conflict` solves all conflicts: they are about chunks that both sides
/// changed.
pub(crate) fn are_solvable(conflicts: &[Conflict]) -> bool {
    conflicts.iter().all(|conflict| conflict.kind == ConflictKind::ChunkDoubleUpdate)
}

impl std::fmt::Display for Conflict {
    /// One line, whatever names and messages have in them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:?}: {}", printable::line(&self.path), self.kind, self.kind.describe())?;
        if !self.coords.is_empty() {
            write!(f, "; chunks {:?}", self.coords)?;
        }
        write!(f, " (commit {} \"{}\")", self.other, printable::line(&self.message))
    }
}

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

/// Concurrent changes by node, each with the position of the first commit that made it.
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
        let touched: HashSet<NodeId> = touched(changes).collect();
        let mut theirs = ConcurrentChanges::default();
        let mut meter = Meter::new("the changes of concurrent commits");
        for (at, log) in commits.iter().enumerate().flat_map(|(at, commit)| commit.logs.iter().map(move |l| (at, l))) {
            for (change, node) in log.changed_nodes() {
                meter.count(NODE_BYTES)?;
                let list = match change {
                    NodeChange::NewGroups | NodeChange::NewArrays => &mut theirs.created,
                    NodeChange::DeletedGroups | NodeChange::DeletedArrays => &mut theirs.deleted,
                    NodeChange::UpdatedGroups | NodeChange::UpdatedArrays => &mut theirs.updated,
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

/// Nodes of a snapshot, by id and by path.
struct Hierarchy<'a> {
    by_id: HashMap<NodeId, (&'a str, bool)>,
    by_path: HashMap<&'a str, NodeId>,
}

impl<'a> Hierarchy<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let by_id: HashMap<_, _> = snapshot.nodes().map(|node| (node.id, (node.path, node.is_array()))).collect();
        let by_path = by_id.iter().map(|(id, (path, _))| (*path, *id)).collect();
        Hierarchy { by_id, by_path }
    }
}

struct ConflictSet<'a> {
    commits: &'a [ConcurrentCommit],
    /// Keyed by path, kind and position of the commit.
    conflicts: BTreeMap<(String, ConflictKind, usize), Conflict>,
}

impl ConflictSet<'_> {
    fn add(&mut self, kind: ConflictKind, path: &str, coords: Vec<Vec<u32>>, at: usize) {
        let at = at.min(self.commits.len().saturating_sub(1));
        let Some(commit) = self.commits.get(at) else { return };
        let conflict = self.conflicts.entry((path.to_owned(), kind, at)).or_insert_with(|| {
            let path = path.to_owned();
            let message = commit.message.clone();
            Conflict { kind, path, coords: Vec::new(), other: commit.id, message }
        });
        conflict.coords.extend(coords);
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

/// Returns all conflicts of `changes`, made for `base`, with `commits`, oldest first, which led to
/// `tip`. For `agreed` chunks both sides end up with the same bytes, or the commits with those of
/// the base.
pub(super) fn find(
    base: &Snapshot,
    tip: &Snapshot,
    changes: &ChangeSet,
    commits: &[ConcurrentCommit],
    theirs: &ConcurrentChanges,
    agreed: &ChunkSet,
) -> Result<Vec<Conflict>> {
    let _room = (base.room_for_table()?, tip.room_for_table()?);
    let before = Hierarchy::new(base);
    let after = Hierarchy::new(tip);
    let mut found = ConflictSet { commits, conflicts: BTreeMap::new() };
    let path_of = |id: &NodeId| before.by_id.get(id).map_or("", |(path, _)| *path);
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
    updates(changes, base, theirs, &mut found)?;
    chunks(changes, theirs, agreed, &path_of, &mut found);
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
    Ok(found.conflicts.into_values().collect())
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

fn updates(
    changes: &ChangeSet,
    base: &Snapshot,
    theirs: &ConcurrentChanges,
    found: &mut ConflictSet<'_>,
) -> Result<()> {
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
            found.add(ConflictKind::ZarrMetadataDoubleUpdate, &node.path, Vec::new(), at);
        }
        let Some(written) = theirs.chunks.get(&node.id).filter(|_| node.is_array) else { continue };
        let old = base.nodes().find(|stored| stored.id == node.id);
        let lost = without_place(node, old.map(|stored| stored.zarr_json), written)?;
        found.add_chunks(ConflictKind::ChunksUpdatedOutsideNewShape, &node.path, lost.into_iter());
    }
    Ok(())
}

/// Returns those of the `written` chunks that the new `zarr.json` drops or would decode in another
/// way.
fn without_place<'a>(
    node: &WrittenNode,
    old: Option<&[u8]>,
    written: &'a BTreeMap<Coords, CommitPositions>,
) -> Result<Vec<(&'a Coords, &'a CommitPositions)>> {
    // A chunk's bytes have a meaning only together with these members.
    let meaning = ["data_type", "chunk_grid", "codecs", "storage_transformers"];
    if document::first_difference(&node.zarr_json, old.unwrap_or_default(), &meaning)?.is_some() {
        return Ok(written.iter().collect());
    }
    let grid = ArrayMetadata::parse(&node.zarr_json)?.grid;
    Ok(written.iter().filter(|(coords, _)| !is_in_grid(coords, &grid)).collect())
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
        if let Some(&at) = theirs.updated.get(id) {
            found.add(ConflictKind::ChunksUpdatedInUpdatedArray, path, Vec::new(), at);
        }
        let Some(others) = theirs.chunks.get(id) else { continue };
        // The smaller of the two lists is iterated.
        let both: Vec<(&Coords, &CommitPositions)> = if ours.len() < others.len() {
            ours.keys().filter_map(|coords| Some((coords, others.get(coords)?))).collect()
        } else {
            others.iter().filter(|(coords, _)| ours.contains_key(*coords)).collect()
        };
        let is_open = |coords: &Coords| !agreed.get(id).is_some_and(|agreed| agreed.contains(coords));
        let both = both.into_iter().filter(|(coords, _)| is_open(coords));
        found.add_chunks(ConflictKind::ChunkDoubleUpdate, path, both);
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
    for path in ours.keys() {
        if let Some(id) = after.by_path.get(path).filter(|id| !removed_ids.contains(id)) {
            found.add(ConflictKind::NewNodeConflictsWithExistingNode, path, Vec::new(), by(id));
        }
        for above in ancestors(path) {
            let there = after.by_path.get(above).filter(|id| !removed_ids.contains(id));
            let was = before.by_path.get(above).filter(|id| !removed_ids.contains(id));
            if let Some(id) = there.filter(|id| was != Some(id) && after.by_id.get(id).is_some_and(|(_, array)| *array))
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
        let Some((path, _)) = after.by_id.get(id).filter(|_| !removed_ids.contains(id)) else { continue };
        for above in ancestors(path) {
            if removed_paths.contains(above) {
                found.add(ConflictKind::NewNodeInDeletedGroup, path, Vec::new(), *at);
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
