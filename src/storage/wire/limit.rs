//! How many bytes are sent in a second, at most.
//!
//! The line is free again when what was given to it would have left at the rate that the user allows. Chunks wait until it is
//! ([`Limit::admit`]), one behind the other, before their operation and its deadlines begin: the wait is no silence of the
//! server's. Everything else that is sent, what belongs to a commit above all, goes at once, and chunks wait the longer for it.
//! So does what has to be sent again.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A bound for what is sent.
#[derive(Debug)]
pub(in crate::storage) struct Limit {
    pace: Mutex<Pace>,
    /// Whose turn it is to wait: first come, first served.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Pace {
    /// Bytes a second.
    rate: u64,
    /// When all that was given to the line has left.
    free: Instant,
    /// Bytes of operations that were admitted and have not been sent.
    admitted: u64,
}

impl Limit {
    /// A bound of `rate` bytes a second, which is not 0.
    pub(super) fn new(rate: u64) -> Self {
        let pace = Pace { rate: rate.max(1), free: Instant::now(), admitted: 0 };
        Limit { pace: Mutex::new(pace), turn: tokio::sync::Mutex::new(()) }
    }

    /// Waits until an operation that sends `bytes` may begin.
    pub(in crate::storage) async fn admit(&self, bytes: u64) {
        let _turn = self.turn.lock().await;
        loop {
            // Meanwhile others may send what waits for nobody.
            let Some(wait) = self.pace.lock().admit(Instant::now(), bytes) else { return };
            tokio::time::sleep(wait).await;
        }
    }

    /// A request sends `bytes`, at once.
    pub(super) fn sends(&self, bytes: u64) {
        self.pace.lock().sends(Instant::now(), bytes);
    }
}

impl Pace {
    fn admit(&mut self, now: Instant, bytes: u64) -> Option<Duration> {
        let wait = self.free.saturating_duration_since(now);
        if !wait.is_zero() {
            return Some(wait);
        }
        self.take(now, bytes);
        self.admitted = self.admitted.saturating_add(bytes);
        None
    }

    fn sends(&mut self, now: Instant, bytes: u64) {
        match self.admitted.checked_sub(bytes) {
            Some(left) => self.admitted = left,
            None => self.take(now, bytes),
        }
    }

    fn take(&mut self, now: Instant, bytes: u64) {
        let time = Duration::try_from_secs_f64(bytes as f64 / self.rate as f64).unwrap_or(Duration::MAX);
        let from = self.free.max(now);
        self.free = from.checked_add(time).unwrap_or(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(rate: u64) -> (Pace, Instant) {
        let now = Instant::now();
        (Pace { rate, free: now, admitted: 0 }, now)
    }

    /// Lets 100 chunks of 4 MiB through at 8 MiB a second; returns when the last may begin, and how much that was a second.
    #[test]
    fn what_is_sent_keeps_to_the_rate() {
        let (mut pace, begin) = pace(8 << 20);
        let mut now = begin;
        for _ in 0..100 {
            while let Some(wait) = pace.admit(now, 4 << 20) {
                now += wait;
            }
            pace.sends(now, 4 << 20);
        }
        assert_eq!((now - begin).as_millis(), 99 * 500);
        // Time in which nothing was sent is not saved up.
        now += 100 * SECOND;
        assert_eq!(pace.admit(now, 8 << 20), None);
        assert_eq!(pace.admit(now, 1), Some(SECOND));
    }

    #[test]
    fn metadata_goes_at_once_and_chunks_wait_for_it() {
        let (mut pace, now) = pace(1000);
        assert_eq!(pace.admit(now, 1000), None);
        pace.sends(now, 1000);
        assert_eq!(pace.admit(now, 1000), Some(SECOND));
        pace.sends(now, 500);
        assert_eq!(pace.admit(now, 1000), Some(SECOND + SECOND / 2));
        // What has to be sent again counts again.
        pace.sends(now, 1000);
        assert_eq!(pace.admit(now, 1000), Some(2 * SECOND + SECOND / 2));
    }

    #[tokio::test]
    async fn who_gives_up_holds_nobody_up() {
        let limit = Limit::new(1_000_000);
        limit.admit(20_000).await;
        let given_up = tokio::time::timeout(Duration::from_millis(1), limit.admit(u64::MAX)).await;
        assert!(given_up.is_err());
        limit.admit(1).await;
    }
}
