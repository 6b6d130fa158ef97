//! Requests on attached trees ([`icechunkfs_views::attached`]), which every mount has: both
//! adapters answer them here.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileAttr, INodeNo};

use super::face::AttachedIno;
use super::file_attr::{FOREVER, SnapshotOwner, file_type};
use super::presentation::Presentation;
use super::reply::{ReplyDirectory, ReplyDirectoryPlus};
use super::xattr::{self, Xattr};
use icechunkfs_base::error::Result;
use icechunkfs_repo::reader::Data;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_tree::tree::{Attributes, Kind};
use icechunkfs_views::attached::{AttachedTrees, Found, Listed, NativeFile};
use icechunkfs_views::control_directory;
use icechunkfs_views::views::report;

/// Attached trees, in the kernel's terms.
#[derive(Debug)]
pub(super) struct AttachedFiles {
    trees: Arc<AttachedTrees>,
    owner: SnapshotOwner,
    presentation: Presentation,
}

impl AttachedFiles {
    pub(super) fn new(trees: Arc<AttachedTrees>, presentation: Presentation) -> Self {
        AttachedFiles { trees, owner: SnapshotOwner::default(), presentation }
    }

    pub(super) fn trees(&self) -> &Arc<AttachedTrees> {
        &self.trees
    }

    /// Returns the control directory that the root of a read-only mount has.
    pub(super) fn control(&self) -> Option<(Duration, FileAttr)> {
        self.trees.control().map(|found| self.timed(&found))
    }

    pub(super) async fn lookup(&self, parent: AttachedIno, name: &OsStr) -> Result<(Duration, FileAttr)> {
        // Every name in a snapshot is UTF-8.
        let found = match name.to_str() {
            Some(name) => self.trees.lookup(parent.number(), name).await?,
            None => None,
        };
        // Number 0 is a negative entry. What a name means may change, so that the kernel may not
        // cache it.
        let none = Attributes { inode: Ino(0), kind: Kind::File, size: 0 };
        let absent = || (Duration::ZERO, self.timed(&Found::fixed(none, UNIX_EPOCH)).1);
        Ok(found.map_or_else(absent, |found| self.timed(&found)))
    }

    pub(super) async fn attributes(&self, number: AttachedIno) -> Result<(Duration, FileAttr)> {
        self.directory(number.number()).await
    }

    /// Returns the attributes of directory `number`, which a writable mount has among its control
    /// files.
    pub(super) async fn directory(&self, number: Ino) -> Result<(Duration, FileAttr)> {
        Ok(self.timed(&self.trees.attributes(number).await?))
    }

    pub(super) async fn native(&self, number: AttachedIno) -> Result<Option<NativeFile>> {
        self.trees.native(number.number()).await
    }

    pub(super) fn describe(&self, number: AttachedIno) -> String {
        self.trees.describe(number.number())
    }

    pub(super) async fn read(&self, number: AttachedIno, offset: u64, size: u32) -> Result<Data> {
        self.trees.read(number.number(), offset, size).await
    }

    pub(super) async fn list(&self, number: AttachedIno, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        let mut sink = |entry: Listed<'_>| {
            let Attributes { inode, kind, .. } = entry.found.attributes;
            !reply.add(INodeNo(inode.0), entry.offset, file_type(kind), entry.name)
        };
        self.trees.list(number.number(), offset, Extent::Names, &mut sink).await
    }

    pub(super) async fn list_with_attributes(
        &self,
        number: AttachedIno,
        offset: u64,
        extent: Extent,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<()> {
        let mut sink = |entry: Listed<'_>| {
            let (timeout, attr) = self.timed(&entry.found);
            !reply.add(entry.offset, entry.name, &timeout, &attr)
        };
        self.trees.list(number.number(), offset, extent, &mut sink).await
    }

    /// Returns an extended attribute of a file of a tree; `found` is as [`AttachedTrees::native`]
    /// returns it.
    pub(super) async fn xattr(&self, xattr: Xattr, found: Option<&NativeFile>) -> Result<Option<String>> {
        let Some((tree, number, reference)) = found else { return Ok(None) };
        let reference = reference.clone().unwrap_or_else(|| self.trees.facts().spec.to_string());
        xattr::value(xattr, tree, *number, &reference).await
    }

    fn timed(&self, found: &Found) -> (Duration, FileAttr) {
        let inode = found.attributes.inode;
        let attr = self.owner.attr(found.attributes, found.time, found.allocated);
        let shown = match control_directory::part_of(inode) {
            Some(part) => self.presentation.apply_control(part, attr),
            None if report::is_report(inode) => self.presentation.apply_control(self.trees.view_name(), attr),
            None => self.presentation.apply(attr),
        };
        (found.valid.unwrap_or(FOREVER), shown)
    }
}
