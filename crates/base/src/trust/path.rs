//! Walks a path by descriptors and checks each step.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::mounts::{ForeignMount, foreign_mount, mount_id};
use super::{Distrust, STICKY, check_owner, distrust_error, is_trusted, is_writable_by_others, name_of};
use crate::error::{Error, ErrorKind, Result};

/// Symbolic links that are followed at most, as in the kernel.
pub const MAX_LINKS: usize = 40;

/// Environment variable with the directories that the user declares safe, regardless of who owns
/// them or may write to them: absolute paths without links, separated by `:`. Git has the same for
/// repositories.
pub const SAFE_DIRECTORY_VARIABLE: &str = "ICECHUNKFS_SAFE_DIRECTORY";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strictness {
    /// The last component is trusted because of the directories around it.
    Full,
    /// A group may write to directories of root, as to `/var/log` on some systems: the last
    /// component is checked by itself.
    LogFile,
    /// Directories may be anybody's. Links decide where the path leads, and must be those of
    /// trusted users.
    Links,
}

/// Opens the directory `path`, which must be trusted, and returns its path without links. Missing
/// directories are created with mode 0700.
///
/// Errors: [`ErrorKind::PermissionDenied`] if another user owns it or a directory on the way, or
/// may write to it.
pub fn create_directory(path: &Path) -> Result<(OwnedFd, PathBuf)> {
    let mode = Mode::RWXU;
    let (parent, name, shown) = open_parent(path, Some(mode), Strictness::Full, &is_trusted)?;
    let failed = |errno: Errno| Error::io(shown.display(), errno.into());
    match rustix::fs::mkdirat(&parent, &name, mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed(errno)),
    }
    open_checked(&parent, &name, &shown, &is_trusted).map(|directory| (directory, shown))
}

/// Opens the existing directory `path` by the rules of [`create_directory`], with the trusted users
/// for whom `is_trusted` returns true, and returns its path without links.
///
/// Errors: [`ErrorKind::PermissionDenied`] as there, [`ErrorKind::NotFound`] also for a link that
/// leads nowhere.
pub fn open_directory(path: &Path, is_trusted: &dyn Fn(u32) -> bool) -> Result<(OwnedFd, PathBuf)> {
    let (parent, name, shown) = open_parent(path, None, Strictness::Full, is_trusted)?;
    open_checked(&parent, &name, &shown, is_trusted).map(|directory| (directory, shown))
}

/// Opens the directory `name` in `parent`, which `shown` is the path of, after it was checked: an
/// open can wait for the daemon of its file system.
fn open_checked(parent: &OwnedFd, name: &OsStr, shown: &Path, is_trusted: &dyn Fn(u32) -> bool) -> Result<OwnedFd> {
    let failed = |errno: Errno| Error::io(shown.display(), errno.into());
    let found = rustix::fs::openat(parent, name, PLACE, Mode::empty()).map_err(failed)?;
    match check_owner(&found, is_trusted) {
        Err(why) if !is_declared_safe(shown) => return Err(unsafe_directory(shown, &why)),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&found, ".", flags, Mode::empty()).map_err(failed)
}

/// Opens the directory `path`, which may be anybody's, by a walk that follows no link of another
/// user, and returns its path without links. What such a user does to the path later has no effect
/// on the descriptor. Missing directories are created with the mode `create`, if given.
///
/// Errors: [`ErrorKind::PermissionDenied`] for a link of another user or in that user's file
/// system, [`ErrorKind::NotFound`] without `create`.
pub fn open_place(path: &Path, create: Option<Mode>) -> Result<(OwnedFd, PathBuf)> {
    let (parent, name, shown) = open_parent(path, create, Strictness::Links, &is_trusted_link)?;
    let failed = |errno: Errno| Error::io(shown.display(), errno.into());
    if let Some(mode) = create {
        match rustix::fs::mkdirat(&parent, &name, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = rustix::fs::openat(&parent, &name, flags, Mode::empty()).map_err(failed)?;
    Ok((directory, shown))
}

/// Returns `path` without links, as far as it exists, by the rules of [`open_place`]. Changes
/// nothing.
pub fn place_of(path: &Path) -> Result<PathBuf> {
    without_links(path, Strictness::Links, &is_trusted_link)
}

/// Returns `path` without links, as far as it exists, by the rules of [`create_directory`] for the
/// directories around it. Changes nothing.
pub fn private_place_of(path: &Path) -> Result<PathBuf> {
    without_links(path, Strictness::Full, &is_trusted)
}

fn without_links(path: &Path, strictness: Strictness, is_trusted: &dyn Fn(u32) -> bool) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|e| Error::io(path.display(), e))?;
    for there in absolute.ancestors() {
        match open_parent(there, None, strictness, is_trusted) {
            Ok((_, _, shown)) => {
                let missing = absolute.strip_prefix(there).unwrap_or(Path::new(""));
                return Ok(missing.iter().fold(shown, |shown, name| shown.join(name)));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(absolute)
}

/// Opens the directory that holds `path`. Returns it with the last component, which is no symbolic
/// link at that moment and need not exist, and with both as a path without links. Other missing
/// components are created with mode `create`, if given.
pub(super) fn open_parent(
    path: &Path,
    create: Option<Mode>,
    strictness: Strictness,
    is_trusted: &dyn Fn(u32) -> bool,
) -> Result<(OwnedFd, OsString, PathBuf)> {
    let absolute = std::path::absolute(path).map_err(|e| Error::io(path.display(), e))?;
    let mut step = Step::root(strictness, is_trusted)?;
    let mut left: VecDeque<OsString> = VecDeque::new();
    push_names(&mut left, &absolute);
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let shown = step.shown.join(&name);
        let failed = |errno: Errno| Error::io(shown.display(), errno.into());
        match rustix::fs::readlinkat(&step.at, &name, Vec::new()) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(failed(Errno::LOOP));
                }
                step.check_link(&name, &shown)?;
                let target = Path::new(OsStr::from_bytes(target.to_bytes()));
                if target.is_absolute() {
                    step = Step::root(strictness, is_trusted)?;
                }
                push_names(&mut left, target);
                continue;
            }
            // The component is no link, or does not exist.
            Err(Errno::INVAL | Errno::NOENT) if left.is_empty() && name != ".." => return Ok((step.at, name, shown)),
            Err(Errno::NOENT) => match create {
                Some(mode) => match rustix::fs::mkdirat(&step.at, &name, mode) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(failed(errno)),
                },
                None => return Err(failed(Errno::NOENT)),
            },
            Err(Errno::INVAL) => {}
            Err(errno) => return Err(failed(errno)),
        }
        step.enter(&name)?;
    }
    Ok((step.at, OsString::from("."), step.shown))
}

/// Puts the names of `path` in front of those that are `left` of a walk.
pub fn push_names(left: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => left.push_front(name.to_owned()),
            Component::ParentDir => left.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// Directory on the way.
struct Step<'a> {
    at: OwnedFd,
    /// Number of its mount.
    mount: u64,
    /// The mount, if another user serves it.
    foreign: Option<ForeignMount>,
    stat: Stat,
    shown: PathBuf,
    strictness: Strictness,
    is_trusted: &'a dyn Fn(u32) -> bool,
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl<'a> Step<'a> {
    fn root(strictness: Strictness, is_trusted: &'a dyn Fn(u32) -> bool) -> Result<Self> {
        let at = rustix::fs::open("/", PLACE, Mode::empty()).map_err(|e| Error::io("/", e.into()))?;
        let shown = PathBuf::from("/");
        let mount = mount_id(&at).map_err(|e| Error::io("/", e.into()))?;
        Step::over(at, mount, None, shown, strictness, is_trusted)
    }

    fn enter(&mut self, name: &OsStr) -> Result<()> {
        let mut shown = std::mem::take(&mut self.shown);
        if name == ".." {
            shown.pop();
        } else {
            shown.push(name);
        }
        let at = rustix::fs::openat(&self.at, name, PLACE, Mode::empty());
        let at = at.map_err(|e| Error::io(shown.display(), e.into()))?;
        let mount = mount_id(&at).map_err(|e| Error::io(shown.display(), e.into()))?;
        let foreign = if mount == self.mount { self.foreign.take() } else { foreign_mount(&at)? };
        *self = Step::over(at, mount, foreign, shown, self.strictness, self.is_trusted)?;
        Ok(())
    }

    fn over(
        at: OwnedFd,
        mount: u64,
        foreign: Option<ForeignMount>,
        shown: PathBuf,
        strictness: Strictness,
        is_trusted: &'a dyn Fn(u32) -> bool,
    ) -> Result<Self> {
        if let Some(foreign) = &foreign
            && strictness != Strictness::Links
            && !is_declared_safe(&shown)
        {
            let foreign = foreign.clone();
            return Err(unsafe_directory(&shown, &Distrust::Served(foreign)));
        }
        let stat = rustix::fs::fstat(&at).map_err(|e| Error::io(shown.display(), e.into()))?;
        let step = Step { at, mount, foreign, stat, shown, strictness, is_trusted };
        if strictness == Strictness::Links {
            return Ok(step);
        }
        let Step { at, shown, .. } = &step;
        let why = if !is_trusted(stat.st_uid) && !is_unmapped(stat.st_uid) {
            Distrust::Owner(stat.st_uid)
        } else if is_writable_by_others(at, &stat) && stat.st_mode & STICKY == 0 {
            Distrust::Writable(stat.st_mode & 0o7777)
        } else {
            return Ok(step);
        };
        let is_left_to_a_group = strictness == Strictness::LogFile && stat.st_uid == 0 && stat.st_mode & 0o002 == 0;
        if is_left_to_a_group || is_declared_safe(shown) {
            return Ok(step);
        }
        Err(unsafe_directory(shown, &why))
    }

    /// Checks that only a trusted user can have put the link `name` here.
    fn check_link(&self, name: &OsStr, shown: &Path) -> Result<()> {
        if self.strictness == Strictness::Links {
            if is_declared_safe(&self.shown) {
                return Ok(());
            }
        } else if self.foreign.is_none() && !is_writable_by_others(&self.at, &self.stat) {
            return Ok(());
        }
        let owner = match &self.foreign {
            Some(foreign) => foreign.user(),
            None => {
                let link = rustix::fs::statat(&self.at, name, AtFlags::SYMLINK_NOFOLLOW);
                let link = link.map_err(|e| Error::io(shown.display(), e.into()))?;
                if (self.is_trusted)(link.st_uid) {
                    return Ok(());
                }
                link.st_uid
            }
        };
        let owner = name_of(owner);
        let shown = shown.display();
        Err(Error::new(
            ErrorKind::PermissionDenied,
            format!("{shown}: it is a symbolic link of user {owner}: name another place"),
        ))
    }
}

/// Returns true if the user declares the directory `path` safe.
pub fn is_declared_safe(path: &Path) -> bool {
    std::env::var_os(SAFE_DIRECTORY_VARIABLE)
        .is_some_and(|declared| std::env::split_paths(&declared).any(|safe| safe == path))
}

fn unsafe_directory(path: &Path, why: &Distrust) -> Error {
    let error = distrust_error(path, why);
    Error::new(error.kind(), format!("{error}, or declare the directory safe with {SAFE_DIRECTORY_VARIABLE}"))
}

/// Returns true if a symbolic link of `user` may be followed on the way to a place that this
/// process will change.
pub fn is_trusted_link(user: u32) -> bool {
    is_trusted(user) || is_unmapped(user)
}

/// Returns true if `user` stands for all users without a number in this process's user namespace,
/// the machine's root among them.
fn is_unmapped(user: u32) -> bool {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
    let is_whole = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    };
    number("/proc/sys/kernel/overflowuid") == Some(user) && !is_whole()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_place_is_opened_through_links_of_this_user_and_of_root_only() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("a")).unwrap();
        symlink("a", root.join("link")).unwrap();
        let mode = Some(Mode::RWXU);
        assert_eq!(place_of(&root.join("link/x/y")).unwrap(), root.join("a/x/y"));
        assert_eq!(open_place(&root.join("link/x/y"), None).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!root.join("a/x").exists());
        for path in ["link/x/y", "link/x/y/", "a/../link/x/./y", "a/x/y/z/.."] {
            assert_eq!(open_place(&root.join(path), mode).unwrap().1, root.join("a/x/y"), "{path}");
        }
        assert!(open_place(Path::new("/"), mode).is_ok());
        // Another user can be named by root alone.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::os::unix::fs::lchown(root.join("link"), Some(12_345), None).unwrap();
        for path in ["link", "link/x", "a/../link/new"] {
            let refused = [open_place(&root.join(path), mode).unwrap_err(), place_of(&root.join(path)).unwrap_err()];
            for error in refused {
                assert!(error.to_string().contains("link of user 12345"), "{path}: {error}");
            }
        }
        // So are directories, but those decide nothing.
        std::os::unix::fs::lchown(root.join("a"), Some(12_345), None).unwrap();
        assert!(open_place(&root.join("a/x"), mode).is_ok());
    }
}
