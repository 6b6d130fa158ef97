//! Copies the objects that commits need: snapshots, logs, manifests and chunks.
//!
//! Commits are copied in groups, oldest first, so that memory is bounded by what one group needs beside the ids of all chunks, and so that
//! a copy that is killed has whole commits to go on from. Metadata is decoded before it is stored: damage is found, not copied.
//!
//! A copy reuses an object by its length, so in a local repository the object must be on the disk as it is in the kernel's cache. The kernel
//! reports a write to the disk that failed once, to those who flush, and keeps the lost page as if it were on the disk. Therefore a copy
//! whose flush fails removes the objects whose bytes only that flush would have brought to the disk ([`Copy::flush`]). A copy that was killed
//! leaves them, and the next one flushes them by a descriptor that is older than its own first write: it sees errors since then, and earlier
//! ones that nobody was told of. Lost bytes of a copy that was killed remain unnoticed
//! - if the killed copy was told of the error itself, during or after its flush, or another program's `syncfs` was, or a copy in between
//!   that failed because of it: that one cannot know whether older objects are of another copy, and leaves them;
//! - if the file system was unmounted or the power failed since: file systems may then have the length of a file without its bytes.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tracing::warn;

use super::history::Missing;
use super::removal::FoundObject;
use super::{Counters, Failure};
use crate::blocking::blocking;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::MAX_FILE;
use crate::format::envelope::SpecVersion;
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::format::transaction_log::TransactionLog;
use crate::memory::MemoryLimit;
use crate::repo::needs::{chunks_in, manifests_in};
use crate::repo::{MAX_SNAPSHOT, Repository};
use crate::storage::{Condition, ObjectInfo, ObjectSource, Storage};

/// Commits that are copied together. A history of small commits would otherwise take some round trips for each.
const GROUP: usize = 64;
/// Snapshots and manifests that are decoded at the same time. An unusually large one may take some hundred MiB of memory.
const DECODED_AT_ONCE: usize = 8;
/// Objects that are copied at the same time.
const AT_ONCE: usize = 32;
/// Largest object that is copied in memory, in bytes. Larger ones take a temporary file.
const IN_MEMORY: u64 = 32 << 20;
/// Bytes of a large object that are read at once.
const PIECE: u64 = 8 << 20;
/// Objects that an error lists.
const LISTED: usize = 3;
/// Objects from which on a listing is faster than a look at each.
const WORTH_LISTING: usize = 256;

/// Folders of objects.
const FOLDERS: [&str; 4] = ["chunks", "manifests", "transactions", "snapshots"];

/// Copy of objects from one repository to another.
#[derive(Debug)]
pub(super) struct Copy<'a> {
    from: Arc<dyn Storage>,
    to: Arc<dyn Storage>,
    counters: &'a Counters,
    memory: MemoryLimit,
    /// Metadata and chunks that need not be copied: reached by refs of the destination, or copied before.
    manifests: HashSet<ObjectId>,
    chunks: HashSet<ObjectId>,
    /// Objects that were stored at the destination before the copy, as far as they were listed.
    stored: HashMap<String, StoredAt>,
    /// Folders that were listed.
    listed: HashSet<&'static str>,
    /// True if snapshots are read past any cache and compared by their bytes, because an expiration may have written those of the source
    /// again.
    rewrites_snapshots: bool,
    /// Objects that were at the destination and that this copy uses, or replaces since they were not whole.
    reused: Vec<String>,
    /// Logs that the source lacks.
    lacking: HashSet<ObjectId>,
    /// Directory of a local destination, opened before the first write.
    root: Option<Arc<File>>,
    /// Objects that this copy created in a local destination and that wait for a flush.
    unflushed: Mutex<Vec<String>>,
}

/// Object at the destination.
#[derive(Clone, Copy, Debug)]
struct StoredAt {
    size: u64,
    /// Time of storing by the store's clock, in microseconds since 1970-01-01 UTC, if it is known.
    modified: Option<u64>,
}

/// State of an object at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Absent,
    /// A file that another copy writes, or was writing when it was killed.
    Part,
    Whole,
}

/// Outcome of the copy of a log.
#[derive(Debug)]
enum CopiedLog {
    /// It is at the destination; with the object if an earlier copy left it.
    There(Option<String>),
    /// The source lacks it.
    Lacking(ObjectId),
}

impl<'a> Copy<'a> {
    /// Begins a copy from `source` that holds at most `memory` bytes of objects at a time.
    pub(super) fn new(source: &Repository, to: &Arc<dyn Storage>, counters: &'a Counters, memory: u64) -> Self {
        let version = source.version();
        Copy {
            from: Arc::clone(source.storage()),
            to: Arc::clone(to),
            counters,
            memory: MemoryLimit::new(memory.max(IN_MEMORY)),
            manifests: HashSet::new(),
            chunks: HashSet::new(),
            stored: HashMap::new(),
            listed: HashSet::new(),
            rewrites_snapshots: version == SpecVersion::V1,
            reused: Vec::new(),
            lacking: HashSet::new(),
            root: None,
            unflushed: Mutex::default(),
        }
    }

    /// Takes the objects that are stored at the destination from a complete listing.
    pub(super) fn with_stored(self, stored: HashMap<String, u64>) -> Self {
        let listed = ["snapshots", "transactions", "manifests", "chunks"].into();
        let stored = stored.into_iter().map(|(key, size)| (key, StoredAt { size, modified: None })).collect();
        Copy { stored, listed, ..self }
    }

    /// Copies all that `missing` needs, and makes it survive a power cut.
    pub(super) async fn run(&mut self, missing: &Missing) -> Result<(), Failure> {
        if let Some(place) = self.to.local_path() {
            let shown = place.display().to_string();
            let root = blocking(move || File::open(place).map_err(|e| Error::io(shown, e))).await?;
            self.root = Some(Arc::new(root));
        }
        let copied = self.groups(missing).await;
        if let Err(failure) = copied {
            // The next copy reuses what this one has stored.
            if !self.unflushed.lock().is_empty() {
                self.flush().await.unwrap_or_else(|error| warn!("{error}"));
            }
            return Err(failure);
        }
        Ok(self.flush().await?)
    }

    async fn groups(&mut self, missing: &Missing) -> Result<(), Failure> {
        self.skip_present(missing).await?;
        for group in missing.commits.chunks(GROUP) {
            self.group(group).await?;
        }
        Ok(())
    }

    /// Makes all stored and reused objects survive a power cut. If that fails, removes those that this copy created and that may have lost
    /// bytes, for a repeated copy to store them again.
    async fn flush(&self) -> Result<()> {
        let stored = self.to.sync(&FOLDERS).await.context(|| self.to.location().to_owned());
        let flushed = match stored {
            Ok(()) => self.sync_reused().await,
            failed => failed,
        };
        let unflushed = std::mem::take(&mut *self.unflushed.lock());
        let Err(error) = flushed else { return Ok(()) };
        if unflushed.is_empty() {
            return Err(error);
        }
        let count = unflushed.len();
        match self.to.delete(&unflushed).await {
            Ok(()) => {
                Err(error.context(format!("{count} objects that may not be on the disk were removed (run this again)")))
            }
            Err(why) => {
                let listed = unflushed.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = if count > LISTED { ", ..." } else { "" };
                Err(error.context(format!(
                    "{count} objects ({listed}{more}) may not be on the disk and could not be removed ({why}; remove them before you run this \
                     again, which would take them for complete)"
                )))
            }
        }
    }

    /// Makes files that another copy has written survive a power cut: that copy may have been killed before it did so.
    async fn sync_reused(&self) -> Result<()> {
        let Some(root) = self.root.clone().filter(|_| !self.reused.is_empty()) else { return Ok(()) };
        let flush =
            move || rustix::fs::syncfs(&*root).map_err(|errno| Error::io("flushing what was stored", errno.into()));
        blocking(flush).await.context(|| self.to.location().to_owned())
    }

    /// Finds what the destination has since its commits need it: the manifests of the commits before, and the chunks of those
    /// manifests that the new commits replace. The source has the same, unless it has removed these commits.
    async fn skip_present(&mut self, missing: &Missing) -> Result<(), Failure> {
        let Some(last) = missing.commits.last() else { return Ok(()) };
        let mut replaced = HashSet::new();
        for id in &missing.boundary {
            let key = format!("snapshots/{id}");
            match self.read(&key, MAX_SNAPSHOT, manifests_in).await {
                Ok((bytes, manifests)) => replaced.extend(self.keep_present(&key, &bytes, manifests).await?),
                Err(Failure::Changed(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        self.manifests.extend(&replaced);
        let (_, kept) = self.read(&format!("snapshots/{}", last.id), MAX_SNAPSHOT, manifests_in).await?;
        replaced.retain(|id| !kept.contains(id));
        let this = &*self;
        let look = |id: ObjectId| -> BoxFuture<'_, Result<Vec<ObjectId>, Failure>> {
            Box::pin(async move {
                match this.read(&format!("manifests/{id}"), MAX_FILE, chunks_in).await {
                    Ok((_, parts)) => Ok(parts.into_iter().map(|(chunk, ..)| chunk).collect()),
                    Err(Failure::Changed(_)) => Ok(Vec::new()),
                    Err(failure) => Err(failure),
                }
            })
        };
        let looks: Vec<_> = replaced.into_iter().map(look).collect();
        let found: Vec<_> = stream::iter(looks).buffer_unordered(DECODED_AT_ONCE).try_collect().await?;
        self.chunks.extend(found.into_iter().flatten());
        Ok(())
    }

    /// Returns those of `manifests`, of the snapshot `key` with these `bytes` in the source, that the destination's snapshot of this name
    /// has, too. A migration to another place gives commits other manifests, and keeps the ids of the commits.
    async fn keep_present(&self, key: &str, bytes: &Bytes, manifests: HashSet<ObjectId>) -> Result<HashSet<ObjectId>> {
        let place = || self.to.location().to_owned();
        let there = match self.to.get_fixed(key, MAX_SNAPSHOT).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(HashSet::new()),
            there => there.context(place)?,
        };
        if there == *bytes {
            return Ok(manifests);
        }
        let id: ObjectId = key.rsplit('/').next().unwrap_or_default().parse()?;
        let there = blocking(move || manifests_in(id, &there)).await.context(|| format!("{}: {key}", place()))?;
        Ok(manifests.intersection(&there).copied().collect())
    }

    async fn group(&mut self, commits: &[SnapshotInfo]) -> Result<(), Failure> {
        let snapshots: Vec<ObjectId> = commits.iter().map(|commit| commit.id).collect();
        let mut logs: Vec<ObjectId> = commits.iter().flat_map(SnapshotInfo::log_ids).collect();
        logs.sort_unstable();
        logs.dedup();
        self.counters.expect(snapshots.len() + logs.len());
        self.look_at("snapshots", &snapshots).await?;
        self.look_at("transactions", &logs).await?;
        let found = self.metadata("snapshots", &snapshots, MAX_SNAPSHOT, manifests_in).await?;
        let mut manifests: Vec<ObjectId> =
            found.into_iter().flatten().filter(|id| !self.manifests.contains(id)).collect();
        manifests.sort_unstable();
        manifests.dedup();
        self.counters.expect(manifests.len());
        self.look_at("manifests", &manifests).await?;
        let parts = self.metadata("manifests", &manifests, MAX_FILE, chunks_in).await?;
        // The end of the last chunk in each object: it is at least as long.
        let mut chunks: HashMap<ObjectId, u64> = HashMap::new();
        for (chunk, offset, length) in parts.into_iter().flatten() {
            if !self.chunks.contains(&chunk) {
                let end = chunks.entry(chunk).or_default();
                *end = (*end).max(offset.saturating_add(length));
            }
        }
        self.counters.expect(chunks.len());
        let names: Vec<ObjectId> = chunks.keys().copied().collect();
        self.look_at("chunks", &names).await?;
        let copies = chunks.iter().map(|(id, end)| (format!("chunks/{id}"), *end));
        let this = &*self;
        let copies: Vec<BoxFuture<'_, Result<Option<String>, Failure>>> =
            copies.map(|(key, end)| -> BoxFuture<'_, _> { Box::pin(this.chunk(key, end)) }).collect();
        let reused: Vec<_> = stream::iter(copies).buffer_unordered(AT_ONCE).try_collect().await?;
        self.reused.extend(reused.into_iter().flatten());
        self.logs(&logs).await?;
        self.chunks.extend(names);
        self.manifests.extend(manifests);
        Ok(())
    }

    /// Looks which objects of `folder` are stored at the destination.
    async fn look_at(&mut self, folder: &'static str, ids: &[ObjectId]) -> Result<(), Failure> {
        if self.listed.contains(folder) || ids.is_empty() {
            return Ok(());
        }
        if ids.len() >= WORTH_LISTING {
            let stored = &mut self.stored;
            let mut add = |object: ObjectInfo| {
                let modified = Some(object.modified).filter(|at| *at > 0);
                stored.insert(object.key, StoredAt { size: object.size, modified });
            };
            self.to.for_each(&format!("{folder}/"), &mut add).await?;
            self.listed.insert(folder);
            return Ok(());
        }
        let to = &self.to;
        let look = |id: &ObjectId| -> BoxFuture<'_, Result<Option<(String, StoredAt)>>> {
            let key = format!("{folder}/{id}");
            Box::pin(async move { Ok(look_for(&**to, &key).await?.map(|found| (key, found))) })
        };
        let looks: Vec<_> = ids.iter().map(look).collect();
        let found: Vec<_> = stream::iter(looks).buffer_unordered(AT_ONCE).try_collect().await?;
        self.stored.extend(found.into_iter().flatten());
        Ok(())
    }

    /// Copies the metadata files `ids` of `folder`. Returns what `decode` finds in each.
    async fn metadata<T: Send + 'static>(
        &mut self,
        folder: &'static str,
        ids: &[ObjectId],
        limit: u64,
        decode: fn(ObjectId, &[u8]) -> Result<T>,
    ) -> Result<Vec<T>, Failure> {
        let this = &*self;
        let copy = |id: &ObjectId| -> BoxFuture<'_, Result<(T, Option<String>), Failure>> {
            let key = format!("{folder}/{id}");
            Box::pin(async move {
                let (bytes, found) = this.read(&key, limit, decode).await?;
                let reused = this.put(&key, bytes).await?;
                Ok((found, reused))
            })
        };
        let copies: Vec<_> = ids.iter().map(copy).collect();
        let found: Vec<_> = stream::iter(copies).buffer_unordered(DECODED_AT_ONCE).try_collect().await?;
        let (found, reused): (Vec<T>, Vec<Option<String>>) = found.into_iter().unzip();
        self.reused.extend(reused.into_iter().flatten());
        Ok(found)
    }

    /// Copies the logs `ids`. Version 1 has none for a first commit, and where the source lacks one, the copy does.
    async fn logs(&mut self, ids: &[ObjectId]) -> Result<(), Failure> {
        let this = &*self;
        let decode = |_: ObjectId, file: &[u8]| TransactionLog::decode(file, MAX_FILE).map(drop);
        let copy = |id: &ObjectId| -> BoxFuture<'_, Result<CopiedLog, Failure>> {
            let (id, key) = (*id, format!("transactions/{id}"));
            Box::pin(async move {
                match this.read(&key, MAX_FILE, decode).await {
                    Ok((bytes, ())) => Ok(CopiedLog::There(this.put(&key, bytes).await?)),
                    Err(Failure::Changed(_)) => {
                        this.counters.add_present();
                        Ok(CopiedLog::Lacking(id))
                    }
                    Err(failure) => Err(failure),
                }
            })
        };
        let copies: Vec<_> = ids.iter().map(copy).collect();
        let copied: Vec<_> = stream::iter(copies).buffer_unordered(AT_ONCE).try_collect().await?;
        for log in copied {
            match log {
                CopiedLog::There(reused) => self.reused.extend(reused),
                CopiedLog::Lacking(id) => {
                    self.lacking.insert(id);
                }
            }
        }
        Ok(())
    }

    /// Reads and decodes metadata file `key` of the source.
    async fn read<T: Send + 'static>(
        &self,
        key: &str,
        limit: u64,
        decode: impl FnOnce(ObjectId, &[u8]) -> Result<T> + Send + 'static,
    ) -> Result<(Bytes, T), Failure> {
        let bytes = match self.rewrites_snapshots && key.starts_with("snapshots/") {
            true => self.from.get(key, limit).await,
            false => self.from.get_fixed(key, limit).await,
        };
        let bytes = bytes.map_err(|error| self.of_source(error))?;
        let id: ObjectId = key.rsplit('/').next().unwrap_or_default().parse()?;
        let file = bytes.clone();
        let found = blocking(move || decode(id, &file)).await;
        let place = || format!("{}: {key}", self.from.location());
        Ok((bytes, found.context(place)?))
    }

    /// Stores `bytes` as object `key` unless it is there. Returns the key if it is, or a part of it.
    async fn put(&self, key: &str, bytes: Bytes) -> Result<Option<String>, Failure> {
        let length = bytes.len() as u64;
        let presence = match self.rewrites_snapshots && key.starts_with("snapshots/") {
            true => self.presence_of_bytes(key, &bytes).await?,
            false => self.presence(key, length)?,
        };
        if presence == Presence::Whole {
            self.counters.add_present();
            return Ok(Some(key.to_owned()));
        }
        let stored = match presence {
            Presence::Absent => self.to.put_new(key, bytes.clone()).await,
            _ => Err(Error::new(ErrorKind::AlreadyExists, key.to_owned())),
        };
        match stored {
            // In one step, so that neither a copy that is writing this file nor the death of this one leaves a part of it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.to.put(key, bytes, Condition::Always).await.context(|| self.to.location().to_owned())?;
            }
            stored => stored.context(|| self.to.location().to_owned())?,
        }
        self.counters.add_copied(length);
        Ok((presence == Presence::Part).then(|| key.to_owned()))
    }

    /// Returns what the destination has as file `key`, which has the given bytes in the source. A file with other bytes counts as a part.
    async fn presence_of_bytes(&self, key: &str, bytes: &Bytes) -> Result<Presence, Failure> {
        if !self.stored.contains_key(key) {
            return Ok(Presence::Absent);
        }
        match self.to.get(key, bytes.len() as u64).await {
            Ok(there) if there == *bytes => Ok(Presence::Whole),
            // It is longer.
            Err(error) if error.kind() == ErrorKind::OutOfMemory => Ok(Presence::Part),
            Ok(_) => Ok(Presence::Part),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Presence::Absent),
            Err(error) => Err(Failure::Final(error.context(self.to.location().to_owned()))),
        }
    }

    /// Returns what is known of object `key`, which has `length` bytes, at the destination.
    fn presence(&self, key: &str, length: u64) -> Result<Presence, Failure> {
        match self.stored.get(key) {
            None => Ok(Presence::Absent),
            Some(StoredAt { size, .. }) if *size == length => Ok(Presence::Whole),
            Some(StoredAt { size, .. }) if *size < length => Ok(Presence::Part),
            Some(StoredAt { size, .. }) => Err(Failure::Final(Error::corrupt(format!(
                "{key} has {size} bytes in {} and {length} in {}: one of them is damaged, and nothing was changed",
                self.to.location(),
                self.from.location()
            )))),
        }
    }

    /// Copies chunk object `key`, which has at least `end` bytes. Returns the key if it is there already, or a part of it.
    async fn chunk(&self, key: String, end: u64) -> Result<Option<String>, Failure> {
        let _permit = self.memory.take(end.min(IN_MEMORY)).await;
        let file = match self.from.locate(&key).await.map_err(|error| self.of_source(error))? {
            Some(ObjectSource::File(file)) => Some(file),
            _ => None,
        };
        let length = match &file {
            Some(file) => Some(file.metadata().map_err(|e| Error::io(key.clone(), e))?.len()),
            None if end > IN_MEMORY || self.stored.contains_key(&key) => {
                Some(self.from.size(&key).await.map_err(|error| self.of_source(error))?)
            }
            None => None,
        };
        if let Some(length) = length {
            self.check_length(&key, length, end)?;
        }
        // Files are copied as files, and objects that fit into memory there.
        if length.is_none_or(|length| length <= IN_MEMORY && file.is_none()) {
            match self.from.get_fixed(&key, IN_MEMORY).await {
                Ok(bytes) => {
                    self.check_length(&key, bytes.len() as u64, end)?;
                    return self.put(&key, bytes).await;
                }
                // An object that packs more than the chunks that are needed.
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
                Err(error) => return Err(self.of_source(error)),
            }
        }
        let length = match length {
            Some(length) => length,
            None => self.from.size(&key).await.map_err(|error| self.of_source(error))?,
        };
        let presence = self.presence(&key, length)?;
        if presence == Presence::Whole {
            self.counters.add_present();
            return Ok(Some(key));
        }
        let file = match file {
            Some(file) => file,
            None => self.fetch(&key, length).await?,
        };
        self.put_file(&key, file, length, presence).await?;
        self.counters.add_copied(length);
        Ok((presence == Presence::Part).then_some(key))
    }

    /// Stores a copy of a file of `length` bytes as object `key`.
    async fn put_file(&self, key: &str, file: File, length: u64, presence: Presence) -> Result<(), Failure> {
        let place = || self.to.location().to_owned();
        let again = file.try_clone().map_err(|e| Error::io(key, e))?;
        let stored = match presence {
            Presence::Absent => self.put_copy(key, file, length).await,
            _ => Err(Error::new(ErrorKind::AlreadyExists, key.to_owned())),
        };
        match stored {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            stored => return Ok(stored.context(place)?),
        }
        if length <= IN_MEMORY {
            let owned = key.to_owned();
            let read = blocking(move || {
                let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
                again.read_exact_at(&mut bytes, 0).map_err(|e| Error::io(owned, e))?;
                Ok(Bytes::from(bytes))
            });
            return Ok(self.to.put(key, read.await?, Condition::Always).await.context(place)?);
        }
        // Too large for one step: between these two the object is missing.
        self.to.delete(&[key.to_owned()]).await.context(place)?;
        rewind(&again).map_err(|e| Error::io(key, e))?;
        Ok(self.put_copy(key, again, length).await.context(place)?)
    }

    /// Creates object `key` as a copy of a file of `length` bytes, which a local destination does not flush yet.
    async fn put_copy(&self, key: &str, file: File, length: u64) -> Result<()> {
        self.to.put_copy(key, file, length).await?;
        if self.root.is_some() {
            self.unflushed.lock().push(key.to_owned());
        }
        Ok(())
    }

    fn check_length(&self, key: &str, length: u64, end: u64) -> Result<(), Failure> {
        if length >= end {
            return Ok(());
        }
        let place = self.from.location();
        Err(Failure::Final(Error::corrupt(format!(
            "{place}: {key} has {length} bytes, and a manifest refers to {end}: it is damaged, and nothing was changed"
        ))))
    }

    /// Returns the logs of the copied commits that the source lacks.
    pub(super) fn lacking_logs(&self) -> &HashSet<ObjectId> {
        &self.lacking
    }

    /// Reads an object that may not fit into memory into a temporary file.
    async fn fetch(&self, key: &str, length: u64) -> Result<File, Failure> {
        let failed = |e| Error::io("a temporary file for a large object", e);
        let file = Arc::new(blocking(move || tempfile::tempfile().map_err(failed)).await?);
        let mut at = 0;
        while at < length {
            let piece = PIECE.min(length - at);
            let bytes = self.from.get_range(key, at, piece).await.map_err(|error| self.of_source(error))?;
            let file = Arc::clone(&file);
            blocking(move || file.write_all_at(&bytes, at).map_err(failed)).await?;
            at += piece;
        }
        Ok(file.try_clone().map_err(failed)?)
    }

    /// Returns the objects that were at the destination and that this copy uses or replaces.
    pub(super) fn found(&self) -> Vec<FoundObject<'_>> {
        let stored = |key: &String| self.stored.get(key).and_then(|found| found.modified);
        self.reused.iter().map(|key| FoundObject { key, stored: stored(key) }).collect()
    }

    /// Stores again what was at the destination and a collection of garbage has removed since it was found. Returns the number of such objects.
    pub(super) async fn restore_reused(&mut self) -> Result<usize, Failure> {
        let to = &self.to;
        let look = |key: &String| -> BoxFuture<'_, Result<Option<String>>> {
            let key = key.clone();
            Box::pin(async move { Ok(look_for(&**to, &key).await?.is_none().then_some(key)) })
        };
        let looks: Vec<_> = self.reused.iter().map(look).collect();
        let gone: Vec<_> = stream::iter(looks).buffer_unordered(AT_ONCE).try_collect().await?;
        let gone: Vec<String> = gone.into_iter().flatten().collect();
        for key in &gone {
            warn!("{key} was removed by a collection of garbage: storing it again");
            self.stored.remove(key);
            match key.starts_with("chunks/") {
                true => drop(self.chunk(key.clone(), 0).await?),
                false => {
                    let bytes = self.from.get_fixed(key, MAX_SNAPSHOT).await.map_err(|error| self.of_source(error))?;
                    self.put(key, bytes).await?;
                }
            }
        }
        if !gone.is_empty() {
            self.flush().await?;
        }
        Ok(gone.len())
    }

    /// Names the source in `error`. An object that is missing may be so because the source has changed.
    fn of_source(&self, error: Error) -> Failure {
        let is_missing = error.kind() == ErrorKind::NotFound;
        let error = error.context(self.from.location().to_owned());
        if is_missing { Failure::Changed(error) } else { Failure::Final(error) }
    }
}

/// Sets the position of a file, which its clones share, to the beginning.
fn rewind(mut file: &File) -> std::io::Result<()> {
    std::io::Seek::rewind(&mut file)
}

/// Looks for object `key`; none if there is no such object.
async fn look_for(storage: &dyn Storage, key: &str) -> Result<Option<StoredAt>> {
    match storage.size_and_time(key).await {
        Ok((size, modified)) => Ok(Some(StoredAt { size, modified })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
