//! Defines object and node ids, and the base 32 that spells them in file names (spec, "Common
//! Types").

use std::fmt;
use std::str::FromStr;

use data_encoding::Encoding;
use data_encoding_macro::new_encoding;

use super::generated::icechunk as fb;
use icechunkfs_base::error::{Error, Result};

/// Crockford's base 32: upper case, zero bits appended on the right, no padding. Decoding accepts
/// lower case and the letters that Crockford reads as digits (I, L, O), because people type ids; it
/// refuses set bits behind the last byte, because two names would then mean one object.
const CROCKFORD: Encoding = new_encoding! {
    symbols: "0123456789ABCDEFGHJKMNPQRSTVWXYZ",
    translate_from: "abcdefghjkmnpqrstvwxyzIiLlOo",
    translate_to: "ABCDEFGHJKMNPQRSTVWXYZ111100",
};

/// Returns true if `byte` is a digit of a written id.
pub fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.is_ascii_uppercase() && !b"ILOU".contains(&byte)
}

/// Decodes the `N` bytes that `text` spells.
pub(super) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    CROCKFORD.decode(text.as_bytes()).ok()?.try_into().ok()
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $flat:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $bytes]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                CROCKFORD.encode_write(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                CROCKFORD.encode_write(&self.0, f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                decode(text).map($name).ok_or_else(|| {
                    Error::invalid(format!(
                        "`{text}` is not a valid id: an id has {} digits and letters (without I, L, O and U)",
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
    /// Id of a snapshot, manifest, chunk or transaction log: 12 bytes, 20 characters in a file
    /// name.
    ObjectId, 12, ObjectId12
}

id_type! {
    /// Id of a node for its lifetime, moves included: 8 bytes, 13 characters.
    NodeId, 8, ObjectId8
}

impl ObjectId {
    /// Well-known id of the initial snapshot (spec, "Initialize New Repository"). Old version 1
    /// repositories have a random id instead.
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
