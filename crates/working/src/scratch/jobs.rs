//! Scratch directories of jobs: commands that run in a mount of their own and are committed as one.
//!
//! Each job has a new directory beside those of the branches, so that nothing that an earlier job
//! left becomes part of its commit, and so that garbage collection finds what it needs. The file
//! [`DISPOSABLE`] in it says that its contents may be discarded: without that file nothing ever
//! removes the directory but its user, or a mount that has committed all of it. To keep work is to
//! remove that file, which no full disk prevents.
//!
//! The program that runs the job holds a lock on the file ([`Claim`]), as the daemon may end first:
//! as long as it has not decided what becomes of the work, nobody removes the directory. Then the
//! daemon does, or the program itself if the daemon was killed, or the next job of the branch if
//! both were.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, OFlags};
use tracing::{info, warn};

use super::directory::{default_path, make_private};
use super::requirements::{Requirements, holder, open_directory, open_file};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::trust;

/// File without which the directory stays.
pub(super) const DISPOSABLE: &str = "disposable";
/// Mark between the name of the branch and some random letters. The name of no branch has it: `%`
/// stands before two digits there.
const MARK: &str = "%job-";
/// Age of a directory below which it stays although nobody holds it: its job may be about to take
/// the locks. That is a matter of milliseconds.
const YOUNG: Duration = Duration::from_secs(60);

/// New scratch directory of a job.
#[derive(Debug)]
pub struct JobDirectory {
    /// Path of the directory.
    pub path: PathBuf,
    /// Directories of earlier jobs of the branch with work that is kept.
    pub kept: Vec<PathBuf>,
}

/// Makes a scratch directory for a job on `branch` of the repository at `location`, and removes
/// those that killed jobs of the branch have left.
pub fn create(location: &str, branch: &str) -> Result<JobDirectory> {
    let beside = default_path(location, branch)?;
    let (Some(parent), Some(name)) = (beside.parent(), beside.file_name()) else {
        return Err(Error::invalid(format!("{} has no parent", beside.display())));
    };
    let (_, parent) = trust::create_directory(parent).map_err(|e| e.context("the scratch directory of a job"))?;
    let prefix = OsString::from_vec([name.as_bytes(), MARK.as_bytes()].concat());
    let kept = remove_left_behind(&parent, &prefix, SystemTime::now());
    let failed = |e| Error::io(format!("making a scratch directory in {}", parent.display()), e);
    let path = make_private(&parent, &prefix).map_err(failed)?;
    discard(&path)?;
    Ok(JobDirectory { path, kept })
}

/// Keeps the work in the scratch directory `path`, if it is one of a job.
pub fn keep(path: &Path) -> Result<()> {
    match std::fs::remove_file(path.join(DISPOSABLE)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(path.join(DISPOSABLE).display(), error))
        }
        _ => Ok(()),
    }
}

/// Lets the scratch directory `path` of a job be removed: its work is committed.
pub fn discard(path: &Path) -> Result<()> {
    let name = path.join(DISPOSABLE);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&name).map(drop).map_err(|e| Error::io(name.display(), e))
}

/// Returns true if the scratch directory `path` is there and has work that is to be kept.
pub fn is_kept(path: &Path) -> bool {
    path.exists() && !matches!(path.join(DISPOSABLE).try_exists(), Ok(true))
}

/// Claim of the program that runs a job to its scratch directory: until this is dropped, nobody
/// removes the directory.
#[derive(Debug)]
pub struct Claim(#[expect(dead_code, reason = "holds the lock while it is open")] File);

impl Claim {
    /// Claims the scratch directory `path` of a job.
    pub fn take(path: &Path) -> Result<Self> {
        let name = path.join(DISPOSABLE);
        let failed = |e| Error::io(name.display(), e);
        let file = File::open(&name).map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).map_err(|errno| failed(errno.into()))?;
        Ok(Claim(file))
    }
}

/// Removes the scratch directory `path` of a job, unless its work is to be kept or it is claimed.
pub fn remove(path: &Path) {
    let Ok(directory) = open_directory(rustix::fs::CWD, path, OFlags::NOFOLLOW) else { return };
    if is_disposable(&directory) {
        remove_all(path);
    }
}

/// Returns true if the contents of a directory may be discarded now.
fn is_disposable(directory: &OwnedFd) -> bool {
    let file = open_file(directory, DISPOSABLE, OFlags::RDONLY | OFlags::NONBLOCK);
    file.is_ok_and(|file| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

fn remove_all(path: &Path) -> bool {
    match std::fs::remove_dir_all(path) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => {
            warn!("the scratch directory {} is left behind: {error}", path.display());
            false
        }
    }
}

/// Removes the directories in `parent` whose names begin with `prefix`, that nobody uses, and that
/// have nothing to keep. Returns those with work.
fn remove_left_behind(parent: &Path, prefix: &OsStr, now: SystemTime) -> Vec<PathBuf> {
    let mut kept = Vec::new();
    let Ok(entries) = std::fs::read_dir(parent) else { return kept };
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_name().as_bytes().starts_with(prefix.as_bytes()) {
            continue;
        }
        let Ok(directory) = open_directory(rustix::fs::CWD, &path, OFlags::NOFOLLOW) else { continue };
        if trust::check(&directory).is_err() || holder(&directory).is_some() || is_young(&path, now) {
            continue;
        }
        if is_kept(&path) {
            // A journal that cannot be read may have work.
            if Requirements::of(&path).is_ok_and(|needs| needs.is_none_or(|needs| !needs.has_work)) {
                remove_all(&path);
            } else {
                kept.push(path);
            }
        } else if is_disposable(&directory) && remove_all(&path) {
            info!("removed {}: its job was killed", path.display());
        }
    }
    kept.sort_unstable();
    kept
}

fn is_young(path: &Path, now: SystemTime) -> bool {
    let changed = path.symlink_metadata().and_then(|metadata| metadata.modified());
    !changed.is_ok_and(|changed| now.duration_since(changed).is_ok_and(|age| age >= YOUNG))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn make(parent: &Path, name: &str) -> PathBuf {
        let path = parent.join(name);
        std::fs::create_dir(&path).unwrap();
        File::create(path.join("lock")).unwrap();
        File::create(path.join(DISPOSABLE)).unwrap();
        path
    }

    #[test]
    fn what_killed_jobs_left_goes_and_everything_else_stays() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str| make(place.path(), name);
        let [left, kept, used, claimed] = ["main%job-a", "main%job-b", "main%job-c", "main%job-d"].map(make);
        let [branch, other] = ["main", "maintenance%job-a"].map(make);
        // A journal that cannot be read may have work.
        std::fs::create_dir(kept.join("journal")).unwrap();
        keep(&kept).unwrap();
        let lock = File::open(used.join("lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let claim = Claim::take(&claimed).unwrap();
        let sweep = |after| remove_left_behind(place.path(), OsStr::new("main%job-"), SystemTime::now() + after);
        assert!(sweep(Duration::ZERO).is_empty() && left.exists(), "its job may just begin");
        assert_eq!(sweep(YOUNG), std::slice::from_ref(&kept));
        assert!(!left.exists());
        assert!([&kept, &used, &claimed, &branch, &other].iter().all(|path| path.exists()));
        remove(&claimed);
        assert!(claimed.exists());
        drop((lock, claim));
        sweep(YOUNG);
        assert!(!used.exists() && !claimed.exists() && kept.exists());
        // Without work there is nothing to keep.
        std::fs::remove_dir(kept.join("journal")).unwrap();
        assert!(sweep(YOUNG).is_empty() && !kept.exists());
    }

    #[test]
    fn only_what_may_be_discarded_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let [gone, kept] = ["main%job-a", "main%job-b"].map(|name| make(place.path(), name));
        keep(&kept).unwrap();
        keep(&kept).unwrap();
        remove(&gone);
        remove(&kept);
        remove(&gone);
        assert!(!gone.exists() && is_kept(&kept) && !is_kept(&gone));
    }
}
