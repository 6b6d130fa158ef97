//! Requests to the kernel to drop what it has cached.

use super::node::Ino;
use crate::scratch::record::Name;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::TreePlace;

/// Request to the kernel to drop cached data that changed without its knowledge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Invalidation {
    /// Dentry of a name in a directory.
    Entry(Ino, Name),
    /// Pages and attributes of an inode.
    Inode(Ino),
    /// Attributes of an inode; its pages stay.
    Attributes(Ino),
}

impl Invalidation {
    /// Returns the invalidation of the name of `place` in `tree`; none for the root.
    pub fn entry(tree: &Tree, place: &TreePlace) -> Option<Self> {
        let (above, name) = tree.parent_of(place)?;
        Some(Invalidation::Entry(tree.table().inode(&above), Name::new(name.as_bytes())))
    }
}
