//! Finds the uncommitted work of a local repository that was moved, and renames its scratch
//! directory after the new path.
//!
//! Without `--scratch`, a scratch directory is found by the repository's path. If there is no work
//! under the present path, the user's other scratch directories are searched for one of the same
//! repository, by its identity, whose recorded path no longer exists. A copy is not a move: as long
//! as the old path exists, the work belongs to the repository there. A directory that may hold the
//! work and cannot be read fails the mount: the new scratch directory that it would make at the
//! present path would hide that work from every later mount.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;

use super::directory::ScratchDirectory;
use super::journal;
use super::record::Record;
use super::requirements::open_directory;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name;
use icechunkfs_base::trust;

/// Renames the default scratch directory of a moved repository to `path`, before it is mounted at
/// `mountpoint`. Returns a message for the user if there is one. `path` is named after the branch,
/// in a directory named after the repository, in the directory for all repositories; `identity` is
/// the repository's, in the form that journals record.
///
/// Renames nothing if work exists at that path already, if another daemon uses the old directory,
/// or if there are several. Fails if a directory that may hold the work cannot be read.
pub fn relocate(path: &Path, branch: &str, identity: &str, mountpoint: &Path) -> Result<Option<String>> {
    let Some((of_repository, all)) = path.parent().and_then(|above| Some((above, above.parent()?))) else {
        return Ok(None);
    };
    if path.symlink_metadata().is_ok_and(|found| !found.is_dir()) || journal_in(path)?.is_some() {
        return Ok(None);
    }
    let found = candidates(path, branch, identity, all)?;
    let old = match found.as_slice() {
        [] => return Ok(None),
        [old] => old,
        [..] => {
            let listed: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
            return Ok(Some(format!(
                "uncommitted work of this repository, from its previous location, waits in {}: name one with --scratch",
                listed.join(", ")
            )));
        }
    };
    // The lock is held until the directory has been renamed.
    let place = match ScratchDirectory::open(old, mountpoint, None) {
        Err(error) if error.kind() == ErrorKind::Busy => {
            return Ok(Some(format!(
                "uncommitted work of this repository, from its previous location, is in use in {}: unmount that, and \
                 name it with --scratch",
                old.display()
            )));
        }
        place => place?,
    };
    let waits = |why: &str| {
        let old = old.display();
        format!(
            "uncommitted work of this repository, from its previous location, waits in {old}: name that with --scratch \
             ({why})"
        )
    };
    let from = match std::fs::read_link(old) {
        Ok(target) if target.is_absolute() => old.as_path(),
        Ok(_) => return Ok(Some(waits("it is a relative link"))),
        Err(_) => place.path(),
    };
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |e| Error::io(path, e)
    };
    std::fs::create_dir_all(of_repository).map_err(failed(of_repository))?;
    if let Err(error) = std::fs::rename(from, path) {
        // Files that an earlier mount left here, such as those in `lost+found`, stay here.
        return Ok(Some(waits(&error.to_string())));
    }
    for directory in [old.parent(), Some(of_repository), Some(all)].into_iter().flatten() {
        File::open(directory).and_then(|opened| opened.sync_all()).map_err(failed(directory))?;
    }
    Ok(Some(format!("uncommitted changes of {} were moved to {}", old.display(), path.display())))
}

/// Lists scratch directories below `all` of the same branch and repository whose recorded
/// repository path no longer exists.
fn candidates(wanted: &Path, branch: &str, identity: &str, all: &Path) -> Result<Vec<PathBuf>> {
    let Some(name) = wanted.file_name() else { return Ok(Vec::new()) };
    let entries = match std::fs::read_dir(all) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| Error::io(all.display(), e))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::io(all.display(), e))?;
        let path = entry.path().join(name);
        if path == wanted {
            continue;
        }
        match is_of(branch, identity, &path) {
            Ok(true) => found.push(path),
            Ok(false) => {}
            Err(error) if may_be_moved(&entry.file_name(), &path) => {
                return Err(Error::new(
                    error.kind(),
                    format!(
                        "{} may hold uncommitted work of this repository, from its previous location, and cannot be \
                         read: {error}. Repair it, move it away if it is not needed, or name a scratch directory with \
                         --scratch",
                        path.display()
                    ),
                ));
            }
            // The mount of that repository reports the error.
            Err(error) => tracing::debug!("{error}"),
        }
    }
    found.sort();
    Ok(found)
}

/// Returns true if the scratch directory `path`, which cannot be read, may be of a repository that
/// was moved. `name` is that of the directory named after its repository.
fn may_be_moved(name: &OsStr, path: &Path) -> bool {
    // No mount uses a directory of a user who is not trusted.
    let is_foreign = path.symlink_metadata().is_ok_and(|found| !trust::is_trusted(found.uid()));
    // The name tells the path of the repository, unless that is too long.
    let repository = name.to_str().and_then(file_name::decode);
    let is_elsewhere = repository.is_some_and(|repository| {
        !Path::new(&repository).is_absolute() || Path::new(&repository).symlink_metadata().is_ok()
    });
    !is_foreign && !is_elsewhere
}

fn is_of(wanted_branch: &str, wanted_identity: &str, path: &Path) -> Result<bool> {
    let Some(journal) = journal_in(path)? else { return Ok(false) };
    let mut base = None;
    let looked = journal::look(journal, path, |record| {
        if let Record::Base { repository, branch, identity, .. } = record {
            base = Some((repository, branch, identity));
        }
        Ok(())
    });
    // The mount that uses the directory repairs or reports damage after the first line.
    if base.is_none() {
        looked?;
    }
    Ok(base.is_some_and(|(repository, branch, identity)| {
        let is_gone = Path::new(&repository).is_absolute()
            && Path::new(&repository).symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        is_gone && branch == wanted_branch && identity.as_deref() == Some(wanted_identity)
    }))
}

fn journal_in(path: &Path) -> Result<Option<File>> {
    match directory_at(path)? {
        Some(directory) => journal::find(&directory, path),
        None => Ok(None),
    }
}

/// Opens the scratch directory `path`, which may be a link as for a mount; returns `None` if there
/// is no directory.
fn directory_at(path: &Path) -> Result<Option<OwnedFd>> {
    match open_directory(CWD, path, OFlags::NOFOLLOW) {
        Err(Errno::NOTDIR | Errno::LOOP) if path.is_symlink() => {
            trust::open_directory(path, &trust::is_trusted).map(|(opened, _)| Some(opened))
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        opened => opened.map(Some).map_err(|errno| Error::io(path.display(), errno.into())),
    }
}
