//! Compares two snapshots of a repository, whatever led from one to the other.
//!
//! Nodes are the same if their ids are: a moved node stays the same, and a node that was deleted
//! and created again is another one. The result comes from the snapshots and their manifests, not
//! from transaction logs, so that it is exact, also between branches; [`logs`] and [`path_history`]
//! read the logs. [`chunks`] compares one array, and [`scope`] leaves out all but a part.

pub mod changes;
pub mod chunks;
pub mod logs;
pub mod members;
pub mod path_history;
pub mod scope;

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, ready};
use futures_util::{StreamExt, TryStreamExt};

use self::chunks::{ChunkDifference, ChunkDifferences, ChunkList};
use self::scope::ComparisonScope;
use crate::reader::Reader;
use crate::reader::same_bytes::have_same_bytes;
use icechunkfs_base::error::{Context, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::{ManifestInfo, ManifestRef, Node, NodeData, Snapshot};
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::array::ArrayMetadata;

/// Arrays compared at the same time: over a network, so many requests hide each other's latency.
pub(crate) const CONCURRENT_ARRAYS: usize = 8;
/// Nodes that are prepared for that at the same time, of some kilobytes each.
pub(crate) const BATCH: usize = 1024;

/// Level of detail of a comparison.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompareOptions {
    /// True to list chunks, not only count them.
    pub coords: bool,
    /// True to read chunks of one length in different places, which are the same if their bytes
    /// are.
    pub content: bool,
}

/// Node that is not the same in both snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDifference {
    /// Position among the old snapshot's nodes; none if the node is new.
    pub before: Option<usize>,
    /// Position among the new snapshot's nodes; none if the node was deleted.
    pub after: Option<usize>,
    /// True if the path differs.
    pub is_moved: bool,
    /// True if the bytes of `zarr.json` differ.
    pub is_changed: bool,
    /// Chunks that differ.
    pub chunks: ChunkCounts,
    /// Coordinates of these chunks, in the order of the grid, if requested.
    pub coords: Option<CoordLists>,
}

/// Counts of chunks that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkCounts {
    /// New chunks.
    pub added: Count,
    /// Changed chunks, as they were before.
    pub changed_before: Count,
    /// Changed chunks, as they are now.
    pub changed_after: Count,
    /// Deleted chunks.
    pub removed: Count,
}

/// Number and size of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of chunks.
    pub chunks: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

/// Coordinates of the chunks of a node that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoordLists {
    /// New chunks.
    pub added: Vec<Coords>,
    /// Changed chunks.
    pub changed: Vec<Coords>,
    /// Deleted chunks.
    pub removed: Vec<Coords>,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.chunks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns the sum of both counts.
    #[must_use]
    pub fn and(self, other: Count) -> Count {
        Count { chunks: self.chunks + other.chunks, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl ChunkCounts {
    /// Returns true if chunks differ.
    pub fn is_any(&self) -> bool {
        self.added.chunks + self.changed_before.chunks + self.removed.chunks > 0
    }

    /// Returns the sum of both counts.
    #[must_use]
    pub fn and(self, other: ChunkCounts) -> ChunkCounts {
        ChunkCounts {
            added: self.added.and(other.added),
            changed_before: self.changed_before.and(other.changed_before),
            changed_after: self.changed_after.and(other.changed_after),
            removed: self.removed.and(other.removed),
        }
    }
}

impl NodeDifference {
    fn is_any(&self) -> bool {
        self.before.is_none() || self.after.is_none() || self.is_moved || self.is_changed || self.chunks.is_any()
    }

    fn take(&mut self, chunk: ChunkDifference) {
        let counts = &mut self.chunks;
        let lists = self.coords.as_mut();
        let list = match (&chunk.before, &chunk.after) {
            (Some(before), Some(after)) => {
                counts.changed_before.add(before.length());
                counts.changed_after.add(after.length());
                lists.map(|lists| &mut lists.changed)
            }
            (Some(before), None) => {
                counts.removed.add(before.length());
                lists.map(|lists| &mut lists.removed)
            }
            (None, after) => {
                counts.added.add(after.as_ref().map_or(0, ChunkPayload::length));
                lists.map(|lists| &mut lists.added)
            }
        };
        list.into_iter().for_each(|list| list.push(chunk.coords.clone()));
    }
}

/// Array as a snapshot lists it.
#[derive(Clone, Debug)]
pub struct ArrayChunks {
    id: NodeId,
    grid: Vec<u32>,
    manifests: Vec<ManifestRef>,
}

impl ArrayChunks {
    /// Returns the array `node`; none if there is no node, or if it is no array.
    ///
    /// Errors: [`ErrorKind::OutOfMemory`] if the memory bound has no room for looking into its
    /// `zarr.json`.
    pub fn parse(node: Option<&Node<'_>>) -> Result<Option<Self>> {
        let Some((node, NodeData::Array(array))) = node.map(|node| (node, &node.data)) else { return Ok(None) };
        // The grid is that of a mount: zarr.json decides, or the snapshot's grid if zarr.json is
        // not understood.
        let grid = match ArrayMetadata::parse(node.zarr_json) {
            Ok(metadata) => metadata.grid,
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error).context(|| node.path.to_owned()),
            Err(_) => array.grid().unwrap_or_default(),
        };
        Ok(Some(ArrayChunks { id: node.id, grid, manifests: array.manifests() }))
    }

    /// Returns the number of chunks per dimension.
    pub fn grid(&self) -> &[u32] {
        &self.grid
    }

    /// Returns the array's chunks. `infos` describes the manifests of the snapshot.
    pub fn chunks<'a>(&'a self, infos: &'a HashMap<ObjectId, ManifestInfo>, reader: &'a Arc<Reader>) -> ChunkList<'a> {
        ChunkList { id: self.id, grid: &self.grid, manifests: &self.manifests, infos, reader }
    }

    /// Returns an empty list to compare the array with.
    pub fn empty<'a>(&self, infos: &'a HashMap<ObjectId, ManifestInfo>, reader: &'a Arc<Reader>) -> ChunkList<'a> {
        ChunkList { id: self.id, grid: &[], manifests: &[], infos, reader }
    }
}

/// Returns the nodes of `scope` that differ between `old` and `new`, sorted by their paths in
/// `new`, or in `old` if they were deleted. `reader` reads manifests and chunks of both.
pub async fn snapshots(
    reader: &Arc<Reader>,
    old: &Snapshot,
    new: &Snapshot,
    options: CompareOptions,
    scope: &ComparisonScope,
) -> Result<Metered<Vec<NodeDifference>>> {
    let _room = (old.room_for_table()?, new.room_for_table()?);
    let old_ids = positions(old);
    let new_ids = positions(new);
    let infos = &[old.manifest_infos(), new.manifest_infos()];
    let gone = old_ids.iter().filter(|(id, _)| !new_ids.contains_key(id)).map(|(_, &at)| (Some(at), None));
    let there = new_ids.iter().map(|(id, &at)| (old_ids.get(id).copied(), Some(at)));
    let is_wanted = |(before, after): &(Option<usize>, Option<usize>)| {
        let before = before.and_then(|at| old.node(at));
        let after = after.and_then(|at| new.node(at));
        scope.contains(before.map(|node| node.path), after.map(|node| node.path))
    };
    // Each future is boxed: the compiler cannot prove that one from a closure is `Send`.
    type Running<'a> = BoxFuture<'a, Result<Metered<NodeDifference>>>;
    let compare = |(before, after): (Option<usize>, Option<usize>)| -> Running<'_> {
        Box::pin(async move {
            let path = || {
                let node = after.and_then(|at| new.node(at)).or(before.and_then(|at| old.node(at)));
                node.map(|node| node.path.to_owned()).unwrap_or_default()
            };
            compare_node(reader, [old, new], infos, [before, after], options).await.context(path)
        })
    };
    let mut found = Vec::new();
    let mut meter = Meter::new("the nodes that differ");
    let mut wanted = gone.chain(there).filter(is_wanted);
    loop {
        let running: Vec<Running<'_>> = wanted.by_ref().take(BATCH).map(compare).collect();
        if running.is_empty() {
            break;
        }
        let all = futures_util::stream::iter(running).buffer_unordered(CONCURRENT_ARRAYS);
        let mut all = all.try_filter(|one| ready(one.is_any()));
        while let Some(one) = all.try_next().await? {
            meter.count_items::<NodeDifference>(1)?;
            found.push(meter.add(one));
        }
    }
    let path = |difference: &NodeDifference| {
        let node = difference.after.and_then(|at| new.node(at)).or(difference.before.and_then(|at| old.node(at)));
        node.map(|node| node.path).unwrap_or_default()
    };
    // A deleted node comes before the one that took its place.
    found.sort_by(|a, b| path(a).split('/').cmp(path(b).split('/')).then(a.after.is_some().cmp(&b.after.is_some())));
    Ok(meter.finish(found))
}

/// Returns the position of each node of a snapshot, by id.
fn positions(snapshot: &Snapshot) -> HashMap<NodeId, usize> {
    snapshot.nodes().enumerate().map(|(position, node)| (node.id, position)).collect()
}

async fn compare_node(
    reader: &Arc<Reader>,
    snapshots: [&Snapshot; 2],
    infos: &[HashMap<ObjectId, ManifestInfo>; 2],
    at: [Option<usize>; 2],
    options: CompareOptions,
) -> Result<Metered<NodeDifference>> {
    let [old, new] = snapshots;
    let [before, after] = at;
    let mut found = NodeDifference { before, after, ..NodeDifference::default() };
    let was = before.and_then(|at| old.node(at));
    let is = after.and_then(|at| new.node(at));
    if let (Some(was), Some(is)) = (&was, &is) {
        found.is_moved = was.path != is.path;
        found.is_changed = was.zarr_json != is.zarr_json;
    }
    let was = ArrayChunks::parse(was.as_ref())?;
    let is = ArrayChunks::parse(is.as_ref())?;
    let [old_infos, new_infos] = infos;
    let Some(any) = is.as_ref().or(was.as_ref()) else { return Ok(Metered::own(found)) };
    let mut meter = Meter::new("the chunks that differ");
    let before = was.as_ref().map_or(any.empty(old_infos, reader), |was| was.chunks(old_infos, reader));
    let after = is.as_ref().map_or(any.empty(new_infos, reader), |is| is.chunks(new_infos, reader));
    let mut differences = ChunkDifferences::new(before, after);
    found.coords = options.coords.then(CoordLists::default);
    while let Some(page) = differences.page().await? {
        for chunk in page {
            if let (true, Some(before), Some(after)) = (options.content, &chunk.before, &chunk.after)
                && have_same_bytes(reader, before, after).await.context(|| format!("chunk {:?}", chunk.coords))?
            {
                continue;
            }
            if found.coords.is_some() {
                meter.count_items::<Coords>(1)?;
                meter.count(8 * chunk.coords.len() as u64)?;
            }
            found.take(chunk);
        }
    }
    if let Some(lists) = &mut found.coords {
        lists.added.sort_unstable();
        lists.changed.sort_unstable();
        lists.removed.sort_unstable();
    }
    Ok(meter.finish(found))
}
