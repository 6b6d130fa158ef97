//! Replaces the journal by a shorter one while changes continue.
//!
//! [`compact`] gets the records of the state at a position of the journal ([`Durable::end`]) and
//! holds no lock while it writes and flushes them as `journal.compact`. Then the new journal takes
//! the place of the old one ([`Durable::switch_to`]). All of that is a flush ([`Durable::flush`]),
//! so that no other flush and no other replacement runs meanwhile:
//!
//! 1. Data files that the lines so far need are written out. Lines that replace bytes wait for
//!    their data files from here to the end.
//! 2. The lines so far are copied to the new journal, and it is flushed.
//! 3. Appends wait while the lines that arrived since then are copied and the new journal is
//!    renamed. Both are work on the page cache, like an append. The next line goes to the new
//!    journal.
//! 4. The directory is flushed. Now the lines of step 2 are durable, and the files that they made
//!    unneeded are unlinked.
//!
//! At each moment the file called `journal` has every line that a program was answered, because the
//! rename is atomic and no line is appended during it: the death of the daemon loses nothing. A
//! power cut before step 4 ends leaves the old journal or the new one:
//!
//! - The old one has all lines that were durable when step 1 began, and no flush has promised more:
//!   a caller of `fsync` waits for the end of step 4, and then flushes again if its line is younger
//!   than step 1. Nothing has been unlinked since.
//! - The new one is on the disk with the lines of step 2, which are at least as many. Of those of
//!   step 3, any may be torn, as in a journal that was not flushed; the `boot` file is about the
//!   other inode, so that the end may be cut off anywhere.
//!
//! If a step before the rename fails, the old journal continues. If the directory cannot be
//! flushed, the new journal counts as failed, and the next change rewrites it.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::AtFlags;

use super::durable::Durable;
use super::journal::{self, NAME};
use super::record::{DataFileId, Record};
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Name of a shorter journal that is written while the longer one is in use.
pub(super) const COMPACT_NAME: &str = "journal.compact";
/// Length, in bytes, from which a journal is worth rewriting.
const WORTH_REWRITING: u64 = 1 << 20;
/// Length of a journal, as a multiple of the compact length, from which it is rewritten.
const TIMES_LONGER: u64 = 4;
/// Bytes copied at once from journal to journal.
const STEP: u64 = 1 << 16;

/// End of a journal at some moment.
#[derive(Debug)]
pub struct End {
    file: Arc<File>,
    length: u64,
}

/// Journal that is to replace the present one.
#[derive(Debug)]
pub(super) struct Replacement {
    pub(super) name: &'static str,
    pub(super) file: Arc<File>,
    pub(super) length: u64,
    /// End of the present journal that the new one stands for; `None` if all of it, and the caller
    /// keeps appends out.
    pub(super) end: Option<End>,
}

/// Replaces the journal of `durable` by one of `records`, which describe it up to `end`. Does
/// nothing if it has been replaced since.
pub fn compact(durable: &Durable, end: End, records: &[Record]) -> Result<()> {
    let reserve = durable.reserve();
    // The journal is at least as long as a compact one, so only a nearly full disk requires the
    // exact length.
    if !reserve.has_room_for(end.length) {
        let length = journal::encoded_length(records)?;
        let is_worth_it = durable.needs_rewrite() || length <= end.length / TIMES_LONGER;
        while is_worth_it && !reserve.has_room_for(length) && reserve.release_step() {}
        if !reserve.has_room_for(length) {
            let why = "rewriting the scratch journal: the disk has too little room";
            return Err(Error::new(ErrorKind::NoSpace, why));
        }
    }
    let (file, length) = journal::write_as(durable.directory(), COMPACT_NAME, records)?;
    durable.switch_to(&Replacement { name: COMPACT_NAME, file: Arc::new(file), length, end: Some(end) })?;
    durable.keep_reserve();
    Ok(())
}

impl Durable {
    /// Returns the end of the journal.
    pub fn end(&self) -> End {
        let state = self.state.lock();
        End { file: Arc::clone(&state.file), length: state.length }
    }

    /// Returns true if `file` is the journal.
    pub(super) fn is_current(&self, file: &Arc<File>) -> bool {
        Arc::ptr_eq(&self.state.lock().file, file)
    }

    /// Makes `new` the journal, with the lines that were appended since, unless another journal has
    /// taken the place of the one that it stands for.
    pub(super) fn switch_to(&self, new: &Replacement) -> Result<()> {
        let turn = self.turn.lock();
        let is_current = new.end.as_ref().is_none_or(|end| {
            let state = self.state.lock();
            // A failed journal may lack the lines that would have to be copied.
            Arc::ptr_eq(&state.file, &end.file) && !(state.failed && state.length > end.length)
        });
        let switched = if is_current { self.flush_in_turn(turn, Some(new)) } else { Ok(()) };
        // If it did not become the journal, it only takes up space.
        let _ = rustix::fs::unlinkat(self.directory(), new.name, AtFlags::empty());
        switched
    }

    /// Puts `new` in the place of journal `old`, of which `length` bytes have to be durable.
    /// Returns the length of their copy.
    pub(super) fn switch(&self, new: &Replacement, old: &File, length: u64) -> std::io::Result<u64> {
        let begin = new.end.as_ref().map_or(length, |end| end.length);
        // The records of the state do not have the marks of data files.
        let marked = self.state.lock().flush_failures.clone();
        let begun = append_marks(&marked, &new.file, new.length)?;
        let durable = append(old, begin..length, &new.file, begun)?;
        new.file.sync_data()?;
        {
            let mut state = self.state.lock();
            let mut whole = append(old, length..state.length, &new.file, durable)?;
            if state.flush_failures != marked {
                // The old journal may have had no room for the line of a mark.
                whole = append_marks(&state.flush_failures, &new.file, whole)?;
            }
            rustix::fs::renameat(self.directory(), new.name, self.directory(), NAME)?;
            // Nothing counts as durable until the name is.
            (state.file, state.length, state.durable) = (Arc::clone(&new.file), whole, 0);
            (state.compact_length, state.failed) = (new.length, false);
            state.retired.iter_mut().for_each(|(at, _)| *at = at.saturating_sub(length) + durable);
        }
        rustix::fs::fsync(self.directory()).inspect_err(|_| self.state.lock().failed = true)?;
        Ok(durable)
    }

    /// Returns true if the journal is long enough to be worth rewriting.
    pub fn is_large(&self) -> bool {
        self.state.lock().length > WORTH_REWRITING
    }

    /// Returns true if most lines are about changes that later lines undid.
    pub fn is_long(&self) -> bool {
        let state = self.state.lock();
        state.length > WORTH_REWRITING && state.length / TIMES_LONGER > state.compact_length
    }

    /// Records that `needed` of `lines` equal parts of the journal are needed.
    pub fn set_compact_share(&self, needed: u64, lines: u64) {
        let mut state = self.state.lock();
        state.compact_length = state.length / lines.max(1) * needed;
    }
}

/// Appends the marks of data files `marked` to `journal` of `length` bytes. Returns the new length.
fn append_marks(marked: &BTreeSet<DataFileId>, journal: &File, mut length: u64) -> std::io::Result<u64> {
    let mut line = Vec::new();
    for &data in marked {
        journal::encode(&Record::FlushFailed { data }, &mut line).map_err(std::io::Error::other)?;
        journal.write_all_at(&line, length)?;
        length += line.len() as u64;
    }
    Ok(length)
}

/// Appends `range` of journal `from` to journal `to` of `length` bytes. Returns the new length.
fn append(from: &File, mut range: Range<u64>, to: &File, mut length: u64) -> std::io::Result<u64> {
    while !range.is_empty() {
        let mut lines = vec![0; (range.end - range.start).min(STEP) as usize];
        from.read_exact_at(&mut lines, range.start)?;
        to.write_all_at(&lines, length)?;
        range.start += lines.len() as u64;
        length += lines.len() as u64;
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::durable::testing::{record, scratch};
    use super::*;

    /// Returns which of the records 0 to 9 are in the journal.
    fn lines(place: &std::path::Path) -> String {
        let text = std::fs::read_to_string(place.join(NAME)).unwrap();
        ('0'..='9').filter(|n| text.contains(&format!("\"{n}\""))).collect()
    }

    #[test]
    fn a_journal_that_was_replaced_is_not_replaced_by_a_compacted_one() {
        let (place, mut journal) = scratch();
        journal.append(&record(1), None).unwrap();
        let durable = Arc::clone(journal.durable());
        let late = durable.end();
        journal.rewrite(&[record(3)]).unwrap();
        compact(&durable, late, &[record(5)]).unwrap();
        assert!(lines(place.path()) == "3" && !place.path().join(COMPACT_NAME).exists());
        let timely = durable.end();
        journal.append(&record(6), None).unwrap();
        compact(&durable, timely, &[record(5)]).unwrap();
        journal.append(&record(7), None).unwrap();
        assert_eq!(lines(place.path()), "567");
    }

    #[test]
    fn a_new_journal_carries_out_what_waited_for_the_old_one() {
        for is_compaction in [false, true] {
            let (place, mut journal) = scratch();
            let path = place.path().join("data/7");
            std::fs::write(&path, "bytes").unwrap();
            let durable = Arc::clone(journal.durable());
            let end = journal.durable().end();
            journal.append(&record(1), Some(DataFileId(7))).unwrap();
            assert!(durable.state.lock().unsynced.contains(&DataFileId(7)));
            journal.append(&record(2), None).unwrap();
            durable.retire(DataFileId(7));
            if is_compaction {
                compact(&durable, end, &[record(0)]).unwrap()
            } else {
                journal.rewrite(&[record(3)]).unwrap()
            }
            assert_eq!(lines(place.path()), if is_compaction { "012" } else { "3" });
            assert!(!path.exists() && !durable.state.lock().is_dirty());
        }
    }

    #[test]
    fn lines_appended_during_a_switch_are_in_the_journal() {
        let (place, mut journal) = scratch();
        let durable = Arc::clone(journal.durable());
        for round in 1..=20 {
            let end = durable.end();
            std::thread::scope(|scope| {
                scope.spawn(|| compact(&durable, end, &[record(round)]).unwrap());
                (0..100).for_each(|n| journal.append(&record(1000 * round + n), None).unwrap());
            });
            let text = std::fs::read_to_string(place.path().join(NAME)).unwrap();
            let found = text.lines().filter(|line| line.contains(&format!("\"{round}"))).count();
            assert!(found >= 101 && text.lines().count() == 101, "{found} in round {round}");
        }
        durable.flush().unwrap();
        assert!(!durable.state.lock().is_dirty());
    }
}
