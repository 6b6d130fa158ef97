//! The parts of a mount that answer requests.
//!
//! The kernel names all files of a mount by numbers of one range, which the parts share.
//! [`Face::of`] alone decides which part answers, and is asked before a request is passed on: the
//! adapters see faces, and no numbers of the kernel.

use fuser::INodeNo;

use super::root_map::{RootMap, TOP};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_views::attached::is_attached;
use icechunkfs_views::control_directory;

/// Inode by what answers requests about it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Face {
    /// Control directory of a writable mount, or one of its files. That of a read-only mount is
    /// attached.
    Control(ControlIno),
    /// Attached tree or a directory above one, which is read-only.
    Attached(AttachedIno),
    /// Root of a mount that shows the tree as an entry of it.
    Top,
    /// Working tree, or the view that a read-only mount shows.
    Tree(Ino),
}

/// Number of the control directory or of one of its files.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlIno(Ino);

/// Number in an attached tree or above one.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachedIno(Ino);

impl Face {
    /// Returns what answers requests on the inode that the kernel calls `inode`.
    pub(super) fn of(inode: INodeNo, root: &RootMap) -> Self {
        match Ino(inode.0) {
            number if is_attached(number) => Face::Attached(AttachedIno(number)),
            number if control_directory::is_control(number) => Face::Control(ControlIno(number)),
            _ => root.inner(inode).map_or(Face::Top, Face::Tree),
        }
    }

    /// Returns true for the root of the mount, which has the control directory.
    pub(super) fn is_root(self, root: &RootMap) -> bool {
        match self {
            Face::Top => true,
            Face::Tree(number) => root.outer(number) == INodeNo::ROOT,
            Face::Control(_) | Face::Attached(_) => false,
        }
    }

    /// Returns a number that tells directories apart.
    pub(super) fn key(self) -> Ino {
        match self {
            Face::Control(ControlIno(number)) | Face::Attached(AttachedIno(number)) | Face::Tree(number) => number,
            Face::Top => TOP,
        }
    }
}

impl ControlIno {
    pub(super) fn number(self) -> Ino {
        self.0
    }
}

impl AttachedIno {
    pub(super) fn number(self) -> Ino {
        self.0
    }
}
