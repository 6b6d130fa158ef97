//! Concurrency limit on requests, with backoff.
//!
//! Two kinds of request wait in two queues: chunks, and everything else (documents, which the
//! listing of a directory waits for). A few permits are reserved for the latter, so that a scan of
//! thousands of chunks does not delay an `ls`. Within a kind, the order is first come, first
//! served.
//!
//! When a store throttles (429, 503), the limit is halved at once for all requests. After that it
//! grows by one with every round of other responses, as in TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Divisor of the number of permits that no chunk takes: an eighth, at least one.
const RESERVED_SHARE: usize = 8;
/// Time after a halving before the next one: the responses in flight are about the previous limit.
const HALVING_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::storage) struct ConcurrencyLimit {
    places: Arc<Semaphore>,
    /// Permits for chunks, which need one of `places` too.
    bulk: Arc<Semaphore>,
    state: Mutex<State>,
    /// Number of requests that hold a permit.
    pub(in crate::storage) in_flight: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct State {
    /// Maximum number of requests in flight while the store does not throttle.
    most: usize,
    /// Current maximum number of requests in flight.
    limit: usize,
    /// Existing permits: more than the limit while requests from before its reduction are in
    /// flight.
    places: usize,
    /// Maximum number of chunks in flight, and the number of existing permits for them.
    bulk_limit: usize,
    bulk_places: usize,
    /// Responses since the limit last changed.
    answers: usize,
    halved: Option<Instant>,
}

/// Permit of one request, until dropped.
#[derive(Debug)]
pub(super) struct Permit {
    place: Option<OwnedSemaphorePermit>,
    bulk: Option<OwnedSemaphorePermit>,
    limit: Arc<ConcurrencyLimit>,
}

impl ConcurrencyLimit {
    pub(in crate::storage) fn new(most: usize) -> Self {
        let most = most.max(1);
        let bulk = places_of_bulk(most);
        let state =
            State { most, limit: most, places: most, bulk_limit: bulk, bulk_places: bulk, answers: 0, halved: None };
        ConcurrencyLimit {
            places: Arc::new(Semaphore::new(most)),
            bulk: Arc::new(Semaphore::new(bulk)),
            state: Mutex::new(state),
            in_flight: Arc::default(),
        }
    }

    /// Returns the maximum number of requests in flight while the store does not throttle.
    #[cfg(test)]
    pub(in crate::storage) fn most(&self) -> usize {
        self.state.lock().most
    }

    /// Replaces the maximum. Requests in flight beyond it end as they are.
    pub(in crate::storage) fn set_most(&self, most: usize) {
        let most = most.max(1);
        let state = &mut *self.state.lock();
        state.limit = if state.limit == state.most { most } else { state.limit.min(most) };
        state.most = most;
        resize(&self.places, &mut state.places, state.limit);
        state.bulk_limit = places_of_bulk(most);
        resize(&self.bulk, &mut state.bulk_places, state.bulk_limit);
    }

    /// Waits for a permit; `bulk` is true for chunks.
    pub(super) async fn acquire(self: &Arc<Self>, bulk: bool) -> Permit {
        // Neither semaphore is ever closed; a request without a permit would still be correct.
        let bulk = if bulk { Arc::clone(&self.bulk).acquire_owned().await.ok() } else { None };
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Permit { place, bulk, limit: Arc::clone(self) }
    }

    /// Halves the limit, since the store throttles.
    pub(super) fn halve(&self) {
        let mut state = self.state.lock();
        state.answers = 0;
        if state.halved.is_some_and(|at| at.elapsed() < HALVING_INTERVAL) {
            return;
        }
        state.halved = Some(Instant::now());
        state.limit = (state.limit / 2).max(1);
        tracing::info!("the store is overloaded: at most {} requests at a time from now on", state.limit);
        let state = &mut *state;
        resize(&self.places, &mut state.places, state.limit);
    }

    /// Counts a response without throttling, and raises the limit by one after a round of them.
    pub(super) fn record_response(&self) {
        let mut state = self.state.lock();
        if state.limit >= state.most {
            return;
        }
        state.answers += 1;
        if state.answers < state.limit {
            return;
        }
        state.answers = 0;
        state.limit += 1;
        let state = &mut *state;
        resize(&self.places, &mut state.places, state.limit);
    }
}

/// Returns how many of `most` requests may be chunks.
fn places_of_bulk(most: usize) -> usize {
    let reserved = (most / RESERVED_SHARE).max(1).min(most - 1); // with a single permit, chunks take it too
    most - reserved
}

/// Changes the number of permits, `places`, towards `limit`. Permits that are taken are removed
/// when their requests end.
fn resize(semaphore: &Semaphore, places: &mut usize, limit: usize) {
    if *places < limit {
        semaphore.add_permits(limit - *places);
        *places = limit;
    } else {
        *places -= semaphore.forget_permits(*places - limit);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.in_flight.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.limit.state.lock();
        if let Some(place) = self.place.take().filter(|_| state.places > state.limit) {
            state.places -= 1;
            place.forget();
        }
        if let Some(bulk) = self.bulk.take().filter(|_| state.bulk_places > state.bulk_limit) {
            state.bulk_places -= 1;
            bulk.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(limit: &ConcurrencyLimit) -> usize {
        limit.places.available_permits()
    }

    #[tokio::test]
    async fn chunks_leave_places_for_documents() {
        let limit = Arc::new(ConcurrencyLimit::new(8));
        let mut chunks = Vec::new();
        for _ in 0..7 {
            chunks.push(limit.acquire(true).await);
        }
        let eighth = tokio::time::timeout(Duration::from_millis(20), limit.acquire(true)).await;
        assert!(eighth.is_err(), "a chunk took the place that is reserved for documents");
        drop(limit.acquire(false).await);
        chunks.pop();
        drop(limit.acquire(true).await);
    }

    #[tokio::test]
    async fn a_store_that_is_asked_too_much_is_asked_less_and_slowly_more() {
        let limit = Arc::new(ConcurrencyLimit::new(8));
        let held = [limit.acquire(false).await, limit.acquire(false).await, limit.acquire(false).await];
        limit.halve();
        limit.halve();
        assert_eq!(free(&limit), 1, "4 places, 3 of them taken");
        drop(held);
        assert_eq!(free(&limit), 4);
        for _ in 0..4 {
            limit.record_response();
        }
        assert_eq!(free(&limit), 5);
        for _ in 0..100 {
            limit.record_response();
        }
        assert_eq!(free(&limit), 8);
        // Permits in use at a reduction are removed when their requests end.
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(limit.acquire(false).await);
        }
        limit.state.lock().halved = None;
        limit.halve();
        drop(held);
        assert_eq!(free(&limit), 4);
    }

    #[tokio::test]
    async fn another_maximum_holds_at_once_for_new_requests() {
        let limit = Arc::new(ConcurrencyLimit::new(16));
        let mut held = Vec::new();
        for n in 0..16 {
            held.push(limit.acquire(n < 14).await);
        }
        limit.set_most(4);
        assert_eq!(free(&limit), 0);
        held.truncate(4);
        assert_eq!((free(&limit), limit.bulk.available_permits()), (0, 0));
        drop(held);
        assert_eq!((free(&limit), limit.bulk.available_permits()), (4, 3));
        limit.set_most(32);
        assert_eq!((free(&limit), limit.bulk.available_permits()), (32, 28));
        // A store that throttles stays at its lower limit, and the maximum is reached slowly.
        limit.halve();
        limit.set_most(64);
        assert_eq!((free(&limit), limit.bulk.available_permits()), (16, 56));
        for _ in 0..10_000 {
            limit.record_response();
        }
        assert_eq!(free(&limit), 64);
    }

    #[tokio::test]
    async fn one_place_is_enough_for_everybody() {
        let limit = Arc::new(ConcurrencyLimit::new(1));
        drop(tokio::time::timeout(Duration::from_secs(5), limit.acquire(false)).await);
        assert_eq!(limit.bulk.available_permits(), 1);
    }
}
