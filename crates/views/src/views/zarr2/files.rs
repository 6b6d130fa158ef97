//! Inode numbers and names of documents.

use icechunkfs_tree::inodes::{Ino, OF_NODE_IN_VIEW, VIEW};
use icechunkfs_tree::tree::nodes::NodeIndex;

/// First offset of documents in a directory: after all nodes, before all chunks.
const FIRST_OFFSET: u64 = 1 << 60;

/// Kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DocumentKind {
    /// `.zgroup`.
    Group,
    /// `.zarray`.
    Array,
    /// `.zattrs`.
    Attributes,
    /// `.zmetadata`: all documents of the hierarchy.
    Consolidated,
}

use DocumentKind::{Array, Attributes, Consolidated, Group};

/// Document of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DocumentFile {
    /// Node.
    pub(super) node: NodeIndex,
    /// Kind.
    pub(super) kind: DocumentKind,
}

/// All kinds, by their numbers.
const KINDS: [DocumentKind; OF_NODE_IN_VIEW as usize] = [Group, Array, Attributes, Consolidated];

impl DocumentKind {
    /// Returns the file name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Group => ".zgroup",
            Array => ".zarray",
            Attributes => ".zattrs",
            Consolidated => ".zmetadata",
        }
    }

    /// Returns the kind with a file name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        KINDS.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the offset in a directory from which the listing continues after the document.
    pub(super) fn offset(self) -> u64 {
        FIRST_OFFSET + self as u64
    }
}

impl DocumentFile {
    /// Returns the inode number.
    pub(super) fn inode(self) -> Ino {
        VIEW.at(u64::from(self.node) * OF_NODE_IN_VIEW + self.kind as u64)
    }

    /// Returns the document with an inode number.
    pub(super) fn from_inode(inode: Ino) -> Option<Self> {
        let position = VIEW.position(inode)?;
        let kind = *KINDS.get((position % OF_NODE_IN_VIEW) as usize)?;
        Some(DocumentFile { node: NodeIndex::try_from(position / OF_NODE_IN_VIEW).ok()?, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_documents_are_inverse() {
        for node in [0, 1, NodeIndex::MAX] {
            for kind in KINDS {
                let file = DocumentFile { node, kind };
                assert_eq!(DocumentFile::from_inode(file.inode()), Some(file));
                assert_eq!(DocumentKind::from_name(kind.name()), Some(kind));
            }
        }
        for other in [0, 1, 1 << 61, (1 << 62) - 1, VIEW.at(OF_NODE_IN_VIEW << 32).0, (1 << 63) - 1, u64::MAX] {
            assert_eq!(DocumentFile::from_inode(Ino(other)), None);
        }
    }
}
