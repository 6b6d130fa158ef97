//! From files to Zarr: what a working tree would commit, and what keeps it from it.
//!
//! Only what differs is walked. The directories that programs touched are looked at one by one ([`walk`]): which are nodes,
//! and which node of the snapshot they were; within arrays, which files are chunks ([`chunks`]). Everything below that nobody
//! touched goes along as it is, wherever it was moved to.
//!
//! What a directory *is* is decided by its `zarr.json` and by the nearest array above it, never by what its name looks like.
//!
//! Every file is one of three things: **tracked** (a `zarr.json` or a chunk, which a commit takes), **untracked** (nothing
//! that Zarr has a place for, which stays as it is), or a **violation**: something that looks as if it should be tracked and cannot
//! be. One violation keeps everything from being committed, and all are told at once.

pub mod chunks;
pub mod documents;
pub mod guard;
pub mod walk;

use std::collections::HashSet;

use serde::Serialize;

use crate::commit::changes::{ChangeSet, ChunkChange};
use crate::scratch::record::{Id, Name};
use crate::tree::nodes::Place;

/// What a working tree would commit.
#[derive(Debug, Default)]
pub struct DetectedChanges {
    /// The changes.
    pub changes: ChangeSet,
    /// What keeps it from being committed.
    pub violations: Vec<Violation>,
    /// What is not committed and stays.
    pub untracked: Vec<Untracked>,
    /// Chunks of the snapshot that show where no array is, by the directory that shows them: they stay too.
    pub foreign: Vec<(Id, Vec<Place>)>,
    /// Files whose bytes the commit takes, by directory and name: a file can have another name that it does not take.
    pub tracked: HashSet<(Id, Name)>,
    /// What each changed node's `zarr.json` was before, by path after the change; for a diff.
    pub before: Vec<(String, Vec<u8>)>,
    /// Bytes of new chunks and documents.
    pub bytes: u64,
}

impl DetectedChanges {
    /// Numbers of the data files that become chunks.
    pub fn data_files(&self) -> HashSet<u64> {
        let changes = self.changes.chunks.values().flat_map(|chunks| chunks.values());
        changes
            .filter_map(|change| match change {
                ChunkChange::File(file) => file.name.parse().ok(),
                _ => None,
            })
            .collect()
    }

    /// The names of what is not committed and stays, by directory.
    pub fn untracked_entries(&self) -> HashSet<(Id, Name)> {
        self.untracked.iter().map(|file| file.entry.clone()).collect()
    }
}

/// Something that cannot be committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Where.
    pub path: String,
    /// What is wrong, and what to do.
    pub why: String,
}

/// Something that is not committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Untracked {
    /// Where.
    pub path: String,
    /// The inode.
    #[serde(skip)]
    pub id: Id,
    /// The directory and the name.
    #[serde(skip)]
    pub entry: (Id, Name),
}

/// `name` below `path`.
pub(super) fn below(path: &str, name: &str) -> String {
    if path == "/" { format!("/{name}") } else { format!("{path}/{name}") }
}
