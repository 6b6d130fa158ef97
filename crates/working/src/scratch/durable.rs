//! Tracks which part of a journal survives a power cut, and the work that waits for it.
//!
//! A change is acknowledged when its line is in the page cache. Until the line is on the disk, the
//! disk must keep everything that older lines need, and the line must not get there before the
//! bytes that it puts in the place of other bytes. Three rules follow:
//!
//! - A data file that a line made unneeded is unlinked after that line is durable
//!   ([`Durable::retire`]).
//! - A data file whose bytes replace other bytes (rename over a name, copy up, truncation) is
//!   written out before its line is flushed ([`Durable::append`]).
//! - While a flush of the journal runs, it may carry any newly appended line to the disk. A line
//!   that replaces bytes therefore waits until its data file is written out
//!   ([`Durable::write_out_early`]); every other change proceeds.
//!
//! The kernel reports a page that it could not write once, takes it for clean and may drop it: the
//! next flush succeeds without the bytes. A data file whose flush failed is therefore marked for
//! good, in the journal too, until it is unneeded ([`Durable::has_flush_failed`]). Errors that no
//! flush of a single file shows, because another process saw them first or the inode left memory,
//! are found by [`Durable::check`], which the kernel reports each error of the file system once for
//! the directory's descriptor, open all the time.
//!
//! A thread flushes [`INTERVAL`] after the first change that is not durable. ext4 commits every 5
//! seconds, so a mount keeps at least as many of the same changes. `fsync`, unmounting and a full
//! disk take the same steps at once.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::boot;
use super::compaction::Replacement;
use super::data::{self, FLUSH_FAILED};
use super::journal;
use super::record::{DataFileId, Record};
use super::requirements::{open_directory, open_file};
use super::reserve::Reserve;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Delay from a change to the flush that makes it durable: a tenth of ext4's commit interval. A
/// flush costs one or two commits of the file system's journal, a hundredth of the time at this
/// interval on a disk that takes some milliseconds for one.
const INTERVAL: Duration = Duration::from_millis(500);
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Data files written out at a time; bounds the open descriptors.
const AT_A_TIME: usize = 256;
/// Free bytes of the disk below which unneeded data files are unlinked at once.
const NEARLY_FULL: u64 = 32 << 20;

const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;

/// Durability of one journal, shared by the journal and the thread that flushes it.
pub struct Durable {
    directory: Arc<OwnedFd>,
    /// Directory of data files; `None` in unit tests that have only a journal.
    data: Option<OwnedFd>,
    /// True if the file system commits earlier changes together with later ones, whichever file is
    /// flushed.
    in_order: bool,
    reserve: Reserve,
    pub(super) state: Mutex<State>,
    changed: Condvar,
    /// Held throughout a flush. Taken before `state`.
    pub(super) turn: Mutex<()>,
}

pub(super) struct State {
    pub(super) file: Arc<File>,
    /// Bytes in the journal.
    pub(super) length: u64,
    /// Bytes of the journal that are on the disk, with everything that they need.
    pub(super) durable: u64,
    /// Length after the last rewrite, in bytes: the size of the state itself.
    pub(super) compact_length: u64,
    /// Data files that must reach the disk before the journal does.
    pub(super) unsynced: HashSet<DataFileId>,
    /// Data files with bytes that could not be written to the disk.
    pub(super) flush_failures: BTreeSet<DataFileId>,
    /// Those of `flush_failures` that were not reported yet.
    unreported: HashSet<DataFileId>,
    /// True if a flush failed since the last [`Durable::check`], and it is known of which file.
    is_explained: bool,
    /// Data files that were emptied and are being written again.
    emptied: HashSet<DataFileId>,
    /// Pairs of a length and a data file that is unneeded once that many bytes of the journal are
    /// durable.
    pub(super) retired: VecDeque<(u64, DataFileId)>,
    /// Data files written out since the journal's flush began; `None` if no flush runs.
    flushing: Option<HashSet<DataFileId>>,
    /// True if the last daemon did not end cleanly: anything in the directory may be in the page
    /// cache only.
    unknown: bool,
    /// Number of the last flush that began; `succeeded` is the last one that succeeded.
    begun: u64,
    succeeded: u64,
    /// True if flushing the journal failed: the file may lack acknowledged lines.
    pub(super) failed: bool,
    /// True if the thread waits for work. Waking it only then saves a context switch for each
    /// change.
    idle: bool,
    closed: bool,
    /// Called after each flush, to compact the journal if needed.
    upkeep: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl State {
    pub(super) fn is_dirty(&self) -> bool {
        self.durable < self.length || !self.unsynced.is_empty() || !self.retired.is_empty() || self.unknown
    }
}

impl std::fmt::Debug for Durable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Durable").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Durable {
    /// Creates the state of the journal `file` in `directory`. Its `length` bytes are on the disk
    /// unless `unknown`.
    pub(super) fn new(directory: &Arc<OwnedFd>, file: File, length: u64, unknown: bool) -> Arc<Self> {
        let kind = rustix::fs::fstatfs(&**directory).map(|stat| stat.f_type as u64).unwrap_or(0);
        Arc::new(Durable {
            directory: Arc::clone(directory),
            data: open_directory(&**directory, "data", OFlags::NOFOLLOW).ok(),
            in_order: matches!(kind, EXT4 | XFS),
            reserve: Reserve::new(directory),
            state: Mutex::new(State {
                file: Arc::new(file),
                length,
                durable: if unknown { 0 } else { length },
                compact_length: length,
                unsynced: HashSet::new(),
                flush_failures: BTreeSet::new(),
                unreported: HashSet::new(),
                is_explained: false,
                emptied: HashSet::new(),
                retired: VecDeque::new(),
                flushing: None,
                unknown,
                begun: 0,
                succeeded: 0,
                failed: false,
                idle: false,
                closed: false,
                upkeep: None,
            }),
            changed: Condvar::new(),
            turn: Mutex::new(()),
        })
    }

    /// Returns the scratch directory.
    pub(super) fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// Returns true if the journal must be rewritten because flushing it failed.
    pub fn needs_rewrite(&self) -> bool {
        self.state.lock().failed
    }

    /// Appends `line` to the journal. With it, the bytes of data file `replaces` take the place of
    /// other bytes.
    pub(super) fn append(&self, line: &[u8], replaces: Option<DataFileId>) -> std::io::Result<()> {
        let mut state = self.state.lock();
        if let Some(data) = replaces {
            if state.flushing.as_ref().is_some_and(|written| !written.contains(&data)) {
                // The flush began after the caller called `write_out_early`. This is rare, and most
                // of the bytes are on their way by then.
                self.write_out(data).inspect_err(|error| self.note_failure(&mut state, data, error))?;
            }
            state.unsynced.insert(data);
        }
        if let Err(error) = state.file.write_all_at(line, state.length) {
            // Half a line would tear the next one. If the truncation fails too, the next line
            // overwrites it.
            let _ = state.file.set_len(state.length);
            return Err(error);
        }
        state.length += line.len() as u64;
        self.wake(&mut state);
        let length = state.length;
        drop(state);
        self.reserve.follow(length);
        Ok(())
    }

    /// Writes out data file `data`, whose bytes are about to replace other bytes, if the journal is
    /// being flushed. Otherwise the next flush writes it, unless the file is replaced before. The
    /// caller must hold no lock.
    pub fn write_out_early(&self, data: DataFileId) {
        let flushing = self.state.lock().flushing.is_some();
        if !flushing {
            return;
        }
        let written = self.write_out(data);
        let mut state = self.state.lock();
        match (written, &mut state.flushing) {
            (Ok(()), Some(written)) => drop(written.insert(data)),
            (Ok(()), None) => {}
            (Err(error), _) => self.note_failure(&mut state, data, &error),
        }
    }

    /// Flushes data file `data`, open as `file`.
    pub fn sync_file(&self, data: DataFileId, file: &File) -> Result<()> {
        if self.has_flush_failed(data) {
            return Err(Error::new(ErrorKind::Io, FLUSH_FAILED));
        }
        file.sync_data().map_err(|error| {
            self.note_failure(&mut self.state.lock(), data, &error);
            Error::with_source(ErrorKind::Io, FLUSH_FAILED, error)
        })
    }

    /// Returns true if data file `data` has bytes that could not be written to the disk.
    pub fn has_flush_failed(&self, data: DataFileId) -> bool {
        self.state.lock().flush_failures.contains(&data)
    }

    /// Records that data file `data` has bytes that could not be written to the disk.
    pub fn mark_flush_failed(&self, data: DataFileId) {
        self.mark(&mut self.state.lock(), data);
    }

    /// Returns the data files with bytes that could not be written to the disk.
    pub fn flush_failures(&self) -> HashSet<DataFileId> {
        self.state.lock().flush_failures.iter().copied().collect()
    }

    /// Takes over the marks that the journal has. The kernel may report their failures to this
    /// mount, too.
    pub(super) fn restore_flush_failures(&self, marked: BTreeSet<DataFileId>) {
        let mut state = self.state.lock();
        state.is_explained = !marked.is_empty();
        state.flush_failures = marked;
    }

    /// Drops the marks of data files that are not in `used`.
    pub fn retain_flush_failures(&self, used: &HashSet<DataFileId>) {
        self.state.lock().flush_failures.retain(|data| used.contains(data));
    }

    /// Returns the data files that were marked since the last call.
    pub fn take_unreported(&self) -> HashSet<DataFileId> {
        std::mem::take(&mut self.state.lock().unreported)
    }

    /// Marks data file `data` if `error` of its flush means that bytes were not written.
    fn note_failure(&self, state: &mut State, data: DataFileId, error: &std::io::Error) {
        if !is_refused(error) {
            self.mark(state, data);
            state.is_explained = true;
        }
    }

    fn mark(&self, state: &mut State, data: DataFileId) {
        state.unsynced.remove(&data);
        if !state.flush_failures.insert(data) {
            return;
        }
        state.unreported.insert(data);
        let mut line = Vec::new();
        let encoded = journal::encode(&Record::FlushFailed { data }, &mut line);
        let appended =
            encoded.map_err(std::io::Error::other).and_then(|()| state.file.write_all_at(&line, state.length));
        match appended {
            Ok(()) => state.length += line.len() as u64,
            // Nothing more is acknowledged before the journal is rewritten, with the mark.
            Err(_) => state.failed = true,
        }
        self.wake(state);
    }

    /// Flushes the file system of the scratch directory, and fails if the kernel could not write
    /// bytes to it since the last call.
    ///
    /// Data files that this concerns are marked; all of them if it cannot be known which.
    /// `is_explained` tells that an object of the repository, which may be on the same file system,
    /// could not be flushed.
    pub fn check(&self, is_explained: bool) -> Result<()> {
        let _turn = self.turn.lock();
        let failed = |e| Error::with_source(ErrorKind::Io, "flushing to the scratch directory", e);
        self.sync_all(is_explained).map_err(failed)
    }

    fn sync_all(&self, is_explained: bool) -> std::io::Result<()> {
        let synced = rustix::fs::syncfs(&*self.directory).map_err(std::io::Error::from);
        let is_explained = std::mem::take(&mut self.state.lock().is_explained) || is_explained;
        let error = match synced {
            Err(error) if !is_refused(&error) => error,
            _ => return Ok(()),
        };
        let mut files = self.data.as_ref().map(data::list).transpose()?.unwrap_or_default();
        {
            let state = self.state.lock();
            let retired: HashSet<DataFileId> = state.retired.iter().map(|(_, data)| *data).collect();
            files.retain(|data| !retired.contains(data) && !state.flush_failures.contains(data));
        }
        let written = self.write_all_out(&files);
        let mut state = self.state.lock();
        state.is_explained = false;
        if written.is_ok() && is_explained {
            drop(state);
            return Ok(rustix::fs::syncfs(&*self.directory)?);
        }
        if written.is_ok() {
            tracing::error!(
                "{error}: it is not known which file lacks bytes on the disk; all {} are marked",
                files.len()
            );
            files.into_iter().for_each(|data| self.mark(&mut state, data));
        }
        written.and(Err(error))
    }

    /// Records that data file `data` was emptied and will be written again: it is flushed when it
    /// is closed.
    pub fn mark_emptied(&self, data: DataFileId) {
        self.state.lock().emptied.insert(data);
    }

    /// Records that data file `data` was closed after writing.
    pub fn mark_closed(&self, data: DataFileId) {
        let mut state = self.state.lock();
        if state.emptied.remove(&data) {
            state.unsynced.insert(data);
            self.wake(&mut state);
        }
    }

    /// Unlinks data file `data` once the present lines of the journal are durable. Returns true if
    /// the disk is nearly full, so that the caller should flush at once.
    pub fn retire(&self, data: DataFileId) -> bool {
        {
            let mut state = self.state.lock();
            state.unsynced.remove(&data);
            state.emptied.remove(&data);
            state.flush_failures.remove(&data);
            state.unreported.remove(&data);
            if state.durable >= state.length && !state.unknown && state.flushing.is_none() {
                drop(state);
                self.unlink(data);
                return false;
            }
            let length = state.length;
            state.retired.push_back((length, data));
            self.wake(&mut state);
        }
        rustix::fs::fstatvfs(&*self.directory)
            .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < NEARLY_FULL)
    }

    fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.idle) {
            self.changed.notify_all();
        }
    }

    /// Returns true if data files wait to be unlinked: a flush frees space.
    pub fn has_retired(&self) -> bool {
        !self.state.lock().retired.is_empty()
    }

    /// Makes all present lines of the journal durable and does the work that waits for them.
    pub fn flush(&self) -> Result<()> {
        let before = {
            let state = self.state.lock();
            if !state.is_dirty() && !state.failed {
                return Ok(());
            }
            state.begun
        };
        let turn = self.turn.lock();
        // A flush that began after this call did all the work of this one.
        if self.state.lock().succeeded > before {
            return Ok(());
        }
        self.flush_in_turn(turn, None)?;
        self.keep_reserve();
        Ok(())
    }

    /// Flushes the journal, or the copy of its lines in `replacement`, which takes its place.
    pub(super) fn flush_in_turn(&self, turn: MutexGuard<'_, ()>, replacement: Option<&Replacement>) -> Result<()> {
        let failed = |e: std::io::Error| Error::io("flushing to the scratch directory", e);
        // Most of the work, while no append waits.
        let first: Vec<DataFileId> = {
            let state = self.state.lock();
            if state.failed && replacement.is_none() {
                return Err(failed(std::io::Error::other(
                    "the last flush failed, and the journal has not been rewritten",
                )));
            }
            state.unsynced.iter().copied().collect()
        };
        // A failure marks its file in the journal, which is flushed all the same.
        let written = self.write_all_out(&first);
        if written.as_ref().is_err_and(is_refused) {
            return written.map_err(failed);
        }
        let (unsynced, file, length, unknown, number) = {
            let mut state = self.state.lock();
            state.flushing = Some(HashSet::new());
            state.begun += 1;
            let unsynced: Vec<DataFileId> = state.unsynced.drain().collect();
            (unsynced, Arc::clone(&state.file), state.length, state.unknown, state.begun)
        };
        let flushed = self.write_before(&unsynced, unknown).and_then(|()| match replacement {
            Some(new) => self.switch(new, &file, length),
            None => file.sync_data().map(|()| length),
        });
        let mut state = self.state.lock();
        state.flushing = None;
        let durable = match flushed {
            Ok(durable) => durable,
            Err(error) => {
                let State { unsynced: again, flush_failures, .. } = &mut *state;
                again.extend(unsynced.into_iter().filter(|data| !flush_failures.contains(data)));
                // The kernel reports a page that it could not write once, and forgets it.
                state.failed |= replacement.is_none();
                state.is_explained = true;
                return Err(failed(error));
            }
        };
        (state.durable, state.unknown, state.succeeded) = (durable, false, number);
        let ready = state.retired.iter().take_while(|(position, _)| *position <= durable).count();
        let retired: Vec<DataFileId> = state.retired.drain(..ready).map(|(_, data)| data).collect();
        boot::note(&self.directory, &state.file, durable);
        drop(state);
        drop(turn);
        retired.into_iter().for_each(|data| self.unlink(data));
        // The new journal is in use, whatever became of the data files.
        if replacement.is_some() { Ok(()) } else { written.map_err(failed) }
    }

    /// Makes the data files `ids` durable, or everything if it is `unknown` which ones are not.
    fn write_before(&self, ids: &[DataFileId], unknown: bool) -> std::io::Result<()> {
        if unknown {
            return self.sync_all(false);
        }
        if ids.is_empty() {
            return Ok(());
        }
        self.write_all_out(ids)?;
        let Some(directory) = &self.data else { return Ok(()) };
        if self.in_order {
            // The extents are in the file system's running transaction, which need not be the
            // journal's. The flush commits it first, without any byte of the journal.
            touch(directory);
        }
        Ok(rustix::fs::fsync(directory)?)
    }

    /// Writes out the data files `ids`, marks those that fail, and returns the first error.
    fn write_all_out(&self, ids: &[DataFileId]) -> std::io::Result<()> {
        let mut written = Ok(());
        for ids in ids.chunks(AT_A_TIME) {
            let files = ids.iter().filter_map(|data| Some(self.open(*data).transpose()?.map(|file| (*data, file))));
            let files = files.collect::<std::io::Result<Vec<(DataFileId, File)>>>()?;
            let begun: Vec<std::io::Result<()>> =
                files.iter().map(|(_, file)| write_range(file, libc::SYNC_FILE_RANGE_WRITE)).collect();
            for ((data, file), begun) in std::iter::zip(&files, begun) {
                if let Err(error) = begun.and_then(|()| self.write_file_out(file)) {
                    self.note_failure(&mut self.state.lock(), *data, &error);
                    written = written.and(Err(error));
                }
            }
        }
        written
    }

    fn write_out(&self, data: DataFileId) -> std::io::Result<()> {
        match self.open(data)? {
            Some(file) => self.write_file_out(&file),
            None => Ok(()),
        }
    }

    fn write_file_out(&self, file: &File) -> std::io::Result<()> {
        if self.in_order {
            write_range(
                file,
                libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER,
            )
        } else {
            file.sync_data()
        }
    }

    /// Opens a data file; returns `None` if it has been removed.
    fn open(&self, data: DataFileId) -> std::io::Result<Option<File>> {
        let Some(directory) = &self.data else { return Ok(None) };
        match open_file(directory, data.file_name(), OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn unlink(&self, data: DataFileId) {
        if let Some(directory) = &self.data {
            // A file that cannot be removed now is found when the directory is next opened.
            let _ = rustix::fs::unlinkat(directory, data.file_name(), AtFlags::empty());
        }
    }

    /// Sets the function that is called after each flush.
    pub fn set_upkeep(&self, upkeep: Arc<dyn Fn() + Send + Sync>) {
        self.state.lock().upkeep = Some(upkeep);
    }

    /// Returns the space reserved for operations that free space.
    pub(super) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// Reserves space for operations that free space on a full disk.
    pub fn keep_reserve(&self) {
        let length = self.state.lock().length;
        self.reserve.resize(length);
    }

    /// Ends the thread after a last flush.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Flushes [`INTERVAL`] after each change, until the journal is closed.
    pub(super) fn run(&self) {
        let mut pause = INTERVAL;
        loop {
            let closed = {
                let mut state = self.state.lock();
                while !state.closed && !state.is_dirty() {
                    state.idle = true;
                    self.changed.wait(&mut state);
                }
                let until = Instant::now() + pause;
                while !state.closed {
                    if self.changed.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
                state.closed
            };
            pause = match self.flush() {
                Ok(()) => INTERVAL,
                Err(error) => {
                    tracing::error!("{error}: the last writes may be lost if the power fails");
                    AFTER_FAILURE
                }
            };
            // The other files may have failed with the one that did.
            if self.state.lock().is_explained
                && let Err(error) = self.check(false)
            {
                tracing::error!("{error}");
            }
            if closed {
                return;
            }
            let upkeep = self.state.lock().upkeep.clone();
            if let Some(upkeep) = upkeep {
                upkeep();
            }
        }
    }
}

/// Returns true if `error` of a flush means that the call itself was refused or interrupted.
fn is_refused(error: &std::io::Error) -> bool {
    const REFUSED: [i32; 7] =
        [libc::ENOSYS, libc::EINVAL, libc::EPERM, libc::EBADF, libc::EINTR, libc::EMFILE, libc::ENFILE];
    error.raw_os_error().is_some_and(|errno| REFUSED.contains(&errno))
}

/// Changes a directory's times, so that flushing it commits the running transaction.
fn touch(directory: &impl AsFd) {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    // A failure only makes the flush do less.
    let _ = rustix::fs::futimens(directory, &times);
}

/// Writes out the pages of `file` as `sync_file_range(2)` does with `flags`.
pub(super) fn write_range(file: &File, flags: libc::c_uint) -> std::io::Result<()> {
    // SAFETY: the descriptor is open as long as `file` is. The call takes no memory of this
    // process.
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
pub(super) mod testing {
    #![allow(clippy::unwrap_used)]
    use super::super::journal::Journal;
    use super::super::record::{Name, ROOT, Record};
    use super::*;

    pub(in crate::scratch) fn record(n: u64) -> Record {
        Record::Whiteout { parent: ROOT, name: Name::new(n.to_string().as_bytes()) }
    }

    pub(in crate::scratch) fn scratch() -> (tempfile::TempDir, Journal) {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("data")).unwrap();
        let directory =
            rustix::fs::open(place.path(), OFlags::DIRECTORY | OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        let journal = Journal::replace(&Arc::new(directory), &[record(0)]).unwrap();
        (place, journal)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::journal::Journal;
    use super::testing::{record, scratch};
    use super::*;

    fn until(done: impl Fn() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn an_unneeded_file_is_unlinked_after_the_line_is_durable() {
        let (place, mut journal) = scratch();
        let path = |n: u64| place.path().join("data").join(n.to_string());
        for n in 1..4 {
            std::fs::write(path(n), "bytes").unwrap();
        }
        // Nothing waits, so the file is unlinked at once.
        journal.durable().retire(DataFileId(1));
        assert!(!path(1).exists());
        journal.append(&record(1), None).unwrap();
        journal.durable().retire(DataFileId(2));
        assert!(path(2).exists() && journal.durable().has_retired());
        journal.durable().flush().unwrap();
        assert!(!path(2).exists() && !journal.durable().has_retired());
        // The thread flushes without a call, too.
        journal.append(&record(2), None).unwrap();
        journal.durable().retire(DataFileId(3));
        until(|| !path(3).exists());
        assert!(!journal.durable().state.lock().is_dirty());
    }

    #[test]
    fn the_mark_of_a_lost_file_stays_until_the_file_is_unneeded() {
        let (place, journal) = scratch();
        let durable = Arc::clone(journal.durable());
        for n in [7, 8] {
            std::fs::write(place.path().join(format!("data/{n}")), "bytes").unwrap();
            durable.mark_flush_failed(DataFileId(n));
        }
        let file = File::open(place.path().join("data/7")).unwrap();
        assert_eq!(durable.sync_file(DataFileId(7), &file).unwrap_err().kind(), ErrorKind::Io);
        durable.retire(DataFileId(8));
        // Neither another flush nor a journal of other records takes it away.
        durable.flush().unwrap();
        durable.check(false).unwrap();
        journal.rewrite(&[record(1)]).unwrap();
        drop(journal);
        let directory = Arc::new(OwnedFd::from(File::open(place.path()).unwrap()));
        let again = Journal::open(&directory, |_| Ok(())).unwrap().unwrap();
        assert_eq!(again.durable().flush_failures(), HashSet::from([DataFileId(7)]));
        again.durable().retain_flush_failures(&HashSet::new());
        assert!(!again.durable().has_flush_failed(DataFileId(7)));
    }

    #[test]
    fn a_file_that_is_written_again_is_flushed_when_it_is_closed() {
        let (place, journal) = scratch();
        std::fs::write(place.path().join("data/7"), "bytes").unwrap();
        let durable = journal.durable();
        durable.mark_closed(DataFileId(7));
        assert!(!durable.state.lock().is_dirty());
        durable.mark_emptied(DataFileId(7));
        durable.mark_closed(DataFileId(7));
        assert!(durable.state.lock().is_dirty());
        until(|| !durable.state.lock().is_dirty());
    }
}
