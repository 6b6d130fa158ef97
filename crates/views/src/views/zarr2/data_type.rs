//! Data types of version 3 as those of version 2.

use icechunkfs_format::zarr::members::{Extension, Members, integer, list, quoted, shorten, string};

/// Largest size of an element in numpy, in bytes.
const MAX_ITEM: u64 = i32::MAX as u64;
/// Most fields of a structure.
const MAX_FIELDS: usize = 1000;
/// Units of times.
const UNITS: [&str; 13] = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"];

/// Order of the bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

/// Data type that version 2 has, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DataType {
    Bool,
    /// Whole number with its sign and bytes.
    Integer {
        signed: bool,
        size: u8,
    },
    /// Floating-point number with its bytes.
    Float(u8),
    /// Complex number with the bytes of both parts together.
    Complex(u8),
    /// Point in time (`M`) or duration (`m`), with its unit in brackets.
    Time {
        code: char,
        unit: String,
    },
    /// Bytes of a length, padded with zeros.
    Bytes(u64),
    /// Opaque bytes of a length.
    Raw(u64),
    /// Text with a number of code points.
    Text(u64),
    /// Text of any length.
    String,
    /// Bytes of any length.
    VariableBytes,
    /// Fields with their names.
    Structure(Vec<(String, DataType)>),
}

impl DataType {
    /// Parses the member `data_type`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let extension = Extension::parse(text, "data type")?;
        match extension.name.as_str() {
            "structured" | "struct" => fields(&extension.configuration),
            _ => simple(&extension),
        }
    }

    /// Returns the number type `text` of numpy, such as `float32` or `<f4`; none for others.
    pub(super) fn from_numpy(text: &str) -> Option<Self> {
        let short = text.strip_prefix(['<', '>', '=', '|']).unwrap_or(text);
        number(text).or_else(|| {
            Some(match short {
                "b1" => DataType::Bool,
                "i1" | "i2" | "i4" | "i8" | "u1" | "u2" | "u4" | "u8" => {
                    DataType::Integer { signed: short.starts_with('i'), size: short.get(1..)?.parse().ok()? }
                }
                "f2" | "f4" | "f8" => DataType::Float(short.get(1..)?.parse().ok()?),
                "c8" | "c16" => DataType::Complex(short.get(1..)?.parse().ok()?),
                _ => return None,
            })
        })
    }

    /// Returns the bytes of an element; none if they vary.
    pub(super) fn item_size(&self) -> Option<u64> {
        Some(match self {
            DataType::Bool => 1,
            DataType::Integer { size, .. } | DataType::Float(size) | DataType::Complex(size) => u64::from(*size),
            DataType::Time { .. } => 8,
            DataType::Bytes(length) | DataType::Raw(length) => *length,
            DataType::Text(length) => 4 * length,
            DataType::String | DataType::VariableBytes => return None,
            DataType::Structure(fields) => {
                fields.iter().try_fold(0_u64, |sum, (_, field)| sum.checked_add(field.item_size()?))?
            }
        })
    }

    /// Returns true if the bytes of an element have an order.
    pub(super) fn has_order(&self) -> bool {
        match self {
            DataType::Bool | DataType::Bytes(_) | DataType::Raw(_) | DataType::String | DataType::VariableBytes => {
                false
            }
            DataType::Integer { size, .. } => *size > 1,
            DataType::Float(_) | DataType::Complex(_) | DataType::Time { .. } | DataType::Text(_) => true,
            DataType::Structure(fields) => fields.iter().any(|(_, field)| field.has_order()),
        }
    }

    /// Returns the member `dtype`, as JSON.
    pub(super) fn dtype(&self, order: ByteOrder) -> String {
        let mark = match order {
            _ if !self.has_order() => '|',
            ByteOrder::Little => '<',
            ByteOrder::Big => '>',
        };
        match self {
            DataType::Bool => "\"|b1\"".to_owned(),
            DataType::Integer { signed, size } => format!("\"{mark}{}{size}\"", if *signed { 'i' } else { 'u' }),
            DataType::Float(size) => format!("\"{mark}f{size}\""),
            DataType::Complex(size) => format!("\"{mark}c{size}\""),
            DataType::Time { code, unit } => format!("\"{mark}{code}8{unit}\""),
            DataType::Bytes(length) => format!("\"|S{length}\""),
            DataType::Raw(length) => format!("\"|V{length}\""),
            DataType::Text(length) => format!("\"{mark}U{length}\""),
            DataType::String | DataType::VariableBytes => "\"|O\"".to_owned(),
            DataType::Structure(fields) => {
                let fields: Vec<String> =
                    fields.iter().map(|(name, field)| format!("[{},{}]", quoted(name), field.dtype(order))).collect();
                format!("[{}]", fields.join(","))
            }
        }
    }
}

/// Returns the number type with `name`; none for others.
fn number(name: &str) -> Option<DataType> {
    let integer = |signed, size| DataType::Integer { signed, size };
    Some(match name {
        "bool" => DataType::Bool,
        "int8" => integer(true, 1),
        "int16" => integer(true, 2),
        "int32" => integer(true, 4),
        "int64" => integer(true, 8),
        "uint8" => integer(false, 1),
        "uint16" => integer(false, 2),
        "uint32" => integer(false, 4),
        "uint64" => integer(false, 8),
        "float16" => DataType::Float(2),
        "float32" => DataType::Float(4),
        "float64" => DataType::Float(8),
        "complex64" => DataType::Complex(8),
        "complex128" => DataType::Complex(16),
        _ => return None,
    })
}

/// Returns the type of a single value.
fn simple(extension: &Extension<'_>) -> Result<DataType, String> {
    let name = extension.name.as_str();
    let configuration = &extension.configuration;
    let unknown = || format!("version 2 has no data type `{}`", shorten(name));
    let length = || {
        let bytes = configuration.get("length_bytes").and_then(|text| text.parse::<u64>().ok());
        let bytes = bytes.filter(|bytes| (1..=MAX_ITEM).contains(bytes));
        bytes.ok_or_else(|| format!("data type `{name}` without a length that programs can read"))
    };
    if let Some(number) = number(name) {
        return Ok(number);
    }
    Ok(match name {
        "numpy.datetime64" => time('M', configuration)?,
        "numpy.timedelta64" => time('m', configuration)?,
        "null_terminated_bytes" => DataType::Bytes(length()?),
        "raw_bytes" => DataType::Raw(length()?),
        "fixed_length_utf32" => match length()? {
            bytes if bytes % 4 == 0 => DataType::Text(bytes / 4),
            bytes => return Err(format!("data type `{name}` of {bytes} bytes")),
        },
        "string" => DataType::String,
        "variable_length_bytes" | "bytes" => DataType::VariableBytes,
        raw => {
            let bits = raw.strip_prefix('r').and_then(|bits| bits.parse::<u64>().ok()).ok_or_else(unknown)?;
            match bits / 8 {
                bytes if bits % 8 == 0 && (1..=MAX_ITEM).contains(&bytes) => DataType::Raw(bytes),
                _ => return Err(unknown()),
            }
        }
    })
}

fn time(code: char, configuration: &Members<'_>) -> Result<DataType, String> {
    let unit = configuration.get("unit").and_then(string);
    let unit = unit.as_deref().map(|unit| if matches!(unit, "μs" | "µs") { "us" } else { unit });
    let scale = configuration.get("scale_factor").map_or(Some(1), integer);
    match (unit.filter(|unit| UNITS.contains(unit)), scale) {
        (Some(unit), Some(1)) => Ok(DataType::Time { code, unit: format!("[{unit}]") }),
        (Some(unit), Some(scale)) if (1..=i64::from(i32::MAX)).contains(&scale) => {
            Ok(DataType::Time { code, unit: format!("[{scale}{unit}]") })
        }
        (Some(_), _) => Err("a time of an impossible scale".to_owned()),
        (None, _) => Err("a time without a unit that programs can read".to_owned()),
    }
}

/// Parses the fields of a structure: pairs of name and type, or objects with these members.
fn fields(configuration: &Members<'_>) -> Result<DataType, String> {
    let wrong = || "a structure whose fields have no names and types".to_owned();
    let listed = configuration.get("fields").and_then(list).ok_or_else(wrong)?;
    if listed.is_empty() || listed.len() > MAX_FIELDS {
        return Err(format!("a structure of {} fields", listed.len()));
    }
    let mut fields: Vec<(String, DataType)> = Vec::with_capacity(listed.len());
    for field in listed {
        let (name, data_type) = match list(field).as_deref() {
            Some([name, data_type]) => (string(name), Some(*data_type)),
            Some(_) => return Err(wrong()),
            None => {
                let members = Members::parse(field).map_err(|_| wrong())?;
                (members.get("name").and_then(string), members.get("data_type"))
            }
        };
        let (Some(name), Some(data_type)) = (name, data_type) else { return Err(wrong()) };
        if name.is_empty() || fields.iter().any(|(other, _)| *other == name) {
            return Err("a structure with two fields of one name, or a field without a name".to_owned());
        }
        let data_type = simple(&Extension::parse(data_type, "data type")?)?;
        if data_type.item_size().is_none() {
            return Err("a structure with a field of variable length".to_owned());
        }
        fields.push((name, data_type));
    }
    let structure = DataType::Structure(fields);
    match structure.item_size() {
        Some(1..=MAX_ITEM) => Ok(structure),
        _ => Err("a structure that is too large".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn types_of_both_versions() {
        for (v3, little, big, size) in [
            (r#""bool""#, "|b1", "|b1", Some(1)),
            (r#""int8""#, "|i1", "|i1", Some(1)),
            (r#""uint8""#, "|u1", "|u1", Some(1)),
            (r#""int16""#, "<i2", ">i2", Some(2)),
            (r#""int32""#, "<i4", ">i4", Some(4)),
            (r#""int64""#, "<i8", ">i8", Some(8)),
            (r#""uint16""#, "<u2", ">u2", Some(2)),
            (r#""uint32""#, "<u4", ">u4", Some(4)),
            (r#""uint64""#, "<u8", ">u8", Some(8)),
            (r#""float16""#, "<f2", ">f2", Some(2)),
            (r#""float32""#, "<f4", ">f4", Some(4)),
            (r#"{"name":"float64"}"#, "<f8", ">f8", Some(8)),
            (r#""complex64""#, "<c8", ">c8", Some(8)),
            (r#""complex128""#, "<c16", ">c16", Some(16)),
            (r#""r24""#, "|V3", "|V3", Some(3)),
            (r#"{"name":"raw_bytes","configuration":{"length_bytes":5}}"#, "|V5", "|V5", Some(5)),
            (r#"{"name":"null_terminated_bytes","configuration":{"length_bytes":7}}"#, "|S7", "|S7", Some(7)),
            (r#"{"name":"fixed_length_utf32","configuration":{"length_bytes":20}}"#, "<U5", ">U5", Some(20)),
            (
                r#"{"name":"numpy.datetime64","configuration":{"unit":"ns","scale_factor":10}}"#,
                "<M8[10ns]",
                ">M8[10ns]",
                Some(8),
            ),
            (
                r#"{"name":"numpy.timedelta64","configuration":{"unit":"μs","scale_factor":1}}"#,
                "<m8[us]",
                ">m8[us]",
                Some(8),
            ),
            (r#""string""#, "|O", "|O", None),
            (r#""variable_length_bytes""#, "|O", "|O", None),
        ] {
            let parsed = DataType::parse(v3).unwrap();
            assert_eq!(parsed.dtype(ByteOrder::Little), format!("\"{little}\""), "{v3}");
            assert_eq!(parsed.dtype(ByteOrder::Big), format!("\"{big}\""), "{v3}");
            assert_eq!(parsed.item_size(), size, "{v3}");
        }
    }

    #[test]
    fn structures_have_a_type_per_field() {
        let pairs = r#"{"name":"structured","configuration":{"fields":[["a","int32"],["b\"","uint8"]]}}"#;
        let objects = r#"{"name":"struct","configuration":{"fields":[{"name":"a","data_type":"int32"},{"name":"b\"","data_type":{"name":"uint8"}}]}}"#;
        for text in [pairs, objects] {
            let parsed = DataType::parse(text).unwrap();
            assert_eq!(parsed.dtype(ByteOrder::Big), r#"[["a",">i4"],["b\"","|u1"]]"#);
            assert_eq!(parsed.item_size(), Some(5));
        }
    }

    #[test]
    fn types_that_version_2_lacks_are_refused() {
        for text in [
            r#""bfloat16""#,
            r#""float8_e4m3fn""#,
            r#""int4""#,
            r#""uint2""#,
            r#""complex_bfloat16""#,
            r#""r12""#,
            r#""r0""#,
            r#""r""#,
            r#""r-8""#,
            r#""r99999999999999999999""#,
            r#""""#,
            "null",
            "7",
            "[]",
            "{}",
            r#"{"name":7}"#,
            r#"{"name":"int8","else":1}"#,
            r#"{"name":"raw_bytes"}"#,
            r#"{"name":"raw_bytes","configuration":{"length_bytes":0}}"#,
            r#"{"name":"raw_bytes","configuration":{"length_bytes":-1}}"#,
            r#"{"name":"raw_bytes","configuration":{"length_bytes":4294967296}}"#,
            r#"{"name":"fixed_length_utf32","configuration":{"length_bytes":6}}"#,
            r#"{"name":"numpy.datetime64","configuration":{"unit":"generic","scale_factor":1}}"#,
            r#"{"name":"numpy.datetime64","configuration":{"unit":"ns]","scale_factor":1}}"#,
            r#"{"name":"numpy.datetime64","configuration":{"unit":"ns","scale_factor":0}}"#,
            r#"{"name":"structured","configuration":{"fields":[]}}"#,
            r#"{"name":"structured","configuration":{"fields":[["a","int8"],["a","int8"]]}}"#,
            r#"{"name":"structured","configuration":{"fields":[["","int8"]]}}"#,
            r#"{"name":"structured","configuration":{"fields":[["a","string"]]}}"#,
            r#"{"name":"structured","configuration":{"fields":[["a"]]}}"#,
            r#"{"name":"structured","configuration":{"fields":[["a",{"name":"structured","configuration":{"fields":[["a","int8"]]}}]]}}"#,
        ] {
            assert!(DataType::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn types_of_numpy() {
        assert_eq!(DataType::from_numpy(">f4"), Some(DataType::Float(4)));
        assert_eq!(DataType::from_numpy("uint16"), Some(DataType::Integer { signed: false, size: 2 }));
        for wrong in ["", "O", "f3", "<", "i16", "\u{e9}1", "U4", "M8[ns]"] {
            assert_eq!(DataType::from_numpy(wrong), None, "{wrong}");
        }
    }
}
