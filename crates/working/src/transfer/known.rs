//! Leaves out chunks that the branch has already, byte for byte.
//!
//! A second import of the same files is therefore no commit, an import with few changed files is a
//! small one, and concurrent commits conflict only with real differences. The cost is reading the
//! branch's chunks that have the same coordinates and length.

use std::collections::HashMap;
use std::io::{Read, Seek};
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::Counters;
use super::fetch::{Content, is_unreadable, payloads};
use super::walk::BATCH_BYTES;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange, ChunkFile, MadeChunk};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeIndex;

/// Chunks that are compared together.
const BATCH: usize = 1024;

/// Chunk that may be the same.
struct Candidate {
    node: NodeId,
    coords: Coords,
    own: Own,
    stored: ChunkPayload,
}

/// Chunk that is imported.
#[derive(Clone)]
enum Own {
    File(ChunkFile),
    Made(Arc<dyn MadeChunk>),
}

impl Own {
    fn of(change: &ChunkChange) -> Option<Self> {
        match change {
            ChunkChange::File(file) => Some(Own::File(file.clone())),
            ChunkChange::Made(made) => (!made.is_new()).then(|| Own::Made(Arc::clone(made))),
            ChunkChange::Delete | ChunkChange::Stored(_) => None,
        }
    }

    fn length(&self) -> u64 {
        match self {
            Own::File(file) => file.length,
            Own::Made(made) => made.length(),
        }
    }
}

/// Removes from `changes` the chunks that `tree` has with the same bytes; returns their number.
pub(super) async fn remove_unchanged(
    tree: &Arc<Tree>,
    changes: &mut ChangeSet,
    jobs: usize,
    counters: &Arc<Counters>,
) -> Result<usize> {
    let arrays: HashMap<NodeId, NodeIndex> =
        tree.table().subtree(0).filter_map(|index| Some((tree.table().array(index)?.id, index))).collect();
    let mut same: Vec<(NodeId, Coords)> = Vec::new();
    let mut batch = Vec::new();
    let mut bytes = 0_u64;
    let mut batches = Vec::new();
    for (node, chunks) in &changes.chunks {
        let Some(&index) = arrays.get(node) else { continue };
        let Some(stored) = tree.chunks(index) else { continue };
        for (coords, change) in chunks {
            let own = Own::of(change);
            let Some(length) = change.length().filter(|_| own.is_some() || change.stored().is_some()) else { continue };
            let Some(found) = stored.find(coords).await? else { continue };
            if found.length != length {
                continue;
            }
            let inode = tree.table().inode(&icechunkfs_tree::tree::nodes::TreePlace::Chunk(index, coords.clone()));
            let Some(payload) = tree.stored(inode).await? else { continue };
            if change.stored() == Some(&payload) {
                same.push((*node, coords.clone()));
                continue;
            }
            let Some(own) = own else { continue };
            bytes = bytes.saturating_add(length);
            batch.push(Candidate { node: *node, coords: coords.clone(), own, stored: payload });
            if batch.len() >= BATCH || bytes >= BATCH_BYTES {
                batches.push(std::mem::take(&mut batch));
                bytes = 0;
            }
            // These batches are compared before more are collected.
            if batches.len() >= jobs.max(1) {
                same.extend(compare(tree, std::mem::take(&mut batches), jobs, counters).await?);
            }
        }
    }
    batches.push(batch);
    same.extend(compare(tree, batches, jobs, counters).await?);
    for (node, coords) in &same {
        changes.chunks.get_mut(node).and_then(|chunks| chunks.remove(coords));
    }
    changes.chunks.retain(|_, chunks| !chunks.is_empty());
    Ok(same.len())
}

async fn compare(
    tree: &Arc<Tree>,
    batches: Vec<Vec<Candidate>>,
    jobs: usize,
    counters: &Arc<Counters>,
) -> Result<Vec<(NodeId, Coords)>> {
    let compared = stream::iter(batches).map(|batch| {
        let running = tokio::spawn(compare_batch(Arc::clone(tree), batch, Arc::clone(counters)));
        async move { running.await.map_err(|e| Error::with_source(ErrorKind::Io, "comparing", e))? }
    });
    let all: Vec<Vec<_>> = compared.buffer_unordered(jobs.max(1)).try_collect().await?;
    Ok(all.into_iter().flatten().collect())
}

async fn compare_batch(
    tree: Arc<Tree>,
    batch: Vec<Candidate>,
    counters: Arc<Counters>,
) -> Result<Vec<(NodeId, Coords)>> {
    let mut small = Vec::with_capacity(batch.len());
    let mut same = Vec::new();
    for candidate in batch {
        counters.add_done(0, candidate.own.length());
        if candidate.own.length() <= BATCH_BYTES {
            small.push(candidate);
        } else if is_same_large(&tree, &candidate).await? {
            same.push((candidate.node, candidate.coords));
        }
    }
    let wanted = small.iter().map(|candidate| candidate.stored.clone()).enumerate().collect();
    let fetched = payloads(&tree, wanted).await;
    let small_ones = blocking(move || {
        let mut same = Vec::new();
        for (at, content) in fetched {
            let Some(candidate) = small.get(at) else { continue };
            let Candidate { node, coords, own, .. } = candidate;
            match content {
                Ok(Content::Part(data, range)) => {
                    if read(own)? == data.get(range).unwrap_or_default() {
                        same.push((*node, coords.clone()));
                    }
                }
                Ok(Content::File(_)) => {}
                // A stored chunk that cannot be read is replaced.
                Err(error) if is_unreadable(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(same)
    })
    .await?;
    same.extend(small_ones);
    Ok(same)
}

fn read(own: &Own) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match own {
        Own::Made(made) => made.read(0..made.length(), &mut bytes).context(|| made.describe())?,
        Own::File(file) => {
            let read = file.open()?.take(BATCH_BYTES + 1).read_to_end(&mut bytes);
            read.map(drop).map_err(|e| Error::io(&file.name, e))?;
        }
    }
    Ok(bytes)
}

impl Own {
    /// Returns true if the bytes from `offset` on begin with `data`, and end there if that is the
    /// last.
    fn has(&self, offset: u64, data: &[u8], is_last: bool) -> Result<bool> {
        let mut bytes = Vec::new();
        match self {
            Own::Made(made) => {
                made.read(offset..offset + data.len() as u64, &mut bytes).context(|| made.describe())?;
            }
            Own::File(file) => {
                let failed = |e: std::io::Error| Error::io(&file.name, e);
                let mut opened = file.open()?;
                opened.seek(std::io::SeekFrom::Start(offset)).map_err(failed)?;
                let limit = data.len() as u64 + u64::from(is_last);
                opened.take(limit).read_to_end(&mut bytes).map_err(failed)?;
            }
        }
        Ok(bytes == data)
    }
}

async fn is_same_large(tree: &Arc<Tree>, candidate: &Candidate) -> Result<bool> {
    let length = candidate.own.length();
    let mut offset = 0;
    while offset < length {
        let data = match tree.read_stored(&candidate.stored, offset, BATCH_BYTES as u32).await {
            Ok(data) if !data.is_empty() => data,
            Ok(_) => return Ok(false),
            Err(error) if is_unreadable(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        let own = candidate.own.clone();
        let at = offset;
        offset += data.len() as u64;
        let is_last = offset >= length;
        if !blocking(move || own.has(at, &data, is_last)).await? {
            return Ok(false);
        }
    }
    Ok(true)
}
