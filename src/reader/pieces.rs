//! Large remote chunks, in pieces that are fetched and kept one by one.
//!
//! A program that reads a few bytes of a shard of gigabytes must not wait for all of them. A piece is itself a range of an
//! object, and looks like a chunk to the cache.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::chunk::ChunkRange;
use super::{Data, Reader, not_in_chunk, slice};
use crate::error::Result;

/// Chunks up to this many bytes are fetched whole: at 1 Gbit/s that takes as long as two round trips of 30 ms, and most programs
/// read all of a chunk.
pub(super) const MAX_WHOLE: u64 = 8 << 20;
/// Bytes of a piece of a larger chunk.
pub(super) const PIECE: u64 = 2 << 20;
/// Pieces that are prefetched for a reader that goes through a chunk from piece to piece.
const PIECES_AHEAD: u64 = 4;

/// Returns the piece of `chunk` that has the byte at `offset`, which lies in it, and the start of the piece in the chunk.
pub(super) fn piece_at(chunk: &ChunkRange, offset: u64) -> (ChunkRange, u64) {
    if chunk.length <= MAX_WHOLE {
        return (chunk.clone(), 0);
    }
    let begin = offset / PIECE * PIECE;
    let length = PIECE.min(chunk.length.saturating_sub(begin));
    (ChunkRange { offset: chunk.offset.saturating_add(begin), length, ..chunk.clone() }, begin)
}

/// Returns the piece that has all of `length` bytes from `offset` on, and their start in it; none if they are in several.
pub(super) fn only(chunk: &ChunkRange, offset: u64, length: u64) -> Option<(ChunkRange, u64)> {
    let (piece, begin) = piece_at(chunk, offset);
    let within = offset - begin;
    (within.checked_add(length)? <= piece.length).then_some((piece, within))
}

impl Reader {
    /// Reads bytes `offset..offset + length` of `chunk`, which must lie in it.
    pub(super) async fn read_pieces(self: &Arc<Self>, chunk: &ChunkRange, offset: u64, length: usize) -> Result<Data> {
        if let Some((piece, within)) = only(chunk, offset, length as u64) {
            self.prefetch_pieces(chunk, &piece);
            if let Some(data) = self.read_kept(&piece, within, length).await {
                return Ok(data);
            }
            let bytes = self.whole(&piece).await?;
            return slice(&bytes, within, length).map(Data::Bytes).ok_or_else(|| not_in_chunk(offset, length));
        }
        let end = offset.saturating_add(length as u64).min(chunk.length);
        let mut bytes = BytesMut::new();
        let mut at = offset;
        while at < end {
            let (piece, begin) = piece_at(chunk, at);
            self.prefetch_pieces(chunk, &piece);
            let part = self.whole(&piece).await?;
            let count = usize::try_from((begin + piece.length).min(end) - at).unwrap_or(usize::MAX);
            bytes.extend_from_slice(&slice(&part, at - begin, count).ok_or_else(|| not_in_chunk(at, count))?);
            at += count as u64;
        }
        if bytes.len() == length { Ok(Data::Bytes(bytes.freeze())) } else { Err(not_in_chunk(offset, length)) }
    }

    /// Reads exactly bytes `offset..offset + length` of `chunk`, which must lie in it, and does not keep them.
    pub async fn read_exactly(&self, chunk: &ChunkRange, offset: u64, length: u64) -> Result<Bytes> {
        let end = offset.checked_add(length).filter(|end| *end <= chunk.length);
        let start = end.and_then(|_| chunk.offset.checked_add(offset));
        let start = start.ok_or_else(|| not_in_chunk(offset, usize::try_from(length).unwrap_or(usize::MAX)))?;
        let _permit = self.reads.acquire_many(self.budget.read_permits(length)).await;
        self.fetch(&chunk.object, start, length).await
    }

    /// Prefetches the next pieces, if the one before `piece` was read too.
    fn prefetch_pieces(self: &Arc<Self>, chunk: &ChunkRange, piece: &ChunkRange) {
        let begin = piece.offset.saturating_sub(chunk.offset);
        if chunk.length <= MAX_WHOLE
            || self.prefetch_limit() == 0
            || begin < PIECE
            || !self.has(&piece_at(chunk, begin - PIECE).0)
        {
            return;
        }
        let next = (1..=PIECES_AHEAD).map(|n| begin + n * PIECE).take_while(|at| *at < chunk.length);
        // Pieces without room are requested again with the next piece.
        let _ = self.prefetch(next.map(|at| piece_at(chunk, at).0).enumerate().collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::id;
    use crate::reader::chunk::Object;

    #[test]
    fn pieces_cover_a_chunk() {
        let at = |offset, length| ChunkRange { object: Object::Native(id(1)), offset, length };
        let chunk = at(100, MAX_WHOLE + PIECE / 2);
        assert_eq!(piece_at(&chunk, 0), (at(100, PIECE), 0));
        assert_eq!(piece_at(&chunk, MAX_WHOLE + 5), (at(100 + MAX_WHOLE, PIECE / 2), MAX_WHOLE));
        assert_eq!(only(&chunk, PIECE - 1, 1).map(|(piece, within)| (piece.offset, within)), Some((100, PIECE - 1)));
        assert_eq!(only(&chunk, PIECE - 1, 2), None);
        let small = at(100, MAX_WHOLE);
        assert_eq!(only(&small, PIECE - 1, 2), Some((small, PIECE - 1)));
    }
}
