//! Nodes on their way from an old snapshot to a new one.
//!
//! Node ids are kept. But the first releases numbered the nodes of each snapshot anew, so that one
//! number can mean two nodes, on two branches or after a deletion, and a log that has only numbers
//! would not distinguish them. A number that is used again for another node is therefore replaced
//! by an id derived from the number, the path and the kind.

use std::collections::{BTreeMap, HashMap};

use super::objects::digest;
use icechunkfs_base::error::{Context, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, SharedReservation};
use icechunkfs_format::format::draft::{ArrayDraft, NodeDraft};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::{Dimension, ManifestInfo, ManifestRef, NodeData, Snapshot};
use icechunkfs_format::zarr::array::ArraySummary;

/// Nodes of a snapshot, with their new ids.
#[derive(Debug, Default)]
pub(super) struct MigratedNodes {
    pub(super) nodes: BTreeMap<String, Node>,
    memory: SharedReservation,
}

#[derive(Debug)]
pub(super) struct Node {
    /// Id in the old manifests.
    pub(super) old_id: NodeId,
    pub(super) id: NodeId,
    pub(super) zarr_json: Vec<u8>,
    /// None for a group.
    pub(super) array: Option<Array>,
}

#[derive(Debug)]
pub(super) struct Array {
    shape: Vec<Dimension>,
    dimension_names: Option<Vec<Option<String>>>,
    /// Old manifests, in the order of lookup.
    pub(super) old: Vec<(ManifestRef, ManifestInfo)>,
    /// New manifests.
    pub(super) new: Vec<(ManifestRef, ManifestInfo)>,
}

impl Array {
    /// Returns the number of chunks in each dimension.
    pub(super) fn grid(&self) -> Vec<u32> {
        self.shape.iter().map(|dimension| dimension.num_chunks).collect()
    }
}

impl MigratedNodes {
    /// Returns the nodes by their new ids.
    pub(super) fn by_id(&self) -> HashMap<NodeId, &Node> {
        self.nodes.values().map(|node| (node.id, node)).collect()
    }

    /// Returns the nodes for a snapshot file.
    pub(super) fn drafts(&self) -> Vec<NodeDraft> {
        let array = |array: &Array| ArrayDraft {
            shape: array.shape.clone(),
            dimension_names: array.dimension_names.clone(),
            manifests: array.new.iter().map(|(reference, _)| reference.clone()).collect(),
        };
        let draft = |(path, node): (&String, &Node)| NodeDraft {
            id: node.id,
            path: path.clone(),
            zarr_json: node.zarr_json.clone(),
            array: node.array.as_ref().map(array),
            extra: None,
        };
        self.nodes.iter().map(draft).collect()
    }
}

/// First node, by path and kind, that used each id.
#[derive(Debug, Default)]
pub(super) struct NodeIds {
    first: HashMap<NodeId, (String, bool)>,
}

impl NodeIds {
    /// Returns the nodes of `snapshot` with their new ids.
    pub(super) fn of(&mut self, snapshot: &Snapshot) -> Result<MigratedNodes> {
        let known = snapshot.manifest_infos();
        let mut done = MigratedNodes::default();
        let mut meter = Meter::new("the nodes of a snapshot");
        meter.count(2 * snapshot.node_table_size())?;
        for node in snapshot.nodes() {
            let array = match &node.data {
                NodeData::Array(data) => {
                    let info = |reference: ManifestRef| {
                        let unknown = ManifestInfo { id: reference.id, size: 0, chunk_refs: 0 };
                        let info = known.get(&reference.id).copied().unwrap_or(unknown);
                        (reference, info)
                    };
                    // `zarr.json` takes precedence: the shape that version 1 stores beside it may
                    // be wrong.
                    let (shape, dimension_names) = match ArraySummary::parse(node.zarr_json) {
                        Ok(summary) => (dimensions(&summary), summary.dimension_names),
                        Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                            return Err(error.context(node.path));
                        }
                        Err(error) => {
                            let stored = data.dimensions().ok_or(error).context(|| node.path.to_owned())?;
                            (stored, data.copied_names())
                        }
                    };
                    let old = data.manifests().into_iter().map(info).collect();
                    Some(Array { shape, dimension_names, old, new: Vec::new() })
                }
                NodeData::Group | NodeData::Unknown(_) => None,
            };
            let id = self.id(node.id, node.path, array.is_some());
            meter.count(node.zarr_json.len() as u64)?;
            let zarr_json = node.zarr_json.to_vec();
            done.nodes.insert(node.path.to_owned(), Node { old_id: node.id, id, zarr_json, array });
        }
        done.memory = meter.into();
        Ok(done)
    }

    fn id(&mut self, old: NodeId, path: &str, is_array: bool) -> NodeId {
        let (first_path, first_is_array) = self.first.entry(old).or_insert_with(|| (path.to_owned(), is_array));
        if first_path == path && *first_is_array == is_array {
            return old;
        }
        let mut id = [0; 8];
        let digest = digest(&[&old.0, path.as_bytes(), &[u8::from(is_array)]]);
        id.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        NodeId(id)
    }
}

fn dimensions(summary: &ArraySummary) -> Vec<Dimension> {
    let dimension = |&(array_length, num_chunks, chunk_length): &(u64, u32, Option<u64>)| Dimension {
        array_length,
        num_chunks,
        chunk_length: chunk_length.unwrap_or_default(),
    };
    summary.dimensions.iter().map(dimension).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_used_again_is_another_node() {
        let mut names = NodeIds::default();
        let old = NodeId([0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(names.id(old, "/a", true), old);
        let other = names.id(old, "/b", true);
        assert!(other != old && names.id(old, "/b", true) == other && names.id(old, "/a", true) == old);
        let group = names.id(old, "/a", false);
        assert!(group != old && group != other);
    }
}
