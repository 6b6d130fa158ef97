//! Scratch directories of jobs: commands that run in a mount of their own and are committed as one.
//!
//! Each job has a new directory beside those of the branches, so that nothing that an earlier job
//! left becomes part of its commit, and so that garbage collection finds what it needs. When the
//! job's mount ends, the directory goes with all that was not committed, unless it has the file
//! [`KEPT`], which is made where the work is to be kept. A daemon that was killed
//! leaves its directory behind; the next job of the branch removes it, by the same rule.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use tracing::{info, warn};

use super::directory::default_path;
use super::requirements::{holder, open_directory};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::trust;

/// File whose presence keeps the directory of a job.
pub(super) const KEPT: &str = "kept";
/// Between the name of the branch and some random letters. The name of no branch has it: `%` stands
/// before two digits there.
const MARK: &str = "%job-";
/// Age of a directory below which it stays although no daemon holds it: its job may be about to
/// take the lock. That is a matter of milliseconds.
const YOUNG: Duration = Duration::from_secs(60);

/// Makes a scratch directory for a job on `branch` of the repository at `location`, and removes
/// those that killed jobs of the branch have left.
pub fn create(location: &str, branch: &str) -> Result<PathBuf> {
    let beside = default_path(location, branch)?;
    let (Some(parent), Some(name)) = (beside.parent(), beside.file_name()) else {
        return Err(Error::invalid(format!("{} has no parent", beside.display())));
    };
    let (_, parent) = trust::create_directory(parent).map_err(|e| e.context("the scratch directory of a job"))?;
    let prefix = [name.as_bytes(), MARK.as_bytes()].concat();
    let prefix = OsStr::from_bytes(&prefix);
    remove_left_behind(&parent, prefix, SystemTime::now());
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&parent);
    let made = made.map_err(|e| Error::io(format!("making a scratch directory in {}", parent.display()), e))?;
    Ok(made.keep())
}

/// Lets the scratch directory `path` of a job stay when its mount ends.
pub fn keep(path: &Path) -> Result<()> {
    let failed = |e| Error::io(path.join(KEPT).display(), e);
    File::create(path.join(KEPT)).and_then(|file| file.sync_all()).map_err(failed)?;
    File::open(path).and_then(|directory| directory.sync_all()).map_err(failed)
}

/// Takes [`keep`] back.
pub fn stop_keeping(path: &Path) -> Result<()> {
    std::fs::remove_file(path.join(KEPT)).map_err(|e| Error::io(path.join(KEPT).display(), e))
}

/// Returns true if the scratch directory `path` of a job is to be kept, or if that cannot be known.
pub fn is_kept(path: &Path) -> bool {
    !matches!(path.join(KEPT).try_exists(), Ok(false)) && path.exists()
}

/// Removes the scratch directory `path` of a job that has ended, unless it is to be kept. Returns
/// true if it is gone.
pub fn remove(path: &Path) -> bool {
    if is_kept(path) {
        return false;
    }
    match std::fs::remove_dir_all(path) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => {
            warn!("the scratch directory {} is left behind: {error}", path.display());
            false
        }
    }
}

/// Removes the directories in `parent` whose names begin with `prefix` and that no daemon uses.
fn remove_left_behind(parent: &Path, prefix: &OsStr, now: SystemTime) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_name().as_bytes().starts_with(prefix.as_bytes()) && is_left_behind(&path, now) && remove(&path) {
            info!("removed {}: its job was killed", path.display());
        }
    }
}

fn is_left_behind(path: &Path, now: SystemTime) -> bool {
    let Ok(directory) = open_directory(rustix::fs::CWD, path, OFlags::NOFOLLOW) else { return false };
    if trust::check(&directory).is_err() || holder(&directory).is_some() {
        return false;
    }
    let changed = path.symlink_metadata().and_then(|metadata| metadata.modified());
    changed.is_ok_and(|changed| now.duration_since(changed).is_ok_and(|age| age >= YOUNG))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rustix::fs::FlockOperation;

    use super::*;

    #[test]
    fn what_killed_jobs_left_goes_and_everything_else_stays() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = place.path().join(name);
            std::fs::create_dir(&path).unwrap();
            File::create(path.join("lock")).unwrap();
            path
        };
        let [left, kept, used] = ["main%job-a", "main%job-b", "main%job-c"].map(make);
        let [branch, other] = ["main", "maintenance%job-a"].map(make);
        keep(&kept).unwrap();
        let lock = File::open(used.join("lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let sweep = |after| remove_left_behind(place.path(), OsStr::new("main%job-"), SystemTime::now() + after);
        sweep(Duration::ZERO);
        assert!(left.exists(), "its job may just begin");
        sweep(YOUNG);
        assert!(!left.exists());
        assert!([&kept, &used, &branch, &other].iter().all(|path| path.exists()));
        drop(lock);
        sweep(YOUNG);
        assert!(!used.exists() && kept.exists());
        assert!(!remove(&kept) && kept.exists());
        assert!(remove(&branch) && remove(&branch));
    }
}
