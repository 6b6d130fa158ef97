//! Builds the hierarchy of the new snapshot: its nodes, and the manifests that have to be written
//! for them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::changes::ChangeSet;
use super::manifests::{ArrayTask, ManifestWriter, worth_gathering};
use super::nodes::{self, Planned, PlannedNode};
use super::replace_moves::StorableChanges;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::draft::SnapshotDraft;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::kept_nodes::KeptNodes;
use icechunkfs_format::format::snapshot::Snapshot;

/// Returns the changes without those that have no effect.
pub(super) fn effective(base: &Snapshot, changes: &ChangeSet) -> ChangeSet {
    let mut changes = changes.clone();
    if !changes.updated.is_empty() {
        let old: HashMap<_, _> = base.nodes().map(|node| (node.id, node.zarr_json)).collect();
        changes.updated.retain(|node| old.get(&node.id) != Some(&&*node.zarr_json));
    }
    changes.moved.retain(|m| m.from != m.to);
    changes.chunks.retain(|_, chunks| !chunks.is_empty());
    changes
}

/// Arrays beside those with changes whose manifests a commit writes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// None.
    Changed,
    /// Small ones, of many that each have a manifest.
    Gathered,
    /// All.
    All,
}

/// Adds the nodes of the new snapshot and their manifests to `draft`, but for those that stay as
/// they are in `base`, which are returned. Writes the manifests that change.
pub(super) async fn write_nodes(
    base: &Arc<Snapshot>,
    stored: &StorableChanges<'_>,
    manifests: &mut ManifestWriter,
    extent: Extent,
    draft: &mut SnapshotDraft,
) -> Result<KeptNodes> {
    let mut planned = nodes::apply(base, &stored.changes, &stored.sources, draft.version)?;
    let infos = base.manifest_infos();
    let is_rewritten = extent == Extent::All;
    let is_touched =
        |planned: &Planned<'_>| planned.is_written || is_rewritten || stored.chunks.contains_key(&planned.id());
    let touched: HashSet<NodeId> = planned.iter().filter(|planned| is_touched(planned)).map(Planned::id).collect();
    let gathered = match extent {
        Extent::Gathered if !stored.chunks.is_empty() => worth_gathering(&planned, &touched, &infos),
        _ => HashSet::new(),
    };
    for planned in &mut planned {
        if touched.contains(&planned.id()) || gathered.contains(&planned.id()) {
            planned.make_draft()?;
        }
    }
    let mut tasks = Vec::with_capacity(touched.len() + gathered.len());
    for planned in &planned {
        let Some(node) = planned.draft() else { continue };
        let (Some(array), id) = (&node.array, node.id) else { continue };
        let is_gathered = gathered.contains(&id);
        if touched.contains(&id) || is_gathered {
            tasks.push(ArrayTask {
                node: id,
                path: &node.path,
                zarr_json: &node.zarr_json,
                chunks_of: planned.chunks_of,
                grid: array.shape.iter().map(|dimension| dimension.num_chunks).collect(),
                names: array.dimension_names.as_deref(),
                old: &array.manifests,
                changes: stored.chunks.get(&id).cloned().unwrap_or_default(),
                is_rewritten,
                is_gathered,
            });
        }
    }
    let known: HashSet<_> = tasks.iter().map(|task| task.node).collect();
    if let Some(stray) = stored.chunks.keys().find(|id| !known.contains(id)) {
        return Err(Error::invalid(format!(
            "chunks of node {stray} were changed, but it is not an array of the snapshot"
        )));
    }
    let mut written = manifests.write(tasks, &infos).await?;
    let mut kept = KeptNodes { snapshot: Arc::clone(base), positions: Vec::with_capacity(planned.len()) };
    // Manifests that the snapshot will list of those that its base lists.
    let mut used: HashSet<ObjectId> = HashSet::new();
    let mut last = None;
    for planned in planned {
        let new = planned.draft().and_then(|node| written.remove(&node.id));
        if new.is_none() {
            for (id, _) in planned.manifests().into_iter().flatten() {
                // Neighbors share manifests.
                if last.replace(id) == Some(id) || !used.insert(id) {
                    continue;
                }
                let info = infos
                    .get(&id)
                    .ok_or_else(|| Error::corrupt(format!("array {}: manifest {id} is not listed", planned.path())))?;
                draft.manifests.push(*info);
            }
        }
        match planned.node {
            PlannedNode::Kept(position, _) => kept.positions.push(position),
            PlannedNode::Drafted(mut node) => {
                if let (Some(array), Some(new)) = (&mut node.array, new) {
                    array.manifests = new.iter().map(|(reference, _)| reference.clone()).collect();
                    draft.manifests.extend(new.into_iter().map(|(_, info)| info));
                }
                draft.nodes.push(node);
            }
        }
    }
    Ok(kept)
}
