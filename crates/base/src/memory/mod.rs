//! The memory bound of the process: one budget for everything that is decoded.
//!
//! A few kilobytes of a repository can stand for gigabytes, compressed or as a false size. Before a
//! document is fetched or decoded, its size is reserved in this budget ([`reserve`],
//! [`reserve_blocking`]) and the [`Reservation`] is kept as long as the bytes live. A document that
//! does not fit is refused; no document of a real repository comes near the default. Values that
//! are made of a document are counted one by one ([`Meter`]), and carry their reservation
//! ([`Metered`]).
//!
//! Documents are decoded concurrently: a reservation that does not fit waits for others to be
//! released. A snapshot may be held for as long as a mount lives, so waiting must end: if nothing
//! is released for [`RELEASE_TIMEOUT`], the reservation fails. Caches evict documents before that
//! ([`register_cache`]). What the one that waits holds itself is not waited for.

mod buffers;
pub mod growing;
mod limit;
mod machine;
mod meter;
pub mod together;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

pub use self::buffers::{large_buffer, recycle, release_unused};
pub use self::limit::MemoryLimit;
pub use self::machine::{available_memory, cgroup_limit, configure_allocator, default_memory};
pub use self::meter::{Meter, Metered, SharedReservation};
use crate::error::{Error, ErrorKind, Result};

/// Smallest bound, in bytes: less leaves no room for a manifest of a few thousand chunks beside the
/// program itself.
pub const MIN_MEMORY: u64 = 16 << 20;
/// Memory of the program itself, in bytes: code, stacks, the runtime, requests in flight. Measured
/// in a release build: 9 MiB after a mount, of which 8 are code, and 10 with many readers.
pub const PROGRAM: u64 = 10 << 20;
/// Time to wait while nothing is released. Decoding 100 MiB takes a tenth of this.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Time after which one that waits asks the caches again. What others have reserved may go into a
/// cache when they finish, which releases nothing; and a cache that is asked at each attempt would
/// lose what is about to be used.
const ASK_INTERVAL: Duration = Duration::from_millis(20);

static BUDGET: LazyLock<Budget> = LazyLock::new(|| Budget {
    limit: AtomicU64::new(default_memory().saturating_sub(PROGRAM)),
    used: AtomicU64::new(0),
    releases: AtomicU64::new(0),
    caches: Mutex::default(),
});

/// Bound given by the user, in bytes; 0 for none.
static BOUND: AtomicU64 = AtomicU64::new(0);

/// Cache of decoded documents.
pub trait Evict: Send + Sync {
    /// Evicts documents of at least `bytes` bytes, or all.
    fn evict(&self, bytes: u64);
}

/// Content of a cache that has a lock around it.
pub trait EvictLocked: Send {
    /// Evicts like [`Evict::evict`].
    fn evict(&mut self, bytes: u64);
}

impl<T: EvictLocked> Evict for Mutex<T> {
    fn evict(&self, bytes: u64) {
        self.lock().evict(bytes);
    }
}

struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    /// Number of releases so far: as long as it grows, waiting is worthwhile.
    releases: AtomicU64,
    caches: Mutex<Vec<Weak<dyn Evict>>>,
}

/// Bytes reserved in the budget, released on drop.
#[derive(Debug, Default)]
pub struct Reservation {
    bytes: u64,
}

/// Sets the bound given by the user: the process may take `total` bytes.
pub fn set_bound(total: u64) {
    BOUND.store(total, Ordering::Relaxed);
    BUDGET.limit.store(total.max(MIN_MEMORY) - PROGRAM, Ordering::Relaxed);
}

/// Returns the bound given by the user, in bytes, if there is one.
pub fn explicit_bound() -> Option<u64> {
    Some(BOUND.load(Ordering::Relaxed)).filter(|said| *said > 0)
}

/// Returns the bytes that can be reserved at a time.
pub fn reservable() -> u64 {
    BUDGET.limit.load(Ordering::Relaxed)
}

/// Raises the default bound to `total` bytes. Has no effect on a higher bound.
pub fn raise_default_bound(total: u64) {
    BUDGET.limit.fetch_max(total.saturating_sub(PROGRAM), Ordering::Relaxed);
}

/// Registers a cache that must evict documents when the budget is short.
pub fn register_cache(cache: &Arc<impl Evict + 'static>) {
    let cache: Arc<dyn Evict> = Arc::clone(cache) as _;
    let mut caches = BUDGET.caches.lock();
    caches.retain(|cache| cache.strong_count() > 0);
    caches.push(Arc::downgrade(&cache));
}

thread_local! {
    /// False while this thread must not wait for memory.
    static MAY_WAIT: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
}

/// Calls `work`, whose reservations fail at once where they would have to wait.
pub fn without_waiting<T>(work: impl FnOnce() -> T) -> T {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            MAY_WAIT.set(self.0);
        }
    }
    let _reset = Reset(MAY_WAIT.replace(false));
    work()
}

/// Reserves `bytes` for `what`, on a thread that may block.
///
/// Errors: [`ErrorKind::OutOfMemory`] if the bound is lower, or other reservations are not
/// released.
pub fn reserve_blocking(bytes: u64, what: &str) -> Result<Reservation> {
    let mut waiter = Waiter::new(bytes, what)?;
    loop {
        match waiter.try_reserve()? {
            Some(reservation) => return Ok(reservation),
            None if !MAY_WAIT.get() => return Err(too_much(bytes, what, 0)),
            None => std::thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// Reserves `bytes` for `what` like [`reserve_blocking`], in a task.
pub async fn reserve(bytes: u64, what: &str) -> Result<Reservation> {
    let mut waiter = Waiter::new(bytes, what)?;
    loop {
        match waiter.try_reserve()? {
            Some(reservation) => return Ok(reservation),
            None => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Reserves `bytes` if there is room for them now, without evicting anything.
fn try_reserve(bytes: u64) -> Option<Reservation> {
    take(bytes).ok().map(|()| Reservation { bytes })
}

/// Returns the bytes of the budget that nobody has reserved.
fn unreserved() -> u64 {
    BUDGET.limit.load(Ordering::Relaxed).saturating_sub(BUDGET.used.load(Ordering::Relaxed))
}

/// Takes `bytes` of the budget. Fails with the bytes in use if it has too few.
fn take(bytes: u64) -> Result<(), u64> {
    let limit = BUDGET.limit.load(Ordering::Relaxed);
    let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= limit);
    BUDGET.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(drop)
}

impl Reservation {
    /// Returns the number of reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits off `bytes` of the reservation, or all of it if it has fewer.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation { bytes }
    }

    /// Adds the bytes of `other`.
    fn join(&mut self, mut other: Reservation) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Grows the reservation to `bytes` if there is room for them now. Returns false if there is
    /// not.
    fn try_grow(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let is_grown = take(more).is_ok();
        self.bytes += if is_grown { more } else { 0 };
        is_grown
    }

    /// Grows or shrinks the reservation to `bytes`. Growing may block the thread.
    pub fn resize(&mut self, bytes: u64, what: &str) -> Result<()> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => {
                // It cannot wait for what it has itself.
                let limit = reservable();
                if bytes > limit {
                    return Err(too_much(bytes, what, limit));
                }
                self.join(reserve_blocking(more, what)?);
            }
            None => drop(Reservation { bytes: std::mem::replace(&mut self.bytes, bytes) - bytes }),
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            BUDGET.used.fetch_sub(self.bytes, Ordering::Relaxed);
            BUDGET.releases.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Bytes together with their reservation.
#[derive(Debug)]
pub struct ReservedBytes<B = Vec<u8>> {
    bytes: B,
    _reservation: Reservation,
}

impl<B> ReservedBytes<B> {
    /// Joins `bytes` with the reservation that was made for them.
    pub fn new(bytes: B, reservation: Reservation) -> Self {
        ReservedBytes { bytes, _reservation: reservation }
    }
}

impl From<Vec<u8>> for ReservedBytes {
    /// Wraps bytes that this program has made itself, which need no reservation.
    fn from(bytes: Vec<u8>) -> Self {
        ReservedBytes { bytes, _reservation: Reservation::default() }
    }
}

impl From<Bytes> for ReservedBytes<Bytes> {
    /// Wraps bytes that this program has made itself, which need no reservation.
    fn from(bytes: Bytes) -> Self {
        ReservedBytes { bytes, _reservation: Reservation::default() }
    }
}

impl From<ReservedBytes> for ReservedBytes<Bytes> {
    fn from(ReservedBytes { bytes, _reservation }: ReservedBytes) -> Self {
        ReservedBytes { bytes: bytes.into(), _reservation }
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for ReservedBytes<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl<B: std::ops::Deref<Target = [u8]>> std::ops::Deref for ReservedBytes<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes of a buffer whose capacity is used again when they are dropped.
struct Recycled {
    buffer: Vec<u8>,
    /// Released first: the unused buffer has one of its own.
    reservation: Reservation,
}

impl AsRef<[u8]> for Recycled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.reservation));
        recycle(std::mem::take(&mut self.buffer));
    }
}

/// Returns `buffer` as bytes that release the reservation, and leave the buffer for others, when
/// the last clone is dropped.
pub fn recycled(buffer: Vec<u8>, reservation: Reservation) -> Bytes {
    Bytes::from_owner(Recycled { buffer, reservation })
}

/// Returns `bytes` that release the reservation when the last clone is dropped.
pub fn with_reservation(bytes: Bytes, reservation: Reservation) -> Bytes {
    Bytes::from_owner(ReservedBytes::new(bytes, reservation))
}

struct Waiter<'a> {
    bytes: u64,
    what: &'a str,
    releases: u64,
    since: Instant,
    /// When caches were last asked to evict.
    asked: Option<Instant>,
}

impl<'a> Waiter<'a> {
    fn new(bytes: u64, what: &'a str) -> Result<Self> {
        let limit = BUDGET.limit.load(Ordering::Relaxed);
        if bytes > limit {
            return Err(too_much(bytes, what, limit));
        }
        let releases = BUDGET.releases.load(Ordering::Relaxed);
        Ok(Waiter { bytes, what, releases, since: Instant::now(), asked: None })
    }

    fn try_reserve(&mut self) -> Result<Option<Reservation>> {
        let bytes = self.bytes;
        let limit = BUDGET.limit.load(Ordering::Relaxed);
        let mut taken = take(bytes);
        if taken.is_err() && buffers::release_unused() {
            taken = take(bytes);
        }
        let Err(used) = taken else { return Ok(Some(Reservation { bytes })) };
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASK_INTERVAL) {
            self.asked = Some(Instant::now());
            let caches: Vec<_> = BUDGET.caches.lock().iter().filter_map(Weak::upgrade).collect();
            caches.iter().for_each(|cache| cache.evict((used + bytes).saturating_sub(limit)));
        }
        let releases = BUDGET.releases.load(Ordering::Relaxed);
        if releases != self.releases {
            (self.releases, self.since) = (releases, Instant::now());
        } else if self.since.elapsed() > RELEASE_TIMEOUT {
            return Err(too_much(bytes, self.what, limit.saturating_sub(used)));
        }
        Ok(None)
    }
}

fn too_much(bytes: u64, what: &str, left: u64) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "{what} needs {} MiB, but the memory bound leaves {} MiB for it; raise --memory if you trust the \
             repository",
            bytes.div_ceil(1 << 20),
            left >> 20
        ),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Cache(Mutex<Option<Reservation>>);

    impl Evict for Cache {
        fn evict(&self, _bytes: u64) {
            drop(self.0.lock().take());
        }
    }

    // A single test, because the budget belongs to the process.
    #[test]
    fn what_does_not_fit_waits_is_made_room_for_or_is_refused() {
        let limit = BUDGET.limit.load(Ordering::Relaxed);
        let most = limit - (limit >> 3);
        assert_eq!(reserve_blocking(limit + 1, "a claim").unwrap_err().kind(), ErrorKind::OutOfMemory);

        let mut first = reserve_blocking(most, "the first").unwrap();
        let second = std::thread::spawn(move || reserve_blocking(most, "the second").unwrap());
        std::thread::sleep(RETRY_INTERVAL * 4);
        assert!(!second.is_finished(), "both fit");
        first.resize(1000, "less").unwrap();
        let second = second.join().unwrap();
        assert_eq!((first.bytes(), second.bytes()), (1000, most));

        let begin = Instant::now();
        assert!(first.resize(limit + 1, "more than all").is_err());
        let mut meter = Meter::new("a value").beside(second.bytes());
        assert!(meter.count(limit - second.bytes() + 1).is_err());
        assert!(begin.elapsed() < RELEASE_TIMEOUT, "waits for what it holds");

        let begin = Instant::now();
        let refused = reserve_blocking(most, "the third").unwrap_err();
        assert!(refused.to_string().contains("the third") && refused.to_string().contains("--memory"), "{refused}");
        assert!(begin.elapsed() >= RELEASE_TIMEOUT);

        let cache = Arc::new(Cache(Mutex::new(Some(second))));
        register_cache(&cache);
        reserve_blocking(most, "the fourth").unwrap();
        assert!(cache.0.lock().is_none());

        // Memory that was in use when the caches were asked goes into one of them while someone
        // waits.
        let cache = Arc::new(Cache(Mutex::new(None)));
        register_cache(&cache);
        let used = reserve_blocking(most, "what is in use").unwrap();
        let waiting = std::thread::spawn(move || reserve_blocking(most, "one that waits").map(drop));
        std::thread::sleep(RETRY_INTERVAL * 2);
        *cache.0.lock() = Some(used);
        waiting.join().unwrap().unwrap();

        // A buffer that is recycled while someone waits for memory, is not kept from those that
        // wait.
        let buffer = Vec::with_capacity(usize::try_from(limit >> 3).unwrap() + (1 << 20));
        let bytes = recycled(buffer, reserve_blocking(most, "the fifth").unwrap());
        let waiting = std::thread::spawn(move || reserve_blocking(most, "the sixth").map(drop));
        std::thread::sleep(RETRY_INTERVAL * 4);
        drop(bytes);
        waiting.join().unwrap().unwrap();
    }
}
