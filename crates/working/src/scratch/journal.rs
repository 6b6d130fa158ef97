//! The journal: a list of lines, each of which is there as a whole or not at all.
//!
//! ```text
//! 4f2a90c1 {"op":"base",...}
//! ```
//!
//! Each line begins with the CRC-32 checksum of the rest. A crash can tear the last line, whose
//! change was never acknowledged, and a power cut any line that was not durable: the journal is cut
//! off there. A wrong line anywhere else is damage and an error.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::fs::{AtFlags, OFlags};
use tracing::warn;

use super::boot::{self, LastUse};
use super::compaction::{COMPACT_NAME, Replacement};
use super::durable::Durable;
use super::record::{DataFileId, Record};
use super::requirements::open_file;
use super::salvage;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;

/// Version of the journal's format. Version 1 did not record which entries cover an entry of the
/// base, and had no [`Record::Unpublished`]; version 2 had no [`Record::Restored`].
pub const FORMAT: u32 = 3;
/// First version that records which entries cover an entry of the base.
pub const COVERS_SINCE: u32 = 2;
/// Oldest version that is read.
pub const OLDEST_FORMAT: u32 = 1;
pub(super) const NAME: &str = "journal";
const NEW_NAME: &str = "journal.new";
/// Longest line that is read, in bytes: a name, a path and a virtual location, with room to spare.
const MAX_LINE: usize = 1 << 20;
/// Largest document or inline chunk, in bytes, that goes into a line, where a byte takes two.
pub const MOST_INLINE: usize = 256 << 10;
/// Open journal, to which changes are appended.
#[derive(Debug)]
pub struct Journal {
    directory: Arc<OwnedFd>,
    durable: Arc<Durable>,
    flusher: Option<JoinHandle<()>>,
    /// True while the recorded change is about to free space.
    frees_space: bool,
    restarted: bool,
    line: Vec<u8>,
}

/// Failure to replace a journal.
#[derive(Debug)]
pub struct RewriteError {
    /// The error.
    pub error: Error,
    /// True if the new journal has the name already, so that the next mount reads it, unless the
    /// machine loses power: the directory could not be flushed.
    pub is_in_place: bool,
}

impl Journal {
    /// Opens the journal in `directory` and passes its records to `apply`; returns `None` if there
    /// is no journal.
    ///
    /// Fails with [`ErrorKind::Corrupt`] if it is damaged. A torn end is cut off; after a power cut
    /// it is saved first.
    pub fn open(directory: &Arc<OwnedFd>, mut apply: impl FnMut(Record) -> Result<()>) -> Result<Option<Self>> {
        let file = match open_file(&**directory, NAME, OFlags::RDWR) {
            Ok(file) => file,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(Error::io("the scratch journal", errno.into())),
        };
        let failed = |e| Error::io("the scratch journal", e);
        let LastUse { restarted, durable } = boot::last_use(directory, &file).unwrap_or_default();
        let whole = file.metadata().map_err(failed)?.len();
        // A compacted journal that never came into use.
        let _ = rustix::fs::unlinkat(&**directory, COMPACT_NAME, AtFlags::empty());
        let mut flush_failures = BTreeSet::new();
        let apply = |record| {
            if let Record::FlushFailed { data } = record {
                flush_failures.insert(data);
            }
            apply(record)
        };
        let read = each_line(file.try_clone().map_err(failed)?, restarted.then_some(durable), apply)?;
        if let Some(why) = read.torn {
            warn!("the end of the scratch journal was torn ({why}): it is cut off at byte {}", read.length);
            if restarted {
                salvage::keep_tail(directory, &file, read.length)?;
            }
            file.set_len(read.length).map_err(failed)?;
        }
        // Lines of a daemon that died may be in the page cache only.
        let unknown = !restarted && durable < whole;
        let mut journal = Self::over(directory, file, read.length, unknown);
        journal.restarted = restarted;
        journal.durable.restore_flush_failures(flush_failures);
        Ok(Some(journal))
    }

    /// Replaces the journal by one of `records`. The new one is durable when this returns; until
    /// then the old one holds.
    pub fn replace(directory: &Arc<OwnedFd>, records: &[Record]) -> Result<Self> {
        let use_reserve = || rustix::fs::unlinkat(&**directory, super::reserve::NAME, AtFlags::empty()).ok();
        let (file, length) = write_new(directory, records, use_reserve)?;
        let renamed = rustix::fs::renameat(directory, NEW_NAME, directory, NAME);
        renamed.and_then(|()| rustix::fs::fsync(directory)).map_err(|e| failed(e.into()))?;
        boot::note(directory, &file, length);
        Ok(Self::over(directory, file, length, false))
    }

    fn over(directory: &Arc<OwnedFd>, file: File, length: u64, unknown: bool) -> Self {
        let durable = Durable::new(directory, file, length, unknown);
        let flushed = Arc::clone(&durable);
        let flusher = std::thread::Builder::new().name("journal".to_owned()).spawn(move || flushed.run());
        if let Err(error) = &flusher {
            warn!(
                "the thread that flushes the scratch journal cannot start ({error}): only fsync and unmounting make \
                 changes durable"
            );
        }
        Journal {
            directory: Arc::clone(directory),
            durable,
            flusher: flusher.ok(),
            frees_space: false,
            restarted: false,
            line: Vec::new(),
        }
    }

    /// Replaces this journal by one of `records`, and does the work that waits for its lines. The
    /// caller keeps appends out.
    pub fn rewrite(&self, records: &[Record]) -> Result<()> {
        self.supersede(records).map_err(|failed| failed.error)
    }

    /// Replaces this journal as [`Journal::rewrite`] does, and tells after a failure which of the
    /// two is in place.
    pub fn supersede(&self, records: &[Record]) -> std::result::Result<(), RewriteError> {
        let before = |error| RewriteError { error, is_in_place: false };
        let (file, length) = write_new(&self.directory, records, || self.durable.reserve().lend()).map_err(before)?;
        let new = Replacement { name: NEW_NAME, file: Arc::new(file), length, end: None };
        let switched = self.durable.switch_to(&new);
        switched.map_err(|error| RewriteError { error, is_in_place: self.durable.is_current(&new.file) })
    }

    /// Appends a line. With it, the bytes of data file `replaces` take the place of other bytes. On
    /// failure the journal is unchanged.
    pub fn append(&mut self, record: &Record, replaces: Option<DataFileId>) -> Result<()> {
        encode(record, &mut self.line)?;
        let append = || {
            let added = self.durable.append(&self.line, replaces);
            added.map_err(|e| Error::io("the scratch directory cannot take more changes", e))
        };
        let mut added = append();
        if is_full(&added) && self.durable.has_retired() && self.durable.flush().is_ok() {
            added = append();
        }
        // Changes that fill the disk further must leave space for those that free it.
        let frees = self.frees_space || matches!(record, Record::Remove { .. } | Record::Publishing { .. });
        while is_full(&added) && frees && self.durable.reserve().release_step() {
            added = append();
        }
        added
    }

    /// Sets whether the next lines belong to an operation that frees space.
    pub fn set_frees_space(&mut self, frees: bool) {
        self.frees_space = frees;
    }

    /// Returns the durability state of the journal.
    pub fn durable(&self) -> &Arc<Durable> {
        &self.durable
    }

    /// Returns true if the machine restarted since the journal was last used: unflushed changes are
    /// lost.
    pub fn was_restarted(&self) -> bool {
        self.restarted
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.durable.close();
        let Some(flusher) = self.flusher.take() else { return };
        // The thread must not unlink anything once another journal has the directory.
        if flusher.thread().id() != std::thread::current().id() {
            let _ = flusher.join();
        }
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("writing the scratch journal", error)
}

/// Writes a journal of `records`: durable except for its name. On a full disk it gets the space
/// that `use_reserve` frees until its result is dropped.
fn write_new<L>(directory: &OwnedFd, records: &[Record], use_reserve: impl Fn() -> Option<L>) -> Result<(File, u64)> {
    let written = write_as(directory, NEW_NAME, records);
    if is_full(&written)
        && let Some(_loan) = use_reserve()
    {
        return write_as(directory, NEW_NAME, records);
    }
    written
}

/// Writes a journal of `records` as `name`: durable except for the name.
pub(super) fn write_as(directory: &OwnedFd, name: &str, records: &[Record]) -> Result<(File, u64)> {
    let write = || {
        let file = open_file(directory, name, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC);
        let file = file.map_err(|e| failed(e.into()))?;
        let mut out = std::io::BufWriter::with_capacity(1 << 16, &file);
        let mut length = 0;
        let mut line = Vec::new();
        for record in records {
            encode(record, &mut line)?;
            out.write_all(&line).map_err(failed)?;
            length += line.len() as u64;
        }
        out.flush().map_err(failed)?;
        drop(out);
        file.sync_data().map_err(failed)?;
        Ok((file, length))
    };
    let written = write();
    if written.is_err() {
        // A partial file would take up space on a full disk.
        let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    }
    written
}

/// Opens the journal in `directory`, which is at `path`, for [`look`]; returns `None` if there is
/// none.
pub fn find(directory: &impl AsFd, path: &Path) -> Result<Option<File>> {
    let shown = || path.join(NAME).display().to_string();
    match open_file(directory, NAME, OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(file) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => Ok(Some(file)),
        Ok(_) => Err(Error::corrupt(format!("{}: not a regular file", shown()))),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(Error::io(shown(), errno.into())),
    }
}

/// Passes the records of `journal`, whose scratch directory is at `path`, to `apply`. Changes
/// nothing: a daemon may be writing it.
pub fn look(journal: File, path: &Path, apply: impl FnMut(Record) -> Result<()>) -> Result<()> {
    // A last line without an end is still being written: its change has not been acknowledged.
    each_line(journal, None, apply).map(drop).map_err(|e| e.context(path.join(NAME).display()))
}

/// Result of reading a journal.
struct Lines {
    /// End of the last good line, in bytes.
    length: u64,
    /// Error in the line after it.
    torn: Option<Error>,
}

/// Passes the records in `file` to `apply`. The last line may be torn; after a power cut that left
/// `durable` bytes intact, any line after those.
fn each_line(file: File, durable: Option<u64>, mut apply: impl FnMut(Record) -> Result<()>) -> Result<Lines> {
    let failed = |e| Error::io("the scratch journal", e);
    let mut reader = BufReader::new(file);
    let mut length = 0_u64;
    let mut lines = 0_u64;
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = Read::take(&mut reader, MAX_LINE as u64).read_until(b'\n', &mut line).map_err(failed)?;
        if count == 0 {
            return Ok(Lines { length, torn: None });
        }
        lines += 1;
        match parse(&line) {
            Ok(record) => apply(record).map_err(|e| e.context(format!("scratch journal, line {lines}")))?,
            Err(why) => {
                // Pages reach the disk in any order.
                let is_torn =
                    durable.is_some_and(|durable| length >= durable) || reader.fill_buf().map_err(failed)?.is_empty();
                if is_torn {
                    return Ok(Lines { length, torn: Some(why) });
                }
                return Err(why.context(format!("scratch journal, line {lines}")));
            }
        }
        length += count as u64;
    }
}

fn is_full<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace)
}

/// Returns the length of a journal of `records`.
pub(super) fn encoded_length(records: &[Record]) -> Result<u64> {
    let mut line = Vec::new();
    records.iter().try_fold(0, |length, record| {
        encode(record, &mut line)?;
        Ok(length + line.len() as u64)
    })
}

pub(super) fn encode(record: &Record, line: &mut Vec<u8>) -> Result<()> {
    line.clear();
    line.extend_from_slice(b"00000000 ");
    serde_json::to_writer(&mut *line, record)
        .map_err(|e| Error::with_source(ErrorKind::Io, "writing the scratch journal", e))?;
    let checksum = format!("{:08x}", crc32fast::hash(line.get(9..).unwrap_or_default()));
    if let Some(place) = line.get_mut(..8) {
        place.copy_from_slice(checksum.as_bytes());
    }
    line.push(b'\n');
    if line.len() > MAX_LINE {
        // It could be written, but no mount could read it.
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("a line of {} bytes in the scratch journal, which takes {MAX_LINE}", line.len()),
        ));
    }
    Ok(())
}

/// Returns true if a reference to `payload` fits into the journal. If it does not, its bytes are
/// copied to a data file.
pub fn fits_in_journal(payload: &ChunkPayload) -> bool {
    !matches!(payload, ChunkPayload::Inline(bytes) if bytes.len() > MOST_INLINE)
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
    serde_json::from_slice(text)
        .map_err(|e| Error::with_source(ErrorKind::Corrupt, "the line is not a valid record", e))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::super::record::{Name, ROOT};
    use super::*;

    fn record(n: u64) -> Record {
        Record::Whiteout { parent: ROOT, name: Name::new(n.to_string().as_bytes()) }
    }

    fn directory(path: &std::path::Path) -> Arc<OwnedFd> {
        Arc::new(rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap())
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
        journal.append(&record(3), None).unwrap();
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
        journal.append(&record(3), None).unwrap();
        assert_eq!(read(&directory).unwrap(), whole);
    }
}
