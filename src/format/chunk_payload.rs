//! Where the bytes of a chunk are (spec, "Chunk Manifest Files").
//!
//! Every floor that handles references to chunks uses this one type. What is read in place from a manifest borrows inline bytes
//! from it; what outlives the manifest owns them.

use bytes::Bytes;

use super::ids::ObjectId;

/// Where the bytes of a chunk are. `B` holds those of an inline chunk: `&[u8]` within a manifest, [`Bytes`] elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkPayload<B = Bytes> {
    /// In the manifest itself.
    Inline(B),
    /// In an object below `chunks/`.
    Native {
        /// The object's id.
        chunk: ObjectId,
        /// Where in the object the chunk begins.
        offset: u64,
        /// Bytes of the chunk.
        length: u64,
    },
    /// In somebody else's file.
    Virtual {
        /// Absolute URL, `vcc://container/...` included.
        location: String,
        /// Where in the file the chunk begins.
        offset: u64,
        /// Bytes of the chunk.
        length: u64,
        /// Tells whether the file has changed since.
        checksum: Option<Checksum>,
    },
}

/// Tells whether the target of a virtual reference is still what it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Checksum {
    /// The object's entity tag.
    Etag(String),
    /// Not modified after this second since 1970-01-01 UTC.
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
