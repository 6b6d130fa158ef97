//! Locks on a repository's directory that hold between processes, and between machines if the file
//! system supports that.
//!
//! Each change takes two locks. `flock` on the directory itself is the lock of earlier releases;
//! network file systems keep it on one machine. The open-file-description lock (`F_OFD_SETLK`) on
//! the file [`NAME`] is sent to the server by NFS, CIFS, Lustre and CephFS. [`Locks`] tells how far
//! the locks of a file system reach.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::deadline::timed_out;
use super::lock_reach::Locks;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Name of the lock file. This program and the reference implementation omit names that end in `#`
/// and digits from listings. The first change that compares creates the file, so that the directory
/// of a repository that is being created stays empty until then.
pub(super) const NAME: &str = "lock#0";
/// Pause between two attempts to take a lock, which is held for the time of a rename and a flush.
const PAUSE: Duration = Duration::from_millis(2);
/// Pause if each attempt is a request to a server.
const PAUSE_ON_NETWORK: Duration = Duration::from_millis(10);

/// Exclusive lock on a repository, until dropped.
#[derive(Debug)]
pub(super) struct Locked {
    _directory: OwnedFd,
    _file: Option<File>,
}

/// Locks the repository in `root` for a change of `key`.
pub(super) fn lock(root: &OwnedFd, key: &str, locks: Locks, deadline: Duration) -> Result<Locked> {
    // A separate descriptor is needed: locks belong to open files, and threads share `root`.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(root, ".", flags, Mode::empty()).map_err(|e| Error::io(key, e.into()))?;
    let waiter = Waiter { key, begin: Instant::now(), deadline, locks };
    let flock = waiter.until(|| rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive));
    // Some network file systems have no `flock` for directories; the lock on the file is the one
    // that counts there.
    if let Err(error) = flock
        && (error.kind() != ErrorKind::Unsupported || locks == Locks::OneMachine)
    {
        return Err(error);
    }
    loop {
        let file = open_lock(root, &directory).map_err(|errno| failed(key, errno))?;
        match waiter.until(|| lock_file(&file)) {
            Err(error) if error.kind() == ErrorKind::Unsupported && locks == Locks::Waived => {
                return Ok(Locked { _directory: directory, _file: None });
            }
            locked => locked?,
        }
        // The file may have been removed meanwhile, so that other processes lock a new one.
        if is_named(root, &file) {
            refresh(root);
            return Ok(Locked { _directory: directory, _file: Some(file) });
        }
        waiter.check()?;
    }
}

/// Makes a network file system ask its server for the current names in `folder`.
pub(super) fn refresh(folder: &impl AsFd) {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    // The call only refreshes the kernel's caches: the next use of the folder reports a failure.
    let _ = rustix::fs::statx(folder, c"", flags, StatxFlags::BASIC_STATS);
}

struct Waiter<'a> {
    key: &'a str,
    begin: Instant,
    deadline: Duration,
    locks: Locks,
}

impl Waiter<'_> {
    /// Retries `attempt` until it succeeds or the deadline has passed.
    fn until(&self, attempt: impl Fn() -> Result<(), Errno>) -> Result<()> {
        loop {
            match attempt() {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK | Errno::ACCESS | Errno::INTR) => self.check()?,
                Err(errno) => return Err(failed(self.key, errno)),
            }
            std::thread::sleep(if self.locks == Locks::OneMachine { PAUSE } else { PAUSE_ON_NETWORK });
        }
    }

    fn check(&self) -> Result<()> {
        if self.begin.elapsed() < self.deadline {
            return Ok(());
        }
        Err(timed_out(format!("{}: waiting for another change of the repository", self.key), self.deadline))
    }
}

fn failed(key: &str, errno: Errno) -> Error {
    let what = format!("{key}: locking the repository ({NAME})");
    match errno {
        Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL => Error::new(
            ErrorKind::Unsupported,
            format!(
                "{what}: the file system has no locks ({errno}): to commit anyway, guarantee a single writer with --unsafe-single-writer"
            ),
        ),
        errno => Error::io(what, errno.into()),
    }
}

/// Opens the lock file, or creates it if it is missing. Every user who may change the directory may
/// lock it.
fn open_lock(root: &OwnedFd, directory: &OwnedFd) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    loop {
        match rustix::fs::openat(root, NAME, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return opened.map(File::from),
        }
        let made = rustix::fs::openat(root, NAME, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o666));
        match made {
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
            Ok(made) => {
                let made = File::from(made);
                if let Ok(stat) = rustix::fs::fstat(directory) {
                    // Other members of the directory's group may need the bits that the umask
                    // removed.
                    let _ = made.set_permissions(std::fs::Permissions::from_mode(stat.st_mode & 0o666));
                }
                return Ok(made);
            }
        }
    }
}

fn lock_file(file: &File) -> Result<(), Errno> {
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        // Required for locks of open file descriptions.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open as long as `file` is, and the kernel reads `whole` during the
    // call only.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) };
    if done == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

/// Returns true if `file` still has the name [`NAME`] in `root`.
fn is_named(root: &OwnedFd, file: &File) -> bool {
    let named = rustix::fs::statat(root, NAME, AtFlags::SYMLINK_NOFOLLOW);
    let own = file.metadata();
    matches!((named, own), (Ok(named), Ok(own)) if named.st_ino == own.ino() && named.st_dev == own.dev())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn root(directory: &tempfile::TempDir) -> OwnedFd {
        OwnedFd::from(File::open(directory.path()).unwrap())
    }

    #[test]
    fn either_lock_alone_keeps_others_out() {
        let directory = tempfile::tempdir().unwrap();
        let root = root(&directory);
        let attempt = || lock(&root, "repo", Locks::OneMachine, Duration::from_millis(20));
        let held = attempt().unwrap();
        assert_eq!(attempt().unwrap_err().kind(), ErrorKind::Timeout);
        // Another machine holds only the lock on the file.
        let Locked { _directory: flock, _file: file } = held;
        drop(flock);
        assert_eq!(attempt().unwrap_err().kind(), ErrorKind::Timeout);
        drop(file);
        drop(attempt().unwrap());
        // An earlier release holds only the lock on the directory.
        let earlier = OwnedFd::from(File::open(directory.path()).unwrap());
        rustix::fs::flock(&earlier, FlockOperation::LockExclusive).unwrap();
        assert_eq!(attempt().unwrap_err().kind(), ErrorKind::Timeout);
        drop(earlier);
        attempt().unwrap();
    }

    #[test]
    fn a_lock_file_that_was_removed_keeps_nobody_in() {
        let directory = tempfile::tempdir().unwrap();
        let root = root(&directory);
        let old = open_lock(&root, &root).unwrap();
        std::fs::remove_file(directory.path().join(NAME)).unwrap();
        lock_file(&old).unwrap();
        drop(lock(&root, "repo", Locks::OneMachine, Duration::from_millis(20)).unwrap());
        assert!(!is_named(&root, &old));
    }
}
