//! The bytes of changed files: `data/N`, one file each.
//!
//! A commit may link such a file into the repository instead of copying it. From then on it has two names and belongs to
//! history: [`Files::is_own`] is asked before anybody may write, and a copy under a new number made if it says no.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::record::Time;
use crate::error::{Error, ErrorKind, Result};

/// Mode of data files, before the umask: a commit may make them objects of the repository, which colleagues read. The
/// directory around them keeps everybody else out.
const MODE: u32 = 0o666;
/// Files from this size on, in bytes, are flushed from when they are closed. What takes the disk longer than the call.
const WORTH_FLUSHING: u64 = 256 << 10;
/// What to do about a data file that is gone.
pub const LOST: &str = "its bytes were removed from the scratch directory: discard the path, or write the file anew";

/// The directory of data files.
#[derive(Clone, Debug)]
pub struct Files {
    directory: Arc<OwnedFd>,
}

/// What the file system says of a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks in use.
    pub blocks: u64,
    /// Last change of the bytes.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Names it has: more than one when a commit has linked it.
    pub links: u64,
}

/// Whether somebody may be writing a file, by a mapping for instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nobody.
    AtRest,
    /// Somebody.
    Written,
    /// The file system does not say.
    Unknown,
}

impl Files {
    /// The data files in `directory`.
    pub fn new(directory: OwnedFd) -> Self {
        Files { directory: Arc::new(directory) }
    }

    /// The directory that holds them.
    pub fn directory(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    /// Makes an empty file.
    pub fn create(&self, number: u64) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.open_with(number, flags)
    }

    /// Opens a file for reading and writing.
    pub fn open(&self, number: u64) -> Result<File> {
        self.open_with(number, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW)
    }

    fn open_with(&self, number: u64, flags: OFlags) -> Result<File> {
        rustix::fs::openat(&*self.directory, number.to_string(), flags, Mode::from_raw_mode(MODE))
            .map(File::from)
            .map_err(|errno| missing(number, errno))
    }

    /// What there is to know of a file; none if somebody has removed it.
    pub fn find(&self, number: u64) -> Result<Option<Stat>> {
        let stat =
            rustix::fs::statat(&*self.directory, number.to_string(), AtFlags::SYMLINK_NOFOLLOW).map(|stat| Stat {
                size: stat.st_size.unsigned_abs(),
                blocks: stat.st_blocks.unsigned_abs(),
                mtime: Time(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
                ctime: Time(stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or(0)),
                links: u64::from(stat.st_nlink as u32),
            });
        match stat {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(missing(number, errno)),
        }
    }

    /// As [`Files::find`], of a file that must be there.
    pub fn stat(&self, number: u64) -> Result<Stat> {
        self.find(number)?.ok_or_else(|| missing(number, Errno::NOENT))
    }

    /// Whether a file may be written to: it has one name.
    pub fn is_own(file: &File) -> Result<bool> {
        file.metadata().map(|metadata| metadata.nlink() <= 1).map_err(|e| Error::io("a scratch file", e))
    }

    /// Whether anybody has `file`, which must be open for reading only, open for writing or mapped so, by whatever means. Our own
    /// descriptors count.
    ///
    /// A lease for reading is given by just that rule; it is returned at once.
    pub fn rest(file: &File) -> Rest {
        /// Whoever opens the file while the lease is held makes the kernel send a signal: one that nobody notices.
        const F_SETSIG: libc::c_int = 10;
        let set = |what: libc::c_int, value: libc::c_int| {
            // SAFETY: the descriptor is open as long as `file` is. These commands take a number and no memory of ours.
            unsafe { libc::fcntl(file.as_raw_fd(), what, value) == 0 }
        };
        if !set(F_SETSIG, libc::SIGURG) {
            return Rest::Unknown;
        }
        if !set(libc::F_SETLEASE, libc::c_int::from(libc::F_RDLCK)) {
            let refused = std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
            return if refused { Rest::Written } else { Rest::Unknown };
        }
        if set(libc::F_SETLEASE, libc::c_int::from(libc::F_UNLCK)) { Rest::AtRest } else { Rest::Unknown }
    }

    /// Copies the first `length` bytes of `file` to a new file `number`, times included.
    pub fn copy(&self, file: &File, number: u64, length: u64) -> Result<File> {
        let failed = |e| Error::io(format!("copying to scratch file {number}"), e);
        let copy = self.create(number)?;
        let size = file.metadata().map_err(failed)?.len();
        copy_range(file, 0, &copy, 0, length.min(size)).map_err(failed)?;
        Ok(copy)
    }

    /// Sets a file's times.
    pub fn set_times(&self, number: u64, atime: Time, mtime: Time) -> Result<()> {
        let spec = |Time(tv_sec, nanos)| rustix::fs::Timespec { tv_sec, tv_nsec: i64::from(nanos) };
        let times = rustix::fs::Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        rustix::fs::utimensat(&*self.directory, number.to_string(), &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| missing(number, errno))
    }

    /// Removes a file; one that is gone is as good.
    pub fn remove(&self, number: u64) {
        // What cannot be removed now is found when the directory is next opened.
        let _ = rustix::fs::unlinkat(&*self.directory, number.to_string(), AtFlags::empty());
    }

    /// Removes files while others go on: after a commit of very many, this is a good part of the time it would take.
    pub fn remove_in_background(&self, numbers: Vec<u64>) {
        let files = self.clone();
        // Nobody waits. What is left when the daemon ends is removed when the directory is next opened.
        drop(tokio::task::spawn_blocking(move || numbers.into_iter().for_each(|number| files.remove(number))));
    }

    /// Asks the disk to begin with a file that a program has finished, if it is large, so that a commit, which has to wait for
    /// the disk, finds most of the work done.
    pub fn begin_flushing(file: Arc<File>) {
        if file.metadata().is_ok_and(|metadata| metadata.len() >= WORTH_FLUSHING) {
            drop(tokio::task::spawn_blocking(move || {
                // SAFETY: the descriptor is open as long as `file` is. The call takes no memory of ours.
                // It only hurries what happens anyway, so that a failure says nothing.
                unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
            }));
        }
    }

    /// Numbers of all files there are.
    pub fn list(&self) -> Result<Vec<u64>> {
        let failed = |e: Errno| Error::io("listing scratch files", e.into());
        let entries = rustix::fs::Dir::read_from(&*self.directory).map_err(failed)?;
        let mut numbers = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            numbers.extend(entry.file_name().to_str().ok().and_then(|name| name.parse::<u64>().ok()));
        }
        Ok(numbers)
    }
}

/// Copies bytes from file to file, in the kernel where it can.
pub fn copy_range(from: &File, offset: u64, to: &File, at: u64, length: u64) -> std::io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let (mut source, mut target, mut left) = (offset, at, length);
    while left > 0 {
        let step = usize::try_from(left).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), step) {
            Ok(0) => break,
            Ok(count) => left -= count as u64,
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                let mut buffer = vec![0; step.min(1 << 20)];
                let count = from.read_at(&mut buffer, source)?;
                let Some(part) = buffer.get(..count).filter(|part| !part.is_empty()) else { break };
                to.write_all_at(part, target)?;
                (source, target, left) = (source + count as u64, target + count as u64, left - count as u64);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(length - left)
}

fn missing(number: u64, errno: Errno) -> Error {
    let error = Error::io(format!("scratch file data/{number}"), errno.into());
    // To the program the file exists.
    if error.kind() == ErrorKind::NotFound {
        return Error::with_source(ErrorKind::Io, LOST, error);
    }
    error
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_at_rest_when_nobody_can_write_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        assert_eq!(Files::rest(&reader), Rest::Written);
        drop(writer);
        let other = File::open(&path).unwrap();
        assert_eq!([&reader, &other].map(Files::rest), [Rest::AtRest; 2], "readers are in nobody's way");
        // It was given back: this would wait otherwise.
        drop(File::options().write(true).open(&path).unwrap());
        assert_eq!(Files::rest(&reader), Rest::AtRest);
    }
}
