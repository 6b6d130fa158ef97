//! Walks to directories of several users that enter no file system which a user who is not trusted
//! serves: a look-up there can wait forever, and what is found proves nothing.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::trust::mounts::{foreign_mount, mount_id};
use icechunkfs_base::trust::{MAX_LINKS, UNKNOWN_USER, push_names};

const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Reason why a walk did not arrive.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// The path leads on by a link of this user, or into a file system that this user serves.
    Foreign(u32),
    /// This link, which was followed, leads nowhere.
    Dangling(PathBuf),
    /// The kernel refused a step.
    Errno(Errno),
}

/// Open entry of a directory, which no other user serves.
pub(super) enum Entry {
    Directory(OwnedFd),
    Other(OwnedFd, Stat),
}

/// Opens the entry `name` of `directory` as a path only, which sends no request to the daemon of a
/// mount at it.
pub(super) fn entry(directory: impl AsFd, name: impl rustix::path::Arg + Copy) -> Result<Entry, Obstacle> {
    let directory = directory.as_fd();
    // Only as a directory does it start an automount, such as that of a home.
    let (opened, is_directory) = match openat(directory, name, ENTRY | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => (openat(directory, name, ENTRY, Mode::empty()), false),
        opened => (opened, true),
    };
    let opened = opened.map_err(Obstacle::Errno)?;
    let is_same_mount = || Ok(mount_id(directory)? == mount_id(&opened)?);
    if !is_same_mount().map_err(Obstacle::Errno)? {
        match foreign_mount(&opened) {
            Ok(None) => {}
            Ok(Some(mount)) => return Err(Obstacle::Foreign(mount.user())),
            Err(_) => return Err(Obstacle::Foreign(UNKNOWN_USER)),
        }
    }
    if is_directory {
        return Ok(Entry::Directory(opened));
    }
    let stat = fstat(&opened).map_err(Obstacle::Errno)?;
    Ok(Entry::Other(opened, stat))
}

/// Directory that a walk has reached.
pub(super) struct GuardedWalk {
    at: OwnedFd,
    path: PathBuf,
    links: usize,
}

impl GuardedWalk {
    /// Begins at the root directory.
    pub(super) fn begin() -> Result<Self> {
        let at = openat(CWD, "/", ENTRY, Mode::empty()).map_err(|errno| Error::io("/", errno.into()))?;
        Ok(GuardedWalk { at, path: PathBuf::from("/"), links: 0 })
    }

    /// Returns the directory, open as a path only, with its attributes.
    pub(super) fn end(self) -> Result<(OwnedFd, Stat)> {
        let stat = fstat(&self.at).map_err(|errno| Error::io(self.path.display(), errno.into()))?;
        Ok((self.at, stat))
    }

    /// Returns the owner of the directory.
    pub(super) fn owner(&self) -> Result<u32> {
        Ok(fstat(&self.at).map_err(|errno| Error::io(self.path.display(), errno.into()))?.st_uid)
    }

    /// Goes on along `path`, through links of users for whom `is_followed` returns true.
    pub(super) fn go(&mut self, path: &Path, is_followed: impl Fn(u32) -> bool) -> Result<(), Obstacle> {
        let mut left = VecDeque::new();
        push_names(&mut left, path);
        // Links on the way, each with the number of names that come after its target.
        let mut followed: Vec<(usize, PathBuf)> = Vec::new();
        while let Some(name) = left.pop_front() {
            let entry = match entry(&self.at, name.as_os_str()) {
                Err(Obstacle::Errno(Errno::NOENT)) => {
                    let link = followed.into_iter().find(|(after, _)| left.len() >= *after);
                    return Err(link.map_or(Obstacle::Errno(Errno::NOENT), |(_, link)| Obstacle::Dangling(link)));
                }
                entry => entry?,
            };
            let (link, stat) = match entry {
                Entry::Directory(at) => {
                    self.at = at;
                    if name == ".." {
                        self.path.pop();
                    } else {
                        self.path.push(&name);
                    }
                    continue;
                }
                Entry::Other(opened, stat) => (opened, stat),
            };
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                return Err(Obstacle::Errno(Errno::NOTDIR));
            }
            if !is_followed(stat.st_uid) {
                return Err(Obstacle::Foreign(stat.st_uid));
            }
            self.links += 1;
            if self.links > MAX_LINKS {
                return Err(Obstacle::Errno(Errno::LOOP));
            }
            let target = readlinkat(&link, "", Vec::new()).map_err(Obstacle::Errno)?;
            let target = Path::new(OsStr::from_bytes(target.to_bytes()));
            followed.push((left.len(), self.path.join(&name)));
            if target.is_absolute() {
                self.at = openat(CWD, "/", ENTRY, Mode::empty()).map_err(Obstacle::Errno)?;
                self.path = PathBuf::from("/");
            }
            push_names(&mut left, target);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn walk(base: &Path, path: &str) -> Result<u64, Obstacle> {
        let mut walk = GuardedWalk::begin().unwrap();
        walk.go(base, |_| true).unwrap();
        walk.go(Path::new(path), |user| user != 12_345)?;
        Ok(walk.end().unwrap().1.st_ino)
    }

    #[test]
    fn links_are_followed_and_a_link_that_leads_nowhere_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("a/b")).unwrap();
        std::fs::write(base.join("file"), "").unwrap();
        for (target, name) in
            [("a", "link"), ("link", "chain"), ("gone/x", "dangling"), ("dangling", "to"), ("loop", "loop")]
        {
            symlink(target, base.join(name)).unwrap();
        }
        symlink(base.join("a/b"), base.join("a/absolute")).unwrap();
        let expected = base.join("a/b").metadata().unwrap().ino();
        for path in ["a/b", "link/b", "chain/b", "a/../chain/./b", "chain/absolute", "a/absolute/../b"] {
            assert_eq!(walk(&base, path).unwrap(), expected, "{path}");
        }
        for path in ["none", "a/none/x", "link/none", "chain/none"] {
            assert!(matches!(walk(&base, path), Err(Obstacle::Errno(Errno::NOENT))), "{path}");
        }
        for (path, link) in [("dangling", "dangling"), ("dangling/y", "dangling"), ("to/y", "to")] {
            let found = walk(&base, path);
            assert!(matches!(&found, Err(Obstacle::Dangling(at)) if *at == base.join(link)), "{path}: {found:?}");
        }
        assert!(matches!(walk(&base, "file/x"), Err(Obstacle::Errno(Errno::NOTDIR))));
        assert!(matches!(walk(&base, "loop"), Err(Obstacle::Errno(Errno::LOOP))));
        // Another user can be named by root alone.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(base.join("link"), Some(12_345), None).unwrap();
            assert!(matches!(walk(&base, "chain/b"), Err(Obstacle::Foreign(12_345))));
        }
    }
}
