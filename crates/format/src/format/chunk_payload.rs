//! Defines the location of a chunk's bytes (spec, "Chunk Manifest Files").
//!
//! Every module that handles chunk references uses this one type. A payload that is read in place
//! from a manifest borrows its inline bytes; a payload that outlives the manifest owns them.

use std::ops::Range;

use bytes::Bytes;

use super::ids::ObjectId;

/// Location of a chunk's bytes. `B` holds the bytes of an inline chunk: `&[u8]` within a manifest,
/// [`Bytes`] elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkPayload<B = Bytes> {
    /// Bytes in the manifest itself.
    Inline(B),
    /// Range of an object below `chunks/`.
    Native {
        /// Id of the object.
        chunk: ObjectId,
        /// Offset of the chunk in the object, in bytes.
        offset: u64,
        /// Length of the chunk, in bytes.
        length: u64,
    },
    /// Range of a file outside the repository.
    Virtual {
        /// Absolute URL, `vcc://container/...` included.
        location: String,
        /// Offset of the chunk in the file, in bytes.
        offset: u64,
        /// Length of the chunk, in bytes.
        length: u64,
        /// Checksum that detects a change of the file.
        checksum: Option<Checksum>,
    },
}

/// Condition under which the target of a virtual reference is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Checksum {
    /// Entity tag that the file must have.
    Etag(String),
    /// Last allowed modification time, in seconds since 1970-01-01 UTC.
    LastModified(u32),
}

impl<B: AsRef<[u8]>> ChunkPayload<B> {
    /// Returns the chunk's length, in bytes.
    pub fn length(&self) -> u64 {
        match self {
            ChunkPayload::Inline(bytes) => bytes.as_ref().len() as u64,
            ChunkPayload::Native { length, .. } | ChunkPayload::Virtual { length, .. } => *length,
        }
    }

    /// Returns the bytes that a copy of the payload takes besides itself.
    pub fn held(&self) -> u64 {
        let bytes = match self {
            ChunkPayload::Inline(bytes) => bytes.as_ref().len(),
            ChunkPayload::Native { .. } => 0,
            ChunkPayload::Virtual { location, checksum: Some(Checksum::Etag(tag)), .. } => location.len() + tag.len(),
            ChunkPayload::Virtual { location, .. } => location.len(),
        };
        bytes as u64
    }

    /// Returns the object, offset and length of a native chunk.
    pub fn range(&self) -> Option<(ObjectId, u64, u64)> {
        match self {
            ChunkPayload::Native { chunk, offset, length } => Some((*chunk, *offset, *length)),
            ChunkPayload::Inline(_) | ChunkPayload::Virtual { .. } => None,
        }
    }
}

impl<'a> ChunkPayload<&'a [u8]> {
    /// Returns the location of `range` of the chunk; none if the chunk does not have it.
    pub fn part(self, range: &Range<u64>) -> Option<ChunkPayload<&'a [u8]>> {
        if range.start > range.end || range.end > self.length() {
            return None;
        }
        let part = range.end - range.start;
        Some(match self {
            ChunkPayload::Inline(bytes) => ChunkPayload::Inline(bytes.get(range.start as usize..range.end as usize)?),
            ChunkPayload::Native { chunk, offset, .. } => {
                ChunkPayload::Native { chunk, offset: offset.checked_add(range.start)?, length: part }
            }
            ChunkPayload::Virtual { location, offset, checksum, .. } => {
                ChunkPayload::Virtual { location, offset: offset.checked_add(range.start)?, length: part, checksum }
            }
        })
    }
}

impl From<ChunkPayload<&[u8]>> for ChunkPayload {
    fn from(payload: ChunkPayload<&[u8]>) -> Self {
        match payload {
            ChunkPayload::Inline(bytes) => ChunkPayload::Inline(Bytes::copy_from_slice(bytes)),
            ChunkPayload::Native { chunk, offset, length } => ChunkPayload::Native { chunk, offset, length },
            ChunkPayload::Virtual { location, offset, length, checksum } => {
                ChunkPayload::Virtual { location, offset, length, checksum }
            }
        }
    }
}
