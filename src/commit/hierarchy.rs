//! Builds the hierarchy of the new snapshot: its nodes, and the manifests that have to be written for them.

use std::collections::{HashMap, HashSet};

use super::changes::ChangeSet;
use super::manifests::{ArrayTask, ManifestWriter, worth_gathering};
use super::nodes::{self, Planned};
use super::replace_moves::StorableChanges;
use crate::error::{Error, Result};
use crate::format::draft::SnapshotDraft;
use crate::format::ids::NodeId;
use crate::format::snapshot::Snapshot;

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

/// Adds the nodes of the new snapshot and their manifests to `draft`, and writes the manifests that change.
pub(super) async fn write_nodes(
    base: &Snapshot,
    stored: &StorableChanges<'_>,
    manifests: &mut ManifestWriter,
    extent: Extent,
    draft: &mut SnapshotDraft,
) -> Result<()> {
    let mut planned = nodes::apply(base, &stored.changes, &stored.sources, draft.version)?;
    let infos = base.manifest_infos();
    let is_rewritten = extent == Extent::All;
    let is_touched =
        |planned: &Planned| planned.is_written || is_rewritten || stored.chunks.contains_key(&planned.node.id);
    let touched: HashSet<NodeId> =
        planned.iter().filter(|planned| is_touched(planned)).map(|one| one.node.id).collect();
    let gathered = match extent {
        Extent::Gathered if !stored.chunks.is_empty() => worth_gathering(&planned, &touched, &infos),
        _ => HashSet::new(),
    };
    let mut tasks = Vec::with_capacity(touched.len() + gathered.len());
    for planned in &planned {
        let (Some(array), id) = (&planned.node.array, planned.node.id) else { continue };
        let is_gathered = gathered.contains(&id);
        if touched.contains(&id) || is_gathered {
            tasks.push(ArrayTask {
                node: id,
                path: &planned.node.path,
                zarr_json: &planned.node.zarr_json,
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
        return Err(Error::invalid(format!("chunks of node {stray} were changed, which is no array of the snapshot")));
    }
    let mut written = manifests.write(tasks, &infos).await?;
    for planned in &mut planned {
        let Some(array) = &mut planned.node.array else { continue };
        match written.remove(&planned.node.id) {
            Some(written) => {
                array.manifests = written.iter().map(|(reference, _)| reference.clone()).collect();
                draft.manifests.extend(written.into_iter().map(|(_, info)| info));
            }
            None => {
                for reference in &array.manifests {
                    let info = infos.get(&reference.id).ok_or_else(|| {
                        Error::corrupt(format!("array {}: manifest {} is not listed", planned.node.path, reference.id))
                    })?;
                    draft.manifests.push(*info);
                }
            }
        }
    }
    draft.nodes = planned.into_iter().map(|planned| planned.node).collect();
    Ok(())
}
