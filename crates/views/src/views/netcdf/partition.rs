//! Stored chunks that are not the units of a file: their edges, and the shape of the units that are
//! cut from them.
//!
//! The chunks of an HDF5 dataset have one shape and less than 4 GiB. Chunks of a rectilinear grid
//! have different shapes, and a raw chunk may have any length: often it is a whole variable of
//! another file, stored as a virtual chunk. Such arrays get units of their own, each made of parts
//! of stored chunks. Chunks that are not compressed need not be read whole for that.

/// Stored chunks along one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    runs: Vec<Run>,
    /// Lengths of the longest and the shortest chunk: each unit needs them, and there may be as
    /// many runs as units.
    longest: u64,
    shortest: u64,
}

/// Run of chunks of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    element: u64,
    chunk: u64,
    length: u64,
}

/// Chunk along one dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    /// Number of the chunk.
    pub(super) chunk: u64,
    /// Its first element.
    pub(super) first: u64,
    /// Its elements.
    pub(super) length: u64,
}

impl Segment {
    /// Returns the element after the last one.
    pub(super) fn end(&self) -> u64 {
        // A segment without elements would never end.
        self.first.saturating_add(self.length.max(1))
    }
}

/// Fewest bytes of a unit that has elements of one chunk only. Each unit has a page of its own, of
/// 4096 bytes.
const MIN_UNIT: u64 = 1024;
/// Most stored chunks that a unit may have parts of.
const MAX_PARTS: u64 = 1 << 16;
/// Most numbers that are tried as the number of equal parts of a chunk.
const MAX_TRIES: usize = 10_000;

impl Axis {
    /// Creates the axis of a dimension of `length` elements with runs of chunks: elements per chunk
    /// and number of chunks. None if they do not cover the dimension.
    pub(super) fn new(runs: &[(u64, u64)], length: u64) -> Option<Self> {
        let mut element = 0_u64;
        let mut chunk = 0_u64;
        let mut list = Vec::new();
        for &(size, count) in runs {
            if size > 0 && count > 0 && element < length {
                list.push(Run { element, chunk, length: size });
                element = element.saturating_add(size.saturating_mul(count));
            }
            chunk = chunk.checked_add(count)?;
        }
        let longest = list.iter().map(|run| run.length).max().unwrap_or(1);
        let shortest = list.iter().map(|run| run.length).min().unwrap_or(1);
        (element >= length && length > 0).then_some(Axis { runs: list, longest, shortest })
    }

    /// Returns the length of the longest chunk.
    pub(super) fn longest(&self) -> u64 {
        self.longest
    }

    /// Returns the longest parts, all of one length, into which a dimension of `length` elements
    /// can be cut so that none has elements of two chunks.
    fn common_length(&self, length: u64) -> u64 {
        let ends = self.runs.iter().skip(1).map(|run| run.element).chain([length]);
        let common = self.runs.iter().zip(ends).fold(0, |common, (run, end)| {
            let common = greatest_common_divisor(common, run.element);
            let has_several = end.saturating_sub(run.element) > run.length;
            if has_several { greatest_common_divisor(common, run.length) } else { common }
        });
        if common == 0 { length } else { common.min(length) }
    }

    /// Returns the chunk that has `element`.
    pub(super) fn segment(&self, element: u64) -> Segment {
        let run = self.runs.partition_point(|run| run.element <= element).checked_sub(1);
        let Some(run) = run.and_then(|run| self.runs.get(run)) else { return Segment::default() };
        let number = element.saturating_sub(run.element).checked_div(run.length).unwrap_or(0);
        let first = run.element.saturating_add(number.saturating_mul(run.length));
        Segment { chunk: run.chunk.saturating_add(number), first, length: run.length }
    }
}

/// Returns the shape of units for stored chunks with these edges in an array of `shape` with
/// elements of `size` bytes. None has parts of two chunks, so that a damaged one takes no other
/// with it, unless such units would be short: along some dimensions they are then as long as the
/// longest chunks.
pub(super) fn unit_shape(axes: &[Axis], shape: &[u64], size: u64) -> Vec<u64> {
    let longest: Vec<u64> = longest_shape(axes, shape);
    let mut unit: Vec<u64> = axes.iter().zip(shape).map(|(axis, length)| axis.common_length(*length).max(1)).collect();
    while unit.iter().fold(size, |bytes, length| bytes.saturating_mul(*length)) < MIN_UNIT {
        let ratio = |(unit, longest): &(&mut u64, &u64)| longest.checked_div(**unit).unwrap_or(0);
        let shortest = unit.iter_mut().zip(&longest).filter(|(unit, longest)| **unit < **longest).max_by_key(ratio);
        let Some((short, long)) = shortest else { break };
        *short = *long;
    }
    with_few_parts(axes, unit)
}

/// Returns the shape of units that are as long as the longest chunks.
pub(super) fn long_unit_shape(axes: &[Axis], shape: &[u64]) -> Vec<u64> {
    with_few_parts(axes, longest_shape(axes, shape))
}

fn longest_shape(axes: &[Axis], shape: &[u64]) -> Vec<u64> {
    axes.iter().zip(shape).map(|(axis, length)| axis.longest().min(*length).max(1)).collect()
}

/// Returns `unit`, made shorter if it would have parts of too many chunks.
fn with_few_parts(axes: &[Axis], mut unit: Vec<u64>) -> Vec<u64> {
    loop {
        let parts: Vec<u64> =
            unit.iter().zip(axes).map(|(unit, axis)| unit.div_ceil(axis.shortest.max(1)).saturating_add(1)).collect();
        let product = parts.iter().try_fold(1_u64, |product, count| product.checked_mul(*count));
        let most = unit.iter_mut().zip(&parts).filter(|(unit, _)| **unit > 1).max_by_key(|(_, count)| **count);
        match most {
            Some((longest, _)) if product.is_none_or(|product| product > MAX_PARTS) => *longest = longest.div_ceil(2),
            _ => return unit,
        }
    }
}

/// Returns the largest number that divides both.
pub(super) fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one.checked_rem(other).unwrap_or(0));
    }
    one
}

/// Cuts `shape`, elements of `size` bytes, to about `target` bytes: whole rows of the last
/// dimensions. If possible the parts end where a chunk of `shape` does, so that none has elements
/// of two chunks.
pub(super) fn cut(shape: &[u64], size: u64, target: u64) -> Vec<u64> {
    let mut left = target.checked_div(size).unwrap_or(1).max(1);
    let mut cut: Vec<u64> = shape
        .iter()
        .rev()
        .map(|length| {
            let kept = (*length).min(left).max(1);
            left = left.checked_div(kept).unwrap_or(1).max(1);
            let parts = length.div_ceil(kept);
            let parts = (parts..parts.saturating_mul(4)).take(MAX_TRIES).find(|parts| length.is_multiple_of(*parts));
            parts.and_then(|parts| length.checked_div(parts)).unwrap_or(kept)
        })
        .collect();
    cut.reverse();
    cut
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn elements_are_found_in_their_chunks() {
        let axis = Axis::new(&[(3, 1), (0, 2), (2, 3), (10, 1)], 12).unwrap();
        let found = |element| {
            let Segment { chunk, first, length } = axis.segment(element);
            (chunk, first, length)
        };
        assert_eq!([found(0), found(2), found(3)], [(0, 0, 3), (0, 0, 3), (3, 3, 2)]);
        assert_eq!([found(6), found(8), found(9), found(11)], [(4, 5, 2), (5, 7, 2), (6, 9, 10), (6, 9, 10)]);
        assert_eq!(axis.longest(), 10);
        // Chunks that end before the array does, and sizes that overflow.
        assert!(Axis::new(&[(3, 2)], 7).is_none() && Axis::new(&[], 1).is_none() && Axis::new(&[(0, 9)], 1).is_none());
        assert_eq!(Axis::new(&[(u64::MAX, u64::MAX)], u64::MAX).unwrap().segment(5).chunk, 0);
        assert!(Axis::new(&[(0, u64::MAX), (1, 1)], 1).is_none());
    }

    #[test]
    fn units_have_parts_of_a_bounded_number_of_chunks() {
        let axis = |runs: &[(u64, u64)], length| Axis::new(runs, length).unwrap();
        assert_eq!(long_unit_shape(&[axis(&[(3, 1), (5, 1)], 8), axis(&[(9, 1)], 4)], &[8, 4]), [5, 4]);
        let hostile = axis(&[(1, 1 << 30), (1 << 30, 1)], 1 << 31);
        let unit = long_unit_shape(&[hostile.clone(), hostile], &[1 << 31, 1 << 31]);
        assert!(unit.iter().all(|length| (64..=256).contains(length)), "{unit:?}");
    }

    #[test]
    fn units_have_elements_of_one_chunk_if_they_are_not_short() {
        let axis = |runs: &[(u64, u64)], length| Axis::new(runs, length).unwrap();
        let months = axis(&[(31, 1), (28, 1), (31, 1), (30, 1)], 120);
        let map = axis(&[(500, 2)], 1000);
        assert_eq!(unit_shape(&[months.clone(), map.clone()], &[120, 1000], 16), [1, 500]);
        let even = axis(&[(2, 3), (4, 1), (8, 9)], 40);
        assert_eq!(even.common_length(40), 2);
        // The last chunk may have any length.
        assert_eq!(axis(&[(6, 2), (100, 1)], 40).common_length(40), 6);
        assert_eq!(axis(&[(100, 1)], 40).common_length(40), 40);
        assert_eq!(unit_shape(&[even, axis(&[(700, 1), (1400, 1)], 2100)], &[40, 2100], 4), [2, 700]);
        // Short units are as long as the longest chunk along the dimension where that is worth
        // most.
        assert_eq!(unit_shape(&[months.clone(), map], &[120, 1000], 1), [31, 500]);
        assert_eq!(unit_shape(&[months], &[120], 4), [31]);
    }

    #[test]
    fn rows_are_cut_last() {
        assert_eq!(cut(&[100, 200, 300], 4, 1 << 20), [4, 200, 300]);
        assert_eq!(cut(&[100, 1 << 30], 8, 1 << 20), [1, 1 << 17]);
        assert_eq!(cut(&[], 8, 16), [0_u64; 0]);
        assert_eq!(cut(&[5], 64, 16), [1]);
        // Parts of equal length; of a prime number of rows there are none.
        assert_eq!(cut(&[4900, 8000], 2, 8 << 20), [490, 8000]);
        assert_eq!(cut(&[4903, 8000], 2, 8 << 20), [524, 8000]);
        assert_eq!(cut(&[1 << 62], 1, 8 << 20), [8 << 20]);
    }
}
