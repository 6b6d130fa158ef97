//! Listing of the objects of a local repository by descriptors.
//!
//! Each directory is opened by its name below its parent's descriptor, and links to directories are
//! not followed: an untrusted repository cannot lead a listing to other parts of the machine, nor
//! into a cycle. A link to a file is listed if it stays within the repository, since reads accept
//! it under the same condition. The listed folder itself may be a link within the repository.
//!
//! Names are those of the reference implementation: `NAME#DIGITS` are staging files and not listed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::warn;

use super::ObjectInfo;
use super::local::LocalFiles;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Number of objects in a batch, and number of batches that are sent ahead of the receiver.
const BATCH: usize = 1000;
const AHEAD: usize = 4;
/// Maximum depth of directories, each of which takes a descriptor. Objects lie two or three deep.
const DEPTH: u32 = 64;

/// Lists the objects below `folder`, on a blocking thread, to the returned channel. A missing
/// folder is empty.
pub(super) fn begin(files: Arc<LocalFiles>, folder: String) -> Receiver<Result<Vec<ObjectInfo>>> {
    let (sender, receiver) = channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut listing = DirectoryWalk { files: &files, found: Vec::with_capacity(BATCH), sender: &sender };
        let ended = match files.open_directory(&folder) {
            Ok(directory) => listing.walk(directory, &folder, DEPTH),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            Err(error) => Err(error),
        };
        let last = ended.map(|()| std::mem::take(&mut listing.found));
        // The receiver may be gone.
        let _ = sender.blocking_send(last);
    });
    receiver
}

struct DirectoryWalk<'a> {
    files: &'a LocalFiles,
    found: Vec<ObjectInfo>,
    sender: &'a Sender<Result<Vec<ObjectInfo>>>,
}

impl DirectoryWalk<'_> {
    /// Lists `directory`, whose path in the repository is `folder`.
    fn walk(&mut self, directory: OwnedFd, folder: &str, depth: u32) -> Result<()> {
        let failed = |errno: Errno| Error::io(format!("listing `{folder}`"), errno.into());
        let entries = Dir::read_from(&directory).map_err(failed)?;
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let Some(name) = entry.file_name().to_str().ok().filter(|name| is_object_name(name)) else { continue };
            let key = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            let stat = match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // The entry has been removed meanwhile.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(Error::io(&key, errno.into())),
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if depth > 1 => match open_below(&directory, name) {
                    Ok(inner) => self.walk(inner, &key, depth - 1)?,
                    // The directory has been removed or replaced meanwhile.
                    Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => {}
                    Err(errno) => return Err(Error::io(&key, errno.into())),
                },
                FileType::RegularFile => self.add(key, &stat)?,
                FileType::Symlink => match self.files.stat_object(&key) {
                    Some(target) => self.add(key, &target)?,
                    None => warn!(
                        "{key:?} is a symbolic link that does not lead to a file of the repository: it is not listed"
                    ),
                },
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, key: String, stat: &Stat) -> Result<()> {
        let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
        let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or_default();
        let modified = seconds.saturating_mul(1_000_000).saturating_add(u64::from(nanoseconds / 1000));
        self.found.push(ObjectInfo { key, size: stat.st_size.unsigned_abs(), modified });
        if self.found.len() < BATCH {
            return Ok(());
        }
        let batch = std::mem::replace(&mut self.found, Vec::with_capacity(BATCH));
        let gone = |_| Error::new(ErrorKind::Timeout, "the listing was canceled");
        self.sender.blocking_send(Ok(batch)).map_err(gone)
    }
}

fn open_below(directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

/// Returns true if an object may have this name. No writer of repositories creates other names.
fn is_object_name(name: &str) -> bool {
    let is_staging =
        name.split_once('#').is_some_and(|(_, end)| !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit()));
    !matches!(name, "." | "..") && !is_staging && !name.bytes().any(|byte| byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_files_are_no_objects() {
        for name in ["a", "a#", "a#1b", "#x", "a b%20", "repo.12#x", "\u{e9}"] {
            assert!(is_object_name(name), "{name}");
        }
        for name in [".", "..", "a#1", "lock#0", "a\nb", "\u{7f}"] {
            assert!(!is_object_name(name), "{name}");
        }
    }
}
