//! Units made of parts of stored chunks (see [`super::partition`]).

use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use super::chunks::Units;
use super::decode::chain::Elements;
use super::partition::{Axis, Segment};
use super::rows::Block;
use super::stored::{self, StoredPlace};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::{self, MemoryLimit};
use icechunkfs_format::zarr::shard::coords_in;
use icechunkfs_repo::cache::{CacheKey, Owner};
use icechunkfs_tree::tree::Tree;

/// Key of a decoded stored chunk, which several units may need, in the reader's cache.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DecodedChunkKey {
    /// Owner of the units.
    owner: Owner,
    number: u64,
}

impl CacheKey for DecodedChunkKey {
    /// None if the chunk is not stored.
    type Value = Option<Bytes>;

    fn weight(&self, bytes: &Option<Bytes>) -> u64 {
        bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)
    }
}

/// Limit on the memory of units that are assembled at the same time, with the stored chunks that
/// each of them decodes meanwhile. A unit has its memory while it waits for that of a stored chunk:
/// all that have some must have room for the rest. What others have reserved they release without
/// waiting for more, or it is in a cache.
static ASSEMBLED: LazyLock<MemoryLimit> = LazyLock::new(|| MemoryLimit::new(memory::reservable() / 2));

/// Elements of a raw chunk that are read at once.
struct RawRead {
    from: usize,
    length: usize,
    /// Place in the unit and length of each run of them.
    runs: Vec<(usize, usize)>,
}

/// Part of a stored chunk within a unit.
struct Part<'a> {
    /// Stored chunk along each dimension.
    segments: &'a [Segment],
    /// First element of the unit in the array, and the first one of the part.
    unit: &'a [u64],
    first: &'a [u64],
    lengths: Vec<u64>,
}

impl Part<'_> {
    /// Calls `with` with the part as a block of a unit of `shape` and of its chunk.
    fn block<T>(&self, shape: &[u64], with: impl FnOnce(&Block<'_>) -> T) -> T {
        let from_shape: Vec<u64> = self.segments.iter().map(|segment| segment.length).collect();
        let within = |outer: u64, inner: &u64| inner.saturating_sub(outer);
        let to_first: Vec<u64> = self.unit.iter().zip(self.first).map(|(unit, first)| within(*unit, first)).collect();
        let from_first: Vec<u64> =
            self.segments.iter().zip(self.first).map(|(segment, first)| within(segment.first, first)).collect();
        with(&Block {
            to_shape: shape,
            to_first: &to_first,
            from_shape: &from_shape,
            from_first: &from_first,
            lengths: &self.lengths,
        })
    }

    /// Returns the elements of the stored chunk.
    fn elements(&self) -> u64 {
        self.segments.iter().fold(1, |count, segment| count.saturating_mul(segment.length))
    }
}

impl Units {
    /// Makes unit `number` of stored chunks along `axes`; none if none of them is stored.
    pub(super) async fn assemble(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        number: u64,
        axes: &[Axis],
    ) -> Result<Option<Bytes>> {
        let variable = &self.variable;
        let coords = coords_in(&variable.grid, number);
        let unit: Vec<u64> = coords.iter().zip(&variable.unit).map(|(coord, unit)| coord * unit).collect();
        let end: Vec<u64> = unit
            .iter()
            .zip(&variable.unit)
            .zip(&variable.shape)
            .map(|((unit, length), shape)| (unit + length).min(*shape))
            .collect();
        let elements = variable.unit.iter().product::<u64>();
        let shown = variable.shown_bytes();
        let name = format!("/{}", tree.table().path(variable.node));
        let size = variable.element.size as u64;
        let longest = axes.iter().fold(size, |bytes, axis| bytes.saturating_mul(axis.longest()));
        let shown_apart = if variable.element.is_converted() { shown } else { 0 };
        // A chunk that is not encoded is read into the unit, in parts that are no longer than it
        // is.
        let (read, decoded) = match variable.chain.raw_order() {
            Some(_) => (longest.min(elements * size), 0),
            None => (0, longest),
        };
        let needed = elements * size + shown_apart.max(read);
        // Stored bytes are seldom more than decoded ones.
        let _turn = ASSEMBLED.take(needed.saturating_add(decoded.saturating_mul(2))).await;
        let mut reservation = memory::reserve(needed, &name).await?;
        let mut bytes = None;
        let mut first = unit.clone();
        loop {
            let segments: Vec<Segment> = axes.iter().zip(&first).map(|(axis, first)| axis.segment(*first)).collect();
            let ends = segments.iter().zip(&end).map(|(segment, end)| segment.end().min(*end));
            let lengths = ends.zip(&first).map(|(end, first)| end.saturating_sub(*first)).collect();
            let part = Part { segments: &segments, unit: &unit, first: &first, lengths };
            let chunk: Vec<u64> = segments.iter().map(|segment| segment.chunk).collect();
            let place = StoredPlace::chunk(tree, variable.node, &chunk);
            let copied = self.copy_part(tree, &part, &place, elements, &mut bytes).await;
            copied.map_err(|error| place.named(error, tree))?;
            if !advance(&mut first, &segments, &unit, &end) {
                break;
            }
        }
        let Some(bytes) = bytes else { return Ok(None) };
        let units = Arc::clone(self);
        let bytes = blocking(move || units.variable.element.convert(bytes)).await?;
        // Shrinking never waits.
        reservation.resize(shown, "a decoded chunk")?;
        Ok(Some(memory::recycled(bytes, reservation)))
    }

    /// Copies a part into the unit of `elements`, which is made for the first one that is stored.
    async fn copy_part(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        part: &Part<'_>,
        place: &StoredPlace<'_>,
        elements: u64,
        bytes: &mut Option<Vec<u8>>,
    ) -> Result<()> {
        let variable = &self.variable;
        let size = variable.element.size;
        let fill = || variable.fill.repeat(elements as usize);
        let Some(big_endian) = variable.chain.raw_order() else {
            if let Some(decoded) = self.stored_chunk(tree, part, place).await? {
                let bytes = bytes.get_or_insert_with(fill);
                part.block(&variable.unit, |block| block.copy(bytes, &decoded, size));
            }
            return Ok(());
        };
        let wanted = part.elements().saturating_mul(size as u64);
        let Some(inode) = place.stored_as(tree, wanted).await? else { return Ok(()) };
        let bytes = bytes.get_or_insert_with(fill);
        // Runs that follow one another in the chunk are one read.
        let mut reads: Vec<RawRead> = Vec::new();
        part.block(&variable.unit, |block| {
            block.runs().for_each(|(to, from, run)| match reads.last_mut() {
                Some(last) if last.from + last.length == from => {
                    last.runs.push((to, run));
                    last.length += run;
                }
                _ => reads.push(RawRead { from, length: run, runs: vec![(to, run)] }),
            });
        });
        for RawRead { from, length, runs } in reads {
            let mut read = Vec::from(stored::read(tree, inode, (from * size) as u64, (length * size) as u64).await?);
            if big_endian && variable.element.number > 1 {
                read.chunks_exact_mut(variable.element.number).for_each(<[u8]>::reverse);
            }
            let mut rest = read.as_slice();
            for (to, run) in runs {
                let (row, after) = rest.split_at_checked(run * size).unwrap_or_default();
                if let Some(target) = bytes.get_mut(to * size..to * size + row.len()) {
                    target.copy_from_slice(row);
                }
                rest = after;
            }
        }
        Ok(())
    }

    /// Returns a decoded stored chunk, which several units may need; none if it is not stored.
    async fn stored_chunk(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        part: &Part<'_>,
        place: &StoredPlace<'_>,
    ) -> Result<Option<Bytes>> {
        let variable = &self.variable;
        let number = part
            .segments
            .iter()
            .zip(&variable.stored_grid)
            .fold(0_u64, |number, (segment, count)| number.saturating_mul(*count).saturating_add(segment.chunk));
        let shape: Vec<u64> = part.segments.iter().map(|segment| segment.length).collect();
        let units = Arc::clone(self);
        let source = Arc::clone(tree);
        let place = place.whole();
        let make = async move {
            let Some(found) = place.find(&source).await? else { return Ok(None) };
            let name = place.describe(&source);
            let size = units.variable.element.size;
            let decoded = shape.iter().product::<u64>() * size as u64;
            let extra = units.variable.chain.extra_memory(decoded as usize, size) as u64;
            let needed = found.len().saturating_add(decoded).saturating_add(extra);
            let mut reservation = memory::reserve(needed, &name).await?;
            let stored = found.read(&source).await?;
            let decode = move || {
                let variable = &units.variable;
                variable.chain.decode(stored, Elements { shape: &shape, ..variable.elements() }).context(|| name)
            };
            let bytes = blocking(decode).await?;
            reservation.resize(decoded, "a decoded chunk")?;
            Ok(Some(memory::recycled(bytes, reservation)))
        };
        tree.reader().cache().get_or_load(DecodedChunkKey { owner: self.owner, number }, make).await
    }
}

/// Moves `first` to the next chunk in C order: from `segments`, within the unit that begins at
/// `unit` and ends at `end`. Returns false at the end.
fn advance(first: &mut [u64], segments: &[Segment], unit: &[u64], end: &[u64]) -> bool {
    for (((first, segment), unit), end) in first.iter_mut().zip(segments).zip(unit).zip(end).rev() {
        *first = segment.end();
        if *first < *end {
            return true;
        }
        *first = *unit;
    }
    false
}
