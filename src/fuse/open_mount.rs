//! An icechunkfs mount that a command has opened.
//!
//! **Commands speak only to daemons of the user who runs them, and of root.** This holds for root,
//! too: anybody can mount a file system that calls itself icechunkfs, whose daemon answers what it
//! likes, when it likes, and makes a link of every file. [`OpenMount`] owns that rule: it asks
//! nothing unless the kernel names such a user for the mount ([`Mount::is_own`]). The mount of any
//! other user can only be unmounted ([`super::unmount`]), which is between this process and the
//! kernel.
//!
//! A mount is opened once, as a descriptor of its root directory, which sends no request to the
//! daemon. The number of the mount in the descriptor finds it in the kernel's table, so that the
//! facts there are those of the mount that is open, whatever its path means by now. Every answer
//! has a limit in bytes and a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::child::Child;
pub use super::child::Deadline;
use super::daemon_mark;
use super::health::Health;
use super::mount_table::{self, Mount};
use super::mountpoint::{self, Mountpoint};
use super::probe::{self, Identity, Question};
use super::survey::{self, Surveyed};
use icechunkfs_base::beneath;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::trust;
use icechunkfs_base::trust::mounts::mount_id;
use icechunkfs_base::{printable, shell};
use icechunkfs_store::recognize::{self, Kind};
use icechunkfs_tree::mount_facts::{MountInfo, split_source};
use icechunkfs_views::control_directory;

/// Longest time for replies that a daemon has in memory.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time in which a daemon that executes a command answers nothing else.
const COMMAND_SILENCE: Duration = Duration::from_secs(60);
/// Interval between two looks at such a daemon.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Longest accepted file, in bytes.
const MAX_FILE: usize = 16 << 20;
/// Longest accepted reply to a command, in bytes: it can list all changes.
const MAX_REPLY: usize = 256 << 20;

/// Rules of paths below the root.
const BELOW: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// File that takes commands.
const REQUEST: &str = "request";
/// File that a daemon renders at any time, whatever it does.
const PROGRESS: &str = "progress";

/// Open mount.
#[derive(Debug)]
pub struct OpenMount {
    root: OwnedFd,
    mount: Mount,
}

/// Returns what is mounted at `mountpoint`, with its root; none if that is a directory without a
/// mount.
pub(super) fn mounted_at(mountpoint: &Mountpoint) -> Result<Option<(OwnedFd, Mount)>> {
    let failed = |errno: rustix::io::Errno| Error::io(mountpoint.path().display(), errno.into());
    let root = match mountpoint.open() {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        root => root.map_err(failed)?,
    };
    Ok(mount_of(&root, mountpoint)?.map(|mount| (root, mount)))
}

/// Returns the mount that `root`, opened at `mountpoint`, is in; none if that is a directory
/// without a mount.
pub(super) fn mount_of(root: &OwnedFd, mountpoint: &Mountpoint) -> Result<Option<Mount>> {
    let failed = |errno: rustix::io::Errno| Error::io(mountpoint.path().display(), errno.into());
    let id = mount_id(root).map_err(failed)?;
    if id == mount_id(mountpoint.parent()).map_err(failed)? {
        return Ok(None);
    }
    mount_table::find_id(id)
}

/// Returns true if an icechunkfs mount is at `path`. Asks no daemon: the mount may hang.
pub fn is_mountpoint(path: &Path) -> bool {
    let found = Mountpoint::find(path).and_then(|mountpoint| mounted_at(&mountpoint));
    matches!(found, Ok(Some((_, mount))) if mount.is_icechunkfs())
}

/// Returns the message for a path at which nothing is mounted.
fn not_mounted(path: &Path) -> String {
    let place = path.display();
    match recognize::at(path) {
        Some(Kind::Repository) => match mount_of_repository(path) {
            Some(mountpoint) => {
                format!("{place} is a repository, which is mounted at {}: name that", mountpoint.display())
            }
            None => {
                let word = shell::quote(&path.to_string_lossy());
                format!("nothing is mounted at {place}, which is a repository: icechunkfs mount {word} MOUNTPOINT")
            }
        },
        _ => match OpenMount::containing(path) {
            Some(mount) => {
                let mountpoint = mount.mount.mountpoint.display();
                format!("{place} is inside the mount at {mountpoint}: name the mountpoint, {mountpoint}")
            }
            None => format!("nothing is mounted at {place}"),
        },
    }
}

/// Returns the mountpoint of a mount of this user of the repository at `path`.
fn mount_of_repository(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let is_of =
        |mount: &Mount| split_source(&mount.source).is_some_and(|(repository, _)| Path::new(repository) == path);
    let mounts = mount_table::own_mounts().ok()?.into_iter();
    mounts.filter(Mount::is_own).find(is_of).map(|mount| mount.mountpoint)
}

impl OpenMount {
    /// Creates the open mount with this root, which `mount` describes.
    pub(super) fn new(root: OwnedFd, mount: Mount) -> Self {
        OpenMount { root, mount }
    }

    /// Opens the mount at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        Self::at(&Mountpoint::find(path)?)
    }

    /// Opens the mount at `mountpoint`.
    ///
    /// Errors: [`ErrorKind::NotFound`] if there is no mount, [`ErrorKind::InvalidInput`] if it is
    /// of another type.
    pub fn at(mountpoint: &Mountpoint) -> Result<Self> {
        let place = mountpoint.path().display();
        match mounted_at(mountpoint)? {
            None => Err(Error::new(ErrorKind::NotFound, not_mounted(mountpoint.path()))),
            Some((_, mount)) if !mount.is_icechunkfs() => Err(Error::invalid(format!(
                "{place} is a mount of type {}, not of icechunkfs: use umount for it",
                mount.fs_type
            ))),
            Some((root, mount)) => Ok(OpenMount { root, mount }),
        }
    }

    /// Opens the mount that the current directory is in, like [`OpenMount::around`].
    pub fn current() -> Result<Self> {
        Self::around(&mountpoint::current_directory()?)
    }

    /// Opens the mount that has the existing `path`; none if that is in no icechunkfs mount of this
    /// user or of root.
    pub fn containing(path: &Path) -> Option<Self> {
        let here = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Self::around(&here).ok().filter(|mount| mount.mount.is_own())
    }

    /// Opens the mount that `here` is in. The number of the mount in the descriptor finds it,
    /// whatever the paths of both mean by then. Asks no file system: the mount may hang.
    ///
    /// Errors: [`ErrorKind::NotFound`] if that is no icechunkfs mount, or if another mount covers
    /// it.
    fn around(here: &OwnedFd) -> Result<Self> {
        let place = mountpoint::path_of(here)?;
        let place = place.display();
        let id = mount_id(here).map_err(|errno| Error::io(&place, errno.into()))?;
        let mut last = None;
        for _ in 0..mountpoint::TRIES {
            let Some(mount) = mount_table::find_id(id)?.filter(Mount::is_icechunkfs) else {
                let message = format!("{place} is not in an icechunkfs mount: name a mountpoint, or change into one");
                return Err(Error::new(ErrorKind::NotFound, message));
            };
            match Mountpoint::find(&mount.mountpoint).and_then(|mountpoint| mounted_at(&mountpoint)) {
                Ok(Some((root, mount))) if mount.id == id => return Ok(OpenMount { root, mount }),
                found => last = found.err(),
            }
        }
        let covered =
            || Error::new(ErrorKind::NotFound, format!("{place}: another mount covers this one: name a mountpoint"));
        Err(last.unwrap_or_else(covered))
    }

    /// Opens a mount of the table, and asks how it is. Returns none if another one covers it, or if
    /// it is gone.
    ///
    /// Errors: [`ErrorKind::PermissionDenied`] for the mount of another user;
    /// [`ErrorKind::Timeout`] if a file system around it does not answer before `deadline`.
    pub fn of(mount: &Mount, deadline: Deadline) -> Result<Option<(Self, Health)>> {
        require_own(mount)?;
        let place = mount.mountpoint.display();
        let unknown = |_| Error::new(ErrorKind::Io, format!("{place} cannot be asked"));
        let mut child = survey::begin(mount, &[]).map_err(unknown)?;
        let answer = child.wait(deadline);
        match survey::end(mount, &mut child, answer) {
            (Surveyed { health, .. }, Some(root)) => Ok(Some((OpenMount { root, mount: mount.clone() }, health))),
            (Surveyed { health: Health::Hanging, .. }, None) => {
                Err(Error::new(ErrorKind::Timeout, format!("{place} cannot be reached")))
            }
            (Surveyed { .. }, None) => Ok(None),
        }
    }

    /// Returns the root directory.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Closes the descriptor, which makes the mount busy.
    pub(super) fn close(self) -> Mount {
        self.mount
    }

    /// Returns what the kernel says about the mount.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Fails unless commands may speak to the daemon.
    pub fn require_own(&self) -> Result<()> {
        require_own(&self.mount)
    }

    /// Returns the content of `file` in `.icechunk`; the inner result is that of the file system.
    ///
    /// Errors: [`ErrorKind::Timeout`] if there is no answer before `deadline`.
    pub fn read(&self, file: &str, deadline: Deadline) -> Result<io::Result<Vec<u8>>> {
        self.answer(Question::Content(file), MAX_FILE, deadline)
    }

    /// Writes `bytes` to `file` in `.icechunk`; the errors are as for [`OpenMount::read`].
    pub fn write(&self, file: &str, bytes: &[u8], deadline: Deadline) -> Result<io::Result<()>> {
        Ok(self.answer(Question::Reply(file, bytes), MAX_FILE, deadline)?.map(drop))
    }

    /// Returns the reply to the command in `bytes`, which the daemon has at hand; the errors are as
    /// for [`OpenMount::read`].
    pub fn ask(&self, bytes: &[u8], deadline: Deadline) -> Result<io::Result<Vec<u8>>> {
        self.answer(Question::Reply(REQUEST, bytes), MAX_REPLY, deadline)
    }

    /// Returns the reply to the command in `bytes`, which may take as long as the daemon answers
    /// other questions meanwhile.
    ///
    /// Errors: [`ErrorKind::Timeout`] if it does not answer those either. It may still execute the
    /// command.
    pub fn execute(&self, bytes: &[u8]) -> Result<io::Result<Vec<u8>>> {
        let mut child = self.begin(Question::Reply(REQUEST, bytes), MAX_REPLY)?;
        loop {
            if let Some(reply) = child.wait(Deadline::after(LOOK_EVERY)) {
                return Ok(reply);
            }
            // Any answer is a sign of life.
            let _ = self.read(PROGRESS, Deadline::after(COMMAND_SILENCE))?;
        }
    }

    /// Opens `path`, relative to the root, which leads through no link and into no other mount. The
    /// daemon may take its time.
    pub fn open_below(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        if !self.mount.is_own() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(beneath::open(&self.root, path, flags | OFlags::CLOEXEC, BELOW)?)
    }

    /// Returns the path below the root of what `path` names on this machine; none if that is
    /// elsewhere. A relative path begins in the current directory, if that is in the mount. Nothing
    /// in the mount is looked up, and outside of it only what is on the way of an absolute path, by
    /// the rules of mountpoints: no link of another user is followed, and no file system of another
    /// user is entered.
    ///
    /// Errors: [`ErrorKind::InvalidInput`] if the path leaves the mount by `..`.
    pub fn inside(&self, path: &Path) -> Result<Option<PathBuf>> {
        let current = if path.is_relative() { self.current_directory()? } else { None };
        let found = match (current, std::path::absolute(path)) {
            (Some(current), _) => Some(current.join(path)),
            (None, Ok(absolute)) => match absolute.strip_prefix(&self.mount.mountpoint) {
                Ok(inside) => Some(inside.to_owned()),
                Err(_) if path.is_absolute() => mountpoint::part_below(&absolute, self.mount.id),
                Err(_) => None,
            },
            // Without a current directory, a relative path names nothing on this machine.
            (None, Err(_)) => None,
        };
        let leaves = || {
            let path = path.display();
            let place = self.mount.mountpoint.display();
            Error::invalid(format!("{path}: it leads out of the mount at {place}: name a path in that"))
        };
        found.map(|found| lexical(&found).ok_or_else(leaves)).transpose()
    }

    /// Returns the path of the current directory below the root; none if it is not in this mount.
    fn current_directory(&self) -> Result<Option<PathBuf>> {
        let Ok(here) = mountpoint::current_directory() else { return Ok(None) };
        if mount_id(&here) != Ok(self.mount.id) {
            return Ok(None);
        }
        // Directories above can be renamed between the two look-ups, so that the rest of one path
        // is another directory.
        for _ in 0..mountpoint::TRIES {
            let path = mountpoint::path_of(&here)?;
            let Some(mount) = mount_table::find_id(self.mount.id)? else { break };
            if let Ok(below) = path.strip_prefix(&mount.mountpoint)
                && let Ok(found) = self.open_below(below, OFlags::PATH | OFlags::NOFOLLOW)
                && mountpoint::is_same(found, &here)
            {
                return Ok(Some(below.to_owned()));
            }
        }
        let place = self.mount.mountpoint.display();
        Err(Error::new(
            ErrorKind::NotFound,
            format!("the current directory no longer has a path in the mount at {place}: change into one that exists"),
        ))
    }

    /// Checks that the daemon answers.
    ///
    /// Errors: [`ErrorKind::Timeout`] if it does not; [`ErrorKind::NotFound`] if it has ended.
    pub fn require_answers(&self) -> Result<()> {
        if self.has_ended()? { Err(self.ended()) } else { Ok(()) }
    }

    /// Returns true if the daemon has ended.
    ///
    /// Errors: [`ErrorKind::Timeout`] if it does not answer.
    pub fn has_ended(&self) -> Result<bool> {
        let answer = self.answer(Question::Attributes, 0, Deadline::after(REPLY_TIMEOUT))?;
        Ok(answer.is_err_and(|error| Health::of_error(&error) == Health::Dead))
    }

    /// Returns what the mount says about itself.
    pub fn info(&self) -> Result<MountInfo> {
        const INFO: &str = "info.json";
        let text = self.read(INFO, Deadline::after(REPLY_TIMEOUT))?.map_err(|error| self.failure(INFO, error))?;
        let wrong = |e| {
            let place = self.mount.mountpoint.display();
            Error::with_source(ErrorKind::Corrupt, format!("{place}: {INFO}"), e)
        };
        serde_json::from_slice(&text).map_err(wrong)
    }

    /// Returns the error for a mount whose daemon has ended.
    pub fn ended(&self) -> Error {
        let place = self.mount.mountpoint.display();
        Error::new(
            ErrorKind::NotFound,
            format!(
                "{place}: the daemon of this mount, of {}, has ended: mount it there again, with the options that it had; \
                 uncommitted changes are in its scratch directory",
                printable::line(&self.mount.source)
            ),
        )
    }

    /// Returns the error of the file system, or of a mount whose daemon has ended.
    pub fn failure(&self, file: &str, error: io::Error) -> Error {
        if Health::of_error(&error) == Health::Dead {
            return self.ended();
        }
        let place = self.mount.mountpoint.display();
        if error.kind() == io::ErrorKind::PermissionDenied {
            let message = format!("{place}: this user may not use .icechunk/{file} of this mount, only its owner may");
            return Error::new(ErrorKind::PermissionDenied, message);
        }
        Error::io(self.mount.mountpoint.join(control_directory::NAME).join(file).display(), error)
    }

    fn answer(&self, question: Question<'_>, limit: usize, deadline: Deadline) -> Result<io::Result<Vec<u8>>> {
        let begin = deadline.left();
        let mut child = self.begin(question, limit)?;
        child.wait(deadline).ok_or_else(|| self.silent(begin))
    }

    fn begin(&self, question: Question<'_>, limit: usize) -> Result<Child> {
        self.require_own()?;
        let place = self.mount.mountpoint.display();
        let wrong = || Error::invalid(format!("{place}: `{}` is not a valid device number", self.mount.device));
        let identity = Identity::of(&self.mount).ok_or_else(wrong)?;
        probe::ask(self.root.as_fd(), identity, question, limit).map_err(|e| Error::io(format!("asking {place}"), e))
    }

    /// Returns the error for a daemon that has not answered for `time`.
    pub fn silent(&self, time: Duration) -> Error {
        let daemon = daemon_mark::find(&self.mount);
        let daemon = daemon.map_or("its daemon".to_owned(), |process| format!("its daemon (process {process})"));
        Error::new(
            ErrorKind::Timeout,
            format!(
                "{}: the mount does not answer within {} s: {daemon} is stopped, or waits for storage. Resume it, or detach the mount \
                 with `icechunkfs unmount --force`; uncommitted changes stay in the scratch directory",
                self.mount.mountpoint.display(),
                time.as_secs_f64().ceil(),
            ),
        )
    }
}

/// Returns `path` without `..`, each of which takes away the name before it; none if it leads up
/// from the beginning.
fn lexical(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => found.push(name),
            Component::ParentDir if !found.pop() => return None,
            _ => {}
        }
    }
    Some(found)
}

/// Fails unless commands may speak to the daemon of `mount`.
fn require_own(mount: &Mount) -> Result<()> {
    if mount.is_own() {
        return Ok(());
    }
    let owner = mount.owner.map_or_else(|| "unknown".to_owned(), trust::name_of);
    Err(Error::new(
        ErrorKind::PermissionDenied,
        format!(
            "{} is a mount of user {owner}: commands speak only to daemons of the user who runs them and of root. Run this as that user",
            mount.mountpoint.display()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_resolved_by_names_alone_and_lead_out_of_nothing() {
        for (path, expected) in [
            ("a/b", Some("a/b")),
            ("a/../b/./c/..", Some("b")),
            ("a/..", Some("")),
            ("", Some("")),
            ("..", None),
            ("a/../../a", None),
        ] {
            assert_eq!(lexical(Path::new(path)), expected.map(PathBuf::from), "{path}");
        }
    }
}
