//! Filters of chunks that HDF5 has, and numcodecs by the same names.

/// Pairs of bytes after which the sums of Fletcher-32 are reduced.
const FLETCHER_STEP: usize = 360;

/// Returns Fletcher's checksum of 32 bits, of big-endian words of 16 bits, of which an odd byte is
/// the first half of one more (HDF5 specification, filter 3).
pub fn fletcher32(data: &[u8]) -> u32 {
    let reduced = |sum: u32| (sum & 0xFFFF) + (sum >> 16);
    let mut first = 0_u32;
    let mut second = 0_u32;
    let (pairs, rest) = data.as_chunks::<2>();
    for step in pairs.chunks(FLETCHER_STEP) {
        for pair in step {
            // The sums may wrap, as they do in C.
            first = first.wrapping_add(u32::from(u16::from_be_bytes(*pair)));
            second = second.wrapping_add(first);
        }
        first = reduced(first);
        second = reduced(second);
    }
    if let [last] = rest {
        first = first.wrapping_add(u32::from(*last) << 8);
        second = second.wrapping_add(first);
        first = reduced(first);
        second = reduced(second);
    }
    reduced(second) << 16 | reduced(first)
}

/// Reverses a byte shuffle: the first bytes of all elements, then the second ones, and so on; a
/// rest is as it was. `size` is that of an element, not 0.
pub fn unshuffled(stored: &[u8], size: usize) -> Vec<u8> {
    let count = stored.len() / size;
    let mut decoded = stored.to_vec();
    for (plane, bytes) in stored.chunks_exact(count.max(1)).take(if count == 0 { 0 } else { size }).enumerate() {
        for (element, byte) in decoded.chunks_exact_mut(size).zip(bytes) {
            if let Some(place) = element.get_mut(plane) {
                *place = *byte;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_hdf5() {
        // Computed by hand: words 0x0102 and 0x0304; sums 0x0406, and 0x0102 + 0x0406.
        assert_eq!(fletcher32(&[1, 2, 3, 4]), 0x0508_0406);
        assert_eq!(fletcher32(&[1]), 0x0100_0100);
        // Sums that have to be folded within the bytes.
        assert_eq!(fletcher32(&[0xff; 1440]), 0xffff_ffff);
    }

    #[test]
    fn bytes_are_brought_back_and_a_rest_stays() {
        assert_eq!(unshuffled(&[1, 4, 2, 5, 3, 6, 7], 3), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(unshuffled(&[1, 2], 3), [1, 2]);
        assert!(unshuffled(&[], 3).is_empty());
    }
}
