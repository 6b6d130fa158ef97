//! The FUSE features of the running kernel, as the kernel itself names them.
//!
//! A kernel states its protocol version and its capabilities in the first request of a mount. A
//! child process makes a mount in a mount namespace of its own, reads that request and ends; nobody
//! else sees the mount. That also shows whether this user may mount at all.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitOptions};

use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Smallest buffer with which the kernel accepts a read from `/dev/fuse`.
const BUFFER: usize = 8192;
/// Length of the header before a request, in bytes.
const HEADER: usize = 40;
/// Capability bit of passthrough.
const PASSTHROUGH: u64 = 1 << 37;
/// Directory that the child mounts over, which has `/dev/fuse` and so exists.
const PLACE: &CStr = c"/dev";

/// Features that a kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFeatures {
    /// Major and minor version of the protocol.
    pub protocol: (u32, u32),
    /// True if the kernel can read files of a mount without the daemon.
    pub has_passthrough: bool,
}

/// Step of the child process.
#[derive(Clone, Copy)]
enum Step {
    Namespace = 1,
    Open,
    Mount,
    Read,
}

/// Asks the kernel. Must be called while this process has one thread.
///
/// Errors: [`ErrorKind::PermissionDenied`] if this user may not mount, not even in a namespace;
/// [`ErrorKind::Io`] if the kernel does not answer.
pub fn query() -> Result<KernelFeatures> {
    let failed = |e: rustix::io::Errno| Error::io("asking the kernel for FUSE features", e.into());
    let is_root = rustix::process::geteuid().is_root();
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let maps = [format!("{uid} {uid} 1\n"), format!("{gid} {gid} 1\n")];
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    // The number of the descriptor is known before the child opens it: the child moves it there.
    let device = 100;
    let options = CString::new(format!("fd={device},rootmode=40000,user_id={uid},group_id={gid}"))
        .map_err(|e| Error::with_source(ErrorKind::Io, "mount options", e))?;
    // SAFETY: the child makes only system calls on existing memory, and exits without running
    // anything else.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(Error::io("starting a process", std::io::Error::last_os_error())),
        0 => run_child(if is_root { None } else { Some(&maps) }, device, &options, &write),
        child => child,
    };
    drop(write);
    let mut answer = Vec::new();
    File::from(read).read_to_end(&mut answer).map_err(|e| Error::io("asking the kernel for FUSE features", e))?;
    // The child has written all that it will.
    let _ = rustix::process::waitpid(Pid::from_raw(child), WaitOptions::empty());
    interpret(&answer)
}

fn interpret(answer: &[u8]) -> Result<KernelFeatures> {
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    if let (Some(step), Some(errno), 8) = (number(0), number(4), answer.len()) {
        let error = std::io::Error::from_raw_os_error(errno.cast_signed());
        let what = match step {
            step if step == Step::Namespace as u32 => "making a mount namespace",
            step if step == Step::Open as u32 => "opening /dev/fuse",
            step if step == Step::Mount as u32 => "mounting",
            _ => "reading the kernel's first request",
        };
        return Err(Error::io(what, error));
    }
    let major = number(HEADER);
    let minor = number(HEADER + 4);
    let flags = number(HEADER + 12);
    let (Some(major), Some(minor), Some(flags)) = (major, minor, flags) else {
        return Err(Error::new(ErrorKind::Io, "the kernel's first request is shorter than expected"));
    };
    // Kernels before 5.17 have 32 bits.
    let more = number(HEADER + 16).unwrap_or_default();
    let flags = u64::from(flags) | u64::from(more) << 32;
    Ok(KernelFeatures { protocol: (major, minor), has_passthrough: flags & PASSTHROUGH != 0 })
}

/// Mounts, writes the kernel's first request (or a step and its errno) to `pipe`, and exits.
/// Allocates nothing.
fn run_child(maps: Option<&[String; 2]>, device: i32, options: &CStr, pipe: &OwnedFd) -> ! {
    let pipe = pipe.as_raw_fd();
    let mut buffer = [0_u8; BUFFER];
    // SAFETY: system calls with valid pointers to memory that outlives them. No other thread
    // exists, and nothing else runs afterwards.
    unsafe {
        let fail = |step: Step| -> ! {
            let report = [step as u32, (*libc::__errno_location()).cast_unsigned()];
            libc::write(pipe, report.as_ptr().cast(), size_of_val(&report));
            libc::_exit(1)
        };
        // A kernel that does not answer ends the child.
        libc::alarm(5);
        let spaces = libc::CLONE_NEWNS | if maps.is_some() { libc::CLONE_NEWUSER } else { 0 };
        if libc::unshare(spaces) != 0 {
            fail(Step::Namespace);
        }
        if let Some([users, groups]) = maps {
            let files =
                [(c"/proc/self/setgroups", "deny"), (c"/proc/self/uid_map", users), (c"/proc/self/gid_map", groups)];
            for (path, text) in files {
                let file = libc::open(path.as_ptr(), libc::O_WRONLY);
                if libc::write(file, text.as_ptr().cast(), text.len()) < 0 {
                    fail(Step::Namespace);
                }
            }
        }
        let none = std::ptr::null();
        if libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) != 0 {
            fail(Step::Namespace);
        }
        let opened = libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR);
        if opened < 0 || libc::dup2(opened, device) < 0 {
            fail(Step::Open);
        }
        let kind = c"fuse".as_ptr();
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        if libc::mount(c"icechunkfs-doctor".as_ptr(), PLACE.as_ptr(), kind, flags, options.as_ptr().cast()) != 0 {
            fail(Step::Mount);
        }
        let length = libc::read(device, buffer.as_mut_ptr().cast(), BUFFER);
        let Ok(length) = usize::try_from(length) else { fail(Step::Read) };
        libc::write(pipe, buffer.as_ptr().cast(), length);
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn first_requests_are_understood() {
        let mut request = vec![0; HEADER];
        for number in [7_u32, 45, 1 << 17, 1 << 30, 1 << 5] {
            request.extend_from_slice(&number.to_ne_bytes());
        }
        let features = interpret(&request).unwrap();
        assert_eq!(features, KernelFeatures { protocol: (7, 45), has_passthrough: true });
        let old = interpret(request.get(..HEADER + 16).unwrap()).unwrap();
        assert!(!old.has_passthrough);
        let refused = [(Step::Mount as u32).to_ne_bytes(), libc::EPERM.cast_unsigned().to_ne_bytes()].concat();
        assert_eq!(interpret(&refused).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(interpret(&[]).is_err());
    }
}
