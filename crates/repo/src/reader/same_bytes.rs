//! Comparison of chunks that are stored in several places, by their bytes.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use super::{NativeChunk, Reader};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;

/// Bytes that are read of two chunks at first to compare their content: most that differ do so
/// there.
const FIRST_PIECE: u64 = 64 << 10;
/// Bytes that are read of them at a time after that.
const PIECE: u64 = 1 << 20;
/// Longest virtual chunk that is read, in bytes. Nothing stores those again, and their stores may
/// be far away.
const MAX_VIRTUAL_LENGTH: u64 = 1 << 20;

/// Returns true if the chunk is no virtual one, or a short one.
pub(crate) fn can_be_compared(payload: &ChunkPayload) -> bool {
    !matches!(payload, ChunkPayload::Virtual { length, .. } if *length > MAX_VIRTUAL_LENGTH)
}

/// Returns true if two chunks have the same bytes. Virtual chunks that may not be read count as
/// different.
pub(crate) async fn have_same_bytes(reader: &Arc<Reader>, a: &ChunkPayload, b: &ChunkPayload) -> Result<bool> {
    if a.length() != b.length() {
        return Ok(false);
    }
    for (offset, length) in pieces(a.length()) {
        let one = piece(reader, a, offset, length).await;
        let other = piece(reader, b, offset, length).await;
        match (one, other) {
            (Err(error), _) | (_, Err(error)) if error.kind() == ErrorKind::VirtualNotAllowed => return Ok(false),
            (one, other) if one.as_ref().is_ok_and(|one| other.as_ref().is_ok_and(|other| one == other)) => {}
            (one, other) => return one.and(other).map(|_| false),
        }
    }
    Ok(true)
}

impl Reader {
    /// Reads all bytes of a chunk, and does not keep them. The caller has memory for them.
    pub async fn read_payload(self: &Arc<Self>, payload: &ChunkPayload) -> Result<Bytes> {
        let length = usize::try_from(payload.length()).unwrap_or(usize::MAX);
        piece(self, payload, 0, length).await.map(Bytes::from)
    }
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
    reader.read_once(&chunk, offset, length).await.map(|data| data.to_vec())
}

/// Returns true if `file`, which is as long as `payload` and which nobody changes, has its bytes.
pub(crate) async fn is_same_file(reader: &Arc<Reader>, file: File, payload: &ChunkPayload) -> Result<bool> {
    let read = move |range: Range<u64>| {
        let mut own = vec![0; usize::try_from(range.end - range.start).unwrap_or_default()];
        file.read_exact_at(&mut own, range.start).map_err(|e| Error::io("reading a chunk to compare it", e))?;
        Ok(own)
    };
    has_content(reader, Arc::new(read), payload).await
}

/// Reads a range of a chunk. May block.
pub(crate) type ReadRange = dyn Fn(Range<u64>) -> Result<Vec<u8>> + Send + Sync;

/// Returns true if the chunk that `read` reads, which is as long as `payload`, has its bytes.
pub(crate) async fn has_content(reader: &Arc<Reader>, read: Arc<ReadRange>, payload: &ChunkPayload) -> Result<bool> {
    for (offset, length) in pieces(payload.length()) {
        let other = piece(reader, payload, offset, length).await?;
        let read = Arc::clone(&read);
        if !blocking(move || Ok(read(offset..offset + length as u64)? == other)).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns offsets and lengths of the pieces of a chunk.
fn pieces(length: u64) -> impl Iterator<Item = (u64, usize)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let most = if offset == 0 { FIRST_PIECE } else { PIECE };
        let piece = most.min(length - offset);
        let at = offset;
        offset += piece;
        (piece > 0).then_some((at, piece as usize))
    })
}
