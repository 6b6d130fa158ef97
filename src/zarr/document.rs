//! Parses a `zarr.json` within the memory bound, and the values that its members share.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::array::MAX_RANK;
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

/// Returns the name of an extension, which may be a plain string.
pub(super) fn extension_name(extension: &Value) -> Option<&str> {
    extension.as_str().or_else(|| extension.get("name")?.as_str())
}

pub(super) fn setting<'a>(extension: &'a Value, key: &str) -> Option<&'a Value> {
    extension.get("configuration")?.get(key)
}

pub(super) fn numbers(list: Option<&Value>) -> Option<Vec<u64>> {
    let list = list?.as_array().filter(|list| list.len() <= MAX_RANK)?;
    list.iter().map(Value::as_u64).collect()
}
