//! Units of variables: read, decoded, converted, and kept as long as there is room.
//!
//! A program that reads a slab out of a large chunk does so row by row, in thousands of small reads, as it has no filter to apply.
//! So decoded units are kept in the reader's cache, within the memory bound of the mount, and concurrent readers share one decode.
//! A program that reads one unit after another, along any dimension, gets the next ones decoded ahead, on other cores; the stored bytes
//! of these are prefetched as for chunk files.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::rows;
use super::variable::{MAX_DECODED_TEXTS, Source, Variable};
use crate::blocking::blocking;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::memory;
use crate::reader::cache::Owner;
use crate::tree::Tree;
use crate::tree::nodes::{NodeIndex, TreePlace};
use crate::zarr::Coords;
use crate::zarr::shard::{Index, ShardLayout, coords_in};

/// Bytes per read of stored bytes.
const STEP: u64 = 64 << 20;

/// Units of one variable.
#[derive(Debug)]
pub(super) struct Units {
    pub(super) variable: Variable,
    /// Owner of the units in the reader's cache.
    owner: Owner,
    access: Mutex<Access>,
}

/// Units that a program read last.
#[derive(Debug, Default)]
struct Access {
    /// Number of the last unit; none before the first.
    last: Option<u64>,
    /// Units from the one before to the last.
    step: i64,
}

impl Access {
    /// Records a read of unit `number` of a grid. Returns the step to the units that will probably be read next, if the read was of
    /// another unit than the last: the same step again, or one along a single dimension, as programs take that read a slab.
    fn record(&mut self, number: u64, grid: &[u64]) -> Option<i64> {
        let last = self.last.replace(number);
        let step = number.wrapping_sub(last?).cast_signed();
        if step == 0 {
            return None;
        }
        let before = std::mem::replace(&mut self.step, step);
        let mut along = 1_i64;
        let is_along_one = grid.iter().rev().any(|length| {
            let is_this = step == along;
            along = along.saturating_mul(length.cast_signed());
            is_this
        });
        (step == before || is_along_one).then_some(step)
    }
}

impl Units {
    /// Creates the units of `variable`; none was read yet.
    pub(super) fn new(variable: Variable) -> Arc<Self> {
        Arc::new(Units { variable, owner: Owner::unique(), access: Mutex::default() })
    }

    /// Returns the bytes of unit `number` as the file shows them; none if it is not stored.
    pub(super) async fn read(self: &Arc<Self>, tree: &Arc<Tree>, number: u64) -> Result<Option<Bytes>> {
        let step = self.access.lock().record(number, &self.variable.grid);
        if let Some(step) = step {
            self.decode_ahead(tree, number, step);
        }
        self.decoded(tree, number).await
    }

    /// Starts decoding the units that follow `number` at a distance of `step`: one per core.
    fn decode_ahead(self: &Arc<Self>, tree: &Arc<Tree>, number: u64, step: i64) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let count: u64 = self.variable.grid.iter().product();
        let most = tree.reader().cache_capacity() / 4 / self.variable.shown_bytes().max(1);
        let mut next = number;
        for _ in 0..cores.min(most) {
            next = match next.checked_add_signed(step) {
                Some(next) if next < count => next,
                _ => break,
            };
            if tree.reader().has_view_bytes(self.key(next)) {
                continue;
            }
            let (units, tree) = (Arc::clone(self), Arc::clone(tree));
            // The reader of the unit gets any error.
            drop(tokio::spawn(async move { units.decoded(&tree, next).await.map(drop) }));
        }
    }

    /// Returns the key of part `number` in the reader's cache.
    pub(super) fn key(&self, number: u64) -> (Owner, u64) {
        (self.owner, number)
    }

    async fn decoded(self: &Arc<Self>, tree: &Arc<Tree>, number: u64) -> Result<Option<Bytes>> {
        let (units, source) = (Arc::clone(self), Arc::clone(tree));
        let bytes =
            tree.reader().view_bytes(self.key(number), async move { units.make(&source, number).await }).await?;
        // Units have at least one byte.
        Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// Reads and decodes a unit; no bytes if it is not stored.
    async fn make(self: Arc<Self>, tree: &Arc<Tree>, number: u64) -> Result<Bytes> {
        let variable = &self.variable;
        let coords = coords_in(&variable.grid, number);
        let place = match &variable.source {
            Source::Chunk => StoredPlace::chunk(tree, variable.node, &coords),
            Source::Inner(layout) => StoredPlace::inner(tree, variable.node, &coords, layout),
            Source::Parts(axes) => return self.assemble(tree, number, axes).await,
        };
        let Some(stored) = place.read(tree).await? else { return Ok(Bytes::new()) };
        let size = variable.element.size.max(1) as u64;
        let decoded = variable.unit.iter().product::<u64>() * size;
        // Stored bytes, decoded ones, and those of the file live at the same time.
        let needed = stored.len() as u64 + decoded + variable.shown_bytes();
        let name = tree.describe(place.inode);
        let mut reservation = memory::reserve(needed, &name).await?;
        let length = variable.shown_bytes();
        let bytes = blocking(move || self.decode(stored).context(|| name)).await?;
        // Shrinking never waits.
        reservation.resize(length, "a decoded chunk")?;
        Ok(memory::with_reservation(bytes.into(), reservation))
    }

    fn decode(&self, stored: Vec<u8>) -> Result<Vec<u8>> {
        let variable = &self.variable;
        if variable.chain.is_variable() {
            let width = variable.longest as usize;
            let count: u64 = variable.unit.iter().product();
            let texts = variable.chain.decode_variable(stored, count as usize, MAX_DECODED_TEXTS)?;
            let mut shown = vec![0; texts.len() * width];
            for (text, place) in texts.iter().zip(shown.chunks_exact_mut(width)) {
                let place =
                    place.get_mut(..text.len()).ok_or_else(|| Error::corrupt("a text longer than the longest"))?;
                place.copy_from_slice(text);
            }
            return Ok(rows::crop(shown, &variable.unit, &variable.kept, width));
        }
        let decoded = variable.chain.decode(stored, variable.elements())?;
        let kept = rows::crop(decoded, &variable.unit, &variable.kept, variable.element.size);
        Ok(variable.element.convert(kept))
    }
}

/// Place of the stored bytes of a unit.
#[derive(Debug)]
pub(super) struct StoredPlace<'a> {
    node: NodeIndex,
    coords: Coords,
    inode: u64,
    /// Structure of the shard, and number of the inner chunk in it.
    inner: Option<(&'a ShardLayout, u64)>,
}

impl<'a> StoredPlace<'a> {
    /// Returns the place of the chunk at `coords` of the array at `node`.
    pub(super) fn chunk(tree: &Tree, node: NodeIndex, coords: &[u64]) -> Self {
        // Coordinates of a grid fit into 32 bits.
        let coords: Coords = coords.iter().map(|coord| *coord as u32).collect();
        let inode = tree.table().inode(&TreePlace::Chunk(node, coords.clone()));
        StoredPlace { node, coords, inode, inner: None }
    }

    /// Returns the place of the inner chunk at `coords`, counted over all shards of the array.
    fn inner(tree: &Tree, node: NodeIndex, coords: &[u64], layout: &'a ShardLayout) -> Self {
        let divided = coords.iter().zip(&layout.grid).map(|(coord, grid)| coord.checked_div(*grid).unwrap_or(0));
        let shard = Self::chunk(tree, node, &divided.collect::<Vec<_>>());
        let number = coords.iter().zip(&layout.grid).fold(0_u64, |number, (coord, grid)| {
            number.saturating_mul(*grid).saturating_add(coord.checked_rem(*grid).unwrap_or(0))
        });
        StoredPlace { inner: Some((layout, number)), ..shard }
    }

    /// Returns the place without what it borrows: of the whole stored chunk.
    pub(super) fn whole(self) -> StoredPlace<'static> {
        StoredPlace { node: self.node, coords: self.coords, inode: self.inode, inner: None }
    }

    /// Returns the inode of the chunk.
    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the inode of the chunk if it is stored, with `length` bytes; another length is an error.
    pub(super) async fn stored_as(&self, tree: &Arc<Tree>, length: u64) -> Result<Option<u64>> {
        match tree.payload_at(self.node, &self.coords).await?.map(|payload| payload.length()) {
            None => Ok(None),
            Some(stored) if stored == length => Ok(Some(self.inode)),
            Some(stored) => Err(Error::corrupt(format!(
                "{}: a chunk of {stored} bytes where its shape needs {length}",
                tree.describe(self.inode)
            ))),
        }
    }

    /// Reads the stored bytes; none if there are none.
    pub(super) async fn read(&self, tree: &Arc<Tree>) -> Result<Option<Vec<u8>>> {
        let Some(payload) = tree.payload_at(self.node, &self.coords).await? else { return Ok(None) };
        let size = payload.length();
        let Some((layout, number)) = self.inner else { return read(tree, self.inode, 0, size).await.map(Some) };
        let name = || tree.describe(self.inode);
        let index =
            layout.index_range(size).ok_or_else(|| Error::corrupt("a shard shorter than its index")).context(name)?;
        let bytes = read(tree, self.inode, index.start, index.end - index.start).await?;
        let index = Index::decode(layout, size, bytes.into()).context(name)?;
        if index.entry(number).is_none() {
            return Ok(None);
        }
        let range =
            index.range(number).ok_or_else(|| Error::corrupt(format!("inner chunk {number} is not in its shard")));
        let range = range.context(name)?;
        read(tree, self.inode, range.start, range.end - range.start).await.map(Some)
    }
}

/// Reads `length` bytes of chunk file `inode` from `offset` on.
pub(super) async fn read(tree: &Arc<Tree>, inode: u64, offset: u64, length: u64) -> Result<Vec<u8>> {
    let reservation = memory::reserve(length, &tree.describe(inode)).await?;
    let mut bytes = memory::large_buffer(length as usize);
    while (bytes.len() as u64) < length {
        let left = (length - bytes.len() as u64).min(STEP);
        let data = tree.read(inode, offset + bytes.len() as u64, left as u32).await?;
        if data.is_empty() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("{}: shorter than its reference says", tree.describe(inode)),
            ));
        }
        bytes.extend_from_slice(&data);
    }
    drop(reservation);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_along_a_dimension_tell_the_next_units() {
        let grid = [16, 4, 4];
        for (numbers, expected) in [
            (&[0_u64, 1, 2][..], &[None, Some(1), Some(1)][..]),
            (&[5, 21, 37], &[None, Some(16), Some(16)]),
            (&[0, 0, 4, 4], &[None, None, Some(4), None]),
            (&[0, 5, 10, 11], &[None, None, Some(5), Some(1)]),
            (&[40, 24, 8], &[None, None, Some(-16)]),
        ] {
            let mut access = Access::default();
            let steps: Vec<_> = numbers.iter().map(|number| access.record(*number, &grid)).collect();
            assert_eq!(steps, expected, "{numbers:?}");
        }
    }
}
