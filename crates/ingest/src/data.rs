//! Place of the elements of an array in its file.

use std::ops::Range;

use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::zarr::Coords;
use serde::{Deserialize, Serialize};

use crate::codec::{self, Codec};
use crate::plan;
use crate::recode::Conversion;
use crate::run::{Run, advance, check_region, place_block, product, size};
use crate::source::{InMemory, Source};
use crate::texts::Texts;

/// Most bytes of a stored chunk, and of what becomes of it: it is read as a whole where it is
/// decoded or has a checksum.
pub(crate) const MAX_STORED: u64 = 256 << 20;
/// Bytes that filters may add to a chunk, besides a part of its length: heads and checksums.
const LONGER: u64 = 4 << 10;
/// Bytes of a checksum behind a chunk.
const CHECKSUM: u64 = 4;

/// Place of the elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ArrayData {
    /// Elements that lie in the file as they are.
    Plain(Run),
    /// Elements that have no place of their own in the file: `run` is within these bytes.
    Inline { run: Run, bytes: Vec<u8> },
    /// Chunks, each as filters have made it.
    Stored(Stored),
    /// Texts of any length.
    Texts(Texts),
    /// Elements that are converted. No reader of files makes them.
    #[serde(skip)]
    Recoded(Box<Recoded>),
}

/// Elements of a file that stand for those of an array.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recoded {
    pub(crate) data: ArrayData,
    pub(crate) conversion: Conversion,
}

/// Chunks of an array in a file, as filters have made them. One that is not there has only the fill
/// value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) shape: Vec<u64>,
    pub(crate) chunk_shape: Vec<u64>,
    /// Bytes of an element with the fill value.
    pub(crate) fill: Vec<u8>,
    /// Filters that chunks have passed, in their order.
    pub(crate) filters: Vec<Codec>,
    /// Codecs of the array, if chunks have to be made with them: without those, what is in front of
    /// a checksum at the end is a chunk of the array.
    pub(crate) converted: Option<Vec<Codec>>,
    /// In the order of their positions.
    #[serde(skip)]
    pub(crate) chunks: Vec<ChunkPlace>,
}

/// Place of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    /// Number of the chunk in the grid, in the order of C.
    pub(crate) position: u64,
    /// Position in the file, in bytes.
    pub(crate) offset: u64,
    /// Bytes in the file.
    pub(crate) length: u64,
    /// Bits of the filters, by their places, that it has not passed.
    pub(crate) mask: u64,
}

impl ArrayData {
    /// Returns the elements per dimension.
    pub(crate) fn shape(&self) -> &[u64] {
        match self {
            ArrayData::Plain(run) | ArrayData::Inline { run, .. } => run.shape(),
            ArrayData::Stored(stored) => &stored.shape,
            ArrayData::Texts(texts) => texts.shape(),
            ArrayData::Recoded(recoded) => recoded.data.shape(),
        }
    }

    /// Returns the texts that elements are numbers of, if they are any.
    pub(crate) fn texts(&self) -> Option<&Texts> {
        match self {
            ArrayData::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    /// Appends the elements in `region`, a range of each dimension, to `out`, in the order of C.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if a chunk is damaged,
    /// [`icechunkfs_base::error::ErrorKind::Unsupported`] if its filters cannot be undone; others
    /// as for [`Run::read`].
    pub(crate) fn read(&self, source: &dyn Source, region: &[Range<u64>], out: &mut Vec<u8>) -> Result<()> {
        match self {
            ArrayData::Plain(run) => run.read(source, region, out),
            ArrayData::Inline { run, bytes } => run.read(&InMemory(bytes), region, out),
            ArrayData::Stored(stored) => stored.read_elements(source, region, out),
            ArrayData::Texts(texts) => texts.read(region, out),
            ArrayData::Recoded(recoded) => {
                let mut block = Vec::new();
                recoded.data.read(source, region, &mut block)?;
                recoded.conversion.convert(block, out)
            }
        }
    }

    /// Returns the bytes that it takes in memory, besides itself and the shape.
    #[cfg(feature = "apart")]
    pub(crate) fn cost(&self) -> u64 {
        match self {
            ArrayData::Plain(_) => 0,
            ArrayData::Inline { bytes, .. } => bytes.len() as u64,
            ArrayData::Stored(stored) => stored.chunks.len() as u64 * size_of::<ChunkPlace>() as u64,
            ArrayData::Texts(texts) => texts.cost(),
            ArrayData::Recoded(recoded) => recoded.data.cost(),
        }
    }

    /// Returns the bytes of an element in the file, if it is converted.
    pub(crate) fn size_before(&self) -> Option<u64> {
        match self {
            ArrayData::Recoded(recoded) => Some(recoded.conversion.size_before()),
            _ => None,
        }
    }

    /// Returns what is wrong with the place, in a file of `length` bytes and a grid of `chunks`.
    pub(crate) fn fault(&self, length: u64, chunks: u64) -> Option<&'static str> {
        const OUTSIDE: &str = "data that are not in the file";
        match self {
            ArrayData::Plain(run) => run.end().is_none_or(|end| end > length).then_some(OUTSIDE),
            ArrayData::Inline { run, bytes } => run.end().is_none_or(|end| end > bytes.len() as u64).then_some(OUTSIDE),
            ArrayData::Stored(stored) => stored.fault(length, chunks),
            ArrayData::Texts(texts) => (!texts.is_whole()).then_some("another number of texts than of elements"),
            ArrayData::Recoded(recoded) => recoded.data.fault(length, chunks),
        }
    }
}

impl Stored {
    fn fault(&self, length: u64, chunks: u64) -> Option<&'static str> {
        let has_rank = self.shape.len() == self.chunk_shape.len();
        if !has_rank || self.chunk_shape.contains(&0) || self.fill.is_empty() || self.chunk_bytes() > MAX_STORED {
            return Some("chunks that are too long, or of another rank");
        }
        // Filters make what they cannot pack a little longer.
        let most = self.chunk_bytes().saturating_add(self.chunk_bytes() / 8).saturating_add(LONGER);
        // Of chunks that are made again, some may have passed no filter.
        let is_checked = self.has_checksum() && self.converted.is_none();
        let least = if is_checked { CHECKSUM + 1 } else { 1 };
        let is_inside = |place: &ChunkPlace| {
            (least..=most).contains(&place.length)
                && place.offset.checked_add(place.length).is_some_and(|end| end <= length)
        };
        if !self.chunks.iter().all(is_inside) {
            return Some("a chunk that is not in the file, or too long");
        }
        let is_ordered = self.chunks.is_sorted_by(|one, next| one.position < next.position);
        let is_in_grid = self.chunks.last().is_none_or(|last| last.position < chunks);
        (!is_ordered || !is_in_grid).then_some("a chunk that is there twice, or not in the array")
    }

    /// Returns the bytes of a chunk before all filters.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        product(&self.chunk_shape, self.fill.len() as u64).unwrap_or(u64::MAX)
    }

    /// Returns true if chunks are not just bytes of the file.
    pub(crate) fn is_made(&self) -> bool {
        self.converted.is_some() || self.has_checksum()
    }

    pub(crate) fn has_checksum(&self) -> bool {
        self.filters.last() == Some(&Codec::Checksum)
    }

    fn at(&self, position: u64) -> Option<&ChunkPlace> {
        let found = self.chunks.binary_search_by_key(&position, |place| place.position).ok()?;
        self.chunks.get(found)
    }

    /// Appends `range` of the chunk at `position`, as it is stored in Zarr, to `out`.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if it is damaged; others as for
    /// reading `source`.
    pub(crate) fn read(&self, source: &dyn Source, position: u64, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let place = self.at(position).ok_or_else(|| Error::invalid("a chunk that the file does not have"))?;
        if !self.is_made() {
            if range.start > range.end || range.end > place.length {
                return Err(Error::invalid("a range that the chunk does not have"));
            }
            let start = out.len();
            out.resize(start.saturating_add(size(range.end - range.start)?), 0);
            return source.read(place.offset.saturating_add(range.start), out.get_mut(start..).unwrap_or_default());
        }
        let chunk = self.made(source, place)?;
        let part = chunk.get(size(range.start)?..size(range.end)?);
        out.extend_from_slice(part.ok_or_else(|| Error::invalid("a range that the chunk does not have"))?);
        Ok(())
    }

    /// Returns the bytes of the file that are the chunk at `position` in Zarr; none if that is not
    /// there, or is made of others.
    pub(crate) fn place_of(&self, position: u64) -> Option<Range<u64>> {
        let place = self.at(position).filter(|_| self.converted.is_none())?;
        let checksum = if self.has_checksum() { CHECKSUM } else { 0 };
        Some(place.offset..place.offset.checked_add(place.length)?.checked_sub(checksum)?)
    }

    /// Returns the chunk at `place` as it is stored in Zarr.
    fn made(&self, source: &dyn Source, place: &ChunkPlace) -> Result<Vec<u8>> {
        let Some(codecs) = &self.converted else {
            let bytes = self.bytes_at(source, place)?;
            // The chunk in front of the checksum may have any length.
            let length = (bytes.len() as u64).saturating_sub(CHECKSUM);
            return codec::decode(self.filters.last().copied().into_iter(), bytes, length);
        };
        codec::encode(codecs, self.decoded(source, place)?)
    }

    fn bytes_at(&self, source: &dyn Source, place: &ChunkPlace) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size(place.length)?];
        source.read(place.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the elements of the chunk at `place`.
    fn decoded(&self, source: &dyn Source, place: &ChunkPlace) -> Result<Vec<u8>> {
        let has_passed = |(number, _): &(usize, &Codec)| *number >= 64 || place.mask & (1 << number) == 0;
        let passed: Vec<Codec> =
            self.filters.iter().enumerate().filter(has_passed).map(|(_, filter)| *filter).collect();
        codec::decode(passed.into_iter(), self.bytes_at(source, place)?, self.chunk_bytes())
    }

    /// Returns the chunks that there are, with their lengths in Zarr. Those that have to be made
    /// are, as nothing else tells their lengths.
    ///
    /// Errors: as for reading.
    pub(crate) fn listed(&self, source: &dyn Source, grid: &[u32]) -> Result<Vec<(Coords, u64)>> {
        self.chunks.iter().map(|place| Ok((coords_of(place.position, grid), self.length(source, place)?))).collect()
    }

    /// Returns the length in Zarr of the chunk at `position`, if there is one.
    ///
    /// Errors: as for reading.
    pub(crate) fn length_of(&self, source: &dyn Source, position: u64) -> Result<Option<u64>> {
        self.at(position).map(|place| self.length(source, place)).transpose()
    }

    fn length(&self, source: &dyn Source, place: &ChunkPlace) -> Result<u64> {
        match self.converted {
            Some(_) => self.made(source, place).map(|chunk| chunk.len() as u64),
            None if self.has_checksum() => Ok(place.length.saturating_sub(CHECKSUM)),
            None => Ok(place.length),
        }
    }

    /// Appends the elements in `region` to `out`.
    fn read_elements(&self, source: &dyn Source, region: &[Range<u64>], out: &mut Vec<u8>) -> Result<()> {
        check_region(region, &self.shape)?;
        let lengths: Vec<u64> = region.iter().map(|range| range.end - range.start).collect();
        let begin = out.len();
        let element = self.fill.len();
        let bytes =
            product(&lengths, element as u64).ok_or_else(|| Error::invalid("more bytes than memory can have"))?;
        plan::fill(out, bytes, &self.fill);
        if bytes == 0 {
            return Ok(());
        }
        let whole = Run::new(self.chunk_shape.clone(), element as u64, 0, None)?;
        let grid = plan::grid(&self.shape, &self.chunk_shape).ok_or_else(|| Error::corrupt("too many chunks"))?;
        let axes = || std::iter::zip(region, &self.chunk_shape);
        let firsts: Vec<u64> = axes().map(|(range, chunk)| range.start / chunk).collect();
        let counts: Vec<u64> =
            axes().zip(&firsts).map(|((range, chunk), first)| range.end.div_ceil(*chunk) - first).collect();
        let mut place = vec![0_u64; counts.len()];
        loop {
            let coords: Vec<u64> = std::iter::zip(&place, &firsts).map(|(at, first)| at + first).collect();
            let numbers: Vec<u32> = coords.iter().map(|coord| u32::try_from(*coord).unwrap_or(u32::MAX)).collect();
            let found = position_of(&numbers, &grid).and_then(|position| self.at(position));
            if let Some(found) = found {
                let chunk = self.decoded(source, found)?;
                let starts: Vec<u64> = std::iter::zip(&coords, &self.chunk_shape)
                    .map(|(coord, chunk)| coord.saturating_mul(*chunk))
                    .collect();
                let common: Vec<Range<u64>> = axes()
                    .zip(&starts)
                    .map(|((range, chunk), start)| range.start.max(*start)..range.end.min(start.saturating_add(*chunk)))
                    .collect();
                let inside: Vec<Range<u64>> = std::iter::zip(&common, &starts)
                    .map(|(range, start)| range.start - start..range.end - start)
                    .collect();
                let mut block = Vec::new();
                whole.read(&InMemory(&chunk), &inside, &mut block)?;
                let sizes: Vec<u64> = common.iter().map(|range| range.end - range.start).collect();
                let at: Vec<u64> =
                    std::iter::zip(&common, region).map(|(common, range)| common.start - range.start).collect();
                place_block(&block, &sizes, out.get_mut(begin..).unwrap_or_default(), &lengths, &at, element);
            }
            if !advance(&mut place, &counts) {
                return Ok(());
            }
        }
    }
}

/// Returns the coordinates of chunk number `position` of `grid`.
fn coords_of(position: u64, grid: &[u32]) -> Coords {
    let mut rest = position;
    let mut coords: Coords = grid.iter().map(|_| 0).collect();
    for (coord, count) in std::iter::zip(&mut coords, grid).rev() {
        let count = u64::from(*count).max(1);
        *coord = u32::try_from(rest % count).unwrap_or_default();
        rest /= count;
    }
    coords
}

/// Returns the number of the chunk at `coords` in `grid`; none if that is no number.
pub(crate) fn position_of(coords: &[u32], grid: &[u32]) -> Option<u64> {
    let mut position = 0_u64;
    for (coord, count) in std::iter::zip(coords, grid) {
        position = position.checked_mul(u64::from(*count))?.checked_add(u64::from(*coord))?;
    }
    Some(position)
}

/// Returns how many chunks are in `shape`; none if the format cannot number them.
pub(crate) fn chunk_count(shape: &[u64], chunk_shape: &[u64]) -> Option<u64> {
    plan::grid(shape, chunk_shape)?.iter().try_fold(1_u64, |count, length| count.checked_mul(u64::from(*length)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::source::testing::Bytes;

    fn stored(filters: &[Codec], chunks: Vec<ChunkPlace>) -> Stored {
        Stored {
            shape: vec![5, 3],
            chunk_shape: vec![2, 2],
            fill: vec![9],
            filters: filters.to_vec(),
            converted: None,
            chunks,
        }
    }

    #[test]
    fn positions_count_in_the_order_of_c() {
        let grid = [2, 3, 4];
        for position in 0..24 {
            assert_eq!(position_of(&coords_of(position, &grid), &grid), Some(position));
        }
        assert_eq!(coords_of(17, &grid).as_slice(), [1, 1, 1]);
        assert_eq!(position_of(&[], &[]), Some(0));
    }

    #[test]
    fn chunks_are_parts_of_the_file_or_made_of_them() {
        let zlib = Codec::Zlib(3);
        let elements = vec![1, 2, 3, 4];
        let packed = codec::encode(&[zlib], elements.clone()).unwrap();
        let mut file = vec![0; 7];
        file.extend(&packed);
        let place = ChunkPlace { position: 3, offset: 7, length: packed.len() as u64, mask: 0 };
        let as_it_is = stored(&[zlib], vec![place]);
        let read = |stored: &Stored, range: Range<u64>| {
            let mut out = Vec::new();
            stored.read(&Bytes(file.clone()), 3, range, &mut out).map(|()| out)
        };
        let length = packed.len() as u64;
        assert_eq!(read(&as_it_is, 0..length).unwrap(), packed);
        assert_eq!(read(&as_it_is, 1..3).unwrap(), packed[1..3]);
        assert!(read(&as_it_is, 0..length + 1).is_err());
        let made = Stored { converted: Some(vec![Codec::Shuffle(2)]), ..as_it_is.clone() };
        assert_eq!(read(&made, 0..4).unwrap(), [1, 3, 2, 4]);
        assert_eq!(made.listed(&Bytes(file.clone()), &[3, 2]).unwrap()[0].1, 4);
        // One that has passed no filter, though others have.
        let plain = Stored { chunks: vec![ChunkPlace { offset: 0, length: 4, mask: 1, ..place }], ..made };
        assert_eq!(read(&plain, 0..4).unwrap(), [0, 0, 0, 0]);
        assert!(as_it_is.read(&Bytes(file.clone()), 4, 0..1, &mut Vec::new()).is_err());
        // Only what is read as it is can be referred to, without the checksum at its end.
        assert_eq!(as_it_is.place_of(3), Some(7..7 + length));
        assert_eq!((plain.place_of(3), as_it_is.place_of(4)), (None, None));
        let checked = Stored { filters: vec![zlib, Codec::Checksum], ..as_it_is };
        assert_eq!(checked.place_of(3), Some(7..7 + length - CHECKSUM));
    }

    #[test]
    fn any_region_has_the_elements_of_its_chunks() {
        // Rows 2 and 3 of columns 0 and 1, and a chunk of which one element counts.
        let file = vec![1, 2, 3, 4, 5, 6, 7, 8];
        let place = |position, offset| ChunkPlace { position, offset, length: 4, mask: 0 };
        let stored = stored(&[], vec![place(2, 0), place(5, 4)]);
        let rows = [[9, 9, 9], [9, 9, 9], [1, 2, 9], [3, 4, 9], [9, 9, 5]];
        for (top, bottom) in [(0, 5), (1, 3), (3, 5), (2, 2)] {
            for (left, right) in [(0, 3), (1, 2), (2, 3)] {
                let mut out = Vec::new();
                stored.read_elements(&Bytes(file.clone()), &[top..bottom, left..right], &mut out).unwrap();
                let all = usize::try_from(top).unwrap()..usize::try_from(bottom).unwrap();
                let part = usize::try_from(left).unwrap()..usize::try_from(right).unwrap();
                let wanted: Vec<u8> = rows[all].iter().flat_map(|row| row[part.clone()].to_vec()).collect();
                assert_eq!(out, wanted, "{top}..{bottom}, {left}..{right}");
            }
        }
        assert!(stored.read_elements(&Bytes(file), &[0..6, 0..3], &mut Vec::new()).is_err());
    }

    #[test]
    fn places_outside_of_the_file_or_the_grid_are_faults() {
        let place = |position, offset, length| ChunkPlace { position, offset, length, mask: 0 };
        let fault = |chunks: &[ChunkPlace]| ArrayData::Stored(stored(&[], chunks.to_vec())).fault(100, 3);
        assert_eq!(fault(&[place(0, 0, 50), place(2, 50, 50)]), None);
        assert!(fault(&[place(0, 0, 0)]).is_some());
        let long = ArrayData::Stored(stored(&[], vec![place(0, 0, LONGER + 5)]));
        assert!(long.fault(1 << 20, 3).is_some());
        let checked = ArrayData::Stored(stored(&[Codec::Checksum], vec![place(0, 0, 4)]));
        assert!(checked.fault(100, 3).is_some());
        let short = Stored { converted: Some(vec![]), ..stored(&[Codec::Checksum], vec![place(0, 0, 4)]) };
        assert_eq!(ArrayData::Stored(short).fault(100, 3), None);
        assert!(fault(&[place(0, 51, 50)]).is_some());
        assert!(fault(&[place(0, u64::MAX, 50)]).is_some());
        assert!(fault(&[place(1, 0, 50), place(1, 0, 50)]).is_some());
        assert!(fault(&[place(3, 0, 50)]).is_some());
        let other = Stored { fill: vec![], ..stored(&[], vec![]) };
        assert!(ArrayData::Stored(other).fault(100, 3).is_some());
    }
}
