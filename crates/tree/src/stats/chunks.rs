//! The distinct chunks of many manifests, within a memory bound.
//!
//! A list that is sorted and deduplicated whenever it is full. If it is still full then, its upper
//! half is dropped and left for another pass: ids are random, so that the available memory is used
//! up, and a repository with adversarial ids costs passes, not memory.

use super::reach::RefSet;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;

/// Bit that marks the length of a virtual chunk; no length has it otherwise.
const VIRTUAL: u64 = 1 << 63;
/// Part of the list that may be in use after sorting before its upper half is dropped: with less
/// room it would be sorted too often.
const FULL: (usize, usize) = (3, 4);
/// Minimum capacity, in chunks: a smaller list would need endless passes.
const MIN_CAPACITY: usize = 1 << 12;

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    object: ObjectId,
    /// Length in bytes, and [`VIRTUAL`].
    length: u64,
    offset: u64,
    holder: RefSet,
}

/// Distinct chunks in a range of ids that fits into memory.
#[derive(Debug)]
pub(super) struct ChunkSet {
    entries: Vec<Entry>,
    most: usize,
    /// Range by the first eight bytes of ids. Another pass covers the ids after its end.
    pub(super) range: Range,
}

/// The ids that a pass covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    begin: u64,
    /// Beginning of the next pass; none if no ids are left for one.
    pub(super) end: Option<u64>,
}

impl Range {
    pub(super) fn is_first(self) -> bool {
        self.begin == 0
    }

    pub(super) fn has(self, object: ObjectId) -> bool {
        let at = prefix(object);
        at >= self.begin && self.end.is_none_or(|end| at < end)
    }
}

/// The use of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) id: ObjectId,
    /// Bytes that at least one manifest references.
    pub(super) used: u64,
    /// Holder of any of its chunks.
    pub(super) holder: RefSet,
}

fn prefix(object: ObjectId) -> u64 {
    object.0.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl ChunkSet {
    /// Creates an empty set of at most `memory` bytes, for ids from `begin` on.
    pub(super) fn new(begin: u64, memory: u64) -> Self {
        let most = usize::try_from(memory / size_of::<Entry>() as u64).unwrap_or(usize::MAX).max(MIN_CAPACITY);
        ChunkSet { entries: Vec::new(), most, range: Range { begin, end: None } }
    }

    /// Adds the chunk of `length` bytes at `offset` of `object`.
    pub(super) fn add(
        &mut self,
        object: ObjectId,
        offset: u64,
        length: u64,
        is_virtual: bool,
        holder: RefSet,
    ) -> Result<()> {
        if self.entries.len() >= self.most {
            self.make_room()?;
        }
        if !self.range.has(object) {
            return Ok(());
        }
        let length = length & !VIRTUAL | if is_virtual { VIRTUAL } else { 0 };
        self.entries.push(Entry { object, length, offset, holder });
        Ok(())
    }

    fn sort(&mut self) {
        self.entries.sort_unstable();
        self.entries.dedup_by(|later, first| {
            let same = (later.object, later.length, later.offset) == (first.object, first.length, first.offset);
            if same {
                first.holder = first.holder.and(later.holder);
            }
            same
        });
    }

    fn make_room(&mut self) -> Result<()> {
        self.sort();
        if self.entries.len() <= self.most / FULL.1 * FULL.0 {
            return Ok(());
        }
        // All chunks of one object stay in one pass.
        let begin = self.range.begin;
        let middle = self.entries.get(self.entries.len() / 2).map(|entry| prefix(entry.object));
        let beyond = || self.entries.iter().map(|entry| prefix(entry.object)).find(|at| *at > begin);
        let Some(end) = middle.filter(|middle| *middle > begin).or_else(beyond) else {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                format!("more than {} chunks in one object: raise --memory", self.entries.len()),
            ));
        };
        self.range.end = Some(end);
        self.entries.truncate(self.entries.partition_point(|entry| prefix(entry.object) < end));
        Ok(())
    }

    /// Returns the number and bytes of native chunks, those of virtual chunks, and the objects
    /// sorted by id.
    pub(super) fn into_objects(mut self) -> ([(u64, u64); 2], Vec<Object>) {
        self.sort();
        let mut sums = [(0_u64, 0_u64); 2];
        let [native, virtuals] = &mut sums;
        for entry in &self.entries {
            let sum = if entry.length & VIRTUAL == 0 { &mut *native } else { &mut *virtuals };
            sum.0 += 1;
            sum.1 = sum.1.saturating_add(entry.length & !VIRTUAL);
        }
        self.entries.retain(|entry| entry.length & VIRTUAL == 0);
        // Chunks of one object may overlap.
        self.entries.sort_unstable_by_key(|entry| (entry.object, entry.offset));
        let mut objects: Vec<Object> = Vec::new();
        let mut end = 0;
        for Entry { object, length, offset, holder } in std::mem::take(&mut self.entries) {
            match objects.last_mut().filter(|last| last.id == object) {
                Some(last) => {
                    last.used += offset.saturating_add(length).saturating_sub(end.max(offset));
                    last.holder = last.holder.and(holder);
                }
                None => {
                    end = 0;
                    objects.push(Object { id: object, used: length, holder });
                }
            }
            end = end.max(offset.saturating_add(length));
        }
        (sums, objects)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn id(n: u64) -> ObjectId {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        ObjectId(bytes)
    }

    #[test]
    fn overlapping_chunks_are_counted_once_and_objects_know_who_leads_to_them() {
        let mut set = ChunkSet::new(0, 0);
        let one = RefSet(0);
        let two = RefSet(1);
        for (object, offset, length, holder) in
            [(1, 0, 10, one), (1, 0, 10, one), (1, 5, 10, one), (1, 20, 5, one), (2, 0, 7, one), (2, 0, 7, two)]
        {
            set.add(id(object), offset, length, false, holder).unwrap();
        }
        set.add(id(1), 0, 100, true, two).unwrap();
        let ([native, virtuals], mut objects) = set.into_objects();
        objects.sort_by_key(|object| object.used);
        assert_eq!((native, virtuals), ((4, 32), (1, 100)));
        assert_eq!((objects[0].used, objects[0].holder), (7, RefSet::SEVERAL));
        assert_eq!((objects[1].used, objects[1].holder), (20, one));
    }

    #[test]
    fn what_does_not_fit_is_left_for_another_pass() {
        let count = 10 * MIN_CAPACITY as u64;
        let mut begin = Some(0);
        let mut passes = 0;
        let mut found = 0;
        while let Some(from) = begin {
            let mut set = ChunkSet::new(from, 0);
            // Each id several times: a known chunk takes no room.
            for n in (0..count).chain(0..count) {
                set.add(id(n), 0, 1, false, RefSet(0)).unwrap();
            }
            assert!(set.entries.capacity() <= 2 * MIN_CAPACITY);
            begin = set.range.end;
            found += set.into_objects().1.len() as u64;
            passes += 1;
        }
        assert_eq!(found, count);
        assert!((10..60).contains(&passes), "{passes}");
        // All chunks in one object: an error instead of endless passes.
        let mut set = ChunkSet::new(0, 0);
        let added = (0..count).try_for_each(|n| set.add(id(0), n, 1, false, RefSet(0)));
        assert_eq!(added.unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
}
