//! Reads all snapshots and manifests that refs lead to, concurrently.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::chunks::ChunkSet;
use super::reach::{Reach, RefSet};
use super::{Chunks, MemoryBounds};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::together::try_for_each;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::manifest::{Manifest, PayloadKind};
use icechunkfs_format::format::snapshot::{ManifestInfo, Snapshot};
use icechunkfs_repo::repo::progress::Progress;
use icechunkfs_repo::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_store::storage::Storage;

/// Bytes of memory per chunk reference while its manifest is examined, rounded up.
const BYTES_PER_REF: u64 = 96;
/// Unit of the semaphore that limits this memory, in bytes.
const UNIT: u64 = 4096;

/// A manifest that at least one commit references.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReachableManifest {
    /// Properties according to the snapshots.
    pub(super) info: ManifestInfo,
    pub(super) holder: RefSet,
}

pub(super) type Manifests = HashMap<ObjectId, ReachableManifest>;

/// Result of one pass over all manifests.
pub(super) struct Pass {
    pub(super) set: ChunkSet,
    /// Counts that need no deduplication.
    pub(super) counted: Chunks,
}

/// Returns the manifests of all commits in `reach`, and sets the number of nodes and references at
/// the tips in `reach`.
pub(super) async fn collect_manifests(
    repository: &Repository,
    reach: &mut Reach,
    jobs: usize,
    progress: &Progress,
) -> Result<Manifests> {
    let commits: Vec<(ObjectId, RefSet)> = reach.commits().collect();
    progress.expect(commits.len());
    let tips: std::collections::HashSet<String> = reach.refs.iter().map(|tip| tip.snapshot.clone()).collect();
    let mut found = Manifests::new();
    let mut sizes: HashMap<String, (u64, u64)> = HashMap::new();
    let read = |(id, holder)| async move {
        let read = repository.snapshot(id, MAX_SNAPSHOT).await;
        // A damaged snapshot is counted as missing and does not prevent the statistics of the
        // others.
        let snapshot = match read {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::error!("{error}");
                None
            }
            read => Some(read?),
        };
        progress.step(1);
        Ok((id, holder, snapshot))
    };
    let take = |(id, holder, snapshot): (ObjectId, RefSet, Option<Snapshot>)| {
        let Some(snapshot) = snapshot else { return Ok(()) };
        let mut references = 0;
        for info in snapshot.manifests() {
            references += u64::from(info.chunk_refs);
            let held = found.entry(info.id).or_insert(ReachableManifest { info, holder });
            held.holder = held.holder.and(holder);
        }
        let id = id.to_string();
        if tips.contains(&id) {
            sizes.insert(id, (snapshot.node_count() as u64, references));
        }
        Ok(())
    };
    try_for_each(commits, jobs, read, take).await?;
    for tip in &mut reach.refs {
        (tip.nodes, tip.references) = sizes.get(&tip.snapshot).copied().unwrap_or_default();
    }
    Ok(found)
}

/// Reads all `manifests` and collects the chunks with ids from `from` on, as many as fit into
/// memory.
pub(super) async fn read(
    storage: &Arc<dyn Storage>,
    manifests: &Manifests,
    from: u64,
    memory: MemoryBounds,
    jobs: usize,
    progress: &Progress,
) -> Result<Pass> {
    progress.expect(manifests.len());
    let limit = memory.manifests;
    let permits = usize::try_from(limit / UNIT).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
    let room = Semaphore::new(permits);
    let pass = Arc::new(Mutex::new(Pass { set: ChunkSet::new(from, memory.chunks), counted: Chunks::default() }));
    let count = |held: ReachableManifest| {
        let room = &room;
        let pass = Arc::clone(&pass);
        async move {
            let wanted = (u64::from(held.info.chunk_refs) * BYTES_PER_REF + held.info.size).div_ceil(UNIT);
            let wanted = u32::try_from(wanted.clamp(1, permits as u64)).unwrap_or(u32::MAX);
            // The semaphore is never closed; without a permit only more memory would be used.
            let _permit = room.acquire_many(wanted).await;
            let counted = match storage.get_fixed(&format!("manifests/{}", held.info.id), limit).await {
                Ok(file) => blocking(move || count_chunks(&file, held, limit, &pass)).await,
                Err(error) => Err(error),
            };
            let counted = match counted {
                // A missing or damaged manifest does not prevent the count of the others; a missing
                // one is counted as missing.
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                    tracing::error!("{error}");
                    Ok(Ok(()))
                }
                counted => counted,
            };
            progress.step(usize::from(counted.is_ok()));
            counted
        }
    };
    try_for_each(manifests.values().copied(), jobs, count, |counted| counted).await?;
    let pass = Arc::try_unwrap(pass).map_err(|_| Error::new(ErrorKind::Io, "manifests are still being read"))?;
    Ok(pass.into_inner())
}

/// Adds the chunks in `file`, a manifest, to `pass`. The outer error is one of decoding, after
/// which nothing has been added: the manifest can be counted again.
fn count_chunks(file: &[u8], held: ReachableManifest, limit: u64, pass: &Mutex<Pass>) -> Result<Result<()>> {
    let manifest =
        Manifest::decode_with_id(held.info.id, file, limit).context(|| format!("manifests/{}", held.info.id))?;
    let added = add_chunks(&manifest, held, pass);
    match added {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => Ok(Err(error)),
        added => added.map(Ok),
    }
}

fn add_chunks(manifest: &Manifest, held: ReachableManifest, pass: &Mutex<Pass>) -> Result<()> {
    for (_, refs) in manifest.iter_arrays() {
        // Held for the references of one array: no task waits for storage with it.
        let Pass { set, counted } = &mut *pass.lock();
        for at in 0..refs.len() {
            counted.references += 1;
            match refs.kind(at) {
                PayloadKind::Inline => {
                    counted.inline += 1;
                    counted.inline_bytes = counted.inline_bytes.saturating_add(refs.length(at));
                }
                PayloadKind::Native | PayloadKind::Virtual => match refs.payload(at)? {
                    ChunkPayload::Native { chunk, offset, length } => {
                        set.add(chunk, offset, length, false, held.holder)?
                    }
                    ChunkPayload::Virtual { location, offset, length, .. } => {
                        set.add(name_of(&location), offset, length, true, held.holder)?;
                    }
                    ChunkPayload::Inline(_) => {}
                },
            }
        }
    }
    Ok(())
}

/// Hashes a location to an id: two locations collide with a probability of 2^-96.
fn name_of(location: &str) -> ObjectId {
    let mut id = [0; 12];
    for (salt, part) in id.chunks_mut(8).enumerate() {
        let mut hasher = std::hash::DefaultHasher::new();
        (salt, location).hash(&mut hasher);
        let hash = hasher.finish().to_be_bytes();
        part.copy_from_slice(hash.get(..part.len()).unwrap_or_default());
    }
    ObjectId(id)
}
