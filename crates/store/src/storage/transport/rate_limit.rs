//! Upload rate limit.
//!
//! The network is free again when the bytes given to it would have left at the user's rate. Chunks
//! wait for that in order ([`UploadRateLimit::admit`]), before their operation and its deadlines
//! begin, so that the wait does not count as silence of the server. All other uploads, above all
//! those that belong to a commit, are sent at once, and chunks wait longer for them. Retries are
//! sent at once, too.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Debug)]
pub(in crate::storage) struct UploadRateLimit {
    pace: Mutex<RateState>,
    /// Queue of waiting uploads: first come, first served.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct RateState {
    /// Bytes per second.
    rate: u64,
    /// Time at which all bytes given to the network will have left.
    free: Instant,
    /// Bytes of operations that were admitted and have not been sent.
    admitted: u64,
}

impl UploadRateLimit {
    /// Creates a limit of `rate` bytes per second, which is not 0.
    pub(super) fn new(rate: u64) -> Self {
        let pace = RateState { rate: rate.max(1), free: Instant::now(), admitted: 0 };
        UploadRateLimit { pace: Mutex::new(pace), turn: tokio::sync::Mutex::new(()) }
    }

    /// Waits until an operation that sends `bytes` may begin.
    pub(in crate::storage) async fn admit(&self, bytes: u64) {
        let _turn = self.turn.lock().await;
        loop {
            // Uploads that do not wait may be sent meanwhile.
            let Some(wait) = self.pace.lock().admit(Instant::now(), bytes) else { return };
            tokio::time::sleep(wait).await;
        }
    }

    /// Counts the `bytes` of a request, which is sent at once.
    pub(super) fn record_sent(&self, bytes: u64) {
        self.pace.lock().record_sent(Instant::now(), bytes);
    }
}

impl RateState {
    fn admit(&mut self, now: Instant, bytes: u64) -> Option<Duration> {
        let wait = self.free.saturating_duration_since(now);
        if !wait.is_zero() {
            return Some(wait);
        }
        self.take(now, bytes);
        self.admitted = self.admitted.saturating_add(bytes);
        None
    }

    fn record_sent(&mut self, now: Instant, bytes: u64) {
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

    fn pace(rate: u64) -> (RateState, Instant) {
        let now = Instant::now();
        (RateState { rate, free: now, admitted: 0 }, now)
    }

    /// Admits 100 chunks of 4 MiB at 8 MiB per second: the last begins after 99 times 500 ms.
    #[test]
    fn what_is_sent_keeps_to_the_rate() {
        let (mut pace, begin) = pace(8 << 20);
        let mut now = begin;
        for _ in 0..100 {
            while let Some(wait) = pace.admit(now, 4 << 20) {
                now += wait;
            }
            pace.record_sent(now, 4 << 20);
        }
        assert_eq!((now - begin).as_millis(), 99 * 500);
        // Time without uploads is not saved up.
        now += 100 * SECOND;
        assert_eq!(pace.admit(now, 8 << 20), None);
        assert_eq!(pace.admit(now, 1), Some(SECOND));
    }

    #[test]
    fn metadata_goes_at_once_and_chunks_wait_for_it() {
        let (mut pace, now) = pace(1000);
        assert_eq!(pace.admit(now, 1000), None);
        pace.record_sent(now, 1000);
        assert_eq!(pace.admit(now, 1000), Some(SECOND));
        pace.record_sent(now, 500);
        assert_eq!(pace.admit(now, 1000), Some(SECOND + SECOND / 2));
        // Retries count again.
        pace.record_sent(now, 1000);
        assert_eq!(pace.admit(now, 1000), Some(2 * SECOND + SECOND / 2));
    }

    #[tokio::test]
    async fn who_gives_up_holds_nobody_up() {
        let limit = UploadRateLimit::new(1_000_000);
        limit.admit(20_000).await;
        let abandoned = tokio::time::timeout(Duration::from_millis(1), limit.admit(u64::MAX)).await;
        assert!(abandoned.is_err());
        limit.admit(1).await;
    }
}
