//! The clock of a store, by the `Date` header of its responses.

use std::sync::atomic::{AtomicI64, Ordering};

use http::HeaderMap;
use http::header::DATE;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;

/// Offset of a clock that is not known.
const UNKNOWN: i64 = i64::MIN;

/// Clock of a store.
#[derive(Debug)]
pub struct StoreClock {
    /// Seconds by which the store's clock is ahead of this machine's, or [`UNKNOWN`].
    ahead: AtomicI64,
}

impl Default for StoreClock {
    fn default() -> Self {
        StoreClock { ahead: AtomicI64::new(UNKNOWN) }
    }
}

impl StoreClock {
    /// Returns the seconds by which the store's clock is ahead of this machine's, by the last
    /// response; none before the first. The header has whole seconds, and the response took time: a
    /// second or two is no difference.
    pub fn ahead(&self) -> Option<i64> {
        Some(self.ahead.load(Ordering::Relaxed)).filter(|&ahead| ahead != UNKNOWN)
    }

    /// Records the time of a response.
    pub(super) fn record(&self, headers: &HeaderMap) {
        let Some(date) = headers.get(DATE).and_then(|value| value.to_str().ok()) else { return };
        if let Ok(date) = DateTimeParser::new().parse_timestamp(date) {
            self.ahead.store(date.as_second() - Timestamp::now().as_second(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_date_of_a_response_tells_the_difference() {
        let clock = StoreClock::default();
        let mut headers = HeaderMap::new();
        clock.record(&headers);
        headers.insert(DATE, "yesterday".parse().unwrap());
        clock.record(&headers);
        assert_eq!(clock.ahead(), None);
        headers.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        clock.record(&headers);
        assert!(clock.ahead().unwrap() < -900_000_000);
    }
}
