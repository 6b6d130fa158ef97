//! The bytes of changed files: `data/N`, one file each.
//!
//! A commit may link a data file into the repository instead of copying it. The file then has two
//! names, belongs to history and must not change: writers check [`Files::is_unshared`] first and
//! copy the file to a new id if it returns false.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::durable::write_range;
use super::record::{DataFileId, Time};
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Mode of data files before the umask: a commit may make them objects of the repository, which
/// other users read. The directory around them keeps other users out.
const MODE: u32 = 0o666;
/// Smallest file, in bytes, whose flush begins when it is closed: writing it takes the disk longer
/// than the call.
const WORTH_FLUSHING: u64 = 256 << 10;
/// Error message for a data file that has been removed.
pub const LOST: &str = "its bytes were removed from the scratch directory: discard the path, or write the file again";

/// Error message for a data file with bytes that could not be written to the disk.
pub const FLUSH_FAILED: &str = "its last bytes could not be written to the disk, and the kernel may have dropped them: \
    write it again as a new or an emptied file, or discard the path";

/// Directory of data files.
#[derive(Clone, Debug)]
pub struct Files {
    directory: Arc<OwnedFd>,
}

/// Result of `stat` on a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Size in bytes.
    pub size: u64,
    /// 512-byte blocks in use.
    pub blocks: u64,
    /// Last change of the bytes.
    pub mtime: Time,
    /// Last change of the bytes or of any attribute.
    pub ctime: Time,
    /// Number of names: more than one after a commit has linked the file.
    pub links: u64,
}

/// State of a file with respect to writers, memory mappings included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterState {
    /// No process can write to it.
    AtRest,
    /// A process can write to it.
    Written,
    /// The file system does not tell.
    Unknown,
}

impl Files {
    /// Wraps the directory of data files.
    pub fn new(directory: OwnedFd) -> Self {
        Files { directory: Arc::new(directory) }
    }

    /// Returns the directory of data files.
    pub fn directory(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    /// Creates an empty data file.
    pub fn create(&self, id: DataFileId) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.open_with(id, flags)
    }

    /// Opens a data file for reading and writing.
    pub fn open(&self, id: DataFileId) -> Result<File> {
        self.open_with(id, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW)
    }

    /// Opens a data file for reading alone.
    pub fn open_to_read(&self, id: DataFileId) -> Result<File> {
        self.open_with(id, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW)
    }

    fn open_with(&self, id: DataFileId, flags: OFlags) -> Result<File> {
        rustix::fs::openat(&*self.directory, id.file_name(), flags, Mode::from_raw_mode(MODE))
            .map(File::from)
            .map_err(|errno| missing(id, errno))
    }

    /// Returns the `stat` of a data file; `None` if it has been removed.
    pub fn find(&self, id: DataFileId) -> Result<Option<Stat>> {
        let stat = rustix::fs::statat(&*self.directory, id.file_name(), AtFlags::SYMLINK_NOFOLLOW).map(|stat| Stat {
            size: stat.st_size.unsigned_abs(),
            blocks: stat.st_blocks.unsigned_abs(),
            mtime: Time(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            ctime: Time(stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or(0)),
            links: u64::from(stat.st_nlink as u32),
        });
        match stat {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(missing(id, errno)),
        }
    }

    /// Returns the `stat` of a data file, and fails with [`LOST`] if it has been removed.
    pub fn stat(&self, id: DataFileId) -> Result<Stat> {
        self.find(id)?.ok_or_else(|| missing(id, Errno::NOENT))
    }

    /// Returns true if a file may be written to: it has one name.
    pub fn is_unshared(file: &File) -> Result<bool> {
        file.metadata().map(|metadata| metadata.nlink() <= 1).map_err(|e| Error::io("a scratch file", e))
    }

    /// Tests whether any process, this one included, can write to `file`, which must be open for
    /// reading only. The kernel grants a read lease only if no descriptor or mapping is writable;
    /// the lease is returned at once.
    pub fn writer_state(file: &File) -> WriterState {
        /// Selects the signal that the kernel sends when the file is opened during the lease.
        /// `SIGURG` has no effect by default.
        const F_SETSIG: libc::c_int = 10;
        let set = |what: libc::c_int, value: libc::c_int| {
            // SAFETY: the descriptor is open as long as `file` is. These commands take a number and
            // no memory of this process.
            unsafe { libc::fcntl(file.as_raw_fd(), what, value) == 0 }
        };
        if !set(F_SETSIG, libc::SIGURG) {
            return WriterState::Unknown;
        }
        if !set(libc::F_SETLEASE, libc::c_int::from(libc::F_RDLCK)) {
            let refused = std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
            return if refused { WriterState::Written } else { WriterState::Unknown };
        }
        if set(libc::F_SETLEASE, libc::c_int::from(libc::F_UNLCK)) { WriterState::AtRest } else { WriterState::Unknown }
    }

    /// Copies the first `length` bytes of `file` to a new data file `id`.
    pub fn copy(&self, file: &File, id: DataFileId, length: u64) -> Result<File> {
        let failed = |e| Error::io(format!("copying to scratch file {}", id.0), e);
        let copy = self.create(id)?;
        let size = file.metadata().map_err(failed)?.len();
        copy_range(file, 0, &copy, 0, length.min(size)).map_err(failed)?;
        Ok(copy)
    }

    /// Sets a data file's times.
    pub fn set_times(&self, id: DataFileId, atime: Time, mtime: Time) -> Result<()> {
        let spec = |Time(tv_sec, nanos)| rustix::fs::Timespec { tv_sec, tv_nsec: i64::from(nanos) };
        let times = rustix::fs::Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        rustix::fs::utimensat(&*self.directory, id.file_name(), &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| missing(id, errno))
    }

    /// Removes a data file if it exists.
    pub fn remove(&self, id: DataFileId) {
        // A file that cannot be removed now is found when the directory is next opened.
        let _ = rustix::fs::unlinkat(&*self.directory, id.file_name(), AtFlags::empty());
    }

    /// Removes data files in the background: after a very large commit, the removal takes a good
    /// part of its time.
    pub fn remove_in_background(&self, ids: Vec<DataFileId>) {
        let files = self.clone();
        // Files that remain when the daemon ends are removed when the directory is next opened.
        drop(tokio::task::spawn_blocking(move || ids.into_iter().for_each(|id| files.remove(id))));
    }

    /// Starts writing a finished file to the disk if it is large: a later commit, which has to wait
    /// for the disk, finds most of the work done.
    pub fn begin_flushing(file: Arc<File>) {
        if file.metadata().is_ok_and(|metadata| metadata.len() >= WORTH_FLUSHING) {
            // A failure does not matter: the call only starts the writing early.
            drop(tokio::task::spawn_blocking(move || write_range(&file, libc::SYNC_FILE_RANGE_WRITE)));
        }
    }

    /// Returns the ids of all data files.
    pub fn list(&self) -> Result<Vec<DataFileId>> {
        list(&self.directory).map_err(|e| Error::io("listing scratch files", e))
    }
}

/// Returns the ids of all data files in `directory`.
pub(super) fn list(directory: &OwnedFd) -> std::io::Result<Vec<DataFileId>> {
    let mut ids = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        ids.extend(entry?.file_name().to_str().ok().and_then(DataFileId::from_file_name));
    }
    Ok(ids)
}

/// Reads up to `size` bytes of a data file from `offset` on: fewer only at the end of the file.
pub fn read_file(file: &File, offset: u64, size: u32) -> Result<Bytes> {
    let mut bytes = vec![0; size as usize];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("reading a scratch file", e)),
        }
    }
    bytes.truncate(done);
    Ok(bytes.into())
}

/// Writes `bytes` at `offset` of a data file.
pub fn write_file(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    file.write_all_at(bytes, offset).map_err(|e| Error::io("writing to the scratch directory", e))
}

/// Copies up to `length` bytes from file to file, in the kernel where possible. Returns the number
/// of bytes copied.
pub fn copy_range(from: &File, offset: u64, to: &File, at: u64, length: u64) -> std::io::Result<u64> {
    let mut source = offset;
    let mut target = at;
    let mut left = length;
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

fn missing(id: DataFileId, errno: Errno) -> Error {
    let error = Error::io(format!("scratch file data/{}", id.0), errno.into());
    // The file itself exists for the program, so the error must not be `NotFound`.
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
        assert_eq!(Files::writer_state(&reader), WriterState::Written);
        drop(writer);
        let other = File::open(&path).unwrap();
        assert_eq!([&reader, &other].map(Files::writer_state), [WriterState::AtRest; 2], "readers are in nobody's way");
        // The lease was returned: otherwise this open would block.
        drop(File::options().write(true).open(&path).unwrap());
        assert_eq!(Files::writer_state(&reader), WriterState::AtRest);
    }
}
