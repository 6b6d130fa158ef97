//! Numbers of the kernel's protocol (`include/uapi/linux/fuse.h`, 7.42), and replies in its form,
//! for requests that do not come through fuser. All numbers are in the byte order of the machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, FopenFlags, INodeNo};

pub(super) use icechunkfs_base::native_numbers::{u32_at, u64_at};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_working::overlay::generations::generation_of;

/// Operations (`fuse_opcode`).
pub(super) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
}

/// Bits of `fuse_setattr_in.valid`.
pub(super) mod valid {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
}

/// Returns the time with so many seconds and nanoseconds since the epoch.
pub(super) fn time(seconds: i64, nanos: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let at = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    at.and_then(|at| at.checked_add(Duration::from_nanos(nanos.into()))).unwrap_or(UNIX_EPOCH)
}

/// Reply that is being put together: structures one after another.
#[derive(Debug, Default)]
pub(super) struct Encoder(smallvec::SmallVec<[u8; 160]>);

impl Encoder {
    pub(super) fn u32(mut self, number: u32) -> Self {
        self.0.extend_from_slice(&number.to_ne_bytes());
        self
    }

    pub(super) fn u64(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_ne_bytes());
        self
    }

    /// Appends `fuse_attr`.
    fn attributes(self, of: &FileAttr) -> Self {
        let atime = parts(of.atime);
        let mtime = parts(of.mtime);
        let ctime = parts(of.ctime);
        self.u64(of.ino.0)
            .u64(of.size)
            .u64(of.blocks)
            .u64(atime.0.cast_unsigned())
            .u64(mtime.0.cast_unsigned())
            .u64(ctime.0.cast_unsigned())
            .u32(atime.1)
            .u32(mtime.1)
            .u32(ctime.1)
            .u32(type_bits(of.kind) | u32::from(of.perm))
            .u32(of.nlink)
            .u32(of.uid)
            .u32(of.gid)
            .u32(of.rdev)
            .u32(of.blksize)
            .u32(0)
    }

    /// Appends `fuse_attr_out`.
    pub(super) fn attr_out(self, valid: &Duration, of: &FileAttr) -> Self {
        self.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).attributes(of)
    }

    /// Appends `fuse_entry_out`.
    pub(super) fn entry_out(self, valid: &Duration, of: &FileAttr) -> Self {
        let seconds = valid.as_secs();
        let nanos = valid.subsec_nanos();
        self.u64(of.ino.0)
            .u64(generation_of(Ino(of.ino.0)))
            .u64(seconds)
            .u64(seconds)
            .u32(nanos)
            .u32(nanos)
            .attributes(of)
    }

    /// Appends `fuse_open_out`.
    pub(super) fn open_out(self, handle: u64, flags: FopenFlags) -> Self {
        self.u64(handle).u32(flags.bits()).u32(0)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Entry of a listing.
pub(super) struct Dirent<'a> {
    pub(super) inode: INodeNo,
    /// Offset from which the listing continues after it.
    pub(super) offset: u64,
    pub(super) kind: FileType,
    pub(super) name: &'a OsStr,
}

/// Appends `entry` as `fuse_dirent`, after `before`, to `payload` from `used` on. Returns the bytes
/// that are then used; none if there is no room within `room` bytes.
pub(super) fn append_entry(
    payload: &mut [u8],
    used: usize,
    room: usize,
    before: &Encoder,
    entry: Dirent<'_>,
) -> Option<usize> {
    let Dirent { inode, offset, kind, name } = entry;
    let name = name.as_bytes();
    let head =
        Encoder::default().u64(inode.0).u64(offset).u32(u32::try_from(name.len()).ok()?).u32(type_bits(kind) >> 12);
    let mut at = used;
    let end = used.checked_add(before.bytes().len() + (head.bytes().len() + name.len()).next_multiple_of(8))?;
    let padding = [0_u8; 8];
    if end > room || end > payload.len() {
        return None;
    }
    for part in [before.bytes(), head.bytes(), name, &padding] {
        let part = part.get(..part.len().min(end - at))?;
        payload.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    Some(end)
}

/// Returns seconds since the epoch, and nanoseconds after that.
pub(super) fn parts(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            let nanos = before.subsec_nanos();
            if nanos == 0 { (-seconds, 0) } else { (-seconds - 1, 1_000_000_000 - nanos) }
        }
    }
}

fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => libc::S_IFIFO,
        FileType::CharDevice => libc::S_IFCHR,
        FileType::BlockDevice => libc::S_IFBLK,
        FileType::Directory => libc::S_IFDIR,
        FileType::RegularFile => libc::S_IFREG,
        FileType::Symlink => libc::S_IFLNK,
        FileType::Socket => libc::S_IFSOCK,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file() -> FileAttr {
        let at = UNIX_EPOCH + Duration::new(3, 5);
        FileAttr {
            ino: INodeNo(11),
            size: 12,
            blocks: 13,
            atime: at,
            mtime: UNIX_EPOCH - Duration::from_millis(250),
            ctime: at,
            crtime: at,
            kind: FileType::RegularFile,
            perm: 0o640,
            nlink: 14,
            uid: 15,
            gid: 16,
            rdev: 17,
            blksize: 18,
            flags: 0,
        }
    }

    #[test]
    fn structures_have_their_lengths_and_places() {
        let valid = Duration::new(20, 21);
        let entry = Encoder::default().entry_out(&valid, &file());
        let entry = entry.bytes();
        assert_eq!(entry.len(), 128);
        assert_eq!([u64_at(entry, 0), u64_at(entry, 16), u64_at(entry, 24)], [11, 20, 20]);
        assert_eq!([u32_at(entry, 32), u32_at(entry, 36)], [21, 21]);
        let attr = Encoder::default().attr_out(&valid, &file());
        let attr = attr.bytes();
        assert_eq!(attr.len(), 104);
        assert_eq!(attr.get(16..), entry.get(40..));
        // A quarter of a second before the epoch: seconds are rounded down.
        assert_eq!((u64_at(attr, 16 + 32).cast_signed(), u32_at(attr, 16 + 52)), (-1, 750_000_000));
        let numbers: Vec<u32> = (15..22).map(|n| u32_at(attr, 16 + 4 * n)).collect();
        assert_eq!(numbers, [0o100_640, 14, 15, 16, 17, 18, 0]);
        assert_eq!(Encoder::default().open_out(1, FopenFlags::empty()).bytes().len(), 16);
        assert_eq!((parts(time(-1, 750_000_000)), parts(time(3, 5))), ((-1, 750_000_000), (3, 5)));
    }

    #[test]
    fn listings_end_where_their_room_does() {
        let mut payload = [0xff; 100];
        let name = OsStr::new("123456789");
        let before = Encoder::default();
        let add = |payload: &mut [u8], used, room| {
            let entry = Dirent { inode: INodeNo::ROOT, offset: 2, kind: FileType::Directory, name };
            append_entry(payload, used, room, &before, entry)
        };
        // 24 bytes and the name, up to a multiple of 8.
        assert_eq!(add(&mut payload, 0, 100), Some(40));
        assert_eq!(payload.get(24..41).unwrap(), b"123456789\0\0\0\0\0\0\0\xff");
        assert_eq!((u32_at(&payload, 16), u32_at(&payload, 20)), (9, 4));
        assert_eq!(
            [add(&mut payload, 40, 100), add(&mut payload, 80, 100), add(&mut payload, 40, 79)],
            [Some(80), None, None]
        );
    }
}
