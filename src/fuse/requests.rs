//! Requests of the kernel as the adapters answer them, whichever way they come: [`super::device`]
//! takes them from fuser, [`super::ring_requests`] from rings. Methods have the names of fuser's,
//! and only the arguments that an adapter needs, with faces for inodes.
//!
//! A request that an adapter does not implement is answered `ENOSYS`: the kernel then stops asking,
//! or makes do without. These are, in both adapters: access lists, checks of access (the kernel
//! checks modes by itself), changes of extended attributes, locks (the kernel's own are right for
//! one machine), and waiting for files. The kernel sends `ioctl` each time all the same (Python
//! asks whether each file is a terminal); the answer is immediate.

use std::ffi::OsStr;
use std::path::Path;

use fuser::{Errno, FileHandle, INodeNo, KernelConfig, OpenFlags, RenameFlags, TimeOrNow};

use super::face::Face;
use super::reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

/// Program that makes a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// User of the program.
    pub(super) uid: u32,
    /// Group of the program.
    pub(super) gid: u32,
}

/// Attributes to be set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewAttributes {
    /// Type and permissions.
    pub(super) mode: Option<u32>,
    /// Owner.
    pub(super) uid: Option<u32>,
    /// Group.
    pub(super) gid: Option<u32>,
    /// Length in bytes.
    pub(super) size: Option<u64>,
    /// Time of the last access.
    pub(super) atime: Option<TimeOrNow>,
    /// Time of the last change of the content.
    pub(super) mtime: Option<TimeOrNow>,
}

/// Place of bytes in an open file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileBytes {
    /// File.
    pub(super) face: Face,
    /// First byte.
    pub(super) offset: u64,
}

macro_rules! requests {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $reply:ty;)*) => {
        /// Answers to the requests of a mount.
        pub(super) trait Requests: Send + Sync + 'static {
            /// Negotiates with the kernel when the mount begins.
            fn init(&mut self, config: &mut KernelConfig) -> std::io::Result<()>;

            /// Decides what answers requests on an inode. Each request asks this once, before it
            /// is passed on.
            fn face(&self, inode: INodeNo) -> Face;

            /// Gives back so many look-ups of an inode.
            fn forget(&self, _face: Face, _times: u64) {}

            $(
                $(#[$doc])*
                fn $name(&self, $($argument: $type,)* reply: $reply) {
                    $(let _ = $argument;)*
                    reply.error(Errno::ENOSYS);
                }
            )*
        }
    };
}

requests! {
    /// Looks a name up.
    fn lookup(parent: Face, name: &OsStr) -> ReplyEntry;
    /// Returns attributes.
    fn getattr(face: Face) -> ReplyAttr;
    /// Sets attributes.
    fn setattr(face: Face, attributes: NewAttributes) -> ReplyAttr;
    /// Returns the target of a symbolic link.
    fn readlink(face: Face) -> ReplyData;
    /// Makes a file of any type but a directory or a symbolic link.
    fn mknod(caller: Caller, parent: Face, name: &OsStr, mode: u32, rdev: u32) -> ReplyEntry;
    /// Makes a directory.
    fn mkdir(caller: Caller, parent: Face, name: &OsStr, mode: u32) -> ReplyEntry;
    /// Makes a symbolic link.
    fn symlink(caller: Caller, parent: Face, name: &OsStr, target: &Path) -> ReplyEntry;
    /// Removes a name of a file.
    fn unlink(parent: Face, name: &OsStr) -> ReplyEmpty;
    /// Removes a directory.
    fn rmdir(parent: Face, name: &OsStr) -> ReplyEmpty;
    /// Renames.
    fn rename(parent: Face, name: &OsStr, new_parent: Face, new_name: &OsStr, flags: RenameFlags) -> ReplyEmpty;
    /// Gives a file one more name.
    fn link(face: Face, parent: Face, name: &OsStr) -> ReplyEntry;
    /// Makes a file and opens it.
    fn create(caller: Caller, parent: Face, name: &OsStr, mode: u32, flags: i32) -> ReplyCreate;
    /// Opens a file.
    fn open(face: Face, flags: OpenFlags) -> ReplyOpen;
    /// Ends an open.
    fn release(face: Face, handle: FileHandle) -> ReplyEmpty;
    /// Reads.
    fn read(face: Face, handle: FileHandle, offset: u64, size: u32) -> ReplyData;
    /// Writes.
    fn write(face: Face, handle: FileHandle, offset: u64, data: &[u8]) -> ReplyWrite;
    /// Ends one use of an open, as `close` does.
    fn flush(face: Face) -> ReplyEmpty;
    /// Makes what was written to a file lasting.
    fn fsync(face: Face) -> ReplyEmpty;
    /// Opens a directory.
    fn opendir(face: Face) -> ReplyOpen;
    /// Ends an open of a directory.
    fn releasedir(handle: FileHandle) -> ReplyEmpty;
    /// Makes the changes in a directory lasting.
    fn fsyncdir(face: Face) -> ReplyEmpty;
    /// Lists names after `offset`.
    fn readdir(face: Face, handle: FileHandle, offset: u64) -> ReplyDirectory;
    /// Lists names and attributes after `offset`.
    fn readdirplus(face: Face, handle: FileHandle, offset: u64) -> ReplyDirectoryPlus;
    /// Returns the room of the file system.
    fn statfs() -> ReplyStatfs;
    /// Allocates or frees room of a file.
    fn fallocate(face: Face, offset: u64, length: u64, mode: i32) -> ReplyEmpty;
    /// Finds data or a hole.
    fn lseek(face: Face, offset: i64, whence: i32) -> ReplyLseek;
    /// Copies bytes between files.
    fn copy_file_range(from: FileBytes, to: FileBytes, length: u64) -> ReplyWrite;
    /// Returns an extended attribute, for a program that has room for `size` bytes.
    fn getxattr(face: Face, name: &OsStr, size: u32) -> ReplyXattr;
    /// Lists the names of extended attributes, for a program that has room for `size` bytes.
    fn listxattr(face: Face, size: u32) -> ReplyXattr;
}
