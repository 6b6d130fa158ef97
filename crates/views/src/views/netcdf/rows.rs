//! Copying of blocks between arrays in C order, row by row.

/// Block that is part of two arrays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    /// Elements per dimension of the array that is written.
    pub(super) to_shape: &'a [u64],
    /// First element of the block in it.
    pub(super) to_first: &'a [u64],
    /// Elements per dimension of the array that is read.
    pub(super) from_shape: &'a [u64],
    /// First element of the block in it.
    pub(super) from_first: &'a [u64],
    /// Elements per dimension of the block.
    pub(super) lengths: &'a [u64],
}

/// Runs of elements of a block: their positions in the array that is written and in the one that is
/// read, and their length, all in elements. Dimensions that the block has whole in both arrays are
/// parts of a run.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    /// Dimensions of the block, the last ones part of a run.
    axes: Vec<Axis>,
    /// Coordinates of the next run in the dimensions above a run; none after the last run.
    next: Option<Vec<u64>>,
    run: u64,
}

/// Dimension of a block.
#[derive(Clone, Copy, Debug)]
struct Axis {
    to: u64,
    to_first: u64,
    from: u64,
    from_first: u64,
    length: u64,
}

impl Iterator for Runs {
    type Item = (usize, usize, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let coords = self.next.as_mut()?;
        let mut to = 0_u64;
        let mut from = 0_u64;
        for (at, axis) in self.axes.iter().enumerate() {
            let coord = coords.get(at).copied().unwrap_or(0);
            to = to.saturating_mul(axis.to).saturating_add(axis.to_first).saturating_add(coord);
            from = from.saturating_mul(axis.from).saturating_add(axis.from_first).saturating_add(coord);
        }
        let is_last = coords.iter_mut().zip(&self.axes).rev().all(|(coord, axis)| {
            *coord += 1;
            let is_over = *coord >= axis.length;
            if is_over {
                *coord = 0;
            }
            is_over
        });
        if is_last {
            self.next = None;
        }
        Some((to as usize, from as usize, self.run as usize))
    }
}

impl Block<'_> {
    /// Returns the runs of the block, in the order of the array that is written.
    pub(super) fn runs(&self) -> Runs {
        let to = self.to_shape.iter().zip(self.to_first);
        let from = self.from_shape.iter().zip(self.from_first);
        let axes = to.zip(from).zip(self.lengths).map(|(((to, to_first), (from, from_first)), length)| Axis {
            to: *to,
            to_first: *to_first,
            from: *from,
            from_first: *from_first,
            length: *length,
        });
        let axes: Vec<Axis> = axes.collect();
        // Dimensions above a run: those before the last one that is not whole.
        let mut above = axes.len();
        let mut run = 1_u64;
        for axis in axes.iter().rev() {
            run = run.saturating_mul(axis.length);
            above -= 1;
            if axis.length != axis.to || axis.length != axis.from {
                break;
            }
        }
        let next = (!self.lengths.contains(&0)).then(|| vec![0; above]);
        Runs { axes, next, run }
    }

    /// Copies the block from `source` to `target`, which have elements of `size` bytes.
    pub(super) fn copy(&self, target: &mut [u8], source: &[u8], size: usize) {
        for (to, from, run) in self.runs() {
            let to = to * size;
            let from = from * size;
            let bytes = run * size;
            if let (Some(to), Some(from)) = (target.get_mut(to..to + bytes), source.get(from..from + bytes)) {
                to.copy_from_slice(from);
            }
        }
    }
}

/// Copies `block`, elements of `size` bytes of an array of `shape`, into `array` of `outer` from
/// element `first` on. The block is cut where it leaves the array.
pub(super) fn paste(array: &mut [u8], outer: &[u64], first: &[u64], block: &[u8], shape: &[u64], size: usize) {
    let room = outer.iter().zip(first).map(|(outer, first)| outer.saturating_sub(*first));
    let lengths: Vec<u64> = room.zip(shape).map(|(room, length)| room.min(*length)).collect();
    let zeros = vec![0; shape.len()];
    let part = Block { to_shape: outer, to_first: first, from_shape: shape, from_first: &zeros, lengths: &lengths };
    part.copy(array, block, size);
}

/// Returns the part of `block`, elements of `size` bytes of an array of `shape`, that lies within
/// `kept` from its first element on.
pub(super) fn crop(block: Vec<u8>, shape: &[u64], kept: &[u64], size: usize) -> Vec<u8> {
    if shape == kept {
        return block;
    }
    let mut cropped = Vec::new();
    for (_, from, run) in kept_runs(shape, kept) {
        cropped.extend_from_slice(block.get(from * size..(from + run) * size).unwrap_or_default());
    }
    cropped
}

/// Returns the bytes of each of [`kept_runs`], whose elements have `size` bytes.
pub(super) fn run_bytes(shape: &[u64], kept: &[u64], size: usize) -> u64 {
    kept_runs(shape, kept).run.saturating_mul(size as u64)
}

/// Returns the runs of elements of an array of `shape` that lie within `kept` from its first
/// element on.
pub(super) fn kept_runs(shape: &[u64], kept: &[u64]) -> Runs {
    let zeros = vec![0; shape.len()];
    Block { to_shape: kept, to_first: &zeros, from_shape: shape, from_first: &zeros, lengths: kept }.runs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_pasted_and_cropped() {
        let mut array = vec![0_u8; 12];
        paste(&mut array, &[3, 4], &[1, 2], &[1, 2, 3, 4, 5, 6], &[2, 3], 1);
        assert_eq!(array, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 4, 5]);
        assert_eq!(crop(vec![1, 2, 3, 4, 5, 6], &[2, 3], &[2, 2], 1), [1, 2, 4, 5]);
        assert_eq!(crop(vec![1, 1, 2, 2], &[2], &[1], 2), [1, 1]);
        let mut scalar = vec![0_u8; 2];
        paste(&mut scalar, &[], &[], &[8, 9], &[], 2);
        assert_eq!(scalar, [8, 9]);
    }

    #[test]
    fn whole_dimensions_make_one_run() {
        let runs = |to_shape: &[u64], to_first: &[u64], from_shape: &[u64], from_first: &[u64], lengths: &[u64]| {
            Block { to_shape, to_first, from_shape, from_first, lengths }.runs().collect::<Vec<_>>()
        };
        assert_eq!(runs(&[4, 3, 1], &[1, 0, 0], &[9, 3, 1], &[2, 0, 0], &[2, 3, 1]), [(3, 6, 6)]);
        assert_eq!(runs(&[4, 3], &[0, 0], &[4, 5], &[2, 1], &[2, 3]), [(0, 11, 3), (3, 16, 3)]);
        assert_eq!(runs(&[2, 2], &[0, 0], &[2, 2], &[0, 0], &[2, 2]), [(0, 0, 4)]);
        assert!(runs(&[2], &[0], &[2], &[0], &[0]).is_empty());
    }
}
