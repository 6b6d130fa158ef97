//! Data types of version 2 as those of version 3, with their fill values.

use data_encoding::BASE64;
use half::f16;
use icechunkfs_base::error::Result;
use serde_json::{Number, Value, json};

use super::{shown, unsupported};
use crate::attributes::encoded;
use crate::element::named;

/// Largest size of an element in numpy, in bytes.
const MAX_ITEM: u64 = i32::MAX as u64;

/// Data type of an array of version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DataType2 {
    kind: Kind,
    /// Name in version 2.
    dtype: String,
    /// True if the bytes of an element have the first one first.
    pub(super) is_big: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    /// Whole number: its name in version 3, and its bytes.
    Integer(&'static str, u64),
    /// Floating-point number, likewise.
    Float(&'static str, u64),
    /// Complex number, likewise.
    Complex(&'static str, u64),
    /// Point in time or duration: its name in version 3, its unit, and how many of it are one.
    Time(&'static str, String, u64),
    /// Bytes of a length, padded with zeros.
    Bytes(u64),
    /// Text of so many code points.
    Text(u64),
    /// Text of any length.
    String,
}

impl DataType2 {
    /// Parses the member `dtype` of an array with `filters`.
    pub(super) fn parse(dtype: &Value, filters: &[Value]) -> Result<Self> {
        let Value::String(text) = dtype else { return Err(unsupported("structures as elements")) };
        let unknown = || unsupported(format!("elements of type {}", shown(text)));
        let mark = text.chars().next().ok_or_else(unknown)?;
        let code = text.get(mark.len_utf8()..).filter(|_| "<>|".contains(mark)).ok_or_else(unknown)?;
        let kind = match code {
            "b1" => Kind::Bool,
            "i1" => Kind::Integer("int8", 1),
            "i2" => Kind::Integer("int16", 2),
            "i4" => Kind::Integer("int32", 4),
            "i8" => Kind::Integer("int64", 8),
            "u1" => Kind::Integer("uint8", 1),
            "u2" => Kind::Integer("uint16", 2),
            "u4" => Kind::Integer("uint32", 4),
            "u8" => Kind::Integer("uint64", 8),
            "f2" => Kind::Float("float16", 2),
            "f4" => Kind::Float("float32", 4),
            "f8" => Kind::Float("float64", 8),
            "c8" => Kind::Complex("complex64", 8),
            "c16" => Kind::Complex("complex128", 16),
            "O" if filters.iter().any(|filter| filter.get("id").is_some_and(|id| id == "vlen-utf8")) => Kind::String,
            _ => with_length(code).ok_or_else(unknown)?,
        };
        Ok(DataType2 { kind, dtype: text.clone(), is_big: mark == '>' })
    }

    /// Returns the bytes of an element; none if they vary.
    pub(super) fn size(&self) -> Option<u64> {
        match &self.kind {
            Kind::Bool => Some(1),
            Kind::Integer(_, size) | Kind::Float(_, size) | Kind::Complex(_, size) | Kind::Bytes(size) => Some(*size),
            Kind::Time(..) => Some(8),
            Kind::Text(length) => Some(4 * length),
            Kind::String => None,
        }
    }

    /// Returns true if the bytes of an element have an order.
    pub(super) fn has_order(&self) -> bool {
        !matches!(self.kind, Kind::Bool | Kind::Bytes(_) | Kind::String) && self.size() != Some(1)
    }

    /// Returns the member `data_type`.
    pub(super) fn of_version_3(&self) -> Value {
        match &self.kind {
            Kind::Bool => json!("bool"),
            Kind::Integer(name, _) | Kind::Float(name, _) | Kind::Complex(name, _) => json!(name),
            Kind::Time(name, unit, scale) => {
                json!({"name": name, "configuration": {"unit": unit, "scale_factor": scale}})
            }
            Kind::Bytes(length) => json!({"name": "null_terminated_bytes", "configuration": {"length_bytes": length}}),
            Kind::Text(length) => json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 4 * length}}),
            Kind::String => json!("string"),
        }
    }

    /// Returns true if `dtype` is the type, as version 2 spells it.
    pub(super) fn is_numpy(&self, dtype: Option<&Value>) -> bool {
        dtype.and_then(Value::as_str) == Some(self.dtype.as_str())
    }

    /// Returns true for floating-point numbers.
    pub(super) fn is_float(&self) -> bool {
        matches!(self.kind, Kind::Float(..))
    }

    /// Returns the fill value of version 3: version 2 may have none.
    pub(super) fn fill_value(&self, value: &Value) -> Result<Value> {
        let found = match (&self.kind, value) {
            (Kind::Bool, Value::Null) => Some(json!(false)),
            (Kind::Bool, Value::Bool(_)) => Some(value.clone()),
            (Kind::Bool, Value::Number(number)) => number.as_u64().filter(|bit| *bit < 2).map(|bit| json!(bit == 1)),
            (Kind::Integer(..), Value::Null) => Some(json!(0)),
            (Kind::Integer(..), Value::Number(number)) => whole(number),
            (Kind::Float(..), Value::Null) => Some(json!(0.0)),
            (Kind::Float(..), value) => part(value),
            (Kind::Complex(..), Value::Null) => Some(json!([0.0, 0.0])),
            (Kind::Complex(..), Value::Array(parts)) if parts.len() == 2 => {
                parts.iter().map(part).collect::<Option<Vec<Value>>>().map(Value::Array)
            }
            (Kind::Time(..), Value::Null) => Some(json!("NaT")),
            (Kind::Time(..), Value::String(text)) if text == "NaT" => Some(value.clone()),
            (Kind::Time(..), Value::Number(number)) => number.as_i64().map(Value::from),
            (Kind::Bytes(_) | Kind::Text(_) | Kind::String, Value::Null) => Some(json!("")),
            // As zarr-python makes a text of it.
            (Kind::String, Value::Number(number)) if number.as_u64() == Some(0) => Some(json!("0")),
            (Kind::Text(_) | Kind::String, Value::String(_)) => Some(value.clone()),
            (Kind::Bytes(_), Value::String(text)) if BASE64.decode(text.as_bytes()).is_ok() => Some(value.clone()),
            _ => None,
        };
        found.ok_or_else(|| unsupported(format!("fill value {} of other elements", shown(&value.to_string()))))
    }

    /// Returns the attribute by which xarray marks elements with the fill value `value`, in its
    /// form; none if it marks none of the type.
    pub(super) fn mark(&self, value: &Value) -> Option<Value> {
        match &self.kind {
            Kind::Bool | Kind::Integer(..) => Some(value.clone()),
            Kind::Float(_, size) => base64(value, *size),
            Kind::Complex(_, size) => {
                let parts = value.as_array()?.iter().map(|part| base64(part, size / 2));
                parts.collect::<Option<Vec<Value>>>().map(Value::Array)
            }
            Kind::Time(..) | Kind::Bytes(_) | Kind::Text(_) | Kind::String => None,
        }
    }
}

/// Returns a type with a number in its name.
fn with_length(code: &str) -> Option<Kind> {
    if let Some(unit) = code.strip_prefix("M8").or_else(|| code.strip_prefix("m8")) {
        let unit = unit.strip_prefix('[')?.strip_suffix(']')?;
        let digits = unit.chars().take_while(char::is_ascii_digit).count();
        let (scale, unit) = unit.split_at_checked(digits)?;
        let scale =
            if scale.is_empty() { 1 } else { scale.parse().ok().filter(|scale| (1..=MAX_ITEM).contains(scale))? };
        let is_unit = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"].contains(&unit);
        let name = if code.starts_with('M') { "numpy.datetime64" } else { "numpy.timedelta64" };
        return is_unit.then(|| Kind::Time(name, unit.to_owned(), scale));
    }
    let length = |code: &str| code.parse::<u64>().ok().filter(|length| (1..=MAX_ITEM / 4).contains(length));
    match code.split_at_checked(1)? {
        ("S", rest) => length(rest).map(Kind::Bytes),
        ("U", rest) => length(rest).map(Kind::Text),
        _ => None,
    }
}

/// Returns a whole number, which Python may have written as 0.0.
fn whole(number: &Number) -> Option<Value> {
    if number.is_i64() || number.is_u64() {
        return Some(Value::Number(number.clone()));
    }
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 2_f64.powi(53))?;
    #[allow(clippy::cast_possible_truncation, reason = "a whole number of less than 2^53")]
    let whole = float as i64;
    Some(json!(whole))
}

/// Returns a floating-point number as version 3 has it.
fn part(value: &Value) -> Option<Value> {
    match value {
        Value::Number(_) => Some(value.clone()),
        Value::String(text) if named(text).is_some() => Some(value.clone()),
        _ => None,
    }
}

/// Returns the number that elements of `size` bytes have, as xarray encodes it in attributes.
fn base64(value: &Value, size: u64) -> Option<Value> {
    let number = value.as_f64().or_else(|| named(value.as_str()?))?;
    #[allow(clippy::cast_possible_truncation, reason = "it is rounded as the elements are")]
    let rounded = match size {
        2 => f64::from(f16::from_f64(number)),
        4 => f64::from(number as f32),
        _ => number,
    };
    Some(encoded(rounded))
}
