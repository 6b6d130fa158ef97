//! The commits that conflicts are with.
//!
//! A merge and a revert compare states, in which nothing says which commit made a change. Where the
//! states conflict, the logs of the commits between them are asked, so that a message names the
//! commit that the user has to look at, and not the newest one.

use std::collections::{HashMap, HashSet};

use super::claims::Touched;
use crate::commit::conflict::{Conflict, ConflictKind};
use crate::repo::Repository;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::Coords;

/// Most commits whose logs are asked. Conflicts with older ones keep the name of the newest.
const MAX_COMMITS: usize = 100;

/// Names, for each of `conflicts`, the newest of the commits `line`, newest first, that changed
/// what is in conflict. Nodes have their ids in one of `states`. A commit or a log that cannot be
/// read is no reason to fail: what is said of the conflicts is right without it.
pub(super) async fn name_commits(
    repository: &Repository,
    line: impl Iterator<Item = ObjectId>,
    states: [&Snapshot; 2],
    conflicts: &mut [Conflict],
) {
    let ids = ids_of(conflicts, states);
    let mut open: Vec<(NodeId, &mut Conflict)> =
        conflicts.iter_mut().filter_map(|conflict| Some((*ids.get(&conflict.path)?, conflict))).collect();
    for id in line.take(MAX_COMMITS) {
        if open.is_empty() {
            break;
        }
        let Ok(commit) = repository.commit(id).await else { continue };
        let Ok(Some(touched)) = Touched::read(repository, &[&commit]).await else { continue };
        open.retain_mut(|(node, conflict)| {
            let is_it = has_made(&touched, *node, conflict);
            if is_it {
                conflict.other = commit.id;
                conflict.message = commit.title();
            }
            !is_it
        });
    }
}

/// Returns the node at the path of each conflict, in the first of `states` that has one.
pub(super) fn ids_of(conflicts: &[Conflict], states: [&Snapshot; 2]) -> HashMap<String, NodeId> {
    let wanted: HashSet<&str> = conflicts.iter().map(|conflict| conflict.path.as_str()).collect();
    let mut ids = HashMap::new();
    for node in states.iter().flat_map(|state| state.nodes()).filter(|node| wanted.contains(node.path)) {
        ids.entry(node.path.to_owned()).or_insert(node.id);
    }
    ids
}

/// Returns true if a commit that changed what is `touched` changed what the conflict at `node` is
/// about.
pub(super) fn has_made(touched: &Touched, node: NodeId, conflict: &Conflict) -> bool {
    match conflict.kind {
        ConflictKind::ChunkDoubleUpdate | ConflictKind::ChunksUpdatedOutsideNewShape => {
            conflict.coords.iter().any(|coords| touched.lists_chunk(node, &Coords::from_slice(coords)))
        }
        _ => touched.has_any_of(node),
    }
}
