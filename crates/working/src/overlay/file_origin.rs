//! Origin of the bytes of a file in a working tree.

use super::Ino;
use super::content::FileContents;
use crate::scratch::record::Source;
use icechunkfs_format::format::chunk_payload::ChunkPayload;

/// Origin of the bytes of a file.
#[derive(Clone, Debug)]
pub enum FileOrigin {
    /// The base has them, in the file with this number.
    Base(Ino),
    /// A chunk of the repository, to which the file refers.
    Stored(ChunkPayload),
    /// The scratch directory.
    Scratch,
}

impl FileContents {
    /// Returns the origin of the bytes of file `number`; a directory of the base is of the base.
    pub fn file_origin(&self, number: Ino) -> FileOrigin {
        let locked = self.upper.lock();
        let base = &locked.base;
        match locked.state.by_number(number).and_then(|id| locked.state.get(id)) {
            None => FileOrigin::Base(number),
            Some(inode) => match (inode.source(), &inode.lower) {
                (Some(Source::Stored(stored)), _) => FileOrigin::Stored(stored.0.clone()),
                (Some(Source::Lower) | None, Some(place)) => FileOrigin::Base(base.tree.table().inode(place)),
                _ => FileOrigin::Scratch,
            },
        }
    }

    /// Returns the number of the base's file that `number` is or replaces; none for a new file.
    pub fn base_number(&self, number: Ino) -> Option<Ino> {
        let locked = self.upper.lock();
        let base = &locked.base;
        match locked.state.by_number(number).and_then(|id| locked.state.get(id)) {
            None => Some(number),
            Some(inode) => inode.lower.as_ref().map(|place| base.tree.table().inode(place)),
        }
    }
}
