//! A store behind a disk cache, or the disk cache alone.
//!
//! Objects that never change are looked up in the cache first. Mutable documents are requested on
//! condition that they have changed: the store then answers in a few bytes, or sends the new
//! document. Ranges of objects are chunks or parts of them, which the reader caches itself, since
//! it knows where a chunk ends (`icechunkfs_repo::reader`).
//!
//! Offline, the store is not asked until [`OfflineSwitch`] says so: the state that was seen last is
//! shown, and nothing can be written. An object that is not in the cache is an error of kind
//! [`ErrorKind::Offline`], never an absence.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use async_trait::async_trait;
use bytes::Bytes;

use super::object::{BULK, too_large};
use super::settings::Settings;
use super::{
    Capabilities, Content, ListMode, ObjectInfo, ObjectSource, ReadMode, Removal, Storage, StoredObject, Version,
    Visitor,
};
use crate::disk_cache::{CachedDocument, DiskCache, Name};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name;

/// Maximum size of a cached listing, in bytes.
const MAX_LISTING: u64 = 64 << 20;

/// Repository of which a disk cache has a part.
#[derive(Debug)]
struct CachedStorage {
    /// Store, which [`CachedStorage::asked`] returns if it may be contacted; none if it never may.
    store: Option<Arc<dyn Storage>>,
    cache: Arc<DiskCache>,
    /// Prefix of the keys of documents in the cache: a slash for the storage by keys that begin
    /// with one, as the same documents may be absent under other keys.
    before_key: &'static str,
    capabilities: Capabilities,
}

/// Permission of a storage that was opened offline to contact its store.
#[derive(Debug, Default)]
pub struct OfflineSwitch(AtomicU8);

/// Answer to whether a store may be contacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Contact {
    /// It may not.
    Offline,
    /// It may, and the cache keeps none of its answers: they may come from anybody.
    Trying,
    /// It may.
    Online,
}

impl OfflineSwitch {
    /// Returns whether the store may be contacted.
    pub fn contact(&self) -> Contact {
        match self.0.load(Ordering::Acquire) {
            trying if trying == Contact::Trying as u8 => Contact::Trying,
            online if online == Contact::Online as u8 => Contact::Online,
            _ => Contact::Offline,
        }
    }

    /// Sets that, from the next request on.
    pub fn set(&self, contact: Contact) {
        self.0.store(contact as u8, Ordering::Release);
    }
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

pub(super) fn with_cache(store: Arc<dyn Storage>, cache: Arc<DiskCache>) -> Arc<dyn Storage> {
    CachedStorage::open(store, cache, None, "")
}

/// Returns the cached part of the repository in `store`, which is contacted when the switch says
/// so.
pub(super) fn offline(store: Arc<dyn Storage>, cache: Arc<DiskCache>) -> Arc<dyn Storage> {
    CachedStorage::open(store, cache, Some(Arc::default()), "")
}

/// Returns the cached part of the repository that messages call `shown`, whose store cannot be
/// contacted for the reason `error`.
pub(super) fn without_store(cache: Arc<DiskCache>, shown: String, error: &Error) -> Arc<dyn Storage> {
    let capabilities = Capabilities {
        read_only: Some(format!("it is mounted offline, and a commit could not reach its store: {error}").into()),
        disk_cache: Some(Arc::clone(&cache)),
        offline: Some(Arc::default()),
        ..Capabilities::new(shown)
    };
    Arc::new(CachedStorage { store: None, cache, before_key: "", capabilities })
}

impl CachedStorage {
    fn open(
        store: Arc<dyn Storage>,
        cache: Arc<DiskCache>,
        offline: Option<Arc<OfflineSwitch>>,
        before_key: &'static str,
    ) -> Arc<dyn Storage> {
        let base = store.capabilities().clone();
        let with_slash = base.with_slash.map(|store| Self::open(store, Arc::clone(&cache), offline.clone(), "/"));
        let capabilities = Capabilities { with_slash, disk_cache: Some(Arc::clone(&cache)), offline, ..base };
        Arc::new(CachedStorage { store: Some(store), cache, before_key, capabilities })
    }

    /// Returns the store, if it may be contacted now.
    fn asked(&self) -> Option<&dyn Storage> {
        self.store.as_deref().filter(|_| self.capabilities.contact() != Contact::Offline)
    }

    /// Adds an object to the cache, if the store's answers are kept now.
    fn keep(&self, key: &str, bytes: Bytes) {
        if self.capabilities.contact() == Contact::Online {
            self.cache.put_in_background(Name::whole(key), bytes, ());
        }
    }

    /// Records the current state of `key`, and waits until that is done, so that it cannot
    /// overwrite a later state.
    async fn record(&self, key: &str, answer: CachedDocument) {
        // An answer that comes when the attempt has failed is of no more worth.
        if self.capabilities.contact() != Contact::Online {
            return;
        }
        let key = format!("{}{key}", self.before_key);
        let recorded = self.cache.run_blocking(move |cache| {
            cache.record_document(&key, &answer);
            Some(())
        });
        // An entry that a slow disk does not take in time is not cached.
        let _ = recorded.await;
    }

    /// Returns document `key` as it was last seen.
    async fn seen(&self, key: &str, limit: u64) -> Option<CachedDocument> {
        let key = format!("{}{key}", self.before_key);
        self.cache.run_blocking(move |cache| cache.document(&key, limit)).await
    }

    async fn read_latest(&self, store: &dyn Storage, key: &str, limit: u64) -> Result<Option<StoredObject>> {
        let known = self.seen(key, limit).await;
        let known = known.and_then(|known| Some((serde_json::from_str::<Version>(&known.state).ok()?, known.bytes?)));
        let known = known.filter(|(version, _)| version.e_tag.is_some());
        let mode = known.as_ref().map_or(ReadMode::Latest, |(version, _)| ReadMode::IfChanged(version));
        match store.read(key, limit, mode).await {
            Ok(Some(object)) => {
                let state = serde_json::to_string(&object.version).unwrap_or_default();
                self.record(key, CachedDocument { state, bytes: Some(object.bytes.clone()) }).await;
                Ok(Some(object))
            }
            Ok(None) => Ok(known.map(|(version, bytes)| StoredObject { version, ..bytes.into() })),
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    self.record(key, CachedDocument { state: String::new(), bytes: None }).await;
                }
                Err(error)
            }
        }
    }

    /// Reads document `key` as it was last seen.
    async fn read_offline(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        let known = self.seen(key, limit).await.ok_or_else(|| self.missing(key))?;
        let absent =
            || Error::new(ErrorKind::NotFound, format!("{key}: it did not exist when the store was last asked"));
        let bytes = known.bytes.ok_or_else(absent)?;
        if bytes.len() as u64 > limit {
            return Err(too_large(key, bytes.len() as u64, limit));
        }
        let version = serde_json::from_str(&known.state).unwrap_or_default();
        let is_unchanged = matches!(mode, ReadMode::IfChanged(seen) if *seen == version);
        Ok((!is_unchanged).then(|| StoredObject { version, ..bytes.into() }))
    }

    fn missing(&self, what: &str) -> Error {
        let place = self.cache.directory().display();
        Error::new(
            ErrorKind::Offline,
            format!(
                "{what}: it is not in the cache {place}, and --offline forbids asking the store: `icechunkfs refresh` \
                 of a writable mount asks it"
            ),
        )
    }

    /// Returns the store, if it may be written to.
    fn writable(&self) -> Result<&dyn Storage> {
        self.asked().ok_or_else(|| {
            let location = &self.capabilities.location;
            Error::new(ErrorKind::ReadOnly, format!("{location}: nothing can be written offline"))
        })
    }

    async fn discard(&self, key: &str) {
        if self.capabilities.contact() != Contact::Online {
            return;
        }
        // An entry that is still being added would appear after the removal.
        self.cache.flush().await;
        let key = key.to_owned();
        let document = (!self.before_key.is_empty()).then(|| format!("{}{key}", self.before_key));
        let forgotten = self.cache.run_blocking(move |cache| {
            std::iter::once(key).chain(document).for_each(|key| cache.forget(&key));
            Some(())
        });
        let _ = forgotten.await;
    }
}

/// Returns true for documents that say what a repository has now. Others that are stored on
/// condition are copies, which nobody reads.
fn is_current(key: &str) -> bool {
    key == "repo" || key == "config.yaml" || key.starts_with("refs/")
}

fn listing(prefix: &str) -> String {
    format!("listing {prefix}")
}

#[async_trait]
impl Storage for CachedStorage {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        match (mode, self.asked()) {
            (ReadMode::Immutable, store) => {
                let name = Name::whole(key);
                if let Some(bytes) = self.cache.run_blocking(move |cache| cache.get(&name, limit)).await {
                    return Ok(Some(bytes.into()));
                }
                let found = store.ok_or_else(|| self.missing(key))?.read(key, limit, mode).await?;
                if let Some(object) = &found {
                    self.keep(key, object.bytes.clone());
                }
                Ok(found)
            }
            (ReadMode::Latest, Some(store)) => self.read_latest(store, key, limit).await,
            (_, Some(store)) => store.read(key, limit, mode).await,
            (ReadMode::Range(offset), None) => Err(self.missing(&format!("{key}, {limit} bytes at {offset}"))),
            (_, None) => self.read_offline(key, limit, mode).await,
        }
    }

    async fn store(&self, key: &str, content: Content<'_>) -> Result<()> {
        // Documents will be read whole; the end of each chunk in an object is unknown here.
        let (object, document) = match &content {
            Content::New(bytes) if !key.starts_with(BULK) => (Some(bytes.clone()), None),
            Content::Conditional(bytes, _) | Content::Unless { bytes, .. } if is_current(key) => {
                (None, Some(bytes.clone()))
            }
            _ => (None, None),
        };
        self.writable()?.store(key, content).await?;
        if let Some(bytes) = object {
            self.keep(key, bytes);
        }
        // So that a mount that begins offline shows what was committed last. Without a version, the
        // next request transfers the document again.
        if let Some(bytes) = document {
            self.record(key, CachedDocument { state: String::new(), bytes: Some(bytes) }).await;
        }
        Ok(())
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        match self.asked() {
            Some(store) => store.sync(folders).await,
            None => Ok(()),
        }
    }

    async fn walk(&self, prefix: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        let objects = match self.asked() {
            Some(store) if mode == ListMode::Streamed => return store.walk(prefix, mode, visit).await,
            Some(store) => {
                let objects = store.list(prefix).await?;
                if let Ok(bytes) = serde_json::to_vec(&objects) {
                    let listed = CachedDocument { state: String::new(), bytes: Some(bytes.into()) };
                    self.record(&listing(prefix), listed).await;
                }
                objects
            }
            None => {
                let known = self.seen(&listing(prefix), MAX_LISTING).await.and_then(|known| known.bytes);
                let listed: Option<Vec<ObjectInfo>> = known.and_then(|bytes| serde_json::from_slice(&bytes).ok());
                listed.ok_or_else(|| self.missing(&format!("the listing of `{prefix}`")))?
            }
        };
        let _ = objects.into_iter().try_for_each(visit);
        Ok(())
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        let store = match removal {
            Removal::Cached(_) if self.asked().is_none() => return Ok(()),
            _ => self.writable()?,
        };
        // Cached copies are removed first: they must not outlive the objects.
        match removal {
            Removal::Objects(keys) => {
                for key in keys.iter().filter(|key| !key.starts_with(BULK)) {
                    self.discard(key).await;
                }
            }
            Removal::Unchanged { key, .. } | Removal::Cached(key) => self.discard(key).await,
        }
        store.remove(removal).await
    }

    async fn locate(&self, key: &str) -> Result<Option<ObjectSource>> {
        match self.asked() {
            Some(store) => store.locate(key).await,
            None => Ok(None),
        }
    }

    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()> {
        match self.asked() {
            Some(store) => store.check_conditions(key, limit).await,
            None => Ok(()),
        }
    }
}
