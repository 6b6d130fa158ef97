//! Caches bytes of a remote repository on a disk of this machine, so that they cross the network
//! once.
//!
//! Objects never change, so an entry, named after its object and range ([`Name`]), is never stale
//! and lives until room is needed ([`space`]). The few documents that change are kept with the
//! store's name of that state, and users ask the store if it is current.
//!
//! An entry is a file with exactly its bytes, so that the kernel can be given it in place of a
//! chunk, and with a checksum ([`entry`]). It is written under a temporary name, renamed, and not
//! flushed: after a loss of power the checksum shows if it is complete. A damaged entry is removed
//! and fetched again. Any other failure costs time and nothing else: the bytes come from the store,
//! and the log reports the failure once in a while.
//!
//! Any number of processes of one user share a directory; other users only read a cache of root
//! ([`place`]).
//!
//! Functions of [`DiskCache`] wait for the disk unless their name ends in `_now`;
//! [`DiskCache::run_blocking`] is for callers that must not block.

mod entry;
mod place;
mod space;

use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, ResolveFlags, Timespec, UTIME_NOW};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

pub use self::entry::Name;
use self::entry::Sum;
use self::place::{CacheDirectory, is_entry};
use self::space::Space;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::times::set_modified;

/// Default size of a cache, in bytes.
pub const DEFAULT_SIZE: u64 = 10 << 30;
/// Pause in writing after a failed write: a full disk is rarely full for a moment only.
const PAUSE: Duration = Duration::from_secs(30);
/// Time limit for one entry. A disk that takes longer is slower than the network.
const TIMEOUT: Duration = Duration::from_secs(5);
const WRITERS: usize = 4;
/// Shortest interval between two records of an entry's use: each is a write to the disk.
const USE_COUNTS_FOR: Duration = Duration::from_secs(600);
/// Entries that are remembered as verified.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();
/// Interval between checks if everything is written.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes read at a time to compute only their sum.
const SUMMED_AT_A_TIME: usize = 64 << 10;

/// Part of a cache that belongs to one repository.
#[derive(Debug)]
pub struct DiskCache {
    place: Arc<CacheDirectory>,
    space: Space,
    /// Verified entries: inode number and stamp.
    checked: Mutex<LruCache<u64, Stamp>>,
    writers: Arc<Semaphore>,
    began: Instant,
    /// End of the pause in writing, in milliseconds since `began`.
    paused: AtomicU64,
    waiting: AtomicU64,
}

/// Change time (seconds, nanoseconds) and length of a file: equal if the file is unchanged.
type Stamp = (i64, i64, u64);

/// Document that changes, as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedDocument {
    /// The store's name of this state of the document; opaque here.
    pub state: String,
    /// Bytes; none if there was no such document.
    pub bytes: Option<Bytes>,
}

impl DiskCache {
    /// Opens the cache in `directory`, creating it if necessary, for the repository `scope`. The
    /// cache takes at most `size` bytes, for all repositories together. Other users only read a
    /// cache that root owns.
    ///
    /// Errors: [`ErrorKind::PermissionDenied`](icechunkfs_base::error::ErrorKind::PermissionDenied)
    /// if users other than root and this one own it or may write to it.
    pub fn open(directory: &Path, size: u64, scope: &str) -> Result<Self> {
        let place = Arc::new(CacheDirectory::open(directory, scope)?);
        let space = Space::new(Arc::clone(&place), size);
        Ok(DiskCache {
            place,
            space,
            checked: Mutex::new(LruCache::new(REMEMBERED)),
            writers: Arc::new(Semaphore::new(WRITERS)),
            began: Instant::now(),
            paused: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        })
    }

    /// Returns the directory of the cache.
    pub fn directory(&self) -> &Path {
        self.place.directory()
    }

    /// Returns true if there is an entry `name`. Its bytes may still be damaged.
    pub fn has(&self, name: &Name) -> bool {
        self.open_entry(name).is_some()
    }

    /// Returns the verified bytes of entry `name`, if there are at most `limit`.
    pub fn get(&self, name: &Name, limit: u64) -> Option<Bytes> {
        let file = self.open_trusted(name)?;
        let length = file.metadata().ok().map(|metadata| metadata.len()).filter(|length| *length <= limit)?;
        let mut bytes = Vec::with_capacity(usize::try_from(length).ok()?);
        let read = (&file).take(length).read_to_end(&mut bytes);
        let right = read.is_ok() && Sum::of_file(&file).is_some_and(|sum| sum == Sum::of(&bytes));
        if !right {
            self.drop_damaged(name);
            return None;
        }
        self.record_use(&file);
        Some(bytes.into())
    }

    /// Returns the file of entry `name`, if it has `length` bytes and they are verified.
    pub fn file(&self, name: &Name, length: u64) -> Option<File> {
        let file = self.open_trusted(name)?;
        let metadata = file.metadata().ok()?;
        if metadata.len() == length && (self.was_checked(&metadata) || sums_up(&file)) {
            self.record_use(&file);
            return Some(file);
        }
        self.drop_damaged(name);
        None
    }

    /// Returns the file like [`DiskCache::file`], if it is known to be right without waiting.
    pub fn file_now(&self, name: &Name, length: u64) -> Option<File> {
        let file = self.place.open_entry(name, ResolveFlags::CACHED).ok()?;
        let metadata = file.metadata().ok()?;
        // Recording a use waits for the disk.
        let is_due = self.place.is_writable() && is_due(&metadata);
        let is_known = is_entry(&metadata) && metadata.len() == length && self.was_checked(&metadata) && !is_due;
        is_known.then_some(file)
    }

    /// Runs `work` on a thread that may block; returns `None` if the disk takes too long.
    pub async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&DiskCache) -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let cache = Arc::clone(self);
        let running = tokio::task::spawn_blocking(move || work(&cache));
        tokio::time::timeout(TIMEOUT, running).await.ok()?.ok()?
    }

    /// Adds an entry in the background, and drops `hold` when the entry is added or discarded.
    pub fn put_in_background(self: &Arc<Self>, name: Name, bytes: Bytes, hold: impl Send + 'static) {
        if self.is_paused() {
            return;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let waiting = Waiting(Arc::clone(self));
        drop(tokio::spawn(async move {
            let _hold = hold;
            let this = &waiting.0;
            let turn = tokio::time::timeout(TIMEOUT, Arc::clone(&this.writers).acquire_owned()).await;
            let Ok(Ok(turn)) = turn else { return this.pause("it writes too slowly") };
            let writer = Arc::clone(this);
            let writing = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                writer.put(&name, &bytes);
            });
            if tokio::time::timeout(TIMEOUT, writing).await.is_err() {
                this.pause("it does not answer");
            }
        }));
    }

    /// Returns the number of entries that are queued and not added yet.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Acquire)
    }

    /// Waits until all queued entries are added, but not for long.
    pub async fn flush(&self) {
        let end = Instant::now() + 2 * TIMEOUT;
        while self.waiting() > 0 && Instant::now() < end {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Adds an entry, unless it exists.
    pub fn put(&self, name: &Name, bytes: &[u8]) {
        if self.is_paused() || !self.place.is_writable() || self.has(name) {
            return;
        }
        self.replace(name, bytes);
    }

    /// Returns document `key` as it was last seen.
    pub fn document(&self, key: &str, limit: u64) -> Option<CachedDocument> {
        let bytes = self.get(&Name::document(key), limit.saturating_add(CachedDocument::MAX_STATE))?;
        CachedDocument::decode(bytes)
    }

    /// Records the current state of document `key`.
    pub fn record_document(&self, key: &str, document: &CachedDocument) {
        if !self.is_paused() && self.place.is_writable() {
            self.replace(&Name::document(key), &document.encode());
        }
    }

    /// Removes the entries of `key` as a whole object and as a document.
    pub fn forget(&self, key: &str) {
        for name in [Name::whole(key), Name::document(key)] {
            self.remove(&name);
        }
    }

    fn replace(&self, name: &Name, bytes: &[u8]) {
        let mut written = self.write(name, bytes);
        // A user may have deleted the directories.
        if written.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            written = self.place.make().and_then(|()| self.write(name, bytes));
        }
        if let Err(error) = written {
            self.pause(&Error::io(name.as_str(), error).to_string());
        }
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> std::io::Result<()> {
        let length = bytes.len() as u64;
        let Some(room) = self.space.room_for(length)? else {
            debug!("the cache {}: no room for {}", self.directory().display(), name.as_str());
            return Ok(());
        };
        let old = self.open_entry(name).and_then(|file| Some(file.metadata().ok()?.len()));
        let directories = self.place.directories();
        let staged = directories.stage()?;
        staged.file.write_all_at(bytes, 0)?;
        Sum::of(bytes).write_to(&staged.file)?;
        directories.make_readable(&staged.file)?;
        let folder = self.place.folder_of(name).or_else(|_| self.place.make_folder_of(name))?;
        let file = staged.rename(&folder, name.as_str())?;
        room.commit(old);
        if let Ok(metadata) = file.metadata() {
            self.checked.lock().put(metadata.ino(), stamp(&metadata));
        }
        Ok(())
    }

    fn open_entry(&self, name: &Name) -> Option<File> {
        let file = self.place.open_entry(name, ResolveFlags::empty()).ok()?;
        file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
    }

    /// Opens an entry that only a trusted user can have written. Removes any other.
    fn open_trusted(&self, name: &Name) -> Option<File> {
        let file = self.open_entry(name)?;
        if file.metadata().is_ok_and(|metadata| is_entry(&metadata)) {
            return Some(file);
        }
        self.drop_damaged(name);
        None
    }

    fn was_checked(&self, metadata: &std::fs::Metadata) -> bool {
        self.checked.lock().get(&metadata.ino()) == Some(&stamp(metadata))
    }

    /// Records that the bytes of `file` are verified and used.
    fn record_use(&self, file: &File) {
        let Ok(mut metadata) = file.metadata() else { return };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        if self.place.is_writable() && is_due(&metadata) && set_modified(file, now).is_ok() {
            let Ok(touched) = file.metadata() else { return };
            metadata = touched;
        }
        self.checked.lock().put(metadata.ino(), stamp(&metadata));
    }

    fn drop_damaged(&self, name: &Name) {
        let path = self.place.path_of(name);
        warn!("{}: changed since it was written; removed, and fetched again", path.display());
        self.remove(name);
    }

    fn remove(&self, name: &Name) {
        if !self.place.is_writable() {
            return;
        }
        let Ok(folder) = self.place.folder_of(name) else { return };
        let stat = rustix::fs::statat(&folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
        let length = stat.map_or(0, |stat| stat.st_size.unsigned_abs());
        if rustix::fs::unlinkat(&folder, name.as_str(), AtFlags::empty()).is_ok() {
            self.space.release(length);
        }
    }

    fn is_paused(&self) -> bool {
        (self.began.elapsed().as_millis() as u64) < self.paused.load(Ordering::Relaxed)
    }

    fn pause(&self, why: &str) {
        let until = (self.began.elapsed() + PAUSE).as_millis() as u64;
        self.paused.store(until, Ordering::Relaxed);
        let place = self.directory().display();
        let pause = PAUSE.as_secs();
        warn!("the cache {place}: {why}; nothing is added to it for {pause} s");
    }
}

/// Counts a queued entry until it is added or discarded.
struct Waiting(Arc<DiskCache>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

fn stamp(metadata: &std::fs::Metadata) -> Stamp {
    (metadata.ctime(), metadata.ctime_nsec(), metadata.len())
}

/// Returns true if the last recorded use is long ago.
fn is_due(metadata: &std::fs::Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age > USE_COUNTS_FOR)
}

/// Returns true if the bytes of `file` match its checksum.
fn sums_up(file: &File) -> bool {
    let Some(wanted) = Sum::of_file(file) else { return false };
    // Allocating a buffer each time would cost more than summing its content.
    thread_local! {
        static PART: RefCell<Vec<u8>> = RefCell::new(vec![0; SUMMED_AT_A_TIME]);
    }
    PART.with_borrow_mut(|part| {
        let mut hasher = crc32fast::Hasher::new();
        let mut length = 0;
        loop {
            match file.read_at(part, length) {
                Ok(0) => return Sum { length, sum: hasher.finalize() } == wanted,
                Ok(count) => {
                    hasher.update(part.get(..count).unwrap_or_default());
                    length += count as u64;
                }
                Err(_) => return false,
            }
        }
    })
}

impl CachedDocument {
    const MAX_STATE: u64 = 4096;

    fn encode(&self) -> Vec<u8> {
        let mark = if self.bytes.is_some() { "there" } else { "absent" };
        let mut encoded = format!("{mark} {}\n", self.state.replace('\n', " ")).into_bytes();
        encoded.extend_from_slice(self.bytes.as_deref().unwrap_or_default());
        encoded
    }

    fn decode(encoded: Bytes) -> Option<CachedDocument> {
        let end = encoded.iter().position(|&byte| byte == b'\n')?;
        let head = std::str::from_utf8(encoded.get(..end)?).ok()?;
        let (mark, state) = head.split_once(' ')?;
        let bytes = (mark == "there").then(|| encoded.slice(end + 1..));
        Some(CachedDocument { state: state.to_owned(), bytes })
    }
}

#[cfg(test)]
mod tests;
