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

use super::object::{BULK, too_large};
use super::settings::Settings;
use super::{Capabilities, Content, ListMode, ObjectInfo, ObjectSource, ReadMode, Removal, Storage, Version, Visitor};
use crate::disk_cache::{CachedDocument, DiskCache, Name};
use crate::error::{Error, ErrorKind, Result};
use crate::file_name;

/// Maximum size of a cached listing, in bytes.
const MAX_LISTING: u64 = 64 << 20;

/// Store with a disk cache.
#[derive(Debug)]
struct CachedStorage {
    store: Arc<dyn Storage>,
    cache: Arc<DiskCache>,
    capabilities: Capabilities,
}

/// Disk cache of a store that must not be contacted.
#[derive(Debug)]
struct OfflineStorage {
    cache: Arc<DiskCache>,
    capabilities: Capabilities,
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

/// Puts `cache` in front of `store`.
pub(super) fn with_cache(store: Arc<dyn Storage>, cache: Arc<DiskCache>) -> Arc<dyn Storage> {
    let base = store.capabilities().clone();
    let with_slash = base.with_slash.map(|store| with_cache(store, Arc::clone(&cache)));
    let capabilities = Capabilities { with_slash, disk_cache: Some(Arc::clone(&cache)), ..base };
    Arc::new(CachedStorage { store, cache, capabilities })
}

/// Returns the cached part of the repository that messages call `shown`.
pub(super) fn offline(cache: Option<Arc<DiskCache>>, shown: String) -> Result<Arc<dyn Storage>> {
    let cache = cache.ok_or_else(|| Error::invalid("--offline shows the content of a cache: pass it with --cache"))?;
    let capabilities = Capabilities {
        read_only: Some("it is mounted offline"),
        disk_cache: Some(Arc::clone(&cache)),
        ..Capabilities::new(shown)
    };
    Ok(Arc::new(OfflineStorage { cache, capabilities }))
}

impl CachedStorage {
    /// Records the current state of `key`, and waits until that is done, so that it cannot overwrite a later state.
    async fn record(&self, key: &str, answer: CachedDocument) {
        let key = key.to_owned();
        let recorded = self.cache.run_blocking(move |cache| {
            cache.record_document(&key, &answer);
            Some(())
        });
        // An entry that a slow disk does not take in time is not cached.
        let _ = recorded.await;
    }

    async fn read_latest(&self, key: &str, limit: u64) -> Result<Option<(Bytes, Version)>> {
        let known = answer(&self.cache, key, limit).await;
        let known = known.and_then(|known| Some((serde_json::from_str::<Version>(&known.state).ok()?, known.bytes?)));
        let known = known.filter(|(version, _)| version.e_tag.is_some());
        let mode = known.as_ref().map_or(ReadMode::Latest, |(version, _)| ReadMode::IfChanged(version));
        match self.store.read(key, limit, mode).await {
            Ok(Some((bytes, version))) => {
                let state = serde_json::to_string(&version).unwrap_or_default();
                self.record(key, CachedDocument { state, bytes: Some(bytes.clone()) }).await;
                Ok(Some((bytes, version)))
            }
            Ok(None) => Ok(known.map(|(version, bytes)| (bytes, version))),
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    self.record(key, CachedDocument { state: String::new(), bytes: None }).await;
                }
                Err(error)
            }
        }
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

fn listing(prefix: &str) -> String {
    format!("listing {prefix}")
}

#[async_trait]
impl Storage for CachedStorage {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<(Bytes, Version)>> {
        match mode {
            ReadMode::Latest => self.read_latest(key, limit).await,
            ReadMode::Immutable => {
                if let Some(bytes) = fixed(&self.cache, key, limit).await {
                    return Ok(Some((bytes, Version::default())));
                }
                let found = self.store.read(key, limit, mode).await?;
                if let Some((bytes, _)) = &found {
                    self.cache.put_in_background(Name::whole(key), bytes.clone(), ());
                }
                Ok(found)
            }
            ReadMode::IfChanged(_) => self.store.read(key, limit, mode).await,
        }
    }

    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes> {
        self.store.get_range(key, offset, length).await
    }

    async fn store(&self, key: &str, content: Content<'_>) -> Result<()> {
        // Documents will be read whole; the end of each chunk in an object is unknown here.
        let document = match &content {
            Content::New(bytes) if !key.starts_with(BULK) => Some(bytes.clone()),
            _ => None,
        };
        self.store.store(key, content).await?;
        if let Some(bytes) = document {
            self.cache.put_in_background(Name::whole(key), bytes, ());
        }
        Ok(())
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        self.store.sync(folders).await
    }

    async fn walk(&self, prefix: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        if mode == ListMode::Streamed {
            return self.store.walk(prefix, mode, visit).await;
        }
        let objects = self.store.list(prefix).await?;
        if let Ok(bytes) = serde_json::to_vec(&objects) {
            self.record(&listing(prefix), CachedDocument { state: String::new(), bytes: Some(bytes.into()) }).await;
        }
        let _ = objects.into_iter().try_for_each(visit);
        Ok(())
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        // Cached copies are removed first: they must not outlive the objects.
        match removal {
            Removal::Objects(keys) => {
                for key in keys.iter().filter(|key| !key.starts_with(BULK)) {
                    self.discard_cached(key).await;
                }
            }
            Removal::Unchanged { key, .. } => self.discard_cached(key).await,
        }
        self.store.remove(removal).await
    }

    async fn locate(&self, key: &str) -> Result<Option<ObjectSource>> {
        self.store.locate(key).await
    }

    async fn modified(&self, key: &str) -> Result<Option<u64>> {
        self.store.modified(key).await
    }

    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()> {
        self.store.check_conditions(key, limit).await
    }

    async fn discard_cached(&self, key: &str) {
        // An entry that is still being added would appear after the removal.
        self.cache.flush().await;
        let key = key.to_owned();
        let forgotten = self.cache.run_blocking(move |cache| {
            cache.forget(&key);
            Some(())
        });
        let _ = forgotten.await;
    }
}

impl OfflineStorage {
    fn missing(&self, what: &str) -> Error {
        let place = self.cache.directory().display();
        Error::new(
            ErrorKind::Offline,
            format!("{what}: not in the cache {place}, and --offline forbids asking the store: mount without it"),
        )
    }

    fn closed(&self) -> Error {
        let location = &self.capabilities.location;
        Error::new(ErrorKind::ReadOnly, format!("{location}: nothing can be written offline"))
    }
}

#[async_trait]
impl Storage for OfflineStorage {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<(Bytes, Version)>> {
        if matches!(mode, ReadMode::Immutable) {
            let bytes = fixed(&self.cache, key, limit).await.ok_or_else(|| self.missing(key))?;
            return Ok(Some((bytes, Version::default())));
        }
        let known = answer(&self.cache, key, limit).await.ok_or_else(|| self.missing(key))?;
        let absent = || Error::new(ErrorKind::NotFound, format!("{key}: was not there when the store was asked last"));
        let bytes = known.bytes.ok_or_else(absent)?;
        if bytes.len() as u64 > limit {
            return Err(too_large(key, bytes.len() as u64, limit));
        }
        let version = serde_json::from_str(&known.state).unwrap_or_default();
        let is_unchanged = matches!(mode, ReadMode::IfChanged(seen) if *seen == version);
        Ok((!is_unchanged).then_some((bytes, version)))
    }

    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes> {
        Err(self.missing(&format!("{key}, {length} bytes at {offset}")))
    }

    async fn store(&self, _key: &str, _content: Content<'_>) -> Result<()> {
        Err(self.closed())
    }

    async fn sync(&self, _folders: &[&str]) -> Result<()> {
        Ok(())
    }

    async fn walk(&self, prefix: &str, _mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        let known = answer(&self.cache, &listing(prefix), MAX_LISTING).await.and_then(|known| known.bytes);
        let listed: Option<Vec<ObjectInfo>> = known.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let listed = listed.ok_or_else(|| self.missing(&format!("the listing of `{prefix}`")))?;
        let _ = listed.into_iter().try_for_each(visit);
        Ok(())
    }

    async fn remove(&self, _removal: Removal<'_>) -> Result<()> {
        Err(self.closed())
    }

    async fn locate(&self, _key: &str) -> Result<Option<ObjectSource>> {
        Ok(None)
    }

    async fn modified(&self, _key: &str) -> Result<Option<u64>> {
        Ok(None)
    }

    async fn check_conditions(&self, _key: &str, _limit: u64) -> Result<()> {
        Ok(())
    }

    async fn discard_cached(&self, _key: &str) {}
}
