//! The later commits that keep a revert from being made, without those that took each other back.
//!
//! A commit and its own revert leave what was before them. Naming them would lead the user in
//! circles: to the revert, to the revert of that, and so on. So the states that the commits left
//! are compared, in what is in conflict and nothing else.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::authors::{has_made, ids_of};
use super::claims::Touched;
use crate::commit::changes::ChangeSet;
use crate::commit::conflict::{Conflict, ConflictKind};
use crate::compare::changes::changes_between;
use crate::reader::Reader;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Metered;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::zarr::{Coords, is_in_grid};

/// Most later commits whose logs are read.
const MAX_LOGS: usize = 100;
/// Most commits whose states are compared, each with each.
const MAX_STATES: usize = 12;
/// Most chunks of a conflict that are followed one by one.
const MAX_CHUNKS: usize = 64;
/// Most nodes of which members of the document are followed one by one.
const MAX_DOCUMENTS: usize = 64;
/// Most bytes of such a document: there is one of each state in memory.
const MAX_DOCUMENT: usize = 64 << 10;

/// Returns which of the commits `later`, newest first, have to be taken back before `common`, the
/// state before them, is back in everything that `conflicts` are about; `now` is the newest state.
/// Each of them has left what is there of that when those named before it are taken back; what
/// else it changed may stand in its own way. Returns nothing
/// if there are too many commits to tell, or if no log is left of one.
pub(super) async fn obstacles(
    repository: &Repository,
    reader: &Arc<Reader>,
    later: &[ObjectId],
    [now, common]: [&Snapshot; 2],
    conflicts: &[Conflict],
) -> Result<Vec<SnapshotInfo>> {
    if later.len() > MAX_LOGS {
        return Ok(Vec::new());
    }
    let ids = ids_of(conflicts, [now, common]);
    let mut commits = Vec::new();
    let mut states = Vec::new();
    for id in later {
        let commit = repository.commit(*id).await?;
        let Some(touched) = Touched::read(repository, &[&commit]).await? else { return Ok(Vec::new()) };
        let is_in_conflict =
            |conflict: &Conflict| ids.get(&conflict.path).is_some_and(|node| has_made(&touched, *node, conflict));
        if !conflicts.iter().any(is_in_conflict) {
            continue;
        }
        if states.len() == MAX_STATES {
            return Ok(Vec::new());
        }
        states.push(repository.snapshot(*id, MAX_SNAPSHOT).await?);
        commits.push(commit);
    }
    let mut states =
        States { all: states.iter().chain([common]).collect(), reader, known: HashMap::new(), documents: Vec::new() };
    let with_members = conflicts.iter().filter(|conflict| !conflict.members.is_empty());
    states.read_documents(
        &with_members.filter_map(|conflict| ids.get(&conflict.path)).take(MAX_DOCUMENTS).copied().collect(),
    );
    let mut needed = BTreeSet::new();
    for conflict in conflicts {
        let Some(node) = ids.get(&conflict.path) else { continue };
        for thing in Thing::all_of(conflict, *node) {
            states.add_needed(&thing, commits.len(), &mut needed).await?;
        }
    }
    Ok(needed.into_iter().filter_map(|position| commits.get(position).cloned()).collect())
}

/// States that commits left, newest first, and the one before them.
struct States<'a> {
    all: Vec<&'a Snapshot>,
    reader: &'a Arc<Reader>,
    /// Differences between two of them, by their positions.
    known: HashMap<[usize; 2], Metered<ChangeSet>>,
    /// Documents of some nodes in each of them.
    documents: Vec<HashMap<NodeId, Value>>,
}

impl States<'_> {
    /// Adds the positions of those of the `count` commits that left another `thing` than was there
    /// before, and that no other one took back.
    async fn add_needed(&mut self, thing: &Thing<'_>, count: usize, needed: &mut BTreeSet<usize>) -> Result<()> {
        let mut next = 0;
        while next < count {
            // The oldest one that left what is there: those since took each other back.
            let mut oldest = next;
            for earlier in (next + 1..self.all.len()).rev() {
                if self.are_same(thing, earlier, next).await? {
                    oldest = earlier;
                    break;
                }
            }
            if oldest < count {
                needed.insert(oldest);
            }
            next = oldest + 1;
        }
        Ok(())
    }

    /// Reads the documents of `nodes`, as far as they are short.
    fn read_documents(&mut self, nodes: &HashSet<NodeId>) {
        let read = |state: &&Snapshot| -> HashMap<NodeId, Value> {
            let wanted = state.nodes().filter(|node| nodes.contains(&node.id) && node.zarr_json.len() <= MAX_DOCUMENT);
            wanted.filter_map(|node| Some((node.id, serde_json::from_slice(node.zarr_json).ok()?))).collect()
        };
        self.documents = if nodes.is_empty() { Vec::new() } else { self.all.iter().map(read).collect() };
    }

    /// Returns true if two states have the same `member` of the document of `node`; none if they do
    /// not tell.
    fn have_same_member(&self, node: NodeId, member: &str, states: [usize; 2]) -> Option<bool> {
        let [one, other] = states.map(|state| self.documents.get(state).and_then(|all| all.get(&node)));
        // A name may have slashes in it: then no state has such a member.
        let is_known = self
            .documents
            .iter()
            .filter_map(|all| all.get(&node))
            .any(|document| member_of(document, member).is_some());
        is_known.then(|| Some(member_of(one?, member) == member_of(other?, member)))?
    }

    async fn are_same(&mut self, thing: &Thing<'_>, earlier: usize, later: usize) -> Result<bool> {
        if let Part::Member(member) = thing.part
            && let Some(are_same) = self.have_same_member(thing.node, member, [earlier, later])
        {
            return Ok(are_same);
        }
        let (Some(before), Some(after)) = (self.all.get(earlier), self.all.get(later)) else { return Ok(false) };
        let changes = match self.known.entry([earlier, later]) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(changes_between(self.reader, before, after).await?),
        };
        Ok(!thing.is_in(changes))
    }
}

/// Part of a node that a conflict is about.
struct Thing<'a> {
    node: NodeId,
    part: Part<'a>,
}

enum Part<'a> {
    /// The node with all that it has.
    Whole,
    Document,
    /// Member of the document, with slashes between the levels.
    Member(&'a str),
    Chunks(&'a [Vec<u32>]),
}

/// Returns `member` of `document`, with slashes between the levels.
fn member_of<'a>(document: &'a Value, member: &str) -> Option<&'a Value> {
    member.split('/').try_fold(document, |value, name| value.get(name))
}

impl<'a> Thing<'a> {
    /// Returns the things that `conflict` is about, at `node`: what became of one says nothing
    /// about the others.
    fn all_of(conflict: &'a Conflict, node: NodeId) -> Vec<Self> {
        let coords = conflict.coords.as_slice();
        if conflict.kind == ConflictKind::ZarrMetadataDoubleUpdate && !conflict.members.is_empty() {
            let members = conflict.members.iter().map(|member| Part::Member(member));
            return members.map(|part| Thing { node, part }).collect();
        }
        let of_document = match conflict.kind {
            ConflictKind::ChunkDoubleUpdate => None,
            ConflictKind::ZarrMetadataDoubleUpdate => Some(Part::Document),
            _ if coords.is_empty() => Some(Part::Whole),
            _ => Some(Part::Document),
        };
        // Many chunks are compared together, which names some commits too many.
        let at_once = if coords.len() > MAX_CHUNKS { coords.len() } else { 1 };
        let chunks = coords.chunks(at_once).map(Part::Chunks);
        of_document.into_iter().chain(chunks).map(|part| Thing { node, part }).collect()
    }

    /// Returns true if `changes` change the thing.
    fn is_in(&self, changes: &ChangeSet) -> bool {
        let node = self.node;
        let appears = changes.created.iter().any(|created| created.id == node);
        let disappears = changes.deleted.iter().any(|deleted| deleted.id == node);
        if appears || disappears {
            return true;
        }
        let moves = || changes.moved.iter().any(|moved| moved.node == node);
        let updated = changes.updated.iter().find(|updated| updated.id == node);
        let chunks = changes.chunks.get(&node);
        match self.part {
            Part::Whole => updated.is_some() || chunks.is_some() || moves(),
            Part::Document | Part::Member(_) => updated.is_some() || moves(),
            Part::Chunks(coords) => {
                // Chunks that a smaller shape drops are in no list of changes.
                let grid = updated.and_then(|updated| updated.grid().ok());
                coords.iter().any(|coords| {
                    chunks.is_some_and(|chunks| chunks.contains_key(&Coords::from_slice(coords)))
                        || grid.as_ref().is_some_and(|grid| !is_in_grid(coords, grid))
                })
            }
        }
    }
}
