//! Directory tree of one snapshot: names, attributes, listings and bytes, without a kernel.
//!
//! [`nodes`] has the paths, [`mod@array`] the arrays, [`positions`] the numbers of chunks,
//! [`chunks`] the lookups in manifests, [`directory`] the listings, `known` what snapshots have in
//! common, [`reshard`] other units of chunks. A [`Tree`] combines them in the terms of a file
//! system: inode numbers, names, attributes. A snapshot never changes, so answers stay valid
//! forever.
//!
//! Methods that may have to read a manifest or a chunk are `async`. If everything is in memory they
//! are ready when first polled; the FUSE adapters rely on that.

pub mod array;
pub mod chunks;
pub mod directory;
mod known;
pub mod names;
pub mod nodes;
pub mod numbering;
mod paths;
pub mod positions;
mod prefetch;
pub mod reshard;
#[cfg(test)]
mod tests;
pub mod virtual_chunks;
mod walk;

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::OnceCell;

use self::array::Array;
use self::chunks::{Chunks, Content, FoundChunk};
use self::nodes::{NodeIndex, NodeTable, TreePlace};
use self::numbering::Renumbered;
use self::prefetch::{LIKELY_WINDOW, Prefetcher};
use self::reshard::Resharded;
use self::walk::Walk;
use crate::inodes::Ino;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_repo::compare::chunks::ChunkList;
use icechunkfs_repo::reader::{ChunkRange, Data, NativeChunk, Reader};

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
}

/// Attributes for `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub inode: Ino,
    /// File or directory.
    pub kind: Kind,
    /// Bytes of a file; 0 for a directory.
    pub size: u64,
}

/// Origin of a file's bytes.
#[derive(Debug)]
pub enum Source {
    /// The `zarr.json` of a node.
    Metadata(NodeIndex),
    /// Chunk of the array at a node.
    Chunk(FoundChunk, NodeIndex),
}

/// Snapshot as a directory tree.
#[derive(Debug)]
pub struct Tree {
    snapshot: Arc<Snapshot>,
    table: NodeTable,
    reader: Arc<Reader>,
    total_bytes: OnceCell<u64>,
    /// Prefetch state, where fetching takes long.
    prefetcher: Option<Prefetcher>,
    /// Differences from the stored tree, if their files are others.
    resharded: Option<Box<Resharded>>,
    walk: Walk,
}

impl Attributes {
    fn directory(inode: Ino) -> Self {
        Attributes { inode, kind: Kind::Directory, size: 0 }
    }
}

impl Tree {
    /// Creates the tree of `snapshot`, whose chunks `reader` reads.
    pub fn new(snapshot: impl Into<Arc<Snapshot>>, table: NodeTable, reader: Arc<Reader>) -> Self {
        let prefetcher = (reader.prefetch_limit() > 0).then(|| Prefetcher::new(reader.prefetch_limit()));
        let total_bytes = OnceCell::new();
        let walk = Walk::default();
        Tree { snapshot: snapshot.into(), table, reader, total_bytes, prefetcher, resharded: None, walk }
    }

    /// Sets other inode numbers for some files.
    pub fn renumbered(mut self, renumbered: Renumbered) -> Self {
        self.table.renumber(renumbered);
        self
    }

    /// Returns the snapshot.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Returns the table of nodes.
    pub fn table(&self) -> &NodeTable {
        &self.table
    }

    /// Returns the reader of the tree's chunks.
    pub fn reader(&self) -> &Arc<Reader> {
        &self.reader
    }

    /// Returns what differs from the stored chunks; none if chunk files are those.
    pub fn resharded(&self) -> Option<&Resharded> {
        self.resharded.as_deref()
    }

    /// Returns the chunks of the array at `node`; none for other nodes.
    pub fn chunks(&self, node: NodeIndex) -> Option<Chunks<'_>> {
        self.table.array(node).map(|array| Chunks::new(array, &self.table, &self.reader))
    }

    /// Returns the chunks of `array`, one of this tree's, as its manifests list them.
    pub fn chunk_list<'a>(&'a self, array: &'a Array) -> ChunkList<'a> {
        let infos = self.table.manifests();
        ChunkList { id: array.id, grid: &array.grid, manifests: &array.manifests, infos, reader: &self.reader }
    }

    /// Returns true if something exists at `place`: a chunk, or one below it. Anything else exists
    /// if it has a place.
    pub async fn has(&self, place: &TreePlace) -> Result<bool> {
        let TreePlace::Chunk(index, coords) = place else { return Ok(true) };
        let (Some(array), Some(chunks)) = (self.table.array(*index), self.chunks(*index)) else { return Ok(false) };
        if coords.len() == array.grid.len() {
            return Ok(chunks.find(coords).await?.is_some());
        }
        chunks.any_below(coords).await
    }

    /// Returns the chunks that share the directory `place` with a node; none if there are none.
    pub fn shared_chunks(&self, place: &TreePlace) -> Option<TreePlace> {
        let TreePlace::Directory(index) = place else { return None };
        let (owner, prefix) = self.table.shared_chunk_dir(*index)?;
        Some(TreePlace::Chunk(*owner, prefix.clone()))
    }

    /// Returns the `zarr.json` of `node`, byte for byte unless its chunks are not the stored ones;
    /// none for an implicit directory.
    pub fn zarr_json(&self, node: NodeIndex) -> Option<&[u8]> {
        if let Some(document) = self.resharded().and_then(|resharded| resharded.document(node)) {
            return Some(document);
        }
        let stored = self.table.get(node)?.stored?;
        self.snapshot.node(stored as usize).map(|node| node.zarr_json)
    }

    /// Returns the entry `name` of directory `parent`; none if it does not exist.
    pub async fn lookup(&self, parent: Ino, name: &str) -> Result<Option<Attributes>> {
        self.lookup_in(parent, name).await.context(|| format!("{}: `{name}`", self.describe(parent)))
    }

    async fn lookup_in(&self, parent: Ino, name: &str) -> Result<Option<Attributes>> {
        let place = self.place(parent)?;
        if !self.is_directory_place(&place) {
            return Err(not_a_directory(parent));
        }
        for child in self.child_places(&place, name) {
            let found = self.attributes_at(&child).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Returns the attributes of what exists at `place`; none if nothing does.
    async fn attributes_at(&self, place: &TreePlace) -> Result<Option<Attributes>> {
        let (node, coords) = match place {
            TreePlace::Directory(_) => return Ok(Some(self.directory(place))),
            TreePlace::Metadata(node) => {
                return Ok(self.zarr_json(*node).map(|bytes| self.file(place, bytes.len() as u64)));
            }
            TreePlace::Chunk(node, coords) => (*node, coords),
        };
        let (Some(array), Some(chunks)) = (self.table.array(node), self.chunks(node)) else { return Ok(None) };
        if coords.len() == array.grid.len() {
            let length = chunks.find(coords).await?.map(|chunk| chunk.known_length()).transpose()?;
            return Ok(length.map(|length| self.file(place, length)));
        }
        // The directory `c` exists even if the manifests have only chunks outside the grid.
        let exists = if coords.is_empty() { !array.manifests.is_empty() } else { chunks.any_below(coords).await? };
        Ok(exists.then(|| self.directory(place)))
    }

    /// Returns the attributes of `inode`.
    pub async fn attributes(&self, inode: Ino) -> Result<Attributes> {
        let place = self.place(inode)?;
        if self.is_directory_place(&place) {
            return Ok(Attributes::directory(inode));
        }
        let found = self.attributes_at(&place).await.context(|| self.describe(inode))?;
        found.ok_or_else(|| no_such(inode))
    }

    /// Returns the origin of the bytes of file `inode`.
    pub async fn source(&self, inode: Ino) -> Result<Source> {
        match self.place(inode)? {
            TreePlace::Metadata(node) => Ok(Source::Metadata(node)),
            TreePlace::Chunk(node, coords) if !self.table.is_chunk_directory(node, &coords) => {
                let chunks = self.chunks(node).ok_or_else(|| no_such(inode))?;
                let found = chunks.find(&coords).await.context(|| self.describe(inode))?;
                found.map(|chunk| Source::Chunk(chunk, node)).ok_or_else(|| no_such(inode))
            }
            _ => Err(Error::new(ErrorKind::IsADirectory, format!("{} is a directory", self.describe(inode)))),
        }
    }

    /// Returns the object range of a native chunk; none for other files.
    pub fn native_chunk(&self, source: &Source) -> Result<Option<NativeChunk>> {
        let Source::Chunk(found, node) = source else { return Ok(None) };
        if matches!(found.content, Content::Packed(_) | Content::Unreadable(_)) {
            return Ok(None);
        }
        match self.payload(found, *node)? {
            ChunkPayload::Native { chunk, offset, length } => Ok(Some(NativeChunk { object: chunk, offset, length })),
            _ => Ok(None),
        }
    }

    fn payload<'a>(&self, found: &'a FoundChunk, node: NodeIndex) -> Result<ChunkPayload<&'a [u8]>> {
        let gone = || Error::corrupt("the chunk's reference is gone");
        let id = self.table.array(node).ok_or_else(gone)?.id;
        match &found.content {
            Content::Stored(chunk) => chunk.payload(id),
            Content::Inner(shard, range) => shard.payload(id)?.part(range).ok_or_else(gone),
            Content::Packed(_) => Err(Error::new(ErrorKind::Unsupported, "the chunk is made of several")),
            Content::Unreadable(error) => Err(error.clone()),
        }
    }

    /// Reads up to `size` bytes of file `inode` from `offset` on: fewer only at the end of the
    /// file.
    pub async fn read(self: &Arc<Self>, inode: Ino, offset: u64, size: u32) -> Result<Data> {
        let source = self.source(inode).await?;
        self.record_access(inode, &source);
        if let Source::Chunk(FoundChunk { content: Content::Packed(index), length }, node) = &source {
            let range = clamp(offset, size, *length);
            return Box::pin(self.read_packed(inode, *node, index, range)).await.context(|| self.describe(inode));
        }
        self.read_source(&source, offset, size).await.context(|| self.describe(inode))
    }

    /// Records an access to file `inode`, whose bytes come from `source`, and may start a prefetch.
    pub fn record_access(self: &Arc<Self>, inode: Ino, source: &Source) {
        let (Some(prefetcher), Source::Chunk(found, node)) = (&self.prefetcher, source) else { return };
        if matches!(found.content, Content::Packed(_)) {
            // Its parts are prefetched as they are read.
            return;
        }
        let node = *node;
        let (Some(array), Ok(TreePlace::Chunk(_, at))) = (self.table.array(node), self.place(inode)) else { return };
        // The prefetch of a shard is limited to its first part, unless most of the last shard was
        // read.
        let shard = array.sharding.as_deref().and_then(|sharding| Some((sharding, self.found_range(found, node)?)));
        let only_part = shard
            .filter(|(_, shard)| !prefetcher.shard_before(node, shard).is_some_and(|s| self.reader.reads_most_of(&s)));
        let (bytes, likely) = match &only_part {
            // The first part of a shard that is no more than likely to be read is not worth a
            // request.
            Some((sharding, shard)) => (self.reader.first_of_shard(sharding, shard).length, 0),
            None => (found.length, LIKELY_WINDOW),
        };
        let wanted = prefetcher.record_read(node, &array.grid, &at, bytes, likely);
        if wanted.chunks.is_empty() {
            return;
        }
        let tree = Arc::clone(self);
        let only_part = only_part.is_some();
        drop(tokio::spawn(async move {
            let (Some(chunks), Some(prefetcher)) = (tree.chunks(node), &tree.prefetcher) else { return };
            let sharding = tree.table.array(node).and_then(|array| array.sharding.as_deref()).filter(|_| only_part);
            let mut stored = Vec::with_capacity(wanted.chunks.len());
            for (n, coords) in wanted.chunks.iter().enumerate() {
                // The lookup fetches the next manifest, too. The reader of the chunk gets any
                // error.
                let Ok(Some(found)) = chunks.find(coords).await else { continue };
                let Some(chunk) = tree.found_range(&found, node) else { continue };
                let first = sharding.map(|sharding| tree.reader.first_of_shard(sharding, &chunk));
                stored.push((n, first.unwrap_or(chunk)));
            }
            if let Some(first_left) = tree.reader.prefetch(stored) {
                prefetcher.return_unfetched(node, &wanted, first_left);
            }
        }));
    }

    /// Returns the range of a chunk, if its bytes are not in its manifest and may be read.
    fn found_range(&self, found: &FoundChunk, node: NodeIndex) -> Option<ChunkRange> {
        self.payload(found, node).and_then(|payload| self.range_of(&payload)).ok().flatten()
    }

    async fn read_source(&self, source: &Source, offset: u64, size: u32) -> Result<Data> {
        let (found, node) = match source {
            Source::Metadata(node) => {
                let bytes = self.zarr_json(*node).unwrap_or_default();
                let range = clamp(offset, size, bytes.len() as u64);
                let part = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
                return Ok(Data::Bytes(bytes::Bytes::copy_from_slice(part)));
            }
            Source::Chunk(found, node) => (found, *node),
        };
        let range = clamp(offset, size, found.length);
        match self.payload(found, node)? {
            ChunkPayload::Inline(bytes) => {
                let part = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
                let (Content::Stored(chunk) | Content::Inner(chunk, _)) = &found.content else {
                    return Ok(Data::Bytes(bytes::Bytes::copy_from_slice(part)));
                };
                let place = chunk.manifest.range_of(part).unwrap_or_default();
                Ok(Data::Inline(Arc::clone(&chunk.manifest), place))
            }
            payload => {
                let Some(chunk) = self.range_of(&payload)? else {
                    return Err(Error::corrupt("the chunk does not exist"));
                };
                self.read_range(self.table.array(node), &chunk, range).await
            }
        }
    }

    /// Returns the range of a stored chunk; none if it is inline. Fails for a virtual chunk that
    /// may not be read.
    pub fn range_of<B>(&self, payload: &ChunkPayload<B>) -> Result<Option<ChunkRange>> {
        chunks::range_of(&self.reader, payload)
    }

    /// Reads up to `size` bytes from `offset` on of a chunk that is stored somewhere in the
    /// repository.
    pub async fn read_stored(&self, payload: &ChunkPayload, offset: u64, size: u32) -> Result<Data> {
        self.read_stored_part(payload, None, offset, size).await
    }

    /// Reads like [`Tree::read_stored`], and treats the chunk as one of the array at `node`.
    pub async fn read_stored_part(
        &self,
        payload: &ChunkPayload,
        node: Option<NodeIndex>,
        offset: u64,
        size: u32,
    ) -> Result<Data> {
        let range = clamp(offset, size, payload.length());
        if let ChunkPayload::Inline(bytes) = payload {
            return Ok(Data::Bytes(bytes.slice(range.start as usize..range.end as usize)));
        }
        let Some(chunk) = self.range_of(payload)? else { return Ok(Data::Bytes(bytes::Bytes::new())) };
        self.read_range(node.and_then(|node| self.table.array(node)), &chunk, range).await
    }

    async fn read_range(&self, array: Option<&Array>, chunk: &ChunkRange, range: Range<u64>) -> Result<Data> {
        let count = (range.end - range.start) as usize;
        match array.and_then(|array| array.sharding.as_deref()) {
            _ if count == 0 => Ok(Data::Bytes(bytes::Bytes::new())),
            Some(sharding) => self.reader.read_shard(sharding, chunk, range.start, count).await,
            None => self.reader.read(chunk, range.start, count).await,
        }
    }

    /// Returns the id of the node that `inode` belongs to; none for a directory without a node.
    pub fn node_id(&self, inode: Ino) -> Option<NodeId> {
        let stored = self.table.get(self.table.place(inode)?.node())?.stored?;
        Some(self.snapshot.node(stored as usize)?.id)
    }

    /// Returns the payload of chunk `inode`; none for other files, and for a chunk that is made of
    /// several.
    pub async fn stored(&self, inode: Ino) -> Result<Option<ChunkPayload>> {
        match self.source(inode).await? {
            Source::Chunk(FoundChunk { content: Content::Packed(_), .. }, _) => Ok(None),
            Source::Chunk(found, node) => Ok(Some(self.payload(&found, node)?.into())),
            Source::Metadata(_) => Ok(None),
        }
    }

    /// Returns the payload of file `inode`, which for a document has its bytes; none for a chunk
    /// that is made of several, and for a document that is not there.
    pub async fn payload_of(&self, inode: Ino) -> Result<Option<ChunkPayload>> {
        match self.table.place(inode) {
            Some(TreePlace::Metadata(node)) => {
                Ok(self.zarr_json(node).map(|bytes| ChunkPayload::Inline(bytes::Bytes::copy_from_slice(bytes))))
            }
            _ => self.stored(inode).await,
        }
    }

    /// Returns the payload of the chunk at `coords` of the array at `node`; none if there is no
    /// such chunk.
    pub async fn payload_at(&self, node: NodeIndex, coords: &[u32]) -> Result<Option<ChunkPayload>> {
        let Some(chunks) = self.chunks(node) else { return Ok(None) };
        let found = chunks.find(coords).await?;
        found.map(|found| self.payload(&found, node).map(ChunkPayload::from)).transpose()
    }

    /// Returns the bytes of all files of the snapshot. Reads every manifest the first time.
    pub async fn total_bytes(&self) -> Result<u64> {
        let total = self.total_bytes.get_or_try_init(|| async {
            let mut total: u64 = self.snapshot.nodes().map(|node| node.zarr_json.len() as u64).sum();
            for array in self.table.arrays() {
                let (_, bytes) = Chunks::new(array, &self.table, &self.reader).totals().await?;
                total = total.saturating_add(bytes);
            }
            Ok(total)
        });
        total.await.copied()
    }

    /// Resolves a path relative to the root; components are separated by `/`.
    pub async fn resolve(&self, path: &str) -> Result<Attributes> {
        let mut at = Attributes::directory(Ino::ROOT);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if at.kind == Kind::File {
                return Err(Error::new(ErrorKind::NotADirectory, format!("{path}: a component is not a directory")));
            }
            let found = self.lookup(at.inode, name).await?;
            at = found.ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("there is no `{path}` in this snapshot; `icechunkfs ls` lists what is there"),
                )
            })?;
        }
        Ok(at)
    }

    fn place(&self, inode: Ino) -> Result<TreePlace> {
        self.table.place(inode).ok_or_else(|| no_such(inode))
    }

    fn file(&self, place: &TreePlace, size: u64) -> Attributes {
        Attributes { inode: self.table.inode(place), kind: Kind::File, size }
    }

    fn directory(&self, place: &TreePlace) -> Attributes {
        Attributes::directory(self.table.inode(place))
    }

    /// Returns the path of an inode, for messages.
    pub fn describe(&self, inode: Ino) -> String {
        match self.table.place(inode) {
            None => inode.to_string(),
            Some(place) => self.path_of(&place),
        }
    }
}

/// Returns the part of a file of `length` bytes that a request for `size` bytes at `offset` gets.
pub fn clamp(offset: u64, size: u32, length: u64) -> Range<u64> {
    let start = offset.min(length);
    start..offset.saturating_add(u64::from(size)).min(length).max(start)
}

fn no_such(inode: Ino) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {inode} in this snapshot"))
}

fn not_a_directory(inode: Ino) -> Error {
    Error::new(ErrorKind::NotADirectory, format!("{inode} is not a directory"))
}
