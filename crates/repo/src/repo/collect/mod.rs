//! Garbage collection: removal of objects that nothing needs any more (format notes 6.5).
//!
//! Needed are snapshots that refs lead to, that are younger than a given time, or that uncommitted
//! changes are based on; and for each of them its log, its manifests, and the chunk objects that
//! these name, however many chunks share one. All other objects of these four kinds are garbage.
//! They are removed in an order in which no remaining object refers to a removed one.
//!
//! # Safety beside concurrent writers
//!
//! In version 2, one write of `repo` decides everything: it removes the unneeded commits and
//! records the garbage collection. The objects that may be removed were listed before it. Every
//! action of another program therefore falls on one side of that write:
//!
//! - *Before*: published commits are found in the very state that is written, and everything they
//!   need is kept, including chunks of old commits that they refer to. If a ref or a new commit
//!   depends on a commit to remove, the write does not happen, and the collection starts again.
//! - *After*: no program can point a ref to a removed commit, or commit onto it, since it is not
//!   listed. A commit that was being prepared detects the collection when it is published
//!   ([`mark`]), and stores everything anew.
//!
//! Other programs do not detect a collection: objects that they have stored and not published are
//! safe by their age alone, as with the reference implementation. The given time must therefore lie
//! before the beginning of the oldest of their sessions.
//!
//! Version 1 has no single object to write. Refs are read once more after everything was decided;
//! objects that are not published by then are safe by their age alone.
//!
//! Copies of `repo` that are old enough are removed too, and their names in the operations log with
//! them ([`copies`]).
//!
//! A collection can be interrupted at any moment: the remaining garbage is left to the next one.
//! One that has removed everything says so ([`finished`]).

mod copies;
pub mod finished;
pub mod mark;
mod plan;
mod reach;
mod sweep;
mod v1;
mod v2;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use self::reach::ReachableObjects;
use self::sweep::Kind;
use super::progress::Progress;
use super::{Repository, check_storage_writable};
use icechunkfs_base::error::Result;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::RepoState;
use icechunkfs_store::storage::Storage;

/// Microseconds in a second.
const SECOND: u64 = 1_000_000;

/// Options of a garbage collection.
#[derive(Clone, Copy, Debug)]
pub struct GcOptions {
    /// Time before which an object must have been stored to be removed: microseconds since
    /// 1970-01-01 UTC.
    pub older_than: u64,
    /// True if nothing is removed and only the result is computed.
    pub dry_run: bool,
}

/// Objects that uncommitted changes need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uncommitted {
    /// Snapshots that the changes are based on.
    pub snapshots: BTreeSet<ObjectId>,
    /// Chunk objects that the changes refer to directly.
    pub chunks: BTreeSet<ObjectId>,
}

/// Function that finds the objects that uncommitted changes need. Called after the refs were read:
/// changes that begin later are based on the targets of those refs.
pub type UncommittedFinder = Arc<dyn Fn() -> BoxFuture<'static, Result<Uncommitted>> + Send + Sync>;

/// Number and size of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of objects.
    pub objects: u64,
    /// Total size, in bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// Result of a garbage collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Commits that `repo` no longer lists.
    pub commits: BTreeSet<ObjectId>,
    /// Removed snapshot files.
    pub snapshots: Count,
    /// Removed transaction logs.
    pub transaction_logs: Count,
    /// Removed manifest files.
    pub manifests: Count,
    /// Removed chunk objects.
    pub chunks: Count,
    /// Removed copies of `repo`.
    pub copies: Count,
    /// Objects kept for some of their chunks although others in them are dead; the bytes are those
    /// of the dead chunks.
    pub packs: Count,
    /// Objects with unrecognized names, which are kept.
    pub unknown: u64,
}

impl Collected {
    /// Returns the number and size of all removed objects.
    pub fn total(&self) -> Count {
        let all = [self.snapshots, self.transaction_logs, self.manifests, self.chunks, self.copies];
        all.iter().fold(Count::default(), |sum, one| Count {
            objects: sum.objects + one.objects,
            bytes: sum.bytes + one.bytes,
        })
    }
}

/// Removes the garbage that `options` select.
///
/// Fails with [`ReadOnly`](icechunkfs_base::error::ErrorKind::ReadOnly) if the repository takes no
/// writes, with [`Corrupt`](icechunkfs_base::error::ErrorKind::Corrupt) if a needed object cannot
/// be read, in which case nothing was removed, and with
/// [`Contended`](icechunkfs_base::error::ErrorKind::Contended) if every attempt lost its race.
pub async fn collect(
    repository: &Repository,
    options: GcOptions,
    clock: Clock,
    uncommitted: &UncommittedFinder,
    progress: &Progress,
) -> Result<Collected> {
    repository.check_writable()?;
    let storage = repository.storage();
    check_storage_writable(&**storage)?;
    match repository.version() {
        SpecVersion::V1 => v1::collect(storage, options, clock, uncommitted, progress).await,
        SpecVersion::V2 => v2::collect(storage, options, clock, uncommitted, progress).await,
    }
}

/// Objects that some snapshots need.
pub struct NeededObjects(Keep);

impl NeededObjects {
    /// Reads what `snapshots` of a repository with this state need.
    pub async fn of(
        storage: &Arc<dyn Storage>,
        state: &RepoState,
        snapshots: impl IntoIterator<Item = ObjectId>,
    ) -> Result<Self> {
        let mut keep = Keep::new(&Uncommitted::default(), v2::logs(state));
        keep.needed.add(storage, snapshots, &Progress::default()).await?;
        Ok(NeededObjects(keep))
    }

    /// Returns true if object `key` is one of them.
    pub fn has(&self, key: &str) -> bool {
        Kind::of(key).is_some_and(|(kind, id)| self.0.is_needed(kind, &id))
    }
}

/// Returns true if an object stored at `stored` is certainly older than `time`. Some stores report
/// whole seconds: the object may then have been stored at any moment of that second. An object
/// without a reported time (0) is never older.
fn is_older(stored: u64, time: u64) -> bool {
    if stored == 0 {
        return false;
    }
    if stored.is_multiple_of(SECOND) { stored.saturating_add(SECOND) <= time } else { stored < time }
}

/// Objects to keep: those that commits and uncommitted changes need, and the logs of removed
/// ancestors.
struct Keep {
    needed: ReachableObjects,
    logs: BTreeSet<ObjectId>,
}

impl Keep {
    fn new(uncommitted: &Uncommitted, logs: BTreeSet<ObjectId>) -> Self {
        let mut needed = ReachableObjects::default();
        for chunk in &uncommitted.chunks {
            needed.chunks.add_unknown_parts(*chunk);
        }
        Keep { needed, logs }
    }

    fn is_needed(&self, kind: Kind, id: &ObjectId) -> bool {
        match kind {
            Kind::Snapshot => self.needed.snapshots.contains(id),
            Kind::Log => self.needed.snapshots.contains(id) || self.logs.contains(id),
            Kind::Manifest => self.needed.manifests.contains(id),
            Kind::Chunk => self.needed.chunks.has(id),
        }
    }
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
