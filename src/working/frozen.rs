//! The state at one moment, to be looked at while it lives on.
//!
//! Directories lie in a list and refer to each other by position, so that whoever walks them needs no recursion: programs can
//! nest directories as deep as they like.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::WorkingTree;
use super::state::{Node, State};
use crate::commit::changes::ChunkFile;
use crate::error::Result;
use crate::scratch::record::{Id, Name, ROOT, Source};
use crate::tree::nodes::Place;

/// Everything that differs from the snapshot.
#[derive(Debug)]
pub struct Frozen {
    directories: Vec<FrozenDirectory>,
    /// Paths of files that are open for writing.
    pub open_for_writing: Vec<String>,
}

/// A directory and those of its entries that are not the snapshot's.
#[derive(Debug)]
pub struct FrozenDirectory {
    /// The inode.
    pub id: Id,
    /// What of the snapshot it shows besides.
    pub lower: Option<Place>,
    /// Its entries.
    pub entries: BTreeMap<Name, FrozenEntry>,
    /// Names of entries that stand for something of the snapshot which an operation removed or replaced.
    pub covering: BTreeSet<Name>,
}

/// One entry.
#[derive(Clone, Debug)]
pub enum FrozenEntry {
    /// A name of the snapshot that does not show.
    Hidden,
    /// A directory, by its position.
    Directory(usize),
    /// A regular file.
    File(FrozenFile),
    /// Something that Zarr has no place for.
    Other(Id),
}

/// A regular file.
#[derive(Clone, Debug)]
pub struct FrozenFile {
    /// The inode.
    pub id: Id,
    /// Its place in the snapshot, if it is from there.
    pub lower: Option<Place>,
    /// Where its bytes are.
    pub source: Source,
}

/// Where the bytes of changed files are.
#[async_trait]
pub trait Contents: Send + Sync {
    /// The file with the number of a [`Source::Data`]; none if somebody has removed it.
    fn changed(&self, number: u64) -> Result<Option<ChunkFile>>;

    /// All bytes of `file`, at most `limit` of them.
    async fn whole(&self, file: &FrozenFile, limit: u64) -> Result<Bytes>;
}

#[async_trait]
impl Contents for WorkingTree {
    fn changed(&self, number: u64) -> Result<Option<ChunkFile>> {
        let found = self.files().find(number)?;
        Ok(found.map(|stat| ChunkFile {
            directory: Arc::clone(self.files().directory()),
            name: number.to_string(),
            length: stat.size,
            may_link: true,
        }))
    }

    async fn whole(&self, file: &FrozenFile, limit: u64) -> Result<Bytes> {
        WorkingTree::whole(self, file, limit).await
    }
}

impl Frozen {
    /// Position of the root.
    pub const ROOT: usize = 0;

    /// A state of these directories, of which none is open; the root is at [`Frozen::ROOT`].
    pub fn of(directories: Vec<FrozenDirectory>) -> Self {
        Frozen { directories, open_for_writing: Vec::new() }
    }

    /// All that `state` has besides its base. Whether files are open is not known to it.
    pub(super) fn of_state(state: &State) -> Self {
        let mut directories = Vec::new();
        let mut open = vec![ROOT];
        let mut next = 0;
        // A directory's position is its place in `open`.
        while let Some(&id) = open.get(next) {
            next += 1;
            let Some(inode) = state.get(id) else { continue };
            let (mut entries, mut covering) = (BTreeMap::new(), BTreeSet::new());
            for (name, entry) in inode.directory().into_iter().flat_map(super::state::Directory::entries) {
                let found = entry.id.and_then(|id| Some((id, state.get(id)?)));
                let frozen = match found {
                    None => FrozenEntry::Hidden,
                    Some((id, inode)) => match &inode.node {
                        Node::Directory(_) => {
                            open.push(id);
                            FrozenEntry::Directory(open.len() - 1)
                        }
                        Node::File(source) => {
                            let (lower, source) = (inode.lower.clone(), source.clone());
                            FrozenEntry::File(FrozenFile { id, lower, source })
                        }
                        Node::Symlink(_) | Node::Special { .. } => FrozenEntry::Other(id),
                    },
                };
                entries.insert(name.clone(), frozen);
                if entry.covers {
                    covering.insert(name.clone());
                }
            }
            directories.push(FrozenDirectory { id, lower: inode.lower.clone(), entries, covering });
        }
        Frozen { directories, open_for_writing: Vec::new() }
    }

    /// The directory at a position.
    pub fn get(&self, position: usize) -> Option<&FrozenDirectory> {
        self.directories.get(position)
    }

    /// All directories.
    pub fn directories(&self) -> &[FrozenDirectory] {
        &self.directories
    }
}

impl WorkingTree {
    /// What differs now. Writes that are under way must have been completed, or kept out.
    pub fn freeze(&self) -> Frozen {
        let locked = self.lock();
        let written = locked.opens.written().filter_map(|number| {
            let id = locked.state.by_number(number)?;
            locked.state.path(id)
        });
        let mut open_for_writing: Vec<String> = written.collect();
        open_for_writing.sort();
        Frozen { open_for_writing, ..Frozen::of_state(&locked.state) }
    }
}
