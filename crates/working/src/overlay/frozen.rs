//! A copy of the changes at one moment, which can be read while the working tree changes.
//!
//! Directories are in a list and refer to each other by position, so that a walk needs no
//! recursion: programs can nest directories to any depth.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::Base;
use super::content::FileContents;
use super::node::{Directory, RestoredNode};
use super::state::State;
use super::upper::Upper;
use crate::scratch::data::Stat;
use crate::scratch::record::{Body, DataFileId, EntryId, Name, ROOT, Source};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory;
use icechunkfs_repo::commit::changes::{ChunkFile, MadeChunk};
use icechunkfs_repo::reader::Data;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};

/// Bytes read at once.
const STEP: u64 = 1 << 20;

/// All changes to the base.
#[derive(Debug)]
pub struct Frozen {
    directories: Vec<FrozenDirectory>,
    /// Paths of files that are open for writing.
    pub open_for_writing: Vec<String>,
}

/// Directory, with the entries that are not the base's.
#[derive(Debug)]
pub struct FrozenDirectory {
    /// Inode.
    pub id: EntryId,
    /// Place of the base whose entries it shows as well.
    pub lower: Option<TreePlace>,
    /// Node that it was restored from.
    pub restored: Option<RestoredNode>,
    /// Entries by name.
    pub entries: BTreeMap<Name, FrozenEntry>,
    /// Names of entries that stand for an entry of the base that an operation removed or replaced.
    pub covering: BTreeSet<Name>,
}

impl FrozenDirectory {
    /// Returns the node of the base whose directory this is or was.
    pub fn base_node(&self) -> Option<NodeIndex> {
        match self.lower {
            Some(TreePlace::Directory(index)) => Some(index),
            _ => None,
        }
    }
}

/// Entry of a directory.
#[derive(Clone, Debug)]
pub enum FrozenEntry {
    /// Whiteout.
    Whiteout,
    /// Directory, by its position.
    Directory(usize),
    /// Regular file.
    File(FrozenFile),
    /// Inode that Zarr has no place for.
    Other(EntryId),
}

/// Regular file.
#[derive(Clone, Debug)]
pub struct FrozenFile {
    /// Inode.
    pub id: EntryId,
    /// Place in the base, if the file is from there.
    pub lower: Option<TreePlace>,
    /// Location of the bytes.
    pub source: Source,
}

/// Access to the bytes of changed files.
#[async_trait]
pub trait Contents: Send + Sync {
    /// Returns the file with the number of a [`Source::Data`]; `None` if it has been removed.
    fn changed(&self, data: DataFileId) -> Result<Option<ChunkFile>>;

    /// Returns the chunk with that number if it is no file, but made when it is stored.
    fn made(&self, _data: DataFileId) -> Option<Arc<dyn MadeChunk>> {
        None
    }

    /// Returns true if that file has bytes that could not be written to the disk.
    fn has_flush_failed(&self, _data: DataFileId) -> bool {
        false
    }

    /// Reads all bytes of `file`; fails if there are more than `limit`.
    async fn whole(&self, file: &FrozenFile, limit: u64) -> Result<Bytes>;
}

#[async_trait]
impl Contents for FileContents {
    fn changed(&self, data: DataFileId) -> Result<Option<ChunkFile>> {
        Ok(self.upper.files.find(data)?.map(|stat| self.chunk_file(data, &stat)))
    }

    fn has_flush_failed(&self, data: DataFileId) -> bool {
        self.upper.durable.has_flush_failed(data)
    }

    async fn whole(&self, file: &FrozenFile, limit: u64) -> Result<Bytes> {
        self.whole_over(&self.upper.base(), file, limit).await
    }
}

impl Frozen {
    /// Position of the root.
    pub const ROOT: usize = 0;

    /// Creates a copy from `directories`, with the root at [`Frozen::ROOT`] and no open files.
    pub fn of(directories: Vec<FrozenDirectory>) -> Self {
        Frozen { directories, open_for_writing: Vec::new() }
    }

    /// Copies all changes of `state`, which does not know about open files.
    pub(super) fn of_state(state: &State) -> Self {
        let mut directories = Vec::new();
        let mut open = vec![ROOT];
        let mut next = 0;
        // The position of a directory is its index in `open`.
        while let Some(&id) = open.get(next) {
            next += 1;
            let Some(inode) = state.get(id) else { continue };
            let mut entries = BTreeMap::new();
            let mut covering = BTreeSet::new();
            for (name, entry) in inode.directory().into_iter().flat_map(Directory::entries) {
                let found = entry.id.and_then(|id| Some((id, state.get(id)?)));
                let frozen = match found {
                    None => FrozenEntry::Whiteout,
                    Some((id, inode)) => match &inode.body {
                        Body::Directory => {
                            open.push(id);
                            FrozenEntry::Directory(open.len() - 1)
                        }
                        Body::File(source) => {
                            let lower = inode.lower.clone();
                            let source = source.clone();
                            FrozenEntry::File(FrozenFile { id, lower, source })
                        }
                        Body::Symlink(_) | Body::Special { .. } => FrozenEntry::Other(id),
                    },
                };
                entries.insert(name.clone(), frozen);
                if entry.covers {
                    covering.insert(name.clone());
                }
            }
            let restored = state.restored(id);
            directories.push(FrozenDirectory { id, lower: inode.lower.clone(), restored, entries, covering });
        }
        Frozen { directories, open_for_writing: Vec::new() }
    }

    /// Returns the directory at `position`.
    pub fn get(&self, position: usize) -> Option<&FrozenDirectory> {
        self.directories.get(position)
    }

    /// Returns all directories.
    pub fn directories(&self) -> &[FrozenDirectory] {
        &self.directories
    }
}

impl FileContents {
    /// Reads all bytes of `file` over `base`, as [`Contents::whole`] does.
    pub(super) async fn whole_over(&self, base: &Base, file: &FrozenFile, limit: u64) -> Result<Bytes> {
        let number = file.lower.as_ref().map(|place| base.tree.table().inode(place));
        let size = match (&file.source, number) {
            (Source::Data(data), _) => self.upper.files.stat(*data)?.size,
            (Source::Stored(stored), _) => stored.0.length(),
            (Source::Lower, Some(number)) => base.tree.attributes(number).await?.size,
            (Source::Lower, None) => 0,
        };
        if size > limit {
            return Err(Error::new(ErrorKind::OutOfMemory, format!("{size} bytes; {limit} are the most")));
        }
        let reservation = memory::reserve(size, "a file that is read as a whole").await?;
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        while (bytes.len() as u64) < size {
            let at = bytes.len() as u64;
            let left = size - bytes.len() as u64;
            let left = u32::try_from(left.min(STEP)).unwrap_or(u32::MAX);
            let part = match (&file.source, number) {
                (Source::Data(data), _) => Data::Bytes(self.sparse.read_data(file.id, *data, at, left).await?),
                (Source::Stored(stored), _) => base.tree.read_stored(&stored.0, at, left).await?,
                (Source::Lower, Some(number)) => base.tree.read(number, at, left).await?,
                (Source::Lower, None) => break,
            };
            if part.is_empty() {
                break;
            }
            bytes.extend_from_slice(&part);
        }
        Ok(memory::with_reservation(bytes.into(), reservation))
    }

    /// Returns data file `data` as a file that a commit may store.
    pub(super) fn chunk_file(&self, data: DataFileId, stat: &Stat) -> ChunkFile {
        let directory = Arc::clone(self.upper.files.directory());
        ChunkFile { directory, name: data.file_name(), length: stat.size, can_link: true }
    }
}

impl Upper {
    /// Copies the present changes. Writes in progress must have been completed, or kept out.
    pub fn freeze(&self) -> Frozen {
        let locked = self.lock();
        let written = locked.open_files.iter().filter(|(_, open)| open.writers > 0);
        let paths = written.filter_map(|(number, _)| locked.state.path(locked.state.by_number(*number)?));
        let mut open_for_writing: Vec<String> = paths.collect();
        open_for_writing.sort();
        Frozen { open_for_writing, ..Frozen::of_state(&locked.state) }
    }
}
