//! From chunk references to bytes: manifests and small chunks in memory, object ranges from
//! storage, within one memory bound.
//!
//! Chunks that are not on this machine are fetched whole, or in [`pieces`] where they are large,
//! and kept in memory: the kernel asks for a chunk in several requests. Of shards, only what is
//! read is fetched ([`shards`]). A disk cache, where there is one, is searched first, and receives
//! what is fetched ([`disk`]). Many small chunks can be read at once ([`many`]). Virtual chunks are
//! ranges of other objects ([`mod@chunk`]).
//!
//! [`Reader::manifest`] returns a decoded manifest, and loads it at most once for any number of
//! callers. [`Reader::read`] returns bytes of a chunk. Both are ready when first polled if what
//! they need is in memory (for local files: in the page cache).

pub mod buffer;
pub mod chunk;
mod disk;
pub mod gauges;
pub mod many;
pub mod memory;
mod pieces;
mod prefetch;
pub(crate) mod same_bytes;
mod shard_index;
mod shard_layout;
mod shards;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use self::buffer::{Buffer, BufferPool};
pub use self::chunk::{ChunkRange, NativeChunk, Object};
pub use self::many::Part;
use self::memory::Budget;
use crate::cache::{Cache, CacheKey};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::metrics;
use icechunkfs_format::format::chunk_payload::Checksum;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::manifest::Manifest;
use icechunkfs_format::format::snapshot::ManifestInfo;
use icechunkfs_store::storage::Storage;
use icechunkfs_store::storage::local::LocalFiles;
use icechunkfs_store::storage::virtuals::VirtualChunks;

/// Chunks up to this many bytes are fetched and kept whole when a part is read: a second request
/// would cost more than the bytes.
const SMALL_CHUNK: u64 = 64 << 10;
/// Bytes of memory per chunk reference, for making room before a manifest is decoded: those of
/// native references of a three-dimensional array, rounded up.
const BYTES_PER_REF: u64 = 96;
/// Bytes of memory per byte of a file whose references were not counted, for the same purpose: an
/// uncompressed one of an alpha is rebuilt, a compressed one also expanded.
const EXPANSION: u64 = 4;

/// Reader of manifests and chunks.
#[derive(Debug)]
pub struct Reader {
    storage: Arc<dyn Storage>,
    virtuals: Arc<VirtualChunks>,
    budget: Budget,
    cache: Cache,
    buffers: BufferPool,
    /// Bytes that reads in flight may hold. Nobody who holds permits waits for memory: those who
    /// have reserved memory wait for permits.
    reads: Arc<Semaphore>,
    /// Bytes of files that loads of manifests in flight may ask for: those who hold permits wait
    /// for the memory of the process, in which the files are reserved.
    manifests: Semaphore,
    /// Bytes that prefetches may hold.
    prefetches: Arc<Semaphore>,
    access_pattern: shards::AccessPattern,
    /// Held while a manifest is decoded, one at a time: each needs memory that the cache does not
    /// count yet.
    decoding: Semaphore,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ManifestKey(ObjectId);

impl CacheKey for ManifestKey {
    type Value = Arc<Manifest>;

    fn weight(&self, manifest: &Arc<Manifest>) -> u64 {
        manifest.size() as u64
    }
}

/// Largest file of a small manifest, in bytes. Decoding it takes less time than to hand it to
/// another thread.
pub const SMALL_MANIFEST: u64 = 16 << 10;
/// Largest small manifest in memory, in bytes.
const SMALL_DECODED: u64 = 128 << 10;

/// Decodes a manifest if it is a small one and right.
fn decode_small(info: ManifestInfo, file: &[u8]) -> Option<Manifest> {
    let is_small = file.len() as u64 <= SMALL_MANIFEST;
    let decode = || Manifest::decode_with_id(info.id, file, SMALL_DECODED).ok();
    let decoded = is_small.then(|| icechunkfs_base::memory::without_waiting(decode))?;
    decoded.filter(|manifest| manifest.id() == info.id)
}

/// Bytes that were read.
#[derive(Debug)]
pub enum Data {
    /// Shared with the cache or owned.
    Bytes(Bytes),
    /// Buffer that returns to its pool.
    Buffer(Buffer),
    /// Part of a manifest that stays in memory as long as this.
    Inline(Arc<Manifest>, std::ops::Range<usize>),
}

impl Reader {
    /// Creates a reader of `storage` within `budget`, without virtual chunks.
    pub fn new(storage: Arc<dyn Storage>, budget: Budget) -> Self {
        Reader {
            storage,
            virtuals: Arc::default(),
            cache: Cache::new(budget.cache()),
            buffers: BufferPool::new(budget.buffers()),
            reads: Arc::new(Semaphore::new(budget.reads_in_flight())),
            manifests: Semaphore::new(budget.reads_in_flight()),
            prefetches: Arc::new(Semaphore::new(budget.reads_in_flight())),
            access_pattern: shards::AccessPattern::default(),
            decoding: Semaphore::new(1),
            budget,
        }
    }

    /// Sets which virtual chunks may be read.
    #[must_use]
    pub fn with_virtuals(self, virtuals: Arc<VirtualChunks>) -> Self {
        Reader { virtuals, ..self }
    }

    /// Returns manifest `info.id`, loaded if it is not in memory.
    ///
    /// Fails with [`ErrorKind::OutOfMemory`] if it is larger than the memory bound allows.
    pub async fn manifest(self: &Arc<Self>, info: ManifestInfo) -> Result<Arc<Manifest>> {
        if let Some(manifest) = self.cache.get(&ManifestKey(info.id)) {
            return Ok(manifest);
        }
        if let Some(manifest) = self.small_manifest_now(info) {
            return Ok(manifest);
        }
        let this = Arc::clone(self);
        let load = async move { this.load_manifest(info).await.map(Arc::new) };
        self.cache.get_or_load(ManifestKey(info.id), load).await
    }

    /// Returns the cache, which those above share for what they make of chunks.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Loads the manifests `infos` that are not in memory. Errors are reported when one of them is
    /// needed.
    pub fn load_ahead(self: &Arc<Self>, infos: impl Iterator<Item = ManifestInfo>) {
        for info in infos.filter(|info| !self.cache.has(&ManifestKey(info.id))) {
            let this = Arc::clone(self);
            drop(tokio::spawn(async move { this.manifest(info).await.map(drop) }));
        }
    }

    /// Loads a small manifest that needs no waiting: of thousands, each would wait longer for a
    /// thread than it takes. None if it has to be loaded the usual way, also for its error.
    fn small_manifest_now(&self, info: ManifestInfo) -> Option<Arc<Manifest>> {
        let length = usize::try_from(info.size).ok().filter(|_| (1..=SMALL_MANIFEST).contains(&info.size))?;
        let file = self.storage.local_files()?.open_now(&format!("manifests/{}", info.id))?.ok()?;
        if file.metadata().ok()?.len() != info.size {
            return None;
        }
        let mut bytes = vec![0; length];
        LocalFiles::read_now(&file, &mut bytes, 0)?;
        let manifest = Arc::new(decode_small(info, &bytes)?);
        self.cache.insert(ManifestKey(info.id), Arc::clone(&manifest));
        Some(manifest)
    }

    /// Keeps a manifest that was just written: it will be read next.
    pub fn keep_manifest(&self, manifest: Manifest) {
        self.cache.insert(ManifestKey(manifest.id()), Arc::new(manifest));
    }

    async fn load_manifest(&self, info: ManifestInfo) -> Result<Manifest> {
        let key = format!("manifests/{}", info.id);
        let limit = self.budget.cache();
        let _permit = self.manifests.acquire_many(self.budget.read_permits(info.size)).await;
        match self.fetch_manifest(&key, info, limit).await {
            // The damage may be of the transfer or of a cache: fetch once more, past the cache.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.storage.discard_cached(&key).await;
                self.fetch_manifest(&key, info, limit).await
            }
            loaded => loaded,
        }
    }

    async fn fetch_manifest(&self, key: &str, info: ManifestInfo, limit: u64) -> Result<Manifest> {
        let file = self.storage.get_fixed(key, limit).await;
        let file = file.map_err(|error| {
            error.not_found_as_damage(format!(
                "{key} is missing, though the snapshot names it: `icechunkfs verify REPO` lists what needs it"
            ))
        })?;
        if let Some(manifest) = decode_small(info, &file) {
            return Ok(manifest);
        }
        let _turn = self.decoding.acquire().await;
        self.cache.make_room(match info.chunk_refs {
            // Before 0.1.0, references were not counted.
            0 => (file.len() as u64).saturating_mul(EXPANSION),
            refs => u64::from(refs) * BYTES_PER_REF,
        });
        let manifest =
            blocking(move || Manifest::decode_with_id(info.id, &file, limit)).await.context(|| key.to_owned())?;
        if manifest.id() != info.id {
            return Err(Error::corrupt(format!("{key}: the file states that it is manifest {}", manifest.id())));
        }
        Ok(manifest)
    }

    /// Returns the range of a virtual reference.
    ///
    /// Fails with [`ErrorKind::VirtualNotAllowed`] if it may not be read.
    pub fn virtual_chunk(
        &self,
        location: &str,
        offset: u64,
        length: u64,
        checksum: Option<Checksum>,
    ) -> Result<ChunkRange> {
        let object = self.virtuals.find(location, checksum)?;
        Ok(ChunkRange { object: Object::Virtual(Arc::new(object)), offset, length })
    }

    /// Returns bytes `offset..offset + length` of `chunk` if that needs no waiting and does not
    /// fail. The range must lie in the chunk.
    fn read_now(&self, chunk: &ChunkRange, offset: u64, length: usize) -> Option<Data> {
        if let (Some(files), Object::Native(id)) = (self.storage.local_files(), &chunk.object) {
            let file = files.open_now(&chunk::native_key(*id))?.ok()?;
            let mut buffer = self.buffers.take(length)?;
            LocalFiles::read_now(&file, &mut buffer, chunk.offset.checked_add(offset)?)?;
            metrics::SOURCES.local.add(length as u64);
            return Some(Data::Buffer(buffer));
        }
        let (piece, within) = pieces::only(chunk, offset, length as u64)?;
        match self.cache.get(&piece) {
            Some(bytes) => {
                metrics::SOURCES.memory.add(length as u64);
                slice(&bytes, within, length).map(Data::Bytes)
            }
            None => self.read_kept_now(&piece, within, length),
        }
    }

    /// Reads bytes `offset..offset + length` of `chunk`, which must lie in it: all of them, or an
    /// error.
    pub async fn read(self: &Arc<Self>, chunk: &ChunkRange, offset: u64, length: usize) -> Result<Data> {
        if let Some(data) = self.read_now(chunk, offset, length) {
            return Ok(data);
        }
        if !self.is_file(&chunk.object) {
            return self.read_pieces(chunk, offset, length).await;
        }
        if chunk.length > SMALL_CHUNK {
            let _permit = self.reads.acquire_many(self.budget.read_permits(length as u64)).await;
            let start = chunk.offset.saturating_add(offset);
            return self.fetch(&chunk.object, start, length as u64).await.map(Data::Bytes);
        }
        cut(&self.whole(chunk).await?, offset, length)
    }

    /// Returns all bytes of `chunk`, and keeps them in memory.
    async fn whole(self: &Arc<Self>, chunk: &ChunkRange) -> Result<Bytes> {
        let this = Arc::clone(self);
        let owned = chunk.clone();
        let load = async move {
            let permits = this.budget.read_permits(owned.length);
            let permit = Arc::clone(&this.reads).acquire_many_owned(permits).await;
            if let Some(bytes) = this.kept(&owned).await {
                return Ok(bytes);
            }
            let bytes = this.fetch(&owned.object, owned.offset, owned.length).await?;
            this.keep(&owned, &bytes, permit);
            Ok(bytes)
        };
        self.cache.get_or_load(chunk.clone(), load).await
    }

    /// Fetches a range of `object` from its storage.
    async fn fetch(&self, object: &Object, offset: u64, length: u64) -> Result<Bytes> {
        let bytes = match object {
            Object::Native(id) => {
                self.storage.get_range(&chunk::native_key(*id), offset, length).await.map_err(missing_object)?
            }
            Object::Virtual(object) => self.virtuals.read(object, offset, length).await?,
        };
        let source = if self.is_file(object) { &metrics::SOURCES.local } else { &metrics::SOURCES.store };
        source.add(bytes.len() as u64);
        Ok(bytes)
    }

    /// Returns the file of `chunk`, if that file is exactly the chunk; none otherwise, or where
    /// objects are not files.
    pub fn whole_file(&self, chunk: NativeChunk) -> Option<File> {
        if let Some(disk) = self.storage.disk_cache() {
            return disk.file(&ChunkRange::from(chunk).name()?, chunk.length);
        }
        let files = self.storage.local_files().filter(|_| chunk.offset == 0)?;
        files.open(&chunk.key()).ok().filter(|file| is_exactly(file, chunk))
    }

    /// Returns the file of `chunk` like [`Reader::whole_file`], on a thread that may block if that
    /// is necessary.
    pub async fn open_whole_file(self: &Arc<Self>, chunk: NativeChunk) -> Result<Option<File>> {
        if let Some(answer) = self.whole_file_now(chunk) {
            return Ok(answer);
        }
        let this = Arc::clone(self);
        blocking(move || Ok(this.whole_file(chunk))).await
    }

    /// Returns the result of [`Reader::whole_file`] if it is known without waiting; none otherwise.
    fn whole_file_now(&self, chunk: NativeChunk) -> Option<Option<File>> {
        if let Some(disk) = self.storage.disk_cache() {
            return disk.file_now(&ChunkRange::from(chunk).name()?, chunk.length).map(Some);
        }
        let Some(files) = self.storage.local_files().filter(|_| chunk.offset == 0) else { return Some(None) };
        let file = files.open_now(&chunk.key())?;
        Some(file.ok().filter(|file| is_exactly(file, chunk)))
    }

    /// Returns the bytes that may be prefetched for one reader: none where chunks are local files.
    pub fn prefetch_limit(&self) -> u64 {
        if self.is_local() && !self.virtuals.has_remote() { 0 } else { self.budget.prefetch_bytes() }
    }

    /// Returns true if a chunk may be a local file, which the kernel can read directly.
    pub fn has_files(&self) -> bool {
        self.is_local() || self.storage.disk_cache().is_some()
    }

    /// Returns true if `object` is a local file.
    fn is_file(&self, object: &Object) -> bool {
        match object {
            Object::Native(_) => self.is_local(),
            Object::Virtual(object) => object.is_local(),
        }
    }

    /// Returns true if native chunks are local files.
    pub fn is_local(&self) -> bool {
        self.storage.local_files().is_some()
    }
}

fn is_exactly(file: &File, chunk: NativeChunk) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == chunk.length)
}

fn slice(bytes: &Bytes, offset: u64, length: usize) -> Option<Bytes> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(length)?;
    (end <= bytes.len()).then(|| bytes.slice(start..end))
}

/// Returns bytes `offset..offset + length` of `bytes`, which are a chunk or a piece of one.
fn cut(bytes: &Bytes, offset: u64, length: usize) -> Result<Data> {
    slice(bytes, offset, length).map(Data::Bytes).ok_or_else(|| not_in_chunk(offset, length))
}

/// Returns the range of `length` bytes from `offset` on, which must lie in `chunk`.
fn range_in(chunk: &ChunkRange, offset: u64, length: usize) -> Result<std::ops::Range<u64>> {
    let end = offset.checked_add(length as u64).filter(|end| *end <= chunk.length);
    Ok(offset..end.ok_or_else(|| not_in_chunk(offset, length))?)
}

fn not_in_chunk(offset: u64, length: usize) -> Error {
    Error::invalid(format!("{length} bytes at {offset} are not all in the chunk"))
}

/// Reports absence as damage: to a reading program the file exists.
fn missing_object(error: Error) -> Error {
    error.not_found_as_damage(
        "a chunk object is missing, though a manifest names it: `icechunkfs verify REPO --chunks` lists all that are",
    )
}

impl std::ops::Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes,
            Data::Buffer(buffer) => buffer,
            Data::Inline(manifest, range) => manifest.slice(range.clone()),
        }
    }
}
