//! Replies to requests, whichever way these came: through `/dev/fuse` and fuser, or through a ring
//! ([`super::ring`]). Methods have the names of fuser's. A reply that is dropped answers `EIO`.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::time::Duration;

use fuser::{BackingId, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo};

use super::ring::Slot;
use super::wire::{Dirent, Encoder, append_entry};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_working::overlay::generations::generation_of;

macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) enum $name {
            /// Through fuser.
            Device(fuser::$name),
            /// Through a ring.
            Ring(Slot),
        }

        impl $name {
            /// Answers with an error.
            pub(super) fn error(self, errno: Errno) {
                match self {
                    $name::Device(reply) => reply.error(errno),
                    $name::Ring(slot) => slot.error(errno.code()),
                }
            }
        }

        impl From<fuser::$name> for $name {
            fn from(reply: fuser::$name) -> Self {
                $name::Device(reply)
            }
        }

        impl From<Slot> for $name {
            fn from(slot: Slot) -> Self {
                $name::Ring(slot)
            }
        }
    )*};
}

replies! {
    /// Reply without content.
    ReplyEmpty;
    /// Reply with attributes.
    ReplyAttr;
    /// Reply with an entry of a directory.
    ReplyEntry;
    /// Reply with bytes.
    ReplyData;
    /// Reply with a handle.
    ReplyOpen;
    /// Reply with a new entry and its handle.
    ReplyCreate;
    /// Reply with a number of bytes.
    ReplyWrite;
    /// Reply with the room of the file system.
    ReplyStatfs;
    /// Reply with an extended attribute.
    ReplyXattr;
    /// Reply with a position.
    ReplyLseek;
}

impl ReplyEmpty {
    /// Answers with success.
    pub(super) fn ok(self) {
        match self {
            ReplyEmpty::Device(reply) => reply.ok(),
            ReplyEmpty::Ring(slot) => slot.short(&[]),
        }
    }
}

impl ReplyAttr {
    /// Answers with attributes, which the kernel may cache for a time.
    pub(super) fn attr(self, valid: &Duration, attr: &FileAttr) {
        match self {
            ReplyAttr::Device(reply) => reply.attr(valid, attr),
            ReplyAttr::Ring(slot) => slot.short(Encoder::default().attr_out(valid, attr).bytes()),
        }
    }
}

impl ReplyEntry {
    /// Answers with an entry, which the kernel may cache for a time.
    pub(super) fn entry(self, valid: &Duration, attr: &FileAttr) {
        match self {
            ReplyEntry::Device(reply) => reply.entry(valid, attr, generation(attr)),
            ReplyEntry::Ring(slot) => slot.short(Encoder::default().entry_out(valid, attr).bytes()),
        }
    }
}

impl ReplyData {
    /// Answers with bytes.
    pub(super) fn data(self, bytes: &[u8]) {
        match self {
            ReplyData::Device(reply) => reply.data(bytes),
            ReplyData::Ring(slot) => slot.data(bytes),
        }
    }
}

/// Returns the error of passthrough where the kernel has none: a mount with rings is never made
/// with it.
fn no_backing() -> std::io::Error {
    std::io::Error::from(std::io::ErrorKind::Unsupported)
}

impl ReplyOpen {
    /// Answers with a handle.
    pub(super) fn opened(self, handle: FileHandle, flags: FopenFlags) {
        match self {
            ReplyOpen::Device(reply) => reply.opened(handle, flags),
            ReplyOpen::Ring(slot) => slot.short(Encoder::default().open_out(handle.0, flags).bytes()),
        }
    }

    /// Registers a file that the kernel will read by itself.
    pub(super) fn open_backing(&self, file: impl AsFd) -> std::io::Result<BackingId> {
        match self {
            ReplyOpen::Device(reply) => reply.open_backing(file),
            ReplyOpen::Ring(_) => Err(no_backing()),
        }
    }

    /// Answers with a handle of a file that the kernel reads by itself.
    pub(super) fn opened_passthrough(self, handle: FileHandle, flags: FopenFlags, backing: &BackingId) {
        match self {
            ReplyOpen::Device(reply) => reply.opened_passthrough(handle, flags, backing),
            ReplyOpen::Ring(slot) => slot.error(libc::EIO),
        }
    }
}

impl ReplyCreate {
    /// Answers with a new entry, which the kernel may cache for a time, and a handle.
    pub(super) fn created(self, valid: &Duration, attr: &FileAttr, handle: FileHandle, flags: FopenFlags) {
        match self {
            ReplyCreate::Device(reply) => reply.created(valid, attr, generation(attr), handle, flags),
            ReplyCreate::Ring(slot) => {
                slot.short(Encoder::default().entry_out(valid, attr).open_out(handle.0, flags).bytes());
            }
        }
    }

    /// Registers a file that the kernel will read and write by itself.
    pub(super) fn open_backing(&self, file: impl AsFd) -> std::io::Result<BackingId> {
        match self {
            ReplyCreate::Device(reply) => reply.open_backing(file),
            ReplyCreate::Ring(_) => Err(no_backing()),
        }
    }

    /// Answers with a new entry and the handle of a file that the kernel reads and writes by
    /// itself.
    pub(super) fn created_passthrough(
        self,
        valid: &Duration,
        attr: &FileAttr,
        handle: FileHandle,
        flags: FopenFlags,
        backing: &BackingId,
    ) {
        match self {
            ReplyCreate::Device(reply) => {
                reply.created_passthrough(valid, attr, generation(attr), handle, flags, backing)
            }
            ReplyCreate::Ring(slot) => slot.error(libc::EIO),
        }
    }
}

impl ReplyWrite {
    /// Answers with the number of bytes that were written.
    pub(super) fn written(self, count: u32) {
        match self {
            ReplyWrite::Device(reply) => reply.written(count),
            ReplyWrite::Ring(slot) => slot.short(Encoder::default().u32(count).u32(0).bytes()),
        }
    }
}

/// Room of a file system, in blocks, and its files.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// Blocks in sum, free ones, and those that are free for users.
    pub(super) blocks: (u64, u64, u64),
    /// Files in sum, and those that can be made.
    pub(super) files: (u64, u64),
    /// Bytes of a block.
    pub(super) block: u32,
    /// Bytes of a name, at most.
    pub(super) longest_name: u32,
}

impl ReplyStatfs {
    /// Answers with the room of the file system.
    pub(super) fn statfs(self, room: &Room) {
        let Room { blocks: (blocks, free, available), files: (files, free_files), block, longest_name } = *room;
        match self {
            ReplyStatfs::Device(reply) => {
                reply.statfs(blocks, free, available, files, free_files, block, longest_name, block);
            }
            ReplyStatfs::Ring(slot) => {
                let numbers = Encoder::default().u64(blocks).u64(free).u64(available).u64(files).u64(free_files);
                let spare = (0..7).fold(numbers.u32(block).u32(longest_name).u32(block), |numbers, _| numbers.u32(0));
                slot.short(spare.bytes());
            }
        }
    }
}

impl ReplyXattr {
    /// Answers with the length of the value.
    pub(super) fn size(self, size: u32) {
        match self {
            ReplyXattr::Device(reply) => reply.size(size),
            ReplyXattr::Ring(slot) => slot.short(Encoder::default().u32(size).u32(0).bytes()),
        }
    }

    /// Answers with the value.
    pub(super) fn data(self, bytes: &[u8]) {
        match self {
            ReplyXattr::Device(reply) => reply.data(bytes),
            ReplyXattr::Ring(slot) => slot.data(bytes),
        }
    }
}

impl ReplyLseek {
    /// Answers with a position.
    pub(super) fn offset(self, offset: i64) {
        match self {
            ReplyLseek::Device(reply) => reply.offset(offset),
            ReplyLseek::Ring(slot) => slot.short(Encoder::default().u64(offset.cast_unsigned()).bytes()),
        }
    }
}

/// Listing in the memory of a ring.
#[derive(Debug)]
pub(super) struct RingListing {
    slot: Slot,
    used: usize,
    room: usize,
}

impl RingListing {
    /// Begins a listing of at most `room` bytes.
    pub(super) fn new(slot: Slot, room: u32) -> Self {
        RingListing { slot, used: 0, room: room as usize }
    }

    /// Adds an entry after `before`. Returns true if there is no room for it.
    fn add(&mut self, before: &Encoder, entry: Dirent<'_>) -> bool {
        let used = append_entry(self.slot.payload(), self.used, self.room, before, entry);
        self.used = used.unwrap_or(self.used);
        used.is_none()
    }
}

macro_rules! listings {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) enum $name {
            /// Through fuser.
            Device(fuser::$name),
            /// Through a ring.
            Ring(RingListing),
        }

        impl $name {
            /// Answers with the entries.
            pub(super) fn ok(self) {
                match self {
                    $name::Device(reply) => reply.ok(),
                    $name::Ring(RingListing { slot, used, .. }) => slot.filled(used),
                }
            }

            /// Answers with an error.
            pub(super) fn error(self, errno: Errno) {
                match self {
                    $name::Device(reply) => reply.error(errno),
                    $name::Ring(RingListing { slot, .. }) => slot.error(errno.code()),
                }
            }
        }

        impl From<fuser::$name> for $name {
            fn from(reply: fuser::$name) -> Self {
                $name::Device(reply)
            }
        }
    )*};
}

listings! {
    /// Reply with names.
    ReplyDirectory;
    /// Reply with names and attributes.
    ReplyDirectoryPlus;
}

impl ReplyDirectory {
    /// Adds an entry; the listing goes on after `offset`. Returns true if there is no room for it.
    pub(super) fn add(&mut self, inode: INodeNo, offset: u64, kind: FileType, name: impl AsRef<OsStr>) -> bool {
        match self {
            ReplyDirectory::Device(reply) => reply.add(inode, offset, kind, name),
            ReplyDirectory::Ring(listing) => {
                let entry = Dirent { inode, offset, kind, name: name.as_ref() };
                listing.add(&Encoder::default(), entry)
            }
        }
    }
}

impl ReplyDirectoryPlus {
    /// Adds an entry with attributes, which the kernel may cache for a time; the listing goes on
    /// after `offset`. Returns true if there is no room for it.
    pub(super) fn add(&mut self, offset: u64, name: impl AsRef<OsStr>, valid: &Duration, attr: &FileAttr) -> bool {
        match self {
            ReplyDirectoryPlus::Device(reply) => reply.add(attr.ino, offset, name, valid, attr, generation(attr)),
            ReplyDirectoryPlus::Ring(listing) => {
                let before = Encoder::default().entry_out(valid, attr);
                let entry = Dirent { inode: attr.ino, offset, kind: attr.kind, name: name.as_ref() };
                listing.add(&before, entry)
            }
        }
    }
}

fn generation(of: &FileAttr) -> Generation {
    Generation(generation_of(Ino(of.ino.0)))
}
