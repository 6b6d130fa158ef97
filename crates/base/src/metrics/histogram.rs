//! Histogram of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in microseconds: from what a reply from memory takes to what a
/// store in trouble does.
pub(super) const BOUNDS: [u64; 12] =
    [10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000];

/// Number of durations in each bucket, and their sum.
#[derive(Debug)]
pub(super) struct Histogram {
    /// One count per bound, and one for all that are longer.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    pub(super) const fn new() -> Self {
        Histogram { counts: [const { AtomicU64::new(0) }; BOUNDS.len() + 1], nanos: AtomicU64::new(0) }
    }

    pub(super) fn record(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the number of durations up to each bound, in seconds, and of all.
    pub(super) fn cumulative(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS.iter().map(|micros| *micros as f64 / 1e6).chain([f64::INFINITY]);
        let mut sum = 0;
        let counts = self.counts.iter().map(|count| {
            sum += count.load(Ordering::Relaxed);
            sum
        });
        bounds.zip(counts).collect()
    }

    /// Returns the sum, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.nanos.load(Ordering::Relaxed) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_up_to_each_bound() {
        let histogram = Histogram::new();
        for micros in [1, 10, 11, 5_000_000, 60_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let counts: Vec<u64> = histogram.cumulative().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 5]);
        assert!((histogram.seconds() - 65.000_022).abs() < 1e-9);
    }
}
