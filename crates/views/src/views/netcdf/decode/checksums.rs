//! Checksums of four bytes, little-endian, before or behind the data that they are of.

use serde_json::Value;

use super::super::hdf5::lookup3;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::zarr::filters::fletcher32;

/// Kind of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    Crc32c,
    Crc32,
    Adler32,
    /// As HDF5 has it, of big-endian pairs of bytes.
    Fletcher32,
    /// With an initial value.
    Lookup3(u32),
}

/// Place of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChecksumPlace {
    /// Before the data.
    Start,
    /// After the data.
    End,
    /// After the data, or before them: numcodecs wrote a CRC-32C there before it had the setting
    /// `location`, and names no place if that is its default.
    Either,
}

/// Checksum, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum {
    sum: Sum,
    place: ChecksumPlace,
}

/// Bytes of a checksum.
pub(super) const LENGTH: usize = 4;
/// Largest number that Adler-32 has in a sum: a prime.
const ADLER: u32 = 65_521;
/// Bytes after which the sums of Adler-32 are reduced, at the latest: they fit 32 bits.
const ADLER_STEP: usize = 5552;

impl Checksum {
    /// Parses a codec; none if it is no checksum, or one with settings that this program does not
    /// have.
    pub(super) fn parse(name: &str, configuration: &Value) -> Option<Self> {
        let setting = |key: &str| configuration.get(key).filter(|value| !value.is_null());
        let place = |default| match setting("location").and_then(Value::as_str) {
            Some("start") => ChecksumPlace::Start,
            Some(_) => ChecksumPlace::End,
            None => default,
        };
        let (sum, place) = match name {
            "crc32c" => (Sum::Crc32c, ChecksumPlace::End),
            "numcodecs.crc32c" => (Sum::Crc32c, place(ChecksumPlace::Either)),
            "numcodecs.crc32" => (Sum::Crc32, place(ChecksumPlace::Start)),
            "numcodecs.adler32" => (Sum::Adler32, place(ChecksumPlace::Start)),
            "numcodecs.fletcher32" => (Sum::Fletcher32, ChecksumPlace::End),
            // A prefix of bytes has no place in JSON.
            "numcodecs.jenkins_lookup3" if setting("prefix").is_none() => {
                let initial = setting("initval").map_or(Some(0), Value::as_u64)?;
                (Sum::Lookup3(u32::try_from(initial).ok()?), ChecksumPlace::End)
            }
            _ => return None,
        };
        Some(Checksum { sum, place })
    }

    /// Returns the data of `stored`, whose checksum is right.
    pub(super) fn checked(self, stored: &[u8]) -> Result<&[u8]> {
        let at = |at_start| self.without(stored, at_start);
        match self.place {
            ChecksumPlace::Start => at(true),
            ChecksumPlace::End => at(false),
            ChecksumPlace::Either => at(false).or_else(|error| at(true).map_err(|_| error)),
        }
    }

    fn without(self, stored: &[u8], at_start: bool) -> Result<&[u8]> {
        let parts = if at_start {
            stored.split_first_chunk::<LENGTH>()
        } else {
            stored.split_last_chunk::<LENGTH>().map(|(data, checksum)| (checksum, data))
        };
        let (checksum, data) = parts.ok_or_else(|| Error::corrupt("too short for its checksum"))?;
        let wanted = u32::from_le_bytes(*checksum);
        let computed = self.sum.of(data);
        if wanted != computed {
            return Err(Error::corrupt(format!("{} {computed:08x}, and {wanted:08x} is stored", self.sum.name())));
        }
        Ok(data)
    }
}

impl Sum {
    fn name(self) -> &'static str {
        match self {
            Sum::Crc32c => "CRC-32C",
            Sum::Crc32 => "CRC-32",
            Sum::Adler32 => "Adler-32",
            Sum::Fletcher32 => "Fletcher-32",
            Sum::Lookup3(_) => "checksum lookup3",
        }
    }

    fn of(self, data: &[u8]) -> u32 {
        match self {
            Sum::Crc32c => crc32c::crc32c(data),
            Sum::Crc32 => crc32fast::hash(data),
            Sum::Adler32 => adler32(data),
            Sum::Fletcher32 => fletcher32(data),
            Sum::Lookup3(initial) => lookup3(data, initial),
        }
    }
}

fn adler32(data: &[u8]) -> u32 {
    let mut low = 1_u32;
    let mut high = 0_u32;
    for step in data.chunks(ADLER_STEP) {
        for byte in step {
            low += u32::from(*byte);
            high += low;
        }
        low %= ADLER;
        high %= ADLER;
    }
    high << 16 | low
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    /// Sums that numcodecs 0.16 computes.
    const SUMS: [[u32; 3]; 5] = [
        [0x0062_0062, 0x05C8_01F0, 0x6D95_11E4],
        [0x6100_6100, 0x4FF0_29C7, 0x1109_0CEE],
        [0x58D6_8708, 0x026D_72DE, 0x3137_BAD1],
        [0xCB4E_A349, 0x88C1_9094, 0xBB72_0B3C],
        [0xE8B7_BE43, 0x8587_D865, 0x12F8_1148],
    ];

    fn checksum(name: &str, configuration: Value) -> Checksum {
        Checksum::parse(name, &configuration).unwrap()
    }

    #[test]
    fn checksums_are_checked_at_either_end() {
        let sum = crc32c::crc32c(b"data").to_le_bytes();
        let end = [b"data".as_slice(), &sum].concat();
        let start = [sum.as_slice(), b"data"].concat();
        let at_end = checksum("crc32c", json!(null));
        let at_start = checksum("numcodecs.crc32c", json!({"location": "start"}));
        assert_eq!(at_end.checked(&end).unwrap(), b"data");
        assert_eq!(at_start.checked(&start).unwrap(), b"data");
        assert!(at_start.checked(&end).is_err() && at_end.checked(&[1, 2]).is_err());
        // zarr-python 3.1 with numcodecs 0.16 writes no place for a checksum at the end; older
        // versions wrote it at the start.
        let at_either = checksum("numcodecs.crc32c", json!({}));
        for stored in [&end, &start] {
            assert_eq!(at_either.checked(stored).unwrap(), b"data");
        }
        assert!(at_either.checked(b"datadata").is_err() && at_either.checked(&[1, 2]).is_err());
    }

    #[test]
    fn sums_are_those_of_numcodecs() {
        let long: Vec<u8> = (0..20_001_u32).map(|n| (n * n / 7) as u8).collect();
        let data = [&b"a"[..], b"abcde", &long];
        assert_eq!(data.map(|data| Sum::Adler32.of(data)), SUMS[0]);
        assert_eq!(data.map(|data| Sum::Fletcher32.of(data)), SUMS[1]);
        assert_eq!(data.map(|data| Sum::Lookup3(0).of(data)), SUMS[2]);
        assert_eq!(data.map(|data| Sum::Lookup3(7).of(data)), SUMS[3]);
        assert_eq!(data.map(|data| Sum::Crc32.of(data)), SUMS[4]);
    }

    #[test]
    fn settings_that_are_unknown_are_refused() {
        assert!(Checksum::parse("numcodecs.jenkins_lookup3", &json!({"prefix": "x"})).is_none());
        assert!(Checksum::parse("numcodecs.jenkins_lookup3", &json!({"initval": -1})).is_none());
        assert!(Checksum::parse("zstd", &json!({})).is_none());
    }
}
