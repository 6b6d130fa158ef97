//! Sparse copies: data files that have only the ranges that were written, while the rest is still
//! in the repository.
//!
//! A program that writes a few bytes of a large chunk (most often a shard) over a network must not
//! wait for all of it. The data file gets the length of the chunk and holds the written bytes; the
//! missing ranges are kept in memory and in the journal, and reads combine both sources. A commit
//! fetches the ranges that are still missing, since a chunk is stored as a whole; so does an
//! operation that needs all of the file. A file that is overwritten, emptied, removed or discarded
//! before then costs nothing.
//!
//! The missing ranges only shrink, and each step is recorded after the bytes are in the file: after
//! a crash, bytes that were not recorded are those of the repository. One task at a time writes to
//! or completes a file.

use std::ops::Range;

use crate::scratch::record::{DataFileId, Record, Stored};
use icechunkfs_format::format::chunk_payload::ChunkPayload;

/// Part of a data file that is still in the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseCopy {
    /// Location of the whole chunk.
    pub(super) from: ChunkPayload,
    /// Ranges that are not in the data file, in order and not touching.
    pub(super) missing: Vec<Range<u64>>,
}

impl SparseCopy {
    /// Creates a sparse copy that lacks `missing` of the bytes at `from`; returns `None` if it
    /// lacks none.
    pub(super) fn new(from: ChunkPayload, missing: &[(u64, u64)]) -> Option<Self> {
        let mut ranges: Vec<Range<u64>> = missing
            .iter()
            .map(|&(begin, end)| begin..end.min(from.length()))
            .filter(|range| range.start < range.end)
            .collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut missing: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match missing.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => missing.push(range),
            }
        }
        (!missing.is_empty()).then_some(SparseCopy { from, missing })
    }

    /// Records that `range` is in the data file now. Returns false if nothing is missing any more.
    pub(super) fn cover(&mut self, range: &Range<u64>) -> bool {
        let first = self.missing.partition_point(|missing| missing.end <= range.start);
        let last = self.missing.partition_point(|missing| missing.start < range.end);
        if first < last {
            let begin = self.missing.get(first).map(|missing| missing.start..range.start);
            let end = self.missing.get(last - 1).map(|missing| range.end..missing.end);
            let rest = [begin, end].into_iter().flatten().filter(|rest| rest.start < rest.end);
            self.missing.splice(first..last, rest);
        }
        !self.missing.is_empty()
    }

    /// Returns the missing parts of `range`.
    pub(super) fn of(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let first = self.missing.partition_point(|missing| missing.end <= range.start);
        let rest = self.missing.iter().skip(first).take_while(|missing| missing.start < range.end);
        rest.map(|missing| missing.start.max(range.start)..missing.end.min(range.end)).collect()
    }

    /// Returns the journal record for data file `data`.
    pub(super) fn record(&self, data: DataFileId) -> Record {
        let missing = self.missing.iter().map(|range| (range.start, range.end)).collect();
        Record::Sparse { data, from: Stored(self.from.clone()), missing }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.missing.iter().map(|range| range.end - range.start).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
    use super::*;
    use icechunkfs_format::format::testing::id;

    fn borrowed(missing: &[(u64, u64)]) -> Option<SparseCopy> {
        SparseCopy::new(ChunkPayload::Native { chunk: id(1), offset: 0, length: 1000 }, missing)
    }

    #[test]
    fn what_is_missing_becomes_less() {
        let mut file = borrowed(&[(0, 1000)]).unwrap();
        assert!(file.cover(&(100..200)));
        assert!(file.cover(&(150..300)) && file.cover(&(990..2000)));
        assert_eq!(file.missing, [0..100, 300..990]);
        assert_eq!(file.of(&(50..400)), [50..100, 300..400]);
        assert_eq!(file.of(&(100..300)), []);
        assert!(file.cover(&(0..0)) && file.cover(&(400..500)));
        assert_eq!(file.missing, [0..100, 300..400, 500..990]);
        assert!(file.cover(&(50..900)));
        assert_eq!((file.missing.clone(), file.bytes()), (vec![0..50, 900..990], 140));
        assert!(!file.cover(&(0..u64::MAX)));
    }

    #[test]
    fn a_journal_may_say_anything() {
        assert_eq!(borrowed(&[]), None);
        assert_eq!(borrowed(&[(5, 5), (9, 3), (1000, 2000)]), None);
        let file = borrowed(&[(500, 600), (0, 10), (5, 20), (20, 30), (990, u64::MAX)]).unwrap();
        assert_eq!(file.missing, [0..30, 500..600, 990..1000]);
    }
}
