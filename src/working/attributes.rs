//! What `stat` says of anything in the working tree.

use crate::error::Result;
use crate::scratch::record::{Id, Meta, Source, Time};
use crate::tree::nodes::Place;
use crate::tree::{self, Kind};

use super::state::{Inode, Node};
use super::{Base, Locked, WorkingTree, no_such};

/// File type bits of a mode.
pub const TYPE_BITS: u32 = libc::S_IFMT;

/// What `stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode number.
    pub number: u64,
    /// File type bits of the mode.
    pub kind: u32,
    /// Bytes of a file or symbolic link.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Names it has.
    pub links: u32,
    /// Device number.
    pub rdev: u32,
    /// Everything else.
    pub meta: Meta,
}

impl Attributes {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == libc::S_IFDIR
    }
}

impl Base {
    /// The attributes of what only the snapshot has.
    pub fn attributes(&self, lower: tree::Attributes) -> Attributes {
        let (kind, mode) = match lower.kind {
            Kind::Directory => (libc::S_IFDIR, 0o755),
            Kind::File => (libc::S_IFREG, 0o644),
        };
        let meta = self.meta(mode);
        let blocks = lower.size.div_ceil(512);
        // One name for directories too, which says "not counted": tools then do not conclude from it that there are no
        // subdirectories.
        Attributes { number: lower.inode, kind, size: lower.size, blocks, links: 1, rdev: 0, meta }
    }

    /// The attributes that everything in the snapshot has.
    pub fn meta(&self, mode: u16) -> Meta {
        let Base { uid, gid, time, .. } = *self;
        Meta { mode, uid, gid, atime: time, mtime: time, ctime: time }
    }

    /// The attributes of a place of the snapshot with which it is promoted.
    pub fn meta_of(&self, place: &Place) -> Meta {
        self.meta(if self.tree.is_directory_place(place) { 0o755 } else { 0o644 })
    }
}

/// Attributes as far as they are in memory, and where the rest is.
pub(super) enum Partly {
    /// All of them.
    Whole(Attributes),
    /// The size is that of this place of the snapshot.
    SizeOfLower(Attributes, Place),
    /// Size and times are those of this data file.
    OfData(Attributes, u64),
}

impl Inode {
    /// What is in memory of the attributes.
    pub(super) fn attributes(&self) -> Partly {
        let links = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let mut whole =
            Attributes { number: self.number, kind: 0, size: 0, blocks: 0, links, rdev: 0, meta: self.meta };
        match &self.node {
            // With the snapshot's entries below it is "not counted", as in a read-only mount.
            Node::Directory(directory) if self.lower.is_none() => {
                (whole.kind, whole.links) = (libc::S_IFDIR, directory.directories().saturating_add(2));
            }
            Node::Directory(_) => (whole.kind, whole.links) = (libc::S_IFDIR, 1),
            Node::Symlink(target) => (whole.kind, whole.size) = (libc::S_IFLNK, target.0.len() as u64),
            Node::Special { kind, rdev } => (whole.kind, whole.rdev) = (*kind, *rdev),
            Node::File(source) => {
                whole.kind = libc::S_IFREG;
                match (source, &self.lower) {
                    (Source::Data(number), _) => return Partly::OfData(whole, *number),
                    (Source::Stored(stored), _) => whole.size = stored.0.length(),
                    (Source::Lower, Some(place)) => return Partly::SizeOfLower(whole, place.clone()),
                    (Source::Lower, None) => {}
                }
            }
        }
        whole.blocks = whole.size.div_ceil(512);
        Partly::Whole(whole)
    }
}

impl WorkingTree {
    /// The attributes of inode `number`.
    pub async fn attributes(&self, number: u64) -> Result<Attributes> {
        let partly = {
            let locked = self.lock();
            locked.state.by_number(number).map(|id| self.partly(&locked, id))
        };
        match partly {
            Some(partly) => self.complete(partly?).await,
            None => {
                let base = self.base();
                Ok(base.attributes(base.tree.attributes(number).await?))
            }
        }
    }

    /// The attributes of inode `id`.
    pub(super) async fn attributes_of(&self, id: Id) -> Result<Attributes> {
        let partly = self.partly(&self.lock(), id)?;
        self.complete(partly).await
    }

    fn partly(&self, locked: &Locked, id: Id) -> Result<Partly> {
        let inode = locked.state.get(id).ok_or_else(|| no_such(id))?;
        Ok(match (inode.attributes(), locked.opens.partial_size(inode.number)) {
            // Bytes that were written over those of the snapshot, of which some are still there.
            (Partly::SizeOfLower(whole, _), Some(size)) => {
                Partly::Whole(Attributes { size, blocks: size.div_ceil(512), ..whole })
            }
            (other, _) => other,
        })
    }

    async fn complete(&self, partly: Partly) -> Result<Attributes> {
        match partly {
            Partly::Whole(attributes) => Ok(attributes),
            Partly::SizeOfLower(whole, place) => {
                let base = self.base();
                let lower = base.tree.attributes(base.tree.table().inode(&place)).await?;
                Ok(Attributes { size: lower.size, blocks: lower.size.div_ceil(512), ..whole })
            }
            Partly::OfData(mut whole, number) => {
                // A file whose bytes somebody has removed can still be removed, replaced and moved. Reading it says what is wrong.
                let Some(stat) = self.files.find(number)? else { return Ok(whole) };
                (whole.size, whole.blocks) = (stat.size, stat.blocks);
                whole.meta.mtime = stat.mtime;
                whole.meta.ctime = whole.meta.ctime.max(stat.ctime);
                Ok(whole)
            }
        }
    }

    /// Now, as far as a change of `id` is concerned: never the time it had.
    pub(super) fn now() -> Time {
        Time::now()
    }
}
