//! The root of a mount: which directory of the tree it is, and whether it has a name of its own
//! there.
//!
//! The kernel calls the root of every mount 1, as does the tree. With `--root`, a writable mount
//! shows one group only: the group's directory has its number in the tree, and is 1 for the kernel.
//! (A read-only mount needs no map for that: its tree has the group as root, see
//! [`icechunkfs_tree::tree::nodes::NodeTable::build_below`].) With `--subdir`, the root is a
//! directory that is not in the tree and has one entry, and the tree's root has a number of its
//! own. All other numbers are the same on both sides. Requests are translated when they come in,
//! numbers in replies and invalidations when they go out; nothing below the adapters knows of it.
//!
//! Programs that make a store anew remove its directory first: so the one entry can be removed when
//! the tree is empty, and made again. That is remembered by this process alone, as an empty tree
//! has no files to store it with.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use fuser::INodeNo;

use icechunkfs_tree::inodes::{self, Ino};

/// Number of the tree's root for the kernel if it is an entry of the mount's root.
const ENTRY: INodeNo = INodeNo(inodes::ROOT_ENTRY.0);

/// Number of a root that is not in the tree, on the tree's side.
pub(super) const TOP: Ino = inodes::ABOVE_ROOT;

/// Map between the numbers of the kernel and those of the tree.
#[derive(Debug)]
pub struct RootMap {
    /// Number of the shown directory in the tree.
    root: Ino,
    entry: Option<Entry>,
}

/// The one entry of the mount's root.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Time of the mount's root.
    pub(super) time: SystemTime,
    is_removed: AtomicBool,
}

impl Default for RootMap {
    fn default() -> Self {
        RootMap::new(Ino::ROOT, None)
    }
}

impl RootMap {
    /// Creates the map of a mount that shows directory `root` of the tree, as entry `name` if there
    /// is one.
    pub fn new(root: Ino, name: Option<&str>) -> Self {
        let entry =
            |name: &str| Entry { name: name.to_owned(), time: SystemTime::now(), is_removed: AtomicBool::new(false) };
        RootMap { root, entry: name.map(entry) }
    }

    /// Returns the inode of the tree that the kernel calls `number`; none for the directory with
    /// the one entry.
    pub(super) fn inner(&self, number: INodeNo) -> Option<Ino> {
        match (number, &self.entry) {
            (INodeNo::ROOT, Some(_)) => None,
            (ENTRY, Some(_)) | (INodeNo::ROOT, None) => Some(self.root),
            (INodeNo(number), _) => Some(Ino(number)),
        }
    }

    /// Returns the kernel's number of inode `number` of the tree.
    pub(super) fn outer(&self, number: Ino) -> INodeNo {
        match (&self.entry, number == self.root) {
            (None, true) => INodeNo::ROOT,
            (Some(_), true) => ENTRY,
            // The directory above the shown one, which only listings name.
            (_, false) if number == Ino::ROOT || number == TOP => INodeNo::ROOT,
            (_, false) => INodeNo(number.0),
        }
    }

    /// Returns the number of the shown directory in the tree.
    pub(super) fn inner_root(&self) -> Ino {
        self.root
    }

    /// Returns the entry of the mount's root; none if the root is that of the tree.
    pub(super) fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }
}

impl Entry {
    pub(super) fn is_shown(&self) -> bool {
        !self.is_removed.load(Ordering::Acquire)
    }

    pub(super) fn set_shown(&self, is_shown: bool) {
        self.is_removed.store(!is_shown, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back() {
        for (root, name) in [(1, None), (7, None), (1, Some("x")), (7, Some("x"))] {
            let root = Ino(root);
            let map = RootMap::new(root, name);
            for number in [Ino(2), Ino(5), Ino(1 << 61), Ino((1 << 62) + 3), root] {
                assert_eq!(map.inner(map.outer(number)), Some(number), "{root} {name:?}");
            }
            assert_eq!(map.inner(INodeNo::ROOT), name.is_none().then_some(root));
        }
    }
}
