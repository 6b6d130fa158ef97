//! Lists the files of a snapshot, or of a part of it, in batches.
//!
//! Directories are listed as by a mount, so that both have the same names. A page of each directory
//! on the way down is held, whatever a directory's size.

use std::collections::VecDeque;
use std::sync::Arc;

use super::SkippedPath;
use super::destination::join;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::{Entry, Extent};
use icechunkfs_tree::tree::nodes::{MAX_NAME, TreePlace};
use icechunkfs_tree::tree::{Attributes, Kind};
use icechunkfs_views::views::ViewTree;

/// Entries of a directory that are listed together: those that a tree finds at once.
const PAGE: usize = 1024;
/// Limits of a batch, in files and in bytes: large enough that the cost of each batch is small, and
/// small enough that one batch per job fits into memory.
const BATCH: usize = 1024;
pub(super) const BATCH_BYTES: u64 = 4 << 20;

/// File of a snapshot.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Directory of the file, relative to the start of the walk.
    pub(super) folder: Arc<str>,
    pub(super) name: String,
    pub(super) inode: Ino,
    /// Size in bytes.
    pub(super) size: u64,
}

impl Item {
    /// Returns the path, relative to the start of the walk.
    pub(super) fn path(&self) -> String {
        join(&self.folder, &self.name)
    }
}

pub(super) struct Walk {
    view: Arc<dyn ViewTree>,
    /// Directories from the start to the current one.
    open: Vec<Directory>,
    /// True to continue after a directory that cannot be listed.
    skip: bool,
    /// Directories that could not be listed, and files whose sizes could not be found out.
    pub(super) left_out: Vec<SkippedPath>,
}

struct Directory {
    inode: Ino,
    path: Arc<str>,
    /// Offset at which the listing continues.
    offset: u64,
    /// True if the listing has ended.
    is_listed: bool,
    directories: VecDeque<(String, Ino)>,
    /// Names and attributes, and whether the size is known.
    files: VecDeque<(String, Attributes, bool)>,
}

impl Directory {
    fn new(inode: Ino, path: &str) -> Self {
        let directories = VecDeque::new();
        let files = VecDeque::new();
        Directory { inode, path: path.into(), offset: 0, is_listed: false, directories, files }
    }

    async fn read_page(&mut self, view: &dyn ViewTree) -> Result<()> {
        let tree = view.tree();
        if let Some(TreePlace::Directory(node)) = tree.table().place(self.inode)
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
        let mut offset = self.offset;
        let mut count = 0;
        let mut is_full = false;
        let directories = &mut self.directories;
        let files = &mut self.files;
        let mut take = |entry: Entry<'_>| {
            is_full = count == PAGE;
            if is_full {
                return false;
            }
            (offset, count) = (entry.offset, count + 1);
            match entry.attributes.kind {
                Kind::Directory if is_dots(entry.name.as_bytes()) => {}
                Kind::Directory => directories.push_back((entry.name.to_owned(), entry.attributes.inode)),
                Kind::File => files.push_back((entry.name.to_owned(), entry.attributes, entry.is_sized)),
            }
            true
        };
        view.list(self.inode, self.offset, Extent::All, &mut take).await?;
        (self.offset, self.is_listed) = (offset, !is_full);
        Ok(())
    }
}

impl Walk {
    /// Creates a walk that starts at directory `inode` of `view`.
    pub(super) fn new(view: Arc<dyn ViewTree>, inode: Ino, skip: bool) -> Self {
        Walk { view, open: vec![Directory::new(inode, "")], skip, left_out: Vec::new() }
    }

    /// Returns the next files; none when there are no more.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Item>>> {
        let mut batch = Vec::new();
        let mut bytes = 0_u64;
        while let Some(directory) = self.open.last_mut() {
            while let Some((name, attributes, is_sized)) = directory.files.front_mut() {
                // A size of 0 in place of one that could not be found out would make an empty copy
                // if the file can be read by now.
                if !*is_sized {
                    match self.view.attributes(attributes.inode).await {
                        Ok(found) => (*attributes, *is_sized) = (found, true),
                        Err(error) if self.skip && super::fetch::is_unreadable(&error) => {
                            let path = join(&directory.path, name);
                            self.left_out.push(SkippedPath { path, why: error.to_string() });
                            directory.files.pop_front();
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                let is_full = batch.len() >= BATCH || bytes.saturating_add(attributes.size) > BATCH_BYTES;
                if is_full && !batch.is_empty() {
                    return Ok(Some(batch));
                }
                let Some((name, Attributes { inode, size, .. }, _)) = directory.files.pop_front() else { break };
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
            if let Err(error) = directory.read_page(&*self.view).await {
                if !self.skip || !super::fetch::is_unreadable(&error) {
                    return Err(error);
                }
                let path = directory.path.to_string();
                self.left_out.push(SkippedPath { path, why: error.to_string() });
                directory.is_listed = true;
            }
        }
        Ok(Some(batch).filter(|batch| !batch.is_empty()))
    }
}
