//! Applies a change set to a snapshot's nodes.
//!
//! Nodes are matched by id: the snapshot may be newer than the one that the change set was made
//! for, and concurrent commits may have added, changed or moved other nodes.

use std::collections::{BTreeMap, HashMap, HashSet};

use smallvec::SmallVec;

use super::changes::{ChangeSet, WrittenNode};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::draft::{ArrayDraft, NodeDraft};
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::{Dimension, ManifestRef, Node, NodeData, Snapshot};
use icechunkfs_format::zarr::array::ArraySummary;

/// Node of the snapshot to be written.
#[derive(Debug)]
pub(super) struct Planned<'a> {
    pub(super) node: PlannedNode<'a>,
    /// True if its `zarr.json` is new.
    pub(super) is_written: bool,
    /// Node under whose id the array's manifests list its chunks.
    pub(super) chunks_of: NodeId,
}

/// Form in which a node is written. The manifests of an array are still the old ones.
#[derive(Debug)]
pub(super) enum PlannedNode<'a> {
    /// The same as in the old snapshot, where it has this position. Nothing of it is copied before
    /// it is written, as a commit of a chunk among very many nodes would take several times as
    /// long.
    Kept(u32, Node<'a>),
    /// A draft.
    Drafted(NodeDraft),
}

impl Planned<'_> {
    /// Returns the id.
    pub(super) fn id(&self) -> NodeId {
        match &self.node {
            PlannedNode::Kept(_, node) => node.id,
            PlannedNode::Drafted(node) => node.id,
        }
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &str {
        match &self.node {
            PlannedNode::Kept(_, node) => node.path,
            PlannedNode::Drafted(node) => &node.path,
        }
    }

    /// Returns the content of `zarr.json`.
    pub(super) fn zarr_json(&self) -> &[u8] {
        match &self.node {
            PlannedNode::Kept(_, node) => node.zarr_json,
            PlannedNode::Drafted(node) => &node.zarr_json,
        }
    }

    /// Returns the manifests of an array, each with the number of chunks that the array may have in
    /// it by its extents; none for a group.
    pub(super) fn manifests(&self) -> Option<SmallVec<[(ObjectId, u64); 2]>> {
        match &self.node {
            PlannedNode::Kept(_, Node { data: NodeData::Array(array), .. }) => Some(array.places().collect()),
            PlannedNode::Kept(..) => None,
            PlannedNode::Drafted(node) => {
                let array = node.array.as_ref()?;
                Some(array.manifests.iter().map(|one| (one.id, one.places(array.shape.len()))).collect())
            }
        }
    }

    /// Makes a draft of the node, unless it is one.
    pub(super) fn make_draft(&mut self) -> Result<()> {
        if let PlannedNode::Kept(_, node) = &self.node {
            self.node = PlannedNode::Drafted(draft_unchanged(node)?);
        }
        Ok(())
    }

    /// Returns the draft of the node; none if it stays as it is.
    pub(super) fn draft(&self) -> Option<&NodeDraft> {
        match &self.node {
            PlannedNode::Kept(..) => None,
            PlannedNode::Drafted(node) => Some(node),
        }
    }
}

/// Nodes whose chunks a new node takes over, by the id of the new node ([`super::replace_moves`]).
pub(super) type Sources = BTreeMap<NodeId, NodeId>;

/// Returns the nodes of `snapshot` with `changes` applied, for a snapshot of `version`, in no
/// particular order.
///
/// Deleted nodes may be missing from `snapshot` already; every other node of the change set must be
/// in it.
pub(super) fn apply<'a>(
    snapshot: &'a Snapshot,
    changes: &ChangeSet,
    sources: &Sources,
    version: SpecVersion,
) -> Result<Vec<Planned<'a>>> {
    let deleted = changes.deleted_ids();
    let mut moved = changes.moved_to();
    let mut updated: HashMap<NodeId, &WrittenNode> = changes.updated.iter().map(|node| (node.id, node)).collect();
    let mut lent: HashMap<NodeId, Vec<ManifestRef>> = sources.values().map(|&id| (id, Vec::new())).collect();
    let mut planned = Vec::with_capacity(snapshot.node_count() + changes.created.len());
    for (node, position) in std::iter::zip(snapshot.nodes(), 0_u32..) {
        if let (Some(manifests), NodeData::Array(array)) = (lent.get_mut(&node.id), &node.data) {
            *manifests = array.manifests();
        }
        if deleted.contains(&node.id) {
            continue;
        }
        let to = moved.remove(&node.id);
        let written = updated.remove(&node.id);
        let chunks_of = node.id;
        let can_stay = to.is_none() && written.is_none() && snapshot.version() == version;
        if can_stay && node.is_stored_as(version) {
            planned.push(Planned { node: PlannedNode::Kept(position, node), is_written: false, chunks_of });
            continue;
        }
        let mut draft = draft_unchanged(&node)?;
        if let Some(to) = to {
            to.clone_into(&mut draft.path);
        }
        if let Some(written) = written {
            rewrite(&mut draft, written, version)?;
        }
        planned.push(Planned { node: PlannedNode::Drafted(draft), is_written: written.is_some(), chunks_of });
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
        let mut draft =
            NodeDraft { id: written.id, path: written.path.clone(), zarr_json: Vec::new(), array, extra: None };
        rewrite(&mut draft, written, version)?;
        let chunks_of = sources.get(&written.id).copied().unwrap_or(written.id);
        planned.push(Planned { node: PlannedNode::Drafted(draft), is_written: true, chunks_of });
    }
    // Paths that the snapshot has already are not made worse.
    if !changes.created.is_empty() || !changes.moved.is_empty() {
        check_paths(&planned, &changes.created)?;
    }
    Ok(planned)
}

fn draft_unchanged(node: &Node<'_>) -> Result<NodeDraft> {
    let array = match &node.data {
        NodeData::Group => None,
        NodeData::Array(array) => Some(ArrayDraft::of(array).ok_or_else(|| {
            Error::corrupt(format!("array {}: the snapshot states that a chunk has no elements", node.path))
        })?),
        NodeData::Unknown(kind) => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("node {} is of unknown kind {kind}: a newer program may commit onto it", node.path),
            ));
        }
    };
    let extra = node.extra()?.map(<[u8]>::to_vec);
    Ok(NodeDraft { id: node.id, path: node.path.to_owned(), zarr_json: node.zarr_json.to_vec(), array, extra })
}

/// Sets a node's `zarr.json`, and the shape and dimension names that follow from it.
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
                    "a repository of version 1 cannot have rectilinear chunk grids: migrate it to version 2",
                )),
            })
            .collect::<Result<_>>()
            .context(|| format!("{}/zarr.json", written.path))?;
        array.dimension_names = summary.dimension_names;
    }
    draft.zarr_json = written.zarr_json.to_vec();
    Ok(())
}

/// Fails if a path is not canonical or used twice, because readers could not find such a node, or
/// if `created` has a node whose id another one has, because their chunks could not be told apart.
fn check_paths(planned: &[Planned<'_>], created: &[WrittenNode]) -> Result<()> {
    let mut seen = HashSet::with_capacity(planned.len());
    let mut ids: HashMap<NodeId, usize> = created.iter().map(|node| (node.id, 0)).collect();
    for (path, id) in planned.iter().map(|node| (node.path(), node.id())) {
        if let Some(times) = ids.get_mut(&id) {
            *times += 1;
            if *times > 1 {
                return Err(Error::invalid(format!("two nodes would have the id {id}, one of them at {path}")));
            }
        }
        if !is_canonical(path) {
            return Err(Error::invalid(format!("{path:?} is not a valid path of a node")));
        }
        if !seen.insert(path) {
            return Err(Error::invalid(format!("two nodes would be at {path}")));
        }
    }
    Ok(())
}

/// Returns the path above `path`; none for the root.
pub(super) fn parent(path: &str) -> Option<&str> {
    match path.rsplit_once('/')? {
        _ if path == "/" => None,
        ("", _) => Some("/"),
        (above, _) => Some(above),
    }
}

fn is_canonical(path: &str) -> bool {
    let names = |rest: &str| rest.split('/').all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'));
    path == "/" || path.strip_prefix('/').is_some_and(names)
}
