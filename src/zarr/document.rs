//! Parses a `zarr.json` within the memory bound.

use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::memory;

/// Maximum bytes of memory per byte of JSON: `[0,0,` has a value of 32 bytes for two, in a list that grows by doubling.
const EXPANSION: u64 = 32;

/// Parses `zarr_json` while it holds a reservation of the memory that the values may take. Fails with [`ErrorKind::Corrupt`] if it is
/// not JSON, or not of that shape.
pub(super) fn parse<T: DeserializeOwned>(zarr_json: &[u8]) -> Result<T> {
    let _held = memory::reserve_blocking(
        (zarr_json.len() as u64).saturating_mul(EXPANSION),
        "a zarr.json, to be looked into,",
    )?;
    serde_json::from_slice(zarr_json)
        .map_err(|e| Error::with_source(ErrorKind::Corrupt, "this zarr.json is not an array's", e))
}
