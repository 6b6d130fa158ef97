//! Directory listings, page by page, without state between pages.
//!
//! Every entry has an *offset* from which the listing continues after it. Offsets derive from the
//! entries, so that any page can be found again without state, which lets the kernel skip
//! `opendir`:
//!
//! | offset | entry |
//! |---|---|
//! | 1, 2 | `.` and `..` |
//! | 3 | `zarr.json` |
//! | 4 + i | child i of the node |
//! | 2^61 + n | place n of the array's own chunks |
//! | 2^62 + n | place n of the chunks of the array above that share the directory |

use super::chunks::known;
use super::nodes::{MAX_NAME, NodeIndex, NodeTable, TreePlace, ZARR_JSON};
use super::{Attributes, Kind, Tree, not_a_directory};
use crate::inodes::Ino;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::chunk_key::Separator;

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Offset of the document of a directory.
pub const METADATA: u64 = 3;
const FIRST_CHILD: u64 = 4;
const OWN_CHUNKS: u64 = 1 << 61;
const SHARED_CHUNKS: u64 = 1 << 62;
/// Entries found at a time. A reply of 32 KiB, which the C library asks for, holds at most a
/// thousand.
const PAGE: usize = 1024;

/// Entry of a directory.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Name.
    pub name: &'a str,
    /// Attributes.
    pub attributes: Attributes,
    /// Offset from which the listing continues after the entry.
    pub offset: u64,
    /// False if the size of a file is not known: a program that needs it has to ask for it anew,
    /// and gets the reason if there is none.
    pub is_sized: bool,
}

impl<'a> Entry<'a> {
    /// Creates an entry all of whose attributes are known.
    pub fn new(name: &'a str, attributes: Attributes, offset: u64) -> Self {
        Entry { name, attributes, offset, is_sized: true }
    }

    /// Creates the entry of a file whose size may be unknown.
    pub fn file(name: &'a str, inode: Ino, size: Option<u64>, offset: u64) -> Self {
        let attributes = Attributes { inode, kind: Kind::File, size: size.unwrap_or_default() };
        Entry { is_sized: size.is_some(), ..Entry::new(name, attributes, offset) }
    }
}

/// Extent of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All entries.
    All,
    /// All entries, for a caller that does not use the sizes of files: they may be 0.
    Names,
    /// Directories and documents only: the listing ends before the first chunk, and can continue
    /// from there.
    BeforeChunks,
}

/// Receiver of entries. Returns false if it is full, and then has not taken the entry.
pub trait Sink: FnMut(Entry<'_>) -> bool + Send {}

impl<F: FnMut(Entry<'_>) -> bool + Send> Sink for F {}

/// Chunks of an array that show in a directory.
struct ChunkList {
    array: NodeIndex,
    prefix: Coords,
    /// Number of coordinates in the names of this directory, those of the prefix included.
    depth: usize,
    /// First offset of this list.
    offset: u64,
}

impl ChunkList {
    /// Returns the lists of the directory of `node`.
    fn of_node(table: &NodeTable, node: NodeIndex) -> Vec<Self> {
        let mut lists = Vec::new();
        if let Some(array) = table.array(node).filter(|array| !array.manifests.is_empty()) {
            let rank = array.grid.len();
            let depth = match array.encoding.separator {
                Separator::Slash if array.encoding.prefixed => 0,
                Separator::Slash => rank.min(1),
                Separator::Dot => rank,
            };
            lists.push(ChunkList { array: node, prefix: Coords::new(), depth, offset: OWN_CHUNKS });
        }
        if let Some((owner, prefix)) = table.shared_chunk_dir(node) {
            let depth = prefix.len() + 1;
            lists.push(ChunkList { array: *owner, prefix: prefix.clone(), depth, offset: SHARED_CHUNKS });
        }
        lists
    }

    /// Lists the chunks, or directories of chunks. `node` is the directory's own node, whose
    /// children take precedence.
    async fn feed(
        &self,
        tree: &Tree,
        node: Option<NodeIndex>,
        offset: u64,
        extent: Extent,
        sink: &mut impl Sink,
    ) -> Result<bool> {
        let Some(array) = tree.table.array(self.array) else { return Ok(true) };
        let Some(mut chunks) = tree.chunks(self.array) else { return Ok(true) };
        if extent == Extent::Names {
            chunks = chunks.without_sizes();
        }
        let limit = array.page_limit(PAGE);
        let rank = array.grid.len();
        // Offsets of a list lie between its own beginning and that of the next one.
        if offset >= self.offset << 1 {
            return Ok(true);
        }
        let mut after = None;
        if offset >= self.offset {
            match array.at_position(offset - self.offset) {
                Some(coords) => after = Some(coords),
                None => return Ok(true),
            }
        }
        if self.depth == 0 && rank > 0 {
            // The directory `c` is one entry, even if the manifests have only chunks outside the
            // grid.
            if after.is_some() {
                return Ok(true);
            }
            return Ok(self.emit(tree, node, &Coords::new(), 0, sink));
        }
        loop {
            let page = chunks.page(&self.prefix, self.depth, after.as_deref(), limit).await?;
            for (coords, size) in &page {
                if !self.emit(tree, node, coords, *size, sink) {
                    return Ok(false);
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == limit => after = Some(last.clone()),
                _ => return Ok(true),
            }
        }
    }

    /// Passes one chunk or chunk directory to the sink. Returns false if the sink is full.
    fn emit(&self, tree: &Tree, node: Option<NodeIndex>, coords: &Coords, size: u64, sink: &mut impl Sink) -> bool {
        let Some(array) = tree.table.array(self.array) else { return true };
        let is_file = coords.len() == array.grid.len();
        let name = match coords.last() {
            Some(last) if !is_file => last.to_string(),
            None if !is_file => "c".to_owned(),
            _ => array.encoding.file_name(coords),
        };
        // The kernel would refuse the whole listing. The array was logged when the tree was made.
        if array.has_long_names && name.len() > MAX_NAME {
            return true;
        }
        // A node with the name takes precedence.
        if node.is_some_and(|node| tree.table.child(node, &name).is_some()) {
            return true;
        }
        let place = TreePlace::Chunk(self.array, coords.clone());
        let offset = self.offset + array.position(coords);
        sink(if is_file {
            Entry::file(&name, tree.table.inode(&place), known(size), offset)
        } else {
            Entry::new(&name, tree.directory(&place), offset)
        })
    }
}

impl Tree {
    /// Feeds the entries of directory `inode` that come after `offset` (0 for all) to `sink`.
    pub async fn list(&self, inode: Ino, offset: u64, extent: Extent, sink: &mut impl Sink) -> Result<()> {
        self.list_place(inode, offset, extent, sink).await.context(|| self.describe(inode))
    }

    async fn list_place(&self, inode: Ino, offset: u64, extent: Extent, sink: &mut impl Sink) -> Result<()> {
        let (parent, node, lists) = match self.place(inode)? {
            TreePlace::Directory(node) => {
                let parent = self.table.get(node).map_or(node, |entry| entry.parent);
                (TreePlace::Directory(parent), Some(node), ChunkList::of_node(&self.table, node))
            }
            TreePlace::Chunk(array, prefix) if self.table.is_chunk_directory(array, &prefix) => {
                let list = ChunkList { array, depth: prefix.len() + 1, prefix: prefix.clone(), offset: OWN_CHUNKS };
                (parent_of_chunk_dir(&self.table, array, &prefix), None, vec![list])
            }
            _ => return Err(not_a_directory(inode)),
        };
        let dots = [(DOT, ".", inode), (DOT_DOT, "..", self.table.inode(&parent))];
        for (at, name, inode) in dots {
            let attributes = Attributes::directory(inode);
            if at > offset && !sink(Entry::new(name, attributes, at)) {
                return Ok(());
            }
        }
        if let Some(node) = node.filter(|_| offset == 0 && !lists.is_empty()) {
            self.walked_to(node);
        }
        if let Some(node) = node
            && !self.list_node(node, offset, sink)
        {
            return Ok(());
        }
        for list in lists {
            let are_chunks = self.table.array(list.array).is_some_and(|array| list.depth == array.grid.len());
            if are_chunks && extent == Extent::BeforeChunks {
                return Ok(());
            }
            if !list.feed(self, node, offset, extent, sink).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lists `zarr.json` and the child nodes. Returns false if the sink is full.
    fn list_node(&self, node: NodeIndex, offset: u64, sink: &mut impl Sink) -> bool {
        let metadata = self.zarr_json(node);
        if let Some(bytes) = metadata.filter(|_| METADATA > offset) {
            let attributes = self.file(&TreePlace::Metadata(node), bytes.len() as u64);
            if !sink(Entry::new(ZARR_JSON, attributes, METADATA)) {
                return false;
            }
        }
        let children = self.table.children(node);
        let first = usize::try_from(offset.saturating_sub(FIRST_CHILD - 1)).unwrap_or(usize::MAX);
        for (at, &child) in children.iter().enumerate().skip(first) {
            let name = self.table.name(child);
            // The document has the name already.
            if name == ZARR_JSON && metadata.is_some() {
                continue;
            }
            let attributes = self.directory(&TreePlace::Directory(child));
            if !sink(Entry::new(name, attributes, FIRST_CHILD + at as u64)) {
                return false;
            }
        }
        true
    }
}

fn parent_of_chunk_dir(table: &NodeTable, array: NodeIndex, prefix: &[u32]) -> TreePlace {
    let prefixed = table.array(array).is_some_and(|array| array.encoding.prefixed);
    match prefix.split_last() {
        Some((_, shorter)) if prefixed || !shorter.is_empty() => TreePlace::Chunk(array, Coords::from_slice(shorter)),
        _ => TreePlace::Directory(array),
    }
}
