//! The journal: lines that are there or not.
//!
//! ```text
//! 4f2a90c1 {"op":"base",...}
//! ```
//!
//! Each line begins with the checksum (CRC-32) of the rest. A crash can leave a last line torn: its change was never answered,
//! and it is cut off. A wrong line anywhere else is damage, which nobody should guess around.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use tracing::warn;

use super::record::Record;
use crate::error::{Error, ErrorKind, Result};

/// Version of the journal's format.
pub const FORMAT: u32 = 1;
const NAME: &str = "journal";
const NEW_NAME: &str = "journal.new";
/// A file that only takes up room. On a full disk it makes place for what gives space back: a deletion, a discard, a commit.
const SPARE: &str = "spare";
/// How much room. Bytes.
const SPARE_SIZE: u64 = 256 << 10;
/// Longest line that is read, in bytes: a name, a path and a virtual location, with room.
const MAX_LINE: usize = 1 << 20;
/// A journal below this many bytes is not worth writing anew.
const WORTH_REWRITING: u64 = 1 << 20;

/// An open journal, at whose end changes are written.
#[derive(Debug)]
pub struct Journal {
    directory: Arc<OwnedFd>,
    file: File,
    length: u64,
    /// Bytes it had when it was last written anew: what the state itself takes.
    compact_length: u64,
    line: Vec<u8>,
}

impl Journal {
    /// Opens the journal in `directory` and feeds its records to `apply`; none if there is no journal yet.
    ///
    /// An error of kind [`ErrorKind::Corrupt`] if it is damaged.
    pub fn open(directory: &Arc<OwnedFd>, apply: impl FnMut(Record) -> Result<()>) -> Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(&**directory, NAME, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(Error::io("the scratch journal", errno.into())),
        };
        let failed = |e| Error::io("the scratch journal", e);
        let (length, torn) = each_line(file.try_clone().map_err(failed)?, apply)?;
        if let Some(why) = torn {
            warn!("the last line of the scratch journal was torn by a crash ({why}): it is cut off");
            file.set_len(length).map_err(failed)?;
        }
        Ok(Some(Journal { directory: Arc::clone(directory), file, length, compact_length: length, line: Vec::new() }))
    }

    /// Writes a journal of `records` in place of what there is: durable when this returns, and before that the old one holds.
    pub fn replace(directory: &Arc<OwnedFd>, records: &[Record]) -> Result<Self> {
        let mut replaced = Self::write_new(directory, records);
        if is_full(&replaced) && use_spare(directory) {
            replaced = Self::write_new(directory, records);
        }
        if replaced.is_err() {
            // What came of it would be in the way on a full disk.
            let _ = rustix::fs::unlinkat(&**directory, NEW_NAME, AtFlags::empty());
        }
        replaced
    }

    fn write_new(directory: &Arc<OwnedFd>, records: &[Record]) -> Result<Self> {
        let failed = |e: std::io::Error| Error::io("writing the scratch journal", e);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&**directory, NEW_NAME, flags, Mode::from_raw_mode(0o600));
        let file = File::from(file.map_err(|e| failed(e.into()))?);
        let mut out = std::io::BufWriter::with_capacity(1 << 16, &file);
        let mut length = 0;
        let mut line = Vec::new();
        for record in records {
            spell(record, &mut line)?;
            out.write_all(&line).map_err(failed)?;
            length += line.len() as u64;
        }
        out.flush().map_err(failed)?;
        drop(out);
        file.sync_data().map_err(failed)?;
        rustix::fs::renameat(&**directory, NEW_NAME, &**directory, NAME).map_err(|e| failed(e.into()))?;
        rustix::fs::fsync(&**directory).map_err(|e| failed(e.into()))?;
        Ok(Journal { directory: Arc::clone(directory), file, length, compact_length: length, line })
    }

    /// Adds a line. When this fails the journal is as it was.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        spell(record, &mut self.line)?;
        let added = self.append_line();
        // What would fill the disk further must leave room for what empties it.
        let empties = matches!(record, Record::Remove { .. } | Record::Publishing { .. });
        if is_full(&added) && empties && use_spare(&self.directory) {
            return self.append_line();
        }
        added
    }

    /// Sees to it that there is room for what gives space back when the disk is full.
    pub fn keep_spare(&self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // It is there already, or cannot be: a disk may be too full for it now and not later.
        let Ok(spare) = rustix::fs::openat(&*self.directory, SPARE, flags, Mode::from_raw_mode(0o600)) else { return };
        if rustix::fs::fallocate(&spare, FallocateFlags::empty(), 0, SPARE_SIZE).is_err() {
            use_spare(&self.directory);
        }
    }

    fn append_line(&mut self) -> Result<()> {
        match self.file.write_all_at(&self.line, self.length) {
            Ok(()) => {
                self.length += self.line.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a line would tear what comes next. If even this fails, the next line overwrites it.
                let _ = self.file.set_len(self.length);
                Err(Error::io("the scratch directory takes no more changes", error))
            }
        }
    }

    /// The journal's file, to flush it to the disk without holding anything up.
    pub fn file(&self) -> Result<File> {
        self.file.try_clone().map_err(|e| Error::io("the scratch journal", e))
    }

    /// Whether most of it is about changes that later ones undid.
    pub fn is_long(&self) -> bool {
        self.length > WORTH_REWRITING && self.length / 4 > self.compact_length
    }
}

/// Feeds the records of the journal in directory `path` to `apply` and changes nothing: a daemon may be writing it. False if there is no
/// journal.
pub fn look(path: &Path, apply: impl FnMut(Record) -> Result<()>) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let path = path.join(NAME);
    match rustix::fs::open(&path, flags, Mode::empty()) {
        // A last line without an end is being written: its change has not been answered yet.
        Ok(file) => each_line(File::from(file), apply).map(|_| true).map_err(|e| e.context(path.display())),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(Error::io(path.display(), errno.into())),
    }
}

/// Feeds the records in `file` to `apply`. Returns where the last whole line ends, and what is wrong with one behind it.
fn each_line(file: File, mut apply: impl FnMut(Record) -> Result<()>) -> Result<(u64, Option<Error>)> {
    let failed = |e| Error::io("the scratch journal", e);
    let mut reader = BufReader::new(file);
    let (mut length, mut number) = (0_u64, 0_u64);
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = std::io::Read::take(&mut reader, MAX_LINE as u64).read_until(b'\n', &mut line).map_err(failed)?;
        if count == 0 {
            return Ok((length, None));
        }
        number += 1;
        match parse(&line) {
            Ok(record) => apply(record).map_err(|e| e.context(format!("scratch journal, line {number}")))?,
            Err(why) if reader.fill_buf().map_err(failed)?.is_empty() => return Ok((length, Some(why))),
            Err(why) => return Err(why.context(format!("scratch journal, line {number}"))),
        }
        length += count as u64;
    }
}

fn is_full<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
}

/// Gives up the room that was kept. False if there was none.
fn use_spare(directory: &OwnedFd) -> bool {
    rustix::fs::unlinkat(directory, SPARE, AtFlags::empty()).is_ok()
}

fn spell(record: &Record, line: &mut Vec<u8>) -> Result<()> {
    line.clear();
    line.extend_from_slice(b"00000000 ");
    serde_json::to_writer(&mut *line, record)
        .map_err(|e| Error::with_source(ErrorKind::Io, "writing the scratch journal", e))?;
    let checksum = format!("{:08x}", crc32fast::hash(line.get(9..).unwrap_or_default()));
    if let Some(place) = line.get_mut(..8) {
        place.copy_from_slice(checksum.as_bytes());
    }
    line.push(b'\n');
    Ok(())
}

fn parse(line: &[u8]) -> Result<Record> {
    let line = line.strip_suffix(b"\n").ok_or_else(|| Error::corrupt("the line has no end"))?;
    let (checksum, text) = match (line.get(..8), line.get(8), line.get(9..)) {
        (Some(checksum), Some(b' '), Some(text)) => (checksum, text),
        _ => return Err(Error::corrupt("the line is too short")),
    };
    let stated = std::str::from_utf8(checksum).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
    if stated != Some(crc32fast::hash(text)) {
        return Err(Error::corrupt("the line's checksum is wrong"));
    }
    serde_json::from_slice(text).map_err(|e| Error::with_source(ErrorKind::Corrupt, "the line is no record", e))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::super::record::{Name, ROOT};
    use super::*;

    fn record(n: u64) -> Record {
        Record::Hidden { parent: ROOT, name: Name::new(n.to_string().as_bytes()) }
    }

    fn directory(path: &std::path::Path) -> Arc<OwnedFd> {
        Arc::new(rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap())
    }

    fn read(directory: &Arc<OwnedFd>) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        Journal::open(directory, |record| {
            records.push(record);
            Ok(())
        })?;
        Ok(records)
    }

    #[test]
    fn what_was_written_is_read_and_a_torn_end_is_cut_off() {
        let place = tempfile::tempdir().unwrap();
        let directory = directory(place.path());
        assert!(Journal::open(&directory, |_| Ok(())).unwrap().is_none());
        let mut journal = Journal::replace(&directory, &(0..3).map(record).collect::<Vec<_>>()).unwrap();
        journal.append(&record(3)).unwrap();
        let whole: Vec<Record> = (0..4).map(record).collect();
        assert_eq!(read(&directory).unwrap(), whole);
        let path = place.path().join("journal");
        let bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - bytes.iter().rev().skip(1).position(|&b| b == b'\n').unwrap() - 1;
        for cut in last..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert_eq!(read(&directory).unwrap(), whole[..3], "cut at {cut}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), last as u64);
        }
        let mut journal = Journal::open(&directory, |_| Ok(())).unwrap().unwrap();
        journal.append(&record(3)).unwrap();
        assert_eq!(read(&directory).unwrap(), whole);
    }

    #[test]
    fn damage_in_the_middle_is_told() {
        let place = tempfile::tempdir().unwrap();
        let directory = directory(place.path());
        Journal::replace(&directory, &(0..3).map(record).collect::<Vec<_>>()).unwrap();
        let path = place.path().join("journal");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[12] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = read(&directory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("line 1"), "{error}");
    }
}
