//! Requests to a mount, with a deadline.
//!
//! A request that a daemon has taken and does not answer cannot be interrupted: the process that waits for it does not end even
//! when it is killed. So a child process makes the request, and is abandoned when the deadline has passed.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};

use super::daemon_mark;
use super::mount_table::{self, Mount};
use crate::error::{Error, ErrorKind, Result};

/// Longest time for replies that a daemon has in memory.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest accepted answer, in bytes.
const MAX_ANSWER: u64 = 256 << 20;

/// Longest accepted answer of another user's mount, in bytes. That user decides what it answers.
const MAX_FOREIGN_ANSWER: u64 = 4 << 20;

/// Request about a file.
#[derive(Clone, Copy, Debug)]
pub enum Probe<'a> {
    /// Existence of the file.
    Exists,
    /// Attributes of the file, from the daemon and not from the kernel's cache.
    Attributes,
    /// Content of the file.
    Content,
    /// Content of the file once these bytes have been written to it.
    Reply(&'a [u8]),
}

/// User who makes a request, and file system that must answer it.
#[derive(Clone, Copy, Debug, Default)]
struct Terms {
    /// User and group to become; none to stay the current user.
    identity: Option<(u32, u32)>,
    /// Device number of the file system that the file must be in.
    device: Option<(u32, u32)>,
}

impl Terms {
    /// Returns the terms for `mount`. The kernel lets only its owner in, not even root, so root becomes the owner. Another user may change
    /// the path meanwhile, or have covered the mount: nothing is written to, or believed of, another file system.
    fn of(mount: &Mount) -> Option<Self> {
        let (major, minor) = mount.device.split_once(':')?;
        let device = Some((major.parse().ok()?, minor.parse().ok()?));
        let owner = mount.owner.zip(mount.group).filter(|(owner, _)| *owner != 0);
        Some(Terms { identity: owner.filter(|_| rustix::process::geteuid().is_root()), device })
    }

    fn max_answer(self) -> u64 {
        if self.identity.is_some() { MAX_FOREIGN_ANSWER } else { MAX_ANSWER }
    }
}

/// Makes a request about the file at `path` in `mount`, as its owner if that is possible and needed.
///
/// Fails with [`ErrorKind::Timeout`] if there is no answer within `timeout`. The inner result is that of the file system; its errno is
/// `EXDEV` if another mount covers this one.
pub fn ask(mount: &Mount, path: &Path, request: Probe<'_>, timeout: Duration) -> Result<io::Result<Vec<u8>>> {
    let wrong = || Error::invalid(format!("{} is no device number", mount.device));
    probe_on(Terms::of(mount).ok_or_else(wrong)?, &mount.mountpoint, path, request, timeout)
}

/// Makes a request about the file at `path` in the mount at `mountpoint`.
///
/// Fails with [`ErrorKind::Timeout`] if there is no answer within `timeout`. The inner result is that of the file system.
pub fn probe(mountpoint: &Path, path: &Path, request: Probe<'_>, timeout: Duration) -> Result<io::Result<Vec<u8>>> {
    probe_on(Terms::default(), mountpoint, path, request, timeout)
}

fn probe_on(
    terms: Terms,
    mountpoint: &Path,
    path: &Path,
    request: Probe<'_>,
    timeout: Duration,
) -> Result<io::Result<Vec<u8>>> {
    let failed = |e| Error::io(format!("asking {}", mountpoint.display()), e);
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    // SAFETY: other threads may hold locks, of the allocator for instance. The child makes only system calls on existing memory,
    // and exits without running anything else.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(failed(io::Error::last_os_error())),
        0 => run_child(terms, &name, request, &write),
        child => child,
    };
    drop(write);
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let answer = receive(read, terms.max_answer());
        if let Some(child) = Pid::from_raw(child) {
            // The child has ended, or will when the daemon lets it.
            let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
        }
        let _ = sender.send(answer);
    });
    receiver.recv_timeout(timeout).map_err(|_| {
        if let Some(child) = Pid::from_raw(child) {
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
        no_answer(mountpoint, timeout)
    })
}

/// Returns the absolute path of `mountpoint`, if an icechunkfs mount is there and answers.
pub fn require_responsive_mount(mountpoint: &Path) -> Result<std::path::PathBuf> {
    let mountpoint = mount_table::require_mount(mountpoint)?;
    // Any answer will do.
    let _ = exists(&mountpoint, &mountpoint.join(".icechunk"))?;
    Ok(mountpoint)
}

/// Checks that there is a file at `path` in the mount at `mountpoint`. The inner error is that of the file system.
pub fn exists(mountpoint: &Path, path: &Path) -> Result<io::Result<()>> {
    Ok(probe(mountpoint, path, Probe::Exists, REPLY_TIMEOUT)?.map(drop))
}

fn no_answer(mountpoint: &Path, timeout: Duration) -> Error {
    let mount = mount_table::find(mountpoint).ok().flatten();
    let daemon = mount.as_ref().and_then(daemon_mark::find);
    let daemon = daemon.map_or("its daemon".to_owned(), |process| format!("its daemon (process {process})"));
    Error::new(
        ErrorKind::Timeout,
        format!(
            "{}: the mount does not answer within {} s: {daemon} is stopped, or waits for storage. Resume it, or detach the mount \
             with `icechunkfs unmount --force`; uncommitted changes stay in the scratch directory",
            mountpoint.display(),
            timeout.as_secs(),
        ),
    )
}

fn receive(pipe: OwnedFd, limit: u64) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    File::from(pipe).take(limit).read_to_end(&mut answer)?;
    let died = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (errno, content) = answer.split_first_chunk::<4>().ok_or_else(died)?;
    match i32::from_le_bytes(*errno) {
        0 => Ok(content.to_vec()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Makes the request, writes the answer to `pipe` and exits. Allocates nothing.
fn run_child(terms: Terms, path: &CStr, request: Probe<'_>, pipe: &OwnedFd) -> ! {
    let pipe = close_other_descriptors(pipe);
    let answered = match request {
        _ if !take(terms.identity) => Err(Errno::PERM),
        Probe::Attributes => {
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
            let found = rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::BASIC_STATS);
            found.and_then(|found| check_device((found.stx_dev_major, found.stx_dev_minor), terms.device))
        }
        Probe::Exists => rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(drop),
        Probe::Content => read(terms, path, None, pipe),
        Probe::Reply(bytes) => read(terms, path, Some(bytes), pipe),
    };
    let errno = answered.map_or_else(Errno::raw_os_error, |()| 0);
    if errno != 0 || matches!(request, Probe::Exists | Probe::Attributes) {
        let _ = rustix::io::write(pipe, &errno.to_le_bytes());
    }
    // SAFETY: the process exits without running any code of its parent.
    unsafe { libc::_exit(0) }
}

/// Gives this process, which has one thread, another identity. Its memory stays hidden from that user: the kernel marks a process
/// that changes its identity as not dumpable.
fn take(identity: Option<(u32, u32)>) -> bool {
    let Some((uid, gid)) = identity else { return true };
    let none = std::ptr::null::<libc::gid_t>();
    // SAFETY: the calls take numbers, and an empty list.
    unsafe {
        libc::syscall(libc::SYS_setgroups, 0, none) == 0
            && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
            && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
    }
}

/// Closes every descriptor but `pipe`, which it returns: this process may live long, and must not keep locks, or a standard
/// output whose end another process waits for.
fn close_other_descriptors(pipe: &OwnedFd) -> BorrowedFd<'static> {
    // SAFETY: the calls take numbers. Nothing in this process uses a descriptor that is closed here.
    unsafe {
        libc::dup2(pipe.as_raw_fd(), 0);
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) != 0 {
            // Kernels before 5.9 lack `close_range`.
            (1..1024).for_each(|number| {
                libc::close(number);
            });
        }
        BorrowedFd::borrow_raw(0)
    }
}

fn check_device(found: (u32, u32), wanted: Option<(u32, u32)>) -> Result<(), Errno> {
    if wanted.is_none_or(|wanted| wanted == found) { Ok(()) } else { Err(Errno::XDEV) }
}

fn read(terms: Terms, path: &CStr, request: Option<&[u8]>, pipe: BorrowedFd<'_>) -> Result<(), Errno> {
    let access = if request.is_some() { OFlags::RDWR } else { OFlags::RDONLY };
    let file = rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    if terms.device.is_some() {
        let device = rustix::fs::fstat(&file)?.st_dev;
        check_device((rustix::fs::major(device), rustix::fs::minor(device)), terms.device)?;
    }
    if let Some(request) = request {
        rustix::io::write(&file, request)?;
    }
    let mut buffer = [0; 1 << 14];
    let mut at = 0;
    let mut count = rustix::io::pread(&file, &mut buffer, at)?;
    rustix::io::write(pipe, &[0; 4])?;
    while count > 0 {
        let mut left = buffer.get(..count).unwrap_or_default();
        while !left.is_empty() {
            let written = rustix::io::write(pipe, left)?;
            left = left.get(written..).unwrap_or_default();
        }
        at += count as u64;
        // A failure here truncates the answer, which its reader detects.
        count = rustix::io::pread(&file, &mut buffer, at).unwrap_or(0);
    }
    Ok(())
}

/// Reads the file at `path` in `mount`.
pub fn content(mount: &Mount, path: &str) -> Result<io::Result<Vec<u8>>> {
    probe(&mount.mountpoint, &mount.mountpoint.join(path), Probe::Content, REPLY_TIMEOUT)
}
