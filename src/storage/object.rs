//! [`Storage`] over any store of the `object_store` crate, with deadlines.
//!
//! The client retries transient failures; this module limits the time of an operation as a whole ([`Deadline`]) and the bytes it reads.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    GetOptions, GetRange, GetResult, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion,
};

use super::connect::Connected;
pub(super) use super::deadline::timed_out;
use super::deadline::{Deadline, Operation, UNBOUNDED};
use super::explain::from_store;
use super::listing::{ListingLimits, ListingValidator, too_many};
use super::settings::Settings;
use super::transport::{Limit, Transport};
use super::{Condition, ObjectInfo, Storage, StoreAddress, Version, conditional, read_part};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;

/// Maximum size of a file that is sent in one request, in bytes. Larger files are sent in parts.
const WHOLE: u64 = 16 << 20;
/// Minimum size of a part, in bytes: its transfer takes much longer than a round trip.
const PART: u64 = 8 << 20;
/// Maximum number of parts of a file in flight, and in memory.
const PARTS_AT_ONCE: usize = 4;
/// Number of objects removed under one deadline: the maximum of one request to Amazon S3.
const DELETED_AT_ONCE: usize = 1000;
/// Maximum number of parts of an object: the lowest limit of any store, which is Amazon's.
const MOST_PARTS: u64 = 10_000;
/// Maximum size of an object that a store copies in one request, in bytes: Amazon's limit.
const MOST_COPIED: u64 = 5 << 30;
/// Maximum number of bytes read and discarded before a range, from a server that sends only whole objects: more takes too long for a
/// chunk.
const MOST_SKIPPED: u64 = 1 << 30;
/// Progress that an object of a listing counts for, in bytes: its size in a response.
const LISTED: u64 = 512;
/// Minimum rate of a copy within a store, in bytes per second: a small part of the usual rate.
const COPY_RATE: u64 = 8 << 20;
/// Number of listed objects processed under one deadline.
const LISTED_AT_ONCE: usize = 1000;
/// Maximum allocation for an announced size, in bytes. Further memory is allocated as bytes arrive.
const MOST_RESERVED: u64 = 16 << 20;
/// Folder of most uploaded bytes. The upload rate limit applies to it.
pub(super) const BULK: &str = "chunks/";

/// Repository in an object store.
#[derive(Debug)]
pub struct ObjectStorage {
    store: Arc<dyn ObjectStore>,
    location: String,
    deadline: Deadline,
    bounds: ListingLimits,
    /// Reason why nothing can be written, if there is one.
    read_only: Option<&'static str>,
    /// True if the user guarantees a single writer.
    single_writer: bool,
    /// Transport of the requests, if the store is on a network.
    wire: Option<Transport>,
    /// Upload rate limit.
    limit: Option<Arc<Limit>>,
    /// Access to the same location by keys that begin with a slash.
    with_slash: Option<Arc<dyn Storage>>,
    /// Store that contains the repository, if it has a name.
    whole: Option<Whole>,
}

/// Store that contains the repository.
#[derive(Debug)]
struct Whole {
    name: String,
    store: Arc<dyn ObjectStore>,
    /// Prefix of the repository's keys.
    prefix: String,
}

impl Whole {
    fn key(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}/{key}", self.prefix) }
    }
}

impl ObjectStorage {
    /// Creates the storage of the repository at the root of `store`; messages name it `location`, and `deadline` is the time budget of an
    /// operation.
    pub fn new(store: Arc<dyn ObjectStore>, location: String, deadline: Duration) -> Self {
        let (read_only, single_writer, with_slash, wire, limit) = (None, false, None, None, None);
        let (deadline, bounds, whole) = (Deadline::new(deadline), ListingLimits::unordered(), None);
        ObjectStorage { store, location, deadline, bounds, read_only, single_writer, with_slash, wire, limit, whole }
    }

    /// Creates the storage of a repository in a store that was reached with `settings`; `name` distinguishes the store from other stores.
    pub(super) fn connected(
        connected: Connected,
        location: String,
        settings: &Settings,
        name: Option<String>,
    ) -> Result<Self> {
        let Connected { store, slashed, prefix, read_only, is_ordered, wire } = connected;
        let whole = name.map(|name| Whole { name, store: Arc::clone(&store), prefix: prefix.clone() });
        let make = |store: Arc<dyn ObjectStore>, with_slash| -> Result<Self> {
            let store = if prefix.is_empty() { store } else { Arc::new(PrefixStore::new(store, path(&prefix)?)) };
            let (location, single_writer) = (location.clone(), settings.unsafe_single_writer);
            let (deadline, bounds) = (Deadline::of(settings), ListingLimits::of(settings, is_ordered));
            let (wire, limit) = (Some(wire.clone()), wire.limit());
            let whole = None;
            Ok(ObjectStorage {
                store,
                location,
                deadline,
                bounds,
                read_only,
                single_writer,
                with_slash,
                wire,
                limit,
                whole,
            })
        };
        let with_slash = slashed.map(|store| make(store, None)).transpose()?;
        let made = make(store, with_slash.map(|storage| Arc::new(storage) as Arc<dyn Storage>))?;
        Ok(ObjectStorage { whole, ..made })
    }

    /// Fetches the object that `options` request, of at most `limit` bytes, with its version. Returns `None` if it is unchanged.
    async fn get_whole(&self, key: &str, limit: u64, options: GetOptions) -> Result<Option<(Bytes, Version)>> {
        let path = path(key)?;
        let reading = async {
            let found = match self.store.get_opts(&path, options).await {
                Err(object_store::Error::NotModified { .. }) => return Ok(None),
                other => other.map_err(|error| from_store(key, error))?,
            };
            let size = found.meta.size;
            if size > limit {
                return Err(too_large(key, size, limit));
            }
            let version = Version { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            let held = memory::reserve(size, key).await?;
            let bytes = collect(found, size).await.map_err(|error| from_store(key, error))?;
            Ok(Some((memory::with_reservation(bytes, held), version)))
        };
        self.deadline.read(key, limit, key, reading).await
    }

    async fn send_parts(
        &self,
        key: &str,
        upload: &mut dyn MultipartUpload,
        file: std::fs::File,
        length: u64,
    ) -> Result<()> {
        let largest = PART.max(length.div_ceil(MOST_PARTS));
        let mut sending: FuturesUnordered<BoxFuture<'_, Result<()>>> = FuturesUnordered::new();
        let (mut file, mut left) = (file, length);
        while left > 0 {
            while sending.len() >= PARTS_AT_ONCE {
                sending.next().await.transpose()?;
            }
            let size = left.min(largest);
            let mut reading = Box::pin(async {
                self.admit(key, size).await;
                read_part(file, size, size == left).await
            });
            let (rest, part) = loop {
                // Parts in flight must make progress meanwhile.
                tokio::select! {
                    sent = sending.next(), if !sending.is_empty() => { sent.transpose()?; }
                    read = &mut reading => break read?,
                }
            };
            drop(reading);
            (file, left) = (rest, left - size);
            // The calls are in order, and their order numbers the parts, whatever the order of the responses.
            let put = upload.put_part(part.into());
            sending.push(Box::pin(self.timed(key, put)));
        }
        while let Some(sent) = sending.next().await {
            sent?;
        }
        drop(sending);
        self.timed(key, upload.complete()).await.map(drop)
    }

    /// Waits until `bytes` of object `key` may be sent. No deadline runs yet.
    async fn admit(&self, key: &str, bytes: u64) {
        if let Some(limit) = self.limit.as_ref().filter(|_| key.starts_with(BULK)) {
            limit.admit(bytes).await;
        }
    }

    /// Visits the objects below `prefix`, page by page, until `visit` fails.
    async fn walk(&self, prefix: &str, visit: &mut (dyn FnMut(ObjectInfo) -> Result<()> + Send)) -> Result<()> {
        let prefix = path(prefix.trim_end_matches('/'))?;
        let what = format!("listing `{prefix}`");
        let mut listing = ListingValidator::new(prefix.as_ref(), self.bounds);
        let mut objects = self.store.list(Some(&prefix)).ready_chunks(LISTED_AT_ONCE);
        // Only objects that are found extend the operation: pages alone do not.
        let operation = Operation::for_steps(self.deadline);
        loop {
            let next = async { Ok(objects.next().await) };
            let Some(page) = self.deadline.run_as(Arc::clone(&operation), &what, next).await? else { return Ok(()) };
            for meta in page {
                let meta = meta.map_err(|error| from_store(&what, error))?;
                let modified = u64::try_from(meta.last_modified.timestamp_micros()).unwrap_or_default();
                let object = ObjectInfo { key: meta.location.to_string(), size: meta.size, modified };
                operation.add_result(LISTED);
                if listing.admit(&object)? {
                    visit(object)?;
                }
            }
        }
    }

    async fn timed<T>(&self, what: impl Display, work: impl Future<Output = object_store::Result<T>>) -> Result<T> {
        let what = what.to_string();
        let done = async { work.await.map_err(|error| from_store(&what, error)) };
        self.deadline.run(&what, done).await
    }
}

/// Collects the bytes of `found`, `size` of them at most. Memory is allocated as they arrive: the store may announce more than it sends.
pub(super) async fn collect(found: GetResult, size: u64) -> object_store::Result<Bytes> {
    let mut parts = found.into_stream();
    let first = parts.try_next().await?.unwrap_or_default();
    if first.len() as u64 >= size {
        return Ok(first);
    }
    let mut bytes = BytesMut::with_capacity(usize::try_from(size.min(MOST_RESERVED)).unwrap_or_default());
    bytes.extend_from_slice(&first);
    while let Some(part) = parts.try_next().await? {
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.freeze())
}

/// Reads bytes `offset..offset + length` of an object that the server sends only whole, and discards all other bytes.
async fn read_past(store: &dyn ObjectStore, path: &Path, offset: u64, length: u64) -> object_store::Result<Bytes> {
    let mut parts = store.get(path).await?.into_stream();
    let (mut at, end) = (0, offset.saturating_add(length));
    let mut bytes = BytesMut::new();
    while let Some(part) = parts.try_next().await? {
        let begin = usize::try_from(offset.saturating_sub(at)).unwrap_or(usize::MAX).min(part.len());
        at += part.len() as u64;
        let over = usize::try_from(at.saturating_sub(end)).unwrap_or(usize::MAX);
        bytes.extend_from_slice(part.get(begin..part.len().saturating_sub(over)).unwrap_or_default());
        if at >= end {
            break;
        }
    }
    Ok(bytes.freeze())
}

fn path(key: &str) -> Result<Path> {
    Path::parse(key).map_err(|e| Error::with_source(ErrorKind::InvalidInput, format!("`{key}` is no object name"), e))
}

#[async_trait]
impl Storage for ObjectStorage {
    fn location(&self) -> &str {
        &self.location
    }

    async fn get(&self, key: &str, limit: u64) -> Result<Bytes> {
        self.get_versioned(key, limit).await.map(|(bytes, _)| bytes)
    }

    async fn get_versioned(&self, key: &str, limit: u64) -> Result<(Bytes, Version)> {
        let found = self.get_whole(key, limit, GetOptions::default()).await?;
        found.ok_or_else(|| Error::corrupt(format!("{key}: the store says that nothing has changed, and nobody asked")))
    }

    async fn get_changed(&self, key: &str, limit: u64, version: &Version) -> Result<Option<(Bytes, Version)>> {
        let options = GetOptions { if_none_match: version.e_tag.clone(), ..GetOptions::default() };
        let found = self.get_whole(key, limit, options).await?;
        Ok(found.filter(|(_, now)| now != version))
    }

    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes> {
        let path = path(key)?;
        let range = GetRange::Bounded(offset..offset.saturating_add(length));
        let reading = async {
            let options = GetOptions { range: Some(range), ..GetOptions::default() };
            let found = match self.store.get_opts(&path, options).await {
                Err(object_store::Error::NotSupported { .. }) => return Ok(None),
                other => other.map_err(|error| from_store(key, error))?,
            };
            collect(found, length).await.map(Some).map_err(|error| from_store(key, error))
        };
        let bytes = match self.deadline.read(key, length, key, reading).await? {
            Some(bytes) => bytes,
            // Some web servers send only whole objects.
            None if offset > MOST_SKIPPED => return Err(too_far(key, offset)),
            None => {
                let reading = async {
                    let read = read_past(&*self.store, &path, offset, length).await;
                    read.map_err(|error| from_store(key, error))
                };
                self.deadline.read(key, UNBOUNDED, key, reading).await?
            }
        };
        if bytes.len() as u64 == length { Ok(bytes) } else { Err(too_short(key, offset, length, bytes.len() as u64)) }
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<()> {
        let mode = match condition {
            _ if self.single_writer => PutMode::Overwrite,
            Condition::Always => PutMode::Overwrite,
            Condition::Absent => PutMode::Create,
            Condition::Unchanged(Version { e_tag, version }) => PutMode::Update(UpdateVersion { e_tag, version }),
        };
        let path = path(key)?;
        let length = bytes.len() as u64;
        self.admit(key, length).await;
        if matches!(mode, PutMode::Overwrite) {
            return self.timed(key, self.store.put(&path, bytes.into())).await.map(drop);
        }
        self.timed(key, conditional::put(&*self.store, &path, bytes, mode)).await
    }

    async fn any(&self) -> Result<Option<String>> {
        let first = self.timed("listing", async { self.store.list(None).try_next().await }).await?;
        Ok(first.map(|meta| meta.location.to_string()))
    }

    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()> {
        if self.single_writer {
            return Ok(());
        }
        let path = path(key)?;
        let bytes = self.get(key, limit).await?;
        let compares = conditional::check(&*self.store, &path, &bytes);
        if self.timed(key, compares).await? {
            return Ok(());
        }
        Err(conditional::does_not_compare(&self.location))
    }

    fn with_slash(&self) -> Option<Arc<dyn Storage>> {
        self.with_slash.clone()
    }

    fn read_only(&self) -> Option<&'static str> {
        self.read_only
    }

    fn in_flight(&self) -> usize {
        self.wire.as_ref().map_or(0, Transport::in_flight)
    }

    async fn put_file(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        if length <= WHOLE {
            return self.put_new(key, read_part(file, length, true).await?.1).await;
        }
        let path = path(key)?;
        let mut upload = self.timed(key, self.store.put_multipart(&path)).await?;
        let sent = self.send_parts(key, &mut *upload, file, length).await;
        if sent.is_err() {
            // Best effort: the store's own rules remove the parts that remain.
            let _ = self.timed(key, upload.abort()).await;
        }
        sent
    }

    async fn store_address(&self, key: &str) -> Result<Option<StoreAddress>> {
        Ok(self.whole.as_ref().map(|whole| StoreAddress { store: whole.name.clone(), key: whole.key(key) }))
    }

    async fn copy_from(&self, from: &StoreAddress, key: &str, bytes: u64) -> Result<bool> {
        let whole = self.whole.as_ref().filter(|whole| whole.name == from.store && bytes <= MOST_COPIED);
        let Some(whole) = whole else { return Ok(false) };
        let (from, to) = (path(&from.key)?, path(&whole.key(key))?);
        // The store copies by itself and reports no progress.
        let patience = self.deadline.budget().saturating_add(Duration::from_secs(bytes / COPY_RATE));
        let copying = async { whole.store.copy(&from, &to).await.map_err(|error| from_store(key, error)) };
        match self.deadline.with_budget(patience).run(key, copying).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn modified(&self, key: &str) -> Result<Option<u64>> {
        let path = path(key)?;
        let options = GetOptions { head: true, ..GetOptions::default() };
        let found = self.timed(key, self.store.get_opts(&path, options)).await?;
        Ok(u64::try_from(found.meta.last_modified.timestamp_micros()).ok())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let (mut found, mut size) = (Vec::new(), 0_u64);
        let most = self.bounds.list_size(prefix);
        let mut keep = |object: ObjectInfo| {
            size = size.saturating_add(size_of::<ObjectInfo>() as u64).saturating_add(object.key.len() as u64);
            found.push(object);
            if size > most { Err(too_many(prefix, found.len() as u64)) } else { Ok(()) }
        };
        self.walk(prefix, &mut keep).await?;
        Ok(found)
    }

    async fn each(&self, prefix: &str, visit: &mut (dyn FnMut(ObjectInfo) + Send)) -> Result<()> {
        let mut visit = |object| {
            visit(object);
            Ok(())
        };
        self.walk(prefix, &mut visit).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        // The store removes in bulk if it can; one request for a batch ends before the deadline.
        for keys in keys.chunks(DELETED_AT_ONCE) {
            let paths = keys.iter().map(|key| path(key)).collect::<Result<Vec<_>>>()?;
            let paths = stream::iter(paths.into_iter().map(Ok)).boxed();
            let mut removed = self.store.delete_stream(paths);
            let all = async {
                while let Some(one) = removed.next().await {
                    match one {
                        // Some stores report missing objects.
                        Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            };
            self.timed(format!("removing {} objects", keys.len()), all).await?;
        }
        Ok(())
    }
}

pub(super) fn too_large(key: &str, size: u64, limit: u64) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "{key}: {size} bytes are more than the {limit} that may be held; raise --memory if you trust the repository"
        ),
    )
}

fn too_far(key: &str, offset: u64) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{key}: the server gives whole objects only, and the bytes are {} MiB behind the beginning",
            offset >> 20
        ),
    )
}

pub(super) fn too_short(key: &str, offset: u64, length: u64, got: u64) -> Error {
    Error::corrupt(format!("{key}: the object is too short: {got} of {length} bytes at offset {offset}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Seek;
    use std::io::Write;

    #[tokio::test]
    async fn parts_of_objects_that_are_given_whole_are_cut_out() {
        let store = object_store::memory::InMemory::new();
        // The store delivers 3 bytes at a time.
        let store = object_store::chunked::ChunkedStore::new(Arc::new(store), 3);
        let path = Path::from("x");
        store.put(&path, "0123456789".into()).await.unwrap();
        for (offset, length, expected) in
            [(0, 10, "0123456789"), (2, 5, "23456"), (3, 3, "345"), (9, 5, "9"), (20, 1, "")]
        {
            assert_eq!(read_past(&store, &path, offset, length).await.unwrap(), expected, "{length} at {offset}");
        }
    }

    #[tokio::test]
    async fn what_is_still_the_same_is_not_sent() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let storage = ObjectStorage::new(store, "memory".into(), Duration::from_secs(5));
        storage.put("repo", "one".into(), Condition::Always).await.unwrap();
        let (_, seen) = storage.get_versioned("repo", 10).await.unwrap();
        assert_eq!(storage.get_changed("repo", 10, &seen).await.unwrap(), None);
        storage.put("repo", "two".into(), Condition::Always).await.unwrap();
        let (bytes, now) = storage.get_changed("repo", 10, &seen).await.unwrap().unwrap();
        assert_eq!(bytes, "two");
        assert_eq!(storage.get_changed("repo", 10, &now).await.unwrap(), None);
        let gone = storage.get_changed("repo2", 10, &now).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn what_is_not_there_keeps_nothing_else_from_being_removed() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let storage = ObjectStorage::new(store, "memory".into(), Duration::from_secs(5));
        for key in ["a", "chunks/x", "chunks/z"] {
            storage.put(key, "one".into(), Condition::Always).await.unwrap();
        }
        let before = storage.list("").await.unwrap();
        assert!(before.iter().all(|object| object.modified > 1_700_000_000_000_000), "{before:?}");
        let keys = ["chunks/x", "chunks/y", "a"].map(String::from);
        storage.delete(&keys).await.unwrap();
        let left: Vec<String> = storage.list("").await.unwrap().into_iter().map(|object| object.key).collect();
        assert_eq!(left, ["chunks/z"]);
    }

    #[tokio::test]
    async fn files_are_stored_whole_in_parts_if_need_be() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let storage = ObjectStorage::new(store, "memory".into(), Duration::from_secs(5));
        for length in [1, WHOLE, WHOLE + 1, 7 * PART] {
            let mut file = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            file.write_all(&bytes).unwrap();
            file.rewind().unwrap();
            storage.put_file("chunks/A", file.try_clone().unwrap(), length).await.unwrap();
            assert!(storage.get("chunks/A", 1 << 30).await.unwrap() == bytes, "{length} bytes");
            file.rewind().unwrap();
            let wrong = storage.put_file("chunks/B", file, length - 1).await.unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Busy);
        }
    }
}
