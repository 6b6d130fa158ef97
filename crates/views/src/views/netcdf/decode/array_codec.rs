//! Codecs from arrays to arrays, of numcodecs, as zarr-python 3 undoes them.
//!
//! Each is undone element by element, or along all elements in the order in which they are stored.
//! zarr-python reads other numbers than were written where elements are big-endian, or transposed
//! behind such a codec: it takes their bytes as they are. Such arrays are refused.

use serde_json::Value;

use super::number::{Number, NumberType};
use icechunkfs_base::error::{Error, Result};

/// Codec that turns elements into others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ArrayCodec {
    /// Differences of elements.
    Delta { stored: NumberType, decoded: NumberType },
    /// Whole numbers of `1 / scale`, from `offset` on.
    ScaleOffset { stored: NumberType, decoded: NumberType, scale: f64, offset: f64 },
    /// Elements of another type.
    AsType { stored: NumberType, decoded: NumberType },
    /// Eight booleans in a byte, behind the number of bits that the last one has too many.
    PackBits,
}

/// Effect that undoing a codec has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Parsed {
    /// None: only encoding changes elements.
    Nothing,
    Codec(ArrayCodec),
}

impl ArrayCodec {
    /// Parses a codec of arrays of `decoded` numbers; none if it is another kind of codec. Fails
    /// with the reason if this program, or zarr-python, cannot undo it.
    pub(super) fn parse(
        name: &str,
        configuration: &Value,
        decoded: Option<NumberType>,
    ) -> Option<Result<Parsed, String>> {
        let id = name.strip_prefix("numcodecs.").unwrap_or(name);
        let is_known = ["delta", "bitround", "quantize", "fixedscaleoffset", "astype", "packbits"].contains(&id);
        // Registered without the prefix, too.
        if !is_known || (id == name && id != "bitround") {
            return None;
        }
        let parsed = decoded.and_then(|decoded| Self::parse_known(id, configuration, decoded));
        Some(parsed.ok_or_else(|| format!("codec {name} with settings for other elements")))
    }

    fn parse_known(id: &str, configuration: &Value, decoded: NumberType) -> Option<Parsed> {
        let setting = |key: &str| configuration.get(key);
        // The type that the codec states must be that of the array: zarr-python would take bytes
        // for something else.
        let own = |key: &str| NumberType::of_setting(setting(key), decoded).filter(|own| *own == decoded);
        let stored = |key: &str| NumberType::of_setting(setting(key), decoded);
        let number = |key: &str| setting(key).and_then(Value::as_f64);
        let codec = match id {
            "bitround" => return decoded.is_float().then_some(Parsed::Nothing),
            "quantize" => {
                let is_same = own("dtype").is_some() && stored("astype")? == decoded;
                return (is_same && decoded.is_float()).then_some(Parsed::Nothing);
            }
            "delta" => {
                let decoded = own("dtype")?;
                let stored = stored("astype")?;
                can_accumulate(stored, decoded).then_some(ArrayCodec::Delta { stored, decoded })?
            }
            "fixedscaleoffset" => {
                let decoded = own("dtype")?;
                let stored = stored("astype")?;
                let scale = number("scale")?;
                let offset = number("offset")?;
                let is_number = ![stored, decoded].contains(&NumberType::Bool);
                let codec = ArrayCodec::ScaleOffset { stored, decoded, scale, offset };
                (is_number && can_convert(stored, decoded)).then_some(codec)?
            }
            "astype" => {
                let decoded = own("decode_dtype")?;
                let stored = stored("encode_dtype")?;
                setting("encode_dtype")?;
                can_convert(stored, decoded).then_some(ArrayCodec::AsType { stored, decoded })?
            }
            "packbits" => (decoded == NumberType::Bool).then_some(ArrayCodec::PackBits)?,
            _ => return None,
        };
        Some(Parsed::Codec(codec))
    }

    /// Returns the type of the elements that are stored.
    pub(super) fn stored(self) -> NumberType {
        match self {
            ArrayCodec::Delta { stored, .. }
            | ArrayCodec::ScaleOffset { stored, .. }
            | ArrayCodec::AsType { stored, .. } => stored,
            ArrayCodec::PackBits => NumberType::Int { size: 1, signed: false },
        }
    }

    /// Returns the bytes that are stored for `decoded` bytes.
    pub(super) fn stored_bytes(self, decoded: usize) -> usize {
        match self {
            ArrayCodec::Delta { stored, decoded: of, .. }
            | ArrayCodec::ScaleOffset { stored, decoded: of, .. }
            | ArrayCodec::AsType { stored, decoded: of, .. } => (decoded / of.size()).saturating_mul(stored.size()),
            ArrayCodec::PackBits => decoded.div_ceil(8).saturating_add(1),
        }
    }

    /// Undoes the codec for the elements of a chunk, which then have `length` bytes.
    pub(super) fn decode(self, elements: Vec<u8>, length: usize) -> Result<Vec<u8>> {
        let decoded = match self {
            ArrayCodec::AsType { stored, decoded } => stored.convert(&elements, decoded),
            ArrayCodec::Delta { stored, decoded } => accumulated(&elements, stored, decoded, length),
            ArrayCodec::ScaleOffset { stored, decoded, scale, offset } => {
                let unscaled = |number: Number| unscaled(number, stored, scale, offset);
                let mut result = Vec::with_capacity(length);
                elements
                    .chunks_exact(stored.size())
                    .for_each(|element| decoded.put(unscaled(stored.get(element)), &mut result));
                result
            }
            ArrayCodec::PackBits => unpacked(&elements, length)?,
        };
        if decoded.len() == length {
            Ok(decoded)
        } else {
            Err(Error::corrupt(format!("{} bytes of elements where {length} are needed", decoded.len())))
        }
    }
}

/// Returns true if numpy adds `stored` numbers to `decoded` ones: types of the same kind.
fn can_accumulate(stored: NumberType, decoded: NumberType) -> bool {
    match (stored, decoded) {
        (NumberType::Bool, _) | (_, NumberType::Bool) => false,
        (NumberType::Int { signed: true, .. }, NumberType::Int { signed: false, .. }) => false,
        (NumberType::Int { .. }, NumberType::Int { .. }) => true,
        (NumberType::Int { .. }, decoded) => decoded != NumberType::Float16,
        (stored, decoded) => stored.is_float() && decoded.is_float(),
    }
}

/// Returns true if this program converts numbers as numpy does: between integers and halves, numpy
/// rounds twice.
fn can_convert(stored: NumberType, decoded: NumberType) -> bool {
    let is_half = |number| number == NumberType::Float16;
    (!is_half(stored) && !is_half(decoded)) || (stored.is_float() && decoded.is_float())
}

/// Returns sums of differences, in the arithmetic of the decoded type.
fn accumulated(differences: &[u8], stored: NumberType, decoded: NumberType, length: usize) -> Vec<u8> {
    let mut sums = Vec::with_capacity(length);
    let mut sum: Option<Number> = None;
    for difference in differences.chunks_exact(stored.size()) {
        let begin = sums.len();
        let difference = stored.get(difference);
        let next = match (sum, decoded) {
            (None, _) => difference,
            (Some(Number::Int(sum)), _) if let Number::Int(difference) = difference => Number::Int(sum + difference),
            // The difference has the type of the sum before it is added, and so has the sum.
            (Some(sum), NumberType::Float32) => Number::Float(f64::from(single(sum) + single(difference))),
            (Some(sum), _) => Number::Float(double(sum) + double(difference)),
        };
        decoded.put(next, &mut sums);
        sum = Some(decoded.get(sums.get(begin..).unwrap_or_default()));
    }
    sums
}

/// Returns a number that was scaled, as numpy does it in the type of the stored number, or in
/// `double` for integers.
fn unscaled(number: Number, stored: NumberType, scale: f64, offset: f64) -> Number {
    Number::Float(match stored {
        NumberType::Float32 => f64::from(single(number) / scale as f32 + offset as f32),
        NumberType::Float16 => {
            let round = |number: f64| NumberType::Float16.rounded(number);
            round(round(double(number) / round(scale)) + round(offset))
        }
        _ => double(number) / scale + offset,
    })
}

fn single(number: Number) -> f32 {
    match number {
        Number::Int(number) => number as f32,
        Number::Float(number) => number as f32,
    }
}

fn double(number: Number) -> f64 {
    match number {
        Number::Int(number) => number as f64,
        Number::Float(number) => number,
    }
}

/// Returns `length` booleans of bits.
fn unpacked(packed: &[u8], length: usize) -> Result<Vec<u8>> {
    let (padding, bytes) = packed.split_first().ok_or_else(|| Error::corrupt("no packed bits"))?;
    let count = bytes.len().saturating_mul(8).checked_sub(usize::from(*padding));
    if count != Some(length) {
        return Err(Error::corrupt(format!("{} bytes of packed bits where {length} bits are needed", bytes.len())));
    }
    let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> (7 - bit) & 1));
    Ok(bits.take(length).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn parse(name: &str, configuration: Value, decoded: &str) -> Option<Result<Parsed, String>> {
        ArrayCodec::parse(name, &configuration, NumberType::parse(decoded))
    }

    fn codec(name: &str, configuration: Value, decoded: &str) -> ArrayCodec {
        match parse(name, configuration, decoded) {
            Some(Ok(Parsed::Codec(codec))) => codec,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn elements_are_decoded() {
        let delta = codec("numcodecs.delta", json!({"dtype": "<i4", "astype": "<i1"}), "int32");
        assert_eq!((delta.stored_bytes(8), delta.decode(vec![5, 0xFE], 8).unwrap()), (2, vec![5, 0, 0, 0, 3, 0, 0, 0]));
        // Sums wrap, as in numpy.
        let wrapping = codec("numcodecs.delta", json!({"dtype": "u1"}), "uint8");
        assert_eq!(wrapping.decode(vec![200, 100, 1], 3).unwrap(), [200, 44, 45]);
        let single = codec("numcodecs.delta", json!({"dtype": "f4"}), "float32");
        let stored: Vec<u8> = [16_777_216_f32, 1.0, 1.0].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(single.decode(stored, 12).unwrap(), 16_777_216_f32.to_le_bytes().repeat(3));
        let scaled = codec(
            "numcodecs.fixedscaleoffset",
            json!({"offset": 1000, "scale": 10, "dtype": "<f8", "astype": "<u2"}),
            "float64",
        );
        assert_eq!(scaled.decode(vec![7, 0], 8).unwrap(), 1000.7_f64.to_le_bytes());
        let cast = codec("numcodecs.astype", json!({"encode_dtype": "<f4", "decode_dtype": "<f8"}), "float64");
        assert_eq!(cast.decode(0.5_f32.to_le_bytes().to_vec(), 8).unwrap(), 0.5_f64.to_le_bytes());
        let bits = codec("numcodecs.packbits", json!({}), "bool");
        assert_eq!(bits.stored_bytes(11), 3);
        assert_eq!(bits.decode(vec![5, 0b1010_0000, 0b0110_0000], 11).unwrap(), [1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
        for wrong in [vec![], vec![4, 0, 0], vec![200, 0, 0]] {
            assert!(bits.decode(wrong, 11).is_err());
        }
        assert!(delta.decode(vec![1, 2, 3], 8).is_err());
    }

    #[test]
    fn codecs_that_only_encode_have_nothing_to_undo() {
        for (name, configuration) in [
            ("numcodecs.bitround", json!({"keepbits": 5})),
            ("bitround", json!({"keepbits": 5})),
            ("numcodecs.quantize", json!({"digits": 2, "dtype": "<f4"})),
        ] {
            assert_eq!(parse(name, configuration, "float32"), Some(Ok(Parsed::Nothing)), "{name}");
        }
    }

    #[test]
    fn codecs_of_other_elements_are_refused() {
        for (name, configuration, decoded) in [
            ("numcodecs.delta", json!({"dtype": "<i2"}), "int32"),
            ("numcodecs.delta", json!({"dtype": ">i4"}), "int32"),
            ("numcodecs.delta", json!({"dtype": "<u4", "astype": "<i1"}), "uint32"),
            ("numcodecs.delta", json!({"dtype": "<i4"}), "M8[ns]"),
            ("numcodecs.quantize", json!({"digits": 2, "dtype": "<f8", "astype": "<f4"}), "float64"),
            ("numcodecs.bitround", json!({"keepbits": 5}), "int32"),
            ("numcodecs.fixedscaleoffset", json!({"scale": 1}), "float32"),
            ("numcodecs.astype", json!({"decode_dtype": "<f8"}), "float64"),
            ("numcodecs.astype", json!({"encode_dtype": "<f2"}), "int32"),
            ("numcodecs.packbits", json!({}), "uint8"),
        ] {
            assert!(matches!(parse(name, configuration.clone(), decoded), Some(Err(_))), "{name} {configuration}");
        }
        assert!(parse("numcodecs.zlib", json!({}), "int32").is_none() && parse("delta", json!({}), "int32").is_none());
    }
}
