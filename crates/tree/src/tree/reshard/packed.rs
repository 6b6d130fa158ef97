//! Shards of stored chunks: which there are, and what is where in them.
//!
//! A shard has its chunks in C order, each as it is stored, without gaps, and then the index:
//! offset and length of every chunk as little-endian numbers of 64 bits, all ones for a missing
//! one, and a CRC-32C. All of it follows from the lengths that manifests have: no chunk is read
//! before a program reads its bytes. A shard exists if one of its chunks does.
//!
//! An index is made when its shard is first looked at, and kept in the reader's cache as long as
//! there is room.

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use super::super::chunks::{Chunks, Content, FoundChunk};
use crate::inodes::Ino;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::{self, Reservation};
use icechunkfs_format::zarr::{Coords, is_in_grid, is_prefix_in_grid};
use icechunkfs_repo::cache::{CacheKey, Owner};

/// Bytes of an index entry.
const ENTRY: usize = 16;
/// Bytes of the checksum behind the index.
const CHECKSUM: usize = 4;
/// Stored chunks that a listing looks up at a time.
const PAGE_CHUNKS: u64 = 1 << 15;
/// Rows of chunks after which other requests get a turn.
const ROWS: usize = 256;

/// Chunks of an array that are shards of stored chunks.
#[derive(Debug)]
pub(in crate::tree) struct PackedChunks {
    /// Owner of the indexes in the reader's cache: the tree.
    pub(super) owner: Owner,
    pub(super) stored_grid: Box<[u32]>,
    /// Stored chunks per dimension of a shard.
    pub(super) per_shard: Box<[u64]>,
}

/// Index of a made shard, followed by the number of bytes before it.
#[derive(Clone, Debug)]
pub(in crate::tree) struct PackedIndex(Bytes);

/// Key of the index of a made shard in the reader's cache.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PackedIndexKey {
    owner: Owner,
    /// Inode number of the shard.
    shard: Ino,
}

impl CacheKey for PackedIndexKey {
    /// None if none of the shard's chunks exists.
    type Value = Option<PackedIndex>;

    fn weight(&self, index: &Option<PackedIndex>) -> u64 {
        index.as_ref().map_or(0, |index| index.0.len() as u64)
    }
}

impl PackedChunks {
    /// Returns the number of chunks in a shard, missing ones included. It is bounded by
    /// [`icechunkfs_format::zarr::shard::MAX_INNER`].
    pub(super) fn count(&self) -> u64 {
        self.per_shard.iter().product()
    }

    /// Returns how many of `limit` shards a listing should look up at a time.
    pub(in crate::tree) fn page_limit(&self, limit: usize) -> usize {
        let most = PAGE_CHUNKS.checked_div(self.count()).unwrap_or(1).max(1);
        usize::try_from(most).unwrap_or(limit).min(limit)
    }

    /// Returns the stored chunks below `prefix`, for each of its dimensions.
    fn stored_box(&self, prefix: &[u32]) -> SmallVec<[Range<u32>; 6]> {
        let grid = std::iter::zip(&self.stored_grid, &self.per_shard);
        let range = |(coord, (length, count)): (&u32, (&u32, &u64))| {
            let first = u64::from(*coord).saturating_mul(*count).min(u64::from(*length));
            let end = first.saturating_add(*count).min(u64::from(*length));
            // Both are at most the length of the grid.
            first as u32..end as u32
        };
        std::iter::zip(prefix, grid).map(range).collect()
    }

    /// Returns the number in its shard of the stored chunk at `coord` of `row`.
    fn number(&self, row: &[u32], coord: u32) -> u64 {
        let coords = row.iter().copied().chain([coord]);
        std::iter::zip(coords, &self.per_shard)
            .fold(0, |number, (coord, count)| number * count + u64::from(coord).checked_rem(*count).unwrap_or(0))
    }

    /// Returns the stored coordinates of chunk `number` of the shard at `coords`; none if it is
    /// outside the grid.
    pub(super) fn stored_coords(&self, coords: &[u32], number: u64) -> Option<Coords> {
        let within = icechunkfs_format::zarr::shard::coords_in(&self.per_shard, number);
        let places = std::iter::zip(coords, within).zip(&self.per_shard);
        let stored = places.map(|((coord, within), count)| {
            u32::try_from(u64::from(*coord).checked_mul(*count)?.checked_add(within)?).ok()
        });
        stored.collect::<Option<Coords>>().filter(|stored| is_in_grid(stored, &self.stored_grid))
    }
}

impl PackedIndex {
    /// Returns the index as the shard has it.
    pub(super) fn bytes(&self) -> Bytes {
        self.0.slice(..self.0.len().saturating_sub(size_of::<u64>()))
    }

    /// Returns the number of bytes before the index.
    pub(super) fn data_length(&self) -> u64 {
        self.0.last_chunk::<8>().map_or(0, |length| u64::from_le_bytes(*length))
    }

    /// Returns the range of chunk `number` in the shard; none if it is missing.
    pub(super) fn range(&self, number: u64) -> Option<Range<u64>> {
        let at = usize::try_from(number).ok()?.checked_mul(ENTRY)?;
        let (offset, length) = self.0.get(at..)?.first_chunk::<ENTRY>()?.split_first_chunk::<8>()?;
        let offset = u64::from_le_bytes(*offset);
        let length = u64::from_le_bytes(*length.first_chunk::<8>()?);
        (offset != u64::MAX).then(|| offset..offset.saturating_add(length))
    }

    /// Returns the first chunk, of `count`, that ends behind `offset`, or the number behind the
    /// last one.
    pub(super) fn first_behind(&self, offset: u64, count: u64) -> u64 {
        let mut low = 0;
        let mut high = count;
        while low < high {
            let middle = low + (high - low) / 2;
            // Missing chunks have no place: the next one decides.
            let next = (middle..high).find_map(|number| Some((number, self.range(number)?)));
            match next {
                Some((number, range)) if range.end <= offset => low = number + 1,
                _ => high = middle,
            }
        }
        low
    }
}

impl Chunks<'_> {
    /// Returns the shard at `coords`, if one of its chunks exists.
    pub(in crate::tree) async fn find_packed(
        &self,
        packed: &PackedChunks,
        coords: &[u32],
    ) -> Result<Option<FoundChunk>> {
        if !is_in_grid(coords, &self.array.grid) {
            return Ok(None);
        }
        let Some(index) = self.packed_index(packed, coords).await? else { return Ok(None) };
        let own = index.bytes().len() as u64;
        let data = index.data_length();
        Ok(Some(match data.checked_add(own).filter(|length| i64::try_from(*length).is_ok()) {
            Some(length) => FoundChunk { length, content: Content::Packed(index) },
            None => {
                let error = Error::corrupt("its chunks have more bytes than a file can have");
                FoundChunk::unreadable(error)
            }
        }))
    }

    /// Returns the index of the shard at `coords`, if one of its chunks exists.
    async fn packed_index(&self, packed: &PackedChunks, coords: &[u32]) -> Result<Option<PackedIndex>> {
        let shard = Ino(self.array.first_number.0 + self.array.position(coords));
        let key = PackedIndexKey { owner: packed.owner, shard };
        if let Some(index) = self.reader.cache().get(&key) {
            return Ok(index);
        }
        let index = self.make_packed_index(packed, coords).await?;
        self.reader.cache().insert(key, index.clone());
        Ok(index)
    }

    /// Makes the index of the shard at `coords`, if one of its chunks exists.
    async fn make_packed_index(&self, packed: &PackedChunks, coords: &[u32]) -> Result<Option<PackedIndex>> {
        let place = packed.stored_box(coords);
        let Some((last, rows)) = place.split_last() else { return Ok(None) };
        let length = usize::try_from(packed.count()).unwrap_or(usize::MAX).saturating_mul(ENTRY);
        let mut index = Vec::new();
        let mut held = Reservation::default();
        let mut end = 0_u64;
        let mut row = first_of(rows);
        let mut done = 0_usize;
        while let Some(at) = row {
            for (coord, chunk) in self.stored_row(&at, last.clone(), usize::MAX).await? {
                if index.is_empty() {
                    held = memory::reserve(length as u64, "the index of a shard").await?;
                    index.reserve_exact(length + CHECKSUM + size_of::<u64>());
                    index.resize(length, u8::MAX);
                }
                let start = packed.number(&at, coord) as usize * ENTRY;
                if let Some(entry) = index.get_mut(start..start + ENTRY) {
                    entry.copy_from_slice(&[end.to_le_bytes(), chunk.length.to_le_bytes()].concat());
                }
                end = end.saturating_add(chunk.length);
            }
            row = after(at, rows);
            done += 1;
            if done.is_multiple_of(ROWS) {
                tokio::task::yield_now().await;
            }
        }
        if index.is_empty() {
            return Ok(None);
        }
        let checksum = crc32c::crc32c(&index);
        index.extend(checksum.to_le_bytes());
        index.extend(end.to_le_bytes());
        // The cache counts the bytes from now on.
        drop(held);
        Ok(Some(PackedIndex(index.into())))
    }

    /// Returns true if a shard has coordinates that begin with `prefix`.
    pub(in crate::tree) async fn any_packed_below(&self, packed: &PackedChunks, prefix: &[u32]) -> Result<bool> {
        if !is_prefix_in_grid(prefix, &self.array.grid) {
            return Ok(false);
        }
        match prefix.split_last() {
            None => self.any_stored_below(&[]).await,
            Some((last, above)) => Ok(self.next_packed(packed, above, *last).await? == Some(*last)),
        }
    }

    /// Returns up to `limit` names in the directory `prefix`, from coordinate `from` on, with the
    /// sizes of shards if they are wanted.
    pub(super) async fn packed_names(
        &self,
        packed: &PackedChunks,
        prefix: &[u32],
        mut from: u32,
        limit: usize,
    ) -> Result<Vec<(u32, u64)>> {
        let are_shards = prefix.len() + 1 == self.array.grid.len();
        let mut names = Vec::new();
        while names.len() < limit {
            let Some(name) = self.next_packed(packed, prefix, from).await? else { break };
            let mut size = 0;
            if are_shards && self.with_sizes {
                let coords: Coords = prefix.iter().copied().chain([name]).collect();
                size = self.find_packed(packed, &coords).await?.map_or(0, |shard| shard.length);
            }
            names.push((name, size));
            let Some(next) = name.checked_add(1) else { break };
            from = next;
        }
        Ok(names)
    }

    /// Returns the first name in the directory `prefix` from coordinate `from` on.
    async fn next_packed(&self, packed: &PackedChunks, prefix: &[u32], from: u32) -> Result<Option<u32>> {
        let rows = packed.stored_box(prefix);
        let Some(&count) = packed.per_shard.get(prefix.len()) else { return Ok(None) };
        let Ok(first) = u32::try_from(u64::from(from).saturating_mul(count)) else { return Ok(None) };
        let mut least: Option<u32> = None;
        let mut row = first_of(&rows);
        let mut done = 0_usize;
        while let Some(at) = row {
            let found = self.stored_names(&at, first, 1).await?.first().copied();
            // The stored grid has at least one chunk for each name.
            let name = found.and_then(|coord| u64::from(coord).checked_div(count)).map(|name| name as u32);
            if name == Some(from) {
                return Ok(name);
            }
            least = least.into_iter().chain(name).min();
            row = match found {
                Some(_) => after(at, &rows),
                // Most rows of a sparse array have no chunks at all.
                None => self.next_row(at, &rows).await?,
            };
            done += 1;
            if done.is_multiple_of(ROWS) {
                tokio::task::yield_now().await;
            }
        }
        Ok(least)
    }

    /// Returns the first of `rows` behind `row` that may have chunks.
    async fn next_row(&self, row: Coords, rows: &[Range<u32>]) -> Result<Option<Coords>> {
        let Some(next) = after(row, rows) else { return Ok(None) };
        let Some((last, above)) = next.split_last() else { return Ok(Some(next)) };
        // Rows of the same directory, which are most, are skipped at once.
        match self.stored_names(above, *last, 1).await?.first() {
            Some(found) if rows.last().is_some_and(|range| range.contains(found)) => {
                Ok(Some(above.iter().copied().chain([*found]).collect()))
            }
            _ => {
                let end = rows.last().map_or(0, |range| range.end).saturating_sub(1);
                Ok(after(above.iter().copied().chain([end]).collect(), rows))
            }
        }
    }
}

/// Returns the first coordinates of a box; none if it is empty.
fn first_of(ranges: &[Range<u32>]) -> Option<Coords> {
    let is_empty = ranges.iter().any(Range::is_empty);
    (!is_empty).then(|| ranges.iter().map(|range| range.start).collect())
}

/// Returns the coordinates after `coords` in a box, in C order.
fn after(mut coords: Coords, ranges: &[Range<u32>]) -> Option<Coords> {
    for (coord, range) in std::iter::zip(coords.iter_mut(), ranges).rev() {
        *coord += 1;
        if *coord < range.end {
            return Some(coords);
        }
        *coord = range.start;
    }
    None
}
