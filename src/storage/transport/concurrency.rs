//! Concurrency limit on requests, with backoff.
//!
//! Two kinds of request wait in two queues: chunks, and everything else (documents, which the listing of a directory waits for). A few
//! permits are reserved for the latter, so that a scan of thousands of chunks does not delay an `ls`. Within a kind, the order is first
//! come, first served.
//!
//! When a store throttles (429, 503), the limit is halved at once for all requests. After that it grows by one with every round of other
//! responses, as in TCP.

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
pub(super) struct ConcurrencyLimit {
    places: Arc<Semaphore>,
    /// Permits for chunks, which need one of `places` too.
    bulk: Arc<Semaphore>,
    most: usize,
    state: Mutex<State>,
    /// Number of requests that hold a permit.
    pub(super) in_flight: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct State {
    /// Current maximum number of requests in flight.
    limit: usize,
    /// Existing permits: more than the limit while requests from before its reduction are in flight.
    places: usize,
    /// Responses since the limit last changed.
    answers: usize,
    halved: Option<Instant>,
}

/// Permit of one request, until dropped.
#[derive(Debug)]
pub(super) struct Permit {
    place: Option<OwnedSemaphorePermit>,
    _bulk: Option<OwnedSemaphorePermit>,
    limit: Arc<ConcurrencyLimit>,
}

impl ConcurrencyLimit {
    pub(super) fn new(most: usize) -> Self {
        let most = most.max(1);
        let state = State { limit: most, places: most, answers: 0, halved: None };
        let reserved = (most / RESERVED_SHARE).max(1).min(most - 1); // with a single permit, chunks take it too
        ConcurrencyLimit {
            places: Arc::new(Semaphore::new(most)),
            bulk: Arc::new(Semaphore::new(most - reserved)),
            most,
            state: Mutex::new(state),
            in_flight: Arc::default(),
        }
    }

    /// Waits for a permit; `bulk` is true for chunks.
    pub(super) async fn acquire(self: &Arc<Self>, bulk: bool) -> Permit {
        // Neither semaphore is ever closed; a request without a permit would still be correct.
        let bulk = if bulk { Arc::clone(&self.bulk).acquire_owned().await.ok() } else { None };
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Permit { place, _bulk: bulk, limit: Arc::clone(self) }
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
        tracing::info!("the store is asked too much: {} requests at a time from now on", state.limit);
        let spare = state.places.saturating_sub(state.limit);
        // The other permits are removed when their requests end.
        state.places -= self.places.forget_permits(spare);
    }

    /// Counts a response without throttling, and raises the limit by one after a round of them.
    pub(super) fn record_response(&self) {
        let mut state = self.state.lock();
        if state.limit == self.most {
            return;
        }
        state.answers += 1;
        if state.answers < state.limit {
            return;
        }
        state.answers = 0;
        state.limit += 1;
        if state.places < state.limit {
            state.places += 1;
            self.places.add_permits(1);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.in_flight.fetch_sub(1, Ordering::Relaxed);
        let Some(place) = self.place.take() else { return };
        let mut state = self.limit.state.lock();
        if state.places > state.limit {
            state.places -= 1;
            place.forget();
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
    async fn one_place_is_enough_for_everybody() {
        let limit = Arc::new(ConcurrencyLimit::new(1));
        drop(tokio::time::timeout(Duration::from_secs(5), limit.acquire(false)).await);
        assert_eq!(limit.bulk.available_permits(), 1);
    }
}
