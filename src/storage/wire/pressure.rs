//! How many requests are under way.
//!
//! Two kinds wait in two queues: chunks, and everything else (documents, which somebody who lists a directory waits for). A
//! few of the places are kept for the latter, so that a scan of thousands of chunks does not hold an `ls` up. Within a kind
//! it is first come, first served.
//!
//! A store that says that it is asked too much (429, 503) is asked half as much, at once and for all, and after that a little
//! more with every round of answers that are none of these, as TCP does it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The part of all places that no chunk takes: an eighth, one at least.
const KEPT: usize = 8;
/// How soon after it was halved the number may be halved again: the answers that are under way are about the number before.
const COOLING: Duration = Duration::from_secs(1);

/// Places for requests.
#[derive(Debug)]
pub(super) struct Pressure {
    places: Arc<Semaphore>,
    /// Places for chunks, of those.
    bulk: Arc<Semaphore>,
    most: usize,
    state: Mutex<State>,
    /// Requests that have a place.
    under_way: AtomicUsize,
}

#[derive(Debug)]
struct State {
    /// How many requests may be under way now.
    limit: usize,
    /// Places that there are: more than the limit while requests from before it sank are under way.
    places: usize,
    /// Answers since the limit last changed.
    answers: usize,
    halved: Option<Instant>,
}

/// A place for a request, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    place: Option<OwnedSemaphorePermit>,
    _bulk: Option<OwnedSemaphorePermit>,
    pressure: Arc<Pressure>,
}

impl Pressure {
    /// Places for `most` requests.
    pub(super) fn new(most: usize) -> Self {
        let most = most.max(1);
        let state = State { limit: most, places: most, answers: 0, halved: None };
        let kept = (most / KEPT).max(1).min(most - 1); // with one place for all, chunks take it too
        Pressure {
            places: Arc::new(Semaphore::new(most)),
            bulk: Arc::new(Semaphore::new(most - kept)),
            most,
            state: Mutex::new(state),
            under_way: AtomicUsize::new(0),
        }
    }

    /// Requests that have a place.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Waits for a place.
    pub(super) async fn enter(self: &Arc<Self>, bulk: bool) -> Permit {
        // Neither is ever closed; without a place a request would still be right.
        let bulk = if bulk { Arc::clone(&self.bulk).acquire_owned().await.ok() } else { None };
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Permit { place, _bulk: bulk, pressure: Arc::clone(self) }
    }

    /// The store says that it is asked too much.
    pub(super) fn throttled(&self) {
        let mut state = self.state.lock();
        state.answers = 0;
        if state.halved.is_some_and(|at| at.elapsed() < COOLING) {
            return;
        }
        state.halved = Some(Instant::now());
        state.limit = (state.limit / 2).max(1);
        tracing::info!("the store is asked too much: {} requests at a time from now on", state.limit);
        let spare = state.places.saturating_sub(state.limit);
        // The rest goes as its requests end.
        state.places -= self.places.forget_permits(spare);
    }

    /// The store has answered.
    pub(super) fn answered(&self) {
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

    fn leave(&self, place: OwnedSemaphorePermit) {
        let mut state = self.state.lock();
        if state.places > state.limit {
            state.places -= 1;
            place.forget();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.pressure.under_way.fetch_sub(1, Ordering::Relaxed);
        if let Some(place) = self.place.take() {
            self.pressure.leave(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(pressure: &Pressure) -> usize {
        pressure.places.available_permits()
    }

    #[tokio::test]
    async fn chunks_leave_places_for_documents() {
        let pressure = Arc::new(Pressure::new(8));
        let mut chunks = Vec::new();
        for _ in 0..7 {
            chunks.push(pressure.enter(true).await);
        }
        let eighth = tokio::time::timeout(Duration::from_millis(20), pressure.enter(true)).await;
        assert!(eighth.is_err(), "a chunk took the place that is kept for documents");
        drop(pressure.enter(false).await);
        chunks.pop();
        drop(pressure.enter(true).await);
    }

    #[tokio::test]
    async fn a_store_that_is_asked_too_much_is_asked_less_and_slowly_more() {
        let pressure = Arc::new(Pressure::new(8));
        let held = [pressure.enter(false).await, pressure.enter(false).await, pressure.enter(false).await];
        pressure.throttled();
        pressure.throttled();
        assert_eq!(free(&pressure), 1, "4 places, 3 of them taken");
        drop(held);
        assert_eq!(free(&pressure), 4);
        for _ in 0..4 {
            pressure.answered();
        }
        assert_eq!(free(&pressure), 5);
        for _ in 0..100 {
            pressure.answered();
        }
        assert_eq!(free(&pressure), 8);
        // What is under way when it sinks goes as it ends.
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(pressure.enter(false).await);
        }
        pressure.state.lock().halved = None;
        pressure.throttled();
        drop(held);
        assert_eq!(free(&pressure), 4);
    }

    #[tokio::test]
    async fn one_place_is_enough_for_everybody() {
        let pressure = Arc::new(Pressure::new(1));
        drop(tokio::time::timeout(Duration::from_secs(5), pressure.enter(false)).await);
        assert_eq!(pressure.bulk.available_permits(), 1);
    }
}
