//! Reads attributes that a snapshot keeps in a separate object below `attributes/` (`a/` in the
//! first layout).
//!
//! The specifications do not define the content of such a file, and no release wrote one. This
//! module reads what they call likely: a map of attributes, or a list of such maps, in which the
//! snapshot stores the index of a node's map.

use serde_json::{Map, Value};

use super::super::envelope::FileType;
use super::wrapping::{self, Body, Unwrapped};
use super::{bounds, parse};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::{Meter, Metered};

/// Attributes of a node, by name.
pub type Attributes = Map<String, Value>;

/// Content of an attributes file, with its memory.
#[derive(Debug)]
pub struct AttributesFile(Metered<Content>);

#[derive(Debug)]
enum Content {
    /// Attributes of one node.
    One(Attributes),
    /// Attributes of several nodes.
    Many(Vec<Value>),
}

impl AttributesFile {
    /// Decodes an attributes file whose payload may take `limit` bytes of memory.
    pub fn decode(file: &[u8], limit: u64) -> Result<Self> {
        let body = match wrapping::open(file, FileType::Attributes, limit) {
            Ok(Unwrapped::Alpha(body)) => body,
            Ok(Unwrapped::Flatbuffer(..)) => return Err(Error::corrupt("this is not an attributes file")),
            // `wrapping::open` refuses a JSON array, because no snapshot or manifest is one.
            Err(_) if file.first() == Some(&b'[') && file.len() as u64 <= limit => {
                Body { bytes: file.to_vec().into(), encoding: wrapping::Encoding::Json }
            }
            Err(error) => return Err(error),
        };
        bounds::check(&body)?;
        let mut meter = Meter::new("an attributes file");
        let content = match parse(&body, "attributes file", &mut meter)? {
            Value::Object(attributes) => Content::One(attributes),
            Value::Array(list) => Content::Many(list),
            _ => return Err(Error::corrupt("this attributes file has neither a map nor a list")),
        };
        Ok(AttributesFile(meter.finish(content)))
    }

    /// Returns the attributes at index `location`.
    pub fn at(&self, location: u64) -> Result<&Attributes> {
        match &*self.0 {
            Content::One(attributes) => Ok(attributes),
            Content::Many(list) => match usize::try_from(location).ok().and_then(|at| list.get(at)) {
                Some(Value::Object(attributes)) => Ok(attributes),
                Some(_) => Err(Error::corrupt(format!("place {location} of the file has no map"))),
                None => Err(Error::corrupt(format!("no place {location} in a file of {}", list.len()))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    #[test]
    fn maps_and_lists_are_read_in_both_encodings() {
        let one = json!({"units": "K", "n": [1, null]});
        let many = json!([{"a": 1}, {"b": 2}]);
        for value in [&one, &many] {
            let packed = rmp_serde::to_vec(value).unwrap();
            let compressed = zstd::encode_all(packed.as_slice(), 3).unwrap();
            for file in [value.to_string().into_bytes(), packed, compressed] {
                let decoded = AttributesFile::decode(&file, 1 << 20).unwrap();
                let expected = if value.is_array() { &json!({"b": 2}) } else { value };
                assert_eq!(&Value::from(decoded.at(1).unwrap().clone()), expected);
                assert_eq!(decoded.at(2).is_err(), value.is_array());
            }
        }
        assert!(AttributesFile::decode(b"7", 100).is_err());
    }
}
