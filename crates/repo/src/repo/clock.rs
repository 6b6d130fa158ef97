//! Times of changes, and the comparison of this machine's clock with the store's.
//!
//! Times of commits and operations must rise, and other clients refuse to write after a time later
//! than their own clock: a time in the future locks them out until then. The store's time of a new
//! object shows which of two clocks is wrong. A machine whose clock differs from the store's writes
//! nothing. A machine whose clock agrees with the store's may write after a change from the future,
//! one microsecond later, which locks other clients out no longer than before.

use std::time::Duration;

use tracing::warn;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::times::{Clock, format_time, system_clock};
use icechunkfs_store::storage::Storage;

/// Tolerated difference between this machine's clock and the store's: the reference
/// implementation's value.
pub const TOLERANCE: Duration = Duration::from_secs(600);
/// Lag of this machine's clock behind the last change up to which a writer waits.
const TOLERATED_SKEW: Duration = Duration::from_secs(2);

/// Returns true for a time that a right clock cannot have shown yet, if this machine's does not lag
/// by more than is tolerated.
pub fn is_of_future(time: u64, clock: Clock) -> bool {
    let tolerance = u64::try_from(TOLERANCE.as_micros()).unwrap_or(u64::MAX);
    time > clock().saturating_add(tolerance)
}

/// Time of a change that is about to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeTime {
    /// Time to write, later than that of the previous change. Microseconds since 1970-01-01 UTC,
    /// like the other fields.
    pub time: u64,
    /// Time on this machine's clock.
    now: u64,
    /// Time of the previous change.
    last: u64,
}

impl ChangeTime {
    /// Returns the time of a change after one at `last`. Clocks of two machines always differ
    /// slightly: if this machine's clock is only a moment behind `last`, waits until it is later.
    pub async fn after(clock: Clock, last: u64) -> Self {
        let behind = Duration::from_micros(last.saturating_sub(clock()));
        if behind <= TOLERATED_SKEW && clock() <= last {
            tokio::time::sleep(behind + Duration::from_millis(1)).await;
        }
        let now = clock();
        ChangeTime { time: now.max(last.saturating_add(1)), now, last }
    }

    /// Returns true if [`ChangeTime::time`] is later than this machine's clock.
    pub fn is_ahead_of_clock(&self) -> bool {
        self.time > self.now
    }

    /// Checks this machine's clock against the store, which has just stored object `key`. Asks for
    /// the object's time only if the time of the store's responses does not already show that both
    /// clocks agree.
    ///
    /// Fails with [`ErrorKind::Io`] if this machine's clock is wrong, or is behind the previous
    /// change while the store's time is unknown.
    pub async fn check(&self, storage: &dyn Storage, key: &str) -> Result<()> {
        if !self.is_ahead_of_clock() && self.agrees_with(storage.capabilities().clock.ahead()) {
            return Ok(());
        }
        // A store that fails to report the time does not prove the clock wrong.
        self.compare(storage.modified(key).await.unwrap_or_default())
    }

    /// Checks this machine's clock against the time of the store's responses: for a change that
    /// stores no object whose time could be asked for. A store that gives no time does not prove
    /// the clock wrong.
    ///
    /// Fails with [`ErrorKind::Io`] if this machine's clock is wrong.
    pub fn check_by_responses(storage: &dyn Storage, clock: Clock) -> Result<()> {
        let now = clock();
        ChangeTime { time: now, now, last: 0 }.compare(storage.capabilities().clock.ahead().map(store_time))
    }

    /// Returns true if the store's clock, `ahead` seconds ahead of this machine's by its responses,
    /// is close to the time of the change.
    fn agrees_with(&self, ahead: Option<i64>) -> bool {
        let stored = ahead.map(store_time);
        stored.is_some_and(|stored| Duration::from_micros(stored.abs_diff(self.now)) <= TOLERANCE / 2)
    }

    /// Checks this machine's clock like [`ChangeTime::check`], given the time that the store
    /// reported for an object.
    pub fn compare(&self, stored: Option<u64>) -> Result<()> {
        let ChangeTime { now, last, .. } = *self;
        let apart = |a: u64, b: u64| Duration::from_micros(a.abs_diff(b));
        match stored {
            Some(stored) if apart(stored, now) > TOLERANCE => {
                let side = if now > stored { "ahead of" } else { "behind" };
                Err(wrong(format!(
                    "this machine's clock is {} {side} the storage's ({} there, {} here): set this machine's clock. Nothing was changed",
                    format_duration(apart(stored, now)),
                    format_time(stored),
                    format_time(now),
                )))
            }
            Some(_) if last > now => {
                warn!(
                    "the last change was written by a machine whose clock was {} ahead ({}): this one is dated right after it. \
                     Other programs refuse to write until then",
                    format_duration(apart(last, now)),
                    format_time(last),
                );
                Ok(())
            }
            None if last > now => Err(wrong(format!(
                "this machine's clock is {} behind the last change ({}): set the clock. If it is right, the machine that wrote that \
                 change is ahead: wait",
                format_duration(apart(last, now)),
                format_time(last),
            ))),
            _ => Ok(()),
        }
    }
}

/// Returns the time of a store's clock that is `ahead` seconds ahead of this machine's.
fn store_time(ahead: i64) -> u64 {
    system_clock().saturating_add_signed(ahead.saturating_mul(1_000_000))
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Io, message)
}

/// Formats a duration in the unit that a person would use.
fn format_duration(length: Duration) -> String {
    let seconds = length.as_secs();
    let minutes = (length.as_secs() + 30) / 60;
    match minutes {
        0..2 => format!("{} s", seconds.max(1)),
        2..120 => format!("{minutes} min"),
        120..2880 => format!("{} h", (minutes + 30) / 60),
        _ => format!("{} days", (minutes + 720) / 1440),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HOUR: u64 = 3_600_000_000;
    const NOW: u64 = 1_800_000_000_000_000;

    #[tokio::test]
    async fn times_rise_whatever_the_clock_says() {
        assert_eq!(ChangeTime::after(|| NOW, NOW - 5).await.time, NOW);
        assert_eq!(ChangeTime::after(|| NOW, NOW + HOUR).await.time, NOW + HOUR + 1);
        assert_eq!(ChangeTime::after(|| NOW, NOW).await.time, NOW + 1);
    }

    #[tokio::test]
    async fn the_store_decides_whose_clock_is_wrong() {
        let usual = ChangeTime::after(|| NOW, NOW - HOUR).await;
        let late = ChangeTime::after(|| NOW, NOW + HOUR).await;
        for stored in [None, Some(NOW), Some(NOW + HOUR / 10), Some(NOW - HOUR / 10)] {
            assert!(usual.compare(stored).is_ok(), "{stored:?}");
        }
        assert!(late.compare(Some(NOW)).is_ok(), "the other machine was ahead");
        let said = |moment: ChangeTime, stored| moment.compare(stored).unwrap_err().to_string();
        assert!(said(usual, Some(NOW - 3 * HOUR)).contains("clock is 3 h ahead of the storage's"));
        assert!(said(late, Some(NOW + HOUR)).contains("clock is 60 min behind the storage's"));
        assert!(said(late, None).contains("60 min behind the last change"));
    }
}
