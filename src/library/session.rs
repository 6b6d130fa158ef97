//! Files of one snapshot, without a mount.

use std::ops::Range;
use std::sync::Arc;

use super::Inner;
use super::open::{self, MemoryLimits};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_repo::repo::refs::RefSpec;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_tree::tree::{Attributes, Kind, Tree};

/// Bytes per read.
const STEP: u64 = 1 << 20;

/// Files of one snapshot, as a mount shows them: `zarr.json` documents and chunks.
///
/// Paths are relative to the root of the hierarchy, as in `group/array/c/0/1`.
#[derive(Clone, Debug)]
pub struct Session {
    inner: Arc<Inner>,
    tree: Arc<Tree>,
}

/// Entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Name in the directory.
    pub name: String,
    /// Attributes.
    pub attributes: Attributes,
}

impl Session {
    pub(super) fn open(inner: Arc<Inner>, revision: &str) -> Result<Self> {
        let repository = &inner.repository;
        let tree = inner.handle.block_on(async {
            let spec = RefSpec::Snapshot(repository.resolve_revision(revision).await?.id);
            open::tree(repository, &spec, MemoryLimits::default()).await
        })?;
        Ok(Session { inner, tree })
    }

    /// Returns the attributes of the file or directory at `path`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none.
    pub fn attributes(&self, path: &str) -> Result<Attributes> {
        self.inner.handle.block_on(self.tree.resolve(path))
    }

    /// Returns the entries of the directory at `path`; the root is `/`.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.inner.handle.block_on(async {
            let inode = self.tree.resolve(path).await?.inode;
            let mut sink = |entry: icechunkfs_tree::tree::directory::Entry<'_>| {
                if !matches!(entry.name, "." | "..") {
                    entries.push(Entry { name: entry.name.to_owned(), attributes: entry.attributes });
                }
                true
            };
            self.tree.list(inode, 0, Extent::All, &mut sink).await
        })?;
        Ok(entries)
    }

    /// Returns the bytes of the file at `path`.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        self.read_range(path, 0..u64::MAX)
    }

    /// Returns those bytes of the file at `path` that are in `range`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such file, [`ErrorKind::IsADirectory`] if it is a
    /// directory.
    pub fn read_range(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>> {
        self.inner.handle.block_on(async {
            let file = self.tree.resolve(path).await?;
            if file.kind == Kind::Directory {
                return Err(Error::new(ErrorKind::IsADirectory, format!("`{path}` is a directory")));
            }
            let mut offset = range.start;
            let end = range.end.min(file.size);
            let mut bytes = Vec::new();
            while offset < end {
                let step = STEP.min(end - offset);
                bytes.extend_from_slice(&self.tree.read(file.inode, offset, step as u32).await?);
                offset += step;
            }
            Ok(bytes)
        })
    }
}
