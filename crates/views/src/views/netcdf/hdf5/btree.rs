//! Version 1 B-trees that index chunks (HDF5 spec III.A.1, node type 1).
//!
//! All chunks are listed in row-major order in nodes of fixed length, each of them full but the
//! last of its level. So the contents of a node follow from its address, and no node is kept.

use super::UNDEFINED;
use super::storage::Storage;

/// Maximum number of children of a node: 2 K, with the K of files whose superblock has no
/// extension.
const CHILDREN: u64 = 64;

/// Level of a tree.
#[derive(Clone, Copy, Debug)]
struct Level {
    address: u64,
    nodes: u64,
}

/// Index of the chunks of a dataset.
#[derive(Debug)]
pub(super) struct ChunkTree {
    /// Address of the root and of the tree.
    pub(super) address: u64,
    /// Address of the first byte after the tree.
    pub(super) end: u64,
    data: u64,
    slot: u64,
    chunk_bytes: u32,
    chunks: u64,
    grid: Box<[u64]>,
    chunk: Box<[u32]>,
    /// Leaves first.
    levels: Box<[Level]>,
}

impl ChunkTree {
    /// Lays out the tree for at least one chunk of shape `chunk` at `address`; none if it is too
    /// long. The address of the data is set later, by [`ChunkTree::set_data`].
    pub(super) fn new(storage: &Storage, chunk: &[u32], address: u64) -> Option<Self> {
        let node = node_len(chunk.len())?;
        let mut levels = Vec::new();
        let mut nodes = storage.chunks;
        while nodes > 1 || levels.is_empty() {
            nodes = nodes.div_ceil(CHILDREN);
            levels.push(Level { address: 0, nodes });
        }
        let mut end = address;
        for level in levels.iter_mut().rev() {
            level.address = end;
            end = level.nodes.checked_mul(node)?.checked_add(end)?;
        }
        Some(ChunkTree {
            address,
            end,
            data: 0,
            slot: storage.slot,
            chunk_bytes: u32::try_from(storage.chunk_bytes).ok()?,
            chunks: storage.chunks,
            grid: storage.grid.clone().into(),
            chunk: chunk.into(),
            levels: levels.into(),
        })
    }

    /// Sets the address of the first chunk. The end of the last one must not overflow.
    pub(super) fn set_data(&mut self, data: u64) {
        self.data = data;
    }

    /// Returns the bytes that the tree keeps beside itself.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.grid) + size_of_val(&*self.chunk) + size_of_val(&*self.levels)
    }

    /// Returns the node that contains the byte at `address`, and the position of that byte in it;
    /// none outside of the tree.
    pub(super) fn node_at(&self, address: u64) -> Option<(Vec<u8>, usize)> {
        let len = node_len(self.chunk.len())?;
        // The root has the lowest address, and is last in the list.
        let (height, level) = self.levels.iter().enumerate().find(|(_, level)| level.address <= address)?;
        let within = address.checked_sub(level.address)?;
        let number = within.checked_div(len).filter(|number| *number < level.nodes)?;
        Some((self.node(height, *level, number, len), usize::try_from(within % len).ok()?))
    }

    /// Makes node `number` of a level. All sums are checked when the tree and the storage are made.
    fn node(&self, height: usize, level: Level, number: u64, len: u64) -> Vec<u8> {
        let neighbour = |number: Option<u64>| match number.filter(|number| *number < level.nodes) {
            Some(number) => level.address.saturating_add(number.saturating_mul(len)),
            None => UNDEFINED,
        };
        // Children: their number, the address of the first, their distance, and the chunks below
        // each.
        let (below, first, distance) = match height.checked_sub(1).and_then(|lower| self.levels.get(lower)) {
            Some(lower) => (lower.nodes, lower.address, len),
            None => (self.chunks, self.data, self.slot),
        };
        let chunks_below = CHILDREN.saturating_pow(height as u32);
        let from = number.saturating_mul(CHILDREN);
        let to = from.saturating_add(CHILDREN).min(below);

        let mut bytes = Vec::with_capacity(len as usize);
        bytes.extend_from_slice(b"TREE\x01");
        bytes.push(height as u8);
        bytes.extend_from_slice(&(to.saturating_sub(from) as u16).to_le_bytes());
        bytes.extend_from_slice(&neighbour(number.checked_sub(1)).to_le_bytes());
        bytes.extend_from_slice(&neighbour(number.checked_add(1)).to_le_bytes());
        for child in from..to {
            self.key(child.saturating_mul(chunks_below), &mut bytes);
            let address = first.saturating_add(child.saturating_mul(distance));
            bytes.extend_from_slice(&address.to_le_bytes());
        }
        self.key(to.saturating_mul(chunks_below), &mut bytes);
        bytes.resize(len as usize, 0);
        bytes
    }

    /// Appends the key of chunk `number`; beyond the last one, the end of the grid.
    fn key(&self, number: u64, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.chunk_bytes.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        let mut positions: smallvec::SmallVec<[u64; 8]> = self.grid.iter().copied().collect();
        if number < self.chunks {
            let mut rest = number;
            for size in positions.iter_mut().rev() {
                let count = *size;
                *size = rest.checked_rem(count).unwrap_or(0);
                rest = rest.checked_div(count).unwrap_or(0);
            }
        }
        for (position, size) in positions.iter().zip(&*self.chunk) {
            bytes.extend_from_slice(&position.saturating_mul(u64::from(*size)).to_le_bytes());
        }
        bytes.extend_from_slice(&[0; 8]);
    }
}

/// Returns the length of a node: a key has a position in each dimension and in the element.
fn node_len(rank: usize) -> Option<u64> {
    let key = (rank as u64).checked_add(1)?.checked_mul(8)?.checked_add(8)?;
    key.checked_mul(CHILDREN + 1)?.checked_add(24 + 8 * CHILDREN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::super::model::{DataType, Dataset, Layout};
    use super::*;

    fn tree(shape: &[u64], chunk: &[u32]) -> (ChunkTree, Storage) {
        let dataset = Dataset {
            name: "v".into(),
            group: 0,
            data_type: DataType::Float32,
            shape: shape.to_vec(),
            unlimited: false,
            fill: None,
            layout: Layout::Chunked(chunk.to_vec()),
            attributes: Vec::new(),
        };
        let storage = Storage::new(&dataset).unwrap();
        let mut tree = ChunkTree::new(&storage, chunk, 8192).unwrap();
        tree.set_data(1 << 40);
        (tree, storage)
    }

    /// Position of a chunk of up to four dimensions; the others are 0.
    type Position = [u64; 4];

    fn number(node: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(node[at..at + 8].try_into().unwrap())
    }

    /// Walks the node at `address`, whose neighbours are given, and returns its keys' first and
    /// last positions.
    fn walk(
        tree: &ChunkTree,
        address: u64,
        level: u8,
        chunks: &mut Vec<(u64, Position)>,
        nodes: &mut u64,
    ) -> [Position; 2] {
        let (node, from) = tree.node_at(address).unwrap();
        assert_eq!((from, node.len() as u64), (0, node_len(tree.chunk.len()).unwrap()));
        assert_eq!((&node[..5], node[5]), (&b"TREE\x01"[..], level));
        *nodes += 1;
        let rank = tree.chunk.len();
        let count = usize::from(u16::from_le_bytes([node[6], node[7]]));
        let key = |child: usize| -> Position {
            let at = 24 + child * (8 + 8 * (rank + 2));
            assert_eq!(u64::from(tree.chunk_bytes), number(&node, at), "a chunk's length, no filter skipped");
            assert_eq!(0, number(&node, at + 8 + 8 * rank));
            std::array::from_fn(|dimension| if dimension < rank { number(&node, at + 8 + 8 * dimension) } else { 0 })
        };
        for child in 0..count {
            let at = number(&node, 24 + child * (8 + 8 * (rank + 2)) + 8 * (rank + 2));
            assert!(key(child) < key(child + 1), "keys ascend");
            match level {
                0 => chunks.push((at, key(child))),
                _ => assert_eq!(walk(tree, at, level - 1, chunks, nodes), [key(child), key(child + 1)]),
            }
        }
        [key(0), key(count)]
    }

    #[test]
    fn all_chunks_are_reached_from_the_root() {
        // Shape, chunk shape, height of the root, nodes.
        let cases: &[(&[u64], &[u32], u8, u64)] = &[
            (&[1000, 1000, 1000], &[10, 10, 10], 3, 15_625 + 245 + 4 + 1),
            (&[64], &[1], 0, 1),
            (&[65], &[1], 1, 3),
            (&[4096], &[1], 1, 65),
            (&[4097], &[1], 2, 65 + 2 + 1),
            (&[7, 5, 3, 9], &[2, 4, 3, 1], 1, 3),
            (&[5, 5], &[9, 9], 0, 1),
        ];
        for (shape, chunk, height, nodes) in cases {
            let (tree, storage) = tree(shape, chunk);
            let mut chunks = Vec::new();
            let mut walked = 0;
            let [_, end] = walk(&tree, tree.address, *height, &mut chunks, &mut walked);
            let ends: Position = std::array::from_fn(|dimension| match (shape.get(dimension), chunk.get(dimension)) {
                (Some(size), Some(chunk)) => size.next_multiple_of(u64::from(*chunk)),
                _ => 0,
            });
            assert_eq!((walked, end), (*nodes, ends), "{shape:?}");
            assert_eq!(chunks.len() as u64, storage.chunks, "{shape:?}");
            assert_eq!(tree.end, tree.address + nodes * node_len(shape.len()).unwrap());
            assert!(tree.node_at(tree.address - 1).is_none() && tree.node_at(tree.end).is_none());
            for (index, (address, position)) in chunks.iter().enumerate() {
                assert_eq!(*address, (1 << 40) + index as u64 * storage.slot);
                assert!(position.iter().zip(*chunk).all(|(at, chunk)| at % u64::from(*chunk) == 0));
            }
            assert!(chunks.is_sorted_by(|(_, a), (_, b)| a < b), "{shape:?}");
        }
    }

    #[test]
    fn nodes_name_their_neighbours() {
        let (tree, _) = tree(&[200], &[1]);
        let len = node_len(1).unwrap();
        let neighbours = |address| {
            let (node, _) = tree.node_at(address).unwrap();
            [number(&node, 8), number(&node, 16)]
        };
        let leaf = |number: u64| tree.address + (1 + number) * len;
        assert_eq!(neighbours(tree.address), [UNDEFINED; 2]);
        assert_eq!(neighbours(leaf(0)), [UNDEFINED, leaf(1)]);
        assert_eq!(neighbours(leaf(2)), [leaf(1), leaf(3)]);
        assert_eq!(neighbours(leaf(3)), [leaf(2), UNDEFINED]);
        assert_eq!(tree.node_at(leaf(1) + 77).unwrap().1, 77);
    }
}
