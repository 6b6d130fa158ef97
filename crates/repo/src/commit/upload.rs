//! Stores the bytes of changed chunks, before anything refers to them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, retry_on_intr};

use super::changes::{ChangeSet, ChunkChange, ChunkFile, MadeChunk};
use super::pack::{self, Content, Job, Pending, StorageForm};
use super::progress::CommitProgress;
use super::request::Sizes;
use super::times::RenewedTimes;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::{self, MemoryLimit, Reservation};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::zarr::Coords;
use icechunkfs_store::storage::{Storage, changed_file};

/// Objects stored at the same time. On a disk, so many flushes share one entry of the file system's
/// journal; over a network, so many requests hide each other's latency.
pub(super) const CONCURRENT_OBJECTS: usize = 16;

/// Changed chunks of one array in grid order, each with its payload; none if the chunk was deleted.
pub(super) type ChunkList = Arc<Vec<(Coords, Option<ChunkPayload>)>>;

pub(super) type StoredChunks = BTreeMap<NodeId, ChunkList>;

/// Stores all chunk files of `changes`.
///
/// The objects are durable when [`Storage::sync`] of `chunks` has returned. Files that may have
/// been linked are recorded in `renewed`.
pub(super) async fn upload(
    storage: &Arc<dyn Storage>,
    changes: &ChangeSet,
    sizes: Sizes,
    memory: &MemoryLimit,
    renewed: &RenewedTimes,
    progress: &CommitProgress,
) -> Result<StoredChunks> {
    let mut stored: BTreeMap<NodeId, Vec<(Coords, Option<ChunkPayload>)>> = BTreeMap::new();
    let mut jobs = Vec::new();
    for (&node, chunks) in &changes.chunks {
        let slots = chunks.iter().map(|(coords, change)| (coords.clone(), change.stored().cloned()));
        stored.insert(node, slots.collect());
        let files = chunks.values().enumerate().filter_map(|(slot, change)| match change {
            ChunkChange::File(file) => Some(Pending { slot, content: Content::File(file.clone()) }),
            ChunkChange::Made(made) => Some(Pending { slot, content: Content::Made(Arc::clone(made)) }),
            ChunkChange::Delete | ChunkChange::Stored(_) => None,
        });
        jobs.extend(pack::plan(files, sizes).into_iter().map(|job| (node, job)));
    }
    let size =
        |files: &[Pending]| (files.len() as u64, files.iter().map(|pending| pending.content.length()).sum::<u64>());
    let sizes = jobs.iter().map(|(_, (_, files))| size(files));
    let (chunks, bytes) = sizes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    progress.expect(chunks, bytes);

    let stop = &AtomicBool::new(false);
    // Each future is boxed: the compiler cannot prove that one from a closure is `Send`.
    type Running<'a> = BoxFuture<'a, Result<(NodeId, Vec<(usize, ChunkPayload)>)>>;
    let running = jobs.into_iter().map(|(node, job)| -> Running<'_> {
        Box::pin(async move {
            let (chunks, bytes) = size(&job.1);
            // Linked files need no memory of this process.
            let is_made = job.1.iter().any(|pending| !pending.content.is_file());
            let is_held = job.0 == StorageForm::Pack || is_made || storage.local_files().is_none();
            // The chunks of a job are made one after another.
            let workspace = job.1.iter().map(|pending| pending.content.workspace()).max().unwrap_or_default();
            let _permit = memory.take(if is_held { bytes.saturating_add(workspace) } else { 0 }).await;
            if stop.load(Ordering::Relaxed) {
                return Ok((node, Vec::new()));
            }
            progress.check()?;
            let placed = store_job(storage, job, renewed).await?;
            progress.stored(chunks, bytes);
            Ok((node, placed))
        })
    });
    let running: Vec<Running<'_>> = running.collect();
    let mut running = futures_util::stream::iter(running).buffer_unordered(CONCURRENT_OBJECTS);
    let mut failed = None;
    while let Some(done) = running.next().await {
        // Jobs that have begun end: each finds out whether its file could be flushed, which the
        // kernel reports once.
        let (node, placed) = match done {
            Ok(done) => done,
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                failed.get_or_insert(error);
                continue;
            }
        };
        let slots = stored.get_mut(&node).map(Vec::as_mut_slice).unwrap_or_default();
        for (slot, payload) in placed {
            if let Some((_, place)) = slots.get_mut(slot) {
                *place = Some(payload);
            }
        }
    }
    drop(running);
    if let Some(error) = failed {
        return Err(error);
    }
    // A mount that waits for the next commit does not hold it.
    memory::release_unused();
    Ok(stored.into_iter().map(|(node, chunks)| (node, Arc::new(chunks))).collect())
}

async fn store_job(
    storage: &Arc<dyn Storage>,
    (place, files): Job,
    renewed: &RenewedTimes,
) -> Result<Vec<(usize, ChunkPayload)>> {
    if place == StorageForm::Object {
        let mut stored = Vec::new();
        for Pending { slot, content } in files {
            let payload = match content {
                Content::File(file) => single(storage, file, renewed).await?,
                Content::Made(made) => store_made(storage, made).await?,
            };
            stored.push((slot, payload));
        }
        return Ok(stored);
    }
    let read = move || {
        let length: u64 = files.iter().map(|pending| pending.content.length()).sum();
        // One more: the room that tells the end of the last file.
        let mut bytes = memory::large_buffer(usize::try_from(length).unwrap_or_default().saturating_add(1));
        let mut ranges = Vec::with_capacity(files.len());
        for Pending { slot, content } in files {
            let start = bytes.len();
            match content {
                Content::File(file) => append(&file, &mut bytes)?,
                Content::Made(made) => append_made(&*made, &mut bytes)?,
            }
            ranges.push((slot, start..bytes.len()));
        }
        // The next pack is made in the memory of one that is stored: new memory takes a tenth of a
        // commit of 40,000 chunks.
        Ok((memory::recycled(bytes, Reservation::default()), ranges))
    };
    let (bytes, ranges) = blocking(read).await?;
    if place == StorageForm::Inline {
        // Copied: a small payload must not keep the bytes of all others.
        let inline = |range| ChunkPayload::Inline(Bytes::copy_from_slice(&bytes.slice(range)));
        return Ok(ranges.into_iter().map(|(slot, range)| (slot, inline(range))).collect());
    }
    let chunk = ObjectId::random()?;
    storage.put_new(&format!("chunks/{chunk}"), bytes).await?;
    let native = |range: Range<usize>| {
        let offset = range.start as u64;
        let length = range.len() as u64;
        ChunkPayload::Native { chunk, offset, length }
    };
    Ok(ranges.into_iter().map(|(slot, range)| (slot, native(range))).collect())
}

pub(super) async fn single(
    storage: &Arc<dyn Storage>,
    file: ChunkFile,
    renewed: &RenewedTimes,
) -> Result<ChunkPayload> {
    let length = file.length;
    let chunk = ObjectId::random()?;
    let key = format!("chunks/{chunk}");
    let name = file.name.clone();
    let (opened, file) = blocking(move || Ok((file.open()?, file))).await?;
    // A copied or uploaded object is new anyway. A file whose times cannot be changed is copied.
    let can_link = file.can_link && (storage.local_files().is_none() || renewed.renew(&file, &opened));
    if !can_link {
        let stored = storage.put_copy(&key, opened, length).await;
        return stored.context(|| format!("the chunk's file {name}")).map(|()| native(chunk, length));
    }
    // The kernel reports a failed flush once to each descriptor that was open before.
    let is_linked = storage.local_files().is_some();
    let witness = if is_linked { Some(blocking(move || file.open()).await?) } else { None };
    let stored = storage.put_file(&key, opened, length).await;
    if let (Err(_), Some(witness)) = (&stored, witness)
        && blocking(move || witness.sync_data().map_err(|e| Error::io("flushing", e))).await.is_err()
    {
        renewed.record_unflushed(name.clone());
    }
    stored.context(|| format!("the chunk's file {name}")).map(|()| native(chunk, length))
}

/// Stores a chunk as an object of its own.
async fn store_made(storage: &Arc<dyn Storage>, made: Arc<dyn MadeChunk>) -> Result<ChunkPayload> {
    let length = made.length();
    let make = move || {
        let mut bytes = memory::large_buffer(usize::try_from(length).unwrap_or_default());
        append_made(&*made, &mut bytes)?;
        Ok(memory::recycled(bytes, Reservation::default()))
    };
    let bytes = blocking(make).await?;
    let chunk = ObjectId::random()?;
    storage.put_new(&format!("chunks/{chunk}"), bytes).await?;
    Ok(native(chunk, length))
}

/// Appends the bytes of `made` to `out`. Fails if they have another length than it says.
fn append_made(made: &dyn MadeChunk, out: &mut Vec<u8>) -> Result<()> {
    let before = out.len() as u64;
    made.read(0..made.length(), out).context(|| made.describe())?;
    if out.len() as u64 - before == made.length() {
        return Ok(());
    }
    Err(changed_file(made.length())).context(|| made.describe())
}

fn native(chunk: ObjectId, length: u64) -> ChunkPayload {
    ChunkPayload::Native { chunk, offset: 0, length }
}

/// Appends the whole file to `out`, which has room for more. Fails if the file does not have the
/// expected length.
fn append(file: &ChunkFile, out: &mut Vec<u8>) -> Result<()> {
    let before = out.len();
    let opened = file.open()?;
    let failed = |e: Errno| Error::io(format!("the chunk's file {}", file.name), e.into());
    let mut done = 0;
    // There is room for more than is expected, so a read of no more than that has found the end.
    // Most files take a single one.
    while done < file.length {
        let read = retry_on_intr(|| rustix::io::pread(&opened, spare_capacity(out), done)).map_err(failed)?;
        if read == 0 {
            break;
        }
        done = (out.len() - before) as u64;
    }
    if done == file.length {
        return Ok(());
    }
    Err(changed_file(file.length)).context(|| format!("the chunk's file {}", file.name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn files_are_appended_only_with_the_expected_length() {
        let directory = tempfile::tempdir().unwrap();
        let opened = Arc::new(OwnedFd::from(std::fs::File::open(directory.path()).unwrap()));
        let write =
            |name: &str, length: usize| std::fs::write(directory.path().join(name), vec![b'x'; length]).unwrap();
        [("a", 5), ("b", 70_000), ("empty", 0)].into_iter().for_each(|(name, length)| write(name, length));
        let append = |name: &str, length, out: &mut Vec<u8>| {
            let file = ChunkFile { directory: Arc::clone(&opened), name: name.into(), length, can_link: true };
            super::append(&file, out)
        };
        let mut out = Vec::with_capacity(70_006);
        append("a", 5, &mut out).unwrap();
        append("b", 70_000, &mut out).unwrap();
        assert!(out.len() == 70_005 && out.capacity() == 70_006);
        // One more and one less, of the last file of a pack, too.
        for (name, length) in [("a", 4), ("a", 6), ("b", 69_999), ("b", 70_001), ("empty", 1)] {
            let mut out = Vec::with_capacity(length as usize + 1);
            let error = append(name, length, &mut out).unwrap_err().to_string();
            assert!(error.contains(&format!("the chunk's file {name}")), "{error}");
        }
        assert!(append("missing", 1, &mut Vec::with_capacity(2)).is_err());
    }
}
