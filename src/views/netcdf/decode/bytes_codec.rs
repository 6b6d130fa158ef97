//! Codecs from bytes to bytes, by their names in `zarr.json`.

use std::borrow::Cow;
use std::io::Read;

use serde_json::Value;

use super::blosc;
use crate::error::{Error, Result};
use crate::memory;

/// Codec that turns stored bytes into other bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BytesCodec {
    Zstd,
    Gzip,
    Zlib,
    Bzip2,
    Blosc,
    /// Checksum of 4 bytes.
    Crc32c(ChecksumPlace),
    /// Byte shuffle of elements of this many bytes.
    Shuffle(usize),
}

/// Place of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChecksumPlace {
    /// Before the data.
    Start,
    /// After the data.
    End,
    /// After the data, or before them: numcodecs wrote it there before it had the setting `location`, and names no place if that is its
    /// default.
    Either,
}

impl BytesCodec {
    /// Parses a codec. Returns none if this program does not have it.
    pub(super) fn parse(name: &str, configuration: &Value) -> Option<Self> {
        let setting = |key: &str| configuration.get(key);
        Some(match name {
            "zstd" | "numcodecs.zstd" => BytesCodec::Zstd,
            "gzip" | "numcodecs.gzip" => BytesCodec::Gzip,
            "zlib" | "numcodecs.zlib" => BytesCodec::Zlib,
            "bz2" | "numcodecs.bz2" => BytesCodec::Bzip2,
            "blosc" | "numcodecs.blosc" => BytesCodec::Blosc,
            "crc32c" => BytesCodec::Crc32c(ChecksumPlace::End),
            "numcodecs.crc32c" => BytesCodec::Crc32c(match setting("location").and_then(Value::as_str) {
                Some("start") => ChecksumPlace::Start,
                Some(_) => ChecksumPlace::End,
                None => ChecksumPlace::Either,
            }),
            "numcodecs.shuffle" | "shuffle" => {
                let size = setting("elementsize").map_or(Some(4), Value::as_u64)?;
                BytesCodec::Shuffle(usize::try_from(size).ok().filter(|size| *size > 0)?)
            }
            _ => return None,
        })
    }

    /// Returns the most bytes that this codec stores for `decoded` bytes: what the next decoder may produce.
    pub(super) fn max_stored(self, decoded: usize) -> usize {
        match self {
            BytesCodec::Crc32c(_) => decoded.saturating_add(4),
            BytesCodec::Shuffle(_) => decoded,
            // No encoder of these adds more to data that cannot be compressed.
            _ => decoded.saturating_add(decoded / 8).saturating_add(4096),
        }
    }

    /// Decodes `stored` to at most `limit` bytes.
    pub(super) fn decode(self, stored: &[u8], limit: usize) -> Result<Cow<'_, [u8]>> {
        let decoded = match self {
            BytesCodec::Zstd => zstd_at_once(stored, limit)?,
            BytesCodec::Gzip => bounded(flate2::bufread::MultiGzDecoder::new(stored), limit)?,
            BytesCodec::Zlib => bounded(flate2::bufread::ZlibDecoder::new(stored), limit)?,
            BytesCodec::Bzip2 => bounded(bzip2::bufread::MultiBzDecoder::new(stored), limit)?,
            BytesCodec::Blosc => blosc::decompress(stored, limit)?,
            BytesCodec::Crc32c(place) => return checked(stored, place).map(Cow::Borrowed),
            BytesCodec::Shuffle(size) => unshuffled(stored, size),
        };
        Ok(Cow::Owned(decoded))
    }
}

fn damaged(error: std::io::Error) -> Error {
    Error::corrupt(format!("damaged compressed data: {error}"))
}

/// Decodes zstd frames to at most `limit` bytes. At once: a decoder of streams has a window of its own, which it allocates for each
/// chunk and copies everything out of.
fn zstd_at_once(stored: &[u8], limit: usize) -> Result<Vec<u8>> {
    let mut decoded = memory::large_buffer(limit);
    let mut decoder = zstd::bulk::Decompressor::new().map_err(damaged)?;
    match decoder.decompress_to_buffer(stored, &mut decoded) {
        Ok(_) if decoded.len() <= limit => Ok(decoded),
        // The buffer may have room for more.
        Ok(_) => Err(Error::corrupt(format!("compressed data of more than {limit} bytes"))),
        Err(error) => match zstd::bulk::Decompressor::upper_bound(stored) {
            Some(bound) if bound > limit => {
                Err(Error::corrupt(format!("compressed data of more than {limit} bytes: {error}")))
            }
            _ => Err(damaged(error)),
        },
    }
}

/// Reads all of `decoder`, which must not have more than `limit` bytes.
fn bounded(decoder: impl Read, limit: usize) -> Result<Vec<u8>> {
    let mut decoded = memory::large_buffer(limit);
    decoder.take(limit as u64 + 1).read_to_end(&mut decoded).map_err(damaged)?;
    if decoded.len() > limit {
        return Err(Error::corrupt(format!("compressed data of more than {limit} bytes")));
    }
    Ok(decoded)
}

/// Returns the data of `stored`, whose checksum is right.
fn checked(stored: &[u8], place: ChecksumPlace) -> Result<&[u8]> {
    match place {
        ChecksumPlace::Start => without_checksum(stored, true),
        ChecksumPlace::End => without_checksum(stored, false),
        ChecksumPlace::Either => {
            without_checksum(stored, false).or_else(|error| without_checksum(stored, true).map_err(|_| error))
        }
    }
}

fn without_checksum(stored: &[u8], at_start: bool) -> Result<&[u8]> {
    let parts = if at_start {
        stored.split_first_chunk::<4>()
    } else {
        stored.split_last_chunk::<4>().map(|(data, checksum)| (checksum, data))
    };
    let (checksum, data) = parts.ok_or_else(|| Error::corrupt("too short for its checksum"))?;
    let (wanted, computed) = (u32::from_le_bytes(*checksum), crc32c::crc32c(data));
    if wanted != computed {
        return Err(Error::corrupt(format!("CRC-32C {computed:08x}, and {wanted:08x} is stored")));
    }
    Ok(data)
}

/// Reverses a byte shuffle: the first bytes of all elements, then the second ones, and so on; a rest is as it was.
fn unshuffled(stored: &[u8], size: usize) -> Vec<u8> {
    let count = stored.len() / size;
    let mut decoded = stored.to_vec();
    for (plane, bytes) in stored.chunks_exact(count.max(1)).take(if count == 0 { 0 } else { size }).enumerate() {
        for (element, byte) in decoded.chunks_exact_mut(size).zip(bytes) {
            if let Some(place) = element.get_mut(plane) {
                *place = *byte;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;
    use std::io::Write;

    #[test]
    fn each_codec_decodes_what_its_encoder_makes_and_refuses_more_than_the_limit() {
        let data: Vec<u8> = (0..10_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let gzip = {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&data).unwrap();
            encoder.finish().unwrap()
        };
        let zlib = {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&data).unwrap();
            encoder.finish().unwrap()
        };
        let bzip2 = {
            let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            encoder.write_all(&data).unwrap();
            encoder.finish().unwrap()
        };
        let zstd = zstd::encode_all(data.as_slice(), 1).unwrap();
        for (name, stored) in [("gzip", gzip), ("zlib", zlib), ("bz2", bzip2), ("numcodecs.zstd", zstd)] {
            let codec = BytesCodec::parse(name, &Value::Null).unwrap();
            assert!(stored.len() < data.len() / 2);
            assert_eq!(codec.decode(&stored, data.len()).unwrap(), data, "{name}");
            assert!(codec.decode(&stored, data.len() - 1).is_err(), "{name}");
            let half = stored.get(..stored.len() / 2).unwrap();
            assert!(codec.decode(half, data.len()).is_err(), "{name}");
        }
    }

    #[test]
    fn a_frame_of_more_than_the_limit_is_refused_where_the_buffer_has_room_for_it() {
        let data = vec![7; 3 << 20];
        let stored = zstd::encode_all(data.as_slice(), 1).unwrap();
        assert_eq!(BytesCodec::Zstd.decode(&stored, data.len()).unwrap(), data);
        let error = BytesCodec::Zstd.decode(&stored, data.len() - 1).unwrap_err();
        assert!(error.to_string().contains("more than 3145727 bytes"), "{error}");
    }

    #[test]
    fn checksums_are_checked_at_either_end() {
        let sum = crc32c::crc32c(b"data").to_le_bytes();
        let (end, start) = ([b"data".as_slice(), &sum].concat(), [sum.as_slice(), b"data"].concat());
        let at_end = BytesCodec::parse("crc32c", &Value::Null).unwrap();
        let at_start = BytesCodec::parse("numcodecs.crc32c", &json!({"location": "start"})).unwrap();
        assert_eq!(at_end.decode(&end, 4).unwrap(), b"data".as_slice());
        assert_eq!(at_start.decode(&start, 4).unwrap(), b"data".as_slice());
        assert!(at_start.decode(&end, 4).is_err() && at_end.decode(&[1, 2], 4).is_err());
        // zarr-python 3.1 with numcodecs 0.16 writes no place for a checksum at the end; older versions wrote it at the start.
        let at_either = BytesCodec::parse("numcodecs.crc32c", &json!({})).unwrap();
        for stored in [&end, &start] {
            assert_eq!(at_either.decode(stored, 4).unwrap(), b"data".as_slice());
        }
        assert!(at_either.decode(b"datadata", 4).is_err() && at_either.decode(&[1, 2], 4).is_err());
    }

    #[test]
    fn a_shuffle_is_reversed() {
        let shuffle = BytesCodec::parse("numcodecs.shuffle", &json!({"elementsize": 2})).unwrap();
        assert_eq!(shuffle.decode(&[1, 3, 5, 2, 4, 6, 7], 7).unwrap(), [1_u8, 2, 3, 4, 5, 6, 7].as_slice());
        assert!(BytesCodec::parse("shuffle", &json!({"elementsize": 0})).is_none());
        assert_eq!(BytesCodec::Shuffle(8).decode(&[1, 2], 2).unwrap(), [1_u8, 2].as_slice());
    }
}
