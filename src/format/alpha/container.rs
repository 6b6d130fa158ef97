//! How a file of those days is wrapped: bare MessagePack or JSON; compressed and nothing else; or behind today's header, whose
//! version byte says 1 all the same.
//!
//! Which it is has to be read off the bytes, file by file: a repository may have files of several releases.

use super::super::envelope::{self, FILE_IDENTIFIER, FileType, HEADER_LEN, Header, MAGIC, MAX_PAYLOAD};
use crate::error::Result;
use crate::memory::ReservedBytes;

/// Every zstd frame begins so.
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// What a document is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Every release before 0.2.
    MessagePack,
    /// The first layout, as its specification has it.
    Json,
}

/// A document without what it was wrapped in.
#[derive(Debug)]
pub struct Body {
    /// The document.
    pub bytes: ReservedBytes,
    /// What it is written in.
    pub encoding: Encoding,
}

/// A file without what it was wrapped in.
#[derive(Debug)]
pub enum Opened {
    /// Of today's format.
    Flatbuffer(Header, ReservedBytes),
    /// Of one before 0.2.
    Alpha(Body),
}

/// Unwraps a file of type `expected`, whose payload may take `limit` bytes of memory.
///
/// What is of neither kind is an error that says so of today's: that is what damaged files mostly are.
pub fn open(file: &[u8], expected: FileType, limit: u64) -> Result<Opened> {
    if file.starts_with(MAGIC) || file.len() < HEADER_LEN && MAGIC.starts_with(file) {
        let (header, payload) = envelope::decode(file, expected, limit)?;
        let is_flatbuffer = payload.get(4..8) == Some(FILE_IDENTIFIER.as_bytes());
        return match encoding(&payload).filter(|_| !is_flatbuffer) {
            Some(encoding) => Ok(Opened::Alpha(Body { bytes: payload, encoding })),
            None => Ok(Opened::Flatbuffer(header, payload)),
        };
    }
    let is_compressed = file.starts_with(ZSTD_MAGIC);
    let bytes = match is_compressed || encoding(file).is_some() {
        true => envelope::expand(file, is_compressed, expected, limit.min(MAX_PAYLOAD))?,
        false => ReservedBytes::from(Vec::new()),
    };
    match encoding(&bytes) {
        Some(encoding) => Ok(Opened::Alpha(Body { bytes, encoding })),
        // The header says what is wrong with it.
        None => envelope::decode(file, expected, limit).map(|(header, payload)| Opened::Flatbuffer(header, payload)),
    }
}

/// What a document may be written in, by its first byte: all of them were arrays or maps.
fn encoding(bytes: &[u8]) -> Option<Encoding> {
    match bytes.first()? {
        b'{' | b' ' | b'\n' | b'\r' | b'\t' => Some(Encoding::Json),
        0x80..=0x9f | 0xdc..=0xdf => Some(Encoding::MessagePack),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::error::ErrorKind;

    fn with_header(version: u8, compression: u8, body: &[u8]) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(b"ic-0.1.0                ");
        file.extend_from_slice(&[version, 1, compression]);
        file.extend_from_slice(body);
        file
    }

    #[test]
    fn every_wrapping_is_taken_off() {
        let pack = [0x91, 0x01];
        let compressed = zstd::encode_all(&pack[..], 3).unwrap();
        for (file, encoding) in [
            (pack.to_vec(), Encoding::MessagePack),
            (compressed.clone(), Encoding::MessagePack),
            (with_header(1, 0, &pack), Encoding::MessagePack),
            (with_header(1, 1, &compressed), Encoding::MessagePack),
            (b"{\"a\":1}".to_vec(), Encoding::Json),
            (b"\n {}".to_vec(), Encoding::Json),
        ] {
            let Opened::Alpha(body) = open(&file, FileType::Snapshot, 100).unwrap() else { panic!("{file:?}") };
            assert_eq!(body.encoding, encoding);
        }
    }

    #[test]
    fn todays_files_and_damaged_ones_are_told() {
        let payload = b"\x90\0\0\0Ichk and so on";
        assert!(matches!(open(&with_header(2, 0, payload), FileType::Snapshot, 100), Ok(Opened::Flatbuffer(..))));
        assert!(open(&with_header(1, 0, &[0x91]), FileType::Manifest, 100).is_err());
        for wrong in [&b""[..], b"ICE", b"ICEBERGCHUNK and more of it, and more and more", b"\x01", b"\xc0"] {
            assert_eq!(open(wrong, FileType::Snapshot, 100).unwrap_err().kind(), ErrorKind::Corrupt, "{wrong:?}");
        }
        let bomb = zstd::encode_all(std::io::repeat(0x91).take(1 << 20), 3).unwrap();
        assert_eq!(open(&bomb, FileType::Snapshot, 1 << 16).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }

    use std::io::Read;
}
