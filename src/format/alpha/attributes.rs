//! Attributes that a snapshot has not in itself but in an object of their own, below `attributes/` (`a/` in the first layout).
//!
//! The specifications leave open what is in such a file, and no release wrote one. Read is what they call likely: a map of
//! attributes, or a list of such maps, in which a node's place is a number in the snapshot.

use serde_json::{Map, Value};

use super::super::envelope::FileType;
use super::container::{self, Body, Opened};
use super::{bounds, parse};
use crate::error::{Error, Result};

/// A node's attributes, by name.
pub type Attributes = Map<String, Value>;

/// The content of an attributes file.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributesFile {
    /// Of one node.
    One(Attributes),
    /// Of several.
    Many(Vec<Value>),
}

impl AttributesFile {
    /// Decodes an attributes file whose values may take `limit` bytes of memory.
    pub fn decode(file: &[u8], limit: u64) -> Result<Self> {
        let body = match container::open(file, FileType::Attributes, limit) {
            Ok(Opened::Alpha(body)) => body,
            Ok(Opened::Flatbuffer(..)) => return Err(Error::corrupt("this is no attributes file")),
            // A list of maps in JSON begins with what no snapshot does.
            Err(_) if file.first() == Some(&b'[') && file.len() as u64 <= limit => {
                Body { bytes: file.to_vec().into(), encoding: container::Encoding::Json }
            }
            Err(error) => return Err(error),
        };
        let _held = bounds::check(&body, limit)?;
        match parse(&body, "attributes file")? {
            Value::Object(attributes) => Ok(AttributesFile::One(attributes)),
            Value::Array(list) => Ok(AttributesFile::Many(list)),
            _ => Err(Error::corrupt("this attributes file has neither a map nor a list")),
        }
    }

    /// The attributes at `location`.
    pub fn at(&self, location: u64) -> Result<Attributes> {
        match self {
            AttributesFile::One(attributes) => Ok(attributes.clone()),
            AttributesFile::Many(list) => {
                let found = usize::try_from(location).ok().and_then(|at| list.get(at));
                match found {
                    Some(Value::Object(attributes)) => Ok(attributes.clone()),
                    Some(_) => Err(Error::corrupt(format!("place {location} of the file has no map"))),
                    None => Err(Error::corrupt(format!("no place {location} in a file of {}", list.len()))),
                }
            }
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
                assert_eq!(&Value::from(decoded.at(1).unwrap()), expected);
                assert_eq!(decoded.at(2).is_err(), value.is_array());
            }
        }
        assert!(AttributesFile::decode(b"7", 100).is_err());
    }
}
