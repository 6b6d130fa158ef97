//! Table of nodes: a snapshot's paths as a tree of directories, each with its range of inode numbers.
//!
//! The table is sorted by path component, whatever order the file has, so that a subtree is a contiguous range. Paths without a
//! node but with nodes below them (an array may be written without its groups) are *implicit* directories: they exist, but hold
//! no `zarr.json`. The root always exists.
//!
//! A path that no file system can show (a component that is empty, `.`, `..`, longer than 255 bytes or has a NUL) is logged and
//! left out with everything below it; the rest works.
//!
//! Inode numbers: a node has a *base*. The directory is `base`, its `zarr.json` `base + 1`; an array's chunks and chunk
//! directories have a separate range (see [`super::numbering`]). The root's base is 1, as FUSE requires.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;
use tracing::{error, warn};

use super::numbering::{ChunkNumbers, Numbering, Run};
use super::positions::{Coords, Positions};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::{NodeId, ObjectId};
use crate::format::snapshot::{ArrayData, ManifestInfo, ManifestRef, NodeData, Snapshot};
use crate::memory;
use crate::zarr::array::{ArrayMetadata, MAX_RANK};
use crate::zarr::chunk_key::{KeyEncoding, Separator, parse_number};
use crate::zarr::shard::ShardLayout;

/// Longest path component that Linux allows, in bytes.
pub const MAX_NAME: usize = 255;
/// Name of every node's metadata document.
pub const ZARR_JSON: &str = "zarr.json";

/// Index of a node in the table.
pub type NodeIndex = u32;

/// Directory that stands for a path of the hierarchy.
#[derive(Debug)]
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
    array: Option<u32>,
    /// First of its inode numbers.
    pub base: u64,
}

/// Description of an array.
#[derive(Debug)]
pub struct Array {
    /// ID of the array, by which manifests know it.
    pub id: NodeId,
    /// Chunks per dimension.
    pub grid: Box<[u32]>,
    /// Elements per dimension, from `zarr.json`; empty if that could not be read.
    pub shape: Box<[u64]>,
    /// Encoding of chunk keys.
    pub encoding: KeyEncoding,
    /// Manifests that list its chunks, in the order of lookups.
    pub manifests: Box<[ManifestRef]>,
    /// Numbers of its chunks and chunk directories, counted from `first_number`.
    positions: Arc<Positions>,
    /// Grid of these numbers: the array's own, or one that it fits into.
    numbered: Box<[u32]>,
    /// Inode number of the first of them.
    pub first_number: u64,
    /// Bytes of a whole chunk before compression, where the data type defines them.
    pub nominal_chunk_bytes: Option<u64>,
    /// Structure of its chunks, if they are shards.
    pub sharding: Option<Box<ShardLayout>>,
    /// True if the names of its chunks are too long for files: then they are not listed.
    pub has_long_names: bool,
}

impl Array {
    /// Returns the position of `coords` among the array's places.
    pub fn position(&self, coords: &[u32]) -> u64 {
        self.positions.number(&self.numbered, coords)
    }

    /// Returns the place with a number from [`Array::position`]; none if no place has it.
    pub fn at_position(&self, position: u64) -> Option<Coords> {
        self.positions.coords(&self.numbered, position)
    }
}

/// All nodes of a snapshot.
#[derive(Debug)]
pub struct NodeTable {
    nodes: Vec<Node>,
    /// Numbers in use, sorted.
    runs: Vec<Run>,
    /// Numbers of chunks, by [`Run::chunks`].
    chunk_numbers: Vec<ChunkNumbers>,
    names: String,
    children: Vec<NodeIndex>,
    arrays: Vec<Array>,
    manifests: HashMap<ObjectId, ManifestInfo>,
    /// Nodes at the place of a chunk directory of an array above them: both show in one directory.
    chunk_dirs: HashMap<NodeIndex, (NodeIndex, Coords)>,
    renumbered: Renumbered,
}

/// Files with other numbers than those of their places: see [`crate::follow`].
#[derive(Clone, Debug, Default)]
pub struct Renumbered {
    /// Number now, by the number of the place.
    now: HashMap<u64, u64>,
    /// Number of the place, by the number now.
    natural: HashMap<u64, u64>,
}

impl Renumbered {
    /// Renumbers the file `old` to `new`; nothing has the number `old` any more.
    pub fn set(&mut self, old: u64, new: u64) {
        let natural = self.natural.remove(&old).unwrap_or(old);
        self.now.insert(natural, new);
        self.natural.insert(new, natural);
    }
}

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

impl NodeTable {
    /// Builds the table of `snapshot`.
    pub fn build(snapshot: &Snapshot) -> Result<Self> {
        Self::build_after(snapshot, &mut Numbering::default())
    }

    /// Builds the table of `snapshot` with the numbers that `numbering` assigned before.
    pub fn build_after(snapshot: &Snapshot, numbering: &mut Numbering) -> Result<Self> {
        // The memory budget must have room while the table is built. Its memory then belongs to the mount's share.
        let _room = memory::reserve_blocking(snapshot.node_table_size(), "the table of its nodes")?;
        let mut paths: Vec<(&str, u32)> = Vec::with_capacity(snapshot.node_count());
        let mut ids: Vec<NodeId> = Vec::with_capacity(snapshot.node_count());
        for (position, node) in snapshot.nodes().enumerate() {
            match check_path(node.path) {
                Ok(()) => {
                    paths.push((node.path, u32::try_from(position).map_err(too_many)?));
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

        let manifests = snapshot.manifests().into_iter().map(|info| (info.id, info)).collect();
        let mut table = NodeTable {
            nodes: Vec::with_capacity(paths.len() + 1),
            runs: Vec::with_capacity(2 * paths.len() + 1),
            chunk_numbers: Vec::new(),
            names: String::new(),
            children: Vec::new(),
            arrays: Vec::new(),
            manifests,
            chunk_dirs: HashMap::new(),
            renumbered: Renumbered::default(),
        };
        table.push(0, "")?;
        // Path from the root to the node added last.
        let mut open: Vec<(NodeIndex, &str)> = Vec::new();
        for (path, stored) in paths {
            let parts: SmallVec<[&str; 16]> = path.split('/').filter(|part| !part.is_empty()).collect();
            let shared = std::iter::zip(&open, &parts).take_while(|((_, name), part)| name == *part).count();
            open.truncate(shared);
            for part in parts.iter().skip(shared) {
                let parent = open.last().map_or(0, |(index, _)| *index);
                open.push((table.push(parent, part)?, part));
            }
            let index = open.last().map_or(0, |(index, _)| *index);
            table.describe(index, stored, snapshot)?;
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
        self.nodes.push(Node { parent, children: (0, 0), name, stored: None, array: None, base: 0 });
        Ok(index)
    }

    fn describe(&mut self, index: NodeIndex, stored: u32, snapshot: &Snapshot) -> Result<()> {
        let Some(node) = snapshot.node(stored as usize) else { return Ok(()) };
        let array = match &node.data {
            NodeData::Group => None,
            NodeData::Unknown(kind) => {
                error!("node {:?} is of unknown kind {kind}: only its zarr.json is shown", node.path);
                None
            }
            NodeData::Array(data) => {
                let array = describe_array(node.path, node.id, node.zarr_json, data);
                self.arrays.push(array);
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

    /// Assigns the inode numbers of every node.
    fn number(&mut self, snapshot: &Snapshot, numbering: &mut Numbering) {
        for index in 0..self.nodes.len() as NodeIndex {
            let stored = self.get(index).and_then(|node| node.stored).and_then(|at| snapshot.node(at as usize));
            let base = match &stored {
                _ if index == 0 => super::ROOT,
                Some(node) => numbering.node(node.id),
                None => numbering.implicit(self.path(index)),
            };
            self.runs.push(Run { start: base, node: index, chunks: None });
            let Some(node) = self.nodes.get_mut(index as usize) else { continue };
            node.base = base;
            let Some(array) = node.array.and_then(|array| self.arrays.get_mut(array as usize)) else { continue };
            let all = numbering.chunks(array.id, &array.grid);
            let Some(numbers) = all.first().cloned() else { continue };
            if let (Positions::Table(_), Some(stored)) = (&*numbers.positions, stored) {
                let (path, grid) = (stored.path, &array.grid);
                warn!("array {path:?} has a grid of {grid:?} chunks: its inode numbers come from a table");
            }
            (array.positions, array.numbered, array.first_number) = (numbers.positions, numbers.grid, numbers.start);
            for numbers in all {
                let chunks = u32::try_from(self.chunk_numbers.len()).ok();
                self.runs.push(Run { start: numbers.start, node: index, chunks });
                self.chunk_numbers.push(numbers);
            }
        }
        self.runs.sort_unstable();
    }

    /// Finds nodes below arrays at the place of a chunk directory of the array.
    fn find_shared_directories(&mut self) {
        for index in 1..self.nodes.len() as u32 {
            let (Some(node), name) = (self.get(index), self.name(index)) else { continue };
            let parent = node.parent;
            let own = self.array(parent).and_then(|array| match array.encoding {
                KeyEncoding { separator: Separator::Slash, prefixed: true, .. } if !array.grid.is_empty() => {
                    (name == "c").then(|| (parent, Coords::new()))
                }
                KeyEncoding { separator: Separator::Slash, prefixed: false, .. } if array.grid.len() > 1 => {
                    parse_number(name).map(|coord| (parent, Coords::from_slice(&[coord])))
                }
                _ => None,
            });
            let shared = own.or_else(|| {
                let (owner, coords) = self.chunk_dirs.get(&parent)?;
                let rank = self.array(*owner)?.grid.len();
                let coord = parse_number(name).filter(|_| coords.len() + 1 < rank)?;
                let mut coords = coords.clone();
                coords.push(coord);
                Some((*owner, coords))
            });
            if name == ZARR_JSON && self.get(parent).is_some_and(|parent| parent.stored.is_some()) {
                error!("node {:?} cannot be shown: its parent's zarr.json has its name", self.path(index));
            }
            let within = |(owner, coords): &(NodeIndex, Coords)| {
                self.array(*owner).is_some_and(|array| std::iter::zip(coords, &array.grid).all(|(c, n)| c < n))
            };
            if let Some(shared) = shared.filter(within) {
                self.chunk_dirs.insert(index, shared);
            }
        }
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
        self.arrays.get(self.get(index)?.array? as usize)
    }

    /// Returns all arrays.
    pub fn arrays(&self) -> &[Array] {
        &self.arrays
    }

    /// Returns the snapshot's entry of a manifest. One that the snapshot does not list can be read all the same.
    pub fn manifest(&self, id: ObjectId) -> ManifestInfo {
        self.manifests.get(&id).copied().unwrap_or(ManifestInfo { id, size: 0, chunk_refs: 0 })
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
    pub fn inode(&self, place: &TreePlace) -> u64 {
        let natural = self.natural_number(place);
        self.renumbered.now.get(&natural).copied().unwrap_or(natural)
    }

    fn natural_number(&self, place: &TreePlace) -> u64 {
        let base = |index| self.get(index).map_or(0, |node| node.base);
        match place {
            TreePlace::Directory(index) => base(*index),
            TreePlace::Metadata(index) => base(*index) + 1,
            TreePlace::Chunk(index, coords) => {
                let number = |array: &Array| array.first_number + array.position(coords);
                self.array(*index).map_or(0, number)
            }
        }
    }

    /// Returns the place of an inode number, even if there is no chunk.
    pub fn place(&self, inode: u64) -> Option<TreePlace> {
        let inode = match self.renumbered.natural.get(&inode) {
            Some(natural) => *natural,
            None if self.renumbered.now.contains_key(&inode) => return None,
            None => inode,
        };
        let at = self.runs.partition_point(|run| run.start <= inode).checked_sub(1)?;
        let Run { start, node: index, chunks } = *self.runs.get(at)?;
        if let Some(chunks) = chunks {
            let (array, numbers) = (self.array(index)?, self.chunk_numbers.get(chunks as usize)?);
            let coords = numbers.positions.coords(&numbers.grid, inode - start)?;
            // A number of an older grid may have no place in this one.
            let fits =
                numbers.grid.len() == array.grid.len() && std::iter::zip(&coords, &array.grid).all(|(c, n)| c < n);
            return fits.then_some(TreePlace::Chunk(index, coords));
        }
        match inode - start {
            0 => Some(TreePlace::Directory(index)),
            1 => self.get(index)?.stored.map(|_| TreePlace::Metadata(index)),
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
        (fixed + arrays + self.manifests.len() * 2 * size_of::<ManifestInfo>()) as u64
    }
}

/// Returns true if an ID is there twice. No snapshot written by a client has that.
fn has_duplicate_ids(mut ids: Vec<NodeId>) -> bool {
    ids.sort_unstable();
    std::iter::zip(&ids, ids.iter().skip(1)).any(|(one, next)| one == next)
}

/// Leaves out nodes with the ID of an earlier one. Inode numbers and chunks are known by ID: one node would show the other's
/// bytes, and a directory could contain itself.
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

fn check_path(path: &str) -> Result<(), &'static str> {
    let Some(relative) = path.strip_prefix('/') else { return Err("its path does not begin with `/`") };
    if relative.is_empty() {
        return Ok(());
    }
    for part in relative.split('/') {
        match part {
            "" => return Err("a component of its path is empty"),
            "." | ".." => return Err("a component of its path is `.` or `..`"),
            part if part.len() > MAX_NAME => return Err("a component of its path is longer than 255 bytes"),
            part if part.contains('\0') => return Err("a component of its path has a NUL byte"),
            _ => {}
        }
    }
    Ok(())
}

/// Compares paths component by component, each by its bytes. No component has a NUL, so it is enough to let `/` sort first.
fn compare_paths(a: &str, b: &str) -> Ordering {
    let order = |byte: u8| if byte == b'/' { 0 } else { byte };
    a.bytes().map(order).cmp(b.bytes().map(order))
}

fn describe_array(path: &str, id: NodeId, zarr_json: &[u8], data: &ArrayData<'_>) -> Array {
    let manifests = data.manifests().into();
    // The numbers are assigned later.
    let (positions, first_number) = (Arc::new(Positions::new(&[], 1)), 0);
    match ArrayMetadata::parse(zarr_json) {
        Ok(metadata) => {
            let has_long_names = metadata.key_encoding.longest_name(&metadata.grid) > MAX_NAME;
            if has_long_names {
                warn!(
                    "array {path:?}: its chunk key encoding gives names of more than {MAX_NAME} bytes, which no file can have: \
                     its chunks are not shown"
                );
            }
            Array {
                id,
                grid: metadata.grid.into(),
                shape: metadata.shape.into(),
                encoding: metadata.key_encoding,
                manifests,
                positions,
                numbered: Box::default(),
                first_number,
                nominal_chunk_bytes: metadata.nominal_chunk_bytes,
                // `icechunkfs ls --shards` reports why the sharding cannot be read.
                sharding: sharding_of(zarr_json),
                has_long_names,
            }
        }
        Err(why) => {
            let grid = data.grid().filter(|grid| grid.len() <= MAX_RANK).unwrap_or_default();
            warn!(
                "array {path:?}: {why}; its chunks are shown as c/0/1/..., in the grid {grid:?} that the snapshot has"
            );
            Array {
                id,
                grid: grid.into(),
                shape: Box::default(),
                encoding: KeyEncoding::default(),
                manifests,
                positions,
                numbered: Box::default(),
                first_number,
                nominal_chunk_bytes: None,
                sharding: None,
                has_long_names: false,
            }
        }
    }
}

/// Returns the structure of shards that this program understands. Checks cheaply first: a snapshot may have very many arrays,
/// most without shards.
fn sharding_of(zarr_json: &[u8]) -> Option<Box<ShardLayout>> {
    let said = ShardLayout::may_be_in(zarr_json).then(|| ShardLayout::parse(zarr_json))?;
    said.ok().flatten().map(Box::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_sort_by_component() {
        let mut paths = ["/", "/a-b", "/a", "/a/b", "/a b", "/ab", "/a/b/c", "/a.b", "/A"];
        paths.sort_by(|a, b| compare_paths(a, b));
        assert_eq!(paths, ["/", "/A", "/a", "/a/b", "/a/b/c", "/a b", "/a-b", "/a.b", "/ab"]);
    }

    #[test]
    fn names_that_no_file_has_are_told() {
        let long = format!("/{}", "x".repeat(256));
        for path in ["", "a", "/a//b", "/a/", "/.", "/a/../b", "/a\0b", &long] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
        let longest = format!("/{}", "x".repeat(255));
        for path in ["/", "/a", "/...", "/a b/c", "/+1/0.0.0", &longest] {
            assert!(check_path(path).is_ok(), "{path:?}");
        }
    }
}
