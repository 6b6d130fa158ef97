//! The parts of a `zarr.json` that matter to a file system: the chunk grid, the keys of chunks, and
//! the places of inner chunks in shards.
//!
//! All other codecs, fill values and attributes are left to the reading program. A document with
//! unsupported members is still shown unchanged; only the layout of its chunks then follows from
//! Icechunk's own metadata.

pub mod array;
pub mod chunk_key;
pub mod chunk_rules;
pub mod document;
pub mod filters;
pub mod members;
pub mod readable;
pub mod reshard;
pub mod shard;
pub mod slices;
pub mod three_way;

/// Chunk coordinates, or the first few of them for a directory above chunks.
pub type Coords = smallvec::SmallVec<[u32; 6]>;

/// Returns true if an array with `grid` chunks per dimension has a chunk `coords`.
pub fn is_in_grid(coords: &[u32], grid: &[u32]) -> bool {
    coords.len() == grid.len() && is_prefix_in_grid(coords, grid)
}

/// Returns true if `coords`, all coordinates of a chunk or the first few of them, lie in `grid`.
pub fn is_prefix_in_grid(coords: &[u32], grid: &[u32]) -> bool {
    coords.len() <= grid.len() && std::iter::zip(coords, grid).all(|(coord, chunks)| coord < chunks)
}
