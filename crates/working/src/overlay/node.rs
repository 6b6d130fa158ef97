//! Inodes of the working tree: numbers, kinds, and the entries of directories.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use crate::scratch::record::{Body, DataFileId, EntryId, Meta, Name, Source};
use icechunkfs_format::format::ids::NodeId;
pub use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::inodes::MADE;
use icechunkfs_tree::tree::nodes::TreePlace;

/// Position in listings of an entry that is listed in the place of the base's entry that it shows,
/// behind all others: see [`super::listing`].
pub(super) const IN_PLACE: u64 = u64::MAX;

impl EntryId {
    /// Returns the number of the inode, if it was never in the base.
    pub(super) fn ino(self) -> Ino {
        MADE.at(self.0)
    }

    /// Returns the inode with `number`, if it was never in the base.
    pub(super) fn of_ino(number: Ino) -> Option<Self> {
        MADE.position(number).map(EntryId)
    }
}

/// Node that a directory was restored from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredNode {
    /// Id that it had.
    pub id: NodeId,
    /// True for an array.
    pub is_array: bool,
}

/// Inode that differs, or may differ, from the base.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Number by which the kernel knows it.
    pub number: Ino,
    /// Place of the base that it shows.
    pub lower: Option<TreePlace>,
    /// Number of that place in the base.
    pub(super) lower_number: Option<Ino>,
    /// Attributes.
    pub meta: Meta,
    /// Kind and content.
    pub body: Body,
    /// Entries of a directory that are not the base's.
    pub(super) entries: Option<Box<Directory>>,
    /// Names: one for a directory, none for the root.
    pub names: SmallVec<[(EntryId, Name); 1]>,
    /// Lookup count of the kernel.
    pub lookup_count: u64,
}

/// Entries of a directory.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    entries: HashMap<Name, Entry>,
    /// Names in order of creation, which is the order of listings.
    order: BTreeMap<u64, Name>,
    /// Number of visible entries that are directories.
    directories: u32,
}

/// Entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position in listings.
    pub order: u64,
    /// Inode; `None` for a whiteout.
    pub id: Option<EntryId>,
    is_directory: bool,
    /// True if an operation of this mount removed or replaced the base's entry of that name. Only
    /// then may the entry hide one of the base: an entry of the base that merely has the same name
    /// was never deleted here.
    pub covers: bool,
}

impl Entry {
    /// Returns a whiteout: the base's entry of the name does not show.
    pub(super) fn whiteout() -> Self {
        Entry { order: 0, id: None, is_directory: false, covers: true }
    }
}

impl Directory {
    /// Returns the entry of `name`; `None` if the base decides about it.
    pub fn get(&self, name: &Name) -> Option<Entry> {
        self.entries.get(name).copied()
    }

    /// Returns all entries, whiteouts included, in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = (&Name, Entry)> {
        self.entries.iter().map(|(name, entry)| (name, *entry))
    }

    /// Returns visible entries from position `order` in listings on.
    pub fn from(&self, order: u64) -> impl Iterator<Item = (u64, &Name, EntryId)> {
        self.order.range(order..).filter_map(|(order, name)| Some((*order, name, self.entries.get(name)?.id?)))
    }

    /// Returns true if any entry is visible.
    pub fn has_visible_entries(&self) -> bool {
        self.entries.values().any(|entry| entry.id.is_some())
    }

    /// Returns true if there are no entries, whiteouts included.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of directories among the entries.
    pub fn directories(&self) -> u32 {
        self.directories
    }

    pub(super) fn set(&mut self, name: Name, id: Option<EntryId>, is_directory: bool, covers: bool, order: u64) {
        self.clear(&name);
        if id.is_some() && order != IN_PLACE {
            self.order.insert(order, name.clone());
        }
        self.directories += u32::from(is_directory);
        self.entries.insert(name, Entry { order, id, is_directory, covers });
    }

    /// Removes the entry of `name`, so that the base's shows.
    pub fn clear(&mut self, name: &Name) {
        if let Some(entry) = self.entries.remove(name) {
            self.order.remove(&entry.order);
            self.directories -= u32::from(entry.is_directory);
        }
    }
}

impl Inode {
    /// Returns true for a directory.
    pub fn is_directory(&self) -> bool {
        self.body == Body::Directory
    }

    /// Returns the entries of a directory.
    pub fn directory(&self) -> Option<&Directory> {
        self.entries.as_deref()
    }

    /// Returns the location of a regular file's bytes.
    pub fn source(&self) -> Option<&Source> {
        match &self.body {
            Body::File(source) => Some(source),
            _ => None,
        }
    }

    /// Removes one of the names.
    pub(super) fn drop_name(&mut self, parent: EntryId, name: &Name) {
        self.names.retain(|(p, n)| !(*p == parent && n == name));
    }

    /// Returns the data file with the file's bytes, if they are in one.
    pub fn data_file(&self) -> Option<DataFileId> {
        match self.source() {
            Some(Source::Data(data)) => Some(*data),
            _ => None,
        }
    }
}
