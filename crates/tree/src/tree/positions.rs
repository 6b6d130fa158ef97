//! Conversion between chunk coordinates and numbers.
//!
//! Every chunk of an array's grid, and every directory above it, has a number within the array: the
//! directories and chunks of one depth follow each other in grid order, depth after depth. Depth 0
//! is the directory `c` (or the only chunk of a 0-d array), depth `rank` the chunks:
//!
//! ```text
//! grid 2 x 3:   0: c    1: c/0   2: c/1    3: c/0/0   4: c/0/1   5: c/0/2   6: c/1/0   ...
//! ```
//!
//! Numbers are arithmetic, so millions of visited chunks cost no memory and numbers are the same in
//! every mount. A grid with more places than the bits allow (most often of an invented shape) gets
//! a table of the visited places instead. The kernel keeps numbers, and a tree below `.icechunk` is
//! dropped when it is idle and made anew: so the table of an array is one for the whole process,
//! and is never dropped.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::inodes::{MAX_ARITHMETIC, MAX_TABLE};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::zarr::Coords;

/// Tables of the process, by the array and its grid.
static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

type Tables = HashMap<(NodeId, Box<[u32]>), Arc<Mutex<Table>>>;

/// Numbering of one array's chunks and chunk directories.
#[derive(Debug)]
pub enum Positions {
    /// First number of each depth, by arithmetic; one element more than there are depths.
    Arithmetic {
        /// First number per depth.
        first: Box<[u64]>,
    },
    /// Numbers assigned as places are visited.
    Table(Arc<Mutex<Table>>),
}

/// Visited places, in order of the first visit.
#[derive(Debug, Default)]
pub struct Table {
    numbers: HashMap<Coords, u64>,
    places: Vec<Coords>,
}

impl Positions {
    /// Creates the numbering for `grid`, arithmetic if it needs at most `room` numbers (and
    /// [`MAX_ARITHMETIC`]).
    pub fn new(grid: &[u32], room: u64) -> Self {
        let room = room.min(MAX_ARITHMETIC);
        let mut first = Vec::with_capacity(grid.len() + 2);
        let mut next = 0_u64;
        let mut width = 1_u64;
        first.push(next);
        next += width;
        first.push(next);
        for &length in grid {
            let grown = width.checked_mul(u64::from(length)).filter(|&w| w <= room);
            let Some((w, n)) = grown.and_then(|w| Some((w, next.checked_add(w)?))).filter(|&(_, n)| n <= room) else {
                return Positions::Table(Arc::default());
            };
            (width, next) = (w, n);
            first.push(next);
        }
        Positions::Arithmetic { first: first.into() }
    }

    /// Creates the numbering of array `id` like [`Positions::new`]. One with a table has that of
    /// the array in all of the process.
    pub fn of_array(id: NodeId, grid: &[u32], room: u64) -> Self {
        match Positions::new(grid, room) {
            Positions::Table(table) => {
                Positions::Table(Arc::clone(TABLES.lock().entry((id, grid.into())).or_insert(table)))
            }
            arithmetic => arithmetic,
        }
    }

    /// Returns how many numbers are reserved.
    pub fn count(&self) -> u64 {
        match self {
            Positions::Arithmetic { first } => first.last().copied().unwrap_or(0),
            Positions::Table(_) => MAX_TABLE,
        }
    }

    /// Returns the number of the place with `coords`, which must lie in `grid`.
    pub fn number(&self, grid: &[u32], coords: &[u32]) -> u64 {
        match self {
            Positions::Arithmetic { first } => {
                let within = std::iter::zip(grid, coords)
                    .fold(0, |sum, (&length, &coord)| sum * u64::from(length) + u64::from(coord));
                first.get(coords.len()).copied().unwrap_or(0) + within
            }
            Positions::Table(table) => {
                let mut table = table.lock();
                if let Some(&number) = table.numbers.get(coords) {
                    return number;
                }
                let number = table.places.len() as u64;
                table.places.push(Coords::from_slice(coords));
                table.numbers.insert(Coords::from_slice(coords), number);
                number
            }
        }
    }

    /// Returns the place with a number; none if no place has it.
    pub fn coords(&self, grid: &[u32], number: u64) -> Option<Coords> {
        match self {
            Positions::Arithmetic { first } => {
                let depth = first.partition_point(|&start| start <= number).checked_sub(1)?;
                if depth > grid.len() {
                    return None;
                }
                let mut within = number - first.get(depth)?;
                let mut coords: Coords = SmallVec::from_elem(0, depth);
                for (coord, &length) in std::iter::zip(&mut coords, grid).rev() {
                    *coord = u32::try_from(within % u64::from(length.max(1))).ok()?;
                    within /= u64::from(length.max(1));
                }
                Some(coords)
            }
            Positions::Table(table) => table.lock().places.get(usize::try_from(number).ok()?).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use icechunkfs_format::format::testing::node_id;

    #[test]
    fn numbers_and_places_are_inverse() {
        for grid in [&[][..], &[5], &[2, 3], &[1, 1, 1, 1], &[3, 1, 4, 2]] {
            let positions = Positions::new(grid, u64::MAX);
            let mut seen = 0;
            let mut last: Option<Coords> = None;
            for number in 0..positions.count() {
                let coords = positions.coords(grid, number).unwrap();
                assert_eq!(positions.number(grid, &coords), number);
                if let Some(last) = last.filter(|last| last.len() == coords.len()) {
                    assert!(last < coords, "places of one depth are in order");
                }
                last = Some(coords);
                seen += 1;
            }
            let places: u64 = (0..=grid.len()).map(|k| grid[..k].iter().map(|&n| u64::from(n)).product::<u64>()).sum();
            assert_eq!(seen, places);
            assert_eq!(positions.coords(grid, positions.count()), None);
        }
    }

    #[test]
    fn an_empty_grid_has_only_directories() {
        assert_eq!(Positions::new(&[0, 7], u64::MAX).count(), 1);
        assert_eq!(Positions::new(&[7, 0], u64::MAX).count(), 8);
    }

    #[test]
    fn a_table_means_the_same_when_a_tree_is_made_anew() {
        let grid = [u32::MAX, u32::MAX];
        let id = node_id(77);
        let of = |id, grid: &[u32]| Positions::of_array(id, grid, u64::MAX);
        let numbers = [[1, 2], [3, 4]].map(|place| of(id, &grid).number(&grid, &place));
        let anew = of(id, &grid);
        assert_eq!([[3, 4], [1, 2]].map(|place| anew.number(&grid, &place)), [numbers[1], numbers[0]]);
        assert_eq!(anew.coords(&grid, numbers[1]).unwrap().as_slice(), [3, 4]);
        // Another array, and another grid.
        assert_eq!(of(node_id(78), &grid).coords(&grid, numbers[1]), None);
        assert_eq!(of(id, &[u32::MAX; 3]).coords(&[u32::MAX; 3], numbers[1]), None);
    }

    #[test]
    fn too_large_a_grid_gets_a_table() {
        let grid = [u32::MAX, u32::MAX];
        let positions = Positions::new(&grid, u64::MAX);
        assert!(matches!(positions, Positions::Table(_)));
        let first = positions.number(&grid, &[7, 9]);
        let second = positions.number(&grid, &[u32::MAX - 1]);
        assert_ne!(first, second);
        assert_eq!(positions.number(&grid, &[7, 9]), first);
        assert_eq!(positions.coords(&grid, second).unwrap().as_slice(), [u32::MAX - 1]);
        assert_eq!(positions.coords(&grid, 2), None);
        assert!(matches!(Positions::new(&[100], 50), Positions::Table(_)));
    }
}
