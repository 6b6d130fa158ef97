//! Requests that come through rings, in the kernel's form: finds out what is asked, and passes it
//! on.
//!
//! The structures are those of `include/uapi/linux/fuse.h`; numbers of bytes in the comments are
//! their places. The kernel sends no request that this file cannot read; a shorter one reads as
//! zeros, or has no name and is refused.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fuser::{FileHandle, INodeNo, OpenFlags, RenameFlags, TimeOrNow};

use super::face::Face;
use super::reply::{ReplyDirectory, ReplyDirectoryPlus, RingListing};
use super::requests::{Caller, FileBytes, NewAttributes, Requests};
use super::ring::{Message, Slot};
use super::wire::{opcode, time, u32_at, u64_at, valid};

/// Operation's header.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn u32(&self, at: usize) -> u32 {
        u32_at(self.0, at)
    }

    fn i32(&self, at: usize) -> i32 {
        u32_at(self.0, at).cast_signed()
    }

    fn u64(&self, at: usize) -> u64 {
        u64_at(self.0, at)
    }

    /// Returns the handle that most headers begin with.
    fn handle(&self) -> FileHandle {
        FileHandle(self.u64(0))
    }

    /// Reads `fuse_setattr_in`.
    fn new_attributes(&self) -> NewAttributes {
        let flags = self.u32(0);
        let given = |flag| flags & flag != 0;
        let time_of = |flag, now, seconds, nanos| match given(flag) {
            true if given(now) => Some(TimeOrNow::Now),
            true => Some(TimeOrNow::SpecificTime(time(self.u64(seconds).cast_signed(), self.u32(nanos)))),
            false => None,
        };
        NewAttributes {
            mode: given(valid::MODE).then(|| self.u32(68)),
            uid: given(valid::UID).then(|| self.u32(76)),
            gid: given(valid::GID).then(|| self.u32(80)),
            size: given(valid::SIZE).then(|| self.u64(16)),
            atime: time_of(valid::ATIME, valid::ATIME_NOW, 32, 56),
            mtime: time_of(valid::MTIME, valid::MTIME_NOW, 40, 60),
        }
    }
}

/// Names of a request, each ended by a zero byte.
struct Names<'a>(&'a [u8]);

impl<'a> Names<'a> {
    /// Takes the next name; none if there is none, or it is empty.
    fn next(&mut self) -> Option<&'a OsStr> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (name, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..).unwrap_or_default();
        (!name.is_empty()).then(|| OsStr::from_bytes(name))
    }
}

/// Passes a request on to `requests`, which answer it through `slot`.
pub(super) fn dispatch<R: Requests>(requests: &R, message: &Message<'_>, slot: Slot) {
    let face = requests.face(INodeNo(message.inode));
    let (uid, gid) = message.caller;
    let numbers = Numbers(message.operation);
    let mut names = Names(message.payload);
    let caller = Caller { uid, gid };
    match message.opcode {
        opcode::GETATTR => requests.getattr(face, slot.into()),
        opcode::SETATTR => requests.setattr(face, numbers.new_attributes(), slot.into()),
        opcode::READLINK => requests.readlink(face, slot.into()),
        opcode::OPEN => requests.open(face, OpenFlags(numbers.i32(0)), slot.into()),
        opcode::RELEASE => requests.release(face, numbers.handle(), slot.into()),
        opcode::READ => requests.read(face, numbers.handle(), numbers.u64(8), numbers.u32(16), slot.into()),
        opcode::WRITE => {
            // As many bytes as the header says; the kernel sends just these.
            let length = (numbers.u32(16) as usize).min(message.payload.len());
            let data = message.payload.get(..length).unwrap_or_default();
            requests.write(face, numbers.handle(), numbers.u64(8), data, slot.into());
        }
        opcode::FLUSH => requests.flush(face, slot.into()),
        opcode::FSYNC => requests.fsync(face, slot.into()),
        opcode::OPENDIR => requests.opendir(face, slot.into()),
        opcode::RELEASEDIR => requests.releasedir(numbers.handle(), slot.into()),
        opcode::FSYNCDIR => requests.fsyncdir(face, slot.into()),
        opcode::READDIR => {
            let listing = ReplyDirectory::Ring(RingListing::new(slot, numbers.u32(16)));
            requests.readdir(face, numbers.handle(), numbers.u64(8), listing);
        }
        opcode::READDIRPLUS => {
            let listing = ReplyDirectoryPlus::Ring(RingListing::new(slot, numbers.u32(16)));
            requests.readdirplus(face, numbers.handle(), numbers.u64(8), listing);
        }
        opcode::STATFS => requests.statfs(slot.into()),
        opcode::LISTXATTR => requests.listxattr(face, numbers.u32(0), slot.into()),
        opcode::FALLOCATE => {
            let offset = numbers.u64(8);
            let length = numbers.u64(16);
            requests.fallocate(face, offset, length, numbers.i32(24), slot.into());
        }
        opcode::LSEEK => requests.lseek(face, numbers.u64(8).cast_signed(), numbers.i32(16), slot.into()),
        opcode::COPY_FILE_RANGE => {
            let from = FileBytes { face, offset: numbers.u64(8) };
            let to = FileBytes { face: requests.face(INodeNo(numbers.u64(16))), offset: numbers.u64(32) };
            requests.copy_file_range(from, to, numbers.u64(40), slot.into());
        }
        named => {
            let Some(name) = names.next() else {
                return slot.error(if is_named(named) { libc::EINVAL } else { libc::ENOSYS });
            };
            let request = NamedRequest { operation: named, face, caller, name };
            dispatch_named(requests, request, &numbers, &mut names, slot);
        }
    }
}

/// Returns true for operations whose requests have a name.
fn is_named(operation: u32) -> bool {
    use opcode::{CREATE, GETXATTR, LINK, LOOKUP, MKDIR, MKNOD, RENAME, RENAME2, RMDIR, SYMLINK, UNLINK};
    [CREATE, GETXATTR, LINK, LOOKUP, MKDIR, MKNOD, RENAME, RENAME2, RMDIR, SYMLINK, UNLINK].contains(&operation)
}

/// Request about `name` in a directory, or of a file.
struct NamedRequest<'a> {
    operation: u32,
    face: Face,
    caller: Caller,
    name: &'a OsStr,
}

/// Passes on a request, which has the rest of the `numbers` and `names`.
fn dispatch_named<R: Requests>(
    requests: &R,
    request: NamedRequest<'_>,
    numbers: &Numbers<'_>,
    names: &mut Names<'_>,
    slot: Slot,
) {
    let NamedRequest { operation, face, caller, name } = request;
    match operation {
        opcode::LOOKUP => requests.lookup(face, name, slot.into()),
        opcode::MKNOD => requests.mknod(caller, face, name, numbers.u32(0), numbers.u32(4), slot.into()),
        opcode::MKDIR => requests.mkdir(caller, face, name, numbers.u32(0), slot.into()),
        opcode::UNLINK => requests.unlink(face, name, slot.into()),
        opcode::RMDIR => requests.rmdir(face, name, slot.into()),
        opcode::CREATE => requests.create(caller, face, name, numbers.u32(4), numbers.i32(0), slot.into()),
        opcode::LINK => requests.link(requests.face(INodeNo(numbers.u64(0))), face, name, slot.into()),
        opcode::GETXATTR => requests.getxattr(face, name, numbers.u32(0), slot.into()),
        opcode::SYMLINK | opcode::RENAME | opcode::RENAME2 => {
            let Some(second) = names.next() else { return slot.error(libc::EINVAL) };
            let flags = match operation {
                opcode::SYMLINK => return requests.symlink(caller, face, name, Path::new(second), slot.into()),
                opcode::RENAME2 => RenameFlags::from_bits_retain(numbers.u32(8)),
                _ => RenameFlags::empty(),
            };
            requests.rename(face, name, requests.face(INodeNo(numbers.u64(0))), second, flags, slot.into());
        }
        _ => slot.error(libc::ENOSYS),
    }
}

#[cfg(all(test, feature = "io-uring"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fuse::reply::{
        ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyWrite, ReplyXattr,
    };
    use fuser::KernelConfig;
    use icechunkfs_ring::testing::{Given, given};
    use icechunkfs_tree::inodes::Ino;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// Remembers what was asked, and drops the replies.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    macro_rules! recorded {
        ($($name:ident($($argument:ident: $type:ty),*) -> $reply:ty;)*) => {$(
            fn $name(&self, $($argument: $type,)* _: $reply) {
                let arguments: Vec<String> = vec![$(format!("{:?}", $argument)),*];
                self.0.lock().push(format!("{} {}", stringify!($name), arguments.join(" ")));
            }
        )*};
    }

    impl Requests for Recorder {
        fn init(&mut self, _: &mut KernelConfig) -> std::io::Result<()> {
            Ok(())
        }

        fn face(&self, inode: INodeNo) -> Face {
            Face::Tree(Ino(inode.0))
        }

        recorded! {
            lookup(parent: Face, name: &OsStr) -> ReplyEntry;
            setattr(face: Face, attributes: NewAttributes) -> ReplyAttr;
            symlink(caller: Caller, parent: Face, name: &OsStr, target: &Path) -> ReplyEntry;
            rename(from: Face, name: &OsStr, to: Face, new_name: &OsStr, flags: RenameFlags) -> ReplyEmpty;
            link(face: Face, parent: Face, name: &OsStr) -> ReplyEntry;
            create(caller: Caller, parent: Face, name: &OsStr, mode: u32, flags: i32) -> ReplyCreate;
            open(face: Face, flags: OpenFlags) -> ReplyOpen;
            read(face: Face, handle: FileHandle, offset: u64, size: u32) -> ReplyData;
            write(face: Face, handle: FileHandle, offset: u64, data: &[u8]) -> ReplyWrite;
            lseek(face: Face, offset: i64, whence: i32) -> ReplyLseek;
            copy_file_range(from: FileBytes, to: FileBytes, length: u64) -> ReplyWrite;
            getxattr(face: Face, name: &OsStr, size: u32) -> ReplyXattr;
            listxattr(face: Face, size: u32) -> ReplyXattr;
        }
    }

    /// Returns what a request asks, and its answer: of 128 bytes with `numbers` at their places,
    /// each as long as it is written.
    fn asked(opcode: u32, numbers: &[(usize, &[u8])], payload: &[u8]) -> (Option<String>, Given) {
        let mut operation = [0; 128];
        for (at, bytes) in numbers {
            operation.get_mut(*at..*at + bytes.len()).unwrap().copy_from_slice(bytes);
        }
        let recorder = Recorder::default();
        let answer = given(|slot| {
            let message = Message { opcode, inode: 7, caller: (1, 2), operation: &operation, payload };
            dispatch(&recorder, &message, slot);
        });
        (recorder.0.into_inner().pop(), answer)
    }

    #[test]
    fn requests_are_understood() {
        let long = u64::to_ne_bytes;
        let short = u32::to_ne_bytes;
        let said = |opcode, numbers: &[(usize, &[u8])], payload: &[u8]| asked(opcode, numbers, payload).0.unwrap();
        assert_eq!(said(opcode::LOOKUP, &[], b"zarr.json\0"), "lookup Tree(Ino(7)) \"zarr.json\"");
        assert_eq!(
            said(opcode::READ, &[(0, &long(5)), (8, &long(1 << 40)), (16, &short(4096))], b""),
            "read Tree(Ino(7)) FileHandle(5) 1099511627776 4096"
        );
        assert_eq!(
            said(opcode::WRITE, &[(0, &long(5)), (8, &long(9)), (16, &short(2))], b"ab"),
            "write Tree(Ino(7)) FileHandle(5) 9 [97, 98]"
        );
        assert_eq!(
            said(opcode::CREATE, &[(0, &short(0o101)), (4, &short(0o100_644))], b"n\0"),
            "create Caller { uid: 1, gid: 2 } Tree(Ino(7)) \"n\" 33188 65"
        );
        assert_eq!(said(opcode::OPEN, &[(0, &short(2))], b""), "open Tree(Ino(7)) OpenFlags(2)");
        assert_eq!(said(opcode::LINK, &[(0, &long(44))], b"n\0"), "link Tree(Ino(44)) Tree(Ino(7)) \"n\"");
        assert_eq!(
            said(opcode::SYMLINK, &[], b"n\0to/here\0"),
            "symlink Caller { uid: 1, gid: 2 } Tree(Ino(7)) \"n\" \"to/here\""
        );
        assert_eq!(
            said(opcode::RENAME2, &[(0, &long(8)), (8, &short(1))], b"a\0b\0"),
            "rename Tree(Ino(7)) \"a\" Tree(Ino(8)) \"b\" RenameFlags(RENAME_NOREPLACE)"
        );
        assert_eq!(
            said(opcode::RENAME, &[(0, &long(8))], b"a\0b\0"),
            "rename Tree(Ino(7)) \"a\" Tree(Ino(8)) \"b\" RenameFlags(0x0)"
        );
        assert_eq!(said(opcode::LSEEK, &[(8, &long(6)), (16, &short(4))], b""), "lseek Tree(Ino(7)) 6 4");
        assert_eq!(said(opcode::GETXATTR, &[(0, &short(99))], b"user.x\0"), "getxattr Tree(Ino(7)) \"user.x\" 99");
        assert_eq!(said(opcode::LISTXATTR, &[(0, &short(99))], b""), "listxattr Tree(Ino(7)) 99");
        let copied = [(8, long(1)), (16, long(9)), (32, long(2)), (40, long(3))];
        let copied: Vec<(usize, &[u8])> = copied.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        assert_eq!(
            said(opcode::COPY_FILE_RANGE, &copied, b""),
            "copy_file_range FileBytes { face: Tree(Ino(7)), offset: 1 } FileBytes { face: Tree(Ino(9)), offset: 2 } 3"
        );
    }

    #[test]
    fn attributes_to_be_set_are_understood() {
        let numbers = |of: &[(usize, Vec<u8>)]| {
            let mut bytes = [0; 128];
            for (at, number) in of {
                bytes.get_mut(*at..*at + number.len()).unwrap().copy_from_slice(number);
            }
            Numbers(&bytes).new_attributes()
        };
        let long = |n: u64| n.to_ne_bytes().to_vec();
        let short = |n: u32| n.to_ne_bytes().to_vec();
        let none = numbers(&[(16, long(5)), (68, short(6)), (76, short(7))]);
        assert!(none.mode.is_none() && none.size.is_none() && none.uid.is_none() && none.atime.is_none());
        let flags = valid::MODE | valid::GID | valid::SIZE | valid::ATIME | valid::ATIME_NOW | valid::MTIME;
        let before = (-1_i64).cast_unsigned();
        let some = numbers(&[
            (0, short(flags)),
            (16, long(5)),
            (40, long(before)),
            (60, short(500_000_000)),
            (68, short(0o100_600)),
            (80, short(8)),
        ]);
        assert_eq!((some.mode, some.uid, some.gid, some.size), (Some(0o100_600), None, Some(8), Some(5)));
        assert!(matches!(some.atime, Some(TimeOrNow::Now)));
        let half = UNIX_EPOCH - Duration::from_millis(500);
        assert!(matches!(some.mtime, Some(TimeOrNow::SpecificTime(at)) if at == half), "{:?}", some.mtime);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let refused = |opcode, payload: &[u8]| asked(opcode, &[], payload).1.errno;
        assert_eq!([refused(51, b"tmp\0"), refused(9999, b"")], [libc::ENOSYS; 2]);
        assert_eq!([refused(opcode::LOOKUP, b""), refused(opcode::RENAME2, b"one\0")], [libc::EINVAL; 2]);
        // A reply that is dropped, as by a request that panics.
        assert_eq!(refused(opcode::LOOKUP, b"name\0"), libc::EIO);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_refused(
            opcode in 0_u32..60,
            operation in proptest::collection::vec(any::<u8>(), 128),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let answer = asked(opcode, &[(0, &operation)], &payload).1;
            prop_assert!(answer.errno > 0);
        }
    }
}
