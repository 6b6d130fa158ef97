//! Table of nodes: a snapshot's paths as a tree of directories, each with its range of inode
//! numbers.
//!
//! The table is sorted by path component, whatever order the file has, so that a subtree is a
//! contiguous range. Paths without a node but with nodes below them (an array may be written
//! without its groups) are *implicit* directories: they exist, but hold no `zarr.json`. The root
//! always exists.
//!
//! A path that no file system can show (a component that is empty, `.`, `..`, longer than 255 bytes
//! or has a NUL) is logged and left out with everything below it; the rest works.
//!
//! Inode numbers: a node has a *base*. The directory is `base`, its `zarr.json` `base + 1`; an
//! array's chunks and chunk directories have a separate range (see [`super::numbering`]). The
//! root's base is 1, as FUSE requires.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tracing::{error, warn};

use super::array::Array;
use super::known::KnownArrays;
use super::numbering::{ChunkNumbers, Numbering, NumberingState, Renumbered, Run};
use super::paths::{below, check_path, compare_paths};
use super::positions::Positions;
use super::reshard::Resharder;
use crate::inodes::Ino;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::{ManifestInfo, ManifestRef, NodeData, Snapshot};
use icechunkfs_format::zarr::chunk_key::{Separator, parse_number};
use icechunkfs_format::zarr::shard::ShardLayout;
use icechunkfs_format::zarr::{Coords, is_prefix_in_grid};

/// Longest path component that Linux allows, in bytes.
pub const MAX_NAME: usize = 255;
/// Name of every node's metadata document.
pub const ZARR_JSON: &str = "zarr.json";

/// Index of a node in the table.
pub type NodeIndex = u32;

/// Directory that stands for a path of the hierarchy.
#[derive(Clone, Debug)]
pub struct Node {
    /// Parent directory; its own index for the root.
    pub parent: NodeIndex,
    /// Range in [`NodeTable::children`].
    children: (u32, u32),
    /// Start and length in the table's names.
    name: (u32, u16),
    /// Position in the snapshot's list; none for an implicit directory.
    pub stored: Option<u32>,
    /// Position in the table's arrays; none for a group or an implicit directory.
    pub(super) array: Option<u32>,
    /// First of its inode numbers.
    pub base: Ino,
}

/// Memory of a directory without a node, in bytes: in the table, and in the numbering.
const IMPLICIT_BYTES: u64 = 256;

/// All nodes of a snapshot.
#[derive(Debug)]
pub struct NodeTable {
    /// Path of the table's root in the snapshot, without a slash at its ends.
    pub(super) root: Box<str>,
    pub(super) nodes: Vec<Node>,
    /// Numbers in use, sorted.
    pub(super) runs: Vec<Run>,
    /// Numbers of chunks, by [`Run::chunks`].
    pub(super) chunk_numbers: Vec<ChunkNumbers>,
    pub(super) names: String,
    pub(super) children: Vec<NodeIndex>,
    /// Arrays, which the tables of later snapshots share ([`super::known`]).
    pub(super) arrays: Vec<Arc<Array>>,
    pub(super) manifests: HashMap<ObjectId, ManifestInfo>,
    /// Nodes at the place of a chunk directory of an array above them: both show in one directory.
    pub(super) chunk_dirs: HashMap<NodeIndex, (NodeIndex, Coords)>,
    pub(super) renumbered: Renumbered,
    /// State of the numbering from which the numbers are.
    pub(super) numbered: NumberingState,
    /// Nodes by id, from when they are first needed.
    pub(super) ids: Arc<OnceLock<Arc<NodeIds>>>,
}

/// Nodes by their ids.
pub type NodeIds = HashMap<NodeId, NodeIndex>;

/// Directory or file that an inode number stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TreePlace {
    /// Directory of a node.
    Directory(NodeIndex),
    /// Document of a node, its `zarr.json`.
    Metadata(NodeIndex),
    /// Chunk of an array, or, with fewer coordinates than dimensions, a directory above chunks.
    Chunk(NodeIndex, Coords),
}

impl TreePlace {
    /// Returns the node that the place belongs to.
    pub fn node(&self) -> NodeIndex {
        match self {
            TreePlace::Directory(node) | TreePlace::Metadata(node) | TreePlace::Chunk(node, _) => *node,
        }
    }
}

/// Origin of the descriptions of arrays.
enum Arrays<'a, 'b> {
    /// The snapshot alone.
    Parsed,
    /// The table of another snapshot, and this one where that has no such array.
    Known(KnownArrays<'a>),
    Resharded(&'a mut Resharder<'b>),
}

impl NodeTable {
    /// Builds the table of `snapshot`.
    pub fn build(snapshot: &Snapshot) -> Result<Self> {
        Self::build_below(snapshot, &mut Numbering::default(), "")
    }

    /// Builds the table of `snapshot` with the numbers that `numbering` assigned before. What
    /// `before`, another snapshot of the repository, has in common with it is not parsed again.
    pub fn build_after(
        snapshot: &Snapshot,
        numbering: &mut Numbering,
        before: &Snapshot,
        table: &NodeTable,
    ) -> Result<Self> {
        if let Some(same) = table.with_manifests_of(before, snapshot, numbering)? {
            return Ok(same);
        }
        let known = KnownArrays::new(before, table);
        Self::build_from(snapshot, numbering, &table.root, Arrays::Known(known))
    }

    /// Builds the table of node `root` of `snapshot` and all nodes below it: `root`, a path without
    /// a slash at its ends, is the root of the table. Empty for all nodes.
    pub fn build_below(snapshot: &Snapshot, numbering: &mut Numbering, root: &str) -> Result<Self> {
        Self::build_from(snapshot, numbering, root, Arrays::Parsed)
    }

    /// Builds the table like [`NodeTable::build_below`], with the arrays that `resharder` makes.
    pub(super) fn build_resharded(
        snapshot: &Snapshot,
        numbering: &mut Numbering,
        root: &str,
        resharder: &mut Resharder<'_>,
    ) -> Result<Self> {
        Self::build_from(snapshot, numbering, root, Arrays::Resharded(resharder))
    }

    fn build_from(
        snapshot: &Snapshot,
        numbering: &mut Numbering,
        root: &str,
        mut arrays: Arrays<'_, '_>,
    ) -> Result<Self> {
        // The memory budget must have room while the table is built. Its memory then belongs to the
        // mount's share.
        let _room = snapshot.room_for_table()?;
        let mut implicit = Meter::new("the directories above its nodes");
        let mut paths: Vec<(&str, u32)> = Vec::with_capacity(snapshot.node_count());
        let mut ids: Vec<NodeId> = Vec::with_capacity(snapshot.node_count());
        for (position, node) in snapshot.nodes().enumerate() {
            match check_path(node.path) {
                Ok(()) => {
                    let Some(path) = below(root, node.path) else { continue };
                    paths.push((path, u32::try_from(position).map_err(too_many)?));
                    ids.push(node.id);
                }
                Err(why) => error!("node {:?} cannot be shown: {why}", node.path),
            }
        }
        paths.sort_by(|a, b| compare_paths(a.0, b.0).then(a.1.cmp(&b.1)));
        paths.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                error!("node {:?} is in the snapshot twice: the first one is shown", first.0);
            }
            same
        });
        if has_duplicate_ids(ids) {
            drop_duplicate_ids(&mut paths, snapshot);
        }

        let manifests = snapshot.manifest_infos();
        let mut table = NodeTable {
            root: root.into(),
            nodes: Vec::with_capacity(paths.len() + 1),
            runs: Vec::with_capacity(2 * paths.len() + 1),
            chunk_numbers: Vec::new(),
            names: String::new(),
            children: Vec::new(),
            arrays: Vec::new(),
            manifests,
            chunk_dirs: HashMap::new(),
            renumbered: Renumbered::default(),
            numbered: NumberingState::default(),
            ids: Arc::default(),
        };
        table.push(0, "")?;
        // Path from the root to the node added last.
        let mut open: Vec<(NodeIndex, &str)> = Vec::new();
        for (path, stored) in paths {
            let parts: SmallVec<[&str; 16]> = path.split('/').filter(|part| !part.is_empty()).collect();
            let shared = std::iter::zip(&open, &parts).take_while(|((_, name), part)| name == *part).count();
            open.truncate(shared);
            let above = parts.len().saturating_sub(shared + 1) as u64;
            implicit.count(above * IMPLICIT_BYTES + path.len() as u64)?;
            for part in parts.iter().skip(shared) {
                let parent = open.last().map_or(0, |(index, _)| *index);
                open.push((table.push(parent, part)?, part));
            }
            let index = open.last().map_or(0, |(index, _)| *index);
            table.describe(index, stored, snapshot, &mut arrays)?;
        }
        table.link_children()?;
        table.number(snapshot, numbering);
        table.find_shared_directories();
        Ok(table)
    }

    fn push(&mut self, parent: NodeIndex, name: &str) -> Result<NodeIndex> {
        let index = u32::try_from(self.nodes.len()).map_err(too_many)?;
        let start = u32::try_from(self.names.len()).map_err(too_many)?;
        let length = u16::try_from(name.len()).map_err(too_many)?;
        self.names.push_str(name);
        let name = (start, length);
        self.nodes.push(Node { parent, children: (0, 0), name, stored: None, array: None, base: Ino(0) });
        Ok(index)
    }

    fn describe(
        &mut self,
        index: NodeIndex,
        stored: u32,
        snapshot: &Snapshot,
        arrays: &mut Arrays<'_, '_>,
    ) -> Result<()> {
        let Some(node) = snapshot.node(stored as usize) else { return Ok(()) };
        let array = match &node.data {
            NodeData::Group => {
                if let Arrays::Resharded(resharder) = arrays {
                    resharder.group(index, node.zarr_json)?;
                }
                None
            }
            NodeData::Unknown(kind) => {
                error!("node {:?} is of unknown kind {kind}: only its zarr.json is shown", node.path);
                None
            }
            NodeData::Array(data) => {
                let array = match arrays {
                    Arrays::Parsed => None,
                    Arrays::Known(known) => known.find(node.id, node.zarr_json).map(|known| Array::like(known, data)),
                    Arrays::Resharded(resharder) => Some(resharder.array(index, &node, data)?),
                };
                let array = match array {
                    Some(array) => array,
                    None => Array::new(node.path, node.id, node.zarr_json, data)?,
                };
                self.arrays.push(Arc::new(array));
                Some(u32::try_from(self.arrays.len() - 1).map_err(too_many)?)
            }
        };
        if let Some(entry) = self.nodes.get_mut(index as usize) {
            entry.stored = Some(stored);
            entry.array = array;
        }
        Ok(())
    }

    /// Lists each node's children. The table is in path order, so the children are in name order.
    fn link_children(&mut self) -> Result<()> {
        let mut counts = vec![0_u32; self.nodes.len()];
        for node in self.nodes.iter().skip(1) {
            if let Some(count) = counts.get_mut(node.parent as usize) {
                *count += 1;
            }
        }
        let mut next = 0;
        for (node, count) in std::iter::zip(&mut self.nodes, counts) {
            node.children = (next, next);
            next += count;
        }
        self.children = vec![0; next as usize];
        for index in 1..self.nodes.len() {
            let Some(parent) = self.nodes.get(index).map(|node| node.parent as usize) else { continue };
            let Some(children) = self.nodes.get_mut(parent).map(|node| &mut node.children) else { continue };
            if let Some(slot) = self.children.get_mut(children.1 as usize) {
                *slot = u32::try_from(index).map_err(too_many)?;
            }
            children.1 += 1;
        }
        Ok(())
    }

    fn number(&mut self, snapshot: &Snapshot, numbering: &mut Numbering) {
        for index in 0..self.nodes.len() as NodeIndex {
            let stored = self.get(index).and_then(|node| node.stored).and_then(|at| snapshot.node(at as usize));
            let base = match &stored {
                _ if index == 0 => Ino::ROOT,
                Some(node) => numbering.node(node.id),
                None => {
                    let above = self.get(index).and_then(|node| self.get(node.parent)).map_or(Ino(0), |node| node.base);
                    numbering.implicit(above, self.name(index))
                }
            };
            self.runs.push(Run { start: base, node: index, chunks: None });
            let Some(node) = self.nodes.get_mut(index as usize) else { continue };
            node.base = base;
            let array = node.array.and_then(|array| self.arrays.get_mut(array as usize));
            // No other table has it yet.
            let Some(array) = array.and_then(Arc::get_mut) else { continue };
            let all = numbering.chunks(array.id, &array.grid);
            let Some(numbers) = all.first().cloned() else { continue };
            if let (Positions::Table(_), Some(stored)) = (&*numbers.positions, stored) {
                let path = stored.path;
                let grid = &array.grid;
                warn!("array {path:?} has a grid of {grid:?} chunks: its inode numbers come from a table");
            }
            (array.positions, array.numbered_grid, array.first_number) =
                (numbers.positions, numbers.grid, numbers.start);
            for numbers in all {
                let chunks = u32::try_from(self.chunk_numbers.len()).ok();
                self.runs.push(Run { start: numbers.start, node: index, chunks });
                self.chunk_numbers.push(numbers);
            }
        }
        self.runs.sort_unstable();
        self.numbered = numbering.state();
    }

    /// Finds nodes below arrays at the place of a chunk directory of the array.
    fn find_shared_directories(&mut self) {
        for index in 1..self.nodes.len() as u32 {
            let (Some(node), name) = (self.get(index), self.name(index)) else { continue };
            let parent = node.parent;
            if name == ZARR_JSON && self.is_stored(parent) {
                error!("node {:?} cannot be shown: its parent's zarr.json has its name", self.path(index));
            }
            let directory = |place| match place {
                TreePlace::Chunk(owner, coords) if coords.len() < self.array(owner)?.grid.len() => {
                    Some((owner, coords))
                }
                _ => None,
            };
            let shared = self.child_in_array(parent, name).and_then(directory).or_else(|| {
                let (owner, prefix) = self.chunk_dirs.get(&parent)?;
                self.child_in_chunks(*owner, prefix, name).and_then(directory)
            });
            self.chunk_dirs.extend(shared.map(|shared| (index, shared)));
        }
    }

    /// Returns the place that `name` can have beside the `zarr.json` of array `node`: a chunk or
    /// chunk directory in its grid.
    pub(super) fn child_in_array(&self, node: NodeIndex, name: &str) -> Option<TreePlace> {
        let array = self.array(node)?;
        let rank = array.grid.len();
        match array.encoding.separator {
            Separator::Slash if rank > 0 && array.encoding.prefixed => {
                (name == "c").then(|| TreePlace::Chunk(node, Coords::new()))
            }
            Separator::Slash if rank > 0 => self.child_in_chunks(node, &[], name),
            _ => self.in_grid(node, Coords::from_vec(array.encoding.parse_flat(name, rank)?)),
        }
    }

    /// Returns the place that `name` can have in the chunk directory `prefix` of array `node`.
    pub(super) fn child_in_chunks(&self, node: NodeIndex, prefix: &[u32], name: &str) -> Option<TreePlace> {
        let array = self.array(node)?;
        let is_file = prefix.len() + 1 == array.grid.len();
        let coord = if is_file { array.encoding.parse_last(name) } else { parse_number(name) }?;
        let mut coords = Coords::from_slice(prefix);
        coords.push(coord);
        self.in_grid(node, coords)
    }

    /// Returns the place of `coords` if they lie in the grid: only those places have numbers.
    fn in_grid(&self, node: NodeIndex, coords: Coords) -> Option<TreePlace> {
        let is_inside = is_prefix_in_grid(&coords, &self.array(node)?.grid);
        is_inside.then_some(TreePlace::Chunk(node, coords))
    }

    /// Returns the path of the table's root in the snapshot, without a slash at its ends.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Returns the number of directories, implicit ones included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns false: there is always a root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the node with index `index`.
    pub fn get(&self, index: NodeIndex) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    /// Returns true if the snapshot has node `index`, and with it its `zarr.json`; false for an
    /// implicit directory.
    pub fn is_stored(&self, index: NodeIndex) -> bool {
        self.get(index).is_some_and(|node| node.stored.is_some())
    }

    /// Returns the last component of a node's path; empty for the root.
    pub fn name(&self, index: NodeIndex) -> &str {
        let Some((start, length)) = self.get(index).map(|node| node.name) else { return "" };
        let start = start as usize;
        self.names.get(start..start + length as usize).unwrap_or_default()
    }

    /// Returns a node's path, without a leading `/`.
    pub fn path(&self, index: NodeIndex) -> String {
        let mut parts = Vec::new();
        let mut at = index;
        while let Some(node) = self.get(at).filter(|_| at != 0) {
            parts.push(self.name(at));
            at = node.parent;
        }
        parts.reverse();
        parts.join("/")
    }

    /// Returns the indices of a node's children, in order of their names' bytes.
    pub fn children(&self, index: NodeIndex) -> &[NodeIndex] {
        let Some((start, end)) = self.get(index).map(|node| node.children) else { return &[] };
        self.children.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Returns a node and all nodes below it, which are contiguous in the table.
    pub fn subtree(&self, index: NodeIndex) -> std::ops::RangeInclusive<NodeIndex> {
        let mut last = index;
        while let Some(&child) = self.children(last).last() {
            last = child;
        }
        index..=last
    }

    /// Returns the child of a node with a name.
    pub fn child(&self, index: NodeIndex, name: &str) -> Option<NodeIndex> {
        let children = self.children(index);
        let at = children.binary_search_by(|&child| self.name(child).as_bytes().cmp(name.as_bytes())).ok()?;
        children.get(at).copied()
    }

    /// Returns the description of an array; none for other nodes.
    pub fn array(&self, index: NodeIndex) -> Option<&Array> {
        self.arrays.get(self.get(index)?.array? as usize).map(Arc::as_ref)
    }

    /// Returns true if the chunks of array `index` whose coordinates begin with `coords` have a
    /// directory.
    pub fn is_chunk_directory(&self, index: NodeIndex, coords: &[u32]) -> bool {
        self.array(index).is_some_and(|array| coords.len() < array.grid.len())
    }

    /// Returns the id of node `index`, none for a directory without a node. `snapshot` is the one
    /// of the table.
    pub fn id(&self, snapshot: &Snapshot, index: NodeIndex) -> Option<NodeId> {
        Some(snapshot.node(self.get(index)?.stored? as usize)?.id)
    }

    /// Returns the nodes by id. `snapshot` is the one of the table.
    pub fn ids(&self, snapshot: &Snapshot) -> Arc<NodeIds> {
        let found = self.ids.get_or_init(|| {
            let indices = (0..self.nodes.len()).filter_map(|at| NodeIndex::try_from(at).ok());
            Arc::new(indices.filter_map(|index| Some((self.id(snapshot, index)?, index))).collect())
        });
        Arc::clone(found)
    }

    /// Returns all arrays.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.arrays.iter().map(Arc::as_ref)
    }

    /// Returns true if nodes that `other` has, too, have the same inode numbers there, and the
    /// chunks of arrays.
    pub fn has_numbers_of(&self, other: &NodeTable) -> bool {
        self.numbered == other.numbered
    }

    /// Returns the snapshot's entry of a manifest. One that the snapshot does not list can be read
    /// all the same.
    pub fn manifest(&self, id: ObjectId) -> ManifestInfo {
        self.manifests.get(&id).copied().unwrap_or(ManifestInfo { id, size: 0, chunk_refs: 0 })
    }

    /// Returns a number of chunks that `array` has at most: no more than its manifests have
    /// references, which may be those of other arrays, too, and no more than lie in their extents.
    /// None if references were not counted, as before 0.1.0.
    pub fn listed_chunks(&self, array: &Array) -> Option<u64> {
        let mut counts = array.manifests.iter().map(|manifest| {
            u64::from(self.manifest(manifest.id).chunk_refs).min(manifest.places(array.stored_grid().len()))
        });
        counts.try_fold(0_u64, |sum, count| (count > 0).then(|| sum.saturating_add(count)))
    }

    /// Returns the snapshot's entries of all manifests.
    pub fn manifests(&self) -> &HashMap<ObjectId, ManifestInfo> {
        &self.manifests
    }

    /// Returns the array and place whose chunk directory is also this node's directory.
    pub fn shared_chunk_dir(&self, index: NodeIndex) -> Option<&(NodeIndex, Coords)> {
        self.chunk_dirs.get(&index)
    }

    /// Sets the files that have other numbers than those of their places.
    pub fn renumber(&mut self, renumbered: Renumbered) {
        self.renumbered = renumbered;
    }

    /// Returns the inode number of a place.
    pub fn inode(&self, place: &TreePlace) -> Ino {
        let base = |index| self.get(index).map_or(0, |node| node.base.0);
        let natural = match place {
            TreePlace::Directory(index) => base(*index),
            TreePlace::Metadata(index) => base(*index) + 1,
            TreePlace::Chunk(index, coords) => {
                let number = |array: &Array| array.first_number.0 + array.position(coords);
                self.array(*index).map_or(0, number)
            }
        };
        self.renumbered.number(Ino(natural))
    }

    /// Returns the place of an inode number, even if there is no chunk.
    pub fn place(&self, inode: Ino) -> Option<TreePlace> {
        let inode = self.renumbered.natural(inode)?;
        let at = self.runs.partition_point(|run| run.start <= inode).checked_sub(1)?;
        let Run { start, node: index, chunks } = *self.runs.get(at)?;
        if let Some(chunks) = chunks {
            let array = self.array(index)?;
            let numbers = self.chunk_numbers.get(chunks as usize)?;
            let coords = numbers.positions.coords(&numbers.grid, inode.0 - start.0)?;
            // A number of an older grid may have no place in this one.
            let fits = numbers.grid.len() == array.grid.len() && is_prefix_in_grid(&coords, &array.grid);
            return fits.then_some(TreePlace::Chunk(index, coords));
        }
        match inode.0 - start.0 {
            0 => Some(TreePlace::Directory(index)),
            1 => self.is_stored(index).then_some(TreePlace::Metadata(index)),
            _ => None,
        }
    }

    /// Returns the memory that the table takes, in bytes, roughly.
    pub fn size(&self) -> u64 {
        let arrays: usize = self
            .arrays
            .iter()
            .map(|a| {
                size_of::<Array>()
                    + 16 * a.grid.len()
                    + a.sharding.as_ref().map_or(0, |sharding| size_of::<ShardLayout>() + 16 * sharding.grid.len())
                    + a.manifests.len() * (size_of::<ManifestRef>() + 8 * a.grid.len())
            })
            .sum();
        let fixed = self.nodes.len() * (size_of::<Node>() + 12) + self.names.len();
        let ids = self.ids.get().map_or(0, |ids| ids.len() * size_of::<(NodeId, NodeIndex)>() * 2);
        (fixed + ids + arrays + self.manifests.len() * 2 * size_of::<ManifestInfo>()) as u64
    }
}

/// Returns true if an ID is there twice. No snapshot written by a client has that.
fn has_duplicate_ids(mut ids: Vec<NodeId>) -> bool {
    ids.sort_unstable();
    std::iter::zip(&ids, ids.iter().skip(1)).any(|(one, next)| one == next)
}

/// Leaves out nodes with the ID of an earlier one. Inode numbers and chunks are known by ID: one
/// node would show the other's bytes, and a directory could contain itself.
fn drop_duplicate_ids(paths: &mut Vec<(&str, u32)>, snapshot: &Snapshot) {
    let mut seen = HashSet::new();
    paths.retain(|(path, position)| {
        let is_first = snapshot.node(*position as usize).is_none_or(|node| seen.insert(node.id));
        if !is_first {
            error!("node {path:?} cannot be shown: it has the id of another node");
        }
        is_first
    });
}

fn too_many<E>(_: E) -> Error {
    Error::new(ErrorKind::Unsupported, "a snapshot of more than 2^32 nodes or bytes of names")
}
