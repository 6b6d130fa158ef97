//! The work of a local repository that was moved: its scratch directory is named after the old path and is renamed.
//!
//! A scratch directory that nobody names is found by the repository's path. When nothing waits at the path where the repository is
//! now, the other scratch directories of this user are looked through for one of the same repository, by what identifies it, whose
//! own path leads nowhere any more. A copy is no move: as long as the old path exists, the work there is its own.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;

use super::journal;
use super::needs::open_directory;
use super::place::Place;
use super::record::Record;
use crate::error::{Error, ErrorKind, Result};

/// Identifies a default scratch directory.
#[derive(Clone, Copy, Debug)]
pub struct ScratchKey<'a> {
    /// Its path: below a directory for the repository, below one for all of them.
    pub path: &'a Path,
    /// The branch.
    pub branch: &'a str,
    /// The repository's identity, as journals have it.
    pub identity: &'a str,
    /// Where it will be mounted.
    pub mountpoint: &'a Path,
}

/// Renames the scratch directory of a repository that was moved to the path in `key`. Returns a message for the user if there is one.
///
/// Nothing is moved if work waits there already, if another daemon uses the old directory, or if there are several.
pub fn relocate(key: &ScratchKey<'_>) -> Result<Option<String>> {
    let Some((of_repository, all)) = key.path.parent().and_then(|above| Some((above, above.parent()?))) else {
        return Ok(None);
    };
    if key.path.symlink_metadata().is_ok_and(|found| !found.is_dir()) || journal_in(key.path)?.is_some() {
        return Ok(None);
    }
    let found = candidates(key, all)?;
    let old = match found.as_slice() {
        [] => return Ok(None),
        [old] => old,
        [..] => {
            let listed: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
            return Ok(Some(format!(
                "uncommitted work of this repository, from where it was before, waits in {}: name one with --scratch",
                listed.join(", ")
            )));
        }
    };
    // Its lock is ours until it is elsewhere.
    let place = match Place::open(old, key.mountpoint, None) {
        Err(error) if error.kind() == ErrorKind::Busy => return Ok(None),
        place => place?,
    };
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |e| Error::io(path, e)
    };
    std::fs::create_dir_all(of_repository).map_err(failed(of_repository))?;
    if let Err(error) = std::fs::rename(place.path(), key.path) {
        // What an earlier mount left here, such as bytes that a power cut made nameless, is not moved away.
        return Ok(Some(format!(
            "uncommitted work of this repository, from where it was before, waits in {}: name that with --scratch ({error})",
            old.display()
        )));
    }
    for directory in [old.parent(), Some(of_repository), Some(all)].into_iter().flatten() {
        File::open(directory).and_then(|opened| opened.sync_all()).map_err(failed(directory))?;
    }
    Ok(Some(format!("the work that waited in {} goes on in {}", old.display(), key.path.display())))
}

/// Scratch directories below `all` with work for the same branch of the same repository, whose place is gone.
fn candidates(key: &ScratchKey<'_>, all: &Path) -> Result<Vec<PathBuf>> {
    let Some(name) = key.path.file_name() else { return Ok(Vec::new()) };
    let entries = match std::fs::read_dir(all) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| Error::io(all.display(), e))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| Error::io(all.display(), e))?.path().join(name);
        if path == key.path {
            continue;
        }
        match is_of(key, &path) {
            Ok(true) => found.push(path),
            Ok(false) => {}
            // Whoever mounts that repository is told.
            Err(error) => tracing::debug!("{error}"),
        }
    }
    found.sort();
    Ok(found)
}

fn is_of(key: &ScratchKey<'_>, path: &Path) -> Result<bool> {
    let Some(journal) = journal_in(path)? else { return Ok(false) };
    let mut base = None;
    journal::look(journal, path, |record| {
        if let Record::Base { repository, branch, identity, .. } = record {
            base = Some((repository, branch, identity));
        }
        Ok(())
    })?;
    Ok(base.is_some_and(|(repository, branch, identity)| {
        let is_gone = Path::new(&repository).is_absolute()
            && Path::new(&repository).symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        is_gone && branch == key.branch && identity.as_deref() == Some(key.identity)
    }))
}

/// Opens the journal of the scratch directory at `path`, if there is one.
fn journal_in(path: &Path) -> Result<Option<File>> {
    match open_directory(CWD, path, OFlags::NOFOLLOW) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        opened => journal::find(&opened.map_err(|errno| Error::io(path.display(), errno.into()))?, path),
    }
}
