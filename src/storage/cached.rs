//! A store behind a disk cache, or the disk cache alone.
//!
//! Objects that never change are looked up in the cache first. Mutable documents are requested on condition that they have changed: the
//! store then answers in a few bytes, or sends the new document. Ranges of objects are chunks or parts of them, which the reader caches
//! itself, since it knows where a chunk ends ([`crate::reader`]).
//!
//! Without a store the mount is offline: it shows the state that was seen last, and nothing can be written. An object that is not in the
//! cache is an error of kind [`ErrorKind::Offline`], never an absence.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::object::{BULK, too_large};
use super::settings::Settings;
use super::{Condition, ObjectInfo, Storage, StoreAddress, Version};
use crate::disk_cache::{CachedDocument, DiskCache, Name};
use crate::error::{Error, ErrorKind, Result};
use crate::file_name;

/// Maximum size of a cached listing, in bytes.
const MAX_LISTING: u64 = 64 << 20;

/// Store with a disk cache.
#[derive(Debug)]
pub(super) struct CachedStorage {
    store: Arc<dyn Storage>,
    cache: Arc<DiskCache>,
}

/// Disk cache of a store that must not be contacted.
#[derive(Debug)]
struct OfflineStorage {
    cache: Arc<DiskCache>,
    location: String,
}

/// Serialized [`Version`].
#[derive(Deserialize, Serialize)]
struct State {
    e_tag: Option<String>,
    version: Option<String>,
}

/// Serialized [`ObjectInfo`].
#[derive(Deserialize, Serialize)]
struct Listed {
    key: String,
    size: u64,
    /// Missing in entries of earlier versions.
    #[serde(default)]
    modified: u64,
}

/// Opens the cache that `settings` name, for the repository that messages call `shown`.
pub(super) fn open_cache(shown: &str, settings: &Settings) -> Result<Option<Arc<DiskCache>>> {
    let Some(directory) = &settings.cache else { return Ok(None) };
    // Buckets of the same name may exist at several endpoints.
    let place = settings.endpoint_url.clone().or_else(|| std::env::var("AWS_ENDPOINT_URL_S3").ok());
    let place = place.or_else(|| std::env::var("AWS_ENDPOINT_URL").ok()).filter(|place| !place.is_empty());
    let scope = place.map_or(shown.to_owned(), |place| format!("{shown} {place}"));
    let size = settings.cache_size.unwrap_or(crate::disk_cache::DEFAULT_SIZE);
    DiskCache::open(Path::new(directory), size, &file_name::encode(&scope)).map(|cache| Some(Arc::new(cache)))
}

/// Returns the cached part of the repository that messages call `shown`.
pub(super) fn offline(cache: Option<Arc<DiskCache>>, shown: String) -> Result<Arc<dyn Storage>> {
    let cache = cache.ok_or_else(|| Error::invalid("--offline shows what is in a cache: name it with --cache"))?;
    Ok(Arc::new(OfflineStorage { cache, location: shown }))
}

impl CachedStorage {
    pub(super) fn new(store: Arc<dyn Storage>, cache: Arc<DiskCache>) -> Self {
        CachedStorage { store, cache }
    }

    /// Records the current state of `key`, and waits until that is done, so that it cannot overwrite a later state.
    async fn note(&self, key: &str, answer: CachedDocument) {
        let key = key.to_owned();
        let noted = self.cache.run_blocking(move |cache| {
            cache.record_document(&key, &answer);
            Some(())
        });
        // An entry that a slow disk does not take in time is not cached.
        let _ = noted.await;
    }
}

async fn fixed(cache: &Arc<DiskCache>, key: &str, limit: u64) -> Option<Bytes> {
    let name = Name::whole(key);
    cache.run_blocking(move |cache| cache.get(&name, limit)).await
}

async fn answer(cache: &Arc<DiskCache>, key: &str, limit: u64) -> Option<CachedDocument> {
    let key = key.to_owned();
    cache.run_blocking(move |cache| cache.document(&key, limit)).await
}

fn spell(version: &Version) -> String {
    let state = State { e_tag: version.e_tag.clone(), version: version.version.clone() };
    serde_json::to_string(&state).unwrap_or_default()
}

fn parse(state: &str) -> Option<Version> {
    let State { e_tag, version } = serde_json::from_str(state).ok()?;
    Some(Version { e_tag, version })
}

fn listing(prefix: &str) -> String {
    format!("listing {prefix}")
}

#[async_trait]
impl Storage for CachedStorage {
    fn location(&self) -> &str {
        self.store.location()
    }

    async fn get(&self, key: &str, limit: u64) -> Result<Bytes> {
        self.get_versioned(key, limit).await.map(|(bytes, _)| bytes)
    }

    async fn get_fixed(&self, key: &str, limit: u64) -> Result<Bytes> {
        if let Some(bytes) = fixed(&self.cache, key, limit).await {
            return Ok(bytes);
        }
        let bytes = self.store.get_fixed(key, limit).await?;
        self.cache.put_in_background(Name::whole(key), bytes.clone(), ());
        Ok(bytes)
    }

    async fn get_versioned(&self, key: &str, limit: u64) -> Result<(Bytes, Version)> {
        let known = answer(&self.cache, key, limit).await;
        let known = known.and_then(|known| Some((parse(&known.state)?, known.bytes?)));
        let known = known.filter(|(version, _)| version.e_tag.is_some());
        let found = match &known {
            Some((version, _)) => self.store.get_changed(key, limit, version).await,
            None => self.store.get_versioned(key, limit).await.map(Some),
        };
        match (found, known) {
            (Ok(Some((bytes, version))), _) => {
                self.note(key, CachedDocument { state: spell(&version), bytes: Some(bytes.clone()) }).await;
                Ok((bytes, version))
            }
            (Ok(None), Some((version, bytes))) => Ok((bytes, version)),
            (Ok(None), None) => self.store.get_versioned(key, limit).await,
            (Err(error), _) => {
                if error.kind() == ErrorKind::NotFound {
                    self.note(key, CachedDocument { state: String::new(), bytes: None }).await;
                }
                Err(error)
            }
        }
    }

    async fn get_changed(&self, key: &str, limit: u64, known: &Version) -> Result<Option<(Bytes, Version)>> {
        self.store.get_changed(key, limit, known).await
    }

    async fn forget(&self, key: &str) {
        // An entry that is still being added would appear after the removal.
        self.cache.flush().await;
        let key = key.to_owned();
        let forgotten = self.cache.run_blocking(move |cache| {
            cache.forget(&key);
            Some(())
        });
        let _ = forgotten.await;
    }

    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes> {
        self.store.get_range(key, offset, length).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<()> {
        self.store.put(key, bytes, condition).await
    }

    async fn put_new(&self, key: &str, bytes: Bytes) -> Result<()> {
        self.store.put_new(key, bytes.clone()).await?;
        // Documents will be read whole; the end of each chunk in an object is unknown here.
        if !key.starts_with(BULK) {
            self.cache.put_in_background(Name::whole(key), bytes, ());
        }
        Ok(())
    }

    async fn put_file(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        self.store.put_file(key, file, length).await
    }

    async fn put_copy(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        self.store.put_copy(key, file, length).await
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        self.store.sync(folders).await
    }

    async fn modified(&self, key: &str) -> Result<Option<u64>> {
        self.store.modified(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let objects = self.store.list(prefix).await?;
        let listed = objects.iter().map(|ObjectInfo { key, size, modified }| Listed {
            key: key.clone(),
            size: *size,
            modified: *modified,
        });
        if let Ok(bytes) = serde_json::to_vec(&listed.collect::<Vec<_>>()) {
            self.note(&listing(prefix), CachedDocument { state: String::new(), bytes: Some(bytes.into()) }).await;
        }
        Ok(objects)
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        // Cached copies are removed first: they must not outlive the objects.
        for key in keys.iter().filter(|key| !key.starts_with(BULK)) {
            self.forget(key).await;
        }
        self.store.delete(keys).await
    }

    async fn each(&self, prefix: &str, visit: &mut (dyn FnMut(ObjectInfo) + Send)) -> Result<()> {
        self.store.each(prefix, visit).await
    }

    async fn any(&self) -> Result<Option<String>> {
        self.store.any().await
    }

    async fn store_address(&self, key: &str) -> Result<Option<StoreAddress>> {
        self.store.store_address(key).await
    }

    async fn copy_from(&self, from: &StoreAddress, key: &str, bytes: u64) -> Result<bool> {
        self.store.copy_from(from, key, bytes).await
    }

    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()> {
        self.store.check_conditions(key, limit).await
    }

    fn read_only(&self) -> Option<&'static str> {
        self.store.read_only()
    }

    fn in_flight(&self) -> usize {
        self.store.in_flight()
    }

    fn with_slash(&self) -> Option<Arc<dyn Storage>> {
        let store = self.store.with_slash()?;
        Some(Arc::new(CachedStorage::new(store, Arc::clone(&self.cache))))
    }

    fn disk_cache(&self) -> Option<&Arc<DiskCache>> {
        Some(&self.cache)
    }
}

impl OfflineStorage {
    fn missing(&self, what: &str) -> Error {
        let place = self.cache.directory().display();
        Error::new(
            ErrorKind::Offline,
            format!("{what}: not in the cache {place}, and the store may not be asked: mount without --offline for it"),
        )
    }

    fn closed(&self) -> Error {
        Error::new(ErrorKind::ReadOnly, format!("{}: nothing can be written offline", self.location))
    }
}

#[async_trait]
impl Storage for OfflineStorage {
    fn location(&self) -> &str {
        &self.location
    }

    async fn get(&self, key: &str, limit: u64) -> Result<Bytes> {
        self.get_versioned(key, limit).await.map(|(bytes, _)| bytes)
    }

    async fn get_fixed(&self, key: &str, limit: u64) -> Result<Bytes> {
        fixed(&self.cache, key, limit).await.ok_or_else(|| self.missing(key))
    }

    async fn get_versioned(&self, key: &str, limit: u64) -> Result<(Bytes, Version)> {
        let known = answer(&self.cache, key, limit).await.ok_or_else(|| self.missing(key))?;
        let absent = || Error::new(ErrorKind::NotFound, format!("{key}: was not there when the store was asked last"));
        let bytes = known.bytes.ok_or_else(absent)?;
        if bytes.len() as u64 > limit {
            return Err(too_large(key, bytes.len() as u64, limit));
        }
        Ok((bytes, parse(&known.state).unwrap_or(Version { e_tag: None, version: None })))
    }

    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes> {
        Err(self.missing(&format!("{key}, {length} bytes at {offset}")))
    }

    async fn put(&self, _key: &str, _bytes: Bytes, _condition: Condition) -> Result<()> {
        Err(self.closed())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let known = answer(&self.cache, &listing(prefix), MAX_LISTING).await.and_then(|known| known.bytes);
        let listed: Option<Vec<Listed>> = known.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let listed = listed.ok_or_else(|| self.missing(&format!("the listing of `{prefix}`")))?;
        Ok(listed.into_iter().map(|Listed { key, size, modified }| ObjectInfo { key, size, modified }).collect())
    }

    fn read_only(&self) -> Option<&'static str> {
        Some("it is mounted offline")
    }

    fn disk_cache(&self) -> Option<&Arc<DiskCache>> {
        Some(&self.cache)
    }
}
