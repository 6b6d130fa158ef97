//! Numbers that were never used.

use crate::scratch::record::{DataFileId, EntryId, ROOT};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_tree::inodes::MADE;

/// Source of numbers of inodes, data files and listing positions, each of which it gives once: no
/// two of them are equal, whatever they are for, and none is given again after a restart, as long
/// as all that the journal names are reserved.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct FreshNumbers {
    next: u64,
}

impl Default for FreshNumbers {
    fn default() -> Self {
        FreshNumbers { next: ROOT.0 + 1 }
    }
}

impl FreshNumbers {
    /// Returns the number for a new inode.
    pub(in super::super) fn next_entry(&mut self) -> EntryId {
        EntryId(self.take())
    }

    /// Returns the number for a new data file.
    pub(in super::super) fn next_data_file(&mut self) -> DataFileId {
        DataFileId(self.take())
    }

    /// Returns a number that was never used.
    pub(in super::super) fn take(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Reserves `number`, which the scratch directory has, and all below it. Refuses one that was
    /// never given: the kernel's numbers of inodes would not have room for it.
    pub(in super::super) fn reserve(&mut self, number: u64) -> Result<()> {
        if number >= MADE.count() {
            return Err(Error::corrupt(format!("{number} in the scratch directory does not belong to anything")));
        }
        self.next = self.next.max(number + 1);
        Ok(())
    }

    /// Reserves the numbers that `other` has given.
    pub(in super::super) fn follow(&mut self, other: FreshNumbers) {
        self.next = self.next.max(other.next);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_base::error::ErrorKind;

    #[test]
    fn no_number_is_given_twice_even_beside_a_copy() {
        let mut numbers = FreshNumbers::default();
        let first = numbers.next_entry();
        assert_ne!(first, ROOT, "the root has its number");
        let mut copy = numbers;
        let data = numbers.next_data_file();
        assert!(data.0 > first.0);
        copy.follow(numbers);
        assert!(copy.take() > data.0, "what was given meanwhile is not given by the copy");
        copy.follow(FreshNumbers::default());
        assert!(copy.take() > data.0 + 1, "nothing is taken back");
    }

    #[test]
    fn a_number_from_the_journal_is_not_given_again() {
        let mut numbers = FreshNumbers::default();
        numbers.reserve(77).unwrap();
        numbers.reserve(5).unwrap();
        assert_eq!(numbers.take(), 78);
        for wrong in [MADE.count(), u64::MAX] {
            assert_eq!(numbers.reserve(wrong).unwrap_err().kind(), ErrorKind::Corrupt, "{wrong}");
        }
        assert_eq!(numbers.take(), 79);
    }
}
