//! Resolves conflicts by dropping changes from the change set.

use std::collections::HashMap;
use std::sync::Arc;

use super::changes::ChangeSet;
use super::conflicts::{ChunkSet, Conflict, ConflictKind};
use super::upload::StoredChunks;
use crate::format::ids::NodeId;
use crate::format::snapshot::Snapshot;
use crate::zarr::Coords;

/// Drops the changes of conflicting chunks. `base` is the snapshot that the changes were made for.
pub(super) fn drop_conflicting_chunks(
    base: &Snapshot,
    changes: &mut ChangeSet,
    stored: &mut StoredChunks,
    conflicts: &[Conflict],
) {
    let ids = ids_by_path(base);
    let mut dropped = ChunkSet::new();
    for conflict in conflicts {
        let Some(id) = ids.get(conflict.path.as_str()) else { continue };
        dropped.entry(*id).or_default().extend(conflict.coords.iter().map(|coords| Coords::from_slice(coords)));
    }
    drop_chunks(changes, stored, &dropped);
}

/// Drops the changes of conflicting arrays and chunks.
pub(super) fn drop_conflicting_changes(
    base: &Snapshot,
    changes: &mut ChangeSet,
    stored: &mut StoredChunks,
    conflicts: &[Conflict],
) {
    let (chunks, arrays): (Vec<Conflict>, Vec<Conflict>) =
        conflicts.iter().cloned().partition(|conflict| conflict.kind == ConflictKind::ChunkDoubleUpdate);
    let ids = ids_by_path(base);
    for id in arrays.iter().filter_map(|conflict| ids.get(conflict.path.as_str())) {
        changes.chunks.remove(id);
        stored.remove(id);
    }
    drop_conflicting_chunks(base, changes, stored, &chunks);
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

fn ids_by_path(base: &Snapshot) -> HashMap<&str, NodeId> {
    base.nodes().map(|node| (node.path, node.id)).collect()
}
