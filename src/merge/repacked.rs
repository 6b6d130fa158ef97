//! Chunks that one side has stored elsewhere, with the bytes that they had.
//!
//! `rewrite-manifests --repack` moves small chunks into other objects. Snapshots are compared by where chunks are, so that such a chunk looks changed, which
//! is a conflict if the other side has written it or has deleted its array. Only these chunks are read.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::commit::changes::{ChangeSet, ChunkChange};
use crate::compare::changes::changes_between;
use crate::compare::have_same_bytes;
use crate::error::Result;
use crate::format::ids::NodeId;
use crate::format::snapshot::Snapshot;
use crate::reader::Reader;
use crate::zarr::Coords;

/// Longest chunk that is read, in bytes: longer ones are seldom packed, and reading many of them would take long.
const MAX_LENGTH: u64 = 1 << 20;
/// Chunks that are read at the same time.
const AT_ONCE: usize = 16;

/// Removes from `changes`, which lead from `before` to `after`, chunks that have the same bytes as before, of those that `others` conflict with.
pub(super) async fn drop_unchanged(
    reader: &Arc<Reader>,
    (before, after): (&Snapshot, &Snapshot),
    changes: &mut ChangeSet,
    others: &ChangeSet,
) -> Result<()> {
    let suspects = suspects(changes, others);
    if suspects.is_empty() {
        return Ok(());
    }
    // The way back has the places where the chunks were.
    let back = changes_between(reader, after, before).await?;
    let payloads = |(node, coords): &(NodeId, Coords)| match (
        back.chunks.get(node)?.get(coords)?,
        changes.chunks.get(node)?.get(coords)?,
    ) {
        (ChunkChange::Stored(was), ChunkChange::Stored(is)) if was.length() <= MAX_LENGTH => {
            Some((was.clone(), is.clone()))
        }
        _ => None,
    };
    let compared = suspects.into_iter().filter_map(|suspect| payloads(&suspect).map(|payloads| (suspect, payloads)));
    let compared: Vec<_> = compared.collect();
    let same = stream::iter(compared).map(|(suspect, (was, is))| async move {
        Ok::<_, crate::error::Error>(have_same_bytes(reader, &was, &is).await?.then_some(suspect))
    });
    let same: Vec<Option<(NodeId, Coords)>> = same.buffer_unordered(AT_ONCE).try_collect().await?;
    for (node, coords) in same.into_iter().flatten() {
        if let Some(chunks) = changes.chunks.get_mut(&node) {
            chunks.remove(&coords);
        }
    }
    changes.chunks.retain(|_, chunks| !chunks.is_empty());
    Ok(())
}

/// Returns the chunks of `changes` that conflict with `others`: both have them, or the others have deleted their array.
fn suspects(changes: &ChangeSet, others: &ChangeSet) -> Vec<(NodeId, Coords)> {
    let deleted: HashSet<NodeId> = others.deleted.iter().map(|node| node.id).collect();
    let of_node = |(node, chunks): (&NodeId, &std::collections::BTreeMap<Coords, ChunkChange>)| {
        let theirs = others.chunks.get(node);
        let is_suspect =
            |coords: &&Coords| deleted.contains(node) || theirs.is_some_and(|theirs| theirs.contains_key(*coords));
        chunks.keys().filter(is_suspect).map(|coords| (*node, coords.clone())).collect::<Vec<_>>()
    };
    changes.chunks.iter().flat_map(of_node).collect()
}
