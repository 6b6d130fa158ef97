//! Inode numbers that outlive a snapshot.
//!
//! A node has two numbers, for its directory and its `zarr.json`, and an array a range of them for
//! its chunks and chunk directories ([`super::positions`]). They are assigned in table order, so
//! that every mount of one snapshot has the same. A mount that moves to another snapshot keeps them
//! by node ID: what the kernel caches of a node that still exists stays valid, wherever the node
//! has moved. An array whose grid changed gets a new range for its chunks; the old one keeps its
//! meaning, for open files, and numbers are never reused.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::nodes::NodeIndex;
use super::positions::Positions;
use crate::inodes::{CHUNKS_END, Ino, OF_NODE};
use icechunkfs_format::format::ids::NodeId;

/// Factors by which a growing array has more numbers than chunks, per dimension.
const HEADROOM: [u32; 2] = [16, 2];

/// Numbers assigned so far.
#[derive(Debug)]
pub struct Numbering {
    /// True if arrays get numbers for more chunks than they have, so that those that grow keep
    /// theirs.
    has_headroom: bool,
    next: Ino,
    nodes: HashMap<NodeId, Ino>,
    /// Numbers of directories without a node, by the number of the directory above and the name.
    implicit: HashMap<(Ino, Box<str>), Ino>,
    /// Numbers by array, the newest last.
    chunks: HashMap<NodeId, Vec<ChunkNumbers>>,
    state: NumberingState,
}

/// State of a numbering: while it is the same, the same nodes and grids get the same numbers. No
/// two numberings have one in common, except the state before the first number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumberingState(u64);

impl NumberingState {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        NumberingState(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Numbers of an array's chunks.
#[derive(Clone, Debug)]
pub struct ChunkNumbers {
    /// Chunks per dimension that have numbers: as many as existed when they were assigned, or more.
    pub grid: Arc<[u32]>,
    /// First number.
    pub start: Ino,
    /// Numbering of places, counted from `start`.
    pub positions: Arc<Positions>,
}

/// Files with other numbers than those of their places: see `icechunkfs_working::follow`.
#[derive(Clone, Debug, Default)]
pub struct Renumbered {
    /// Number now, by the number of the place.
    now: HashMap<Ino, Ino>,
    /// Number of the place, by the number now.
    natural: HashMap<Ino, Ino>,
}

impl Renumbered {
    /// Renumbers the file `old` to `new`; nothing has the number `old` any more.
    pub fn set(&mut self, old: Ino, new: Ino) {
        let natural = self.natural.remove(&old).unwrap_or(old);
        self.now.insert(natural, new);
        self.natural.insert(new, natural);
    }

    /// Returns the number now of the place with number `natural`.
    pub fn number(&self, natural: Ino) -> Ino {
        self.now.get(&natural).copied().unwrap_or(natural)
    }

    /// Returns the number of the place that has `number` now; none if no place has it.
    pub fn natural(&self, number: Ino) -> Option<Ino> {
        match self.natural.get(&number) {
            Some(natural) => Some(*natural),
            None => (!self.now.contains_key(&number)).then_some(number),
        }
    }
}

/// Run of numbers in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// First number.
    pub start: Ino,
    /// Node that has the numbers.
    pub node: NodeIndex,
    /// Position in the table's numbers of chunks; none for the numbers of the node itself.
    pub chunks: Option<u32>,
}

impl Default for Numbering {
    fn default() -> Self {
        // The root has 1 and 2.
        let next = Ino(Ino::ROOT.0 + OF_NODE);
        let nodes = HashMap::new();
        let implicit = HashMap::new();
        let chunks = HashMap::new();
        Numbering { has_headroom: false, next, nodes, implicit, chunks, state: NumberingState::default() }
    }
}

impl Numbering {
    /// Creates a numbering with room for arrays to grow, which therefore differs from other mounts'
    /// of the same snapshot.
    pub fn with_headroom() -> Self {
        Numbering { has_headroom: true, ..Numbering::default() }
    }

    /// Forgets the numbers of grids that arrays no longer have. They are not reused.
    pub fn forget_old_grids(&mut self) {
        for known in self.chunks.values_mut().filter(|known| known.len() > 1) {
            known.drain(..known.len() - 1);
            self.state = NumberingState::next();
        }
    }

    /// Returns the state.
    pub fn state(&self) -> NumberingState {
        self.state
    }

    /// Returns the number of a stored node's directory; the next one is its document's. The root's
    /// are fixed.
    pub fn node(&mut self, id: NodeId) -> Ino {
        let next = &mut self.next;
        let state = &mut self.state;
        *self.nodes.entry(id).or_insert_with(|| {
            *state = NumberingState::next();
            take(next, OF_NODE)
        })
    }

    /// Returns the number of the directory `name` without a node, in the directory with number
    /// `above`.
    pub fn implicit(&mut self, above: Ino, name: &str) -> Ino {
        let next = &mut self.next;
        let state = &mut self.state;
        *self.implicit.entry((above, name.into())).or_insert_with(|| {
            *state = NumberingState::next();
            take(next, OF_NODE)
        })
    }

    /// Returns the numbers of the chunks of array `id` with grid `grid`, and then those that it had
    /// with other grids.
    pub fn chunks(&mut self, id: NodeId, grid: &[u32]) -> Vec<ChunkNumbers> {
        let known = self.chunks.entry(id).or_default();
        let has_headroom = self.has_headroom;
        let fits = |numbers: &ChunkNumbers| {
            if has_headroom {
                numbers.grid.len() == grid.len() && std::iter::zip(&*numbers.grid, grid).all(|(room, n)| room >= n)
            } else {
                *numbers.grid == *grid
            }
        };
        match known.iter().rposition(fits) {
            // The array has had this grid before.
            Some(at) if at + 1 == known.len() => {}
            Some(at) => {
                let numbers = known.remove(at);
                known.push(numbers);
                self.state = NumberingState::next();
            }
            None => {
                let room = CHUNKS_END.saturating_sub(self.next.0);
                let (grid, positions) = if has_headroom { larger(id, grid, room) } else { exact(id, grid, room) };
                let start = take(&mut self.next, positions.count());
                known.push(ChunkNumbers { grid, start, positions: Arc::new(positions) });
                self.state = NumberingState::next();
            }
        }
        known.iter().rev().cloned().collect()
    }
}

fn exact(id: NodeId, grid: &[u32], room: u64) -> (Arc<[u32]>, Positions) {
    (grid.into(), Positions::of_array(id, grid, room))
}

/// Returns numbers for a larger grid than `grid`, if there are enough.
fn larger(id: NodeId, grid: &[u32], room: u64) -> (Arc<[u32]>, Positions) {
    let larger =
        HEADROOM.iter().map(|times| grid.iter().map(|n| n.max(&1).saturating_mul(*times)).collect::<Arc<[u32]>>());
    let mut larger = larger.map(|grid| (Arc::clone(&grid), Positions::new(&grid, room)));
    larger
        .find(|(_, positions)| matches!(positions, Positions::Arithmetic { .. }))
        .unwrap_or_else(|| exact(id, grid, room))
}

fn take(next: &mut Ino, count: u64) -> Ino {
    let first = *next;
    *next = Ino(first.0.saturating_add(count));
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use icechunkfs_format::format::testing::node_id;

    #[test]
    fn numbers_stay_and_are_never_used_twice() {
        let mut numbering = Numbering::default();
        let first = numbering.node(node_id(1));
        let chunks = numbering.chunks(node_id(1), &[2, 2]).remove(0);
        let second = numbering.node(node_id(2));
        assert_eq!([first, chunks.start, second], [3, 5, 5 + 7].map(Ino));
        let grown = numbering.chunks(node_id(1), &[3, 2]).remove(0);
        assert_eq!([numbering.node(node_id(1)), grown.start], [Ino(3), Ino(second.0 + 2)]);
        let all: Vec<Ino> = numbering.chunks(node_id(1), &[2, 2]).into_iter().map(|numbers| numbers.start).collect();
        assert_eq!(all, [chunks.start, grown.start], "back to the first grid");
        let implicit = numbering.implicit(Ino(1), "a");
        assert_eq!(numbering.implicit(Ino(1), "a"), implicit);
        assert_ne!(numbering.implicit(Ino(3), "a"), implicit);
    }

    #[test]
    fn arrays_that_grow_keep_their_numbers_where_there_is_room() {
        let mut numbering = Numbering::with_headroom();
        let first = numbering.chunks(node_id(1), &[2, 3]).remove(0);
        assert_eq!(numbering.chunks(node_id(1), &[30, 3]).remove(0).start, first.start);
        assert_eq!(numbering.chunks(node_id(1), &[1, 1]).remove(0).start, first.start);
        let outgrown = numbering.chunks(node_id(1), &[33, 3]).remove(0);
        assert_ne!(outgrown.start, first.start);
        numbering.forget_old_grids();
        let all: Vec<Ino> = numbering.chunks(node_id(1), &[2, 3]).into_iter().map(|numbers| numbers.start).collect();
        assert_eq!(all, [outgrown.start]);
        let huge = numbering.chunks(node_id(2), &[u32::MAX, 40_000]).remove(0);
        assert_eq!((*huge.grid).to_vec(), [u32::MAX, 40_000], "there is no room for more");
    }
}
