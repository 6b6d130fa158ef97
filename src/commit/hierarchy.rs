//! Builds the hierarchy of the new snapshot: its nodes, and the manifests that have to be written for them.

use std::collections::{HashMap, HashSet};

use super::changes::ChangeSet;
use super::manifests::{ArrayTask, ManifestWriter};
use super::nodes;
use super::replace_moves::StorableChanges;
use crate::error::{Error, Result};
use crate::format::draft::SnapshotDraft;
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

/// Adds the nodes of the new snapshot and their manifests to `draft`, and writes the manifests that change.
pub(super) async fn write_nodes(
    base: &Snapshot,
    stored: &StorableChanges<'_>,
    manifests: &mut ManifestWriter,
    is_rewritten: bool,
    draft: &mut SnapshotDraft,
) -> Result<()> {
    let mut planned = nodes::apply(base, &stored.changes, &stored.sources, draft.version)?;
    let infos = base.manifest_infos();
    let mut tasks = Vec::new();
    for planned in &planned {
        let Some(array) = &planned.node.array else { continue };
        let changes = stored.chunks.get(&planned.node.id);
        if planned.is_written || changes.is_some() || is_rewritten {
            tasks.push(ArrayTask {
                node: planned.node.id,
                path: &planned.node.path,
                chunks_of: planned.chunks_of,
                grid: array.shape.iter().map(|dimension| dimension.num_chunks).collect(),
                names: array.dimension_names.as_deref(),
                old: &array.manifests,
                changes: changes.cloned().unwrap_or_default(),
                is_rewritten,
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
