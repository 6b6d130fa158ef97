//! Views: the snapshot of a tree in a form for programs that do not read Zarr version 3.
//!
//! A view is a read-only tree of files beside the native [`Tree`]. Its files are made while they
//! are read, from the same chunks, through the same reader, within the same memory budget. Names,
//! sizes and inode numbers follow from metadata alone: no chunk is read before a program reads its
//! bytes.
//!
//! Every view is a [`ViewTree`], the native tree included ([`native`], with modifiers
//! [`modified`]): one adapter serves all of them to the kernel, and commands find files by
//! [`resolve`]. What a view leaves out or shows otherwise, it lists in a report: the file
//! `.icechunk/NAME` (see [`report`]).

mod consolidated;
mod half;
pub mod kind;
pub mod modified;
pub mod native;
#[cfg(feature = "netcdf")]
pub mod netcdf;
pub mod omissions;
pub mod options;
pub mod report;
pub mod zarr2;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Semaphore;

use self::omissions::Omissions;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_repo::reader::Data;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::{Entry, Extent};
use icechunkfs_tree::tree::{Attributes, Kind, Tree, clamp};

/// Held while a document of many nodes is made, one at a time in this process: its text holds
/// memory while it waits for more, so that each of several would wait for the others.
static DOCUMENT_OF_MANY: Semaphore = Semaphore::const_new(1);

/// Receiver of the entries of a directory. Returns false if it is full, and then has not taken the
/// entry.
pub type Sink<'a> = dyn FnMut(Entry<'_>) -> bool + Send + 'a;

/// Read-only tree of files, made from a snapshot. It never changes: the kernel may cache all
/// answers forever.
///
/// The root directory has inode number [`Ino::ROOT`].
#[async_trait]
pub trait ViewTree: Debug + Send + Sync {
    /// Returns the tree of the snapshot.
    fn tree(&self) -> &Arc<Tree>;

    /// Returns the entry `name` of directory `parent`; none if it does not exist.
    async fn lookup(&self, parent: Ino, name: &str) -> Result<Option<Attributes>>;

    /// Returns the attributes of `inode`.
    async fn attributes(&self, inode: Ino) -> Result<Attributes>;

    /// Feeds the entries of directory `inode` that come after `offset` (0 for all) to `sink`.
    /// Offsets of entries are positive, and mean the same in every call.
    async fn list(&self, inode: Ino, offset: u64, extent: Extent, sink: &mut Sink<'_>) -> Result<()>;

    /// Reads up to `size` bytes of file `inode` from `offset` on: fewer only at the end of the
    /// file.
    async fn read(&self, inode: Ino, offset: u64, size: u32) -> Result<Data>;

    /// Returns the bytes of file `inode` that are stored, if these are known and not all: the rest
    /// are fill values.
    fn allocated(&self, _inode: Ino) -> Option<u64> {
        None
    }

    /// Returns true if files have much that a program which reads a part of them does not need, and
    /// if such bytes are expensive to make: the kernel should not read far ahead.
    fn is_read_in_parts(&self) -> bool {
        false
    }

    /// Returns the native inode of file `inode` if both have the same bytes: the kernel may then
    /// read a chunk file directly.
    fn native(&self, inode: Ino) -> Option<Ino>;

    /// Returns the arrays that the view leaves out, after a short look at their documents. May
    /// block the thread for memory.
    fn omissions(&self) -> Omissions {
        Omissions::default()
    }

    /// Returns the path of `inode`, for messages.
    fn describe(&self, inode: Ino) -> String;
}

/// Resolves a path relative to the root of `view`; components are separated by `/`.
pub async fn resolve(view: &dyn ViewTree, path: &str) -> Result<Attributes> {
    let mut at = Attributes { inode: Ino::ROOT, kind: Kind::Directory, size: 0 };
    for name in path.split('/').filter(|name| !name.is_empty()) {
        if at.kind == Kind::File {
            return Err(Error::new(ErrorKind::NotADirectory, format!("{path}: a component is not a directory")));
        }
        let found = view.lookup(at.inode, name).await?;
        at = found.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("there is no `{path}` in this snapshot; `icechunkfs ls` lists what is there"),
            )
        })?;
    }
    Ok(at)
}

/// Returns the part of a document that a request for `size` bytes at `offset` gets.
pub fn part(document: &Bytes, offset: u64, size: u32) -> Bytes {
    let range = clamp(offset, size, document.len() as u64);
    document.slice(range.start as usize..range.end as usize)
}

fn no_such(inode: Ino) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {inode} in this view"))
}

fn not_a_directory(inode: Ino) -> Error {
    Error::new(ErrorKind::NotADirectory, format!("{inode} is not a directory"))
}
