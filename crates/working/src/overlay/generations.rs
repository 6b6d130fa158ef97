//! Generations of inode numbers, for the kernel.
//!
//! Numbers of the base follow from the place of an entry, so that a directory that was removed, and
//! comes back by a discard, a restore or a refresh, has the number that it had. But the kernel
//! keeps the removed one as long as a program is in it, and shows it empty for good. With a new
//! generation, the number is that of another directory for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use super::Ino;

/// Times that the directory of each number was removed. Of the process, as the kernel's inodes are:
/// it has one mount.
static REMOVED: RwLock<Option<HashMap<Ino, u64>>> = RwLock::new(None);
/// True if any was: most mounts never look into the table.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// Records that the directory of `number` was removed.
pub(super) fn removed(number: Ino) {
    *REMOVED.write().get_or_insert_default().entry(number).or_default() += 1;
    IS_ANY.store(true, Ordering::Release);
}

/// Returns the generation of inode `number` in answers to the kernel.
pub fn generation_of(number: Ino) -> u64 {
    if !IS_ANY.load(Ordering::Acquire) {
        return 0;
    }
    REMOVED.read().as_ref().and_then(|removed| removed.get(&number).copied()).unwrap_or(0)
}
