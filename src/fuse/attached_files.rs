//! Requests on attached trees ([`icechunkfs_views::attached`]), which every mount has: both
//! adapters answer them here.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};

use super::overlay_replies::{BLOCK, FOREVER};
use super::presentation::Presentation;
use super::reply::{ReplyDirectory, ReplyDirectoryPlus};
use super::xattr::{self, Xattr};
use icechunkfs_base::error::Result;
use icechunkfs_repo::reader::Data;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_tree::tree::{Attributes, Kind, ROOT};
use icechunkfs_views::attached::{AttachedTrees, Found, Listed, NativeFile, part_of};
use icechunkfs_views::views::report;

/// Attached trees, in the kernel's terms.
#[derive(Debug)]
pub(super) struct AttachedFiles {
    trees: Arc<AttachedTrees>,
    /// User and group of every file: those of this process.
    owner: (u32, u32),
    presentation: Presentation,
}

impl AttachedFiles {
    pub(super) fn new(trees: Arc<AttachedTrees>, presentation: Presentation) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        AttachedFiles { trees, owner, presentation }
    }

    pub(super) fn trees(&self) -> &Arc<AttachedTrees> {
        &self.trees
    }

    /// Returns the control directory that the root of a read-only mount has.
    pub(super) fn control(&self) -> Option<(Duration, FileAttr)> {
        self.trees.control().map(|found| self.timed(&found))
    }

    pub(super) async fn lookup(&self, parent: INodeNo, name: &OsStr) -> Result<(Duration, FileAttr)> {
        // Every name in a snapshot is UTF-8.
        let found = match name.to_str() {
            Some(name) => self.trees.lookup(parent.0, name).await?,
            None => None,
        };
        // Number 0 is a negative entry. What a name means may change, so that the kernel may not
        // cache it.
        let none = Attributes { inode: 0, kind: Kind::File, size: 0 };
        let absent = || (Duration::ZERO, self.timed(&Found::fixed(none, UNIX_EPOCH)).1);
        Ok(found.map_or_else(absent, |found| self.timed(&found)))
    }

    pub(super) async fn attributes(&self, inode: INodeNo) -> Result<(Duration, FileAttr)> {
        Ok(self.timed(&self.trees.attributes(inode.0).await?))
    }

    pub(super) async fn read(&self, inode: INodeNo, offset: u64, size: u32) -> Result<Data> {
        self.trees.read(inode.0, offset, size).await
    }

    pub(super) async fn list(&self, inode: INodeNo, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        let mut sink = |entry: Listed<'_>| {
            let Attributes { inode, kind, .. } = entry.found.attributes;
            !reply.add(INodeNo(inode), entry.offset, file_type(kind), entry.name)
        };
        self.trees.list(inode.0, offset, Extent::Names, &mut sink).await
    }

    pub(super) async fn list_with_attributes(
        &self,
        inode: INodeNo,
        offset: u64,
        extent: Extent,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<()> {
        let mut sink = |entry: Listed<'_>| {
            let (timeout, attr) = self.timed(&entry.found);
            !reply.add(entry.offset, entry.name, &timeout, &attr)
        };
        self.trees.list(inode.0, offset, extent, &mut sink).await
    }

    /// Returns an extended attribute of a file of a tree; `found` is as [`AttachedTrees::native`]
    /// returns it.
    pub(super) async fn xattr(&self, xattr: Xattr, found: Option<&NativeFile>) -> Result<Option<String>> {
        let Some((tree, number, reference)) = found else { return Ok(None) };
        let reference = reference.clone().unwrap_or_else(|| self.trees.facts().spec.to_string());
        xattr::value(xattr, tree, *number, &reference).await
    }

    fn timed(&self, found: &Found) -> (Duration, FileAttr) {
        let Attributes { inode, kind, size } = found.attributes;
        let timeout = found.valid.unwrap_or(FOREVER);
        let attr = FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: found.allocated.div_ceil(512),
            atime: found.time,
            mtime: found.time,
            ctime: found.time,
            crtime: found.time,
            kind: file_type(kind),
            perm: match kind {
                Kind::Directory => 0o755,
                Kind::File => 0o644,
            },
            // One name for directories too means that subdirectories are not counted.
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        };
        let shown = match part_of(inode) {
            Some(part) => self.presentation.apply_control(part, attr),
            None if report::is_report(inode) => self.presentation.apply_control(self.trees.view_name(), attr),
            None => self.presentation.apply(attr),
        };
        (timeout, shown)
    }
}

/// Returns true if `name` in directory `parent` is the control directory of a read-only mount.
pub(super) fn is_control(parent: INodeNo, name: &OsStr) -> bool {
    parent.0 == ROOT && name == icechunkfs_views::views::report::DIRECTORY
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File => FileType::RegularFile,
    }
}
