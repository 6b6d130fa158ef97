//! The parts of a mount that answer requests.
//!
//! The kernel names all files of a mount by numbers of one range, which the parts share.
//! [`Face::of`] alone decides which part answers, and is asked before a request is passed on: the
//! adapters see faces, and no numbers of the kernel.

use fuser::INodeNo;

use super::root_map::{RootMap, TOP};
use icechunkfs_tree::tree::ROOT;
use icechunkfs_views::attached::is_attached;
use icechunkfs_views::control_directory;
use icechunkfs_working::overlay::Ino;

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
pub(super) struct ControlIno(u64);

/// Number in an attached tree or above one.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachedIno(u64);

impl Face {
    /// Returns what answers requests on the inode that the kernel calls `inode`.
    pub(super) fn of(inode: INodeNo, root: &RootMap) -> Self {
        match inode.0 {
            number if is_attached(number) => Face::Attached(AttachedIno(number)),
            number if control_directory::is_control(number) => Face::Control(ControlIno(number)),
            number => root.inner(number).map_or(Face::Top, Face::Tree),
        }
    }

    /// Returns true for the root of the mount, which has the control directory.
    pub(super) fn is_root(self, root: &RootMap) -> bool {
        match self {
            Face::Top => true,
            Face::Tree(number) => root.outer(number.0) == ROOT,
            Face::Control(_) | Face::Attached(_) => false,
        }
    }

    /// Returns a number that tells directories apart.
    pub(super) fn key(self) -> u64 {
        match self {
            Face::Control(ControlIno(number)) | Face::Attached(AttachedIno(number)) | Face::Tree(Ino(number)) => number,
            Face::Top => TOP,
        }
    }
}

impl ControlIno {
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

impl AttachedIno {
    pub(super) fn number(self) -> u64 {
        self.0
    }
}
