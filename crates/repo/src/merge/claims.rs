//! Comparison of what commits claim to have been made from with the snapshots.
//!
//! A record can be forged, or be copied by a client that knows nothing of it. A later merge that
//! relied on a false one would drop what the branch never had, or bring back what it has taken
//! away. So a claim that decides about the common ancestor is believed only if the snapshots show
//! it: every change that the claimed snapshot has made since both parted is in the commit, or the
//! commit's own line has changed the same thing, by its logs, which is what a resolved conflict
//! leaves.

use std::collections::{BTreeSet, HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::ancestor::History;
use super::base::Surroundings;
use super::repacked;
use super::sides::{Places, chunks_of, in_both};
use crate::commit::changes::ChangeSet;
use crate::commit::rebase::read_log_if_any;
use crate::compare::changes::changes_between;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_format::format::draft::SnapshotDraft;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::format::transaction_log::{NODE_BYTES, TransactionLog};
use icechunkfs_format::zarr::Coords;

/// Most logs that are read to show one claim, or to look for common commits. A line with more
/// commits than that is not followed to its end, and then nothing is shown.
pub(super) const MAX_LOGS: usize = 2000;
/// Logs that are read at the same time.
const AT_ONCE: usize = 16;

/// Nodes and chunks that some commits changed, by their logs.
#[derive(Debug)]
pub(super) struct Touched {
    nodes: HashSet<NodeId>,
    chunks: HashMap<NodeId, BTreeSet<Coords>>,
    memory: Meter,
}

impl Touched {
    /// Creates what no commit changed.
    pub(super) fn new() -> Self {
        Touched { nodes: HashSet::new(), chunks: HashMap::new(), memory: Meter::new("the changes of commits") }
    }

    /// Reads the logs of `commits`. Returns none if one is missing, or if they are too many.
    pub(super) async fn read(repository: &Repository, commits: &[&SnapshotInfo]) -> Result<Option<Self>> {
        let mut touched = Touched::new();
        Ok(touched.add(repository, commits).await?.then_some(touched))
    }

    /// Adds what the logs of `commits` list, and those of expired commits before them. Returns
    /// false if one is missing, or if they are too many.
    pub(super) async fn add(&mut self, repository: &Repository, commits: &[&SnapshotInfo]) -> Result<bool> {
        let ids: Vec<ObjectId> = commits.iter().flat_map(|commit| commit.log_ids()).collect();
        if ids.len() > MAX_LOGS {
            return Ok(false);
        }
        let storage = &**repository.storage();
        let mut logs = stream::iter(ids.into_iter().map(|id| read_log_if_any(storage, id))).buffered(AT_ONCE);
        while let Some(log) = logs.try_next().await? {
            let Some(log) = log else { return Ok(false) };
            self.add_log(&log)?;
        }
        Ok(true)
    }

    fn add_log(&mut self, log: &TransactionLog) -> Result<()> {
        for (_, node) in log.changed_nodes() {
            self.memory.count(NODE_BYTES)?;
            self.nodes.insert(node);
        }
        for moved in log.moves()? {
            self.memory.count(NODE_BYTES)?;
            self.nodes.insert(moved.node);
        }
        for (node, chunks) in log.updated_chunks() {
            self.memory.count(NODE_BYTES)?;
            let known = self.chunks.entry(node).or_default();
            for chunk in chunks {
                known.insert(chunk.kept(&mut self.memory)?);
            }
        }
        Ok(())
    }

    fn has_node(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    /// Returns true if the node or any of its chunks was changed.
    pub(super) fn has_any_of(&self, node: NodeId) -> bool {
        self.has_node(node) || self.chunks.contains_key(&node)
    }

    /// Returns true if the chunk was changed, or its array: a new shape may drop it.
    fn has_chunk(&self, node: NodeId, coords: &Coords) -> bool {
        self.has_node(node) || self.lists_chunk(node, coords)
    }

    /// Returns true if the chunk itself was changed.
    pub(super) fn lists_chunk(&self, node: NodeId, coords: &Coords) -> bool {
        self.chunks.get(&node).is_some_and(|chunks| chunks.contains(coords))
    }

    /// Returns true if these commits changed anything that `others` did.
    pub(super) fn meets(&self, others: &Touched) -> bool {
        let has_chunks = |(node, chunks): (&NodeId, &BTreeSet<Coords>)| {
            self.chunks.get(node).is_some_and(|own| !chunks.is_disjoint(own))
        };
        !others.nodes.is_disjoint(&self.nodes) || others.chunks.iter().any(has_chunks)
    }

    /// Returns true if these commits changed everything that `others` did, each chunk and each
    /// node.
    pub(super) fn covers(&self, others: &Touched) -> bool {
        let has_chunks = |(node, chunks): (&NodeId, &BTreeSet<Coords>)| {
            self.chunks.get(node).is_some_and(|own| chunks.is_subset(own))
        };
        others.nodes.is_subset(&self.nodes) && others.chunks.iter().all(has_chunks)
    }
}

/// Returns true if `commit` has all that the snapshots have from which it claims to have been made.
pub(super) async fn is_shown(around: Surroundings<'_>, commit: ObjectId) -> Result<bool> {
    for claimed in around.history.claimed(commit) {
        if !holds(around, commit, claimed).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if `commit` has all changes of the snapshot `claimed` since both parted, or its
/// line has changed the same things.
async fn holds(around: Surroundings<'_>, commit: ObjectId, claimed: ObjectId) -> Result<bool> {
    let line = line_since_fork(around.history, commit, claimed);
    let changed = lacking(around, commit, claimed, line.fork).await?;
    if changed.is_empty() {
        return Ok(true);
    }
    let Some(touched) = Touched::read(around.repository, &line.commits).await? else { return Ok(false) };
    Ok(has_all(&touched, &changed))
}

/// Returns true if `commit` has all changes of the snapshot `claimed` since their lines of parents
/// parted, whatever records and logs say; or if that is where both were `compared` for the merge
/// that led to `commit`.
pub(super) async fn has_content(
    around: Surroundings<'_>,
    commit: ObjectId,
    claimed: ObjectId,
    compared: Option<ObjectId>,
) -> Result<bool> {
    let fork = line_since_fork(around.history, commit, claimed).fork;
    if fork.is_some() && (fork == Some(claimed) || fork == compared) {
        return Ok(true);
    }
    Ok(lacking(around, commit, claimed, fork).await?.is_empty())
}

/// Returns the changes that led from `fork` to the snapshot `claimed`, and that `commit` does not
/// have.
async fn lacking(
    around: Surroundings<'_>,
    commit: ObjectId,
    claimed: ObjectId,
    fork: Option<ObjectId>,
) -> Result<Metered<ChangeSet>> {
    let Surroundings { repository, reader, .. } = around;
    let load = |id| repository.snapshot(id, MAX_SNAPSHOT);
    let before = match fork {
        Some(fork) => load(fork).await?,
        None => nothing()?,
    };
    let (there, here) = tokio::try_join!(load(claimed), load(commit))?;
    let (mut changed, mut differs) =
        tokio::try_join!(changes_between(reader, &before, &there), changes_between(reader, &there, &here))?;
    let both = in_both(&differs, &chunks_of(&changed));
    repacked::drop_unchanged(reader, &there, &here, &mut differs, both).await?;
    keep_common(&mut changed, &differs)?;
    Ok(changed)
}

/// Commits of one line, newest first, down to where another one parts from it.
struct Line<'a> {
    commits: Vec<&'a SnapshotInfo>,
    /// Last common commit of both lines, if there is one.
    fork: Option<ObjectId>,
}

fn line_since_fork(history: &History, commit: ObjectId, other: ObjectId) -> Line<'_> {
    let others: HashSet<ObjectId> = history.first_parents(other).map(|commit| commit.id).collect();
    let mut commits = Vec::new();
    for commit in history.first_parents(commit) {
        if others.contains(&commit.id) {
            return Line { commits, fork: Some(commit.id) };
        }
        commits.push(commit);
    }
    Line { commits, fork: None }
}

/// Returns a snapshot without nodes.
fn nothing() -> Result<Snapshot> {
    Snapshot::from_draft(&SnapshotDraft::new(ObjectId::INITIAL, 0, ""))
}

/// Leaves those of `changed` that another change set `differs` in: nodes that are there or have a
/// place, documents, and chunks.
fn keep_common(changed: &mut ChangeSet, differs: &ChangeSet) -> Result<()> {
    let places = Places::after(differs)?;
    let existence: HashSet<NodeId> = differs
        .created
        .iter()
        .map(|node| node.id)
        .chain(differs.deleted.iter().map(|node| node.id))
        .chain(differs.moved.iter().map(|moved| moved.node))
        .collect();
    let documents: HashSet<NodeId> = differs.updated.iter().map(|node| node.id).collect();
    let is_either = |node: &NodeId| existence.contains(node) || documents.contains(node);
    changed.created.retain(|node| is_either(&node.id));
    changed.deleted.retain(|node| existence.contains(&node.id));
    changed.moved.retain(|moved| existence.contains(&moved.node));
    changed.updated.retain(|node| is_either(&node.id));
    for (node, chunks) in &mut changed.chunks {
        let others = differs.chunks.get(node);
        chunks.retain(|coords, change| {
            places.lack(*node, coords, change) || others.is_some_and(|others| others.contains_key(coords))
        });
    }
    changed.chunks.retain(|_, chunks| !chunks.is_empty());
    Ok(())
}

/// Returns true if all of `changes` are among what was touched.
fn has_all(touched: &Touched, changes: &ChangeSet) -> bool {
    let nodes = changes.created.iter().chain(&changes.updated).map(|node| node.id);
    let mut nodes = nodes.chain(changes.deleted.iter().map(|node| node.id));
    let mut moved = changes.moved.iter();
    let mut chunks = changes.chunks.iter().flat_map(|(node, chunks)| chunks.keys().map(move |coords| (*node, coords)));
    nodes.all(|node| touched.has_any_of(node))
        && moved.all(|moved| touched.has_any_of(moved.node))
        && chunks.all(|(node, coords)| touched.has_chunk(node, coords))
}
