//! Convenient forms of the operations of [`Storage`].

use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::local::LocalFiles;
use super::location::{Location, StorePlace};
use super::{
    Condition, Content, ListMode, ObjectInfo, ReadMode, Removal, Storage, StoreAddress, StoredObject, Version,
};
use crate::disk_cache::DiskCache;
use icechunkfs_base::error::{Error, ErrorKind, Result};

impl dyn Storage + '_ {
    /// Returns the location as messages and `/proc/mounts` show it.
    pub fn location(&self) -> &str {
        &self.capabilities().location
    }

    /// Returns the reason why nothing can be written here, if there is one.
    pub fn read_only(&self) -> Option<&str> {
        self.capabilities().read_only.as_deref()
    }

    /// Returns the local directory that holds the repository, if there is one.
    pub fn local_path(&self) -> Option<PathBuf> {
        self.capabilities().local_path.clone()
    }

    /// Returns true if `words`, a path or URL that a user or a mount gave, names this place, in
    /// whatever spelling. Symbolic links in a local path are followed.
    pub fn is_named(&self, words: &str) -> bool {
        match (&self.capabilities().local_path, Location::parse(words).map(|location| location.place)) {
            (Some(local), Ok(StorePlace::Local(path))) => std::fs::canonicalize(path).is_ok_and(|path| path == *local),
            (None, Ok(place)) => self.place().is_some_and(|own| own.is_same(&place)) || words == self.location(),
            _ => false,
        }
    }

    /// Returns the place, as its name says it; none for a storage in memory.
    pub fn place(&self) -> Option<StorePlace> {
        match self.local_path() {
            Some(path) => Some(StorePlace::Local(path)),
            None => Location::parse(self.location()).ok().map(|location| location.place),
        }
    }

    /// Returns direct access to the files, if objects are local files.
    pub fn local_files(&self) -> Option<&LocalFiles> {
        self.capabilities().local_files.as_deref()
    }

    /// Returns the disk cache of this storage, if there is one.
    pub fn disk_cache(&self) -> Option<&Arc<DiskCache>> {
        self.capabilities().disk_cache.as_ref()
    }

    /// Returns the number of requests in flight over a network.
    pub fn in_flight(&self) -> usize {
        self.capabilities().in_flight.load(Ordering::Relaxed)
    }

    /// Reads the whole object `key`, of at most `limit` bytes.
    ///
    /// Errors: [`ErrorKind::NotFound`] if the object does not exist, [`ErrorKind::OutOfMemory`] if
    /// it is larger than `limit`.
    pub async fn get(&self, key: &str, limit: u64) -> Result<Bytes> {
        self.get_in_mode(key, limit, ReadMode::Latest).await.map(|object| object.bytes)
    }

    /// Reads an object that is never written again, otherwise like `get`.
    pub async fn get_fixed(&self, key: &str, limit: u64) -> Result<Bytes> {
        self.get_in_mode(key, limit, ReadMode::Immutable).await.map(|object| object.bytes)
    }

    /// Reads exactly `length` bytes of object `key` at `offset`. Fails with [`ErrorKind::Corrupt`]
    /// if the object ends earlier.
    pub async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes> {
        self.get_in_mode(key, length, ReadMode::Range(offset)).await.map(|object| object.bytes)
    }

    /// Returns the modification time of object `key` by the store's clock, in microseconds since
    /// 1970-01-01 UTC, if it is known.
    pub async fn modified(&self, key: &str) -> Result<Option<u64>> {
        self.get_in_mode(key, 0, ReadMode::Head).await.map(|object| object.modified)
    }

    /// Reads an object like `get`, with the version that a later [`Condition::Unchanged`] needs.
    pub async fn get_versioned(&self, key: &str, limit: u64) -> Result<(Bytes, Version)> {
        self.get_in_mode(key, limit, ReadMode::Latest).await.map(|object| (object.bytes, object.version))
    }

    /// Returns the size of object `key` in bytes.
    pub async fn size(&self, key: &str) -> Result<u64> {
        self.size_and_time(key).await.map(|(size, _)| size)
    }

    /// Returns the size of object `key` in bytes, and its modification time like `modified`.
    pub async fn size_and_time(&self, key: &str) -> Result<(u64, Option<u64>)> {
        let found = self.get_in_mode(key, 0, ReadMode::Head).await?;
        let size = found.size.ok_or_else(|| Error::corrupt(format!("{key}: the store does not state its size")))?;
        Ok((size, found.modified))
    }

    pub(super) async fn get_in_mode(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<StoredObject> {
        let unasked = || format!("{key}: the store answers that nothing has changed, to an unconditional request");
        self.read(key, limit, mode).await?.ok_or_else(|| Error::corrupt(unasked()))
    }

    /// Reads an object like `get_versioned`. Returns `None` if it still has `version`.
    pub async fn get_changed(&self, key: &str, limit: u64, version: &Version) -> Result<Option<(Bytes, Version)>> {
        let found = self.read(key, limit, ReadMode::IfChanged(version)).await?;
        Ok(found.map(|object| (object.bytes, object.version)))
    }

    /// Stores `bytes` as object `key` if `condition` holds ([`Content::Conditional`]).
    pub async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<()> {
        self.store(key, Content::Conditional(bytes, condition)).await
    }

    /// Stores `bytes` as object `key` if `condition` holds and there is no object `unless`
    /// ([`Content::Unless`]).
    pub async fn put_unless(&self, key: &str, bytes: Bytes, condition: Condition, unless: &'static str) -> Result<()> {
        self.store(key, Content::Unless { bytes, condition, unless }).await
    }

    /// Stores `bytes` as the new object `key` ([`Content::New`]).
    pub async fn put_new(&self, key: &str, bytes: Bytes) -> Result<()> {
        self.store(key, Content::New(bytes)).await
    }

    /// Stores the whole of `file`, of `length` bytes, as the new object `key` ([`Content::File`]).
    pub async fn put_file(&self, key: &str, file: File, length: u64) -> Result<()> {
        self.store(key, Content::File(file, length)).await
    }

    /// Stores a copy of `file`, of `length` bytes, as the new object `key` ([`Content::FileCopy`]).
    pub async fn put_copy(&self, key: &str, file: File, length: u64) -> Result<()> {
        self.store(key, Content::FileCopy(file, length)).await
    }

    /// Copies an object of `bytes` bytes to `key` within the store. Returns false if the store
    /// cannot do that.
    pub async fn copy_from(&self, from: &StoreAddress, key: &str, bytes: u64) -> Result<bool> {
        match self.store(key, Content::ObjectCopy(from, bytes)).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists all objects whose key begins with `prefix`, which is empty or ends with `/`, in no
    /// particular order.
    pub async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let mut found = Vec::new();
        let mut collect = |object| {
            found.push(object);
            ControlFlow::Continue(())
        };
        self.walk(prefix, ListMode::Collected, &mut collect).await?;
        Ok(found)
    }

    /// Visits the objects of `list` one by one, since a list of all may not fit into memory.
    pub async fn for_each(&self, prefix: &str, visit: &mut (dyn FnMut(ObjectInfo) + Send)) -> Result<()> {
        let mut visit = |object| {
            visit(object);
            ControlFlow::Continue(())
        };
        self.walk(prefix, ListMode::Streamed, &mut visit).await
    }

    /// Returns the key of an arbitrary object, if there is one, but for those of `known`.
    pub async fn any_key(&self, known: &[String]) -> Result<Option<String>> {
        let mut found = None;
        let mut take = |object: ObjectInfo| {
            if known.contains(&object.key) {
                return ControlFlow::Continue(());
            }
            found = Some(object.key);
            ControlFlow::Break(())
        };
        self.walk("", ListMode::Streamed, &mut take).await?;
        Ok(found)
    }

    /// Removes the objects `keys` ([`Removal::Objects`]).
    pub async fn delete(&self, keys: &[String]) -> Result<()> {
        self.remove(Removal::Objects(keys)).await
    }

    /// Removes object `key`, of at most `limit` bytes, if it still has `version`
    /// ([`Removal::Unchanged`]).
    pub async fn delete_unchanged(&self, key: &str, limit: u64, version: &Version) -> Result<()> {
        self.remove(Removal::Unchanged { key, limit, version, unless: None }).await
    }

    /// Removes an object like `delete_unchanged` if there is no object `unless`.
    pub async fn delete_unless(&self, key: &str, limit: u64, version: &Version, unless: &'static str) -> Result<()> {
        self.remove(Removal::Unchanged { key, limit, version, unless: Some(unless) }).await
    }

    /// Discards cached bytes of object `key`, whose last read turned out to be unusable
    /// ([`Removal::Cached`]).
    pub async fn discard_cached(&self, key: &str) {
        // The next read reports a failure.
        let _ = self.remove(Removal::Cached(key)).await;
    }
}
