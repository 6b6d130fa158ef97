//! Parses a `zarr.json` within the memory bound, and the values that its members share.
//!
//! The memory is reserved by those who look into a document ([`reserve`], [`reserve_members`]),
//! before it is parsed: a refused reservation says nothing about the document, and must not be
//! mistaken for a reason why it cannot be read. What is parsed is counted on that reservation.

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::array::MAX_RANK;
use super::members::{Members, string};
use crate::format::json::{self, Unmade};
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::printable;

/// Most bytes of a `zarr.json` whose values need no reservation ([`Meter::brief`]), whatever they
/// are.
const SMALL: usize = 1 << 10;
/// Members that may be long and that nobody here looks into: they are skipped without being kept.
const SKIPPED: [&str; 2] = ["attributes", "consolidated_metadata"];
const WHAT: &str = "a zarr.json, to be looked into,";

/// Reserves the memory that the values of the members of `zarr_json` may take, apart from
/// [`SKIPPED`], and what is made of them. May block the thread.
///
/// Errors: [`ErrorKind::OutOfMemory`](icechunkfs_base::error::ErrorKind::OutOfMemory), which is no
/// property of the document.
pub fn reserve(zarr_json: &[u8]) -> Result<Meter> {
    reserve_largest(std::iter::once(zarr_json))
}

/// Reserves the memory of [`reserve`], and that of a copy of the text with other members.
///
/// Errors: as for [`reserve`].
pub fn reserve_members(zarr_json: &[u8]) -> Result<Meter> {
    if zarr_json.len() <= SMALL {
        return Ok(Meter::brief(WHAT));
    }
    // A string grows by doubling, and both live until it has grown.
    Meter::prepaid(WHAT, memory_of(zarr_json).saturating_add(3 * zarr_json.len() as u64))
}

/// Reserves the memory that [`super::three_way::merge`] of three documents takes.
///
/// Errors: as for [`reserve`].
pub fn reserve_merge(documents: [&[u8]; 3]) -> Result<Meter> {
    /// Bytes of a member: its name and value in a list and in a map, which grow by doubling.
    const MEMBER: u64 = 256;
    /// Copies of the text that exist at a time: values, and the objects that are made of them.
    const COPIES: u64 = 4;
    if documents.iter().all(|document| document.len() <= SMALL) {
        return Ok(Meter::brief(WHAT));
    }
    // Members of all levels, whatever else the text is.
    let members = |document: &[u8]| document.iter().filter(|byte| **byte == b':').count() as u64;
    let bytes = documents.iter().map(|document| MEMBER * members(document) + COPIES * document.len() as u64);
    Meter::prepaid(WHAT, bytes.sum())
}

/// Reserves what [`reserve`] does for the one of `documents` that takes the most: they are looked
/// into one after another.
///
/// Errors: as for [`reserve`].
pub fn reserve_largest<'a>(documents: impl Iterator<Item = &'a [u8]>) -> Result<Meter> {
    match documents.filter(|document| document.len() > SMALL).map(memory_of).max() {
        Some(bytes) => Meter::prepaid(WHAT, bytes),
        None => Ok(Meter::brief(WHAT)),
    }
}

/// Returns the most bytes that the values of `zarr_json` take, and lists of numbers that are made
/// of them.
fn memory_of(zarr_json: &[u8]) -> u64 {
    let values = json::measure(zarr_json, Unmade { skipped: &SKIPPED, ..Unmade::default() });
    values.saturating_add(values / 2)
}

/// Parses `zarr_json` on the reservation `room`. Values that were parsed on it before must have
/// been dropped. Fails with [`ErrorKind::Corrupt`](icechunkfs_base::error::ErrorKind::Corrupt) if
/// it is not JSON, or not of that shape.
pub(super) fn parse<T: DeserializeOwned>(zarr_json: &[u8], room: &mut Meter) -> Result<T> {
    room.restart();
    json::parse(zarr_json, room).context(|| "this zarr.json is not an array's")
}

/// Parses the member `shape`.
pub(super) fn lengths<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let shape = Value::deserialize(deserializer)?;
    let lengths = shape.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
    lengths.ok_or_else(|| {
        serde::de::Error::custom(format!("shape {} is not a list of whole numbers from 0 on", shown(&shape)))
    })
}

/// Returns the member `node_type` of `zarr_json`, if it is text, without memory for the other
/// members.
///
/// Errors: [`ErrorKind::Corrupt`](icechunkfs_base::error::ErrorKind::Corrupt) if `zarr_json` is not
/// JSON.
pub fn node_type(zarr_json: &[u8]) -> Result<Option<String>> {
    /// Longest text that is returned, in characters.
    const LONGEST: usize = 100;
    json::check(zarr_json)?;
    let members = members(zarr_json);
    let node_type = members.as_ref().and_then(|members| string(members.get("node_type")?));
    Ok(node_type.map(|text| printable::shorten(&text, LONGEST).into_owned()))
}

/// Returns the members of `zarr_json` with their texts; none if it is not a JSON object. Few
/// members take little memory.
pub fn members(zarr_json: &[u8]) -> Option<Members<'_>> {
    Members::parse(std::str::from_utf8(zarr_json).ok()?).ok()
}

/// Returns the first of the members `names` that has another value in one of two documents than in
/// the other.
///
/// Errors: [`ErrorKind::OutOfMemory`](icechunkfs_base::error::ErrorKind::OutOfMemory).
pub fn first_difference<'n>(one: &[u8], other: &[u8], names: &[&'n str]) -> Result<Option<&'n str>> {
    let [one, other] = [one, other].map(members);
    for name in names {
        let [one, other] = [&one, &other].map(|members| members.as_ref().and_then(|members| members.get(name)));
        if one == other {
            continue;
        }
        let mut room = Meter::brief(WHAT);
        let [one, other] = [one, other].map(|text| text.map(|text| json::parse::<Value>(text.as_bytes(), &mut room)));
        if one.transpose()? != other.transpose()? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Parses a part of a document like [`parse`]; null if it is not JSON.
pub(super) fn value(text: Option<&str>, room: &mut Meter) -> Value {
    room.restart();
    text.and_then(|text| json::parse(text.as_bytes(), room).ok()).unwrap_or_default()
}

/// Returns the text of `value`, which a repository may have made long, for a message.
pub fn shown(value: &Value) -> String {
    /// Longest text, in bytes.
    const LONGEST: usize = 80;
    struct Beginning(String);
    impl fmt::Write for Beginning {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            let left = LONGEST.saturating_sub(self.0.len());
            self.0 += part.get(..part.floor_char_boundary(left)).unwrap_or_default();
            // The rest is not made.
            if part.len() > left { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut text = Beginning(String::new());
    let is_whole = fmt::write(&mut text, format_args!("{value}")).is_ok();
    text.0 + if is_whole { "" } else { "..." }
}

/// Returns the name of an extension, which may be a plain string.
pub fn extension_name(extension: &Value) -> Option<&str> {
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
        for name in ["attributes", "attribut\\u0065s"] {
            let document = long(name);
            assert!(memory_of(document.as_bytes()) < 20_000, "{}", memory_of(document.as_bytes()));
            assert!(!ArrayMetadata::parse(document.as_bytes()).unwrap().key_encoding.prefixed);
        }
        // Whatever else is long may be kept.
        for other in ["fill_value", "configuration"] {
            assert!(memory_of(long(other).as_bytes()) > 9 << 20, "{other}");
        }
        for broken in
            ["", "]", "}}", r#"{"attributes""#, r#"{"attributes":"#, r#"{"attributes":"\"#, r#"["attributes":[]]"#]
        {
            assert!(memory_of(broken.as_bytes()) <= 2000, "{broken}: {}", memory_of(broken.as_bytes()));
        }
    }

    #[test]
    fn what_is_reserved_is_enough_for_what_is_parsed() {
        let grid = |shapes: &str| {
            format!(
                r#"{{"shape":[100000],"attributes":{{}},"chunk_grid":{{"name":"rectilinear","configuration":{{"chunk_shapes":[[{shapes}]]}}}}}}"#
            )
        };
        for list in ["1,".repeat(99_999) + "1", "[1,2],".repeat(20_000) + "[1,1]", "[[]],".repeat(9999) + "1"] {
            let document = grid(&list);
            let mut room = reserve(document.as_bytes()).unwrap();
            let reserved = memory_of(document.as_bytes());
            let parsed: Value = parse(document.as_bytes(), &mut room).unwrap();
            assert!(room.counted() <= reserved, "{} of {reserved}", room.counted());
            assert!(parsed.is_object());
        }
    }

    #[test]
    fn a_small_document_needs_no_reservation() {
        for part in ["[],", "{},", "[[]],", "\"\",", "[0],"] {
            let document = format!("{{\"a\":[{}0]}}", part.repeat((SMALL - 10) / part.len()));
            assert!(document.len() <= SMALL);
            let mut room = Meter::brief(WHAT);
            parse::<Value>(document.as_bytes(), &mut room).unwrap();
            assert_eq!(room.reserved(), 0, "{part}: {}", room.counted());
        }
    }
}
