//! What a `zarr.json` means to a file system: the grid of chunks, how a chunk's coordinates are spelled as a key, and where in a
//! stored object its inner chunks are if it is a shard.
//!
//! All other codecs, fill values and attributes are the reading program's business. A document that says something this program does
//! not understand is still shown as it is; only where its chunks go is then decided by what Icechunk itself knows.

pub mod array;
pub mod chunk_key;
mod document;
pub mod shard;
pub mod slices;

/// Chunk coordinates, or the first few of them: a directory above chunks.
pub type Coords = smallvec::SmallVec<[u32; 6]>;

/// Whether an array with `grid` chunks per dimension has a chunk `coords`.
pub fn is_in_grid(coords: &[u32], grid: &[u32]) -> bool {
    coords.len() == grid.len() && std::iter::zip(coords, grid).all(|(coord, chunks)| coord < chunks)
}
