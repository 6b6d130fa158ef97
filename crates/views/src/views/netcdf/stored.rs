//! Stored bytes of units: where they are, and reading them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory;
use icechunkfs_base::metrics;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::shard::{Index, ShardLayout};
use icechunkfs_repo::reader::Data;
use icechunkfs_repo::reader::chunk::NativeChunk;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};

/// Bytes per read of stored bytes.
const STEP: u64 = 64 << 20;

/// Stored bytes that are read as they are needed.
#[derive(Debug)]
pub(super) enum Stored {
    /// In memory.
    Bytes(Bytes),
    /// Range of a local file, which is never changed.
    File {
        /// The file.
        file: File,
        /// Position of the first of them.
        offset: u64,
        /// Their number.
        length: u64,
    },
}

impl Stored {
    /// Returns the number of bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Stored::Bytes(bytes) => bytes.len() as u64,
            Stored::File { length, .. } => *length,
        }
    }

    /// Returns the bytes, if they are in memory.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Stored::Bytes(bytes) => Some(bytes),
            Stored::File { .. } => None,
        }
    }

    /// Returns `length` bytes from `at` on, or as many as there are. Those of a file are read into
    /// `buffer`, on a thread that may block.
    pub(super) fn part<'a>(&'a self, at: u64, length: usize, buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let length = self.len().saturating_sub(at).min(length as u64) as usize;
        match self {
            Stored::Bytes(bytes) => Ok(bytes.get(at as usize..at as usize + length).unwrap_or_default()),
            Stored::File { file, offset, .. } => {
                if buffer.len() < length {
                    buffer.resize(length, 0);
                }
                let part = buffer.get_mut(..length).unwrap_or_default();
                file.read_exact_at(part, offset.saturating_add(at)).map_err(|e| {
                    Error::with_source(ErrorKind::Corrupt, format!("{length} bytes at {at} of the stored chunk"), e)
                })?;
                metrics::SOURCES.local.add(length as u64);
                Ok(part)
            }
        }
    }
}

/// Stored bytes that were found.
#[derive(Debug)]
pub(super) struct StoredRange {
    inode: Ino,
    /// The chunk that they are in.
    payload: ChunkPayload,
    offset: u64,
    length: u64,
}

impl StoredRange {
    /// Returns the number of bytes.
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// Returns true if the chunk is virtual.
    pub(super) fn is_virtual(&self) -> bool {
        matches!(self.payload, ChunkPayload::Virtual { .. })
    }

    /// Reads the bytes, on memory that the caller has reserved.
    pub(super) async fn read(&self, tree: &Arc<Tree>) -> Result<Bytes> {
        read(tree, self.inode, self.offset, self.length).await
    }

    /// Opens the local file that they are in, if they are in one. This takes no memory.
    pub(super) async fn open(&self, tree: &Arc<Tree>) -> Result<Option<Stored>> {
        let &StoredRange { offset, length, .. } = self;
        let ChunkPayload::Native { chunk: object, offset: start, length: whole } = self.payload else {
            return Ok(None);
        };
        if !tree.reader().is_local() {
            return Ok(None);
        }
        let chunk = NativeChunk { object, offset: start, length: whole };
        let file = tree.reader().open_whole_file(chunk).await?;
        Ok(file.map(|file| Stored::File { file, offset, length }))
    }
}

/// Place of the stored bytes of a unit.
#[derive(Debug)]
pub(super) struct StoredPlace<'a> {
    node: NodeIndex,
    coords: Coords,
    inode: Ino,
    /// Structure of the shard, and number of the inner chunk in it.
    inner: Option<(&'a ShardLayout, u64)>,
}

impl<'a> StoredPlace<'a> {
    /// Returns the place of the chunk at `coords` of the array at `node`.
    pub(super) fn chunk(tree: &Tree, node: NodeIndex, coords: &[u64]) -> Self {
        // Coordinates of a grid fit into 32 bits.
        let coords: Coords = coords.iter().map(|coord| *coord as u32).collect();
        let inode = tree.table().inode(&TreePlace::Chunk(node, coords.clone()));
        StoredPlace { node, coords, inode, inner: None }
    }

    /// Returns the place of the inner chunk at `coords`, counted over all shards of the array.
    pub(super) fn inner(tree: &Tree, node: NodeIndex, coords: &[u64], layout: &'a ShardLayout) -> Self {
        let divided = coords.iter().zip(&layout.grid).map(|(coord, grid)| coord.checked_div(*grid).unwrap_or(0));
        let shard = Self::chunk(tree, node, &divided.collect::<Vec<_>>());
        let number = coords.iter().zip(&layout.grid).fold(0_u64, |number, (coord, grid)| {
            number.saturating_mul(*grid).saturating_add(coord.checked_rem(*grid).unwrap_or(0))
        });
        StoredPlace { inner: Some((layout, number)), ..shard }
    }

    /// Returns `error` with the name of the chunk, unless it has that.
    pub(super) fn named(&self, error: Error, tree: &Tree) -> Error {
        let name = self.describe(tree);
        if error.to_string().contains(&name) { error } else { error.context(name) }
    }

    /// Returns the place without what it borrows: of the whole stored chunk.
    pub(super) fn whole(&self) -> StoredPlace<'static> {
        StoredPlace { node: self.node, coords: self.coords.clone(), inode: self.inode, inner: None }
    }

    /// Returns the name of the chunk, for errors.
    pub(super) fn describe(&self, tree: &Tree) -> String {
        let name = tree.describe(self.inode);
        match self.inner {
            Some((_, number)) => format!("{name}: inner chunk {number}"),
            None => name,
        }
    }

    /// Returns the inode of the chunk if it is stored, with `length` bytes; another length is an
    /// error.
    pub(super) async fn stored_as(&self, tree: &Arc<Tree>, length: u64) -> Result<Option<Ino>> {
        match tree.payload_at(self.node, &self.coords).await?.map(|payload| payload.length()) {
            None => Ok(None),
            Some(stored) if stored == length => Ok(Some(self.inode)),
            Some(stored) => Err(Error::corrupt(format!(
                "{}: a chunk of {stored} bytes where its shape needs {length}",
                tree.describe(self.inode)
            ))),
        }
    }

    /// Finds the stored bytes, without reading them: their number must be known to reserve the
    /// memory for them. None if there are none.
    pub(super) async fn find(&self, tree: &Arc<Tree>) -> Result<Option<StoredRange>> {
        let Some(payload) = tree.payload_at(self.node, &self.coords).await? else { return Ok(None) };
        let range = self.range(tree, payload.length()).await?;
        Ok(range.map(|(offset, length)| StoredRange { inode: self.inode, payload, offset, length }))
    }

    /// Returns offset and length of the stored bytes in a chunk of `size` bytes; none if there are
    /// none.
    async fn range(&self, tree: &Arc<Tree>, size: u64) -> Result<Option<(u64, u64)>> {
        let Some((layout, number)) = self.inner else { return Ok(Some((0, size))) };
        let name = || tree.describe(self.inode);
        let index =
            layout.index_range(size).ok_or_else(|| Error::corrupt("a shard shorter than its index")).context(name)?;
        let bytes = read(tree, self.inode, index.start, index.end - index.start).await?;
        let index = Index::decode(layout, size, bytes).context(name)?;
        if index.entry(number).is_none() {
            return Ok(None);
        }
        let range =
            index.range(number).ok_or_else(|| Error::corrupt(format!("inner chunk {number} is not in its shard")));
        let range = range.context(name)?;
        Ok(Some((range.start, range.end - range.start)))
    }
}

/// Reads `length` bytes of chunk file `inode` from `offset` on, on memory that the caller has
/// reserved.
pub(super) async fn read(tree: &Arc<Tree>, inode: Ino, offset: u64, length: u64) -> Result<Bytes> {
    let mut data = read_step(tree, inode, offset, length).await?;
    if let Data::Bytes(bytes) = &data
        && bytes.len() as u64 == length
    {
        return Ok(bytes.clone());
    }
    let mut bytes = memory::large_buffer(length as usize);
    loop {
        bytes.extend_from_slice(&data);
        let read = bytes.len() as u64;
        if read >= length {
            break;
        }
        data = read_step(tree, inode, offset + read, length - read).await?;
    }
    Ok(bytes.into())
}

/// Reads at most `length` bytes, up to [`STEP`], and at least one, unless `length` is 0.
async fn read_step(tree: &Arc<Tree>, inode: Ino, offset: u64, length: u64) -> Result<Data> {
    let data = tree.read(inode, offset, length.min(STEP) as u32).await?;
    if data.is_empty() && length > 0 {
        let short = format!("{}: shorter than its reference states", tree.describe(inode));
        return Err(Error::new(ErrorKind::Corrupt, short));
    }
    Ok(data)
}
