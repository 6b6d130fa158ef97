//! The fill value of an array as the bytes of one element.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::data_type::{ElementType, Shown};
use super::hdf5::model::DataType;
use super::times::NOT_A_TIME;
use crate::views::half::HalfForm;

/// Returns one decoded element, little-endian, of the fill value in a `zarr.json`; none if it does
/// not fit the type.
pub(super) fn parse(fill: &Value, of: &ElementType) -> Option<Vec<u8>> {
    if fill.is_null() {
        return Some(vec![0; of.size]);
    }
    match &of.shown {
        Shown::Number(data_type) => number(fill, data_type),
        Shown::Boolean => fill.as_bool().map(|value| vec![u8::from(value)]),
        Shown::Widened { is_bfloat } => half(fill, *is_bfloat),
        Shown::Complex(part) => match fill.as_array().map(Vec::as_slice) {
            Some([real, imaginary]) => Some([number(real, part)?, number(imaginary, part)?].concat()),
            _ => None,
        },
        Shown::Time(_) if fill.as_str() == Some("NaT") => Some(NOT_A_TIME.to_le_bytes().to_vec()),
        Shown::Time(_) => fill.as_i64().map(|value| value.to_le_bytes().to_vec()),
        Shown::Chars => {
            let mut bytes = STANDARD.decode(fill.as_str()?).ok()?;
            bytes.resize(of.size, 0);
            Some(bytes)
        }
        Shown::Utf32 => {
            let mut bytes: Vec<u8> =
                fill.as_str()?.chars().flat_map(|letter| u32::from(letter).to_le_bytes()).collect();
            bytes.resize(of.size, 0);
            Some(bytes)
        }
        Shown::Texts => fill.as_str().map(|text| text.as_bytes().to_vec()),
    }
}

/// Returns a value that elements are compared with as the file shows it; none if no element can
/// have it.
pub(super) fn mark(value: &Value, of: &ElementType) -> Option<Vec<u8>> {
    let stored = match &of.shown {
        Shown::Number(data_type @ DataType::Int { size, signed }) => {
            // Also as the stored integer of the other sign.
            let other = DataType::Int { size: *size, signed: !signed };
            number(value, data_type).or_else(|| number(value, &other).filter(|_| of.has_other_sign))
        }
        Shown::Number(data_type) | Shown::Complex(data_type) => number(value, data_type),
        Shown::Boolean => number(value, &DataType::Int { size: 1, signed: true }),
        // Rounded as elements are: an element with the value is no other number.
        Shown::Widened { is_bfloat } => half(value, *is_bfloat),
        Shown::Time(_) | Shown::Chars | Shown::Utf32 | Shown::Texts => None,
    };
    of.convert(stored?).ok()
}

/// Returns a number that elements are compared with like [`mark`].
pub(super) fn mark_of_float(value: f64, of: &ElementType) -> Option<Vec<u8>> {
    let stored = match &of.shown {
        Shown::Number(DataType::Float32) | Shown::Complex(DataType::Float32) => (value as f32).to_le_bytes().to_vec(),
        Shown::Number(DataType::Float64) | Shown::Complex(DataType::Float64) => value.to_le_bytes().to_vec(),
        Shown::Widened { is_bfloat } => form_of(*is_bfloat).nearest(value).to_le_bytes().to_vec(),
        _ => return None,
    };
    of.convert(stored).ok()
}

/// Returns the bytes of JSON number `value` as an HDF5 number; none if it does not fit.
pub(super) fn number(value: &Value, data_type: &DataType) -> Option<Vec<u8>> {
    match data_type {
        DataType::Int { size, signed } => {
            let number = match value {
                Value::Number(number) => {
                    let whole = || number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15).map(|n| n as i128);
                    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)).or_else(whole)?
                }
                Value::Bool(value) => i128::from(*value),
                _ => return None,
            };
            let bits = u32::from(*size) * 8;
            let (least, most) =
                if *signed { (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1) } else { (0, (1_i128 << bits) - 1) };
            (least..=most)
                .contains(&number)
                .then(|| number.to_le_bytes().get(..usize::from(*size)).map(<[u8]>::to_vec))?
        }
        DataType::Float32 => match hexadecimal(value, 4)? {
            Float::Bits(bits) => Some((bits as u32).to_le_bytes().to_vec()),
            Float::Number(number) => Some((number as f32).to_le_bytes().to_vec()),
        },
        DataType::Float64 => match hexadecimal(value, 8)? {
            Float::Bits(bits) => Some(bits.to_le_bytes().to_vec()),
            Float::Number(number) => Some(number.to_le_bytes().to_vec()),
        },
        _ => None,
    }
}

enum Float {
    Number(f64),
    Bits(u64),
}

/// Parses a floating-point number of `size` bytes: a number, a name, or its bits in hexadecimal
/// digits.
fn hexadecimal(value: &Value, size: usize) -> Option<Float> {
    Some(match value {
        Value::Number(number) => Float::Number(number.as_f64()?),
        Value::String(text) => match text.as_str() {
            "NaN" => Float::Number(f64::NAN),
            "Infinity" => Float::Number(f64::INFINITY),
            "-Infinity" => Float::Number(f64::NEG_INFINITY),
            text => {
                let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 2 * size)?;
                Float::Bits(u64::from_str_radix(digits, 16).ok()?)
            }
        },
        _ => return None,
    })
}

fn half(value: &Value, is_bfloat: bool) -> Option<Vec<u8>> {
    let bits = match hexadecimal(value, 2)? {
        Float::Bits(bits) => bits as u16,
        Float::Number(number) => form_of(is_bfloat).nearest(number),
    };
    Some(bits.to_le_bytes().to_vec())
}

fn form_of(is_bfloat: bool) -> HalfForm {
    if is_bfloat { HalfForm::Bfloat } else { HalfForm::Ieee }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn bytes(data_type: Value, fill: Value) -> Option<Vec<u8>> {
        parse(&fill, &ElementType::parse(&data_type, false).unwrap())
    }

    #[test]
    fn fill_values_of_each_type() {
        let utf32 = json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}});
        let chars = json!({"name": "null_terminated_bytes", "configuration": {"length_bytes": 3}});
        let time = json!({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}});
        let cases: [(Value, Value, &[u8]); 19] = [
            (json!("int16"), json!(-2), &[0xFE, 0xFF]),
            (json!("uint64"), json!(u64::MAX), &[0xFF; 8]),
            (json!("float32"), json!("NaN"), &[0, 0, 0xC0, 0x7F]),
            (json!("float32"), json!("0x7fc00001"), &[1, 0, 0xC0, 0x7F]),
            (json!("float64"), json!("-Infinity"), &[0, 0, 0, 0, 0, 0, 0xF0, 0xFF]),
            (json!("float64"), json!(1), &[0, 0, 0, 0, 0, 0, 0xF0, 0x3F]),
            (json!("bool"), json!(true), &[1]),
            (json!("float16"), json!(1.5), &[0, 0x3E]),
            (json!("float16"), json!("NaN"), &[0, 0x7E]),
            (json!("float16"), json!(1e-7), &[2, 0]),
            (json!("float16"), json!(0.3), &[0xCD, 0x34]),
            (json!("float16"), json!(65520), &[0, 0x7C]),
            (json!("bfloat16"), json!(0.3), &[0x9A, 0x3E]),
            (json!("bfloat16"), json!(1.0), &[0x80, 0x3F]),
            (json!("complex64"), json!([1.0, "NaN"]), &[0, 0, 0x80, 0x3F, 0, 0, 0xC0, 0x7F]),
            (time, json!("NaT"), &[0, 0, 0, 0, 0, 0, 0, 0x80]),
            (utf32, json!("a"), &[97, 0, 0, 0, 0, 0, 0, 0]),
            (chars, json!("YWI="), b"ab\0"),
            (json!("int32"), Value::Null, &[0; 4]),
        ];
        for (data_type, fill, wanted) in cases {
            assert_eq!(bytes(data_type.clone(), fill.clone()).as_deref(), Some(wanted), "{data_type} {fill}");
        }
        for (data_type, fill) in [
            ("int8", json!(128)),
            ("uint8", json!(-1)),
            ("int8", json!("NaN")),
            ("float32", json!("0x7fc0")),
            ("bool", json!(0)),
            ("complex64", json!([1.0])),
            ("float64", json!({})),
            ("int64", json!(1e30)),
            ("int32", json!(0.5)),
        ] {
            assert_eq!(bytes(json!(data_type), fill.clone()), None, "{data_type} {fill}");
        }
    }
}
