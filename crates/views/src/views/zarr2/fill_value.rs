//! Fill values of version 3 as those of version 2.
//!
//! A value must be one that numpy takes for the data type: zarr-python 2 cannot list a group with
//! an array that has another one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::data_type::{ByteOrder, DataType};
use crate::views::half::{self, HalfForm};
use icechunkfs_format::zarr::members::{Members, list, quoted, shorten, string};

/// Most bytes of an element that is made of the fill values of its fields: a short document can
/// name long fields.
const MAX_ELEMENT: u64 = 64 << 10;

/// Returns the member `fill_value` of version 2 for the one of version 3, both as JSON.
pub(super) fn map(data_type: &DataType, text: &str, order: ByteOrder) -> Result<String, String> {
    if text == "null" {
        return Ok(text.to_owned());
    }
    let mapped = match data_type {
        DataType::Bool => ["true", "false"].contains(&text).then(|| text.to_owned()),
        DataType::Integer { signed, size } => integer(text, *signed, *size),
        DataType::Float(size) => float(text, *size),
        DataType::Complex(size) => complex(text, size / 2),
        DataType::Time { .. } => match string(text) {
            Some(name) => (name == "NaT").then(|| i64::MIN.to_string()),
            None => integer(text, true, 8),
        },
        DataType::Bytes(length) => bytes(text).filter(|bytes| bytes.len() as u64 <= *length).map(encode),
        DataType::Raw(length) => bytes(text).filter(|bytes| bytes.len() as u64 == *length).map(encode),
        DataType::Text(length) => {
            string(text).filter(|text| text.chars().count() as u64 <= *length).map(|text| quoted(&text))
        }
        DataType::String => string(text).map(|text| quoted(&text)),
        // Version 2 has no form for others.
        DataType::VariableBytes => bytes(text).filter(Vec::is_empty).map(|_| "\"\"".to_owned()),
        DataType::Structure(_) => structure(text, data_type, order),
    };
    mapped.ok_or_else(|| format!("fill value {} for {}", shorten(text), shorten(&data_type.dtype(order))))
}

/// Returns the fill value of an array of which every chunk exists. Programs then read it nowhere
/// but as the mark of missing values: it is the attribute `_FillValue`, as in version 3, or null.
pub(super) fn of_complete(data_type: &DataType, attribute: Option<&str>) -> String {
    let is_number = matches!(
        data_type,
        DataType::Integer { .. } | DataType::Float(_) | DataType::Complex(_) | DataType::Time { .. }
    );
    let mapped = attribute.filter(|_| is_number).and_then(|text| map(data_type, text, ByteOrder::Little).ok());
    mapped.unwrap_or_else(|| "null".to_owned())
}

fn integer(text: &str, signed: bool, size: u8) -> Option<String> {
    let value: i128 = match text.parse() {
        Ok(value) => value,
        // Some writers write whole numbers as 1.0.
        Err(_) => {
            let value: f64 = text.parse().ok().filter(|value: &f64| value.fract() == 0.0)?;
            (value.abs() < 2_f64.powi(53)).then_some(value as i128)?
        }
    };
    let bits = u32::from(size) * 8;
    let range = if signed { -(1_i128 << (bits - 1))..1_i128 << (bits - 1) } else { 0..1_i128 << bits };
    range.contains(&value).then(|| value.to_string())
}

/// Maps a number, a name such as `NaN`, or the bits of a number in hexadecimal.
fn float(text: &str, size: u8) -> Option<String> {
    let Some(name) = string(text) else {
        let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite())?;
        // Digits that Python takes for a whole number of any size may be too many for a float.
        return Some(if text.len() <= 40 { text.to_owned() } else { serde_json::Value::from(value).to_string() });
    };
    if ["NaN", "Infinity", "-Infinity"].contains(&name.as_str()) {
        return Some(quoted(&name));
    }
    let is_hexadecimal = |digits: &&str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let digits =
        name.strip_prefix("0x").filter(|digits| digits.len() == usize::from(size) * 2).filter(is_hexadecimal)?;
    let bits = u64::from_str_radix(digits, 16).ok()?;
    Some(of_float(match size {
        2 => f64::from(half::to_float(u16::try_from(bits).ok()?)),
        4 => f64::from(f32::from_bits(u32::try_from(bits).ok()?)),
        _ => f64::from_bits(bits),
    }))
}

/// Returns a float as JSON, with the names of Zarr for those that JSON lacks.
pub(super) fn of_float(value: f64) -> String {
    if value.is_nan() {
        "\"NaN\"".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "\"Infinity\"".to_owned() } else { "\"-Infinity\"".to_owned() }
    } else {
        serde_json::Value::from(value).to_string()
    }
}

fn complex(text: &str, size: u8) -> Option<String> {
    match list(text)?.as_slice() {
        [real, imaginary] => Some(format!("[{},{}]", float(real, size)?, float(imaginary, size)?)),
        _ => None,
    }
}

/// Parses base64, or a list of numbers below 256.
fn bytes(text: &str) -> Option<Vec<u8>> {
    match string(text) {
        Some(encoded) => STANDARD.decode(encoded).ok(),
        None => list(text)?.into_iter().map(|byte| byte.parse().ok()).collect(),
    }
}

fn encode(bytes: Vec<u8>) -> String {
    quoted(&STANDARD.encode(bytes))
}

/// Maps the bytes of an element, or an object with the fill value of each field, as zarr-python
/// writes them from 3.2 on.
fn structure(text: &str, data_type: &DataType, order: ByteOrder) -> Option<String> {
    let DataType::Structure(fields) = data_type else { return None };
    if let Ok(members) = Members::parse(text) {
        data_type.item_size().filter(|size| *size <= MAX_ELEMENT)?;
        let parts = fields.iter().map(|(name, field)| element(members.get(name)?, field, order));
        return Some(encode(parts.collect::<Option<Vec<_>>>()?.concat()));
    }
    let value = bytes(text).filter(|bytes| Some(bytes.len() as u64) == data_type.item_size())?;
    // The bytes are in little-endian order, and version 2 takes them in the order of the array.
    (order == ByteOrder::Little || value.iter().all(|byte| *byte == 0)).then(|| encode(value))
}

/// Returns the bytes of a fill value of version 3 of one field.
fn element(text: &str, field: &DataType, order: ByteOrder) -> Option<Vec<u8>> {
    let ordered = |mut little: Vec<u8>| {
        if order == ByteOrder::Big {
            little.reverse();
        }
        little
    };
    let whole = |text: &str, signed, size: u8| {
        let value: i128 = integer(text, signed, size)?.parse().ok()?;
        Some(ordered(value.to_le_bytes().into_iter().take(usize::from(size)).collect()))
    };
    let part = |text: &str, size| float_bytes(text, size).map(ordered);
    match field {
        DataType::Bool => Some(vec![u8::from(text.parse::<bool>().ok()?)]),
        DataType::Integer { signed, size } => whole(text, *signed, *size),
        DataType::Float(size) => part(text, *size),
        DataType::Complex(size) => match list(text)?.as_slice() {
            [real, imaginary] => Some([part(real, size / 2)?, part(imaginary, size / 2)?].concat()),
            _ => None,
        },
        DataType::Time { .. } => match string(text) {
            Some(name) => (name == "NaT").then(|| ordered(i64::MIN.to_le_bytes().to_vec())),
            None => whole(text, true, 8),
        },
        DataType::Bytes(length) => padded(bytes(text)?, *length),
        DataType::Raw(length) => bytes(text).filter(|bytes| bytes.len() as u64 == *length),
        DataType::Text(length) => {
            let letters = string(text)?;
            let letters = letters.chars().flat_map(|letter| ordered(u32::from(letter).to_le_bytes().to_vec()));
            padded(letters.collect(), length.checked_mul(4)?)
        }
        DataType::String | DataType::VariableBytes | DataType::Structure(_) => None,
    }
}

/// Returns the bytes of a floating-point number of `size` bytes, little-endian.
fn float_bytes(text: &str, size: u8) -> Option<Vec<u8>> {
    if let Some(digits) = string(text).and_then(|name| name.strip_prefix("0x").map(str::to_owned)) {
        // Checked like any other.
        float(text, size)?;
        let bits = u64::from_str_radix(&digits, 16).ok()?;
        return bits.to_le_bytes().get(..usize::from(size)).map(<[u8]>::to_vec);
    }
    let value = match string(text).as_deref() {
        Some("NaN") => f64::NAN,
        Some("Infinity") => f64::INFINITY,
        Some("-Infinity") => f64::NEG_INFINITY,
        Some(_) => return None,
        None => text.parse().ok().filter(|value: &f64| value.is_finite())?,
    };
    Some(match size {
        2 => HalfForm::Ieee.nearest(value).to_le_bytes().to_vec(),
        4 => (value as f32).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    })
}

/// Returns `bytes` with zeros up to `length`; none if there are more.
fn padded(mut bytes: Vec<u8>, length: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(length).ok().filter(|length| bytes.len() <= *length)?;
    bytes.resize(length, 0);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn mapped(data_type: &str, text: &str) -> Option<String> {
        map(&DataType::parse(data_type).unwrap(), text, ByteOrder::Little).ok()
    }

    #[test]
    fn values_of_every_type() {
        let text = r#"{"name":"fixed_length_utf32","configuration":{"length_bytes":8}}"#;
        let times = r#"{"name":"numpy.datetime64","configuration":{"unit":"ns"}}"#;
        let short = r#"{"name":"null_terminated_bytes","configuration":{"length_bytes":3}}"#;
        let structure = r#"{"name":"structured","configuration":{"fields":[["a","int16"],["b","uint8"]]}}"#;
        for (data_type, v3, v2) in [
            (r#""bool""#, "true", "true"),
            (r#""int8""#, "-128", "-128"),
            (r#""uint64""#, "18446744073709551615", "18446744073709551615"),
            (r#""int32""#, "1.0", "1"),
            (r#""int32""#, "null", "null"),
            (r#""float64""#, "0.30000000000000004", "0.30000000000000004"),
            (r#""float64""#, "-0.0", "-0.0"),
            (r#""float32""#, r#""NaN""#, r#""NaN""#),
            (r#""float32""#, r#""-Infinity""#, r#""-Infinity""#),
            (r#""float32""#, r#""0x7fc00001""#, r#""NaN""#),
            (r#""float32""#, r#""0x3f800000""#, "1.0"),
            (r#""float16""#, r#""0x3c00""#, "1.0"),
            (r#""float16""#, r#""0x0001""#, "5.960464477539063e-8"),
            (r#""float16""#, r#""0xfc00""#, r#""-Infinity""#),
            (r#""float64""#, r#""0xfff0000000000000""#, r#""-Infinity""#),
            (r#""complex64""#, r#"[1, "NaN"]"#, r#"[1,"NaN"]"#),
            (r#""complex128""#, r#"["0x3ff0000000000000",0]"#, "[1.0,0]"),
            (times, r#""NaT""#, "-9223372036854775808"),
            (times, "7", "7"),
            (r#""r16""#, "[1,255]", r#""Af8=""#),
            (r#""r16""#, r#""Af8=""#, r#""Af8=""#),
            (short, r#""YQ==""#, r#""YQ==""#),
            (text, r#""\u00e9\ud83d\ude00""#, "\"\u{e9}\u{1f600}\""),
            (r#""string""#, r#""a\"b""#, r#""a\"b""#),
            (r#""variable_length_bytes""#, r#""""#, r#""""#),
            (structure, r#""AQACAA==""#, ""),
            (structure, r#""AQAC""#, r#""AQAC""#),
        ] {
            assert_eq!(mapped(data_type, v3).unwrap_or_default(), v2, "{data_type} {v3}");
        }
    }

    #[test]
    fn values_that_numpy_refuses_are_errors() {
        for (data_type, text) in [
            (r#""bool""#, "1"),
            (r#""bool""#, r#""true""#),
            (r#""int8""#, "128"),
            (r#""uint8""#, "-1"),
            (r#""uint64""#, "18446744073709551616"),
            (r#""int64""#, "1e300"),
            (r#""int64""#, "0.5"),
            (r#""int64""#, r#""1""#),
            (r#""float32""#, r#""nan""#),
            (r#""float32""#, r#""0x7fc0""#),
            (r#""float32""#, r#""0x+fc00000""#),
            (r#""float32""#, "true"),
            (r#""float64""#, "1e999"),
            (r#""float64""#, "[]"),
            (r#""complex64""#, "1"),
            (r#""complex64""#, "[1]"),
            (r#""complex64""#, "[1,2,3]"),
            (r#""r16""#, "[1,256]"),
            (r#""r16""#, "[1]"),
            (r#""r16""#, r#""!""#),
            (r#""string""#, "7"),
            (r#""string""#, r#""\ud800""#),
            (r#""variable_length_bytes""#, r#""AA==""#),
        ] {
            assert_eq!(mapped(data_type, text), None, "{data_type} {text}");
        }
        let long = mapped(r#""float64""#, &"9".repeat(300)).unwrap();
        assert_eq!(long, "1e+300");
        let data_type = DataType::parse(r#"{"name":"structured","configuration":{"fields":[["a","int16"]]}}"#).unwrap();
        assert!(map(&data_type, r#""AQA=""#, ByteOrder::Big).is_err());
        assert!(map(&data_type, r#""AAA=""#, ByteOrder::Big).is_ok());
    }

    #[test]
    fn structures_have_a_fill_value_for_each_field() {
        let fields = [
            r#"{"name":"a","data_type":"int16"}"#,
            r#"{"name":"b","data_type":"float32"}"#,
            r#"{"name":"c","data_type":{"name":"numpy.datetime64","configuration":{"unit":"ns","scale_factor":1}}}"#,
            r#"{"name":"d","data_type":{"name":"null_terminated_bytes","configuration":{"length_bytes":3}}}"#,
            r#"{"name":"e","data_type":{"name":"fixed_length_utf32","configuration":{"length_bytes":8}}}"#,
            r#"{"name":"f","data_type":"complex64"}"#,
            r#"{"name":"g","data_type":"bool"}"#,
            r#"{"name":"h","data_type":"float16"}"#,
            r#"{"name":"i","data_type":{"name":"raw_bytes","configuration":{"length_bytes":2}}}"#,
        ];
        let text = format!(r#"{{"name":"struct","configuration":{{"fields":[{}]}}}}"#, fields.join(","));
        let data_type = DataType::parse(&text).unwrap();
        let fill =
            r#"{"a":-2,"b":"NaN","c":"NaT","d":"YQ==","e":"b","f":[1.5,"-Infinity"],"g":true,"h":0.5,"i":"Af8="}"#;
        let decoded = |order| {
            let mapped: String = serde_json::from_str(&map(&data_type, fill, order).unwrap()).unwrap();
            STANDARD.decode(mapped).unwrap()
        };
        let little = [
            &[0xFE, 0xFF][..],
            &[0, 0, 0xC0, 0x7F],
            &[0, 0, 0, 0, 0, 0, 0, 0x80],
            b"a\0\0",
            b"b\0\0\0\0\0\0\0",
            &[0, 0, 0xC0, 0x3F, 0, 0, 0x80, 0xFF],
            &[1],
            &[0, 0x38],
            &[1, 0xFF],
        ];
        assert_eq!(decoded(ByteOrder::Little), little.concat());
        let big = [
            &[0xFF, 0xFE][..],
            &[0x7F, 0xC0, 0, 0],
            &[0x80, 0, 0, 0, 0, 0, 0, 0],
            b"a\0\0",
            b"\0\0\0b\0\0\0\0",
            &[0x3F, 0xC0, 0, 0, 0xFF, 0x80, 0, 0],
            &[1],
            &[0x38, 0],
            &[1, 0xFF],
        ];
        assert_eq!(decoded(ByteOrder::Big), big.concat());
        let small = r#"{"name":"struct","configuration":{"fields":[{"name":"a","data_type":"int8"},{"name":"b","data_type":"float64"}]}}"#;
        assert!(mapped(small, r#"{"b":"0x7ff8000000000001","a":7}"#).is_some());
        for wrong in [
            r#"{"a":7}"#,
            r#"{"a":128,"b":0}"#,
            r#"{"a":0,"b":"x"}"#,
            r#"{"a":0,"b":[1]}"#,
            "{}",
            r#"{"a":0,"b":"0x+f"}"#,
        ] {
            assert_eq!(mapped(small, wrong), None, "{wrong}");
        }
        let long = |bytes: u64| {
            let data_type = json!({"name": "null_terminated_bytes", "configuration": {"length_bytes": bytes}});
            let fields = json!([{"name": "a", "data_type": data_type}]);
            mapped(&json!({"name": "struct", "configuration": {"fields": fields}}).to_string(), r#"{"a":""}"#)
        };
        assert!(long(MAX_ELEMENT).is_some() && long(MAX_ELEMENT + 1).is_none() && long(i32::MAX as u64).is_none());
    }

    #[test]
    fn a_complete_array_has_the_missing_value_as_fill_value() {
        let float = DataType::Float(4);
        assert_eq!(of_complete(&float, None), "null");
        assert_eq!(of_complete(&float, Some("-1.5")), "-1.5");
        assert_eq!(of_complete(&float, Some("\"text\"")), "null");
        assert_eq!(of_complete(&DataType::String, Some("\"text\"")), "null");
    }
}
