//! Prefetch of chunks into the cache.
//!
//! A reader that comes during a prefetch waits for that one request. Neighbors in one object (small
//! chunks are packed) are one request. A prefetch never waits for room: chunks that do not fit into
//! its share of memory are left to their readers.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::OwnedSemaphorePermit;

use super::chunk::ChunkRange;
use super::pieces::MAX_WHOLE;
use super::{Reader, slice};
use icechunkfs_base::error::{Error, Result};

/// Bytes between two chunks that are fetched with them, since a request costs more.
pub(super) const GAP: u64 = 64 << 10;

/// Bytes of a request for neighbors in one object, which is sent when they are first awaited.
type Response = Shared<BoxFuture<'static, Result<Bytes>>>;

impl Reader {
    /// Returns true if `chunk` is in memory or being loaded.
    pub(super) fn has(&self, chunk: &ChunkRange) -> bool {
        self.cache.has(chunk)
    }

    /// Fetches those of `chunks` that are not here yet, in the background. Large ones are left to
    /// their readers. Each has a number; returns the first number for which there was no room, from
    /// which on nothing was fetched.
    pub fn prefetch(self: &Arc<Self>, mut chunks: Vec<(usize, ChunkRange)>) -> Option<usize> {
        chunks.retain(|(_, chunk)| {
            let is_wanted = chunk.length > 0 && chunk.length <= MAX_WHOLE && !self.is_file(&chunk.object);
            is_wanted && !self.has(chunk) && !self.warm_disk(chunk)
        });
        for (number, run) in runs(chunks, GAP, MAX_WHOLE) {
            let permits = self.budget.read_permits(length_of(&run));
            let Ok(permit) = Arc::clone(&self.prefetches).try_acquire_many_owned(permits) else { return Some(number) };
            self.fetch_run(run, permit);
        }
        None
    }

    /// Fetches `run`, parts of one object in its order, with one request in the background. Parts
    /// that another reader has begun to fetch since they were chosen are left to it.
    pub(super) fn fetch_run(self: &Arc<Self>, run: Vec<ChunkRange>, permit: OwnedSemaphorePermit) {
        let Some(object) = run.first().map(|chunk| chunk.object.clone()) else { return };
        let permit = Arc::new(permit);
        let most = length_of(&run);
        let bytes = |chunk: &ChunkRange| chunk.length;
        // A failure is dropped: the reader of the chunk repeats the request.
        self.cache.load_ahead(run, bytes, |missing| {
            runs(missing.into_iter().enumerate(), GAP, most).into_iter().flat_map(|(_, run)| {
                let begin = run.first().map_or(0, |chunk| chunk.offset);
                let length = length_of(&run);
                let this = Arc::clone(self);
                let object = object.clone();
                let permit = Arc::clone(&permit);
                let response = async move { this.fetch(&object, begin, length).await }.boxed().shared();
                run.into_iter().map(move |chunk| {
                    let load = Arc::clone(self).load_part(chunk.clone(), response.clone(), begin, Arc::clone(&permit));
                    (chunk, load)
                })
            })
        });
    }

    /// Loads `chunk` out of a response, whose first byte is at `begin` in the object. Holds
    /// `permit` until it is kept.
    async fn load_part(
        self: Arc<Self>,
        chunk: ChunkRange,
        response: Response,
        begin: u64,
        permit: Arc<OwnedSemaphorePermit>,
    ) -> Result<Bytes> {
        let bytes = response.await?;
        let part = slice(&bytes, chunk.offset.saturating_sub(begin), chunk.length as usize);
        let part = part.ok_or_else(|| Error::corrupt("a chunk is not where its neighbors are"))?;
        // A slice would keep all of a long response in memory.
        let part = if part.len() == bytes.len() { part } else { Bytes::copy_from_slice(&part) };
        self.keep(&chunk, &part, permit);
        Ok(part)
    }
}

/// Groups numbered chunks into runs of neighbors in one object, at most `gap` bytes apart and
/// `most` bytes long. A run has the number of its first chunk.
pub(super) fn runs(
    chunks: impl IntoIterator<Item = (usize, ChunkRange)>,
    gap: u64,
    most: u64,
) -> Vec<(usize, Vec<ChunkRange>)> {
    let mut runs: Vec<(usize, Vec<ChunkRange>)> = Vec::new();
    for (number, chunk) in chunks {
        match runs.last_mut() {
            Some((_, run)) if is_adjacent(run, &chunk, gap, most) => run.push(chunk),
            _ => runs.push((number, vec![chunk])),
        }
    }
    runs
}

/// Returns the bytes from the beginning of `run` to its end.
pub(super) fn length_of(run: &[ChunkRange]) -> u64 {
    match (run.first(), run.last()) {
        (Some(first), Some(last)) => (last.offset - first.offset).saturating_add(last.length),
        _ => 0,
    }
}

fn is_adjacent(run: &[ChunkRange], chunk: &ChunkRange, gap: u64, most: u64) -> bool {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return false };
    let Some(end) = last.offset.checked_add(last.length) else { return false };
    let Some(total) = chunk.offset.checked_add(chunk.length).and_then(|end| end.checked_sub(first.offset)) else {
        return false;
    };
    last.object == chunk.object && chunk.offset >= end && chunk.offset - end <= gap && total <= most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::chunk::Object;
    use icechunkfs_format::format::testing::id;

    #[test]
    fn neighbors_in_one_object_are_one_request() {
        let chunk = |object, offset, length| ChunkRange { object: Object::Native(id(object)), offset, length };
        for (object, offset, length, expected) in [
            (1, 4096, 4096, true),
            (1, 4096 + GAP, 4096, true),
            (1, 4097 + GAP, 4096, false),
            (2, 4096, 4096, false),
            // Before the run, and too much at once.
            (1, 0, 4096, false),
            (1, 4096, MAX_WHOLE, false),
            (1, u64::MAX, 1, false),
        ] {
            let adjacent = is_adjacent(&[chunk(1, 0, 4096)], &chunk(object, offset, length), GAP, MAX_WHOLE);
            assert_eq!(adjacent, expected, "{length} at {offset} of {object}");
        }
        assert_eq!(length_of(&[chunk(1, 10, 5), chunk(1, 20, 5)]), 15);
    }
}
