//! Hint whether a listing should include attributes.
//!
//! `READDIRPLUS` saves a lookup for every file that is looked at after it was listed, as `ls -l`,
//! `cp -r` and `du` do. For files that are only listed (`find`, a Zarr reader that lists a group)
//! it costs far more than the names alone: the kernel creates an inode for each, some 6 us and more
//! than a kilobyte (docs/contributing/performance-lessons.md). The kernel learns the access pattern
//! within one directory; chunks are in many small ones. So this module learns it across
//! directories: a listing begins without attributes of chunks, and if one of its files is then
//! looked up, the next listings include them.
//!
//! Directories and documents always come with attributes: walks enter the former, Zarr programs
//! open the latter.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use icechunkfs_tree::inodes::Ino;

/// Listings with attributes until one without them tests whether they are still used.
const CREDIT: u32 = 64;

/// Access pattern of the last listings. Approximate under concurrency, which costs time and never
/// correctness.
#[derive(Debug, Default)]
pub struct ListingHint {
    /// Directory that was last listed without attributes of chunks.
    bare: AtomicU64,
    /// Remaining listings with attributes.
    credit: AtomicU32,
}

impl ListingHint {
    /// Returns true if the listing of `directory` that begins now should include attributes of
    /// chunks.
    pub fn begin(&self, directory: Ino) -> bool {
        let spent = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| credit.checked_sub(1));
        if spent.is_err() {
            self.bare.store(directory.0, Ordering::Relaxed);
        }
        spent.is_ok()
    }

    /// Records that a file in `directory` was looked up.
    pub fn looked_up(&self, directory: Ino) {
        if self.bare.load(Ordering::Relaxed) == directory.0 {
            self.credit.store(CREDIT, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_included_after_a_lookup_until_they_are_unused() {
        let hint = ListingHint::default();
        assert!(!hint.begin(Ino(1)));
        assert!(!hint.begin(Ino(2)), "nobody looked");
        hint.looked_up(Ino(7));
        assert!(!hint.begin(Ino(3)), "another directory was looked at");
        hint.looked_up(Ino(3));
        assert!((0..CREDIT).all(|n| hint.begin(Ino(u64::from(n)))));
        assert!(!hint.begin(Ino(4)), "and now it is asked anew");
    }
}
