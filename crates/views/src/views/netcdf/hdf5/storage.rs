//! Lengths and chunk grids of datasets.

use super::model::{Dataset, Layout};
use super::{align, datatype, unsupported};
use icechunkfs_base::error::Result;

/// Maximum rank that the format allows.
const MAX_RANK: usize = 32;
/// Unit of slots and of the positions of data: a page of the kernel then has data of one chunk
/// only, and a chunk that cannot be read takes no other with it.
pub(super) const PAGE: u64 = 4096;

/// Lengths of the data of a dataset. All have been checked: no offset in the data and no position
/// of an element overflows.
#[derive(Debug)]
pub(super) struct Storage {
    /// Length of all elements in bytes; with chunks the length of all slots.
    pub(super) bytes: u64,
    /// Length of a chunk in bytes; of contiguous data all of them.
    pub(super) chunk_bytes: u64,
    /// Distance of two chunks in bytes.
    pub(super) slot: u64,
    /// Number of chunks.
    pub(super) chunks: u64,
    /// Number of chunks in each dimension; empty without chunks.
    pub(super) grid: Vec<u64>,
}

impl Storage {
    /// Computes the storage of `dataset`; an error if the format cannot represent it.
    pub(super) fn new(dataset: &Dataset) -> Result<Self> {
        check_name(&dataset.name)?;
        let size = u64::from(datatype::plain_size(dataset.data_type)?);
        let rank = dataset.shape.len();
        if rank > MAX_RANK {
            return Err(unsupported(format!("{rank} dimensions; at most {MAX_RANK}")));
        }
        if dataset.unlimited && (rank == 0 || dataset.layout == Layout::Contiguous) {
            return Err(unsupported("an unlimited dimension without chunks"));
        }
        match &dataset.layout {
            Layout::Absent | Layout::Contiguous => {
                let bytes = product(dataset.shape.iter().copied())
                    .and_then(|elements| elements.checked_mul(size))
                    .filter(|&bytes| i64::try_from(bytes).is_ok())
                    .ok_or_else(|| unsupported("more than 2^63 bytes"))?;
                let stored = matches!(dataset.layout, Layout::Contiguous) && bytes > 0;
                Ok(Storage { bytes, chunk_bytes: bytes, slot: bytes, chunks: stored.into(), grid: Vec::new() })
            }
            Layout::Chunked(chunk) => Storage::chunked(dataset, chunk, size),
        }
    }

    fn chunked(dataset: &Dataset, chunk: &[u32], size: u64) -> Result<Self> {
        if chunk.len() != dataset.shape.len() || chunk.is_empty() || chunk.contains(&0) {
            return Err(unsupported(format!("chunks of shape {chunk:?} in an array of shape {:?}", dataset.shape)));
        }
        let chunk_bytes = product(chunk.iter().copied().map(u64::from))
            .and_then(|elements| elements.checked_mul(size))
            .filter(|&bytes| u32::try_from(bytes).is_ok())
            .ok_or_else(|| unsupported("chunks of 4 GiB or more"))?;
        let too_big = || unsupported("more than 2^63 bytes or elements");
        let slot = align(chunk_bytes, PAGE).ok_or_else(too_big)?;
        let sizes = || dataset.shape.iter().zip(chunk.iter().copied().map(u64::from));
        let grid: Vec<u64> = sizes().map(|(size, chunk)| size.div_ceil(chunk)).collect();
        let chunks = product(grid.iter().copied()).ok_or_else(too_big)?;
        let bytes = chunks.checked_mul(slot).filter(|&bytes| i64::try_from(bytes).is_ok()).ok_or_else(too_big)?;
        // The last key of a B-tree names the end of the grid, which may be beyond the array.
        if sizes().any(|(size, chunk)| align(*size, chunk).is_none_or(|end| i64::try_from(end).is_err())) {
            return Err(too_big());
        }
        Ok(Storage { bytes, chunk_bytes, slot, chunks, grid })
    }
}

/// Checks the name of a link.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name.contains(['/', '\0']) {
        Err(unsupported("the name is empty or `.`, or has a `/` or NUL"))
    } else {
        Ok(())
    }
}

/// Multiplies all sizes; none if that overflows, 0 if one of them is 0.
fn product(sizes: impl Iterator<Item = u64> + Clone) -> Option<u64> {
    if sizes.clone().any(|size| size == 0) {
        return Some(0);
    }
    sizes.into_iter().try_fold(1, u64::checked_mul)
}
