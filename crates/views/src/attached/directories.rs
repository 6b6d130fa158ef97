//! The directories above attached trees.

use super::refs::NameKind;
use crate::control_directory::{self, AT_NAME, VIEWS_NAME};
use icechunkfs_tree::inodes::{ATTACHED, Ino, TREE};

/// Number of the control directory of a read-only mount.
pub const CONTROL: Ino = ATTACHED.at(1);
/// Number of `.icechunk/at`.
pub const AT: Ino = ATTACHED.at(2);
/// Number of `.icechunk/view`.
pub const VIEWS: Ino = ATTACHED.at(3);

/// Directory above attached trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Directory {
    /// `.icechunk` of a read-only mount.
    Control,
    /// `.icechunk/at`.
    At,
    /// `.icechunk/view`.
    Views,
    /// `.icechunk/at/KIND`.
    Names(NameKind),
}

/// Directories in the order of their numbers, from 1 on.
const ALL: [Directory; 7] = [
    Directory::Control,
    Directory::At,
    Directory::Views,
    Directory::Names(NameKind::Branch),
    Directory::Names(NameKind::Tag),
    Directory::Names(NameKind::Snapshot),
    Directory::Names(NameKind::Time),
];

impl Directory {
    /// Returns the directory with a number in tree 0.
    pub(super) fn at(inode: Ino) -> Option<Self> {
        ALL.get(usize::try_from(TREE.position(inode)?).ok()?).copied()
    }

    /// Returns the number.
    pub(super) fn number(self) -> Ino {
        let place = ALL.iter().position(|other| *other == self).unwrap_or_default();
        ATTACHED.at(place as u64 + 1)
    }

    /// Returns the directory in `.icechunk` that has it, or is it.
    pub(super) fn part(self) -> Directory {
        match self {
            Directory::Names(_) => Directory::At,
            own => own,
        }
    }

    /// Returns the directories in this one; those of the control directory are in its own table.
    pub(super) fn children(self) -> &'static [Directory] {
        match self {
            Directory::At => ALL.get(3..).unwrap_or_default(),
            Directory::Control | Directory::Views | Directory::Names(_) => &[],
        }
    }

    /// Returns the directory `name` in `parent`.
    pub(super) fn named(parent: Directory, name: &str) -> Option<Self> {
        parent.children().iter().find(|child| child.name() == name).copied()
    }

    /// Returns the name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Directory::Control => control_directory::NAME,
            Directory::At => AT_NAME,
            Directory::Views => VIEWS_NAME,
            Directory::Names(kind) => kind.directory(),
        }
    }

    /// Returns the path.
    pub(super) fn path(self) -> String {
        match self {
            Directory::Control => format!("/{}", self.name()),
            Directory::At | Directory::Views => format!("/{}/{}", control_directory::NAME, self.name()),
            Directory::Names(_) => format!("/{}/{AT_NAME}/{}", control_directory::NAME, self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use icechunkfs_tree::inodes::detach;

    #[test]
    fn numbers_belong_to_directories() {
        for directory in ALL {
            assert_eq!(Directory::at(detach(directory.number()).1), Some(directory));
        }
        assert_eq!([CONTROL, AT, VIEWS], [ALL[0], ALL[1], ALL[2]].map(Directory::number));
        assert_eq!(Directory::at(Ino(0)), None);
    }
}
