//! Finds out which objects of the repository a scratch directory needs, so that garbage collection
//! and expiration keep them.
//!
//! A scratch directory refers to its base snapshot and, for chunks that were copied whole or are
//! sparse copies, to chunk objects. The journal is read while its daemon may be writing it; nothing
//! is changed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::journal;
use super::record::{Body, Record, Source, Stored};
use super::work::WorkSearch;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::ObjectId;

/// Bytes read of a lock file: a process and a mountpoint.
const MAX_HOLDER: u64 = 4096;
/// Number of attempts to read a journal that looks damaged: its daemon may just be writing it.
const TRIES: u32 = 3;

/// Objects that one scratch directory needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// Path of the scratch directory.
    pub scratch: PathBuf,
    /// Name of the repository, as the user gave it.
    pub repository: String,
    /// Branch of the scratch directory.
    pub branch: String,
    /// Base snapshot, and snapshots that a commit was about to publish.
    pub snapshots: BTreeSet<ObjectId>,
    /// Chunk objects that the journal refers to directly.
    pub chunks: BTreeSet<ObjectId>,
    /// True if there is uncommitted work ([`WorkSearch`]).
    pub has_work: bool,
    /// True if a daemon uses the directory.
    pub is_in_use: bool,
}

impl Requirements {
    /// Reads the needs of the scratch directory `path`, whichever user owns it; returns `None` if
    /// it has no journal.
    pub fn of(path: &Path) -> Result<Option<Self>> {
        let directory = match open_directory(rustix::fs::CWD, path, OFlags::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            opened => opened.map_err(|errno| Error::io(path.display(), errno.into()))?,
        };
        Self::read(&directory, path, |_| true)
    }

    /// Reads the needs from the journal in `directory`, which is at `path`; returns `None` if there
    /// is none or `counts` rejects it.
    pub(super) fn read(
        directory: &OwnedFd,
        path: &Path,
        mut counts: impl FnMut(&File) -> bool,
    ) -> Result<Option<Self>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(journal) = journal::find(directory, path)?.filter(&mut counts) else { return Ok(None) };
            let mut needs = Requirements {
                scratch: path.to_owned(),
                repository: String::new(),
                branch: String::new(),
                snapshots: BTreeSet::new(),
                chunks: BTreeSet::new(),
                has_work: false,
                is_in_use: holder(directory).is_some(),
            };
            let mut work = WorkSearch::default();
            let looked = journal::look(journal, path, |record| {
                work.add(&record);
                needs.add(record)
            });
            needs.has_work = work.has_work();
            match looked {
                Err(error) if error.kind() == ErrorKind::Corrupt && tries < TRIES => {}
                looked => return looked.map(|()| Some(needs)),
            }
        }
    }

    /// Returns true if the directory needs its objects: nothing else keeps the base of uncommitted
    /// work, nor what a mount shows.
    pub fn are_needed(&self) -> bool {
        self.has_work || self.is_in_use
    }

    fn add(&mut self, record: Record) -> Result<()> {
        let source = match record {
            Record::Base { format, .. } if !(journal::OLDEST_FORMAT..=journal::FORMAT).contains(&format) => {
                let message = format!("written by another version (format {format})");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            Record::Base { repository, branch, snapshot, .. } => {
                (self.repository, self.branch) = (repository, branch);
                self.snapshots.insert(snapshot.parse()?);
                return Ok(());
            }
            Record::Publishing { snapshot } => {
                self.snapshots.insert(snapshot.parse()?);
                return Ok(());
            }
            Record::Create { body: Body::File(source), .. } | Record::Promote { body: Body::File(source), .. } => {
                source
            }
            Record::SetSource { source, .. } => source,
            Record::Sparse { from, .. } => Source::Stored(from),
            _ => return Ok(()),
        };
        if let Source::Stored(Stored(ChunkPayload::Native { chunk, .. })) = source {
            self.chunks.insert(chunk);
        }
        Ok(())
    }
}

/// Returns the process and the mountpoint that use the scratch directory `directory`, as text; none
/// if it is not in use.
pub(super) fn holder(directory: &OwnedFd) -> Option<String> {
    let mut lock = open_file(directory, "lock", OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    // A daemon that starts at this moment waits a little for the lock.
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    let mut text = String::new();
    // A failure only shortens the message.
    let _ = Read::by_ref(&mut lock).take(MAX_HOLDER).read_to_string(&mut text);
    Some(text.trim().to_owned())
}

/// Opens directory `name` for reading, with the flags `more`.
pub(super) fn open_directory(
    parent: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg,
    more: OFlags,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Opens directory `name`, which is created if needed, for its owner alone.
pub(super) fn make_directory(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => open_directory(parent, name, OFlags::NOFOLLOW),
        Err(errno) => Err(errno),
    }
}

/// Opens file `name` with `flags`, but follows no symbolic link. A file that is created belongs to
/// its owner alone.
pub(super) fn open_file(
    directory: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg,
    flags: OFlags,
) -> Result<File, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use super::super::journal::Journal;
    use super::super::record::{DataFileId, EntryId, Time};
    use super::*;
    use icechunkfs_format::format::testing::id;

    #[test]
    fn base_and_copied_chunks_are_needed() {
        let place = tempfile::tempdir().unwrap();
        let scratch = place.path().join("main");
        std::fs::create_dir(&scratch).unwrap();
        assert_eq!(Requirements::of(&scratch).unwrap(), None);
        let base = Record::Base {
            format: journal::FORMAT,
            repository: "/r".into(),
            branch: "main".into(),
            snapshot: id(1).to_string(),
            identity: None,
        };
        let copied = ChunkPayload::Native { chunk: id(7), offset: 3, length: 4 };
        let moved = Record::SetSource { id: EntryId(2), source: Source::Stored(Stored(copied)), at: Time(0, 0) };
        let from = Stored(ChunkPayload::Native { chunk: id(9), offset: 0, length: 40 });
        let written = Record::Sparse { data: DataFileId(3), from, missing: vec![(5, 40)] };
        let publishing = Record::Publishing { snapshot: id(2).to_string() };
        let directory = Arc::new(OwnedFd::from(std::fs::File::open(&scratch).unwrap()));
        Journal::replace(&directory, &[base, moved, written, publishing]).unwrap();
        // A line that is still being written.
        let path = scratch.join("journal");
        let mut bytes = std::fs::read(&path).unwrap();
        let whole = bytes.len();
        bytes.extend_from_slice(b"0000");
        std::fs::write(&path, &bytes).unwrap();
        let needs = Requirements::of(&scratch).unwrap().unwrap();
        assert_eq!((needs.branch.as_str(), &needs.snapshots), ("main", &BTreeSet::from([id(1), id(2)])));
        assert_eq!(needs.chunks, BTreeSet::from([id(7), id(9)]));
        assert!(needs.has_work && !needs.is_in_use && needs.are_needed());
        assert_eq!(std::fs::metadata(&path).unwrap().len() as usize, whole + 4, "nothing is changed");
        bytes.splice(10..11, *b"!");
        bytes.push(b'\n');
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Requirements::of(place.path().join("main").as_path()).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
