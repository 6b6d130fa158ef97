//! Search for the process that serves a mount.
//!
//! The kernel does not report it. A daemon keeps a file in memory open whose bytes are the mountpoint; `/proc` shows it to its
//! user and to root. The file pins nothing of the file system around the mount.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::mount_table::Mount;

/// Name of the file, and the prefix of a link to it.
const NAME: &str = "icechunkfs mount";
const LINK: &[u8] = b"/memfd:icechunkfs mount";
/// Interval between two looks for the end of a process.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest path that is compared, in bytes.
const MAX_PATH: u64 = 4096;

/// Marks this process as the daemon of `mountpoint`, for as long as the file is open. Returns none where that is not possible.
pub(super) fn set(mountpoint: &Path) -> Option<OwnedFd> {
    let mut mark = File::from(rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC).ok()?);
    mark.write_all(mountpoint.as_os_str().as_bytes()).ok()?;
    Some(mark.into())
}

/// Returns the process that serves `mount`, if this user may know it.
pub(super) fn find(mount: &Mount) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?;
    let mut processes = processes.flatten().filter(|entry| {
        // Other users can claim anything about their processes.
        entry.metadata().is_ok_and(|metadata| Some(metadata.uid()) == mount.owner)
    });
    processes.find_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let mut files = std::fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        files.any(|file| is_mark_of(&file.path(), &mount.mountpoint)).then_some(number)
    })
}

/// Process that marks itself as the daemon of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkedProcess {
    /// Process ID.
    pub pid: u32,
    /// User of the process.
    pub owner: u32,
    /// Mountpoint that the mark names.
    pub mountpoint: PathBuf,
}

/// Returns all marked processes that this user may know, with one pass over `/proc`.
pub fn marked_processes() -> Vec<MarkedProcess> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(owner) = entry.metadata().map(|metadata| metadata.uid()) else { continue };
        let files = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let marks = files.filter_map(|file| marked_mountpoint(&file.path()));
        found.extend(marks.map(|mountpoint| MarkedProcess { pid, owner, mountpoint }));
    }
    found
}

/// Process that serves a mount and does nothing else.
#[derive(Debug)]
pub struct Daemon {
    pid: u32,
    handle: Handle,
}

/// Reference to a process, which never means a later one with the same number.
#[derive(Debug)]
enum Handle {
    Pidfd(OwnedFd),
    /// Directory `/proc/PID`, on kernels before 5.3: nothing is in it any more once the process has ended.
    Directory(OwnedFd),
}

impl Handle {
    fn open(pid: u32) -> Option<Self> {
        match pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()) {
            Ok(handle) => Some(Handle::Pidfd(handle)),
            Err(Errno::NOSYS | Errno::PERM) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).ok().map(Handle::Directory)
            }
            Err(_) => None,
        }
    }
}

/// Returns true if the process whose `/proc/PID` is `directory` has ended, even if nobody has waited for it yet.
fn has_ended(directory: &OwnedFd) -> bool {
    let mut stat = String::new();
    let read = openat(directory, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).read_to_string(&mut stat));
    // The state follows the name in parentheses, which may contain some itself.
    read.is_err() || stat.rsplit(") ").next().is_none_or(|state| state.starts_with(['Z', 'X']))
}

impl Daemon {
    /// Returns the daemon of `mount`, if this user may know it. None if the process that serves the mount also does other work.
    pub fn of(mount: &Mount) -> Option<Self> {
        let pid = find(mount)?;
        let handle = Handle::open(pid)?;
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name.trim_end() == env!("CARGO_PKG_NAME")).then_some(Daemon { pid, handle })
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the end of the process. Returns false if it is still running after `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        let begin = Instant::now();
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            let handle = match &self.handle {
                Handle::Pidfd(handle) => handle,
                Handle::Directory(directory) if has_ended(directory) => return true,
                Handle::Directory(_) if left.is_zero() => return false,
                Handle::Directory(_) => {
                    std::thread::sleep(LOOK_EVERY.min(left));
                    continue;
                }
            };
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&left)) {
                Ok(ended) => return ended > 0,
                Err(Errno::INTR) => {}
                // This kernel cannot report the end of a process.
                Err(_) => return true,
            }
        }
    }
}

fn is_mark_of(file: &Path, mountpoint: &Path) -> bool {
    marked_mountpoint(file).is_some_and(|marked| marked.as_os_str() == mountpoint.as_os_str())
}

/// Returns the mountpoint in the mark `file`, an entry of `/proc/PID/fd`; none if it is another file.
fn marked_mountpoint(file: &Path) -> Option<PathBuf> {
    if !std::fs::read_link(file).is_ok_and(|target| target.as_os_str().as_bytes().starts_with(LINK)) {
        return None;
    }
    // A file of another file system can have that name, too, and its daemon need not answer. Files in memory are on one device of the
    // kernel's, for which it is asked nothing.
    let found = openat(CWD, file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if device_of(&found).is_none() || device_of(&found) != *MEMORY {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mark = openat(CWD, format!("/proc/self/fd/{}", found.as_raw_fd()), flags, Mode::empty()).ok()?;
    let mut marked = Vec::new();
    File::from(mark).take(MAX_PATH).read_to_end(&mut marked).ok()?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(marked)))
}

/// Device of files in memory.
static MEMORY: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| {
    let file = rustix::fs::memfd_create("icechunkfs", MemfdFlags::CLOEXEC).ok()?;
    device_of(&file)
});

/// Returns the device of an open file, without a request to a daemon.
fn device_of(file: &OwnedFd) -> Option<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(file, c"", flags, StatxFlags::empty()).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_files_in_memory_are_marks() {
        let place = |file: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let mark = set(Path::new("/some/place")).unwrap();
        assert_eq!(marked_mountpoint(&place(&mark)), Some(PathBuf::from("/some/place")));
        let other = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_ne!(device_of(&other), *MEMORY);
        assert_eq!(marked_mountpoint(&place(&other)), None);
    }
}
