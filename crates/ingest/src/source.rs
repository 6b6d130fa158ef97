//! The file that a plan is made of.

use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Bytes of a file, by position.
pub trait Source {
    /// Returns the length of the file in bytes.
    fn length(&self) -> u64;

    /// Fills `into` with the bytes from `offset` on.
    ///
    /// Errors: [`ErrorKind::Stale`] if the file has changed since it was opened; others as for
    /// reading.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Returns the bytes of each of `ranges`, which a distant file has sent at the same time.
    ///
    /// Errors: as for [`Source::read`].
    fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        let one = |range: &Range<u64>| {
            let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
            let mut bytes = vec![0; length];
            self.read(range.start, &mut bytes).map(|()| bytes)
        };
        ranges.iter().map(one).collect()
    }

    /// Returns true if each read may take a round trip: then reads that can be made at the same
    /// time should be.
    fn is_distant(&self) -> bool {
        false
    }

    /// Returns the file, if another process can be given a descriptor of it.
    fn local(&self) -> Option<&LocalFile> {
        None
    }
}

/// Bytes in memory, in the place of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InMemory<'a>(pub(crate) &'a [u8]);

impl Source for InMemory<'_> {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = self.0.get(start..start.saturating_add(into.len()));
        into.copy_from_slice(found.ok_or_else(|| Error::corrupt("fewer bytes than a chunk has"))?);
        Ok(())
    }
}

/// File of this machine, as it was when it was opened.
///
/// A descriptor is held: the name may come to mean another file. A file that is written to while it
/// is read would give a mixture of two states, so that each read fails once its length or one of
/// its times has changed. What a program writes through a mapping is not seen before the kernel
/// notes it.
#[derive(Debug)]
pub struct LocalFile {
    file: File,
    opened: State,
}

/// Facts that change when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    length: u64,
    modified: (i64, i64),
    /// No program can set this one.
    changed: (i64, i64),
}

impl State {
    fn of(found: &Metadata) -> Self {
        let modified = (found.mtime(), found.mtime_nsec());
        let changed = (found.ctime(), found.ctime_nsec());
        State { length: found.len(), modified, changed }
    }
}

impl LocalFile {
    /// Takes `file`, which is open for reading.
    ///
    /// Errors: if its length cannot be had.
    pub fn new(file: File) -> Result<Self> {
        let found = file.metadata().map_err(|e| Error::io("the file", e))?;
        Ok(LocalFile { opened: State::of(&found), file })
    }

    /// Returns the state of the file.
    ///
    /// Errors: [`ErrorKind::Stale`] if it has changed since it was opened.
    pub fn metadata(&self) -> Result<Metadata> {
        let metadata = self.file.metadata().map_err(|e| Error::io("the file", e))?;
        if State::of(&metadata) == self.opened { Ok(metadata) } else { Err(changed()) }
    }

    /// Returns another descriptor of the file.
    ///
    /// Errors: if the process has too many.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from).map_err(|e| Error::io("the file", e))
    }
}

fn changed() -> Error {
    Error::new(ErrorKind::Stale, "the file was changed while it was read: try again")
}

impl Source for LocalFile {
    fn length(&self) -> u64 {
        self.opened.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(into, offset);
        // After the read: a change before it is seen, too.
        self.metadata()?;
        read.map_err(|e| Error::io(format!("{} bytes at {offset}", into.len()), e))
    }

    fn local(&self) -> Option<&LocalFile> {
        Some(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing {
    use super::*;

    /// File in memory.
    pub(crate) struct Bytes(pub(crate) Vec<u8>);

    impl Source for Bytes {
        fn length(&self) -> u64 {
            self.0.len() as u64
        }

        fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
            let offset = usize::try_from(offset).unwrap();
            let found = self.0.get(offset..offset + into.len());
            let found = found.ok_or_else(|| Error::io("short", std::io::ErrorKind::UnexpectedEof.into()))?;
            into.copy_from_slice(found);
            Ok(())
        }
    }
}
