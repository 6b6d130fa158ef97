//! Elements that lie in a file one after another, or a slab of them in each record.

use std::ops::Range;

use icechunkfs_base::error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::source::Source;

/// Bytes between two pieces that are read along with them: a call costs as much.
const GAP: u64 = 4 << 10;
/// Bytes that are read at a time for several pieces, if one is not longer.
const SPAN: u64 = 256 << 10;

/// Place of the elements of an array in a file, in the order of C.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Elements per dimension.
    shape: Vec<u64>,
    /// Bytes of an element.
    size: u64,
    /// Position of the first element, in bytes.
    begin: u64,
    /// Bytes from one row of the first dimension to the next: more than those of a row where the
    /// rows of other arrays are between.
    stride: u64,
}

/// Pieces of a file that have one length, and one distance from each to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pieces {
    begin: u64,
    length: u64,
    stride: u64,
    count: u64,
}

impl Run {
    /// Describes an array of `shape` with elements of `size` bytes at position `begin`, whose rows
    /// are `stride` bytes apart; none of rows without anything between.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if rows lie in each other, or if a
    /// number is beyond those of a file.
    pub(crate) fn new(shape: Vec<u64>, size: u64, begin: u64, stride: Option<u64>) -> Result<Self> {
        let row = product(shape.get(1..).unwrap_or_default(), size).ok_or_else(too_long)?;
        let stride = stride.unwrap_or(row);
        if stride < row || size == 0 {
            return Err(Error::corrupt("rows that lie in each other"));
        }
        let run = Run { shape, size, begin, stride };
        run.end().ok_or_else(too_long).map(|_| run)
    }

    /// Returns true if it has elements of `size` bytes, in rows that do not lie in each other: one
    /// that another process has made may not.
    pub(crate) fn is_of(&self, size: u64) -> bool {
        let row = product(self.shape.get(1..).unwrap_or_default(), self.size);
        self.size == size && size > 0 && row.is_some_and(|row| row <= self.stride)
    }

    /// Returns true if rows have something between them.
    pub(crate) fn has_gaps(&self) -> bool {
        product(self.shape.get(1..).unwrap_or_default(), self.size) != Some(self.stride)
    }

    /// Returns the elements per dimension.
    pub(crate) fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the position behind the last element, 0 if there is no element; none if it is beyond
    /// those of a file.
    pub(crate) fn end(&self) -> Option<u64> {
        let bytes = product(&self.shape, self.size)?;
        if bytes == 0 {
            return Some(0);
        }
        let row = product(self.shape.get(1..).unwrap_or_default(), self.size)?;
        let rows = self.shape.first().copied().unwrap_or(1);
        (rows - 1).checked_mul(self.stride)?.checked_add(row)?.checked_add(self.begin)
    }

    /// Appends the elements in `region`, a range of each dimension, to `out`, in the order of C.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if there is no such region;
    /// others as for reading `source`.
    pub fn read(&self, source: &dyn Source, region: &[Range<u64>], out: &mut Vec<u8>) -> Result<()> {
        check_region(region, &self.shape)?;
        if region.iter().any(Range::is_empty) {
            return Ok(());
        }
        let strides = self.strides();
        let (outer, piece) = self.piece(region, &strides);
        let begin = self.begin_of(region, &strides);
        let lengths: Vec<u64> = region.iter().map(|range| range.end - range.start).collect();
        // The innermost of the others gives the number of pieces, and how far they are apart.
        let Some((inner, others)) = lengths.get(..outer).and_then(<[u64]>::split_last) else {
            return append(source, Pieces { begin, length: piece, stride: piece, count: 1 }, out);
        };
        let stride = strides.get(others.len()).copied().unwrap_or(piece);
        let mut place = vec![0_u64; others.len()];
        loop {
            let offsets = std::iter::zip(&place, &strides).map(|(at, stride)| at.saturating_mul(*stride));
            let begin = offsets.fold(begin, u64::saturating_add);
            append(source, Pieces { begin, length: piece, stride, count: *inner }, out)?;
            if !advance(&mut place, others) {
                return Ok(());
            }
        }
    }

    /// Returns the bytes of the file that have the elements in `region`, in the order of C; none if
    /// there is no such region, or if others lie between.
    pub(crate) fn place_of(&self, region: &[Range<u64>]) -> Option<Range<u64>> {
        check_region(region, &self.shape).ok()?;
        let strides = self.strides();
        let (outer, piece) = self.piece(region, &strides);
        let is_one = region.get(..outer)?.iter().all(|range| range.end - range.start == 1);
        let begin = self.begin_of(region, &strides);
        Some(begin..begin.checked_add(piece)?).filter(|place| is_one && !place.is_empty())
    }

    /// Returns how many dimensions of `region` lie apart, and the bytes of a piece of the others:
    /// from the last dimension on, those that are taken whole make one piece with the next.
    fn piece(&self, region: &[Range<u64>], strides: &[u64]) -> (usize, u64) {
        let mut piece = self.size;
        let mut outer = region.len();
        for (axis, range) in region.iter().enumerate().rev() {
            if strides.get(axis) != Some(&piece) {
                break;
            }
            outer = axis;
            piece = piece.saturating_mul(range.end - range.start);
            if range.end - range.start != self.shape.get(axis).copied().unwrap_or_default() {
                break;
            }
        }
        (outer, piece)
    }

    /// Returns the position of the first element of `region`, in bytes.
    fn begin_of(&self, region: &[Range<u64>], strides: &[u64]) -> u64 {
        let offsets = std::iter::zip(region, strides).map(|(range, stride)| range.start.saturating_mul(*stride));
        offsets.fold(self.begin, u64::saturating_add)
    }

    /// Returns the bytes from one element to the next along each dimension.
    fn strides(&self) -> Vec<u64> {
        let mut strides = vec![self.size; self.shape.len()];
        for axis in (1..self.shape.len()).rev() {
            let next = strides.get(axis).copied().unwrap_or(self.size);
            let length = self.shape.get(axis).copied().unwrap_or_default();
            if let Some(stride) = strides.get_mut(axis - 1) {
                *stride = next.saturating_mul(length);
            }
        }
        if let Some(first) = strides.first_mut() {
            *first = self.stride;
        }
        strides
    }
}

/// Appends `pieces` of the file to `out`. Near ones are read at once.
fn append(source: &dyn Source, mut pieces: Pieces, out: &mut Vec<u8>) -> Result<()> {
    if pieces.stride == pieces.length {
        let length = pieces.length.saturating_mul(pieces.count);
        pieces = Pieces { length, stride: length, count: 1, ..pieces };
    }
    while pieces.count > 0 {
        let together = read_together(&pieces);
        append_span(source, Pieces { count: together, ..pieces }, out)?;
        pieces.count -= together;
        pieces.begin = pieces.begin.saturating_add(together.saturating_mul(pieces.stride));
    }
    Ok(())
}

/// Returns how many of `pieces` are read at once, at least one.
fn read_together(pieces: &Pieces) -> u64 {
    let is_near = pieces.stride.saturating_sub(pieces.length) <= GAP;
    if is_near { (SPAN / pieces.stride.max(1)).clamp(1, pieces.count.max(1)) } else { 1 }
}

/// Appends `pieces`, read at once with what is between them.
fn append_span(source: &dyn Source, pieces: Pieces, out: &mut Vec<u8>) -> Result<()> {
    let span = pieces.stride.saturating_mul(pieces.count.saturating_sub(1)).saturating_add(pieces.length);
    if pieces.begin.checked_add(span).is_none_or(|end| end > source.length()) {
        return Err(Error::corrupt(format!("{span} bytes at {} are not in the file", pieces.begin)));
    }
    let length = size(span)?;
    if pieces.count == 1 {
        let start = out.len();
        out.resize(start.saturating_add(length), 0);
        return source.read(pieces.begin, out.get_mut(start..).unwrap_or_default());
    }
    let mut bytes = vec![0; length];
    source.read(pieces.begin, &mut bytes)?;
    let length = size(pieces.length)?;
    bytes.chunks(size(pieces.stride)?).for_each(|piece| out.extend_from_slice(piece.get(..length).unwrap_or_default()));
    Ok(())
}

/// Fails with [`icechunkfs_base::error::ErrorKind::InvalidInput`] if an array of `shape` has no
/// such region.
pub(crate) fn check_region(region: &[Range<u64>], shape: &[u64]) -> Result<()> {
    let is_within = |(range, length): (&Range<u64>, &u64)| range.start <= range.end && range.end <= *length;
    if region.len() == shape.len() && std::iter::zip(region, shape).all(is_within) {
        return Ok(());
    }
    Err(Error::invalid("a region that the array does not have"))
}

/// Returns a number of bytes as memory has it.
pub(crate) fn size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::invalid("more bytes than memory can have"))
}

fn too_long() -> Error {
    Error::corrupt("more bytes than a file can have")
}

/// Multiplies `lengths` and `first`; none if that overflows.
pub(crate) fn product(lengths: &[u64], first: u64) -> Option<u64> {
    lengths.iter().try_fold(first, |product, length| product.checked_mul(*length))
}

/// Moves `place` to the next one within `lengths`, the last dimension first. Returns false after
/// the last place, and is then at the first one.
pub(crate) fn advance(place: &mut [u64], lengths: &[u64]) -> bool {
    for (at, length) in std::iter::zip(place, lengths).rev() {
        *at += 1;
        if *at < *length {
            return true;
        }
        *at = 0;
    }
    false
}

/// Copies `block`, elements of `size` bytes in `lengths`, to position `at` of `into`, which has
/// `shape`, in the order of C.
pub(crate) fn place_block(block: &[u8], lengths: &[u64], into: &mut [u8], shape: &[u64], at: &[u64], size: usize) {
    let Some((row, outer)) = lengths.split_last() else {
        into.iter_mut().zip(block).for_each(|(to, from)| *to = *from);
        return;
    };
    let row = usize::try_from(*row).unwrap_or_default().saturating_mul(size);
    if row == 0 || outer.contains(&0) {
        return;
    }
    let mut place = vec![0_u64; outer.len()];
    for from in block.chunks_exact(row) {
        let starts = std::iter::zip(at, place.iter().chain([&0])).map(|(at, within)| at.saturating_add(*within));
        let element = std::iter::zip(starts, shape)
            .fold(0_u64, |element, (start, length)| element.saturating_mul(*length).saturating_add(start));
        let begin = usize::try_from(element).unwrap_or(usize::MAX).saturating_mul(size);
        if let Some(to) = into.get_mut(begin..begin.saturating_add(row)) {
            to.copy_from_slice(from);
        }
        advance(&mut place, outer);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::source::testing::Bytes;

    #[test]
    fn near_pieces_are_read_at_once_and_far_ones_alone() {
        let together = |length, stride, count| read_together(&Pieces { begin: 3, length, stride, count });
        assert_eq!([together(10, 10, 5), together(10, 20, 5), together(10, 11 + GAP, 5)], [5, 5, 1]);
        assert_eq!([together(8, 1024, 1000), together(SPAN, SPAN, 9), together(2 * SPAN, 2 * SPAN, 9)], [256, 1, 1]);
    }

    #[test]
    fn rows_in_each_other_and_numbers_of_no_file_are_refused() {
        assert!(Run::new(vec![3, 4], 2, 0, Some(7)).is_err());
        assert!(Run::new(vec![u64::MAX, 4], 2, 0, None).is_err());
        assert!(Run::new(vec![2], 8, u64::MAX - 8, None).is_err());
        let run = Run { shape: vec![3, 4], size: 2, begin: 0, stride: 8 };
        assert!(run.is_of(2) && !run.is_of(1) && !Run { stride: 7, ..run.clone() }.is_of(2));
        assert!(!Run { size: 0, stride: 0, ..run }.is_of(0));
        assert_eq!(Run::new(vec![0, 4], 2, 9, Some(8)).unwrap().end(), Some(0));
        assert_eq!(Run::new(vec![3, 4], 2, 9, Some(10)).unwrap().end(), Some(9 + 28));
        assert_eq!(Run::new(vec![], 8, 9, None).unwrap().end(), Some(17));
    }

    #[test]
    fn any_region_has_the_elements_that_are_there() {
        let file = Bytes((0..=255).collect());
        // Three rows of 2 x 5 elements of two bytes, with three bytes between rows.
        let run = Run::new(vec![3, 2, 5], 2, 7, Some(23)).unwrap();
        let element = |i: u64, j: u64, k: u64| {
            let at = usize::try_from(7 + i * 23 + (j * 5 + k) * 2).unwrap();
            file.0[at..at + 2].to_vec()
        };
        for (a, b) in [(0, 3), (1, 3), (2, 3), (0, 1), (1, 1)] {
            for (c, d) in [(0, 2), (1, 2), (0, 1)] {
                for (e, f) in [(0, 5), (1, 5), (2, 3)] {
                    let mut read = Vec::new();
                    run.read(&file, &[a..b, c..d, e..f], &mut read).unwrap();
                    let place = run.place_of(&[a..b, c..d, e..f]);
                    let is_one = b - a == 1 && ((c, d) != (0, 2) || (e, f) == (0, 5));
                    assert_eq!(place.is_some(), is_one, "{a}..{b}, {c}..{d}, {e}..{f}");
                    if let Some(place) = place {
                        assert_eq!(
                            read,
                            file.0[usize::try_from(place.start).unwrap()..usize::try_from(place.end).unwrap()]
                        );
                    }
                    let wanted: Vec<u8> = (a..b)
                        .flat_map(|i| (c..d).flat_map(move |j| (e..f).map(move |k| (i, j, k))))
                        .flat_map(|(i, j, k)| element(i, j, k))
                        .collect();
                    assert_eq!(read, wanted, "{a}..{b}, {c}..{d}, {e}..{f}");
                    let mut whole = vec![0; 60];
                    place_block(&read, &[b - a, d - c, f - e], &mut whole, &[3, 2, 5], &[a, c, e], 2);
                    for (i, j, k) in [(a, c, e), (b - 1, d - 1, f - 1)].into_iter().filter(|_| a < b) {
                        let at = usize::try_from(((i * 2 + j) * 5 + k) * 2).unwrap();
                        assert_eq!(whole[at..at + 2], element(i, j, k));
                    }
                }
            }
        }
        let outside = |region: &[Range<u64>]| run.read(&file, region, &mut Vec::new()).is_err();
        assert!(outside(&[0..4, 0..2, 0..5]) && outside(&[0..3, 0..2]));
        let beyond = Run::new(vec![300], 1, 0, None).unwrap();
        assert!(beyond.read(&file, std::slice::from_ref(&(0..300)), &mut Vec::new()).is_err());
        let scalar = Run::new(vec![], 4, 3, None).unwrap();
        let mut read = Vec::new();
        scalar.read(&file, &[], &mut read).unwrap();
        assert_eq!(read, [3, 4, 5, 6]);
    }
}
