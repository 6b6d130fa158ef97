//! Units of variables: read, decoded, converted, and kept as long as there is room.
//!
//! A program that reads a slab out of a large chunk does so row by row, in thousands of small reads, as it has no filter to apply.
//! So decoded units are kept in the reader's cache, within the memory bound of the mount, and concurrent readers share one decode.
//! A program that reads one unit after another, along any dimension, gets the next ones decoded ahead, on other cores; the stored bytes
//! of these are prefetched as for chunk files.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::access::{Access, Order, Predicted};
use super::file_chunks::{self, FilePlace};
use super::rows;
use super::variable::{MAX_DECODED_TEXTS, Source, Variable};
use crate::blocking::blocking;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::memory;
use crate::reader::Data;
use crate::reader::cache::Owner;
use crate::tree::Tree;
use crate::tree::nodes::{NodeIndex, TreePlace};
use crate::zarr::Coords;
use crate::zarr::shard::{Index, ShardLayout, coords_in};

/// Bytes per read of stored bytes.
const STEP: u64 = 64 << 20;

/// Bytes of the largest unit that is decoded on a guess: a few hundredths of a second.
const GUESSED_BYTES: u64 = 16 << 20;
/// Most units that are decoded ahead on a guess.
const MAX_GUESSED: u64 = 4;

static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
/// Units that are decoded at the same time.
static DECODERS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(*CORES));

/// Units of one variable.
#[derive(Debug)]
pub(super) struct Units {
    pub(super) variable: Variable,
    /// Owner of the units in the reader's cache.
    owner: Owner,
    access: Mutex<Access>,
}

impl Units {
    /// Creates the units of `variable`; none was read yet.
    pub(super) fn new(variable: Variable) -> Arc<Self> {
        Arc::new(Units { variable, owner: Owner::unique(), access: Mutex::default() })
    }

    /// Returns the bytes of the unit at `place` as the file shows them; none if it is not stored. `length` bytes from there on are given
    /// to the program: once it has got all bytes of a unit, they are in the kernel's cache and not kept in this one.
    pub(super) async fn read(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        place: &FilePlace,
        length: u64,
    ) -> Result<Option<Bytes>> {
        let Some(number) = file_chunks::unit_at(&self.variable, place.position) else { return Ok(None) };
        let order = Order::of(&self.variable);
        let predicted = self.access.lock().record(&order, place);
        // Begun first: it is what the program waits for.
        let wanted = self.decoded(tree, number);
        if let Some(predicted) = predicted {
            self.decode_ahead(tree, place.position, predicted);
        }
        let bytes = wanted.await?;
        if self.access.lock().count(&order, place, length) {
            tree.reader().forget_view_bytes(self.key(number));
        }
        Ok(bytes)
    }

    /// Starts decoding the units that follow `position`: one per core. A guess costs no more than what cores would do that are idle: nothing
    /// is fetched for it.
    fn decode_ahead(self: &Arc<Self>, tree: &Arc<Tree>, position: u64, predicted: Predicted) {
        let cores = *CORES as u64;
        let most = tree.reader().cache_capacity() / 4 / self.variable.shown_bytes().max(1);
        let is_cheap = tree.reader().prefetch_limit() == 0 && self.variable.shown_bytes() <= GUESSED_BYTES;
        let count = match predicted.is_guess {
            true if is_cheap => (cores / 2).min(MAX_GUESSED),
            true => 0,
            false => cores,
        };
        let mut next = position;
        for _ in 0..count.min(most) {
            next = match next.checked_add_signed(predicted.step) {
                Some(next) => next,
                None => break,
            };
            let Some(number) = file_chunks::unit_at(&self.variable, next) else { continue };
            if tree.reader().has_view_bytes(self.key(number)) {
                continue;
            }
            // The reader of the unit gets any error.
            drop(self.decoded(tree, number));
        }
    }

    /// Returns the key of part `number` in the reader's cache.
    pub(super) fn key(&self, number: u64) -> (Owner, u64) {
        (self.owner, number)
    }

    /// Begins to read and decode unit `number`, if it is not in the cache, and returns its bytes, or none if it is not stored.
    fn decoded(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        number: u64,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + 'static {
        let (units, source) = (Arc::clone(self), Arc::clone(tree));
        let bytes = tree.reader().view_bytes(self.key(number), async move { units.make(&source, number).await });
        // Units have at least one byte.
        async move { Ok(Some(bytes.await?).filter(|bytes| !bytes.is_empty())) }
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
        // No more at a time than there are cores, in the order of requests: what a program waits for was requested first.
        let permit = DECODERS.acquire().await;
        let bytes = blocking(move || self.decode(stored).context(|| name)).await?;
        drop(permit);
        // Shrinking never waits.
        reservation.resize(length, "a decoded chunk")?;
        Ok(memory::recycled(bytes, reservation))
    }

    fn decode(&self, stored: Bytes) -> Result<Vec<u8>> {
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
    pub(super) async fn read(&self, tree: &Arc<Tree>) -> Result<Option<Bytes>> {
        let Some(payload) = tree.payload_at(self.node, &self.coords).await? else { return Ok(None) };
        let size = payload.length();
        let Some((layout, number)) = self.inner else { return read(tree, self.inode, 0, size).await.map(Some) };
        let name = || tree.describe(self.inode);
        let index =
            layout.index_range(size).ok_or_else(|| Error::corrupt("a shard shorter than its index")).context(name)?;
        let bytes = read(tree, self.inode, index.start, index.end - index.start).await?;
        let index = Index::decode(layout, size, bytes).context(name)?;
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
pub(super) async fn read(tree: &Arc<Tree>, inode: u64, offset: u64, length: u64) -> Result<Bytes> {
    let mut data = read_step(tree, inode, offset, length).await?;
    if let Data::Bytes(bytes) = &data
        && bytes.len() as u64 == length
    {
        return Ok(bytes.clone());
    }
    let reservation = memory::reserve(length, &tree.describe(inode)).await?;
    let mut bytes = memory::large_buffer(length as usize);
    loop {
        bytes.extend_from_slice(&data);
        let read = bytes.len() as u64;
        if read >= length {
            break;
        }
        data = read_step(tree, inode, offset + read, length - read).await?;
    }
    drop(reservation);
    Ok(bytes.into())
}

/// Reads at most `length` bytes, up to [`STEP`], and at least one, unless `length` is 0.
async fn read_step(tree: &Arc<Tree>, inode: u64, offset: u64, length: u64) -> Result<Data> {
    let data = tree.read(inode, offset, length.min(STEP) as u32).await?;
    if data.is_empty() && length > 0 {
        let short = format!("{}: shorter than its reference says", tree.describe(inode));
        return Err(Error::new(ErrorKind::Corrupt, short));
    }
    Ok(data)
}
