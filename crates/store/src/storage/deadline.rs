//! Time limits of operations on a store: one rule for reads, writes, listings and credentials.
//!
//! An operation has a time budget (`--timeout`). Bytes that arrive or leave extend it by the time
//! that they take at the minimum rate, but never beyond a whole budget from now. An operation
//! therefore ends when it moves less than the minimum rate over the length of a budget, however
//! many bytes a store has announced. Parallel transfers share the network: each must reach its
//! share of the rate.
//!
//! Only a transfer in progress extends the limit. A new request within the operation (a retry, the
//! next page of a listing) gets the rest of the original budget, so that a store cannot keep an
//! operation alive with one short response after another. The requests of an operation find it by a
//! task-local value: the store's client between them passes nothing on.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinError;
use tokio::time::Instant;

use super::settings::Settings;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Default of `--min-rate`, in bytes per second, for all transfers of a store together: half of
/// what a link of 1 Mbit/s carries.
pub(super) const MIN_RATE: u64 = 64 << 10;

/// Limit of a reader that stops by itself once it has its bytes.
pub(super) const UNBOUNDED: u64 = u64::MAX;

tokio::task_local! {
    static CURRENT: Arc<Operation>;
}

/// Time limit rule of the operations on a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    budget: Duration,
    /// Minimum rate, in bytes per second.
    rate: u64,
}

#[derive(Debug)]
pub(super) struct Operation {
    clock: Mutex<Expiry>,
    moved: AtomicU64,
    /// True if the last request failed, so that the next one is a retry.
    failed: AtomicBool,
    /// Failures of its requests, by their ids. There are as many as requests at the same time,
    /// mostly none.
    failures: Mutex<Vec<(u64, Failures)>>,
    /// Decoded end of the path in the URL of the object that is read, and the maximum number of its
    /// bytes.
    object: Option<(String, u64)>,
}

/// Failures of a request and its retries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failures {
    pub(super) count: u64,
    /// Time of the last one.
    pub(super) last: Instant,
}

/// Expiry of an operation or of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expiry {
    deadline: Deadline,
    /// Expiry without the extension by the current transfer.
    base: Instant,
    expires: Instant,
}

impl Deadline {
    /// Creates a rule by which operations may take `budget`, and more as long as they move
    /// [`MIN_RATE`].
    pub(super) fn new(budget: Duration) -> Self {
        Deadline { budget, rate: MIN_RATE }
    }

    pub(super) fn of(settings: &Settings) -> Self {
        Deadline { budget: settings.budget(), rate: settings.min_rate.unwrap_or(MIN_RATE).max(1) }
    }

    /// Returns the time within which the minimum rate must be reached.
    pub(super) fn budget(&self) -> Duration {
        self.budget
    }

    pub(super) fn with_budget(self, budget: Duration) -> Self {
        Deadline { budget, ..self }
    }

    /// Returns the time that `bytes` take at the minimum rate if `sharers` transfers share the
    /// network.
    pub(super) fn time_of(&self, bytes: u64, sharers: usize) -> Duration {
        let seconds = bytes as f64 * sharers.max(1) as f64 / self.rate as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Runs `work` within the time limit; errors name `what`.
    pub(super) async fn run<T>(&self, what: impl Display, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.run_as(Operation::new(*self, None), what, work).await
    }

    /// Runs work that reads at most `limit` bytes of an object whose URL path ends with `key`,
    /// otherwise like [`Deadline::run`].
    pub(super) async fn read<T>(
        &self,
        key: &str,
        limit: u64,
        what: impl Display,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.run_as(Operation::new(*self, Some((key.to_owned(), limit))), what, work).await
    }

    /// Runs work as a part of `operation`, which the caller keeps, otherwise like
    /// [`Deadline::run`].
    pub(super) async fn run_as<T>(
        &self,
        operation: Arc<Operation>,
        what: impl Display,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let work = CURRENT.scope(Arc::clone(&operation), work);
        let done = until_expired(|| operation.clock.lock().expires, work).await;
        done.unwrap_or_else(|| Err(self.too_slow(what, operation.moved.load(Ordering::Relaxed))))
    }

    fn too_slow(&self, what: impl Display, moved: u64) -> Error {
        if moved == 0 {
            return timed_out(what, self.budget);
        }
        Error::new(
            ErrorKind::Timeout,
            format!(
                "{what}: the storage was too slow: after {moved} bytes, it did not keep up {} bytes a second over {} s (--min-rate, \
                 --timeout)",
                self.rate,
                self.budget.as_secs_f32()
            ),
        )
    }
}

/// Runs `work` until the time that `expires` returns, which may move meanwhile. Returns `None` if
/// the time has passed.
pub(super) async fn until_expired<T>(expires: impl Fn() -> Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let at = expires();
        match tokio::time::timeout_at(at, &mut work).await {
            Ok(done) => return Some(done),
            Err(_) if expires() > at => {}
            Err(_) => return None,
        }
    }
}

/// Runs `work` on a blocking thread for at most `limit`; a thread that takes longer is abandoned.
/// Errors name `what`.
pub(super) async fn run_blocking<T: Send + 'static>(
    what: &str,
    limit: Duration,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await {
        Ok(done) => flatten_join(what, done),
        Err(_) => Err(timed_out(what, limit)),
    }
}

/// Returns the result of blocking work, or the error of a thread that ended early.
pub(super) fn flatten_join<T>(what: &str, done: Result<Result<T>, JoinError>) -> Result<T> {
    done.unwrap_or_else(|panicked| Err(Error::with_source(ErrorKind::Io, what, panicked)))
}

pub(super) fn timed_out(what: impl Display, deadline: Duration) -> Error {
    Error::new(ErrorKind::Timeout, format!("{what}: the storage did not answer within {} s", deadline.as_secs_f32()))
}

impl Operation {
    /// Creates an operation, which reads `object` if there is one: at most so many bytes of the
    /// object with this key.
    pub(super) fn new(deadline: Deadline, object: Option<(String, u64)>) -> Arc<Self> {
        Arc::new(Operation {
            clock: Mutex::new(Expiry::new(deadline)),
            moved: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failures: Mutex::default(),
            object,
        })
    }

    pub(super) fn current() -> Option<Arc<Operation>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Returns the maximum number of bytes to read of the object at `path`, if the operation reads
    /// that object.
    pub(super) fn limit_of(&self, path: &str) -> Option<u64> {
        let (key, limit) = self.object.as_ref()?;
        let path = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
        path.ends_with(key).then_some(*limit)
    }

    /// Begins another request: the extension by the previous transfer ends.
    pub(super) fn begin_request(&self) {
        let mut clock = self.clock.lock();
        clock.expires = clock.base;
    }

    /// Records that request `id` failed in a way after which the store's client tries again.
    /// Returns the number of its failures.
    pub(super) fn record_failure(&self, id: u64) -> u64 {
        self.failed.store(true, Ordering::Relaxed);
        let mut failures = self.failures.lock();
        let last = Instant::now();
        match failures.iter_mut().find(|(of, _)| *of == id) {
            Some((_, failures)) => {
                *failures = Failures { count: failures.count + 1, last };
                failures.count
            }
            None => {
                failures.push((id, Failures { count: 1, last }));
                1
            }
        }
    }

    /// Returns the failures of request `id`, if there are any.
    pub(super) fn failures_of(&self, id: u64) -> Option<Failures> {
        self.failures.lock().iter().find(|(of, _)| *of == id).map(|(_, failures)| *failures)
    }

    /// Records that request `id` succeeded: the next one like it is no retry.
    pub(super) fn forget_failures_of(&self, id: u64) {
        self.failures.lock().retain(|(of, _)| *of != id);
    }

    /// Returns true if the last request failed, once.
    pub(super) fn takes_failure(&self) -> bool {
        self.failed.swap(false, Ordering::Relaxed)
    }

    /// Extends the operation by the time that a transfer of `bytes` is worth.
    pub(super) fn add_transfer(&self, bytes: u64, sharers: usize) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.clock.lock().add_transfer(Instant::now(), bytes, sharers);
    }

    /// Extends the operation by the time that `bytes` of other transfers are worth, for which the
    /// operation waits.
    pub(super) fn extend(&self, bytes: u64) {
        self.clock.lock().add_transfer(Instant::now(), bytes, 1);
    }

    /// Extends the operation by the time that a result of `bytes` is worth; later requests keep the
    /// extension.
    pub(super) fn extend_by_result(&self, bytes: u64) {
        self.clock.lock().extend_by_result(Instant::now(), bytes);
    }
}

impl Expiry {
    pub(super) fn new(deadline: Deadline) -> Self {
        let base = latest(deadline, Instant::now());
        Expiry { deadline, base, expires: base }
    }

    /// Returns the expiry time if nothing extends it.
    pub(super) fn expires(&self) -> Instant {
        self.expires
    }

    /// Extends the clock by the time that `bytes` are worth, for one of `sharers` transfers on the
    /// network.
    pub(super) fn add_transfer(&mut self, now: Instant, bytes: u64, sharers: usize) {
        self.expires = self.extended(self.expires, now, bytes, sharers);
    }

    fn extend_by_result(&mut self, now: Instant, bytes: u64) {
        self.base = self.extended(self.base, now, bytes, 1);
        self.expires = self.expires.max(self.base);
    }

    /// Returns `expires` plus the time that `bytes` are worth, at most a budget from `now`.
    fn extended(&self, expires: Instant, now: Instant, bytes: u64, sharers: usize) -> Instant {
        let latest = latest(self.deadline, now);
        let later = expires.checked_add(self.deadline.time_of(bytes, sharers)).unwrap_or(latest);
        later.min(latest).max(expires)
    }
}

/// Returns `now` plus the budget, or some 30 years if an instant cannot represent that.
fn latest(deadline: Deadline, now: Instant) -> Instant {
    now.checked_add(deadline.budget).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365 * 30))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BUDGET: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    /// Returns how many seconds a transfer lasts that moves `bytes` per second among `sharers`;
    /// 3,600 at most.
    fn lasts(bytes: u64, sharers: usize) -> u32 {
        let begin = Instant::now();
        let mut clock = Expiry::new(Deadline::new(BUDGET));
        for second in 1..3600 {
            let now = begin + second * SECOND;
            if clock.expires() < now {
                return second;
            }
            clock.add_transfer(now, bytes, sharers);
        }
        3600
    }

    #[test]
    fn a_line_of_1_mbit_has_the_time_that_it_needs() {
        assert_eq!(lasts(122_000, 1), 3600);
        assert_eq!(lasts(122_000 / 64, 64), 3600);
    }

    #[test]
    fn a_drip_ends_within_the_budget() {
        assert_eq!(lasts(2, 64), 11);
        assert!(lasts(MIN_RATE * 9 / 10, 1) < 110);
    }

    #[test]
    fn fast_bytes_are_not_saved_up() {
        let mut clock = Expiry::new(Deadline::new(BUDGET));
        let now = Instant::now() + 5 * SECOND;
        clock.add_transfer(now, 1 << 40, 1);
        assert_eq!(clock.expires(), now + BUDGET);
    }

    #[tokio::test]
    async fn short_answers_keep_no_operation_alive() {
        let begin = Instant::now();
        let deadline = Deadline::new(Duration::from_millis(200));
        let endless = deadline.run("x", async {
            for _ in 0..500 {
                Operation::current().unwrap().begin_request();
                tokio::time::sleep(Duration::from_millis(20)).await;
                Operation::current().unwrap().add_transfer(1 << 20, 1);
            }
            Ok(())
        });
        let error = endless.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("too slow") && begin.elapsed() < 5 * SECOND, "{error}");
    }

    #[tokio::test]
    async fn results_keep_an_operation_alive() {
        let deadline = Deadline::new(Duration::from_millis(200));
        let operation = Operation::new(deadline, None);
        let pages = deadline.run_as(operation, "x", async {
            for _ in 0..20 {
                Operation::current().unwrap().begin_request();
                tokio::time::sleep(Duration::from_millis(20)).await;
                Operation::current().unwrap().extend_by_result(1 << 20);
            }
            Ok(())
        });
        pages.await.unwrap();
    }

    #[test]
    fn only_the_object_has_the_limit_of_the_object() {
        let operation = Operation::new(Deadline::new(BUDGET), Some(("chunks/A B".into(), 7)));
        assert_eq!(operation.limit_of("/bucket/x/chunks/A%20B"), Some(7));
        assert_eq!(operation.limit_of("/latest/meta-data/iam/security-credentials"), None);
    }
}
