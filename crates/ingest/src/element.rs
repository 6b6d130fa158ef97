//! Types of elements: their sizes, their names in Zarr, and the values that netCDF fills with.

use data_encoding::BASE64;
use half::f16;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value, json};

use crate::texts;

/// Order of the bytes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    /// Returns the name that codec `bytes` has for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ByteOrder::Big => "big",
            ByteOrder::Little => "little",
        }
    }

    /// Changes `bytes`, elements of `size` bytes in this order, into big-endian ones.
    pub(crate) fn to_big_endian(self, bytes: &mut [u8], size: usize) {
        if self == ByteOrder::Little {
            swap(bytes, size);
        }
    }
}

/// Changes the order of the bytes of each element of `size` bytes.
fn swap(bytes: &mut [u8], size: usize) {
    bytes.chunks_exact_mut(size.max(1)).for_each(<[u8]>::reverse);
}

/// Type of the elements of a variable or an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Element {
    Int8,
    /// Byte of a text.
    Char,
    /// Text of so many bytes, with zeros behind a shorter one.
    Text(u32),
    /// Text of any length, by its number in a table.
    String,
    Int16,
    Int32,
    Float16,
    Float32,
    Float64,
    /// Two numbers of 32 bits.
    Complex64,
    /// Two numbers of 64 bits.
    Complex128,
    UInt8,
    UInt16,
    UInt32,
    Int64,
    UInt64,
}

impl Element {
    /// Returns true if it is a number that has a place in an order: no text, and no complex number.
    pub(crate) fn is_number(self) -> bool {
        !self.is_text() && self.part().is_none()
    }

    pub(crate) fn is_text(self) -> bool {
        matches!(self, Element::Char | Element::Text(_) | Element::String)
    }

    /// Returns the type of both parts of a complex number.
    fn part(self) -> Option<Self> {
        match self {
            Element::Complex64 => Some(Element::Float32),
            Element::Complex128 => Some(Element::Float64),
            _ => None,
        }
    }

    /// Returns the bytes of which the order may be one or the other.
    pub(crate) fn unit(self) -> usize {
        usize::try_from(self.part().unwrap_or(self).size()).unwrap_or(1)
    }

    /// Returns true if it is a floating-point number.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Element::Float16 | Element::Float32 | Element::Float64)
    }

    /// Returns the type of numbers that a `zarr.json` has as `data_type`.
    pub(crate) fn of_data_type(value: &Value) -> Option<Self> {
        const NUMBERS: [Element; 10] = [
            Element::Int8,
            Element::UInt8,
            Element::Int16,
            Element::UInt16,
            Element::Int32,
            Element::UInt32,
            Element::Int64,
            Element::UInt64,
            Element::Float32,
            Element::Float64,
        ];
        NUMBERS.into_iter().find(|element| element.data_type() == *value)
    }

    /// Returns the size in bytes.
    pub(crate) fn size(self) -> u64 {
        match self {
            Element::Int8 | Element::Char | Element::UInt8 => 1,
            Element::Text(length) => length.into(),
            Element::String => texts::NUMBER,
            Element::Int16 | Element::UInt16 | Element::Float16 => 2,
            Element::Int32 | Element::Float32 | Element::UInt32 => 4,
            Element::Float64 | Element::Int64 | Element::UInt64 | Element::Complex64 => 8,
            Element::Complex128 => 16,
        }
    }

    /// Changes the byte order of `bytes`, elements of this type.
    pub(crate) fn swap_bytes(self, bytes: &mut [u8]) {
        if !self.is_text() {
            swap(bytes, self.unit());
        }
    }

    /// Returns `data_type` of a `zarr.json`. Characters are byte strings of length 1, which xarray
    /// joins along the last dimension as it does those of the original.
    pub(crate) fn data_type(self) -> Value {
        let name = match self {
            Element::Int8 => "int8",
            Element::Char | Element::Text(_) => {
                return json!({"name": "null_terminated_bytes", "configuration": {"length_bytes": self.size()}});
            }
            Element::String => "string",
            Element::Int16 => "int16",
            Element::Int32 => "int32",
            Element::Float16 => "float16",
            Element::Float32 => "float32",
            Element::Float64 => "float64",
            Element::Complex64 => "complex64",
            Element::Complex128 => "complex128",
            Element::UInt8 => "uint8",
            Element::UInt16 => "uint16",
            Element::UInt32 => "uint32",
            Element::Int64 => "int64",
            Element::UInt64 => "uint64",
        };
        json!(name)
    }

    /// Returns, big-endian, what netCDF fills elements with that nobody wrote (`NC_FILL_...`).
    pub(crate) fn default_fill(self) -> Vec<u8> {
        match self {
            Element::Int8 => (-127_i8).to_be_bytes().to_vec(),
            Element::Char => vec![0],
            Element::Text(length) => vec![0; length as usize],
            Element::String => texts::FILL.to_vec(),
            Element::Int16 => (-32_767_i16).to_be_bytes().to_vec(),
            Element::Int32 => (-2_147_483_647_i32).to_be_bytes().to_vec(),
            Element::Float16 | Element::Complex64 | Element::Complex128 => vec![0; self.size() as usize],
            Element::Float32 => 9.969_21e36_f32.to_be_bytes().to_vec(),
            Element::Float64 => 9.969_209_968_386_869e36_f64.to_be_bytes().to_vec(),
            Element::UInt8 => vec![u8::MAX],
            Element::UInt16 => u16::MAX.to_be_bytes().to_vec(),
            Element::UInt32 => u32::MAX.to_be_bytes().to_vec(),
            Element::Int64 => (-9_223_372_036_854_775_806_i64).to_be_bytes().to_vec(),
            Element::UInt64 => 18_446_744_073_709_551_614_u64.to_be_bytes().to_vec(),
        }
    }

    /// Returns the number that is stored in `bytes`, big-endian: one element, not a character.
    pub(crate) fn number(self, bytes: &[u8]) -> Option<Numeric> {
        Some(match self {
            Element::Int8 => Numeric::Integer(i8::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::Text(_) | Element::String | Element::Complex64 | Element::Complex128 => return None,
            Element::UInt8 | Element::Char => Numeric::Integer(u8::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::Int16 => Numeric::Integer(i16::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::UInt16 => Numeric::Integer(u16::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::Int32 => Numeric::Integer(i32::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::UInt32 => Numeric::Integer(u32::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::Int64 => Numeric::Integer(i64::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::UInt64 => Numeric::Integer(u64::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::Float16 => Numeric::Float(f16::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::Float32 => Numeric::Float(f32::from_be_bytes(bytes.try_into().ok()?).into()),
            Element::Float64 => Numeric::Float(f64::from_be_bytes(bytes.try_into().ok()?)),
        })
    }

    /// Returns `number` as an element, big-endian; none if there is no such element.
    pub(crate) fn stored(self, number: Numeric) -> Option<Vec<u8>> {
        let nearest = |float: f64| match self {
            Element::Float16 => f64::from(f16::from_f64(float)),
            Element::Float32 => f64::from(float as f32),
            _ => float,
        };
        let is_near = |float: f64| nearest(float) != float && !float.is_nan();
        if matches!(number, Numeric::Float(float) if is_near(float)) {
            return None;
        }
        let mut bytes = Vec::new();
        self.append_near(number, &mut bytes).map(|()| bytes)
    }

    /// Appends `number` as an element, big-endian, to `out`; none if there is no such element. A
    /// floating-point number becomes the nearest one.
    pub(crate) fn append_near(self, number: Numeric, out: &mut Vec<u8>) -> Option<()> {
        let whole = || match number {
            Numeric::Integer(number) => Some(number),
            // Larger ones are not those of an integer of 64 bits.
            Numeric::Float(number) if number.fract() == 0.0 && number.abs() < 2e19 => Some(number as i128),
            Numeric::Float(_) => None,
        };
        let float = || match number {
            Numeric::Float(number) => Some(number),
            Numeric::Integer(number) => Some(number as f64).filter(|float| *float as i128 == number),
        };
        match self {
            Element::Char | Element::Text(_) | Element::String | Element::Complex64 | Element::Complex128 => {
                return None;
            }
            // Nothing is converted to it: only a value that it has is stored.
            Element::Float16 => out.extend(f16::from_f64(float()?).to_be_bytes()),
            Element::Int8 => out.extend(i8::try_from(whole()?).ok()?.to_be_bytes()),
            Element::UInt8 => out.extend(u8::try_from(whole()?).ok()?.to_be_bytes()),
            Element::Int16 => out.extend(i16::try_from(whole()?).ok()?.to_be_bytes()),
            Element::UInt16 => out.extend(u16::try_from(whole()?).ok()?.to_be_bytes()),
            Element::Int32 => out.extend(i32::try_from(whole()?).ok()?.to_be_bytes()),
            Element::UInt32 => out.extend(u32::try_from(whole()?).ok()?.to_be_bytes()),
            Element::Int64 => out.extend(i64::try_from(whole()?).ok()?.to_be_bytes()),
            Element::UInt64 => out.extend(u64::try_from(whole()?).ok()?.to_be_bytes()),
            Element::Float64 => out.extend(float()?.to_be_bytes()),
            Element::Float32 => {
                let float = float()?;
                let short = float as f32;
                let is_exact = f64::from(short) == float;
                let is_whole = matches!(number, Numeric::Integer(_));
                if (is_whole && !is_exact) || short.is_infinite() != float.is_infinite() {
                    return None;
                }
                out.extend(short.to_be_bytes());
            }
        }
        Some(())
    }

    /// Returns `fill_value` of a `zarr.json` for the element in `bytes`, big-endian.
    pub(crate) fn fill_value(self, bytes: &[u8]) -> Option<Value> {
        if let Some(part) = self.part() {
            let parts =
                bytes.chunks_exact(self.unit()).map(|bytes| part.fill_value(bytes)).collect::<Option<Vec<_>>>()?;
            return Some(Value::Array(parts));
        }
        if self.is_text() {
            // Without the padding of a text that is shorter than its length.
            let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            return Some(json!(BASE64.encode(bytes.get(..length).unwrap_or_default())));
        }
        Some(match self.number(bytes)? {
            Numeric::Integer(number) => integer(number),
            Numeric::Float(number) if number.is_nan() && !is_plain_nan(self, bytes) => {
                let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                json!(format!("0x{digits}"))
            }
            Numeric::Float(number) => match Number::from_f64(number) {
                Some(number) => Value::Number(number),
                None => json!(not_finite(number)),
            },
        })
    }
}

/// Returns true if `bytes` are those of the NaN that Zarr calls `NaN`.
fn is_plain_nan(element: Element, bytes: &[u8]) -> bool {
    match element {
        Element::Float16 => bytes == 0x7e00_u16.to_be_bytes(),
        Element::Float32 => bytes == 0x7fc0_0000_u32.to_be_bytes(),
        _ => bytes == 0x7ff8_0000_0000_0000_u64.to_be_bytes(),
    }
}

/// Number of an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Numeric {
    Integer(i128),
    Float(f64),
}

/// Returns an integer of 64 bits as JSON.
pub(crate) fn integer(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| json!(u64::try_from(number).unwrap_or_default()), |number| json!(number))
}

/// Returns the number that has `name` as [`not_finite`] gives it.
pub(crate) fn named(name: &str) -> Option<f64> {
    [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().find(|number| not_finite(*number) == name)
}

/// Returns the name that Zarr has for a number that JSON cannot write.
pub(crate) fn not_finite(number: f64) -> &'static str {
    if number.is_nan() {
        "NaN"
    } else if number > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    }
}
