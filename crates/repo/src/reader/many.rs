//! Reads of many chunks at once: parts of several chunks, one after another, as one run of bytes.
//!
//! Small chunks are packed into objects, so that neighbors in an array are often neighbors in an
//! object. Of local files, neighbors are read with one system call. From other stores, all chunks
//! that are missing are requested before the first one is waited for, neighbors with one request.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};

use super::chunk::{ChunkRange, Object, native_key};
use super::pieces::MAX_WHOLE;
use super::prefetch::{GAP, length_of, runs};
use super::{Data, Reader};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::storage::local::LocalFiles;

/// Files that are read at a time, where the kernel does not have the bytes.
const CONCURRENT_FILES: usize = 16;

/// Part of the bytes to read.
#[derive(Clone, Debug)]
pub enum Part {
    /// Bytes that are here.
    Bytes(Bytes),
    /// Range of a chunk, which must lie in it.
    Chunk(ChunkRange, Range<u64>),
}

impl Part {
    /// Returns the number of bytes.
    fn len(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Chunk(_, range) => (range.end - range.start) as usize,
        }
    }

    /// Joins `next` to this part if both are neighbors in one object. Returns false if they are
    /// not.
    fn extend(&mut self, next: &Part) -> bool {
        let (Part::Chunk(chunk, range), Part::Chunk(other, more)) = (self, next) else { return false };
        let is_next = chunk.object == other.object
            && chunk.offset.checked_add(chunk.length) == Some(other.offset)
            && range.end == chunk.length
            && more.start == 0;
        if is_next {
            range.end += more.end;
            chunk.length += other.length;
        }
        is_next
    }
}

impl Reader {
    /// Reads all of `parts`, in their order.
    pub async fn read_many(self: &Arc<Self>, parts: Vec<Part>) -> Result<Data> {
        let parts = self.joined(parts);
        if let Some(data) = self.read_many_now(&parts) {
            return Ok(data);
        }
        self.fetch_many(&parts).await;
        if let [part] = parts.as_slice() {
            return self.read_part(part).await;
        }
        let mut joined = BytesMut::with_capacity(parts.iter().map(Part::len).sum());
        let mut reads: Vec<BoxFuture<'_, Result<Data>>> = Vec::with_capacity(parts.len());
        for part in &parts {
            reads.push(self.read_part(part).boxed());
        }
        let mut reads = stream::iter(reads).buffered(CONCURRENT_FILES);
        while let Some(bytes) = reads.try_next().await? {
            joined.extend_from_slice(&bytes);
        }
        Ok(Data::Bytes(joined.freeze()))
    }

    /// Reads all of `parts` if that needs no waiting and does not fail.
    fn read_many_now(&self, parts: &[Part]) -> Option<Data> {
        let mut buffer = self.buffers.take(parts.iter().map(Part::len).sum())?;
        let mut rest: &mut [u8] = &mut buffer;
        let mut open: Option<(ObjectId, File)> = None;
        for part in parts {
            let (place, behind) = rest.split_at_mut_checked(part.len())?;
            rest = behind;
            let (chunk, range) = match part {
                Part::Bytes(bytes) => {
                    place.copy_from_slice(bytes);
                    continue;
                }
                Part::Chunk(chunk, range) => (chunk, range),
            };
            match (&chunk.object, self.storage.local_files()) {
                (Object::Native(id), Some(files)) => {
                    if open.as_ref().is_none_or(|(other, _)| other != id) {
                        open = Some((*id, files.open_now(&native_key(*id))?.ok()?));
                    }
                    let file = open.as_ref().map(|(_, file)| file)?;
                    LocalFiles::read_now(file, place, chunk.offset.checked_add(range.start)?)?;
                }
                _ => {
                    let bytes = self.cache.get(chunk)?;
                    place.copy_from_slice(bytes.get(range.start as usize..range.end as usize)?);
                }
            }
        }
        Some(Data::Buffer(buffer))
    }

    /// Joins neighbors in local files. Chunks of other stores are kept one by one.
    fn joined(&self, parts: Vec<Part>) -> Vec<Part> {
        let mut joined: Vec<Part> = Vec::with_capacity(parts.len());
        for part in parts.into_iter().filter(|part| part.len() > 0) {
            let is_file = matches!(&part, Part::Chunk(chunk, _) if self.is_file(&chunk.object));
            if !(is_file && joined.last_mut().is_some_and(|last| last.extend(&part))) {
                joined.push(part);
            }
        }
        joined
    }

    async fn read_part(self: &Arc<Self>, part: &Part) -> Result<Data> {
        let (chunk, range) = match part {
            Part::Bytes(bytes) => return Ok(Data::Bytes(bytes.clone())),
            Part::Chunk(chunk, range) => (chunk, range),
        };
        let length = part.len();
        if !self.is_file(&chunk.object) {
            return self.read(chunk, range.start, length).await;
        }
        // The kernel keeps the bytes of files.
        self.read_exactly(chunk, range.start, length as u64).await.map(Data::Bytes)
    }

    /// Requests all chunks of `parts` that are not here, neighbors in an object with one request. A
    /// failure is left to their readers.
    async fn fetch_many(self: &Arc<Self>, parts: &[Part]) {
        let mut missing = parts.iter().filter_map(|part| match part {
            Part::Chunk(chunk, range) if !range.is_empty() && chunk.length <= MAX_WHOLE => Some(chunk),
            _ => None,
        });
        let first = missing.find(|chunk| !self.is_file(&chunk.object) && !self.is_near(chunk));
        let Some(first) = first else { return };
        let rest = missing.filter(|chunk| !self.is_file(&chunk.object) && !self.is_near(chunk));
        for (_, run) in runs(in_order(std::iter::once(first).chain(rest).cloned()), GAP, MAX_WHOLE) {
            let permits = self.budget.read_permits(length_of(&run));
            let Ok(permit) = Arc::clone(&self.reads).acquire_many_owned(permits).await else { return };
            self.fetch_run(run, permit);
        }
    }

    /// Prefetches `chunks`, in any order. Returns false if there was no room for some of them.
    pub fn prefetch_many(self: &Arc<Self>, chunks: impl IntoIterator<Item = ChunkRange>) -> bool {
        self.prefetch(in_order(chunks.into_iter())).is_none()
    }
}

/// Returns `chunks` in the order of their places in objects, numbered.
fn in_order(chunks: impl Iterator<Item = ChunkRange>) -> Vec<(usize, ChunkRange)> {
    let mut objects: HashMap<Object, usize> = HashMap::new();
    let mut sorted: Vec<(usize, ChunkRange)> = Vec::new();
    for chunk in chunks {
        let next = objects.len();
        sorted.push((*objects.entry(chunk.object.clone()).or_insert(next), chunk));
    }
    sorted.sort_by(|(one, a), (other, b)| (one, a.offset).cmp(&(other, b.offset)));
    sorted.dedup();
    sorted.into_iter().enumerate().map(|(number, (_, chunk))| (number, chunk)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use icechunkfs_format::format::testing::id;

    fn chunk(object: u8, offset: u64, length: u64) -> ChunkRange {
        ChunkRange { object: Object::Native(id(object)), offset, length }
    }

    #[test]
    fn neighbors_in_an_object_are_joined() {
        let mut part = Part::Chunk(chunk(1, 100, 50), 10..50);
        assert!(!part.extend(&Part::Chunk(chunk(2, 150, 20), 0..20)));
        assert!(!part.extend(&Part::Chunk(chunk(1, 151, 20), 0..20)));
        assert!(!part.extend(&Part::Chunk(chunk(1, 150, 20), 1..20)));
        assert!(part.extend(&Part::Chunk(chunk(1, 150, 20), 0..5)));
        assert!(matches!(&part, Part::Chunk(joined, range) if *joined == chunk(1, 100, 70) && *range == (10..55)));
        assert!(!part.extend(&Part::Chunk(chunk(1, 170, 20), 0..20)), "it ends within a chunk");
    }

    #[test]
    fn chunks_are_requested_in_the_order_of_objects() {
        let chunks = [chunk(2, 10, 5), chunk(1, 20, 5), chunk(2, 0, 5), chunk(1, 0, 5), chunk(2, 10, 5)];
        let sorted: Vec<ChunkRange> = in_order(chunks.into_iter()).into_iter().map(|(_, chunk)| chunk).collect();
        assert_eq!(sorted, [chunk(2, 0, 5), chunk(2, 10, 5), chunk(1, 0, 5), chunk(1, 20, 5)]);
    }
}
