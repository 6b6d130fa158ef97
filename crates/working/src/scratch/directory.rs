//! Locates scratch directories, and locks them so that only one daemon uses each.
//!
//! Without `--scratch` the path depends on repository and branch: below `/var/lib/icechunkfs` for
//! root, below `$XDG_STATE_HOME/icechunkfs` (most often `~/.local/state/icechunkfs`) for other
//! users. It is never inside the repository, where the reference implementation would refuse to
//! create beside it, and only its owner can read it. A directory that another user owns or may
//! write to is refused ([`icechunkfs_base::trust`]): that user could read uncommitted data and
//! replace it before the commit.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Dir, FileType, FlockOperation, Mode, OFlags};

use super::requirements::{make_directory, open_directory, open_file};
use super::{jobs, salvage, search};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name;
use icechunkfs_base::trust::{self, Distrust, mounts};

/// Longest wait for a scratch directory that is in use; `PAUSE` is the time between two attempts.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);
/// Parent of root's scratch directories.
const OF_ROOT: &str = "/var/lib/icechunkfs";
const README: &str = "\
Changes to an Icechunk repository that are mounted with icechunkfs and not committed yet.
`journal` has the names, `data` the bytes. The next mount of the branch finds them here.
To discard them, mount with --discard. Nothing in here is of use without the rest.
";

/// Makes a new directory in `parent`, with a name that begins with `prefix`. It is its user's
/// alone, whatever the umask lets others write to.
///
/// Errors: as for making it.
pub fn make_private(parent: &Path, prefix: &OsStr) -> std::io::Result<PathBuf> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).permissions(Permissions::from_mode(0o700));
    Ok(builder.tempdir_in(parent)?.keep())
}

/// Scratch directory that this process has locked.
#[derive(Debug)]
pub struct ScratchDirectory {
    path: PathBuf,
    directory: Arc<OwnedFd>,
    /// Holds the lock while it is open.
    _lock: File,
}

/// Returns the scratch directory for `branch` of the repository at `location` when the user names
/// none.
pub fn default_path(location: &str, branch: &str) -> Result<PathBuf> {
    Ok(state_directory()?.join(file_name::encode(location)).join(file_name::encode(branch)))
}

/// Returns the name of the directory with the scratch directories of the repository at `location`,
/// one for each branch.
pub fn name_of(location: &str) -> String {
    file_name::encode(location)
}

/// Returns the places that may have scratch directories on this machine, in one directory for each
/// repository ([`name_of`]): this user's, and for root those of all users with a home directory.
/// Not all of them need exist.
pub fn places() -> Vec<search::SearchLocation> {
    // The directory for all repositories may be a link, too.
    let place_of = |state: &Path| {
        let base = state.parent()?.to_owned();
        let rest = PathBuf::from(state.file_name()?);
        Some(search::SearchLocation { base, rest })
    };
    let mut places: Vec<search::SearchLocation> =
        state_directory().ok().and_then(|state| place_of(&state)).into_iter().collect();
    places.extend(place_of(Path::new(OF_ROOT)));
    if rustix::process::geteuid().is_root() {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let homes = users.lines().filter_map(|line| line.split(':').nth(5)).filter(|home| home.starts_with('/'));
        let place = |home| search::SearchLocation { base: home, rest: PathBuf::from(".local/state/icechunkfs") };
        places.extend(homes.map(PathBuf::from).map(place));
    }
    places.sort();
    places.dedup();
    places
}

/// Returns the parent of this user's scratch directories.
pub fn state_directory() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(OF_ROOT));
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "neither XDG_STATE_HOME nor HOME is set: name a directory with --scratch")
    })?;
    Ok(state.join("icechunkfs"))
}

impl ScratchDirectory {
    /// Opens and locks the directory `path`, creating it if needed, for a mount at `mountpoint`.
    /// `repository` is the repository's directory if it is local.
    ///
    /// Fails with [`ErrorKind::Busy`] if another daemon uses it; [`ErrorKind::InvalidInput`] if it
    /// is inside the repository or the mountpoint, or holds other files;
    /// [`ErrorKind::PermissionDenied`] if another user owns it or an entry of it, or may write
    /// there.
    pub fn open(path: &Path, mountpoint: &Path, repository: Option<&Path>) -> Result<Self> {
        let name = path.display();
        let failed = |e| Error::io(format!("the scratch directory {name}"), e);
        // Before any other look at the path: a file system of another user on the way need not
        // answer.
        let wanted = trust::private_place_of(path).map_err(|e| e.context(format!("the scratch directory {name}")))?;
        for (what, other) in [("the repository", repository), ("the mountpoint", Some(mountpoint))] {
            let other = other.and_then(|other| std::fs::canonicalize(other).ok());
            if other.is_some_and(|other| wanted.starts_with(other)) {
                return Err(Error::invalid(format!("the scratch directory {name} is inside {what}: choose another")));
            }
        }
        let (directory, path) =
            trust::create_directory(path).map_err(|e| e.context(format!("the scratch directory {name}")))?;
        check_entries(&directory, &path)?;
        let lock = lock(&directory, &path, mountpoint)?;
        rustix::fs::fchmod(&directory, Mode::RWXU).map_err(|e| failed(e.into()))?;
        if let Err(error) = write_readme(&directory) {
            // On a full disk the existing work must still be accessible.
            tracing::debug!("README: {error}");
        }
        make_directory(&directory, "data").map_err(|e| failed(e.into()))?;
        Ok(ScratchDirectory { path, directory: Arc::new(directory), _lock: lock })
    }

    /// Returns the absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open directory.
    pub fn directory(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    /// Opens the directory of data files.
    pub fn data(&self) -> Result<OwnedFd> {
        open_directory(&*self.directory, "data", OFlags::NOFOLLOW)
            .map_err(|e| Error::io(format!("{}/data", self.path.display()), e.into()))
    }

    /// Removes the directory, for a mount that must leave nothing behind.
    pub fn remove(self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!("the scratch directory {} is left behind: {error}", self.path.display());
        }
    }
}

/// Checks the entries of `directory`. An unknown entry means that the directory was named by
/// mistake; entries that other users created before the directory was private are refused.
fn check_entries(directory: &OwnedFd, path: &Path) -> Result<()> {
    const OURS: [&str; 10] = [
        "journal",
        "journal.new",
        "journal.compact",
        "data",
        "lock",
        jobs::DISPOSABLE,
        "spare",
        "boot",
        salvage::FOLDER,
        "README",
    ];
    let failed = |errno: rustix::io::Errno| Error::io(path.display(), errno.into());
    for entry in Dir::read_from(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if file_name::is_dots(name.to_bytes()) {
            continue;
        }
        let shown = name.to_string_lossy();
        if !OURS.iter().any(|own| *own == shown) {
            return Err(Error::invalid(format!(
                "{} is not a scratch directory: it contains `{shown}`; name an empty or a new one",
                path.display(),
            )));
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            // The daemon that uses the directory has removed it.
            Err(rustix::io::Errno::NOENT) => continue,
            opened => opened.map_err(failed)?,
        };
        let stat = rustix::fs::fstat(&opened).map_err(failed)?;
        let checked = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => trust::check(&opened).map(drop),
            // The mode does not matter: the directory keeps other users out.
            FileType::RegularFile if trust::is_trusted(stat.st_uid) => Ok(()),
            FileType::RegularFile => Err(Distrust::Owner(stat.st_uid)),
            _ => Err(Distrust::Kind),
        };
        checked.map_err(|why| {
            let shown = path.join(&*shown);
            trust::distrust_error(&shown, &why).context(format!("the scratch directory {}", path.display()))
        })?;
    }
    Ok(())
}

fn write_readme(directory: &OwnedFd) -> std::io::Result<()> {
    match open_file(directory, "README", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL) {
        Ok(mut file) => file.write_all(README.as_bytes()),
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns true if something may be mounted at `place`, without asking a file system that may hang.
fn is_mountpoint(place: &str) -> bool {
    mounts::read().map_or(true, |all| all.iter().any(|mount| mount.mountpoint == Path::new(place)))
}

fn lock(directory: &OwnedFd, path: &Path, mountpoint: &Path) -> Result<File> {
    let failed = |e: std::io::Error| Error::io(format!("{}/lock", path.display()), e);
    let mut lock = open_file(directory, "lock", OFlags::RDWR | OFlags::CREATE).map_err(|e| failed(e.into()))?;
    // A daemon whose mount has just ended may still be cleaning up.
    let patience = std::time::Instant::now() + PATIENCE;
    let taken = loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if std::time::Instant::now() < patience => std::thread::sleep(PAUSE),
            other => break other,
        }
    };
    match taken {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // A failure only shortens the message.
            let _ = Read::by_ref(&mut lock).take(4096).read_to_string(&mut holder);
            let holder = holder.trim();
            let is_detached = holder.split_once(", mounted at ").is_some_and(|(_, place)| !is_mountpoint(place));
            let next = if is_detached {
                "that mount may have been detached while programs use files in it: end them, and mount again"
            } else {
                "one mount of a branch has it; name another with --scratch, or mount with --read-only"
            };
            let place = path.display();
            let message = format!("the scratch directory {place} is in use ({holder}): {next}");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    // The holder is only for the next daemon's message: a full disk is no reason to fail.
    let told = lock
        .set_len(0)
        .and_then(|()| lock.rewind())
        .and_then(|()| writeln!(lock, "process {}, mounted at {}", std::process::id(), mountpoint.display()));
    match told {
        Err(error) if !matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) => {
            Err(failed(error))
        }
        _ => Ok(lock),
    }
}
