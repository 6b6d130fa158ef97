//! Reads metadata items: named JSON values, in FlexBuffers (files of version 2) or MessagePack (version 1).
//!
//! The header of the file that holds an item decides: a migrated repository has version 1 snapshots, and copies of
//! their items as FlexBuffers in `repo`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::envelope::SpecVersion;
use super::flexbuffer::{self, MAX_DEPTH};
use super::generated::icechunk as fb;
use crate::error::{Error, ErrorKind, Result};

/// Vector of items in a file.
pub(crate) type Items<'a> = flatbuffers::Vector<'a, flatbuffers::ForwardsUOffset<fb::MetadataItem<'a>>>;

/// Returns `items` as one JSON object, in the file's order. Fails with the name of an item that cannot be read.
pub(super) fn to_json(items: Option<Items<'_>>, version: SpecVersion) -> Result<Map<String, Value>> {
    let mut out = Map::new();
    for item in items.iter().flatten() {
        let value = match version {
            SpecVersion::V1 => from_message_pack(item.value().bytes()),
            SpecVersion::V2 => flexbuffer::to_json(item.value().bytes()),
        };
        out.insert(item.name().to_owned(), value.map_err(|e| e.context(format!("metadata item `{}`", item.name())))?);
    }
    Ok(out)
}

/// Decodes MessagePack to JSON.
pub fn from_message_pack(bytes: &[u8]) -> Result<Value> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(MAX_DEPTH);
    Value::deserialize(&mut reader).map_err(|e| Error::with_source(ErrorKind::Corrupt, "not readable MessagePack", e))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn message_pack_is_read_and_bounded() {
        let value = json!({"a": [1, -2, 0.5, null], "b": true});
        assert_eq!(from_message_pack(&rmp_serde::to_vec(&value).unwrap()).unwrap(), value);
        assert!(from_message_pack(&[0x91; 100_000]).is_err());
        assert!(from_message_pack(&[0xdd, 0xff, 0xff, 0xff, 0xff]).is_err());
    }
}
