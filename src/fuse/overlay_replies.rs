//! Handlers of requests on a working tree: they translate between the kernel's side
//! ([`super::overlay_adapter`]) and the terms of [`WorkingTree`] and [`Control`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fuser::{BackingId, Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, OpenAccMode, OpenFlags, TimeOrNow};
use parking_lot::Mutex;

use super::answer::{Reply, outcome_of};
use super::attached_files::AttachedFiles;
use super::backing::Backings;
use super::call::Call;
use super::kept_listings::KeptListings;
use super::listing_hint::ListingHint;
use super::presentation::Presentation;
use super::quiet_log::QuietLog;
use super::reply::{ReplyCreate, ReplyOpen};
use super::requests::Caller;
use super::root_map::{Inner, RootMap};
use super::wire;
use super::xattr::{self, Xattr};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::metrics::Outcome;
use icechunkfs_tree::tree::ROOT;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_views::attached::{self, is_attached};
use icechunkfs_working::control::{self, CONTROL_DIRECTORY, Control};
use icechunkfs_working::overlay::attributes::Attributes;
use icechunkfs_working::overlay::file_origin::FileOrigin;
use icechunkfs_working::overlay::handles::OpenOptions;
use icechunkfs_working::overlay::listing::Listed;
use icechunkfs_working::overlay::namespace::CreateAttrs;
use icechunkfs_working::overlay::opens::HandleKind;
use icechunkfs_working::overlay::{Ino, WorkingTree};
use icechunkfs_working::scratch::record::{Name, Time};

/// Timeout of a cached reply; the kernel cuts it to its maximum.
pub(super) const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// Block size that `stat` recommends, in bytes.
pub(super) const BLOCK: u32 = 4096;
/// Flag in a file handle: open for writing.
const WRITES: u64 = 1;
/// Flag in a file handle: the kernel reads and writes the backing file directly.
const BACKED: u64 = 2;
/// Flag in a file handle: the kernel executes the file.
const EXECUTES: u64 = 4;
/// Flag of an open by which the kernel executes a file. The kernel sends it, although no header of
/// the C library names it.
const FMODE_EXEC: i32 = 0x20;

/// Returns the options of an open with the kernel's flags.
pub(super) fn open_options(flags: OpenFlags, passthrough: bool) -> OpenOptions {
    let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
    let truncate = flags.0 & libc::O_TRUNC != 0;
    OpenOptions {
        write: writes || truncate,
        truncate,
        // Of a handle that may write, the kernel knows it before it asks for the open.
        unless_executed: truncate && !writes,
        execute: flags.0 & FMODE_EXEC != 0,
        passthrough,
    }
}

/// Returns the kind of a handle that has been given to the kernel.
pub(super) fn kind_of(handle: FileHandle) -> HandleKind {
    let is = |flag| handle.0 & flag != 0;
    HandleKind { writes: is(WRITES), backed: is(BACKED), executes: is(EXECUTES) }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) working: Arc<WorkingTree>,
    pub(super) control: Arc<Control>,
    pub(super) attached: AttachedFiles,
    pub(super) root: Arc<RootMap>,
    pub(super) backings: Backings<BackingId>,
    pub(super) passthrough: bool,
    pub(super) presentation: Presentation,
    /// True if programs may ask for extended attributes.
    pub(super) xattrs: bool,
    pub(super) hint: ListingHint,
    pub(super) log: QuietLog,
    /// Limits of listings under way, by handle.
    pub(super) listings: Mutex<std::collections::HashMap<u64, u64>>,
    pub(super) next_listing: AtomicU64,
    pub(super) kept_listings: KeptListings,
}

/// Inode by what answers requests about it. No other code decides this.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// Control directory or one of its files.
    Control(u64),
    /// Attached tree, which is read-only.
    Attached(INodeNo),
    /// Root of a mount that shows the tree as an entry of it.
    Top,
    /// Working tree.
    Tree(Ino),
}

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

pub(super) fn time(of: TimeOrNow) -> Time {
    match of {
        TimeOrNow::Now => Time::now(),
        TimeOrNow::SpecificTime(at) => {
            let (seconds, nanos) = wire::parts(at);
            Time(seconds, nanos)
        }
    }
}

impl Shared {
    /// Returns the meaning of an inode that the kernel names.
    pub(super) fn target(&self, inode: INodeNo) -> Target {
        match inode.0 {
            number if is_attached(number) => Target::Attached(inode),
            number if control::is_control(number) => Target::Control(number),
            number => match self.root.inner(number) {
                Inner::Top => Target::Top,
                Inner::Tree(number) => Target::Tree(Ino(number)),
            },
        }
    }

    /// Returns attributes with the kernel's number.
    pub(super) fn attr(&self, of: &Attributes) -> FileAttr {
        let attr = FileAttr { ino: INodeNo(self.root.outer(of.number.0)), ..attr(of) };
        match control::part_of(of.number.0) {
            Some(part) => self.presentation.apply_control(part, attr),
            None => self.presentation.apply(attr),
        }
    }

    /// Returns attributes, and the time for which the kernel may cache them: control files change
    /// without the kernel's doing.
    pub(super) fn timed(&self, of: &Attributes) -> (Duration, FileAttr) {
        let is_control = control::is_control(of.number.0) || is_attached(of.number.0);
        (if is_control { Duration::ZERO } else { FOREVER }, self.attr(of))
    }

    pub(super) fn errno(&self, operation: &str, error: &Error) -> Errno {
        // Failures that programs provoke routinely are not logged.
        if self.control.errors().record(operation, error) {
            self.log.failed(operation, error);
        }
        Errno::from_i32(error.errno())
    }

    pub(super) fn send<T, R: Reply<T>>(&self, call: Call, reply: R, result: Result<T>) {
        let result = result.map_err(|error| self.errno(call.operation(), &error));
        // Counted before the program goes on, so that it finds its own requests in the counts.
        self.end(call, outcome_of::<T, R>(&result));
        reply.send(result);
    }

    pub(super) fn end(&self, call: Call, outcome: Outcome) {
        call.end(outcome, |inode| match self.target(INodeNo(inode)) {
            Target::Control(number) => control::describe(number),
            Target::Attached(number) => self.attached.trees().describe(number.0),
            Target::Top => "/".to_owned(),
            Target::Tree(number) => self.working.upper().describe(number),
        });
    }

    pub(super) async fn lookup(&self, parent: INodeNo, name: Name) -> Result<(Duration, FileAttr)> {
        if is_attached(parent.0) {
            let found = self.attached.lookup(parent, OsStr::from_bytes(&name.0)).await?;
            self.hint.looked_up(parent.0);
            return Ok(found);
        }
        if parent.0 == control::DIRECTORY
            && let Some(number) = control::attached_directory(&name)
        {
            return self.attached.attributes(INodeNo(number)).await;
        }
        if let Some(found) = self.control.lookup(parent.0, &name) {
            return found
                .map(|found| self.timed(&found))
                .ok_or_else(|| Error::new(ErrorKind::NotFound, name.to_string()));
        }
        let found = match self.target(parent) {
            Target::Top => return self.lookup_entry(&name).await,
            Target::Tree(parent) => self.working.namespace().lookup(parent, &name).await?,
            Target::Control(_) | Target::Attached(_) => None,
        };
        if found.is_some() {
            self.hint.looked_up(parent.0);
        }
        // Number 0 is a negative entry, which the kernel caches.
        Ok(self.timed(&found.unwrap_or_else(|| control::attributes(0))))
    }

    pub(super) async fn list(
        &self,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        extent: Extent,
        sink: &mut (impl FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<()> {
        let number = match self.target(inode) {
            Target::Tree(number) => number,
            Target::Top => return self.list_top(offset, sink).await,
            Target::Control(_) | Target::Attached(_) => {
                self.control.list(offset, sink);
                return Ok(());
            }
        };
        let limit = {
            let mut listings = self.listings.lock();
            if offset == 0 {
                listings.insert(handle.0, self.working.namespace().listing_limit());
            }
            listings.get(&handle.0).copied().unwrap_or(u64::MAX)
        };
        if inode.0 == ROOT && !self.control.list_in_root(offset, sink) {
            return Ok(());
        }
        let offset = if inode.0 == ROOT { Control::root_offset(offset) } else { offset };
        self.working
            .namespace()
            .list(number, offset, limit, extent, sink)
            .await
            .context(|| self.working.upper().describe(number))
    }

    /// Returns a name of the tree, with its directory. Fails for names of the control directory and
    /// of the root above the tree.
    pub(super) fn tree_name(&self, parent: INodeNo, of: &OsStr) -> Result<(Ino, Name)> {
        let is_control = of.as_bytes() == CONTROL_DIRECTORY;
        match self.target(parent) {
            Target::Tree(inner) if is_control && (parent.0 == ROOT || inner == Ino::ROOT) => {
                Err(control::read_only_error())
            }
            Target::Tree(parent) => Ok((parent, name(of))),
            Target::Attached(_) => Err(attached::read_only_error()),
            Target::Top if !is_control => Err(self.top_error()),
            Target::Top | Target::Control(_) => Err(control::read_only_error()),
        }
    }

    /// Returns an extended attribute of `inode`.
    pub(super) async fn xattr(&self, xattr: Xattr, inode: INodeNo) -> Result<Option<String>> {
        let base = |number| Some((Arc::clone(&self.working.upper().base().tree), number, None));
        let number = match self.target(inode) {
            Target::Attached(number) => {
                let found = self.attached.trees().native(number.0).await?;
                return self.attached.xattr(xattr, found.as_ref()).await;
            }
            Target::Control(_) | Target::Top => Ino::ROOT,
            Target::Tree(number) => number,
        };
        let own = match (xattr, self.working.contents().file_origin(number)) {
            (Xattr::Chunk, FileOrigin::Stored(payload)) => Some(xattr::text(&payload)),
            (Xattr::Chunk, FileOrigin::Scratch) => Some("uncommitted".to_owned()),
            _ => None,
        };
        if own.is_some() {
            return Ok(own);
        }
        let number = match xattr {
            // Of the mount, whatever the file is.
            Xattr::Snapshot | Xattr::Ref => Some(Ino::ROOT.0),
            Xattr::NodeId | Xattr::Chunk => self.working.contents().base_number(number),
        };
        self.attached.xattr(xattr, number.and_then(base).as_ref()).await
    }

    /// Returns the path of `name` in directory `parent`, for messages.
    pub(super) fn describe(&self, parent: Ino, name: &Name) -> String {
        format!("{}/{name}", self.working.upper().describe(parent).trim_end_matches('/'))
    }

    /// Returns the open flags of an inode that is read and written through the daemon.
    pub(super) fn plain(&self, options: OpenOptions, in_scratch: bool) -> FopenFlags {
        // After passthrough writes, the kernel's page cache may be older than the file.
        let keep = if in_scratch && self.passthrough { FopenFlags::empty() } else { FopenFlags::FOPEN_KEEP_CACHE };
        if options.write { keep } else { keep | FopenFlags::FOPEN_NOFLUSH }
    }

    /// Opens a file. Returns the errno of a failure, otherwise 0.
    pub(super) async fn open(&self, inode: INodeNo, options: OpenOptions, reply: ReplyOpen) -> i32 {
        let fail = |reply: ReplyOpen, errno: Errno| {
            reply.error(errno);
            errno.into()
        };
        let number = match self.target(inode) {
            Target::Tree(number) => number,
            // A directory is not opened this way.
            Target::Top => return fail(reply, Errno::EISDIR),
            Target::Attached(_) if options.write => {
                return fail(reply, self.errno("open", &attached::read_only_error()));
            }
            Target::Attached(_) => {
                reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
                return 0;
            }
            Target::Control(number) => match self.control.open(number).await {
                Ok(handle) => {
                    reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
                    return 0;
                }
                Err(error) => return fail(reply, self.errno("open", &error)),
            },
        };
        let opened = match self.working.handles().open_file(number, options).await {
            Ok(opened) => opened,
            Err(error) => {
                return fail(reply, self.errno("open", &error.context(self.working.upper().describe(number))));
            }
        };
        if self.working.moves().is_settling() {
            self.control.forget(vec![number]).await;
        }
        let handle = if options.write { WRITES } else { 0 } | if options.execute { EXECUTES } else { 0 };
        let Some(file) = opened.backing else {
            reply.opened(FileHandle(handle), self.plain(options, opened.in_scratch));
            return 0;
        };
        let backing = self.backings.acquire(number.0).map(Ok);
        let backing =
            backing.unwrap_or_else(|| reply.open_backing(&*file).map(|id| self.backings.insert(number.0, id)));
        match backing {
            // Passthrough writes are in the data file before `close`: no flush is needed.
            Ok(backing) => {
                reply.opened_passthrough(FileHandle(handle | BACKED), FopenFlags::FOPEN_NOFLUSH, &backing);
            }
            Err(error) => {
                let place = self.working.upper().describe(number);
                self.log.failed("open", &Error::io(format!("{place}: no passthrough, copying"), error));
                self.working.handles().cancel_passthrough(number);
                reply.opened(FileHandle(handle), self.plain(options, true));
            }
        }
        0
    }

    /// Creates a file. Returns the errno of a failure, otherwise 0.
    pub(super) async fn create(
        &self,
        target: Result<(Ino, Name)>,
        new: CreateAttrs,
        flags: i32,
        reply: ReplyCreate,
    ) -> i32 {
        // `cp` and similar tools create exclusively, and may then use copy_file_range, which can
        // make the file a reference to a stored chunk. That is impossible once the kernel writes to
        // the file directly.
        let may_refer = flags & libc::O_EXCL != 0;
        let new = CreateAttrs { without_data: may_refer, ..new };
        let created = async {
            let (parent, name) = target?;
            let created = self.working.namespace().create(parent, name.clone(), new, true).await;
            created.context(|| self.describe(parent, &name))
        };
        let created = match created.await {
            Ok(created) => created,
            Err(error) => {
                let errno = self.errno("create", &error);
                reply.error(errno);
                return errno.into();
            }
        };
        let attributes = self.attr(&created);
        if self.passthrough && !may_refer {
            let backed = self.working.handles().open_passthrough(created.number).and_then(|file| {
                reply.open_backing(&*file).map_err(|e| {
                    self.working.handles().cancel_passthrough(created.number);
                    Error::io("no passthrough", e)
                })
            });
            if let Ok(backing) = backed {
                let backing = self.backings.insert(created.number.0, backing);
                let handle = FileHandle(WRITES | BACKED);
                let noflush = FopenFlags::FOPEN_NOFLUSH;
                reply.created_passthrough(&FOREVER, &attributes, handle, noflush, &backing);
                return 0;
            }
        }
        reply.created(&FOREVER, &attributes, FileHandle(WRITES), FopenFlags::empty());
        0
    }
}

pub(super) fn new(caller: Caller, mode: u32) -> CreateAttrs {
    CreateAttrs { mode, uid: caller.uid, gid: caller.gid, rdev: 0, target: None, without_data: false }
}

pub(super) fn name(of: &OsStr) -> Name {
    Name::new(of.as_bytes())
}
