//! Reserves space for operations that free space.
//!
//! On a full disk a deletion, a discard or a commit needs some bytes before it frees any: lines of
//! the journal, or a whole new one. The file [`NAME`] holds that space until then. Four rules make
//! it last:
//!
//! - The size follows the journal: removing everything again takes fewer lines than creating it.
//! - Growth takes a part of the free space, never all ([`GREEDIEST`]): a program that writes at the
//!   same time must not find the disk full.
//! - While a whole journal is written in the space that was reserved, nothing is reserved again
//!   ([`Reserve::lend`]): the journal may need most of it.
//! - Lines of the journal use it [`STEP`] by [`STEP`]: on a full disk, other programs take free
//!   space at once.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FallocateFlags, OFlags};

use super::requirements::open_file;

/// Name of the file in the scratch directory.
pub(super) const NAME: &str = "spare";
/// Smallest size and unit of growth, in bytes: a thousand lines of a journal.
const STEP: u64 = 256 << 10;
/// Fraction of the free bytes that one growth may take: one in this many.
const GREEDIEST: u64 = 4;
/// Factor by which the file may exceed its wanted size.
const TIMES_LARGER: u64 = 4;
/// Smallest growth worth the system calls, in bytes.
const WORTH_GROWING: u64 = 64 << 10;

/// Reserved space of one scratch directory.
pub(super) struct Reserve {
    directory: Arc<OwnedFd>,
    kept: Mutex<Kept>,
}

struct Kept {
    size: u64,
    /// Length of the journal, in bytes, at the last change of size.
    followed: u64,
    /// True while a new journal is being written in the space.
    is_lent: bool,
}

/// Space that was freed for a new journal. It is reserved again, by the next change of size, once
/// this is dropped.
pub(super) struct Loan<'a>(&'a Reserve);

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.0.kept.lock().is_lent = false;
    }
}

impl Reserve {
    /// Finds the reserved space in `directory` that an earlier daemon left.
    pub(super) fn new(directory: &Arc<OwnedFd>) -> Self {
        let found = rustix::fs::statat(&**directory, NAME, AtFlags::SYMLINK_NOFOLLOW);
        // A file with holes reserves no space.
        let size = found.map_or(0, |stat| stat.st_size.min(stat.st_blocks.saturating_mul(512)).unsigned_abs());
        Reserve { directory: Arc::clone(directory), kept: Mutex::new(Kept { size, followed: 0, is_lent: false }) }
    }

    /// Adjusts the size to a journal of `length` bytes, if the journal has grown by much since the
    /// last time.
    pub(super) fn follow(&self, length: u64) {
        if self.kept.lock().followed.saturating_add(STEP / 2) < length {
            self.resize(length);
        }
    }

    /// Adjusts the size to a journal of `length` bytes: as much as a new journal takes and a
    /// quarter more.
    pub(super) fn resize(&self, length: u64) {
        let mut kept = self.kept.lock();
        if kept.is_lent {
            return;
        }
        kept.followed = length;
        let wanted = (STEP + length + length / 4).next_multiple_of(STEP);
        let grows = wanted > kept.size;
        let size = if grows { wanted.min(kept.size.saturating_add(self.free() / GREEDIEST)) } else { wanted };
        let is_near = if grows { size - kept.size < WORTH_GROWING } else { kept.size / TIMES_LARGER <= wanted };
        if is_near {
            return;
        }
        let opened = open_file(&*self.directory, NAME, OFlags::WRONLY | OFlags::CREATE);
        // The reserve is optional: a file system may not support it, a quota may be used up.
        let Ok(file) = opened else { return };
        // The length grows with the space, so that it never shows more than there is.
        let resized = if grows {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size)
        } else {
            rustix::fs::ftruncate(&file, size)
        };
        if resized.is_ok() {
            kept.size = size;
        } else if kept.size == 0 {
            let _ = rustix::fs::unlinkat(&*self.directory, NAME, AtFlags::empty());
        } else {
            // The old size is better than nothing.
            let _ = rustix::fs::ftruncate(&file, kept.size);
        }
    }

    /// Frees one step of the space. Returns false if nothing was left.
    pub(super) fn release_step(&self) -> bool {
        let mut kept = self.kept.lock();
        let left = kept.size.saturating_sub(STEP);
        if left == 0 {
            return self.give(&mut kept);
        }
        let shorter =
            open_file(&*self.directory, NAME, OFlags::WRONLY).and_then(|file| rustix::fs::ftruncate(&file, left));
        if shorter.is_err() {
            return self.give(&mut kept);
        }
        kept.size = left;
        true
    }

    /// Frees all of the space for a new journal. Returns `None` if there was none.
    pub(super) fn lend(&self) -> Option<Loan<'_>> {
        let mut kept = self.kept.lock();
        kept.is_lent = self.give(&mut kept);
        // Made only if there is one: its end takes the lock.
        kept.is_lent.then(|| Loan(self))
    }

    fn give(&self, kept: &mut Kept) -> bool {
        kept.size = 0;
        rustix::fs::unlinkat(&*self.directory, NAME, AtFlags::empty()).is_ok()
    }

    /// Returns true if a file of `length` bytes fits and leaves half of the free space to other
    /// programs.
    pub(super) fn has_room_for(&self, length: u64) -> bool {
        length <= self.free() / 2
    }

    /// Returns the number of bytes that this process may still write to the disk.
    fn free(&self) -> u64 {
        let Ok(disk) = rustix::fs::fstatvfs(&*self.directory) else { return 0 };
        // The blocks that a file system reserves are for root.
        let blocks = if rustix::process::geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
        blocks.saturating_mul(disk.f_frsize)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn it_follows_the_journal_and_is_given_up_by_steps() {
        let place = tempfile::tempdir().unwrap();
        let open = || {
            Arc::new(
                rustix::fs::open(place.path(), OFlags::DIRECTORY | OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap(),
            )
        };
        let spare = Reserve::new(&open());
        let size = || std::fs::metadata(place.path().join(NAME)).map_or(0, |metadata| metadata.len());
        assert!(!spare.release_step() && spare.lend().is_none() && size() == 0);
        spare.resize(0);
        assert_eq!(size(), STEP);
        spare.follow(STEP / 2);
        assert_eq!(size(), STEP, "hardly longer");
        spare.follow(4 * STEP);
        assert_eq!(size(), 6 * STEP);
        spare.resize(2 * STEP);
        assert_eq!(size(), 6 * STEP, "not much too large");
        // A later daemon finds the space.
        let spare = Reserve::new(&open());
        for left in [5, 4, 3, 2, 1, 0] {
            assert!(spare.release_step());
            assert_eq!(size(), left * STEP);
        }
        assert!(!spare.release_step());
        spare.resize(100 * STEP);
        spare.resize(0);
        assert_eq!(size(), STEP);
        let loan = spare.lend();
        assert!(loan.is_some() && size() == 0);
        spare.resize(100 * STEP);
        assert_eq!(size(), 0);
        drop(loan);
        assert!(spare.lend().is_none());
        spare.resize(0);
        assert_ne!(size(), 0);
    }
}
