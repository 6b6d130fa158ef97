//! Parses a `zarr.json` within the memory bound, and the values that its members share.
//!
//! The memory is reserved by those who look into a document ([`reserve`], [`reserve_members`]) and not by the functions that parse it: a
//! refused reservation says nothing about the document, and must not be mistaken for a reason why it cannot be read.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::array::MAX_RANK;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{self, Reservation};

/// Maximum bytes of memory per byte of JSON: `[0,0,` has a value of 32 bytes for two, in a list that grows by doubling.
const EXPANSION: u64 = 32;

/// Most bytes of a `zarr.json`, apart from [`SKIPPED`], that need no reservation: 128 KiB of values for each thread that parses one.
const SMALL: u64 = 4 << 10;
/// Members that may be long and that nobody here looks into: they are skipped without being kept.
const SKIPPED: [&[u8]; 2] = [b"attributes", b"consolidated_metadata"];
const WHAT: &str = "a zarr.json, to be looked into,";

/// Reserves the memory that the values of the members of `zarr_json` may take, apart from [`SKIPPED`]. May block the thread.
///
/// Errors: [`ErrorKind::OutOfMemory`], which is no property of the document.
pub(crate) fn reserve(zarr_json: &[u8]) -> Result<Option<Reservation>> {
    reserve_largest(std::iter::once(zarr_json))
}

/// Reserves the memory of [`reserve`], and that of a copy of the text with other members.
///
/// Errors: as for [`reserve`].
pub(crate) fn reserve_members(zarr_json: &[u8]) -> Result<Option<Reservation>> {
    let (length, parsed) = (zarr_json.len() as u64, parsed_length(zarr_json));
    if length <= SMALL {
        return Ok(None);
    }
    // A string grows by doubling, and both live until it has grown.
    let bytes = parsed.saturating_mul(EXPANSION).saturating_add(length.saturating_mul(3));
    memory::reserve_blocking(bytes, WHAT).map(Some)
}

/// Reserves what [`reserve`] does for the one of `documents` that takes the most: they are looked into one after another.
///
/// Errors: as for [`reserve`].
pub(crate) fn reserve_largest<'a>(documents: impl Iterator<Item = &'a [u8]>) -> Result<Option<Reservation>> {
    match documents.map(parsed_length).max().unwrap_or_default() {
        0..=SMALL => Ok(None),
        length => memory::reserve_blocking(length.saturating_mul(EXPANSION), WHAT).map(Some),
    }
}

/// Returns the length of `zarr_json` without the values of [`SKIPPED`]. An escaped name is not recognized and counts; so does all of a
/// text before its first error, which is all that a parser keeps of one.
fn parsed_length(zarr_json: &[u8]) -> u64 {
    let (mut skipped, mut depth) = (0, 0_usize);
    // Ends of the last string, and start of the value that is being skipped.
    let (mut name, mut value) = (0..0, None);
    let mut bytes = zarr_json.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => {
                name = at + 1..at + 1;
                while let Some((end, byte)) = bytes.next() {
                    match byte {
                        b'"' => {
                            name.end = end;
                            break;
                        }
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            b'[' | b'{' => depth += 1,
            b':' if depth == 1 => {
                let is_skipped = zarr_json.get(name.clone()).is_some_and(|name| SKIPPED.contains(&name));
                value = is_skipped.then_some(at + 1);
            }
            b',' | b'}' | b']' => {
                if depth == 1 {
                    skipped += value.take().map_or(0, |start| at - start);
                }
                depth -= usize::from(*byte != b',' && depth > 0);
            }
            _ => {}
        }
    }
    (zarr_json.len() - skipped) as u64
}

/// Parses `zarr_json`, on memory that the caller has reserved ([`reserve`]). Fails with [`ErrorKind::Corrupt`] if it is not JSON, or not
/// of that shape.
pub(super) fn parse<T: DeserializeOwned>(zarr_json: &[u8]) -> Result<T> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::zarr::array::ArrayMetadata;

    #[test]
    fn attributes_take_no_memory() {
        let long = |name: &str| {
            format!(
                r#"{{"zarr_format":3,"node_type":"array","shape":[4,4],"data_type":"int32","{name}": {{"a,:]}}\"":["{}"]}} ,"codecs":[],
                "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[2,2]}}}},"chunk_key_encoding":{{"name":"v2"}}}}"#,
                "x".repeat(9 << 20)
            )
        };
        let document = long("attributes");
        assert!(parsed_length(document.as_bytes()) < 300, "{}", parsed_length(document.as_bytes()));
        assert!(reserve(document.as_bytes()).unwrap().is_none());
        assert!(!ArrayMetadata::parse(document.as_bytes()).unwrap().key_encoding.prefixed);
        // Whatever else is long may be kept.
        for other in ["fill_value", "attribut\\u0065s", "configuration"] {
            assert!(parsed_length(long(other).as_bytes()) > 9 << 20, "{other}");
        }
        let nested = format!(r#"{{"a":{{"attributes":"{}"}},"attributes":1}}"#, "x".repeat(100));
        assert_eq!(parsed_length(nested.as_bytes()), nested.len() as u64 - 1);
        for broken in
            ["", "]", "}}", r#"{"attributes""#, r#"{"attributes":"#, r#"{"attributes":"\"#, r#"["attributes":[]]"#]
        {
            assert!(parsed_length(broken.as_bytes()) <= broken.len() as u64, "{broken}");
        }
    }
}
