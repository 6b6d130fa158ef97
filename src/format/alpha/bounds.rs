//! Checks a document before it is parsed.
//!
//! A few bytes may claim a billion elements or nest a million levels, and an element takes more memory than it has
//! bytes in a file. One pass that allocates next to nothing checks that a document is complete, is not nested too
//! deeply, and that its values fit into the memory limit. For JSON it only counts values; the parser checks the rest.

use super::MAX_DEPTH;
use super::wrapping::{Body, Encoding};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{self, Reservation};

/// Most bytes of memory that a value takes besides its own bytes: a member of a JSON object and its entry in the map's order.
const MAX_VALUE_BYTES: u64 = 112;

/// Checks `body`, whose values may take `limit` bytes of memory, and reserves that memory. The caller keeps the
/// reservation for as long as it uses the values. Returns the number of elements of the outermost value, which identifies the release;
/// none if it is a map.
pub fn check(body: &Body, limit: u64) -> Result<(Option<u64>, Reservation)> {
    let (elements, values) = scan(body)?;
    let bytes = values.saturating_mul(MAX_VALUE_BYTES);
    if bytes > limit {
        let why = format!("need more than the {} MiB that the memory bound leaves; raise --memory", limit >> 20);
        return Err(Error::new(ErrorKind::OutOfMemory, format!("its {values} values {why}")));
    }
    Ok((elements, memory::reserve_blocking(bytes, "what it says")?))
}

/// Checks `body` like [`check`] without reserving memory, for a caller that counts what it keeps.
pub fn check_structure(body: &Body) -> Result<()> {
    scan(body).map(drop)
}

/// Returns the number of elements of the outermost value, if it is an array, and the number of all values.
fn scan(body: &Body) -> Result<(Option<u64>, u64)> {
    match body.encoding {
        Encoding::Json => Ok((None, json_values(&body.bytes))),
        Encoding::MessagePack => message_pack(&body.bytes),
    }
}

/// Returns an upper bound of the number of values. The parser that runs next bounds the depth.
fn json_values(bytes: &[u8]) -> u64 {
    1 + bytes.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count() as u64
}

/// Head of a value: the number of bytes and of further values that belong to it.
struct Head {
    bytes: u64,
    values: u64,
}

fn message_pack(bytes: &[u8]) -> Result<(Option<u64>, u64)> {
    let mut rest = bytes;
    // Values still to come, per level.
    let mut open: Vec<u64> = vec![1];
    let mut count = 0_u64;
    while let Some(left) = open.last_mut() {
        let Some(one_less) = left.checked_sub(1) else {
            open.pop();
            continue;
        };
        *left = one_less;
        count += 1;
        let head = head(&mut rest)?;
        let skipped = usize::try_from(head.bytes).ok().and_then(|bytes| rest.get(bytes..));
        rest = skipped.ok_or_else(truncated)?;
        if head.values > rest.len() as u64 {
            return Err(Error::corrupt(format!(
                "damaged: it claims {} more values in {} bytes",
                head.values,
                rest.len()
            )));
        }
        if head.values > 0 {
            if open.len() >= MAX_DEPTH {
                return Err(Error::corrupt(format!("nested deeper than {MAX_DEPTH}")));
            }
            open.push(head.values);
        }
    }
    if !rest.is_empty() {
        return Err(Error::corrupt(format!("damaged: {} bytes behind its end", rest.len())));
    }
    let is_array = bytes.first().is_some_and(|b| matches!(b, 0x90..=0x9f | 0xdc | 0xdd));
    Ok((is_array.then(|| head(&mut &*bytes)).transpose()?.map(|head| head.values), count))
}

fn truncated() -> Error {
    Error::corrupt("damaged: it ends in the middle of a value")
}

/// Removes the head of a value from `rest`.
fn head(rest: &mut &[u8]) -> Result<Head> {
    let (&marker, behind) = rest.split_first().ok_or_else(truncated)?;
    *rest = behind;
    let plain = |bytes: u64| Ok(Head { bytes, values: 0 });
    match marker {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => plain(0),
        0x80..=0x8f => Ok(Head { bytes: 0, values: 2 * u64::from(marker & 15) }),
        0x90..=0x9f => Ok(Head { bytes: 0, values: u64::from(marker & 15) }),
        0xa0..=0xbf => plain(u64::from(marker & 31)),
        0xcc | 0xd0 => plain(1),
        0xcd | 0xd1 => plain(2),
        0xca | 0xce | 0xd2 => plain(4),
        0xcb | 0xcf | 0xd3 => plain(8),
        // The type of an extension precedes its bytes.
        0xd4..=0xd8 => plain(1 + (1 << (marker - 0xd4))),
        0xc4 | 0xd9 => number(rest, 1).and_then(plain),
        0xc5 | 0xda => number(rest, 2).and_then(plain),
        0xc6 | 0xdb => number(rest, 4).and_then(plain),
        0xc7 => number(rest, 1).and_then(|bytes| plain(bytes + 1)),
        0xc8 => number(rest, 2).and_then(|bytes| plain(bytes + 1)),
        0xc9 => number(rest, 4).and_then(|bytes| plain(bytes + 1)),
        0xdc => Ok(Head { bytes: 0, values: number(rest, 2)? }),
        0xdd => Ok(Head { bytes: 0, values: number(rest, 4)? }),
        0xde => Ok(Head { bytes: 0, values: 2 * number(rest, 2)? }),
        0xdf => Ok(Head { bytes: 0, values: 2 * number(rest, 4)? }),
        0xc1 => Err(Error::corrupt("damaged: a byte that MessagePack does not have")),
    }
}

fn number(rest: &mut &[u8], bytes: usize) -> Result<u64> {
    let (digits, behind) = rest.split_at_checked(bytes).ok_or_else(truncated)?;
    *rest = behind;
    Ok(digits.iter().fold(0, |number, digit| number << 8 | u64::from(*digit)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn pack(bytes: &[u8]) -> Result<Option<u64>> {
        check(&Body { bytes: bytes.to_vec().into(), encoding: Encoding::MessagePack }, 1 << 20)
            .map(|(elements, _)| elements)
    }

    #[test]
    fn whole_documents_pass() {
        let value = rmpv::Value::Array(vec![
            rmpv::Value::Binary(vec![1; 300]),
            rmpv::Value::Map(vec![("a".into(), (-70000).into()), (rmpv::Value::Nil, 0.5.into())]),
            rmpv::Value::Ext(3, vec![0; 5]),
            rmpv::Value::F32(1.0),
            u64::MAX.into(),
            "x".repeat(70_000).as_str().into(),
            rmpv::Value::Array(vec![true.into(); 20]),
        ]);
        let mut bytes = crate::format::testing::pack(&value);
        assert_eq!(pack(&bytes).unwrap(), Some(7));
        for at in 0..bytes.len() {
            assert!(pack(&bytes[..at]).is_err(), "{at}");
        }
        bytes.push(0);
        assert!(pack(&bytes).unwrap_err().to_string().contains("behind its end"));
    }

    #[test]
    fn claims_and_depth_are_bounded() {
        assert!(pack(&[0xdd, 0xff, 0xff, 0xff, 0xff, 0]).unwrap_err().to_string().contains("4294967295"));
        assert!(pack(&[0xdf, 0xff, 0xff, 0xff, 0xff, 0]).is_err());
        assert!(pack(&[0xc6, 0xff, 0xff, 0xff, 0xff, 0]).is_err());
        assert!(pack(&[0x91; 100_000]).unwrap_err().to_string().contains("nested"));
        let mut many = vec![0xdd, 0, 0x10, 0, 0];
        many.extend(std::iter::repeat_n(0, 1 << 20));
        assert_eq!(pack(&many).unwrap_err().kind(), ErrorKind::OutOfMemory);
        let json = Body { bytes: "[0,".repeat(100_000).into_bytes().into(), encoding: Encoding::Json };
        assert_eq!(check(&json, 1 << 20).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
}
