//! Two sides, compared with what they have in common.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::repacked;
use crate::commit::changes::{ChangeSet, ChunkChange};
use crate::commit::conflict::Conflict;
use crate::commit::engine::OnConflict;
use crate::commit::three_way::{self, Theirs};
use crate::compare::changes::changes_between;
use crate::reader::Reader;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Metered;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::zarr::{Coords, is_in_grid};

/// Chunks, by array.
pub(super) type ChunkSet = HashMap<NodeId, HashSet<Coords>>;

/// Changes of one side, to be made in the other one.
pub(super) struct Applied {
    /// Changes that one side has made and the other one lacks.
    pub(super) changes: Metered<ChangeSet>,
    /// Conflicts that are not solved.
    pub(super) conflicts: Vec<Conflict>,
    /// Chunks of the changes that the other side has changed, too.
    pub(super) contested: ChunkSet,
}

/// Compares `side` and `other`, the snapshot of `commit`, with `before`.
pub(super) async fn apply(
    reader: &Arc<Reader>,
    before: &Snapshot,
    side: &Snapshot,
    other: &Snapshot,
    commit: &SnapshotInfo,
    on_conflict: OnConflict,
) -> Result<Applied> {
    let (mut changes, mut theirs) =
        tokio::try_join!(changes_between(reader, before, side), changes_between(reader, before, other))?;
    let suspects = repacked::suspects(&theirs, &changes);
    repacked::drop_unchanged(reader, before, other, &mut theirs, suspects).await?;
    let suspects = repacked::suspects(&changes, &theirs);
    repacked::drop_unchanged(reader, before, side, &mut changes, suspects).await?;
    repacked::unite(reader, &mut changes, &theirs).await?;
    let of_theirs = theirs.chunks.iter().map(|(node, chunks)| (*node, chunks.keys().cloned().collect())).collect();
    let theirs = Theirs { snapshot: other, commit, changes: theirs };
    let conflicts = three_way::reduce(before, &mut changes, theirs, &on_conflict.into())?;
    let contested = in_both(&changes, &of_theirs);
    Ok(Applied { changes, conflicts, contested })
}

/// Returns the chunks that `changes` change.
pub(super) fn chunks_of(changes: &ChangeSet) -> ChunkSet {
    changes.chunks.iter().map(|(node, chunks)| (*node, chunks.keys().cloned().collect())).collect()
}

/// Returns the chunks of `changes` that are in `others`, too.
pub(super) fn in_both(changes: &ChangeSet, others: &ChunkSet) -> ChunkSet {
    let of_node = |(node, chunks): (&NodeId, &BTreeMap<Coords, ChunkChange>)| {
        let others = others.get(node)?;
        let both: HashSet<Coords> = chunks.keys().filter(|coords| others.contains(*coords)).cloned().collect();
        (!both.is_empty()).then_some((*node, both))
    };
    changes.chunks.iter().filter_map(of_node).collect()
}

/// Places for chunks after some changes: those lists leave out the chunks of an array that its new
/// shape has no place for, and those of arrays that they delete.
pub(super) struct Places {
    /// Chunks per dimension of the arrays whose document changed.
    grids: HashMap<NodeId, Vec<u32>>,
    deleted: HashSet<NodeId>,
}

impl Places {
    /// Returns the places that there are after `changes`.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if a changed `zarr.json` has no grid.
    pub(super) fn after(changes: &ChangeSet) -> Result<Self> {
        let grids = changes.updated.iter().map(|node| Ok((node.id, node.grid()?))).collect::<Result<_>>()?;
        Ok(Places { grids, deleted: changes.deleted.iter().map(|node| node.id).collect() })
    }

    /// Returns true if a chunk that was there after `earlier`, a change of it, has none.
    pub(super) fn lack(&self, array: NodeId, coords: &Coords, earlier: &ChunkChange) -> bool {
        let is_outside = || self.grids.get(&array).is_some_and(|grid| !is_in_grid(coords, grid));
        !matches!(earlier, ChunkChange::Delete) && (self.deleted.contains(&array) || is_outside())
    }
}
