//! Work in a child process, which is abandoned when it takes too long.
//!
//! A request that a FUSE daemon has taken and does not answer cannot be interrupted: the process
//! that waits for it does not end even when it is killed, and neither does one with a thread that
//! waits. So a child process makes the request.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal, WaitOptions};

/// Bytes that are received at a time.
const RECEIVED: usize = 1 << 16;
/// Bytes of the errno at the beginning of an answer.
const HEADER: usize = 4;

/// Moment until which answers are waited for. All that one command asks can share one.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// Returns the moment that comes after `time`.
    pub fn after(time: Duration) -> Self {
        let now = Instant::now();
        Deadline(now.checked_add(time).unwrap_or(now))
    }

    /// Returns this moment, or the one after `time` if that is earlier.
    #[must_use]
    pub fn at_most(self, time: Duration) -> Self {
        Deadline(self.0.min(Self::after(time).0))
    }

    /// Returns the time that is left.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Child process at work.
#[derive(Debug)]
pub(super) struct Child {
    process: Option<Pid>,
    socket: OwnedFd,
    /// Errno and content, as far as they were received.
    answer: Vec<u8>,
    /// Maximum length of the content, in bytes.
    limit: usize,
    descriptor: Option<OwnedFd>,
}

/// Descriptors of a child process. It has no others.
pub(super) struct ChildEnd {
    /// Socket to the parent.
    socket: BorrowedFd<'static>,
    /// Descriptor that the parent gave.
    pub(super) given: BorrowedFd<'static>,
}

impl Child {
    /// Starts `work` in a child process, which gets `given` and may answer with up to `limit`
    /// bytes. Its failure is the answer's.
    ///
    /// `work` makes system calls on existing memory and nothing else: other threads may hold locks,
    /// of the allocator for instance.
    pub(super) fn start(
        given: BorrowedFd<'_>,
        limit: usize,
        work: impl FnOnce(&ChildEnd) -> Result<(), Errno>,
    ) -> io::Result<Self> {
        let (socket, end) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // SAFETY: the child makes only system calls on existing memory, and exits without running
        // anything else.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => run(&end, given, work),
            child => Ok(Child { process: Pid::from_raw(child), socket, answer: Vec::new(), limit, descriptor: None }),
        }
    }

    /// Waits for the end of the answer, at most until `deadline`: then the result is none, and the
    /// child can be waited for again.
    pub(super) fn wait(&mut self, deadline: Deadline) -> Option<io::Result<Vec<u8>>> {
        loop {
            match wait_for_any(&[&*self], deadline.left()) {
                Ok(ready) if ready.is_empty() => return None,
                Ok(_) => {}
                Err(errno) => return Some(Err(errno.into())),
            }
            if let Received::End(answer) = self.receive() {
                return Some(answer);
            }
        }
    }

    /// Receives what has come of the answer, without waiting.
    pub(super) fn receive(&mut self) -> Received {
        let mut buffer = vec![0; RECEIVED];
        match self.receive_part(&mut buffer) {
            Ok(0) => return Received::End(self.take_answer()),
            Ok(count) => self.answer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Received::End(Err(errno.into())),
        }
        if self.answer.len() > self.limit.saturating_add(HEADER) {
            return Received::End(Err(Errno::FBIG.into()));
        }
        Received::Part
    }

    /// Returns the descriptor that the child has sent.
    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }

    fn receive_part(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptor = descriptors.last().or(self.descriptor.take());
            }
        }
        Ok(received.bytes)
    }

    /// Returns the answer as far as it has come.
    pub(super) fn take_answer(&mut self) -> io::Result<Vec<u8>> {
        let answer = std::mem::take(&mut self.answer);
        let died = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (errno, content) = answer.split_first_chunk::<HEADER>().ok_or_else(died)?;
        match i32::from_le_bytes(*errno) {
            0 => Ok(content.to_vec()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Message of a child.
#[derive(Debug)]
pub(super) enum Received {
    /// A part of the answer, or nothing.
    Part,
    /// The end of the answer, or a failure.
    End(io::Result<Vec<u8>>),
}

/// Waits until one of `children` has sent something, at most for `time`. Returns the positions of
/// those that have.
pub(super) fn wait_for_any(children: &[&Child], time: Duration) -> Result<Vec<usize>, Errno> {
    let deadline = Deadline::after(time);
    let mut sockets: Vec<PollFd<'_>> = children.iter().map(|child| PollFd::new(&child.socket, PollFlags::IN)).collect();
    loop {
        let left = deadline.left();
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut sockets, Some(&left)) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => break,
        }
    }
    let ready = sockets.iter().enumerate().filter(|(_, socket)| !socket.revents().is_empty());
    Ok(ready.map(|(at, _)| at).collect())
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(process) = self.process else { return };
        let _ = rustix::process::kill_process(process, Signal::KILL);
        if !matches!(rustix::process::waitpid(Some(process), WaitOptions::NOHANG), Ok(None)) {
            return;
        }
        // The child ends when the daemon lets it.
        let wait = move || {
            let _ = rustix::process::waitpid(Some(process), WaitOptions::empty());
        };
        let _ = std::thread::Builder::new().name("reap".to_owned()).spawn(wait);
    }
}

/// Runs `work` in the child process.
fn run(socket: &OwnedFd, given: BorrowedFd<'_>, work: impl FnOnce(&ChildEnd) -> Result<(), Errno>) -> ! {
    let end = keep_descriptors(socket, given);
    if let Err(errno) = work(&end) {
        let _ = end.send(&errno.raw_os_error().to_le_bytes());
    }
    // Without running any code of its parent.
    signal_hook::low_level::exit(0)
}

/// Closes every other descriptor: this process may live long, and must not keep locks, or a
/// standard output whose end another process waits for.
fn keep_descriptors(socket: &OwnedFd, given: BorrowedFd<'_>) -> ChildEnd {
    // SAFETY: the calls take numbers. Nothing in this process uses a descriptor that is closed
    // here.
    unsafe {
        // Out of the way first: either may be 0 or 1 in a process that was started without these.
        let socket = libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD, 3);
        let given = libc::fcntl(given.as_raw_fd(), libc::F_DUPFD, 3);
        libc::dup2(socket, 0);
        libc::dup2(given, 1);
        if libc::syscall(libc::SYS_close_range, 2, libc::c_uint::MAX, 0) != 0 {
            // Kernels before 5.9 lack `close_range`.
            (2..1024).for_each(|number| {
                libc::close(number);
            });
        }
        ChildEnd { socket: BorrowedFd::borrow_raw(0), given: BorrowedFd::borrow_raw(1) }
    }
}

impl ChildEnd {
    /// Begins the answer of work that has succeeded; its content may follow.
    pub(super) fn succeed(&self) -> Result<(), Errno> {
        self.send(&[0; HEADER])
    }

    /// Sends a part of the answer.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut left = bytes;
        while !left.is_empty() {
            match rustix::io::write(self.socket, left) {
                Ok(written) => left = left.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Sends the whole answer of work that has succeeded: a descriptor.
    pub(super) fn send_descriptor(&self, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(Errno::NOBUFS);
        }
        let header = [IoSlice::new(&[0; HEADER])];
        rustix::net::sendmsg(self.socket, &header, &mut ancillary, SendFlags::empty()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn null() -> File {
        File::options().read(true).write(true).open("/dev/null").unwrap()
    }

    #[test]
    fn answers_failures_and_descriptors_are_received() {
        let null = null();
        let answer = |work: fn(&ChildEnd) -> Result<(), Errno>| {
            let mut child = Child::start(null.as_fd(), 100, work).unwrap();
            child.wait(Deadline::after(Duration::from_secs(60))).unwrap()
        };
        assert_eq!(answer(|end| end.succeed().and_then(|()| end.send(b"text"))).unwrap(), b"text");
        assert_eq!(answer(|_| Err(Errno::NOTCONN)).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        assert_eq!(answer(|_| Ok(())).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let too_long = answer(|end| end.succeed().and_then(|()| end.send(&[7; 101])));
        assert_eq!(too_long.unwrap_err().raw_os_error(), Some(libc::EFBIG));
        let mut child = Child::start(null.as_fd(), 0, |end| end.send_descriptor(end.given)).unwrap();
        child.wait(Deadline::after(Duration::from_secs(60))).unwrap().unwrap();
        let sent = File::from(child.take_descriptor().unwrap());
        assert_eq!(sent.metadata().unwrap().rdev(), null.metadata().unwrap().rdev());
    }

    #[test]
    fn a_child_that_does_not_answer_is_given_up() {
        let null = null();
        let begin = Instant::now();
        let mut child = Child::start(null.as_fd(), 100, |end| {
            end.succeed()?;
            loop {
                rustix::event::pause();
            }
        })
        .unwrap();
        assert!(child.wait(Deadline::after(Duration::from_millis(50))).is_none());
        drop(child);
        assert!(begin.elapsed() < Duration::from_secs(30));
        let deadline = Deadline::after(Duration::from_secs(60));
        assert!(deadline.at_most(Duration::ZERO).left().is_zero() && !deadline.left().is_zero());
    }
}
