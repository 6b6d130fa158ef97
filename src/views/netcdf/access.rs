//! Prediction of the units of a variable that a program will read next, and a count of what it has read of each.
//!
//! Units are counted in the order of the file here (*positions*), as a program that reads all of a variable goes through the file from
//! its beginning to its end. A program that reads a slab goes through some of its chunks, at a constant distance.

use std::num::NonZeroUsize;

use lru::LruCache;

use super::file_chunks::FilePlace;
use super::variable::Variable;
use crate::zarr::shard::coords_in;

/// Bytes of a page of the kernel: reads begin up to a page before what the program wants.
const PAGE: u64 = 4096;
/// Units whose bytes that were read are counted.
const COUNTED: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Units that a program read last.
#[derive(Debug, Default)]
pub(super) struct Access {
    /// Position of the last unit; none before the first.
    last: Option<u64>,
    /// Positions from the one before to the last.
    step: i64,
    /// Bytes that were read of units. Not made before the first read: a file may have 100,000 variables.
    read: Option<LruCache<u64, u64>>,
}

/// Units of a variable as the file has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order<'a> {
    /// Units per dimension.
    pub(super) grid: &'a [u64],
    /// Units along the first dimension that are one chunk of the file.
    pub(super) along: u64,
    /// Bytes of a unit.
    pub(super) unit: u64,
    /// Bytes of a unit at one index of the first dimension.
    pub(super) slice: u64,
}

/// Units to be decoded ahead: every `step`th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Predicted {
    pub(super) step: i64,
    /// True if this is a guess from a single read.
    pub(super) is_guess: bool,
}

impl Access {
    /// Records a read of bytes at `place`. Returns the units that will probably be read next, if the read was of another unit than the
    /// last: those at the same distance again, or at one along a single dimension, as programs take that read a slab.
    pub(super) fn record(&mut self, order: &Order<'_>, place: &FilePlace) -> Option<Predicted> {
        let Some(last) = self.last.replace(place.position) else {
            return order.first_guess(place).map(|step| Predicted { step, is_guess: true });
        };
        let step = place.position.wrapping_sub(last).cast_signed();
        if step == 0 {
            return None;
        }
        let before = std::mem::replace(&mut self.step, step);
        let is_along_one = order.strides().iter().any(|(_, stride)| *stride == step);
        (step == before || is_along_one).then_some(Predicted { step, is_guess: false })
    }

    /// Counts `length` bytes of the unit at `place` that were read. Returns true if all of them have been.
    pub(super) fn count(&mut self, order: &Order<'_>, place: &FilePlace, length: u64) -> bool {
        let counted = self.read.get_or_insert_with(|| LruCache::new(COUNTED));
        let count = counted.get_or_insert_mut(place.position, || 0);
        *count = count.saturating_add(length);
        let is_all = *count >= order.unit;
        if is_all {
            counted.pop(&place.position);
        }
        is_all
    }
}

impl<'a> Order<'a> {
    /// Returns the order of the units of `variable`.
    pub(super) fn of(variable: &'a Variable) -> Self {
        let unit = variable.shown_bytes();
        let slice = variable.kept.first().and_then(|length| unit.checked_div(*length)).unwrap_or(unit);
        Order { grid: &variable.grid, along: variable.along.max(1), unit, slice }
    }

    /// Returns the dimensions with several units, and the distances of these: from the one that changes first in the file to the one that
    /// changes last.
    fn strides(&self) -> Vec<(usize, i64)> {
        let chunks = self.grid.iter().enumerate().skip(1).rev().map(|(axis, count)| (axis, *count));
        let rows = self.grid.first().map_or(1, |first| first.div_ceil(self.along));
        let mut distance = 1_i64;
        std::iter::once((0, self.along))
            .chain(chunks)
            .chain([(0, rows)])
            .filter_map(|(axis, count)| {
                let stride = distance;
                distance = distance.saturating_mul(count.cast_signed());
                (count > 1).then_some((axis, stride))
            })
            .collect()
    }

    /// Returns the distance to the unit that will probably follow the very first read: along the dimension that changes first in the file
    /// and at whose beginning the read is. A slab begins there in each dimension that it has all of.
    fn first_guess(&self, place: &FilePlace) -> Option<i64> {
        let mut chunks = self.grid.to_vec();
        if let Some(first) = chunks.first_mut() {
            *first = first.div_ceil(self.along);
        }
        let mut coords = coords_in(&chunks, place.position / self.along);
        if let Some(row) = coords.first_mut() {
            let is_first_slice = place.from == 0 || place.from.saturating_add(PAGE - 1) < self.slice;
            *row = row.saturating_mul(self.along).saturating_add(place.position % self.along);
            *row = row.saturating_add(u64::from(!is_first_slice));
        }
        self.strides().into_iter().find(|(axis, _)| coords.get(*axis) == Some(&0)).map(|(_, stride)| stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: u64 = 100_000;

    fn order(grid: &[u64], along: u64) -> Order<'_> {
        Order { grid, along, unit: 10 * SLICE, slice: SLICE }
    }

    fn at(position: u64, slice: u64) -> FilePlace {
        FilePlace { position, from: slice * SLICE }
    }

    #[test]
    fn reads_along_a_dimension_tell_the_next_units() {
        let (single, joined) = (order(&[16, 4, 4], 1), order(&[16, 4, 4], 16));
        for (order, positions, expected) in [
            (single, &[0_u64, 1, 2][..], &[Some(1), Some(1)][..]),
            (single, &[5, 21, 37], &[Some(16), Some(16)]),
            (single, &[0, 0, 4, 4], &[None, Some(4), None]),
            (single, &[0, 5, 10, 11], &[None, Some(5), Some(1)]),
            (single, &[40, 24, 8], &[None, Some(-16)]),
            // All units of a chunk of the file, and on to the next one; one of each chunk.
            (joined, &[14, 15, 16], &[Some(1), Some(1)]),
            (joined, &[3, 19, 35], &[Some(16), Some(16)]),
        ] {
            let mut access = Access::default();
            let steps: Vec<_> = positions.iter().map(|next| access.record(&order, &at(*next, 0))).skip(1).collect();
            let expected: Vec<_> =
                expected.iter().map(|step| step.map(|step| Predicted { step, is_guess: false })).collect();
            assert_eq!(steps, expected, "{positions:?}");
        }
    }

    #[test]
    fn the_first_read_tells_a_direction() {
        let (single, joined) = (order(&[16, 4, 4], 1), order(&[16, 4, 4], 16));
        for (order, place, expected) in [
            // All of it.
            (single, at(0, 0), Some(1)),
            (joined, at(0, 0), Some(1)),
            // The slice at one index of the first dimension, in the middle of a unit.
            (single, at(2 * 16, 3), Some(1)),
            (joined, at(2, 3), Some(16)),
            // The series of a point.
            (single, at(2 * 4 + 3, 0), Some(16)),
            (joined, at(16 * (2 * 4 + 3), 0), Some(1)),
            // A row of the second dimension, and a single point.
            (single, at(2 * 16 + 3, 3), Some(4)),
            (single, at(2 * 16 + 2 * 4 + 3, 3), None),
        ] {
            assert_eq!(order.first_guess(&place), expected, "{place:?} of {order:?}");
        }
        // The kernel's page may begin before the slice does.
        assert_eq!(joined.first_guess(&FilePlace { position: 0, from: SLICE - 100 }), Some(16));
        assert_eq!(order(&[], 1).first_guess(&at(0, 0)), None);
    }

    #[test]
    fn a_unit_has_been_read_when_all_its_bytes_were() {
        let (order, mut access) = (order(&[4], 1), Access::default());
        assert!(!access.count(&order, &at(0, 0), 6 * SLICE) && !access.count(&order, &at(1, 0), 6 * SLICE));
        assert!(access.count(&order, &at(0, 6), 4 * SLICE));
        assert!(!access.count(&order, &at(0, 0), 9 * SLICE));
    }
}
