//! The files of a snapshot, or of a part of it, in batches.
//!
//! What a directory has is what a mount shows, by the same listing: no name here that is not there. A page of each directory
//! on the way down is held, whatever a directory's size.

use std::collections::VecDeque;
use std::sync::Arc;

use super::LeftOut;
use super::destination::join;
use crate::error::{Error, ErrorKind, Result};
use crate::tree::directory::{Entry, Extent};
use crate::tree::nodes::{MAX_NAME, Place};
use crate::tree::{Attributes, Kind, Tree};

/// Entries of a directory that are looked at in one go: what [`Tree::list`] finds at once.
const PAGE: usize = 1024;
/// Files of a batch, and the bytes at which it is closed. Enough that what each batch costs is little, and little enough that
/// as many as there are jobs fit into memory.
const BATCH: usize = 1024;
pub(super) const BATCH_BYTES: u64 = 4 << 20;

/// A file.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The directory that it is in, relative to where the walk began.
    pub(super) folder: Arc<str>,
    /// Its name there.
    pub(super) name: String,
    /// Its inode number.
    pub(super) inode: u64,
    /// Bytes.
    pub(super) size: u64,
}

impl Item {
    /// Its path, relative to where the walk began.
    pub(super) fn path(&self) -> String {
        join(&self.folder, &self.name)
    }
}

/// Where a walk is.
pub(super) struct Walk {
    tree: Arc<Tree>,
    /// From where it began to where it is.
    open: Vec<Directory>,
    /// Whether to go on behind a directory that cannot be listed.
    skip: bool,
    /// Such directories.
    pub(super) left_out: Vec<LeftOut>,
}

struct Directory {
    inode: u64,
    path: Arc<str>,
    /// Where the listing goes on.
    offset: u64,
    /// Whether it has ended.
    is_listed: bool,
    directories: VecDeque<(String, u64)>,
    files: VecDeque<(String, Attributes)>,
}

impl Directory {
    fn new(inode: u64, path: &str) -> Self {
        Directory {
            inode,
            path: path.into(),
            offset: 0,
            is_listed: false,
            directories: VecDeque::new(),
            files: VecDeque::new(),
        }
    }

    async fn page(&mut self, tree: &Tree) -> Result<()> {
        if let Some(Place::Directory(node)) = tree.table().place(self.inode)
            && tree.table().array(node).is_some_and(|array| array.has_long_names)
        {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "/{}: its chunks have names of more than {MAX_NAME} bytes, which no file can have",
                    tree.table().path(node)
                ),
            ));
        }
        let (mut offset, mut count, mut is_full) = (self.offset, 0, false);
        let (directories, files) = (&mut self.directories, &mut self.files);
        let mut take = |entry: Entry<'_>| {
            is_full = count == PAGE;
            if is_full {
                return false;
            }
            (offset, count) = (entry.offset, count + 1);
            match entry.attributes.kind {
                Kind::Directory if matches!(entry.name, "." | "..") => {}
                Kind::Directory => directories.push_back((entry.name.to_owned(), entry.attributes.inode)),
                Kind::File => files.push_back((entry.name.to_owned(), entry.attributes)),
            }
            true
        };
        tree.list(self.inode, self.offset, Extent::All, &mut take).await?;
        (self.offset, self.is_listed) = (offset, !is_full);
        Ok(())
    }
}

impl Walk {
    /// Begins at directory `inode` of `tree`.
    pub(super) fn new(tree: Arc<Tree>, inode: u64, skip: bool) -> Self {
        Walk { tree, open: vec![Directory::new(inode, "")], skip, left_out: Vec::new() }
    }

    /// The next files; none when there are no more.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Item>>> {
        let (mut batch, mut bytes) = (Vec::new(), 0_u64);
        while let Some(directory) = self.open.last_mut() {
            while let Some((_, attributes)) = directory.files.front() {
                let is_full = batch.len() >= BATCH || bytes.saturating_add(attributes.size) > BATCH_BYTES;
                if is_full && !batch.is_empty() {
                    return Ok(Some(batch));
                }
                let Some((name, Attributes { inode, size, .. })) = directory.files.pop_front() else { break };
                bytes = bytes.saturating_add(size);
                batch.push(Item { folder: Arc::clone(&directory.path), name, inode, size });
            }
            if let Some((name, inode)) = directory.directories.pop_front() {
                let path = join(&directory.path, &name);
                self.open.push(Directory::new(inode, &path));
                continue;
            }
            if directory.is_listed {
                self.open.pop();
                continue;
            }
            if let Err(error) = directory.page(&self.tree).await {
                if !self.skip || !super::fetch::is_unreadable(&error) {
                    return Err(error);
                }
                let path = directory.path.to_string();
                self.left_out.push(LeftOut { path, why: error.to_string() });
                directory.is_listed = true;
            }
        }
        Ok(Some(batch).filter(|batch| !batch.is_empty()))
    }
}
