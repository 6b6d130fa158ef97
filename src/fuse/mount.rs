//! Lifecycle of a mount: start, service and end.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fuser::{BackgroundSession, Config, INodeNo, MountOption, SessionACL};
use tokio::runtime::Handle;
use tracing::info;

use super::adapter::Adapter;
use super::daemon_mark;
use super::device::{Device, Shared};
use super::helper;
use super::io_mode::IoMode;
use super::kernel_mount;
use super::mount_target::MountTarget;
use super::overlay_adapter::WorkingAdapter;
use super::preopened;
use super::presentation::Presentation;
use super::readahead;
use super::requests::Requests;
use super::ring::{Handler, Rings};
use super::ring_requests::dispatch;
use super::root_map::RootMap;
use super::served_mount::{Connection, ServedMount};
use super::unmount::UnmountMode;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_repo::reader::Reader;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::Tree;
use icechunkfs_views::attached::{AttachedTrees, BRIEF, Forget};
use icechunkfs_views::control_directory::MountKind;
use icechunkfs_views::control_directory::files::ControlFile;
use icechunkfs_views::views::ViewTree;
use icechunkfs_working::control::Control;
use icechunkfs_working::follow::Follower;
use icechunkfs_working::follow::shown::ViewState;
use icechunkfs_working::operations::{Invalidator, Session, invalidate_all};
use icechunkfs_working::overlay::invalidation::Invalidation;

/// Threads that take requests from the kernel: one per core, within these bounds. One would let a
/// large copy delay a `stat`; more than a few only contend.
const WORKERS: std::ops::RangeInclusive<usize> = 2..=8;
/// Longest wait of a mount that has to end for programs with open files.
pub const GRACE: Duration = Duration::from_secs(10);

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// Source in `/proc/mounts`.
    pub source: String,
    /// True if other users may access the mount; the kernel then checks modes.
    pub allow_other: bool,
    /// True if the mountpoint may have files in it, or a mount on it.
    pub nonempty: bool,
    /// Flags for the kernel, such as `noexec`.
    pub flags: Vec<Flag>,
    /// I/O mode.
    pub mode: IoMode,
    /// True if no other I/O mode is acceptable.
    pub insist: bool,
    /// True if requests come through io_uring ([`super::ring`]).
    pub rings: bool,
    /// True if the mount is writable.
    pub writable: bool,
    /// Owner and modes that are shown.
    pub presentation: Presentation,
    /// True if programs may ask a writable mount for extended attributes; a read-only one always
    /// answers.
    pub xattrs: bool,
}

impl Options {
    pub(super) fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    pub(super) fn is_noexec(&self) -> bool {
        self.has(Flag::NoExec) && !self.has(Flag::Exec)
    }

    /// Returns true if the kernel has to check modes: not where nothing could be refused, to the
    /// owner alone on a read-only mount or to root alone. The check costs a warm open 3 %, and a
    /// program that creates many files in one directory a request for each: the kernel asks for the
    /// directory's attributes after every change in it.
    pub(super) fn checks_modes(&self) -> bool {
        self.allow_other || (self.writable && !rustix::process::geteuid().is_root())
    }

    fn acl(&self) -> SessionACL {
        if self.allow_other { SessionACL::All } else { SessionACL::Owner }
    }
}

/// Content of a mount: what its root shows, and the trees below `.icechunk`.
#[derive(Debug)]
pub struct Content {
    /// Tree of the root.
    pub served: Served,
    /// Other snapshots and views.
    pub attached: Arc<AttachedTrees>,
    /// Root of the mount.
    pub root: Arc<RootMap>,
}

/// Tree that the root of a mount shows.
#[derive(Debug)]
pub enum Served {
    /// Snapshot, which never changes.
    Snapshot(Arc<dyn ViewTree>),
    /// Tip of a branch, which the mount follows.
    Followed(Arc<Follower>),
    /// Writable branch.
    Branch(Arc<Session>, Arc<Control>),
}

impl Served {
    /// Returns true if programs read parts of its files ([`ViewTree::is_read_in_parts`]).
    fn is_read_in_parts(&self) -> bool {
        match self {
            Served::Snapshot(view) => view.is_read_in_parts(),
            // They show the native view.
            Served::Followed(_) | Served::Branch(..) => false,
        }
    }

    /// Returns the tree that is shown now.
    pub fn tree(&self) -> Arc<Tree> {
        match self {
            Served::Snapshot(view) => Arc::clone(view.tree()),
            Served::Followed(follower) => Arc::clone(follower.shown().view().tree()),
            Served::Branch(session, _) => Arc::clone(&session.working().upper().base().tree),
        }
    }
}

/// Connection that carries invalidations to the kernel.
struct Notifications {
    notifier: fuser::Notifier,
    root: Arc<RootMap>,
    /// Numbers of `.icechunk` and of its file `HEAD`.
    head: Option<(Ino, Ino)>,
    /// Not kept alive: it may hold these notifications itself.
    attached: Weak<AttachedTrees>,
}

fn notifications(mounted: &Mounted, root: Arc<RootMap>, attached: &Arc<AttachedTrees>) -> Notifications {
    let kind = if mounted.branch.is_some() { MountKind::Writable } else { MountKind::ReadOnly };
    let head = ControlFile::Head.number(kind).map(|head| (kind.directory(), head));
    Notifications { notifier: mounted.session.notifier(), root, head, attached: Arc::downgrade(attached) }
}

impl Invalidator for Notifications {
    fn head_moved(&self) {
        // A program that commits and then enters `.icechunk/view` sees what it has committed.
        let names = self.attached.upgrade().map(|attached| attached.outdate_names());
        for (directory, name) in names.into_iter().flatten() {
            let _ = self.notifier.inval_entry(INodeNo(directory.0), OsStr::new(&name));
        }
        // The one change of a file by others that the kernel reports to inotify is its removal, as
        // if another file took its name: what git does with its own HEAD. It fails if nobody has
        // looked the file up, and then nobody waits either.
        let Some((directory, file)) = self.head else { return };
        let _ = self.notifier.delete(INodeNo(directory.0), INodeNo(file.0), OsStr::new(ControlFile::Head.name()));
    }

    fn invalidate(&self, invalidation: &Invalidation) {
        // The kernel rejects invalidations of unknown inodes or names, which is harmless, and a
        // mount that is gone needs none.
        let _ = match invalidation {
            Invalidation::Entry(parent, name) => {
                self.notifier.inval_entry(self.root.outer(*parent), OsStr::from_bytes(&name.0))
            }
            Invalidation::Inode(number) => self.notifier.inval_inode(self.root.outer(*number), 0, 0),
            // A negative offset means no bytes.
            Invalidation::Attributes(number) => self.notifier.inval_inode(self.root.outer(*number), -1, 0),
        };
    }
}

/// Returns what makes the kernel drop the listing of a directory soon after it was sent. In a mount
/// that never changes, the kernel keeps listings forever without asking.
fn forget_listings(kernel: Notifications, runtime: Handle) -> Forget {
    let kernel = Arc::new(kernel);
    Box::new(move |number| {
        let kernel = Arc::clone(&kernel);
        drop(runtime.spawn(async move {
            tokio::time::sleep(BRIEF).await;
            let invalidation = Invalidation::Inode(number);
            let _ = invalidate_all(kernel, vec![invalidation]).await;
        }));
    })
}

/// Mount flags that a user may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// Programs may be run from the mount.
    Exec,
    /// Programs may not be run from the mount.
    NoExec,
    /// Device files work, if there were any.
    Dev,
    /// Set-user-id bits work, if there were any.
    Suid,
}

/// Mounted and served file system.
#[derive(Debug)]
pub struct Mounted {
    session: BackgroundSession,
    /// Threads for requests through io_uring.
    rings: Option<Rings>,
    served: ServedMount,
    /// Writable branch, if it is one.
    pub branch: Option<Arc<Session>>,
    /// Reader of the chunks.
    pub reader: Arc<Reader>,
    /// Descriptor by which [`ServedMount`] knows whether the mount exists.
    _connection: Arc<OwnedFd>,
    /// Mark of this process as the daemon.
    _mark: Option<OwnedFd>,
}

impl Mounted {
    /// Mounts `content` at `target` and serves it on separate threads until it is unmounted.
    pub fn new(content: Content, target: MountTarget, options: &Options, runtime: Handle) -> Result<Self> {
        let Content { served, attached, root } = content;
        let reader = Arc::clone(served.tree().reader());
        let is_in_parts = served.is_read_in_parts();
        let mounted = match served {
            Served::Snapshot(view) => {
                let shown = Arc::new(ViewState::of(view));
                let trees = Arc::clone(&attached);
                let adapter = Adapter::new(shown, trees, Arc::clone(&root), options, runtime.clone());
                let mounted = Self::start(adapter, &target, options, None, reader)?;
                let kernel = notifications(&mounted, root, &attached);
                attached.attach(forget_listings(kernel, runtime));
                mounted
            }
            Served::Followed(follower) => {
                let shown = Arc::clone(follower.shown());
                let trees = Arc::clone(&attached);
                let adapter = Adapter::new(shown, trees, Arc::clone(&root), options, runtime.clone());
                let mounted = Self::start(adapter, &target, options, None, reader)?;
                let _runtime = runtime.enter();
                follower.begin(Arc::new(notifications(&mounted, root, &attached)));
                mounted
            }
            Served::Branch(session, control) => {
                let working = Arc::clone(session.working());
                let trees = Arc::clone(&attached);
                let adapter = WorkingAdapter::new(working, control, trees, Arc::clone(&root), options, runtime);
                let mounted = Self::start(adapter, &target, options, Some(Arc::clone(&session)), reader)?;
                session.attach(Arc::new(notifications(&mounted, root, &attached)));
                mounted
            }
        };
        // A failure here does not matter.
        if let Ok(Some(mount)) = mounted.served.find() {
            readahead::raise(&mount, is_in_parts);
        }
        Ok(mounted)
    }

    fn start<R: Requests>(
        requests: R,
        target: &MountTarget,
        options: &Options,
        branch: Option<Arc<Session>>,
        reader: Arc<Reader>,
    ) -> Result<Self> {
        let place = target.path();
        let given = preopened::descriptor(place).map(preopened::take).transpose()?;
        let device = given.map_or_else(|| kernel_mount::mount(target, options), |device| Ok(Some(device)))?;
        // A mount without a daemon would hang every process that accesses it.
        let detach = || {
            let mounted = ServedMount::new(place.to_owned(), target.device_number(), Connection::New);
            let _ = mounted.unmount(UnmountMode::Detach);
        };
        let adapter = Device::new(requests, options.rings);
        let shared = adapter.shared();
        let session = match device {
            Some(device) => {
                let session = fuser::Session::from_fd(adapter, device, options.acl(), config(options));
                session.inspect_err(|_| detach()).map_err(|error| mount_error(place, error))?
            }
            None => {
                let session = fuser::Session::new(adapter, place, &config(options));
                let session = session.map_err(|error| mount_error(place, error))?;
                target.check_mounted(preopened::device_number(session.as_fd()).as_ref())?;
                session
            }
        };
        let started = start_rings(&shared, &session);
        let rings = started.inspect_err(|_| detach()).map_err(|error| mount_error(place, error))?;
        // The caller of a given descriptor mounts it before it starts this program, or while the
        // session waits.
        let device = preopened::device_number(session.as_fd()).or_else(|| target.device_number());
        let connection = session.as_fd().try_clone_to_owned();
        let connection = Arc::new(connection.inspect_err(|_| detach()).map_err(|error| mount_error(place, error))?);
        let session = session.spawn().map_err(|error| mount_error(place, error))?;
        let mountpoint = match &device {
            Some(device) if target.is_preopened() => preopened::mountpoint_of(device),
            _ => None,
        };
        let mountpoint = mountpoint.unwrap_or_else(|| place.to_owned());
        info!("{} is mounted at {} ({})", options.source, mountpoint.display(), options.mode);
        let mark = daemon_mark::set(&mountpoint);
        let served = ServedMount::new(mountpoint, device, Connection::of(&connection));
        Ok(Mounted { session, rings, served, branch, reader, _connection: connection, _mark: mark })
    }

    /// Returns the mountpoint.
    pub fn mountpoint(&self) -> &Path {
        self.served.mountpoint()
    }

    /// Returns what finds the mount again.
    pub fn served(&self) -> &ServedMount {
        &self.served
    }

    /// Waits until the file system is unmounted.
    pub fn wait(self) -> Result<()> {
        let served =
            self.session.join().map_err(|e| Error::io(format!("serving {}", self.served.mountpoint().display()), e));
        if let Some(rings) = self.rings {
            rings.wait();
        }
        served
    }
}

/// Starts the rings of a mount, if it has any.
fn start_rings<R: Requests>(shared: &Shared<R>, session: &fuser::Session<Device<R>>) -> io::Result<Option<Rings>> {
    let (Some(prepared), Some(requests)) = (&shared.rings, shared.requests.get()) else { return Ok(None) };
    let requests = Arc::clone(requests);
    let handler: Handler = Arc::new(move |message, slot| dispatch(&*requests, message, slot));
    prepared.start(&Arc::new(session.as_fd().try_clone_to_owned()?), &handler)
}

/// Returns fuser's configuration; its mount options are for `fusermount3`.
fn config(options: &Options) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        // fusermount3 reads a list: a comma in the name would end it.
        MountOption::FSName(options.source.replace('\\', "\\\\").replace(',', "\\,")),
        // Makes the type `fuse.icechunkfs`.
        MountOption::Subtype(crate::PROGRAM.to_owned()),
        if options.writable { MountOption::RW } else { MountOption::RO },
        MountOption::NoAtime,
    ];
    if options.checks_modes() {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    config.mount_options.push(if options.has(Flag::Suid) { MountOption::Suid } else { MountOption::NoSuid });
    config.mount_options.push(if options.has(Flag::Dev) { MountOption::Dev } else { MountOption::NoDev });
    if options.is_noexec() {
        config.mount_options.push(MountOption::NoExec);
    }
    config.acl = options.acl();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some(cores.clamp(*WORKERS.start(), *WORKERS.end()));
    // One queue per worker. Each opens the device anew, which some containers forbid.
    config.clone_fd = File::options().read(true).write(true).open("/dev/fuse").is_ok();
    config
}

fn uncapitalized(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

fn mount_error(mountpoint: &Path, error: io::Error) -> Error {
    let place = mountpoint.display();
    let words = error.to_string();
    if words.contains("user_allow_other") {
        let message = format!(
            "mounting at {place}: --allow-other needs the line `user_allow_other` in /etc/fuse.conf unless you are root"
        );
        return Error::new(ErrorKind::PermissionDenied, message);
    }
    match error.kind() {
        io::ErrorKind::PermissionDenied if File::options().read(true).write(true).open("/dev/fuse").is_err() => {
            let message =
                "you may not use /dev/fuse: root can allow it with `chmod 666 /dev/fuse`, which is its usual mode";
            Error::with_source(ErrorKind::PermissionDenied, message, error)
        }
        io::ErrorKind::NotFound if !Path::new("/dev/fuse").exists() => {
            Error::new(ErrorKind::NotFound, "/dev/fuse is missing: load the module with `modprobe fuse`")
        }
        // A user who cannot mount without the helper learns what is wrong with it.
        _ if let Some(helper::Obstacle { reason, remedy }) = helper::find().err() => {
            Error::with_source(ErrorKind::NotFound, format!("{reason}: {}", uncapitalized(&remedy)), error)
        }
        // The helper's words end with a line's end.
        kind if words.ends_with('\n') => {
            Error::io(format!("mounting at {place}"), io::Error::new(kind, words.trim_end().to_owned()))
        }
        _ => Error::io(format!("mounting at {place}"), error),
    }
}
