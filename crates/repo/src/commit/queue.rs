//! The line of writers that lost races for the repository, so that they commit one after another.
//!
//! Each attempt to publish replaces one object on condition that nobody else has. With many writers
//! most attempts are lost, and each lost one costs the store, the network and the winner time: the
//! more writers, the fewer commits. A writer that has lost twice therefore lines up: it stores a
//! ticket below [`FOLDER`], lists the folder, and attempts again when the tickets before its own
//! are gone. Every writer looks for a line while it opens the repository, and lines up if anybody
//! waits: else one that commits again and again would always be faster than those that wait.
//!
//! The line is advice. Publication compares as ever, so that nothing is lost by writers that ignore
//! the line, as the reference implementation does. A ticket counts as long as its writer renews it:
//! a writer that dies in the line delays others by [`LEASE`] at most, whatever the clocks of the
//! machines say, since each writer measures the lease by its own clock from the moment at which it
//! saw the ticket change. Nobody waits longer than [`LONGEST_WAIT`], whatever the store lists.
//!
//! The next in line does not wait until the first one's ticket is gone, but until the branch's
//! object has changed: it then has the state that its attempt begins with, one round trip earlier.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tracing::{debug, info};

use super::progress::CommitProgress;
use crate::repo::Repository;
use crate::repo::watch::{BranchWatch, CheckResult};
use icechunkfs_base::error::Result;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::storage::{Condition, Storage};

/// Folder of the tickets, which the reference implementation does not look into.
const FOLDER: &str = "queue/";
/// Time after which a ticket that does not change is ignored and removed. An attempt takes a second
/// on a slow network.
const LEASE: Duration = Duration::from_secs(8);
/// Age from which on a ticket is removed by writers that see it, in microseconds: many leases,
/// since it goes by the clocks of store and machine.
const FORGOTTEN: u64 = 120 * 1_000_000;
/// Interval at which a waiting writer renews its ticket: several chances within a lease.
const RENEWAL: Duration = Duration::from_secs(2);
/// Pause between two looks of a writer at the head of the line, besides the round trip.
const LOOK: Duration = Duration::from_millis(5);
/// Pause between two looks for each writer ahead: less than a commit takes.
const LOOK_FOR_EACH: Duration = Duration::from_millis(60);
/// Longest pause between two looks.
const LONGEST_LOOK: Duration = Duration::from_millis(1500);
/// Writers ahead from which on a turn is near.
const NEAR: usize = 2;
/// Longest time in the line: that of some thousand commits.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Tickets that are counted. A longer line is none of this program's.
const MAX_TICKETS: usize = 10_000;
/// Difference between the clocks of the store and this machine from which on tickets have the
/// store's time, in seconds: the store tells its time in whole seconds.
const NOTICEABLE: i64 = 5;

/// Place of a writer in the line.
#[derive(Debug)]
pub(super) struct PlaceInLine {
    key: String,
    begun: Instant,
    renewed: Instant,
    /// Modification times of other tickets, and when they were first seen.
    seen: HashMap<String, (u64, Instant)>,
    watch: Option<BranchWatch>,
    /// True if the branch was looked at when one writer was ahead: its next change is the commit of
    /// that one.
    is_watched: bool,
    /// True if the changes were rebased when the turn was near.
    has_caught_up: bool,
    is_turn: bool,
}

/// Ticket in a listing, and the time at which it was stored by the store's clock.
type Ticket = (String, u64);

/// Returns true if there is a line. Removes tickets that were forgotten long ago: with a time in
/// the future nobody would wait for them, and every writer would line up because of them.
pub(super) async fn is_in_use(storage: &dyn Storage, clock: Clock) -> bool {
    let Some(tickets) = tickets(storage).await else { return false };
    let now = store_time(storage, clock);
    let is_forgotten = |(_, modified): &Ticket| *modified != 0 && modified.saturating_add(FORGOTTEN) < now;
    let (forgotten, waiting): (Vec<Ticket>, Vec<Ticket>) = tickets.into_iter().partition(is_forgotten);
    if !forgotten.is_empty() {
        let keys: Vec<String> = forgotten.into_iter().map(|(key, _)| key).collect();
        // The next writer finds those that stay.
        let _ = storage.delete(&keys).await;
    }
    !waiting.is_empty()
}

/// Returns the store's time as far as it is known, in microseconds since 1970-01-01 UTC.
fn store_time(storage: &dyn Storage, clock: Clock) -> u64 {
    let ahead = storage.capabilities().clock.ahead().filter(|ahead| ahead.abs() > NOTICEABLE).unwrap_or_default();
    clock().saturating_add_signed(ahead.saturating_mul(1_000_000))
}

/// Returns the tickets in order. None if they cannot be listed, or if there are too many.
async fn tickets(storage: &dyn Storage) -> Option<Vec<Ticket>> {
    let mut found = Vec::new();
    let mut add = |object: icechunkfs_store::storage::ObjectInfo| {
        if found.len() <= MAX_TICKETS {
            found.push((object.key, object.modified));
        }
    };
    match storage.for_each(FOLDER, &mut add).await {
        Ok(()) if found.len() <= MAX_TICKETS => {
            found.sort();
            Some(found)
        }
        Ok(()) => None,
        Err(error) => {
            debug!("the line of writers cannot be listed: {error}");
            None
        }
    }
}

impl PlaceInLine {
    /// Takes the last place. Returns `None` if no ticket can be stored: then there is no line.
    pub(super) async fn take(storage: &dyn Storage, clock: Clock) -> Option<Self> {
        let now = store_time(storage, clock);
        let key = format!("{FOLDER}{now:020}-{}", ObjectId::random().ok()?);
        let now = Instant::now();
        let place = PlaceInLine {
            key,
            begun: now,
            renewed: now,
            seen: HashMap::new(),
            watch: None,
            is_watched: false,
            has_caught_up: false,
            is_turn: false,
        };
        match place.store(storage).await {
            Ok(()) => Some(place),
            Err(error) => {
                debug!("no place in the line of writers: {error}");
                None
            }
        }
    }

    async fn store(&self, storage: &dyn Storage) -> Result<()> {
        let text = Bytes::from_static(b"icechunkfs: a writer waits for its turn to commit\n");
        storage.put(&self.key, text, Condition::Always).await
    }

    /// Returns true if [`PlaceInLine::wait`] returned since it was this writer's turn.
    pub(super) fn is_turn(&self) -> bool {
        self.is_turn
    }

    /// Waits until it is this writer's turn, and returns the repository in its current state.
    /// `repository` is the state that the caller knows. Returns earlier ([`PlaceInLine::is_turn`]
    /// is false) when the turn is near, so that the caller reads what it has missed while it waits;
    /// in version 1, where missed commits are found one after another, whenever there are some.
    pub(super) async fn wait(
        &mut self,
        storage: &Arc<dyn Storage>,
        repository: Repository,
        branch: &str,
        progress: &CommitProgress,
    ) -> Result<Repository> {
        let must_keep_up = repository.version() == SpecVersion::V1;
        let mut watch = self.watch.take().unwrap_or_else(|| BranchWatch::new(&repository, branch));
        let mut latest = repository;
        let mut is_new = false;
        let mut is_near = true;
        self.is_turn = false;
        while self.begun.elapsed() < LONGEST_WAIT {
            progress.check()?;
            if self.renewed.elapsed() >= RENEWAL {
                self.renewed = Instant::now();
                // A failure costs the place, nothing else.
                let _ = self.store(&**storage).await;
            }
            let must_look = is_near || must_keep_up;
            let look = async { if must_look { watch.check().await.map(Some) } else { Ok(None) } };
            let (tickets, changed) = tokio::join!(tickets(&**storage), look);
            let was_changed = match changed? {
                Some(CheckResult::Changed(repository, _)) => {
                    watch.confirm();
                    (latest, is_new) = (*repository, true);
                    true
                }
                Some(CheckResult::NotFound) => {
                    self.is_turn = true;
                    return Repository::open(Arc::clone(storage)).await;
                }
                Some(CheckResult::Unchanged) | None => false,
            };
            let ahead = match tickets {
                Some(tickets) => self.ahead(&**storage, &tickets).await,
                None => None,
            };
            let others = match ahead {
                // Nobody is ahead, or others have removed this ticket since it was not renewed in
                // time.
                None | Some(0) if must_look => {
                    self.is_turn = true;
                    return Ok(latest);
                }
                None | Some(0) => {
                    is_near = true;
                    continue;
                }
                Some(1) if self.is_watched && was_changed => {
                    self.is_turn = true;
                    return Ok(latest);
                }
                Some(others) => others,
            };
            self.is_watched = others == 1 && must_look;
            is_near = others <= NEAR;
            if is_new && must_look && (must_keep_up || (is_near && !self.has_caught_up)) {
                self.has_caught_up |= is_near;
                self.watch = Some(watch);
                return Ok(latest);
            }
            let pause = match u32::try_from(others - 1) {
                Ok(0) => LOOK,
                Ok(others) => LOOK_FOR_EACH.saturating_mul(others).min(LONGEST_LOOK),
                Err(_) => LONGEST_LOOK,
            };
            tokio::time::sleep(pause).await;
        }
        info!("waited {} s for other writers: trying beside them", LONGEST_WAIT.as_secs());
        self.is_turn = true;
        Repository::open(Arc::clone(storage)).await
    }

    /// Returns the number of writers ahead, and removes the tickets of those that are gone. None if
    /// this writer has no ticket any more.
    async fn ahead(&mut self, storage: &dyn Storage, tickets: &[Ticket]) -> Option<usize> {
        let now = Instant::now();
        let at = tickets.iter().position(|(key, _)| *key == self.key)?;
        let mut gone = Vec::new();
        let mut ahead = 0;
        let mut seen = HashMap::new();
        for (key, modified) in tickets.iter().take(at) {
            let since = match self.seen.get(key) {
                Some((last, since)) if last == modified => *since,
                _ => now,
            };
            if now.duration_since(since) > LEASE {
                gone.push(key.clone());
            } else {
                ahead += 1;
                seen.insert(key.clone(), (*modified, since));
            }
        }
        self.seen = seen;
        if !gone.is_empty() {
            info!("{} writers that waited to commit are gone", gone.len());
            // Others remove them too, and nothing depends on it.
            let _ = storage.delete(&gone).await;
        }
        Some(ahead)
    }

    /// Leaves the line.
    pub(super) async fn leave(self, storage: &dyn Storage) {
        if let Err(error) = storage.delete(&[self.key]).await {
            debug!("the ticket of this writer stays until others remove it: {error}");
        }
    }
}
