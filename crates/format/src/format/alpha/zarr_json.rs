//! Rebuilds a `zarr.json` from the fields that releases before 0.2 stored instead.
//!
//! The result means what the original document meant, and zarr-python reads it. Those releases
//! returned `"configuration": null` for a codec without one, which zarr-python refuses; here such
//! members are left out.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::attributes::Attributes;
use super::values::Scalar;
use crate::format::snapshot::Dimension;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Fields of an array's `zarr.json`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ArrayFields {
    pub(super) shape: Vec<u64>,
    data_type: Scalar,
    chunk_shape: Vec<u64>,
    chunk_key_encoding: Value,
    fill_value: Scalar,
    codecs: Vec<Extension>,
    #[serde(default)]
    storage_transformers: Option<Vec<Extension>>,
    #[serde(default)]
    pub(super) dimension_names: Option<Vec<Option<String>>>,
}

/// Codec or storage transformer.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Extension {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configuration: Option<Map<String, Value>>,
}

/// Returns the `zarr.json` of a group.
pub(super) fn group(attributes: &Attributes) -> Vec<u8> {
    json!({"zarr_format": 3, "node_type": "group", "attributes": attributes}).to_string().into_bytes()
}

impl ArrayFields {
    /// Returns the `zarr.json` of the array.
    pub(super) fn document(&self, attributes: &Attributes) -> Result<Vec<u8>> {
        let data_type = data_type(&self.data_type.0)?;
        let mut document = json!({
            "zarr_format": 3,
            "node_type": "array",
            "attributes": attributes,
            "shape": self.shape,
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": self.chunk_shape}},
            "chunk_key_encoding": chunk_key_encoding(&self.chunk_key_encoding)?,
            "fill_value": fill_value(&self.fill_value.0, &data_type),
            "codecs": self.codecs,
        });
        let optional = [
            ("storage_transformers", self.storage_transformers.as_ref().map(|list| json!(list))),
            ("dimension_names", self.dimension_names.as_ref().map(|names| json!(names))),
        ];
        if let Value::Object(members) = &mut document {
            members.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        }
        Ok(document.to_string().into_bytes())
    }

    /// Returns the dimensions, which a snapshot stores beside the document.
    pub(super) fn dimensions(&self) -> Result<Vec<Dimension>> {
        if self.shape.len() != self.chunk_shape.len() {
            return Err(Error::corrupt(format!(
                "a chunk of {} dimensions for a shape of {}",
                self.chunk_shape.len(),
                self.shape.len()
            )));
        }
        let dimensions = std::iter::zip(&self.shape, &self.chunk_shape);
        let dimension = |(&array_length, &chunk_length): (&u64, &u64)| {
            let chunks = if chunk_length == 0 { 0 } else { array_length.div_ceil(chunk_length) };
            let num_chunks = u32::try_from(chunks)
                .map_err(|_| Error::new(ErrorKind::Unsupported, "a dimension of more than 2^32 chunks"))?;
            Ok(Dimension { array_length, num_chunks, chunk_length })
        };
        dimensions.map(dimension).collect()
    }
}

/// Converts a data type: `"int32"` stays, and `{"rawbits": 16}` becomes `r16`.
fn data_type(stored: &Value) -> Result<Value> {
    let bits = stored.as_object().and_then(|members| members.iter().next()).and_then(|(_, bits)| bits.as_u64());
    match (stored, bits) {
        (Value::String(_), _) => Ok(stored.clone()),
        (_, Some(bits)) => Ok(format!("r{bits}").into()),
        _ => Err(Error::corrupt(format!("the data type {stored}"))),
    }
}

/// Converts a chunk key encoding. Those releases wrote keys such as `c/0/1` in any case; only `Dot`
/// may have meant another separator.
fn chunk_key_encoding(stored: &Value) -> Result<Value> {
    match stored.as_str() {
        Some("Slash" | "Default") => Ok(json!({"name": "default", "configuration": {"separator": "/"}})),
        Some("Dot") => Ok(json!({"name": "default", "configuration": {"separator": "."}})),
        None if stored.get("name").is_some() => Ok(stored.clone()),
        _ => Err(Error::corrupt(format!("the chunk key encoding {stored}"))),
    }
}

/// Converts a fill value: `{"Int32": 7}` becomes 7, and null in a float type NaN, which JSON could
/// not store.
fn fill_value(stored: &Value, data_type: &Value) -> Value {
    let value = match stored {
        Value::Object(tagged) if tagged.len() == 1 => tagged.values().next().unwrap_or(stored),
        other => other,
    };
    let is_float = data_type.as_str().is_some_and(|name| name.starts_with("float") || name.starts_with("complex"));
    match value {
        Value::Null if is_float => "NaN".into(),
        Value::Array(parts) if is_float => parts.iter().map(|part| fill_value(part, data_type)).collect(),
        value => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn fields(changed: Value) -> ArrayFields {
        let mut fields = json!({
            "shape": [10, 0], "data_type": "int16", "chunk_shape": [4, 2], "chunk_key_encoding": "Slash",
            "fill_value": {"Int16": -3}, "codecs": [{"name": "bytes", "configuration": null}],
        });
        let members = fields.as_object_mut().unwrap();
        members.extend(changed.as_object().unwrap().clone());
        serde_json::from_value(fields).unwrap()
    }

    fn document(changed: Value) -> Value {
        serde_json::from_slice(&fields(changed).document(&Attributes::new()).unwrap()).unwrap()
    }

    #[test]
    fn absent_members_are_left_out_instead_of_null() {
        let shortest = document(json!({}));
        assert_eq!(shortest["codecs"], json!([{"name": "bytes"}]));
        assert!(shortest.get("dimension_names").is_none() && shortest.get("storage_transformers").is_none());
        let names = document(json!({"dimension_names": ["x", null], "storage_transformers": []}));
        assert_eq!((&names["dimension_names"], &names["storage_transformers"]), (&json!(["x", null]), &json!([])));
    }

    #[test]
    fn values_and_types_of_every_kind() {
        let fill =
            |kind: &str, value: Value| document(json!({"data_type": kind, "fill_value": value}))["fill_value"].clone();
        assert_eq!(fill("int16", json!({"Int16": -3})), json!(-3));
        assert_eq!(fill("bool", json!({"Bool": false})), json!(false));
        assert_eq!(fill("float32", json!({"Float32": null})), json!("NaN"));
        assert_eq!(fill("complex64", json!({"Complex64": [1.5, null]})), json!([1.5, "NaN"]));
        assert_eq!(fill("uint8", json!(7)), json!(7));
        let raw = document(json!({"data_type": {"rawbits": 16}, "fill_value": {"RawBits": [1, 2]}}));
        assert_eq!((&raw["data_type"], &raw["fill_value"]), (&json!("r16"), &json!([1, 2])));
        let dot = document(json!({"chunk_key_encoding": "Dot"}));
        assert_eq!(dot["chunk_key_encoding"]["configuration"]["separator"], json!("."));
        assert!(fields(json!({"chunk_key_encoding": "Comma"})).document(&Attributes::new()).is_err());
        assert!(fields(json!({"data_type": 7})).document(&Attributes::new()).is_err());
    }

    #[test]
    fn dimensions_are_counted() {
        let counted: Vec<u32> = fields(json!({})).dimensions().unwrap().iter().map(|d| d.num_chunks).collect();
        assert_eq!(counted, [3, 0]);
        assert!(fields(json!({"shape": [1]})).dimensions().is_err());
        assert!(fields(json!({"shape": [u64::MAX, 1]})).dimensions().is_err());
    }
}
