//! Backing files, which the kernel reads by passthrough.
//!
//! With `FUSE_PASSTHROUGH`, an open file is backed by another open file, and its reads do not reach
//! the daemon. All concurrent opens of one inode must share one backing file, and a backing must
//! live until the last of them is released; so opens are counted per inode.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use icechunkfs_tree::inodes::Ino;

/// Backings in use, by inode. A value of type `B` keeps one registered with the kernel.
#[derive(Debug)]
pub struct Backings<B> {
    open: Mutex<HashMap<Ino, Shared<B>>>,
}

#[derive(Debug)]
struct Shared<B> {
    backing: Arc<B>,
    opens: u64,
}

impl<B> Default for Backings<B> {
    fn default() -> Self {
        Backings { open: Mutex::default() }
    }
}

impl<B> Backings<B> {
    /// Returns the backing of `inode` for one more open, if there is one already.
    pub fn acquire(&self, inode: Ino) -> Option<Arc<B>> {
        let mut open = self.open.lock();
        let shared = open.get_mut(&inode)?;
        shared.opens += 1;
        Some(Arc::clone(&shared.backing))
    }

    /// Counts one more open of `inode`, backed by `backing` unless a concurrent open has inserted
    /// another one.
    pub fn insert(&self, inode: Ino, backing: B) -> Arc<B> {
        let mut open = self.open.lock();
        let shared = open.entry(inode).or_insert_with(|| Shared { backing: Arc::new(backing), opens: 0 });
        shared.opens += 1;
        Arc::clone(&shared.backing)
    }

    /// Counts one open less. Drops the backing with the last one.
    pub fn release(&self, inode: Ino) {
        let mut open = self.open.lock();
        if let Some(shared) = open.get_mut(&inode) {
            shared.opens -= 1;
            if shared.opens == 0 {
                let gone = open.remove(&inode);
                // Dropping the backing notifies the kernel.
                drop(open);
                drop(gone);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    #[test]
    fn a_backing_lives_as_long_as_it_is_open() {
        let backings = Backings::default();
        assert!(backings.acquire(FILE).is_none());
        assert_eq!(*backings.insert(FILE, "first"), "first");
        assert_eq!(*backings.insert(FILE, "second"), "first", "one inode has one backing");
        assert_eq!(backings.acquire(FILE).as_deref(), Some(&"first"));
        for left in [1, 1, 0] {
            backings.release(FILE);
            assert_eq!(backings.open.lock().len(), left);
        }
        backings.release(FILE);
    }
}
