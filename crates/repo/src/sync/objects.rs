//! Copies the objects that commits need: snapshots, logs, manifests and chunks. What is at the
//! destination is compared ([`super::destination`]).
//!
//! Commits are copied in groups, oldest first, so that memory is bounded by what one group needs
//! beside the ids of all chunks, and so that a copy that is killed has whole commits to go on from.
//! Metadata is decoded before it is stored: damage is found, not copied.
//!
//! **What was walked is what is stored.** Which branches go forward was decided by the parents that
//! the source showed then. In version 1 they are in the snapshots, which are read again to be
//! copied: another parent is an error. So is a later time in any snapshot.
//!
//! An object gets its name at a local destination when its bytes are on the disk. What was there
//! before may be of a copy that was killed, so it is flushed, too, by a descriptor that is older
//! than the first write: it sees errors since then, and earlier ones that nobody was told of.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use tracing::warn;

use super::destination::{Destination, Original, Placed};
use super::history::Outstanding;
use super::removal::FoundObject;
use super::{Counters, FOLDERS, Failure};
use crate::repo::needs::{Part, chunks_in, manifests_in, manifests_of};
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::{MemoryLimit, Meter, Metered};
use icechunkfs_format::format::MAX_FILE;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::format::transaction_log::TransactionLog;
use icechunkfs_store::storage::{ObjectSource, Storage};

/// Commits that are copied together. A history of small commits would otherwise take some round
/// trips for each.
const GROUP: usize = 64;
/// Snapshots and manifests that are decoded at the same time. An unusually large one may take some
/// hundred MiB of memory.
const DECODED_AT_ONCE: usize = 8;
/// Objects whose copies are prepared at the same time: each takes some kilobytes of memory.
const PREPARED: usize = 1024;
/// Objects that are copied at the same time.
const AT_ONCE: usize = 32;
/// Largest object that is copied in memory, in bytes. Larger ones take a temporary file.
const IN_MEMORY: u64 = 32 << 20;
/// Bytes of a large object that are read at once.
const PIECE: u64 = 8 << 20;

/// Name of the ids in errors.
const IDS: &str = "the ids of what is copied";

/// Copy of objects from one repository to another.
#[derive(Debug)]
pub(super) struct Copy<'a> {
    from: Arc<dyn Storage>,
    to: Destination,
    counters: &'a Counters,
    memory: MemoryLimit,
    /// Metadata and chunks that need not be copied: needed by commits about which both agree, or
    /// copied before.
    manifests: HashSet<ObjectId>,
    chunks: ChunkEnds,
    memory_of_ids: Meter,
    /// True if snapshots are read past any cache and may differ in their parents, because an
    /// expiration may have written those of the source again.
    rewrites_snapshots: bool,
    /// Commits that refs of the destination reach.
    present: &'a HashSet<ObjectId>,
    /// Objects that were at the destination, that no ref reached, and that this copy uses.
    reused: Vec<String>,
    /// Parents, as they were walked, of the commits whose snapshots are among these.
    reused_parents: HashMap<ObjectId, Option<ObjectId>>,
    /// Logs that the source lacks.
    lacking: HashSet<ObjectId>,
    /// Directory of a local destination, opened before the first write.
    root: Option<Arc<File>>,
}

/// Chunk objects, each with the end of the last part of it that a manifest names: it has at least
/// as many bytes.
#[derive(Debug)]
struct ChunkEnds {
    ends: HashMap<ObjectId, u64>,
    memory: Meter,
}

impl ChunkEnds {
    fn new(what: &'static str) -> Self {
        ChunkEnds { ends: HashMap::new(), memory: Meter::new(what) }
    }

    /// Adds a part of `chunk` that ends at `end`.
    fn add(&mut self, chunk: ObjectId, end: u64) -> Result<()> {
        let known = match self.ends.entry(chunk) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.memory.count_items::<(ObjectId, u64)>(1)?;
                entry.insert(0)
            }
        };
        *known = end.max(*known);
        Ok(())
    }

    /// Returns the chunks and their ends, with room for a list of the names beside it.
    fn into_list(mut self) -> Result<Metered<Vec<(ObjectId, u64)>>> {
        self.memory.count_items::<(ObjectId, u64)>(2 * self.ends.len())?;
        Ok(self.memory.finish(self.ends.into_iter().collect()))
    }

    /// Returns true if a part of `chunk` that ends at `end` or later was added.
    fn has(&self, chunk: ObjectId, end: u64) -> bool {
        self.ends.get(&chunk).is_some_and(|known| end <= *known)
    }
}

/// Needs of a file of metadata, and its key if it was there before.
type Copied<T> = (T, Option<String>);

/// Commits that are treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commits {
    /// Refs of the destination reach them. What it has of them is compared; what it lacks stays
    /// away, whatever the source has under that name.
    Present,
    /// Whatever they need is stored.
    New,
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
    /// Begins a copy from `source` that holds at most `memory` bytes of objects at a time. Refs of
    /// the destination reach the commits `present`.
    pub(super) fn new(
        source: &Repository,
        to: Destination,
        present: &'a HashSet<ObjectId>,
        counters: &'a Counters,
        memory: u64,
    ) -> Self {
        let version = source.version();
        Copy {
            from: Arc::clone(source.storage()),
            to,
            counters,
            memory: MemoryLimit::new(memory.max(IN_MEMORY)),
            manifests: HashSet::new(),
            chunks: ChunkEnds::new(IDS),
            memory_of_ids: Meter::new(IDS),
            rewrites_snapshots: version == SpecVersion::V1,
            present,
            reused: Vec::new(),
            reused_parents: HashMap::new(),
            lacking: HashSet::new(),
            root: None,
        }
    }

    /// Copies or compares all that `outstanding` needs, and makes it survive a power cut.
    pub(super) async fn run(&mut self, outstanding: &Outstanding) -> Result<(), Failure> {
        if let Some(place) = self.to.storage().local_path() {
            let shown = place.display().to_string();
            let root = blocking(move || File::open(place).map_err(|e| Error::io(shown, e))).await?;
            self.root = Some(Arc::new(root));
        }
        self.skip_agreed(outstanding).await?;
        // Those that refs reach come first: what others need of them is compared then, and is no
        // find.
        let is_present = |commit: &&SnapshotInfo<()>| self.present.contains(&commit.id);
        let (there, new): (Vec<_>, Vec<_>) = outstanding.commits.iter().partition(is_present);
        for group in there.chunks(GROUP) {
            self.group(Commits::Present, group).await?;
            // No collection of garbage removes them.
            self.reused.clear();
        }
        for group in new.chunks(GROUP) {
            self.group(Commits::New, group).await?;
        }
        Ok(self.flush().await?)
    }

    /// Makes all stored and reused objects survive a power cut.
    async fn flush(&self) -> Result<()> {
        let place = || self.to.storage().location().to_owned();
        self.to.storage().sync(&FOLDERS).await.context(place)?;
        // That copy may have been killed before its flush.
        let Some(root) = self.root.clone().filter(|_| !self.reused.is_empty()) else { return Ok(()) };
        let flush =
            move || rustix::fs::syncfs(&*root).map_err(|errno| Error::io("flushing what was stored", errno.into()));
        blocking(flush).await.context(place)
    }

    /// Finds what needs no comparison because both agree about it: the manifests of the commits
    /// before, and the chunks of those manifests that the outstanding commits replace. The source
    /// has the same, unless it has removed these commits.
    async fn skip_agreed(&mut self, outstanding: &Outstanding) -> Result<(), Failure> {
        let Some(last) = outstanding.commits.last() else { return Ok(()) };
        let mut replaced = HashSet::new();
        for id in &outstanding.boundary {
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
        let replaced: Vec<ObjectId> = replaced.into_iter().collect();
        for ids in replaced.chunks(DECODED_AT_ONCE) {
            let this = &*self;
            let look = |id: &ObjectId| -> BoxFuture<'_, Result<Vec<Part>>> { Box::pin(this.parts_there(*id)) };
            let looks: Vec<_> = ids.iter().map(look).collect();
            let found: Vec<_> = stream::iter(looks).buffer_unordered(DECODED_AT_ONCE).try_collect().await?;
            for (chunk, offset, length) in found.into_iter().flatten() {
                self.chunks.add(chunk, offset.saturating_add(length))?;
            }
        }
        Ok(())
    }

    /// Returns the parts of chunks that manifest `id` of the destination has, none if it is not
    /// there. That of the source may have become another one since both were compared.
    async fn parts_there(&self, id: ObjectId) -> Result<Vec<Part>> {
        let place = || format!("{}: manifests/{id}", self.to.storage().location());
        match self.to.storage().get_fixed(&format!("manifests/{id}"), MAX_FILE).await {
            Ok(file) => blocking(move || chunks_in(id, &file)).await.context(place),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.context(place())),
        }
    }

    /// Returns those of `manifests`, of the snapshot `key` with these `bytes` in the source, that
    /// the destination's snapshot of this name has, too. A migration to another place gives commits
    /// other manifests, and keeps the ids of the commits.
    async fn keep_present(&self, key: &str, bytes: &Bytes, manifests: HashSet<ObjectId>) -> Result<HashSet<ObjectId>> {
        let to = self.to.storage();
        let place = || to.location().to_owned();
        let there = match to.get_fixed(key, MAX_SNAPSHOT).await {
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

    /// Returns true if object `id` of `folder`, which was looked for, is to be copied or compared
    /// for `commits`.
    fn concerns(&self, commits: Commits, folder: &str, id: ObjectId) -> bool {
        commits == Commits::New || self.to.has(&format!("{folder}/{id}"))
    }

    async fn group(&mut self, kind: Commits, commits: &[&SnapshotInfo<()>]) -> Result<(), Failure> {
        let snapshots: Vec<ObjectId> = commits.iter().map(|commit| commit.id).collect();
        let mut memory = Meter::new("the logs of some commits");
        memory.count_items::<ObjectId>(commits.iter().map(|commit| commit.log_ids().count()).sum())?;
        let mut logs: Vec<ObjectId> = commits.iter().flat_map(|commit| commit.log_ids()).collect();
        logs.sort_unstable();
        logs.dedup();
        self.to.look_for("snapshots", &snapshots).await?;
        self.to.look_for("transactions", &logs).await?;
        let concerned = commits.iter().filter(|commit| self.concerns(kind, "snapshots", commit.id));
        let commits: Vec<&SnapshotInfo<()>> = concerned.copied().collect();
        // New commits can name logs of present ones, as if those had expired.
        let kind_of = |id: &ObjectId| if self.present.contains(id) { Commits::Present } else { kind };
        logs.retain(|id| self.concerns(kind_of(id), "transactions", *id));
        self.counters.expect(commits.len() + logs.len());
        let found = self.snapshots(&commits).await?;
        let mut manifests: Vec<ObjectId> =
            found.into_iter().flatten().filter(|id| !self.manifests.contains(id)).collect();
        manifests.sort_unstable();
        manifests.dedup();
        self.to.look_for("manifests", &manifests).await?;
        manifests.retain(|id| self.concerns(kind, "manifests", *id));
        self.counters.expect(manifests.len());
        let mut chunks = ChunkEnds::new("the chunks of some commits");
        for some in manifests.chunks(DECODED_AT_ONCE) {
            let parts = self.manifests(some).await?;
            for (chunk, offset, length) in parts.into_iter().flatten() {
                let end = offset.saturating_add(length);
                if !self.chunks.has(chunk, end) {
                    chunks.add(chunk, end)?;
                }
            }
        }
        let mut chunks = chunks.into_list()?;
        let names: Vec<ObjectId> = chunks.iter().map(|(id, _)| *id).collect();
        self.to.look_for("chunks", &names).await?;
        chunks.retain(|(id, _)| self.concerns(kind, "chunks", *id));
        self.counters.expect(chunks.len());
        for some in chunks.chunks(PREPARED) {
            let this = &*self;
            let copy = |(id, end): &(ObjectId, u64)| -> BoxFuture<'_, Result<Option<String>, Failure>> {
                Box::pin(this.chunk(format!("chunks/{id}"), *end))
            };
            let copies: Vec<_> = some.iter().map(copy).collect();
            let reused: Vec<_> = stream::iter(copies).buffer_unordered(AT_ONCE).try_collect().await?;
            self.reuse(reused)?;
        }
        for some in logs.chunks(PREPARED) {
            self.logs(some).await?;
        }
        for (chunk, end) in chunks.iter() {
            self.chunks.add(*chunk, *end)?;
        }
        self.memory_of_ids.count_items::<ObjectId>(2 * manifests.len())?;
        self.manifests.extend(manifests);
        Ok(())
    }

    /// Notes objects that were there before.
    fn reuse(&mut self, keys: impl IntoIterator<Item = Option<String>>) -> Result<()> {
        for key in keys.into_iter().flatten() {
            self.memory_of_ids.count_items::<String>(1)?;
            self.memory_of_ids.count(key.len() as u64)?;
            self.reused.push(key);
        }
        Ok(())
    }

    /// Copies the snapshots of `commits`. Returns the manifests that each needs.
    async fn snapshots(&mut self, commits: &[&SnapshotInfo<()>]) -> Result<Vec<HashSet<ObjectId>>, Failure> {
        let this = &*self;
        let copy = |commit: &&SnapshotInfo<()>| -> BoxFuture<'_, Result<Copied<HashSet<ObjectId>>, Failure>> {
            Box::pin(this.snapshot(commit.id, commit.parent, commit.flushed_at))
        };
        let copies: Vec<_> = commits.iter().map(copy).collect();
        let copied: Vec<_> = stream::iter(copies).buffered(DECODED_AT_ONCE).try_collect().await?;
        let mut found = Vec::with_capacity(copied.len());
        for (commit, (manifests, reused)) in commits.iter().zip(copied) {
            if reused.is_some() {
                self.memory_of_ids.count_items::<(ObjectId, Option<ObjectId>)>(1)?;
                self.reused_parents.insert(commit.id, commit.parent);
            }
            self.reuse([reused])?;
            found.push(manifests);
        }
        Ok(found)
    }

    /// Copies snapshot `id`, the parent of which was `walked` and which was made at `time` or
    /// before, as was said then. Returns the manifests that it needs, and its key if it was there.
    async fn snapshot(
        &self,
        id: ObjectId,
        walked: Option<ObjectId>,
        time: u64,
    ) -> Result<(HashSet<ObjectId>, Option<String>), Failure> {
        let key = format!("snapshots/{id}");
        let has_parents = self.rewrites_snapshots;
        let decode = move |id: ObjectId, file: &[u8]| {
            let snapshot = Snapshot::decode(file, MAX_SNAPSHOT)?;
            if has_parents && snapshot.version() != SpecVersion::V1 {
                return Err(Error::corrupt("the file has version 2 of the format, and the repository version 1"));
            }
            // The next commit is dated after this time.
            if snapshot.flushed_at() > time {
                return Err(Error::corrupt("the file states a later time than the history"));
            }
            Ok((manifests_of(id, &snapshot)?, snapshot.parent_id()))
        };
        let (bytes, (manifests, parent)) = self.read(&key, MAX_SNAPSHOT, decode).await?;
        if self.rewrites_snapshots && parent != walked {
            let place = self.from.location();
            return Err(Failure::Changed(Error::new(
                ErrorKind::Busy,
                format!("{place}: {key} got another parent while it was copied, and no ref was moved: try again"),
            )));
        }
        Ok((manifests, self.put(&key, bytes).await?))
    }

    /// Copies the manifests `ids`. Returns the parts of chunks that each refers to.
    async fn manifests(&mut self, ids: &[ObjectId]) -> Result<Vec<Vec<Part>>, Failure> {
        let this = &*self;
        let copy =
            |id: &ObjectId| -> BoxFuture<'_, Result<Copied<Vec<Part>>, Failure>> { Box::pin(this.manifest(*id)) };
        let copies: Vec<_> = ids.iter().map(copy).collect();
        let found: Vec<_> = stream::iter(copies).buffer_unordered(DECODED_AT_ONCE).try_collect().await?;
        let (found, reused): (Vec<_>, Vec<Option<String>>) = found.into_iter().unzip();
        self.reuse(reused)?;
        Ok(found)
    }

    async fn manifest(&self, id: ObjectId) -> Result<(Vec<Part>, Option<String>), Failure> {
        let key = format!("manifests/{id}");
        let (bytes, parts) = self.read(&key, MAX_FILE, chunks_in).await?;
        Ok((parts, self.put(&key, bytes).await?))
    }

    /// Copies the logs `ids`. Version 1 has none for a first commit, and where the source lacks
    /// one, the copy does.
    async fn logs(&mut self, ids: &[ObjectId]) -> Result<(), Failure> {
        let this = &*self;
        let copy = |id: &ObjectId| -> BoxFuture<'_, Result<CopiedLog, Failure>> {
            let id = *id;
            let key = format!("transactions/{id}");
            Box::pin(async move {
                match this.read(&key, MAX_FILE, check_log).await {
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
                CopiedLog::There(reused) => self.reuse([reused])?,
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
        let bytes = if self.rewrites_snapshots && key.starts_with("snapshots/") {
            self.from.get(key, limit).await
        } else {
            self.from.get_fixed(key, limit).await
        };
        let bytes = bytes.map_err(|error| Failure::of_source(error, self.from.location()))?;
        let id: ObjectId = key.rsplit('/').next().unwrap_or_default().parse()?;
        let file = bytes.clone();
        let found = blocking(move || decode(id, &file)).await;
        let place = || format!("{}: {key}", self.from.location());
        Ok((bytes, found.context(place)?))
    }

    /// Stores `bytes` as object `key` unless it is there. Returns the key if it is.
    async fn put(&self, key: &str, bytes: Bytes) -> Result<Option<String>, Failure> {
        let length = bytes.len() as u64;
        let placed = if self.rewrites_snapshots && key.starts_with("snapshots/") {
            self.to.put_version_1_snapshot(key, bytes, self.present).await?
        } else {
            self.to.put(key, bytes).await?
        };
        Ok(self.count(placed, key, length))
    }

    /// Counts an object. Returns its key if it was there.
    fn count(&self, placed: Placed, key: &str, length: u64) -> Option<String> {
        match placed {
            Placed::New => self.counters.add_copied(length),
            Placed::Found => self.counters.add_present(),
        }
        (placed == Placed::Found).then(|| key.to_owned())
    }

    /// Copies chunk object `key`, which has at least `end` bytes. Returns the key if it is there
    /// already.
    async fn chunk(&self, key: String, end: u64) -> Result<Option<String>, Failure> {
        let _permit = self.memory.take(end.min(IN_MEMORY)).await;
        let of_source = |error| Failure::of_source(error, self.from.location());
        let file = match self.from.locate(&key).await.map_err(of_source)? {
            Some(ObjectSource::File(file)) => Some(file),
            _ => None,
        };
        if let Some(file) = file {
            let length = file.metadata().map_err(|e| Error::io(key.clone(), e))?.len();
            self.check_length(&key, length, end)?;
            let original = Original::File(&file, length);
            if self.to.has(&key) && self.to.compare_or_remove(&key, &original).await? == Placed::Found {
                return Ok(self.count(Placed::Found, &key, length));
            }
            let placed = self.to.put_file(&key, file, length).await?;
            return Ok(self.count(placed, &key, length));
        }
        if self.to.has(&key) {
            let length = self.from.size(&key).await.map_err(of_source)?;
            self.check_length(&key, length, end)?;
            let original = Original::Stored(&*self.from, length);
            if self.to.compare_or_remove(&key, &original).await? == Placed::Found {
                return Ok(self.count(Placed::Found, &key, length));
            }
        }
        if end <= IN_MEMORY {
            match self.from.get_fixed(&key, IN_MEMORY).await {
                Ok(bytes) => {
                    self.check_length(&key, bytes.len() as u64, end)?;
                    return self.put(&key, bytes).await;
                }
                // An object that packs more than the chunks that are needed.
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
                Err(error) => return Err(of_source(error)),
            }
        }
        let length = self.from.size(&key).await.map_err(of_source)?;
        self.check_length(&key, length, end)?;
        let file = self.fetch(&key, length).await?;
        let placed = self.to.put_file(&key, file, length).await?;
        Ok(self.count(placed, &key, length))
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
            let bytes = self.from.get_range(key, at, piece).await;
            let bytes = bytes.map_err(|error| Failure::of_source(error, self.from.location()))?;
            let file = Arc::clone(&file);
            blocking(move || file.write_all_at(&bytes, at).map_err(failed)).await?;
            at += piece;
        }
        Ok(file.try_clone().map_err(failed)?)
    }

    /// Returns the objects that were at the destination, that no ref reached, and that this copy
    /// uses.
    pub(super) fn found(&self) -> Vec<FoundObject<'_>> {
        self.reused.iter().map(|key| self.to.found(key)).collect()
    }

    /// Stores again what was at the destination and a collection of garbage has removed since it
    /// was found. Returns the number of such objects.
    pub(super) async fn restore_reused(&mut self) -> Result<usize, Failure> {
        let gone = self.to.look_again(&self.reused).await?;
        for key in &gone {
            warn!("{key} was removed by a collection of garbage: storing it again");
            let (folder, name) = key.split_once('/').unwrap_or_default();
            let id: ObjectId = name.parse()?;
            match folder {
                "chunks" => drop(self.chunk(key.clone(), 0).await?),
                "snapshots" => {
                    let walked = self.reused_parents.get(&id).copied().flatten();
                    self.snapshot(id, walked, u64::MAX).await?;
                }
                "manifests" => drop(self.manifest(id).await?),
                _ => {
                    let (bytes, ()) = self.read(key, MAX_FILE, check_log).await?;
                    self.put(key, bytes).await?;
                }
            }
        }
        if !gone.is_empty() {
            self.flush().await?;
        }
        Ok(gone.len())
    }
}

/// Fails unless `file` is the log of commit `id`.
fn check_log(id: ObjectId, file: &[u8]) -> Result<()> {
    match TransactionLog::decode(file, MAX_FILE)?.id() {
        stated if stated == id => Ok(()),
        stated => Err(Error::corrupt(format!("the file states that it is the log of commit {stated}"))),
    }
}
