//! Prediction of the units of a variable that a program will read next, and a count of what it has
//! read of each.
//!
//! Units are counted in the order of the file here (*positions*), as a program that reads all of a
//! variable goes through the file from its beginning to its end. A program that reads a slab goes
//! through some of its chunks, at a constant distance.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use lru::LruCache;

use super::file_chunks::{self, FilePlace};
use super::variable::Variable;
use icechunkfs_base::access_pattern::Stride;
use icechunkfs_format::zarr::shard::coords_in;

/// Bytes of a page of the kernel: reads begin up to a page before what the program wants.
const PAGE: u64 = 4096;
/// Units whose bytes that were read are counted, and that are recognized when a program returns to
/// them.
const COUNTED: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Bytes of units that are kept behind a program that has never returned to one. Their buffers are
/// used again, which is faster than new ones, and a single pass over a variable leaves the cache to
/// others. A series takes 3 % less than with two units of 4 MiB.
const KEPT_BEHIND: u64 = 2 << 20;

/// Units that a program read last.
#[derive(Debug, Default)]
pub(super) struct Access {
    /// Positions of the units; none before the first.
    stride: Option<Stride<u64, i64>>,
    /// First byte of the last unit that was read, by the first read of it.
    first: u64,
    /// End of the bytes of the last unit that were read, and their number.
    end: u64,
    bytes: u64,
    /// Units that will probably follow the last one.
    predicted: Option<Predicted>,
    /// Positions of units that were read before the last one, and may be in the cache.
    behind: VecDeque<u64>,
    /// True if a program has returned to a unit that it had left.
    has_returned: bool,
    /// Bytes that were read of units. Not made before the first read: a file may have 100,000
    /// variables.
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
    /// Elements of the variable along the first dimension.
    pub(super) length: u64,
}

/// Prediction of what a program reads next, after a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    /// Units that follow.
    pub(super) next: Option<Predicted>,
    /// End of the bytes of the same unit that follow: at least the end of the read.
    pub(super) ahead: u64,
    /// Position of a unit that will probably not be read again.
    pub(super) left: Option<u64>,
    /// True if the read does not go on where the unit before ends, nor is of the same unit.
    pub(super) is_jump: bool,
}

/// Units to be decoded ahead: every `step`th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Predicted {
    pub(super) step: i64,
    /// End of the bytes of each that will be read: where those of the last unit end.
    pub(super) until: u64,
    /// True if this is a guess from a single read.
    pub(super) is_guess: bool,
    /// True if all of the last unit was read, as by a program that reads the file from its
    /// beginning to its end.
    is_dense: bool,
}

impl Access {
    /// Records a read of `length` bytes at `place`, and returns what will probably be read next:
    /// units, if the read was of another unit than the last, at the same distance again, or at one
    /// along a single dimension, as programs take that read a slab. Of the same unit, as much again
    /// as was read of it so far, and what was read of the unit before.
    pub(super) fn record(&mut self, order: &Order<'_>, place: &FilePlace, length: u64) -> Recorded {
        let end = place.from.saturating_add(length);
        let last = self.stride.as_ref().map(|stride| *stride.last());
        if last == Some(place.position) {
            self.end = self.end.max(end);
            self.bytes = self.bytes.saturating_add(length);
            let ahead = end.saturating_add(end.saturating_sub(self.first.min(place.from)));
            let ahead = self.cut(order, place.position, ahead, end);
            // The program goes farther in this unit than in the one before: so it will in those
            // that follow.
            let next = self.predicted.as_mut().filter(|predicted| predicted.until < end);
            let next = next.map(|predicted| {
                predicted.until = ahead;
                *predicted
            });
            return Recorded { next, ahead, ..Recorded::default() };
        }
        let until = std::mem::replace(&mut self.end, end);
        let bytes = std::mem::replace(&mut self.bytes, length);
        self.first = place.from;
        let is_guess = last.is_none();
        let step = last.map_or(0, |last| place.position.wrapping_sub(last).cast_signed());
        let is_repeated = self.advance(place.position, step);
        let is_along_one = || order.strides().iter().any(|(_, stride)| *stride == step);
        self.predicted = if is_guess {
            order.first_guess(place).map(|step| Predicted { step, until: end, is_guess, is_dense: false })
        } else if is_repeated || is_along_one() {
            Some(Predicted { step, until: until.max(end), is_guess, is_dense: bytes >= order.unit })
        } else {
            None
        };
        let ahead = self.predicted.map_or(end, |predicted| predicted.until);
        let ahead = self.cut(order, place.position, ahead, end);
        let is_jump = is_guess || step != 1 || place.from != 0 || until < order.unit;
        Recorded { next: self.predicted, ahead, left: last.and_then(|last| self.leave(order, last, place)), is_jump }
    }

    /// Records a read of another unit than the last, `step` positions away from it. Returns true if
    /// the step is that of the unit before.
    fn advance(&mut self, position: u64, step: i64) -> bool {
        let Some(stride) = &mut self.stride else {
            self.stride = Some(Stride::new(position));
            return false;
        };
        let is_repeated = stride.steps_to(&position, 1, |from, step| Some(from.wrapping_add_signed(step))).is_some();
        if is_repeated {
            stride.follow(position);
        } else {
            stride.turn(position, step);
        }
        is_repeated
    }

    /// Returns `ahead`, cut to what the program may read of the unit at `position`, but at least
    /// `end`, to which it has read.
    fn cut(&self, order: &Order<'_>, position: u64, ahead: u64, end: u64) -> u64 {
        let is_dense = self.predicted.is_some_and(|predicted| predicted.is_dense);
        ahead.min(order.limit(position, is_dense)).max(end)
    }

    /// Records that a program has gone on from the unit at `last` to `place`. Returns a unit that
    /// need not be kept.
    fn leave(&mut self, order: &Order<'_>, last: u64, place: &FilePlace) -> Option<u64> {
        self.has_returned |= self.read.as_ref().is_some_and(|read| read.contains(&place.position));
        if self.has_returned {
            self.behind = VecDeque::new();
            return None;
        }
        self.behind.push_back(last);
        let kept = KEPT_BEHIND.checked_div(order.unit).unwrap_or(0);
        if self.behind.len() as u64 > kept { self.behind.pop_front() } else { None }
    }

    /// Counts `length` bytes of the unit at `place` that were read. Returns true if all of them
    /// have been.
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

impl Predicted {
    /// Returns the position that follows `position`, and the end of the bytes that will be read
    /// there; none if a program that reads a slab does not go there: from the last unit of a chunk
    /// of the file to the next chunk.
    pub(super) fn after(&self, order: &Order<'_>, position: u64) -> Option<(u64, u64)> {
        let next = position.checked_add_signed(self.step)?;
        let is_within = self.step.unsigned_abs() >= order.along || next / order.along == position / order.along;
        (is_within || self.is_dense).then(|| (next, self.until.min(order.limit(next, self.is_dense))))
    }
}

impl<'a> Order<'a> {
    /// Returns the order of the units of `variable`.
    pub(super) fn of(variable: &'a Variable) -> Self {
        let unit = variable.shown_bytes();
        let slice = variable.kept.first().and_then(|length| unit.checked_div(*length)).unwrap_or(unit);
        let length = variable.shape.first().copied().unwrap_or(1);
        Order { grid: &variable.grid, along: variable.along.max(1), unit, slice, length }
    }

    /// Returns the number along the first dimension of the unit at `position`.
    fn row(&self, position: u64) -> u64 {
        file_chunks::row_at(self.grid, self.along, position)
    }

    /// Returns the end of the bytes of the unit at `position` that a program may read: those behind
    /// the end of the variable along the first dimension are read only by one that reads all of the
    /// file (`is_dense`).
    fn limit(&self, position: u64, is_dense: bool) -> u64 {
        if is_dense {
            return self.unit;
        }
        let slices = self.unit.checked_div(self.slice).unwrap_or(1);
        let before = self.row(position).saturating_mul(slices);
        self.length.saturating_sub(before).min(slices).saturating_mul(self.slice)
    }

    /// Returns the dimensions with several units, and the distances of these: from the one that
    /// changes first in the file to the one that changes last.
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

    /// Returns the distance to the unit that will probably follow the very first read: along the
    /// dimension that changes first in the file and at whose beginning the read is. A slab begins
    /// there in each dimension that it has all of.
    fn first_guess(&self, place: &FilePlace) -> Option<i64> {
        let mut chunks = self.grid.to_vec();
        if let Some(first) = chunks.first_mut() {
            *first = first.div_ceil(self.along);
        }
        let mut coords = coords_in(&chunks, place.position / self.along);
        if let Some(row) = coords.first_mut() {
            let is_first_slice = place.from == 0 || place.from.saturating_add(PAGE - 1) < self.slice;
            *row = self.row(place.position).saturating_add(u64::from(!is_first_slice));
        }
        self.strides().into_iter().find(|(axis, _)| coords.get(*axis) == Some(&0)).map(|(_, stride)| stride)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    const SLICE: u64 = 100_000;

    fn order(grid: &[u64], along: u64) -> Order<'_> {
        let length = grid.first().map_or(1, |units| units * 10 - 7);
        Order { grid, along, unit: 10 * SLICE, slice: SLICE, length }
    }

    fn at(position: u64, slice: u64) -> FilePlace {
        FilePlace { position, from: slice * SLICE }
    }

    #[test]
    fn reads_along_a_dimension_tell_the_next_units() {
        let single = order(&[16, 4, 4], 1);
        let joined = order(&[16, 4, 4], 16);
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
            let steps: Vec<_> =
                positions.iter().map(|next| access.record(&order, &at(*next, 0), 5).next).skip(1).collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|step| step.map(|step| Predicted { step, until: 5, is_guess: false, is_dense: false }))
                .collect();
            assert_eq!(steps, expected, "{positions:?}");
        }
    }

    #[test]
    fn the_first_read_tells_a_direction() {
        let single = order(&[16, 4, 4], 1);
        let joined = order(&[16, 4, 4], 16);
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
    fn units_end_where_the_variable_does() {
        let within = |grid: &[u64], along, position| order(grid, along).limit(position, false) / SLICE;
        // The last of three rows of units has three indices of the variable, whatever the order of
        // the file.
        let rows = [(1, [0, 4, 7], [8, 9, 11]), (3, [0, 1, 10], [2, 5, 11]), (2, [0, 1, 7], [8, 10, 14])];
        for (along, full, cut) in rows {
            assert_eq!(full.map(|position| within(&[3, 2, 2], along, position)), [10; 3], "{along}");
            assert_eq!(cut.map(|position| within(&[3, 2, 2], along, position)), [3; 3], "{along}");
        }
        // Beyond it, and a single number.
        assert_eq!(within(&[3, 2, 2], 2, 9), 0);
        let scalar = Order { grid: &[], along: 1, unit: 8, slice: 8, length: 1 };
        assert_eq!(scalar.limit(0, false), 8);
    }

    #[test]
    fn nothing_is_decoded_ahead_behind_the_end_of_the_variable() {
        // All indices of a point, to the third one of the last unit.
        let order = order(&[4], 1);
        let mut access = Access::default();
        let read = |access: &mut Access, position, slice| access.record(&order, &at(position, slice), 5);
        let mut unit = |position| (0..10).map(|slice| read(&mut access, position, slice)).collect::<Vec<_>>();
        let end = 9 * SLICE + 5;
        assert_eq!(unit(0)[9].ahead, 10 * SLICE);
        for position in [1, 2] {
            let first = unit(position)[0];
            assert_eq!(first.ahead, end);
            let until = if position == 1 { end } else { 3 * SLICE };
            assert_eq!(first.next.unwrap().after(&order, position), Some((position + 1, until)));
        }
        // A program that goes on beyond it gets what it asks for.
        let ends: Vec<_> = (0..5).map(|slice| read(&mut access, 3, slice).ahead).collect();
        assert_eq!(ends, [3 * SLICE, 2 * SLICE + 10, 3 * SLICE, 3 * SLICE + 5, 4 * SLICE + 5]);
        // One that reads all bytes reads those, too.
        let mut access = Access::default();
        let mut all = |position| access.record(&order, &at(position, 0), 10 * SLICE);
        all(0);
        assert_eq!(all(1).next.unwrap().after(&order, 2), Some((3, 10 * SLICE)));
    }

    #[test]
    fn a_pass_leaves_units_behind_until_a_program_returns() {
        let order = order(&[100], 1);
        let mut access = Access::default();
        let kept = KEPT_BEHIND / order.unit;
        let mut read = |position| {
            let left = access.record(&order, &at(position, 3), SLICE).left;
            access.count(&order, &at(position, 3), SLICE);
            left
        };
        let left: Vec<_> = (0..20).map(&mut read).collect();
        let expected: Vec<_> = (0..20_u64).map(|n| n.checked_sub(kept + 1)).collect();
        assert_eq!(left, expected);
        // Back at the first one, and from then on.
        assert!((0..20).chain(30..60).all(|position| read(position).is_none()));
    }

    #[test]
    fn a_unit_has_been_read_when_all_its_bytes_were() {
        let order = order(&[4], 1);
        let mut access = Access::default();
        assert!(!access.count(&order, &at(0, 0), 6 * SLICE) && !access.count(&order, &at(1, 0), 6 * SLICE));
        assert!(access.count(&order, &at(0, 6), 4 * SLICE));
        assert!(!access.count(&order, &at(0, 0), 9 * SLICE));
    }
}
