//! Chunks of a file: one or several units.
//!
//! HDF5 reads chunks without a filter in one of two ways. A chunk that fits into its cache is read
//! as a whole, copied to the cache, and from there to the program: a program that wants one time
//! step of a variable reads all time steps of a chunk. Of a larger chunk it reads what is wanted,
//! directly. The cache is 1 MiB in HDF5 (8 MiB from 2.0 on), 16 MiB in netCDF-C, which makes it
//! larger for larger chunks, up to 64 MiB. Measured with units of 4 MiB: a time slice reads 16
//! times the bytes in the first way.
//!
//! A unit is a chunk of the file, so that programs see the chunks of the array, and each begins on
//! a page of its own: one that cannot be read takes no other with it. Large units with several
//! indices along the first dimension are joined along it, as many as it takes to be larger than any
//! cache.

use super::variable::{Source, Variable};

/// Bytes of the largest chunk that netCDF-C keeps in its cache (`DEFAULT_MAX_CHUNK_CACHE`).
const CACHED: u64 = 64 << 20;
/// Shortest run of bytes of a row of a unit for which chunks are made larger: the library reads
/// each such run by itself, and shorter ones take longer than a copy through the cache.
const MIN_RUN: u64 = 512;
/// Bytes of the smallest unit that is joined with others: a copy of a smaller one takes less than a
/// millisecond.
const MIN_JOINED: u64 = 1 << 20;

/// Returns the number of units along the first dimension that a chunk of the file has.
pub(super) fn units_along(variable: &Variable) -> u64 {
    let (Some(&first), bytes) = (variable.grid.first(), variable.shown_bytes().max(1)) else { return 1 };
    let has_one_index = variable.kept.first().is_none_or(|length| *length == 1);
    if has_one_index || bytes < MIN_JOINED || is_made_of_parts(variable) || run_bytes(variable) < MIN_RUN {
        return 1;
    }
    // Chunks that together are not too large for the cache are better left small.
    let wanted = CACHED / bytes + 1;
    let chunks = first / wanted;
    if wanted == 1 || chunks == 0 {
        return 1;
    }
    first.div_ceil(chunks)
}

/// Returns the bytes of a unit that are one after another in the whole variable, too.
fn run_bytes(variable: &Variable) -> u64 {
    let mut bytes = variable.element.shown_size(variable.longest) as u64;
    for (kept, length) in variable.kept.iter().zip(&variable.shape).rev() {
        bytes = bytes.saturating_mul(*kept);
        if kept < length {
            break;
        }
    }
    bytes
}

/// Returns true if a variable is one unit.
pub(super) fn is_one_unit(variable: &Variable) -> bool {
    variable.grid.iter().all(|units| *units == 1)
}

fn is_made_of_parts(variable: &Variable) -> bool {
    matches!(variable.source, Source::Parts(_))
}

/// Place of bytes of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilePlace {
    /// Number of the unit in the order of the file. Units beyond the array have one, too.
    pub(super) position: u64,
    /// First byte in the unit.
    pub(super) from: u64,
}

impl FilePlace {
    /// Returns the place of byte `from` of chunk `chunk` of the file.
    pub(super) fn new(variable: &Variable, chunk: u64, from: u64) -> Self {
        let bytes = variable.shown_bytes().max(1);
        let first = chunk.saturating_mul(variable.along.max(1));
        FilePlace { position: first.saturating_add(from / bytes), from: from % bytes }
    }
}

/// Returns the number of the unit at `position` in the order of the file; none beyond the array.
pub(super) fn unit_at(variable: &Variable, position: u64) -> Option<u64> {
    let along = variable.along.max(1);
    let Some(&first) = variable.grid.first() else { return (position == 0).then_some(0) };
    let others = units_of_a_row(&variable.grid);
    let row = row_at(&variable.grid, along, position);
    (row < first).then(|| row.saturating_mul(others).saturating_add(position / along % others))
}

/// Returns the number along the first dimension of the unit at `position`, if the file has chunks
/// of `along` units of a `grid`.
pub(super) fn row_at(grid: &[u64], along: u64, position: u64) -> u64 {
    (position / along / units_of_a_row(grid)).saturating_mul(along).saturating_add(position % along)
}

/// Returns the number of units at one place along the first dimension of a `grid`.
fn units_of_a_row(grid: &[u64]) -> u64 {
    grid.iter().skip(1).product::<u64>().max(1)
}
