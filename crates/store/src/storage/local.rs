//! A repository in a local directory.
//!
//! Objects are opened below a descriptor of the repository's directory with
//! `openat2(RESOLVE_BENEATH)`. A symbolic link that leads out of the repository is refused, so that
//! an untrusted repository cannot be used to read other files with the mounting user's rights.
//! Listing ([`super::local_listing`]) uses descriptors, too. Writing is in [`super::replace`].
//!
//! Reads have two entry points, for the two sides of a mount: [`LocalFiles::open_now`] and
//! [`LocalFiles::read_now`] answer from the kernel's caches or not at all, for threads that must
//! not wait; the [`Storage`] methods wait, on blocking threads.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::create::Staged;
use super::deadline::{flatten_join, run_blocking, timed_out};
use super::explain::error_chain;
use super::file_locks::{self, Locked, refresh};
use super::flush_group::FlushGroup;
use super::lock_reach::Locks;
use super::object::{DELETED_AT_ONCE, too_large, too_short};
use super::replace::{ReplaceArbiter, Waits};
use super::{
    Body, Capabilities, Condition, Content, DEADLINE, ListMode, ObjectSource, ReadMode, Removal, Storage, StoredObject,
    Version, Visitor, create, local_listing, no_copy, replace,
};
use icechunkfs_base::beneath;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory;

/// Time limit of a flush, including other data that waits to be written to the disk.
const FLUSH_DEADLINE: Duration = Duration::from_secs(120);
/// Time limit of a flush of a whole file system: all unwritten data of a machine on the slowest
/// disk.
const FLUSH_ALL_DEADLINE: Duration = Duration::from_secs(3600);
/// Number of attempts to open a file that another machine replaces while it is read, and the pause
/// between them.
const STALE_TRIES: u32 = 20;
const STALE_PAUSE: Duration = Duration::from_millis(20);
/// Minimum rate of a disk, shared by all objects that are stored at the same time, in bytes per
/// second.
const SLOWEST_DISK: u64 = 256 << 10;

/// Flags by which no name leads out of the repository.
pub(super) const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Repository in a local directory.
#[derive(Debug)]
pub struct LocalStorage {
    capabilities: Capabilities,
    files: Arc<LocalFiles>,
    deadline: Duration,
    /// Number of copies stored without a flush, and number of those flushed since. The mutex
    /// serializes flushes.
    copies: AtomicU64,
    flushed: tokio::sync::Mutex<u64>,
    /// Those who store objects that get their names after a flush.
    staged: FlushGroup,
}

/// Lock of a local repository, until dropped.
#[derive(Debug)]
pub struct RepositoryLock(#[expect(dead_code, reason = "dropping it unlocks")] Locked);

/// Files of a local repository, by key.
#[derive(Debug)]
pub struct LocalFiles {
    root: OwnedFd,
    locks: Locks,
}

impl LocalFiles {
    /// Returns the open directory of the repository.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens the file of object `key`; waits for the disk if necessary.
    pub fn open(&self, key: &str) -> Result<File> {
        self.open_with(key, ResolveFlags::empty()).map_err(|errno| open_error(key, errno))
    }

    /// Opens the file of object `key` from the kernel's caches; returns `None` if that would have
    /// to wait.
    pub fn open_now(&self, key: &str) -> Option<Result<File>> {
        match self.open_with(key, ResolveFlags::CACHED) {
            Ok(file) => Some(Ok(file)),
            // EINVAL: kernels before 5.12 do not know the flag.
            Err(Errno::AGAIN | Errno::INVAL) => None,
            Err(errno) => Some(Err(open_error(key, errno))),
        }
    }

    /// Locks the repository, as every change under a condition does: until the lock is dropped,
    /// none is made by this program. Waits for it.
    pub fn lock(&self) -> Result<RepositoryLock> {
        file_locks::lock(&self.root, "the repository", self.locks, DEADLINE).map(RepositoryLock)
    }

    /// Returns true if this user may not create files in the directory.
    pub fn is_read_only(&self) -> bool {
        rustix::fs::accessat(&self.root, ".", rustix::fs::Access::WRITE_OK, rustix::fs::AtFlags::EACCESS).is_err()
    }

    /// Runs `read` on the current names, past the caches of a network file system. If another
    /// machine replaces a file between its opening and its reading, `read` is run again.
    fn current<T>(&self, read: impl Fn() -> Result<T>) -> Result<T> {
        if self.locks == Locks::OneMachine {
            return read();
        }
        let mut tries = 0;
        loop {
            refresh(&self.root);
            tries += 1;
            match read() {
                Err(error) if is_stale(&error) && tries < STALE_TRIES => std::thread::sleep(STALE_PAUSE),
                done => return done,
            }
        }
    }

    /// Opens the directory `folder`, or that of the repository if `folder` is empty.
    pub(super) fn open_directory(&self, folder: &str) -> Result<OwnedFd> {
        let folder = if folder.is_empty() { "." } else { folder };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        beneath::open(&self.root, folder, flags, WITHIN).map_err(|errno| open_error(folder, errno))
    }

    /// Returns size and time of object `key`, which may be a symbolic link within the repository;
    /// `None` if it is no file or leads out of it.
    pub(super) fn stat_object(&self, key: &str) -> Option<rustix::fs::Stat> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = beneath::open(&self.root, key, flags, WITHIN).ok()?;
        rustix::fs::fstat(found).ok().filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    }

    fn open_with(&self, key: &str, extra: ResolveFlags) -> Result<File, Errno> {
        let resolve = WITHIN | extra;
        // The opening of a FIFO in place of an object must not wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        beneath::open(&self.root, key, flags, resolve).map(File::from)
    }

    /// Fills `buffer` from `offset` of `file` if the page cache has the bytes. Returns `None` if it
    /// does not, or if the file ends earlier; the caller then takes the waiting path, which
    /// distinguishes the two.
    pub fn read_now(file: &File, buffer: &mut [u8], offset: u64) -> Option<()> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = buffer.get_mut(done..)?;
            let parts = &mut [io::IoSliceMut::new(rest)];
            match rustix::io::preadv2(file, parts, offset + done as u64, ReadWriteFlags::NOWAIT) {
                Ok(0) | Err(_) => return None,
                Ok(count) => done += count,
            }
        }
        Some(())
    }
}

/// Returns true if the file was removed on another machine while this one had it open.
pub(super) fn is_stale(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = error_chain(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.raw_os_error() == Some(libc::ESTALE))
}

fn open_error(key: &str, errno: Errno) -> Error {
    if errno == Errno::XDEV || errno == Errno::LOOP {
        return Error::new(
            ErrorKind::PermissionDenied,
            format!("{key}: a symbolic link leads out of the repository; links are followed only within it"),
        );
    }
    Error::io(key, errno.into())
}

impl LocalStorage {
    /// Opens the directory `path`; messages name it `location`. If the user guarantees a
    /// `single_writer`, locks that other machines do not see are accepted.
    pub(super) fn open(path: &Path, location: String, single_writer: bool) -> Result<Self> {
        let root = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| match errno {
                Errno::NOENT => Error::new(ErrorKind::NotFound, format!("{location}: no such directory")),
                Errno::NOTDIR => Error::new(
                    ErrorKind::NotADirectory,
                    format!("{location} is not a directory: a repository is a directory that holds `repo` or `refs`"),
                ),
                other => Error::io(&location, other.into()),
            })?;
        let path = std::fs::canonicalize(path).map_err(|e| Error::io(&location, e))?;
        Ok(Self::at(root, path, location, single_writer))
    }

    /// Uses the open directory `root`, whose path without links is `path`, like
    /// [`LocalStorage::open`].
    pub(super) fn at(root: OwnedFd, path: PathBuf, location: String, single_writer: bool) -> Self {
        let locks = Locks::of(&root, single_writer);
        let files = Arc::new(LocalFiles { root, locks });
        let capabilities = Capabilities {
            read_only: if let Locks::Unsafe(why) = locks { Some(why.into()) } else { None },
            local_path: Some(path),
            local_files: Some(Arc::clone(&files)),
            ..Capabilities::new(location)
        };
        let copies = AtomicU64::new(0);
        let flushed = tokio::sync::Mutex::new(0);
        LocalStorage { capabilities, files, deadline: DEADLINE, copies, flushed, staged: FlushGroup::default() }
    }

    /// Runs `work` on a blocking thread until the deadline; a thread that takes longer is
    /// abandoned.
    async fn run_blocking<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&LocalFiles, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_blocking_for(self.deadline, key, work).await
    }

    /// Runs work that changes something, otherwise like [`LocalStorage::run_blocking`]: a change
    /// reported as failed does not happen later.
    async fn run_cancellable(
        &self,
        key: &str,
        work: impl FnOnce(&LocalFiles, &str, &ReplaceArbiter, Duration) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let deadline = self.deadline;
        let arbiter = Arc::new(ReplaceArbiter::default());
        let files = Arc::clone(&self.files);
        let owned_key = key.to_owned();
        let workers_arbiter = Arc::clone(&arbiter);
        let mut task = tokio::task::spawn_blocking(move || work(&files, &owned_key, &workers_arbiter, deadline));
        match tokio::time::timeout(deadline, &mut task).await {
            Ok(done) => flatten_join(key, done),
            Err(_) if arbiter.take() => Err(timed_out(key, deadline)),
            Err(_) => match tokio::time::timeout(deadline, task).await {
                Ok(done) => flatten_join(key, done),
                Err(_) => Err(timed_out(key, deadline * 2)),
            },
        }
    }

    async fn replace(&self, key: &str, bytes: Bytes, condition: Condition, unless: Option<&'static str>) -> Result<()> {
        self.run_cancellable(key, move |files, key, arbiter, deadline| {
            let waits = Waits { locks: files.locks, deadline, arbiter };
            replace::put(&files.root, key, &bytes, &condition, unless, waits)
        })
        .await
    }

    async fn put_exclusive(&self, key: &str, body: Body) -> Result<()> {
        let timeout = store_timeout(body.length());
        let stage = move |files: &LocalFiles, key: &str| Staged::write(&files.root, key, &body);
        let staged = self.run_blocking_for(timeout, key, stage).await?;
        let sync = move |files: &LocalFiles, _: &str| create::sync_all(&files.root);
        self.staged.flush(|| self.run_blocking_for(FLUSH_ALL_DEADLINE, "flushing what was stored", sync)).await?;
        self.run_blocking(key, move |_, _| staged.publish()).await
    }

    async fn run_blocking_for<T: Send + 'static>(
        &self,
        deadline: Duration,
        key: &str,
        work: impl FnOnce(&LocalFiles, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let files = Arc::clone(&self.files);
        let owned_key = key.to_owned();
        run_blocking(key, deadline, move || work(&files, &owned_key)).await
    }
}

#[async_trait]
impl Storage for LocalStorage {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        if let ReadMode::Range(offset) = mode {
            let read = move |files: &LocalFiles, key: &str| read_exactly(&files.open(key)?, key, offset, limit);
            return Ok(Some(self.run_blocking(key, read).await?.into()));
        }
        if let ReadMode::IfChanged(_) | ReadMode::Head = mode {
            let look = |files: &LocalFiles, key: &str| {
                files.current(|| {
                    let metadata = files.open(key)?.metadata().map_err(|e| Error::io(key, e))?;
                    Ok(object_of(Bytes::new(), &metadata))
                })
            };
            let found = self.run_blocking(key, look).await?;
            match mode {
                ReadMode::Head => return Ok(Some(found)),
                ReadMode::IfChanged(version) if found.version == *version => return Ok(None),
                _ => {}
            }
        }
        self.run_blocking(key, move |files, key| {
            files.current(|| {
                let file = files.open(key)?;
                let metadata = file.metadata().map_err(|e| Error::io(key, e))?;
                if metadata.is_dir() {
                    return Err(Error::new(ErrorKind::NotFound, format!("{key}: is a directory")));
                }
                if metadata.len() > limit {
                    return Err(too_large(key, metadata.len(), limit));
                }
                let held = memory::reserve_blocking(metadata.len(), key)?;
                let bytes = read_exactly(&file, key, 0, metadata.len())?;
                Ok(Some(object_of(memory::with_reservation(bytes, held), &metadata)))
            })
        })
        .await
    }

    async fn store(&self, key: &str, content: Content<'_>) -> Result<()> {
        match content {
            Content::Conditional(bytes, condition) => self.replace(key, bytes, condition, None).await,
            Content::Unless { bytes, condition, unless } => self.replace(key, bytes, condition, Some(unless)).await,
            Content::New(bytes) => {
                let timeout = store_timeout(bytes.len() as u64);
                let put = move |files: &LocalFiles, key: &str| create::put_new(&files.root, key, &bytes);
                self.run_blocking_for(timeout, key, put).await
            }
            Content::File(file, length) => {
                let put = move |files: &LocalFiles, key: &str| create::put_file(&files.root, key, file, length);
                self.run_blocking_for(store_timeout(length), key, put).await
            }
            Content::FileCopy(file, length) => {
                let put = move |files: &LocalFiles, key: &str| create::put_copy(&files.root, key, file, length);
                self.run_blocking_for(store_timeout(length), key, put).await?;
                self.copies.fetch_add(1, Ordering::Release);
                Ok(())
            }
            Content::ObjectCopy(..) => Err(no_copy(key)),
            Content::Exclusive(body) => self.put_exclusive(key, body).await,
        }
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        let mut flushed = self.flushed.lock().await;
        let copies = self.copies.load(Ordering::Acquire);
        if copies > *flushed {
            let sync = move |files: &LocalFiles, _: &str| create::sync_all(&files.root);
            self.run_blocking_for(FLUSH_ALL_DEADLINE, "flushing what was stored", sync).await?;
            *flushed = copies;
            return Ok(());
        }
        drop(flushed);
        let folders: Vec<String> = folders.iter().map(|&folder| folder.to_owned()).collect();
        let sync = move |files: &LocalFiles, _: &str| create::sync(&files.root, &folders);
        self.run_blocking_for(FLUSH_DEADLINE, "flushing what was stored", sync).await
    }

    async fn walk(&self, prefix: &str, _mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        let mut listing = local_listing::begin(Arc::clone(&self.files), prefix.trim_end_matches('/').to_owned());
        loop {
            let next = tokio::time::timeout(self.deadline, listing.recv()).await;
            match next.map_err(|_| timed_out(format!("listing `{prefix}`"), self.deadline))? {
                None => return Ok(()),
                Some(objects) => {
                    if objects?.into_iter().try_for_each(&mut *visit).is_break() {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        match removal {
            Removal::Objects(keys) => {
                for keys in keys.chunks(DELETED_AT_ONCE) {
                    let what = format!("removing {} objects", keys.len());
                    let keys = keys.to_vec();
                    self.run_blocking(&what, move |files, _| replace::remove_all(&files.root, &keys)).await?;
                }
                Ok(())
            }
            Removal::Cached(_) => Ok(()),
            Removal::Unchanged { key, version, unless, .. } => {
                let version = version.clone();
                self.run_cancellable(key, move |files, key, arbiter, deadline| {
                    let waits = Waits { locks: files.locks, deadline, arbiter };
                    replace::remove(&files.root, key, &version, unless, waits)
                })
                .await
            }
        }
    }

    async fn locate(&self, key: &str) -> Result<Option<ObjectSource>> {
        self.run_blocking(key, |files, key| files.open(key).map(ObjectSource::File).map(Some)).await
    }

    async fn check_conditions(&self, _key: &str, _limit: u64) -> Result<()> {
        self.capabilities.read_only.as_ref().map_or(Ok(()), |why| Err(Error::new(ErrorKind::Unsupported, why.as_ref())))
    }
}

fn store_timeout(length: u64) -> Duration {
    FLUSH_DEADLINE + Duration::from_secs(length / SLOWEST_DISK)
}

fn object_of(bytes: Bytes, metadata: &std::fs::Metadata) -> StoredObject {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let modified = since.and_then(|since| u64::try_from(since.as_micros()).ok());
    StoredObject { bytes, version: version_of(metadata), modified, size: Some(metadata.len()) }
}

/// Returns the version of a file: one that is replaced by renaming has another inode, or at least
/// another time.
pub(super) fn version_of(metadata: &std::fs::Metadata) -> Version {
    use std::os::unix::fs::MetadataExt;
    let e_tag = format!("{:x}-{:x}.{:x}-{:x}", metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len());
    Version { e_tag: Some(e_tag), version: None }
}

/// Reads `length` bytes from `offset`. The file's own size bounds the allocation, not the length
/// that a reference claims.
pub(super) fn read_exactly(file: &File, key: &str, offset: u64, length: u64) -> Result<Bytes> {
    let size = file.metadata().map_err(|e| Error::io(key, e))?.len();
    let available = size.saturating_sub(offset);
    if available < length {
        return Err(too_short(key, offset, length, available));
    }
    let capacity = usize::try_from(length).map_err(|e| Error::with_source(ErrorKind::OutOfMemory, key, e))?;
    let mut buffer = memory::large_buffer(capacity);
    while buffer.len() < capacity {
        let at = offset.saturating_add(buffer.len() as u64);
        let spare = rustix::buffer::spare_capacity(&mut buffer);
        match rustix::io::pread(file, spare, at) {
            Ok(0) => return Err(too_short(key, offset, length, buffer.len() as u64)),
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(e) => return Err(Error::io(key, e.into())),
        }
    }
    // A buffer that was used before may be larger.
    buffer.truncate(capacity);
    Ok(buffer.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Condition, ObjectInfo, open_directory};
    use super::*;

    fn storage(directory: &Path) -> Arc<dyn Storage> {
        open_directory(directory).unwrap()
    }

    #[tokio::test]
    async fn objects_are_read_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("chunks")).unwrap();
        std::fs::write(dir.path().join("chunks/A"), b"0123456789").unwrap();
        let storage = storage(dir.path());
        assert_eq!(storage.get("chunks/A", 10).await.unwrap(), "0123456789");
        assert_eq!(storage.get("chunks/A", 9).await.unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(storage.get_range("chunks/A", 3, 4).await.unwrap(), "3456");
        assert_eq!(storage.get_range("chunks/A", 8, 3).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(storage.get_range("chunks/A", u64::MAX, 1).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(storage.get_range("chunks/A", 0, u64::MAX).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(storage.get("chunks/B", 10).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(storage.get("chunks", 10).await.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn links_are_followed_only_within_the_repository() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(dir.path().join("A"), b"inside").unwrap();
        std::os::unix::fs::symlink("A", dir.path().join("B")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("C")).unwrap();
        std::os::unix::fs::symlink("../../../../../etc/hostname", dir.path().join("D")).unwrap();
        let storage = storage(dir.path());
        assert_eq!(storage.get("B", 10).await.unwrap(), "inside");
        for key in ["C", "D", "../etc/hostname"] {
            let error = storage.get(key, 1000).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{key}: {error}");
        }
    }

    #[tokio::test]
    async fn puts_are_conditional_and_listed() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(dir.path());
        storage.put("refs/x", "one".into(), Condition::Absent).await.unwrap();
        let again = storage.put("refs/x", "two".into(), Condition::Absent).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Contended);
        let (_, seen) = storage.get_versioned("refs/x", 100).await.unwrap();
        assert_eq!(storage.get_changed("refs/x", 100, &seen).await.unwrap(), None);
        let old = seen.clone();
        storage.put("refs/x", "three".into(), Condition::Always).await.unwrap();
        let stale = storage.put("refs/x", "four".into(), Condition::Unchanged(seen)).await.unwrap_err();
        assert_eq!(stale.kind(), ErrorKind::Contended);
        let (bytes, changed) = storage.get_changed("refs/x", 100, &old).await.unwrap().unwrap();
        assert_eq!((&*bytes, storage.get_versioned("refs/x", 100).await.unwrap().1), (&b"three"[..], changed));
        let (_, seen) = storage.get_versioned("refs/x", 100).await.unwrap();
        storage.put("refs/x", "three".into(), Condition::Unchanged(seen)).await.unwrap();
        let (_, seen) = storage.get_versioned("refs/x", 100).await.unwrap();
        let gone = storage.put("refs/y", "four".into(), Condition::Unchanged(seen)).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Contended);
        assert_eq!(storage.get("refs/x", 100).await.unwrap(), "three");
        let listed = storage.list("refs/").await.unwrap();
        let modified = std::fs::metadata(dir.path().join("refs/x")).unwrap().modified().unwrap();
        let modified = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
        assert_eq!(listed, [ObjectInfo { key: "refs/x".into(), size: 5, modified }]);
        assert!(storage.list("chunks/").await.unwrap().is_empty());
        let (_, seen) = storage.get_versioned("refs/x", 100).await.unwrap();
        storage.put("refs/x", "five".into(), Condition::Always).await.unwrap();
        let stale = storage.delete_unchanged("refs/x", 100, &seen).await.unwrap_err();
        assert_eq!((stale.kind(), &*storage.get("refs/x", 100).await.unwrap()), (ErrorKind::Contended, &b"five"[..]));
        let (_, seen) = storage.get_versioned("refs/x", 100).await.unwrap();
        storage.delete_unchanged("refs/x", 100, &seen).await.unwrap();
        assert_eq!(storage.get("refs/x", 100).await.unwrap_err().kind(), ErrorKind::NotFound);
        for key in ["refs/x", "none/x"] {
            let gone = storage.delete_unchanged(key, 100, &seen).await.unwrap_err();
            assert_eq!(gone.kind(), ErrorKind::Contended);
        }
    }

    #[test]
    fn what_is_cached_is_read_at_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("A"), b"0123456789").unwrap();
        let storage = storage(dir.path());
        let file = storage.local_files().unwrap().open("A").unwrap();
        let mut buffer = [0; 4];
        assert!(LocalFiles::read_now(&file, &mut buffer, 8).is_none(), "beyond the end");
        if LocalFiles::read_now(&file, &mut buffer, 2).is_some() {
            assert_eq!(&buffer, b"2345");
        }
        assert!(matches!(storage.local_files().unwrap().open_now("missing"), None | Some(Err(_))));
    }
}
