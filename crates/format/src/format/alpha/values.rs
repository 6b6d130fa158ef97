//! Reads small values that releases spelled differently: each type accepts every spelling.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::super::ids::{self, NodeId, ObjectId};

/// Bytes of an object's id in the first layout.
const WIDE: usize = 16;

/// Id of an object: text, bytes, numbers, or an array that begins with bytes. The first 12 of 16
/// bytes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AlphaObjectId(pub(super) ObjectId);

/// Id of a node: a number, or 8 bytes in one of the spellings of [`AlphaObjectId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AlphaNodeId(pub(super) NodeId);

impl AlphaNodeId {
    pub(super) fn from_number(number: u64) -> Self {
        AlphaNodeId(NodeId(number.to_be_bytes()))
    }

    pub(super) fn from_text(text: &str) -> Option<Self> {
        ids::decode::<8>(text).map(|bytes| AlphaNodeId(NodeId(bytes)))
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(|bytes| AlphaNodeId(NodeId(bytes)))
    }
}

/// Id as a file stores it.
#[derive(Debug)]
enum StoredId {
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
    /// Numbers of an array, or bytes that are its first element.
    Array(Vec<u8>),
}

impl<'de> Deserialize<'de> for StoredId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdVisitor;
        impl<'de> Visitor<'de> for IdVisitor {
            type Value = StoredId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the id of an object or a node")
            }

            fn visit_u64<E>(self, number: u64) -> Result<StoredId, E> {
                Ok(StoredId::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<StoredId, E> {
                Ok(StoredId::Text(text.to_owned()))
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<StoredId, E> {
                match bytes.len() {
                    0..=WIDE => Ok(StoredId::Bytes(bytes.to_vec())),
                    length => Err(E::custom(format!("an id of {length} bytes"))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<StoredId, A::Error> {
                let mut bytes = Vec::new();
                while let Some(element) = array.next_element()? {
                    match element {
                        StoredId::Number(number) if bytes.len() < WIDE => bytes.push(
                            u8::try_from(number).map_err(|_| de::Error::custom("an id holds a number beyond 255"))?,
                        ),
                        StoredId::Bytes(first) if bytes.is_empty() => {
                            while array.next_element::<IgnoredAny>()?.is_some() {}
                            return Ok(StoredId::Array(first));
                        }
                        _ => return Err(de::Error::custom("an id of more than 16 bytes, or of other values")),
                    }
                }
                Ok(StoredId::Array(bytes))
            }
        }
        deserializer.deserialize_any(IdVisitor)
    }
}

impl<'de> Deserialize<'de> for AlphaObjectId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = StoredId::deserialize(deserializer)?;
        let id = match &stored {
            StoredId::Text(text) => ids::decode(text).map(ObjectId).or_else(|| ObjectId::from_wide_text(text)),
            StoredId::Bytes(bytes) | StoredId::Array(bytes) => {
                bytes.first_chunk().copied().filter(|_| matches!(bytes.len(), 12 | WIDE)).map(ObjectId)
            }
            StoredId::Number(_) => None,
        };
        id.map(AlphaObjectId).ok_or_else(|| de::Error::custom(format!("{stored:?} is not the id of an object")))
    }
}

impl<'de> Deserialize<'de> for AlphaNodeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = StoredId::deserialize(deserializer)?;
        let id = match &stored {
            StoredId::Number(number) => Some(AlphaNodeId::from_number(*number)),
            StoredId::Text(text) => AlphaNodeId::from_text(text),
            StoredId::Bytes(bytes) | StoredId::Array(bytes) => AlphaNodeId::from_bytes(bytes),
        };
        id.ok_or_else(|| de::Error::custom(format!("{stored:?} is not the id of a node")))
    }
}

/// Id of an object and up to two numbers: an array that begins with them, or a map, of which only
/// the id is read.
#[derive(Debug)]
pub(super) struct IdAndNumbers {
    pub(super) id: ObjectId,
    pub(super) numbers: [u64; 2],
}

impl<'de> Deserialize<'de> for IdAndNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WithIdVisitor;
        impl<'de> Visitor<'de> for WithIdVisitor {
            type Value = IdAndNumbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a manifest's id, and more")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<IdAndNumbers, A::Error> {
                let id: AlphaObjectId = array.next_element()?.ok_or_else(|| de::Error::custom("no manifest's id"))?;
                let mut numbers = [0; 2];
                for number in &mut numbers {
                    match array.next_element()? {
                        Some(Count::Number(found)) => *number = found,
                        Some(Count::Other(_)) => {}
                        None => return Ok(IdAndNumbers { id: id.0, numbers }),
                    }
                }
                while array.next_element::<IgnoredAny>()?.is_some() {}
                Ok(IdAndNumbers { id: id.0, numbers })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IdAndNumbers, A::Error> {
                let mut id = None;
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "object_id" | "id" => id = Some(map.next_value::<AlphaObjectId>()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                let id = id.ok_or_else(|| de::Error::custom("no object_id"))?;
                Ok(IdAndNumbers { id: id.0, numbers: [0; 2] })
            }
        }
        deserializer.deserialize_any(WithIdVisitor)
    }
}

/// Number, or a value that stands for 0.
#[derive(Deserialize)]
#[serde(untagged)]
enum Count {
    Number(u64),
    Other(IgnoredAny),
}

/// Time in microseconds since 1970-01-01 UTC, stored as RFC 3339 text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time(pub(super) u64);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: jiff::Timestamp =
            text.parse().map_err(|_| de::Error::custom(format!("`{text}` is not a valid time")))?;
        let micros = u64::try_from(time.as_microsecond());
        micros.map(Time).map_err(|_| de::Error::custom(format!("`{text}` is before 1970")))
    }
}

/// Fill value as `zarr.json` spells it: NaN and infinities are text, and a 32-bit float has no more
/// digits than it needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scalar(pub(super) Value);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fill value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar(value.into()))
    }

    fn visit_f32<E>(self, value: f32) -> Result<Scalar, E> {
        // Use the shortest digits that denote exactly this value.
        Ok(Scalar(float(value.to_string().parse().unwrap_or(f64::from(value)))))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar(float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar(value.into()))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Scalar, E> {
        Ok(Scalar(value.to_vec().into()))
    }

    /// Reads null, which stands for NaN and infinities in JSON.
    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Scalar, A::Error> {
        let mut values = Vec::new();
        while let Some(Scalar(value)) = array.next_element()? {
            values.push(value);
        }
        Ok(Scalar(Value::Array(values)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        let mut values = Map::new();
        while let Some((name, Scalar(value))) = map.next_entry::<String, Scalar>()? {
            values.insert(name, value);
        }
        Ok(Scalar(Value::Object(values)))
    }
}

fn float(value: f64) -> Value {
    match Number::from_f64(value) {
        Some(number) => Value::Number(number),
        None if value.is_nan() => "NaN".into(),
        None if value > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    fn from_pack<T: for<'a> Deserialize<'a>>(value: rmpv::Value) -> Result<T, rmp_serde::decode::Error> {
        rmp_serde::from_slice(&crate::format::testing::pack(&value))
    }

    #[test]
    fn ids_of_objects_in_all_spellings() {
        let bytes: Vec<u8> = (1..=12).collect();
        let id = ObjectId(bytes.as_slice().try_into().unwrap());
        let wide: Vec<u8> = (1..=16).collect();
        let numbers = |bytes: &[u8]| rmpv::Value::Array(bytes.iter().map(|b| (*b).into()).collect());
        for value in [
            rmpv::Value::Binary(bytes.clone()),
            rmpv::Value::Array(vec![rmpv::Value::Binary(bytes.clone()), rmpv::Value::Array(vec![])]),
            rmpv::Value::Array(vec![rmpv::Value::Binary(bytes.clone()), rmpv::Value::Nil]),
            id.to_string().as_str().into(),
            numbers(&bytes),
            numbers(&wide),
            rmpv::Value::Binary(wide.clone()),
        ] {
            assert_eq!(from_pack::<AlphaObjectId>(value.clone()).unwrap().0, id, "{value}");
        }
        assert_eq!(serde_json::from_value::<AlphaObjectId>(json!(wide)).unwrap().0, id);
        for wrong in
            [json!([]), json!([1, 2]), json!("abc"), json!(7), json!([[1]]), json!(vec![1; 17]), json!(vec![256; 12])]
        {
            assert!(serde_json::from_value::<AlphaObjectId>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_of_nodes_in_all_spellings() {
        let id = NodeId([0, 0, 0, 0, 0, 0, 1, 2]);
        let bytes = rmpv::Value::Binary(id.0.to_vec());
        let text = id.to_string();
        for value in
            [258.into(), bytes.clone(), text.as_str().into(), rmpv::Value::Array(vec![bytes, rmpv::Value::Nil])]
        {
            assert_eq!(from_pack::<AlphaNodeId>(value).unwrap().0, id);
        }
        assert!(from_pack::<AlphaNodeId>((-1).into()).is_err());
    }

    #[test]
    fn fill_values_are_spelled_as_zarr_has_them() {
        let scalar = |value| from_pack::<Scalar>(value).unwrap().0;
        assert_eq!(scalar(rmpv::Value::F32(0.1)), json!(0.1));
        assert_eq!(scalar(rmpv::Value::F64(0.1)), json!(0.1));
        assert_eq!(scalar(rmpv::Value::F32(f32::NAN)), json!("NaN"));
        assert_eq!(scalar(rmpv::Value::F64(f64::NEG_INFINITY)), json!("-Infinity"));
        assert_eq!(scalar(u64::MAX.into()), json!(u64::MAX));
        assert_eq!(scalar((-3).into()), json!(-3));
        let tagged = rmpv::Value::Map(vec![("RawBits".into(), rmpv::Value::Binary(vec![1, 255]))]);
        assert_eq!(scalar(tagged), json!({"RawBits": [1, 255]}));
    }

    #[test]
    fn times_are_microseconds() {
        assert_eq!(serde_json::from_value::<Time>(json!("1970-01-01T00:00:01.000002999Z")).unwrap(), Time(1_000_002));
        for wrong in [json!("1969-12-31T00:00:00Z"), json!("today"), json!(5)] {
            assert!(serde_json::from_value::<Time>(wrong).is_err());
        }
    }
}
