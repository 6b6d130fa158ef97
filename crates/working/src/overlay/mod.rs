//! The working tree: a snapshot, and the changes of programs on top of it.
//!
//! The kernel sees one directory tree. [`state`] has the differences from the snapshot,
//! [`crate::scratch`] keeps them on disk, and everything else comes from the snapshot's [`Tree`] as
//! in a read-only mount. [`WorkingTree`] has
//! the parts, each of which uses only those above it:
//!
//! | | |
//! |---|---|
//! | [`node`], [`state`] | inodes and names: pure, without I/O |
//! | [`opens`] | open files, their handles and data files |
//! | [`kernel_view`] | what the kernel may still believe of the numbers: pure |
//! | `locked` | these and the journal under one lock, changed together by records |
//! | [`upper`] | the lock, the data files, the last commit's standing, `file_locks` |
//! | [`content`] | bytes of single files, with `sparse_content`, `copy_up` and [`copy`] |
//! | [`handles`] | opens and closes |
//! | [`namespace`] | names, [`listing`], `lookups` |
//! | [`rebase`] | moves to another snapshot or state, with [`replace`], `discard`, `restore` |
//! | [`uploads`] | eager uploads |
//!
//! Reads never wait for the tree lock. Invalidations are sent while no lock is held, since the
//! kernel may wait for a request that waits for the lock.

pub mod attributes;
pub mod content;
pub mod copy;
mod copy_up;
mod discard;
mod durability;
mod file_locks;
pub mod file_origin;
pub mod frozen;
mod gauges;
pub mod generations;
pub mod handles;
pub mod invalidation;
pub mod kernel_view;
mod last_commit;
pub mod listing;
mod locked;
mod lookups;
pub mod namespace;
pub mod node;
pub mod opens;
pub mod rebase;
mod recovered;
pub mod replace;
mod restore;
pub mod returned;
pub mod set_attributes;
mod sparse_content;
pub mod sparse_copy;
pub mod state;
#[cfg(test)]
mod tests;
pub mod uploads;
pub mod upper;

use std::sync::Arc;

use self::content::FileContents;
use self::handles::Handles;
use self::locked::Locked;
use self::namespace::Namespace;
pub use self::node::Ino;
use self::rebase::TreeMoves;
pub use self::recovered::Recovered;
use self::replace::SharedTreeGuard;
use self::uploads::Uploads;
use self::upper::Upper;
use crate::scratch::directory::ScratchDirectory;
use crate::scratch::record::{EntryId, Time};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::repo::identity::Identity;
use icechunkfs_tree::tree::nodes::TreePlace;
use icechunkfs_tree::tree::numbering::Numbering;
use icechunkfs_tree::tree::{self, Tree};

/// Base: the snapshot that the changes are relative to.
#[derive(Debug)]
pub struct Base {
    /// Snapshot as a tree.
    pub tree: Arc<Tree>,
    /// Time of everything in it.
    pub time: Time,
    /// Owner of everything in it.
    pub uid: u32,
    /// Group of everything in it.
    pub gid: u32,
}

/// Branch and repository that the changes belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Location of the repository.
    pub repository: String,
    /// Branch.
    pub branch: String,
    /// Identity of the repository wherever it is located, if known.
    pub identity: Option<Identity>,
}

/// Meaning of a name.
#[derive(Clone, Debug)]
pub(super) enum Lookup {
    /// Inode of the working tree.
    Upper(EntryId),
    /// Entry that only the base has.
    Lower(TreePlace, tree::Attributes),
}

impl Base {
    /// Creates the base for `tree`.
    pub fn new(tree: Arc<Tree>) -> Self {
        let micros = i64::try_from(tree.snapshot().flushed_at()).unwrap_or(i64::MAX);
        let nanos = u32::try_from(micros.rem_euclid(1_000_000)).unwrap_or(0) * 1000;
        Base {
            time: Time(micros.div_euclid(1_000_000), nanos),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            tree,
        }
    }

    /// Returns the id of the snapshot.
    pub fn id(&self) -> ObjectId {
        self.tree.snapshot().id()
    }
}

/// Base and the changes on top of it.
#[derive(Debug)]
pub struct WorkingTree {
    upper: Arc<Upper>,
    contents: Arc<FileContents>,
    handles: Arc<Handles>,
    namespace: Namespace,
    moves: TreeMoves,
    uploads: Uploads,
}

impl WorkingTree {
    /// Opens the working tree in `scratch` on top of `tree`, which must be the snapshot that
    /// `recovered` names, if it names one.
    pub fn open(
        tree: Arc<Tree>,
        numbering: Numbering,
        scratch: ScratchDirectory,
        origin: Origin,
        recovered: Recovered,
    ) -> Result<Self> {
        let upper = Arc::new(Upper::open(tree, scratch, origin, recovered)?);
        let contents = Arc::new(FileContents::new(&upper));
        let handles = Arc::new(Handles::new(&contents));
        Ok(WorkingTree {
            namespace: Namespace::new(&upper),
            moves: TreeMoves::new(&contents, numbering),
            uploads: Uploads::new(&handles),
            upper,
            contents,
            handles,
        })
    }

    /// Returns the changes and the base, as they are.
    pub fn upper(&self) -> &Arc<Upper> {
        &self.upper
    }

    /// Returns the bytes and attributes of files.
    pub fn contents(&self) -> &FileContents {
        &self.contents
    }

    /// Returns the open files.
    pub fn handles(&self) -> &Handles {
        &self.handles
    }

    /// Returns the names.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the moves to another snapshot or state.
    pub fn moves(&self) -> &TreeMoves {
        &self.moves
    }

    /// Returns the uploads ahead of commits.
    pub fn uploads(&self) -> &Uploads {
        &self.uploads
    }
}

/// Returns the error for a number that the kernel knows and that is of no inode any more. The
/// kernel then looks the name up again.
pub(super) fn gone(number: Ino) -> Error {
    Error::new(ErrorKind::Stale, format!("{number} is gone: open it by its path again"))
}

pub(super) fn no_such(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {what}"))
}

pub(super) fn not_a_directory(number: Ino) -> Error {
    Error::new(ErrorKind::NotADirectory, format!("{number} is not a directory"))
}
