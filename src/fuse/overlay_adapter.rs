//! Adapter from fuser's requests to [`WorkingTree`] and [`Control`]: a writable branch.
//!
//! Local changes come through the kernel, so that it can cache names and attributes forever here too; invalidations report all
//! others (a commit rebased over concurrent commits, a refresh, a discard). Unlike in a read-only mount, the kernel must always
//! send `open`: a commit has to know which files are open for writing.
//!
//! Not implemented on purpose, so that the kernel stops asking: extended attributes, access lists, locks (the kernel's own are
//! right for one machine).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tracing::warn;

use super::answer::answer;
use super::backing::Backings;
use super::declined::declined;
use super::init;
use super::listing_hint::ListingHint;
use super::overlay_replies::{BACKED, BLOCK, FOREVER, Shared, WRITES, attr, name, new, time};
use super::quiet_log::QuietLog;
use crate::control::{self, Control};
use crate::error::Context;
use crate::overlay::handles::OpenOptions;
use crate::overlay::listing::Listed;
use crate::overlay::namespace::{CreateAttrs, RenameMode};
use crate::overlay::set_attributes::SetAttrs;
use crate::overlay::{Ino, WorkingTree};
use crate::scratch::record::Name;
use crate::tree::directory::Extent;

/// FUSE adapter of a writable mount.
#[derive(Debug)]
pub struct WorkingAdapter {
    shared: Arc<Shared>,
    runtime: Handle,
    /// True if the user requires passthrough: the mount then fails if the kernel cannot.
    insist: bool,
}

impl WorkingAdapter {
    /// Creates an adapter of `working`, commanded through `control`. With `passthrough`, the kernel reads and writes scratch
    /// files directly.
    pub fn new(
        working: Arc<WorkingTree>,
        control: Arc<Control>,
        passthrough: bool,
        insist: bool,
        runtime: Handle,
    ) -> Self {
        let shared = Shared {
            working,
            control,
            backings: Backings::default(),
            passthrough,
            hint: ListingHint::default(),
            log: QuietLog::default(),
            listings: Mutex::default(),
            next_listing: AtomicU64::new(1),
        };
        WorkingAdapter { shared: Arc::new(shared), runtime, insist }
    }

    fn serve<F>(&self, request: impl FnOnce(Arc<Shared>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        answer(&self.runtime, request(Arc::clone(&self.shared)));
    }
}

impl Filesystem for WorkingAdapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        init::negotiate(config, InitFlags::FUSE_ATOMIC_O_TRUNC);
        if self.shared.passthrough && !init::passthrough(config, self.insist)? {
            warn!("this kernel has no FUSE passthrough (6.9 has): bytes are copied");
            if let Some(shared) = Arc::get_mut(&mut self.shared) {
                shared.passthrough = false;
            }
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, of: &OsStr, reply: ReplyEntry) {
        let name = name(of);
        self.serve(|shared| async move { shared.lookup(Ino(parent.0), name, reply).await });
    }

    fn forget(&self, _request: &Request, inode: INodeNo, times: u64) {
        self.shared.working.forget(Ino(inode.0), times);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        if control::is_control(inode.0) {
            return reply.attr(&Duration::ZERO, &attr(&control::attributes(inode.0)));
        }
        self.serve(|shared| async move {
            match shared.working.attributes(Ino(inode.0)).await {
                Ok(attributes) => reply.attr(&FOREVER, &attr(&attributes)),
                Err(error) => reply.error(shared.errno("getattr", &error)),
            }
        });
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let settings = SetAttrs {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
        };
        if control::is_control(inode.0) {
            return self.serve(|shared| async move {
                let touched = settings.mtime.is_some();
                let done = if touched { shared.control.touch(inode.0, handle.map(|h| h.0)).await } else { Ok(()) };
                match done {
                    Ok(()) => reply.attr(&Duration::ZERO, &attr(&control::attributes(inode.0))),
                    Err(error) => reply.error(shared.errno("commit", &error)),
                }
            });
        }
        self.serve(|shared| async move {
            let set = shared.working.set_attributes(Ino(inode.0), settings).await;
            match set.context(|| shared.working.describe(Ino(inode.0))) {
                Ok(attributes) => reply.attr(&FOREVER, &attr(&attributes)),
                Err(error) => reply.error(shared.errno("setattr", &error)),
            }
        });
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.shared.working.read_link(Ino(inode.0)) {
            Ok(target) => reply.data(&target.0),
            Err(error) => reply.error(self.shared.errno("readlink", &error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        of: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (name, new) = (name(of), CreateAttrs { rdev, ..new(request, mode) });
        self.serve(|shared| async move {
            let created = shared.create_node(Ino(parent.0), name, new).await;
            shared.entry("mknod", created, reply);
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, of: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let (name, new) = (name(of), new(request, mode & 0o7777 | libc::S_IFDIR));
        self.serve(|shared| async move {
            let created = shared.create_node(Ino(parent.0), name, new).await;
            shared.entry("mkdir", created, reply);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, of: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = Some(Name::new(target.as_os_str().as_bytes()));
        let (name, new) = (name(of), CreateAttrs { target, ..new(request, 0o777 | libc::S_IFLNK) });
        self.serve(|shared| async move {
            let created = shared.create_node(Ino(parent.0), name, new).await;
            shared.entry("symlink", created, reply);
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        if control::is_control(parent.0) {
            return self.shared.empty("unlink", Err(control::read_only_error()), reply);
        }
        let name = name(of);
        self.serve(|shared| async move {
            let done = shared.working.unlink(Ino(parent.0), name.clone()).await;
            shared.empty("unlink", shared.at(done, Ino(parent.0), &name), reply);
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        if control::is_control(parent.0) {
            return self.shared.empty("rmdir", Err(control::read_only_error()), reply);
        }
        let name = name(of);
        self.serve(|shared| async move {
            let done = shared.working.remove_directory(Ino(parent.0), name.clone()).await;
            shared.empty("rmdir", shared.at(done, Ino(parent.0), &name), reply);
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        of: &OsStr,
        new_parent: INodeNo,
        new_of: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if control::is_control(parent.0) || control::is_control(new_parent.0) {
            return self.shared.empty("rename", Err(control::read_only_error()), reply);
        }
        let mode = if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else if flags.is_empty() {
            RenameMode::Replace
        } else {
            return reply.error(Errno::EINVAL);
        };
        let (name, new_name) = (name(of), name(new_of));
        self.serve(|shared| async move {
            let done = shared.working.rename(Ino(parent.0), name.clone(), Ino(new_parent.0), new_name, mode).await;
            shared.empty("rename", shared.at(done, Ino(parent.0), &name), reply);
        });
    }

    fn link(&self, _request: &Request, inode: INodeNo, parent: INodeNo, of: &OsStr, reply: ReplyEntry) {
        if control::is_control(parent.0) || control::is_control(inode.0) {
            return self.shared.entry("link", Err(control::read_only_error()), reply);
        }
        let name = name(of);
        self.serve(|shared| async move {
            let linked = shared.working.link(Ino(inode.0), Ino(parent.0), name.clone()).await;
            shared.entry("link", shared.at(linked, Ino(parent.0), &name), reply);
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        of: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, new) = (name(of), new(request, mode & 0o7777 | libc::S_IFREG));
        self.serve(|shared| async move { shared.create(Ino(parent.0), name, new, flags, reply).await });
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let truncate = flags.0 & libc::O_TRUNC != 0;
        if control::is_control(inode.0) {
            return self.serve(|shared| async move {
                match shared.control.open(inode.0).await {
                    Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
                    Err(error) => reply.error(shared.errno("open", &error)),
                }
            });
        }
        let options = OpenOptions { write: write || truncate, truncate, passthrough: self.shared.passthrough };
        self.serve(|shared| async move { shared.open(Ino(inode.0), options, reply).await });
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if control::is_control(inode.0) {
            self.shared.control.release(handle.0);
            return reply.ok();
        }
        let backed = handle.0 & BACKED != 0;
        if backed {
            self.shared.backings.release(inode.0);
        }
        self.serve(|shared| async move {
            let done = shared.working.release(Ino(inode.0), handle.0 & WRITES != 0, backed).await;
            shared.empty("close", done, reply);
        });
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if control::is_control(inode.0) {
            return reply.data(&self.shared.control.read(handle.0, offset, size));
        }
        self.serve(|shared| async move {
            match shared.working.read(Ino(inode.0), offset, size).await {
                Ok(data) => reply.data(&data),
                Err(error) => reply.error(shared.errno("read", &error)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if !control::is_control(inode.0)
            && let Some(done) = self.shared.working.write_now(Ino(inode.0), offset, data)
        {
            return match done {
                Ok(()) => reply.written(count),
                Err(error) => reply.error(self.shared.errno("write", &error)),
            };
        }
        let data = data.to_vec();
        self.serve(|shared| async move {
            let done = if control::is_control(inode.0) {
                shared.control.write(handle.0, &data).await
            } else {
                shared
                    .working
                    .write(Ino(inode.0), offset, &data)
                    .await
                    .context(|| shared.working.describe(Ino(inode.0)))
            };
            match done {
                Ok(()) => reply.written(count),
                Err(error) => reply.error(shared.errno("write", &error)),
            }
        });
    }

    fn flush(&self, _request: &Request, inode: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        if control::is_control(inode.0) {
            return reply.ok();
        }
        self.serve(|shared| async move {
            let done = shared.working.flush(Ino(inode.0)).await;
            shared.empty("close", done.context(|| shared.working.describe(Ino(inode.0))), reply);
        });
    }

    fn fsync(&self, _request: &Request, inode: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        if control::is_control(inode.0) {
            return reply.ok();
        }
        self.serve(|shared| async move {
            let done = shared.working.sync(Some(Ino(inode.0))).await;
            shared.empty("fsync", done.context(|| shared.working.describe(Ino(inode.0))), reply);
        });
    }

    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.shared.next_listing.fetch_add(1, Ordering::Relaxed);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.shared.listings.lock().remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.serve(|shared| async move {
            let done = shared.working.sync(None).await;
            shared.empty("fsync", done, reply);
        });
    }

    fn readdir(&self, _request: &Request, inode: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.serve(|shared| async move {
            let mut sink = |entry: Listed<'_>| {
                let kind = attr(&entry.attributes).kind;
                !reply.add(INodeNo(entry.attributes.number.0), entry.offset, kind, OsStr::from_bytes(entry.name))
            };
            match shared.list(Ino(inode.0), handle, offset, Extent::All, &mut sink).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(shared.errno("readdir", &error)),
            }
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.serve(|shared| async move {
            // See super::listing_hint.
            let chunks_too = offset > 0 || shared.hint.begin(inode.0);
            let extent = if chunks_too { Extent::All } else { Extent::BeforeChunks };
            let mut listed_numbers = Vec::new();
            let mut sink = |entry: Listed<'_>| {
                let attributes = attr(&entry.attributes);
                let number = attributes.ino;
                let name = OsStr::from_bytes(entry.name);
                let ttl = if control::is_control(number.0) { Duration::ZERO } else { FOREVER };
                let taken = !reply.add(number, entry.offset, name, &ttl, &attributes, Generation(0));
                if taken && !matches!(entry.name, b"." | b"..") {
                    listed_numbers.push(number.0);
                }
                taken
            };
            let listed = shared.list(Ino(inode.0), handle, offset, extent, &mut sink).await;
            // Each entry but the dots increments the lookup count.
            for number in listed_numbers {
                shared.working.increment_lookups_of(Ino(number));
            }
            match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(shared.errno("readdir", &error)),
            }
        });
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        match self.shared.working.space() {
            Ok(space) => {
                let block = u32::try_from(space.f_frsize).unwrap_or(BLOCK);
                reply.statfs(
                    space.f_blocks,
                    space.f_bfree,
                    space.f_bavail,
                    space.f_files,
                    space.f_ffree,
                    block,
                    crate::tree::nodes::MAX_NAME as u32,
                    block,
                );
            }
            Err(error) => reply.error(self.shared.errno("statfs", &error)),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.serve(|shared| async move {
            let done = shared.working.allocate(Ino(inode.0), offset, length, mode).await;
            shared.empty("fallocate", done, reply);
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let (Ok(offset), libc::SEEK_DATA | libc::SEEK_HOLE) = (u64::try_from(offset), whence) else {
            return reply.error(Errno::EINVAL);
        };
        if control::is_control(inode.0) {
            return reply.error(Errno::EINVAL);
        }
        self.serve(|shared| async move {
            match shared.working.seek(Ino(inode.0), offset, whence == libc::SEEK_HOLE).await {
                Ok(Some(found)) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
                Ok(None) => reply.error(Errno::ENXIO),
                Err(error) => reply.error(shared.errno("lseek", &error)),
            }
        });
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        at: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if control::is_control(from.0) || control::is_control(to.0) {
            return reply.error(Errno::EXDEV);
        }
        self.serve(|shared| async move {
            match shared.working.copy((Ino(from.0), offset), (Ino(to.0), at), length).await {
                Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
                Err(error) => reply.error(shared.errno("copy_file_range", &error)),
            }
        });
    }

    declined!();
}
