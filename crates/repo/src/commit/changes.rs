//! The change set: what a working tree changed, relative to its base.
//!
//! A change set is a difference, not a state: it can be applied to another snapshot too, unless
//! concurrent commits touched the same things. It holds no chunk bytes, only where they are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use icechunkfs_base::beneath;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::size;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::transaction_log::Move;
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::array::ArrayMetadata;

/// Set of changes to commit. Paths are absolute and canonical, as in snapshots.
#[derive(Clone, Debug, Default)]
pub struct ChangeSet {
    /// Deleted nodes, including all nodes below deleted groups.
    pub deleted: Vec<DeletedNode>,
    /// New nodes, with fresh ids.
    pub created: Vec<WrittenNode>,
    /// Nodes of the base with a new `zarr.json`. Their kind is unchanged, and their path is the one
    /// after all moves.
    pub updated: Vec<WrittenNode>,
    /// Nodes of the base with a new path, one entry each: nodes below a moved group have their own
    /// entries.
    pub moved: Vec<Move>,
    /// Chunks written and deleted, by array: an array of the base that is not deleted, or a created
    /// one.
    pub chunks: BTreeMap<NodeId, BTreeMap<Coords, ChunkChange>>,
}

/// Node of the base that is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedNode {
    /// Id of the node.
    pub id: NodeId,
    /// Path in the base.
    pub path: String,
    /// True for an array, false for a group.
    pub is_array: bool,
}

/// Node with a new `zarr.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenNode {
    /// Id of the node.
    pub id: NodeId,
    /// Path after all moves.
    pub path: String,
    /// Validated `zarr.json`, byte for byte.
    pub zarr_json: Bytes,
    /// True for an array, false for a group.
    pub is_array: bool,
}

impl WrittenNode {
    /// Returns the chunks per dimension; a group has no dimensions.
    ///
    /// Errors: as for [`ArrayMetadata::parse`].
    pub(crate) fn grid(&self) -> Result<Vec<u32>> {
        if self.is_array { Ok(ArrayMetadata::parse(&self.zarr_json)?.grid) } else { Ok(Vec::new()) }
    }
}

/// Change of one chunk.
#[derive(Clone, Debug)]
pub enum ChunkChange {
    /// The chunk is deleted.
    Delete,
    /// The bytes are in a file, not in the repository yet.
    File(ChunkFile),
    /// The bytes are made when the chunk is stored.
    Made(Arc<dyn MadeChunk>),
    /// The payload exists already, for instance as that of another chunk of this repository.
    Stored(ChunkPayload),
}

/// Chunk whose bytes are made of something else when they are needed, such as parts of a file of
/// another format.
pub trait MadeChunk: std::fmt::Debug + Send + Sync {
    /// Returns the length in bytes, never 0.
    fn length(&self) -> u64;

    /// Returns the bytes of memory that making it takes, besides its own.
    fn workspace(&self) -> u64;

    /// Returns what it is made of, for messages.
    fn describe(&self) -> String;

    /// Returns true if it is known to differ from the chunk in its place, so that they need not be
    /// compared.
    fn is_new(&self) -> bool {
        false
    }

    /// Appends the bytes in `range` to `out`: as many as that has, or it fails.
    fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()>;
}

/// File that holds exactly one chunk. Nobody writes to it while a commit runs.
#[derive(Clone, Debug)]
pub struct ChunkFile {
    /// Directory that contains the file, directly or further up.
    pub directory: Arc<OwnedFd>,
    /// Name of the file, or its path, below `directory`.
    pub name: String,
    /// Size in bytes, never 0.
    pub length: u64,
    /// True if the file may be linked into the repository as an object. False while the kernel has
    /// it open (passthrough).
    pub can_link: bool,
}

impl ChunkChange {
    /// Returns the payload of a chunk that is stored already.
    pub fn stored(&self) -> Option<&ChunkPayload> {
        match self {
            ChunkChange::Stored(payload) => Some(payload),
            ChunkChange::Delete | ChunkChange::File(_) | ChunkChange::Made(_) => None,
        }
    }

    /// Returns the length of the chunk in bytes; none if it is deleted.
    pub fn length(&self) -> Option<u64> {
        match self {
            ChunkChange::Delete => None,
            ChunkChange::File(file) => Some(file.length),
            ChunkChange::Made(made) => Some(made.length()),
            ChunkChange::Stored(payload) => Some(payload.length()),
        }
    }
}

/// Formats numbers of nodes and chunks, such as `1 node, 20 chunks`.
pub fn counted(nodes: usize, chunks: usize) -> String {
    format!("{}, {}", size::counted(nodes as u64, "node"), size::counted(chunks as u64, "chunk"))
}

impl ChangeSet {
    /// Returns true if nothing changed.
    pub fn is_empty(&self) -> bool {
        self.deleted.is_empty()
            && self.created.is_empty()
            && self.updated.is_empty()
            && self.moved.is_empty()
            && self.chunks.values().all(BTreeMap::is_empty)
    }

    /// Returns the number of nodes that are created, deleted, updated or moved.
    pub fn node_count(&self) -> usize {
        self.created.len() + self.deleted.len() + self.updated.len() + self.moved.len()
    }

    /// Returns the number of chunks that are written or deleted.
    pub fn chunk_count(&self) -> usize {
        self.chunks.values().map(BTreeMap::len).sum()
    }

    /// Counts the nodes and chunks that change, in words.
    pub fn counted(&self) -> String {
        counted(self.node_count(), self.chunk_count())
    }

    /// Returns the changes of all chunks.
    pub fn chunk_changes(&self) -> impl Iterator<Item = &ChunkChange> {
        self.chunks.values().flat_map(BTreeMap::values)
    }

    /// Returns the changes of all chunks, to be replaced.
    pub fn chunk_changes_mut(&mut self) -> impl Iterator<Item = &mut ChunkChange> {
        self.chunks.values_mut().flat_map(BTreeMap::values_mut)
    }

    /// Returns the paths, in the base, of the deleted nodes.
    pub fn deleted_paths(&self) -> HashSet<String> {
        self.deleted.iter().map(|node| node.path.clone()).collect()
    }

    /// Returns the path of the array and the coordinates of the first chunk that is stored in
    /// `object`. The changes were made for `base`.
    pub fn chunk_in(&self, base: &Snapshot, object: ObjectId) -> Option<(String, Coords)> {
        let is_there = |change: &ChunkChange| {
            change.stored().and_then(ChunkPayload::range).is_some_and(|(chunk, ..)| chunk == object)
        };
        let find = |chunks: &BTreeMap<Coords, ChunkChange>| {
            chunks.iter().find(|(_, change)| is_there(change)).map(|(coords, _)| coords.clone())
        };
        let (node, coords) = self.chunks.iter().find_map(|(node, chunks)| Some((*node, find(chunks)?)))?;
        let moved = self.moved_to().get(&node).map(|path| (*path).to_owned());
        let created = || self.created.iter().find(|created| created.id == node).map(|created| created.path.clone());
        let there = || base.nodes().find(|there| there.id == node).map(|there| there.path.to_owned());
        Some((moved.or_else(created).or_else(there)?, coords))
    }

    pub(super) fn deleted_ids(&self) -> HashSet<NodeId> {
        self.deleted.iter().map(|node| node.id).collect()
    }

    /// Returns the new paths of the moved nodes, by id.
    pub(super) fn moved_to(&self) -> HashMap<NodeId, &str> {
        self.moved.iter().map(|moved| (moved.node, moved.to.as_str())).collect()
    }

    /// Returns the nodes that leave their paths in the base: the deleted and the moved ones.
    pub(super) fn removed_ids(&self) -> HashSet<NodeId> {
        self.deleted.iter().map(|node| node.id).chain(self.moved.iter().map(|moved| moved.node)).collect()
    }

    /// Returns the paths that [`Self::removed_ids`] leave.
    pub(super) fn removed_paths(&self) -> HashSet<&str> {
        let deleted = self.deleted.iter().map(|node| node.path.as_str());
        deleted.chain(self.moved.iter().map(|moved| moved.from.as_str())).collect()
    }
}

impl ChunkFile {
    /// Opens the file for reading, which does not change its time of access where that can be
    /// avoided.
    pub fn open(&self) -> Result<File> {
        // The file may have been replaced by a link or a FIFO since it was checked.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let open = |flags| beneath::open(&self.directory, &self.name, flags, resolve);
        // A new time for each of 40,000 files takes a thirtieth of a commit. The kernel lets only
        // owners read without.
        open(flags | OFlags::NOATIME)
            .or_else(|errno| if errno == Errno::PERM { open(flags) } else { Err(errno) })
            .map(File::from)
            .map_err(|e| Error::io(format!("the chunk's file {}", self.name), e.into()))
    }
}
