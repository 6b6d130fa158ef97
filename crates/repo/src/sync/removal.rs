//! Objects at the destination that a collection of garbage may remove yet.
//!
//! A collection removes the objects that no ref led to when it began, also if a push has made a ref
//! that leads there since. A copy has to keep the names of objects, so that nothing helps but to
//! wait until the collection has ended.

use std::collections::HashSet;
use std::time::Duration;

use tracing::info;

use super::Failure;
use crate::repo::Repository;
use crate::repo::clock::TOLERANCE;
use crate::repo::collect::NeededObjects;
use crate::repo::collect::finished::{UnfinishedCollection, unfinished_collection};
use crate::repo::collect::mark::MAX_COLLECTION_TIME;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::times::{Clock, format_time};
use icechunkfs_format::format::ids::ObjectId;

/// Longest wait for the end of a collection.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Time between two looks for its end.
const PAUSE: Duration = Duration::from_millis(500);

/// Object that was at the destination before the copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundObject<'a> {
    pub(super) key: &'a str,
    /// Time of storing by the store's clock, in microseconds since 1970-01-01 UTC, if it is known.
    pub(super) stored: Option<u64>,
}

/// Waits for the end of a collection that may remove some of the objects `found`, which no ref of
/// `destination` leads to: its refs lead to the commits `present`. Returns true if it has waited:
/// then objects may be gone.
///
/// Errors: [`ErrorKind::Busy`] if the collection does not end, or nothing tells that it has.
pub(super) async fn wait(
    destination: &Repository,
    found: &[FoundObject<'_>],
    present: &HashSet<ObjectId>,
    clock: Clock,
) -> Result<bool, Failure> {
    let Some(state) = destination.state()?.filter(|_| !found.is_empty()) else { return Ok(false) };
    let place = || destination.storage().location().to_owned();
    let unfinished = unfinished_collection(destination, clock()).await.context(place)?;
    // Of a collection that the log has no room for any more, nothing would tell when it can be
    // forgotten.
    let Some(UnfinishedCollection::Begun(begun)) = unfinished else { return Ok(false) };
    // The store's clock gives the time of an object, and another machine's that of the collection.
    let first_safe = begun.saturating_add(u64::try_from(TOLERANCE.as_micros()).unwrap_or(u64::MAX));
    let mut doubtful: Vec<&str> =
        found.iter().filter(|one| one.stored.is_none_or(|at| at < first_safe)).map(|one| one.key).collect();
    if doubtful.is_empty() {
        return Ok(false);
    }
    let needed = NeededObjects::of(destination.storage(), &state, present.iter().copied()).await.context(place)?;
    doubtful.retain(|key| !needed.has(key));
    let Some(first) = doubtful.first() else { return Ok(false) };
    info!("{}: waiting for a collection of garbage that began at {}", place(), format_time(begun));
    let deadline = tokio::time::Instant::now() + MAX_WAIT;
    while tokio::time::Instant::now() < deadline {
        tokio::time::sleep(PAUSE).await;
        let unfinished = unfinished_collection(destination, clock()).await.context(place)?;
        if !matches!(unfinished, Some(UnfinishedCollection::Begun(_))) {
            return Ok(true);
        }
    }
    Err(Failure::Final(Error::new(
        ErrorKind::Busy,
        format!(
            "{}: a collection of garbage began at {} and may still remove {} objects ({first}{}) that are needed: no \
             ref was moved. Repeat this when it has ended, or after {} at the latest, which continues the copy. If it \
             has ended, `icechunkfs gc` there removes these objects, and the next push or pull copies them again",
            place(),
            format_time(begun),
            doubtful.len(),
            if doubtful.len() > 1 { ", ..." } else { "" },
            format_time(begun.saturating_add(MAX_COLLECTION_TIME)),
        ),
    )))
}
