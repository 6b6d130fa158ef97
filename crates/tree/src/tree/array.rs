//! Arrays of a snapshot: their grids, chunk keys, manifests and shards.

use std::sync::Arc;

use tracing::warn;

use super::nodes::MAX_NAME;
use super::positions::Positions;
use super::reshard::ChunkForm;
use crate::inodes::Ino;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::{ArrayData, ManifestRef};
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::array::{ArrayMetadata, MAX_RANK};
use icechunkfs_format::zarr::chunk_key::KeyEncoding;
use icechunkfs_format::zarr::document;
use icechunkfs_format::zarr::shard::ShardLayout;

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
    pub(super) positions: Arc<Positions>,
    /// Grid of these numbers: the array's own, or one that it fits into.
    pub(super) numbered_grid: Arc<[u32]>,
    /// Inode number of the first of them.
    pub first_number: Ino,
    /// Bytes of a whole chunk before compression, where the data type defines them.
    pub nominal_chunk_bytes: Option<u64>,
    /// Structure of its chunks, if they are shards.
    pub sharding: Option<Box<ShardLayout>>,
    /// True if the names of its chunks are too long for files: then they are not listed.
    pub has_long_names: bool,
    /// Form of its chunks, if they are not the stored ones.
    pub(super) form: Option<Box<ChunkForm>>,
}

impl Array {
    /// Describes the array at `path` by its `zarr.json`, or by `data` if that cannot be read. Its
    /// chunks have no numbers yet.
    ///
    /// Errors: [`ErrorKind::OutOfMemory`](icechunkfs_base::error::ErrorKind::OutOfMemory) if the
    /// memory bound has no room for looking into `zarr.json`. Other names for its chunks would hide
    /// those that it has.
    pub(super) fn new(path: &str, id: NodeId, zarr_json: &[u8], data: &ArrayData<'_>) -> Result<Array> {
        let mut room = document::reserve(zarr_json).context(|| format!("array {path:?}"))?;
        let mut array = Array {
            id,
            grid: Box::default(),
            shape: Box::default(),
            encoding: KeyEncoding::default(),
            manifests: data.manifests().into(),
            positions: Arc::new(Positions::new(&[], 1)),
            numbered_grid: Arc::default(),
            first_number: Ino(0),
            nominal_chunk_bytes: None,
            sharding: None,
            has_long_names: false,
            form: None,
        };
        match ArrayMetadata::parse_reserved(zarr_json, &mut room) {
            Ok(metadata) => {
                array.has_long_names = metadata.key_encoding.longest_name(&metadata.grid) > MAX_NAME;
                if array.has_long_names {
                    warn!(
                        "array {path:?}: its chunk key encoding gives names of more than {MAX_NAME} bytes, which no file can \
                         have: its chunks are not shown"
                    );
                }
                array.grid = metadata.grid.into();
                array.shape = metadata.shape.into();
                array.encoding = metadata.key_encoding;
                array.nominal_chunk_bytes = metadata.nominal_chunk_bytes;
                // Of very many arrays most have no shards. `icechunkfs ls --shards` reports why the
                // sharding cannot be read.
                let sharding = ShardLayout::may_be_in(zarr_json).then(|| ShardLayout::parse(zarr_json, &mut room));
                array.sharding = sharding.and_then(|parsed| parsed.ok().flatten()).map(Box::new);
            }
            Err(why) => {
                array.grid = data.grid().filter(|grid| grid.len() <= MAX_RANK).unwrap_or_default().into();
                let grid = &array.grid;
                warn!(
                    "array {path:?}: {why}; its chunks are shown as c/0/1/..., in the grid {grid:?} that the snapshot has"
                );
            }
        }
        Ok(array)
    }

    /// Describes the array by its description in another snapshot, where it had the same
    /// `zarr.json`. Its chunks have no numbers yet.
    pub(super) fn like(before: &Array, data: &ArrayData<'_>) -> Array {
        Array {
            id: before.id,
            grid: before.grid.clone(),
            shape: before.shape.clone(),
            encoding: before.encoding.clone(),
            manifests: data.manifests().into(),
            positions: Arc::clone(&before.positions),
            numbered_grid: Arc::default(),
            first_number: Ino(0),
            nominal_chunk_bytes: before.nominal_chunk_bytes,
            sharding: before.sharding.clone(),
            has_long_names: before.has_long_names,
            form: None,
        }
    }

    /// Describes the array like [`Array::like`], with the same numbers for its chunks.
    pub(super) fn with_manifests_of(before: &Array, data: &ArrayData<'_>) -> Array {
        Array {
            numbered_grid: before.numbered_grid.clone(),
            first_number: before.first_number,
            ..Array::like(before, data)
        }
    }

    /// Returns the stored chunks per dimension.
    pub(super) fn stored_grid(&self) -> &[u32] {
        self.form.as_deref().map_or(&self.grid, ChunkForm::stored_grid)
    }

    /// Returns true if its chunks are not the stored ones.
    pub fn is_resharded(&self) -> bool {
        self.form.is_some()
    }

    /// Returns how many of `limit` chunks a listing should look up at a time: a chunk that is made
    /// of many takes as long as they do.
    pub(super) fn page_limit(&self, limit: usize) -> usize {
        match self.form.as_deref() {
            Some(ChunkForm::Packed(packed)) => packed.page_limit(limit),
            _ => limit,
        }
    }

    /// Returns the position of `coords` among the array's places.
    pub fn position(&self, coords: &[u32]) -> u64 {
        self.positions.number(&self.numbered_grid, coords)
    }

    /// Returns the place with a number from [`Array::position`]; none if no place has it.
    pub fn at_position(&self, position: u64) -> Option<Coords> {
        self.positions.coords(&self.numbered_grid, position)
    }
}
