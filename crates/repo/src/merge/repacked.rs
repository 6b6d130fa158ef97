//! Chunks that are stored in several places, with the same bytes.
//!
//! `rewrite-manifests --repack` moves small chunks into other objects, and a commit that meets a
//! collection of garbage stores chunks once more. Snapshots are compared by where chunks are, so
//! that such a chunk looks changed, which is a conflict if the other side has written it or has
//! deleted its array. Only these chunks are read, piece by piece.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::sides::ChunkSet;
use crate::commit::changes::{ChangeSet, ChunkChange};
use crate::compare::changes::changes_between;
use crate::reader::Reader;
use crate::reader::same_bytes::{can_be_compared, have_same_bytes};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::Coords;

/// Chunks that are read at the same time.
const AT_ONCE: usize = 16;

/// Chunk with two payloads.
type Pair = ((NodeId, Coords), [ChunkPayload; 2]);

/// Removes from `changes`, which lead from `before` to `after`, those of the chunks `suspects` that
/// have the same bytes as before.
pub(super) async fn drop_unchanged(
    reader: &Arc<Reader>,
    before: &Snapshot,
    after: &Snapshot,
    changes: &mut ChangeSet,
    suspects: ChunkSet,
) -> Result<()> {
    if suspects.is_empty() {
        return Ok(());
    }
    // The way back has the places where the chunks were.
    let back = changes_between(reader, after, before).await?;
    for (node, coords) in same(reader, pairs(changes, &back, &suspects)).await? {
        if let Some(chunks) = changes.chunks.get_mut(&node) {
            chunks.remove(&coords);
        }
    }
    changes.chunks.retain(|_, chunks| !chunks.is_empty());
    Ok(())
}

/// Gives the chunks that `changes` and `others` change to the same bytes one place.
pub(super) async fn unite(reader: &Arc<Reader>, changes: &mut ChangeSet, others: &ChangeSet) -> Result<()> {
    let both = changed_by_both(changes, others);
    for (node, coords) in same(reader, pairs(changes, others, &both)).await? {
        let other = others.chunks.get(&node).and_then(|chunks| chunks.get(&coords));
        let own = changes.chunks.get_mut(&node).and_then(|chunks| chunks.get_mut(&coords));
        if let (Some(own), Some(other)) = (own, other) {
            own.clone_from(other);
        }
    }
    Ok(())
}

/// Returns the chunks of `changes` that conflict with `others`: both have them, or the others have
/// deleted their array.
pub(super) fn suspects(changes: &ChangeSet, others: &ChangeSet) -> ChunkSet {
    let mut suspects = changed_by_both(changes, others);
    for (node, chunks) in others.deleted.iter().filter_map(|node| Some((node.id, changes.chunks.get(&node.id)?))) {
        suspects.entry(node).or_default().extend(chunks.keys().cloned());
    }
    suspects
}

fn changed_by_both(changes: &ChangeSet, others: &ChangeSet) -> ChunkSet {
    let of_node = |(node, chunks): (&NodeId, &BTreeMap<Coords, ChunkChange>)| {
        let others = others.chunks.get(node)?;
        let both: HashSet<Coords> = chunks.keys().filter(|coords| others.contains_key(*coords)).cloned().collect();
        (!both.is_empty()).then_some((*node, both))
    };
    changes.chunks.iter().filter_map(of_node).collect()
}

/// Returns those of `chunks` that are there after either change set, in different places.
fn pairs(one: &ChangeSet, other: &ChangeSet, chunks: &ChunkSet) -> Vec<Pair> {
    let payload =
        |changes: &ChangeSet, node: &NodeId, coords: &Coords| changes.chunks.get(node)?.get(coords)?.stored().cloned();
    let chunks = chunks.iter().flat_map(|(node, chunks)| chunks.iter().map(move |coords| (node, coords)));
    let found = chunks.filter_map(|(node, coords)| {
        let one = payload(one, node, coords)?;
        let other = payload(other, node, coords)?;
        (one != other && can_be_compared(&one) && can_be_compared(&other))
            .then(|| ((*node, coords.clone()), [one, other]))
    });
    found.collect()
}

/// Returns the chunks whose two payloads have the same bytes.
async fn same(reader: &Arc<Reader>, pairs: Vec<Pair>) -> Result<Vec<(NodeId, Coords)>> {
    let compared = stream::iter(pairs).map(|(chunk, [one, other])| async move {
        Ok::<_, Error>(have_same_bytes(reader, &one, &other).await?.then_some(chunk))
    });
    let same: Vec<Option<(NodeId, Coords)>> = compared.buffer_unordered(AT_ONCE).try_collect().await?;
    Ok(same.into_iter().flatten().collect())
}

/// Returns true if each two payloads have the same bytes.
pub(super) async fn are_all_same(reader: &Arc<Reader>, pairs: Vec<(&ChunkPayload, &ChunkPayload)>) -> Result<bool> {
    if !pairs.iter().all(|(one, other)| can_be_compared(one) && can_be_compared(other)) {
        return Ok(false);
    }
    for (one, other) in pairs {
        if !have_same_bytes(reader, one, other).await? {
            return Ok(false);
        }
    }
    Ok(true)
}
