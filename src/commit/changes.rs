//! What a working tree changed, compared with the snapshot that it is based on.
//!
//! A change set is a difference, not a state: it can be applied to another snapshot too, if nobody else touched the same
//! things. It holds no chunk bytes, only where they are.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::error::{Error, Result};
use crate::format::chunk_payload::ChunkPayload;
use crate::format::ids::NodeId;
use crate::format::transaction_log::Move;
use crate::zarr::Coords;

/// Everything that changed. Paths are absolute and canonical, as in snapshots.
#[derive(Clone, Debug, Default)]
pub struct ChangeSet {
    /// Nodes that are gone, each with all that were below it.
    pub deleted: Vec<DeletedNode>,
    /// Nodes that were not there before. Their ids are fresh.
    pub created: Vec<WrittenNode>,
    /// Nodes of the base whose `zarr.json` has other bytes. The kind is the same; their path is the one after all moves.
    pub updated: Vec<WrittenNode>,
    /// Nodes of the base that have another path, one entry each: what is below a moved group has entries of its own.
    pub moved: Vec<Move>,
    /// Chunks written and deleted, by array: one of the base (not deleted) or a created one.
    pub chunks: BTreeMap<NodeId, BTreeMap<Coords, ChunkChange>>,
}

/// A node of the base that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedNode {
    /// Its id.
    pub id: NodeId,
    /// Its path in the base.
    pub path: String,
    /// Whether it was an array; a group otherwise.
    pub is_array: bool,
}

/// A node with a new `zarr.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenNode {
    /// Its id.
    pub id: NodeId,
    /// Its path.
    pub path: String,
    /// Its `zarr.json`, byte for byte, which has been validated.
    pub zarr_json: Bytes,
    /// Whether it is an array; a group otherwise.
    pub is_array: bool,
}

/// What happened to one chunk.
#[derive(Clone, Debug)]
pub enum ChunkChange {
    /// It is gone.
    Delete,
    /// Its bytes are in a file, not in the repository yet.
    File(ChunkFile),
    /// It is where another chunk of this repository is already.
    Stored(ChunkPayload),
}

/// A file that holds exactly one chunk. Nobody writes to it while a commit runs.
#[derive(Clone, Debug)]
pub struct ChunkFile {
    /// The directory that it is in, or one above.
    pub directory: Arc<OwnedFd>,
    /// Its name, or path, below that.
    pub name: String,
    /// Its size in bytes, which is not 0.
    pub length: u64,
    /// Whether it may become an object of the repository under a second name. Not while the kernel has it open by itself.
    pub may_link: bool,
}

impl ChangeSet {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.deleted.is_empty()
            && self.created.is_empty()
            && self.updated.is_empty()
            && self.moved.is_empty()
            && self.chunks.values().all(BTreeMap::is_empty)
    }

    /// How many nodes are created, deleted, changed or moved.
    pub fn node_count(&self) -> usize {
        self.created.len() + self.deleted.len() + self.updated.len() + self.moved.len()
    }

    /// How many chunks are written or deleted.
    pub fn chunk_count(&self) -> usize {
        self.chunks.values().map(BTreeMap::len).sum()
    }
}

impl ChunkFile {
    /// Opens it for reading.
    pub fn open(&self) -> Result<File> {
        // What was a file when it was looked at may be a link or a FIFO now.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.directory, &self.name, flags, Mode::empty(), resolve)
            .map(File::from)
            .map_err(|e| Error::io(format!("the chunk's file {}", self.name), e.into()))
    }
}
