//! Adapter from the kernel's requests to [`Tree`](icechunkfs_tree::tree::Tree): a snapshot that
//! never changes, or one that is replaced as a whole ([`icechunkfs_working::follow`]).
//! [`super::overlay_adapter`] serves a writable branch.
//!
//! Requests that are not implemented are answered `ENOSYS` on purpose: the kernel then stops
//! sending `flush`, `lseek`, `fsync` and those that [`super::requests`] names, and also `open` and
//! `opendir` where the mode allows. A mount that follows a branch needs these two: a program reads
//! an open file to its end unchanged.

use std::ffi::OsStr;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use fuser::{BackingId, Errno, FileAttr, FileHandle, FopenFlags, INodeNo, InitFlags, KernelConfig, OpenFlags};
use tokio::runtime::Handle;
use tracing::warn;

use super::answer::{Reply, XattrValue, answer, outcome_of};
use super::attached_files::AttachedFiles;
use super::backing::Backings;
use super::call::Call;
use super::face::Face;
use super::file_attr::{BLOCK, FOREVER, SnapshotOwner, file_type};
use super::init;
use super::io_mode::IoMode;
use super::listing_hint::ListingHint;
use super::mount::Options;
use super::presentation::Presentation;
use super::quiet_log::QuietLog;
use super::reply::{
    ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyXattr, Room,
};
use super::requests::Requests;
use super::root_map::{RootMap, TOP};
use super::xattr::Xattr;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::metrics::Outcome;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::{Entry, Extent};
use icechunkfs_tree::tree::{Attributes, Kind};
use icechunkfs_views::attached::{AttachedTrees, NativeFile};
use icechunkfs_views::control_directory;
use icechunkfs_views::control_directory::files::ControlFile;
use icechunkfs_views::views::{Sink, report};
use icechunkfs_working::follow::shown::{View, ViewState};

/// Handle of files, which need none: the inode number is enough.
const PLAIN: FileHandle = FileHandle(0);

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
    attached: AttachedFiles,
    root: Arc<RootMap>,
    owner: SnapshotOwner,
    presentation: Presentation,
    mode: IoMode,
    /// Backing files that the kernel reads directly; none for a file that is read through the
    /// daemon as long as it is open.
    backings: Backings<Option<BackingId>>,
    hint: ListingHint,
    log: QuietLog,
}

impl Adapter {
    /// Creates an adapter of `shown` and of the `attached` trees; requests that have to wait do so
    /// on `runtime`.
    pub fn new(
        shown: Arc<ViewState>,
        attached: Arc<AttachedTrees>,
        root: Arc<RootMap>,
        options: &Options,
        runtime: Handle,
    ) -> Self {
        let presentation = options.presentation;
        let mode = options.mode;
        let insist = options.insist;
        let attached = AttachedFiles::new(attached, presentation);
        let backings = Backings::default();
        let hint = ListingHint::default();
        let log = QuietLog::default();
        let owner = SnapshotOwner::default();
        let shared = Shared { shown, attached, root, owner, presentation, mode, backings, hint, log };
        Adapter { shared: Arc::new(shared), runtime, skip_open: false, skip_opendir: false, insist }
    }

    /// Runs `request` with the shared state and the current view, and sends its result.
    fn serve<R, T, F>(&self, call: Call, reply: R, request: impl FnOnce(Arc<Shared>, Arc<View>) -> F + Send + 'static)
    where
        R: Reply<T>,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let view = self.shared.shown.view();
        answer(&self.runtime, async move {
            let result = request(Arc::clone(&shared), view).await;
            shared.send(call, reply, result);
        });
    }
}

impl Shared {
    /// Returns attributes, and the time for which the kernel may cache them.
    fn timed(&self, view: &View, of: Attributes) -> (Duration, FileAttr) {
        let allocated = view.files().allocated(of.inode).unwrap_or(of.size);
        let attr = FileAttr { ino: self.root.outer(of.inode), ..self.owner.attr(of, view.time(), allocated) };
        let attr = if report::is_report(of.inode) {
            self.presentation.apply_control(self.attached.trees().view_name(), attr)
        } else {
            self.presentation.apply(attr)
        };
        // A request that began before the mount moved to another snapshot may end long after it.
        let is_cacheable = view.is_cacheable() && self.shown.is_current(view);
        (if is_cacheable { FOREVER } else { Duration::ZERO }, attr)
    }

    /// Returns the file of a tree that `face` is; none for one that a view makes.
    async fn native(&self, view: &View, face: Face) -> Result<Option<NativeFile>> {
        Ok(match face {
            Face::Attached(number) => self.attached.native(number).await?,
            Face::Tree(number) => {
                let files = view.files_of(number);
                files.native(number).map(|native| (Arc::clone(files.tree()), native, None))
            }
            Face::Top => Some((Arc::clone(view.tree()), Ino::ROOT, None)),
            Face::Control(_) => return Err(no_control()),
        })
    }

    /// Lists directory `face` after `offset`, but not one of an attached tree, whose entries are of
    /// another type.
    async fn list(&self, view: &View, face: Face, offset: u64, extent: Extent, sink: &mut Sink<'_>) -> Result<()> {
        match face {
            Face::Tree(number) => view.files().list(number, offset, extent, sink).await,
            Face::Top => {
                self.list_top(offset, sink);
                Ok(())
            }
            Face::Attached(_) => Ok(()),
            Face::Control(_) => Err(no_control()),
        }
    }

    /// Lists a root above the tree: the dots and the one entry.
    fn list_top(&self, offset: u64, sink: &mut Sink<'_>) {
        let directory = |inode| Attributes { inode, kind: Kind::Directory, size: 0 };
        let name = self.root.entry().map_or("", |entry| &entry.name);
        let entries = [(".", TOP), ("..", TOP), (name, Ino::ROOT)].into_iter().zip(1..);
        for ((name, inode), at) in entries.filter(|(_, at)| *at > offset) {
            if !sink(Entry::new(name, directory(inode), at)) {
                break;
            }
        }
    }

    /// Returns the attributes of a root above the tree.
    fn top(&self, view: &View) -> (Duration, FileAttr) {
        self.timed(view, Attributes { inode: TOP, kind: Kind::Directory, size: 0 })
    }

    fn errno(&self, operation: &str, error: &Error) -> Errno {
        self.attached.trees().errors().record(operation, error);
        self.log.failed(operation, error);
        Errno::from_i32(error.errno())
    }

    fn send<T, R: Reply<T>>(&self, call: Call, reply: R, result: Result<T>) {
        let result = result.map_err(|error| self.errno(call.operation(), &error));
        // Counted before the program goes on, so that it finds its own requests in the counts.
        self.end(call, outcome_of::<T, R>(&result));
        reply.send(result);
    }

    fn end(&self, call: Call, outcome: Outcome) {
        call.end(outcome, |face| match face {
            Face::Attached(number) => self.attached.describe(number),
            Face::Tree(number) => self.shown.view().files_of(number).describe(number),
            Face::Top | Face::Control(_) => "/".to_owned(),
        });
    }

    /// Returns the file to back `inode` with; none if the daemon has to serve its reads.
    async fn backing_file(&self, view: &View, inode: Ino) -> Result<Option<File>> {
        let tree = view.tree();
        let Some(inode) = view.files().native(inode) else { return Ok(None) };
        let source = tree.source(inode).await?;
        // The daemon does not see the kernel's passthrough reads.
        tree.record_access(inode, &source);
        let Some(chunk) = tree.native_chunk(&source)? else { return Ok(None) };
        tree.reader().open_whole_file(chunk).await
    }

    /// Opens a file, which the kernel reads directly if possible. Returns the errno of a failure,
    /// otherwise 0.
    async fn open_backed(&self, view: &View, inode: Ino, reply: ReplyOpen) -> i32 {
        // The kernel requires all concurrent opens of a file to be of one kind, though a chunk may
        // enter a cache meanwhile.
        let backing = match self.backings.acquire(inode) {
            Some(backing) => backing,
            None => match self.backing_file(view, inode).await {
                Ok(file) => {
                    let backing = file.and_then(|file| self.register(view, inode, &file, &reply));
                    self.backings.insert(inode, backing)
                }
                Err(error) => {
                    self.shown.close(inode);
                    let errno = self.errno("open", &error);
                    reply.error(errno);
                    return errno.into();
                }
            },
        };
        match &*backing {
            Some(backing) => reply.opened_passthrough(PLAIN, FopenFlags::FOPEN_NOFLUSH, backing),
            None => reply.opened(PLAIN, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
        }
        0
    }

    fn register(&self, view: &View, inode: Ino, file: &File, reply: &ReplyOpen) -> Option<BackingId> {
        // Most often there are too many open files. Reading by copy still works.
        let failed = |error| {
            let place = view.files().describe(inode);
            self.log.failed("open", &Error::io(format!("{place}: no passthrough, reading by copy"), error));
        };
        reply.open_backing(file).map_err(failed).ok()
    }
}

/// Returns the error for the number of a control file, which only a writable mount has.
fn no_control() -> Error {
    Error::new(ErrorKind::NotFound, "this mount has no control files")
}

impl Requests for Adapter {
    fn init(&mut self, config: &mut KernelConfig) -> std::io::Result<()> {
        // For `.icechunk/errors` where files are not opened: its text may change and keep its
        // length. No other file's time changes while the kernel may cache it.
        let offered = init::negotiate(config, InitFlags::FUSE_AUTO_INVAL_DATA);
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

    fn face(&self, inode: INodeNo) -> Face {
        Face::of(inode, &self.shared.root)
    }

    fn lookup(&self, parent: Face, name: &OsStr, reply: ReplyEntry) {
        let call = Call::of_name("lookup", parent, name);
        if name == control_directory::NAME
            && parent.is_root(&self.shared.root)
            && let Some((timeout, attr)) = self.shared.attached.control()
        {
            return reply.entry(&timeout, &attr);
        }
        let name = name.to_owned();
        self.serve(call, reply, move |shared, view| async move {
            if let Face::Attached(number) = parent {
                let found = shared.attached.lookup(number, &name).await?;
                shared.hint.looked_up(parent.key());
                return Ok(found);
            }
            // Every name in a snapshot is UTF-8.
            let found = match (name.to_str(), parent) {
                (Some(name), Face::Tree(number)) => view.files().lookup(number, name).await?,
                (Some(name), Face::Top) => {
                    let is_entry = shared.root.entry().is_some_and(|entry| entry.name == name);
                    is_entry.then_some(Attributes { inode: Ino::ROOT, kind: Kind::Directory, size: 0 })
                }
                _ => None,
            };
            if found.is_some() {
                shared.hint.looked_up(parent.key());
            }
            // Number 0 is a negative entry, which the kernel caches.
            Ok(shared.timed(&view, found.unwrap_or(Attributes { inode: Ino(0), kind: Kind::File, size: 0 })))
        });
    }

    fn getattr(&self, face: Face, reply: ReplyAttr) {
        self.serve(Call::on("getattr", face), reply, move |shared, view| async move {
            match face {
                Face::Attached(number) => shared.attached.attributes(number).await,
                Face::Tree(number) => Ok(shared.timed(&view, view.files_of(number).attributes(number).await?)),
                Face::Top => Ok(shared.top(&view)),
                Face::Control(_) => Err(no_control()),
            }
        });
    }

    fn open(&self, face: Face, _: OpenFlags, reply: ReplyOpen) {
        let mode = self.shared.mode;
        if mode == IoMode::Cached && self.skip_open && !self.shared.shown.can_move() {
            return reply.error(Errno::ENOSYS);
        }
        let number = match face {
            Face::Tree(number) => number,
            Face::Attached(number) => {
                // The contents of control files change.
                let cached = if ControlFile::at(number.number()).is_some() {
                    FopenFlags::FOPEN_DIRECT_IO
                } else {
                    FopenFlags::FOPEN_KEEP_CACHE
                };
                return reply.opened(PLAIN, cached | FopenFlags::FOPEN_NOFLUSH);
            }
            // A directory is not opened this way.
            Face::Top | Face::Control(_) => return reply.error(Errno::EISDIR),
        };
        let shared = Arc::clone(&self.shared);
        let call = Call::on("open", face);
        answer(&self.runtime, async move {
            let mut outcome = Outcome::default();
            match (shared.shown.open(number).await, mode) {
                // The name means another file by now: the kernel looks it up again, and opens that
                // one.
                (None, _) => {
                    outcome.errno = Errno::ESTALE.into();
                    reply.error(Errno::ESTALE);
                }
                (Some(_), IoMode::Cached) => {
                    reply.opened(PLAIN, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
                }
                (Some(view), IoMode::Passthrough) => outcome.errno = shared.open_backed(&view, number, reply).await,
            }
            shared.end(call, outcome);
        });
    }

    fn release(&self, face: Face, _: FileHandle, reply: ReplyEmpty) {
        let call = Call::on("close", face);
        if let Face::Tree(number) = face {
            if self.shared.mode == IoMode::Passthrough {
                self.shared.backings.release(number);
            }
            self.shared.shown.close(number);
        }
        reply.ok();
        self.shared.end(call, Outcome::default());
    }

    fn read(&self, face: Face, _: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        self.serve(Call::on("read", face).range(offset, size.into()), reply, move |shared, view| async move {
            match face {
                Face::Attached(number) => shared.attached.read(number, offset, size).await,
                Face::Tree(number) => view.files_of(number).read(number, offset, size).await,
                Face::Top => Err(Error::new(ErrorKind::IsADirectory, "/ is a directory")),
                Face::Control(_) => Err(no_control()),
            }
        });
    }

    fn opendir(&self, face: Face, reply: ReplyOpen) {
        if self.skip_opendir && !self.shared.shown.can_move() {
            return reply.error(Errno::ENOSYS);
        }
        if let Face::Attached(_) = face {
            return reply.opened(PLAIN, FopenFlags::empty());
        }
        let (handle, is_cacheable) = self.shared.shown.open_listing();
        let kept = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
        reply.opened(FileHandle(handle), if is_cacheable { kept } else { FopenFlags::empty() });
    }

    fn releasedir(&self, handle: FileHandle, reply: ReplyEmpty) {
        self.shared.shown.close_listing(handle.0);
        reply.ok();
    }

    fn readdir(&self, face: Face, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let shared = Arc::clone(&self.shared);
        let call = Call::on("readdir", face);
        answer(&self.runtime, async move {
            if let Face::Attached(number) = face {
                let listed = shared.attached.list(number, offset, &mut reply).await;
                return shared.send(call, reply, listed);
            }
            let view = shared.shown.listing(handle.0, offset);
            let mut sink = |entry: Entry<'_>| {
                let Attributes { inode, kind, .. } = entry.attributes;
                !reply.add(shared.root.outer(inode), entry.offset, file_type(kind), entry.name)
            };
            let listed = shared.list(&view, face, offset, Extent::Names, &mut sink).await;
            shared.send(call, reply, listed);
        });
    }

    fn readdirplus(&self, face: Face, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let shared = Arc::clone(&self.shared);
        let call = Call::on("readdir", face);
        answer(&self.runtime, async move {
            // The kernel asks for attributes at the beginning of a directory, and later only if
            // programs used them.
            let chunks_too = offset > 0 || shared.hint.begin(face.key());
            // After the end of this reply, the kernel continues without attributes.
            let extent = if chunks_too { Extent::All } else { Extent::BeforeChunks };
            if let Face::Attached(number) = face {
                let listed = shared.attached.list_with_attributes(number, offset, extent, &mut reply).await;
                return shared.send(call, reply, listed);
            }
            let view = shared.shown.listing(handle.0, offset);
            let mut sink = |entry: Entry<'_>| {
                let (timeout, attr) = shared.timed(&view, entry.attributes);
                // The kernel would keep a size of 0, and read nothing.
                let timeout = if entry.is_sized { timeout } else { Duration::ZERO };
                !reply.add(entry.offset, entry.name, &timeout, &attr)
            };
            let listed = shared.list(&view, face, offset, extent, &mut sink).await;
            shared.send(call, reply, listed);
        });
    }

    fn statfs(&self, reply: ReplyStatfs) {
        let shared = Arc::clone(&self.shared);
        let view = self.shared.shown.view();
        let call = Call::from("statfs");
        answer(&self.runtime, async move {
            let mut outcome = Outcome::default();
            match view.tree().total_bytes().await {
                Ok(bytes) => {
                    let blocks = bytes.div_ceil(u64::from(BLOCK));
                    let files = view.tree().table().len() as u64;
                    let longest_name = icechunkfs_tree::tree::nodes::MAX_NAME as u32;
                    reply.statfs(&Room { blocks: (blocks, 0, 0), files: (files, 0), block: BLOCK, longest_name });
                }
                Err(error) => {
                    let errno = shared.errno("statfs", &error);
                    outcome.errno = errno.into();
                    reply.error(errno);
                }
            }
            shared.end(call, outcome);
        });
    }

    fn getxattr(&self, face: Face, name: &OsStr, size: u32, reply: ReplyXattr) {
        // Programs such as `ls` ask each file for others, and stop after this answer.
        let Some(xattr) = name.to_str().and_then(Xattr::named) else { return reply.error(Errno::EOPNOTSUPP) };
        self.serve(Call::on("getxattr", face), reply, move |shared, view| async move {
            let found = shared.native(&view, face).await?;
            Ok(XattrValue(shared.attached.xattr(xattr, found.as_ref()).await?, size))
        });
    }

    fn listxattr(&self, face: Face, size: u32, reply: ReplyXattr) {
        self.serve(Call::on("listxattr", face), reply, move |shared, view| async move {
            let found = shared.native(&view, face).await?;
            let mut names = String::new();
            for xattr in Xattr::ALL {
                if shared.attached.xattr(xattr, found.as_ref()).await?.is_some() {
                    xattr.add_to(&mut names);
                }
            }
            Ok(XattrValue(Some(names), size))
        });
    }
}
