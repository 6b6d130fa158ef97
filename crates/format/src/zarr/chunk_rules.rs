//! Facts about an array's chunks on which other clients of a repository rely.
//!
//! A snapshot has coordinates, and any names and bytes can be committed for them. Icechunk's own
//! library asks for chunks by the default names only, whatever an array's `chunk_key_encoding`
//! says; and a program that reads an array without compression needs chunks of one length.

use serde::Deserialize;
use serde_json::Value;

use super::array::ArrayMetadata;
use super::chunk_key::{KeyEncoding, Separator};
use super::document;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Meter;

/// Reason for which an array is read by some programs only.
pub const OTHER_NAMES: &str = "its chunk_key_encoding gives chunks other names than `c/0/1`, so the Icechunk library cannot read \
    them; programs that read a mount or an export can";

/// Rules for the chunks of one array, from its `zarr.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRules {
    /// True if chunks have the names by which the Icechunk library asks for them.
    pub has_default_names: bool,
    /// Length of each chunk, in bytes, if chunks are stored as they are: without compression, and
    /// in a regular grid.
    pub raw_length: Option<u64>,
}

#[derive(Deserialize)]
struct Document {
    chunk_grid: Value,
    #[serde(default)]
    codecs: Value,
    #[serde(default)]
    storage_transformers: Value,
}

impl ChunkRules {
    /// Parses an array's `zarr.json`, with the errors of [`ArrayMetadata::parse`].
    pub fn parse(zarr_json: &[u8]) -> Result<Self> {
        Self::parse_reserved(zarr_json, &mut document::reserve(zarr_json)?)
    }

    /// Parses like [`ChunkRules::parse`], on the reservation `room` ([`document::reserve`]).
    pub fn parse_reserved(zarr_json: &[u8], room: &mut Meter) -> Result<Self> {
        let array = ArrayMetadata::parse_reserved(zarr_json, room)?;
        let document: Document = document::parse(zarr_json, room)?;
        Ok(ChunkRules {
            has_default_names: has_default_names(&array.key_encoding, array.shape.len()),
            raw_length: array.nominal_chunk_bytes.filter(|length| *length > 0 && document.is_stored_as_is()),
        })
    }

    /// Returns the reason why a chunk of `length` bytes cannot be right, if there is one.
    pub fn length_problem(&self, length: u64) -> Option<String> {
        let expected = self.raw_length.filter(|expected| *expected != length)?;
        Some(format!("it has {length} bytes, but each uncompressed chunk of the array has {expected}"))
    }
}

impl Document {
    fn is_stored_as_is(&self) -> bool {
        let has_transformers = self.storage_transformers.as_array().is_some_and(|all| !all.is_empty());
        let is_regular = self.chunk_grid.get("name").is_some_and(|name| name == "regular");
        let names = self.codecs.as_array().map(|all| all.iter().map(document::extension_name).collect::<Vec<_>>());
        let is_plain = names.is_some_and(|names| {
            names.contains(&Some("bytes")) && names.iter().all(|name| matches!(name, Some("bytes" | "transpose")))
        });
        is_regular && is_plain && !has_transformers
    }
}

/// Returns true if chunks of an array with `rank` dimensions have the names of the default
/// encoding. Without dimensions there is no separator.
fn has_default_names(encoding: &KeyEncoding, rank: usize) -> bool {
    encoding.prefixed && encoding.suffix.is_empty() && (rank == 0 || encoding.separator == Separator::Slash)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn rules(more: Value) -> ChunkRules {
        let mut document = json!({
            "zarr_format": 3, "node_type": "array", "shape": [5, 4], "data_type": "int16", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}}, "codecs": ["bytes"],
        });
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ChunkRules::parse(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn default_names_are_those_with_slashes() {
        let with = |encoding: Value| rules(json!({ "chunk_key_encoding": encoding })).has_default_names;
        let of = |name: &str, separator: &str| json!({"name": name, "configuration": {"separator": separator}});
        assert!(rules(json!({})).has_default_names && with(json!("default")) && with(of("default", "/")));
        for other in [of("default", "."), of("v2", "."), of("v2", "/"), json!("v2")] {
            assert!(!with(other.clone()), "{other}");
        }
        let suffix =
            |text: &str| json!({"name": "suffix", "configuration": {"suffix": text, "base-encoding": "default"}});
        assert!(with(suffix("")) && !with(suffix(".bin")));
        let scalar = |encoding: Value| {
            let grid = json!({"name": "regular", "configuration": {"chunk_shape": []}});
            rules(json!({"shape": [], "chunk_grid": grid, "chunk_key_encoding": encoding})).has_default_names
        };
        assert!(scalar(of("default", ".")) && !scalar(of("v2", "/")));
    }

    #[test]
    fn chunks_without_compression_have_one_length() {
        let length = |more: Value| rules(more).raw_length;
        assert_eq!(length(json!({})), Some(16));
        assert_eq!(
            length(json!({"codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes"]})),
            Some(16)
        );
        for other in [
            json!({"codecs": ["bytes", "zstd"]}),
            json!({"codecs": ["bytes", "crc32c"]}),
            json!({"codecs": []}),
            json!({"codecs": null}),
            json!({"data_type": "string", "codecs": ["vlen-utf8"]}),
            json!({"data_type": "string"}),
            json!({"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [[2, 3], 4]}}}),
            json!({"storage_transformers": [{"name": "unknown"}]}),
        ] {
            assert_eq!(length(other.clone()), None, "{other}");
        }
        assert_eq!(rules(json!({})).length_problem(16), None);
        assert!(rules(json!({})).length_problem(15).unwrap().contains("15 bytes"));
    }
}
