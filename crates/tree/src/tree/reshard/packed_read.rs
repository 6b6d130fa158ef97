//! Reads of shards that do not exist: the stored chunks that a range touches, and the index.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::super::Tree;
use super::super::chunks::{Chunks, StoredChunk, range_of};
use super::super::nodes::{NodeIndex, TreePlace};
use super::ChunkForm;
use super::packed::{PackedChunks, PackedIndex};
use crate::inodes::Ino;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::reader::{ChunkRange, Data, Part};

/// Most chunks that are prefetched at a time.
const MAX_PREFETCH: usize = 4096;
/// Chunks after which other requests get a turn.
const TURN: usize = 4096;

/// A shard, and the stored chunks in it.
struct PackedShard<'a> {
    chunks: Chunks<'a>,
    packed: &'a PackedChunks,
    coords: Coords,
    index: &'a PackedIndex,
}

/// Chunk of a shard: its coordinates, its place in the shard, and its reference.
type Place = (Coords, Range<u64>, StoredChunk);

impl Tree {
    /// Reads `range` of shard `inode`, whose index is `index`.
    pub(in crate::tree) async fn read_packed(
        self: &Arc<Self>,
        inode: Ino,
        node: NodeIndex,
        index: &PackedIndex,
        range: Range<u64>,
    ) -> Result<Data> {
        let shard = self.packed_shard(inode, node, index)?;
        if self.prefetcher.is_some() {
            self.prefetch_packed(inode, node, index, &range);
        }
        let data = 0..index.data_length();
        let mut parts = Vec::new();
        let touched = range.start.min(data.end)..range.end.min(data.end);
        for (coords, place, chunk) in shard.touched(&touched, usize::MAX).await? {
            let within = touched.start.max(place.start) - place.start..touched.end.min(place.end) - place.start;
            let part = shard.part(&chunk, within);
            parts.push(part.context(|| format!("the stored chunk {:?}", coords.as_slice()))?);
        }
        let of_index = range.start.max(data.end) - data.end..range.end.max(data.end) - data.end;
        if !of_index.is_empty() {
            let bytes = index.bytes();
            let end = (of_index.end as usize).min(bytes.len());
            parts.push(Part::Bytes(bytes.slice((of_index.start as usize).min(end)..end)));
        }
        self.reader.read_many(parts).await
    }

    fn packed_shard<'a>(&'a self, inode: Ino, node: NodeIndex, index: &'a PackedIndex) -> Result<PackedShard<'a>> {
        let form = self.table.array(node).and_then(|array| array.form.as_deref());
        match (form, self.table.place(inode), self.chunks(node)) {
            (Some(ChunkForm::Packed(packed)), Some(TreePlace::Chunk(_, coords)), Some(chunks)) => {
                Ok(PackedShard { chunks, packed, coords, index })
            }
            _ => Err(super::super::no_such(inode)),
        }
    }

    /// Records a read of `range` of shard `inode`, and prefetches the next chunks if the reader
    /// goes through the shard.
    fn prefetch_packed(self: &Arc<Self>, inode: Ino, node: NodeIndex, index: &PackedIndex, range: &Range<u64>) {
        let Some(resharded) = self.resharded() else { return };
        let most = self.reader.prefetch_limit();
        let Some(wanted) = resharded.streams.record(inode, range, most) else { return };
        let wanted = wanted.start..wanted.end.min(index.data_length());
        if wanted.is_empty() {
            return;
        }
        let tree = Arc::clone(self);
        let index = index.clone();
        drop(tokio::spawn(async move {
            let Ok(shard) = tree.packed_shard(inode, node, &index) else { return };
            // The reader of the chunks gets any error.
            let Ok(touched) = shard.touched(&wanted, MAX_PREFETCH).await else { return };
            let fetched = touched.iter().filter_map(|(_, _, chunk)| shard.stored_range(chunk));
            let has_room = tree.reader.prefetch_many(fetched);
            let end = touched.last().map_or(wanted.start, |(_, place, _)| place.end);
            if let Some(resharded) = tree.resharded() {
                resharded.streams.fetched(inode, if has_room { end } else { wanted.start });
            }
        }));
    }
}

impl PackedShard<'_> {
    /// Returns the chunks with bytes of `range`, the first `most` of them.
    async fn touched(&self, range: &Range<u64>, most: usize) -> Result<Vec<Place>> {
        let mut touched: Vec<Place> = Vec::new();
        if range.is_empty() {
            return Ok(touched);
        }
        let count = self.packed.count();
        // Chunks of one row, which are looked up together.
        let mut row: Vec<(Coords, Range<u64>)> = Vec::new();
        let first = self.index.first_behind(range.start, count);
        for (done, number) in (first..count).enumerate() {
            if done % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
            let Some(place) = self.index.range(number) else { continue };
            if place.start >= range.end || touched.len() + row.len() >= most {
                break;
            }
            let gone = || Error::corrupt("a chunk of the shard is outside the grid");
            let coords = self.packed.stored_coords(&self.coords, number).ok_or_else(gone)?;
            let is_new = row.last().is_some_and(|(last, _)| above(last) != above(&coords));
            if is_new {
                self.look_up(std::mem::take(&mut row), &mut touched).await?;
            }
            row.push((coords, place));
        }
        self.look_up(row, &mut touched).await?;
        Ok(touched)
    }

    /// Looks up the chunks of one row, and adds them to `touched`.
    async fn look_up(&self, row: Vec<(Coords, Range<u64>)>, touched: &mut Vec<Place>) -> Result<()> {
        let (Some((first, _)), Some((last, _))) = (row.first(), row.last()) else { return Ok(()) };
        let coords = |coords: &Coords| coords.last().copied().unwrap_or(0);
        let found = self.chunks.stored_row(above(first), coords(first)..coords(last).saturating_add(1), usize::MAX);
        let mut found = found.await?.into_iter();
        for (at, place) in row {
            let chunk = found.find(|(coord, _)| *coord == coords(&at)).map(|(_, chunk)| chunk);
            let gone = || Error::corrupt(format!("the stored chunk {:?} is gone", at.as_slice()));
            let chunk = chunk.filter(|chunk| chunk.length == place.end - place.start).ok_or_else(gone)?;
            touched.push((at, place, chunk));
        }
        Ok(())
    }

    /// Returns `range` of `chunk` as a part to be read.
    fn part(&self, chunk: &StoredChunk, range: Range<u64>) -> Result<Part> {
        match chunk.payload(self.chunks.array.id)? {
            ChunkPayload::Inline(bytes) => {
                let bytes = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
                Ok(Part::Bytes(Bytes::copy_from_slice(bytes)))
            }
            payload => {
                let stored = range_of(self.chunks.reader, &payload)?;
                Ok(Part::Chunk(stored.ok_or_else(|| Error::corrupt("the chunk does not exist"))?, range))
            }
        }
    }

    fn stored_range(&self, chunk: &StoredChunk) -> Option<ChunkRange> {
        range_of(self.chunks.reader, &chunk.payload(self.chunks.array.id).ok()?).ok().flatten()
    }
}

/// Returns all coordinates but the last.
fn above(coords: &[u32]) -> &[u32] {
    coords.split_last().map_or(&[], |(_, above)| above)
}
