//! Codecs of chunks, as far as chunks are made here: when files are put together, or where the
//! filters of a file are not the codecs of an array.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::zarr::filters::{fletcher32, unshuffled};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// Bytes that a filter may add to a chunk: a checksum has four.
const ADDED: u64 = 64;

/// Codec of chunks, or filter of HDF5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Codec {
    /// Bytes of elements of this size, the first ones of all, then the second ones.
    Shuffle(u32),
    /// Data of zlib, made with this level.
    Zlib(u32),
    /// Data of gzip, made with this level.
    Gzip(u32),
    /// Frames of Zstandard, made with this level and, if so, with a checksum.
    Zstd(i32, bool),
    /// Fletcher's checksum of 32 bits behind the bytes.
    Checksum,
    /// One that cannot be undone here.
    Other,
}

impl Codec {
    /// Returns the codec that a `zarr.json` has as `document`.
    pub(crate) fn parse(document: &Value) -> Self {
        let member = |name: &str| document.get("configuration")?.get(name);
        let number = |name: &str| member(name)?.as_u64().and_then(|n| u32::try_from(n).ok());
        let zstd = || {
            let level = member("level").map_or(Some(0), Value::as_i64)?;
            let level = i32::try_from(level).ok().filter(|level| zstd::compression_level_range().contains(level))?;
            Some(Codec::Zstd(level, member("checksum").map_or(Some(false), Value::as_bool)?))
        };
        let found = match document.get("name").and_then(Value::as_str) {
            Some("numcodecs.shuffle") => number("elementsize").filter(|size| *size > 0).map(Codec::Shuffle),
            Some("numcodecs.zlib") => number("level").filter(|level| *level <= 9).map(Codec::Zlib),
            Some("gzip" | "numcodecs.gzip") => number("level").filter(|level| *level <= 9).map(Codec::Gzip),
            Some("zstd" | "numcodecs.zstd") => zstd(),
            _ => None,
        };
        found.unwrap_or(Codec::Other)
    }

    /// Returns true if chunks of both can be in one array: the level is that of the writer alone.
    pub(crate) fn is_like(self, other: Codec) -> bool {
        match (self, other) {
            (Codec::Zlib(_), Codec::Zlib(_))
            | (Codec::Gzip(_), Codec::Gzip(_))
            | (Codec::Zstd(..), Codec::Zstd(..)) => true,
            (Codec::Other, _) => false,
            (one, other) => one == other,
        }
    }

    /// Undoes the codec for a chunk that has `most` bytes in the end.
    ///
    /// Errors: [`ErrorKind::Corrupt`] if the bytes are not of it, or too many.
    fn decode(self, bytes: Vec<u8>, most: u64) -> Result<Vec<u8>> {
        match self {
            Codec::Shuffle(size) => Ok(unshuffled(&bytes, size.max(1) as usize)),
            Codec::Checksum => {
                let (chunk, checksum) =
                    bytes.split_last_chunk().ok_or_else(|| Error::corrupt("a chunk without data"))?;
                let [a, b, c, d] = *checksum;
                // HDF5 wrote the bytes of each half in the other order before version 1.6.3.
                let stored = [checksum, &[b, a, d, c]].map(|bytes| u32::from_le_bytes(*bytes));
                if !stored.contains(&fletcher32(chunk)) {
                    return Err(Error::corrupt("the checksum of a chunk is wrong"));
                }
                Ok(chunk.to_vec())
            }
            Codec::Zlib(_) => inflated(ZlibDecoder::new(&*bytes), most, "a chunk of zlib"),
            Codec::Gzip(_) => inflated(MultiGzDecoder::new(&*bytes), most, "a chunk of gzip"),
            // Into one buffer: a stream could ask for a window of any size.
            Codec::Zstd(..) => {
                let most = usize::try_from(most.saturating_add(ADDED)).unwrap_or(usize::MAX);
                let undone = Decompressor::new().and_then(|mut frames| frames.decompress(&bytes, most));
                undone.map_err(|e| Error::with_source(ErrorKind::Corrupt, "a chunk of Zstandard", e))
            }
            Codec::Other => Err(Error::new(ErrorKind::Unsupported, "a codec that cannot be undone here")),
        }
    }

    fn encode(self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        match self {
            Codec::Shuffle(size) => Ok(shuffled(&bytes, size.max(1) as usize)),
            Codec::Zlib(level) => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
                encoder.write_all(&bytes).and_then(|()| encoder.finish()).map_err(|e| Error::io("a chunk of zlib", e))
            }
            Codec::Gzip(level) => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
                encoder.write_all(&bytes).and_then(|()| encoder.finish()).map_err(|e| Error::io("a chunk of gzip", e))
            }
            Codec::Zstd(level, checksum) => {
                let encoded = Compressor::new(level).and_then(|mut frame| {
                    frame.set_parameter(CParameter::ChecksumFlag(checksum))?;
                    frame.compress(&bytes)
                });
                encoded.map_err(|e| Error::io("a chunk of Zstandard", e))
            }
            Codec::Checksum | Codec::Other => Err(Error::new(ErrorKind::Unsupported, "a codec that is not made here")),
        }
    }
}

/// Returns what `packed` unpacks to, at most about `most` bytes.
fn inflated(packed: impl Read, most: u64, what: &str) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let most = most.saturating_add(ADDED);
    match packed.take(most.saturating_add(1)).read_to_end(&mut out) {
        Ok(_) if out.len() as u64 <= most => Ok(out),
        Ok(_) => Err(Error::corrupt("a chunk that is longer than its array's chunks")),
        Err(error) => Err(Error::with_source(ErrorKind::Corrupt, what, error)),
    }
}

/// Returns the codecs that a `zarr.json` has behind that of elements.
pub(crate) fn all_of(documents: &[Value]) -> Vec<Codec> {
    documents.iter().map(Codec::parse).collect()
}

/// Undoes `codecs`, the last one first, for a chunk of `most` bytes.
///
/// Errors: [`ErrorKind::Corrupt`] if the bytes are not such a chunk.
pub(crate) fn decode(codecs: impl DoubleEndedIterator<Item = Codec>, bytes: Vec<u8>, most: u64) -> Result<Vec<u8>> {
    let chunk = undo(codecs, bytes, most)?;
    if chunk.len() as u64 != most {
        return Err(Error::corrupt(format!("a chunk of {} bytes, not {most}", chunk.len())));
    }
    Ok(chunk)
}

/// Undoes `codecs`, the last one first, for a chunk of at most about `most` bytes.
///
/// Errors: [`ErrorKind::Corrupt`] if the bytes are not of them.
pub(crate) fn undo(codecs: impl DoubleEndedIterator<Item = Codec>, bytes: Vec<u8>, most: u64) -> Result<Vec<u8>> {
    codecs.rev().try_fold(bytes, |bytes, codec| codec.decode(bytes, most))
}

/// Applies `codecs`.
///
/// Errors: [`ErrorKind::Unsupported`] if one is not made here.
pub(crate) fn encode(codecs: &[Codec], bytes: Vec<u8>) -> Result<Vec<u8>> {
    codecs.iter().try_fold(bytes, |bytes, codec| codec.encode(bytes))
}

/// Bytes behind the last whole element stay where they are, as HDF5 has it.
fn shuffled(bytes: &[u8], size: usize) -> Vec<u8> {
    let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % size);
    let mut out = Vec::with_capacity(bytes.len());
    for place in 0..size {
        out.extend(whole.iter().skip(place).step_by(size));
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_encoded_is_decoded() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1003).collect();
        for codecs in [
            vec![],
            vec![Codec::Shuffle(4)],
            vec![Codec::Zlib(6)],
            vec![Codec::Shuffle(8), Codec::Zlib(1)],
            vec![Codec::Gzip(5)],
            vec![Codec::Zstd(0, false)],
            vec![Codec::Shuffle(2), Codec::Zstd(-5, true)],
        ] {
            let encoded = encode(&codecs, bytes.clone()).unwrap();
            let decode = |bytes: Vec<u8>, most| decode(codecs.iter().copied(), bytes, most);
            assert_eq!(decode(encoded.clone(), 1003).unwrap(), bytes, "{codecs:?}");
            assert!(decode(encoded.clone(), 1004).is_err() && decode(encoded, 900).is_err(), "{codecs:?}");
        }
        assert!(encode(&[Codec::Other], bytes.clone()).is_err());
        assert!(decode([Codec::Other].into_iter(), bytes, 1003).is_err());
    }

    #[test]
    fn bytes_are_shuffled_as_hdf5_does() {
        assert_eq!(shuffled(&[1, 2, 3, 4, 5, 6, 7], 3), [1, 4, 2, 5, 3, 6, 7]);
    }

    #[test]
    fn a_chunk_that_unpacks_to_more_than_it_may_is_refused() {
        for codec in [Codec::Zlib(9), Codec::Gzip(9), Codec::Zstd(9, true)] {
            let bomb = encode(&[codec], vec![0; 1 << 20]).unwrap();
            let error = decode([codec].into_iter(), bomb.clone(), 100).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(decode([codec].into_iter(), bomb[..bomb.len() / 2].to_vec(), 1 << 20).is_err());
        }
    }

    #[test]
    fn a_checksum_is_checked_and_left_out() {
        let mut chunk = vec![1, 2, 3, 4];
        chunk.extend(0x0508_0406_u32.to_le_bytes());
        assert_eq!(decode([Codec::Checksum].into_iter(), chunk.clone(), 4).unwrap(), [1, 2, 3, 4]);
        chunk[0] = 2;
        assert!(decode([Codec::Checksum].into_iter(), chunk, 4).is_err());
    }

    #[test]
    fn codecs_are_like_each_other_but_for_the_level() {
        let zlib = |level| Codec::parse(&json!({"name": "numcodecs.zlib", "configuration": {"level": level}}));
        assert!(zlib(1).is_like(zlib(9)) && zlib(10) == Codec::Other);
        let shuffle =
            |size| Codec::parse(&json!({"name": "numcodecs.shuffle", "configuration": {"elementsize": size}}));
        assert!(shuffle(4).is_like(shuffle(4)) && !shuffle(4).is_like(shuffle(8)) && shuffle(0) == Codec::Other);
        assert!(!Codec::Other.is_like(Codec::Other));
    }
}
