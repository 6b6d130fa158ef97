//! Finds the scratch directories of a repository on this machine, for several users.
//!
//! Files of users who are not trusted are neither read nor believed: a journal of nonsense could otherwise keep root from ever collecting
//! garbage. Only their existence is reported, without following symbolic links or entering mounts of those users.
//!
//! Links of trusted users are followed, because a mount follows them: a scratch directory may have been moved to another disk. What such a
//! link leads to must be trusted as for a mount, and exist: the disk with the work may not be mounted.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::requirements::{Requirements, open_directory};
use crate::beneath;
use crate::error::{Error, ErrorKind, Result};
use crate::file_name::is_dots;
use crate::trust::{self, Distrust};

/// Entries that are looked at in a directory of a user who is not trusted, which may have any number.
const MAX_FOREIGN_NAMES: usize = 10_000;

/// Directory that may hold scratch directories: of one repository, one for each branch, or such directories of all repositories.
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
    /// Objects that scratch directories of trusted users need: those with uncommitted work, and those in use.
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
    /// User who owns the path or may write to it.
    pub owner: u32,
}

impl SearchResult {
    /// Adds the scratch directories in `place`. Work is trusted if `counts` returns true for its owner and no other user may write to it.
    ///
    /// Fails with [`ErrorKind::Corrupt`] if a trusted journal is damaged, with [`ErrorKind::NotFound`] if a link of a trusted user leads
    /// nowhere.
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
            Opened::Missing(true, Errno::NOENT) => return self.check_links(place, &counts),
            Opened::Missing(_, errno) => return self.note_missing(path.clone(), errno),
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
            match open_directory(&directory, name, OFlags::NOFOLLOW) {
                Ok(opened) => self.add_scratch(&opened, &inner, &counts)?,
                Err(Errno::LOOP | Errno::NOTDIR) => self.add_link(&directory, name, inner, &counts)?,
                Err(errno) => self.note_missing(inner, errno)?,
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
            Opened::Elsewhere(_) | Opened::Missing(..) => return Ok(Vec::new()),
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

    /// Fails if a link of a trusted user in `place`, where there is no directory, is the reason. A link of another user is reported.
    fn check_links(&mut self, place: &SearchLocation, counts: &impl Fn(u32) -> bool) -> Result<()> {
        let mut path = place.base.clone();
        for name in &place.rest {
            path.push(name);
            let Ok(found) = path.symlink_metadata() else { return Ok(()) };
            if found.is_symlink() && path.metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
                if counts(found.uid()) {
                    return Err(leads_nowhere(&path));
                }
                self.foreign.push(Foreign { path, owner: found.uid() });
                return Ok(());
            }
        }
        Ok(())
    }

    /// Adds the scratch directory that the entry `name` of `directory`, which is at `path`, leads to if it is a link.
    fn add_link(
        &mut self,
        directory: &OwnedFd,
        name: &CStr,
        path: PathBuf,
        counts: &impl Fn(u32) -> bool,
    ) -> Result<()> {
        let link = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(errno) => return self.note_missing(path, errno),
            Ok(link) => link,
        };
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
        let mut other = None;
        // A trusted user must own the journal, and no other user may write to it.
        let needs = Requirements::read(directory, path, |journal| {
            other = match trust::check_owner(journal, counts) {
                Ok(_) => None,
                Err(Distrust::Owner(owner)) => Some(owner),
                Err(_) => Some(rustix::fs::fstat(journal).map_or(u32::MAX, |stat| stat.st_uid)),
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
    /// It cannot be opened; true if the owner of its base is trusted.
    Missing(bool, Errno),
}

/// Opens `place`. Links are followed if the owner of its base is trusted.
fn open(place: &SearchLocation, counts: &impl Fn(u32) -> bool) -> Result<Opened> {
    let path = place.base.join(&place.rest);
    let owner_of = |directory: &OwnedFd| {
        rustix::fs::fstat(directory).map(|stat| stat.st_uid).map_err(|errno| Error::io(path.display(), errno.into()))
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = match rustix::fs::open(&place.base, flags, Mode::empty()) {
        Err(errno) => return Ok(Opened::Missing(false, errno)),
        Ok(base) => base,
    };
    let owner = owner_of(&base)?;
    let resolve = match counts(owner) {
        true => ResolveFlags::NO_MAGICLINKS,
        false => {
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV
        }
    };
    match beneath::open(&base, &place.rest, flags, resolve) {
        Err(Errno::LOOP | Errno::XDEV) => Ok(Opened::Elsewhere(owner)),
        Err(errno) => Ok(Opened::Missing(counts(owner), errno)),
        Ok(found) => {
            let owner = owner_of(&found)?;
            Ok(Opened::Found((found, owner)))
        }
    }
}

fn leads_nowhere(path: &Path) -> Error {
    let why = "it is a symbolic link that leads nowhere: mount the disk with its target, or remove the link";
    Error::new(ErrorKind::NotFound, format!("{}: {why}", path.display()))
}
