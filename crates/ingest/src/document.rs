//! `zarr.json` of what a plan makes (Zarr v3, "Array metadata", "Group metadata").

use icechunkfs_base::error::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::element::Element;
use crate::plan::Array;

/// Written by reference: attributes may be long.
#[derive(Serialize)]
struct GroupDocument<'a> {
    zarr_format: u8,
    node_type: &'static str,
    attributes: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct ArrayDocument<'a> {
    zarr_format: u8,
    node_type: &'static str,
    shape: &'a [u64],
    data_type: Value,
    chunk_grid: Value,
    chunk_key_encoding: Value,
    fill_value: &'a Value,
    codecs: Vec<Value>,
    attributes: &'a Map<String, Value>,
    dimension_names: &'a [String],
    storage_transformers: [Value; 0],
}

pub(crate) fn of_group(attributes: &Map<String, Value>) -> Result<Vec<u8>> {
    written(&GroupDocument { zarr_format: 3, node_type: "group", attributes })
}

pub(crate) fn of_array(array: &Array) -> Result<Vec<u8>> {
    // Elements stay in the byte order of the file: chunks are parts of it.
    let codec = match array.element {
        Element::String => json!({"name": "vlen-utf8"}),
        element if element.size() == 1 || element.is_text() => json!({"name": "bytes"}),
        _ => json!({"name": "bytes", "configuration": {"endian": array.order.name()}}),
    };
    written(&ArrayDocument {
        zarr_format: 3,
        node_type: "array",
        shape: array.shape(),
        data_type: array.element.data_type(),
        chunk_grid: json!({"name": "regular", "configuration": {"chunk_shape": array.chunk_shape}}),
        chunk_key_encoding: json!({"name": "default", "configuration": {"separator": "/"}}),
        fill_value: &array.fill_value.0,
        codecs: std::iter::once(codec).chain(array.codecs.iter().cloned()).collect(),
        attributes: &array.attributes,
        dimension_names: &array.dimension_names,
        storage_transformers: [],
    })
}

pub(crate) fn written(document: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(document).map_err(|e| Error::with_source(ErrorKind::InvalidInput, "writing a zarr.json", e))
}
