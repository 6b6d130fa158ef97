//! Defines object and node ids, and the base 32 that spells them in file names (spec, "Common Types").

use std::fmt;
use std::str::FromStr;

use super::generated::icechunk as fb;
use crate::error::{Error, Result};

/// Crockford's alphabet, without I, L, O, U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Returns true if `byte` is a digit of a written id.
pub fn is_digit(byte: u8) -> bool {
    ALPHABET.contains(&byte)
}

/// Writes `bytes` in Crockford's base 32: upper case, zero bits appended on the right, no padding.
fn encode(bytes: &[u8], out: &mut impl fmt::Write) -> fmt::Result {
    let mut bits: u32 = 0;
    let mut count = 0;
    let mut push = |value: u32| {
        let digit = ALPHABET.get((value & 31) as usize).copied().unwrap_or(b'0');
        out.write_char(char::from(digit))
    };
    for &byte in bytes {
        bits = bits << 8 | u32::from(byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            push(bits >> count)?;
        }
    }
    if count > 0 {
        push(bits << (5 - count))?;
    }
    Ok(())
}

/// Decodes the `N` bytes that `text` spells. Accepts lower case and the letters that Crockford reads as digits (I, L,
/// O), because people type ids; refuses set bits in the padding, because two names would then mean one object.
pub(super) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != (N * 8).div_ceil(5) {
        return None;
    }
    let mut out = [0; N];
    let mut slots = out.iter_mut();
    let mut bits: u32 = 0;
    let mut count = 0;
    for byte in text.bytes() {
        let byte = match byte.to_ascii_uppercase() {
            b'O' => b'0',
            b'I' | b'L' => b'1',
            other => other,
        };
        let value = ALPHABET.iter().position(|&digit| digit == byte)?;
        bits = bits << 5 | u32::try_from(value).ok()?;
        count += 5;
        if count >= 8 {
            count -= 8;
            *slots.next()? = (bits >> count) as u8;
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0).then_some(out)
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $flat:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $bytes]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                encode(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                encode(&self.0, f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                decode(text).map($name).ok_or_else(|| {
                    Error::invalid(format!(
                        "`{text}` is not an id: an id is {} characters of Crockford's base 32",
                        ($bytes * 8_usize).div_ceil(5)
                    ))
                })
            }
        }

        impl $name {
            /// Returns a new id of random bytes from the system.
            pub fn random() -> Result<Self> {
                let mut bytes = [0; $bytes];
                rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
                    .map_err(|e| Error::io("random bytes", e.into()))?;
                Ok($name(bytes))
            }
        }

        impl From<&fb::$flat> for $name {
            fn from(id: &fb::$flat) -> Self {
                $name(id.0)
            }
        }
    };
}

id_type! {
    /// Id of a snapshot, manifest, chunk or transaction log: 12 bytes, 20 characters in a file name.
    ObjectId, 12, ObjectId12
}

id_type! {
    /// Id of a node for its lifetime, moves included: 8 bytes, 13 characters.
    NodeId, 8, ObjectId8
}

impl ObjectId {
    /// Well-known id of the initial snapshot (spec, "Initialize New Repository"). Old version 1 repositories have a random id instead.
    pub const INITIAL: ObjectId = ObjectId([0x0b, 0x1c, 0xc8, 0xd6, 0x78, 0x75, 0x80, 0xf0, 0xe3, 0x3a, 0x65, 0x34]);

    /// Returns the first 12 bytes of a 16-byte id of the first layout, which has 26 characters.
    pub fn from_wide_text(text: &str) -> Option<ObjectId> {
        decode::<16>(text)?.first_chunk().copied().map(ObjectId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initial_id_is_spelled_as_in_the_specification() {
        assert_eq!(ObjectId::INITIAL.to_string(), "1CECHNKREP0F1RSTCMT0");
        assert_eq!("1cechnkrepOfIrstcmt0".parse::<ObjectId>().ok(), Some(ObjectId::INITIAL));
    }

    #[test]
    fn ids_survive_the_round_trip() {
        for seed in 0..=255_u8 {
            let object = ObjectId(std::array::from_fn(|i| seed.wrapping_mul(31).wrapping_add(i as u8 * 7)));
            assert_eq!(object.to_string().parse::<ObjectId>().ok(), Some(object));
            let node = NodeId(std::array::from_fn(|i| seed.wrapping_mul(17).wrapping_add(i as u8 * 29)));
            assert_eq!(node.to_string().len(), 13);
            assert_eq!(node.to_string().parse::<NodeId>().ok(), Some(node));
        }
    }

    #[test]
    fn wrong_names_are_no_ids() {
        for text in ["", "1CECHNKREP0F1RSTCMT", "1CECHNKREP0F1RSTCMT00", "1CECHNKREP0F1RSTCMTU", "1CECHNKREP0F1RSTCMT1"]
        {
            assert!(text.parse::<ObjectId>().is_err(), "{text}");
        }
    }
}
