//! Units of variables: read, decoded, converted, and kept as long as there is room.
//!
//! A program that reads a slab out of a large chunk does so row by row, in thousands of small
//! reads, as it has no filter to apply. So decoded units are kept in the reader's cache, within the
//! memory bound of the mount, and concurrent readers share one decode. Large ones are decoded only
//! as far as they are read, if their codecs allow that ([`super::growing_unit`]). A program that
//! reads one unit after another, along any dimension, gets the next ones decoded ahead, on other
//! cores, as far as it has read the last one; the stored bytes of these are prefetched as for chunk
//! files.

use std::sync::{Arc, LazyLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::access::{Access, Order, Predicted};
use super::decoders::{self, CORES};
use super::file_chunks::{self, FilePlace};
use super::growing_unit::{GrowingUnit, Shown, UnitDecoder};
use super::rows;
use super::stored::{Stored, StoredPlace};
use super::variable::{Source, Variable};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::growing::GrowingBytes;
use icechunkfs_base::memory::{self, Reservation};
use icechunkfs_format::zarr::shard::coords_in;
use icechunkfs_repo::cache::{CacheKey, Owner};
use icechunkfs_tree::tree::Tree;

/// Bytes of the largest unit that is decoded on a guess: a few hundredths of a second.
const GUESSED_BYTES: u64 = 16 << 20;
/// Most units that are decoded ahead on a guess.
const MAX_GUESSED: u64 = 4;

/// Bytes of the smallest unit that is decoded step by step.
const MIN_GROWING: u64 = 1 << 20;
/// Bytes that are decoded before a reader that waits gets its own, if it will probably read them,
/// too: it then need not wait again for each piece, for which others are interrupted. They take a
/// few milliseconds. With a quarter of this, a series takes 2 % longer.
const ENOUGH: usize = 4 << 20;
/// Shortest run of decoded bytes that is copied by itself, step by step.
const MIN_RUN: u64 = 256;

/// Units that are decoded at once at the same time.
static DECODERS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(*CORES));

/// Units of one variable.
#[derive(Debug)]
pub(super) struct Units {
    pub(super) variable: Variable,
    /// Owner of the units in the reader's cache.
    pub(super) owner: Owner,
    access: Mutex<Access>,
    /// Unit that was read last, if it is decoded step by step and still in memory.
    current: Mutex<Weak<GrowingUnit>>,
}

/// Decoded unit, or one that is being decoded. Cheap to clone.
#[derive(Clone)]
enum Unit {
    Decoded(Bytes),
    Growing(Arc<GrowingUnit>),
}

/// Key of a unit in the reader's cache.
#[derive(Debug, PartialEq, Eq, Hash)]
struct UnitKey {
    owner: Owner,
    number: u64,
}

impl CacheKey for UnitKey {
    /// None if the unit is not stored.
    type Value = Option<Unit>;

    fn weight(&self, unit: &Option<Unit>) -> u64 {
        match unit {
            None => 0,
            Some(Unit::Decoded(bytes)) => bytes.len() as u64,
            Some(Unit::Growing(unit)) => unit.length() as u64,
        }
    }
}

impl Units {
    /// Creates the units of `variable`; none was read yet.
    pub(super) fn new(variable: Variable) -> Arc<Self> {
        let access = Mutex::default();
        let current = Mutex::default();
        Arc::new(Units { variable, owner: Owner::unique(), access, current })
    }

    /// Returns `length` bytes of the unit at `place` as the file shows them; none if it is not
    /// stored. They are given to the program: once it has got all bytes of a unit, they are in the
    /// kernel's cache and not kept in this one.
    pub(super) async fn read(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        place: &FilePlace,
        length: u64,
    ) -> Result<Option<Bytes>> {
        let Some(number) = file_chunks::unit_at(&self.variable, place.position) else { return Ok(None) };
        let order = Order::of(&self.variable);
        let recorded = self.access.lock().record(&order, place, length);
        // Begun first: it is what the program waits for.
        let wanted = self.unit(tree, number);
        if let Some(predicted) = recorded.next {
            self.decode_ahead(tree, place.position, predicted);
        }
        if let Some(left) = recorded.left.and_then(|left| file_chunks::unit_at(&self.variable, left)) {
            tree.reader().cache().remove(&self.key(left));
        }
        let end = place.from.saturating_add(length);
        let from = place.from as usize;
        let end = end as usize;
        let ahead = recorded.ahead as usize;
        let bytes = match wanted.await? {
            None => None,
            Some(Unit::Decoded(bytes)) if end > bytes.len() => {
                return Err(Error::corrupt("a decoded chunk shorter than its shape"));
            }
            Some(Unit::Decoded(bytes)) => Some(bytes.slice(from..end)),
            Some(Unit::Growing(unit)) => {
                self.go_on_to(&unit);
                let enough = ahead.min(end.saturating_add(ENOUGH));
                decoders::request(&unit, if unit.made() < end { enough } else { end }, ahead, recorded.is_jump);
                let bytes = unit.get(from, end, enough).await;
                // A failure is not kept: the damage may be of the transfer.
                Some(bytes.inspect_err(|_| tree.reader().cache().remove(&self.key(number)))?)
            }
        };
        if self.access.lock().count(&order, place, length) {
            tree.reader().cache().remove(&self.key(number));
        }
        Ok(bytes)
    }

    /// Records that a program reads `unit`, and no longer the one before.
    fn go_on_to(&self, unit: &Arc<GrowingUnit>) {
        let before = std::mem::replace(&mut *self.current.lock(), Arc::downgrade(unit));
        if let Some(before) = before.upgrade().filter(|before| !Arc::ptr_eq(before, unit)) {
            decoders::forget_ahead(&before);
        }
    }

    /// Starts decoding the units that follow `position`. A guess costs no more than what cores
    /// would do that are idle: nothing is fetched for it.
    fn decode_ahead(self: &Arc<Self>, tree: &Arc<Tree>, position: u64, predicted: Predicted) {
        let cores = *CORES as u64;
        let order = Order::of(&self.variable);
        let most = tree.reader().cache().capacity() / 4 / self.variable.shown_bytes().max(1);
        let is_cheap = tree.reader().prefetch_limit() == 0 && self.variable.shown_bytes() <= GUESSED_BYTES;
        let count = match predicted.is_guess {
            true if is_cheap => (cores / 2).min(MAX_GUESSED),
            true => 0,
            false => cores,
        };
        let mut next = position;
        for _ in 0..count.min(most) {
            let Some((following, until)) = predicted.after(&order, next) else { break };
            next = following;
            let Some(number) = file_chunks::unit_at(&self.variable, next) else { continue };
            let unit = self.unit(tree, number);
            // The reader of the unit gets any error.
            drop(tokio::spawn(async move {
                if let Ok(Some(Unit::Growing(unit))) = unit.await {
                    decoders::request(&unit, 0, until as usize, false);
                }
            }));
        }
    }

    fn key(&self, number: u64) -> UnitKey {
        UnitKey { owner: self.owner, number }
    }

    /// Begins to read and decode unit `number`, if it is not in the cache, and returns it, or none
    /// if it is not stored.
    fn unit(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        number: u64,
    ) -> impl Future<Output = Result<Option<Unit>>> + Send + 'static {
        let units = Arc::clone(self);
        let source = Arc::clone(tree);
        tree.reader().cache().get_or_load(self.key(number), async move { units.make(&source, number).await })
    }

    /// Makes a unit; none if it is not stored.
    async fn make(self: Arc<Self>, tree: &Arc<Tree>, number: u64) -> Result<Option<Unit>> {
        let variable = &self.variable;
        let coords = coords_in(&variable.grid, number);
        let place = match &variable.source {
            Source::Chunk => StoredPlace::chunk(tree, variable.node, &coords),
            Source::Inner(layout) => StoredPlace::inner(tree, variable.node, &coords, layout),
            Source::Parts(axes) => return Ok(self.assemble(tree, number, axes).await?.map(Unit::Decoded)),
        };
        self.make_of(tree, &place).await.map_err(|error| place.named(error, tree))
    }

    /// Reads the unit at `place`, and decodes it unless that is done step by step.
    async fn make_of(self: &Arc<Self>, tree: &Arc<Tree>, place: &StoredPlace<'_>) -> Result<Option<Unit>> {
        let variable = &self.variable;
        let count = variable.unit.iter().product::<u64>();
        let decoded = if variable.chain.is_variable() {
            variable.chain.variable_memory(count as usize, variable.text_bytes())
        } else {
            count * variable.element.size.max(1) as u64
        };
        let Some(found) = place.find(tree).await? else { return Ok(None) };
        let name = place.describe(tree);
        // Stored bytes, decoded ones, and those of the file live at the same time. All are reserved
        // before any of them is read: as many units as programs ask for are made at a time.
        let shard = variable.chain.decompressed_shard(decoded as usize, variable.element.size) as u64;
        let extra = variable.chain.extra_memory(decoded as usize, variable.element.size) as u64;
        let others = self.other_bytes().saturating_add(shard).saturating_add(extra);
        let needed = found.len().saturating_add(decoded).saturating_add(others);
        let mut bytes = None;
        let mut reservation = Reservation::default();
        if self.can_grow(decoded) {
            let file = found.open(tree).await?;
            let stored = if file.is_some() { 0 } else { found.len() };
            let shown = if self.is_one_buffer() { 0 } else { variable.shown_bytes() };
            let reserved = memory::reserve(stored.saturating_add(decoded).saturating_add(shown), &name).await?;
            let stored = match file {
                Some(file) => file,
                None => Stored::Bytes(found.read(tree).await?),
            };
            // Those of a store are not read twice.
            bytes = stored.bytes().cloned();
            let units = Arc::clone(self);
            let name = name.clone();
            match blocking(move || units.growing(stored, decoded, name, reserved)).await? {
                Ok(unit) => return Ok(Some(Unit::Growing(unit))),
                Err(reserved) => reservation = reserved,
            }
        }
        let stored = match bytes {
            Some(bytes) => bytes,
            None => {
                // Released before more is reserved.
                drop(std::mem::take(&mut reservation));
                reservation = memory::reserve(needed, &name).await?;
                found.read(tree).await?
            }
        };
        let length = variable.shown_bytes();
        // No more at a time than there are cores, in the order of requests: what a program waits
        // for was requested first.
        let permit = DECODERS.acquire().await;
        let units = Arc::clone(self);
        let bytes = blocking(move || units.decode(stored).context(|| name)).await?;
        drop(permit);
        // Shrinking never waits.
        reservation.resize(length, "a decoded chunk")?;
        Ok(Some(Unit::Decoded(memory::recycled(bytes, reservation))))
    }

    /// Returns the bytes of buffers that live beside the stored bytes and the decoded ones while a
    /// unit is decoded: those of the file if they are not the decoded ones, or those between two
    /// codecs.
    fn other_bytes(&self) -> u64 {
        let Variable { element, unit, kept, chain, .. } = &self.variable;
        let is_direct = chain.step_order().is_some() || chain.raw_order().is_some();
        if is_direct && kept == unit && !element.is_converted() { 0 } else { self.variable.shown_bytes() }
    }

    /// Returns the bytes of the numbers that have to be reversed if a unit is decoded step by step;
    /// none if they need not be.
    fn reversed(&self) -> Option<usize> {
        let is_big_endian = self.variable.chain.step_order() == Some(true);
        Some(self.variable.element.number).filter(|number| is_big_endian && *number > 1)
    }

    /// Returns true if what is decoded step by step are the bytes of the file: one buffer is both.
    fn is_one_buffer(&self) -> bool {
        self.variable.kept == self.variable.unit && self.reversed().is_none()
    }

    /// Returns true if decoding a unit of `decoded` bytes step by step is worthwhile, if it is
    /// possible.
    fn can_grow(&self, decoded: u64) -> bool {
        let Variable { element, unit, kept, .. } = &self.variable;
        decoded >= MIN_GROWING
            && !element.is_converted()
            && self.variable.chain.step_order().is_some()
            && (kept == unit || rows::run_bytes(unit, kept, element.size) >= MIN_RUN)
    }

    /// Returns a unit that is decoded step by step from `stored` to `decoded` bytes, if that is
    /// possible, and the reservation if not. `reservation` is for all of its bytes. On a thread
    /// that may block.
    fn growing(
        &self,
        stored: Stored,
        decoded: u64,
        name: String,
        mut reservation: Reservation,
    ) -> Result<Result<Arc<GrowingUnit>, Reservation>> {
        let variable = &self.variable;
        let size = variable.element.size;
        let length = variable.shown_bytes();
        let Some(steps) = variable.chain.steps(stored, decoded as usize)? else { return Ok(Err(reservation)) };
        if self.is_one_buffer() {
            let of_shown = reservation.split(decoded);
            let (bytes, grower) = GrowingBytes::create(length as usize, of_shown);
            return Ok(Ok(GrowingUnit::new(bytes, UnitDecoder::new(steps, grower, None, reservation), name)));
        }
        let of_shown = reservation.split(length);
        let (bytes, grower) = GrowingBytes::create(length as usize, of_shown);
        let (_, whole) = GrowingBytes::create(decoded as usize, Reservation::default());
        let shown = Shown::new(grower, rows::kept_runs(&variable.unit, &variable.kept), size, self.reversed());
        Ok(Ok(GrowingUnit::new(bytes, UnitDecoder::new(steps, whole, Some(shown), reservation), name)))
    }

    fn decode(&self, stored: Bytes) -> Result<Vec<u8>> {
        let variable = &self.variable;
        if variable.chain.is_variable() {
            let width = variable.longest as usize;
            let count: u64 = variable.unit.iter().product();
            let texts = variable.chain.decode_variable(stored, count as usize, variable.text_bytes())?;
            let mut shown = vec![0; count as usize * width];
            for (text, place) in texts.iter().zip(shown.chunks_exact_mut(width)) {
                let place =
                    place.get_mut(..text.len()).ok_or_else(|| Error::corrupt("a text longer than the longest"))?;
                place.copy_from_slice(text);
            }
            return Ok(rows::crop(shown, &variable.unit, &variable.kept, width));
        }
        let decoded = variable.chain.decode(stored, variable.elements())?;
        let kept = rows::crop(decoded, &variable.unit, &variable.kept, variable.element.size);
        variable.element.convert(kept)
    }
}
