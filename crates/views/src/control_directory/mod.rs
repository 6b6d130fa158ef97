//! `.icechunk`, the control directory that every mount has: names, inode numbers and the order of
//! its entries, for mounts of every kind.
//!
//! [`files`] has the table of its files, and [`state`] renders those that every mount has. The
//! others are a writable mount's. Beside the files are the directories of attached trees
//! ([`crate::attached`]) and, in a read-only mount, the report of its view
//! ([`crate::views::report`]).
//!
//! A writable mount has the directory at numbers of its own. In a read-only mount it is one of the
//! directories above attached trees, which have the numbers of a tree 0.

pub mod files;
pub mod state;

use self::files::ControlFile;
use crate::attached;
use icechunkfs_tree::inodes::{self, Ino};

/// Name of the directory, in the root of a mount.
pub const NAME: &str = ".icechunk";
/// Name of the directory of snapshots.
pub const AT_NAME: &str = "at";
/// Name of the directory of views.
pub const VIEWS_NAME: &str = "view";

/// Inode number of the directory in a writable mount; its files follow.
pub const DIRECTORY: Ino = inodes::CONTROL.at(0);

/// Directories of attached trees, in the order of listings.
const DIRECTORIES: [ControlEntry; 2] = [
    ControlEntry { name: AT_NAME, number: attached::AT, file: None },
    ControlEntry { name: VIEWS_NAME, number: attached::VIEWS, file: None },
];

/// Kind of mount, as far as its control directory depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountKind {
    /// Shows snapshots.
    ReadOnly,
    /// Has uncommitted changes.
    Writable,
}

impl MountKind {
    /// Returns the number of the directory.
    pub fn directory(self) -> Ino {
        match self {
            MountKind::ReadOnly => attached::CONTROL,
            MountKind::Writable => DIRECTORY,
        }
    }
}

/// Entry of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlEntry {
    /// Name.
    pub name: &'static str,
    /// Inode number.
    pub number: Ino,
    /// The file; none for a directory of attached trees.
    pub file: Option<ControlFile>,
}

impl ControlEntry {
    fn file(file: ControlFile, kind: MountKind) -> Option<Self> {
        Some(ControlEntry { name: file.name(), number: file.number(kind)?, file: Some(file) })
    }
}

/// Returns the entries in the order of listings.
pub fn entries(kind: MountKind) -> Vec<ControlEntry> {
    let mut entries = Vec::from(DIRECTORIES);
    entries.extend(ControlFile::listed(kind).filter_map(|file| ControlEntry::file(file, kind)));
    if kind == MountKind::Writable {
        entries.rotate_left(DIRECTORIES.len());
    }
    entries
}

/// Returns the entry called `name`, listed or not.
pub fn entry(kind: MountKind, name: &str) -> Option<ControlEntry> {
    let directory = DIRECTORIES.into_iter().find(|directory| directory.name == name);
    directory.or_else(|| ControlEntry::file(ControlFile::named(name)?, kind))
}

/// Returns true if `number` is the directory of a writable mount or a file in it.
pub fn is_control(number: Ino) -> bool {
    inodes::CONTROL.contains(number)
}

/// Returns the part of the directory that `number` belongs to, by its name, if that is no tree: a
/// file, or a directory above attached trees. The directory itself has its own name.
pub fn part_of(number: Ino) -> Option<&'static str> {
    if is_control(number) {
        Some(ControlFile::at(number).map_or(NAME, ControlFile::name))
    } else {
        attached::part_of(number)
    }
}
