//! Data types: how the elements of a Zarr array show in NetCDF.

use serde_json::Value;

use super::decode::chain::Item;
use super::decode::number::NumberType;
use super::hdf5::model::DataType;
use super::times::{Form, Times};
use crate::views::half;
use icechunkfs_base::error::Result;

/// Longest character dimension made of one element, in bytes.
const MAX_CHARS: u64 = 65_535;

/// Elements of an array as they are stored, and as a NetCDF variable shows them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ElementType {
    /// Bytes of a stored element, decoded.
    pub(super) size: usize,
    /// Bytes of the numbers that an element consists of.
    pub(super) number: usize,
    pub(super) shown: Shown,
    /// True if the attribute `_Unsigned` gives stored integers the other sign, which the variable
    /// has.
    pub(super) has_other_sign: bool,
    /// True if the variable has a type of classic programs.
    pub(super) classic: bool,
}

/// Form of elements in NetCDF.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shown {
    /// Same bytes.
    Number(DataType),
    /// Same bytes; attribute `dtype` tells that they are booleans.
    Boolean,
    /// Half-precision numbers, widened: programs cannot read them. True for bfloat16.
    Widened { is_bfloat: bool },
    /// Real and imaginary part along another dimension.
    Complex(DataType),
    /// Times and time spans, as numbers with `units`.
    Time(Times),
    /// Bytes along another dimension, if an element has more than one.
    Chars,
    /// UTF-32 as UTF-8, along another dimension.
    Utf32,
    /// Texts of any length, along another dimension as long as the longest.
    Texts,
}

impl ElementType {
    /// Parses member `data_type` of a `zarr.json`. Fails with the reason if NetCDF has no such
    /// type. `classic` is true for types that classic programs have.
    pub(super) fn parse(data_type: &Value, classic: bool) -> Result<Self, String> {
        let name =
            data_type.as_str().or_else(|| data_type.get("name")?.as_str()).ok_or("a data type without a name")?;
        let setting = |key: &str| data_type.get("configuration")?.get(key);
        let int = |size: u8, signed| Shown::Number(DataType::Int { size, signed });
        let (size, shown) = match name {
            "bool" => (1, Shown::Boolean),
            "int8" => (1, int(1, true)),
            "int16" => (2, int(2, true)),
            "int32" => (4, int(4, true)),
            "int64" => (8, int(8, true)),
            "uint8" => (1, int(1, false)),
            "uint16" => (2, int(2, false)),
            "uint32" => (4, int(4, false)),
            "uint64" => (8, int(8, false)),
            "float16" => (2, Shown::Widened { is_bfloat: false }),
            "bfloat16" => (2, Shown::Widened { is_bfloat: true }),
            "float32" => (4, Shown::Number(DataType::Float32)),
            "float64" => (8, Shown::Number(DataType::Float64)),
            "complex64" | "complex_float32" => (8, Shown::Complex(DataType::Float32)),
            "complex128" | "complex_float64" => (16, Shown::Complex(DataType::Float64)),
            "numpy.datetime64" | "numpy.timedelta64" => {
                (8, Shown::Time(Times::parse(data_type.get("configuration"), name == "numpy.timedelta64")))
            }
            "null_terminated_bytes" | "fixed_length_utf32" => {
                let bytes = setting("length_bytes").and_then(Value::as_u64).ok_or("a type without length_bytes")?;
                let is_utf32 = name == "fixed_length_utf32";
                if bytes == 0 || bytes > MAX_CHARS || (is_utf32 && bytes % 4 != 0) {
                    return Err(format!("elements of {bytes} bytes"));
                }
                (bytes as usize, if is_utf32 { Shown::Utf32 } else { Shown::Chars })
            }
            "string" => (0, Shown::Texts),
            _ => return Err(format!("data type {name}")),
        };
        let number = match &shown {
            Shown::Complex(_) => size / 2,
            Shown::Chars => 1,
            Shown::Utf32 => 4,
            _ => size,
        };
        Ok(ElementType { size, number, shown, has_other_sign: false, classic })
    }

    /// Returns the type whose integers are `unsigned`, as the attribute `_Unsigned` says of stored
    /// ones of the other kind: few programs obey it, and those that do not agree about the marks of
    /// missing values. The bytes are the same.
    #[must_use]
    pub(super) fn with_sign(mut self, unsigned: bool) -> Self {
        if let Shown::Number(DataType::Int { signed, .. }) = &mut self.shown
            && *signed == unsigned
        {
            *signed = !unsigned;
            self.has_other_sign = true;
        }
        self
    }

    /// Returns stored elements as codecs need to know them.
    pub(super) fn item(&self) -> Item {
        let number = match &self.shown {
            Shown::Number(DataType::Int { size, signed }) => {
                Some(NumberType::Int { size: usize::from(*size), signed: *signed })
            }
            Shown::Number(DataType::Float32) => Some(NumberType::Float32),
            Shown::Number(DataType::Float64) => Some(NumberType::Float64),
            Shown::Boolean => Some(NumberType::Bool),
            Shown::Widened { is_bfloat: false } => Some(NumberType::Float16),
            _ => None,
        };
        Item { size: self.size, number }
    }

    /// Returns true if elements are texts.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.shown, Shown::Chars | Shown::Utf32 | Shown::Texts)
    }

    /// Returns true if the variable has floating-point numbers.
    pub(super) fn is_float(&self) -> bool {
        matches!(self.full_type(), DataType::Float32 | DataType::Float64)
    }

    /// Returns the HDF5 type of the variable.
    pub(super) fn data_type(&self) -> DataType {
        if self.classic { classic_type(self.full_type()) } else { self.full_type() }
    }

    /// Returns true if the variable cannot have all values of the array.
    pub(super) fn is_inexact(&self) -> bool {
        self.data_type() == DataType::Float64 && matches!(self.full_type(), DataType::Int { size: 8, .. })
    }

    /// Returns the HDF5 type that has all values.
    fn full_type(&self) -> DataType {
        match &self.shown {
            Shown::Number(data_type) | Shown::Complex(data_type) => *data_type,
            Shown::Boolean => DataType::Int { size: 1, signed: true },
            Shown::Widened { .. } => DataType::Float32,
            Shown::Time(Times { form: Form::DoubleSeconds, .. }) => DataType::Float64,
            Shown::Time(_) => DataType::Int { size: 8, signed: true },
            Shown::Chars | Shown::Utf32 | Shown::Texts => DataType::FixedString { len: 1, utf8: false },
        }
    }

    /// Returns the last dimension that the type adds: its name and length. `longest` is the length
    /// of the longest text. Texts of one byte are characters, which need none.
    pub(super) fn extra_dimension(&self, longest: u64) -> Option<(String, u64)> {
        match &self.shown {
            Shown::Complex(_) => Some(("complex".to_owned(), 2)),
            // xarray joins characters along the last dimension, in Zarr and in NetCDF.
            Shown::Chars if self.size == 1 => None,
            Shown::Chars | Shown::Utf32 => Some((format!("string{}", self.size), self.size as u64)),
            Shown::Texts => Some((format!("string{longest}"), longest)),
            _ => None,
        }
    }

    /// Returns the bytes that an element takes in the file, the extra dimension included. `longest`
    /// as above.
    pub(super) fn shown_size(&self, longest: u64) -> usize {
        match &self.shown {
            Shown::Widened { .. } => 4,
            Shown::Texts => longest as usize,
            Shown::Number(_) | Shown::Time(_) => number_size(self.data_type()).unwrap_or(self.size),
            _ => self.size,
        }
    }

    /// Returns true if the bytes of the file are others than the decoded ones.
    pub(super) fn is_converted(&self) -> bool {
        match self.shown {
            Shown::Widened { .. } | Shown::Utf32 | Shown::Texts => true,
            Shown::Number(_) => self.full_type() != self.data_type(),
            Shown::Time(times) => times.is_converted() || self.full_type() != self.data_type(),
            _ => false,
        }
    }

    /// Converts decoded elements to the bytes of the file. Fails if the variable cannot have one of
    /// them.
    pub(super) fn convert(&self, decoded: Vec<u8>) -> Result<Vec<u8>> {
        Ok(match &self.shown {
            Shown::Widened { is_bfloat } => {
                let widen = if *is_bfloat { bfloat_to_float } else { half::to_float };
                let halves = decoded.as_chunks::<2>().0;
                halves.iter().flat_map(|half| widen(u16::from_le_bytes(*half)).to_le_bytes()).collect()
            }
            Shown::Utf32 => {
                let mut shown = vec![0; decoded.len()];
                for (text, place) in decoded.chunks_exact(self.size).zip(shown.chunks_exact_mut(self.size)) {
                    let letters = text.as_chunks::<4>().0;
                    // Only the NULs at the end fill the element: another one is a letter.
                    let length = letters.iter().rposition(|letter| *letter != [0; 4]).map_or(0, |last| last + 1);
                    let utf8: String = letters
                        .iter()
                        .take(length)
                        .map(|letter| u32::from_le_bytes(*letter))
                        .map(|letter| char::from_u32(letter).unwrap_or(char::REPLACEMENT_CHARACTER))
                        .collect();
                    // UTF-8 needs at most four bytes for a letter, as UTF-32 does.
                    if let Some(start) = place.get_mut(..utf8.len()) {
                        start.copy_from_slice(utf8.as_bytes());
                    }
                }
                shown
            }
            Shown::Time(times) if times.is_converted() => self.classic_numbers(times.convert(&decoded)?),
            Shown::Number(_) | Shown::Time(_) => self.classic_numbers(decoded),
            _ => decoded,
        })
    }

    /// Converts numbers to those of the type that classic programs have, if the variable has it.
    fn classic_numbers(&self, numbers: Vec<u8>) -> Vec<u8> {
        let full = self.full_type();
        let shown = self.data_type();
        if full == shown { numbers } else { convert_integers(&numbers, full, shown) }
    }
}

/// Returns the type in which classic programs have the numbers of `data_type`: they know integers
/// of 8, 16 and 32 bits, all signed.
pub(super) fn classic_type(data_type: DataType) -> DataType {
    match data_type {
        DataType::Int { size: 1, signed: false } => DataType::Int { size: 2, signed: true },
        DataType::Int { size: 2, signed: false } => DataType::Int { size: 4, signed: true },
        DataType::Int { size: 4, signed: false } | DataType::Int { size: 8, .. } => DataType::Float64,
        other => other,
    }
}

/// Returns the bytes of a number.
pub(super) fn number_size(data_type: DataType) -> Option<usize> {
    match data_type {
        DataType::Int { size, .. } => Some(usize::from(size)),
        DataType::Float32 => Some(4),
        DataType::Float64 => Some(8),
        _ => None,
    }
}

/// Converts little-endian integers to another type; to a float, the nearest.
fn convert_integers(numbers: &[u8], from: DataType, to: DataType) -> Vec<u8> {
    let DataType::Int { size, signed } = from else { return numbers.to_vec() };
    let size = usize::from(size).clamp(1, 8);
    let mut converted = Vec::with_capacity(numbers.len() / size * number_size(to).unwrap_or(size));
    for number in numbers.chunks_exact(size) {
        let is_negative = signed && number.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if is_negative { 0xFF } else { 0 }; 16];
        wide.iter_mut().zip(number).for_each(|(wide, byte)| *wide = *byte);
        match to {
            DataType::Int { size, .. } => converted.extend(wide.iter().take(usize::from(size))),
            _ => converted.extend((i128::from_le_bytes(wide) as f64).to_le_bytes()),
        }
    }
    converted
}

fn bfloat_to_float(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use serde_json::json;

    #[test]
    fn bfloats_are_the_upper_half_of_floats() {
        assert_eq!(bfloat_to_float(0x3F80), 1.0);
    }

    #[test]
    fn texts_become_characters_of_the_same_size() {
        let utf32 =
            ElementType::parse(&json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}}), false)
                .unwrap();
        let decoded: Vec<u8> = ['ä', '😀', 'x', '\0'].iter().flat_map(|c| u32::from(*c).to_le_bytes()).collect();
        assert_eq!(utf32.convert(decoded).unwrap(), ["ä😀\0\0".as_bytes(), b"x\0\0\0\0\0\0\0"].concat());
        assert_eq!(utf32.extra_dimension(0), Some(("string8".to_owned(), 8)));
        // Only NULs at the end are none of the text.
        let decoded: Vec<u8> = ['\0', 'x', '\0', '\0'].iter().flat_map(|c| u32::from(*c).to_le_bytes()).collect();
        assert_eq!(utf32.convert(decoded).unwrap(), b"\0x\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn unknown_and_hostile_types_are_refused() {
        for wrong in [
            json!("int4"),
            json!({}),
            json!(7),
            json!({"name": "struct"}),
            json!("r16"),
            json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 6}}),
            json!({"name": "null_terminated_bytes", "configuration": {"length_bytes": 1_u64 << 40}}),
            json!({"name": "null_terminated_bytes", "configuration": {"length_bytes": 0}}),
        ] {
            assert!(ElementType::parse(&wrong, false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_classic_numbers_too() {
        let time = json!({"name": "numpy.datetime64", "configuration": {"unit": "W", "scale_factor": 1}});
        let convert =
            |classic| ElementType::parse(&time, classic).unwrap().convert(3_i64.to_le_bytes().to_vec()).unwrap();
        assert_eq!(convert(false), 21_i64.to_le_bytes());
        assert_eq!(convert(true), 21_f64.to_le_bytes());
    }

    #[test]
    fn integers_become_numbers_of_classic_types() {
        let convert = |name: &str, numbers: &[u8]| {
            let element = ElementType::parse(&json!(name), true).unwrap();
            (element.data_type(), element.shown_size(0), element.convert(numbers.to_vec()).unwrap())
        };
        let int = |size| DataType::Int { size, signed: true };
        assert_eq!(convert("uint8", &[1, 0xFF]), (int(2), 2, vec![1, 0, 0xFF, 0]));
        assert_eq!(convert("uint16", &[1, 0xFF]), (int(4), 4, vec![1, 0xFF, 0, 0]));
        assert_eq!(convert("int8", &[0xFF]), (int(1), 1, vec![0xFF]));
        let float = |number: f64| (DataType::Float64, 8, number.to_le_bytes().to_vec());
        assert_eq!(convert("uint32", &[0xFF; 4]), float(4_294_967_295.0));
        assert_eq!(convert("int64", &[0xFF; 8]), float(-1.0));
        assert_eq!(convert("uint64", &[0xFF; 8]), float(18_446_744_073_709_551_616.0));
        assert!(ElementType::parse(&json!("int64"), true).unwrap().is_inexact());
        assert!(!ElementType::parse(&json!("uint32"), true).unwrap().is_inexact());
    }
}
