//! Copy-up: gives files of the base a data file with their bytes.

use std::fs::File;
use std::sync::Arc;

use super::content::FileContents;
use super::file_locks::FileLock;
use super::locked::Locked;
use super::no_such;
use super::node::Inode;
use crate::scratch::record::{DataFileId, EntryId, Meta, Record, Source, Time};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};

impl FileContents {
    /// Copies up inode `id` if needed. Returns its data file, complete and writable.
    pub(super) async fn own(&self, id: EntryId) -> Result<Arc<File>> {
        if let Some(file) = self.writable_file(&mut self.upper.lock(), id)? {
            return Ok(file);
        }
        let file_lock = self.upper.file_locks.lock(id).await;
        self.copy_up(&file_lock, u64::MAX).await
    }

    /// Copies up at least the first `keep` bytes, as [`FileContents::own`] does for all.
    pub(super) async fn copy_up(&self, file_lock: &FileLock, keep: u64) -> Result<Arc<File>> {
        let id = file_lock.id();
        self.complete_overwrite(file_lock).await?;
        self.sparse.complete_sparse_copy(file_lock).await?;
        let (source, number, data) = {
            let mut locked = self.upper.lock();
            let inode = locked.state.get(id).ok_or_else(|| no_such(id))?;
            let source = inode.source().cloned();
            let number = inode.number;
            // If none of the old bytes are needed, it does not matter that they were removed. A
            // file that could not be flushed gets a new data file, unless the kernel writes to the
            // old one.
            let is_backed = locked.open_files.get(&number).is_some_and(|open| open.passthrough_handles > 0);
            let is_lost = match &source {
                Some(Source::Data(old)) if keep == 0 => {
                    (self.upper.durable.has_flush_failed(*old) && !is_backed) || self.upper.files.find(*old)?.is_none()
                }
                _ => false,
            };
            if !is_lost && let Some(file) = self.writable_file(&mut locked, id)? {
                return Ok(file);
            }
            // A data file that a commit took, but that passthrough handles still read, has the same
            // bytes.
            let left = locked.open_files.get(&number).and_then(|open| open.backing.clone());
            if let (Some((data, file)), false) = (left, matches!(source, Some(Source::Data(_)))) {
                locked.record(Record::SetSource { id, source: Source::Data(data), at: Time::now() })?;
                if let Some(open) = locked.open_files.get_mut(&number) {
                    open.file = Some(Arc::clone(&file));
                }
                return Ok(file);
            }
            (source, number, locked.state.fresh.next_data_file())
        };
        let source = source.ok_or_else(|| {
            Error::new(ErrorKind::IsADirectory, format!("{} is not a file", self.upper.describe(number)))
        })?;
        // Copy up does not change the file; the write that follows does. A file whose bytes were
        // removed has no times.
        let times = self.upper.attributes_of(id).await.map(|attributes| attributes.meta);
        let brought = self.copy_bytes(id, &source, data, keep).await.context(|| self.upper.describe(number));
        if keep > 0 {
            if let Source::Data(old) = &source {
                self.upper.inherit_flush_failure(*old, data);
            }
            self.upper.durable.write_out_early(data);
        }
        let brought = self.install_copy(file_lock, data, brought, &source, times);
        self.upper.unlink_if_nearly_full().await;
        brought
    }

    /// Makes data file `data`, which has been copied up, the bytes of inode `id` in place of
    /// `source`.
    fn install_copy(
        &self,
        file_lock: &FileLock,
        data: DataFileId,
        brought: Result<File>,
        source: &Source,
        times: Result<Meta>,
    ) -> Result<Arc<File>> {
        let id = file_lock.id();
        let mut locked = self.upper.lock();
        let number = match locked.state.get(id) {
            Some(inode) => inode.number,
            None => {
                self.upper.files.remove(data);
                return Err(no_such(id));
            }
        };
        let at = times.as_ref().map_or_else(|_| Time::now(), |times| times.mtime);
        let moved = Record::SetSource { id, source: Source::Data(data), at };
        let dated = brought.and_then(|file| match &times {
            Ok(times) => self.upper.files.set_times(data, times.atime, times.mtime).map(|()| file),
            Err(_) => Ok(file),
        });
        let file = match dated.and_then(|file| locked.record(moved).map(|()| Arc::new(file))) {
            Ok(file) => file,
            Err(error) => {
                // On a full disk a partial file would take up needed space.
                self.upper.files.remove(data);
                return Err(error);
            }
        };
        if let Some(open) = locked.open_files.get_mut(&number) {
            open.file = Some(Arc::clone(&file));
        }
        if let Source::Data(old) = source {
            locked.retire(*old);
        }
        Ok(file)
    }

    /// Creates data file `data` from the first `keep` bytes of inode `id`, which are at `source`.
    async fn copy_bytes(&self, id: EntryId, source: &Source, data: DataFileId, keep: u64) -> Result<File> {
        match source {
            Source::Data(_) if keep == 0 => self.upper.files.create(data),
            Source::Data(old) => {
                let files = self.upper.files.clone();
                let old = self.upper.files.open(*old)?;
                blocking(move || files.copy(&old, data, keep)).await
            }
            _ => {
                let size = self.upper.attributes_of(id).await?.size;
                let file = self.upper.files.create(data)?;
                self.fetch(id, source, &file, 0..size.min(keep)).await?;
                Ok(file)
            }
        }
    }

    /// Cuts inode `id` to `size` bytes, or extends it with zeros.
    pub(super) async fn resize(&self, id: EntryId, size: u64) -> Result<()> {
        let file_lock = self.upper.file_locks.lock(id).await;
        self.complete_overwrite(&file_lock).await?;
        // Most resizes empty a file and need none of its bytes.
        let is_sparse = self.sparse.is_sparse(id) || (size > 0 && self.sparse.create_sparse(&file_lock).await?);
        let resized = if is_sparse {
            self.sparse.resize_sparse(&file_lock, size).map(drop)
        } else {
            self.copy_up(&file_lock, size).await?.set_len(size).map_err(|e| Error::io("resizing", e))
        };
        {
            let locked = self.upper.lock();
            // There may be no handle whose release would record the change.
            self.record_change(&locked, id);
            if let (0, Some(data)) = (size, locked.state.get(id).and_then(Inode::data_file)) {
                self.upper.durable.mark_emptied(data);
            }
        }
        self.upper.uploads.enqueue_closed(id);
        resized
    }

    /// Records that the data file of inode `id`, if it has one, may change from now on, or may have
    /// changed since the last call.
    pub(super) fn record_change(&self, locked: &Locked, id: EntryId) {
        if let Some(data) = locked.state.get(id).and_then(Inode::data_file) {
            self.upper.uploads.forget(data);
        }
    }
}
