//! Fetching and decoding of documents.
//!
//! Bytes may be damaged in transit or in a cache. A document that cannot be decoded is therefore
//! fetched once more, past any cache, before it counts as corrupt.

use bytes::Bytes;

use super::{ReadMode, Storage, StoredObject, Version};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, ErrorKind, Result};

/// Fetched and decoded document.
#[derive(Debug)]
pub struct Decoded<T> {
    /// Decoded content.
    pub value: T,
    /// Stored bytes.
    pub bytes: Bytes,
    /// Version for a later conditional write; `None` for a document that never changes.
    pub version: Option<Version>,
}

/// Fetches document `key`, which never changes, and decodes it on a blocking thread.
pub async fn fixed<T: Send + 'static>(
    storage: &dyn Storage,
    key: &str,
    limit: u64,
    decode: impl Fn(&[u8]) -> Result<T> + Clone + Send + 'static,
) -> Result<Decoded<T>> {
    fetch(storage, key, limit, ReadMode::Immutable, decode).await
}

/// Fetches a document that changes, otherwise like [`fixed`].
pub async fn changing<T: Send + 'static>(
    storage: &dyn Storage,
    key: &str,
    limit: u64,
    decode: impl Fn(&[u8]) -> Result<T> + Clone + Send + 'static,
) -> Result<Decoded<T>> {
    fetch(storage, key, limit, ReadMode::Latest, decode).await
}

async fn fetch<T: Send + 'static>(
    storage: &dyn Storage,
    key: &str,
    limit: u64,
    mode: ReadMode<'_>,
    decode: impl Fn(&[u8]) -> Result<T> + Clone + Send + 'static,
) -> Result<Decoded<T>> {
    let mut is_second = false;
    loop {
        let StoredObject { bytes, version, .. } = storage.get_in_mode(key, limit, mode).await?;
        let version = matches!(mode, ReadMode::Latest).then_some(version);
        let decode = decode.clone();
        let shared = bytes.clone();
        match blocking(move || decode(&shared)).await.context(|| key.to_owned()) {
            Err(error) if error.kind() == ErrorKind::Corrupt && !is_second => {
                storage.discard_cached(key).await;
                is_second = true;
            }
            decoded => return decoded.map(|value| Decoded { value, bytes, version }),
        }
    }
}
