//! Attributes and times in the kernel's terms.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

use super::wire;
use icechunkfs_tree::tree::{self, Kind};
use icechunkfs_working::overlay::attributes::Attributes;
use icechunkfs_working::scratch::record::Time;

/// Timeout of a cached reply; the kernel cuts it to its maximum.
pub(super) const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// Block size that `stat` recommends, in bytes.
pub(super) const BLOCK: u32 = 4096;

/// Returns the attributes of an inode of a working tree.
pub(super) fn attr(of: &Attributes) -> FileAttr {
    let time = |Time(seconds, nanos): Time| wire::time(seconds, nanos);
    let kind = match of.kind {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    };
    FileAttr {
        ino: INodeNo(of.number.0),
        size: of.size,
        blocks: of.blocks,
        atime: time(of.meta.atime),
        mtime: time(of.meta.mtime),
        ctime: time(of.meta.ctime),
        crtime: time(of.meta.ctime),
        kind,
        perm: of.meta.mode,
        nlink: of.links,
        uid: of.meta.uid,
        gid: of.meta.gid,
        rdev: of.rdev,
        blksize: BLOCK,
        flags: 0,
    }
}

/// Owner of every file of a snapshot: the user and group of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotOwner {
    uid: u32,
    gid: u32,
}

impl Default for SnapshotOwner {
    fn default() -> Self {
        SnapshotOwner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }
}

impl SnapshotOwner {
    /// Returns the attributes of a file or directory of a snapshot, of which `allocated` bytes are
    /// stored.
    pub(super) fn attr(self, of: tree::Attributes, time: SystemTime, allocated: u64) -> FileAttr {
        FileAttr {
            ino: INodeNo(of.inode.0),
            size: of.size,
            blocks: allocated.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: file_type(of.kind),
            perm: match of.kind {
                Kind::Directory => 0o755,
                Kind::File => 0o644,
            },
            // One name for directories too means that subdirectories are not counted.
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File => FileType::RegularFile,
    }
}

pub(super) fn time(of: TimeOrNow) -> Time {
    match of {
        TimeOrNow::Now => Time::now(),
        TimeOrNow::SpecificTime(at) => {
            let (seconds, nanos) = wire::parts(at);
            Time(seconds, nanos)
        }
    }
}
