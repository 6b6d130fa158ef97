//! Ranges of objects: native ones of the repository, and virtual ones.

use std::sync::Arc;

use bytes::Bytes;

use crate::cache::CacheKey;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::disk_cache::Name;
use icechunkfs_store::storage::virtuals::VirtualObject;

/// Native chunk: a range of an object below `chunks/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeChunk {
    /// ID of the object.
    pub object: ObjectId,
    /// Offset of the chunk in the object.
    pub offset: u64,
    /// Bytes of the chunk.
    pub length: u64,
}

/// Object with chunks in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// Object below `chunks/`.
    Native(ObjectId),
    /// Object outside the repository, which may be read.
    Virtual(Arc<VirtualObject>),
}

/// Chunk, or a piece of one: a range of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRange {
    /// Object that has the range.
    pub object: Object,
    /// Offset of the range in the object.
    pub offset: u64,
    /// Bytes of the range.
    pub length: u64,
}

impl CacheKey for ChunkRange {
    type Value = Bytes;

    fn weight(&self, bytes: &Bytes) -> u64 {
        self.own_weight() + bytes.len() as u64
    }
}

impl From<NativeChunk> for ChunkRange {
    fn from(chunk: NativeChunk) -> Self {
        ChunkRange { object: Object::Native(chunk.object), offset: chunk.offset, length: chunk.length }
    }
}

impl NativeChunk {
    pub(super) fn key(&self) -> String {
        native_key(self.object)
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Object::Native(id) => f.write_str(&native_key(*id)),
            Object::Virtual(object) => f.write_str(object.location()),
        }
    }
}

impl ChunkRange {
    /// Returns the name in a disk cache. None if the range does not go there: an object that may
    /// change undetected must not be kept beyond the mount, and a local one need not be.
    pub(super) fn name(&self) -> Option<Name> {
        let key = match &self.object {
            Object::Native(id) => native_key(*id),
            Object::Virtual(object) => format!("virtual-{}", object.fingerprint()?),
        };
        Some(Name::range(&key, self.offset, self.length))
    }

    /// Returns the memory that the range takes as a key, beyond its own size, in bytes.
    pub(super) fn own_weight(&self) -> u64 {
        match &self.object {
            Object::Native(_) => 0,
            Object::Virtual(object) => 2 * object.location().len() as u64,
        }
    }
}

pub(super) fn native_key(object: ObjectId) -> String {
    format!("chunks/{object}")
}
