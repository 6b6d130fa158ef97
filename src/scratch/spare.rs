//! Room that is kept for what gives room back.
//!
//! On a full disk a deletion, a discard or a commit needs some bytes before it frees any: lines of the journal, or a whole new one. The
//! file [`NAME`] takes up that room until then. Three rules make it last:
//!
//! - It follows the journal: what removes everything again takes less than what made it.
//! - It takes a part of what is free, never all ([`GREEDIEST`]): a program that writes at the same time must not find the disk full.
//! - Lines of the journal take it [`STEP`] by [`STEP`]: on a full disk others take at once what is free.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};

/// The file's name in the scratch directory.
pub(super) const NAME: &str = "spare";
/// Its least size, by which it also grows and shrinks. Bytes: a thousand lines of a journal.
const STEP: u64 = 256 << 10;
/// It grows by no more than one in so many of the bytes that are free.
const GREEDIEST: u64 = 4;
/// How many times larger than wanted it may be.
const TIMES_LARGER: u64 = 4;
/// Least growth that is worth the system calls. Bytes.
const WORTH_GROWING: u64 = 64 << 10;

/// The spare room of one scratch directory.
pub(super) struct Spare {
    directory: Arc<OwnedFd>,
    kept: Mutex<Kept>,
}

struct Kept {
    /// Bytes of the file.
    size: u64,
    /// Length of the journal, in bytes, when it was last made to follow it.
    followed: u64,
}

impl Spare {
    /// The spare room in `directory`, as an earlier daemon has left it.
    pub(super) fn new(directory: &Arc<OwnedFd>) -> Self {
        let found = rustix::fs::statat(&**directory, NAME, AtFlags::SYMLINK_NOFOLLOW);
        // A file with holes keeps no room.
        let size = found.map_or(0, |stat| stat.st_size.min(stat.st_blocks.saturating_mul(512)).unsigned_abs());
        Spare { directory: Arc::clone(directory), kept: Mutex::new(Kept { size, followed: 0 }) }
    }

    /// Makes it follow a journal that is `length` bytes long, if that has grown by much since.
    pub(super) fn follow(&self, length: u64) {
        if self.kept.lock().followed.saturating_add(STEP / 2) < length {
            self.keep(length);
        }
    }

    /// Makes it follow a journal that is `length` bytes long: as much as a new journal would take and a quarter more.
    pub(super) fn keep(&self, length: u64) {
        let mut kept = self.kept.lock();
        kept.followed = length;
        let wanted = (STEP + length + length / 4).next_multiple_of(STEP);
        let grows = wanted > kept.size;
        let size = if grows { wanted.min(kept.size.saturating_add(self.free() / GREEDIEST)) } else { wanted };
        let is_near = if grows { size - kept.size < WORTH_GROWING } else { kept.size / TIMES_LARGER <= wanted };
        if is_near {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // It need not be had: a file system may not know how, a quota may be used up.
        let Ok(file) = rustix::fs::openat(&*self.directory, NAME, flags, Mode::from_raw_mode(0o600)) else { return };
        let resized = rustix::fs::ftruncate(&file, size)
            .and_then(|()| if grows { rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) } else { Ok(()) });
        if resized.is_ok() {
            kept.size = size;
        } else if kept.size == 0 {
            let _ = rustix::fs::unlinkat(&*self.directory, NAME, AtFlags::empty());
        } else {
            // What there was is better than nothing.
            let _ = rustix::fs::ftruncate(&file, kept.size);
        }
    }

    /// Gives up a part of it. False if nothing is left.
    pub(super) fn give_step(&self) -> bool {
        let mut kept = self.kept.lock();
        let left = kept.size.saturating_sub(STEP);
        if left == 0 {
            return self.give(&mut kept);
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let shorter = rustix::fs::openat(&*self.directory, NAME, flags, Mode::empty())
            .and_then(|file| rustix::fs::ftruncate(&file, left));
        if shorter.is_err() {
            return self.give(&mut kept);
        }
        kept.size = left;
        true
    }

    /// Gives up all of it. False if there was nothing.
    pub(super) fn give_all(&self) -> bool {
        self.give(&mut self.kept.lock())
    }

    fn give(&self, kept: &mut Kept) -> bool {
        kept.size = 0;
        rustix::fs::unlinkat(&*self.directory, NAME, AtFlags::empty()).is_ok()
    }

    /// Whether a file of `length` bytes has room and leaves others half of what is free.
    pub(super) fn has_room_for(&self, length: u64) -> bool {
        length <= self.free() / 2
    }

    /// Bytes that this process may still write to the disk.
    fn free(&self) -> u64 {
        let Ok(disk) = rustix::fs::fstatvfs(&*self.directory) else { return 0 };
        // What a file system sets aside is for root.
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
        let open =
            || Arc::new(rustix::fs::open(place.path(), OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap());
        let spare = Spare::new(&open());
        let size = || std::fs::metadata(place.path().join(NAME)).map_or(0, |metadata| metadata.len());
        assert!(!spare.give_step() && !spare.give_all() && size() == 0);
        spare.keep(0);
        assert_eq!(size(), STEP);
        spare.follow(STEP / 2);
        assert_eq!(size(), STEP, "hardly longer");
        spare.follow(4 * STEP);
        assert_eq!(size(), 6 * STEP);
        spare.keep(2 * STEP);
        assert_eq!(size(), 6 * STEP, "not much too large");
        // As another daemon finds it.
        let spare = Spare::new(&open());
        for left in [5, 4, 3, 2, 1, 0] {
            assert!(spare.give_step());
            assert_eq!(size(), left * STEP);
        }
        assert!(!spare.give_step());
        spare.keep(100 * STEP);
        spare.keep(0);
        assert_eq!(size(), STEP);
        assert!(spare.give_all() && size() == 0 && !spare.give_all());
    }
}
