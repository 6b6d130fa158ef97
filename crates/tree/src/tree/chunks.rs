//! Chunks of an array: lookups and listings straight from its manifests.
//!
//! An array's chunks are spread over any number of manifests, each with a box of the grid (its
//! *extents*). A chunk is looked up in the manifests whose box contains it, in the snapshot's
//! order, and the first that has it wins: some writers left stale references in a second one.
//! Chunks outside the grid and of a wrong rank are stored by some writers; they do not exist here.
//!
//! Nothing is collected beyond the request: a directory's next page is found by bisection in each
//! manifest.
//!
//! Chunk files of an array may be others than its stored chunks ([`super::reshard`]). What has
//! `stored` in its name is about stored chunks in any case.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::array::Array;
use super::nodes::NodeTable;
use super::reshard::ChunkForm;
use super::reshard::packed::PackedIndex;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::manifest::{ArrayRefs, Manifest};
use icechunkfs_format::format::snapshot::ManifestRef;
use icechunkfs_format::zarr::{Coords, is_in_grid, is_prefix_in_grid};
use icechunkfs_repo::reader::{ChunkRange, NativeChunk, Reader};

/// Existing chunk file.
#[derive(Debug)]
pub struct FoundChunk {
    /// Size in bytes, as [`known`] takes it.
    pub length: u64,
    pub(super) content: Content,
}

/// Origin of the bytes of a chunk file.
#[derive(Debug)]
pub(super) enum Content {
    /// A stored chunk.
    Stored(StoredChunk),
    /// Range of a stored chunk.
    Inner(StoredChunk, Range<u64>),
    /// Stored chunks, one after another, and the index that lists them.
    Packed(PackedIndex),
    /// Bytes that cannot be found, for this reason.
    Unreadable(Error),
}

/// Stored chunk, found in a manifest that stays in memory as long as this.
#[derive(Clone, Debug)]
pub(super) struct StoredChunk {
    /// Manifest that lists the chunk.
    pub(super) manifest: Arc<Manifest>,
    /// Position among the array's references there.
    at: usize,
    /// Size in bytes.
    pub(super) length: u64,
}

/// Length of a chunk whose bytes cannot be found, in a list of names.
const UNKNOWN_LENGTH: u64 = u64::MAX;

/// Returns the `length` of a chunk in a list of names, if it is known.
pub fn known(length: u64) -> Option<u64> {
    (length != UNKNOWN_LENGTH).then_some(length)
}

impl FoundChunk {
    /// Creates a chunk whose bytes cannot be found because of `error`.
    pub(super) fn unreadable(error: Error) -> Self {
        FoundChunk { length: UNKNOWN_LENGTH, content: Content::Unreadable(error) }
    }

    /// Returns the size in bytes; the reason if it is not known. A size that is made up would stay
    /// in the kernel when the bytes can be found.
    pub fn known_length(&self) -> Result<u64> {
        match &self.content {
            Content::Unreadable(error) => Err(error.clone()),
            _ => Ok(self.length),
        }
    }
}

impl StoredChunk {
    /// Returns the payload of the chunk, one of array `id`.
    pub(super) fn payload(&self, id: NodeId) -> Result<ChunkPayload<&[u8]>> {
        let refs = self.manifest.array(id)?.ok_or_else(|| Error::corrupt("the chunk's reference is gone"))?;
        refs.payload(self.at)
    }
}

/// Chunks of one array.
#[derive(Clone, Copy)]
pub struct Chunks<'a> {
    pub(super) array: &'a Array,
    table: &'a NodeTable,
    pub(super) reader: &'a Arc<Reader>,
    /// True if listings need the sizes of chunks.
    pub(super) with_sizes: bool,
}

impl<'a> Chunks<'a> {
    /// Returns the chunks of `array`, a node of `table`.
    pub fn new(array: &'a Array, table: &'a NodeTable, reader: &'a Arc<Reader>) -> Self {
        Chunks { array, table, reader, with_sizes: true }
    }

    /// Returns the same chunks, whose sizes in listings may be 0.
    #[must_use]
    pub fn without_sizes(self) -> Self {
        Chunks { with_sizes: false, ..self }
    }

    fn form(&self) -> Option<&'a ChunkForm> {
        self.array.form.as_deref()
    }

    fn rank(&self) -> usize {
        self.array.grid.len()
    }

    async fn load(&self, manifest: &ManifestRef) -> Result<Arc<Manifest>> {
        self.reader.manifest(self.table.manifest(manifest.id)).await
    }

    /// Returns the chunk at `coords`, if it exists.
    pub async fn find(&self, coords: &[u32]) -> Result<Option<FoundChunk>> {
        match self.form() {
            None => {
                let found = self.find_stored(coords).await?;
                Ok(found.map(|chunk| FoundChunk { length: chunk.length, content: Content::Stored(chunk) }))
            }
            // Boxed, so that lookups of stored chunks stay small.
            Some(ChunkForm::Inner(inner)) => Box::pin(self.find_inner(inner, coords)).await,
            Some(ChunkForm::Packed(packed)) => Box::pin(self.find_packed(packed, coords)).await,
        }
    }

    /// Returns the stored chunk at `coords`, if it exists.
    pub(super) async fn find_stored(&self, coords: &[u32]) -> Result<Option<StoredChunk>> {
        if !is_in_grid(coords, self.array.stored_grid()) {
            return Ok(None);
        }
        let found = |refs: &ArrayRefs<'_>| refs.find(coords).map(|at| (at, refs.length(at)));
        let found = self.find_first(&self.array.manifests, coords, found).await?;
        Ok(found.map(|(manifest, (at, length))| StoredChunk { manifest, at, length }))
    }

    /// Returns true if any chunk's coordinates begin with `prefix`.
    pub async fn any_below(&self, prefix: &[u32]) -> Result<bool> {
        match self.form() {
            None => self.any_stored_below(prefix).await,
            Some(ChunkForm::Inner(inner)) => Box::pin(self.any_inner_below(inner, prefix)).await,
            Some(ChunkForm::Packed(packed)) => Box::pin(self.any_packed_below(packed, prefix)).await,
        }
    }

    /// Returns true if any stored chunk's coordinates begin with `prefix`.
    pub(super) async fn any_stored_below(&self, prefix: &[u32]) -> Result<bool> {
        if !is_prefix_in_grid(prefix, self.array.stored_grid()) {
            return Ok(false);
        }
        let first = |refs: &ArrayRefs<'_>| self.next(refs, refs.lower_bound(prefix), prefix);
        self.find_first(&self.array.manifests, prefix, first).await.map(|found| found.is_some())
    }

    /// Returns what `find` finds in the first of `manifests` that has it, with that manifest. Boxes
    /// without `prefix` are not searched.
    async fn find_first<T>(
        &self,
        manifests: &[ManifestRef],
        prefix: &[u32],
        find: impl Fn(&ArrayRefs<'_>) -> Option<T>,
    ) -> Result<Option<(Arc<Manifest>, T)>> {
        for manifest in manifests.iter().filter(|m| m.covers(prefix)) {
            let manifest = self.load(manifest).await?;
            let found = manifest.array(self.array.id)?.and_then(|refs| find(&refs));
            if let Some(found) = found {
                return Ok(Some((manifest, found)));
            }
        }
        Ok(None)
    }

    /// Returns the first reference at or after `at` that is a chunk of this array and begins with
    /// `prefix`. Skips references outside the grid in blocks: a hostile manifest may have millions
    /// of them.
    fn next(&self, refs: &ArrayRefs<'_>, mut at: usize, prefix: &[u32]) -> Option<usize> {
        while at < refs.len() {
            let coords = refs.coords(at);
            if coords.len() < prefix.len() || !coords.iter().zip(prefix).all(|(a, b)| a == *b) {
                return None;
            }
            let outside = coords.iter().zip(self.array.stored_grid()).position(|(coord, length)| coord >= *length);
            match outside {
                None if coords.len() == self.rank() => return Some(at),
                // The rank is wrong: the next one may be right.
                None => at += 1,
                // All that share the coordinates before the wrong one and have a larger one are
                // outside too.
                Some(depth) => {
                    let start: Coords = coords.iter().take(depth).collect();
                    at = refs.lower_bound(&successor(start)?);
                }
            }
        }
        None
    }

    /// Returns the next entries of the directory `prefix`, in order: up to `limit` names of depth
    /// `depth` (which counts the prefix), those after `after`. With `depth` equal to the rank these
    /// are chunks, with their sizes; otherwise directories.
    pub async fn page(
        &self,
        prefix: &[u32],
        depth: usize,
        after: Option<&[u32]>,
        limit: usize,
    ) -> Result<Vec<(Coords, u64)>> {
        match self.form() {
            None => self.stored_page(prefix, depth, after, limit).await,
            Some(form) => Box::pin(self.walk(form, prefix, depth, after, limit)).await,
        }
    }

    /// Returns a page of stored chunks or their directories like [`Chunks::page`].
    async fn stored_page(
        &self,
        prefix: &[u32],
        depth: usize,
        after: Option<&[u32]>,
        limit: usize,
    ) -> Result<Vec<(Coords, u64)>> {
        let start = match after {
            None => Coords::from_slice(prefix),
            Some(after) => match successor(Coords::from_slice(after)) {
                Some(start) => start,
                None => return Ok(Vec::new()),
            },
        };
        let mut holding = self.array.manifests.iter().filter(|m| m.covers(prefix) && !entirely_before(m, &start));
        let Some(first) = holding.next() else { return Ok(Vec::new()) };
        let mut found = self.collect(&*self.load(first).await?, prefix, &start, depth, limit)?;
        let mut merged: BTreeMap<Coords, u64> = BTreeMap::new();
        for manifest in holding {
            if merged.is_empty() {
                merged.extend(found.drain(..));
            }
            // A manifest behind the end of a full page need not be read.
            if merged.len() >= limit && merged.last_key_value().is_some_and(|(last, _)| entirely_after(manifest, last))
            {
                continue;
            }
            for (name, length) in self.collect(&*self.load(manifest).await?, prefix, &start, depth, limit)? {
                merged.entry(name).or_insert(length);
            }
        }
        if !merged.is_empty() {
            found.extend(merged.into_iter().take(limit));
        }
        Ok(found)
    }

    /// Returns one manifest's part of a page: up to `limit` names from `start` on, in order, each
    /// once.
    fn collect(
        &self,
        manifest: &Manifest,
        prefix: &[u32],
        start: &[u32],
        depth: usize,
        limit: usize,
    ) -> Result<Vec<(Coords, u64)>> {
        let mut found: Vec<(Coords, u64)> = Vec::new();
        let Some(refs) = manifest.array(self.array.id)? else { return Ok(found) };
        let mut at = refs.lower_bound(start);
        while let Some(next) = self.next(&refs, at, prefix).filter(|_| found.len() < limit) {
            let name: Coords = refs.coords(next).iter().take(depth).collect();
            at = if depth == self.rank() {
                next + 1
            } else {
                match successor(name.clone()) {
                    Some(beyond) => refs.lower_bound(&beyond),
                    None => refs.len(),
                }
            };
            // The same chunk may be listed twice in a row; it counts once.
            if found.last().is_none_or(|(last, _)| *last != name) {
                found.push((name, refs.length(next)));
            }
        }
        Ok(found)
    }

    /// Returns up to `limit` names of stored chunks, or of their directories, in the directory
    /// `prefix` from coordinate `from` on.
    pub(super) async fn stored_names(&self, prefix: &[u32], from: u32, limit: usize) -> Result<Vec<u32>> {
        let before: Option<Coords> = from.checked_sub(1).map(|before| prefix.iter().copied().chain([before]).collect());
        let page = self.stored_page(prefix, prefix.len() + 1, before.as_deref(), limit).await?;
        Ok(page.into_iter().filter_map(|(coords, _)| coords.last().copied()).collect())
    }

    /// Returns the stored chunks with the coordinates `row` and one of `last`, with that one, in
    /// order: up to `limit`.
    pub(super) async fn stored_row(
        &self,
        row: &[u32],
        last: Range<u32>,
        limit: usize,
    ) -> Result<Vec<(u32, StoredChunk)>> {
        let mut found: Vec<(u32, StoredChunk)> = Vec::new();
        let mut merged: BTreeMap<u32, StoredChunk> = BTreeMap::new();
        let start: Coords = row.iter().copied().chain([last.start]).collect();
        for manifest in self.array.manifests.iter().filter(|m| m.covers(row)) {
            let within = manifest
                .extents
                .get(row.len())
                .map_or(last.clone(), |(from, to)| last.start.max(*from)..last.end.min(*to));
            if within.is_empty() {
                continue;
            }
            let loaded = self.load(manifest).await?;
            let Some(refs) = loaded.array(self.array.id)? else { continue };
            let mut own: Vec<(u32, StoredChunk)> = Vec::new();
            let mut at = refs.lower_bound(&start);
            while let Some(next) = self.next(&refs, at, row).filter(|_| own.len() < limit) {
                at = next + 1;
                let Some(coord) = refs.coords(next).iter().next_back().filter(|coord| *coord < last.end) else { break };
                if within.contains(&coord) && own.last().is_none_or(|(last, _)| *last != coord) {
                    own.push((
                        coord,
                        StoredChunk { manifest: Arc::clone(&loaded), at: next, length: refs.length(next) },
                    ));
                }
            }
            if found.is_empty() && merged.is_empty() {
                found = own;
                continue;
            }
            merged.extend(found.drain(..));
            for (coord, chunk) in own {
                merged.entry(coord).or_insert(chunk);
            }
        }
        found.extend(merged.into_iter().take(limit));
        Ok(found)
    }

    /// Returns the number of stored chunks and their bytes. Reads every manifest of the array once.
    pub async fn totals(&self) -> Result<(u64, u64)> {
        let mut count = 0;
        let mut bytes = 0_u64;
        self.each(|refs, at| {
            count += 1;
            bytes = bytes.saturating_add(refs.length(at));
        })
        .await?;
        Ok((count, bytes))
    }

    /// Returns true if every chunk exists. Reads every manifest of the array if needed, and the
    /// indexes of shards whose inner chunks are chunks.
    pub async fn has_all(&self) -> Result<bool> {
        if let Some(ChunkForm::Inner(inner)) = self.form() {
            return Box::pin(self.has_all_inner(inner)).await;
        }
        let grid = &self.array.grid;
        let wanted = grid.iter().try_fold(1_u64, |count, &length| count.checked_mul(u64::from(length)));
        let Some(wanted) = wanted.filter(|_| !grid.contains(&0)) else { return Ok(grid.contains(&0)) };
        // The snapshot counts the references of each manifest: too few need no look into manifests.
        let listed = self.table.listed_chunks(self.array).filter(|_| self.form().is_none());
        Ok(listed.is_none_or(|listed| listed >= wanted) && wanted == self.totals().await?.0)
    }

    /// Calls `visit` once for each existing stored chunk, with the position of its reference.
    pub async fn each(&self, mut visit: impl FnMut(&ArrayRefs<'_>, usize) + Send) -> Result<()> {
        for (position, manifest) in self.array.manifests.iter().enumerate() {
            let loaded = self.load(manifest).await.context(|| "counting chunks")?;
            let Some(refs) = loaded.array(self.array.id)? else { continue };
            let earlier = self.array.manifests.get(..position).unwrap_or_default();
            // Compared once for a manifest, not for each of its references: there may be thousands
            // of manifests, of which few overlap.
            let beside: Vec<ManifestRef> = earlier.iter().filter(|other| other.overlaps(manifest)).cloned().collect();
            let mut at = 0;
            let mut last: Option<Coords> = None;
            while let Some(next) = self.next(&refs, at, &[]) {
                at = next + 1;
                let coords: Coords = refs.coords(next).iter().collect();
                // Boxes rarely overlap, so this rarely reads an earlier manifest.
                let candidates = if manifest.covers(&coords) { beside.as_slice() } else { earlier };
                if last.as_ref() != Some(&coords)
                    && self.find_first(candidates, &coords, |refs| refs.find(&coords)).await?.is_none()
                {
                    visit(&refs, next);
                }
                last = Some(coords);
            }
        }
        Ok(())
    }
}

/// Returns the range of a stored chunk; none if it is inline. Fails for a virtual chunk that may
/// not be read.
pub(super) fn range_of<B>(reader: &Reader, payload: &ChunkPayload<B>) -> Result<Option<ChunkRange>> {
    match payload {
        ChunkPayload::Inline(_) => Ok(None),
        ChunkPayload::Native { chunk, offset, length } => {
            Ok(Some(NativeChunk { object: *chunk, offset: *offset, length: *length }.into()))
        }
        ChunkPayload::Virtual { location, offset, length, checksum } => {
            reader.virtual_chunk(location, *offset, *length, checksum.clone()).map(Some)
        }
    }
}

/// Returns true if every place in the box comes before `start`.
fn entirely_before(manifest: &ManifestRef, start: &[u32]) -> bool {
    let last = manifest.extents.iter().map(|(_, to)| to.saturating_sub(1));
    !manifest.extents.is_empty() && last.cmp(start.iter().copied()).is_lt()
}

/// Returns true if every place in the box comes after `last` and all that begin with it.
fn entirely_after(manifest: &ManifestRef, last: &[u32]) -> bool {
    let first = manifest.extents.iter().map(|(from, _)| *from).take(last.len());
    first.cmp(last.iter().copied()).is_gt()
}

/// Returns the least coordinates after all that begin with `coords`; none if there are none.
fn successor(mut coords: Coords) -> Option<Coords> {
    while let Some(last) = coords.pop() {
        if let Some(next) = last.checked_add(1) {
            coords.push(next);
            return Some(coords);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(extents: &[(u32, u32)]) -> ManifestRef {
        ManifestRef { id: icechunkfs_format::format::ids::ObjectId::INITIAL, extents: extents.to_vec() }
    }

    #[test]
    fn successors_skip_whole_subtrees() {
        let next = |coords: &[u32]| successor(Coords::from_slice(coords)).map(|c| c.to_vec());
        assert_eq!(next(&[1, 2]), Some(vec![1, 3]));
        assert_eq!(next(&[1, u32::MAX]), Some(vec![2]));
        assert_eq!(next(&[u32::MAX, u32::MAX]), None);
        assert_eq!(next(&[]), None);
    }

    #[test]
    fn boxes_are_compared_in_grid_order() {
        let m = manifest(&[(2, 4), (0, 10)]);
        assert!(m.covers(&[]) && m.covers(&[2]) && m.covers(&[3, 9]));
        assert!(!m.covers(&[4]) && !m.covers(&[2, 10]));
        assert!(entirely_before(&m, &[4]) && entirely_before(&m, &[3, 10]) && !entirely_before(&m, &[3, 9]));
        assert!(entirely_after(&m, &[1]) && !entirely_after(&m, &[2]) && entirely_after(&m, &[1, 9]));
        assert!(!entirely_before(&manifest(&[]), &[]) && manifest(&[]).covers(&[7, 7]));
    }
}
