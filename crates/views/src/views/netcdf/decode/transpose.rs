//! Reversing the codec `transpose`.

/// Permutation of dimensions: dimension `n` of the stored array is dimension `order[n]` of the
/// decoded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transpose {
    order: Vec<usize>,
}

impl Transpose {
    /// Creates a transpose of `order`; none if it is no permutation of `rank` dimensions.
    pub(super) fn new(order: Vec<usize>, rank: usize) -> Option<Self> {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..rank).then_some(Transpose { order })
    }

    /// Returns true if no dimension changes its place.
    pub(super) fn is_identity(&self) -> bool {
        self.order.iter().enumerate().all(|(place, axis)| place == *axis)
    }

    /// Returns the shape of the stored array for a decoded array of `shape`.
    pub(super) fn stored_shape(&self, shape: &[u64]) -> Vec<u64> {
        self.order.iter().filter_map(|axis| shape.get(*axis).copied()).collect()
    }

    /// Returns the elements of `stored`, `size` bytes each, in the order of the decoded array of
    /// `shape`.
    pub(super) fn decode(&self, stored: &[u8], shape: &[u64], size: usize) -> Vec<u8> {
        // Distance, in elements of the stored array, between neighbors along each decoded
        // dimension.
        let mut strides = vec![0_usize; shape.len()];
        let mut step = 1_usize;
        for axis in self.order.iter().rev() {
            if let (Some(stride), Some(length)) = (strides.get_mut(*axis), shape.get(*axis)) {
                *stride = step;
                step = step.saturating_mul(*length as usize);
            }
        }
        let mut decoded = Vec::with_capacity(stored.len());
        let mut coords = vec![0_u64; shape.len()];
        let mut at = 0_usize;
        while decoded.len() < stored.len() {
            let start = at.saturating_mul(size);
            let Some(element) = stored.get(start..start.saturating_add(size)) else { break };
            decoded.extend_from_slice(element);
            // The next element in C order of the decoded array.
            for ((coord, stride), length) in coords.iter_mut().zip(&strides).zip(shape).rev() {
                *coord += 1;
                at = at.wrapping_add(*stride);
                if *coord < *length {
                    break;
                }
                at = at.wrapping_sub(stride.wrapping_mul(*length as usize));
                *coord = 0;
            }
        }
        decoded
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn elements_return_to_their_places() {
        // A decoded array of 2 x 3 x 4, stored with its dimensions in the order 2, 0, 1.
        let transpose = Transpose::new(vec![2, 0, 1], 3).unwrap();
        let shape = [2_u64, 3, 4];
        assert_eq!(transpose.stored_shape(&shape), [4, 2, 3]);
        let mut stored = Vec::new();
        for k in 0..4_u8 {
            for i in 0..2_u8 {
                for j in 0..3_u8 {
                    stored.extend([i * 12 + j * 4 + k, 0xAA]);
                }
            }
        }
        let decoded = transpose.decode(&stored, &shape, 2);
        assert_eq!(decoded.iter().step_by(2).copied().collect::<Vec<_>>(), (0..24).collect::<Vec<u8>>());
        assert!(Transpose::new(vec![0, 0], 2).is_none() && Transpose::new(vec![0], 2).is_none());
        assert_eq!(Transpose::new(vec![], 0).unwrap().decode(&[7, 7], &[], 2), [7, 7]);
    }
}
