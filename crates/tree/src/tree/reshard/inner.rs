//! Inner chunks of shards as chunks: lookups through the indexes of the shards.
//!
//! A directory of chunks exists if a shard does that has chunks below it, so that no index is read
//! for a directory; it may be empty. A chunk exists if the index of its shard has it. If an index
//! cannot be read for good, because it is damaged or virtual chunks may not be read, all chunks of
//! its shard are there, and reading them gives the reason: chunks that are left out would read as
//! the fill value.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use smallvec::SmallVec;

use super::super::chunks::{Chunks, Content, FoundChunk, StoredChunk, range_of};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::zarr::reshard::Level;
use icechunkfs_format::zarr::shard::{Index, ShardLayout};
use icechunkfs_format::zarr::{Coords, is_in_grid, is_prefix_in_grid};

/// Indexes that are read at a time for a listing.
const CONCURRENT_INDEXES: usize = 16;
/// Shards that are looked up at a time for a listing.
const SHARDS: usize = 64;
/// Most chunks of an array that are counted: some seconds.
const MAX_COUNTED: u64 = 1 << 22;
/// Chunks that are counted at a time.
const COUNTED_PAGE: usize = 4096;

/// Chunks of an array that are inner chunks of stored shards.
#[derive(Debug)]
pub(in crate::tree) struct InnerChunks {
    pub(super) stored_grid: Box<[u32]>,
    levels: Box<[InnerLevel]>,
    /// Chunks per dimension of a stored shard.
    per_shard: Box<[u64]>,
}

#[derive(Debug)]
struct InnerLevel {
    layout: ShardLayout,
    /// Dimension of the array for each dimension of the layout.
    axes: Box<[usize]>,
    /// Chunks in an inner chunk of this level, for each dimension of the array.
    below: Box<[u64]>,
}

/// Numbers of the inner chunks that lead to a chunk, by level.
type Numbers = SmallVec<[u64; 2]>;

impl InnerChunks {
    /// Creates the inner chunks of the shards `levels` in `stored_grid`; none if they do not have
    /// the same dimensions.
    pub(super) fn new(stored_grid: &[u32], levels: Vec<Level>) -> Option<Self> {
        let mut below = vec![1_u64; stored_grid.len()];
        let mut made = Vec::with_capacity(levels.len());
        for Level { layout, axes } in levels.into_iter().rev() {
            if layout.grid.len() != stored_grid.len() || axes.len() != stored_grid.len() {
                return None;
            }
            let of_level = below.clone().into();
            for (axis, count) in std::iter::zip(&axes, &layout.grid) {
                let length = below.get_mut(*axis)?;
                *length = length.checked_mul(*count).filter(|length| *length > 0)?;
            }
            made.push(InnerLevel { layout, axes, below: of_level });
        }
        made.reverse();
        Some(InnerChunks { stored_grid: stored_grid.into(), levels: made.into(), per_shard: below.into() })
    }

    /// Returns the coordinates of the shards that have chunks below `prefix`.
    fn shards(&self, prefix: &[u32]) -> Coords {
        let shard = |(coord, count): (&u32, &u64)| u64::from(*coord).checked_div(*count).unwrap_or(0) as u32;
        std::iter::zip(prefix, &self.per_shard).map(shard).collect()
    }

    /// Returns the numbers of the inner chunks that lead to the chunk at `coords`.
    fn numbers(&self, coords: &[u32]) -> Numbers {
        let rest = |(coord, count): (&u32, &u64)| u64::from(*coord).checked_rem(*count).unwrap_or(0);
        let mut rest: SmallVec<[u64; 6]> = std::iter::zip(coords, &self.per_shard).map(rest).collect();
        let level = |level: &InnerLevel| {
            let mut number = 0_u64;
            for (axis, count) in std::iter::zip(&level.axes, &level.layout.grid) {
                let (Some(rest), Some(below)) = (rest.get_mut(*axis), level.below.get(*axis)) else { continue };
                number = number * count + rest.checked_div(*below).unwrap_or(0);
                *rest = rest.checked_rem(*below).unwrap_or(0);
            }
            number
        };
        self.levels.iter().map(level).collect()
    }
}

impl Chunks<'_> {
    /// Returns the chunk at `coords`, if it exists.
    pub(in crate::tree) async fn find_inner(&self, inner: &InnerChunks, coords: &[u32]) -> Result<Option<FoundChunk>> {
        if !is_in_grid(coords, &self.array.grid) {
            return Ok(None);
        }
        match self.find_stored(&inner.shards(coords)).await? {
            Some(shard) => self.inner_of(inner, &shard, &inner.numbers(coords)).await,
            None => Ok(None),
        }
    }

    /// Returns the chunk of `shard` to which `numbers` lead, if it exists.
    async fn inner_of(&self, inner: &InnerChunks, shard: &StoredChunk, numbers: &[u64]) -> Result<Option<FoundChunk>> {
        match self.inner_range(inner, shard, numbers).await {
            Ok(range) => Ok(range.map(|range| FoundChunk {
                length: range.end - range.start,
                content: Content::Inner(shard.clone(), range),
            })),
            Err(error) if is_permanent(error.kind()) => Ok(Some(FoundChunk::unreadable(error))),
            Err(error) => Err(error),
        }
    }

    /// Returns the range in `shard` of the chunk to which `numbers` lead, if it exists.
    async fn inner_range(
        &self,
        inner: &InnerChunks,
        shard: &StoredChunk,
        numbers: &[u64],
    ) -> Result<Option<Range<u64>>> {
        let payload = shard.payload(self.array.id)?;
        let mut range = 0..payload.length();
        for (depth, (level, number)) in std::iter::zip(&inner.levels, numbers).enumerate() {
            let outside = || Error::corrupt("an inner chunk beyond its shard");
            let part = payload.clone().part(&range).ok_or_else(outside)?;
            let place = || format!("shard at offset {} of its chunk", range.start);
            let index = self.index(&level.layout, &part).await;
            let index = if depth == 0 { index } else { index.context(place) }?;
            let Some((offset, length)) = index.entry(*number) else { return Ok(None) };
            let end = (range.end - range.start).saturating_sub(level.layout.trailer);
            let within = offset.checked_add(length).filter(|within| *within <= end);
            let within = within.ok_or_else(|| {
                Error::corrupt(format!("inner chunk {number} ({length} bytes at {offset}) is not within its shard"))
            })?;
            range = range.start + offset..range.start + within;
        }
        Ok(Some(range))
    }

    /// Returns the index of a shard.
    async fn index(&self, layout: &ShardLayout, shard: &ChunkPayload<&[u8]>) -> Result<Arc<Index>> {
        if let ChunkPayload::Inline(bytes) = shard {
            let length = bytes.len() as u64;
            let place = layout.index_range(length).unwrap_or_default();
            let index = bytes.get(place.start as usize..place.end as usize).unwrap_or_default();
            return Index::decode(layout, length, bytes::Bytes::copy_from_slice(index)).map(Arc::new);
        }
        let range = range_of(self.reader, shard)?.ok_or_else(|| Error::corrupt("the shard does not exist"))?;
        self.reader.shard_index(layout, &range).await
    }

    /// Returns true if there may be a chunk whose coordinates begin with `prefix`.
    pub(in crate::tree) async fn any_inner_below(&self, inner: &InnerChunks, prefix: &[u32]) -> Result<bool> {
        Ok(is_prefix_in_grid(prefix, &self.array.grid) && self.any_stored_below(&inner.shards(prefix)).await?)
    }

    /// Returns up to `limit` names in the directory `prefix`, from coordinate `from` on, with the
    /// sizes of chunks.
    pub(super) async fn inner_names(
        &self,
        inner: &InnerChunks,
        prefix: &[u32],
        from: u32,
        limit: usize,
    ) -> Result<Vec<(u32, u64)>> {
        let depth = prefix.len();
        let (Some(&count), Some(&end)) = (inner.per_shard.get(depth), self.array.grid.get(depth)) else {
            return Ok(Vec::new());
        };
        let row = inner.shards(prefix);
        let mut names = Vec::new();
        let mut next = u64::from(from).checked_div(count).unwrap_or(0) as u32;
        while names.len() < limit {
            // Only those that a full list needs.
            let most = (((limit - names.len()) as u64).checked_div(count).unwrap_or(0) as usize + 1).min(SHARDS);
            let mut shards: Vec<(u32, Option<StoredChunk>)> = Vec::new();
            if depth + 1 == self.array.grid.len() {
                let stored = self.stored_row(&row, next..u32::MAX, most).await?;
                shards.extend(stored.into_iter().map(|(coord, shard)| (coord, Some(shard))));
            } else {
                shards.extend(self.stored_names(&row, next, most).await?.into_iter().map(|coord| (coord, None)));
            }
            let Some(last) = shards.last().map(|(coord, _)| *coord) else { break };
            self.load_indexes(inner, &shards).await;
            for (coord, shard) in shards {
                let first = u64::from(coord).saturating_mul(count);
                let coords = first.max(from.into())..first.saturating_add(count).min(end.into());
                for coord in coords.map(|coord| coord as u32) {
                    if names.len() == limit {
                        return Ok(names);
                    }
                    let Some(shard) = &shard else {
                        names.push((coord, 0));
                        continue;
                    };
                    let coords: Coords = prefix.iter().copied().chain([coord]).collect();
                    if let Some(chunk) = self.inner_of(inner, shard, &inner.numbers(&coords)).await? {
                        names.push((coord, chunk.length));
                    }
                }
            }
            let Some(following) = last.checked_add(1) else { break };
            next = following;
        }
        Ok(names)
    }

    /// Loads the outermost indexes of `shards`, several at a time. Those who need them get any
    /// error.
    async fn load_indexes(&self, inner: &InnerChunks, shards: &[(u32, Option<StoredChunk>)]) {
        let (Some(level), true) = (inner.levels.first(), shards.len() > 1) else { return };
        let mut loads: Vec<BoxFuture<'_, ()>> = Vec::with_capacity(shards.len());
        for (_, shard) in shards {
            let Some(shard) = shard else { continue };
            let load = async move {
                if let Ok(payload) = shard.payload(self.array.id) {
                    let _ = self.index(&level.layout, &payload).await;
                }
            };
            loads.push(load.boxed());
        }
        stream::iter(loads).buffer_unordered(CONCURRENT_INDEXES).collect::<()>().await;
    }

    /// Returns true if every chunk of an array of inner chunks exists. Reads the indexes of all
    /// shards; an array with too many chunks counts as one that lacks some.
    pub(in crate::tree) async fn has_all_inner(&self, inner: &InnerChunks) -> Result<bool> {
        let count = |grid: &[u32]| grid.iter().try_fold(1_u64, |count, length| count.checked_mul(u64::from(*length)));
        let (Some(wanted), Some(shards)) = (count(&self.array.grid), count(&inner.stored_grid)) else {
            return Ok(false);
        };
        if wanted == 0 || wanted > MAX_COUNTED || self.totals().await?.0 != shards {
            return Ok(wanted == 0);
        }
        let (mut found, mut after): (u64, Option<Coords>) = (0, None);
        loop {
            let page = self.page(&[], self.array.grid.len(), after.as_deref(), COUNTED_PAGE).await?;
            found += page.len() as u64;
            match page.into_iter().next_back() {
                Some((last, _)) if found < wanted => after = Some(last),
                _ => return Ok(found == wanted),
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Returns true if another attempt fails as well.
fn is_permanent(kind: ErrorKind) -> bool {
    use ErrorKind::{Corrupt, NotFound, Unsupported, VirtualNotAllowed};
    matches!(kind, Corrupt | NotFound | Unsupported | VirtualNotAllowed)
}
