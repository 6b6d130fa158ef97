//! Mountpoints, found once.
//!
//! Other users can exchange a directory of theirs for another one, or for a link, at any moment. A
//! path that is looked up twice can so mean two things: the mount that was checked, and another one
//! that is unmounted. Therefore a path is walked once, by descriptors, and the result is a name in
//! an open directory. The kernel renames and removes no name on which something is mounted in the
//! same mount namespace, so that this name keeps its mount, and whatever other users do to the
//! directories above it has no effect. (In a namespace of their own they can rename it:
//! `docs/security.md`.)
//!
//! The walk follows no link of an untrusted user, and it does not go through file systems that such
//! a user serves ([`foreign_mount`]): a look-up there can wait forever.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, fstat, openat, readlinkat, statx};
use rustix::io::Errno;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::trust::mounts::{foreign_mount, mount_id};
use icechunkfs_base::trust::{self, MAX_LINKS, push_names};

const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Attempts to find an open directory by the path that the kernel has for it, while others rename
/// the directories above.
pub(super) const TRIES: usize = 100;

/// Opens the current directory. Not as `.`: for that the kernel may ask the daemon of its file
/// system whether this process may enter it.
pub(super) fn current_directory() -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, "/proc/self/cwd", flags, Mode::empty()).map_err(|e| Error::io("the current directory", e.into()))
}

/// Returns the path that the kernel has for an open directory at this moment. It can mean another
/// one at the next.
pub(super) fn path_of(directory: impl AsFd) -> Result<PathBuf> {
    let place = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    std::fs::read_link(&place).map_err(|e| Error::io(place, e))
}

/// Returns true if both are the same directory in the same mount. Sends no request to a daemon.
pub(super) fn is_same(one: impl AsFd, other: impl AsFd) -> bool {
    let facts = |directory: BorrowedFd<'_>| {
        let mount = mount_id(directory).ok()?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        // The kernel does not tell the number of a directory that this user may not enter: then it
        // is the root of a mount.
        let found = statx(directory, c"", flags, StatxFlags::INO).ok();
        Some((mount, found.map(|found| (found.stx_dev_major, found.stx_dev_minor, found.stx_ino))))
    };
    let one = facts(one.as_fd());
    one.is_some() && one == facts(other.as_fd())
}

/// Name of a directory on which something is mounted, or can be.
#[derive(Debug)]
pub struct Mountpoint {
    /// Directory that has the name.
    parent: OwnedFd,
    name: OsString,
    path: PathBuf,
}

impl Mountpoint {
    /// Finds the mountpoint at `path`, which need not exist below its parent directory.
    ///
    /// Errors: [`ErrorKind::PermissionDenied`] for a path through a link or a file system of
    /// another user.
    pub fn find(path: &Path) -> Result<Self> {
        let mut walk = Walk::begin(path)?;
        while let Some(name) = walk.left.pop_front() {
            if let Some(name) = walk.step(name)? {
                let path = walk.path.join(&name);
                return Ok(Mountpoint { parent: walk.at, name, path });
            }
        }
        walk.end()
    }

    /// Opens what is at the mountpoint now: the root of the topmost mount, or the directory below.
    /// Sends no request to a daemon, and starts no automount.
    pub fn open(&self) -> Result<OwnedFd, Errno> {
        openat(&self.parent, &self.name, PLACE, Mode::empty())
    }

    /// Returns the path, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory that has the mountpoint's name.
    pub(super) fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// Returns the name in the directory.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }
}

/// Returns the part of `path`, which is absolute, that lies below the root of the mount with number
/// `mount`; none if the path does not lead there. The walk ends at the root: nothing in the mount
/// is looked up.
pub(super) fn part_below(path: &Path, mount: u64) -> Option<PathBuf> {
    let mut walk = Walk::begin(path).ok()?;
    while walk.mount != mount {
        let name = walk.left.pop_front()?;
        // The last name may be the mountpoint.
        if let Some(name) = walk.step(name).ok()? {
            let at = openat(&walk.at, &name, PLACE, Mode::empty()).ok()?;
            return (mount_id(at) == Ok(mount)).then(PathBuf::new);
        }
    }
    Some(walk.left.iter().collect())
}

/// Walk along a path.
struct Walk {
    at: OwnedFd,
    /// Path of `at`, for messages.
    path: PathBuf,
    /// Number of the mount that `at` is in.
    mount: u64,
    left: VecDeque<OsString>,
    links: usize,
}

impl Walk {
    fn begin(path: &Path) -> Result<Self> {
        let at = if path.is_absolute() {
            openat(CWD, "/", PLACE, Mode::empty()).map_err(|errno| Error::io("/", errno.into()))?
        } else {
            current_directory()?
        };
        let shown = path_of(&at)?;
        let failed = |errno: Errno| Error::io(shown.display(), errno.into());
        let mount = mount_id(&at).map_err(failed)?;
        let mut walk = Walk { at, path: shown, mount, left: VecDeque::new(), links: 0 };
        push_names(&mut walk.left, path);
        if !walk.left.is_empty() {
            walk.check_mount()?;
        }
        Ok(walk)
    }

    /// Goes on to `name`: enters the directory, or follows the link. Returns the name if it is the
    /// last one, and no link.
    fn step(&mut self, name: OsString) -> Result<Option<OsString>> {
        let failed = |errno: Errno| Error::io(self.path.join(&name).display(), errno.into());
        let is_last = self.left.is_empty() && name != "..";
        let found = match openat(&self.at, &name, PLACE, Mode::empty()) {
            Err(Errno::NOENT) if is_last => return Ok(Some(name)),
            found => found.map_err(failed)?,
        };
        match readlinkat(&found, "", Vec::new()) {
            Ok(target) => self.follow(&name, &found, Path::new(OsStr::from_bytes(target.to_bytes())))?,
            // It is not a link.
            Err(Errno::NOENT | Errno::INVAL) if is_last => return Ok(Some(name)),
            Err(Errno::NOENT | Errno::INVAL) => self.enter(&name, found)?,
            Err(errno) => return Err(failed(errno)),
        }
        Ok(None)
    }

    /// Follows the open link `link`, called `name`, to `target`.
    fn follow(&mut self, name: &OsStr, link: &OwnedFd, target: &Path) -> Result<()> {
        let shown = self.path.join(name);
        let failed = |errno: Errno| Error::io(shown.display(), errno.into());
        let link = fstat(link).map_err(failed)?;
        if !trust::is_trusted_link(link.st_uid) && !trust::is_declared_safe(&self.path) {
            let shown = shown.display();
            let owner = trust::name_of(link.st_uid);
            let message = format!("{shown} is a symbolic link of user {owner}: name the mountpoint without it");
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(failed(Errno::LOOP));
        }
        if target.is_absolute() {
            let Walk { at, path, mount, .. } = Walk::begin(Path::new("/"))?;
            (self.at, self.path, self.mount) = (at, path, mount);
        }
        push_names(&mut self.left, target);
        Ok(())
    }

    /// Enters the open directory `at`, called `name`.
    fn enter(&mut self, name: &OsStr, at: OwnedFd) -> Result<()> {
        if name == ".." {
            self.path.pop();
        } else {
            self.path.push(name);
        }
        let mount = mount_id(&at).map_err(|errno| Error::io(self.path.display(), errno.into()))?;
        self.at = at;
        if mount != self.mount {
            self.mount = mount;
            self.check_mount()?;
        }
        Ok(())
    }

    /// Fails if another user serves the mount that the walk has entered.
    fn check_mount(&self) -> Result<()> {
        let Some(mount) = foreign_mount(&self.at)? else { return Ok(()) };
        let path = self.path.display();
        let variable = trust::SAFE_DIRECTORY_VARIABLE;
        let message =
            format!("{path}: {mount}: name a place outside of it, or declare its mountpoint safe with {variable}");
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Ends a walk whose path has no last name: `.`, `..` or the root directory.
    fn end(self) -> Result<Mountpoint> {
        named(self.at, |at| path_of(at))
    }
}

/// Returns the name of the open directory `at`, of which `look` finds the present path. What a
/// look-up of the path finds counts only if it is that directory.
fn named(at: OwnedFd, look: impl Fn(BorrowedFd<'_>) -> Result<PathBuf>) -> Result<Mountpoint> {
    let mut last = None;
    for _ in 0..TRIES {
        let path = look(at.as_fd())?;
        if path.file_name().is_none() {
            return Ok(Mountpoint { parent: at, name: ".".into(), path });
        }
        match Mountpoint::find(&path) {
            Ok(found) if found.open().is_ok_and(|now| is_same(now, &at)) => return Ok(found),
            found => last = found.err(),
        }
    }
    let place = path_of(&at)?;
    let gone = || {
        let message = format!(
            "{}: the directory was removed, or is renamed all the time: name another path of it",
            place.display()
        );
        Error::new(ErrorKind::NotFound, message)
    };
    Err(last.unwrap_or_else(gone))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    fn inode(file: impl AsFd) -> u64 {
        rustix::fs::fstat(file).unwrap().st_ino
    }

    #[test]
    fn a_mountpoint_is_found_by_every_form_of_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/m")).unwrap();
        for (target, name) in [("a", "relative"), ("relative", "chain"), ("../a/m", "a/last"), ("loop", "loop")] {
            symlink(target, root.join(name)).unwrap();
        }
        symlink(root.join("a"), root.join("absolute")).unwrap();
        let expected = inode(std::fs::File::open(root.join("a/m")).unwrap());
        for path in
            ["a/m", "a/m/", "./a/./m", "a/../a/m", "relative/m", "chain/m", "absolute/m", "a/last", "a/m/.", "a/m/../m"]
        {
            let found = Mountpoint::find(&root.join(path)).unwrap();
            assert_eq!(inode(found.open().unwrap()), expected, "{path}");
            assert_eq!(found.path(), root.join("a/m"), "{path}");
        }
        let up = Mountpoint::find(&root.join("a/m/..")).unwrap();
        assert_eq!(up.path(), root.join("a"));
        assert_eq!(Mountpoint::find(&root.join("a/none")).unwrap().open().unwrap_err(), Errno::NOENT);
        assert_eq!(Mountpoint::find(&root.join("none/m")).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(Mountpoint::find(&root.join("loop/m")).is_err());
        assert_eq!(Mountpoint::find(Path::new("/")).unwrap().path(), Path::new("/"));
        assert_eq!(Mountpoint::find(Path::new(".")).unwrap().path(), std::env::current_dir().unwrap());
    }

    #[test]
    fn a_path_that_means_another_directory_by_then_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/m")).unwrap();
        std::fs::create_dir_all(root.join("b/m")).unwrap();
        let open = || OwnedFd::from(std::fs::File::open(root.join("a/m")).unwrap());
        let at = open();
        let tries = std::cell::Cell::new(0);
        let found = named(at.try_clone().unwrap(), |_| {
            tries.set(tries.get() + 1);
            Ok(root.join(if tries.get() < 5 { "b/m" } else { "a/m" }))
        });
        assert!(is_same(found.unwrap().open().unwrap(), &at));
        let wrong = named(at, |_| Ok(root.join("b/m"))).unwrap_err();
        assert!(wrong.to_string().contains("renamed all the time"), "{wrong}");
        let removed = open();
        std::fs::remove_dir(root.join("a/m")).unwrap();
        assert_eq!(named(removed, |at| path_of(at)).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn directories_that_are_exchanged_later_have_no_effect() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("d/m")).unwrap();
        std::fs::create_dir_all(root.join("victim/m")).unwrap();
        let found = Mountpoint::find(&root.join("d/m")).unwrap();
        let expected = inode(found.open().unwrap());
        std::fs::rename(root.join("d"), root.join("away")).unwrap();
        symlink("victim", root.join("d")).unwrap();
        assert_eq!(inode(found.open().unwrap()), expected);
    }
}
