//! Beliefs of the kernel: numbers that may mean another file to it than they do here.
//!
//! The kernel knows files by numbers, and asks again only when it is told to. A move to another
//! snapshot ([`super::rebase`]) changes the meaning of some numbers in one moment; the kernel hears
//! of it a little later, number by number, while programs go on. [`KernelView`] is the one place
//! that knows in which way a number may be misunderstood, and answers what a request with that
//! number may do:
//!
//! | number | means here | the kernel may believe | so |
//! |---|---|---|---|
//! | *old version* | a file without a name, as it was before a move, which programs have open | that it still has the name | it is read, and never changed |
//! | *vacant* | a file elsewhere; the place in the base whose number it is has nothing | the same | it is no other file than the kernel's |
//! | *of another file* | the file that has the place since a commit moved nodes | the file that was there | refused to whom found it before, until it is looked up |
//! | *refused* | a file of the base | another one, which a program has open | the next open drops the pages |
//! | *outdated* | a file of the base again, since the inode that had it was dropped | that one's bytes | the kernel is told to drop them |
//!
//! While a move is told, files are not opened at all ([`KernelView::hold_opens`]): the page cache
//! would give a program bytes of both snapshots.
//!
//! It knows no names, no bytes and no kernel: the state of the tree says which file has a number,
//! and callers do what is answered here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;

use super::gone;
use super::node::Ino;
use icechunkfs_base::error::Result;

/// Moment between two moves. Numbers mean the same as long as it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Moment(u64);

impl Moment {
    /// Returns the moment after so many moves of a mount.
    pub fn after_moves(count: u64) -> Self {
        Moment(count)
    }
}

/// Count of the moves, to be asked for without the lock of the tree.
#[derive(Debug, Default)]
pub(super) struct Moves {
    count: AtomicU64,
    /// True since the last move, until the kernel has dropped all that this made outdated.
    is_settling: AtomicBool,
}

impl Moves {
    /// Returns the present moment.
    pub(super) fn now(&self) -> Moment {
        Moment(self.count.load(Ordering::Relaxed))
    }

    /// Returns true while the kernel may have what the last move made outdated.
    pub(super) fn is_settling(&self) -> bool {
        self.is_settling.load(Ordering::Acquire)
    }
}

/// Numbers that mean something else after a move.
#[derive(Debug, Default)]
pub(super) struct ChangedNumbers {
    /// Those of files that programs have open, and that keep the bytes they had, without a name.
    pub(super) old_versions: HashSet<Ino>,
    /// Those of files elsewhere in whose places the base has nothing.
    pub(super) vacant: HashSet<Ino>,
    /// Those of the base that mean other files, as these have changed their places.
    pub(super) of_other_files: Vec<Ino>,
}

/// Open of a file, as it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    /// Number of the file.
    pub(super) number: Ino,
    /// Moment at which the request came: the kernel found the number then, or before.
    pub(super) since: Moment,
    /// True if the request has waited for the end of a move.
    pub(super) has_waited: bool,
    /// True if it would wait for the end of a move that is under way.
    pub(super) is_patient: bool,
    /// True to change the file.
    pub(super) writes: bool,
}

/// Answer to an [`Opening`].
#[derive(Debug)]
pub(super) enum Admission {
    /// The file may be opened.
    Granted,
    /// Not before this channel is closed.
    Later(watch::Receiver<()>),
}

/// Beliefs that the kernel may still have.
#[derive(Debug, Default)]
pub(super) struct KernelView {
    moves: Arc<Moves>,
    old_versions: HashSet<Ino>,
    /// Those of the last move alone.
    vacant: HashSet<Ino>,
    /// Numbers that mean other files since the last move, and whether the kernel has looked them up
    /// since.
    of_other_files: HashMap<Ino, bool>,
    refused: HashSet<Ino>,
    outdated: Vec<Ino>,
    /// Set while no file is opened. Files are opened again when it is dropped.
    opens_held: Option<watch::Sender<()>>,
}

impl KernelView {
    /// Returns the count of the moves.
    pub(super) fn moves(&self) -> &Arc<Moves> {
        &self.moves
    }

    /// Has opens wait until [`KernelView::settle`]: a move begins, after which the kernel has bytes
    /// of before.
    pub(super) fn hold_opens(&mut self) {
        self.opens_held.get_or_insert_with(|| watch::channel(()).0);
    }

    /// The tree has moved: `vacant` and `of_other_files` replace those of the move before. Old
    /// versions are told by [`KernelView::keep_old_versions`].
    pub(super) fn move_on(&mut self, vacant: HashSet<Ino>, of_other_files: impl Iterator<Item = Ino>) {
        self.vacant = vacant;
        self.of_other_files = of_other_files.map(|number| (number, false)).collect();
        self.moves.is_settling.store(true, Ordering::Release);
        self.moves.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel has dropped all that the last move made outdated, or there is no kernel yet:
    /// files may be opened.
    pub(super) fn settle(&mut self) {
        self.moves.is_settling.store(false, Ordering::Release);
        // A dropped sender is the signal.
        drop(self.opens_held.take());
    }

    /// Files `numbers` have lost their names by a move, and are read as they were.
    pub(super) fn keep_old_versions(&mut self, numbers: impl Iterator<Item = Ino>) {
        self.old_versions.extend(numbers);
    }

    /// The inode with `number` is dropped: an old version, or one that had bytes of its own if
    /// `had_own` is true. A number of the base is the base's again, and the kernel may have the
    /// other bytes, if something but an open file keeps its inode.
    pub(super) fn on_gone(&mut self, number: Ino, had_own: bool) {
        let was_old = self.old_versions.remove(&number);
        if (was_old || had_own) && number.is_of_base() {
            self.outdated.push(number);
        }
    }

    /// The kernel has looked `number` up, and knows what it means now.
    pub(super) fn on_lookup(&mut self, number: Ino) {
        if let Some(is_found) = self.of_other_files.get_mut(&number) {
            *is_found = true;
        }
    }

    /// A request was refused as the base shows another file by `number` than a program has open.
    pub(super) fn on_refused(&mut self, number: Ino) {
        self.refused.insert(number);
    }

    /// A program has opened `number`. Returns true if the kernel must not keep the pages that it
    /// has.
    pub(super) fn on_opened(&mut self, number: Ino) -> bool {
        !self.refused.is_empty() && self.refused.remove(&number)
    }

    /// Returns the numbers whose bytes and attributes the kernel must drop, each once.
    pub(super) fn take_outdated(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.outdated)
    }

    /// Answers whether a program may open a file.
    pub(super) fn may_open(&self, opening: Opening) -> Result<Admission> {
        if let Some(held) = self.opens_held.as_ref().filter(|_| opening.is_patient) {
            return Ok(Admission::Later(held.subscribe()));
        }
        self.may_use(opening.number, opening.has_waited || opening.since != self.moves.now())?;
        if opening.writes {
            self.may_change(opening.number)?;
        }
        Ok(Admission::Granted)
    }

    /// Refuses `number` if it means another file since a move before which the kernel has looked
    /// the name up: it does so again then. `is_late` is true if the request came before a move.
    pub(super) fn may_use(&self, number: Ino, is_late: bool) -> Result<()> {
        match self.of_other_files.get(&number) {
            Some(is_found) if is_late || !is_found => Err(gone(number)),
            _ => Ok(()),
        }
    }

    /// Refuses to change `number` if it is that of an old version, which the kernel may know by a
    /// name for a moment after a move: it then looks the name up again, and the change is made to
    /// the file that has it now.
    pub(super) fn may_change(&self, number: Ino) -> Result<()> {
        if self.is_old_version(number) { Err(gone(number)) } else { Ok(()) }
    }

    /// Returns true if `number` is that of an old version.
    pub(super) fn is_old_version(&self, number: Ino) -> bool {
        self.old_versions.contains(&number)
    }

    /// Returns true if the kernel knows by `number` the file that has it, though that is not in the
    /// place of the base with that number.
    pub(super) fn knows_elsewhere(&self, number: Ino) -> bool {
        self.old_versions.contains(&number) || self.vacant.contains(&number)
    }

    /// Returns the old versions.
    pub(super) fn old_versions(&self) -> Vec<Ino> {
        self.old_versions.iter().copied().collect()
    }

    /// Returns the count of old versions.
    pub(super) fn old_version_count(&self) -> usize {
        self.old_versions.len()
    }
}

#[cfg(test)]
mod tests;
