//! Choice of chunks for data that lie in a file as runs of elements.
//!
//! A chunk is one range of a run if it covers whole rows of all dimensions but the first that is
//! cut. So dimensions are cut from the first one on, and where that is possible into equal parts: a
//! chunk at the end that is shorter has to be filled up.

/// Sizes of chunks, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Most bytes of a chunk.
    pub(crate) most: u64,
    /// Bytes of a chunk that several records make: fewer would be too many chunks.
    pub(crate) records: u64,
}

impl Sizes {
    /// Sizes that stores and readers take well: a request for less than 1 MiB costs as much as one
    /// for that, and 16 MiB fit into caches.
    pub(crate) const USUAL: Sizes = Sizes { most: 16 << 20, records: 1 << 20 };
}

/// Most times that chunks are smaller than they could be, for the sake of equal parts.
const WASTE: u64 = 16;
/// Numbers of parts that are tried at most: a file may claim any length.
const TRIES: usize = 4096;

/// Returns the chunk for a run of `shape` with elements of `size` bytes.
pub(crate) fn chunk_shape(shape: &[u64], size: u64, sizes: Sizes) -> Vec<u64> {
    let mut chunk: Vec<u64> = shape.iter().map(|length| (*length).max(1)).collect();
    let bytes = |lengths: &[u64]| lengths.iter().fold(size, |bytes, length| bytes.saturating_mul(*length));
    for axis in 0..chunk.len() {
        if bytes(chunk.get(axis..).unwrap_or_default()) <= sizes.most {
            break;
        }
        let row = bytes(chunk.get(axis + 1..).unwrap_or_default());
        let Some(length) = chunk.get_mut(axis) else { break };
        *length = if row > sizes.most { 1 } else { part(*length, sizes.most / row.max(1)) };
    }
    chunk
}

/// Returns how many records of `slab` bytes make a chunk, of `count` records. A file that grows by
/// a few keeps its chunks, and one of few records has no chunk that is empty for the most part.
pub(crate) fn records_together(slab: u64, count: u64, sizes: Sizes) -> u64 {
    (sizes.records / slab.max(1)).clamp(1, count.checked_next_power_of_two().unwrap_or(count).max(1))
}

/// Bytes of a chunk of an array that grows by a few rows again and again: each time the last chunk
/// is stored anew.
pub(crate) const GROWING: u64 = 64 << 10;
/// Most rows of such a chunk, as long as there are few.
const GROWING_ROWS: u64 = 1024;

/// Returns the chunk for an array of `shape` with elements of `size` bytes, `total` long in the
/// end, to which others will be appended along `axis`. A row that has at least the bytes `alone` is
/// in chunks of its own, so that each is in one file, whatever the files have of them.
pub(crate) fn growing_chunk(shape: &[u64], axis: usize, total: u64, size: u64, alone: Option<u64>) -> Vec<u64> {
    let sizes = Sizes::USUAL;
    let inner = shape.get(1..).unwrap_or_default();
    if axis != 0 {
        return chunk_shape(shape, size, sizes);
    }
    let mut chunk = chunk_shape(inner, size, sizes);
    let is_cut = std::iter::zip(inner, &chunk).any(|(length, chunk)| length > chunk);
    let slab = inner.iter().fold(size, |bytes, length| bytes.saturating_mul(*length)).max(1);
    let many = (sizes.records / slab).min(total / 16);
    let few = (GROWING / slab).min(GROWING_ROWS);
    let is_alone = is_cut || alone.is_some_and(|bytes| bytes <= slab);
    chunk.insert(0, if is_alone { 1 } else { many.max(few).max(1) });
    chunk
}

/// Returns the length of the parts into which `length` is cut, at most `limit`.
fn part(length: u64, limit: u64) -> u64 {
    let limit = limit.max(1);
    let fewest = length.div_ceil(limit);
    let candidates = (fewest..=fewest.saturating_mul(WASTE)).take(TRIES);
    candidates.into_iter().find(|parts| length.is_multiple_of(*parts)).map_or(limit, |parts| length / parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_whole_rows_of_at_most_a_size() {
        const MIB: u64 = 1 << 20;
        let cases: [(&[u64], u64, &[u64]); 8] = [
            (&[], 8, &[]),
            (&[0], 8, &[1]),
            (&[10, 20], 4, &[10, 20]),
            (&[4 * MIB], 8, &[2 * MIB]),
            (&[100, MIB], 4, &[4, MIB]),
            (&[100, 8, MIB], 4, &[1, 4, MIB]),
            (&[30, 8 * MIB], 4, &[1, 4 * MIB]),
            (&[7, 3, MIB], 4, &[1, 3, MIB]),
        ];
        for (shape, size, chunk) in cases {
            assert_eq!(chunk_shape(shape, size, Sizes::USUAL), chunk, "{shape:?}");
        }
        // A prime number of rows has no equal parts, and any length is answered at once.
        assert_eq!(chunk_shape(&[20_000_003], 1, Sizes::USUAL), [16 * MIB]);
        assert_eq!(chunk_shape(&[0, 1_152_921_504_606_846_883], 1, Sizes::USUAL), [1, 16 * MIB]);
    }

    #[test]
    fn arrays_that_grow_have_chunks_that_are_cheap_to_store_again() {
        let chunk = |shape: &[u64], axis, total| growing_chunk(shape, axis, total, 8, None);
        assert_eq!(chunk(&[1], 0, 1), [1024]);
        assert_eq!(chunk(&[1000], 0, 1_000_000), [62_500]);
        assert_eq!(chunk(&[3, 100], 0, 3), [81, 100]);
        assert_eq!(chunk(&[3, 1000, 1000], 0, 3), [1, 1000, 1000]);
        assert_eq!(chunk(&[3, 10, 1 << 20], 0, 3), [1, 2, 1 << 20]);
        assert_eq!(chunk(&[7, 3], 1, 30), [7, 3]);
        let alone = |length| growing_chunk(&[3, length], 0, 3, 8, Some(800));
        assert_eq!([alone(100), alone(99)], [[1, 100], [82, 99]]);
    }

    #[test]
    fn records_are_gathered_as_long_as_they_are_small() {
        let together = |slab, count| records_together(slab, count, Sizes::USUAL);
        assert_eq!([together(8, 0), together(8, 1), together(8, 12), together(8, 17)], [1, 1, 16, 32]);
        assert_eq!(together(8, 1 << 40), 1 << 17);
        assert_eq!([together(4095, 1 << 20), together(4096, 1 << 20), together(1 << 30, 100)], [256, 256, 1]);
    }
}
