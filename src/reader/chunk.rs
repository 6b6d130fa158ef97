//! What the reader reads: ranges of objects, the repository's own and others'.

use std::sync::Arc;

use crate::disk_cache::Name;
use crate::format::ids::ObjectId;
use crate::storage::virtuals::VirtualObject;

/// A native chunk: a range of an object below `chunks/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeChunk {
    /// The object.
    pub object: ObjectId,
    /// Where the chunk begins in it.
    pub offset: u64,
    /// Bytes of the chunk.
    pub length: u64,
}

/// An object with chunks in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// One below `chunks/`.
    Native(ObjectId),
    /// Somebody else's, which may be read.
    Virtual(Arc<VirtualObject>),
}

/// A chunk, or a piece of one: a range of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRange {
    /// The object.
    pub object: Object,
    /// Where it begins in that.
    pub offset: u64,
    /// Bytes of it.
    pub length: u64,
}

impl From<NativeChunk> for ChunkRange {
    fn from(chunk: NativeChunk) -> Self {
        ChunkRange { object: Object::Native(chunk.object), offset: chunk.offset, length: chunk.length }
    }
}

impl NativeChunk {
    /// The object's key in the repository.
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
    /// What it is called in a cache on a disk. None if it does not go there: what may change, and nothing would tell, is not kept
    /// beyond the mount, and neither is what is on this machine anyway.
    pub(super) fn name(&self) -> Option<Name> {
        let key = match &self.object {
            Object::Native(id) => native_key(*id),
            Object::Virtual(object) => format!("virtual-{}", object.fingerprint()?),
        };
        Some(Name::range(&key, self.offset, self.length))
    }

    /// Bytes of memory that it takes as a name, beside its own.
    pub(super) fn weight(&self) -> u64 {
        match &self.object {
            Object::Native(_) => 0,
            Object::Virtual(object) => 2 * object.location().len() as u64,
        }
    }
}

pub(super) fn native_key(object: ObjectId) -> String {
    format!("chunks/{object}")
}
