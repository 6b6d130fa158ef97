//! Map of the inode numbers of a mount: all ranges, in their order.
//!
//! | from | inodes |
//! |---|---|
//! | 1 | [`TREE`]: the snapshot's; the root is 1, [`crate::tree::numbering`] gives the others |
//! | 2^61 | [`REPLACED`]: files of a read-only mount that are other inodes since it moved |
//! | 2^62 - 65 | [`ROOT_ENTRY`]: the tree's root, where it is an entry of the mount's root |
//! | 2^62 - 64 | [`CONTROL`]: `.icechunk` of a writable mount, then its control files |
//! | 2^62 | [`MADE`]: files that programs made in a writable mount; or [`VIEW`]: documents of a view |
//! | 2^63 - 16 | [`SPECIAL`]: reports of views, and the like |
//! | 2^63 | [`ATTACHED`]: attached trees, and the directories above them |
//!
//! A number of an attached tree is made of the number of its tree and the file's number in that
//! tree, so that it needs no table and means the same as long as the mount lives, whether the tree
//! is loaded or not:
//!
//! | bits | meaning |
//! |---|---|
//! | 63 | 1 |
//! | 43 to 62 | number of the tree; 0 for the directories above the trees |
//! | 0 to 42 | file in the tree: below 2^42 of [`TREE`], above it of [`VIEW`], the last 16 [`SPECIAL`] |

use crate::tree::nodes::NodeIndex;

/// Inode number by which the kernel knows a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

/// Inode numbers in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InoRange {
    first: u64,
    last: u64,
}

/// Numbers of a snapshot's files.
pub const TREE: InoRange = InoRange::new(1, (1 << 61) - 1);
/// End of the numbers of chunks: they and directory offsets made from them must stay positive.
/// Nodes may have numbers above it.
pub const CHUNKS_END: u64 = 1 << 60;
/// Numbers of a node without chunks: its directory and its document.
pub const OF_NODE: u64 = 2;
/// Most places of an array with arithmetic numbers: 2^36, beyond what storage can hold, and small
/// enough that tens of such arrays leave room in the 42 bits that an attached tree has for them.
pub const MAX_ARITHMETIC: u64 = 1 << 36;
/// Numbers reserved for an array with a table. A table with as many entries would not fit into
/// memory. Thousands of such arrays have room in 42 bits.
pub const MAX_TABLE: u64 = 1 << 30;

/// Numbers of files that have become other inodes: see `icechunkfs_working::follow`.
pub const REPLACED: InoRange = InoRange::new(1 << 61, ROOT_ENTRY.0 - 1);
/// Number of the tree's root for the kernel if it is an entry of the mount's root.
pub const ROOT_ENTRY: Ino = Ino(CONTROL.first - 1);
/// Numbers of the control directory and the files in it.
pub const CONTROL: InoRange = InoRange::new(MADE.first - 64, MADE.first - 1);
/// Numbers of inodes that were never in the base of a writable mount.
pub const MADE: InoRange = InoRange::new(1 << 62, SPECIAL.first - 1);

/// Numbers of documents and files that a view makes, for each node a few.
pub const VIEW: InoRange = MADE;
/// Most numbers of a node in a view.
pub const OF_NODE_IN_VIEW: u64 = 4;
/// Numbers that each tree has, and each attached tree at its end.
pub const SPECIAL: InoRange = InoRange::new(ATTACHED.first - 16, ATTACHED.first - 1);
/// Number of a view's report.
pub const REPORT: Ino = Ino(SPECIAL.last);
/// Number of the directory of the report.
pub const REPORT_DIRECTORY: Ino = Ino(SPECIAL.last - 1);
/// Number of the directory `.icechunk/view` of an attached tree.
pub const TREE_VIEWS: Ino = Ino(SPECIAL.last - 2);
/// Number of the file in a directory of views that explains it.
pub const README: Ino = Ino(SPECIAL.last - 3);
/// Numbers of the files about a read-only mount, the first of which is the last.
pub const MOUNT_FILES: InoRange = InoRange::new(SPECIAL.first, SPECIAL.last - 4);

/// Numbers of attached trees, and of the directories above them.
pub const ATTACHED: InoRange = InoRange::new(1 << 63, u64::MAX);
/// Bits of a file within its attached tree.
const FILE_BITS: u32 = 43;
/// Number of attached trees of a mount, entered in all its life.
pub const MAX_TREES: u32 = 1 << (63 - FILE_BITS);
/// Numbers of files within an attached tree, half of which are documents of its view.
const FILES: u64 = 1 << FILE_BITS;
const DOCUMENTS: u64 = FILES / 2;
/// Number that stands for the directory above the tree's root, which is not in the tree. Attached
/// trees have it, too, but are not in the tree either.
pub const ABOVE_ROOT: Ino = Ino(u64::MAX);

/// Most nodes of a snapshot.
const MAX_NODES: u64 = NodeIndex::MAX as u64 + 1;

const _: () = {
    let root_entry = InoRange::new(ROOT_ENTRY.0, ROOT_ENTRY.0);
    assert!(are_in_order(&[TREE, REPLACED, root_entry, CONTROL, MADE, SPECIAL, ATTACHED]));
    assert!(CHUNKS_END + MAX_NODES * OF_NODE <= TREE.last);
    assert!(MAX_NODES * OF_NODE_IN_VIEW <= VIEW.count());
    assert!(MAX_NODES * OF_NODE_IN_VIEW <= DOCUMENTS - SPECIAL.count());
    assert!(MAX_TABLE < MAX_ARITHMETIC && MAX_ARITHMETIC < DOCUMENTS);
    assert!(FILES * MAX_TREES as u64 == ATTACHED.count());
};

const fn are_in_order(mut ranges: &[InoRange]) -> bool {
    while let [range, rest @ ..] = ranges {
        if let [next, ..] = rest
            && range.last >= next.first
        {
            return false;
        }
        ranges = rest;
    }
    true
}

impl Ino {
    /// Number of the root directory, as FUSE requires it.
    pub const ROOT: Ino = Ino(TREE.first);

    /// Returns true if a snapshot gave the number, and not a working tree.
    pub const fn is_of_base(self) -> bool {
        self.0 < MADE.first
    }
}

impl std::fmt::Display for Ino {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

impl InoRange {
    const fn new(first: u64, last: u64) -> Self {
        assert!(first <= last);
        InoRange { first, last }
    }

    /// Returns how many numbers there are.
    pub const fn count(self) -> u64 {
        self.last - self.first + 1
    }

    /// Returns number `n`, counted from 0.
    pub const fn at(self, n: u64) -> Ino {
        Ino(self.first + n)
    }

    /// Returns number `n`, counted from the end.
    pub const fn from_end(self, n: u64) -> Ino {
        Ino(self.last - n)
    }

    /// Returns true if `number` is one of them.
    pub const fn contains(self, number: Ino) -> bool {
        self.first <= number.0 && number.0 <= self.last
    }

    /// Returns the position of `number`, counted from 0; none if it is not one of them.
    pub fn position(self, number: Ino) -> Option<u64> {
        self.contains(number).then(|| number.0 - self.first)
    }

    /// Returns the position of `number`, counted from the end; none if it is not one of them.
    pub fn position_from_end(self, number: Ino) -> Option<u64> {
        self.contains(number).then(|| self.last - number.0)
    }
}

/// Returns the number in the mount of file `number` of the attached tree `tree`; none if the tree
/// has more files than can be numbered there.
pub fn attach(tree: u32, number: Ino) -> Option<Ino> {
    let file = if number.0 < DOCUMENTS {
        number.0
    } else if let Some(n) = SPECIAL.position_from_end(number) {
        FILES - 1 - n
    } else {
        DOCUMENTS + VIEW.position(number).filter(|n| *n < DOCUMENTS - SPECIAL.count())?
    };
    (tree < MAX_TREES).then(|| ATTACHED.at(u64::from(tree) << FILE_BITS | file))
}

/// Returns the attached tree of a number in [`ATTACHED`], and the number of the file in it.
pub fn detach(number: Ino) -> (u32, Ino) {
    let within = number.0 & !ATTACHED.first;
    let file = within % FILES;
    let inner = match file {
        _ if file < DOCUMENTS => Ino(file),
        _ if file >= FILES - SPECIAL.count() => SPECIAL.from_end(FILES - 1 - file),
        _ => VIEW.at(file - DOCUMENTS),
    };
    ((within / FILES) as u32, inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_found() {
        assert!(are_in_order(&[]) && are_in_order(&[TREE]) && are_in_order(&[TREE, MADE]));
        assert!(!are_in_order(&[TREE, InoRange::new(TREE.last, TREE.last)]) && !are_in_order(&[MADE, TREE]));
    }

    #[test]
    fn positions_and_numbers_are_inverse() {
        for range in [TREE, CONTROL, SPECIAL, ATTACHED] {
            for n in [0, 1, range.count() - 1] {
                assert_eq!(range.position(range.at(n)), Some(n));
                assert_eq!(range.position_from_end(range.from_end(n)), Some(n));
            }
            assert_eq!(range.position(Ino(range.first - 1)), None);
        }
    }

    #[test]
    fn numbers_of_attached_trees_are_unique_and_tell_their_files() {
        let inodes = [1, 2, DOCUMENTS - 1, 1 << 62, (1 << 62) + (1 << 34), (1 << 63) - 16, (1 << 63) - 1];
        let mut seen = std::collections::HashSet::new();
        for tree in [0, 1, MAX_TREES - 1] {
            for inode in inodes.map(Ino) {
                let number = attach(tree, inode);
                assert!(number.is_some_and(|number| ATTACHED.contains(number) && seen.insert(number)));
                assert_eq!(number.map(detach), Some((tree, inode)));
            }
        }
        for inode in [DOCUMENTS, 1 << 61, (1 << 62) + DOCUMENTS, 1 << 63] {
            assert_eq!(attach(1, Ino(inode)), None);
        }
        assert_eq!(attach(MAX_TREES, Ino(1)), None);
    }

    /// Programs keep numbers, and mounts of other versions have the same.
    #[test]
    fn numbers_stay_as_they_are() {
        let firsts = [TREE, REPLACED, CONTROL, MADE, VIEW, SPECIAL, ATTACHED].map(|range| range.first);
        assert_eq!(firsts, [1, 1 << 61, (1 << 62) - 64, 1 << 62, 1 << 62, (1 << 63) - 16, 1 << 63]);
        let special = [REPORT, REPORT_DIRECTORY, TREE_VIEWS, README, MOUNT_FILES.from_end(0)];
        assert_eq!(special.map(|number| (1 << 63) - number.0), [1, 2, 3, 4, 5]);
        assert_eq!(ROOT_ENTRY.0, (1 << 62) - 65);
        assert_eq!(attach(3, REPORT).map(|number| number.0), Some((1 << 63) + (3 << 43) + (1 << 43) - 1));
    }
}
