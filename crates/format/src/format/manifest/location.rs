//! Decompresses locations: each is a frame of its own, and all of a manifest need its dictionary.
//!
//! Preparing a dictionary takes longer than decompressing a location, and a manifest may have
//! millions of them. A few prepared ones are therefore kept, each for one manifest. A frame can ask
//! for any window, and gets none: what it decompresses to is bounded.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use zstd::bulk::Decompressor;

use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Most bytes that a compressed location may expand to: the reference implementation's limit.
pub(super) const MAX_LOCATION: usize = 1024;
/// Largest dictionary, in bytes. The reference implementation trains dictionaries of 2 KiB, and
/// other programs make ones of 110 KiB at most.
const MAX_DICTIONARY: usize = 1 << 20;
/// Most prepared dictionaries that are kept.
const MAX_KEPT: usize = 4;

/// Prepared dictionaries, the one used last at the end.
static KEPT: Mutex<Vec<(DictionaryKey, Decompressor<'static>)>> = Mutex::new(Vec::new());

/// Names the dictionary of one decoded manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DictionaryKey(u64);

impl DictionaryKey {
    /// Returns a key that no other manifest has.
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        DictionaryKey(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Decompresses a location with the `dictionary` of the manifest that `key` names.
pub(super) fn decompress(key: DictionaryKey, dictionary: &[u8], compressed: &[u8]) -> Result<String> {
    if dictionary.len() > MAX_DICTIONARY {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("a dictionary of more than {MAX_DICTIONARY} bytes for compressed locations"),
        ));
    }
    let damaged = |e| Error::with_source(ErrorKind::Corrupt, "a compressed location is damaged", e);
    let mut decompressor = match take(key) {
        Some(prepared) => prepared,
        None => Decompressor::with_dictionary(dictionary).map_err(damaged)?,
    };
    let mut location = Vec::with_capacity(MAX_LOCATION);
    let done = decompressor.decompress_to_buffer(compressed, &mut location);
    keep(key, decompressor);
    done.map_err(damaged)?;
    location.shrink_to_fit();
    String::from_utf8(location).map_err(|e| Error::with_source(ErrorKind::Corrupt, "a location", e))
}

fn take(key: DictionaryKey) -> Option<Decompressor<'static>> {
    let mut kept = KEPT.lock();
    let at = kept.iter().position(|(of, _)| *of == key)?;
    Some(kept.remove(at).1)
}

fn keep(key: DictionaryKey, decompressor: Decompressor<'static>) {
    let mut kept = KEPT.lock();
    if kept.len() == MAX_KEPT {
        kept.remove(0);
    }
    kept.push((key, decompressor));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn compress(dictionary: &[u8], location: &[u8]) -> Vec<u8> {
        zstd::bulk::Compressor::with_dictionary(3, dictionary).unwrap().compress(location).unwrap()
    }

    #[test]
    fn a_location_is_decompressed_with_the_dictionary_of_its_manifest() {
        let one = b"s3://bucket/observations/".repeat(4);
        let other = b"https://server/model/output".repeat(4);
        let keys: Vec<DictionaryKey> = (0..6).map(|_| DictionaryKey::next()).collect();
        for _ in 0..2 {
            for (n, key) in keys.iter().enumerate() {
                let dictionary = if n % 2 == 0 { &one } else { &other };
                let location = [&dictionary[..20], b"a.nc"].concat();
                let found = decompress(*key, dictionary, &compress(dictionary, &location)).unwrap();
                assert_eq!(found.as_bytes(), location);
            }
        }
    }

    #[test]
    fn a_location_or_dictionary_that_expands_is_refused() {
        let key = DictionaryKey::next();
        let longest = [b'x'; MAX_LOCATION];
        assert_eq!(decompress(key, b"", &compress(b"", &longest)).unwrap().len(), MAX_LOCATION);
        let error = decompress(key, b"", &compress(b"", &vec![b'x'; 100 << 20])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let error = decompress(key, &vec![0; MAX_DICTIONARY + 1], &compress(b"", b"x")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
