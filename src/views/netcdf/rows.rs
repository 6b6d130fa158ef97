//! Copying of blocks between arrays in C order, row by row.

/// Calls `copy` with the positions of each row that a block of `shape` has in `first..` of an array of `outer` and in the block: in
/// elements, and the length of the row. The block is cut where it leaves the array.
fn for_each_row(outer: &[u64], first: &[u64], shape: &[u64], mut copy: impl FnMut(usize, usize, usize)) {
    let lengths: Vec<u64> = outer
        .iter()
        .zip(first)
        .zip(shape)
        .map(|((outer, first), length)| outer.saturating_sub(*first).min(*length))
        .collect();
    if lengths.contains(&0) {
        return;
    }
    let row = lengths.last().map_or(1, |row| *row as usize);
    let above = lengths.len().saturating_sub(1);
    let mut coords = vec![0_u64; above];
    loop {
        let (mut to, mut from) = (0_u64, 0_u64);
        for axis in 0..lengths.len() {
            let coord = coords.get(axis).copied().unwrap_or(0);
            let (Some(outer), Some(first), Some(length)) = (outer.get(axis), first.get(axis), shape.get(axis)) else {
                return;
            };
            to = to.saturating_mul(*outer).saturating_add(first + coord);
            from = from.saturating_mul(*length).saturating_add(coord);
        }
        copy(to as usize, from as usize, row);
        let mut axis = above;
        loop {
            let Some(next) = axis.checked_sub(1) else { return };
            axis = next;
            let (Some(coord), Some(length)) = (coords.get_mut(axis), lengths.get(axis)) else { return };
            *coord += 1;
            if *coord < *length {
                break;
            }
            *coord = 0;
        }
    }
}

/// Copies `block`, elements of `size` bytes of an array of `shape`, into `array` of `outer` from element `first` on.
pub(super) fn paste(array: &mut [u8], outer: &[u64], first: &[u64], block: &[u8], shape: &[u64], size: usize) {
    for_each_row(outer, first, shape, |to, from, row| {
        let (to, from, bytes) = (to * size, from * size, row * size);
        if let (Some(to), Some(from)) = (array.get_mut(to..to + bytes), block.get(from..from + bytes)) {
            to.copy_from_slice(from);
        }
    });
}

/// Returns the part of `block`, elements of `size` bytes of an array of `shape`, that lies within `kept` from its first element on.
pub(super) fn crop(block: Vec<u8>, shape: &[u64], kept: &[u64], size: usize) -> Vec<u8> {
    if shape == kept {
        return block;
    }
    let mut cropped = Vec::new();
    let first = vec![0; shape.len()];
    for_each_row(shape, &first, kept, |from, _, row| {
        cropped.extend_from_slice(block.get(from * size..(from + row) * size).unwrap_or_default());
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
}
