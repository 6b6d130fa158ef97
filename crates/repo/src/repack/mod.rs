//! Packs small chunks that have an object each, or that share one with bytes that the snapshot does
//! not need any more.
//!
//! Other programs store one object per chunk, and a chunk that is written again leaves its old
//! bytes in a pack. Such chunks are read and stored again, in packs as a commit makes them
//! ([`crate::commit`]). The result is a change set without new bytes: the same bytes in other
//! places, for a commit that writes all manifests again
//! ([`crate::commit::request::Request::rewrite`]). The old objects stay, for earlier snapshots,
//! until garbage is collected.
//!
//! References of an array are examined page by page, in the order of the grid, and a page that
//! would gain little is left alone: chunks that have been packed once are not packed again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};

use crate::commit::changes::ChunkChange;
use crate::commit::engine::Sizes;
use crate::compare::chunks::{ChunkDifference, ChunkDifferences};
use crate::compare::{ArrayChunks, Count};
use crate::reader::{NativeChunk, Reader};
use icechunkfs_base::error::{Context, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::Coords;
use icechunkfs_store::storage::Storage;

/// Packs built at the same time, of some MiB each.
const CONCURRENT_PACKS: usize = 4;
/// Chunks of one pack that are read at the same time.
const CONCURRENT_READS: usize = 8;
/// An object is worth packing if the snapshot uses less of it than 1/4 of a pack.
const SMALL_DIVISOR: u64 = 4;
/// Limit on the chunks moved at once: each takes some 100 bytes of memory until the commit.
const MAX_CHUNKS: u64 = 2 << 20;

/// Result of a repack.
#[derive(Clone, Debug, Default)]
pub struct RepackResult {
    /// New payloads of the moved chunks, by array.
    pub chunks: BTreeMap<NodeId, BTreeMap<Coords, ChunkChange>>,
    /// Number and size of the moved chunks.
    pub moved: Count,
    /// Number of objects that held the chunks.
    pub objects_before: u64,
    /// Number of objects that hold the chunks now.
    pub objects_after: u64,
    /// False if chunks are left that are worth moving: the repack can be repeated.
    pub is_complete: bool,
}

type Moving = (Coords, NativeChunk);

/// Chunks that become one object, or go into the manifest.
#[derive(Debug, PartialEq, Eq)]
enum Job {
    Pack(Vec<Moving>),
    Inline(Vec<Moving>),
}

/// Part of an object that a page uses.
#[derive(Clone, Copy, Debug)]
struct Usage {
    bytes: u64,
    from: u64,
    to: u64,
}

impl Usage {
    /// Returns true if less than half of the object is used, as far as known: bytes before the
    /// first used one and after the last are not.
    fn is_sparse(&self) -> bool {
        self.bytes < (self.to - self.from) / 2
    }
}

/// Packs chunks of `snapshot` that are spread over too many objects, and stores the packs, which
/// nothing refers to yet. Calls `on_progress` with the number of chunks done.
pub async fn repack(
    storage: &Arc<dyn Storage>,
    reader: &Arc<Reader>,
    snapshot: &Snapshot,
    sizes: Sizes,
    on_progress: impl Fn(u64),
) -> Result<RepackResult> {
    let infos = snapshot.manifest_infos();
    let mut out = RepackResult { is_complete: true, ..RepackResult::default() };
    for node in snapshot.nodes() {
        let Some(listed) = ArrayChunks::parse(Some(&node))? else { continue };
        // Compared with an empty list, all chunks of the array are new.
        let mut all = ChunkDifferences::new(listed.empty(&infos, reader), listed.chunks(&infos, reader));
        while let Some(page) = all.page().await.context(|| node.path.to_owned())? {
            let jobs = plan(page, sizes);
            if jobs.is_empty() {
                continue;
            }
            if out.moved.chunks >= MAX_CHUNKS {
                out.is_complete = false;
                return Ok(out);
            }
            store_jobs(storage, reader, jobs, node.id, &mut out).await.context(|| node.path.to_owned())?;
            on_progress(out.moved.chunks);
        }
    }
    Ok(out)
}

async fn store_jobs(
    storage: &Arc<dyn Storage>,
    reader: &Arc<Reader>,
    jobs: Vec<Job>,
    node: NodeId,
    out: &mut RepackResult,
) -> Result<()> {
    let moving = || jobs.iter().flat_map(|(Job::Pack(chunks) | Job::Inline(chunks))| chunks);
    out.objects_before += moving().map(|(_, chunk)| chunk.object).collect::<HashSet<_>>().len() as u64;
    out.objects_after += jobs.iter().filter(|job| matches!(job, Job::Pack(_))).count() as u64;
    moving().for_each(|(_, chunk)| out.moved = out.moved.and(Count { chunks: 1, bytes: chunk.length }));
    // Each future is boxed: the compiler cannot prove that one from a closure is `Send`.
    type Running<'a> = BoxFuture<'a, Result<Vec<(Coords, ChunkPayload)>>>;
    let running: Vec<Running<'_>> =
        jobs.iter().map(|job| -> Running<'_> { Box::pin(store_job(storage, reader, job)) }).collect();
    let mut running = futures_util::stream::iter(running).buffer_unordered(CONCURRENT_PACKS);
    let chunks = out.chunks.entry(node).or_default();
    while let Some(placed) = running.next().await {
        chunks.extend(placed?.into_iter().map(|(coords, payload)| (coords, ChunkChange::Stored(payload))));
    }
    Ok(())
}

async fn store_job(storage: &Arc<dyn Storage>, reader: &Arc<Reader>, job: &Job) -> Result<Vec<(Coords, ChunkPayload)>> {
    let (Job::Pack(moving) | Job::Inline(moving)) = job;
    type Reading<'a> = BoxFuture<'a, Result<Bytes>>;
    let reading: Vec<Reading<'_>> = moving
        .iter()
        .map(|(coords, chunk)| -> Reading<'_> {
            Box::pin(async move {
                let length = usize::try_from(chunk.length).unwrap_or(usize::MAX);
                let data = reader.read(&(*chunk).into(), 0, length).await;
                data.map(|data| Bytes::copy_from_slice(&data)).context(|| format!("chunk {:?}", coords.as_slice()))
            })
        })
        .collect();
    let read: Vec<Bytes> = futures_util::stream::iter(reading).buffered(CONCURRENT_READS).try_collect().await?;
    let names = moving.iter().map(|(coords, _)| coords.clone());
    if let Job::Inline(_) = job {
        return Ok(names.zip(read.into_iter().map(ChunkPayload::Inline)).collect());
    }
    let object = ObjectId::random()?;
    let mut bytes = Vec::with_capacity(read.iter().map(Bytes::len).sum());
    let mut placed = Vec::with_capacity(read.len());
    for (coords, part) in names.zip(&read) {
        let offset = bytes.len() as u64;
        let length = part.len() as u64;
        placed.push((coords, ChunkPayload::Native { chunk: object, offset, length }));
        bytes.extend_from_slice(part);
    }
    drop(read);
    storage.put_new(&format!("chunks/{object}"), bytes.into()).await?;
    Ok(placed)
}

/// Plans how to store the chunks of a page, which come in the order of the grid.
fn plan(page: impl IntoIterator<Item = ChunkDifference>, sizes: Sizes) -> Vec<Job> {
    let native = |chunk: ChunkDifference| match chunk.after? {
        ChunkPayload::Native { chunk: object, offset, length } => {
            Some((chunk.coords, NativeChunk { object, offset, length }))
        }
        _ => None,
    };
    let all: Vec<Moving> = page.into_iter().filter_map(native).collect();
    let mut usage: HashMap<ObjectId, Usage> = HashMap::new();
    for (_, chunk) in &all {
        let end = chunk.offset.saturating_add(chunk.length);
        let known = usage.entry(chunk.object).or_insert(Usage { bytes: 0, from: chunk.offset, to: end });
        known.bytes = known.bytes.saturating_add(chunk.length);
        known.from = known.from.min(chunk.offset);
        known.to = known.to.max(end);
    }
    let of = |chunk: &NativeChunk| usage.get(&chunk.object);
    let is_sparse = |chunk: &NativeChunk| of(chunk).is_some_and(Usage::is_sparse);
    let is_little_used =
        |chunk: &NativeChunk| of(chunk).is_some_and(|usage| usage.bytes < sizes.pack_size / SMALL_DIVISOR);
    let mut inline = Vec::new();
    let mut moving: Vec<Moving> = Vec::new();
    for (coords, chunk) in all {
        // An empty chunk cannot be stored.
        if chunk.length == 0 || chunk.length >= sizes.pack_below.max(sizes.inline + 1) {
            continue;
        }
        if chunk.length <= sizes.inline {
            inline.push((coords, chunk));
        } else if is_sparse(&chunk) || is_little_used(&chunk) {
            moving.push((coords, chunk));
        }
    }
    // Chunks of objects that are only little used move if that at least halves the number of
    // objects.
    let loose = || moving.iter().map(|(_, chunk)| chunk).filter(|chunk| !is_sparse(chunk));
    let objects = loose().map(|chunk| chunk.object).collect::<HashSet<_>>().len() as u64;
    let packs = loose().map(|chunk| chunk.length).sum::<u64>().div_ceil(sizes.pack_size.max(1));
    if objects < 2 * packs {
        moving.retain(|(_, chunk)| is_sparse(chunk));
    }
    let mut jobs = Vec::new();
    if !inline.is_empty() {
        jobs.push(Job::Inline(inline));
    }
    let mut pack = Vec::new();
    let mut bytes = 0;
    for (coords, chunk) in moving {
        bytes += chunk.length;
        pack.push((coords, chunk));
        if bytes >= sizes.pack_size {
            jobs.push(Job::Pack(std::mem::take(&mut pack)));
            bytes = 0;
        }
    }
    if !pack.is_empty() {
        jobs.push(Job::Pack(pack));
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use icechunkfs_format::format::testing::id;

    const SIZES: Sizes = Sizes { inline: 10, pack_below: 100, pack_size: 400 };

    /// Plans chunks at consecutive coordinates, each given by its object, offset and length.
    fn planned(chunks: &[(u8, u64, u64)]) -> Vec<(char, Vec<u32>)> {
        let page = chunks.iter().zip(0..).map(|(&(object, offset, length), at)| ChunkDifference {
            coords: Coords::from_slice(&[at]),
            before: None,
            after: Some(ChunkPayload::Native { chunk: id(object), offset, length }),
        });
        let names = |all: &[Moving]| all.iter().flat_map(|(coords, _)| coords.to_vec()).collect();
        let named = |job: &Job| match job {
            Job::Pack(all) => ('p', names(all)),
            Job::Inline(all) => ('i', names(all)),
        };
        plan(page, SIZES).iter().map(named).collect()
    }

    #[test]
    fn what_gains_is_put_together() {
        // One object each: large chunks stay, tiny ones go into the manifest.
        assert_eq!(
            planned(&[(1, 0, 50), (2, 0, 100), (3, 0, 10), (4, 0, 99), (5, 0, 11)]),
            [('i', vec![2]), ('p', vec![0, 3, 4])]
        );
        // A pack is closed when it is full.
        let many: Vec<(u8, u64, u64)> = (0..12).map(|n| (n, 0, 90)).collect();
        let found = planned(&many);
        assert_eq!(found.iter().map(|(_, chunks)| chunks.len()).collect::<Vec<_>>(), [5, 5, 2]);
        // A single chunk stays where it is, and so do chunks that are packed well already.
        assert_eq!(planned(&[(1, 0, 50)]), []);
        let packed: Vec<(u8, u64, u64)> = (0..8).map(|n| (1 + n as u8 / 5, n % 5 * 90, 90)).collect();
        assert_eq!(planned(&packed), []);
        // Less than half of an object is needed.
        assert_eq!(planned(&[(1, 0, 50), (1, 350, 50)]), [('p', vec![0, 1])]);
        assert_eq!(planned(&[(1, 0, 90), (1, 180, 90), (1, 270, 90)]), []);
    }

    #[test]
    fn what_was_put_together_is_left_alone() {
        let many: Vec<(u8, u64, u64)> = (0..200).map(|n| (n, 0, 11 + u64::from(n) % 80)).collect();
        let mut after = Vec::new();
        for (number, (kind, chunks)) in planned(&many).into_iter().enumerate() {
            assert_eq!(kind, 'p');
            let mut offset = 0;
            for at in chunks {
                let length = many.get(at as usize).map_or(0, |chunk| chunk.2);
                after.push((number as u8, offset, length));
                offset += length;
            }
        }
        assert_eq!((after.len(), planned(&after)), (200, Vec::new()));
    }
}
