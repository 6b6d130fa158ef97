//! The table of nodes: a snapshot's paths as a tree of directories, each with its range of inode numbers.
//!
//! The table is sorted component by component, whatever order the file has, so that a subtree is a contiguous range. Paths
//! that have no node of their own but nodes below them (an array may be written without its groups) are *implicit*
//! directories: they exist, but hold no `zarr.json`. The root always exists.
//!
//! A path that no file system can show (a component that is empty, `.`, `..`, longer than 255 bytes or has a NUL) is left
//! out with everything below it, and said so in the log; the rest works.
//!
//! Inode numbers: a node has a *base*. The directory is `base`, its `zarr.json` `base + 1`; an array's chunks and chunk
//! directories have a range of their own (see [`super::numbering`]). The root's base is 1, which is what FUSE wants.

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
use crate::zarr::shard::Sharding;

/// What Linux allows in one path component, in bytes.
pub const MAX_NAME: usize = 255;
/// Name of every node's metadata document.
pub const ZARR_JSON: &str = "zarr.json";

/// Index of a node in the table.
pub type NodeIndex = u32;

/// A directory that stands for a path of the hierarchy.
#[derive(Debug)]
pub struct Node {
    /// The directory that holds it; its own index for the root.
    pub parent: NodeIndex,
    /// Where its children stand in [`NodeTable::children`].
    children: (u32, u32),
    /// Where its name stands in the table's names.
    name: (u32, u16),
    /// Its number in the snapshot's list; none for an implicit directory.
    pub stored: Option<u32>,
    /// Where the array's description stands; none for a group or an implicit directory.
    array: Option<u32>,
    /// First of its inode numbers.
    pub base: u64,
}

/// What the tree needs to know of an array.
#[derive(Debug)]
pub struct Array {
    /// The array's id, by which manifests know it.
    pub id: NodeId,
    /// Chunks per dimension.
    pub grid: Box<[u32]>,
    /// Elements per dimension, as `zarr.json` has it; empty if that could not be read.
    pub shape: Box<[u64]>,
    /// How chunks are named.
    pub encoding: KeyEncoding,
    /// Manifests that list its chunks, in the order in which they are looked into.
    pub manifests: Box<[ManifestRef]>,
    /// Numbers of its chunks and chunk directories, counted from `first_number`.
    positions: Arc<Positions>,
    /// The grid that they are numbers of: the array's own, or one that it fits into.
    numbered: Box<[u32]>,
    /// The number of the first of them.
    pub first_number: u64,
    /// Bytes of a whole chunk before compression, where the data type tells.
    pub nominal_chunk_bytes: Option<u64>,
    /// What is in a chunk, if it is a shard.
    pub sharding: Option<Box<Sharding>>,
    /// Whether the names of its chunks are longer than a file's can be: then they are not listed.
    pub has_long_names: bool,
}

impl Array {
    /// Which of the array's places `coords` is.
    pub fn position(&self, coords: &[u32]) -> u64 {
        self.positions.number(&self.numbered, coords)
    }

    /// The place with a number that [`Array::position`] has given; none if no place has it.
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
    /// What numbers of chunks mean.
    chunk_numbers: Vec<ChunkNumbers>,
    names: String,
    children: Vec<NodeIndex>,
    arrays: Vec<Array>,
    manifests: HashMap<ObjectId, ManifestInfo>,
    /// Nodes that stand where an array above them has a chunk directory: both show in one directory.
    chunk_dirs: HashMap<NodeIndex, (NodeIndex, Coords)>,
    /// Files that have other numbers than their places say.
    renumbered: Renumbered,
}

/// Files that have other numbers than their places say: see [`crate::follow`].
#[derive(Clone, Debug, Default)]
pub struct Renumbered {
    /// By the number that the place says.
    now: HashMap<u64, u64>,
    /// The number that the place says, by what it is now.
    natural: HashMap<u64, u64>,
}

impl Renumbered {
    /// The file with number `old` is `new` from now on, and nothing is `old` any more.
    pub fn set(&mut self, old: u64, new: u64) {
        let natural = self.natural.remove(&old).unwrap_or(old);
        self.now.insert(natural, new);
        self.natural.insert(new, natural);
    }
}

/// What an inode number stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The directory of a node.
    Directory(NodeIndex),
    /// The `zarr.json` of a node.
    Metadata(NodeIndex),
    /// A chunk of an array, or, if there are fewer coordinates than dimensions, a directory above chunks.
    Chunk(NodeIndex, Coords),
}

impl NodeTable {
    /// Builds the table of `snapshot`.
    pub fn build(snapshot: &Snapshot) -> Result<Self> {
        Self::build_after(snapshot, &mut Numbering::default())
    }

    /// Builds the table of `snapshot` with the numbers that `numbering` has given out before.
    pub fn build_after(snapshot: &Snapshot, numbering: &mut Numbering) -> Result<Self> {
        // While the table is built, the budget says whether there is room for it. What it takes then belongs to the mount's share.
        let _room = memory::reserve_blocking(snapshot.expanded_size(), "the table of its nodes")?;
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
        if has_twice(ids) {
            leave_one_of_each_id(&mut paths, snapshot);
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
        // The path from the root to the node added last.
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

    /// Lists each node's children. The table is in order of paths, so they come in order of names.
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

    /// Gives every node its inode numbers.
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

    /// Finds nodes below arrays that stand where the array has a chunk directory.
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

    /// How many directories there are, implicit ones included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is always a root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node with index `index`.
    pub fn get(&self, index: NodeIndex) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    /// The last component of a node's path; empty for the root.
    pub fn name(&self, index: NodeIndex) -> &str {
        let Some((start, length)) = self.get(index).map(|node| node.name) else { return "" };
        let start = start as usize;
        self.names.get(start..start + length as usize).unwrap_or_default()
    }

    /// A node's path, without a leading `/`.
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

    /// Indices of a node's children, in order of their names' bytes.
    pub fn children(&self, index: NodeIndex) -> &[NodeIndex] {
        let Some((start, end)) = self.get(index).map(|node| node.children) else { return &[] };
        self.children.get(start as usize..end as usize).unwrap_or_default()
    }

    /// A node and all below it, in the table's order, in which a subtree is contiguous.
    pub fn subtree(&self, index: NodeIndex) -> std::ops::RangeInclusive<NodeIndex> {
        let mut last = index;
        while let Some(&child) = self.children(last).last() {
            last = child;
        }
        index..=last
    }

    /// The child of a node that has a name.
    pub fn child(&self, index: NodeIndex, name: &str) -> Option<NodeIndex> {
        let children = self.children(index);
        let at = children.binary_search_by(|&child| self.name(child).as_bytes().cmp(name.as_bytes())).ok()?;
        children.get(at).copied()
    }

    /// The description of an array; none for other nodes.
    pub fn array(&self, index: NodeIndex) -> Option<&Array> {
        self.arrays.get(self.get(index)?.array? as usize)
    }

    /// All arrays.
    pub fn arrays(&self) -> &[Array] {
        &self.arrays
    }

    /// What the snapshot says of a manifest. One that it does not list is looked for all the same.
    pub fn manifest(&self, id: ObjectId) -> ManifestInfo {
        self.manifests.get(&id).copied().unwrap_or(ManifestInfo { id, size: 0, chunk_refs: 0 })
    }

    /// What the snapshot says of all its manifests.
    pub fn manifests(&self) -> &HashMap<ObjectId, ManifestInfo> {
        &self.manifests
    }

    /// The array and place whose chunk directory is also this node's directory.
    pub fn shared_chunk_dir(&self, index: NodeIndex) -> Option<&(NodeIndex, Coords)> {
        self.chunk_dirs.get(&index)
    }

    /// Says which files have other numbers than their places say.
    pub fn renumber(&mut self, renumbered: Renumbered) {
        self.renumbered = renumbered;
    }

    /// The inode number of a place.
    pub fn inode(&self, place: &Place) -> u64 {
        let natural = self.natural_number(place);
        self.renumbered.now.get(&natural).copied().unwrap_or(natural)
    }

    fn natural_number(&self, place: &Place) -> u64 {
        let base = |index| self.get(index).map_or(0, |node| node.base);
        match place {
            Place::Directory(index) => base(*index),
            Place::Metadata(index) => base(*index) + 1,
            Place::Chunk(index, coords) => {
                let number = |array: &Array| array.first_number + array.position(coords);
                self.array(*index).map_or(0, number)
            }
        }
    }

    /// What an inode number stands for. Not whether there is a chunk: only where it would be.
    pub fn place(&self, inode: u64) -> Option<Place> {
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
            return fits.then_some(Place::Chunk(index, coords));
        }
        match inode - start {
            0 => Some(Place::Directory(index)),
            1 => self.get(index)?.stored.map(|_| Place::Metadata(index)),
            _ => None,
        }
    }

    /// Bytes of memory that the table takes, roughly.
    pub fn size(&self) -> u64 {
        let arrays: usize = self
            .arrays
            .iter()
            .map(|a| {
                size_of::<Array>()
                    + 16 * a.grid.len()
                    + a.sharding.as_ref().map_or(0, |sharding| size_of::<Sharding>() + 16 * sharding.grid.len())
                    + a.manifests.len() * (size_of::<ManifestRef>() + 8 * a.grid.len())
            })
            .sum();
        let fixed = self.nodes.len() * (size_of::<Node>() + 12) + self.names.len();
        (fixed + arrays + self.manifests.len() * 2 * size_of::<ManifestInfo>()) as u64
    }
}

/// Whether an id is there twice. It is in no snapshot that a client has written.
fn has_twice(mut ids: Vec<NodeId>) -> bool {
    ids.sort_unstable();
    std::iter::zip(&ids, ids.iter().skip(1)).any(|(one, next)| one == next)
}

/// Leaves out nodes that have the id of one before them. Inode numbers and chunks are known by it: one node would show the other's bytes,
/// and a directory could be in itself.
fn leave_one_of_each_id(paths: &mut Vec<(&str, u32)>, snapshot: &Snapshot) {
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

/// Component by component, each by its bytes. No component has a NUL, so it is enough to let `/` sort first.
fn compare_paths(a: &str, b: &str) -> Ordering {
    let order = |byte: u8| if byte == b'/' { 0 } else { byte };
    a.bytes().map(order).cmp(b.bytes().map(order))
}

fn describe_array(path: &str, id: NodeId, zarr_json: &[u8], data: &ArrayData<'_>) -> Array {
    let manifests = data.manifests().into();
    // The numbers come later.
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
                // Whoever wants to know why it cannot be told asks `icechunkfs ls --shards`.
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

/// What chunks look like if they are shards that this program understands. Most are none: a snapshot may have very many arrays.
fn sharding_of(zarr_json: &[u8]) -> Option<Box<Sharding>> {
    let said = Sharding::may_be_in(zarr_json).then(|| Sharding::parse(zarr_json))?;
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
