//! The later commits that keep a revert from being made, without those that took each other back.
//!
//! A commit and its own revert leave what was before them. Naming them would lead the user in
//! circles: to the revert, to the revert of that, and so on. So the states that the commits left
//! are compared, in what is in conflict and nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use super::authors::{has_made, ids_of};
use super::claims::Touched;
use crate::commit::changes::ChangeSet;
use crate::commit::conflicts::{Conflict, ConflictKind};
use crate::compare::changes::changes_between;
use crate::reader::Reader;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::zarr::{Coords, is_in_grid};

/// Most later commits whose logs are read.
const MAX_LOGS: usize = 100;
/// Most commits whose states are compared, each with each.
const MAX_STATES: usize = 12;

/// Returns which of the commits `later`, newest first, have to be taken back before `common`, the
/// state before them, is back in everything that `conflicts` are about; `now` is the newest state.
/// Each of them has left what is there of that when those named before it are taken back; what
/// else it changed may stand in its own way. Returns nothing
/// if there are too many commits to tell, or if no log is left of one.
pub(super) async fn obstacles(
    repository: &Repository,
    reader: &Arc<Reader>,
    later: &[ObjectId],
    [now, common]: [&Snapshot; 2],
    conflicts: &[Conflict],
) -> Result<Vec<SnapshotInfo>> {
    if later.len() > MAX_LOGS {
        return Ok(Vec::new());
    }
    let ids = ids_of(conflicts, [now, common]);
    let mut commits = Vec::new();
    let mut states = Vec::new();
    for id in later {
        let commit = repository.commit(*id).await?;
        let Some(touched) = Touched::read(repository, &[&commit]).await? else { return Ok(Vec::new()) };
        let is_in_conflict =
            |conflict: &Conflict| ids.get(&conflict.path).is_some_and(|node| has_made(&touched, *node, conflict));
        if !conflicts.iter().any(is_in_conflict) {
            continue;
        }
        if states.len() == MAX_STATES {
            return Ok(Vec::new());
        }
        states.push(repository.snapshot(*id, MAX_SNAPSHOT).await?);
        commits.push(commit);
    }
    let all: Vec<&Snapshot> = states.iter().chain([common]).collect();
    let mut needed = Vec::new();
    let mut next = 0;
    while let Some(state) = states.get(next) {
        let mut oldest = next;
        for (position, earlier) in all.iter().enumerate().skip(next + 1).rev() {
            let changes = changes_between(reader, earlier, state).await?;
            if !conflicts.iter().any(|conflict| changes_any_of(&changes, conflict, &ids)) {
                oldest = position;
                break;
            }
        }
        let Some(commit) = commits.get(oldest) else { break };
        needed.push(commit.clone());
        next = oldest + 1;
    }
    Ok(needed)
}

/// Returns true if `changes` are also to what `conflict` is about, at the node that `ids` has for
/// its path.
fn changes_any_of(changes: &ChangeSet, conflict: &Conflict, ids: &HashMap<String, NodeId>) -> bool {
    let Some(node) = ids.get(&conflict.path) else { return false };
    let appears = changes.created.iter().any(|created| created.id == *node);
    let disappears = changes.deleted.iter().any(|deleted| deleted.id == *node);
    let moves = changes.moved.iter().any(|moved| moved.node == *node);
    let updated = changes.updated.iter().find(|updated| updated.id == *node);
    let chunks = changes.chunks.get(node);
    appears
        || disappears
        || match conflict.kind {
            ConflictKind::ZarrMetadataDoubleUpdate => updated.is_some(),
            ConflictKind::ChunkDoubleUpdate => {
                // Chunks that a smaller shape drops are in no list of changes.
                let grid = updated.and_then(|updated| updated.grid().ok());
                conflict.coords.iter().any(|coords| {
                    chunks.is_some_and(|chunks| chunks.contains_key(&Coords::from_slice(coords)))
                        || grid.as_ref().is_some_and(|grid| !is_in_grid(coords, grid))
                })
            }
            _ => moves || updated.is_some() || chunks.is_some(),
        }
}
