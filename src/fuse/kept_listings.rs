//! Directories of a writable mount whose listings the kernel may keep.
//!
//! The kernel drops a kept listing when a request changes the directory, since that goes through
//! it. Other changes (a refresh, a discard, a commit over those of others) replace the tree as a
//! whole: from then on, the first listing of each directory is not a kept one.

use std::collections::HashSet;

use fuser::FopenFlags;
use parking_lot::Mutex;

use icechunkfs_tree::inodes::Ino;
use icechunkfs_working::overlay::kernel_view::Moment;

/// Directories that are remembered at most: some 16 bytes each.
const MOST: usize = 1 << 20;

/// Directories that were listed since the tree was replaced.
#[derive(Debug, Default)]
pub(super) struct KeptListings {
    listed: Mutex<Listed>,
}

#[derive(Debug, Default)]
struct Listed {
    /// Moment of the listings.
    moment: Moment,
    directories: HashSet<Ino>,
}

impl KeptListings {
    /// Returns the flags for a listing of `directory`, which begins at `moment`.
    pub(super) fn open(&self, directory: Ino, moment: Moment) -> FopenFlags {
        let mut listed = self.listed.lock();
        if listed.moment != moment || listed.directories.len() >= MOST {
            *listed = Listed { moment, directories: HashSet::new() };
        }
        // Without the second flag, the kernel drops what it has, and keeps what it gets now.
        let kept =
            if listed.directories.insert(directory) { FopenFlags::empty() } else { FopenFlags::FOPEN_KEEP_CACHE };
        FopenFlags::FOPEN_CACHE_DIR | kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_kept_until_the_tree_is_replaced() {
        let listings = KeptListings::default();
        let new = FopenFlags::FOPEN_CACHE_DIR;
        let kept = new | FopenFlags::FOPEN_KEEP_CACHE;
        let before = Moment::default();
        let after = Moment::after_moves(1);
        assert_eq!([1, 1, 2].map(Ino).map(|directory| listings.open(directory, before)), [new, kept, new]);
        assert_eq!([1, 2, 1].map(Ino).map(|directory| listings.open(directory, after)), [new, new, kept]);
    }
}
