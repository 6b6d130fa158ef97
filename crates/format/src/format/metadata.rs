//! Reads metadata items: named JSON values, in FlexBuffers (files of version 2) or MessagePack
//! (version 1).
//!
//! The header of the file that holds an item decides: a migrated repository has version 1
//! snapshots, and copies of their items as FlexBuffers in `repo`.

use std::marker::PhantomData;

use serde_json::{Map, Value};

use super::envelope::SpecVersion;
use super::flexbuffer::{self, MAX_DEPTH};
use super::generated::icechunk as fb;
use super::json::{self, MAP, MEMBER, TEXT};
use super::repo_state::RawItem;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::{Meter, Metered};

const WHAT: &str = "the metadata of a commit";

/// Vector of items in a file.
pub type Items<'a> = flatbuffers::Vector<'a, flatbuffers::ForwardsUOffset<fb::MetadataItem<'a>>>;

/// Returns `items` as one JSON object, in the file's order. Fails with the name of an item that
/// cannot be read.
pub(super) fn to_json(items: Option<Items<'_>>, version: SpecVersion) -> Result<Metered<Map<String, Value>>> {
    map(items.iter().flatten().map(|item| (item.name(), item.value().bytes())), version)
}

/// Returns copied `items` as one JSON object, like [`to_json`].
pub(super) fn raw_to_json(items: &[RawItem], version: SpecVersion) -> Result<Metered<Map<String, Value>>> {
    map(items.iter().map(|item| (item.name.as_str(), item.value.as_slice())), version)
}

fn map<'a>(
    items: impl Iterator<Item = (&'a str, &'a [u8])>,
    version: SpecVersion,
) -> Result<Metered<Map<String, Value>>> {
    let mut meter = Meter::new(WHAT);
    let mut out = Map::new();
    meter.count(MAP)?;
    for (name, bytes) in items {
        meter.count(MEMBER + TEXT + name.len() as u64)?;
        out.insert(name.to_owned(), value(name, bytes, version, &mut meter)?);
    }
    Ok(meter.finish(out))
}

/// Returns the item called `name` alone: the last one, as in [`to_json`].
pub(super) fn item_to_json(
    items: Option<Items<'_>>,
    version: SpecVersion,
    name: &str,
) -> Result<Option<Metered<Value>>> {
    let found = items.iter().flatten().rfind(|item| item.name() == name);
    found.map(|item| one(name, item.value().bytes(), version)).transpose()
}

/// Returns one of the copied `items` alone, like [`item_to_json`].
pub(super) fn raw_item_to_json(items: &[RawItem], version: SpecVersion, name: &str) -> Result<Option<Metered<Value>>> {
    let found = items.iter().rfind(|item| item.name == name);
    found.map(|item| one(name, &item.value, version)).transpose()
}

fn one(name: &str, bytes: &[u8], version: SpecVersion) -> Result<Metered<Value>> {
    let mut meter = Meter::new(WHAT);
    let value = value(name, bytes, version, &mut meter)?;
    Ok(meter.finish(value))
}

/// Decodes the value of the item called `name`.
pub(super) fn value(name: &str, bytes: &[u8], version: SpecVersion, meter: &mut Meter) -> Result<Value> {
    let value = match version {
        SpecVersion::V1 => from_message_pack(bytes, meter),
        SpecVersion::V2 => flexbuffer::to_json(bytes, meter),
    };
    value.context(|| format!("metadata item `{name}`"))
}

/// Decodes MessagePack to JSON, whose values `meter` counts.
pub fn from_message_pack(bytes: &[u8], meter: &mut Meter) -> Result<Value> {
    json::parse_message_pack(PhantomData, bytes, MAX_DEPTH, meter).context(|| "not readable MessagePack")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn message_pack_is_read_and_bounded() {
        let decode = |bytes: &[u8]| from_message_pack(bytes, &mut Meter::brief("a sample"));
        let value = json!({"a": [1, -2, 0.5, null], "b": true});
        assert_eq!(decode(&rmp_serde::to_vec(&value).unwrap()).unwrap(), value);
        assert!(decode(&[0x91; 100_000]).is_err());
        assert!(decode(&[0xdd, 0xff, 0xff, 0xff, 0xff]).is_err());
    }
}
