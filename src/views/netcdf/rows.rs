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

impl Block<'_> {
    /// Calls `copy` with the positions of each run of elements in the array that is written and in the one that is read, and
    /// with its length, all in elements. Dimensions that the block has whole in both arrays are parts of a run.
    pub(super) fn for_each_run(&self, mut copy: impl FnMut(usize, usize, usize)) {
        if self.lengths.contains(&0) {
            return;
        }
        let axis = |axis: usize| {
            Some((
                *self.to_shape.get(axis)?,
                *self.to_first.get(axis)?,
                *self.from_shape.get(axis)?,
                *self.from_first.get(axis)?,
                *self.lengths.get(axis)?,
            ))
        };
        // Dimensions above a run: those before the last one that is not whole.
        let mut above = self.lengths.len();
        let mut run = 1_u64;
        while let Some((to, _, from, _, length)) = above.checked_sub(1).and_then(axis) {
            run = run.saturating_mul(length);
            above -= 1;
            if length != to || length != from {
                break;
            }
        }
        let mut coords = vec![0_u64; above];
        loop {
            let (mut to, mut from) = (0_u64, 0_u64);
            for at in 0..self.lengths.len() {
                let coord = coords.get(at).copied().unwrap_or(0);
                let Some((to_length, to_first, from_length, from_first, _)) = axis(at) else { return };
                to = to.saturating_mul(to_length).saturating_add(to_first).saturating_add(coord);
                from = from.saturating_mul(from_length).saturating_add(from_first).saturating_add(coord);
            }
            copy(to as usize, from as usize, run as usize);
            let mut at = above;
            loop {
                let Some(next) = at.checked_sub(1) else { return };
                at = next;
                let (Some(coord), Some(length)) = (coords.get_mut(at), self.lengths.get(at)) else { return };
                *coord += 1;
                if *coord < *length {
                    break;
                }
                *coord = 0;
            }
        }
    }

    /// Copies the block from `source` to `target`, which have elements of `size` bytes.
    pub(super) fn copy(&self, target: &mut [u8], source: &[u8], size: usize) {
        self.for_each_run(|to, from, run| {
            let (to, from, bytes) = (to * size, from * size, run * size);
            if let (Some(to), Some(from)) = (target.get_mut(to..to + bytes), source.get(from..from + bytes)) {
                to.copy_from_slice(from);
            }
        });
    }
}

/// Copies `block`, elements of `size` bytes of an array of `shape`, into `array` of `outer` from element `first` on. The block is cut
/// where it leaves the array.
pub(super) fn paste(array: &mut [u8], outer: &[u64], first: &[u64], block: &[u8], shape: &[u64], size: usize) {
    let room = outer.iter().zip(first).map(|(outer, first)| outer.saturating_sub(*first));
    let lengths: Vec<u64> = room.zip(shape).map(|(room, length)| room.min(*length)).collect();
    let zeros = vec![0; shape.len()];
    let part = Block { to_shape: outer, to_first: first, from_shape: shape, from_first: &zeros, lengths: &lengths };
    part.copy(array, block, size);
}

/// Returns the part of `block`, elements of `size` bytes of an array of `shape`, that lies within `kept` from its first element on.
pub(super) fn crop(block: Vec<u8>, shape: &[u64], kept: &[u64], size: usize) -> Vec<u8> {
    if shape == kept {
        return block;
    }
    let zeros = vec![0; shape.len()];
    let part = Block { to_shape: kept, to_first: &zeros, from_shape: shape, from_first: &zeros, lengths: kept };
    let mut cropped = Vec::new();
    part.for_each_run(|_, from, run| {
        cropped.extend_from_slice(block.get(from * size..(from + run) * size).unwrap_or_default());
    });
    cropped
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
            let mut runs = Vec::new();
            let block = Block { to_shape, to_first, from_shape, from_first, lengths };
            block.for_each_run(|to, from, run| runs.push((to, from, run)));
            runs
        };
        assert_eq!(runs(&[4, 3, 1], &[1, 0, 0], &[9, 3, 1], &[2, 0, 0], &[2, 3, 1]), [(3, 6, 6)]);
        assert_eq!(runs(&[4, 3], &[0, 0], &[4, 5], &[2, 1], &[2, 3]), [(0, 11, 3), (3, 16, 3)]);
        assert_eq!(runs(&[2, 2], &[0, 0], &[2, 2], &[0, 0], &[2, 2]), [(0, 0, 4)]);
        assert!(runs(&[2], &[0], &[2], &[0], &[0]).is_empty());
    }
}
