//! [`Storage`] over any store of the `object_store` crate, with deadlines.
//!
//! The client retries transient failures; this module limits the time of an operation as a whole
//! ([`Deadline`]) and the bytes it reads.

use std::fmt::Display;
use std::fs::File;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{Stream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    GetOptions, GetRange, GetResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutMultipartOptions, PutOptions, UpdateVersion,
};

use super::connect::Connected;
use super::deadline::{Deadline, Operation, UNBOUNDED};
use super::explain::{Sender, from_store};
use super::listing::{ListingLimits, ListingValidator, too_many};
use super::settings::Settings;
use super::transport::Transport;
use super::{
    Body, Capabilities, Condition, Content, DEADLINE, ListMode, ObjectInfo, ObjectSource, ReadMode, Removal, Storage,
    StoreAddress, StoredObject, Version, Visitor, changed, changed_file, conditional, migrated, no_copy,
};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory;

/// Maximum size of a file that is sent in one request, in bytes. Larger files are sent in parts.
const WHOLE: u64 = 16 << 20;
/// Minimum size of a part, in bytes: its transfer takes much longer than a round trip.
const PART: u64 = 8 << 20;
/// Maximum number of parts of a file in flight, and in memory.
const PARTS_AT_ONCE: usize = 4;
/// Number of objects removed under one deadline: the maximum of one request to Amazon S3.
pub(super) const DELETED_AT_ONCE: usize = 1000;
/// Maximum number of parts of an object: the lowest limit of any store, which is Amazon's.
const MAX_PARTS: u64 = 10_000;
/// Maximum size of an object that a store copies in one request, in bytes: Amazon's limit.
const MAX_COPIED: u64 = 5 << 30;
/// Maximum number of bytes read and discarded before a range, from a server that sends only whole
/// objects: more takes too long for a chunk.
const MAX_SKIPPED: u64 = 1 << 30;
/// Progress that an object of a listing counts for, in bytes: its size in a response.
const LISTED: u64 = 512;
/// Minimum rate of a copy within a store, in bytes per second: a small part of the usual rate.
const COPY_RATE: u64 = 8 << 20;
/// Number of listed objects processed under one deadline.
const LISTED_AT_ONCE: usize = 1000;
/// Maximum allocation for an announced size, in bytes. Further memory is allocated as bytes arrive.
const MAX_RESERVED: u64 = 16 << 20;
/// Folder of most uploaded bytes. The upload rate limit applies to it.
pub(super) const BULK: &str = "chunks/";

/// Repository in an object store.
#[derive(Debug)]
pub struct ObjectStorage {
    store: Arc<dyn ObjectStore>,
    capabilities: Capabilities,
    deadline: Deadline,
    limits: ListingLimits,
    /// True if the user guarantees a single writer.
    single_writer: bool,
    /// Transport of the requests, if the store is on a network.
    transport: Option<Transport>,
    /// Store that contains the repository, if it has a name.
    bucket: Option<NamedBucket>,
    /// Identity that requests prove.
    sender: Sender,
}

/// Treatment of an object that has the key of one that is sent in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Replaced,
    Kept,
}

#[derive(Debug)]
struct NamedBucket {
    name: String,
    store: Arc<dyn ObjectStore>,
    /// Prefix of the repository's keys.
    prefix: String,
}

impl NamedBucket {
    fn key(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}/{key}", self.prefix) }
    }
}

impl ObjectStorage {
    /// Creates an empty storage in memory, which messages name `location`.
    pub(super) fn in_memory(location: &str) -> Self {
        ObjectStorage {
            store: Arc::new(object_store::memory::InMemory::new()),
            capabilities: Capabilities::new(location),
            deadline: Deadline::new(DEADLINE),
            limits: ListingLimits::of(&Settings::default(), false),
            single_writer: false,
            transport: None,
            bucket: None,
            sender: Sender::Known,
        }
    }

    /// Creates the storage of a repository in a store that was reached with `settings`; `name`
    /// distinguishes the store from other stores.
    pub(super) fn connected(
        connected: Connected,
        location: String,
        settings: &Settings,
        name: Option<String>,
    ) -> Result<Self> {
        let Connected {
            store, slash_prefixed, prefix, read_only, is_ordered, has_md5_tags, endpoint, transport, ..
        } = connected;
        let bucket = name.map(|name| NamedBucket { name, store: Arc::clone(&store), prefix: prefix.clone() });
        let make = |store: Arc<dyn ObjectStore>, with_slash, bucket| -> Result<Self> {
            let store = if prefix.is_empty() { store } else { Arc::new(PrefixStore::new(store, path(&prefix)?)) };
            let in_flight = transport.in_flight_gauge();
            let clock = transport.clock();
            Ok(ObjectStorage {
                store,
                capabilities: Capabilities {
                    read_only: read_only.map(Into::into),
                    with_slash,
                    in_flight,
                    clock,
                    requests: Some(transport.rules()),
                    has_md5_tags,
                    endpoint: endpoint.clone(),
                    ..Capabilities::new(location.as_str())
                },
                deadline: Deadline::of(settings),
                limits: ListingLimits::of(settings, is_ordered),
                single_writer: settings.unsafe_single_writer,
                transport: Some(transport.clone()),
                bucket,
                sender: if settings.anonymous { Sender::Anonymous } else { Sender::Known },
            })
        };
        let with_slash = slash_prefixed.map(|store| make(store, None, None)).transpose()?;
        make(store, with_slash.map(|storage| Arc::new(storage) as Arc<dyn Storage>), bucket)
    }

    fn failed(&self, what: impl Display, error: object_store::Error) -> Error {
        from_store(what, error, self.sender)
    }

    /// Fetches the object that `options` request, of at most `limit` bytes, with its version.
    /// Returns `None` if it is unchanged.
    async fn get_whole(&self, key: &str, limit: u64, options: GetOptions) -> Result<Option<StoredObject>> {
        let path = path(key)?;
        let reading = async {
            let found = match self.store.get_opts(&path, options).await {
                Err(object_store::Error::NotModified { .. }) => return Ok(None),
                other => other.map_err(|error| self.failed(key, error))?,
            };
            let size = found.meta.size;
            if size > limit {
                return Err(too_large(key, size, limit));
            }
            let version = Version { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            let modified = modified(&found.meta);
            let held = memory::reserve(size, key).await?;
            let bytes = collect(found, size).await.map_err(|error| self.failed(key, error))?;
            Ok(Some(StoredObject { bytes: memory::with_reservation(bytes, held), version, modified, size: None }))
        };
        self.deadline.read(key, limit, key, reading).await
    }

    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes> {
        let path = path(key)?;
        let range = GetRange::Bounded(offset..offset.saturating_add(length));
        let reading = async {
            let options = GetOptions { range: Some(range), ..GetOptions::default() };
            let found = match self.store.get_opts(&path, options).await {
                Err(object_store::Error::NotSupported { .. }) => return Ok(None),
                other => other.map_err(|error| self.failed(key, error))?,
            };
            collect(found, length).await.map(Some).map_err(|error| self.failed(key, error))
        };
        let bytes = match self.deadline.read(key, length, key, reading).await? {
            Some(bytes) => bytes,
            // Some web servers send only whole objects.
            None if offset > MAX_SKIPPED => return Err(too_far(key, offset)),
            None => {
                let reading = async {
                    let parts = self.store.get(&path).await.map_err(|error| self.failed(key, error))?.into_stream();
                    take_range(parts, offset, length).await.map_err(|error| self.failed(key, error))
                };
                self.deadline.read(key, UNBOUNDED, key, reading).await?
            }
        };
        check_length(bytes, key, offset, length)
    }

    async fn send_parts(&self, key: &str, upload: &mut dyn MultipartUpload, file: File, length: u64) -> Result<()> {
        let largest = PART.max(length.div_ceil(MAX_PARTS));
        let mut sending: FuturesUnordered<BoxFuture<'_, Result<()>>> = FuturesUnordered::new();
        let mut file = file;
        let mut left = length;
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
            // The calls are in order, and their order numbers the parts, whatever the order of the
            // responses.
            let put = upload.put_part(part.into());
            sending.push(Box::pin(self.timed(key, put)));
        }
        while let Some(sent) = sending.next().await {
            sent?;
        }
        Ok(())
    }

    /// Waits until `bytes` of object `key` may be sent. No deadline runs yet.
    async fn admit(&self, key: &str, bytes: u64) {
        let limit = self.transport.as_ref().and_then(Transport::upload_limit);
        if let Some(limit) = limit.filter(|_| key.starts_with(BULK)) {
            limit.admit(bytes).await;
        }
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<()> {
        let mode = match condition {
            _ if self.single_writer => PutMode::Overwrite,
            Condition::Always => PutMode::Overwrite,
            Condition::Absent => PutMode::Create,
            Condition::Unchanged(Version { e_tag, version }) => PutMode::Update(UpdateVersion { e_tag, version }),
        };
        let path = path(key)?;
        let attributes = self.capabilities.new_objects.attributes(key)?;
        self.admit(key, bytes.len() as u64).await;
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        if matches!(options.mode, PutMode::Overwrite) {
            return self.timed(key, self.store.put_opts(&path, bytes.into(), options)).await.map(drop);
        }
        let uses_metadata = self.capabilities.new_objects.uses_metadata();
        self.timed(key, conditional::put(&*self.store, &path, bytes, options, uses_metadata)).await
    }

    async fn put_file(&self, key: &str, file: File, length: u64) -> Result<()> {
        if length <= WHOLE {
            return self.put(key, read_part(file, length, true).await?.1, Condition::Always).await;
        }
        self.put_parts(key, file, length, Existing::Replaced).await
    }

    async fn put_exclusive(&self, key: &str, body: Body) -> Result<()> {
        if self.single_writer {
            // Such a store does not compare, and nobody else writes to it.
            self.check_absent(key).await?;
        }
        match body {
            Body::Bytes(bytes) => self.put(key, bytes, Condition::Absent).await,
            Body::File(file, length) if length <= WHOLE => {
                self.put(key, read_part(file, length, true).await?.1, Condition::Absent).await
            }
            Body::File(file, length) => self.put_parts(key, file, length, Existing::Kept).await,
        }
    }

    /// Fails with [`ErrorKind::Migrated`] if there is an object `unless`.
    async fn check_not_migrated(&self, key: &str, unless: Option<&str>) -> Result<()> {
        let Some(unless) = unless else { return Ok(()) };
        // One byte: credentials that may read need not be allowed to ask for the description alone.
        match self.read(unless, 1, ReadMode::Range(0)).await {
            Ok(_) => Err(migrated(key, unless)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Fails with [`ErrorKind::Contended`] if there is an object `key`.
    async fn check_absent(&self, key: &str) -> Result<()> {
        match self.read(key, 0, ReadMode::Head).await {
            Ok(_) => Err(changed(key)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends a file in several parts, which become an object together.
    async fn put_parts(&self, key: &str, file: File, length: u64, existing: Existing) -> Result<()> {
        if existing == Existing::Kept {
            self.check_absent(key).await?;
        }
        let path = path(key)?;
        let attributes = self.capabilities.new_objects.attributes(key)?;
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let mut upload = self.timed(key, self.store.put_multipart_opts(&path, options)).await?;
        let mut sent = self.send_parts(key, &mut *upload, file, length).await;
        if existing == Existing::Kept && sent.is_ok() {
            // No store compares when parts become an object, so this is as late as one can look.
            sent = self.check_absent(key).await;
        }
        if sent.is_ok() {
            sent = self.timed(key, upload.complete()).await.map(drop);
        }
        if sent.is_err() {
            // Best effort: the store's own rules remove the parts that remain.
            let _ = self.timed(key, upload.abort()).await;
        }
        sent
    }

    async fn copy_object(&self, from: &StoreAddress, key: &str, bytes: u64) -> Result<()> {
        let bucket = self.bucket.as_ref().filter(|bucket| bucket.name == from.store && bytes <= MAX_COPIED);
        let bucket = bucket.ok_or_else(|| no_copy(key))?;
        let from = path(&from.key)?;
        let to = path(&bucket.key(key))?;
        // The store copies by itself and reports no progress.
        let budget = self.deadline.budget().saturating_add(Duration::from_secs(bytes / COPY_RATE));
        let copying = async { bucket.store.copy(&from, &to).await.map_err(|error| self.failed(key, error)) };
        self.deadline.with_budget(budget).run(key, copying).await
    }

    async fn timed<T>(&self, what: impl Display, work: impl Future<Output = object_store::Result<T>>) -> Result<T> {
        let what = what.to_string();
        let done = async { work.await.map_err(|error| self.failed(&what, error)) };
        self.deadline.run(&what, done).await
    }
}

/// Collects the bytes of `found`, `size` of them at most. Memory is allocated as they arrive: the
/// store may announce more than it sends.
pub(super) async fn collect(found: GetResult, size: u64) -> object_store::Result<Bytes> {
    let mut parts = found.into_stream();
    let first = parts.try_next().await?.unwrap_or_default();
    if first.len() as u64 >= size {
        return Ok(first);
    }
    let mut bytes = BytesMut::with_capacity(usize::try_from(size.min(MAX_RESERVED)).unwrap_or_default());
    bytes.extend_from_slice(&first);
    while let Some(part) = parts.try_next().await? {
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.freeze())
}

/// Reads bytes `offset..offset + length` of an object of which the server sends all `parts`, or
/// fewer if it ends. Discards other bytes.
pub(super) async fn take_range<E>(
    mut parts: impl Stream<Item = Result<Bytes, E>> + Unpin,
    offset: u64,
    length: u64,
) -> Result<Bytes, E> {
    let mut before = offset;
    // The buffer grows with the received bytes, not with the length that a reference claims.
    let mut taken = BytesMut::new();
    while (taken.len() as u64) < length {
        let Some(mut part) = parts.try_next().await? else { break };
        let skipped = before.min(part.len() as u64);
        before -= skipped;
        drop(part.split_to(usize::try_from(skipped).unwrap_or(part.len())));
        part.truncate(usize::try_from(length - taken.len() as u64).unwrap_or(usize::MAX));
        taken.extend_from_slice(&part);
    }
    Ok(taken.freeze())
}

/// Returns the modification time in microseconds since 1970.
fn modified(meta: &ObjectMeta) -> Option<u64> {
    u64::try_from(meta.last_modified.timestamp_micros()).ok()
}

fn path(key: &str) -> Result<Path> {
    Path::parse(key)
        .map_err(|e| Error::with_source(ErrorKind::InvalidInput, format!("`{key}` is not a valid object name"), e))
}

#[async_trait]
impl Storage for ObjectStorage {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        match mode {
            ReadMode::Latest | ReadMode::Immutable => self.get_whole(key, limit, GetOptions::default()).await,
            ReadMode::IfChanged(version) => {
                let options = GetOptions { if_none_match: version.e_tag.clone(), ..GetOptions::default() };
                let found = self.get_whole(key, limit, options).await?;
                Ok(found.filter(|now| now.version != *version))
            }
            ReadMode::Range(offset) => Ok(Some(self.get_range(key, offset, limit).await?.into())),
            ReadMode::Head => {
                let path = path(key)?;
                let options = GetOptions { head: true, ..GetOptions::default() };
                let found = self.timed(key, self.store.get_opts(&path, options)).await?;
                let version = Version { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
                let modified = modified(&found.meta);
                Ok(Some(StoredObject { bytes: Bytes::new(), version, modified, size: Some(found.meta.size) }))
            }
        }
    }

    async fn store(&self, key: &str, content: Content<'_>) -> Result<()> {
        match content {
            Content::Conditional(bytes, condition) => self.put(key, bytes, condition).await,
            Content::Unless { bytes, condition, unless } => {
                self.check_not_migrated(key, Some(unless)).await?;
                self.put(key, bytes, condition).await
            }
            Content::New(bytes) => self.put(key, bytes, Condition::Always).await,
            Content::File(file, length) | Content::FileCopy(file, length) => self.put_file(key, file, length).await,
            Content::ObjectCopy(from, bytes) => self.copy_object(from, key, bytes).await,
            Content::Exclusive(body) => self.put_exclusive(key, body).await,
        }
    }

    async fn sync(&self, _folders: &[&str]) -> Result<()> {
        Ok(())
    }

    async fn walk(&self, folder: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        let prefix = path(folder.trim_end_matches('/'))?;
        let what = format!("listing `{prefix}`");
        let mut listing = ListingValidator::new(prefix.as_ref(), self.limits);
        let mut count = 0_u64;
        let mut size = 0_u64;
        let max_size = if mode == ListMode::Collected { self.limits.list_size(folder) } else { u64::MAX };
        let mut objects = self.store.list(Some(&prefix)).ready_chunks(LISTED_AT_ONCE);
        // Only objects that are found extend the operation: pages alone do not.
        let operation = Operation::new(self.deadline, None);
        loop {
            let next = async { Ok(objects.next().await) };
            let Some(page) = self.deadline.run_as(Arc::clone(&operation), &what, next).await? else { return Ok(()) };
            for meta in page {
                let meta = meta.map_err(|error| self.failed(&what, error))?;
                let modified = modified(&meta).unwrap_or_default();
                let object = ObjectInfo { key: meta.location.to_string(), size: meta.size, modified };
                operation.extend_by_result(LISTED);
                if !listing.accept(&object)? {
                    continue;
                }
                count += 1;
                size = size.saturating_add((size_of::<ObjectInfo>() + object.key.len()) as u64);
                if size > max_size {
                    return Err(too_many(folder, count));
                }
                if visit(object).is_break() {
                    return Ok(());
                }
            }
        }
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        let keys = match removal {
            Removal::Objects(keys) => keys,
            Removal::Cached(_) => return Ok(()),
            Removal::Unchanged { key, limit, version, unless } => {
                self.check_not_migrated(key, unless).await?;
                return match self.read(key, limit, ReadMode::IfChanged(version)).await {
                    Ok(None) => self.remove(Removal::Objects(&[key.to_owned()])).await,
                    Ok(Some(_)) => Err(changed(key)),
                    Err(error) if error.kind() == ErrorKind::NotFound => Err(changed(key)),
                    Err(error) => Err(error),
                };
            }
        };
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

    async fn locate(&self, key: &str) -> Result<Option<ObjectSource>> {
        let address = |bucket: &NamedBucket| StoreAddress { store: bucket.name.clone(), key: bucket.key(key) };
        Ok(self.bucket.as_ref().map(|bucket| ObjectSource::Store(address(bucket))))
    }

    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()> {
        if self.single_writer {
            return Ok(());
        }
        let path = path(key)?;
        let storage: &dyn Storage = self;
        let bytes = storage.get(key, limit).await?;
        let compares = conditional::check(&*self.store, &path, &bytes);
        if self.timed(key, compares).await? {
            return Ok(());
        }
        Err(conditional::does_not_compare(&self.capabilities.location))
    }
}

/// Reads the next `length` bytes of `file`, and returns both. With `is_last`, fails unless the file
/// ends there.
async fn read_part(mut file: File, length: u64, is_last: bool) -> Result<(File, Bytes)> {
    use std::io::Read;
    let read = move || {
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        let limit = length + u64::from(is_last);
        (&mut file).take(limit).read_to_end(&mut bytes).map_err(|e| Error::io("reading a chunk's file", e))?;
        if bytes.len() as u64 == length { Ok((file, bytes.into())) } else { Err(changed_file(length)) }
    };
    blocking(read).await
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
        format!("{key}: the server only sends whole objects, and these bytes begin at {} MiB", offset >> 20),
    )
}

/// Returns `bytes` if all of `length` bytes at `offset` of object `key` have been received.
pub(super) fn check_length(bytes: Bytes, key: &str, offset: u64, length: u64) -> Result<Bytes> {
    let got = bytes.len() as u64;
    if got == length { Ok(bytes) } else { Err(too_short(key, offset, length, got)) }
}

pub(super) fn too_short(key: &str, offset: u64, length: u64, got: u64) -> Error {
    Error::corrupt(format!("{key}: the object is too short: {got} of {length} bytes at offset {offset}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::empty_storage;
    use super::*;
    use std::io::Seek;
    use std::io::Write;

    #[tokio::test]
    async fn what_is_not_there_keeps_nothing_else_from_being_removed() {
        let storage = empty_storage("memory");
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
        let storage = empty_storage("memory");
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
