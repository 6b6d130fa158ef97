//! Number types of elements, and conversions between them as numpy makes them.

use serde_json::Value;

use crate::views::half::{self, HalfForm};

/// Type of numbers of an element, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum NumberType {
    /// One byte, 0 or 1.
    Bool,
    /// Integer of this many bytes.
    Int {
        size: usize,
        signed: bool,
    },
    Float16,
    Float32,
    Float64,
}

/// Number while it is converted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Number {
    Int(i128),
    Float(f64),
}

impl NumberType {
    /// Parses the name of a type as numpy has it, such as `int16` or `<i2`. None for other types,
    /// and for numbers that are not little-endian.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let short = name.strip_prefix(['<', '|', '=']).unwrap_or(name);
        let int = |size, signed| NumberType::Int { size, signed };
        Some(match short {
            "bool" | "b1" => NumberType::Bool,
            "int8" | "i1" => int(1, true),
            "int16" | "i2" => int(2, true),
            "int32" | "i4" => int(4, true),
            "int64" | "i8" => int(8, true),
            "uint8" | "u1" => int(1, false),
            "uint16" | "u2" => int(2, false),
            "uint32" | "u4" => int(4, false),
            "uint64" | "u8" => int(8, false),
            "float16" | "f2" => NumberType::Float16,
            "float32" | "f4" => NumberType::Float32,
            "float64" | "f8" => NumberType::Float64,
            ">i1" => int(1, true),
            ">u1" => int(1, false),
            _ => return None,
        })
    }

    /// Parses a setting of a codec that names a type; `default` if there is none.
    pub(super) fn of_setting(setting: Option<&Value>, default: Self) -> Option<Self> {
        match setting {
            None | Some(Value::Null) => Some(default),
            Some(name) => Self::parse(name.as_str()?),
        }
    }

    /// Returns the bytes of a number.
    pub(super) fn size(self) -> usize {
        match self {
            NumberType::Bool => 1,
            NumberType::Int { size, .. } => size,
            NumberType::Float16 => 2,
            NumberType::Float32 => 4,
            NumberType::Float64 => 8,
        }
    }

    /// Returns true for floating-point numbers.
    pub(super) fn is_float(self) -> bool {
        matches!(self, NumberType::Float16 | NumberType::Float32 | NumberType::Float64)
    }

    /// Returns the number in `bytes`, as many as it has.
    pub(in super::super) fn get(self, bytes: &[u8]) -> Number {
        match self {
            NumberType::Bool => Number::Int(i128::from(bytes.first().is_some_and(|byte| *byte != 0))),
            NumberType::Int { signed, .. } => {
                let is_negative = signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
                let mut wide = [if is_negative { 0xFF } else { 0 }; 16];
                wide.iter_mut().zip(bytes).for_each(|(wide, byte)| *wide = *byte);
                Number::Int(i128::from_le_bytes(wide))
            }
            NumberType::Float16 => Number::Float(f64::from(half::to_float(u16::from_le_bytes(array(bytes))))),
            NumberType::Float32 => Number::Float(f64::from(f32::from_le_bytes(array(bytes)))),
            NumberType::Float64 => Number::Float(f64::from_le_bytes(array(bytes))),
        }
    }

    /// Appends a number: of an integer its low bytes, of a float the nearest. A float becomes an
    /// integer without its fraction.
    pub(super) fn put(self, number: Number, bytes: &mut Vec<u8>) {
        let float = |number| match number {
            Number::Int(number) => number as f64,
            Number::Float(number) => number,
        };
        match self {
            NumberType::Bool => bytes.push(u8::from(!matches!(number, Number::Int(0) | Number::Float(0.0)))),
            NumberType::Int { size, .. } => {
                let whole = match number {
                    Number::Int(number) => number,
                    Number::Float(number) => number as i128,
                };
                bytes.extend(whole.to_le_bytes().iter().take(size));
            }
            NumberType::Float16 => bytes.extend(HalfForm::Ieee.nearest(float(number)).to_le_bytes()),
            NumberType::Float32 => bytes.extend(match number {
                // Rounded once.
                Number::Int(number) => (number as f32).to_le_bytes(),
                Number::Float(number) => (number as f32).to_le_bytes(),
            }),
            NumberType::Float64 => bytes.extend(float(number).to_le_bytes()),
        }
    }

    /// Returns the number of this type that is nearest to `number`.
    pub(super) fn rounded(self, number: f64) -> f64 {
        let mut bytes = Vec::with_capacity(8);
        self.put(Number::Float(number), &mut bytes);
        match self.get(&bytes) {
            Number::Int(number) => number as f64,
            Number::Float(number) => number,
        }
    }

    /// Converts numbers to those of type `to`.
    pub(super) fn convert(self, numbers: &[u8], to: Self) -> Vec<u8> {
        let mut converted = Vec::with_capacity(numbers.len() / self.size() * to.size());
        numbers.chunks_exact(self.size()).for_each(|number| to.put(self.get(number), &mut converted));
        converted
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn number_type(name: &str) -> NumberType {
        NumberType::parse(name).unwrap()
    }

    #[test]
    fn names_of_numpy_are_types() {
        assert_eq!(number_type("<i4"), NumberType::Int { size: 4, signed: true });
        assert_eq!(number_type("|u1"), number_type("uint8"));
        assert_eq!(number_type("float32").size(), 4);
        for wrong in [">i4", "c8", "M8[ns]", "i16", "", "object"] {
            assert_eq!(NumberType::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_are_converted_as_numpy_does() {
        let convert = |from: &str, bytes: &[u8], to: &str| number_type(from).convert(bytes, number_type(to));
        assert_eq!(convert("i1", &[0xFF, 2], "i2"), [0xFF, 0xFF, 2, 0]);
        assert_eq!(convert("i2", &[0xFE, 0xFF], "u1"), [0xFE]);
        assert_eq!(convert("u8", &[0xFF; 8], "f8"), 18_446_744_073_709_551_616_f64.to_le_bytes());
        assert_eq!(convert("f8", &(-2.75_f64).to_le_bytes(), "i2"), (-2_i16).to_le_bytes());
        assert_eq!(convert("f4", &0.1_f32.to_le_bytes(), "f8"), f64::from(0.1_f32).to_le_bytes());
        assert_eq!(convert("f8", &0.1_f64.to_le_bytes(), "f2"), [0x66, 0x2E]);
        assert_eq!(convert("f2", &[0, 0x3E], "f4"), 1.5_f32.to_le_bytes());
        assert_eq!(convert("i4", &16_777_217_i32.to_le_bytes(), "f4"), 16_777_216_f32.to_le_bytes());
        assert_eq!(convert("i4", &[0, 0, 0, 0, 7, 0, 0, 0], "bool"), [0, 1]);
    }
}
