//! Readers of made shards that go from their beginnings to their ends.
//!
//! A program that copies a shard reads it in requests of at most a megabyte, each of which touches
//! many chunks. The more a reader has read in sequence, the more of what follows is prefetched: a
//! shard of small chunks then costs a few requests of the store.

use std::num::NonZeroUsize;
use std::ops::Range;

use lru::LruCache;
use parking_lot::Mutex;

use crate::inodes::Ino;
use icechunkfs_base::access_pattern::Sequence;

/// Readers that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// Most bytes that are prefetched for one reader.
const MAX_AHEAD: u64 = 8 << 20;
/// Least bytes of a prefetch that is worth looking up chunks for.
const MIN_AHEAD: u64 = 512 << 10;
/// Longest distance between the end of a stream and its next request: the kernel sends several at
/// once, in any order.
const MAX_GAP: u64 = 4 << 20;

/// Readers of shards, by inode.
#[derive(Debug)]
pub(in crate::tree) struct PackedStreams(Mutex<LruCache<Ino, Sequence>>);

impl Default for PackedStreams {
    fn default() -> Self {
        PackedStreams(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl PackedStreams {
    /// Records a read of `range` of shard `inode`. Returns the range to prefetch, of at most `most`
    /// bytes.
    pub(super) fn record(&self, inode: Ino, range: &Range<u64>, most: u64) -> Option<Range<u64>> {
        let mut streams = self.0.lock();
        let stream = streams.get_mut(&inode);
        let Some(stream) = stream.filter(|stream| stream.is_near(range, MAX_GAP)) else {
            let mut stream = Sequence::new(range.start);
            stream.extend(range);
            streams.put(inode, stream);
            return None;
        };
        let end = stream.range().end;
        if range.end <= end || range.start > end.saturating_add(MAX_GAP.min(stream.length())) {
            return None;
        }
        // Bytes before it do not make it longer.
        stream.extend(&(end..range.end));
        let window = (2 * stream.length()).clamp(MIN_AHEAD, MAX_AHEAD).min(most);
        stream.prefetch(range.end, window)
    }

    /// Sets the end of what was prefetched of shard `inode`, where it is less than was to be.
    pub(super) fn fetched(&self, inode: Ino, end: u64) {
        if let Some(stream) = self.0.lock().get_mut(&inode) {
            stream.prefetched_until(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn readers_in_sequence_get_more_and_more() {
        let streams = PackedStreams::default();
        assert_eq!(streams.record(Ino(1), &(0..128 * KIB), u64::MAX), None, "any read begins so");
        assert_eq!(streams.record(Ino(1), &(128 * KIB..256 * KIB), u64::MAX), Some(256 * KIB..768 * KIB));
        assert_eq!(streams.record(Ino(1), &(256 * KIB..384 * KIB), u64::MAX), Some(768 * KIB..1152 * KIB));
        assert_eq!(streams.record(Ino(1), &(384 * KIB..512 * KIB), u64::MAX), None, "half of the window is left");
        let mut fetched = 1152 * KIB;
        for n in 4..1000 {
            if let Some(range) = streams.record(Ino(1), &(n * 128 * KIB..(n + 1) * 128 * KIB), u64::MAX) {
                assert_eq!(range.start, fetched);
                fetched = range.end;
                assert!(range.end <= (n + 1) * 128 * KIB + MAX_AHEAD);
            }
            assert!(fetched > (n + 1) * 128 * KIB);
        }
    }

    #[test]
    fn readers_that_jump_get_nothing() {
        let streams = PackedStreams::default();
        for n in [3, 100, 7, 55, 80, 20_u64] {
            assert_eq!(streams.record(Ino(1), &(n << 24..(n << 24) + 4096), u64::MAX), None);
        }
        streams.record(Ino(2), &(0..4096), 0);
        assert_eq!(streams.record(Ino(2), &(4096..8192), 0), None, "nothing may be prefetched");
    }

    #[test]
    fn what_had_no_room_is_fetched_again() {
        let streams = PackedStreams::default();
        streams.record(Ino(1), &(0..128 * KIB), u64::MAX);
        assert_eq!(streams.record(Ino(1), &(128 * KIB..256 * KIB), u64::MAX), Some(256 * KIB..768 * KIB));
        streams.fetched(Ino(1), 300 * KIB);
        assert_eq!(streams.record(Ino(1), &(256 * KIB..384 * KIB), u64::MAX), Some(384 * KIB..1152 * KIB));
    }
}
