//! Detection of changes: from files to Zarr's terms, with the violations that prevent a commit.
//!
//! Only changed directories are walked. [`nodes`] finds out which of them are nodes, and which
//! nodes of the snapshot they were; within arrays, [`chunks`] finds out which files are chunks.
//! [`detection`] is what both know and find. Everything below that is untouched stays as it is,
//! wherever it was moved.
//!
//! The nature of a directory is decided by its `zarr.json` and by the nearest array above it, never
//! by its name.
//!
//! Every file is **tracked** (a `zarr.json` or a chunk, which a commit contains), **untracked**
//! (Zarr has no place for it, and it stays as it is), or a **violation** (it looks as if it should
//! be tracked, and cannot be). One violation prevents the whole commit, and all are reported at
//! once.

pub mod chunks;
mod detection;
pub mod documents;
pub mod guard;
pub mod nodes;

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::scratch::record::DataFileId;
use crate::scratch::record::{EntryId, Name};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange};
use icechunkfs_tree::tree::nodes::TreePlace;

/// Change set of a working tree, with its violations and untracked files.
#[derive(Debug, Default)]
pub struct DetectedChanges {
    /// Change set.
    pub changes: ChangeSet,
    /// Violations, which prevent a commit.
    pub violations: Vec<Violation>,
    /// Files that a commit leaves out.
    pub untracked: Vec<Untracked>,
    /// Chunks of the snapshot that show where they are none, and that are no inodes of the working
    /// tree: untracked files, too.
    pub foreign: Vec<ForeignChunk>,
    /// Files that a commit contains, by directory and name: a file can have another, untracked
    /// name.
    pub tracked: HashSet<(EntryId, Name)>,
    /// Content of each changed node's `zarr.json` before, by path after the change; for a diff.
    pub before: Vec<(String, Vec<u8>)>,
    /// Bytes of new chunks and documents.
    pub bytes: u64,
}

impl DetectedChanges {
    /// Returns the numbers of the data files that become chunks.
    pub fn data_files(&self) -> HashSet<DataFileId> {
        self.chunk_files().map(|(data, ..)| data).collect()
    }

    /// Returns the data files that become chunks, with array and coordinates. One with several
    /// names becomes several.
    pub fn chunk_files(&self) -> impl Iterator<Item = (DataFileId, NodeId, &Coords)> {
        let chunks = self.changes.chunks.iter();
        let all = chunks.flat_map(|(id, chunks)| chunks.iter().map(move |(coords, change)| (id, coords, change)));
        all.filter_map(|(id, coords, change)| match change {
            ChunkChange::File(file) => Some((DataFileId::from_file_name(&file.name)?, *id, coords)),
            _ => None,
        })
    }

    /// Returns the paths of all files that a commit leaves out, sorted, each with the reason if it
    /// may have been meant to be committed.
    pub fn untracked_files(&self) -> Vec<(String, Option<String>)> {
        let foreign = self.foreign.iter().map(|chunk| (chunk.path.clone(), None));
        let own = self.untracked.iter().map(|file| (file.path.clone(), file.why.clone()));
        let mut files: Vec<(String, Option<String>)> = own.chain(foreign).collect();
        files.sort();
        files
    }

    /// Returns the paths of all files that a commit leaves out, sorted.
    pub fn untracked_paths(&self) -> Vec<String> {
        self.untracked_files().into_iter().map(|(path, _)| path).collect()
    }

    /// Returns the places of the foreign chunks.
    pub fn foreign_places(&self) -> Vec<TreePlace> {
        self.foreign.iter().map(|chunk| chunk.place.clone()).collect()
    }

    /// Returns the names of untracked files that are inodes of the working tree, by directory.
    pub fn untracked_entries(&self) -> HashSet<(EntryId, Name)> {
        self.untracked.iter().map(|file| file.entry.clone()).collect()
    }
}

/// State of a file or node that prevents a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Path of the file or node.
    pub path: String,
    /// Reason, and remedy.
    pub why: String,
}

/// Inode of the working tree that a commit leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untracked {
    /// Path of the file.
    pub path: String,
    /// Inode.
    pub id: EntryId,
    /// Directory and name.
    pub entry: (EntryId, Name),
    /// Reason, if the file may have been meant to be committed.
    pub why: Option<String>,
}

/// Chunk of the snapshot that a moved directory shows where it is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignChunk {
    /// Place in the snapshot.
    pub place: TreePlace,
    /// Path of the file.
    pub path: String,
}

/// IDs of nodes created here, by the directory's inode and whether it is an array: repeated
/// detection gives the same IDs.
pub type NewIds = parking_lot::Mutex<HashMap<(EntryId, bool), NodeId>>;

/// Appends `name` to `path`.
pub(super) fn below(path: &str, name: &str) -> String {
    if path == "/" { format!("/{name}") } else { format!("{path}/{name}") }
}

/// Appends `name` to `key`, a path relative to an array.
fn join_key(key: &str, name: &str) -> String {
    if key.is_empty() { name.to_owned() } else { format!("{key}/{name}") }
}
