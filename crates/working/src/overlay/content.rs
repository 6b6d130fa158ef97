//! Reads and writes the bytes of files.
//!
//! A file's bytes are in the base, in a chunk that it shares with another file, or in a data file
//! of the scratch directory. The first write copies them up; the amount fetched depends on the
//! write: nothing for a file that is truncated or written from beginning to end, everything for a
//! write in the middle, unless the file is remote and large: then only the part that a commit needs
//! ([`super::sparse_copy`]).
//!
//! A data file that a commit has linked into the repository is never written to: it is copied first
//! ([`Files::is_unshared`]).

use std::fs::File;
use std::sync::Arc;

use super::file_locks::FileLock;
use super::opens::Partial;
use super::sparse_content::SparseCopies;
use super::upper::Upper;
use super::{Base, Ino, Locked, no_such};
use crate::scratch::data::{Files, read_file, write_file};
use crate::scratch::record::{DataFileId, EntryId, Record, Source, Time};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_repo::reader::Data;
use icechunkfs_tree::tree::nodes::TreePlace;

/// Bytes moved at once.
const STEP: u64 = 1 << 20;

/// Copies `range` of the bytes that `read` returns, or as many as there are, to `into`, `shift`
/// bytes after their old place. Returns the number of bytes copied.
pub(super) async fn copy_steps<F: Future<Output = Result<Data>>>(
    range: std::ops::Range<u64>,
    into: &File,
    shift: i64,
    read: impl Fn(u64, u32) -> F,
) -> Result<u64> {
    let mut at = range.start;
    while at < range.end {
        let bytes = read(at, u32::try_from((range.end - at).min(STEP)).unwrap_or(u32::MAX)).await?;
        if bytes.is_empty() {
            break;
        }
        write_file(into, &bytes, at.wrapping_add_signed(shift))?;
        at += bytes.len() as u64;
    }
    Ok(at - range.start)
}

/// Bytes of files, and what goes with them: sizes, times, owners.
#[derive(Debug)]
pub struct FileContents {
    pub(super) upper: Arc<Upper>,
    pub(super) sparse: SparseCopies,
}

impl FileContents {
    pub(super) fn new(upper: &Arc<Upper>) -> Self {
        FileContents { upper: Arc::clone(upper), sparse: SparseCopies::new(upper) }
    }
}

impl FileContents {
    /// Reads up to `size` bytes of inode `number` from `offset` on: fewer only at the end of the
    /// file.
    pub async fn read(&self, number: Ino, offset: u64, size: u32) -> Result<Data> {
        self.complete_number(number).await?;
        // One view of the number: the tree may move to another snapshot meanwhile.
        let (base, upper) = {
            let mut locked = self.upper.lock();
            let base = Arc::clone(&locked.base);
            match locked.state.by_number(number) {
                None => (base, None),
                Some(id) => {
                    let inode = locked.state.get(id);
                    let (source, place) =
                        inode.map_or((None, None), |inode| (inode.source().cloned(), inode.lower.clone()));
                    let source = source.ok_or_else(|| no_such(number))?;
                    let file = match source {
                        Source::Data(data) if locked.state.borrowed(data).is_none() => {
                            Some(self.file_to_read(&mut locked, number, data))
                        }
                        _ => None,
                    };
                    drop(locked);
                    let file = file.transpose().context(|| self.upper.describe(number))?;
                    (base, Some((id, source, place, file)))
                }
            }
        };
        match upper {
            None => base.tree.read(number, offset, size).await,
            Some((_, _, _, Some(file))) => read_file(&file, offset, size).map(Data::Bytes),
            Some((id, source, place, None)) => {
                let read = self.read_source(id, &source, place.as_ref(), &base, offset, size).await;
                read.context(|| self.upper.describe(number))
            }
        }
    }

    /// Returns data file `data` of an inode, kept open as long as the inode is open.
    fn file(&self, locked: &mut Locked, number: Ino, data: DataFileId) -> Result<Arc<File>> {
        let open = locked.open_files.get_mut(&number);
        if let Some(file) = open.as_ref().and_then(|open| open.file.as_ref()) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(self.upper.files.open(data)?);
        if let Some(open) = open {
            open.file = Some(Arc::clone(&file));
        }
        Ok(file)
    }

    /// Returns data file `data` of an inode for reading. Without a program that writes, it is not
    /// kept open.
    fn file_to_read(&self, locked: &mut Locked, number: Ino, data: DataFileId) -> Result<Arc<File>> {
        let is_written = locked.open_files.get(&number).is_some_and(|open| open.writers > 0 || open.file.is_some());
        if is_written { self.file(locked, number, data) } else { self.upper.files.open_to_read(data).map(Arc::new) }
    }

    /// Reads the bytes at `source` of inode `id`, which is over `place` of `base`.
    async fn read_source(
        &self,
        id: EntryId,
        source: &Source,
        place: Option<&TreePlace>,
        base: &Base,
        offset: u64,
        size: u32,
    ) -> Result<Data> {
        match source {
            Source::Stored(stored) => base.tree.read_stored(&stored.0, offset, size).await,
            Source::Lower => {
                let place = place.ok_or_else(|| no_such(id))?;
                base.tree.read(base.tree.table().inode(place), offset, size).await
            }
            Source::Data(data) => self.sparse.read_data(id, *data, offset, size).await.map(Data::Bytes),
        }
    }

    /// Writes `bytes` at `offset` of inode `number` if that is possible without waiting; returns
    /// `None` if it is not.
    pub fn write_now(&self, number: Ino, offset: u64, bytes: &[u8]) -> Option<Result<()>> {
        let _shared = self.upper.enter_now()?;
        let file = {
            let mut locked = self.upper.lock();
            let id = locked.state.by_number(number)?;
            match self.writable_file(&mut locked, id) {
                Ok(file) => file?,
                Err(error) => return Some(Err(error)),
            }
        };
        match write_file(&file, bytes, offset) {
            // [`FileContents::write`] may find room.
            Err(error) if error.kind() == ErrorKind::NoSpace => None,
            written => Some(written),
        }
    }

    /// Writes `bytes` at `offset` of inode `number`.
    pub async fn write(&self, number: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.write_once(number, offset, bytes).await {
            Err(error) if error.kind() == ErrorKind::NoSpace && self.upper.free_space().await => {
                self.write_once(number, offset, bytes).await
            }
            written => written,
        }
    }

    async fn write_once(&self, number: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        let guard = self.upper.enter().await?;
        let id = {
            let mut locked = self.upper.lock();
            let id = locked.promote(&guard, number)?;
            match self.writable_file(&mut locked, id)? {
                Some(file) => {
                    drop(locked);
                    return write_file(&file, bytes, offset);
                }
                None => id,
            }
        };
        let file_lock = self.upper.file_locks.lock(id).await;
        if self.sparse.write_sparse(&file_lock, offset, bytes).await?
            || self.overwrite_range(&file_lock, offset, bytes).await?
        {
            return Ok(());
        }
        self.complete_overwrite(&file_lock).await?;
        if self.sparse.is_sparse(id) || self.sparse.create_sparse(&file_lock).await? {
            return self.sparse.write_sparse(&file_lock, offset, bytes).await.map(drop);
        }
        let file = self.copy_up(&file_lock, u64::MAX).await?;
        write_file(&file, bytes, offset)
    }

    /// Returns the data file of inode `id` if it has one that may be written to and lacks nothing.
    pub(super) fn writable_file(&self, locked: &mut Locked, id: EntryId) -> Result<Option<Arc<File>>> {
        let Some(inode) = locked.state.get(id) else { return Err(no_such(id)) };
        let (number, Some(data)) = (inode.number, inode.data_file()) else { return Ok(None) };
        if locked.state.borrowed(data).is_some() {
            return Ok(None);
        }
        let file = self.file(locked, number, data)?;
        Ok(Files::is_unshared(&file)?.then_some(file))
    }

    /// Takes a write that begins at, or continues from, the beginning of a file without a data
    /// file. Returns false for other writes.
    async fn overwrite_range(&self, file_lock: &FileLock, offset: u64, bytes: &[u8]) -> Result<bool> {
        let id = file_lock.id();
        let (number, partial) = {
            let locked = self.upper.lock();
            let inode = locked.state.get(id).ok_or_else(|| no_such(id))?;
            if matches!(inode.source(), Some(Source::Data(_)) | None) {
                return Ok(false);
            }
            (inode.number, locked.open_files.get(&inode.number).and_then(|open| open.partial.clone()))
        };
        let partial = match partial {
            Some(partial) => partial,
            None if offset == 0 => {
                let old_size = self.upper.attributes_of(id).await?.size;
                let data = self.upper.lock().state.fresh.next_data_file();
                let file = Arc::new(self.upper.files.create(data)?);
                Partial { number: data, file, covered: 0, old_size }
            }
            None => return Ok(false),
        };
        if offset != partial.covered {
            return Ok(false);
        }
        let is_new = partial.covered == 0;
        let forget = |error| {
            // No other task knows of the file, and the disk may be full.
            if is_new {
                self.upper.files.remove(partial.number);
            }
            error
        };
        write_file(&partial.file, bytes, offset).map_err(forget)?;
        let mut partial = partial.clone();
        partial.covered += bytes.len() as u64;
        if partial.covered >= partial.old_size {
            self.install_partial(file_lock, number, &partial).map_err(forget)?;
            return Ok(true);
        }
        let open =
            self.upper.lock().open_files.get_mut(&number).map(|open| open.partial = Some(partial.clone())).is_some();
        if !open {
            // No handle is left whose release would complete it.
            self.complete_partial_file(file_lock, number, &partial).await?;
        }
        Ok(true)
    }

    /// Makes the data file of a partly written file the file's bytes.
    fn install_partial(&self, file_lock: &FileLock, number: Ino, partial: &Partial) -> Result<()> {
        let id = file_lock.id();
        if !self.upper.lock().is_unwritten(id) {
            self.upper.durable.write_out_early(partial.number);
        }
        let mut locked = self.upper.lock();
        // It may be recorded as a sparse copy that then could not take the file's place.
        locked.cover(partial.number, &(0..u64::MAX))?;
        locked.record(Record::SetSource { id, source: Source::Data(partial.number), at: Time::now() })?;
        if let Some(open) = locked.open_files.get_mut(&number) {
            open.partial = None;
            open.file = Some(Arc::clone(&partial.file));
        }
        Ok(())
    }

    /// Completes a partly written file: the old bytes after the written ones are fetched or
    /// recorded as missing.
    async fn complete_partial_file(&self, file_lock: &FileLock, number: Ino, partial: &Partial) -> Result<()> {
        let id = file_lock.id();
        if self.sparse.make_sparse(file_lock, partial.number, &partial.file, partial.covered..partial.old_size).await? {
            return Ok(());
        }
        let source = self.upper.lock().state.get(id).and_then(|inode| inode.source().cloned());
        let source = source.ok_or_else(|| no_such(id))?;
        let fetched = self.fetch(id, &source, &partial.file, partial.covered..partial.old_size).await;
        fetched.context(|| self.upper.describe(number))?;
        self.install_partial(file_lock, number, partial)
    }

    /// Copies `range` of the bytes of inode `id`, which are at `source`, to `into`.
    pub(super) async fn fetch(
        &self,
        id: EntryId,
        source: &Source,
        into: &File,
        range: std::ops::Range<u64>,
    ) -> Result<()> {
        let (base, place) = {
            let locked = self.upper.lock();
            (Arc::clone(&locked.base), locked.state.get(id).and_then(|inode| inode.lower.clone()))
        };
        let read = |at, size| self.read_source(id, source, place.as_ref(), &base, at, size);
        copy_steps(range, into, 0, read).await.map(drop)
    }

    /// Completes inode `number` if it is partly written. `close` does so, and reports whether all
    /// written bytes could be kept.
    pub async fn complete_number(&self, number: Ino) -> Result<()> {
        let id = {
            let locked = self.upper.lock();
            let partial = locked.open_files.get(&number).is_some_and(|open| open.partial.is_some());
            locked.state.by_number(number).filter(|_| partial)
        };
        let Some(id) = id else { return Ok(()) };
        self.complete_overwrite(&self.upper.file_locks.lock(id).await).await
    }

    /// Completes a file if it is partly written.
    pub(super) async fn complete_overwrite(&self, file_lock: &FileLock) -> Result<()> {
        let id = file_lock.id();
        let (number, partial) = {
            let locked = self.upper.lock();
            let number = locked.state.get(id).ok_or_else(|| no_such(id))?.number;
            (number, locked.open_files.get(&number).and_then(|open| open.partial.clone()))
        };
        let Some(partial) = partial else { return Ok(()) };
        self.complete_partial_file(file_lock, number, &partial).await
    }

    /// Makes the bytes of inode `number` and all names durable.
    pub async fn sync(&self, number: Option<Ino>) -> Result<()> {
        if let Some(number) = number {
            self.complete_number(number).await?;
        }
        let file = {
            let mut locked = self.upper.lock();
            let source = number.and_then(|number| locked.source_of(number));
            match (number, source) {
                (Some(number), Some(Source::Data(data))) => Some((data, self.file(&mut locked, number, data)?)),
                _ => None,
            }
        };
        let durable = Arc::clone(&self.upper.durable);
        blocking(move || {
            let synced = file.map_or(Ok(()), |(data, file)| durable.sync_file(data, &file));
            // The journal has the mark of a file that could not be flushed.
            let flushed = durable.flush();
            synced.and(flushed)
        })
        .await
    }

    /// Allocates, punches or moves bytes as `fallocate(2)` does with `mode`.
    pub async fn allocate(&self, number: Ino, offset: u64, length: u64, mode: i32) -> Result<()> {
        let guard = self.upper.enter().await?;
        let id = {
            let mut locked = self.upper.lock();
            locked.promote(&guard, number)?
        };
        let file = self.own(id).await?;
        let flags = rustix::fs::FallocateFlags::from_bits_retain(mode.cast_unsigned());
        rustix::fs::fallocate(&*file, flags, offset, length).map_err(|e| Error::io("fallocate", e.into()))
    }

    /// Finds the next data or hole as `lseek(2)` does; returns `None` beyond the end.
    pub async fn seek(&self, number: Ino, offset: u64, hole: bool) -> Result<Option<u64>> {
        self.complete_number(number).await?;
        let file = {
            let mut locked = self.upper.lock();
            // In a sparse copy, missing ranges look like holes.
            locked.complete_data(number).map(|data| self.file(&mut locked, number, data)).transpose()?
        };
        if let Some(file) = file {
            let from = if hole { rustix::fs::SeekFrom::Hole(offset) } else { rustix::fs::SeekFrom::Data(offset) };
            return match rustix::fs::seek(&*file, from) {
                Ok(found) => Ok(Some(found)),
                Err(rustix::io::Errno::NXIO) => Ok(None),
                Err(errno) => Err(Error::io("lseek", errno.into())),
            };
        }
        let size = self.upper.attributes(number).await?.size;
        Ok((offset < size).then_some(if hole { size } else { offset }))
    }
}
