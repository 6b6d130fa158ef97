//! Questions to the daemons of mounts, each by a child process ([`super::child`]).
//!
//! Every file is opened below the descriptor of the mount, name by name and without following
//! links, must be a regular file of the mount's device, and is read up to a limit.
//! [`super::open_mount`] and [`super::survey`] decide which daemons are asked.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, fstat, openat, statx};
use rustix::io::Errno;

use super::child::{Child, ChildEnd};
use super::mount_table::Mount;

/// Directory of the files.
const DIRECTORY: &CStr = c".icechunk";
/// Bytes that the child reads at a time, on its stack: most files are one read.
const READ: usize = 1 << 16;

/// Question to a daemon.
#[derive(Clone, Copy, Debug)]
pub enum Question<'a> {
    /// The attributes of the root, from the daemon and not from the kernel's cache. It has them in
    /// memory: no storage is involved.
    Attributes,
    /// The content of a file in `.icechunk`.
    Content(&'a str),
    /// The content of a file in `.icechunk` once these bytes have been written to it.
    Reply(&'a str, &'a [u8]),
}

/// Mount that has to be where it is looked for. The kernel tells which one is there without a
/// request to a daemon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    id: u64,
    device: (u32, u32),
}

impl Identity {
    /// Returns the identity of `mount`; none if its device number is not valid.
    pub(super) fn of(mount: &Mount) -> Option<Self> {
        Some(Identity { id: mount.id, device: mount.device_numbers()? })
    }

    /// Fails with `EXDEV` if another mount, or none, is at `name` in `directory`. An empty name is
    /// the directory itself.
    pub(super) fn check(self, directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
        // The kernel answers a request for no attributes by itself.
        let found = statx(directory, name, flags, StatxFlags::empty())?;
        // Kernels before 5.8 do not tell the number of the mount.
        let is_it = if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 {
            found.stx_mnt_id == self.id
        } else {
            (found.stx_dev_major, found.stx_dev_minor) == self.device
        };
        if is_it { Ok(()) } else { Err(Errno::XDEV) }
    }
}

/// Question as a child process asks it.
struct Prepared<'a> {
    name: CString,
    request: Option<&'a [u8]>,
}

impl<'a> Prepared<'a> {
    fn new(question: Question<'a>) -> io::Result<Self> {
        let (name, request) = match question {
            // A file without a name is the root.
            Question::Attributes => ("", None),
            Question::Content(name) => (name, None),
            Question::Reply(name, bytes) => (name, Some(bytes)),
        };
        Ok(Prepared { name: CString::new(name)?, request })
    }

    /// Asks the mount with this `root`, and passes the parts of the answer to `take`.
    fn ask(
        &self,
        root: BorrowedFd<'_>,
        device: (u32, u32),
        mut take: impl FnMut(&[u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if self.name.is_empty() {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
            return statx(root, c"", flags, StatxFlags::BASIC_STATS).and_then(|_| take(&[]));
        }
        let file = open_file(root, device, &self.name, self.request.is_some())?;
        if let Some(request) = self.request {
            rustix::io::write(&file, request)?;
        }
        let mut buffer = [0; READ];
        let mut at = 0;
        loop {
            let count = rustix::io::pread(&file, &mut buffer, at)?;
            take(buffer.get(..count).unwrap_or_default())?;
            if count == 0 {
                return Ok(());
            }
            at += count as u64;
        }
    }
}

fn open_file(
    root: BorrowedFd<'_>,
    device: (u32, u32),
    name: &CStr,
    is_written: bool,
) -> Result<std::os::fd::OwnedFd, Errno> {
    let below = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(root, DIRECTORY, below | OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    let access = if is_written { OFlags::RDWR } else { OFlags::RDONLY };
    // A FIFO would block without NONBLOCK.
    let file = openat(&directory, name, below | access | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
    let found = fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    if (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev)) != device {
        return Err(Errno::XDEV);
    }
    Ok(file)
}

/// Asks the mount whose root directory is `root`. The answer has at most `limit` bytes.
pub(super) fn ask(root: BorrowedFd<'_>, identity: Identity, question: Question<'_>, limit: usize) -> io::Result<Child> {
    let prepared = Prepared::new(question)?;
    Child::start(root, limit, move |end| {
        let mut has_begun = false;
        prepared.ask(end.given, identity.device, |part| {
            if !has_begun {
                has_begun = true;
                end.succeed()?;
            }
            end.send(part)
        })
    })
}

/// Opens the mount `identity` at `path`, and asks it `questions`, the next one after the answer to
/// the one before. File systems on the way may not answer either.
///
/// The child sends the descriptor of the mount, and then the answers as [`Answers`] reads them. The
/// answer fails with `EXDEV` if another mount is there, which is asked nothing.
pub(super) fn survey(path: &Path, identity: Identity, questions: &[Question<'_>], limit: usize) -> io::Result<Child> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let prepared = questions.iter().map(|question| Prepared::new(*question)).collect::<io::Result<Vec<_>>>()?;
    let here = openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Child::start(here.as_fd(), limit, |end| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(path.as_c_str(), flags, Mode::empty())?;
        identity.check(root.as_fd(), c"")?;
        end.send_descriptor(root.as_fd())?;
        for question in &prepared {
            send_answer(end, root.as_fd(), identity, question)?;
        }
        Ok(())
    })
}

/// Sends an answer: parts with their lengths, and at the end the errno, negative.
fn send_answer(end: &ChildEnd, root: BorrowedFd<'_>, identity: Identity, question: &Prepared<'_>) -> Result<(), Errno> {
    let answered = question.ask(root, identity.device, |part| {
        let length = i32::try_from(part.len()).map_err(|_| Errno::OVERFLOW)?;
        if length > 0 {
            end.send(&length.to_le_bytes())?;
        }
        end.send(part)
    });
    let errno = answered.map_or_else(Errno::raw_os_error, |()| 0);
    end.send(&errno.wrapping_neg().to_le_bytes())
}

/// Answers of a [`survey`], as far as they have come.
#[derive(Debug)]
pub(super) struct Answers<'a>(&'a [u8]);

impl<'a> Answers<'a> {
    /// Creates the answers in the content of a child's answer.
    pub(super) fn new(content: &'a [u8]) -> Self {
        Answers(content)
    }
}

impl Iterator for Answers<'_> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut answer = Vec::new();
        loop {
            let (length, rest) = self.0.split_first_chunk::<4>()?;
            let length = i32::from_le_bytes(*length);
            self.0 = rest;
            match usize::try_from(length) {
                Ok(0) => return Some(Ok(answer)),
                Ok(length) => {
                    let (part, rest) = self.0.split_at_checked(length)?;
                    answer.extend_from_slice(part);
                    self.0 = rest;
                }
                Err(_) => return Some(Err(io::Error::from_raw_os_error(length.wrapping_neg()))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart_as_far_as_they_have_come() {
        let number = i32::to_le_bytes;
        let all = [&number(0)[..], &number(2), b"ab", &number(1), b"c", &number(0), &number(-5), &number(9), b"half"];
        let all = all.concat();
        let texts: Vec<Result<Vec<u8>, Option<i32>>> =
            Answers::new(&all).map(|answer| answer.map_err(|error| error.raw_os_error())).collect();
        assert_eq!(texts, [Ok(Vec::new()), Ok(b"abc".to_vec()), Err(Some(5))]);
        assert!(Answers::new(&[]).next().is_none() && Answers::new(&[1, 0, 0, 0]).next().is_none());
    }
}
