//! Reads and writes the bytes of files.
//!
//! A file's bytes are in the base, in a chunk that it shares with another file, or in a data file of the scratch directory. The first
//! write copies them up; the amount fetched depends on the write: nothing for a file that is truncated or written from beginning to end,
//! everything for a write in the middle, unless the file is remote and large: then only the part that a commit needs
//! ([`super::sparse_copy`]).
//!
//! A data file that a commit has linked into the repository is never written to: it is copied first ([`Files::is_unshared`]).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;

use super::frozen::FrozenFile;
use super::opens::Partial;
use super::{Base, Ino, Locked, WorkingTree, no_such};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::reader::Data;
use crate::scratch::data::Files;
use crate::scratch::record::{DataFileId, EntryId, Meta, Record, Source, Time};

/// Bytes moved at once by a copy up.
const STEP: u64 = 1 << 20;

impl WorkingTree {
    /// Reads up to `size` bytes of inode `number` from `offset` on: fewer only at the end of the file.
    pub async fn read(&self, number: Ino, offset: u64, size: u32) -> Result<Data> {
        self.complete_number(number).await?;
        let upper = {
            let mut locked = self.lock();
            match locked.state.by_number(number) {
                None => None,
                Some(id) => {
                    let source = locked.state.get(id).and_then(|inode| inode.source().cloned());
                    let source = source.ok_or_else(|| no_such(number))?;
                    let file = match source {
                        Source::Data(data) if locked.state.borrowed(data).is_none() => {
                            Some(self.file(&mut locked, number, data))
                        }
                        _ => None,
                    };
                    drop(locked);
                    let file = file.transpose().context(|| self.describe(number))?;
                    Some((id, source, file))
                }
            }
        };
        match upper {
            None => self.base().tree.read(number.0, offset, size).await,
            Some((_, _, Some(file))) => read_file(&file, offset, size).map(Data::Bytes),
            Some((id, source, None)) => {
                self.read_source(id, &source, offset, size).await.context(|| self.describe(number))
            }
        }
    }

    /// Returns the data file of an inode, kept open as long as the inode is open.
    fn file(&self, locked: &mut Locked, number: Ino, data: DataFileId) -> Result<Arc<File>> {
        let open = locked.opens.get_mut(number);
        if let Some(file) = open.as_ref().and_then(|open| open.file.as_ref()) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(self.files.open(data)?);
        if let Some(open) = open {
            open.file = Some(Arc::clone(&file));
        }
        Ok(file)
    }

    async fn read_source(&self, id: EntryId, source: &Source, offset: u64, size: u32) -> Result<Data> {
        let base = self.base();
        match source {
            Source::Stored(stored) => base.tree.read_stored(&stored.0, offset, size).await,
            Source::Lower => {
                let place = self.lock().state.get(id).and_then(|inode| inode.lower.clone());
                let place = place.ok_or_else(|| no_such(id))?;
                base.tree.read(base.tree.table().inode(&place), offset, size).await
            }
            Source::Data(data) => self.read_data(id, *data, offset, size).await.map(Data::Bytes),
        }
    }

    /// Reads all bytes of `file`; fails if there are more than `limit`.
    pub async fn whole(&self, file: &FrozenFile, limit: u64) -> Result<Bytes> {
        self.whole_over(&self.base(), file, limit).await
    }

    /// Reads all bytes of `file` over `base`, as [`WorkingTree::whole`] does.
    pub(super) async fn whole_over(&self, base: &Base, file: &FrozenFile, limit: u64) -> Result<Bytes> {
        let number = file.lower.as_ref().map(|place| base.tree.table().inode(place));
        let size = match (&file.source, number) {
            (Source::Data(data), _) => self.files.stat(*data)?.size,
            (Source::Stored(stored), _) => stored.0.length(),
            (Source::Lower, Some(number)) => base.tree.attributes(number).await?.size,
            (Source::Lower, None) => 0,
        };
        if size > limit {
            return Err(Error::new(ErrorKind::OutOfMemory, format!("{size} bytes; {limit} are the most")));
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let (at, left) = (bytes.len() as u64, size - bytes.len() as u64);
            let left = u32::try_from(left.min(STEP)).unwrap_or(u32::MAX);
            let part = match (&file.source, number) {
                (Source::Data(data), _) => Data::Bytes(self.read_data(file.id, *data, at, left).await?),
                (Source::Stored(stored), _) => base.tree.read_stored(&stored.0, at, left).await?,
                (Source::Lower, Some(number)) => base.tree.read(number, at, left).await?,
                (Source::Lower, None) => break,
            };
            if part.is_empty() {
                break;
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes.into())
    }

    /// Writes `bytes` at `offset` of inode `number` if that is possible without waiting; returns `None` if it is not.
    pub fn write_now(&self, number: Ino, offset: u64, bytes: &[u8]) -> Option<Result<()>> {
        let _gate = self.gate.try_read().ok().filter(|_| !self.is_undecided() && !self.may_land())?;
        let file = {
            let mut locked = self.lock();
            let id = locked.state.by_number(number)?;
            match self.writable_file(&mut locked, id) {
                Ok(file) => file?,
                Err(error) => return Some(Err(error)),
            }
        };
        match write_file(&file, bytes, offset) {
            // [`WorkingTree::write`] may find room.
            Err(error) if error.kind() == ErrorKind::NoSpace => None,
            written => Some(written),
        }
    }

    /// Writes `bytes` at `offset` of inode `number`.
    pub async fn write(&self, number: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.write_once(number, offset, bytes).await {
            Err(error) if error.kind() == ErrorKind::NoSpace && self.free_space().await => {
                self.write_once(number, offset, bytes).await
            }
            written => written,
        }
    }

    async fn write_once(&self, number: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        let _gate = self.enter().await?;
        let id = {
            let mut locked = self.lock();
            let id = self.promote(&mut locked, number)?;
            match self.writable_file(&mut locked, id)? {
                Some(file) => {
                    drop(locked);
                    return write_file(&file, bytes, offset);
                }
                None => id,
            }
        };
        let _alone = self.exclusively(id).await;
        if self.write_sparse(id, offset, bytes).await? || self.overwrite_range(id, offset, bytes).await? {
            return Ok(());
        }
        self.complete_alone(id).await?;
        if self.is_sparse(id) || self.create_sparse(id).await? {
            return self.write_sparse(id, offset, bytes).await.map(drop);
        }
        let file = self.copy_up_locked(id, u64::MAX).await?;
        write_file(&file, bytes, offset)
    }

    /// Returns the data file of inode `id` if it has one that may be written to and lacks nothing.
    fn writable_file(&self, locked: &mut Locked, id: EntryId) -> Result<Option<Arc<File>>> {
        let Some(inode) = locked.state.get(id) else { return Err(no_such(id)) };
        let (number, Some(Source::Data(data))) = (inode.number, inode.source().cloned()) else { return Ok(None) };
        if locked.state.borrowed(data).is_some() {
            return Ok(None);
        }
        let file = self.file(locked, number, data)?;
        Ok(Files::is_unshared(&file)?.then_some(file))
    }

    /// Takes a write that begins at, or continues from, the beginning of a file without a data file. Returns false for other writes.
    async fn overwrite_range(&self, id: EntryId, offset: u64, bytes: &[u8]) -> Result<bool> {
        let (number, partial) = {
            let locked = self.lock();
            let inode = locked.state.get(id).ok_or_else(|| no_such(id))?;
            if matches!(inode.source(), Some(Source::Data(_)) | None) {
                return Ok(false);
            }
            (inode.number, locked.opens.get(inode.number).and_then(|open| open.partial.clone()))
        };
        let partial = match partial {
            Some(partial) => partial,
            None if offset == 0 => {
                let old_size = self.attributes_of(id).await?.size;
                let data = self.lock().state.next_data_file();
                let file = Arc::new(self.files.create(data)?);
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
                self.files.remove(partial.number);
            }
            error
        };
        write_file(&partial.file, bytes, offset).map_err(forget)?;
        let mut partial = partial.clone();
        partial.covered += bytes.len() as u64;
        if partial.covered >= partial.old_size {
            self.install_partial(id, number, &partial).map_err(forget)?;
            return Ok(true);
        }
        let open = self.lock().opens.get_mut(number).map(|open| open.partial = Some(partial.clone())).is_some();
        if !open {
            // No handle is left whose release would complete it.
            self.complete_partial_file(id, number, &partial).await?;
        }
        Ok(true)
    }

    /// Makes the data file of a partly written file the file's bytes.
    fn install_partial(&self, id: EntryId, number: Ino, partial: &Partial) -> Result<()> {
        self.write_out_early(partial.number);
        let mut locked = self.lock();
        self.record(&mut locked, Record::SetSource { id, source: Source::Data(partial.number), at: Time::now() })?;
        if let Some(open) = locked.opens.get_mut(number) {
            open.partial = None;
            open.file = Some(Arc::clone(&partial.file));
        }
        Ok(())
    }

    /// Completes a partly written file: the old bytes after the written ones are fetched or recorded as missing.
    async fn complete_partial_file(&self, id: EntryId, number: Ino, partial: &Partial) -> Result<()> {
        if self.make_sparse(id, partial.number, &partial.file, partial.covered..partial.old_size).await? {
            return Ok(());
        }
        let source = self.lock().state.get(id).and_then(|inode| inode.source().cloned());
        let source = source.ok_or_else(|| no_such(id))?;
        let fetched = self.fetch(id, &source, &partial.file, partial.covered..partial.old_size).await;
        fetched.context(|| self.describe(number))?;
        self.install_partial(id, number, partial)
    }

    async fn fetch(&self, id: EntryId, source: &Source, into: &File, range: std::ops::Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let size = u32::try_from((range.end - at).min(STEP)).unwrap_or(u32::MAX);
            let bytes = self.read_source(id, source, at, size).await?;
            if bytes.is_empty() {
                break;
            }
            write_file(into, &bytes, at)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    pub(super) async fn complete_number(&self, number: Ino) -> Result<()> {
        let id = {
            let locked = self.lock();
            let partial = locked.opens.get(number).is_some_and(|open| open.partial.is_some());
            locked.state.by_number(number).filter(|_| partial)
        };
        match id {
            Some(id) => self.complete_partial(id).await,
            None => Ok(()),
        }
    }

    /// Completes inode `id` if it is partly written.
    pub(super) async fn complete_partial(&self, id: EntryId) -> Result<()> {
        let _alone = self.exclusively(id).await;
        self.complete_alone(id).await
    }

    async fn complete_alone(&self, id: EntryId) -> Result<()> {
        let (number, partial) = {
            let locked = self.lock();
            let number = locked.state.get(id).ok_or_else(|| no_such(id))?.number;
            (number, locked.opens.get(number).and_then(|open| open.partial.clone()))
        };
        let Some(partial) = partial else { return Ok(()) };
        self.complete_partial_file(id, number, &partial).await
    }

    /// Copies up inode `id` if needed. Returns its data file, complete and writable.
    pub(super) async fn own(&self, id: EntryId) -> Result<Arc<File>> {
        if let Some(file) = self.writable_file(&mut self.lock(), id)? {
            return Ok(file);
        }
        let _alone = self.exclusively(id).await;
        self.copy_up_locked(id, u64::MAX).await
    }

    /// Copies up at least the first `keep` bytes, as [`WorkingTree::own`] does for all.
    async fn copy_up_locked(&self, id: EntryId, keep: u64) -> Result<Arc<File>> {
        self.complete_alone(id).await?;
        self.complete_sparse_locked(id).await?;
        let (source, number, data) = {
            let mut locked = self.lock();
            let inode = locked.state.get(id).ok_or_else(|| no_such(id))?;
            let (source, number) = (inode.source().cloned(), inode.number);
            // If none of the old bytes are needed, it does not matter that they were removed.
            let is_lost = match &source {
                Some(Source::Data(old)) if keep == 0 => self.files.find(*old)?.is_none(),
                _ => false,
            };
            if !is_lost && let Some(file) = self.writable_file(&mut locked, id)? {
                return Ok(file);
            }
            // A data file that a commit took, but that passthrough handles still read, has the same bytes.
            let left = locked.opens.get(number).and_then(|open| open.backing.clone());
            if let (Some((data, file)), false) = (left, matches!(source, Some(Source::Data(_)))) {
                self.record(&mut locked, Record::SetSource { id, source: Source::Data(data), at: Time::now() })?;
                if let Some(open) = locked.opens.get_mut(number) {
                    open.file = Some(Arc::clone(&file));
                }
                return Ok(file);
            }
            (source, number, locked.state.next_data_file())
        };
        let source = source
            .ok_or_else(|| Error::new(ErrorKind::IsADirectory, format!("{} is no file", self.describe(number))))?;
        // Copy up does not change the file; the write that follows does. A file whose bytes were removed has no times.
        let times = self.attributes_of(id).await.map(|attributes| attributes.meta);
        let brought = self.copy_bytes(id, &source, data, keep).await.context(|| self.describe(number));
        if keep > 0 {
            self.write_out_early(data);
        }
        let brought = self.install_copy(id, (data, brought), &source, times);
        self.unlink_if_nearly_full().await;
        brought
    }

    /// Makes data file `data`, which has been copied up, the bytes of inode `id` in place of `source`.
    fn install_copy(
        &self,
        id: EntryId,
        (data, brought): (DataFileId, Result<File>),
        source: &Source,
        times: Result<Meta>,
    ) -> Result<Arc<File>> {
        let mut locked = self.lock();
        let number = match locked.state.get(id) {
            Some(inode) => inode.number,
            None => {
                self.files.remove(data);
                return Err(no_such(id));
            }
        };
        let at = times.as_ref().map_or_else(|_| Time::now(), |times| times.mtime);
        let moved = Record::SetSource { id, source: Source::Data(data), at };
        let dated = brought.and_then(|file| match &times {
            Ok(times) => self.files.set_times(data, times.atime, times.mtime).map(|()| file),
            Err(_) => Ok(file),
        });
        let file = match dated.and_then(|file| self.record(&mut locked, moved).map(|()| Arc::new(file))) {
            Ok(file) => file,
            Err(error) => {
                // On a full disk a partial file would take up needed space.
                self.files.remove(data);
                return Err(error);
            }
        };
        if let Some(open) = locked.opens.get_mut(number) {
            open.file = Some(Arc::clone(&file));
        }
        if let Source::Data(old) = source {
            self.retire(&mut locked, *old);
        }
        Ok(file)
    }

    /// Creates data file `data` from the first `keep` bytes of inode `id`, which are at `source`.
    async fn copy_bytes(&self, id: EntryId, source: &Source, data: DataFileId, keep: u64) -> Result<File> {
        match source {
            Source::Data(_) if keep == 0 => self.files.create(data),
            Source::Data(old) => {
                let (files, old) = (self.files.clone(), self.files.open(*old)?);
                tokio::task::spawn_blocking(move || files.copy(&old, data, keep))
                    .await
                    .map_err(|e| Error::with_source(ErrorKind::Io, "copying a scratch file", e))?
            }
            _ => {
                let size = self.attributes_of(id).await?.size;
                let file = self.files.create(data)?;
                self.fetch(id, source, &file, 0..size.min(keep)).await?;
                Ok(file)
            }
        }
    }

    /// Cuts inode `id` to `size` bytes, or extends it with zeros.
    pub(super) async fn resize(&self, id: EntryId, size: u64) -> Result<()> {
        let _alone = self.exclusively(id).await;
        self.complete_alone(id).await?;
        // Most resizes empty a file and need none of its bytes.
        let is_sparse = self.is_sparse(id) || (size > 0 && self.create_sparse(id).await?);
        let resized = if is_sparse {
            self.resize_sparse(id, size).map(drop)
        } else {
            self.copy_up_locked(id, size).await?.set_len(size).map_err(|e| Error::io("resizing", e))
        };
        {
            let locked = self.lock();
            // There may be no handle whose release would record the change.
            self.record_change(&locked, id);
            if let (0, Some(Source::Data(data))) = (size, locked.state.get(id).and_then(|inode| inode.source())) {
                locked.journal.durable().mark_emptied(*data);
            }
        }
        self.uploads.enqueue_closed(id);
        resized
    }

    /// Waits until no other task copies up or completes the same file, and keeps other tasks out.
    pub(super) async fn exclusively(&self, id: EntryId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut busy = self.busy.lock();
            busy.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(busy.entry(id).or_default())
        };
        turn.lock_owned().await
    }

    /// Makes the bytes of inode `number` and all names durable.
    pub async fn sync(&self, number: Option<Ino>) -> Result<()> {
        if let Some(number) = number {
            self.complete_number(number).await?;
        }
        let (file, durable) = {
            let mut locked = self.lock();
            let source = number.and_then(|number| locked.source_of(number));
            let file = match (number, source) {
                (Some(number), Some(Source::Data(data))) => Some(self.file(&mut locked, number, data)?),
                _ => None,
            };
            (file, Arc::clone(locked.journal.durable()))
        };
        tokio::task::spawn_blocking(move || {
            if let Some(file) = file {
                file.sync_data().map_err(|e| Error::io("flushing to the scratch directory", e))?;
            }
            durable.flush()
        })
        .await
        .map_err(|e| Error::with_source(ErrorKind::Io, "flushing", e))?
    }

    /// Completes inode `number` on `close`, which reports whether all written bytes could be kept.
    pub async fn flush(&self, number: Ino) -> Result<()> {
        self.complete_number(number).await
    }

    /// Allocates, punches or moves bytes as `fallocate(2)` does with `mode`.
    pub async fn allocate(&self, number: Ino, offset: u64, length: u64, mode: i32) -> Result<()> {
        let _gate = self.enter().await?;
        let id = {
            let mut locked = self.lock();
            self.promote(&mut locked, number)?
        };
        let file = self.own(id).await?;
        let flags = rustix::fs::FallocateFlags::from_bits_retain(mode.cast_unsigned());
        rustix::fs::fallocate(&*file, flags, offset, length).map_err(|e| Error::io("fallocate", e.into()))
    }

    /// Finds the next data or hole as `lseek(2)` does; returns `None` beyond the end.
    pub async fn seek(&self, number: Ino, offset: u64, hole: bool) -> Result<Option<u64>> {
        self.complete_number(number).await?;
        let file = {
            let mut locked = self.lock();
            match locked.source_of(number) {
                Some(Source::Data(data)) if locked.state.borrowed(data).is_none() => {
                    Some(self.file(&mut locked, number, data)?)
                }
                // In a sparse copy, missing ranges look like holes.
                _ => None,
            }
        };
        if let Some(file) = file {
            let from = if hole { rustix::fs::SeekFrom::Hole(offset) } else { rustix::fs::SeekFrom::Data(offset) };
            return match rustix::fs::seek(&*file, from) {
                Ok(found) => Ok(Some(found)),
                Err(rustix::io::Errno::NXIO) => Ok(None),
                Err(errno) => Err(Error::io("lseek", errno.into())),
            };
        }
        let size = self.attributes(number).await?.size;
        Ok((offset < size).then_some(if hole { size } else { offset }))
    }
}

pub(super) fn read_file(file: &File, offset: u64, size: u32) -> Result<Bytes> {
    let mut bytes = vec![0; size as usize];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("reading a scratch file", e)),
        }
    }
    bytes.truncate(done);
    Ok(bytes.into())
}

pub(super) fn write_file(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    file.write_all_at(bytes, offset).map_err(|e| Error::io("writing to the scratch directory", e))
}
