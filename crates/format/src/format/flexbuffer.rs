//! Reads untrusted FlexBuffers.
//!
//! The `flexbuffers` crate reads its own output, but indexes and subtracts without checks, so that
//! a damaged buffer panics; this reader returns an error instead. It reads the values that JSON has
//! (the reference implementation writes no others) and both spellings of a scalar, inline and
//! indirect.
//!
//! Offsets lead backwards, so a hostile buffer can nest endlessly or let a few bytes stand for
//! billions of values. Depth, number of values and text are bounded, which bounds the time; real
//! items are far below the limits. Each value is counted before it is made, however often its bytes
//! are used, which bounds the memory.
//!
//! A value is read from its *slot* (an address, and the width of the slots around it) and its
//! *packed type* (6 bits of type, 2 bits of the width at the target of an offset).

use serde_json::{Map, Number, Value};

use super::json::{ELEMENT, LIST, MAP, MEMBER, TEXT};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::Meter;

/// Limit of nesting. The reference implementation's JSON parser stops at 128, too.
pub(super) const MAX_DEPTH: usize = 128;

/// Limits of one buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Number of values.
    pub(super) values: usize,
    /// Bytes of keys and strings; shared text counts once per use.
    pub(super) text: usize,
}

/// Limits of a metadata item.
const OF_METADATA: Limits = Limits { values: 1 << 20, text: 64 << 20 };

/// Type numbers of FlexBuffers that JSON needs.
mod kind {
    pub(super) const NULL: u8 = 0;
    pub(super) const INT: u8 = 1;
    pub(super) const UINT: u8 = 2;
    pub(super) const FLOAT: u8 = 3;
    pub(super) const KEY: u8 = 4;
    pub(super) const STRING: u8 = 5;
    pub(super) const INDIRECT_INT: u8 = 6;
    pub(super) const INDIRECT_UINT: u8 = 7;
    pub(super) const INDIRECT_FLOAT: u8 = 8;
    pub(super) const MAP: u8 = 9;
    pub(super) const VECTOR: u8 = 10;
    pub(super) const VECTOR_INT: u8 = 11;
    pub(super) const VECTOR_KEY: u8 = 14;
    /// Vectors of 2, 3 and 4 scalars without a length: Int, UInt, Float of 2, then of 3, then of 4.
    pub(super) const VECTOR_INT2: u8 = 16;
    pub(super) const VECTOR_FLOAT4: u8 = 24;
    pub(super) const BOOL: u8 = 26;
    pub(super) const VECTOR_BOOL: u8 = 36;
}

/// Position of a value's bits, or of the offset to them.
#[derive(Clone, Copy)]
struct Slot {
    at: usize,
    width: usize,
}

struct Buffer<'a, 'm> {
    bytes: &'a [u8],
    meter: &'m mut Meter,
    limits: Limits,
    /// Rest of the limits.
    left: Limits,
}

/// Decodes a metadata item to JSON, whose values `meter` counts.
pub fn to_json(bytes: &[u8], meter: &mut Meter) -> Result<Value> {
    to_json_within(OF_METADATA, bytes, meter)
}

/// Decodes `bytes` to JSON, whose values `meter` counts. Fails if they exceed `limits`.
pub(super) fn to_json_within(limits: Limits, bytes: &[u8], meter: &mut Meter) -> Result<Value> {
    let Some((root, &[packed, width])) = bytes.split_last_chunk::<2>() else {
        return Err(Error::corrupt("too short for a FlexBuffer"));
    };
    let width = usize::from(width);
    if !matches!(width, 1 | 2 | 4 | 8) || root.len() < width {
        return Err(Error::corrupt(format!("a FlexBuffer root of {width} bytes")));
    }
    let mut buffer = Buffer { bytes, meter, limits, left: limits };
    buffer.value(Slot { at: root.len() - width, width }, packed, MAX_DEPTH)
}

impl<'a> Buffer<'a, '_> {
    fn value(&mut self, slot: Slot, packed: u8, depth: usize) -> Result<Value> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Error::corrupt(format!("nested deeper than {MAX_DEPTH}")));
        };
        let values = self.left.values.checked_sub(1);
        self.left.values = values.ok_or_else(|| Error::corrupt(format!("more than {} values", self.limits.values)))?;
        let width = 1 << (packed & 3);
        let target = |this: &Self| this.follow(slot).map(|at| Slot { at, width });
        Ok(match packed >> 2 {
            kind::NULL => Value::Null,
            kind::BOOL => Value::Bool(self.uint(slot)? != 0),
            kind::INT => Value::from(self.int(slot)?),
            kind::UINT => Value::from(self.uint(slot)?),
            kind::FLOAT => self.float(slot)?,
            kind::INDIRECT_INT => Value::from(self.int(target(self)?)?),
            kind::INDIRECT_UINT => Value::from(self.uint(target(self)?)?),
            kind::INDIRECT_FLOAT => self.float(target(self)?)?,
            kind::KEY => Value::from(self.key(slot)?),
            kind::STRING => {
                let start = target(self)?;
                let len = self.length_before(start)?;
                Value::from(self.text(self.slice(start.at, len)?)?)
            }
            kind::MAP => self.map(target(self)?, depth)?,
            kind::VECTOR => {
                let first = target(self)?;
                let len = self.length_before(first)?;
                let types = end(first, len)?;
                self.vector(first, len, depth, |this, i| this.byte(types.saturating_add(i)))?
            }
            typed @ (kind::VECTOR_INT..=kind::VECTOR_KEY | kind::VECTOR_BOOL) => {
                let first = target(self)?;
                let len = self.length_before(first)?;
                let element =
                    if typed == kind::VECTOR_BOOL { kind::BOOL } else { typed - kind::VECTOR_INT + kind::INT };
                self.vector(first, len, depth, |_, _| Ok(element << 2 | packed & 3))?
            }
            fixed @ kind::VECTOR_INT2..=kind::VECTOR_FLOAT4 => {
                let place = fixed - kind::VECTOR_INT2;
                let element = place % 3 + kind::INT;
                let first = target(self)?;
                self.vector(first, usize::from(place / 3) + 2, depth, |_, _| Ok(element << 2 | packed & 3))?
            }
            other => {
                return Err(Error::corrupt(format!("a FlexBuffer value of type {other} is not a valid JSON value")));
            }
        })
    }

    fn vector(
        &mut self,
        first: Slot,
        len: usize,
        depth: usize,
        type_of: impl Fn(&Self, usize) -> Result<u8>,
    ) -> Result<Value> {
        self.meter.count(LIST)?;
        // The length is untrusted: it must not decide how much is allocated.
        let mut out = Vec::new();
        for i in 0..len {
            self.meter.count(ELEMENT)?;
            let packed = type_of(self, i)?;
            out.push(self.value(Slot { at: end(first, i)?, width: first.width }, packed, depth)?);
        }
        Ok(Value::Array(out))
    }

    fn map(&mut self, first: Slot, depth: usize) -> Result<Value> {
        let len = self.length_before(first)?;
        let types = end(first, len)?;
        let keys = self.follow(before(first, 3)?)?;
        let width = self.size(before(first, 2)?)?;
        if !matches!(width, 1 | 2 | 4 | 8) {
            return Err(Error::corrupt(format!("map keys of width {width}")));
        }
        self.meter.count(MAP)?;
        let mut out = Map::new();
        for i in 0..len {
            self.meter.count(MEMBER)?;
            let key = self.key(Slot { at: end(Slot { at: keys, width }, i)?, width })?.to_owned();
            let packed = self.byte(types.saturating_add(i))?;
            out.insert(key, self.value(Slot { at: end(first, i)?, width: first.width }, packed, depth)?);
        }
        Ok(Value::Object(out))
    }

    fn slice(&self, at: usize, len: usize) -> Result<&'a [u8]> {
        at.checked_add(len).and_then(|end| self.bytes.get(at..end)).ok_or_else(out_of_bounds)
    }

    fn byte(&self, at: usize) -> Result<u8> {
        self.bytes.get(at).copied().ok_or_else(out_of_bounds)
    }

    fn uint(&self, slot: Slot) -> Result<u64> {
        let mut wide = [0; 8];
        for (to, from) in wide.iter_mut().zip(self.slice(slot.at, slot.width)?) {
            *to = *from;
        }
        Ok(u64::from_le_bytes(wide))
    }

    fn int(&self, slot: Slot) -> Result<i64> {
        let unused = 64 - 8 * slot.width as u32;
        Ok((self.uint(slot)? << unused) as i64 >> unused)
    }

    fn float(&self, slot: Slot) -> Result<Value> {
        let bits = self.uint(slot)?;
        let value = match slot.width {
            4 => f64::from(f32::from_bits(bits as u32)),
            8 => f64::from_bits(bits),
            other => return Err(Error::corrupt(format!("a float of {other} bytes"))),
        };
        json_number(value)
    }

    /// Returns the address that the offset in `slot` leads back to.
    fn follow(&self, slot: Slot) -> Result<usize> {
        slot.at.checked_sub(self.size(slot)?).ok_or_else(out_of_bounds)
    }

    /// Returns the length in the slot before the first element of a string or vector.
    fn length_before(&self, first: Slot) -> Result<usize> {
        self.size(before(first, 1)?)
    }

    fn size(&self, slot: Slot) -> Result<usize> {
        usize::try_from(self.uint(slot)?).map_err(|_| out_of_bounds())
    }

    /// Returns the NUL-terminated key that the offset in `slot` leads to.
    fn key(&mut self, slot: Slot) -> Result<&'a str> {
        let rest = self.bytes.get(self.follow(slot)?..).ok_or_else(out_of_bounds)?;
        self.text(rest.split(|&b| b == 0).next().unwrap_or_default())
    }

    fn text(&mut self, bytes: &'a [u8]) -> Result<&'a str> {
        let text = self.left.text.checked_sub(bytes.len());
        self.left.text = text.ok_or_else(|| Error::corrupt(format!("more than {} bytes of text", self.limits.text)))?;
        self.meter.count(TEXT + bytes.len() as u64)?;
        std::str::from_utf8(bytes).map_err(|_| Error::corrupt("a string that is not UTF-8"))
    }
}

/// Returns the slot that is `count` slots before `first`.
fn before(first: Slot, count: usize) -> Result<Slot> {
    let at = first.at.checked_sub(count * first.width).ok_or_else(out_of_bounds)?;
    Ok(Slot { at, ..first })
}

/// Returns the address after `count` slots that begin with `first`.
fn end(first: Slot, count: usize) -> Result<usize> {
    count.checked_mul(first.width).and_then(|len| first.at.checked_add(len)).ok_or_else(out_of_bounds)
}

fn out_of_bounds() -> Error {
    Error::corrupt("an offset or length beyond the FlexBuffer")
}

/// Converts a float to JSON. Fails for NaN and infinities, which JSON does not have.
pub(super) fn json_number(value: f64) -> Result<Value> {
    let number = Number::from_f64(value).map(Value::Number);
    number.ok_or_else(|| Error::corrupt(format!("{value} is not a valid JSON number")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    fn decode(bytes: &[u8]) -> Result<Value> {
        to_json(bytes, &mut Meter::brief("a sample"))
    }

    fn sample() -> Value {
        json!({
            "author": "fixture", "big": u64::MAX, "neg": -7, "deep negative": i64::MIN, "float": 1.5, "tiny": 1e-300,
            "yes": true, "none": null, "typed": [1, 2, 3], "five": [1, 2, 3, 4, 500000], "signed": [-1, 2],
            "floats": [0.5, 2.0], "bools": [true, false, true, true, false], "words": ["a", "b"],
            "mixed": [1, "a", null, {"k": []}], "empty": {}, "text": "x".repeat(70_000)
        })
    }

    #[test]
    fn buffers_of_the_reference_are_read() {
        // The reference implementation serializes serde_json values with this crate.
        let bytes = flexbuffers::to_vec(sample()).unwrap();
        assert_eq!(decode(&bytes).unwrap(), sample());
        for scalar in [json!(null), json!(0), json!(-1), json!(true), json!("x"), json!([]), json!(0.25)] {
            assert_eq!(decode(&flexbuffers::to_vec(&scalar).unwrap()).unwrap(), scalar);
        }
    }

    #[test]
    fn indirect_scalars_are_read() {
        let mut builder = flexbuffers::Builder::default();
        let mut vector = builder.start_vector();
        vector.push(flexbuffers::IndirectInt(-300_i64));
        vector.push(flexbuffers::IndirectUInt(300_u64));
        vector.push(flexbuffers::IndirectFloat(0.1_f64));
        vector.end_vector();
        assert_eq!(decode(builder.view()).unwrap(), json!([-300, 300, 0.1]));
    }

    #[test]
    fn every_prefix_and_flipped_bit_is_survived() {
        let mut value = sample();
        value["text"] = json!("short");
        let bytes = flexbuffers::to_vec(value).unwrap();
        for end in 0..bytes.len() {
            let _ = decode(&bytes[..end]);
            for bit in 0..8 {
                let mut mutant = bytes.clone();
                mutant[end] ^= 1 << bit;
                let _ = decode(&mutant);
            }
        }
    }

    #[test]
    fn a_vector_that_holds_itself_ends() {
        // A vector of one element of type vector, whose offset leads back to the vector's own first
        // slot.
        let vector = kind::VECTOR << 2;
        let error = decode(&[1, 0, vector, 2, vector, 1]).unwrap_err();
        assert!(error.to_string().contains("nested deeper"), "{error}");
    }

    #[test]
    fn few_bytes_cannot_stand_for_many_values() {
        // Each of 40 vectors holds the previous one twice: 2^40 values in 200 bytes.
        let vector = kind::VECTOR << 2;
        let mut bytes = vec![0, 0];
        let mut inner = 2_usize;
        for _ in 0..40 {
            bytes.push(2);
            let first = bytes.len();
            bytes.push((first - inner) as u8);
            bytes.push((first + 1 - inner) as u8);
            bytes.extend([vector, vector]);
            inner = first;
        }
        let root = bytes.len();
        bytes.extend([(root - inner) as u8, vector, 1]);
        let error = decode(&bytes).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
    }
}
