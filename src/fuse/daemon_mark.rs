//! Search for the process that serves a mount.
//!
//! The kernel does not report it. A daemon keeps a file in memory open whose bytes are the
//! mountpoint; `/proc` shows it to its user and to root. The file pins nothing of the file system
//! around the mount.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::child::Deadline;
use super::mount_table::Mount;
use super::processes::{self, Process};

/// Name of the file, and the prefix of a link to it.
const NAME: &str = "icechunkfs mount";
const LINK: &[u8] = b"/memfd:icechunkfs mount";
/// Interval between two looks for the end of a process.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest path that is compared, in bytes.
const MAX_PATH: u64 = 4096;
/// Longest search for marks.
const SEARCH: Duration = Duration::from_secs(2);
/// Most descriptors and marks of one process that are looked at: a mark is made before the files of
/// a mount are opened, one for each mount that a process serves.
const MAX_DESCRIPTORS: usize = 4096;
const MAX_MARKS: usize = 64;
/// Most descriptors of all processes of one user that are looked at.
const MAX_OF_USER: usize = 1 << 15;

/// Marks this process as the daemon of `mountpoint`, for as long as the file is open. Returns none
/// where that is not possible.
pub(super) fn set(mountpoint: &Path) -> Option<OwnedFd> {
    let mut mark = File::from(rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC).ok()?);
    mark.write_all(mountpoint.as_os_str().as_bytes()).ok()?;
    Some(mark.into())
}

/// Returns the process that serves `mount`, if this user may know it.
pub(super) fn find(mount: &Mount) -> Option<u32> {
    marked_processes(std::slice::from_ref(mount)).into_iter().next().map(|process| process.pid)
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

/// Returns the processes with marks of `mounts` that this user may know, at most one for each
/// mountpoint, with one pass over `/proc`.
///
/// Users can claim anything about their own processes, any number of times: only processes of a
/// user who has one of the mounts are looked at, up to a number of descriptors and marks, and a
/// claim that fits no mount of that user is forgotten at once.
pub fn marked_processes(mounts: &[Mount]) -> Vec<MarkedProcess> {
    marked_before(mounts, Deadline::after(SEARCH))
}

fn marked_before(mounts: &[Mount], deadline: Deadline) -> Vec<MarkedProcess> {
    let wanted = mounts.iter().filter_map(|mount| Some((mount.owner?, mount.mountpoint.clone())));
    let mut wanted: HashSet<(u32, PathBuf)> = wanted.collect();
    let owners: HashSet<u32> = wanted.iter().map(|(owner, _)| *owner).collect();
    let mut descriptors: HashMap<u32, usize> = owners.iter().map(|owner| (*owner, MAX_OF_USER)).collect();
    let mut found = Vec::new();
    for Process { pid, owner } in processes::of_users(|user| owners.contains(&user)) {
        if wanted.is_empty() || deadline.left().is_zero() {
            break;
        }
        let Some(left) = descriptors.get_mut(&owner) else { continue };
        let mut marks = MAX_MARKS;
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for file in files.take(MAX_DESCRIPTORS) {
            if *left == 0 || marks == 0 || deadline.left().is_zero() {
                break;
            }
            *left -= 1;
            let Some(mark) = open_mark(&file.path()) else { continue };
            marks -= 1;
            let claimed = read_mark(mark).and_then(|mountpoint| wanted.take(&(owner, mountpoint)));
            found.extend(claimed.map(|(owner, mountpoint)| MarkedProcess { pid, owner, mountpoint }));
        }
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
    /// Directory `/proc/PID`, on kernels before 5.3: nothing is in it any more once the process has
    /// ended.
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

/// Returns true if the process whose `/proc/PID` is `directory` has ended, even if nobody has
/// waited for it yet.
fn has_ended(directory: &OwnedFd) -> bool {
    let mut stat = String::new();
    let read = openat(directory, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).read_to_string(&mut stat));
    // The state follows the name in parentheses, which may contain some itself.
    read.is_err() || stat.rsplit(") ").next().is_none_or(|state| state.starts_with(['Z', 'X']))
}

impl Daemon {
    /// Returns the daemon of `mount`, if this user may know it. None if the process that serves the
    /// mount also does other work.
    pub fn of(mount: &Mount) -> Option<Self> {
        let pid = find(mount)?;
        let handle = Handle::open(pid)?;
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name.trim_end() == crate::PROGRAM).then_some(Daemon { pid, handle })
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

/// Opens the mark `file`, an entry of `/proc/PID/fd`; none if it is another file.
fn open_mark(file: &Path) -> Option<File> {
    if !std::fs::read_link(file).is_ok_and(|target| target.as_os_str().as_bytes().starts_with(LINK)) {
        return None;
    }
    // A file of another file system can have that name, too, and its daemon need not answer. Files
    // in memory are on one device of the kernel's, for which it is asked nothing.
    let found = openat(CWD, file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if device_of(&found).is_none() || device_of(&found) != *MEMORY {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(CWD, format!("/proc/self/fd/{}", found.as_raw_fd()), flags, Mode::empty()).ok().map(File::from)
}

/// Returns the mountpoint that `mark` names.
fn read_mark(mark: File) -> Option<PathBuf> {
    let mut marked = Vec::new();
    mark.take(MAX_PATH).read_to_end(&mut marked).ok()?;
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
        let marked = |file: &OwnedFd| open_mark(&place(file)).and_then(read_mark);
        assert_eq!(marked(&mark), Some(PathBuf::from("/some/place")));
        let other = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_ne!(device_of(&other), *MEMORY);
        assert_eq!(marked(&other), None);
    }

    #[test]
    fn only_marks_of_mounts_of_the_user_are_found_once_each_and_in_time() {
        let own = rustix::process::geteuid().as_raw();
        let mount = |mountpoint: &str, owner: u32| Mount {
            id: 1,
            mountpoint: mountpoint.into(),
            fs_type: "fuse.icechunkfs".to_owned(),
            source: String::new(),
            device: "0:1".to_owned(),
            read_only: true,
            owner: Some(owner),
            group: Some(owner),
        };
        let names = ["/claimed/a", "/claimed/b", "/claimed/c"];
        let _marks: Vec<_> = names.iter().chain(&names).map(|name| set(Path::new(name)).unwrap()).collect();
        let mounts = [mount("/claimed/a", own), mount("/claimed/b", own.wrapping_add(1_000_000))];
        let expected = MarkedProcess { pid: std::process::id(), owner: own, mountpoint: "/claimed/a".into() };
        assert_eq!(marked_processes(&mounts), [expected]);
        assert_eq!(marked_processes(&[]), []);
        assert_eq!(marked_before(&mounts, Deadline::after(Duration::ZERO)), []);
    }
}
