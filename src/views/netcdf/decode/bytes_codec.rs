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
    /// Parses a codec of chunks whose elements have `item_size` bytes, 0 if these vary. Returns none if this program does not have it.
    pub(super) fn parse(name: &str, configuration: &Value, item_size: usize) -> Option<Self> {
        let setting = |key: &str| configuration.get(key).filter(|value| !value.is_null());
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
                // zarr-python takes the size of an element if the document has none.
                let size = match setting("elementsize") {
                    Some(size) => usize::try_from(size.as_u64()?).ok()?,
                    None => item_size,
                };
                BytesCodec::Shuffle(Some(size).filter(|size| *size > 0)?)
            }
            _ => return None,
        })
    }

    /// Returns the most bytes that this codec stores for `decoded` bytes: what the next decoder may produce.
    pub(super) fn max_stored(self, decoded: usize) -> usize {
        match self {
            BytesCodec::Crc32c(_) => decoded.saturating_add(4),
            BytesCodec::Shuffle(_) => decoded,
            // No encoder of these adds more to data that cannot be compressed. Small chunks get small bounds: a shard may have a million.
            _ => decoded.saturating_add(decoded / 8).saturating_add(decoded.saturating_add(256).min(4096)),
        }
    }

    /// Decodes `stored` to at most `limit` bytes, probably `expected`.
    pub(super) fn decode(self, stored: &[u8], limit: usize, expected: usize) -> Result<Cow<'_, [u8]>> {
        let mut output = Output { decoded: Vec::new(), limit, expected };
        let decoded = match self {
            BytesCodec::Zstd => zstd_at_once(stored, limit, expected)?,
            BytesCodec::Gzip => gzip(stored, output)?,
            BytesCodec::Zlib => {
                output.append(flate2::bufread::ZlibDecoder::new(stored)).map_err(damaged)?;
                output.finish()?
            }
            BytesCodec::Bzip2 => bzip2(stored, output)?,
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
fn zstd_at_once(stored: &[u8], limit: usize, expected: usize) -> Result<Vec<u8>> {
    // The limit of a shard may be far beyond its length.
    let bound = if expected < limit { zstd::bulk::Decompressor::upper_bound(stored) } else { None };
    let mut decoded = memory::large_buffer(bound.map_or(limit, |bound| bound.min(limit)));
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

/// Decoded bytes of which there must not be more than a limit.
struct Output {
    decoded: Vec<u8>,
    limit: usize,
    /// Bytes that are probably decoded.
    expected: usize,
}

impl Output {
    /// Appends all of `decoder`, up to one byte beyond the limit.
    fn append(&mut self, decoder: impl Read) -> std::io::Result<()> {
        if self.decoded.capacity() == 0 {
            self.decoded = memory::large_buffer(self.expected.min(self.limit));
        }
        let left = self.limit.saturating_sub(self.decoded.len()) as u64;
        decoder.take(left.saturating_add(1)).read_to_end(&mut self.decoded).map(drop)
    }

    fn is_too_long(&self) -> bool {
        self.decoded.len() > self.limit
    }

    /// Returns the decoded bytes.
    fn finish(self) -> Result<Vec<u8>> {
        match self.is_too_long() {
            true => Err(Error::corrupt(format!("compressed data of more than {} bytes", self.limit))),
            false => Ok(self.decoded),
        }
    }
}

/// Decodes gzip members. Zeros may follow each, as in Python.
fn gzip(stored: &[u8], mut output: Output) -> Result<Vec<u8>> {
    let mut rest = stored;
    loop {
        output.append(flate2::bufread::GzDecoder::new(&mut rest)).map_err(damaged)?;
        let padding = rest.iter().take_while(|byte| **byte == 0).count();
        rest = rest.get(padding..).unwrap_or_default();
        if rest.is_empty() || output.is_too_long() {
            return output.finish();
        }
    }
}

/// Decodes bzip2 streams. Something else may follow the first one, as in Python; a stream that ends early is damaged.
fn bzip2(stored: &[u8], mut output: Output) -> Result<Vec<u8>> {
    let mut rest = stored;
    let mut is_first = true;
    loop {
        let length = output.decoded.len();
        match output.append(bzip2::bufread::BzDecoder::new(&mut rest)) {
            Ok(()) if rest.is_empty() || output.is_too_long() => return output.finish(),
            Ok(()) => is_first = false,
            Err(error) if is_first || error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(damaged(error)),
            Err(_) => {
                output.decoded.truncate(length);
                return output.finish();
            }
        }
    }
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
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
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
            let codec = BytesCodec::parse(name, &Value::Null, 4).unwrap();
            let decode = |stored: &[u8], limit| codec.decode(stored, limit, limit).map(Cow::into_owned);
            assert!(stored.len() < data.len() / 2);
            assert_eq!(decode(&stored, data.len()).unwrap(), data, "{name}");
            // The limit may be beyond what is expected.
            assert_eq!(codec.decode(&stored, 4 * data.len(), 10).unwrap(), data, "{name}");
            assert!(decode(&stored, data.len() - 1).is_err(), "{name}");
            let half = stored.get(..stored.len() / 2).unwrap();
            assert!(decode(half, data.len()).is_err(), "{name}");
            // Several members are one text, unless that is too long.
            if ["gzip", "bz2"].contains(&name) {
                let twice = [stored.as_slice(), &stored].concat();
                assert_eq!(decode(&twice, 2 * data.len()).unwrap(), data.repeat(2), "{name}");
                assert!(decode(&twice, 2 * data.len() - 1).is_err(), "{name}");
                assert!(decode(&twice[..twice.len() - 9], 2 * data.len()).is_err(), "{name}");
            }
        }
    }

    #[test]
    fn bytes_behind_compressed_data_are_ignored_where_python_ignores_them() {
        let gzip = {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(b"data").unwrap();
            encoder.finish().unwrap()
        };
        let bzip2 = {
            let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            encoder.write_all(b"data").unwrap();
            encoder.finish().unwrap()
        };
        // A Blosc buffer that has its bytes as they are.
        let blosc = [&[2, 1, 2, 1, 4, 0, 0, 0, 4, 0, 0, 0, 20, 0, 0, 0][..], b"data"].concat();
        let decode = |codec: BytesCodec, stored: &[u8], tail: &[u8]| {
            codec.decode(&[stored, tail].concat(), 100, 4).map(Cow::into_owned).ok()
        };
        let data = Some(b"data".to_vec());
        for tail in [&b""[..], b"\0", &[0; 16]] {
            assert_eq!(decode(BytesCodec::Gzip, &gzip, tail), data);
        }
        assert_eq!(decode(BytesCodec::Gzip, &[gzip.as_slice(), &[0; 7]].concat(), &gzip), Some(b"datadata".to_vec()));
        assert_eq!(decode(BytesCodec::Gzip, &gzip, b"junk"), None);
        for tail in [&b""[..], b"junk", &[0; 16]] {
            assert_eq!(decode(BytesCodec::Bzip2, &bzip2, tail), data, "{tail:?}");
            assert_eq!(decode(BytesCodec::Blosc, &blosc, tail), data, "{tail:?}");
        }
        assert_eq!(decode(BytesCodec::Bzip2, &bzip2, b"BZh"), None);
        assert_eq!(decode(BytesCodec::Blosc, &blosc[..19], b""), None);
    }

    #[test]
    fn a_frame_of_more_than_the_limit_is_refused_where_the_buffer_has_room_for_it() {
        let data = vec![7; 3 << 20];
        let stored = zstd::encode_all(data.as_slice(), 1).unwrap();
        assert_eq!(BytesCodec::Zstd.decode(&stored, data.len(), data.len()).unwrap(), data);
        let error = BytesCodec::Zstd.decode(&stored, data.len() - 1, data.len() - 1).unwrap_err();
        assert!(error.to_string().contains("more than 3145727 bytes"), "{error}");
    }

    #[test]
    fn checksums_are_checked_at_either_end() {
        let sum = crc32c::crc32c(b"data").to_le_bytes();
        let (end, start) = ([b"data".as_slice(), &sum].concat(), [sum.as_slice(), b"data"].concat());
        let at_end = BytesCodec::parse("crc32c", &Value::Null, 4).unwrap();
        let at_start = BytesCodec::parse("numcodecs.crc32c", &json!({"location": "start"}), 4).unwrap();
        assert_eq!(at_end.decode(&end, 4, 4).unwrap(), b"data".as_slice());
        assert_eq!(at_start.decode(&start, 4, 4).unwrap(), b"data".as_slice());
        assert!(at_start.decode(&end, 4, 4).is_err() && at_end.decode(&[1, 2], 4, 4).is_err());
        // zarr-python 3.1 with numcodecs 0.16 writes no place for a checksum at the end; older versions wrote it at the start.
        let at_either = BytesCodec::parse("numcodecs.crc32c", &json!({}), 4).unwrap();
        for stored in [&end, &start] {
            assert_eq!(at_either.decode(stored, 4, 4).unwrap(), b"data".as_slice());
        }
        assert!(at_either.decode(b"datadata", 4, 4).is_err() && at_either.decode(&[1, 2], 4, 4).is_err());
    }

    #[test]
    fn a_shuffle_is_reversed() {
        let shuffle = BytesCodec::parse("numcodecs.shuffle", &json!({"elementsize": 2}), 4).unwrap();
        assert_eq!(shuffle.decode(&[1, 3, 5, 2, 4, 6, 7], 7, 7).unwrap(), [1_u8, 2, 3, 4, 5, 6, 7].as_slice());
        assert!(BytesCodec::parse("shuffle", &json!({"elementsize": 0}), 4).is_none());
        assert_eq!(BytesCodec::Shuffle(8).decode(&[1, 2], 2, 2).unwrap(), [1_u8, 2].as_slice());
        // Without a size, that of the elements, if they have one.
        for settings in [json!({}), json!({"elementsize": null}), Value::Null] {
            assert_eq!(BytesCodec::parse("numcodecs.shuffle", &settings, 8), Some(BytesCodec::Shuffle(8)));
            assert_eq!(BytesCodec::parse("numcodecs.shuffle", &settings, 0), None);
        }
    }
}
