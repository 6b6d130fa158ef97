//! How long an operation on a store may take: one rule for reads, writes, listings and credentials.
//!
//! An operation has a budget of time (`--timeout`). Bytes that arrive or leave extend it by the time that they take at the
//! minimum rate, but never beyond a whole budget from now. So an operation ends when it moves less than the minimum rate over
//! a budget's length, however many bytes a store has announced, and a slow line has the time that it needs. Parallel
//! transfers share a line: each is held to its part of the rate.
//!
//! Only a transfer that flows is extended. A new request within the operation (a repetition, the next page of a listing) finds what
//! is left of the operation's own budget, so that a store cannot keep an operation alive with one short answer after another.
//!
//! The requests of an operation find it by a task-local value: between them is the store's client, which passes nothing on.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};

/// Bytes a second that all transfers of a store move together at least, unless `--min-rate` says otherwise: half of what a line of
/// 1 Mbit/s carries.
pub(super) const MIN_RATE: u64 = 64 << 10;

/// The limit of a reader who stops by itself when it has what it wants.
pub(super) const UNBOUNDED: u64 = u64::MAX;

tokio::task_local! {
    static CURRENT: Arc<Operation>;
}

/// The rule for the operations on a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    budget: Duration,
    /// Bytes a second.
    rate: u64,
}

/// An operation that is under way.
#[derive(Debug)]
pub(super) struct Operation {
    clock: Mutex<Clock>,
    moved: AtomicU64,
    object: Option<Object>,
}

/// The object that an operation reads.
#[derive(Debug)]
struct Object {
    /// What the path of its URL ends with, decoded.
    key: String,
    /// Bytes that are taken of it.
    limit: u64,
}

/// When something has taken too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    deadline: Deadline,
    /// Without what the current transfer has added.
    base: Instant,
    expires: Instant,
}

impl Deadline {
    /// Operations may take `budget`, and more as long as they move [`MIN_RATE`].
    pub(super) fn new(budget: Duration) -> Self {
        Deadline { budget, rate: MIN_RATE }
    }

    /// The rule that the user sets.
    pub(super) fn of(settings: &Settings) -> Self {
        Deadline { budget: settings.budget(), rate: settings.min_rate.unwrap_or(MIN_RATE).max(1) }
    }

    /// The time within which the minimum rate must be reached.
    pub(super) fn budget(&self) -> Duration {
        self.budget
    }

    /// This rule with another budget.
    pub(super) fn with_budget(self, budget: Duration) -> Self {
        Deadline { budget, ..self }
    }

    /// The time that `bytes` take at the minimum rate if `sharers` transfers share the line.
    pub(super) fn time_of(&self, bytes: u64, sharers: usize) -> Duration {
        let seconds = bytes as f64 * sharers.max(1) as f64 / self.rate as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Carries out `work` on `what`, or ends it.
    pub(super) async fn run<T>(&self, what: impl Display, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.run_as(Operation::new(*self, None), what, work).await
    }

    /// As [`Deadline::run`], for work that reads at most `limit` bytes of an object whose URL's path ends with `key`.
    pub(super) async fn read<T>(
        &self,
        key: &str,
        limit: u64,
        what: impl Display,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let object = Object { key: key.to_owned(), limit };
        self.run_as(Operation::new(*self, Some(object)), what, work).await
    }

    /// As [`Deadline::run`], for an `operation` that the caller keeps.
    pub(super) async fn run_as<T>(
        &self,
        operation: Arc<Operation>,
        what: impl Display,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut work = pin!(CURRENT.scope(Arc::clone(&operation), work));
        loop {
            let expires = operation.clock.lock().expires;
            match tokio::time::timeout_at(expires, &mut work).await {
                Ok(done) => return done,
                Err(_) if operation.clock.lock().expires > expires => {}
                Err(_) => return Err(self.too_slow(what, operation.moved.load(Ordering::Relaxed))),
            }
        }
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

/// The error of an operation that did not end in time.
pub(super) fn timed_out(what: impl Display, deadline: Duration) -> Error {
    Error::new(ErrorKind::Timeout, format!("{what}: the storage did not answer within {} s", deadline.as_secs_f32()))
}

impl Operation {
    fn new(deadline: Deadline, object: Option<Object>) -> Arc<Self> {
        Arc::new(Operation { clock: Mutex::new(Clock::new(deadline)), moved: AtomicU64::new(0), object })
    }

    /// An operation of which several steps are carried out with [`Deadline::run_as`].
    pub(super) fn of_steps(deadline: Deadline) -> Arc<Self> {
        Operation::new(deadline, None)
    }

    /// The operation that the calling task carries out.
    pub(super) fn current() -> Option<Arc<Operation>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Bytes that are taken of the object at `path`, if that is what the operation reads.
    pub(super) fn limit_of(&self, path: &str) -> Option<u64> {
        let object = self.object.as_ref()?;
        let path = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
        path.ends_with(&object.key).then_some(object.limit)
    }

    /// Begins another request: what the one before it has added is over.
    pub(super) fn begin_request(&self) {
        self.clock.lock().begin_request();
    }

    /// Adds the time that a transfer of `bytes` is worth.
    pub(super) fn add_transfer(&self, bytes: u64, sharers: usize) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.clock.lock().add_transfer(Instant::now(), bytes, sharers);
    }

    /// Adds the time that `bytes` of others' transfers are worth, for which the operation waits.
    pub(super) fn extend(&self, bytes: u64) {
        self.clock.lock().add_transfer(Instant::now(), bytes, 1);
    }

    /// Adds the time that a result of `bytes` is worth, which later requests keep.
    pub(super) fn add_result(&self, bytes: u64) {
        self.clock.lock().add_result(Instant::now(), bytes);
    }
}

impl Clock {
    /// A clock that begins now.
    pub(super) fn new(deadline: Deadline) -> Self {
        let base = latest(deadline, Instant::now());
        Clock { deadline, base, expires: base }
    }

    /// When time is over, if nothing is added.
    pub(super) fn expires(&self) -> Instant {
        self.expires
    }

    fn begin_request(&mut self) {
        self.expires = self.base;
    }

    /// Adds the time that a transfer of `bytes` is worth, of one of `sharers` on a line.
    pub(super) fn add_transfer(&mut self, now: Instant, bytes: u64, sharers: usize) {
        self.expires = self.extended(self.expires, now, bytes, sharers);
    }

    fn add_result(&mut self, now: Instant, bytes: u64) {
        self.base = self.extended(self.base, now, bytes, 1);
        self.expires = self.expires.max(self.base);
    }

    /// `expires` and the time that `bytes` are worth, at most a budget from `now`.
    fn extended(&self, expires: Instant, now: Instant, bytes: u64, sharers: usize) -> Instant {
        let latest = latest(self.deadline, now);
        let later = expires.checked_add(self.deadline.time_of(bytes, sharers)).unwrap_or(latest);
        later.min(latest).max(expires)
    }
}

/// A budget from `now`; where an instant cannot say that, some 30 years.
fn latest(deadline: Deadline, now: Instant) -> Instant {
    now.checked_add(deadline.budget).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365 * 30))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BUDGET: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    /// How many seconds a transfer lasts that moves `bytes` a second with `sharers` on the line; 3,600 at most.
    fn lasts(bytes: u64, sharers: usize) -> u32 {
        let begin = Instant::now();
        let mut clock = Clock::new(Deadline::new(BUDGET));
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
        let mut clock = Clock::new(Deadline::new(BUDGET));
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
        let operation = Operation::of_steps(deadline);
        let pages = deadline.run_as(operation, "x", async {
            for _ in 0..20 {
                Operation::current().unwrap().begin_request();
                tokio::time::sleep(Duration::from_millis(20)).await;
                Operation::current().unwrap().add_result(1 << 20);
            }
            Ok(())
        });
        pages.await.unwrap();
    }

    #[test]
    fn only_the_object_has_the_limit_of_the_object() {
        let object = Object { key: "chunks/A B".into(), limit: 7 };
        let operation = Operation::new(Deadline::new(BUDGET), Some(object));
        assert_eq!(operation.limit_of("/bucket/x/chunks/A%20B"), Some(7));
        assert_eq!(operation.limit_of("/latest/meta-data/iam/security-credentials"), None);
    }
}
