//! Finds the scratch directories of a repository on this machine, for several users.
//!
//! Files of users who are not trusted are neither read nor believed: a journal of nonsense could
//! otherwise keep root from ever collecting garbage. Only their existence is reported, without
//! following symbolic links or entering mounts of those users.
//!
//! Links of trusted users are followed, because a mount follows them: a scratch directory may have
//! been moved to another disk. What such a link leads to must be trusted as for a mount, and exist:
//! the disk with the work may not be mounted.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::guarded_walk::{self, Entry, GuardedWalk, Obstacle};
use super::journal;
use super::requirements::{Requirements, open_directory};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_base::trust::{self, Distrust};

/// Entries that are looked at in a directory of a user who is not trusted, which may have any
/// number.
const MAX_FOREIGN_NAMES: usize = 10_000;

/// Directory that may hold scratch directories: of one repository, one for each branch, or such
/// directories of all repositories.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SearchLocation {
    /// Home directory of a user, or a directory for state.
    pub base: PathBuf,
    /// Path below `base`.
    pub rest: PathBuf,
}

impl SearchLocation {
    /// Returns the place `name` in this one.
    pub fn join(&self, name: &str) -> Self {
        SearchLocation { base: self.base.clone(), rest: self.rest.join(name) }
    }
}

/// Result of the search.
#[derive(Clone, Debug, Default)]
pub struct SearchResult {
    /// Objects that scratch directories of trusted users need: those with uncommitted work, and
    /// those in use.
    pub work: Vec<Requirements>,
    /// Possible work of users who are not trusted.
    pub foreign: Vec<Foreign>,
    /// Directories that this user may not read.
    pub closed: Vec<PathBuf>,
}

/// Path that a user who is not trusted owns or may write to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Scratch directory, parent of scratch directories, or mount.
    pub path: PathBuf,
    /// User who owns the path or may write to it, or [`trust::UNKNOWN_USER`].
    pub owner: u32,
}

impl SearchResult {
    /// Adds the scratch directories in `place`. Work is trusted if `counts` returns true for its
    /// owner and no other user may write to it.
    ///
    /// Fails with [`ErrorKind::Corrupt`] if a trusted journal is damaged, with
    /// [`ErrorKind::NotFound`] if a link of a trusted user leads nowhere.
    pub fn add(&mut self, place: &SearchLocation, counts: impl Fn(u32) -> bool) -> Result<()> {
        let path = place.base.join(&place.rest);
        let failed = |errno: Errno| Error::io(path.display(), errno.into());
        let (found, owner) = match open(place, &counts)? {
            Opened::Found(found) => found,
            // The path leads elsewhere by a link or a mount of the user.
            Opened::Elsewhere(owner) => {
                self.foreign.push(Foreign { path, owner });
                return Ok(());
            }
            Opened::Missing(errno) => return self.note_missing(path.clone(), errno),
        };
        if !counts(owner) {
            self.foreign.push(Foreign { path, owner });
            return Ok(());
        }
        let directory = match open_directory(&found, ".", OFlags::empty()) {
            Err(errno) => return self.note_missing(path.clone(), errno),
            Ok(directory) => directory,
        };
        for entry in Dir::read_from(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let inner = path.join(&*name.to_string_lossy());
            if is_dots(name.to_bytes()) {
                continue;
            }
            match guarded_walk::entry(&directory, name) {
                Ok(Entry::Directory(opened)) => match open_directory(&opened, ".", OFlags::empty()) {
                    Ok(opened) => self.add_scratch(&opened, &inner, &counts)?,
                    Err(errno) => self.note_missing(inner, errno)?,
                },
                Ok(Entry::Other(_, stat)) => self.add_link(&stat, inner, &counts)?,
                Err(Obstacle::Foreign(owner)) => self.foreign.push(Foreign { path: inner, owner }),
                Err(Obstacle::Dangling(link)) => return Err(leads_nowhere(&link)),
                Err(Obstacle::Errno(errno)) => self.note_missing(inner, errno)?,
            }
        }
        Ok(())
    }

    /// Returns the names of the directories in `place`. What this user may not read is noted.
    pub fn names_in(&mut self, place: &SearchLocation, counts: impl Fn(u32) -> bool) -> Result<Vec<String>> {
        let path = place.base.join(&place.rest);
        let failed = |errno: Errno| Error::io(path.display(), errno.into());
        let (found, owner) = match open(place, &counts)? {
            Opened::Found(found) => found,
            // The search for a repository by its own name reports what it cannot enter.
            Opened::Elsewhere(_) | Opened::Missing(_) => return Ok(Vec::new()),
        };
        let directory = match open_directory(&found, ".", OFlags::empty()) {
            // It is enough to name one repository in it.
            Err(Errno::ACCESS | Errno::PERM) if self.closed.iter().any(|closed| closed.starts_with(&path)) => {
                return Ok(Vec::new());
            }
            Err(errno) => return self.note_missing(path.clone(), errno).map(|()| Vec::new()),
            Ok(directory) => directory,
        };
        let limit = if counts(owner) { usize::MAX } else { MAX_FOREIGN_NAMES };
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory).map_err(failed)?.take(limit) {
            let entry = entry.map_err(failed)?;
            // Names of scratch directories are text.
            names.extend(entry.file_name().to_str().ok().filter(|name| !is_dots(name.as_bytes())).map(str::to_owned));
        }
        Ok(names)
    }

    /// Adds the scratch directory that the entry `path`, which has the attributes `link`, leads to
    /// if it is a link.
    fn add_link(&mut self, link: &Stat, path: PathBuf, counts: &impl Fn(u32) -> bool) -> Result<()> {
        if FileType::from_raw_mode(link.st_mode) != FileType::Symlink {
            return Ok(());
        }
        match trust::open_directory(&path, counts) {
            Ok((opened, target)) => self.add_scratch(&opened, &target, counts),
            Err(error) => match error.kind() {
                ErrorKind::NotADirectory => Ok(()),
                ErrorKind::NotFound => Err(leads_nowhere(&path)),
                // Another user may have put anything there.
                ErrorKind::PermissionDenied => {
                    self.foreign.push(Foreign { path, owner: link.st_uid });
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    fn add_scratch(&mut self, directory: &OwnedFd, path: &Path, counts: &impl Fn(u32) -> bool) -> Result<()> {
        let foreign = |owner| Foreign { path: path.to_owned(), owner };
        let owner = rustix::fs::fstat(directory).map_err(|errno| Error::io(path.display(), errno.into()))?.st_uid;
        if !counts(owner) {
            self.foreign.push(foreign(owner));
            return Ok(());
        }
        // A file can be a mountpoint, too.
        for name in [journal::NAME, "lock"] {
            if let Err(Obstacle::Foreign(owner)) = guarded_walk::entry(directory, name) {
                self.foreign.push(foreign(owner));
                return Ok(());
            }
        }
        let mut other = None;
        // A trusted user must own the journal, and no other user may write to it.
        let needs = Requirements::read(directory, path, |journal| {
            other = match trust::check_owner(journal, counts) {
                Ok(_) => None,
                Err(Distrust::Owner(owner)) => Some(owner),
                Err(Distrust::Served(mount)) => Some(mount.user()),
                Err(_) => Some(rustix::fs::fstat(journal).map_or(trust::UNKNOWN_USER, |stat| stat.st_uid)),
            };
            other.is_none()
        })?;
        self.work.extend(needs.filter(Requirements::are_needed));
        self.foreign.extend(other.map(foreign));
        Ok(())
    }

    fn note_missing(&mut self, path: PathBuf, errno: Errno) -> Result<()> {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Ok(()),
            Errno::ACCESS | Errno::PERM => {
                self.closed.push(path);
                Ok(())
            }
            errno => Err(Error::with_source(ErrorKind::Io, path.display().to_string(), std::io::Error::from(errno))),
        }
    }
}

/// Outcome of opening a place.
enum Opened {
    /// The directory, with its owner.
    Found((OwnedFd, u32)),
    /// It leads elsewhere by a link or a mount of this user, who is not trusted.
    Elsewhere(u32),
    Missing(Errno),
}

/// Opens `place`. Links are followed if the owner of its base is trusted. No file system that
/// another user serves is entered.
fn open(place: &SearchLocation, counts: &impl Fn(u32) -> bool) -> Result<Opened> {
    let mut walk = GuardedWalk::begin()?;
    match walk.go(&place.base, |owner| counts(owner) || trust::is_trusted_link(owner)) {
        Ok(()) => {}
        Err(Obstacle::Foreign(owner)) => return Ok(Opened::Elsewhere(owner)),
        Err(Obstacle::Dangling(_)) => return Ok(Opened::Missing(Errno::NOENT)),
        Err(Obstacle::Errno(errno)) => return Ok(Opened::Missing(errno)),
    }
    let base_owner = walk.owner()?;
    let is_counted = counts(base_owner);
    match walk.go(&place.rest, |owner| is_counted && (counts(owner) || trust::is_trusted_link(owner))) {
        Ok(()) => {
            let (found, stat) = walk.end()?;
            Ok(Opened::Found((found, stat.st_uid)))
        }
        Err(Obstacle::Foreign(owner)) => Ok(Opened::Elsewhere(if is_counted { owner } else { base_owner })),
        Err(Obstacle::Dangling(link)) => Err(leads_nowhere(&link)),
        Err(Obstacle::Errno(errno)) => Ok(Opened::Missing(errno)),
    }
}

/// Returns true if `path`, which is absolute, leads through a link or a file system of a user who
/// is not trusted, as far as it exists.
pub fn is_in_foreign_hands(path: &Path) -> Result<bool> {
    let mut walk = GuardedWalk::begin()?;
    Ok(matches!(walk.go(path, trust::is_trusted_link), Err(Obstacle::Foreign(_))))
}

fn leads_nowhere(path: &Path) -> Error {
    let why = "it is a symbolic link that leads nowhere: mount the disk with its target, or remove the link";
    Error::new(ErrorKind::NotFound, format!("{}: {why}", path.display()))
}
