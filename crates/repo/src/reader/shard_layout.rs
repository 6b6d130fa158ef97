//! Layout of a remote shard: how it is cut into pieces along its inner chunks.
//!
//! A piece is fetched and kept as a whole. A read of an inner chunk should cause one request for
//! just that chunk, so pieces begin where inner chunks do; but small ones go together, since a
//! request costs more than they do, and large ones have a separate *head*. The kernel reads whole
//! pages, and beyond the end of a read (`src/fuse/readahead.rs`): it then finds heads, which are
//! fetched along with the inner chunk before them.
//!
//! The index is the one piece that is known before anything is read.

use std::ops::Range;
use std::sync::Arc;

use super::chunk::ChunkRange;
use super::pieces::{MAX_WHOLE, PIECE};
use crate::cache::CacheKey;
use icechunkfs_format::zarr::shard::{Index, IndexLocation, ShardLayout};

/// Bytes of a page: the kernel reads whole pages.
const PAGE: u64 = 4096;
/// Inner chunks up to this many bytes together are one piece, and bytes not known to be an inner
/// chunk are cut to this size.
pub(super) const GROUP: u64 = 64 << 10;
/// Bytes of the head of a large inner chunk: as far as the kernel reads ahead without privileges.
pub(super) const HEAD: u64 = 128 << 10;
/// Pieces up to this many bytes are fetched along with the piece before them: small inner chunks,
/// and heads.
pub(super) const SMALL_PIECE: u64 = 2 * HEAD;
/// Most pieces, however large a shard is: their starts are kept in memory.
const MAX_PIECES: u64 = 1 << 16;

/// Pieces of one shard, from its first byte to its last.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Start of each piece; the lowest bit is set if the piece continues the inner chunk of the one
    /// before it.
    begins: Box<[u64]>,
    length: u64,
}

/// Key of the layout of a shard.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct LayoutKey(pub(super) ChunkRange);

impl CacheKey for LayoutKey {
    type Value = Arc<Layout>;

    fn weight(&self, layout: &Arc<Layout>) -> u64 {
        self.0.own_weight() + 8 * layout.begins.len() as u64
    }
}

/// Returns the range of the index's piece in a shard of `length` bytes, in whole pages.
pub(super) fn index_piece(sharding: &ShardLayout, length: u64) -> Option<Range<u64>> {
    let place = sharding.index_range(length)?;
    Some(match sharding.location {
        IndexLocation::Start => 0..up(place.end).min(length),
        IndexLocation::End => down(place.start)..length,
    })
}

impl Layout {
    /// Creates the layout of a shard of `length` bytes; without an index, because it is damaged,
    /// pieces disregard inner chunks.
    pub(super) fn new(sharding: &ShardLayout, length: u64, index: Option<&Index>) -> Self {
        let ends = index_piece(sharding, length).map(|place| match sharding.location {
            IndexLocation::Start => (place.end, length),
            IndexLocation::End => (0, place.start),
        });
        let (first, end) = ends.unwrap_or((0, length));
        let mut pieces = Pieces { begins: Vec::new(), grouped: None, step: GROUP.max(up(length / MAX_PIECES)) };
        if first > 0 {
            pieces.begins.push(0);
        }
        match index {
            None => pieces.cut(first..end),
            Some(index) => {
                let within = |at: u64| down(at).clamp(first, end);
                let mut at = first;
                let mut farthest = first;
                for (place, _) in index.in_order() {
                    // Gaps that nothing refers to may be large.
                    if within(place.start) > up(farthest).saturating_add(GROUP) {
                        pieces.add(at..up(farthest), sharding.inner.as_deref(), farthest);
                        pieces.cut(up(farthest)..within(place.start));
                        at = within(place.start);
                    }
                    if within(place.start) > at {
                        pieces.add(at..within(place.start), sharding.inner.as_deref(), farthest);
                        at = within(place.start);
                    }
                    farthest = farthest.max(place.end.min(end));
                }
                let last = up(farthest).clamp(at, end);
                pieces.add(at..last, sharding.inner.as_deref(), farthest);
                pieces.cut(last..end);
            }
        }
        pieces.close();
        if end < length {
            pieces.begins.push(end);
        }
        Layout { begins: pieces.begins.into(), length }
    }

    fn begin(&self, number: usize) -> u64 {
        self.begins.get(number).map_or(self.length, |begin| begin & !1)
    }

    pub(super) fn len(&self) -> usize {
        self.begins.len()
    }

    pub(super) fn piece(&self, number: usize) -> Range<u64> {
        self.begin(number)..self.begin(number + 1)
    }

    /// Returns true if piece `number` continues the inner chunk of the one before it.
    pub(super) fn continues_previous(&self, number: usize) -> bool {
        self.begins.get(number).is_some_and(|begin| begin & 1 == 1)
    }

    /// Returns the piece that has the byte at `offset`.
    pub(super) fn at(&self, offset: u64) -> usize {
        self.begins.partition_point(|begin| begin & !1 <= offset).saturating_sub(1)
    }

    /// Returns the pieces that have bytes of `range`, which must not be empty.
    pub(super) fn touched(&self, range: &Range<u64>) -> Range<usize> {
        self.at(range.start)..self.at(range.end.saturating_sub(1)) + 1
    }
}

struct Pieces {
    begins: Vec<u64>,
    /// Range of small neighbors that are to be one piece.
    grouped: Option<Range<u64>>,
    step: u64,
}

impl Pieces {
    /// Adds an inner chunk, which ends at `end` if it is a shard itself.
    fn add(&mut self, range: Range<u64>, inner: Option<&ShardLayout>, end: u64) {
        let length = range.end.saturating_sub(range.start);
        if length == 0 {
            return;
        }
        if let Some(inner) = inner {
            return self.add_shard(range, inner, end);
        }
        if length < self.step {
            match &mut self.grouped {
                Some(group) if range.end - group.start <= self.step => group.end = range.end,
                _ => {
                    self.close();
                    self.grouped = Some(range);
                }
            }
            return;
        }
        self.close();
        self.begins.push(range.start);
        if length <= SMALL_PIECE {
            return;
        }
        if length <= MAX_WHOLE {
            return self.begins.push((range.start + HEAD) | 1);
        }
        let mut at = range.start + PIECE;
        while at < range.end {
            self.begins.push(at);
            at += PIECE;
        }
    }

    /// Adds an inner chunk that is a shard: its index as one piece, and the rest cut evenly.
    fn add_shard(&mut self, range: Range<u64>, inner: &ShardLayout, end: u64) {
        let index = inner.index_range(end.saturating_sub(range.start));
        let Some(index) = index.filter(|_| inner.location == IndexLocation::End) else { return self.cut(range) };
        let begin = down(range.start + index.start).clamp(range.start, range.end);
        self.cut(range.start..begin);
        if begin < range.end {
            self.close();
            self.begins.push(begin);
        }
    }

    /// Adds bytes that are not known to be an inner chunk, cut evenly.
    fn cut(&mut self, range: Range<u64>) {
        self.close();
        let mut at = range.start;
        while at < range.end {
            self.begins.push(at);
            at += self.step;
        }
    }

    fn close(&mut self) {
        if let Some(group) = self.grouped.take() {
            self.begins.push(group.start);
        }
    }
}

fn down(at: u64) -> u64 {
    at / PAGE * PAGE
}

fn up(at: u64) -> u64 {
    at.div_ceil(PAGE).saturating_mul(PAGE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use icechunkfs_base::memory::Meter;
    use serde_json::json;

    fn sharding(count: usize, location: &str, inner: serde_json::Value) -> ShardLayout {
        let codec = json!({"name": "sharding_indexed", "configuration": {"chunk_shape": [4], "index_location": location,
            "codecs": inner, "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}});
        let document = json!({"shape": [1000], "codecs": [codec],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4 * count]}}});
        ShardLayout::parse(document.to_string().as_bytes(), &mut Meter::brief("a test")).unwrap().unwrap()
    }

    fn layout(sharding: &ShardLayout, length: u64, entries: &[(u64, u64)]) -> Layout {
        let bytes: Vec<u8> =
            entries.iter().flat_map(|(offset, length)| [offset.to_le_bytes(), length.to_le_bytes()].concat()).collect();
        let index = Index::decode(sharding, length, bytes.into()).unwrap();
        let layout = Layout::new(sharding, length, Some(&index));
        covers(&layout, length);
        layout
    }

    /// Checks that pieces follow each other from the first byte to the last.
    fn covers(layout: &Layout, length: u64) {
        assert_eq!((layout.begin(0), layout.begin(layout.len())), (0, length));
        for number in 0..layout.len() {
            let piece = layout.piece(number);
            assert!(piece.start < piece.end, "{piece:?} of {layout:?}");
            assert_eq!(layout.touched(&piece), number..number + 1);
        }
    }

    #[test]
    fn small_inner_chunks_go_together() {
        let sharding = sharding(64, "end", json!(["bytes"]));
        let entries: Vec<(u64, u64)> = (0..64).rev().map(|n| (n * 16_384, 16_384)).collect();
        let end = 64 * 16_384;
        let layout = layout(&sharding, end + 1024, &entries);
        assert_eq!(layout.piece(0), 0..GROUP);
        assert_eq!(layout.piece(16), end..end + 1024);
        assert_eq!(layout.touched(&(20_000..40_000)), 0..1);
        assert_eq!(index_piece(&sharding, end + 1024), Some(end..end + 1024));
    }

    #[test]
    fn large_inner_chunks_have_heads() {
        let sharding = sharding(4, "end", json!(["bytes"]));
        let mib = 1 << 20;
        let entries = [(0, mib + 100), (mib + 100, 100_000), (mib + 100_100, mib), (30 * mib, 20 * mib)];
        let length = 50 * mib + 64;
        let layout = layout(&sharding, length, &entries);
        assert_eq!((layout.piece(0), layout.continues_previous(1)), (0..HEAD, true));
        assert_eq!(layout.piece(1), HEAD..mib);
        assert_eq!(layout.at(mib + 100), 2, "a page that two inner chunks share belongs to the second");
        assert_eq!(layout.piece(2), mib..down(mib + 100_100));
        let gap = layout.piece(layout.at(20 * mib));
        assert_eq!(gap.end - gap.start, GROUP, "nobody is likely to want this");
        assert_eq!(layout.piece(layout.at(30 * mib)), 30 * mib..32 * mib);
    }

    #[test]
    fn an_index_may_come_first_and_inner_chunks_be_shards() {
        let sharding = sharding(2, "start", json!(["bytes"]));
        let layout_ = layout(&sharding, 200_000, &[(32, 100_000), (100_032, 99_968)]);
        assert_eq!(layout_.piece(0), 0..4096);
        let inner = json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [1],
            "codecs": ["bytes"], "index_codecs": ["bytes", "crc32c"]}}]);
        let nested = self::sharding(2, "end", inner);
        let layout = layout(&nested, 1_000_032, &[(0, 500_000), (500_000, 500_000)]);
        // The 4 entries and their checksum before 500,000 are a separate piece.
        assert_eq!(layout.piece(layout.at(500_000 - 68)).start, down(500_000 - 68));
        assert_eq!(layout.piece(layout.at(1_000_000 - 68)).start, down(1_000_000 - 68));
    }

    #[test]
    fn any_index_gives_each_byte_exactly_one_piece() {
        let sharding = sharding(8, "end", json!(["bytes"]));
        let mut seed = 5_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 20) % below
        };
        for _ in 0..2000 {
            let length = 128 + next(4 << 20);
            let entries: Vec<(u64, u64)> = (0..8)
                .map(|_| match next(6) {
                    0 => (u64::MAX, u64::MAX),
                    1 => (u64::MAX - next(5), next(10)),
                    _ => (next(length), next(length)),
                })
                .collect();
            layout(&sharding, length, &entries);
        }
        covers(&Layout::new(&sharding, 1 << 40, None), 1 << 40);
        covers(&Layout::new(&sharding, 5, None), 5);
    }
}
