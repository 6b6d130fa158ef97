//! Nodes of the index of a distant file, read a level at a time.
//!
//! The library reads one node after another: 100,000 chunks have 1,600 of them, and from a store
//! each takes a round trip. Here the nodes of a level are asked for together before the library
//! walks the index, which finds them in memory. Nothing else depends on them: a node that is
//! missing here, or damaged, is read and judged by the library as that of a local file is.

use std::collections::BTreeMap;
use std::ops::Range;

use hdf5_reader::Hdf5File;
use hdf5_reader::btree_v1::BTreeV1Node;
use hdf5_reader::error::Error as LibraryError;
use hdf5_reader::io::Cursor;
use hdf5_reader::storage::{Storage, StorageBuffer};

use super::storage::Widths;
use crate::source::Source;

/// Half of the children of a node where the file does not say it (HDF5 specification, "Superblock",
/// Indexed Storage Internal Node K).
const USUAL_K: u16 = 32;
/// Most bytes of a node that are read ahead. Those of the usual kind have three thousand.
const MAX_NODE: u64 = 64 << 10;
/// Most bytes of nodes that are kept: ten million chunks have 500 MB of them, and the rest is read
/// one after another.
const MAX_KEPT: u64 = 256 << 20;
/// Most nodes of a level, for the same reason: a damaged one may have the same children as others.
const MAX_NODES: usize = 1 << 18;
/// Bytes between two nodes that are read with them rather than by another request.
const GAP: u64 = 16 << 10;
/// Most bytes of one range.
const MAX_RANGE: u64 = 1 << 20;

/// The file, with nodes that have been read.
pub(super) struct Nodes<'a> {
    storage: &'a dyn Storage,
    /// Ranges by their addresses, which no other one begins in.
    kept: BTreeMap<u64, Vec<u8>>,
}

impl<'a> Nodes<'a> {
    /// Reads the nodes of the index of chunks at `root`, a B-tree of version 1, if the file is
    /// distant. The array has `rank` dimensions.
    ///
    /// Failures are left to the library.
    pub(super) fn of(file: &'a Hdf5File, source: &dyn Source, root: u64, rank: u32) -> Self {
        let mut nodes = Nodes { storage: file.storage(), kept: BTreeMap::new() };
        if source.is_distant() {
            let k = Some(file.superblock().indexed_storage_k).filter(|k| *k > 0).unwrap_or(USUAL_K);
            let tree = Tree { widths: Widths::of(file), rank, length: node_length(Widths::of(file), rank, k) };
            let base = file.superblock().base_address;
            tree.read(root, &mut nodes, |ranges| {
                let moved = |range: &Range<u64>| Some(range.start.checked_add(base)?..range.end.checked_add(base)?);
                source.read_ranges(&ranges.iter().map(moved).collect::<Option<Vec<_>>>()?).ok()
            });
        }
        nodes
    }

    /// Returns the bytes of a node that has been read.
    fn get(&self, address: u64, length: u64) -> Option<&[u8]> {
        let (begin, bytes) = self.kept.range(..=address).next_back()?;
        let start = usize::try_from(address - begin).ok()?;
        bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
    }
}

impl Storage for Nodes<'_> {
    fn len(&self) -> u64 {
        self.storage.len()
    }

    fn read_range(&self, offset: u64, len: usize) -> Result<StorageBuffer, LibraryError> {
        match self.get(offset, len as u64) {
            Some(bytes) => Ok(StorageBuffer::from_vec(bytes.to_vec())),
            None => self.storage.read_range(offset, len),
        }
    }
}

/// Returns the bytes of a node with all `2 * k` children.
fn node_length(Widths { offset, .. }: Widths, rank: u32, k: u16) -> u64 {
    let offset = u64::from(offset);
    // The size of the chunk and its mask have four bytes each, a position in each dimension and one
    // within the element eight.
    let key = 8 + 8 * (u64::from(rank) + 1);
    let children = 2 * u64::from(k);
    (8 + 2 * offset + children * (key + offset) + key).min(MAX_NODE)
}

/// Index as it is read ahead.
struct Tree {
    widths: Widths,
    rank: u32,
    /// Bytes that are read of a node.
    length: u64,
}

impl Tree {
    /// Reads the levels below `root` by `fetch`, until that fails.
    fn read(&self, root: u64, nodes: &mut Nodes<'_>, fetch: impl Fn(&[Range<u64>]) -> Option<Vec<Vec<u8>>>) {
        let end = nodes.len();
        let mut wanted = vec![root];
        let mut level = None;
        let mut bytes = 0_u64;
        loop {
            let ranges = merged(&mut wanted, self.length, end);
            bytes = ranges.iter().fold(bytes, |bytes, range| bytes.saturating_add(range.end - range.start));
            if ranges.is_empty() || bytes > MAX_KEPT {
                return;
            }
            let Some(found) = fetch(&ranges) else { return };
            nodes.kept.extend(std::iter::zip(ranges.iter().map(|range| range.start), found));
            // Leaves have the chunks.
            if level == Some(0) {
                return;
            }
            let Some((own, below)) = self.below(&wanted, level, nodes) else { return };
            // A damaged index may lead in circles: each level is below the last one.
            let Some(next) = own.checked_sub(1) else { return };
            level = Some(next);
            wanted = below;
        }
    }

    /// Returns the level of the nodes at `wanted`, which is `level` unless this is the first one,
    /// and the addresses of the nodes below; none if they are too many.
    fn below(&self, wanted: &[u64], level: Option<u8>, nodes: &Nodes<'_>) -> Option<(u8, Vec<u64>)> {
        let mut level = level;
        let mut below = Vec::new();
        for address in wanted {
            let bytes = nodes.get(*address, self.length.min(nodes.len().saturating_sub(*address)));
            let Some(node) = bytes.and_then(|bytes| self.parse(bytes)) else { continue };
            if *level.get_or_insert(node.level) == node.level {
                below.extend(node.children);
            }
            if below.len() > MAX_NODES {
                return None;
            }
        }
        Some((level?, below))
    }

    fn parse(&self, bytes: &[u8]) -> Option<BTreeV1Node> {
        let Widths { offset, length } = self.widths;
        let node = BTreeV1Node::parse(&mut Cursor::new(bytes), offset, length, Some(self.rank)).ok()?;
        (node.node_type == 1).then_some(node)
    }
}

/// Sorts the addresses `wanted`, and returns the ranges that have `length` bytes from each of them
/// on, as far as the file goes. Nodes that lie close together share one.
fn merged(wanted: &mut Vec<u64>, length: u64, end: u64) -> Vec<Range<u64>> {
    wanted.retain(|address| *address < end);
    wanted.sort_unstable();
    wanted.dedup();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for address in wanted.iter().copied() {
        let until = address.saturating_add(length).min(end);
        match ranges.last_mut() {
            Some(last) if address <= last.end.saturating_add(GAP) && until - last.start <= MAX_RANGE => {
                last.end = until
            }
            _ => ranges.push(address..until),
        }
    }
    ranges
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use hdf5_reader::storage::BytesStorage;

    use super::*;

    const WIDTHS: Widths = Widths { offset: 8, length: 8 };
    /// Bytes between the nodes of a test: they share no range.
    const APART: u64 = GAP + 4096;

    /// Appends the node at `address` of an index of one dimension.
    fn add(file: &mut Vec<u8>, address: u64, level: u8, children: &[u64]) {
        let mut node = b"TREE\x01".to_vec();
        node.push(level);
        node.extend(u16::try_from(children.len()).unwrap().to_le_bytes());
        node.extend([0xff; 16]);
        for (number, child) in children.iter().enumerate() {
            node.extend([number as u64, number as u64, 0].map(u64::to_le_bytes).concat());
            node.extend(child.to_le_bytes());
        }
        node.extend([0; 24]);
        let start = usize::try_from(address).unwrap();
        file.resize(file.len().max(start + node.len()), 0);
        file.get_mut(start..start + node.len()).unwrap().copy_from_slice(&node);
    }

    /// Returns how often ranges were asked for, and how many in all.
    fn read(file: &[u8], root: u64) -> (usize, usize) {
        let storage = BytesStorage::new(file.to_vec());
        let mut nodes = Nodes { storage: &storage, kept: BTreeMap::new() };
        let [times, count] = [Cell::new(0), Cell::new(0)];
        let tree = Tree { widths: WIDTHS, rank: 1, length: node_length(WIDTHS, 1, USUAL_K) };
        tree.read(root, &mut nodes, |ranges| {
            times.set(times.get() + 1);
            count.set(count.get() + ranges.len());
            let one = |range: &Range<u64>| file.get(range.start as usize..range.end as usize).unwrap().to_vec();
            Some(ranges.iter().map(one).collect())
        });
        let last = file.len() as u64 - 9;
        for offset in [0, root.min(last), root.saturating_add(3).min(last), last] {
            let [here, there] =
                [&nodes as &dyn Storage, &storage].map(|storage| storage.read_range(offset, 9).unwrap());
            assert_eq!(here.as_ref(), there.as_ref(), "{offset}");
        }
        (times.get(), count.get())
    }

    #[test]
    fn each_level_is_asked_for_once() {
        let mut file = Vec::new();
        let place = |number: u64| 100 + number * APART;
        add(&mut file, place(0), 2, &[place(1), place(2)]);
        for (number, first) in [(1, 3), (2, 23)] {
            add(&mut file, place(number), 1, &(first..first + 20).map(place).collect::<Vec<_>>());
        }
        (3..43).for_each(|number| add(&mut file, place(number), 0, &[7]));
        assert_eq!(read(&file, place(0)), (3, 43));
        // Those that lie together share a range.
        let mut file = Vec::new();
        add(&mut file, 0, 1, &[4000, 8000, 12_000]);
        [4000, 8000, 12_000].iter().for_each(|at| add(&mut file, *at, 0, &[7]));
        assert_eq!(read(&file, 0), (2, 2));
    }

    #[test]
    fn an_index_that_leads_in_circles_or_out_of_the_file_ends() {
        let mut file = Vec::new();
        add(&mut file, 0, 200, &[0, 0, APART, u64::MAX, 1 << 60]);
        add(&mut file, APART, 199, &[0, APART, 2 * APART]);
        add(&mut file, 2 * APART, 0, &[0]);
        assert_eq!(read(&file, 0).0, 3);
        // No node at all.
        assert_eq!(read(&[0; 4096], 17), (1, 1));
        assert_eq!(read(&[0; 4096], 1 << 40), (0, 0));
    }

    #[test]
    fn a_node_has_the_length_of_the_specification() {
        // A head of 24 bytes, 64 children, and 65 keys of three dimensions.
        assert_eq!(node_length(WIDTHS, 3, 32), 24 + 64 * 8 + 65 * 40);
        assert_eq!(node_length(WIDTHS, u32::MAX, u16::MAX), MAX_NODE);
    }
}
