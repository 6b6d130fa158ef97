//! Removing what nothing needs any more (format notes 6.5).
//!
//! Needed is what refs lead to, what is younger than a given time, and what uncommitted work is based on; of each such snapshot its
//! log, its manifests, and the chunk objects that they name, however many chunks share one. All else of the four kinds of object
//! is garbage: it is removed in an order in which nothing that is left refers to what is gone.
//!
//! # How it is safe beside those who write
//!
//! In version 2 everything is decided by one write of `repo`, which takes out the commits that go and says that garbage is
//! collected. What may be removed was listed before it. So whatever another program does falls on one side of it:
//!
//! - *Before*: commits that were published are found in the very state that is written, and what they need is kept: chunks of old
//!   commits that they refer to, too. If something was made to hang on a commit that should go (a ref, a new commit), that write
//!   is not made, and all begins anew.
//! - *After*: nobody can make a ref to a commit that is gone, or commit onto it, since it is not listed. A commit that
//!   was being made finds out when it is published ([`mark`]), and stores everything anew.
//!
//! Other programs do not look for that: what they have stored and not published is safe by its age alone, as it is with the reference.
//! The time must therefore lie before the beginning of the oldest of their sessions.
//!
//! In version 1 there is no one object to write. Refs are looked at once more after everything was decided; what has not been
//! published then is safe by its age alone.
//!
//! Copies of `repo` that are old enough go too, and their names in the log of operations with them ([`copies`]).
//!
//! A collection can be interrupted at any moment: what is left over is garbage for the next one.

mod copies;
pub mod mark;
mod plan;
mod reach;
mod sweep;
mod v1;
mod v2;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;

use self::reach::Needed;
use super::Repository;
use super::update::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::format::envelope::SpecVersion;
use crate::format::ids::ObjectId;

/// Microseconds in a second.
const SECOND: u64 = 1_000_000;

/// What is to be removed.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Only objects that were stored before this time: microseconds since 1970-01-01 UTC.
    pub older_than: u64,
    /// Only find out.
    pub dry_run: bool,
}

/// What uncommitted work needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uncommitted {
    /// Snapshots that it is based on.
    pub snapshots: BTreeSet<ObjectId>,
    /// Chunk objects that it refers to by itself.
    pub chunks: BTreeSet<ObjectId>,
}

/// Finds out what uncommitted work needs. It is asked after the refs were read, each time that they are: whoever begins to work
/// later begins with what they lead to.
pub type FindUncommitted = Arc<dyn Fn() -> BoxFuture<'static, Result<Uncommitted>> + Send + Sync>;

/// Objects of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Commits that `repo` does not list any more.
    pub commits: BTreeSet<ObjectId>,
    /// Snapshot files.
    pub snapshots: Count,
    /// Transaction logs.
    pub transaction_logs: Count,
    /// Manifest files.
    pub manifests: Count,
    /// Chunk objects.
    pub chunks: Count,
    /// Copies of `repo`.
    pub copies: Count,
    /// Objects that stay for some chunks in them while others are gone; the bytes are those of the latter.
    pub packs: Count,
    /// Objects whose names mean nothing here: they stay.
    pub unknown: u64,
}

impl Collected {
    /// All objects that were removed.
    pub fn total(&self) -> Count {
        let all = [self.snapshots, self.transaction_logs, self.manifests, self.chunks, self.copies];
        all.iter().fold(Count::default(), |sum, one| Count {
            objects: sum.objects + one.objects,
            bytes: sum.bytes + one.bytes,
        })
    }
}

/// How far a collection is.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    removing: AtomicU64,
}

impl Progress {
    /// Files that were read or removed, and how many there are, as far as is known.
    pub fn files(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// Whether objects are being removed.
    pub fn is_removing(&self) -> bool {
        self.removing.load(Ordering::Relaxed) > 0
    }

    fn expect(&self, files: usize) {
        self.total.fetch_add(files as u64, Ordering::Relaxed);
    }

    fn step(&self) {
        self.steps(1);
    }

    fn steps(&self, files: usize) {
        self.done.fetch_add(files as u64, Ordering::Relaxed);
    }

    fn begin_removing(&self) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
        self.removing.store(1, Ordering::Relaxed);
    }
}

/// Removes what is garbage and `wanted`.
///
/// Errors: [`ErrorKind::ReadOnly`] if the repository takes no writes; [`ErrorKind::Corrupt`] if something that is needed cannot be
/// read, and then nothing was removed; [`ErrorKind::Contended`] if others were faster in every try.
pub async fn collect(
    repository: &Repository,
    wanted: Wanted,
    clock: Clock,
    uncommitted: &FindUncommitted,
    progress: &Progress,
) -> Result<Collected> {
    repository.check_writable()?;
    let storage = repository.storage();
    if let Some(why) = storage.read_only() {
        return Err(Error::new(ErrorKind::ReadOnly, format!("{}: {why}", storage.location())));
    }
    match repository.version() {
        SpecVersion::V1 => v1::collect(storage, wanted, uncommitted, progress).await,
        SpecVersion::V2 => v2::collect(storage, wanted, clock, uncommitted, progress).await,
    }
}

/// Whether an object that was stored at `stored` is older than `time` for certain. Some stores tell the time by the second: it may have
/// been any moment of that second. One that tells no time is not older than anything.
fn is_older(stored: u64, time: u64) -> bool {
    if stored == 0 {
        return false;
    }
    if stored.is_multiple_of(SECOND) { stored.saturating_add(SECOND) <= time } else { stored < time }
}

/// What the kept objects are, and what was found of each kind.
struct Found {
    needed: Needed,
    logs: BTreeSet<ObjectId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_over_when_it_is_over() {
        assert!(is_older(1_500_001, 1_500_002) && !is_older(1_500_001, 1_500_001));
        assert!(!is_older(1_000_000, 1_999_999) && is_older(1_000_000, 2_000_000));
        assert!(!is_older(0, u64::MAX));
    }
}
