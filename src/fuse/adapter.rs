//! Adapter from fuser's requests to [`Tree`](crate::tree::Tree): a snapshot that never changes, or one that is replaced as a
//! whole ([`crate::follow`]). [`super::overlay_adapter`] serves a writable branch; no other file names fuser's trait.
//!
//! Requests that are not implemented are answered `ENOSYS` on purpose: the kernel then stops sending `flush`, `lseek`, `fsync`
//! and those in [`super::declined`], and also `open` and `opendir` where the mode allows. A mount that follows a branch needs
//! these two: a program reads an open file to its end unchanged.

use std::ffi::OsStr;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    BackingId, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, Request,
};
use tokio::runtime::Handle;
use tracing::warn;

use super::answer::answer;
use super::backing::Backings;
use super::declined::declined;
use super::init;
use super::io_mode::IoMode;
use super::listing_hint::ListingHint;
use super::overlay_replies::{BLOCK, FOREVER};
use super::quiet_log::QuietLog;
use crate::error::{Error, Result};
use crate::follow::shown::{View, ViewState};
use crate::tree::directory::{Entry, Extent};
use crate::tree::{Attributes, Kind};

/// Handle of files, which need none: the inode number is enough.
const PLAIN: FileHandle = FileHandle(0);

/// Owner of all files.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    /// User id of every file.
    pub uid: u32,
    /// Group id of every file.
    pub gid: u32,
}

/// FUSE adapter of a read-only mount.
#[derive(Debug)]
pub struct Adapter {
    shared: Arc<Shared>,
    runtime: Handle,
    /// True if the kernel understands `ENOSYS` from `open`.
    skip_open: bool,
    /// True if the kernel understands `ENOSYS` from `opendir`.
    skip_opendir: bool,
    /// True if the user requires the mode: the mount then fails if the kernel cannot.
    insist: bool,
}

#[derive(Debug)]
struct Shared {
    shown: Arc<ViewState>,
    ownership: Ownership,
    mode: IoMode,
    /// Backing files that the kernel reads directly; none for a file that is read through the daemon as long as it is open.
    backings: Backings<Option<BackingId>>,
    hint: ListingHint,
    log: QuietLog,
}

impl Adapter {
    /// Creates an adapter of `shown`; requests that have to wait do so on `runtime`. With `insist`, `mode` is required.
    pub fn new(shown: Arc<ViewState>, ownership: Ownership, mode: IoMode, insist: bool, runtime: Handle) -> Self {
        let (backings, hint, log) = (Backings::default(), ListingHint::default(), QuietLog::default());
        let shared = Shared { shown, ownership, mode, backings, hint, log };
        Adapter { shared: Arc::new(shared), runtime, skip_open: false, skip_opendir: false, insist }
    }

    /// Runs `request` with the shared state and the current view.
    fn serve<F>(&self, request: impl FnOnce(Arc<Shared>, Arc<View>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        answer(&self.runtime, request(Arc::clone(&self.shared), self.shared.shown.view()));
    }
}

/// Returns the time for which the kernel may cache a reply.
fn cache_timeout(view: &View) -> Duration {
    if view.is_cacheable() { FOREVER } else { Duration::ZERO }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File => FileType::RegularFile,
    }
}

impl Shared {
    fn attr(&self, view: &View, of: Attributes) -> FileAttr {
        let (Ownership { uid, gid }, time) = (self.ownership, view.time());
        FileAttr {
            ino: INodeNo(of.inode),
            size: of.size,
            blocks: of.size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: file_type(of.kind),
            perm: if of.kind == Kind::Directory { 0o755 } else { 0o644 },
            // One for directories too, which means "not counted": tools then do not conclude that there are no subdirectories.
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }

    fn errno(&self, operation: &str, error: &Error) -> Errno {
        self.log.failed(operation, error);
        Errno::from_i32(error.errno())
    }

    /// Sends a negative entry, which the kernel caches.
    fn absent(&self, view: &View, reply: ReplyEntry) {
        let nothing = Attributes { inode: 0, kind: Kind::File, size: 0 };
        reply.entry(&cache_timeout(view), &self.attr(view, nothing), Generation(0));
    }

    /// Returns the file to back `inode` with; none if the daemon has to serve its reads.
    async fn backing_file(&self, view: &View, inode: u64) -> Result<Option<File>> {
        let tree = view.tree();
        let Some(inode) = view.files().native(inode) else { return Ok(None) };
        let source = tree.source(inode).await?;
        // The daemon does not see the kernel's passthrough reads.
        tree.record_access(inode, &source);
        let Some(chunk) = tree.native_chunk(&source)? else { return Ok(None) };
        tree.reader().open_whole_file(chunk).await
    }

    async fn open_backed(&self, view: &View, inode: u64, reply: ReplyOpen) {
        // The kernel requires all concurrent opens of a file to be of one kind, though a chunk may enter a cache meanwhile.
        let backing = match self.backings.acquire(inode) {
            Some(backing) => backing,
            None => match self.backing_file(view, inode).await {
                Ok(file) => {
                    let backing = file.and_then(|file| self.register(view, inode, &file, &reply));
                    self.backings.insert(inode, backing)
                }
                Err(error) => {
                    self.shown.close(inode);
                    return reply.error(self.errno("open", &error));
                }
            },
        };
        match &*backing {
            Some(backing) => reply.opened_passthrough(PLAIN, FopenFlags::FOPEN_NOFLUSH, backing),
            None => reply.opened(PLAIN, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
        }
    }

    fn register(&self, view: &View, inode: u64, file: &File, reply: &ReplyOpen) -> Option<BackingId> {
        // Most often there are too many open files. Reading by copy still works.
        let failed = |error| {
            let place = view.files().describe(inode);
            self.log.failed("open", &Error::io(format!("{place}: no passthrough, reading by copy"), error));
        };
        reply.open_backing(file).map_err(failed).ok()
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let offered = init::negotiate(config, InitFlags::empty());
        self.skip_open = offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.skip_opendir = offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        if self.shared.mode == IoMode::Passthrough && !init::passthrough(config, self.insist)? {
            warn!("this kernel has no FUSE passthrough (6.9 has): reading by copy");
            if let Some(shared) = Arc::get_mut(&mut self.shared) {
                shared.mode = IoMode::Cached;
            }
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        // Every name in a snapshot is UTF-8.
        let Some(name) = name.to_str().map(str::to_owned) else {
            return self.shared.absent(&self.shared.shown.view(), reply);
        };
        self.serve(|shared, view| async move {
            match view.files().lookup(parent.0, &name).await {
                Ok(Some(found)) => {
                    shared.hint.looked_up(parent.0);
                    reply.entry(&cache_timeout(&view), &shared.attr(&view, found), Generation(0));
                }
                Ok(None) => shared.absent(&view, reply),
                Err(error) => reply.error(shared.errno("lookup", &error)),
            }
        });
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.serve(|shared, view| async move {
            match view.files_of(inode.0).attributes(inode.0).await {
                Ok(attributes) => reply.attr(&cache_timeout(&view), &shared.attr(&view, attributes)),
                Err(error) => reply.error(shared.errno("getattr", &error)),
            }
        });
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let mode = self.shared.mode;
        if mode == IoMode::Cached && self.skip_open && !self.shared.shown.can_move() {
            return reply.error(Errno::ENOSYS);
        }
        let shared = Arc::clone(&self.shared);
        answer(&self.runtime, async move {
            match (shared.shown.open(inode.0).await, mode) {
                // The name means another file by now: the kernel looks it up again, and opens that one.
                (None, _) => reply.error(Errno::ESTALE),
                (Some(_), IoMode::Cached) => {
                    reply.opened(PLAIN, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
                }
                (Some(view), IoMode::Passthrough) => shared.open_backed(&view, inode.0, reply).await,
            }
        });
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if self.shared.mode == IoMode::Passthrough {
            self.shared.backings.release(inode.0);
        }
        self.shared.shown.close(inode.0);
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve(|shared, view| async move {
            match view.files_of(inode.0).read(inode.0, offset, size).await {
                Ok(data) => reply.data(&data),
                Err(error) => reply.error(shared.errno("read", &error)),
            }
        });
    }

    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.skip_opendir && !self.shared.shown.can_move() {
            return reply.error(Errno::ENOSYS);
        }
        let (handle, is_cacheable) = self.shared.shown.open_listing();
        let kept = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
        reply.opened(FileHandle(handle), if is_cacheable { kept } else { FopenFlags::empty() });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.shared.shown.close_listing(handle.0);
        reply.ok();
    }

    fn readdir(&self, _request: &Request, inode: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.serve(|shared, _| async move {
            let view = shared.shown.listing(handle.0, offset);
            let mut sink = |entry: Entry<'_>| {
                let Attributes { inode, kind, .. } = entry.attributes;
                !reply.add(INodeNo(inode), entry.offset, file_type(kind), entry.name)
            };
            match view.files().list(inode.0, offset, Extent::Names, &mut sink).await {
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
        self.serve(|shared, _| async move {
            let view = shared.shown.listing(handle.0, offset);
            // The kernel asks for attributes at the beginning of a directory, and later only if programs used them.
            let chunks_too = offset > 0 || shared.hint.begin(inode.0);
            // After the end of this reply, the kernel continues without attributes.
            let extent = if chunks_too { Extent::All } else { Extent::BeforeChunks };
            let mut sink = |entry: Entry<'_>| {
                let attr = shared.attr(&view, entry.attributes);
                !reply.add(attr.ino, entry.offset, entry.name, &cache_timeout(&view), &attr, Generation(0))
            };
            match view.files().list(inode.0, offset, extent, &mut sink).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(shared.errno("readdir", &error)),
            }
        });
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        self.serve(|shared, view| async move {
            match view.tree().total_bytes().await {
                Ok(bytes) => {
                    let blocks = bytes.div_ceil(u64::from(BLOCK));
                    let files = view.tree().table().len() as u64;
                    reply.statfs(blocks, 0, 0, files, 0, BLOCK, crate::tree::nodes::MAX_NAME as u32, BLOCK);
                }
                Err(error) => reply.error(shared.errno("statfs", &error)),
            }
        });
    }

    declined! { flush(_: INodeNo, _: FileHandle, _: LockOwner) -> ReplyEmpty }
    declined! { fsync(_: INodeNo, _: FileHandle, _: bool) -> ReplyEmpty }
    declined! { fsyncdir(_: INodeNo, _: FileHandle, _: bool) -> ReplyEmpty }
    declined! { lseek(_: INodeNo, _: FileHandle, _: i64, _: i32) -> ReplyLseek }
    declined!();
}
