//! Datatype messages (HDF5 spec IV.A.2.d).

use super::model::DataType;
use super::unsupported;
use icechunkfs_base::error::Result;

/// Length in bytes of a pointer into the heap: count, address of the collection, index.
pub(super) const POINTER: u32 = 16;
/// Length in bytes of a reference with a number, as C has them.
const USE: u32 = 16;

/// Returns the length of an element in bytes; an error if the format has no such type.
pub(super) fn size(data_type: DataType) -> Result<u32> {
    match data_type {
        DataType::Int { size: size @ (1 | 2 | 4 | 8), .. } => Ok(u32::from(size)),
        DataType::Int { size, .. } => Err(unsupported(format!("integers of {size} bytes"))),
        DataType::Float32 | DataType::BigEndianFloat32 => Ok(4),
        DataType::Float64 | DataType::ObjectReference => Ok(8),
        DataType::FixedString { len: 0, .. } => Err(unsupported("fixed strings of length 0")),
        DataType::FixedString { len, .. } => Ok(len),
        DataType::ReferenceList | DataType::Text => Ok(POINTER),
        DataType::Use => Ok(USE),
    }
}

/// Returns the length of an element that the model holds as bytes: a number or a fixed string.
pub(super) fn plain_size(data_type: DataType) -> Result<u32> {
    match data_type {
        DataType::ObjectReference | DataType::ReferenceList | DataType::Text | DataType::Use => {
            Err(unsupported("references and texts of any length as plain bytes"))
        }
        _ => size(data_type),
    }
}

/// Encodes the datatype.
pub(super) fn encode(data_type: DataType) -> Result<Vec<u8>> {
    let size = size(data_type)?;
    Ok(match data_type {
        DataType::Int { signed, .. } => {
            let mut bytes = class(0x10, [if signed { 0x08 } else { 0 }, 0, 0], size);
            bytes.extend_from_slice(&0_u16.to_le_bytes());
            bytes.extend_from_slice(&(size as u16 * 8).to_le_bytes());
            bytes
        }
        DataType::Float32 => float(0x20, size, [31, 23, 8, 23], 127),
        DataType::BigEndianFloat32 => float(0x21, size, [31, 23, 8, 23], 127),
        DataType::Float64 => float(0x20, size, [63, 52, 11, 52], 1023),
        DataType::FixedString { utf8, .. } => class(0x13, [if utf8 { 0x10 } else { 0 }, 0, 0], size),
        DataType::ObjectReference => class(0x17, [0, 0, 0], size),
        DataType::Use => {
            let mut bytes = class(0x16, [2, 0, 0], size);
            bytes.extend(member("dataset", 0, DataType::ObjectReference)?);
            bytes.extend(member("dimension", 8, DataType::Int { size: 4, signed: false })?);
            bytes
        }
        DataType::ReferenceList => {
            let mut bytes = class(0x19, [0, 0, 0], size);
            bytes.extend(encode(DataType::ObjectReference)?);
            bytes
        }
        DataType::Text => {
            let mut bytes = class(0x19, [1, 1, 0], size);
            bytes.extend(encode(DataType::Int { size: 1, signed: false })?);
            bytes
        }
    })
}

/// Encodes a member of a compound type (version 1), a scalar at `offset`.
fn member(name: &str, offset: u32, data_type: DataType) -> Result<Vec<u8>> {
    let mut bytes = name.as_bytes().to_vec();
    // A NUL, and up to a multiple of 8.
    bytes.resize((bytes.len() + 1).next_multiple_of(8), 0);
    bytes.extend_from_slice(&offset.to_le_bytes());
    // No dimensions: their number, permutation and sizes.
    bytes.extend_from_slice(&[0; 28]);
    bytes.extend(encode(data_type)?);
    Ok(bytes)
}

fn class(class: u8, bits: [u8; 3], size: u32) -> Vec<u8> {
    let [low, middle, high] = bits;
    let mut bytes = vec![class, low, middle, high];
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes
}

/// Encodes a float with `places`: bit of the sign, first bit and length of the exponent, length of
/// the mantissa.
fn float(bits: u8, size: u32, places: [u8; 4], bias: u32) -> Vec<u8> {
    let [sign, exponent, exponent_len, mantissa_len] = places;
    let mut bytes = class(0x11, [bits, sign, 0], size);
    bytes.extend_from_slice(&0_u16.to_le_bytes());
    bytes.extend_from_slice(&(size as u16 * 8).to_le_bytes());
    bytes.extend_from_slice(&[exponent, exponent_len, 0, mantissa_len]);
    bytes.extend_from_slice(&bias.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_has_the_bytes_that_libhdf5_writes() -> Result<()> {
        let mut wanted = vec![0x16, 2, 0, 0, 16, 0, 0, 0];
        wanted.extend(b"dataset\0\0\0\0\0");
        wanted.extend([0; 28]);
        wanted.extend([0x17, 0, 0, 0, 8, 0, 0, 0]);
        wanted.extend(b"dimension\0\0\0\0\0\0\0\x08\0\0\0");
        wanted.extend([0; 28]);
        wanted.extend([0x10, 0, 0, 0, 4, 0, 0, 0, 0, 0, 32, 0]);
        assert_eq!(encode(DataType::Use)?, wanted);
        Ok(())
    }

    #[test]
    fn types_have_the_bytes_of_the_specification() -> Result<()> {
        let cases: &[(DataType, &[u8])] = &[
            (DataType::Int { size: 2, signed: true }, &[0x10, 8, 0, 0, 2, 0, 0, 0, 0, 0, 16, 0]),
            (DataType::Int { size: 8, signed: false }, &[0x10, 0, 0, 0, 8, 0, 0, 0, 0, 0, 64, 0]),
            (DataType::Float32, &[0x11, 0x20, 0x1F, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]),
            (DataType::BigEndianFloat32, &[0x11, 0x21, 0x1F, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]),
            (DataType::Float64, &[0x11, 0x20, 0x3F, 0, 8, 0, 0, 0, 0, 0, 64, 0, 52, 11, 0, 52, 255, 3, 0, 0]),
            (DataType::FixedString { len: 300, utf8: true }, &[0x13, 0x10, 0, 0, 44, 1, 0, 0]),
            (DataType::FixedString { len: 1, utf8: false }, &[0x13, 0, 0, 0, 1, 0, 0, 0]),
            (DataType::ReferenceList, &[0x19, 0, 0, 0, 16, 0, 0, 0, 0x17, 0, 0, 0, 8, 0, 0, 0]),
            (DataType::Text, &[0x19, 1, 1, 0, 16, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0]),
        ];
        for (data_type, bytes) in cases {
            assert_eq!(&encode(*data_type)?, bytes, "{data_type:?}");
        }
        assert!(encode(DataType::Int { size: 3, signed: true }).is_err());
        assert!(encode(DataType::FixedString { len: 0, utf8: true }).is_err());
        Ok(())
    }
}
