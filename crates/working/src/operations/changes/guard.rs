//! Last check before a commit: each deletion must come from an operation of this mount.
//!
//! A working tree deletes what it does not show, but an entry can be missing for reasons other than
//! a removal. This module knows only the removals, each of which left a whiteout or an entry that
//! covers the old one, and accepts no deletion that none of them explains.

use std::collections::HashSet;

use crate::overlay::frozen::{Frozen, FrozenEntry};
use crate::overlay::replace::node_ids;
use crate::scratch::record::Source;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};

/// Refuses `changes`, detected in `frozen` over `tree`, if they delete something that no operation
/// removed.
///
/// Fails with [`ErrorKind::Stale`] and names the first such node or chunk.
pub fn reject_unexplained_deletions(tree: &Tree, frozen: &Frozen, changes: &ChangeSet) -> Result<()> {
    let is_deleted = |change: &ChunkChange| matches!(change, ChunkChange::Delete);
    if changes.deleted.is_empty() && !changes.chunk_changes().any(is_deleted) {
        return Ok(());
    }
    let removed = removed(tree, frozen);
    let ids = node_ids(tree);
    let above = |at: &NodeIndex| tree.table().get(*at).map(|node| node.parent).filter(|_| *at != 0);
    let is_below_removed = |index: NodeIndex| {
        std::iter::successors(Some(index), above).any(|at| removed.contains(&TreePlace::Directory(at)))
    };
    for node in &changes.deleted {
        let Some(&index) = ids.get(&node.id) else { continue };
        if !removed.contains(&TreePlace::Metadata(index)) && !is_below_removed(index) {
            return Err(unexplained(&node.path));
        }
    }
    for (id, chunks) in &changes.chunks {
        let Some(&index) = ids.get(id).filter(|index| !is_below_removed(**index)) else { continue };
        for (coords, _) in chunks.iter().filter(|(_, change)| is_deleted(change)) {
            let prefix = |depth| TreePlace::Chunk(index, Coords::from_slice(coords.get(..depth).unwrap_or_default()));
            if !(0..=coords.len()).any(|depth| removed.contains(&prefix(depth))) {
                return Err(unexplained(&tree.path_of(&TreePlace::Chunk(index, coords.clone()))));
            }
        }
    }
    Ok(())
}

/// Returns the places of the base that operations removed or replaced.
fn removed(tree: &Tree, frozen: &Frozen) -> HashSet<TreePlace> {
    let mut places = HashSet::new();
    for directory in frozen.directories() {
        let Some(lower) = &directory.lower else { continue };
        for (name, entry) in &directory.entries {
            let Some(place) = name.text().and_then(|name| tree.child_place(lower, name)) else { continue };
            // A document written over the base's may describe another node.
            let is_written = matches!(entry, FrozenEntry::File(file) if file.source != Source::Lower);
            if is_written || matches!(entry, FrozenEntry::Whiteout) || directory.covering.contains(name) {
                places.extend(tree.shared_chunks(&place));
                places.insert(place);
            }
        }
    }
    places
}

fn unexplained(path: &str) -> Error {
    tracing::error!(
        "{path} would be deleted by a commit, and no operation of this mount removed it: nothing was committed"
    );
    Error::new(
        ErrorKind::Stale,
        format!("{path} would be deleted, and nothing here removed it: nothing was committed. Please report this"),
    )
}
