//! Mounts: from the options to a served mount, and its end.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tracing::{info, warn};

use super::open::{self, MemoryLimits};
use crate::fuse::io_mode::{self, IoMode, IoOption};
use crate::fuse::mount::{Content, Flag, Mounted, Options, Served};
use crate::fuse::presentation::Presentation;
use crate::fuse::ring;
use crate::fuse::root_map::RootMap;
use crate::fuse::served_mount::ServedMount;
use crate::fuse::unmount::UnmountMode;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory;
use icechunkfs_base::shell;
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::commit::engine::{Engine, EngineOptions};
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::identity::Identity;
use icechunkfs_repo::repo::properties::Properties;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::mount_facts::{Access, MountFacts};
use icechunkfs_tree::tree::nodes::{TreePlace, ZARR_JSON};
use icechunkfs_tree::tree::numbering::Numbering;
use icechunkfs_views::attached::{AttachedTrees, Shown};
use icechunkfs_views::views::native::NativeView;
use icechunkfs_views::views::options::ViewOptions;
use icechunkfs_working::control::Control;
use icechunkfs_working::follow::Follower;
use icechunkfs_working::operations::status::Status;
use icechunkfs_working::operations::{self, RecoveryOptions, Session, UploadMode};
use icechunkfs_working::scratch::directory::{default_path, make_private};
use icechunkfs_working::scratch::jobs::{self, JobDirectory};
use icechunkfs_working::scratch::record::Name;
use icechunkfs_working::scratch::relocate;
use icechunkfs_working::scratch::requirements::Requirements;

/// Options of a mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Snapshot to mount.
    pub spec: RefSpec,
    /// True to mount a branch read-only.
    pub read_only: bool,
    /// Form in which the snapshot is shown. Views other than the native one are read-only.
    pub view: ViewOptions,
    /// Node that is the root of the mount, a path without a slash at its ends; empty for the whole
    /// tree.
    pub root: String,
    /// Name of the tree's root in the mount; none if it is the mount's root.
    pub subdir: Option<String>,
    /// Interval between checks of a branch that the mount follows.
    pub follow: Option<Duration>,
    /// Scratch directory.
    pub scratch: Scratch,
    /// Treatment of the uncommitted changes of earlier mounts.
    pub leftovers: Leftovers,
    /// True to list the directory `.icechunk`.
    pub show_control: bool,
    /// Size in bytes below which chunks are packed; none for the default.
    pub pack_below: Option<u64>,
    /// Time at which chunks are uploaded.
    pub upload: UploadMode,
    /// Limits of memory.
    pub limits: MemoryLimits,
    /// I/O mode.
    pub io: IoOption,
    /// True to take requests through io_uring.
    pub io_uring: bool,
    /// True to allow access by other users.
    pub allow_other: bool,
    /// True if the mountpoint may have files or mounts.
    pub nonempty: bool,
    /// Flags for the kernel.
    pub flags: Vec<Flag>,
    /// Owner and modes that files show.
    pub presentation: Presentation,
    /// True if programs may ask a writable mount for extended attributes.
    pub xattrs: bool,
    /// Source in `/proc/mounts`; none for the repository and the ref.
    pub source: Option<String>,
    /// Further options that `.icechunk/info.json` lists.
    pub listed: Map<String, Value>,
}

/// Scratch directory of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scratch {
    /// That of the branch.
    #[default]
    Default,
    /// This one.
    At(PathBuf),
    /// A temporary one, which goes when the mount ends if everything was committed.
    Ephemeral,
    /// One of a job ([`jobs`]), which goes when the mount ends.
    Job,
}

/// Treatment of the uncommitted changes of earlier mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftovers {
    /// The mount shows them again.
    #[default]
    Resume,
    /// They are discarded.
    Discard,
    /// There is no mount, but an error of kind [`ErrorKind::Busy`].
    Refuse,
}

impl MountOptions {
    /// Returns true if they make sense for a writable mount only.
    fn ask_for_writing(&self) -> bool {
        self.scratch != Scratch::Default || self.leftovers != Leftovers::Resume
    }
}

/// Prepares the mount of `repository` at `mountpoint` (absolute, prepared). Returns the content of
/// the mount, options of the kernel, and a note for the user.
pub async fn prepare(
    repository: &Repository,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<(Content, Options, String)> {
    let (served, note) = serve(repository, mountpoint, options).await?;
    let tree = served.tree();
    if options.io_uring {
        check_io_uring(options.io)?;
    }
    let (mut mode, reason) = io_mode::choose(options.io, tree.table(), tree.reader().has_files())?;
    // Data files are always local files: the kernel can move their bytes whatever the chunks' size.
    let writable = matches!(served, Served::Branch(..));
    if writable && options.io == IoOption::Auto && io_mode::obstacle(true).is_none() {
        mode = IoMode::Passthrough;
    }
    if options.io_uring {
        mode = IoMode::Cached;
    }
    info!("mounting {}: it is snapshot {}; I/O mode {mode}: {reason}", options.spec, tree.snapshot().id());
    let facts = match &served {
        Served::Branch(session, _) => Arc::clone(session.facts()),
        Served::Followed(_) => {
            Arc::new(MountFacts { access: Access::Follow, ..facts_of(repository, mountpoint, options) })
        }
        Served::Snapshot(_) => Arc::new(facts_of(repository, mountpoint, options)),
    };
    let source = options.source.clone().unwrap_or_else(|| facts.source());
    let attached = Arc::new(attached(repository, &served, options, facts)?);
    let root = match &served {
        // A working tree is committed as a whole, whatever part of it is shown.
        Served::Branch(session, _) => shown_root(session, &options.root)
            .await
            .ok_or_else(|| open::no_root(repository, &options.spec, &options.root))?,
        Served::Snapshot(_) | Served::Followed(_) => Ino::ROOT,
    };
    let root = Arc::new(RootMap::new(root, options.subdir.as_deref()));
    let options = Options {
        source,
        allow_other: options.allow_other,
        nonempty: options.nonempty,
        flags: options.flags.clone(),
        mode,
        insist: options.io != IoOption::Auto,
        rings: options.io_uring,
        writable,
        presentation: options.presentation,
        xattrs: options.xattrs,
    };
    Ok((Content { served, attached, root }, options, note))
}

/// Checks that requests can come through io_uring, with the I/O mode that the user asks for.
fn check_io_uring(io: IoOption) -> Result<()> {
    if io == IoOption::Passthrough {
        return Err(Error::invalid(
            "--io-uring and --io passthrough: give one of them; with io_uring, bytes are copied",
        ));
    }
    match ring::obstacle() {
        Some(why) => Err(Error::new(ErrorKind::Unsupported, format!("--io-uring: {why}"))),
        None => Ok(()),
    }
}

/// Returns the name of what is mounted: of node `root`, or of the repository.
fn name_of<'a>(repository: &'a Repository, root: &'a str) -> &'a str {
    if root.is_empty() { repository.storage().location() } else { root }
}

/// Returns the number of directory `path` of a working tree; none if there is no such directory, or
/// no group or array in it: one with a document, or with nodes of the snapshot below.
async fn shown_root(session: &Session, path: &str) -> Option<Ino> {
    let mut number = Ino::ROOT;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        // The lookup counts as one of the kernel's, and is never taken back: the root of a mount is
        // never forgotten.
        let found = session.working().namespace().lookup(number, &Name::new(part.as_bytes())).await.ok().flatten()?;
        if found.kind != libc::S_IFDIR {
            return None;
        }
        number = found.number;
    }
    if matches!(session.working().upper().base().tree.place_of(path), Some(TreePlace::Directory(_))) {
        return Some(number);
    }
    let document = session.working().namespace().lookup(number, &Name::new(ZARR_JSON.as_bytes())).await.ok().flatten();
    document.is_some_and(|found| found.kind == libc::S_IFREG).then_some(number)
}

/// Prepares the trees below `.icechunk` of a mount that shows `served`.
fn attached(
    repository: &Repository,
    served: &Served,
    options: &MountOptions,
    facts: Arc<MountFacts>,
) -> Result<AttachedTrees> {
    let shown: Shown = match served {
        Served::Snapshot(view) => {
            let view = Arc::clone(view);
            Box::new(move || Arc::clone(&view))
        }
        Served::Followed(follower) => {
            let state = Arc::clone(follower.shown());
            Box::new(move || Arc::clone(state.view().files()))
        }
        Served::Branch(session, _) => {
            let working = Arc::clone(session.working());
            Box::new(move || Arc::new(NativeView(Arc::clone(&working.upper().base().tree))))
        }
    };
    let branch = match &options.spec {
        RefSpec::Branch(branch) | RefSpec::AsOf { branch, .. } => branch,
        RefSpec::Tag(_) | RefSpec::Snapshot(_) | RefSpec::Abbreviated(_) => DEFAULT_BRANCH,
    };
    let limit = options.limits.max_snapshot_size()?;
    Ok(AttachedTrees::new(repository.storage(), branch, &options.root, limit, shown, facts))
}

/// Returns the facts about a read-only mount.
fn facts_of(repository: &Repository, mountpoint: &Path, options: &MountOptions) -> MountFacts {
    let listed = json!({
        "root": options.root,
        "subdir": options.subdir,
        "view": options.view.to_string(),
        "follow": options.follow.map(|interval| interval.as_secs_f64()),
        "allow_other": options.allow_other,
        "memory": memory::explicit_bound(),
    });
    let listed = listed.as_object().into_iter().flatten().chain(&options.listed);
    MountFacts {
        repository: repository.storage().location().to_owned(),
        spec: options.spec.clone(),
        access: Access::ReadOnly,
        mountpoint: mountpoint.to_owned(),
        spec_version: repository.version().number(),
        properties: repository.properties().ok().and_then(Properties::describe),
        scratch: None,
        options: listed.map(|(name, value)| (name.clone(), value.clone())).collect(),
    }
}

/// Checks that the mount `served` answers: a failure is better reported now than met by the first
/// program.
pub fn check_answers(served: &ServedMount) -> Result<()> {
    served.require_answers().inspect_err(|_| {
        // No program can use it: do not leave it behind.
        let _ = served.unmount(UnmountMode::Detach);
    })
}

/// Waits until `mounted` is unmounted, and flushes what is not committed. Removes a temporary
/// scratch directory in which nothing is left.
pub fn wait(mounted: Mounted, runtime: &Handle, scratch: &Scratch) -> Result<()> {
    let branch = mounted.branch.clone();
    let reader = Arc::clone(&mounted.reader);
    let served = mounted.wait();
    info!("unmounted");
    if let Some(session) = branch {
        runtime.block_on(end_writable(session, scratch));
    }
    runtime.block_on(reader.flush_disk_cache());
    served
}

async fn serve(repository: &Repository, mountpoint: &Path, options: &MountOptions) -> Result<(Served, String)> {
    let mut note = String::new();
    let read_only = options.read_only || options.follow.is_some() || !options.view.is_native();
    if let (RefSpec::Branch(branch), false) = (&options.spec, read_only) {
        match repository.read_only_reason(branch).await? {
            None => match open_branch(repository, branch, options, mountpoint).await {
                Ok((session, control, resumed)) => {
                    return Ok((Served::Branch(session, control), resumed.unwrap_or_default()));
                }
                // Looking needs less of the cache than writing does. Changes of an earlier mount
                // are never left out.
                Err(error) if error.kind() == ErrorKind::Offline && !may_have_work(repository, branch, options) => {
                    note = format!("mounted read-only: {error}");
                    warn!("{note}");
                }
                Err(error) => return Err(error),
            },
            Some(why) if options.ask_for_writing() => {
                let source = repository.storage().location();
                return Err(Error::new(ErrorKind::ReadOnly, format!("{source} cannot be written to: {why}")));
            }
            Some(why) => {
                note = format!("mounted read-only: {why}");
                warn!("{note}");
            }
        }
    }
    if let (Some(interval), RefSpec::Branch(branch)) = (options.follow, &options.spec) {
        let mut numbering = Numbering::with_headroom();
        let tree = open::tree_after(repository, &options.spec, options.limits, &mut numbering, &options.root).await?;
        return Ok((Served::Followed(Follower::new(repository, branch, tree, numbering, interval)), note));
    }
    let mut numbering = Numbering::default();
    let tree = open::tree_after(repository, &options.spec, options.limits, &mut numbering, &options.root).await?;
    let view = options.view.make(tree, name_of(repository, &options.root)).await?;
    let shown = Arc::clone(&view);
    let omissions = blocking(move || Ok(shown.omissions())).await?;
    let omitted = omissions.note(&options.view.kind.to_string());
    if let Some(omitted) = &omitted {
        warn!("{omitted}");
    }
    let notes = Some(note).filter(|note| !note.is_empty()).into_iter().chain(omitted);
    Ok((Served::Snapshot(view), notes.collect::<Vec<_>>().join("; ")))
}

/// Opens `branch` for writing. Returns a note for the user, too.
async fn open_branch(
    repository: &Repository,
    branch: &str,
    options: &MountOptions,
    mountpoint: &Path,
) -> Result<(Arc<Session>, Arc<Control>, Option<String>)> {
    let limits = options.limits;
    let limit = limits.max_snapshot_size()?;
    let storage = Arc::clone(repository.storage());
    let local = storage.local_path();
    let (scratch, of_earlier_jobs) = scratch(repository, branch, options)?;
    let relocated = match (&local, &options.scratch) {
        (Some(_), Scratch::Default) => relocate_scratch(repository, branch, &scratch, mountpoint).await?,
        _ => None,
    };
    let opening = RecoveryOptions {
        branch,
        scratch: &scratch,
        mountpoint,
        local: local.as_deref(),
        discard: options.leftovers == Leftovers::Discard,
        limit,
    };
    let reader = |fixed: u64| Ok(Reader::new(Arc::clone(&storage), limits.budget(fixed)?));
    let opened = operations::open(repository, &opening, reader).await.inspect_err(|_| {
        if options.scratch == Scratch::Job {
            jobs::remove(&scratch);
        }
    });
    let (working, reader, note) = opened?;
    // A mount of what a job has left goes on with it.
    if options.scratch != Scratch::Job {
        jobs::keep(working.upper().scratch().path())?;
    }
    let offline =
        storage.capabilities().offline.as_ref().map(|_| {
            "offline: the branch is shown as it was seen last, and a commit or refresh asks the store".to_owned()
        });
    let note = [relocated, of_earlier_jobs, note, offline]
        .into_iter()
        .flatten()
        .reduce(|one, other| format!("{one}; {other}"));
    let engine_options = EngineOptions::default();
    let pack_below = options.pack_below.unwrap_or(engine_options.pack_below);
    let engine_options = EngineOptions { pack_below, memory: limits.uploads(), ..engine_options };
    let engine = Engine::new(Arc::clone(&storage), Arc::clone(&reader), system_clock, engine_options);
    let writable = json!({
        "scratch": scratch.to_string_lossy(),
        "named_scratch": matches!(options.scratch, Scratch::At(_)),
        "ephemeral": options.scratch == Scratch::Ephemeral,
        "job": options.scratch == Scratch::Job,
        "show_control": options.show_control,
        "pack_below": pack_below,
        "upload": options.upload,
    });
    let mut facts = facts_of(repository, mountpoint, options);
    facts.repository = working.upper().origin().repository.clone();
    facts.access = Access::Write;
    facts.scratch = Some(working.upper().scratch().path().to_owned());
    facts.options.extend(writable.as_object().cloned().unwrap_or_default());
    let session = Arc::new(Session::new(working, storage, reader, engine, Arc::new(facts)));
    if options.leftovers == Leftovers::Refuse {
        refuse_leftovers(&session).await?;
    }
    // Offline, the first commit stores all of them.
    if options.upload == UploadMode::Eager && !session.is_offline() {
        session.begin_uploads();
    }
    let control = Arc::new(Control::new(Arc::clone(&session), options.show_control));
    Ok((session, control, note))
}

/// Returns true if the scratch directory of `branch` may have uncommitted changes, or if a
/// writable mount was asked for.
fn may_have_work(repository: &Repository, branch: &str, options: &MountOptions) -> bool {
    let needs = default_path(&scratch_location(repository), branch).and_then(|path| Requirements::of(&path));
    options.ask_for_writing() || needs.map_or(true, |needs| needs.is_some_and(|needs| needs.has_work))
}

/// Relocates the scratch directory of a moved repository to `scratch`. Returns a note for the user.
async fn relocate_scratch(
    repository: &Repository,
    branch: &str,
    scratch: &Path,
    mountpoint: &Path,
) -> Result<Option<String>> {
    let identity = match Identity::of(repository).await {
        Ok(Some(identity)) => identity.to_string(),
        // The commands that need the identity report the error.
        Ok(None) | Err(_) => return Ok(None),
    };
    relocate::relocate(scratch, branch, &identity, mountpoint)
}

/// Returns the option that mounts `branch`, behind a blank: nothing for the one that is mounted
/// without it. The name may begin with a dash.
pub fn branch_option(branch: &str) -> String {
    match branch {
        DEFAULT_BRANCH => String::new(),
        branch => format!(" {}", shell::quote(&format!("--branch={branch}"))),
    }
}

/// Returns the scratch directory, and a note for the user.
fn scratch(repository: &Repository, branch: &str, options: &MountOptions) -> Result<(PathBuf, Option<String>)> {
    match &options.scratch {
        Scratch::Default => Ok((default_path(&scratch_location(repository), branch)?, None)),
        Scratch::At(path) => Ok((std::path::absolute(path).map_err(|e| Error::io("the scratch directory", e))?, None)),
        Scratch::Ephemeral => {
            let made = make_private(&std::env::temp_dir(), OsStr::new("icechunkfs-"));
            let made = made.map_err(|e| Error::io("making a temporary scratch directory", e))?;
            // `end_writable` removes the directory if all of its contents were committed.
            Ok((made, None))
        }
        Scratch::Job => {
            let JobDirectory { path, kept } = jobs::create(&scratch_location(repository), branch)?;
            let note = |earlier: &PathBuf| {
                let place = shell::quote(&earlier.to_string_lossy());
                let branch = branch_option(branch);
                format!("work of an earlier job is kept: a mount with `--scratch {place}{branch}` shows it")
            };
            Ok((path, kept.first().map(note)))
        }
    }
}

/// Fails if `session` has resumed uncommitted changes.
async fn refuse_leftovers(session: &Session) -> Result<()> {
    let Status { clean, untracked, scratch, branch, .. } = session.local_status().await?;
    if clean && untracked.is_empty() {
        return Ok(());
    }
    let what = if clean { "files that no commit takes" } else { "uncommitted changes" };
    let message = format!(
        "an earlier mount of branch {branch} left {what} in {scratch}. To look at them and commit them, mount without \
         --refuse-uncommitted; to discard them, with --discard"
    );
    Err(Error::new(ErrorKind::Busy, message))
}

/// Returns the name of `repository` in paths of scratch directories: its real location, whatever
/// path the user gave.
pub fn scratch_location(repository: &Repository) -> String {
    let storage = repository.storage();
    let local = storage.local_path().map(|path| path.to_string_lossy().into_owned());
    local.unwrap_or_else(|| storage.location().to_owned())
}

/// Ends a mount: logs uncommitted changes, and removes a temporary scratch directory if there are
/// none.
async fn end_writable(session: Arc<Session>, scratch: &Scratch) {
    session.end_uploads();
    // Nothing is written to the directory after this.
    if let Err(error) = session.working().upper().make_durable().await {
        warn!("{error}: the last writes may be lost if the power fails");
    }
    let path = session.working().upper().scratch().path().to_owned();
    // The program that made the mount removes a directory that may be discarded.
    if *scratch == Scratch::Job && !jobs::is_kept(&path) {
        return;
    }
    let is_temporary = matches!(scratch, Scratch::Ephemeral | Scratch::Job);
    match session.local_status().await {
        Ok(status) if status.clean && (!is_temporary || status.untracked.is_empty()) => {
            if is_temporary && let Err(error) = std::fs::remove_dir_all(&path) {
                warn!("the scratch directory {} is left behind: {error}", path.display());
            }
        }
        Ok(status) => info!(
            "uncommitted changes stay in {}: {} chunks, {} bytes, {} untracked files",
            path.display(),
            status.chunks_written + status.chunks_deleted,
            status.bytes,
            status.untracked.len()
        ),
        Err(error) => warn!("{}: {error}", path.display()),
    }
}
