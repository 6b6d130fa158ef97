//! Mountpoints, found once.
//!
//! Other users can exchange a directory of theirs for another one, or for a link, at any moment. A path that is looked up twice can so mean two
//! things: the mount that was checked, and another one that is unmounted. Therefore a path is walked once, by descriptors, and the result is a
//! name in an open directory. The kernel renames and removes no name on which something is mounted in the same mount namespace, so that this name keeps its
//! mount, and whatever other users do to the directories above it has no effect. (In a namespace of their own they can rename it: `docs/security.md`.)
//!
//! The walk follows no link of an untrusted user, and it does not go through file systems that such a user serves ([`Mount::is_foreign`]): a
//! look-up there can wait forever.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;

use super::mount_table::{self, Mount};
use crate::error::{Error, ErrorKind, Result};
use crate::{beneath, trust};

/// Symbolic links that a path may lead through, as for the kernel.
const MAX_LINKS: usize = 40;

const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

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
    /// Errors: [`ErrorKind::PermissionDenied`] for a path through a link or a file system of another user.
    pub fn find(path: &Path) -> Result<Self> {
        let mut walk = Walk::begin(path)?;
        while let Some(name) = walk.left.pop_front() {
            let failed = |errno: Errno| Error::io(walk.path.join(&name).display(), errno.into());
            let is_last = walk.left.is_empty() && name != "..";
            let found = match openat(&walk.at, &name, PLACE, Mode::empty()) {
                Err(Errno::NOENT) if is_last => None,
                found => Some(found.map_err(failed)?),
            };
            let target = match found.as_ref().map(|found| readlinkat(found, "", Vec::new())) {
                // It is not a link.
                None | Some(Err(Errno::NOENT | Errno::INVAL)) => None,
                Some(target) => Some(target.map_err(failed)?),
            };
            match (found, target) {
                (Some(link), Some(target)) => {
                    walk.follow(&name, &link, Path::new(OsStr::from_bytes(target.to_bytes())))?;
                }
                (Some(directory), None) if !is_last => walk.enter(&name, directory)?,
                _ => {
                    let path = walk.path.join(&name);
                    return Ok(Mountpoint { parent: walk.at, name, path });
                }
            }
        }
        walk.end()
    }

    /// Opens what is at the mountpoint now: the root of the topmost mount, or the directory below. Sends no request to a daemon, and starts no
    /// automount.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
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
        let (start, shown) = if path.is_absolute() {
            ("/", PathBuf::from("/"))
        } else {
            (".", std::env::current_dir().map_err(|e| Error::io("the current directory", e))?)
        };
        let failed = |errno: Errno| Error::io(shown.display(), errno.into());
        let at = openat(CWD, start, PLACE, Mode::empty()).map_err(failed)?;
        let mount = beneath::mount_id(&at).map_err(failed)?;
        let mut walk = Walk { at, path: shown, mount, left: VecDeque::new(), links: 0 };
        walk.push(path);
        if !walk.left.is_empty() {
            walk.check_mount()?;
        }
        Ok(walk)
    }

    /// Puts the names of `path` in front of those that are left.
    fn push(&mut self, path: &Path) {
        for component in path.components().rev() {
            match component {
                Component::Normal(name) => self.left.push_front(name.to_owned()),
                Component::ParentDir => self.left.push_front("..".into()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
    }

    /// Follows the open link `link`, called `name`, to `target`.
    fn follow(&mut self, name: &OsStr, link: &OwnedFd, target: &Path) -> Result<()> {
        let shown = self.path.join(name);
        let failed = |errno: Errno| Error::io(shown.display(), errno.into());
        let link = fstat(link).map_err(failed)?;
        if !trust::is_trusted_link(link.st_uid) && !trust::is_declared_safe(&self.path) {
            let (shown, owner) = (shown.display(), trust::name_of(link.st_uid));
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
        self.push(target);
        Ok(())
    }

    /// Enters the open directory `at`, called `name`.
    fn enter(&mut self, name: &OsStr, at: OwnedFd) -> Result<()> {
        if name == ".." {
            self.path.pop();
        } else {
            self.path.push(name);
        }
        let mount = beneath::mount_id(&at).map_err(|errno| Error::io(self.path.display(), errno.into()))?;
        self.at = at;
        if mount != self.mount {
            self.mount = mount;
            self.check_mount()?;
        }
        Ok(())
    }

    /// Fails if another user serves the mount that the walk has entered.
    fn check_mount(&self) -> Result<()> {
        // In a change of the root directory, the kernel does not list the mount around it.
        let mount = mount_table::find_id(self.mount)?.filter(Mount::is_foreign);
        let Some(mount) = mount.filter(|mount| !trust::is_declared_safe(&mount.mountpoint)) else { return Ok(()) };
        let owner = mount.owner.map_or_else(|| "unknown".to_owned(), trust::name_of);
        let message = format!(
            "{} is a file system of user {owner}, who decides what is found below it and when: name a place outside of it, or declare it \
             safe with {}",
            mount.mountpoint.display(),
            trust::SAFE_DIRECTORY_VARIABLE
        );
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Ends a walk whose path has no last name: `.`, `..` or the root directory.
    fn end(self) -> Result<Mountpoint> {
        let failed = |e| Error::io(self.path.display(), e);
        let path = std::fs::read_link(format!("/proc/self/fd/{}", self.at.as_raw_fd())).map_err(failed)?;
        if path.file_name().is_some() {
            return Mountpoint::find(&path);
        }
        Ok(Mountpoint { parent: self.at, name: ".".into(), path })
    }
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
