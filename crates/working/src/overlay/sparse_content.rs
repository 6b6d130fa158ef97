//! Reads, writes and completes sparse copies ([`super::sparse_copy`]).

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt};

use super::content::FileContents;
use super::file_locks::FileLock;
use super::locked::Locked;
use super::no_such;
use super::node::Inode;
use super::sparse_copy::SparseCopy;
use super::upper::Upper;
use crate::scratch::data::{read_file, write_file};
use crate::scratch::record::{DataFileId, EntryId, Record, Source, Stored, Time};
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_tree::tree::nodes::TreePlace;

/// Missing bytes below which a file is fetched at once, with one request.
const WORTH_BORROWING: u64 = 1 << 20;
/// Largest number of missing ranges; a file with more is fetched.
const MOST_RANGES: usize = 1000;
/// Bytes of one request when the rest is fetched; `AT_A_TIME` requests run at once.
const STEP: u64 = 4 << 20;
const AT_A_TIME: usize = 4;

/// Sparse copies of large chunks.
#[derive(Debug)]
pub(super) struct SparseCopies {
    upper: Arc<Upper>,
}

impl SparseCopies {
    pub(super) fn new(upper: &Arc<Upper>) -> Self {
        SparseCopies { upper: Arc::clone(upper) }
    }
}

impl FileContents {
    /// Completes all sparse copies among the data files `numbers`.
    pub async fn complete_sparse(&self, numbers: &HashSet<DataFileId>) -> Result<()> {
        let wanted: Vec<EntryId> = {
            let locked = self.upper.lock();
            let lacks = |data: DataFileId| numbers.contains(&data) && locked.state.borrowed(data).is_some();
            let found = locked.state.iter().filter(|(_, inode)| inode.data_file().is_some_and(lacks));
            found.map(|(id, _)| id).collect()
        };
        for id in wanted {
            let file_lock = self.upper.file_locks.lock(id).await;
            self.sparse.complete_sparse_copy(&file_lock).await?;
        }
        Ok(())
    }
}

impl SparseCopies {
    /// Returns the data file of inode `id` and its missing ranges, if it is a sparse copy.
    fn borrowed_of(&self, id: EntryId) -> Option<(DataFileId, SparseCopy)> {
        let locked = self.upper.lock();
        let data = locked.state.get(id)?.data_file()?;
        Some((data, locked.state.borrowed(data)?.clone()))
    }

    /// Returns true if inode `id` has a sparse copy.
    pub(super) fn is_sparse(&self, id: EntryId) -> bool {
        let locked = self.upper.lock();
        let data = locked.state.get(id).and_then(Inode::data_file);
        data.is_some_and(|data| locked.state.borrowed(data).is_some())
    }

    /// Returns the location of inode `id`'s bytes in the repository, if fetching `missing` of them
    /// is worth postponing.
    async fn worth_borrowing(&self, id: EntryId, missing: impl Fn(u64) -> u64) -> Result<Option<ChunkPayload>> {
        let base = self.upper.base();
        if base.tree.reader().is_local() {
            return Ok(None);
        }
        let (source, lower) = {
            let locked = self.upper.lock();
            let inode = locked.state.get(id).ok_or_else(|| no_such(id))?;
            (inode.source().cloned(), inode.lower.clone())
        };
        let payload = match (source, lower) {
            (Some(Source::Stored(stored)), _) => Some(stored.0),
            (Some(Source::Lower), Some(place @ TreePlace::Chunk(..))) => {
                base.tree.stored(base.tree.table().inode(&place)).await?
            }
            _ => None,
        };
        // Virtual chunks may change or be unreadable: the writer must get that error, not the
        // commit.
        Ok(payload.filter(|payload| {
            matches!(payload, ChunkPayload::Native { .. }) && missing(payload.length()) >= WORTH_BORROWING
        }))
    }

    /// Gives inode `id`, whose bytes are in the repository, an empty sparse copy. Returns false if
    /// fetching all bytes is better.
    pub(super) async fn create_sparse(&self, file_lock: &FileLock) -> Result<bool> {
        let id = file_lock.id();
        let Some(from) = self.worth_borrowing(id, |length| length).await? else { return Ok(false) };
        let times = self.upper.attributes_of(id).await?.meta;
        let length = from.length();
        let data = self.upper.lock().state.fresh.next_data_file();
        let file = self.upper.files.create(data)?;
        let made = file.set_len(length).map_err(|e| Error::io("lengthening a scratch file", e));
        let made = made.and_then(|()| self.upper.files.set_times(data, times.atime, times.mtime));
        let noted =
            made.and_then(|()| self.install_sparse(file_lock, data, Arc::new(file), from, 0..length, times.mtime));
        noted.inspect_err(|_| self.upper.files.remove(data))?;
        Ok(true)
    }

    /// Makes data file `data` a sparse copy of inode `id` that lacks `missing`. Returns false if
    /// fetching them is better.
    pub(super) async fn make_sparse(
        &self,
        file_lock: &FileLock,
        data: DataFileId,
        file: &Arc<File>,
        missing: Range<u64>,
    ) -> Result<bool> {
        let id = file_lock.id();
        let rest = missing.end.saturating_sub(missing.start);
        let Some(from) = self.worth_borrowing(id, |_| rest).await? else { return Ok(false) };
        file.set_len(missing.end).map_err(|e| Error::io("lengthening a scratch file", e))?;
        self.install_sparse(file_lock, data, Arc::clone(file), from, missing, Time::now())?;
        Ok(true)
    }

    fn install_sparse(
        &self,
        file_lock: &FileLock,
        data: DataFileId,
        file: Arc<File>,
        from: ChunkPayload,
        missing: Range<u64>,
        at: Time,
    ) -> Result<()> {
        let id = file_lock.id();
        self.upper.durable.write_out_early(data);
        let mut locked = self.upper.lock();
        let number = locked.state.get(id).ok_or_else(|| no_such(id))?.number;
        // The missing ranges are recorded before the file can be read.
        let missing = vec![(missing.start, missing.end)];
        locked.record(Record::Sparse { data, from: Stored(from), missing })?;
        locked.record(Record::SetSource { id, source: Source::Data(data), at })?;
        if let Some(open) = locked.open_files.get_mut(&number) {
            (open.partial, open.file) = (None, Some(file));
        }
        Ok(())
    }

    /// Writes to a sparse copy. Returns false if the file is none.
    pub(super) async fn write_sparse(&self, file_lock: &FileLock, offset: u64, bytes: &[u8]) -> Result<bool> {
        let id = file_lock.id();
        let Some((data, borrowed)) = self.borrowed_of(id) else { return Ok(false) };
        if borrowed.missing.len() >= MOST_RANGES {
            self.complete_sparse_copy(file_lock).await?;
        }
        let file = self.upper.files.open(data)?;
        self.clip_missing(data, &file)?;
        write_file(&file, bytes, offset)?;
        let range = offset..offset.saturating_add(bytes.len() as u64);
        self.upper.durable.write_out_early(data);
        self.upper.lock().cover(data, &range)?;
        Ok(true)
    }

    /// Resizes a sparse copy. Returns false if the file is none.
    pub(super) fn resize_sparse(&self, file_lock: &FileLock, size: u64) -> Result<bool> {
        let id = file_lock.id();
        let Some((data, _)) = self.borrowed_of(id) else { return Ok(false) };
        let file = self.upper.files.open(data)?;
        self.clip_missing(data, &file)?;
        file.set_len(size).map_err(|e| Error::io("resizing", e))?;
        // Recorded afterwards: if there is no file without these bytes, they are not cut off.
        self.upper.lock().cover(data, &(size..u64::MAX))?;
        Ok(true)
    }

    /// Records that no bytes behind the end of `file`, which is data file `data`, are missing: they
    /// were cut off, and do not come back when the file grows again. Cutting them off may not have
    /// come to record it.
    fn clip_missing(&self, data: DataFileId, file: &File) -> Result<()> {
        let length = file.metadata().map_err(|e| Error::io("the size of a scratch file", e))?.len();
        self.upper.lock().cover(data, &(length..u64::MAX))
    }

    /// Reads up to `size` bytes of data file `data` of inode `id`, with missing ranges from the
    /// repository.
    pub(super) async fn read_data(&self, id: EntryId, data: DataFileId, offset: u64, size: u32) -> Result<Bytes> {
        // The missing ranges are read first: bytes written meanwhile may be seen, and bytes fetched
        // meanwhile are the same.
        let missing = {
            let locked = self.upper.lock();
            let end = offset.saturating_add(u64::from(size));
            locked.state.borrowed(data).map(|borrowed| (borrowed.from.clone(), borrowed.of(&(offset..end))))
        };
        let bytes = read_file(&self.upper.files.open(data)?, offset, size)?;
        let Some((from, missing)) = missing.filter(|(_, missing)| !missing.is_empty()) else { return Ok(bytes) };
        let node = match self.upper.lock().state.get(id).and_then(|inode| inode.lower.clone()) {
            Some(TreePlace::Chunk(node, _)) => Some(node),
            _ => None,
        };
        let base = self.upper.base();
        let mut whole = BytesMut::from(&*bytes);
        for range in missing {
            let begin = usize::try_from(range.start - offset).unwrap_or(usize::MAX);
            // The file may have been cut meanwhile.
            let Some(target) = whole.get_mut(begin..).filter(|target| !target.is_empty()) else { break };
            let length = target.len().min(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
            let size = u32::try_from(length).unwrap_or(u32::MAX);
            let part = base.tree.read_stored_part(&from, node, range.start, size).await?;
            let Some(target) = target.get_mut(..length).filter(|target| target.len() == part.len()) else {
                return Err(Error::corrupt(format!("{length} bytes at {} are not all in the chunk", range.start)));
            };
            target.copy_from_slice(&part);
        }
        Ok(whole.freeze())
    }

    /// Completes the sparse copy of inode `id`, if it has one.
    pub(super) async fn complete_sparse_copy(&self, file_lock: &FileLock) -> Result<()> {
        let id = file_lock.id();
        let Some((data, borrowed)) = self.borrowed_of(id) else { return Ok(()) };
        let place = || self.upper.lock().state.path(id).unwrap_or_default();
        tracing::debug!("{}: fetching the {} bytes that were not written", place(), borrowed.bytes());
        let file = self.upper.files.open(data)?;
        let times = self.upper.attributes_of(id).await?.meta;
        self.clip_missing(data, &file)?;
        let Some((_, borrowed)) = self.borrowed_of(id) else { return Ok(()) };
        let steps = borrowed.missing.iter().flat_map(|range| {
            let end = range.end;
            (range.start..end).step_by(STEP as usize).map(move |begin| begin..end.min(begin + STEP))
        });
        let steps: Vec<Range<u64>> = steps.collect();
        let fetched = futures_util::stream::iter(steps)
            .map(|range| {
                let from = &borrowed.from;
                async move { self.fetch_stored(from, &range).await.map(|bytes| (range, bytes)) }
            })
            .buffered(AT_A_TIME)
            .try_for_each(|(range, bytes)| {
                let written =
                    write_file(&file, &bytes, range.start).and_then(|()| self.upper.lock().cover(data, &range));
                futures_util::future::ready(written)
            });
        fetched.await.context(place)?;
        // For programs the file has not changed.
        self.upper.files.set_times(data, times.atime, times.mtime)
    }

    async fn fetch_stored(&self, from: &ChunkPayload, range: &Range<u64>) -> Result<Bytes> {
        let base = self.upper.base();
        let length = range.end - range.start;
        if let Some(chunk) = base.tree.range_of(from)? {
            return base.tree.reader().read_exactly(&chunk, range.start, length).await;
        }
        let size = u32::try_from(length).unwrap_or(u32::MAX);
        let bytes = base.tree.read_stored_part(from, None, range.start, size).await?;
        if bytes.len() as u64 != length {
            return Err(Error::corrupt(format!("{length} bytes at {} are not all in the chunk", range.start)));
        }
        Ok(Bytes::copy_from_slice(&bytes))
    }
}

impl Locked {
    /// Records that `range` is in data file `data` now, if it is a sparse copy.
    pub(super) fn cover(&mut self, data: DataFileId, range: &Range<u64>) -> Result<()> {
        if self.state.borrowed(data).is_none_or(|borrowed| borrowed.of(range).is_empty()) {
            return Ok(());
        }
        self.record(Record::Covered { data, begin: range.start, end: range.end })
    }
}
