//! Makes values of untrusted JSON and MessagePack, each counted before it is made.
//!
//! All that serde makes of a document passes through [`Metering`], whatever its type: texts,
//! elements of lists, members of maps, and parts that are kept until their type is known. Parts
//! that nobody asks for are skipped and cost nothing. The costs are those of [`serde_json::Value`],
//! the largest of the types, with the room by which lists and maps grow.

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde_json::{Map, Value};

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::Meter;

/// Bytes of an element of a list. A list grows by doubling.
pub(super) const ELEMENT: u64 = 2 * size_of::<Value>() as u64;
/// Bytes of a list besides its elements: it begins with room for four.
pub(super) const LIST: u64 = 4 * size_of::<Value>() as u64 + ALLOCATION;
/// Bytes of a member of a map, its name apart: name, value and hash, with an entry in the index.
/// Both grow by doubling.
pub(super) const MEMBER: u64 = 160;
/// Bytes of a map besides its members: it begins with room for three.
pub(super) const MAP: u64 = 320;
/// Bytes of a text besides its own.
pub(super) const TEXT: u64 = ALLOCATION;
/// Bytes of memory that the allocator takes for itself.
const ALLOCATION: u64 = 32;

/// Parses JSON.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::OutOfMemory`] if `meter` has no room for what is
/// made, [`icechunkfs_base::error::ErrorKind::Corrupt`] if `bytes` are not JSON or not of that
/// shape.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], meter: &mut Meter) -> Result<T> {
    parse_seed(std::marker::PhantomData, bytes, meter)
}

/// Parses JSON by `seed`, which may borrow from `bytes`, otherwise like [`parse`].
pub(super) fn parse_seed<'b, S: DeserializeSeed<'b>>(seed: S, bytes: &'b [u8], meter: &mut Meter) -> Result<S::Value> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = run(seed, &mut reader, meter)?;
    reader.end().map_err(|error| Error::corrupt(error.to_string()))?;
    Ok(value)
}

/// Parses MessagePack with at most `max_depth` levels, otherwise like [`parse_seed`].
pub(super) fn parse_message_pack<'b, S: DeserializeSeed<'b>>(
    seed: S,
    bytes: &'b [u8],
    max_depth: usize,
    meter: &mut Meter,
) -> Result<S::Value> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(max_depth);
    run(seed, &mut reader, meter)
}

fn run<'b, S, D>(seed: S, reader: D, meter: &mut Meter) -> Result<S::Value>
where
    S: DeserializeSeed<'b>,
    D: Deserializer<'b>,
{
    let mut tally = Tally { meter, refused: None };
    let parsed = Metering { inner: seed, tally: &mut tally }.deserialize(reader);
    match (parsed, tally.refused) {
        (_, Some(refused)) => Err(refused),
        (Ok(value), None) => Ok(value),
        (Err(error), None) => Err(Error::corrupt(error.to_string())),
    }
}

/// Counts a copy of `value`. Recursion is bounded by the depth of values, which the readers of all
/// encodings bound.
pub(super) fn count_copy(value: &Value, meter: &mut Meter) -> Result<()> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        Value::String(text) => meter.count(TEXT + text.len() as u64),
        Value::Array(items) => {
            meter.count(LIST + ELEMENT * items.len() as u64)?;
            items.iter().try_for_each(|item| count_copy(item, meter))
        }
        Value::Object(members) => count_members(members, meter),
    }
}

/// Counts a copy of `members`, like [`count_copy`].
pub(super) fn count_members(members: &Map<String, Value>, meter: &mut Meter) -> Result<()> {
    meter.count(MAP)?;
    members.iter().try_for_each(|(name, value)| {
        meter.count(MEMBER + TEXT + name.len() as u64)?;
        count_copy(value, meter)
    })
}

/// Checks that `bytes` are JSON that a program can parse to values, without making any.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`].
pub fn check(bytes: &[u8]) -> Result<()> {
    let mut sum = 0;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let measure = Measure { sum: &mut sum, unmade: Unmade::default(), has_names_only: false };
    let checked = measure.deserialize(&mut reader).and_then(|()| reader.end());
    checked.map_err(|error| Error::corrupt(error.to_string()))
}

/// Members of the outermost object of a document whose values are not made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmade<'a> {
    /// Members of which nothing is made.
    pub skipped: &'a [&'a str],
    /// Members that are objects, of which the names of their own members are made.
    pub named: &'a [&'a str],
}

/// Returns the bytes that [`parse`] counts for `bytes` as a [`Value`], apart from what is `unmade`.
/// The text up to the first error counts.
pub fn measure(bytes: &[u8], unmade: Unmade<'_>) -> u64 {
    let mut sum = 0;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    // Nothing is made of text that cannot be parsed.
    let _ = Measure { sum: &mut sum, unmade, has_names_only: false }.deserialize(&mut reader);
    sum
}

/// Returns the bytes that the names of the members of an object take, with a place for a value of
/// each.
pub fn measure_names(bytes: &[u8]) -> u64 {
    let mut sum = 0;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let _ = Measure { sum: &mut sum, unmade: Unmade::default(), has_names_only: true }.deserialize(&mut reader);
    sum
}

/// Walks through a document and adds up what its values would take.
struct Measure<'m> {
    sum: &'m mut u64,
    unmade: Unmade<'m>,
    /// True for an object of which only the names of its members are made.
    has_names_only: bool,
}

impl Measure<'_> {
    fn inner(&mut self, has_names_only: bool) -> Measure<'_> {
        Measure { sum: self.sum, unmade: Unmade::default(), has_names_only }
    }

    fn add<E>(self, bytes: usize) -> Result<(), E> {
        *self.sum += bytes as u64 + TEXT;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Measure<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measure<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.add(text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        *self.sum += LIST + ELEMENT;
        while list.next_element_seed(self.inner(false))?.is_some() {
            *self.sum += ELEMENT;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        *self.sum += MAP + MEMBER;
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            *self.sum += MEMBER + TEXT + name.len() as u64;
            if self.has_names_only || self.unmade.skipped.contains(&&*name) {
                map.next_value::<IgnoredAny>()?;
            } else {
                let has_names_only = self.unmade.named.contains(&&*name);
                map.next_value_seed(self.inner(has_names_only))?;
            }
        }
        Ok(())
    }
}

/// Meter of one document, and why it has no room.
struct Tally<'m> {
    meter: &'m mut Meter,
    refused: Option<Error>,
}

impl Tally<'_> {
    #[inline]
    fn count<E: serde::de::Error>(&mut self, bytes: u64) -> Result<(), E> {
        self.meter.count(bytes).map_err(|error| {
            self.refused.get_or_insert(error);
            E::custom("no memory is left for it")
        })
    }

    fn count_text<E: serde::de::Error>(&mut self, length: usize) -> Result<(), E> {
        self.count(TEXT + length as u64)
    }
}

/// Part of serde through which a document passes, with the tally of what is made of it.
struct Metering<'t, 'm, T> {
    inner: T,
    tally: &'t mut Tally<'m>,
}

/// Claim of a list or map of how many elements it has. Readers make room for many at once, so that
/// only small claims are passed on.
fn believable(hint: Option<usize>) -> Option<usize> {
    const MOST: usize = 16;
    hint.filter(|count| *count <= MOST)
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Metering<'_, '_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Metering { inner: deserializer, tally: self.tally })
    }
}

macro_rules! deserialize {
    ($($name:ident($($argument:ident: $type:ty),*))*) => {
        $(fn $name<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$name($($argument,)* Metering { inner: visitor, tally: self.tally })
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Metering<'_, '_, D> {
    type Error = D::Error;

    deserialize! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64() deserialize_i128()
        deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128() deserialize_f32() deserialize_f64()
        deserialize_char() deserialize_str() deserialize_string() deserialize_bytes() deserialize_byte_buf() deserialize_option()
        deserialize_unit() deserialize_unit_struct(name: &'static str) deserialize_newtype_struct(name: &'static str) deserialize_seq()
        deserialize_tuple(length: usize) deserialize_tuple_struct(name: &'static str, length: usize) deserialize_map()
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) deserialize_identifier()
    }

    /// Skips a value, of which nothing is made.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($name:ident: $type:ty),*) => {
        $(fn $name<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$name(value)
        })*
    };
}

macro_rules! visit_text {
    ($($name:ident: $type:ty),*) => {
        $(fn $name<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.tally.count_text(value.len())?;
            self.inner.$name(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Metering<'_, '_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool: bool, visit_i8: i8, visit_i16: i16, visit_i32: i32, visit_i64: i64, visit_i128: i128, visit_u8: u8, visit_u16: u16,
        visit_u32: u32, visit_u64: u64, visit_u128: u128, visit_f32: f32, visit_f64: f64, visit_char: char
    }

    visit_text! {
        visit_str: &str, visit_borrowed_str: &'de str, visit_string: String, visit_borrowed_bytes: &'de [u8]
    }

    /// Visits bytes, of which a list of numbers may be made.
    fn visit_bytes<E: serde::de::Error>(self, value: &[u8]) -> Result<V::Value, E> {
        self.tally.count(LIST + ELEMENT * value.len() as u64)?;
        self.inner.visit_bytes(value)
    }

    fn visit_byte_buf<E: serde::de::Error>(self, value: Vec<u8>) -> Result<V::Value, E> {
        self.tally.count(LIST + ELEMENT * value.len() as u64)?;
        self.inner.visit_byte_buf(value)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Metering { inner: deserializer, tally: self.tally })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Metering { inner: deserializer, tally: self.tally })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.tally.count(LIST)?;
        self.inner.visit_seq(Metering { inner: list, tally: self.tally })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.tally.count(MAP)?;
        self.inner.visit_map(Metering { inner: map, tally: self.tally })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Metering { inner: data, tally: self.tally })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Metering<'_, '_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.tally.count(ELEMENT)?;
        self.inner.next_element_seed(Metering { inner: seed, tally: self.tally })
    }

    fn size_hint(&self) -> Option<usize> {
        believable(self.inner.size_hint())
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Metering<'_, '_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.tally.count(MEMBER)?;
        self.inner.next_key_seed(Metering { inner: seed, tally: self.tally })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(Metering { inner: seed, tally: self.tally })
    }

    fn size_hint(&self) -> Option<usize> {
        believable(self.inner.size_hint())
    }
}

impl<'de, 't, 'm, A: EnumAccess<'de>> EnumAccess<'de> for Metering<'t, 'm, A> {
    type Error = A::Error;
    type Variant = Metering<'t, 'm, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let Metering { inner, tally } = self;
        let (value, variant) = inner.variant_seed(Metering { inner: seed, tally: &mut *tally })?;
        Ok((value, Metering { inner: variant, tally }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Metering<'_, '_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Metering { inner: seed, tally: self.tally })
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(length, Metering { inner: visitor, tally: self.tally })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, Metering { inner: visitor, tally: self.tally })
    }
}
