//! `copy_file_range`: copies bytes between files, and whole chunks by reference.
//!
//! `cp` requests everything at once. If that covers a chunk of the repository and the target is new and empty, the target becomes a
//! second reference to the same stored bytes, now and in the commit: no bytes are read or written.

use super::content::copy_steps;
use super::{Ino, WorkingTree};
use crate::blocking::blocking;
use crate::error::{Error, Result};
use crate::format::chunk_payload::ChunkPayload;
use crate::reader::Data;
use crate::scratch::data::copy_range;
use crate::scratch::record::{Record, Source, Stored, Time};

/// Largest number of bytes that one request copies: the program asks again for the rest.
const AT_ONCE: u64 = 1 << 30;

/// File that is not in the working tree, such as one of another snapshot.
#[derive(Debug)]
pub struct Outside<R> {
    /// Bytes of the file.
    pub size: u64,
    /// Location of its bytes in the repository, if they are those of a chunk.
    pub payload: Option<ChunkPayload>,
    /// Reads up to so many bytes from an offset on.
    pub read: R,
}

impl WorkingTree {
    /// Copies up to `length` bytes from `offset` of `source` on. Returns the number of bytes copied, 0 at the end of the source.
    pub async fn copy_in<R, F>(&self, source: Outside<R>, offset: u64, to: (Ino, u64), length: u64) -> Result<u64>
    where
        R: Fn(u64, u32) -> F + Send + Sync,
        F: Future<Output = Result<Data>> + Send,
    {
        let guard = self.enter().await?;
        let (target, at) = to;
        let length = length.min(source.size.saturating_sub(offset)).min(AT_ONCE);
        if length == 0 {
            return Ok(0);
        }
        let whole = offset == 0 && at == 0 && length == source.size;
        if let Some(payload) = source.payload.filter(|_| whole)
            && self.refer(target, payload)?
        {
            return Ok(length);
        }
        let id = {
            let mut locked = self.lock();
            locked.promote(&guard, target)?
        };
        let into = self.own(id).await?;
        let shift = at.wrapping_sub(offset).cast_signed();
        copy_steps(offset..offset + length, &into, shift, |at, size| (source.read)(at, size)).await
    }

    /// Copies up to `length` bytes. Returns the number of bytes copied, 0 at the end of the source.
    pub async fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64> {
        let guard = self.enter().await?;
        let ((source, offset), (target, at)) = (from, to);
        self.complete_number(source).await?;
        let size = self.attributes(source).await?.size;
        let length = length.min(size.saturating_sub(offset)).min(AT_ONCE);
        if length == 0 {
            return Ok(0);
        }
        let whole = offset == 0 && at == 0 && length == size;
        if whole
            && let Some(payload) = self.payload_of(source).await?
            && self.refer(target, payload)?
        {
            return Ok(length);
        }
        let id = {
            let mut locked = self.lock();
            locked.promote(&guard, target)?
        };
        let into = self.own(id).await?;
        let data = self.lock().complete_data(source);
        if let Some(data) = data {
            let from = self.files().open(data)?;
            let copy = move || copy_range(&from, offset, &into, at, length);
            return blocking(move || copy().map_err(|e| Error::io("copying in the scratch directory", e))).await;
        }
        let shift = at.wrapping_sub(offset).cast_signed();
        copy_steps(offset..offset + length, &into, shift, |at, size| self.read(source, at, size)).await
    }

    /// Returns the location of the bytes of file `number` in the repository, if they are those of a chunk.
    async fn payload_of(&self, number: Ino) -> Result<Option<ChunkPayload>> {
        let base = self.base();
        let lower = {
            let locked = self.lock();
            match locked.state.by_number(number).and_then(|id| locked.state.get(id)) {
                None => number.0,
                Some(inode) => match (inode.source(), &inode.lower) {
                    (Some(Source::Stored(stored)), _) => return Ok(Some(stored.0.clone())),
                    (Some(Source::Lower), Some(place)) => base.tree.table().inode(place),
                    _ => return Ok(None),
                },
            }
        };
        base.tree.stored(lower).await
    }

    /// Makes the empty file `number` a reference to `payload`. Returns false if that is not possible.
    fn refer(&self, number: Ino, payload: ChunkPayload) -> Result<bool> {
        let mut locked = self.lock();
        let Some(id) = locked.state.by_number(number) else { return Ok(false) };
        let Some(Source::Data(data)) = locked.state.get(id).and_then(|inode| inode.source().cloned()) else {
            return Ok(false);
        };
        // A passthrough write would not notice the reference.
        let backed = locked.open_files.get(&number).is_some_and(|open| open.passthrough_handles > 0);
        if backed || self.files().stat(data)?.size != 0 {
            return Ok(false);
        }
        locked.record(Record::SetSource { id, source: Source::Stored(Stored(payload)), at: Time::now() })?;
        if let Some(open) = locked.open_files.get_mut(&number) {
            open.file = None;
        }
        locked.retire(data);
        Ok(true)
    }
}
