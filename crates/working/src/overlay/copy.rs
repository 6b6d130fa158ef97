//! `copy_file_range`: copies bytes between files, and whole chunks by reference.
//!
//! `cp` requests everything at once. If that covers a chunk of the repository and the target is new
//! and empty, the target becomes a second reference to the same stored bytes, now and in the
//! commit: no bytes are read or written.

use std::fs::File;
use std::sync::Arc;

use super::content::FileContents;
use super::content::copy_steps;
use super::file_origin::FileOrigin;
use super::{Ino, SharedTreeGuard};
use crate::scratch::data::copy_range;
use crate::scratch::journal::fits_in_journal;
use crate::scratch::record::{Record, Source, Stored, Time};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_repo::reader::Data;

/// Largest number of bytes that one request copies: the program asks again for the rest.
const AT_ONCE: u64 = 1 << 30;

/// File that is not in the working tree, such as one of another snapshot.
#[derive(Debug)]
pub struct Outside<P, R> {
    /// Bytes of the file.
    pub size: u64,
    /// Finds the location of its bytes in the repository, if they are those of a chunk.
    pub payload: P,
    /// Reads up to so many bytes from an offset on.
    pub read: R,
}

/// Bytes that a copy still has to write.
enum Rest {
    /// None: so many bytes are copied.
    Nothing(u64),
    /// So many bytes, into the data file of the target.
    Bytes(u64, Arc<File>),
}

impl FileContents {
    /// Copies up to `length` bytes from `offset` of `source` on. Returns the number of bytes
    /// copied, 0 at the end of the source.
    pub async fn copy_in<P, R, F>(&self, source: Outside<P, R>, offset: u64, to: (Ino, u64), length: u64) -> Result<u64>
    where
        P: Future<Output = Result<Option<ChunkPayload>>> + Send,
        R: Fn(u64, u32) -> F + Send + Sync,
        F: Future<Output = Result<Data>> + Send,
    {
        let guard = self.upper.enter().await?;
        let Outside { size, payload, read } = source;
        match self.begin_copy(&guard, size, payload, offset, to, length).await? {
            Rest::Nothing(copied) => Ok(copied),
            Rest::Bytes(length, into) => {
                copy_steps(offset..offset + length, &into, to.1.wrapping_sub(offset).cast_signed(), read).await
            }
        }
    }

    /// Copies up to `length` bytes. Returns the number of bytes copied, 0 at the end of the source.
    pub async fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64> {
        let guard = self.upper.enter().await?;
        let ((source, offset), (_, at)) = (from, to);
        self.complete_number(source).await?;
        let size = self.upper.attributes(source).await?.size;
        let rest = self.begin_copy(&guard, size, self.payload_of(source), offset, to, length).await?;
        let (length, into) = match rest {
            Rest::Nothing(copied) => return Ok(copied),
            Rest::Bytes(length, into) => (length, into),
        };
        let data = self.upper.lock().complete_data(source);
        if let Some(data) = data {
            let from = self.upper.files.open(data)?;
            let copy = move || copy_range(&from, offset, &into, at, length);
            return blocking(move || copy().map_err(|e| Error::io("copying in the scratch directory", e))).await;
        }
        let shift = at.wrapping_sub(offset).cast_signed();
        copy_steps(offset..offset + length, &into, shift, |at, size| self.read(source, at, size)).await
    }

    /// Copies by reference, if up to `length` bytes from `offset` of a source of `size` bytes on
    /// are all of a chunk, whose location `payload` finds. Otherwise prepares the target for the
    /// bytes.
    async fn begin_copy(
        &self,
        guard: &SharedTreeGuard<'_>,
        size: u64,
        payload: impl Future<Output = Result<Option<ChunkPayload>>> + Send,
        offset: u64,
        to: (Ino, u64),
        length: u64,
    ) -> Result<Rest> {
        let (target, at) = to;
        let length = length.min(size.saturating_sub(offset)).min(AT_ONCE);
        if length == 0 {
            return Ok(Rest::Nothing(0));
        }
        let whole = offset == 0 && at == 0 && length == size;
        if whole
            && let Some(payload) = payload.await?.filter(fits_in_journal)
            && self.refer(target, payload).await?
        {
            return Ok(Rest::Nothing(length));
        }
        let id = {
            let mut locked = self.upper.lock();
            locked.promote(guard, target)?
        };
        Ok(Rest::Bytes(length, self.own(id).await?))
    }

    /// Returns the location of the bytes of file `number` in the repository, if they are those of a
    /// chunk.
    async fn payload_of(&self, number: Ino) -> Result<Option<ChunkPayload>> {
        match self.file_origin(number) {
            FileOrigin::Base(lower) => self.upper.base().tree.stored(lower).await,
            FileOrigin::Stored(payload) => Ok(Some(payload)),
            FileOrigin::Scratch => Ok(None),
        }
    }

    /// Makes the empty file `number` a reference to `payload`. Returns false if that is not
    /// possible.
    async fn refer(&self, number: Ino, payload: ChunkPayload) -> Result<bool> {
        let Some(id) = self.upper.lock().state.by_number(number) else { return Ok(false) };
        // No write may give it bytes meanwhile.
        let _file_lock = self.upper.file_locks.lock(id).await;
        let mut locked = self.upper.lock();
        let Some(source) = locked.state.get(id).and_then(|inode| inode.source().cloned()) else { return Ok(false) };
        let (is_empty, data) = match source {
            Source::Data(data) => (self.upper.files.stat(data)?.size == 0, Some(data)),
            source => (source.is_empty(), None),
        };
        // A passthrough write would not notice the reference.
        let backed = locked.open_files.get(&number).is_some_and(|open| open.passthrough_handles > 0);
        if backed || !is_empty {
            return Ok(false);
        }
        locked.record(Record::SetSource { id, source: Source::Stored(Stored(payload)), at: Time::now() })?;
        if let Some(open) = locked.open_files.get_mut(&number) {
            open.file = None;
        }
        if let Some(data) = data {
            locked.retire(data);
        }
        Ok(true)
    }
}
