//! The change set that leads from one snapshot to another.
//!
//! Chunks are references to what the new snapshot has: nothing is read or copied. Nodes keep their
//! ids, so that the change set also fits other snapshots that have the nodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};

use super::chunks::ChunkDifferences;
use super::{ArrayChunks, BATCH, CONCURRENT_ARRAYS, positions};
use crate::commit::changes::{ChangeSet, ChunkChange, DeletedNode, WrittenNode};
use crate::reader::Reader;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::{ManifestInfo, Node, Snapshot};
use icechunkfs_format::format::transaction_log::Move;
use icechunkfs_format::zarr::{Coords, is_in_grid};

/// Bytes that a changed node takes in lists and sets, besides its texts.
const NODE_BYTES: u64 = 256;

/// Changes of the chunks of one array.
pub type ChunkChanges = BTreeMap<Coords, ChunkChange>;

/// Array whose chunks differ, with those chunks.
pub(crate) type ComparedArray = (NodeId, Metered<ChunkChanges>);

/// Returns the changes that lead from `old` to `new`, snapshots of one repository whose manifests
/// `reader` reads. Chunks that an array's new shape has no place for are not listed.
pub async fn changes_between(reader: &Arc<Reader>, old: &Snapshot, new: &Snapshot) -> Result<Metered<ChangeSet>> {
    let _room = (old.room_for_table()?, new.room_for_table()?);
    let old_ids = positions(old);
    let new_ids = positions(new);
    let mut changes = ChangeSet::default();
    let mut meter = Meter::new("the changes between two snapshots");
    for node in old.nodes().filter(|node| !new_ids.contains_key(&node.id)) {
        meter.count(NODE_BYTES + 2 * node.path.len() as u64)?;
        let id = node.id;
        let path = node.path.to_owned();
        changes.deleted.push(DeletedNode { id, path, is_array: node.is_array() });
    }
    let infos = &[old.manifest_infos(), new.manifest_infos()];
    // Each future is boxed: the compiler cannot prove that one from a closure is `Send`.
    type Running<'a> = BoxFuture<'a, Result<ComparedArray>>;
    let mut running: Vec<Running<'_>> = Vec::new();
    for node in new.nodes() {
        if running.len() == BATCH {
            add_chunks(&mut changes, std::mem::take(&mut running), &mut meter).await?;
        }
        let before = old_ids.get(&node.id).and_then(|&at| old.node(at));
        match &before {
            None => changes.created.push(written(&node, &mut meter)?),
            Some(before) if before.is_array() != node.is_array() => {
                return Err(Error::corrupt(format!("{}: node {} is a group and an array", node.path, node.id)));
            }
            Some(before) => {
                if before.path != node.path {
                    meter.count(NODE_BYTES + 2 * (before.path.len() + node.path.len()) as u64)?;
                    let from = before.path.to_owned();
                    let to = node.path.to_owned();
                    changes.moved.push(Move { from, to, node: node.id, is_array: node.is_array() });
                }
                if before.zarr_json != node.zarr_json {
                    changes.updated.push(written(&node, &mut meter)?);
                }
            }
        }
        let Some(after) = ArrayChunks::parse(Some(&node))? else { continue };
        let before = ArrayChunks::parse(before.as_ref())?;
        let id = node.id;
        let path = node.path;
        let grid = after.grid().to_vec();
        running.push(Box::pin(async move {
            Ok((id, chunk_changes(reader, infos, before, after, &grid).await.context(|| path)?))
        }));
    }
    add_chunks(&mut changes, running, &mut meter).await?;
    Ok(meter.finish(changes))
}

/// Returns deletions of the chunks of `now` for which the documents that `changes` has for arrays
/// have no place. A commit leaves them out by itself; a mount shows them until they are deleted.
pub async fn dropped_chunks(
    reader: &Arc<Reader>,
    now: &Snapshot,
    changes: &ChangeSet,
) -> Result<Metered<BTreeMap<NodeId, ChunkChanges>>> {
    let infos = now.manifest_infos();
    let updated: HashMap<NodeId, &WrittenNode> = changes.updated.iter().map(|node| (node.id, node)).collect();
    let mut meter = Meter::new("the chunks that a smaller shape drops");
    let mut dropped: BTreeMap<NodeId, ChunkChanges> = BTreeMap::new();
    for node in now.nodes() {
        let Some(written) = updated.get(&node.id) else { continue };
        let Some(before) = ArrayChunks::parse(Some(&node))? else { continue };
        let grid = written.grid()?;
        let has_rank = before.grid().len() == grid.len();
        if has_rank && std::iter::zip(before.grid(), &grid).all(|(old, new)| old <= new) {
            continue;
        }
        let nothing = before.empty(&infos, reader);
        let mut differences = ChunkDifferences::new(before.chunks(&infos, reader), nothing);
        while let Some(page) = differences.page().await.context(|| node.path.to_owned())? {
            for chunk in page.into_iter().filter(|chunk| !is_in_grid(&chunk.coords, &grid)) {
                meter.count(chunk.memory())?;
                dropped.entry(node.id).or_default().insert(chunk.coords, ChunkChange::Delete);
            }
        }
    }
    Ok(meter.finish(dropped))
}

/// Adds the chunk changes of arrays, which `meter` counts.
pub(crate) async fn add_chunks(
    changes: &mut ChangeSet,
    running: Vec<BoxFuture<'_, Result<ComparedArray>>>,
    meter: &mut Meter,
) -> Result<()> {
    let mut all = futures_util::stream::iter(running).buffer_unordered(CONCURRENT_ARRAYS);
    while let Some((node, chunks)) = all.try_next().await? {
        if !chunks.is_empty() {
            meter.count(NODE_BYTES)?;
            changes.chunks.insert(node, meter.add(chunks));
        }
    }
    Ok(())
}

fn written(node: &Node<'_>, meter: &mut Meter) -> Result<WrittenNode> {
    meter.count(NODE_BYTES + (2 * node.path.len() + node.zarr_json.len()) as u64)?;
    Ok(WrittenNode {
        id: node.id,
        path: node.path.to_owned(),
        zarr_json: Bytes::copy_from_slice(node.zarr_json),
        is_array: node.is_array(),
    })
}

/// Returns the changes that lead from the chunks of array `before`, if there was one, to those of
/// `after`, within `grid` (chunks per dimension). The infos describe the manifests of their
/// snapshots.
pub(crate) async fn chunk_changes(
    reader: &Arc<Reader>,
    [old_infos, new_infos]: &[HashMap<ObjectId, ManifestInfo>; 2],
    before: Option<ArrayChunks>,
    after: ArrayChunks,
    grid: &[u32],
) -> Result<Metered<ChunkChanges>> {
    let old = before.as_ref().map_or(after.empty(old_infos, reader), |before| before.chunks(old_infos, reader));
    let new = after.chunks(new_infos, reader);
    let mut differences = ChunkDifferences::new(old, new);
    let mut changes = ChunkChanges::new();
    let mut meter = Meter::new("the chunks that differ");
    while let Some(page) = differences.page().await? {
        for chunk in page.into_iter().filter(|chunk| is_in_grid(&chunk.coords, grid)) {
            meter.count(chunk.memory())?;
            changes.insert(chunk.coords, chunk.after.map_or(ChunkChange::Delete, ChunkChange::Stored));
        }
    }
    Ok(meter.finish(changes))
}
