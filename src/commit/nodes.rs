//! A snapshot's nodes with a change set applied to them.
//!
//! Everything goes by the ids of nodes: the snapshot may be a newer one than the change set was made for, in which others have
//! added, changed or moved other nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::changes::{ChangeSet, WrittenNode};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::draft::{ArrayDraft, NodeDraft};
use crate::format::envelope::SpecVersion;
use crate::format::ids::NodeId;
use crate::format::snapshot::{Dimension, ManifestRef, Node, NodeData, Snapshot};
use crate::zarr::array::ArraySummary;

/// A node of the snapshot to come.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// The node. The manifests of an array are those that it had before.
    pub(super) node: NodeDraft,
    /// Whether its `zarr.json` is new.
    pub(super) is_written: bool,
    /// The node under whose id the array's manifests have its chunks.
    pub(super) chunks_of: NodeId,
}

/// Nodes that take their chunks from another node, by the new one's id: version 1 has no moves.
pub(super) type Sources = BTreeMap<NodeId, NodeId>;

/// The nodes of `snapshot` with `changes` applied, for a snapshot of `version`; in no certain order.
///
/// What is deleted may be gone already. Every other node that the change set speaks of must be there.
pub(super) fn apply(
    snapshot: &Snapshot,
    changes: &ChangeSet,
    sources: &Sources,
    version: SpecVersion,
) -> Result<Vec<Planned>> {
    let deleted: BTreeSet<NodeId> = changes.deleted.iter().map(|node| node.id).collect();
    let mut moved: HashMap<NodeId, &str> = changes.moved.iter().map(|m| (m.node, m.to.as_str())).collect();
    let mut updated: HashMap<NodeId, &WrittenNode> = changes.updated.iter().map(|node| (node.id, node)).collect();
    let mut lent: HashMap<NodeId, Vec<ManifestRef>> = sources.values().map(|&id| (id, Vec::new())).collect();
    let mut planned = Vec::with_capacity(snapshot.node_count() + changes.created.len());
    for node in snapshot.nodes() {
        if let (Some(manifests), NodeData::Array(array)) = (lent.get_mut(&node.id), &node.data) {
            *manifests = array.manifests();
        }
        if deleted.contains(&node.id) {
            continue;
        }
        let mut draft = keep(&node)?;
        if let Some(to) = moved.remove(&node.id) {
            to.clone_into(&mut draft.path);
        }
        let written = updated.remove(&node.id);
        if let Some(written) = written {
            rewrite(&mut draft, written, version)?;
        }
        planned.push(Planned { node: draft, is_written: written.is_some(), chunks_of: node.id });
    }
    let missing = moved.keys().chain(updated.keys()).next();
    if let Some(id) = missing {
        return Err(Error::invalid(format!("node {id} was changed, but is not in snapshot {}", snapshot.id())));
    }
    for written in &changes.created {
        let array = written.is_array.then(|| ArrayDraft {
            shape: Vec::new(),
            dimension_names: None,
            manifests: sources.get(&written.id).and_then(|source| lent.get(source)).cloned().unwrap_or_default(),
        });
        let mut draft = NodeDraft { id: written.id, path: written.path.clone(), zarr_json: Vec::new(), array };
        rewrite(&mut draft, written, version)?;
        let chunks_of = sources.get(&written.id).copied().unwrap_or(written.id);
        planned.push(Planned { node: draft, is_written: true, chunks_of });
    }
    check_paths(&planned)?;
    Ok(planned)
}

/// A node as it is.
fn keep(node: &Node<'_>) -> Result<NodeDraft> {
    let array = match &node.data {
        NodeData::Group => None,
        NodeData::Array(array) => Some(ArrayDraft {
            shape: array.dimensions().ok_or_else(|| {
                Error::corrupt(format!("array {}: the snapshot says a chunk has no elements", node.path))
            })?,
            dimension_names: array.dimension_names(),
            manifests: array.manifests(),
        }),
        NodeData::Unknown(kind) => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("node {} is of unknown kind {kind}: a newer program may commit onto it", node.path),
            ));
        }
    };
    Ok(NodeDraft { id: node.id, path: node.path.to_owned(), zarr_json: node.zarr_json.to_vec(), array })
}

/// Gives a node its new `zarr.json`, and what follows from it.
fn rewrite(draft: &mut NodeDraft, written: &WrittenNode, version: SpecVersion) -> Result<()> {
    if draft.array.is_some() != written.is_array {
        return Err(Error::invalid(format!("{}: a group cannot become an array, nor an array a group", written.path)));
    }
    if let Some(array) = &mut draft.array {
        let refused = |e: Error| Error::with_source(ErrorKind::InvalidInput, format!("{}/zarr.json", draft.path), e);
        let summary = ArraySummary::parse(&written.zarr_json).map_err(refused)?;
        array.shape = summary
            .dimensions
            .iter()
            .map(|&(array_length, num_chunks, chunk_length)| match (chunk_length, version) {
                (Some(chunk_length), _) => Ok(Dimension { array_length, num_chunks, chunk_length }),
                (None, SpecVersion::V2) => Ok(Dimension { array_length, num_chunks, chunk_length: 0 }),
                (None, SpecVersion::V1) => Err(Error::new(
                    ErrorKind::Unsupported,
                    "a repository of version 1 has no rectilinear chunk grids: migrate it to version 2",
                )),
            })
            .collect::<Result<_>>()
            .context(|| format!("{}/zarr.json", written.path))?;
        array.dimension_names = summary.dimension_names;
    }
    draft.zarr_json = written.zarr_json.to_vec();
    Ok(())
}

/// What readers cannot find is not written.
fn check_paths(planned: &[Planned]) -> Result<()> {
    let mut seen = HashSet::with_capacity(planned.len());
    for Planned { node, .. } in planned {
        if !is_canonical(&node.path) {
            return Err(Error::invalid(format!("{:?} is no path of a node", node.path)));
        }
        if !seen.insert(node.path.as_str()) {
            return Err(Error::invalid(format!("two nodes would be at {}", node.path)));
        }
    }
    Ok(())
}

fn is_canonical(path: &str) -> bool {
    let names = |rest: &str| rest.split('/').all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'));
    path == "/" || path.strip_prefix('/').is_some_and(names)
}
