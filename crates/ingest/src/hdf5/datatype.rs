//! Types of elements.
//!
//! The library keeps the size, the sign and the byte order of a number. A number of 12 bits in two
//! bytes, or a float that is not one of IEEE, has other values than those tell: the bytes that
//! describe the type are compared as well (HDF5 specification, "Datatype Message").

use hdf5_reader::messages::datatype::{CompoundField, Datatype, StringPadding, StringSize, VarLenKind};

use crate::element::{ByteOrder, Element, Numeric};

/// Type of the elements of a dataset or an attribute.
#[derive(Debug, PartialEq)]
pub(super) struct Type {
    pub(super) element: Element,
    pub(super) order: ByteOrder,
    /// Names of values, of an enumeration.
    pub(super) meanings: Vec<(String, Numeric)>,
    /// True if texts have spaces behind them.
    pub(super) has_spaces: bool,
}

/// Returns the type that `datatype`, which `raw` describes, is in Zarr, or why there is none.
pub(super) fn of(datatype: &Datatype, raw: &[u8]) -> Result<Type, String> {
    let plain = |element, order: hdf5_reader::ByteOrder| {
        let order = match order {
            hdf5_reader::ByteOrder::BigEndian => ByteOrder::Big,
            hdf5_reader::ByteOrder::LittleEndian => ByteOrder::Little,
        };
        Type { element, order, meanings: Vec::new(), has_spaces: false }
    };
    match datatype {
        Datatype::FixedPoint { size, signed, byte_order } => {
            if !is_whole_integer(raw, *size) {
                return Err(format!("integers with another number of bits than {size} bytes have"));
            }
            let element = match (size, signed) {
                (1, true) => Element::Int8,
                (2, true) => Element::Int16,
                (4, true) => Element::Int32,
                (8, true) => Element::Int64,
                (1, false) => Element::UInt8,
                (2, false) => Element::UInt16,
                (4, false) => Element::UInt32,
                (8, false) => Element::UInt64,
                _ => return Err(format!("integers of {size} bytes")),
            };
            Ok(plain(element, *byte_order))
        }
        Datatype::FloatingPoint { size, byte_order } => match (size, is_ieee(raw, *size)) {
            (4, true) => Ok(plain(Element::Float32, *byte_order)),
            (8, true) => Ok(plain(Element::Float64, *byte_order)),
            (2, true) => Ok(plain(Element::Float16, *byte_order)),
            _ => Err("floating-point numbers that are not those of IEEE with 16, 32 or 64 bits".to_owned()),
        },
        Datatype::String { size: StringSize::Fixed(length), padding, .. } if *length > 0 => {
            let element = if *length == 1 { Element::Char } else { Element::Text(*length) };
            let has_spaces = *padding == StringPadding::SpacePad && *length > 1;
            Ok(Type { has_spaces, ..plain(element, hdf5_reader::ByteOrder::BigEndian) })
        }
        Datatype::Enum { base, members } => {
            // Its description begins with eight bytes, and goes on with that of its base.
            let mut found = of(base, raw.get(8..).unwrap_or_default())?;
            for member in members {
                let mut bytes = member.value.clone();
                let size = bytes.len();
                found.order.to_big_endian(&mut bytes, size);
                let value = found.element.number(&bytes).ok_or("an enumeration of other than numbers")?;
                found.meanings.push((member.name.clone(), value));
            }
            Ok(found)
        }
        Datatype::String { size: StringSize::Variable, .. } | Datatype::VarLen { kind: VarLenKind::String, .. } => {
            Ok(plain(Element::String, hdf5_reader::ByteOrder::BigEndian))
        }
        Datatype::String { .. } => Err("texts without a length".to_owned()),
        Datatype::VarLen { .. } => Err("lists of any length".to_owned()),
        Datatype::Compound { size, fields } => match complex(*size, fields, raw) {
            Some((element, order)) => Ok(plain(element, order)),
            None => Err("elements of several members".to_owned()),
        },
        Datatype::Array { .. } => Err("elements that are arrays".to_owned()),
        Datatype::Opaque { .. } => Err("elements of bytes without a meaning".to_owned()),
        Datatype::Reference { .. } => Err("references to other objects".to_owned()),
        Datatype::Bitfield { .. } => Err("fields of bits".to_owned()),
    }
}

/// Returns the type of complex numbers, in the form that h5py and others give them: a real and an
/// imaginary part, `r` and `i`, without anything between.
fn complex(size: u32, fields: &[CompoundField], raw: &[u8]) -> Option<(Element, hdf5_reader::ByteOrder)> {
    let [real, imaginary] = fields else { return None };
    let Datatype::FloatingPoint { size: part, byte_order } = real.datatype else { return None };
    let element = match part {
        4 => Element::Complex64,
        8 => Element::Complex128,
        _ => return None,
    };
    // The descriptions of both members are somewhere in that of the type.
    let are_ieee = (0..raw.len()).filter(|at| is_ieee(raw.get(*at..).unwrap_or_default(), part)).count() == 2;
    let are_parts = (real.name.as_str(), imaginary.name.as_str()) == ("r", "i")
        && (real.byte_offset, imaginary.byte_offset) == (0, part.into())
        && real.datatype == imaginary.datatype
        && size == 2 * u32::from(part);
    (are_ieee && are_parts).then_some((element, byte_order))
}

/// Returns the flags and the properties in the description of a type of `class`.
fn described(raw: &[u8], class: u8) -> Option<([u8; 3], &[u8])> {
    let (head, properties) = raw.split_first_chunk::<8>()?;
    let [first, one, two, three, ..] = *head;
    (first & 0x0f == class).then_some(([one, two, three], properties))
}

/// Returns true if all bits of an integer count.
fn is_whole_integer(raw: &[u8], size: u8) -> bool {
    // The position of the first bit, and the number of bits.
    described(raw, 0).is_some_and(|(_, bits)| bits.starts_with(&[0, 0, size.saturating_mul(8), 0]))
}

/// Returns true if a floating-point number is one of IEEE.
fn is_ieee(raw: &[u8], size: u8) -> bool {
    let Some(([order, sign, _], properties)) = described(raw, 1) else { return false };
    // Position and number of all bits; of the exponent, of the mantissa, and the bias.
    let (sign_bit, expected): (u8, [u8; 12]) = match size {
        2 => (15, [0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0]),
        4 => (31, [0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]),
        8 => (63, [0, 0, 64, 0, 52, 11, 0, 52, 0xff, 3, 0, 0]),
        _ => return false,
    };
    /// Bits of the flags: the highest bit of the mantissa is 1 and not stored.
    const IMPLIED: u8 = 0x20;
    /// Bits of the flags for that, and for byte orders other than the two usual ones.
    const LOOKED_AT: u8 = 0x30 | 0x40;
    sign == sign_bit && order & LOOKED_AT == IMPLIED && properties.starts_with(&expected)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use hdf5_reader::ByteOrder as Theirs;

    #[test]
    fn numbers_are_what_all_their_bits_say() {
        let int = Datatype::FixedPoint { size: 2, signed: true, byte_order: Theirs::BigEndian };
        let mut raw = vec![0x10, 0x09, 0, 0, 2, 0, 0, 0, 0, 0, 16, 0];
        let found = of(&int, &raw).unwrap();
        assert_eq!((found.element, found.order), (Element::Int16, ByteOrder::Big));
        // Twelve of sixteen bits.
        raw[10] = 12;
        assert!(of(&int, &raw).is_err());
        // The four highest ones.
        raw[8] = 4;
        assert!(of(&int, &raw).is_err());
        assert!(of(&int, &[]).is_err());
    }

    #[test]
    fn only_floats_of_ieee_are_taken() {
        let float = |size| Datatype::FloatingPoint { size, byte_order: Theirs::LittleEndian };
        let raw = [0x11, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0];
        assert_eq!(of(&float(4), &raw).unwrap().element, Element::Float32);
        for (place, value) in [(1, 0x60), (1, 0), (2, 30), (8, 1), (10, 31), (13, 7), (16, 126)] {
            let mut other = raw;
            other[place] = value;
            assert!(of(&float(4), &other).is_err(), "{place}");
        }
        let raw = [0x11, 0x20, 15, 0, 2, 0, 0, 0, 0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0];
        assert_eq!(of(&float(2), &raw).unwrap().element, Element::Float16);
        // bfloat16.
        let raw = [0x11, 0x20, 15, 0, 2, 0, 0, 0, 0, 0, 16, 0, 7, 8, 0, 7, 127, 0, 0, 0];
        assert!(of(&float(2), &raw).unwrap_err().contains("IEEE"));
    }

    #[test]
    fn two_floats_are_a_complex_number_if_they_are_named_so() {
        let float = Datatype::FloatingPoint { size: 4, byte_order: Theirs::LittleEndian };
        let member =
            |name: &str, byte_offset| CompoundField { name: name.to_owned(), byte_offset, datatype: float.clone() };
        let fields = vec![member("r", 0), member("i", 4)];
        let part = [0x11, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0];
        let raw = [&[0x36, 2, 0, 0, 8, 0, 0, 0, b'r', 0, 0][..], &part, b"i\0\x04", &part].concat();
        let kind = |size, fields: &[CompoundField], raw: &[u8]| {
            of(&Datatype::Compound { size, fields: fields.to_vec() }, raw).ok()
        };
        let found = kind(8, &fields, &raw).unwrap();
        assert_eq!((found.element, found.order), (Element::Complex64, ByteOrder::Little));
        assert!(kind(12, &fields, &raw).is_none() && kind(8, &fields, &raw[..raw.len() - 1]).is_none());
        for others in [vec![member("i", 0), member("r", 4)], vec![member("r", 0), member("i", 8)], vec![member("r", 0)]]
        {
            assert!(kind(8, &others, &raw).is_none(), "{others:?}");
        }
    }

    #[test]
    fn enumerations_are_their_numbers_with_names() {
        let base = Box::new(Datatype::FixedPoint { size: 2, signed: false, byte_order: Theirs::LittleEndian });
        let member = hdf5_reader::EnumMember { name: "rain".to_owned(), value: vec![1, 2] };
        let mut raw = vec![0x38, 1, 0, 0, 2, 0, 0, 0];
        raw.extend([0x10, 0, 0, 0, 2, 0, 0, 0, 0, 0, 16, 0]);
        let found = of(&Datatype::Enum { base, members: vec![member] }, &raw).unwrap();
        assert_eq!(found.element, Element::UInt16);
        assert_eq!(found.meanings, [("rain".to_owned(), Numeric::Integer(0x201))]);
    }
}
