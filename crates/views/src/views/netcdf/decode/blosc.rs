//! Decompression of Blosc buffers by the C library, which bounds its output.

use std::ffi::c_void;
use std::ops::Range;

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::Meter;

/// Place of the size of a block in the header of a buffer.
const BLOCK: Range<usize> = 8..12;
/// Buffers of the size of a block that the library allocates, measured: two and a half with
/// `shuffle`, three and a half with `bitshuffle`.
const BUFFERS: u64 = 4;
/// Place of the length of all of a buffer in its header.
const LENGTH: Range<usize> = 12..16;

/// Decompresses a Blosc buffer to at most `limit` bytes. What follows the buffer is ignored, as
/// numcodecs does.
#[allow(unsafe_code, reason = "the C library has no safe interface")]
pub(super) fn decompress(stored: &[u8], limit: usize) -> Result<Vec<u8>> {
    let length = stored.get(LENGTH).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes));
    let stored = length.and_then(|length| stored.get(..length as usize)).unwrap_or(stored);
    let source = stored.as_ptr().cast::<c_void>();
    let mut length = 0_usize;
    // SAFETY: `source` and its length belong to one slice, and `length` is written only during the
    // call.
    let valid = unsafe { blosc_src::blosc_cbuffer_validate(source, stored.len(), &mut length) };
    if valid != 0 {
        return Err(Error::corrupt("the Blosc buffer is not valid"));
    }
    if length > limit {
        return Err(Error::corrupt(format!("a Blosc buffer of {length} bytes; at most {limit} are allowed")));
    }
    // The library's own buffers have the size of a block, which may be that of all.
    let block = stored.get(BLOCK).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let mut meter = Meter::brief("the buffers of a Blosc decoder");
    meter.count(u64::from(block).min(length as u64).saturating_mul(BUFFERS))?;
    let mut decoded = vec![0_u8; length];
    // SAFETY: the buffer was validated, which makes decompressing it safe; `decoded` has `length`
    // bytes, and the library writes no more than it is told.
    let written = unsafe { blosc_src::blosc_decompress_ctx(source, decoded.as_mut_ptr().cast(), length, 1) };
    if usize::try_from(written).ok() != Some(length) {
        return Err(Error::corrupt("a damaged Blosc buffer"));
    }
    Ok(decoded)
}
