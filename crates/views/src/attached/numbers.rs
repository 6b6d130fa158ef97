//! Inode numbers of attached trees.
//!
//! A number is made of the number of its tree and the file's number in that tree, so that it needs
//! no table and means the same as long as the mount lives, whether the tree is loaded or not. The
//! highest bit tells attached trees from everything else in the mount:
//!
//! | bits | meaning |
//! |---|---|
//! | 63 | 1 |
//! | 43 to 62 | number of the tree; 0 for the directories above the trees |
//! | 0 to 42 | file in the tree: below 2^42 a native number, above it a document of a view, at the end reports and the like |

/// Smallest number.
pub(super) const FIRST: u64 = 1 << 63;
/// Bits of a file within its tree.
const FILE_BITS: u32 = 43;
/// Number of trees of a mount, entered in all its life.
pub(super) const MAX_TREES: u32 = 1 << (63 - FILE_BITS);
/// First number of documents in a view.
const VIEW_DOCUMENTS: u64 = 1 << 62;
/// First number of documents here: half of the numbers are theirs.
const DOCUMENTS: u64 = 1 << (FILE_BITS - 1);
/// Numbers at the end of both ranges that correspond one by one, such as reports of views.
const LAST: u64 = 1 << 4;
/// Ends of the two ranges.
const VIEW_END: u64 = 1 << 63;
const END: u64 = 1 << FILE_BITS;

/// Returns the number of file `inode` of tree `tree`; none if the tree has more files than can be
/// numbered here.
pub(super) fn pack(tree: u32, inode: u64) -> Option<u64> {
    let file = if inode < DOCUMENTS {
        inode
    } else if (VIEW_END - LAST..VIEW_END).contains(&inode) {
        END - (VIEW_END - inode)
    } else {
        let document = inode.checked_sub(VIEW_DOCUMENTS).filter(|n| *n < DOCUMENTS - LAST)?;
        DOCUMENTS + document
    };
    (tree < MAX_TREES).then(|| FIRST | u64::from(tree) << FILE_BITS | file)
}

/// Returns the tree of a number, and the number of the file in it.
pub(super) fn unpack(number: u64) -> (u32, u64) {
    let tree = (number & !FIRST) >> FILE_BITS;
    let file = number & (END - 1);
    let inode = match file {
        _ if file < DOCUMENTS => file,
        _ if file >= END - LAST => VIEW_END - (END - file),
        _ => VIEW_DOCUMENTS + (file - DOCUMENTS),
    };
    (tree as u32, inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_tell_their_files() {
        let inodes = [1, 2, DOCUMENTS - 1, 1 << 62, (1 << 62) + (1 << 34), (1 << 63) - 16, (1 << 63) - 1];
        let mut seen = std::collections::HashSet::new();
        for tree in [0, 1, MAX_TREES - 1] {
            for inode in inodes {
                let number = pack(tree, inode);
                assert!(number.is_some_and(|number| number >= FIRST && seen.insert(number)));
                assert_eq!(number.map(unpack), Some((tree, inode)));
            }
        }
        for inode in [DOCUMENTS, 1 << 61, (1 << 62) + DOCUMENTS, 1 << 63] {
            assert_eq!(pack(1, inode), None);
        }
        assert_eq!(pack(MAX_TREES, 1), None);
    }
}
