//! Attributes of inodes in the working tree, as `stat` returns them.

use std::sync::Arc;

use super::node::Inode;
use super::upper::Upper;
use super::{Base, Ino, Locked, gone, no_such};
use crate::scratch::record::{Body, DataFileId, EntryId, Meta, Source};
use icechunkfs_base::error::Result;
use icechunkfs_tree::tree::nodes::TreePlace;
use icechunkfs_tree::tree::{self, Kind};

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub number: Ino,
    /// File type bits of the mode.
    pub kind: u32,
    /// Bytes of a file or symbolic link.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Number of names.
    pub links: u32,
    /// Device number.
    pub rdev: u32,
    /// Mode, owner and times.
    pub meta: Meta,
}

impl Attributes {
    pub(super) fn sized(self, size: u64) -> Self {
        Attributes { size, blocks: size.div_ceil(512), ..self }
    }
}

impl Base {
    /// Returns the attributes of an entry that only the base has.
    pub fn attributes(&self, lower: tree::Attributes) -> Attributes {
        let (kind, mode) = match lower.kind {
            Kind::Directory => (libc::S_IFDIR, 0o755),
            Kind::File => (libc::S_IFREG, 0o644),
        };
        let meta = self.meta(mode);
        let blocks = lower.size.div_ceil(512);
        // One name for directories too means "not counted": tools then do not conclude that there
        // are no subdirectories.
        Attributes { number: lower.inode, kind, size: lower.size, blocks, links: 1, rdev: 0, meta }
    }

    /// Returns the attributes that everything in the base has, with `mode`.
    pub fn meta(&self, mode: u16) -> Meta {
        let Base { uid, gid, time, .. } = *self;
        Meta { mode, uid, gid, atime: time, mtime: time, ctime: time }
    }

    /// Returns the attributes with which a place of the base is promoted.
    pub fn meta_of(&self, place: &TreePlace) -> Meta {
        self.meta(if self.tree.is_directory_place(place) { 0o755 } else { 0o644 })
    }
}

/// Attributes as far as they are in memory, and the location of the rest.
pub(super) enum PartialAttributes {
    /// All attributes.
    Whole(Attributes),
    /// All but the size, which is that of a place of the base.
    SizeOfLower(Attributes, TreePlace),
    /// All but size and times, which are those of a data file.
    OfData(Attributes, DataFileId),
}

impl PartialAttributes {
    fn whole_mut(&mut self) -> &mut Attributes {
        match self {
            PartialAttributes::Whole(whole)
            | PartialAttributes::SizeOfLower(whole, _)
            | PartialAttributes::OfData(whole, _) => whole,
        }
    }
}

impl Inode {
    /// Returns the attributes that are in memory.
    pub(super) fn attributes(&self) -> PartialAttributes {
        let links = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let mut whole =
            Attributes { number: self.number, kind: 0, size: 0, blocks: 0, links, rdev: 0, meta: self.meta };
        match &self.body {
            Body::Directory => {
                // With entries of the base, the link count is "not counted", as in a read-only
                // mount.
                let counted = self.directory().filter(|_| self.lower.is_none());
                whole.links = counted.map_or(1, |directory| directory.directories().saturating_add(2));
                whole.kind = libc::S_IFDIR;
            }
            Body::Symlink(target) => (whole.kind, whole.size) = (libc::S_IFLNK, target.0.len() as u64),
            Body::Special { kind, rdev } => (whole.kind, whole.rdev) = (*kind, *rdev),
            Body::File(source) => {
                whole.kind = libc::S_IFREG;
                match (source, &self.lower) {
                    (Source::Data(number), _) => return PartialAttributes::OfData(whole, *number),
                    (Source::Stored(stored), _) => whole.size = stored.0.length(),
                    (Source::Lower, Some(place)) => return PartialAttributes::SizeOfLower(whole, place.clone()),
                    (Source::Lower, None) => {}
                }
            }
        }
        whole.blocks = whole.size.div_ceil(512);
        PartialAttributes::Whole(whole)
    }
}

impl Locked {
    /// Returns the size of a file that is being overwritten.
    fn partial_size(&self, number: Ino) -> Option<u64> {
        let partial = self.open_files.get(&number)?.partial.as_ref()?;
        Some(partial.covered.max(partial.old_size))
    }

    /// Returns the attributes that are in memory.
    fn partial_attributes(&self, id: EntryId) -> Result<PartialAttributes> {
        let inode = self.state.get(id).ok_or_else(|| no_such(id))?;
        let mut known = inode.attributes();
        if self.kernel.is_old_version(inode.number) {
            // The kernel refuses links to a file that has no name, and the name that it knows is
            // another file's.
            known.whole_mut().links = 1;
        }
        Ok(match (known, self.partial_size(inode.number)) {
            // The file is being overwritten from its beginning, and the rest is still the base's.
            (PartialAttributes::SizeOfLower(whole, _), Some(size)) => PartialAttributes::Whole(whole.sized(size)),
            (other, _) => other,
        })
    }
}

impl Upper {
    /// Returns the attributes of inode `number`.
    pub async fn attributes(&self, number: Ino) -> Result<Attributes> {
        let (partly, base) = {
            let locked = self.lock();
            let partly = locked.state.by_number(number).map(|id| locked.partial_attributes(id));
            (partly, Arc::clone(&locked.base))
        };
        match partly {
            Some(partly) => self.complete(partly?, &base).await,
            None if !number.is_of_base() => Err(gone(number)),
            // One of an array's former grid has another number by its name.
            None => Ok(Attributes { number, ..base.attributes(base.tree.attributes(number).await?) }),
        }
    }

    pub(super) async fn attributes_of(&self, id: EntryId) -> Result<Attributes> {
        let (partly, base) = {
            let locked = self.lock();
            (locked.partial_attributes(id)?, Arc::clone(&locked.base))
        };
        self.complete(partly, &base).await
    }

    /// Returns the attributes of `id` for a listing, and whether the size is known; none if there
    /// is no such inode.
    pub(super) async fn listed_attributes(&self, id: EntryId) -> Option<(Attributes, bool)> {
        let (partly, base) = {
            let locked = self.lock();
            (locked.partial_attributes(id).ok()?, Arc::clone(&locked.base))
        };
        let known = match &partly {
            PartialAttributes::Whole(known)
            | PartialAttributes::SizeOfLower(known, _)
            | PartialAttributes::OfData(known, _) => *known,
        };
        Some(self.complete(partly, &base).await.map_or((known, false), |attributes| (attributes, true)))
    }

    /// Returns the attributes of `id` like [`Upper::listed_attributes`], without waiting.
    pub(super) fn listed_attributes_now(&self, id: EntryId) -> Option<(Attributes, bool)> {
        let partly = self.lock().partial_attributes(id).ok()?;
        Some(match partly {
            PartialAttributes::Whole(whole) => (whole, true),
            PartialAttributes::SizeOfLower(whole, _) => (whole, false),
            PartialAttributes::OfData(whole, number) => {
                self.with_data(whole, number).map_or((whole, false), |attributes| (attributes, true))
            }
        })
    }

    /// Returns `whole` with size and times of data file `number`.
    fn with_data(&self, mut whole: Attributes, number: DataFileId) -> Result<Attributes> {
        // A file whose bytes were removed can still be removed, replaced and moved. Reading it
        // reports the loss.
        let Some(stat) = self.files.find(number)? else { return Ok(whole) };
        (whole.size, whole.blocks) = (stat.size, stat.blocks);
        whole.meta.mtime = stat.mtime;
        whole.meta.ctime = whole.meta.ctime.max(stat.ctime);
        Ok(whole)
    }

    /// Completes attributes of a time at which `base` was the base.
    async fn complete(&self, partly: PartialAttributes, base: &Base) -> Result<Attributes> {
        match partly {
            PartialAttributes::Whole(attributes) => Ok(attributes),
            PartialAttributes::SizeOfLower(whole, place) => {
                let lower = base.tree.attributes(base.tree.table().inode(&place)).await?;
                Ok(whole.sized(lower.size))
            }
            PartialAttributes::OfData(whole, number) => self.with_data(whole, number),
        }
    }
}
