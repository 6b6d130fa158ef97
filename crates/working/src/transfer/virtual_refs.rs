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

use super::containers;
use super::opened::{LONGEST, OpenFile, time_until_after};
use super::sources::ImportSource;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::{Checksum, ChunkPayload};
use icechunkfs_format::format::config::Container;
use icechunkfs_store::storage::virtuals::address::Address;
use icechunkfs_store::storage::virtuals::{VirtualChunks, target_of};

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
}

impl VirtualPlaces {
    /// Finds the directories of `files`; those of objects are in stores that `virtuals` reaches.
    /// Also returns those in none of `containers`, each with one that has files.
    ///
    /// Errors: if a file cannot be found.
    pub(super) fn of(
        files: &[ImportSource],
        containers: &[Container],
        copy_below: u64,
        virtuals: &VirtualChunks,
    ) -> Result<(Self, Vec<(Address, Address)>)> {
        let all = files.iter().map(directory_of).collect::<Result<Vec<_>>>()?;
        let without = all.iter().filter(|directory| !containers::is_in_any(directory, containers)).cloned().collect();
        let options_of = |directory: &Address| virtuals.options_of(directory);
        let missing = common(without, options_of);
        let directories = common(all, options_of).into_iter().map(|(prefix, _)| prefix).collect();
        Ok((VirtualPlaces { copy_below, directories }, missing))
    }

    /// Returns the prefixes that have to be allowed where the chunks are read.
    pub(super) fn prefixes(&self) -> Vec<String> {
        self.directories.iter().map(Address::as_prefix).collect()
    }

    /// Returns what virtual chunks in `file` say of it.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Stale`] if the file has changed since it was
    /// opened, or has no name or another one now.
    pub(super) fn target(&self, file: &OpenFile) -> Result<VirtualTarget> {
        let (address, checksum) = match file {
            OpenFile::Local(file) => {
                let metadata = file.metadata()?;
                let (address, checksum) = target_of(&file.descriptor()?, &metadata)?;
                if let Checksum::LastModified(second) = checksum {
                    // Some file systems have times of one or two whole seconds.
                    let longer = if metadata.mtime_nsec() == 0 { 2 } else { 0 };
                    wait_until_after(u64::from(second) + longer)?;
                    // A write meanwhile has the same second.
                    file.metadata()?;
                }
                (address, checksum)
            }
            OpenFile::Object(object) => (object.opened.address.clone(), object.opened.checksum.clone()),
        };
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
    let rest = time_until_after(second);
    if rest > LONGEST {
        return Err(Error::invalid(
            "its time lies in the future, so that no later change could be noticed: `touch` it first",
        ));
    }
    std::thread::sleep(rest);
    Ok(())
}

/// Returns the real directory of `file`, or the prefix that an object is directly below.
fn directory_of(file: &ImportSource) -> Result<Address> {
    let path = match file {
        ImportSource::Local(path) => path,
        ImportSource::Object(address) => return Ok(address.parent()),
    };
    let real = std::fs::canonicalize(path).map_err(|e| Error::io(path.display(), e))?;
    let directory = real.parent().and_then(Path::to_str);
    let directory = directory.ok_or_else(|| Error::invalid("a reference cannot have this path, which is not UTF-8"));
    directory.and_then(Address::directory).context(|| path.display())
}

/// Returns for each file system, bucket and server the directory that all of `directories` there
/// are below, each with one of them; these themselves if that is the root of this machine. Those of
/// different options stay apart.
fn common(mut directories: Vec<Address>, options_of: impl Fn(&Address) -> String) -> Vec<(Address, Address)> {
    let root_of = |directory: &Address| (directory.root().to_string(), options_of(directory));
    directories.sort_by_cached_key(|directory| (root_of(directory), directory.components().to_vec()));
    // Thousands of files are in a few directories.
    directories.dedup();
    let mut all = Vec::new();
    for same_root in directories.chunk_by(|one, next| root_of(one) == root_of(next)) {
        all.extend(common_of_root(same_root));
    }
    all
}

/// Returns the directory that all of `directories`, which have the same root, are below, with
/// the first one; these themselves if that is the root of this machine, or if they are on several
/// file systems.
fn common_of_root(directories: &[Address]) -> Vec<(Address, Address)> {
    let above = |one: Address, other: &Address| {
        let same = std::iter::zip(one.components(), other.components()).take_while(|(one, other)| one == other);
        one.root().join(one.components().get(..same.count()).unwrap_or_default())
    };
    let Some((first, others)) = directories.split_first() else { return Vec::new() };
    let all = others.iter().fold(first.clone(), above);
    let is_machine = all.is_file() && all.components().is_empty();
    let device = device_of(&all);
    if !is_machine && directories.iter().all(|directory| device_of(directory) == device) {
        return vec![(all, first.clone())];
    }
    directories.iter().map(|directory| (directory.clone(), directory.clone())).collect()
}

/// Returns the file system that the directory is on; none if that is not one of this machine.
fn device_of(directory: &Address) -> Option<u64> {
    if !directory.is_file() {
        return None;
    }
    let path: PathBuf = std::iter::once("/").chain(directory.components().iter().map(String::as_str)).collect();
    std::fs::metadata(path).ok().map(|found| found.dev())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use icechunkfs_store::storage::virtuals::permissions::prefix_or_path;

    fn directories(paths: &[&str]) -> Vec<String> {
        let options_of =
            |directory: &Address| if directory.as_prefix().contains("own") { "own" } else { "" }.to_owned();
        common(paths.iter().map(|path| prefix_or_path(path).unwrap()).collect(), options_of)
            .iter()
            .map(|(prefix, _)| prefix.as_prefix())
            .collect()
    }

    #[test]
    fn files_have_one_directory_if_it_is_not_the_root() {
        assert_eq!(directories(&["/a/b", "/a/c/d", "/a/b"]), ["file:///a/"]);
        assert_eq!(directories(&["/a/b", "/a/bc"]), ["file:///a/"]);
        assert_eq!(directories(&["/b", "/a/x", "/b"]), ["file:///a/x/", "file:///b/"]);
        assert_eq!(directories(&["/a b"]), ["file:///a%20b/"]);
        assert!(directories(&[]).is_empty());
        assert_eq!(directories(&["s3://b/x/y", "/a/b", "s3://b/z"]), ["file:///a/b/", "s3://b/"]);
        assert_eq!(directories(&["s3://c/x", "gs://b/x/1", "gs://b/x/2"]), ["gs://b/x/", "s3://c/x/"]);
        assert_eq!(directories(&["s3://c/x", "s3://c/own", "s3://c/y"]), ["s3://c/", "s3://c/own/"]);
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
