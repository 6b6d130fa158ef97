//! Plans which old manifests and changes go into which cell of an array.

use std::collections::{BTreeMap, HashMap};

use super::ArrayTask;
use crate::commit::splitting::Cells;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::{ManifestInfo, ManifestRef};

/// Limit on the cells that the manifests of an array reach into, in total. Each becomes a manifest,
/// unless it is empty.
const MAX_CELLS: u64 = 1 << 20;
/// Memory of a cell that is planned, beside its numbers, and of each of its numbers: the plan has
/// them twice while it is made.
const CELL: u64 = 400;
const NUMBER: u64 = 16;

/// Inputs of a cell that is kept or written.
#[derive(Debug, Default)]
pub(super) struct CellPlan {
    /// Positions of old manifests that reach into the cell.
    pub(super) sources: Vec<usize>,
    /// Positions of changes in the cell.
    pub(super) changes: Vec<usize>,
    /// True if a source has references outside the cell.
    is_cut: bool,
}

impl CellPlan {
    /// Returns true if the old manifests of the cell can stay.
    pub(super) fn is_kept(&self, task: &ArrayTask<'_>) -> bool {
        let is_as_planned =
            self.changes.is_empty() && !self.is_cut && !task.is_rewritten && task.chunks_of == task.node;
        is_as_planned && are_disjoint(&self.old(task).collect::<Vec<_>>())
    }

    /// Returns the old manifests that reach into the cell.
    pub(super) fn old<'a>(&'a self, task: &'a ArrayTask<'_>) -> impl Iterator<Item = &'a ManifestRef> {
        self.sources.iter().filter_map(|&at| task.old.get(at))
    }

    /// Returns the number of references that the cell will have at most.
    pub(super) fn references(&self, task: &ArrayTask<'_>, infos: &HashMap<ObjectId, ManifestInfo>) -> u64 {
        let old = self.old(task).map(|reference| references_in(reference, task.grid.len(), infos));
        old.fold(self.changes.len() as u64, u64::saturating_add)
    }
}

/// Returns the number of references that an array of `rank` dimensions has at most in one of its
/// manifests, which may hold other arrays, too.
fn references_in(reference: &ManifestRef, rank: usize, infos: &HashMap<ObjectId, ManifestInfo>) -> u64 {
    references_of(reference.id, reference.places(rank), infos)
}

/// Returns the number of references that an array has at most in manifest `id`, within whose
/// extents it has `places`.
pub(super) fn references_of(id: ObjectId, places: u64, infos: &HashMap<ObjectId, ManifestInfo>) -> u64 {
    // Before 0.1.0, references were not counted.
    let listed = infos.get(&id).map(|info| u64::from(info.chunk_refs)).filter(|listed| *listed > 0);
    places.min(listed.unwrap_or(u64::MAX))
}

/// Assigns the changes and the old manifests of an array to cells, which are counted by `meter`.
pub(super) fn plan(task: &ArrayTask<'_>, cells: &Cells, meter: &mut Meter) -> Result<BTreeMap<Vec<u32>, CellPlan>> {
    let memory = CELL + NUMBER * task.grid.len() as u64;
    let mut plans: BTreeMap<Vec<u32>, CellPlan> = BTreeMap::new();
    for (at, (coords, place)) in task.changes.iter().enumerate() {
        match cells.find(coords) {
            Some(cell) => plans.entry(cell).or_default().changes.push(at),
            // The deletion of a chunk outside the grid has no effect.
            None if place.is_none() => {}
            None => {
                return Err(Error::invalid(format!("chunk {coords:?} is not in the grid of {:?} chunks", task.grid)));
            }
        }
    }
    if cells.is_empty() {
        return Ok(plans);
    }
    let mut touched: u64 = 0;
    for (at, old) in task.old.iter().enumerate() {
        let more = cells.count_touched(&old.extents);
        touched = touched.saturating_add(more);
        if touched > MAX_CELLS {
            return Err(Error::invalid(format!(
                "the rules for splitting manifests would cut its {:?} chunks into more than {MAX_CELLS} parts: choose larger ones",
                task.grid
            )));
        }
        meter.count(memory.saturating_mul(more))?;
        let (touched, is_inside) = cells.touched(&old.extents);
        let is_cut = !is_inside || touched.len() > 1;
        for cell in touched {
            let plan = plans.entry(cell).or_default();
            plan.sources.push(at);
            plan.is_cut |= is_cut;
        }
    }
    Ok(plans)
}

fn are_disjoint(manifests: &[&ManifestRef]) -> bool {
    manifests.iter().enumerate().all(|(at, a)| manifests.iter().skip(at + 1).all(|b| !a.overlaps(b)))
}

/// Returns the intersection of two boxes. Extents of another rank do not restrict the cell.
pub(super) fn intersection(cell: &[(u32, u32)], extents: &[(u32, u32)]) -> Vec<(u32, u32)> {
    if cell.len() != extents.len() {
        return cell.to_vec();
    }
    std::iter::zip(cell, extents).map(|(a, b)| (a.0.max(b.0), a.1.min(b.1))).collect()
}
