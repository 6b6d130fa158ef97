//! Large remote chunks, in pieces that are fetched and kept one by one.
//!
//! A program that reads a few bytes of a shard of gigabytes must not wait for all of them. A piece
//! is itself a range of an object, and looks like a chunk to the cache.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::chunk::ChunkRange;
use super::{Data, Reader, cut, not_in_chunk, range_in, slice};
use icechunkfs_base::error::Result;

/// Chunks up to this many bytes are fetched whole: at 1 Gbit/s that takes as long as two round
/// trips of 30 ms, and most programs read all of a chunk.
pub(super) const MAX_WHOLE: u64 = 8 << 20;
/// Bytes of a piece of a larger chunk.
pub(super) const PIECE: u64 = 2 << 20;
/// Pieces that are prefetched for a reader that goes through a chunk from piece to piece.
const PIECES_AHEAD: u64 = 4;

/// Returns the piece of `chunk` that has the byte at `offset`, which lies in it, and the start of
/// the piece in the chunk.
pub(super) fn piece_at(chunk: &ChunkRange, offset: u64) -> (ChunkRange, u64) {
    if chunk.length <= MAX_WHOLE {
        return (chunk.clone(), 0);
    }
    let begin = offset / PIECE * PIECE;
    let length = PIECE.min(chunk.length.saturating_sub(begin));
    (ChunkRange { offset: chunk.offset.saturating_add(begin), length, ..chunk.clone() }, begin)
}

/// Returns the piece that has all of `length` bytes from `offset` on, and their start in it; none
/// if they are in several.
pub(super) fn only(chunk: &ChunkRange, offset: u64, length: u64) -> Option<(ChunkRange, u64)> {
    let (piece, begin) = piece_at(chunk, offset);
    let within = offset - begin;
    (within.checked_add(length)? <= piece.length).then_some((piece, within))
}

/// Returns the pieces of `chunk` that have bytes of `range`, which lies in it, with their places in
/// the chunk.
pub(super) fn pieces_of(chunk: &ChunkRange, range: &Range<u64>) -> Vec<(Range<u64>, ChunkRange)> {
    let mut pieces = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let (piece, begin) = piece_at(chunk, at);
        at = begin + piece.length;
        pieces.push((begin..at, piece));
    }
    pieces
}

/// Returns the bytes of `range` that `part` has, whose place is `place`.
fn overlap(range: &Range<u64>, place: &Range<u64>, part: &Bytes) -> Option<Bytes> {
    let begin = range.start.max(place.start);
    let end = range.end.min(place.end);
    slice(part, begin.checked_sub(place.start)?, usize::try_from(end.checked_sub(begin)?).ok()?)
}

/// Returns the bytes of `range` out of consecutive parts.
pub(super) fn join(parts: &[(Range<u64>, Bytes)], range: &Range<u64>) -> Option<Data> {
    let length = usize::try_from(range.end - range.start).ok()?;
    if let [(place, bytes)] = parts {
        return overlap(range, place, bytes).filter(|bytes| bytes.len() == length).map(Data::Bytes);
    }
    let mut joined = BytesMut::with_capacity(length);
    for (place, bytes) in parts {
        joined.extend_from_slice(&overlap(range, place, bytes)?);
    }
    (joined.len() == length).then(|| Data::Bytes(joined.freeze()))
}

impl Reader {
    /// Reads bytes `offset..offset + length` of `chunk`, which must lie in it.
    pub(super) async fn read_pieces(self: &Arc<Self>, chunk: &ChunkRange, offset: u64, length: usize) -> Result<Data> {
        if let Some((piece, within)) = only(chunk, offset, length as u64) {
            self.prefetch_pieces(chunk, &piece);
            return self.read_piece(&piece, within, length).await;
        }
        let range = range_in(chunk, offset, length)?;
        self.join_pieces(&pieces_of(chunk, &range), &range, |piece| self.prefetch_pieces(chunk, piece)).await
    }

    /// Reads bytes `within..within + length` of `piece`: those alone if it is on the disk, else all
    /// of it.
    pub(super) async fn read_piece(self: &Arc<Self>, piece: &ChunkRange, within: u64, length: usize) -> Result<Data> {
        match self.read_kept(piece, within, length).await {
            Some(data) => Ok(data),
            None => cut(&self.whole(piece).await?, within, length),
        }
    }

    /// Returns the bytes of `range` of a chunk out of consecutive `pieces`, each with its place in
    /// the chunk. Calls `begin` before a piece is loaded.
    pub(super) async fn join_pieces(
        self: &Arc<Self>,
        pieces: &[(Range<u64>, ChunkRange)],
        range: &Range<u64>,
        begin: impl Fn(&ChunkRange),
    ) -> Result<Data> {
        let length = (range.end - range.start) as usize;
        let incomplete = || not_in_chunk(range.start, length);
        // The length that a reference claims is not allocated at once.
        let mut joined = BytesMut::with_capacity(length.min(PIECE as usize));
        for (place, piece) in pieces {
            begin(piece);
            let part = overlap(range, place, &self.whole(piece).await?).ok_or_else(incomplete)?;
            if part.len() == length {
                return Ok(Data::Bytes(part));
            }
            joined.extend_from_slice(&part);
        }
        if joined.len() == length { Ok(Data::Bytes(joined.freeze())) } else { Err(incomplete()) }
    }

    /// Reads exactly bytes `offset..offset + length` of `chunk`, which must lie in it, and does not
    /// keep them.
    pub async fn read_exactly(&self, chunk: &ChunkRange, offset: u64, length: u64) -> Result<Bytes> {
        let range = range_in(chunk, offset, usize::try_from(length).unwrap_or(usize::MAX))?;
        let start = chunk.offset.saturating_add(range.start);
        let _permit = self.reads.acquire_many(self.budget.read_permits(length)).await;
        self.fetch(&chunk.object, start, length).await
    }

    /// Reads like [`Reader::read`], but fetches no more than is asked for, and does not keep it:
    /// what is read here is not read again.
    pub(super) async fn read_once(self: &Arc<Self>, chunk: &ChunkRange, offset: u64, length: usize) -> Result<Data> {
        if let Some(data) = self.read_now(chunk, offset, length) {
            return Ok(data);
        }
        if let Some((piece, within)) = only(chunk, offset, length as u64)
            && let Some(data) = self.read_kept(&piece, within, length).await
        {
            return Ok(data);
        }
        self.read_exactly(chunk, offset, length as u64).await.map(Data::Bytes)
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
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::reader::chunk::Object;
    use icechunkfs_format::format::testing::id;

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

    #[test]
    fn parts_are_joined() {
        let bytes = |from: u8, to: u8| Bytes::from((from..to).collect::<Vec<_>>());
        let parts = [(0..10, bytes(0, 10)), (10..15, bytes(10, 15)), (15..30, bytes(15, 30))];
        assert_eq!(&*join(&parts, &(5..20)).unwrap(), &(5..20).collect::<Vec<u8>>()[..]);
        assert_eq!(&*join(&parts[..1], &(5..10)).unwrap(), &[5, 6, 7, 8, 9]);
        assert!(join(&parts[..2], &(5..20)).is_none());
    }
}
