//! Checks the structure of a document before it is parsed.
//!
//! A few bytes may claim a billion elements or nest a million levels. One pass that allocates next
//! to nothing checks that a MessagePack document is complete and is not nested too deeply. The
//! values of both encodings are counted while they are made ([`super::super::json`]).

use super::MAX_DEPTH;
use super::wrapping::{Body, Encoding};
use icechunkfs_base::error::{Error, Result};

/// Checks `body`. Returns the number of elements of the outermost value, which identifies the
/// release; none if it is a map, or JSON, which the parser checks.
pub fn check(body: &Body) -> Result<Option<u64>> {
    match body.encoding {
        Encoding::Json => Ok(None),
        Encoding::MessagePack => message_pack(&body.bytes),
    }
}

/// Head of a value: the number of bytes and of further values that belong to it.
struct Head {
    bytes: u64,
    values: u64,
}

fn message_pack(bytes: &[u8]) -> Result<Option<u64>> {
    let mut rest = bytes;
    // Values still to come, per level.
    let mut open: Vec<u64> = vec![1];
    while let Some(left) = open.last_mut() {
        let Some(one_less) = left.checked_sub(1) else {
            open.pop();
            continue;
        };
        *left = one_less;
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
    Ok(is_array.then(|| head(&mut &*bytes)).transpose()?.map(|head| head.values))
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
        check(&Body { bytes: bytes.to_vec().into(), encoding: Encoding::MessagePack })
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
    }
}
