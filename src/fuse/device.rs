//! Requests that come through `/dev/fuse`, from fuser; no other file names fuser's trait.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyIoctl, ReplyPoll,
    Request, TimeOrNow, WriteFlags,
};
use tracing::debug;

use super::requests::{Caller, FileBytes, NewAttributes, Requests};
use super::ring::{self, Prepared};

/// Adapter of what answers requests to fuser.
#[derive(Debug)]
pub(super) struct Device<R> {
    requests: Arc<R>,
    shared: Shared<R>,
}

/// State that is known once a mount has begun.
#[derive(Debug)]
pub(super) struct Shared<R> {
    /// Adapter that answers the requests, after the negotiation.
    pub(super) requests: Arc<OnceLock<Arc<R>>>,
    /// Rings, if requests shall come through them.
    pub(super) rings: Option<Arc<Prepared>>,
}

// Not derived: that would ask the same of `R`.
impl<R> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Shared { requests: Arc::clone(&self.requests), rings: self.rings.clone() }
    }
}

impl<R: Requests> Device<R> {
    /// Creates an adapter of `requests`, which come through rings if `rings` is true.
    pub(super) fn new(requests: R, rings: bool) -> Self {
        let rings = rings.then(Arc::default);
        Device { requests: Arc::new(requests), shared: Shared { requests: Arc::default(), rings } }
    }

    /// Returns what is known later.
    pub(super) fn shared(&self) -> Shared<R> {
        self.shared.clone()
    }

    /// Negotiates rings, and makes them before: the kernel then waits for them.
    fn negotiate_rings(&self, rings: &Prepared, config: &mut KernelConfig) -> io::Result<()> {
        rings.make()?;
        config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).map_err(|_| {
            io::Error::other("the kernel does not offer requests through io_uring: `icechunkfs doctor` tells why")
        })?;
        // Each entry has memory for the largest request.
        config
            .set_max_write(ring::MAX_REQUEST)
            .map(drop)
            .map_err(|most| io::Error::other(format!("the kernel does not take requests of more than {most} bytes")))
    }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

/// Passes requests on: their arguments after an arrow, or as they are, with the inodes in brackets
/// as faces.
macro_rules! pass {
    ($($inodes:tt $name:ident($($argument:ident: $type:ty),*) -> $reply:ident $(=> ($($given:expr),*))?;)*) => {$(
        pass! { @one $inodes $name($($argument: $type),*) -> $reply $(=> ($($given),*))? }
    )*};
    (@one [$($inode:ident)*] $name:ident($($argument:ident: $type:ty),*) -> $reply:ident => ($($given:expr),*)) => {
        fn $name(&self, _: &Request, $($argument: $type,)* reply: fuser::$reply) {
            $(let $inode = self.requests.face($inode);)*
            self.requests.$name($($given,)* reply.into());
        }
    };
    (@one $inodes:tt $name:ident($($argument:ident: $type:ty),*) -> $reply:ident) => {
        pass! { @one $inodes $name($($argument: $type),*) -> $reply => ($($argument),*) }
    };
}

/// Answers requests that no adapter implements: see [`super::requests`].
macro_rules! declined {
    ($($name:ident($($type:ty),*) -> $reply:ty;)*) => {$(
        fn $name(&self, _: &Request, $(_: $type,)* reply: $reply) {
            reply.error(Errno::ENOSYS);
        }
    )*};
}

impl<R: Requests> Filesystem for Device<R> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let requests =
            Arc::get_mut(&mut self.requests).ok_or_else(|| io::Error::other("the mount has begun already"))?;
        requests.init(config)?;
        if let Some(rings) = &self.shared.rings {
            self.negotiate_rings(rings, config)?;
        }
        if self.shared.requests.set(Arc::clone(&self.requests)).is_err() {
            debug!("the kernel negotiated twice");
        }
        Ok(())
    }

    fn forget(&self, _: &Request, inode: INodeNo, times: u64) {
        self.requests.forget(self.requests.face(inode), times);
    }

    pass! {
        [parent] lookup(parent: INodeNo, name: &OsStr) -> ReplyEntry;
        [inode] getattr(inode: INodeNo, _handle: Option<FileHandle>) -> ReplyAttr => (inode);
        [inode] readlink(inode: INodeNo) -> ReplyData;
        [parent] unlink(parent: INodeNo, name: &OsStr) -> ReplyEmpty;
        [parent] rmdir(parent: INodeNo, name: &OsStr) -> ReplyEmpty;
        [parent new_parent] rename(
            parent: INodeNo, name: &OsStr, new_parent: INodeNo, new_name: &OsStr, flags: RenameFlags
        ) -> ReplyEmpty;
        [inode parent] link(inode: INodeNo, parent: INodeNo, name: &OsStr) -> ReplyEntry;
        [inode] open(inode: INodeNo, flags: OpenFlags) -> ReplyOpen;
        [inode] release(inode: INodeNo, handle: FileHandle, _flags: OpenFlags, _owner: Option<LockOwner>, _flush: bool)
            -> ReplyEmpty => (inode, handle);
        [inode] read(
            inode: INodeNo, handle: FileHandle, offset: u64, size: u32, _flags: OpenFlags, _owner: Option<LockOwner>
        ) -> ReplyData => (inode, handle, offset, size);
        [inode] write(
            inode: INodeNo, handle: FileHandle, offset: u64, data: &[u8], _how: WriteFlags, _flags: OpenFlags, _owner: Option<LockOwner>
        ) -> ReplyWrite => (inode, handle, offset, data);
        [inode] flush(inode: INodeNo, _handle: FileHandle, _owner: LockOwner) -> ReplyEmpty => (inode);
        [inode] fsync(inode: INodeNo, _handle: FileHandle, _only_data: bool) -> ReplyEmpty => (inode);
        [inode] opendir(inode: INodeNo, _flags: OpenFlags) -> ReplyOpen => (inode);
        [] releasedir(_inode: INodeNo, handle: FileHandle, _flags: OpenFlags) -> ReplyEmpty => (handle);
        [inode] fsyncdir(inode: INodeNo, _handle: FileHandle, _only_data: bool) -> ReplyEmpty => (inode);
        [inode] readdir(inode: INodeNo, handle: FileHandle, offset: u64) -> ReplyDirectory;
        [inode] readdirplus(inode: INodeNo, handle: FileHandle, offset: u64) -> ReplyDirectoryPlus;
        [] statfs(_inode: INodeNo) -> ReplyStatfs => ();
        [inode] fallocate(inode: INodeNo, _handle: FileHandle, offset: u64, length: u64, mode: i32) -> ReplyEmpty
            => (inode, offset, length, mode);
        [inode] lseek(inode: INodeNo, _handle: FileHandle, offset: i64, whence: i32) -> ReplyLseek
            => (inode, offset, whence);
        [from to] copy_file_range(
            from: INodeNo, _from_handle: FileHandle, offset: u64, to: INodeNo, _to_handle: FileHandle, at: u64, length: u64,
            _flags: CopyFileRangeFlags
        ) -> ReplyWrite => (FileBytes { face: from, offset }, FileBytes { face: to, offset: at }, length);
        [inode] getxattr(inode: INodeNo, name: &OsStr, size: u32) -> ReplyXattr;
        [inode] listxattr(inode: INodeNo, size: u32) -> ReplyXattr;
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: fuser::ReplyAttr,
    ) {
        let attributes = NewAttributes { mode, uid, gid, size, atime, mtime };
        self.requests.setattr(self.requests.face(inode), attributes, reply.into());
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: fuser::ReplyEntry,
    ) {
        self.requests.mknod(caller(request), self.requests.face(parent), name, mode, rdev, reply.into());
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: fuser::ReplyEntry,
    ) {
        self.requests.mkdir(caller(request), self.requests.face(parent), name, mode, reply.into());
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: fuser::ReplyEntry) {
        self.requests.symlink(caller(request), self.requests.face(parent), name, target, reply.into());
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        self.requests.create(caller(request), self.requests.face(parent), name, mode, flags, reply.into());
    }

    declined! {
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> fuser::ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> fuser::ReplyEmpty;
        access(INodeNo, AccessFlags) -> fuser::ReplyEmpty;
        ioctl(INodeNo, FileHandle, IoctlFlags, u32, &[u8], u32) -> ReplyIoctl;
        poll(INodeNo, FileHandle, PollNotifier, PollEvents, PollFlags) -> ReplyPoll;
    }
}
