//! Rate limit for logged failures of requests.
//!
//! A program that reads a million virtual chunks may get a million errors; the log gets the first
//! ones of each second, and a count of the rest.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::warn;

use icechunkfs_base::error::Error;

/// Lines per [`INTERVAL`].
const BURST: u32 = 20;
const INTERVAL: Duration = Duration::from_secs(1);

/// Log of failures, at most [`BURST`] of them per [`INTERVAL`].
#[derive(Debug)]
pub struct QuietLog {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Instant,
    written: u32,
    suppressed: u64,
}

impl Default for QuietLog {
    fn default() -> Self {
        QuietLog { state: Mutex::new(State { since: Instant::now(), written: 0, suppressed: 0 }) }
    }
}

impl QuietLog {
    /// Logs that `operation` of a program failed.
    pub fn failed(&self, operation: &str, error: &Error) {
        let Some(suppressed) = self.admit(Instant::now()) else { return };
        if suppressed > 0 {
            warn!("{suppressed} more failures were not logged");
        }
        warn!("{operation}: {error}");
    }

    /// Returns the failures that were suppressed before a line at `now`; none if this line is
    /// suppressed too.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if now.duration_since(state.since) >= INTERVAL {
            (state.since, state.written) = (now, 0);
        }
        if state.written >= BURST {
            state.suppressed += 1;
            return None;
        }
        state.written += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_are_cut_and_counted() {
        let log = QuietLog::default();
        let start = Instant::now();
        let written = (0..100).filter(|_| log.admit(start).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(log.admit(start + INTERVAL * 2), Some(80));
        assert_eq!(log.admit(start + INTERVAL * 2), Some(0));
    }
}
