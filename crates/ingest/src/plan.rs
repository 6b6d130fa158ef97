//! Plan of what a file becomes.

use std::ops::Range;

use icechunkfs_base::error::{Error, Result};
use serde_json::{Map, Value};

use crate::document;
use crate::element::Element;
use crate::run::{Run, advance, place_block};
use crate::series;
use crate::source::{InMemory, Source};

/// Most chunks of a file: their references take gigabytes.
pub const MAX_CHUNKS: u64 = 10_000_000;
/// Most groups and arrays of a file.
pub const MAX_NODES: usize = 100_000;
/// Omissions that a plan lists; the rest is counted.
pub const MAX_LISTED: usize = 1000;

/// Groups and arrays that a file becomes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Attributes of the file.
    pub attributes: Map<String, Value>,
    /// Arrays, each with a name of its own.
    pub arrays: Vec<Array>,
    /// Parts of the file that the arrays lack, and differences that a reader may notice.
    pub omissions: Omissions,
}

/// List of what is left out, or is not as in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Omissions {
    /// The first ones.
    pub list: Vec<Omission>,
    /// Number of all.
    pub count: u64,
}

/// One thing that is left out, or is not as in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Omission {
    /// Name of the variable, with `@` and the name of an attribute; `/` for the file.
    pub path: String,
    /// Deed and reason, for display.
    pub why: String,
}

impl Omissions {
    /// Adds what happened to `path`, and why. A file may have millions of them, with long names:
    /// only so many are kept.
    pub fn add(&mut self, path: impl FnOnce() -> String, why: impl Into<String>) {
        self.count += 1;
        if self.list.len() < MAX_LISTED {
            self.list.push(Omission { path: path(), why: why.into() });
        }
    }
}

/// Array of a [`Plan`].
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Name of the array.
    pub name: String,
    /// Length of a chunk in each dimension, in elements.
    pub chunk_shape: Vec<u64>,
    /// Name of each dimension.
    pub dimension_names: Vec<String>,
    /// Attributes, as xarray writes them into Zarr.
    pub attributes: Map<String, Value>,
    pub(crate) element: Element,
    /// Place of the elements in the file.
    pub(crate) run: Run,
    /// Fill value, as `zarr.json` has it, and as big-endian bytes.
    pub(crate) fill_value: (Value, Vec<u8>),
}

impl Array {
    /// Returns the length of each dimension, in elements.
    pub fn shape(&self) -> &[u64] {
        self.run.shape()
    }

    /// Returns the length of each chunk in bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_shape.iter().fold(self.element.size(), |bytes, length| bytes.saturating_mul(*length))
    }

    /// Returns the bytes of an element with the fill value.
    pub fn fill(&self) -> &[u8] {
        &self.fill_value.1
    }

    /// Returns the `zarr.json`.
    ///
    /// Errors: if it cannot be written.
    pub fn document(&self) -> Result<Vec<u8>> {
        document::of_array(self)
    }

    /// Appends the chunk at `coords`, as it is stored, to `out`: elements beyond the end of the
    /// array have the fill value.
    ///
    /// Errors: as for reading `source`.
    pub fn read_chunk(&self, source: &dyn Source, coords: &[u32], out: &mut Vec<u8>) -> Result<()> {
        let region = region(coords, &self.chunk_shape, self.shape());
        let lengths: Vec<u64> = region.iter().map(|range| range.end - range.start).collect();
        if lengths == self.chunk_shape {
            return self.run.read(source, &region, out);
        }
        let mut block = Vec::new();
        self.run.read(source, &region, &mut block)?;
        let start = out.len();
        fill(out, self.chunk_bytes(), self.fill());
        let at = vec![0; lengths.len()];
        place_block(
            &block,
            &lengths,
            out.get_mut(start..).unwrap_or_default(),
            &self.chunk_shape,
            &at,
            self.fill().len(),
        );
        Ok(())
    }

    /// Returns the array in the chunks of one with the `zarr.json` `document`.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if that has others than regular
    /// ones of its rank.
    pub fn in_chunks_of(&self, document: &Map<String, Value>) -> Result<Self> {
        let chunk_shape = series::chunk_shape(document).filter(|chunk| chunk.len() == self.shape().len());
        let chunk_shape = chunk_shape.filter(|chunk| !chunk.contains(&0));
        let chunk_shape =
            chunk_shape.ok_or_else(|| Error::invalid(format!("{}: chunks of several shapes", self.name)))?;
        Ok(Array { chunk_shape, ..self.clone() })
    }

    /// Returns true if the elements of the array that `own` has, the chunk at `coords`, are those
    /// of `stored`, another such chunk; none for one of which nothing is stored. Elements beyond
    /// the end of the array count for nothing.
    pub fn has_same_elements(&self, coords: &[u32], own: &[u8], stored: Option<&[u8]>) -> bool {
        let region = region(coords, &self.chunk_shape, self.shape());
        let lengths: Vec<u64> = region.iter().map(|range| range.end - range.start).collect();
        let whole: Vec<Range<u64>> = lengths.iter().map(|length| 0..*length).collect();
        let size = self.element.size();
        let Ok(run) = Run::new(self.chunk_shape.clone(), size, 0, None) else { return false };
        let elements = |chunk: &[u8]| {
            let mut out = Vec::new();
            run.read(&InMemory(chunk), &whole, &mut out).map(|()| out)
        };
        let mut missing = Vec::new();
        let stored = stored.unwrap_or_else(|| {
            fill(&mut missing, self.chunk_bytes(), self.fill());
            &missing
        });
        matches!((elements(own), elements(stored)), (Ok(own), Ok(stored)) if own == stored)
    }

    /// Returns true if the array has the values of `other`, bit by bit; each in its file.
    ///
    /// Errors: as for reading.
    pub fn has_values_of(&self, source: &dyn Source, other: &Array, other_source: &dyn Source) -> Result<bool> {
        if self.shape() != other.shape() || self.element != other.element {
            return Ok(false);
        }
        let mut coords = vec![0_u64; self.shape().len()];
        let grid: Vec<u64> = self.grid()?.into_iter().map(u64::from).collect();
        if grid.contains(&0) {
            return Ok(true);
        }
        loop {
            let place: Vec<u32> = coords.iter().map(|coord| u32::try_from(*coord).unwrap_or(u32::MAX)).collect();
            let region = region(&place, &self.chunk_shape, self.shape());
            let [mut own, mut others] = [Vec::new(), Vec::new()];
            self.run.read(source, &region, &mut own)?;
            other.run.read(other_source, &region, &mut others)?;
            if own != others {
                return Ok(false);
            }
            if !advance(&mut coords, &grid) {
                return Ok(true);
            }
        }
    }

    /// Returns the chunks per dimension.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if they are more than the format can
    /// number.
    pub fn grid(&self) -> Result<Vec<u32>> {
        grid(self.shape(), &self.chunk_shape)
            .ok_or_else(|| Error::corrupt(format!("variable {}: more than 2^32 chunks along a dimension", self.name)))
    }
}

/// Appends elements with the value `fill` to `out`, `bytes` in all.
pub(crate) fn fill(out: &mut Vec<u8>, bytes: u64, fill: &[u8]) {
    out.extend(fill.iter().copied().cycle().take(usize::try_from(bytes).unwrap_or_default()));
}

/// Returns what the chunk at `coords` has of an array of `shape`: a range of each dimension.
pub(crate) fn region(coords: &[u32], chunk_shape: &[u64], shape: &[u64]) -> Vec<Range<u64>> {
    let of_axis = |(coord, (chunk, length)): (&u32, (&u64, &u64))| {
        let start = u64::from(*coord).saturating_mul(*chunk).min(*length);
        start..start.saturating_add(*chunk).min(*length)
    };
    std::iter::zip(coords, std::iter::zip(chunk_shape, shape)).map(of_axis).collect()
}

/// Returns the chunks per dimension; none if the format cannot number them.
pub(crate) fn grid(shape: &[u64], chunk_shape: &[u64]) -> Option<Vec<u32>> {
    let lengths = std::iter::zip(shape, chunk_shape);
    lengths.map(|(length, chunk)| u32::try_from(length.div_ceil((*chunk).max(1))).ok()).collect()
}

impl Plan {
    /// Returns the `zarr.json` of the group.
    ///
    /// Errors: if it cannot be written.
    pub fn document(&self) -> Result<Vec<u8>> {
        document::of_group(&self.attributes)
    }

    /// Checks the plan for a file of `length` bytes, without trust in its maker.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if data are not in the file, or if
    /// there is too much of anything.
    pub fn check(&self, length: u64) -> Result<()> {
        if self.arrays.len() > MAX_NODES {
            return Err(Error::corrupt(format!("more than {MAX_NODES} variables")));
        }
        let mut count = 0_u64;
        for array in &self.arrays {
            array.check(length)?;
            let chunks = array.grid()?.iter().try_fold(1_u64, |count, length| count.checked_mul(u64::from(*length)));
            count = chunks.and_then(|chunks| count.checked_add(chunks)).unwrap_or(u64::MAX);
            if count > MAX_CHUNKS {
                return Err(Error::corrupt(format!("more than {MAX_CHUNKS} chunks")));
            }
        }
        Ok(())
    }
}

impl Array {
    fn check(&self, length: u64) -> Result<()> {
        let wrong = |what: &str| Err(Error::corrupt(format!("variable {}: {what}", self.name)));
        let rank = self.shape().len();
        if self.chunk_shape.len() != rank || self.dimension_names.len() != rank || self.chunk_shape.contains(&0) {
            return wrong("its ranks differ");
        }
        match self.run.end() {
            Some(end) if end <= length => Ok(()),
            _ => wrong("data that are not in the file"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted_beyond_what_is_listed() {
        let mut omissions = Omissions::default();
        (0..2000).for_each(|number| omissions.add(|| number.to_string(), "left out"));
        assert_eq!((omissions.list.len(), omissions.count), (MAX_LISTED, 2000));
    }
}
