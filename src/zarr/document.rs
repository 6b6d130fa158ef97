//! A `zarr.json` as JSON values.

use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::memory;

/// Bytes of memory for a byte of JSON, at most: `[0,0,` has a value of 32 bytes for two, in a list that grows by doubling.
const EXPANSION: u64 = 32;

/// Parses `zarr_json`. The memory that its values may take is reserved meanwhile.
///
/// An error of kind [`ErrorKind::Corrupt`] if it is not JSON, or not of that shape.
pub(super) fn parse<T: DeserializeOwned>(zarr_json: &[u8]) -> Result<T> {
    let _held = memory::reserve_blocking(
        (zarr_json.len() as u64).saturating_mul(EXPANSION),
        "a zarr.json, to be looked into,",
    )?;
    serde_json::from_slice(zarr_json)
        .map_err(|e| Error::with_source(ErrorKind::Corrupt, "this zarr.json is not an array's", e))
}
