//! The change set of a restore, from the nodes of both snapshots.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::target::{ChunkRange, Target, node_at};
use crate::commit::changes::{ChangeSet, ChunkChange, DeletedNode, WrittenNode};
use crate::compare::changes::{ChunkChanges, add_chunks, chunk_changes};
use crate::compare::chunks::{ChunkDifferences, ChunkList};
use crate::compare::scope::is_below;
use crate::compare::{ArrayChunks, BATCH};
use crate::reader::Reader;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::{Node, Snapshot};
use icechunkfs_format::format::transaction_log::Move;
use icechunkfs_format::zarr::array::ArrayMetadata;
use icechunkfs_format::zarr::{Coords, document, is_in_grid};

/// Members of `zarr.json` that decide what the bytes of a chunk mean.
const CHUNK_MEMBERS: [&str; 4] = ["data_type", "chunk_grid", "codecs", "storage_transformers"];

/// Chunks that a message lists.
const LISTED: usize = 5;

/// Remarks on a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// Nodes of the source that are outside of the path now, with their paths now and the paths of
    /// their copies. They stay as they are.
    pub elsewhere: Vec<Elsewhere>,
    /// Groups above the path that were missing and are restored too.
    pub parents: Vec<String>,
}

/// Node that is copied because the original was moved away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Path of the copy.
    pub path: String,
    /// Path of the original.
    pub now: String,
}

/// Node of the source and its counterpart.
struct Match<'a> {
    source: Node<'a>,
    /// Path after the restore.
    path: String,
    /// Id after the restore.
    id: NodeId,
    /// The same node in the present snapshot.
    now: Option<Node<'a>>,
}

fn written(node: &Node<'_>, id: NodeId, path: &str) -> WrittenNode {
    let zarr_json = Bytes::copy_from_slice(node.zarr_json);
    WrittenNode { id, path: path.to_owned(), zarr_json, is_array: node.is_array() }
}

/// Returns the id of `node` of the source where it has no counterpart: its own, so that it is the
/// node that it was, also for branches that still have it. A copy of a node that is still there is
/// another one.
fn id_for(taken: &HashSet<NodeId>, node: &Node<'_>) -> Result<NodeId> {
    if taken.contains(&node.id) { NodeId::random() } else { Ok(node.id) }
}

/// Returns the path of a node of the source at or below `from`, moved to `to`.
fn moved_path(path: &str, from: &str, to: &str) -> String {
    if from == to {
        return path.to_owned();
    }
    let rest = path.get(from.trim_end_matches('/').len()..).unwrap_or_default();
    let moved = format!("{}{rest}", to.trim_end_matches('/'));
    if moved.is_empty() { "/".to_owned() } else { moved }
}

/// Returns true if `node` can become `other` and keep its chunks where both have the same: an array
/// of another rank, or whose chunks have other names, is replaced by a new one.
fn can_become(node: &Node<'_>, other: &Node<'_>) -> bool {
    if !node.is_array() || !other.is_array() {
        return node.is_array() == other.is_array();
    }
    let (Ok(one), Ok(other)) = (ArrayMetadata::parse(node.zarr_json), ArrayMetadata::parse(other.zarr_json)) else {
        return node.zarr_json == other.zarr_json;
    };
    one.key_encoding == other.key_encoding && one.grid.len() == other.grid.len()
}

/// Matches the nodes of the source below the target with those that are there now: by id, then by
/// path, each node once.
fn matches<'a>(now: &'a Snapshot, source: &'a Snapshot, target: &Target) -> Result<Vec<Match<'a>>> {
    let here: HashMap<NodeId, Node<'a>> =
        now.nodes().filter(|node| is_below(node.path, &target.node)).map(|node| (node.id, node)).collect();
    let by_path: HashMap<&str, NodeId> = here.values().map(|node| (node.path, node.id)).collect();
    let wanted: Vec<Node<'a>> = source.nodes().filter(|node| is_below(node.path, &target.source)).collect();
    let counterpart = |node: &Node<'_>| here.get(&node.id).filter(|other| can_become(other, node));
    let mut used: HashSet<NodeId> = wanted.iter().filter_map(counterpart).map(|node| node.id).collect();
    let taken: HashSet<NodeId> = now.nodes().map(|node| node.id).collect();
    let mut all = Vec::with_capacity(wanted.len());
    for node in wanted {
        let path = moved_path(node.path, &target.source, &target.node);
        let same = counterpart(&node).or_else(|| {
            let other = here.get(by_path.get(path.as_str())?)?;
            (can_become(other, &node) && used.insert(other.id)).then_some(other)
        });
        let id = same.map_or_else(|| id_for(&taken, &node), |same| Ok(same.id))?;
        all.push(Match { source: node, path, id, now: same.cloned() });
    }
    Ok(all)
}

/// Returns the changes that make everything at and below the target what the source has there.
pub(super) async fn subtree(
    reader: &Arc<Reader>,
    now: &Snapshot,
    source: &Snapshot,
    target: &Target,
) -> Result<(ChangeSet, Notes)> {
    let _room_now = (now.room_for_table()?, now.room_for_table()?);
    let _room = (source.room_for_table()?, source.room_for_table()?);
    let matches = matches(now, source, target)?;
    let mut meter = Meter::new("the changes between two snapshots");
    let mut changes = ChangeSet::default();
    let mut notes = Notes::default();
    let kept: HashSet<NodeId> = matches.iter().map(|one| one.id).collect();
    let gone = now.nodes().filter(|node| is_below(node.path, &target.node) && !kept.contains(&node.id));
    changes.deleted.extend(gone.map(|node| DeletedNode {
        id: node.id,
        path: node.path.to_owned(),
        is_array: node.is_array(),
    }));
    let infos = &[now.manifest_infos(), source.manifest_infos()];
    // Each future is boxed: the compiler cannot prove that one from a closure is `Send`.
    type Running<'a> = BoxFuture<'a, Result<(NodeId, Metered<ChunkChanges>)>>;
    let mut running: Vec<Running<'_>> = Vec::new();
    let elsewhere: HashMap<NodeId, &str> =
        now.nodes().filter(|node| !is_below(node.path, &target.node)).map(|node| (node.id, node.path)).collect();
    for one in &matches {
        let node = &one.source;
        if running.len() == BATCH {
            add_chunks(&mut changes, std::mem::take(&mut running), &mut meter).await?;
        }
        meter.count((2 * one.path.len() + node.zarr_json.len()) as u64)?;
        match &one.now {
            None => {
                changes.created.push(written(node, one.id, &one.path));
                if let Some(now) = elsewhere.get(&node.id) {
                    notes.elsewhere.push(Elsewhere { path: one.path.clone(), now: (*now).to_owned() });
                }
            }
            Some(before) => {
                if before.path != one.path {
                    let from = before.path.to_owned();
                    let to = one.path.clone();
                    changes.moved.push(Move { from, to, node: one.id, is_array: node.is_array() });
                }
                if before.zarr_json != node.zarr_json {
                    changes.updated.push(written(node, one.id, &one.path));
                }
            }
        }
        let Some(after) = ArrayChunks::parse(Some(node))? else { continue };
        let before = ArrayChunks::parse(one.now.as_ref())?;
        // Chunks that a smaller shape leaves outside are deleted, as by a program that resizes the
        // array.
        let grid = match before.as_ref() {
            Some(before) => std::iter::zip(before.grid(), after.grid()).map(|(now, then)| *now.max(then)).collect(),
            None => after.grid().to_vec(),
        };
        let (id, path): (_, &str) = (one.id, &one.path);
        running.push(Box::pin(async move {
            Ok((id, chunk_changes(reader, infos, before, after, &grid).await.context(|| path)?))
        }));
    }
    add_chunks(&mut changes, running, &mut meter).await?;
    if !changes.created.is_empty() || !changes.moved.is_empty() {
        notes.parents = add_parents(now, source, target, &mut changes)?;
    }
    Ok((changes, notes))
}

/// Adds the groups above the target that are missing now and that the source has. Returns their
/// paths.
fn add_parents(now: &Snapshot, source: &Snapshot, target: &Target, changes: &mut ChangeSet) -> Result<Vec<String>> {
    let mut added = Vec::new();
    let taken: HashSet<NodeId> = now.nodes().map(|node| node.id).collect();
    let mut path = target.node.as_str();
    while let Some((above, _)) = path.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
        path = above;
        match node_at(now, above) {
            Some(node) if node.is_array() => {
                return Err(Error::new(
                    ErrorKind::NotADirectory,
                    format!(
                        "{above} is an array now, and {} cannot be below it: move the array away first",
                        target.node
                    ),
                ));
            }
            Some(_) => {}
            None => {
                if let Some(node) = node_at(source, above).filter(|node| !node.is_array()) {
                    changes.created.push(written(&node, id_for(&taken, &node)?, above));
                    added.push(above.to_owned());
                }
            }
        }
    }
    added.reverse();
    Ok(added)
}

/// Returns the changes that give the target's node the document that the source has.
pub(super) fn document(now: &Snapshot, source: &Snapshot, target: &Target) -> Result<(ChangeSet, Notes)> {
    let mut changes = ChangeSet::default();
    let mut notes = Notes::default();
    let node = node_at(source, &target.source).ok_or_else(|| missing(source, &target.source))?;
    match node_at(now, &target.node) {
        None => {
            let taken = now.nodes().map(|node| node.id).collect();
            changes.created.push(written(&node, id_for(&taken, &node)?, &target.node));
            notes.parents = add_parents(now, source, target, &mut changes)?;
        }
        Some(here) if here.is_array() != node.is_array() => {
            return Err(Error::invalid(format!(
                "{} was {} in snapshot {}, and is another kind of node now: restore {0}, with everything below it",
                target.node,
                if node.is_array() { "an array" } else { "a group" },
                source.id()
            )));
        }
        Some(here) if here.zarr_json != node.zarr_json => {
            changes.updated.push(written(&node, here.id, &target.node));
        }
        Some(_) => {}
    }
    Ok((changes, notes))
}

/// Fails if the document of the target alone would leave chunks without a place or with another
/// meaning: those outside of its grid, and, if it describes chunks in another way, those that the
/// source has not. `uncommitted` are changes to snapshot `now`.
pub(super) async fn check_chunks_of_document(
    reader: &Arc<Reader>,
    now: &Snapshot,
    source: &Snapshot,
    target: &Target,
    uncommitted: &ChangeSet,
) -> Result<()> {
    let Some(then) = node_at(source, &target.source) else { return Ok(()) };
    if let Some(created) = created_at(uncommitted, target)
        && (created.is_array || then.is_array())
    {
        return Err(not_committed(target));
    }
    let Some(here) = node_at(now, &target.node).map(|here| as_updated(here, uncommitted)) else { return Ok(()) };
    let (Some(before), Some(after)) = (ArrayChunks::parse(Some(&here))?, ArrayChunks::parse(Some(&then))?) else {
        return Ok(());
    };
    let now_infos = now.manifest_infos();
    let then_infos = source.manifest_infos();
    let local = uncommitted.chunks.get(&here.id);
    let list = before.chunks(&now_infos, reader);
    let empty = before.empty(&now_infos, reader);
    if let Some(member) = different_member(&here, &then)? {
        // A chunk that the source has, too, gets back the meaning that it had there.
        let other = if before.grid().len() == after.grid().len() { after.chunks(&then_infos, reader) } else { empty };
        let unfit = find_chunks([list, other], local, |_| true).await?;
        unfit.refuse(&here, source, &format!("has another `{member}`, which does not fit"))?;
    }
    let grid = after.grid();
    if before.grid().len() == grid.len() && std::iter::zip(before.grid(), grid).all(|(now, then)| now <= then) {
        return Ok(());
    }
    let outside = find_chunks([list, empty], local, |coords| !is_in_grid(coords, grid)).await?;
    outside.refuse(&here, source, "has no room for")
}

/// Chunks that a document does not fit.
#[derive(Default)]
struct UnfitChunks {
    count: usize,
    /// The first of them.
    named: Vec<Coords>,
}

impl UnfitChunks {
    fn add(&mut self, coords: &Coords) {
        self.count += 1;
        if self.named.len() < LISTED {
            self.named.push(coords.clone());
        }
    }

    fn refuse(mut self, here: &Node<'_>, source: &Snapshot, why: &str) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        self.named.sort();
        let named: Vec<String> = self.named.iter().map(|coords| format!("{coords:?}")).collect();
        let more = if self.count > named.len() { ", ..." } else { "" };
        Err(Error::invalid(format!(
            "{}: zarr.json of snapshot {} {why} {} chunks that the array has now ({}{more}): restore {0} as a whole, or remove these chunks first",
            here.path,
            source.id(),
            self.count,
            named.join(", ")
        )))
    }
}

/// Returns the chunks of the first list that the second one has not, with the uncommitted changes
/// `local` to the first, as far as `is_unfit`.
async fn find_chunks(
    [before, after]: [ChunkList<'_>; 2],
    local: Option<&ChunkChanges>,
    is_unfit: impl Fn(&Coords) -> bool,
) -> Result<UnfitChunks> {
    let mut found = UnfitChunks::default();
    for (coords, change) in local.into_iter().flatten() {
        if !matches!(change, ChunkChange::Delete) && is_unfit(coords) {
            found.add(coords);
        }
    }
    let mut differences = ChunkDifferences::new(before, after);
    while let Some(page) = differences.page().await? {
        let is_changed = |coords: &Coords| local.is_some_and(|local| local.contains_key(coords));
        let there = page.iter().filter(|chunk| chunk.before.is_some()).map(|chunk| &chunk.coords);
        there.filter(|coords| !is_changed(coords) && is_unfit(coords)).for_each(|coords| found.add(coords));
    }
    Ok(found)
}

/// Returns the new node that `uncommitted` has at the target.
fn created_at<'a>(uncommitted: &'a ChangeSet, target: &Target) -> Option<&'a WrittenNode> {
    uncommitted.created.iter().find(|node| node.path == target.node)
}

/// Returns the node with the document that `uncommitted` gives it.
fn as_updated<'a>(mut here: Node<'a>, uncommitted: &'a ChangeSet) -> Node<'a> {
    if let Some(updated) = uncommitted.updated.iter().find(|node| node.id == here.id) {
        here.zarr_json = &updated.zarr_json;
    }
    here
}

/// Returns the error for a part of a node that is new here: it would get a part of another node.
fn not_committed(target: &Target) -> Error {
    Error::invalid(format!(
        "{0} was made here and is not committed, so that a part of it cannot be restored: restore {0} as a whole, or commit first",
        target.node
    ))
}

/// Returns the changes that make some chunks of the target's array those of the source.
/// `uncommitted` are changes to snapshot `now`, which may describe chunks in another way.
pub(super) async fn some_chunks(
    reader: &Arc<Reader>,
    now: &Snapshot,
    source: &Snapshot,
    target: &Target,
    range: &ChunkRange,
    uncommitted: &ChangeSet,
) -> Result<ChangeSet> {
    if created_at(uncommitted, target).is_some() {
        return Err(not_committed(target));
    }
    let then = node_at(source, &target.source).ok_or_else(|| missing(source, &target.source))?;
    let here = node_at(now, &target.node).filter(Node::is_array).ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            format!("{0} is not an array now and cannot have chunks: restore all of {0}", target.node),
        )
    })?;
    let present = as_updated(here.clone(), uncommitted);
    check_same_chunks(&present, &then, source)?;
    let infos = [now.manifest_infos(), source.manifest_infos()];
    let (Some(before), Some(after)) = (ArrayChunks::parse(Some(&here))?, ArrayChunks::parse(Some(&then))?) else {
        return Err(missing(source, &target.source));
    };
    let grid = ArrayChunks::parse(Some(&present))?.map_or_else(Vec::new, |chunks| chunks.grid().to_vec());
    let both: Vec<u32> = before.grid().iter().zip(after.grid()).map(|(now, then)| *now.max(then)).collect();
    let mut chunks = chunk_changes(reader, &infos, Some(before), after, &both).await?.into_inner();
    chunks.retain(|coords, change| {
        range.contains(coords) && !matches!(change, ChunkChange::Delete if !is_in_grid(coords, &grid))
    });
    if let Some(coords) = chunks.keys().find(|coords| !is_in_grid(coords, &grid)) {
        return Err(Error::invalid(format!(
            "{}: the array is smaller now than in snapshot {}, so that it has no room for chunk {coords:?}: restore {0} as a whole",
            here.path,
            source.id()
        )));
    }
    let mut changes = ChangeSet { chunks: BTreeMap::from([(here.id, chunks)]), ..ChangeSet::default() };
    changes.chunks.retain(|_, chunks| !chunks.is_empty());
    Ok(changes)
}

/// Fails if chunks of `then` would mean something else in the array `here`.
fn check_same_chunks(here: &Node<'_>, then: &Node<'_>, source: &Snapshot) -> Result<()> {
    match different_member(here, then)? {
        None => Ok(()),
        Some(member) => Err(Error::invalid(format!(
            "{}: `{member}` of zarr.json was another in snapshot {}, so that its chunks would not be readable here: restore {0} as a whole",
            here.path,
            source.id()
        ))),
    }
}

/// Returns a member that decides what the bytes of chunks mean, and is another in the two arrays.
fn different_member(one: &Node<'_>, other: &Node<'_>) -> Result<Option<&'static str>> {
    document::first_difference(one.zarr_json, other.zarr_json, &CHUNK_MEMBERS)
}

fn missing(source: &Snapshot, path: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{path} is not in snapshot {}", source.id()))
}
