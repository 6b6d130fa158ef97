//! Virtual chunks in the files of an import, in the place of copies.
//!
//! A virtual chunk says where a file was, and the second in which it had its last change: a file
//! that is changed later is an error for each reader, and not other values. One that is replaced by
//! a version with an older time is not noticed: the format has nothing that would tell, as Icechunk
//! compares no entity tags of local files. Other programs read only what lies in a container of the
//! repository's configuration: without one, no chunk is virtual.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::containers::{self, MissingContainers};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::{Checksum, ChunkPayload};
use icechunkfs_format::format::config::Container;
use icechunkfs_ingest::source::LocalFile;
use icechunkfs_store::storage::virtuals::address::Address;
use icechunkfs_store::storage::virtuals::target_of;

/// Rules for virtual chunks.
#[derive(Clone, Copy, Debug)]
pub struct VirtualRules {
    /// Chunks of fewer bytes are copied.
    pub copy_below: u64,
    /// Add a container to the configuration if the files are in none.
    pub set_container: bool,
}

/// Directories of files with virtual chunks.
#[derive(Clone, Debug)]
pub(super) struct VirtualPlaces {
    copy_below: u64,
    /// The common directory of the files, or all that have files.
    directories: Vec<Address>,
    /// Containers that have to be added first.
    pub(super) missing: MissingContainers,
}

impl VirtualPlaces {
    /// Finds the directories of `files`, for a repository with these `containers`.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if they are in no container, and
    /// none may be added; others if a file cannot be found.
    pub(super) fn of(files: &[PathBuf], containers: &[Container], rules: VirtualRules) -> Result<Self> {
        let all = files.iter().map(|file| directory_of(file)).collect::<Result<Vec<_>>>()?;
        let without = all.iter().filter(|directory| !containers::is_in_any(directory, containers)).cloned().collect();
        let missing = MissingContainers::of(common(without), rules.set_container)?;
        Ok(VirtualPlaces { copy_below: rules.copy_below, directories: common(all), missing })
    }

    /// Returns the prefixes that have to be allowed where the chunks are read.
    pub(super) fn prefixes(&self) -> Vec<String> {
        self.directories.iter().map(Address::as_prefix).collect()
    }

    /// Returns what virtual chunks in `file` say of it.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Stale`] if the file has changed since it was
    /// opened, or has no name or another one now.
    pub(super) fn target(&self, file: &LocalFile) -> Result<VirtualTarget> {
        let metadata = file.metadata()?;
        let (address, checksum) = target_of(&file.descriptor()?, &metadata)?;
        if let Checksum::LastModified(second) = checksum {
            // Some file systems have times of one or two whole seconds.
            let longer = if metadata.mtime_nsec() == 0 { 2 } else { 0 };
            wait_until_after(u64::from(second) + longer)?;
            // A write meanwhile has the same second.
            file.metadata()?;
        }
        if !self.directories.iter().any(|directory| directory.rest_of(&address).is_some()) {
            return Err(Error::new(ErrorKind::Stale, "the file was moved while it was looked at: try again"));
        }
        Ok(VirtualTarget { location: address.to_string(), checksum, copy_below: self.copy_below })
    }
}

/// File with virtual chunks.
#[derive(Debug)]
pub(super) struct VirtualTarget {
    location: String,
    checksum: Checksum,
    /// Chunks of fewer bytes are copied.
    pub(super) copy_below: u64,
}

impl VirtualTarget {
    /// Returns the virtual chunk at the bytes `place` of the file; none if they are to be copied.
    pub(super) fn chunk(&self, place: &Range<u64>) -> Option<ChunkPayload> {
        let length = place.end.checked_sub(place.start).filter(|length| *length >= self.copy_below.max(1))?;
        let checksum = Some(self.checksum.clone());
        Some(ChunkPayload::Virtual { location: self.location.clone(), offset: place.start, length, checksum })
    }
}

/// Waits until a change of a file would have a later time than `second`, in seconds since
/// 1970-01-01 UTC.
fn wait_until_after(second: u64) -> Result<()> {
    /// The kernel takes the time of a change from a clock that goes in steps of up to 10 ms.
    const STEP: Duration = Duration::from_millis(20);
    /// Three seconds, and what clocks of servers may differ by.
    const LONGEST: Duration = Duration::from_secs(5);
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(second) + STEP;
    let rest = end.duration_since(SystemTime::now()).unwrap_or_default();
    if rest > LONGEST {
        return Err(Error::invalid(
            "its time lies in the future, so that no later change could be noticed: `touch` it first",
        ));
    }
    std::thread::sleep(rest);
    Ok(())
}

/// Returns the real directory of `file`.
fn directory_of(file: &Path) -> Result<Address> {
    let real = std::fs::canonicalize(file).map_err(|e| Error::io(file.display(), e))?;
    let directory = real.parent().and_then(Path::to_str);
    let directory = directory.ok_or_else(|| Error::invalid("no reference can have this path, which is not UTF-8"));
    directory.and_then(Address::directory).context(|| file.display())
}

/// Returns the directory that all of `directories` are below; these themselves if that is the root,
/// or on another file system.
fn common(mut directories: Vec<Address>) -> Vec<Address> {
    // Thousands of files are in a few directories.
    directories.sort_by(|one, other| one.components().cmp(other.components()));
    directories.dedup();
    let above = |one: Address, other: &Address| {
        let same = std::iter::zip(one.components(), other.components()).take_while(|(one, other)| one == other);
        one.root().join(one.components().get(..same.count()).unwrap_or_default())
    };
    let all =
        directories.iter().skip(1).fold(directories.first().cloned(), |all, next| all.map(|all| above(all, next)));
    let is_one = |all: &Address| {
        let device = device_of(all);
        directories.iter().all(|directory| device_of(directory) == device)
    };
    match all.filter(|all| !all.components().is_empty() && is_one(all)) {
        Some(all) => vec![all],
        None => directories,
    }
}

/// Returns the file system that the directory is on.
fn device_of(directory: &Address) -> Option<u64> {
    let path: PathBuf = std::iter::once("/").chain(directory.components().iter().map(String::as_str)).collect();
    std::fs::metadata(path).ok().map(|found| found.dev())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn directories(paths: &[&str]) -> Vec<String> {
        common(paths.iter().map(|path| Address::directory(path).unwrap()).collect())
            .iter()
            .map(Address::as_prefix)
            .collect()
    }

    #[test]
    fn files_have_one_directory_if_it_is_not_the_root() {
        assert_eq!(directories(&["/a/b", "/a/c/d", "/a/b"]), ["file:///a/"]);
        assert_eq!(directories(&["/a/b", "/a/bc"]), ["file:///a/"]);
        assert_eq!(directories(&["/b", "/a/x", "/b"]), ["file:///a/x/", "file:///b/"]);
        assert_eq!(directories(&["/a b"]), ["file:///a%20b/"]);
        assert!(directories(&[]).is_empty());
    }

    #[test]
    fn short_chunks_are_copied() {
        let target =
            VirtualTarget { location: "file:///x".into(), checksum: Checksum::Etag("1".into()), copy_below: 10 };
        assert_eq!(target.chunk(&(5..15)).unwrap().length(), 10);
        assert!(target.chunk(&(5..14)).is_none());
        let all = VirtualTarget { copy_below: 0, ..target };
        assert!(all.chunk(&(5..5)).is_none() && all.chunk(&(5..6)).is_some());
    }
}
