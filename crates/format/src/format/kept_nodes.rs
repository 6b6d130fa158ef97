//! Nodes that a new snapshot has in common with another one.
//!
//! A commit of a chunk changes the manifests of one array, and a snapshot may have very many. The
//! bytes of the others are then taken over as they are: all of a node lies behind its table in the
//! file, as the offsets of a flatbuffer lead forward, except for the descriptions of tables
//! (vtables), which are few, and are looked for. So the new file is a new front, with the list of
//! nodes and those that changed, and what follows the first node of the other file ([`Tail`]). What
//! is left of the old versions of the changed ones is dead: manifest references, but no document
//! that was changed or deleted, and no message or metadata of a commit, as then all is written
//! anew.

use std::collections::HashMap;
use std::sync::Arc;

use flatbuffers::Table;

use super::draft::NodeDraft;
use super::ids::NodeId;
use super::snapshot::{Node, NodeData, Snapshot};
use icechunkfs_base::error::{Error, Result};

/// Kept nodes from which on their bytes are taken over: fewer are written in some microseconds.
const WORTH_A_TAIL: usize = 50;
/// Alignment of everything in a flatbuffer, in bytes.
const ALIGNMENT: usize = 8;
/// Bytes that a node takes beside its path, its document, and the lists of an array, in files that
/// this program writes.
const NODE_BYTES: usize = 40;
/// Bytes of an array beside its dimensions and manifests.
const ARRAY_BYTES: usize = 40;
/// Bytes of a dimension, and of a reference to a manifest with an extent for each dimension.
const DIMENSION_BYTES: usize = 24;
const REFERENCE_BYTES: usize = 40;

/// Nodes of another snapshot that a new one has, too, unchanged.
#[derive(Clone, Debug)]
pub struct KeptNodes {
    /// The other snapshot, of the same version of the format.
    pub snapshot: Arc<Snapshot>,
    /// Positions of the nodes in its list, ascending.
    pub positions: Vec<u32>,
}

impl KeptNodes {
    /// Returns the nodes, with their positions.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (u32, Node<'_>)> {
        self.positions.iter().filter_map(|&position| Some((position, self.snapshot.node(position as usize)?)))
    }

    /// Fails unless `new` has these nodes, as they are, and beside them as many as `drafted`.
    pub fn check(&self, drafted: usize, new: &Snapshot) -> Result<()> {
        let failed = |what: String| Error::invalid(format!("snapshot {} was not written: {what}", new.id()));
        let found = new.node_count();
        let wanted = self.positions.len() + drafted;
        if found != wanted {
            return Err(failed(format!("it would have {found} nodes instead of {wanted}")));
        }
        let mut kept: Vec<Node<'_>> = self.nodes().map(|(_, node)| node).collect();
        kept.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        let mut kept = kept.into_iter().peekable();
        for node in new.nodes() {
            // Others are drafted.
            let _ = kept.next_if(|kept| kept.is_same(&node));
        }
        match kept.next() {
            None => Ok(()),
            Some(node) => Err(failed(format!("node {:?} would not be as it was", node.path))),
        }
    }
}

/// Part of the bytes of a snapshot that has all of its kept nodes, for the end of another one.
#[derive(Debug)]
pub(super) struct Tail<'a> {
    bytes: &'a [u8],
    /// Places of the nodes' tables in it, by position in the snapshot's list; those of nodes that
    /// are not kept are meaningless.
    places: Vec<usize>,
}

/// Search for the first byte that belongs to kept nodes.
struct Extent<'a> {
    bytes: &'a [u8],
    first: usize,
    /// Bytes that the nodes take, roughly, if they share nothing.
    live: usize,
}

impl Extent<'_> {
    /// Counts a table of at most `fields` fields; none if it has more: what they refer to is not
    /// known.
    fn table(&mut self, table: Table<'_>, fields: usize) -> Option<()> {
        let place = table.loc();
        let back = i32::from_le_bytes(*self.bytes.get(place..)?.first_chunk()?);
        let vtable = usize::try_from(i64::try_from(place).ok()? - i64::from(back)).ok()?;
        let length = u16::from_le_bytes(*self.bytes.get(vtable..)?.first_chunk()?);
        self.first = self.first.min(place).min(vtable);
        // Lengths of itself and of the table, and two bytes for each field.
        (usize::from(length) <= 2 * (2 + fields)).then_some(())
    }

    fn node(&mut self, snapshot: &Snapshot, position: u32) -> Option<usize> {
        let nodes = snapshot.root().nodes();
        let stored = ((position as usize) < nodes.len()).then(|| nodes.get(position as usize))?;
        self.table(stored._tab, 6)?;
        self.live += NODE_BYTES + stored.path().len() + stored.user_data().len();
        if let Some(group) = stored.node_data_as_group() {
            self.table(group._tab, 0)?;
        }
        if let Some(array) = stored.node_data_as_array() {
            self.table(array._tab, 4)?;
            let shape = array.shape_v2();
            let names = array.dimension_names();
            let manifests = array.manifests();
            let rank = array.shape().len() + shape.as_ref().map_or(0, |shape| shape.len());
            self.live += ARRAY_BYTES + DIMENSION_BYTES * rank + (REFERENCE_BYTES + 8 * rank) * manifests.len();
            for dimension in shape.into_iter().flatten() {
                self.table(dimension._tab, 2)?;
            }
            for name in names.into_iter().flatten() {
                self.table(name._tab, 1)?;
                self.live += DIMENSION_BYTES + name.name().map_or(0, str::len);
            }
            for manifest in manifests {
                self.table(manifest._tab, 2)?;
            }
        }
        Some(stored._tab.loc())
    }
}

impl<'a> Tail<'a> {
    /// Returns the part of the bytes that has the `kept` nodes, if it is worth taking over for a
    /// snapshot that has the nodes `drafted`, too.
    pub(super) fn of(kept: &'a KeptNodes, drafted: &[NodeDraft]) -> Option<Self> {
        let KeptNodes { snapshot, positions } = kept;
        let count = snapshot.node_count();
        if positions.len() < WORTH_A_TAIL.max(count / 2) || positions.len() + drafted.len() != count {
            return None;
        }
        let by_id: HashMap<NodeId, &NodeDraft> = drafted.iter().map(|draft| (draft.id, draft)).collect();
        let bytes = snapshot.bytes();
        let mut extent = Extent { bytes, first: bytes.len(), live: 0 };
        let mut places = Vec::with_capacity(count);
        let mut next = positions.iter().copied().peekable();
        for position in 0..u32::try_from(count).ok()? {
            if next.next_if_eq(&position).is_some() {
                places.push(extent.node(snapshot, position)?);
                continue;
            }
            let node = snapshot.node(position as usize)?;
            let draft = by_id.get(&node.id)?;
            if draft.path != node.path || draft.zarr_json != node.zarr_json {
                return None;
            }
            places.push(usize::MAX);
        }
        let first = extent.first - extent.first % ALIGNMENT;
        let tail = bytes.get(first..)?;
        if has_own_text(snapshot, first) {
            return None;
        }
        // The rest is what was left of nodes by earlier commits.
        if tail.len() > extent.live.saturating_mul(2) {
            return None;
        }
        let places = places.into_iter().map(|place| place.wrapping_sub(first)).collect();
        Some(Tail { bytes: tail, places })
    }

    /// Returns the place of the kept node at `position`.
    pub(super) fn place(&self, position: u32) -> Option<usize> {
        self.places.get(position as usize).copied().filter(|place| *place < self.bytes.len())
    }

    /// Joins `front`, whose list of nodes begins `list` bytes before its end, with the tail.
    /// `nodes` are the tables of the list.
    pub(super) fn join(&self, mut front: Vec<u8>, list: usize, nodes: &[ListedNode]) -> Result<Vec<u8>> {
        let failed = || Error::invalid("the list of nodes does not fit into a snapshot");
        let length = front.len();
        if !length.is_multiple_of(ALIGNMENT) {
            return Err(failed());
        }
        front.reserve_exact(self.bytes.len());
        // The number of nodes comes first.
        let mut at = length.checked_sub(list).ok_or_else(failed)? + size_of::<u32>();
        for node in nodes {
            let place = match node {
                ListedNode::InFront(from_end) => length.checked_sub(*from_end),
                ListedNode::InTail(place) => length.checked_add(*place),
            };
            let offset = place.and_then(|place| u32::try_from(place.checked_sub(at)?).ok()).ok_or_else(failed)?;
            let slot = front.get_mut(at..at + size_of::<u32>()).ok_or_else(failed)?;
            slot.copy_from_slice(&offset.to_le_bytes());
            at += size_of::<u32>();
        }
        front.extend_from_slice(self.bytes);
        Ok(front)
    }
}

/// Returns true if the message or the metadata of the commit are behind byte `first`, as the
/// reference implementation writes them: a user may have replaced them, and must not find them in a
/// new file.
fn has_own_text(snapshot: &Snapshot, first: usize) -> bool {
    let root = snapshot.root();
    let items = root.metadata().iter().flat_map(|item| [item.name().as_bytes(), item.value().bytes()]);
    let mut texts = items.chain([root.message().as_bytes()]).chain(root.extra().map(|extra| extra.bytes()));
    texts.any(|text| snapshot.buffer.range_of(text).is_none_or(|place| place.end > first))
}

/// Place of the table of a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum ListedNode {
    /// So many bytes before the end of the front.
    InFront(usize),
    /// In the tail.
    InTail(usize),
}

impl Node<'_> {
    /// Returns true if `other` is stored with the same content.
    fn is_same(&self, other: &Node<'_>) -> bool {
        let is_same_data = match (&self.data, &other.data) {
            (NodeData::Group, NodeData::Group) => true,
            (NodeData::Array(one), NodeData::Array(other)) => one.is_same(other),
            _ => false,
        };
        let extras = [self, other].map(|node| node.stored.extra().map(|extra| extra.bytes()));
        let [extra, other_extra] = extras;
        self.id == other.id
            && self.path == other.path
            && self.zarr_json == other.zarr_json
            && extra == other_extra
            && is_same_data
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::format::draft::{ArrayDraft, SnapshotDraft};
    use crate::format::envelope::SpecVersion;
    use crate::format::ids::ObjectId;
    use crate::format::snapshot::{Dimension, ManifestInfo, ManifestRef};
    use crate::format::testing::id;

    fn array(number: u64, manifest: u8) -> NodeDraft {
        let rank = (number % 4) as usize;
        let dimension = |at| Dimension { array_length: 10 + number + at, num_chunks: 10, chunk_length: 3 };
        let mut shape: Vec<Dimension> = (0..rank as u64).map(dimension).collect();
        for dimension in &mut shape {
            dimension.num_chunks = dimension.array_length.div_ceil(3) as u32;
        }
        let names = number.is_multiple_of(3).then(|| (0..rank).map(|at| (at != 1).then(|| format!("n{at}"))).collect());
        let manifests = vec![ManifestRef { id: id(manifest), extents: vec![(0, number as u32 + 1); rank] }];
        NodeDraft {
            id: NodeId(number.to_be_bytes()),
            path: format!("/g{}/a{number}", number % 7),
            zarr_json: format!("{{\"number\":{number}}}").into_bytes(),
            array: (number % 11 != 5).then_some(ArrayDraft { shape, dimension_names: names, manifests }),
            extra: None,
        }
    }

    fn snapshot(version: SpecVersion, count: u64) -> Arc<Snapshot> {
        let draft = SnapshotDraft {
            version,
            nodes: (0..count).map(|number| array(number, 1)).collect(),
            manifests: vec![info(1)],
            ..SnapshotDraft::new(id(100), 7, "first")
        };
        let snapshot = Snapshot::from_draft(&draft).unwrap();
        Arc::new(snapshot)
    }

    fn info(number: u8) -> ManifestInfo {
        ManifestInfo { id: id(number), size: 100, chunk_refs: 3 }
    }

    /// Returns the draft of a snapshot that follows `base` with other manifests of the nodes at
    /// `changed`, and the kept ones.
    fn next(base: &Arc<Snapshot>, changed: &[u32], manifest: u8) -> (SnapshotDraft, KeptNodes) {
        let positions: Vec<u32> =
            (0..base.node_count() as u32).filter(|position| !changed.contains(position)).collect();
        let nodes = changed.iter().map(|position| {
            let node = base.node(*position as usize).unwrap();
            array(u64::from_be_bytes(node.id.0), manifest)
        });
        let kept = KeptNodes { snapshot: Arc::clone(base), positions };
        let nodes: Vec<NodeDraft> = nodes.collect();
        let mut used: Vec<ObjectId> = kept.nodes().filter_map(|(_, node)| Some(manifests(&node)?[0].id)).collect();
        used.extend(nodes.iter().filter_map(|node| Some(node.array.as_ref()?.manifests[0].id)));
        used.sort();
        used.dedup();
        let manifests = used.into_iter().map(|id| ManifestInfo { id, ..info(0) }).collect();
        let draft = SnapshotDraft {
            version: base.version(),
            nodes,
            manifests,
            ..SnapshotDraft::new(id(200), 8, "a message of any length")
        };
        (draft, kept)
    }

    fn manifests(node: &Node<'_>) -> Option<Vec<ManifestRef>> {
        match &node.data {
            NodeData::Array(array) => Some(array.manifests()),
            _ => None,
        }
    }

    /// Returns everything that a reader finds in a snapshot, as text.
    fn content(snapshot: &Snapshot) -> Vec<String> {
        let node = |node: Node<'_>| match &node.data {
            NodeData::Array(array) => format!("{:?} {:?}", (node.id, node.path, node.zarr_json), ArrayDraft::of(array)),
            _ => format!("{:?}", (node.id, node.path, node.zarr_json)),
        };
        let facts = format!("{:?}", (snapshot.id(), snapshot.flushed_at(), snapshot.message(), snapshot.manifests()));
        std::iter::once(facts).chain(snapshot.nodes().map(node)).collect()
    }

    #[test]
    fn a_snapshot_with_a_tail_has_the_content_of_one_without() {
        for version in [SpecVersion::V1, SpecVersion::V2] {
            let mut base = snapshot(version, 3000);
            // Each follows the one before, so that tails have fronts of earlier ones in them.
            for round in 2..12_u8 {
                let step = u32::from(round) * 37;
                // One alone has the description of its table before it.
                let every = if round % 2 == 0 { 700 } else { 3000 };
                let changed: Vec<u32> = (0..3000).filter(|position| position % every == step % every).collect();
                let (draft, kept) = next(&base, &changed, round);
                assert!(Tail::of(&kept, &draft.nodes).is_some());
                let spliced = Snapshot::of_payload(draft.payload_with(Some(&kept)).unwrap(), version).unwrap();
                kept.check(draft.nodes.len(), &spliced).unwrap();
                let all = kept.nodes().map(|(_, node)| NodeDraft {
                    id: node.id,
                    path: node.path.to_owned(),
                    zarr_json: node.zarr_json.to_vec(),
                    array: match &node.data {
                        NodeData::Array(array) => ArrayDraft::of(array),
                        _ => None,
                    },
                    extra: None,
                });
                let plain = SnapshotDraft { nodes: all.chain(draft.nodes.clone()).collect(), ..draft.clone() };
                let plain = Snapshot::from_draft(&plain).unwrap();
                assert_eq!(content(&spliced), content(&plain));
                assert!(spliced.size() < plain.size() * 3 / 2, "{} against {}", spliced.size(), plain.size());
                base = Arc::new(spliced);
            }
        }
    }

    #[test]
    fn dead_bytes_are_left_out_before_they_are_many() {
        let mut base = snapshot(SpecVersion::V2, 2000);
        let size = base.size();
        let mut tails = 0;
        let mut most = 0;
        for round in 0..60_u32 {
            let changed: Vec<u32> = (0..2000).filter(|position| position % 3 == round % 3).collect();
            let (draft, kept) = next(&base, &changed, 1 + (round % 200) as u8);
            tails += usize::from(Tail::of(&kept, &draft.nodes).is_some());
            base = Arc::new(Snapshot::of_payload(draft.payload_with(Some(&kept)).unwrap(), SpecVersion::V2).unwrap());
            most = most.max(base.size());
        }
        assert!(tails > 20 && tails < 60 && most < 3 * size, "{tails} of 60, up to {most} of {size} bytes");
    }

    #[test]
    fn documents_that_were_changed_or_deleted_are_not_taken_over() {
        let base = snapshot(SpecVersion::V2, 2000);
        let (mut draft, kept) = next(&base, &[17], 1);
        let secret = base.node(17).unwrap().zarr_json.to_vec();
        draft.nodes[0].zarr_json = b"{}".to_vec();
        let payload = draft.payload_with(Some(&kept)).unwrap();
        assert!(!payload.windows(secret.len()).any(|part| part == secret));
        draft.nodes.clear();
        let payload = draft.payload_with(Some(&kept)).unwrap();
        assert!(!payload.windows(secret.len()).any(|part| part == secret));
    }

    #[test]
    fn a_kept_node_that_is_missing_or_other_is_noticed() {
        let base = snapshot(SpecVersion::V2, 2000);
        let (draft, kept) = next(&base, &[17, 400], 2);
        let written = |draft: &SnapshotDraft, kept: &KeptNodes| {
            Snapshot::of_payload(draft.payload_with(Some(kept)).unwrap(), SpecVersion::V2).unwrap()
        };
        let good = written(&draft, &kept);
        kept.check(2, &good).unwrap();
        assert!(kept.check(1, &good).is_err());
        // A node that changed, although it was to be kept.
        let other = KeptNodes { positions: (0..2000).filter(|position| *position != 400).collect(), ..kept.clone() };
        assert!(other.check(1, &good).is_err());
    }
}
