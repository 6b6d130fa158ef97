//! Positions of the data: those of fixed variables, and of records.

use icechunkfs_base::error::{Error, Result};

use super::header::{Header, Records, Variable};
use crate::chunking::{self, Sizes};
use crate::run::{Run, product};

/// Records of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Number of records.
    pub(super) records: u64,
    /// Bytes behind the last whole record of a file that does not say how many it has.
    pub(super) rest: u64,
    /// Bytes from one record to the next.
    stride: u64,
    /// Length of the file in bytes.
    length: u64,
}

/// Range of the file, for the check that no two are the same bytes.
type Extent = (u64, u64);

impl Layout {
    /// Finds the records of a file of `length` bytes.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if sizes overflow, or if variables
    /// share bytes, which the library refuses, too.
    pub(super) fn of(header: &Header, length: u64) -> Result<Self> {
        let mut stride = 0_u64;
        let mut fixed: Vec<Extent> = Vec::new();
        let mut slabs: Vec<Extent> = Vec::new();
        for variable in &header.variables {
            let slab = header.slab(variable)?;
            let extent = (variable.begin, variable.begin.checked_add(slab).ok_or_else(too_long)?);
            if header.is_record(variable) {
                let padded = slab.checked_next_multiple_of(4).ok_or_else(too_long)?;
                stride = stride.checked_add(padded).ok_or_else(too_long)?;
                slabs.push(extent);
            } else {
                fixed.push(extent);
            }
        }
        // Records of one variable follow each other without padding.
        if let [(begin, end)] = slabs.as_slice() {
            stride = end - begin;
        }
        let first = slabs.iter().map(|(begin, _)| *begin).min();
        let last = slabs.iter().map(|(_, end)| *end).max();
        check_apart(header.length, &mut fixed)?;
        check_apart(fixed.last().map_or(header.length, |(_, end)| *end), &mut slabs)?;
        if let (Some(first), Some(last)) = (first, last)
            && last - first > stride
        {
            return Err(Error::corrupt("variables in the records of others"));
        }
        let (records, rest) = match (header.records, last) {
            (Records::Known(records), _) => (records, 0),
            // Of the last one, the padding may be missing.
            (Records::Streamed, Some(last)) if stride > 0 => match length.checked_sub(last) {
                Some(more) => (more / stride + 1, more % stride),
                None => (0, length.saturating_sub(first.unwrap_or_default())),
            },
            (Records::Streamed, _) => (0, 0),
        };
        Ok(Layout { records, rest, stride, length })
    }
}

/// Sorts `extents`. Fails if one begins before `from`, or before the end of another.
fn check_apart(from: u64, extents: &mut [Extent]) -> Result<()> {
    extents.sort_unstable();
    let mut end = from;
    for (begin, own_end) in extents {
        if *begin < end {
            return Err(Error::corrupt(format!("two variables, or one and the header, have the bytes at {begin}")));
        }
        end = *own_end;
    }
    Ok(())
}

fn too_long() -> Error {
    Error::corrupt("more bytes than a file can have")
}

impl Header {
    /// Returns true if the variable has a slab in each record.
    fn is_record(&self, variable: &Variable) -> bool {
        let first = variable.dimensions.first().and_then(|position| self.dimensions.get(*position));
        first.is_some_and(|dimension| dimension.length.is_none())
    }

    /// Returns the lengths of the dimensions of a variable, without that of records.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if that one is not the first.
    fn lengths(&self, variable: &Variable) -> Result<Vec<u64>> {
        let skipped = usize::from(self.is_record(variable));
        let dimensions = variable.dimensions.iter().skip(skipped);
        let lengths = dimensions.map(|position| self.dimensions.get(*position).and_then(|dimension| dimension.length));
        let lengths: Option<Vec<u64>> = lengths.collect();
        lengths
            .ok_or_else(|| Error::corrupt(format!("variable {}: records are not its first dimension", variable.name)))
    }

    /// Returns the bytes of a variable, of one of its records if it has those.
    fn slab(&self, variable: &Variable) -> Result<u64> {
        let lengths = self.lengths(variable)?;
        let bytes = lengths.iter().try_fold(variable.element.size(), |bytes, length| bytes.checked_mul(*length));
        bytes.ok_or_else(too_long)
    }
}

/// Finds the data of `variable`.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if the file is too short for it.
pub(super) fn run_of(header: &Header, layout: &Layout, variable: &Variable) -> Result<Run> {
    let mut shape = header.lengths(variable)?;
    let stride = header.is_record(variable).then_some(layout.stride);
    if stride.is_some() {
        shape.insert(0, layout.records);
    }
    let run = Run::new(shape, variable.element.size(), variable.begin, stride)?;
    // Before anything is made by these counts.
    match run.end() {
        Some(end) if end <= layout.length => Ok(run),
        Some(end) => Err(Error::corrupt(format!("the file ends at byte {}, and its data at {end}", layout.length))),
        None => Err(too_long()),
    }
}

/// Returns the length of a chunk of `variable`, whose data are `run`, in each dimension.
pub(super) fn chunk_shape(header: &Header, variable: &Variable, run: &Run, sizes: Sizes) -> Vec<u64> {
    let size = variable.element.size();
    if !header.is_record(variable) {
        return chunking::chunk_shape(run.shape(), size, sizes);
    }
    let inner = run.shape().get(1..).unwrap_or_default();
    let slab = product(inner, size).unwrap_or(u64::MAX);
    let count = run.shape().first().copied().unwrap_or_default();
    let mut chunk = chunking::chunk_shape(inner, size, sizes);
    chunk.insert(0, chunking::records_together(slab, count, sizes));
    chunk
}
