//! Unwraps metadata files of releases before 0.2: bare MessagePack or JSON, the same compressed, or
//! either behind today's header, with version byte 1.
//!
//! The wrapping is detected from the bytes of each file, because a repository may hold files of
//! several releases.

use super::super::envelope::{self, FileType, HEADER_LEN, Header, MAGIC, MAX_PAYLOAD};
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::ReservedBytes;

/// Magic bytes of a zstd frame.
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Encoding of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Encoding of every release before 0.2.
    MessagePack,
    /// Encoding of the first layout, as its specification states it.
    Json,
}

/// Unwrapped document of a release before 0.2.
#[derive(Debug)]
pub struct Body {
    /// Bytes of the document.
    pub bytes: ReservedBytes,
    /// Encoding of the bytes.
    pub encoding: Encoding,
}

/// Unwrapped file.
#[derive(Debug)]
pub enum Unwrapped {
    /// Header and payload of a file in today's format.
    Flatbuffer(Header, ReservedBytes),
    /// Document of a release before 0.2.
    Alpha(Body),
}

/// Unwraps a file of type `expected`, whose payload may take `limit` bytes of memory.
///
/// Fails with the error of today's format if the file is of neither kind: most such files are
/// damaged files of today.
pub fn open(file: &[u8], expected: FileType, limit: u64) -> Result<Unwrapped> {
    if file.starts_with(MAGIC) || file.len() < HEADER_LEN && MAGIC.starts_with(file) {
        let (header, payload) = envelope::decode(file, expected, limit)?;
        return match encoding(&payload).filter(|_| !envelope::has_identifier(&payload)) {
            Some(encoding) => Ok(Unwrapped::Alpha(Body { bytes: payload, encoding })),
            None => Ok(Unwrapped::Flatbuffer(header, payload)),
        };
    }
    let is_compressed = file.starts_with(ZSTD_MAGIC);
    let bytes = if is_compressed || encoding(file).is_some() {
        envelope::decompress(file, is_compressed, expected, limit.min(MAX_PAYLOAD))?
    } else {
        ReservedBytes::from(Vec::new())
    };
    match encoding(&bytes) {
        Some(encoding) => Ok(Unwrapped::Alpha(Body { bytes, encoding })),
        // `decode` reports what is wrong with the header.
        None => envelope::decode(file, expected, limit).map(|(header, payload)| Unwrapped::Flatbuffer(header, payload)),
    }
}

/// Returns the encoding that the first byte of a document implies: every document was an array or a
/// map.
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
    use std::io::Read;

    use super::*;
    use crate::format::testing::file_of;
    use icechunkfs_base::error::ErrorKind;

    #[test]
    fn every_wrapping_is_removed() {
        let pack = [0x91, 0x01];
        let compressed = zstd::encode_all(&pack[..], 3).unwrap();
        for (file, encoding) in [
            (pack.to_vec(), Encoding::MessagePack),
            (compressed.clone(), Encoding::MessagePack),
            (file_of(1, 1, 0, &pack), Encoding::MessagePack),
            (file_of(1, 1, 1, &compressed), Encoding::MessagePack),
            (b"{\"a\":1}".to_vec(), Encoding::Json),
            (b"\n {}".to_vec(), Encoding::Json),
        ] {
            let Unwrapped::Alpha(body) = open(&file, FileType::Snapshot, 100).unwrap() else { panic!("{file:?}") };
            assert_eq!(body.encoding, encoding);
        }
    }

    #[test]
    fn flatbuffers_and_damaged_files_are_distinguished() {
        let payload = b"\x90\0\0\0Ichk and so on";
        assert!(matches!(open(&file_of(2, 1, 0, payload), FileType::Snapshot, 100), Ok(Unwrapped::Flatbuffer(..))));
        assert!(open(&file_of(1, 1, 0, &[0x91]), FileType::Manifest, 100).is_err());
        for wrong in [&b""[..], b"ICE", b"ICEBERGCHUNK and more of it, and more and more", b"\x01", b"\xc0"] {
            assert_eq!(open(wrong, FileType::Snapshot, 100).unwrap_err().kind(), ErrorKind::Corrupt, "{wrong:?}");
        }
        let bomb = zstd::encode_all(std::io::repeat(0x91).take(1 << 20), 3).unwrap();
        assert_eq!(open(&bomb, FileType::Snapshot, 1 << 16).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
}
