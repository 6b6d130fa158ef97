//! Remote shards, read by their index.
//!
//! A program that reads an inner chunk reads the index and then the chunk. Each is one request, and
//! the index only the first time. Pieces follow inner chunks ([`super::shard_layout`]), and all
//! pieces that a read misses are fetched at once. A reader that continues from inner chunk to inner
//! chunk is a stream, and the more it has read, the more is prefetched ([`Streams`]).
//!
//! A program that begins with a long read of a shard's first bytes, without the index, reads the
//! whole shard: copying tools do that. The shard is then read like other large chunks
//! ([`super::pieces`]). So a shard is cut in two ways; bytes fetched in one way are found in the
//! other. A damaged index is for the reading program to report: here it only leads to other pieces.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use tracing::debug;

use super::chunk::ChunkRange;
use super::pieces::{join, only, piece_at, pieces_of};
use super::prefetch::{length_of, runs};
use super::shard_layout::{HEAD, Layout, LayoutKey, SMALL_PIECE, index_piece};
use super::{Data, Reader, cut, not_in_chunk, range_in, slice};
use icechunkfs_base::access_pattern::Sequence;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::Result;
use icechunkfs_format::zarr::shard::{Index, IndexLocation, ShardLayout};

/// Shards up to this many bytes are fetched whole: two requests would take longer.
const SMALL_SHARD: u64 = 1 << 20;
/// A first read of this length, at a shard's beginning, may mean a full scan: without privileges
/// the kernel requests no more at a time. With a larger read-ahead, it requests as much for a short
/// read, so that the second read decides.
const MAYBE_FULL_SCAN: u64 = 128 << 10;
/// A first read of this length means a full scan.
const FULL_SCAN: u64 = 512 << 10;
/// Bytes that have to be read in sequence before more is prefetched than was requested.
const TRUSTED_AGE: u64 = 256 << 10;
/// Most bytes that are prefetched for one reader of a shard, and in one request.
const MAX_AHEAD: u64 = 8 << 20;
const MAX_REQUEST: u64 = 2 << 20;
/// Longest distance between the end of a stream and its next request: the kernel sends several at
/// once, in any order.
const MAX_GAP: u64 = 4 << 20;
/// Shards whose access pattern is remembered, and streams of each.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(256).unwrap();
const STREAMS: usize = 4;

#[derive(Debug)]
pub(super) struct AccessPattern {
    shards: Mutex<LruCache<ChunkRange, Streams>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReadMode {
    /// By its index.
    #[default]
    Parts,
    /// By its first bytes; a second read may mean a full scan.
    Beginning,
    /// As a whole, without its index.
    Whole,
}

#[derive(Debug, Default)]
struct Streams {
    mode: ReadMode,
    streams: VecDeque<Sequence>,
}

impl Default for AccessPattern {
    fn default() -> Self {
        AccessPattern { shards: Mutex::new(LruCache::new(REMEMBERED)) }
    }
}

impl Streams {
    /// Records a read of `range`. Returns the stream that it continues, if the stream gets further.
    fn record(&mut self, range: &Range<u64>) -> Option<&mut Sequence> {
        let whole = self.mode == ReadMode::Whole;
        let near = |stream: &Sequence| {
            let run = stream.length().max(range.end - range.start);
            // For a full scan, the kernel reads ahead, up to twice as far.
            let leap = if whole { 2 * MAX_GAP } else { run.min(MAX_GAP) };
            stream.is_near(range, leap)
        };
        let known = self.streams.iter().position(near).and_then(|at| self.streams.remove(at));
        let mut stream = known.unwrap_or_else(|| Sequence::new(range.start));
        let further = stream.extend(range);
        self.streams.push_front(stream);
        self.streams.truncate(STREAMS);
        self.streams.front_mut().filter(|_| further)
    }

    /// Returns true if half of `length` bytes or more were read in sequence.
    fn has_most_of(&self, length: u64) -> bool {
        self.mode == ReadMode::Whole || self.streams.iter().any(|stream| stream.length() >= length / 2)
    }
}

impl Reader {
    /// Reads bytes `offset..offset + length` of `shard`, at least one, which must lie in it: all of
    /// them, or an error.
    pub async fn read_shard(
        self: &Arc<Self>,
        sharding: &ShardLayout,
        shard: &ChunkRange,
        offset: u64,
        length: usize,
    ) -> Result<Data> {
        if self.is_file(&shard.object) || is_small(sharding, shard) {
            return self.read(shard, offset, length).await;
        }
        RemoteShard { reader: self, sharding, shard }.read(offset, length).await
    }

    /// Returns true if `piece` is on this machine, or being loaded.
    pub(super) fn is_near(&self, piece: &ChunkRange) -> bool {
        self.has(piece)
            || piece.name().is_some_and(|name| self.storage.disk_cache().is_some_and(|disk| disk.has(&name)))
    }

    /// Returns true if most of `shard` was read in sequence.
    pub fn reads_most_of(&self, shard: &ChunkRange) -> bool {
        self.access_pattern.shards.lock().peek(shard).is_some_and(|streams| streams.has_most_of(shard.length))
    }

    /// Returns the range of `shard` that a reader of a part needs first: the index.
    pub fn first_of_shard(&self, sharding: &ShardLayout, shard: &ChunkRange) -> ChunkRange {
        match index_piece(sharding, shard.length).filter(|_| !is_small(sharding, shard)) {
            Some(place) => part(shard, &place),
            None => shard.clone(),
        }
    }
}

/// Shard of which parts are fetched.
#[derive(Clone, Copy)]
pub(super) struct RemoteShard<'a> {
    pub(super) reader: &'a Arc<Reader>,
    pub(super) sharding: &'a ShardLayout,
    pub(super) shard: &'a ChunkRange,
}

impl RemoteShard<'_> {
    /// Returns bytes `offset..offset + length` of the shard, if they are in memory. The range must
    /// lie in the shard.
    fn read_now(self, offset: u64, length: usize) -> Option<Data> {
        let RemoteShard { reader, shard, .. } = self;
        let range = offset..offset.checked_add(length as u64)?;
        if only(shard, offset, length as u64).is_some_and(|(piece, _)| reader.cache.get(&piece).is_some()) {
            reader.access_pattern.shards.lock().get_or_insert_mut(shard.clone(), Streams::default).record(&range);
            return reader.read_now(shard, offset, length);
        }
        let layout = reader.cache.get(&LayoutKey(shard.clone()))?;
        let mut parts = Vec::new();
        for number in layout.touched(&range) {
            parts.push((layout.piece(number), reader.cache.get(&self.piece(&layout, number))?));
        }
        let data = join(&parts, &range)?;
        self.prefetch(&layout, &range);
        Some(data)
    }

    /// Reads bytes `offset..offset + length`, at least one, which must lie in the shard: all of
    /// them, or an error.
    async fn read(self, offset: u64, length: usize) -> Result<Data> {
        let RemoteShard { reader, sharding, shard } = self;
        if let Some(data) = self.read_now(offset, length) {
            return Ok(data);
        }
        let range = range_in(shard, offset, length)?;
        match self.mode(&range) {
            ReadMode::Whole => {
                if let Some(data) = self.read_cached_head(&range) {
                    // The rest is fetched meanwhile.
                    let _ = reader.prefetch(vec![(0, piece_at(shard, 0).0)]);
                    return Ok(data);
                }
                return reader.read_pieces(shard, offset, length).await;
            }
            ReadMode::Beginning => {
                return cut(&reader.whole(&part(shard, &(0..FULL_SCAN.min(shard.length)))).await?, offset, length);
            }
            ReadMode::Parts => {}
        }
        if let Some(data) = self.read_cached_pieces(&range).await {
            return Ok(data);
        }
        let layout = match index_piece(sharding, shard.length) {
            // A read of the index itself needs no layout.
            Some(place) if place.start <= range.start && range.end <= place.end => {
                return reader.read_piece(&part(shard, &place), range.start - place.start, length).await;
            }
            _ => self.layout().await?,
        };
        self.prefetch(&layout, &range);
        self.fetch_touched(&layout, &range).await;
        let touched = layout.touched(&range).map(|number| (layout.piece(number), self.piece(&layout, number)));
        reader.join_pieces(&touched.collect::<Vec<_>>(), &range, |_| ()).await
    }

    /// Returns how to fetch `range`, by the access pattern so far.
    fn mode(self, range: &Range<u64>) -> ReadMode {
        let RemoteShard { reader, sharding, shard } = self;
        let long = range.end - range.start;
        // The first of several concurrent requests need not arrive first.
        let begins =
            if range.start == 0 { long >= MAYBE_FULL_SCAN } else { range.start < MAX_GAP && long >= FULL_SCAN };
        let index = index_piece(sharding, shard.length).filter(|_| begins && sharding.location == IndexLocation::End);
        let first = match index.map(|place| reader.is_near(&part(shard, &place))) {
            Some(false) if long >= FULL_SCAN => ReadMode::Whole,
            Some(false) => ReadMode::Beginning,
            _ => ReadMode::Parts,
        };
        let mut shards = reader.access_pattern.shards.lock();
        if !shards.contains(shard) {
            shards.put(shard.clone(), Streams { mode: first, ..Streams::default() });
        }
        let Some(streams) = shards.get_mut(shard).filter(|streams| streams.mode != ReadMode::Parts) else {
            return ReadMode::Parts;
        };
        let is_first = streams.streams.is_empty();
        let further = streams.record(range).is_some();
        streams.mode = match streams.mode {
            // A reader that jumps does not read the whole shard.
            _ if streams.streams.len() > 1 => ReadMode::Parts,
            ReadMode::Beginning if further && !is_first => ReadMode::Whole,
            mode => mode,
        };
        streams.mode
    }

    /// Returns the bytes of `range`, if they are in the first bytes fetched in mode
    /// [`ReadMode::Beginning`].
    fn read_cached_head(self, range: &Range<u64>) -> Option<Data> {
        let beginning = 0..FULL_SCAN.min(self.shard.length);
        let bytes = self.reader.cache.get(&part(self.shard, &beginning))?;
        join(&[(beginning, bytes)], range)
    }

    /// Returns the bytes of `range`, if they were fetched when the shard was read as a whole.
    async fn read_cached_pieces(self, range: &Range<u64>) -> Option<Data> {
        let RemoteShard { reader, shard, .. } = self;
        let pieces = pieces_of(shard, range);
        if !pieces.iter().all(|(_, piece)| reader.is_near(piece)) {
            return None;
        }
        if let [(place, piece)] = pieces.as_slice() {
            let within = range.start - place.start;
            let length = usize::try_from(range.end - range.start).ok()?;
            return reader.read_piece(piece, within, length).await.ok();
        }
        reader.join_pieces(&pieces, range, |_| ()).await.ok()
    }

    async fn layout(self) -> Result<Arc<Layout>> {
        let reader = Arc::clone(self.reader);
        let sharding = self.sharding.clone();
        let shard = self.shard.clone();
        let key = LayoutKey(shard.clone());
        let load = async move {
            let index = RemoteShard { reader: &reader, sharding: &sharding, shard: &shard }.index().await?;
            blocking(move || Ok(Arc::new(Layout::new(&sharding, shard.length, index.as_ref())))).await
        };
        self.reader.cache.get_or_load(key, load).await
    }

    /// Returns the index; none if the shard has no usable one.
    async fn index(self) -> Result<Option<Index>> {
        let Some(bytes) = self.index_bytes().await? else { return Ok(None) };
        match Index::decode(self.sharding, self.shard.length, bytes) {
            Ok(index) => Ok(Some(index)),
            Err(error) => {
                debug!("{}: {error}: it is read without regard to inner chunks", self.shard.object);
                Ok(None)
            }
        }
    }

    /// Returns the bytes of the index; none if the shard has no room for one.
    pub(super) async fn index_bytes(self) -> Result<Option<Bytes>> {
        let RemoteShard { reader, sharding, shard } = self;
        let (Some(place), Some(piece)) = (sharding.index_range(shard.length), index_piece(sharding, shard.length))
        else {
            return Ok(None);
        };
        let bytes = match self.read_cached_pieces(&place).await {
            Some(Data::Bytes(bytes)) => Some(bytes),
            Some(data) => Some(Bytes::copy_from_slice(&data)),
            None => {
                let length = usize::try_from(place.end - place.start).unwrap_or(usize::MAX);
                slice(&reader.whole(&part(shard, &piece)).await?, place.start - piece.start, length)
            }
        };
        bytes.ok_or_else(|| not_in_chunk(place.start, 0)).map(Some)
    }

    /// Fetches all missing pieces of `range` at once, and those that make later requests
    /// unnecessary.
    async fn fetch_touched(self, layout: &Layout, range: &Range<u64>) {
        let reader = self.reader;
        let touched = layout.touched(range);
        let mut missing: Vec<usize> =
            touched.clone().filter(|number| !reader.is_near(&self.piece(layout, *number))).collect();
        let (Some(&first), Some(&last)) = (missing.first(), missing.last()) else { return };
        let mut next = last + 1;
        let mut end = range.end;
        // A reader that begins an inner chunk reads all of it.
        if first == touched.start && next == touched.end && layout.continues_previous(next) {
            end = layout.piece(next).end;
            missing.push(next);
            next += 1;
        }
        // The kernel reads beyond the end of the inner chunk.
        while next < layout.len() && layout.piece(next).start < end.saturating_add(HEAD / 4) {
            let piece = self.piece(layout, next);
            if piece.length > SMALL_PIECE || reader.is_near(&piece) {
                break;
            }
            missing.push(next);
            next += 1;
        }
        let missing = missing.into_iter().map(|number| (number, self.piece(layout, number)));
        for (_, run) in runs(missing, 0, MAX_AHEAD + HEAD) {
            let permits = reader.budget.read_permits(length_of(&run));
            let Ok(permit) = Arc::clone(&reader.reads).acquire_many_owned(permits).await else { return };
            reader.fetch_run(run, permit);
        }
    }

    /// Records a read of `range`, and prefetches what follows if the reader continues
    /// from inner chunk to inner chunk.
    fn prefetch(self, layout: &Layout, range: &Range<u64>) {
        let RemoteShard { reader, shard, .. } = self;
        let most = reader.prefetch_limit();
        let wanted = {
            let mut shards = reader.access_pattern.shards.lock();
            let streams = shards.get_or_insert_mut(shard.clone(), Streams::default);
            streams.record(range).and_then(|stream| prefetch_range(stream, layout, most))
        };
        let Some(wanted) = wanted.filter(|wanted| wanted.start < shard.length) else { return };
        let mut batch: Vec<(usize, ChunkRange)> = Vec::new();
        let mut bytes = 0;
        for number in layout.touched(&(wanted.start..wanted.end.min(shard.length))) {
            let piece = self.piece(layout, number);
            bytes += piece.length;
            batch.push((number, piece));
            if bytes >= MAX_REQUEST {
                bytes = 0;
                if self.fetch_batch(layout, std::mem::take(&mut batch)) {
                    return;
                }
            }
        }
        self.fetch_batch(layout, batch);
    }

    /// Prefetches pieces. Returns true if there was no room for all of them.
    fn fetch_batch(self, layout: &Layout, batch: Vec<(usize, ChunkRange)>) -> bool {
        let Some(left) = self.reader.prefetch(batch) else { return false };
        let begin = layout.piece(left).start;
        if let Some(streams) = self.reader.access_pattern.shards.lock().get_mut(self.shard) {
            streams.streams.iter_mut().for_each(|stream| stream.prefetched_until(begin));
        }
        true
    }

    fn piece(self, layout: &Layout, number: usize) -> ChunkRange {
        part(self.shard, &layout.piece(number))
    }
}

/// Returns the range to prefetch for `stream`: none until two pieces in a row, and [`TRUSTED_AGE`]
/// bytes, were read; then as much again as was read.
fn prefetch_range(stream: &mut Sequence, layout: &Layout, most: u64) -> Option<Range<u64>> {
    let read = stream.range();
    let at = layout.at(read.end.saturating_sub(1));
    let before = layout.piece(at.saturating_sub(1)).start;
    if stream.length() < TRUSTED_AGE || read.start > before {
        return None;
    }
    stream.prefetch(layout.piece(at).end, stream.length().min(MAX_AHEAD).min(most))
}

/// Returns true if a shard is fetched whole, like other chunks: it is small, or has no room for its
/// index.
fn is_small(sharding: &ShardLayout, shard: &ChunkRange) -> bool {
    shard.length <= SMALL_SHARD || sharding.index_range(shard.length).is_none()
}

pub(super) fn part(shard: &ChunkRange, place: &Range<u64>) -> ChunkRange {
    let offset = shard.offset.saturating_add(place.start);
    ChunkRange { offset, length: place.end.saturating_sub(place.start), object: shard.object.clone() }
}
