//! What is not the same in two snapshots of a repository, whatever led from one to the other.
//!
//! Nodes are the same if their ids are: a node that was moved is still itself, and one that was deleted and made again is
//! another one. What is said comes from the snapshots and their manifests, not from transaction logs, so that it is what differs in
//! fact, also between branches; [`logs`] has what the logs say. [`chunks`] compares one array.

pub mod chunks;
pub mod logs;

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;

use self::chunks::{ChunkDifference, ChunkDifferences, ChunkList};
use crate::error::{Context, ErrorKind, Result};
use crate::format::chunk_payload::ChunkPayload;
use crate::format::ids::{NodeId, ObjectId};
use crate::format::snapshot::{ManifestInfo, ManifestRef, Node, NodeData, Snapshot};
use crate::reader::{NativeChunk, Reader};
use crate::zarr::Coords;
use crate::zarr::array::ArrayMetadata;

/// Arrays that are compared at the same time: over a network, how many requests hide each other's latency.
const AT_ONCE: usize = 8;
/// Bytes that are read of two chunks at a time when their content is compared.
const PIECE: u64 = 1 << 20;

/// How closely it is looked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Whether chunks are named, and not only counted.
    pub coords: bool,
    /// Whether chunks of one length that are in different places are read, and are the same if their bytes are.
    pub content: bool,
}

/// A node that is not the same in both snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDifference {
    /// Its position among the old snapshot's nodes; none if it is new.
    pub before: Option<usize>,
    /// Its position among the new snapshot's nodes; none if it is gone.
    pub after: Option<usize>,
    /// Whether it is somewhere else.
    pub is_moved: bool,
    /// Whether its `zarr.json` has other bytes.
    pub is_changed: bool,
    /// Chunks that are new.
    pub added: Count,
    /// Chunks that are others, as they were.
    pub replaced: Count,
    /// Chunks that are others, as they are.
    pub replacing: Count,
    /// Chunks that are gone.
    pub removed: Count,
    /// Which chunks those are, in the order of the grid, if that was asked for.
    pub coords: Option<CoordLists>,
}

/// Some chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub chunks: u64,
    /// Bytes that they have.
    pub bytes: u64,
}

/// Which chunks of a node differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoordLists {
    /// New ones.
    pub added: Vec<Coords>,
    /// Those that are others.
    pub changed: Vec<Coords>,
    /// Those that are gone.
    pub removed: Vec<Coords>,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.chunks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Count) -> Count {
        Count { chunks: self.chunks + other.chunks, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl NodeDifference {
    /// Whether chunks differ.
    pub fn has_chunks(&self) -> bool {
        self.added.chunks + self.replaced.chunks + self.removed.chunks > 0
    }

    fn is_any(&self) -> bool {
        self.before.is_none() || self.after.is_none() || self.is_moved || self.is_changed || self.has_chunks()
    }

    fn take(&mut self, chunk: ChunkDifference) {
        if let Some(lists) = &mut self.coords {
            let list = match (&chunk.before, &chunk.after) {
                (None, _) => &mut lists.added,
                (Some(_), Some(_)) => &mut lists.changed,
                (Some(_), None) => &mut lists.removed,
            };
            list.push(chunk.coords.clone());
        }
        match (&chunk.before, &chunk.after) {
            (Some(before), Some(after)) => {
                self.replaced.add(before.length());
                self.replacing.add(after.length());
            }
            (Some(before), None) => self.removed.add(before.length()),
            (None, Some(after)) => self.added.add(after.length()),
            (None, None) => {}
        }
    }
}

/// An array as a snapshot has it.
#[derive(Clone, Debug)]
pub struct Listed {
    id: NodeId,
    grid: Vec<u32>,
    manifests: Vec<ManifestRef>,
}

impl Listed {
    /// The array that `node` is; none if it is none.
    pub fn of(node: &Node<'_>) -> Option<Self> {
        let NodeData::Array(array) = &node.data else { return None };
        // As a mount shows it: zarr.json decides, and where it cannot be understood the snapshot's own grid.
        let grid = match ArrayMetadata::parse(node.zarr_json) {
            Ok(metadata) => metadata.grid,
            Err(_) => array.grid().unwrap_or_default(),
        };
        Some(Listed { id: node.id, grid, manifests: array.manifests() })
    }

    /// Its chunks, of which the snapshot says `infos`.
    pub fn chunks<'a>(&'a self, infos: &'a HashMap<ObjectId, ManifestInfo>, reader: &'a Arc<Reader>) -> ChunkList<'a> {
        ChunkList { id: self.id, grid: &self.grid, manifests: &self.manifests, infos, reader }
    }

    /// No chunks at all, to compare it with.
    pub fn nothing<'a>(&self, infos: &'a HashMap<ObjectId, ManifestInfo>, reader: &'a Arc<Reader>) -> ChunkList<'a> {
        ChunkList { id: self.id, grid: &[], manifests: &[], infos, reader }
    }
}

/// What is not the same in `old` and `new`, by the paths of nodes: in `new`, or in `old` where they are gone. `reader` reads
/// manifests and chunks of both.
pub async fn snapshots(
    reader: &Arc<Reader>,
    old: &Snapshot,
    new: &Snapshot,
    wanted: Wanted,
) -> Result<Vec<NodeDifference>> {
    let by_id = |snapshot: &Snapshot| -> HashMap<NodeId, usize> {
        snapshot.nodes().enumerate().map(|(position, node)| (node.id, position)).collect()
    };
    let infos = |snapshot: &Snapshot| -> HashMap<ObjectId, ManifestInfo> {
        snapshot.manifests().into_iter().map(|info| (info.id, info)).collect()
    };
    let (old_ids, new_ids) = (by_id(old), by_id(new));
    let infos = &[infos(old), infos(new)];
    let gone = old_ids.iter().filter(|(id, _)| !new_ids.contains_key(id)).map(|(_, &at)| (Some(at), None));
    let there = new_ids.iter().map(|(id, &at)| (old_ids.get(id).copied(), Some(at)));
    // Boxed one by one: the compiler does not see through a closure that it may change threads.
    type Running<'a> = BoxFuture<'a, Result<NodeDifference>>;
    let compare = |(before, after)| -> Running<'_> {
        Box::pin(async move {
            let node =
                |snapshot: &Snapshot, at: Option<usize>| at.map(|at| snapshot.node(at).map(|n| n.path.to_owned()));
            let path = node(new, after).or(node(old, before)).flatten().unwrap_or_default();
            one(reader, [old, new], infos, [before, after], wanted).await.context(|| path)
        })
    };
    let running: Vec<Running<'_>> = gone.chain(there).map(compare).collect();
    let mut running = futures_util::stream::iter(running).buffer_unordered(AT_ONCE);
    let mut found = Vec::new();
    while let Some(difference) = running.next().await {
        found.extend(Some(difference?).filter(NodeDifference::is_any));
    }
    drop(running);
    found.sort_by_cached_key(|difference| {
        let node = difference.after.and_then(|at| new.node(at)).or(difference.before.and_then(|at| old.node(at)));
        // What is gone comes before what took its place.
        (node.map(|node| node.path.split('/').map(str::to_owned).collect::<Vec<_>>()), difference.after.is_some())
    });
    Ok(found)
}

async fn one(
    reader: &Arc<Reader>,
    snapshots: [&Snapshot; 2],
    infos: &[HashMap<ObjectId, ManifestInfo>; 2],
    at: [Option<usize>; 2],
    wanted: Wanted,
) -> Result<NodeDifference> {
    let [old, new] = snapshots;
    let [before, after] = at;
    let mut found = NodeDifference { before, after, ..NodeDifference::default() };
    let (was, is) = (before.and_then(|at| old.node(at)), after.and_then(|at| new.node(at)));
    if let (Some(was), Some(is)) = (&was, &is) {
        found.is_moved = was.path != is.path;
        found.is_changed = was.zarr_json != is.zarr_json;
    }
    let (was, is) = (was.as_ref().and_then(Listed::of), is.as_ref().and_then(Listed::of));
    let [old_infos, new_infos] = infos;
    let Some(any) = is.as_ref().or(was.as_ref()) else { return Ok(found) };
    let before = was.as_ref().map_or(any.nothing(old_infos, reader), |was| was.chunks(old_infos, reader));
    let after = is.as_ref().map_or(any.nothing(new_infos, reader), |is| is.chunks(new_infos, reader));
    let mut differences = ChunkDifferences::new(before, after);
    found.coords = wanted.coords.then(CoordLists::default);
    while let Some(page) = differences.page().await? {
        for chunk in page {
            if let (true, Some(before), Some(after)) = (wanted.content, &chunk.before, &chunk.after)
                && have_same_bytes(reader, before, after).await.context(|| format!("chunk {:?}", chunk.coords))?
            {
                continue;
            }
            found.take(chunk);
        }
    }
    if let Some(lists) = &mut found.coords {
        lists.added.sort_unstable();
        lists.changed.sort_unstable();
        lists.removed.sort_unstable();
    }
    Ok(found)
}

/// Whether two chunks have the same bytes. Of what lies in files that may not be read that is not known, and they count as
/// others.
async fn have_same_bytes(reader: &Arc<Reader>, a: &ChunkPayload, b: &ChunkPayload) -> Result<bool> {
    if a.length() != b.length() {
        return Ok(false);
    }
    let mut offset = 0;
    while offset < a.length() {
        let length = PIECE.min(a.length() - offset) as usize;
        let (one, other) = (piece(reader, a, offset, length).await, piece(reader, b, offset, length).await);
        match (one, other) {
            (Err(error), _) | (_, Err(error)) if error.kind() == ErrorKind::VirtualNotAllowed => return Ok(false),
            (one, other) if one.as_ref().is_ok_and(|one| other.as_ref().is_ok_and(|other| one == other)) => {}
            (one, other) => return one.and(other).map(|_| false),
        }
        offset += length as u64;
    }
    Ok(true)
}

async fn piece(reader: &Arc<Reader>, payload: &ChunkPayload, offset: u64, length: usize) -> Result<Vec<u8>> {
    let chunk = match payload {
        ChunkPayload::Inline(bytes) => {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            return Ok(bytes.get(start..start.saturating_add(length)).unwrap_or_default().to_vec());
        }
        ChunkPayload::Native { chunk, offset, length } => {
            NativeChunk { object: *chunk, offset: *offset, length: *length }.into()
        }
        ChunkPayload::Virtual { location, offset, length, checksum } => {
            reader.virtual_chunk(location, *offset, *length, checksum.clone())?
        }
    };
    reader.read(&chunk, offset, length).await.map(|data| data.to_vec())
}
