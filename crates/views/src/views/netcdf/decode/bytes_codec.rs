//! Codecs from bytes to bytes, by their names in `zarr.json`.

use std::borrow::Cow;
use std::io::Read;

use lzma_rust2::LzmaReader;
use serde_json::Value;

use super::blosc;
use super::checksums::{self, Checksum};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory;
use icechunkfs_format::zarr::filters::unshuffled;

/// First bytes of a stream of XZ.
const XZ_MAGIC: &[u8] = b"\xFD7zXZ\0";
/// Bytes of a decoder of LZMA without its window: probabilities, and the first piece of the window.
const LZMA_MEMORY: usize = 256 << 10;

/// Codec that turns stored bytes into other bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BytesCodec {
    Zstd,
    Gzip,
    Zlib,
    Bzip2,
    Blosc,
    /// Block of LZ4, behind its decompressed length.
    Lz4,
    Lzma(LzmaForm),
    /// Checksum of 4 bytes.
    Checksum(Checksum),
    /// Byte shuffle of elements of this many bytes.
    Shuffle(usize),
}

/// Form of data that LZMA has compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LzmaForm {
    Xz,
    /// The one before XZ.
    Alone,
    /// Either of them.
    Any,
}

impl BytesCodec {
    /// Parses a codec of chunks whose elements have `item_size` bytes, 0 if these vary. Returns
    /// none if this program does not have it.
    pub(super) fn parse(name: &str, configuration: &Value, item_size: usize) -> Option<Self> {
        let setting = |key: &str| configuration.get(key).filter(|value| !value.is_null());
        Some(match name {
            "zstd" | "numcodecs.zstd" => BytesCodec::Zstd,
            "gzip" | "numcodecs.gzip" => BytesCodec::Gzip,
            "zlib" | "numcodecs.zlib" => BytesCodec::Zlib,
            "bz2" | "numcodecs.bz2" => BytesCodec::Bzip2,
            "blosc" | "numcodecs.blosc" => BytesCodec::Blosc,
            "numcodecs.lz4" => BytesCodec::Lz4,
            // Filters of a format of its own have settings that numcodecs alone knows.
            "numcodecs.lzma" if setting("filters").is_none() => BytesCodec::Lzma(match setting("format") {
                None => LzmaForm::Xz,
                Some(format) => match format.as_u64()? {
                    0 => LzmaForm::Any,
                    1 => LzmaForm::Xz,
                    2 => LzmaForm::Alone,
                    _ => return None,
                },
            }),
            "numcodecs.shuffle" | "shuffle" => {
                // zarr-python takes the size of an element if the document has none.
                let size = match setting("elementsize") {
                    Some(size) => usize::try_from(size.as_u64()?).ok()?,
                    None => item_size,
                };
                BytesCodec::Shuffle(Some(size).filter(|size| *size > 0)?)
            }
            _ => BytesCodec::Checksum(Checksum::parse(name, configuration)?),
        })
    }

    /// Returns the most bytes that this codec stores for `decoded` bytes: what the next decoder may
    /// produce.
    pub(super) fn max_stored(self, decoded: usize) -> usize {
        match self {
            BytesCodec::Checksum(_) => decoded.saturating_add(checksums::LENGTH),
            BytesCodec::Shuffle(_) => decoded,
            // No encoder of these adds more to data that cannot be compressed. Small chunks get
            // small bounds: a shard may have a million.
            _ => decoded.saturating_add(decoded / 8).saturating_add(decoded.saturating_add(256).min(4096)),
        }
    }

    /// Returns the bytes of memory that decoding to at most `limit` bytes takes beside these.
    pub(super) fn memory(self, limit: usize) -> usize {
        match self {
            // The window grows with what is decoded, by doubling.
            BytesCodec::Lzma(_) => limit.saturating_mul(3).saturating_add(LZMA_MEMORY),
            _ => 0,
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
            BytesCodec::Lz4 => lz4(stored, limit)?,
            BytesCodec::Lzma(form) => lzma(stored, form, output)?,
            BytesCodec::Checksum(checksum) => return checksum.checked(stored).map(Cow::Borrowed),
            BytesCodec::Shuffle(size) => unshuffled(stored, size),
        };
        Ok(Cow::Owned(decoded))
    }
}

fn damaged(error: std::io::Error) -> Error {
    Error::corrupt(format!("damaged compressed data: {error}"))
}

/// Decodes zstd frames to at most `limit` bytes. At once: a decoder of streams has a window of its
/// own, which it allocates for each chunk and copies everything out of.
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

    /// Appends all streams of `stored`, each by `append`, as long as one `may_follow`. Something
    /// else may follow the first one, as in Python; a stream that ends early is damaged.
    fn append_streams(
        mut self,
        stored: &[u8],
        may_follow: impl Fn(&[u8]) -> bool,
        append: impl Fn(&mut Self, &mut &[u8]) -> std::io::Result<()>,
    ) -> Result<Vec<u8>> {
        let mut rest = stored;
        let mut is_first = true;
        loop {
            let length = self.decoded.len();
            if !is_first && !may_follow(rest) {
                return self.finish();
            }
            match append(&mut self, &mut rest) {
                Ok(()) if rest.is_empty() || self.is_too_long() => return self.finish(),
                Ok(()) => is_first = false,
                Err(error) if is_first || error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Err(damaged(error));
                }
                Err(_) => {
                    self.decoded.truncate(length);
                    return self.finish();
                }
            }
        }
    }

    fn is_too_long(&self) -> bool {
        self.decoded.len() > self.limit
    }

    /// Returns the decoded bytes.
    fn finish(self) -> Result<Vec<u8>> {
        if self.is_too_long() {
            Err(Error::corrupt(format!("compressed data of more than {} bytes", self.limit)))
        } else {
            Ok(self.decoded)
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

/// Decodes bzip2 streams.
fn bzip2(stored: &[u8], output: Output) -> Result<Vec<u8>> {
    output.append_streams(stored, |_| true, |output, rest| output.append(bzip2::bufread::BzDecoder::new(rest)))
}

/// Decodes a block of LZ4, as numcodecs stores it.
fn lz4(stored: &[u8], limit: usize) -> Result<Vec<u8>> {
    let (length, block) =
        stored.split_first_chunk::<4>().ok_or_else(|| Error::corrupt("the length of a block of LZ4 is missing"))?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > limit {
        return Err(Error::corrupt(format!("compressed data of {length} bytes; at most {limit} are allowed")));
    }
    let mut decoded = memory::large_buffer(length);
    decoded.resize(length, 0);
    match lz4_flex::block::decompress_into(block, &mut decoded) {
        Ok(written) if written == length => Ok(decoded),
        Ok(written) => Err(Error::corrupt(format!("a block of LZ4 of {written} bytes, and its length is {length}"))),
        Err(error) => Err(Error::corrupt(format!("damaged compressed data: {error}"))),
    }
}

/// Decodes streams of LZMA.
fn lzma(stored: &[u8], form: LzmaForm, output: Output) -> Result<Vec<u8>> {
    let may_follow = |rest: &[u8]| form == LzmaForm::Alone || is_begin_of_xz(rest);
    output.append_streams(stored, may_follow, |output, rest| {
        let is_xz = match form {
            LzmaForm::Xz => true,
            LzmaForm::Alone => false,
            LzmaForm::Any => rest.starts_with(XZ_MAGIC),
        };
        if is_xz {
            output.append(lzma_rust2::XzReader::new(rest, false))
        } else {
            LzmaReader::new_mem_limit(rest, u32::MAX, None).and_then(|reader| output.append(reader))
        }
    })
}

/// Returns true if `stored` begins as a stream of XZ does, or is the beginning of one.
fn is_begin_of_xz(stored: &[u8]) -> bool {
    stored.starts_with(XZ_MAGIC) || XZ_MAGIC.starts_with(stored)
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

    /// Numbers that Python's lzma and numcodecs have compressed: four bytes each of `n / 7` for 300
    /// `n`.
    const XZ: &[u8] = &[
        0xFD, 0x37, 0x7A, 0x58, 0x5A, 0x00, 0x00, 0x04, 0xE6, 0xD6, 0xB4, 0x46, 0x02, 0x00, 0x21, 0x01, 0x16, 0x00,
        0x00, 0x00, 0x74, 0x2F, 0xE5, 0xA3, 0xE0, 0x04, 0xAF, 0x00, 0x51, 0x5D, 0x00, 0x00, 0x6E, 0x10, 0x49, 0x68,
        0x89, 0xFE, 0x2C, 0x65, 0x0F, 0x44, 0x6C, 0x67, 0x40, 0x11, 0xF3, 0x5E, 0xFD, 0xDC, 0xCF, 0x42, 0xB9, 0x64,
        0xAB, 0x72, 0xA7, 0xC0, 0x90, 0xA6, 0x37, 0xC7, 0x3A, 0x60, 0x34, 0xBB, 0x5C, 0x81, 0x61, 0x10, 0xCB, 0x6D,
        0xE0, 0x00, 0x8E, 0x04, 0xD5, 0xF3, 0x2F, 0xF1, 0x9F, 0x0A, 0x4B, 0x37, 0xB4, 0x06, 0xD7, 0x07, 0x9C, 0xC4,
        0xA6, 0x46, 0x2B, 0x94, 0x2B, 0xA8, 0xEB, 0x04, 0xD3, 0x84, 0x32, 0x7D, 0x3B, 0x9A, 0xE6, 0x0B, 0x3B, 0xFE,
        0x4C, 0xFA, 0x1F, 0x00, 0x00, 0x00, 0x00, 0x00, 0x16, 0x63, 0xD7, 0x37, 0xFB, 0x10, 0xEF, 0x4D, 0x00, 0x01,
        0x6D, 0xB0, 0x09, 0x00, 0x00, 0x00, 0xC7, 0x8F, 0xF0, 0x1A, 0xB1, 0xC4, 0x67, 0xFB, 0x02, 0x00, 0x00, 0x00,
        0x00, 0x04, 0x59, 0x5A,
    ];
    const ALONE: &[u8] = &[
        0x5D, 0x00, 0x00, 0x80, 0x00, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x00, 0x00, 0x6E, 0x10, 0x49,
        0x68, 0x89, 0xFE, 0x2C, 0x65, 0x0F, 0x44, 0x6C, 0x67, 0x40, 0x11, 0xF3, 0x5E, 0xFD, 0xDC, 0xCF, 0x42, 0xB9,
        0x64, 0xAB, 0x72, 0xA7, 0xC0, 0x90, 0xA6, 0x37, 0xC7, 0x3A, 0x60, 0x34, 0xBB, 0x5C, 0x81, 0x61, 0x10, 0xCB,
        0x6D, 0xE0, 0x00, 0x8E, 0x04, 0xD5, 0xF3, 0x2F, 0xF1, 0x9F, 0x0A, 0x4B, 0x37, 0xB4, 0x06, 0xD7, 0x07, 0x9C,
        0xC4, 0xA6, 0x46, 0x2B, 0x94, 0x2B, 0xA8, 0xEB, 0x04, 0xD3, 0x84, 0x32, 0x7D, 0x3B, 0x9A, 0xE6, 0x0B, 0x3B,
        0xFE, 0x55, 0xE5, 0x8D, 0xBD, 0xFF, 0xFF, 0x4B, 0x2C, 0x00, 0x00,
    ];
    const LZ4: &[u8] = &[
        0xB0, 0x04, 0x00, 0x00, 0x1F, 0x00, 0x01, 0x00, 0x08, 0x1F, 0x01, 0x04, 0x00, 0x08, 0x1F, 0x02, 0x04, 0x00,
        0x08, 0x1F, 0x03, 0x04, 0x00, 0x08, 0x1F, 0x04, 0x04, 0x00, 0x08, 0x1F, 0x05, 0x04, 0x00, 0x08, 0x1F, 0x06,
        0x04, 0x00, 0x08, 0x1F, 0x07, 0x04, 0x00, 0x08, 0x1F, 0x08, 0x04, 0x00, 0x08, 0x1F, 0x09, 0x04, 0x00, 0x08,
        0x1F, 0x0A, 0x04, 0x00, 0x08, 0x1F, 0x0B, 0x04, 0x00, 0x08, 0x1F, 0x0C, 0x04, 0x00, 0x08, 0x1F, 0x0D, 0x04,
        0x00, 0x08, 0x1F, 0x0E, 0x04, 0x00, 0x08, 0x1F, 0x0F, 0x04, 0x00, 0x08, 0x1F, 0x10, 0x04, 0x00, 0x08, 0x1F,
        0x11, 0x04, 0x00, 0x08, 0x1F, 0x12, 0x04, 0x00, 0x08, 0x1F, 0x13, 0x04, 0x00, 0x08, 0x1F, 0x14, 0x04, 0x00,
        0x08, 0x1F, 0x15, 0x04, 0x00, 0x08, 0x1F, 0x16, 0x04, 0x00, 0x08, 0x1F, 0x17, 0x04, 0x00, 0x08, 0x1F, 0x18,
        0x04, 0x00, 0x08, 0x1F, 0x19, 0x04, 0x00, 0x08, 0x1F, 0x1A, 0x04, 0x00, 0x08, 0x1F, 0x1B, 0x04, 0x00, 0x08,
        0x1F, 0x1C, 0x04, 0x00, 0x08, 0x1F, 0x1D, 0x04, 0x00, 0x08, 0x1F, 0x1E, 0x04, 0x00, 0x08, 0x1F, 0x1F, 0x04,
        0x00, 0x08, 0x1F, 0x20, 0x04, 0x00, 0x08, 0x1F, 0x21, 0x04, 0x00, 0x08, 0x1F, 0x22, 0x04, 0x00, 0x08, 0x1F,
        0x23, 0x04, 0x00, 0x08, 0x1F, 0x24, 0x04, 0x00, 0x08, 0x1F, 0x25, 0x04, 0x00, 0x08, 0x1F, 0x26, 0x04, 0x00,
        0x08, 0x1F, 0x27, 0x04, 0x00, 0x08, 0x1F, 0x28, 0x04, 0x00, 0x08, 0x1F, 0x29, 0x04, 0x00, 0x08, 0x1E, 0x2A,
        0x04, 0x00, 0x50, 0x00, 0x2A, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn what_python_compresses_is_decoded_up_to_the_limit() {
        let data: Vec<u8> = (0..300_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        for (name, configuration, stored) in [
            ("numcodecs.lz4", json!({}), LZ4),
            ("numcodecs.lzma", json!({"format": 1, "check": -1, "preset": null, "filters": null}), XZ),
            ("numcodecs.lzma", json!({"format": 2}), ALONE),
            ("numcodecs.lzma", json!({"format": 0}), XZ),
            ("numcodecs.lzma", json!({"format": 0}), ALONE),
        ] {
            let codec = BytesCodec::parse(name, &configuration, 4).unwrap();
            let decode = |stored: &[u8], limit| codec.decode(stored, limit, limit).map(Cow::into_owned);
            assert_eq!(decode(stored, data.len()).unwrap(), data, "{name} {configuration}");
            assert_eq!(codec.decode(stored, 4 * data.len(), 10).unwrap(), data, "{name}");
            assert!(decode(stored, data.len() - 1).is_err(), "{name}");
            // Data that end early, or have another byte: an error or other bytes, and no panic.
            for at in 0..stored.len() {
                assert!(decode(&stored[..at], data.len()).is_err(), "{name} {at}");
                for change in [1, 0x80, 0xFF] {
                    let mut damaged = stored.to_vec();
                    damaged[at] ^= change;
                    assert!(decode(&damaged, data.len()).map_or(0, |decoded| decoded.len()) <= data.len());
                }
            }
        }
        let xz = BytesCodec::Lzma(LzmaForm::Xz);
        let decode = |tail: &[u8]| xz.decode(&[XZ, tail].concat(), 4 * data.len(), 0).map(Cow::into_owned).ok();
        for tail in [&b""[..], b"junk", &[0; 4], &[0; 16]] {
            assert_eq!(decode(tail), Some(data.clone()), "{tail:?}");
        }
        assert_eq!(decode(XZ), Some(data.repeat(2)));
        assert_eq!(decode(&XZ[..20]), None);
        // Raw data, and filters of their own.
        for unknown in [json!({"format": 3}), json!({"filters": [{"id": 33}]}), json!({"format": "xz"})] {
            assert!(BytesCodec::parse("numcodecs.lzma", &unknown, 4).is_none(), "{unknown}");
        }
    }

    #[test]
    fn a_small_block_that_claims_gigabytes_takes_no_memory() {
        let claim = [&u32::MAX.to_le_bytes()[..], &[0; 20]].concat();
        assert!(BytesCodec::Lz4.decode(&claim, 1 << 20, 1 << 20).is_err());
        assert!(BytesCodec::Lz4.decode(&[1, 0], 10, 10).is_err());
        // A window of 1 GiB.
        let mut claim = ALONE.to_vec();
        claim[1..5].copy_from_slice(&(1_u32 << 30).to_le_bytes());
        assert_eq!(BytesCodec::Lzma(LzmaForm::Alone).decode(&claim, 1200, 1200).unwrap().len(), 1200);
    }
}
