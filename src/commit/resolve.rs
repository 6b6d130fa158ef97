//! Resolves conflicts by dropping changes from the change set.

use std::collections::HashMap;
use std::sync::Arc;

use super::changes::ChangeSet;
use super::conflicts::{ChunkSet, Conflict, ConflictKind};
use super::upload::StoredChunks;
use crate::format::ids::NodeId;
use crate::format::snapshot::Snapshot;
use crate::zarr::Coords;

/// Drops the changes of conflicting chunks, and all chunk changes of arrays with other conflicts. `base` is the snapshot that
/// the changes were made for.
pub(super) fn drop_conflicting(
    base: &Snapshot,
    changes: &mut ChangeSet,
    stored: &mut StoredChunks,
    conflicts: &[Conflict],
) {
    let ids: HashMap<&str, NodeId> = base.nodes().map(|node| (node.path, node.id)).collect();
    let mut dropped = ChunkSet::new();
    for conflict in conflicts {
        let Some(id) = ids.get(conflict.path.as_str()) else { continue };
        if conflict.kind == ConflictKind::ChunkDoubleUpdate {
            dropped.entry(*id).or_default().extend(conflict.coords.iter().map(|coords| Coords::from_slice(coords)));
        } else {
            changes.chunks.remove(id);
            stored.remove(id);
        }
    }
    drop_chunks(changes, stored, &dropped);
}

/// Removes `chunks` from the changes and from the stored chunks.
pub(super) fn drop_chunks(changes: &mut ChangeSet, stored: &mut StoredChunks, chunks: &ChunkSet) {
    for (id, dropped) in chunks {
        if let Some(ours) = changes.chunks.get_mut(id) {
            ours.retain(|coords, _| !dropped.contains(coords));
        }
        if let Some(list) = stored.get_mut(id) {
            let kept = list.iter().filter(|(coords, _)| !dropped.contains(coords)).cloned();
            *list = Arc::new(kept.collect());
        }
    }
    changes.chunks.retain(|_, chunks| !chunks.is_empty());
    stored.retain(|_, chunks| !chunks.is_empty());
}
