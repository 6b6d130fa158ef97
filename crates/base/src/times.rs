//! Times: the clock, times and ages as text, and modification times of files.

use std::fs::File;

use jiff::{Span, SpanRelativeTo, Unit};
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Clock in microseconds since 1970-01-01 UTC, passed in so that tests can set it.
pub type Clock = fn() -> u64;

/// Returns the time of the machine's clock.
pub fn system_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Converts microseconds since 1970-01-01 UTC; none if no calendar has that time.
pub fn timestamp(micros: u64) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_microsecond(i64::try_from(micros).ok()?).ok()
}

/// Formats a time in UTC as RFC 3339, with microseconds if there are any. A time that no calendar
/// has is formatted as a number.
pub fn format_time(micros: u64) -> String {
    let Some(time) = timestamp(micros) else { return format!("{micros} microseconds after 1970") };
    let format = if micros.is_multiple_of(1_000_000) { "%FT%T+00:00" } else { "%FT%T%.6f+00:00" };
    time.strftime(format).to_string()
}

/// Formats a time for a person, in the zone of the machine (`TZ`), to the second.
pub fn format_local_time(micros: u64) -> String {
    let Some(time) = timestamp(micros) else { return format_time(micros) };
    let zone = jiff::tz::TimeZone::try_system().unwrap_or(jiff::tz::TimeZone::UTC);
    time.to_zoned(zone).strftime("%F %T %:z").to_string()
}

/// Parses user input: RFC 3339; a date and a time without a zone, which is UTC; or a date, which
/// means the end of that day in UTC.
///
/// Returns microseconds since 1970-01-01 UTC.
pub fn parse_time(text: &str) -> Result<u64> {
    let wrong = || {
        Error::invalid(format!(
            "`{text}` is not a valid time: write 2026-08-20T14:30:00Z, '2026-08-20 14:30' (UTC), a date as in 2026-08-20, or an age as in 3d"
        ))
    };
    let timestamp = if let Ok(time) = text.parse::<jiff::Timestamp>() {
        time
    } else {
        let last = match text.parse::<jiff::civil::Date>() {
            Ok(date) if text.len() <= "2026-08-20".len() => date.at(23, 59, 59, 999_999_000),
            // A zone in brackets or an offset without a time would be left out by this parser.
            _ if text.contains(['[', '+', 'Z', 'z']) => return Err(wrong()),
            _ => text.parse::<jiff::civil::DateTime>().map_err(|_| wrong())?,
        };
        // The last days of the year 9999, which mean the newest, have no timestamp.
        last.to_zoned(jiff::tz::TimeZone::UTC).map_or(jiff::Timestamp::MAX, |time| time.timestamp())
    };
    u64::try_from(timestamp.as_microsecond()).map_err(|_| wrong())
}

/// Parses a moment in the past: an age, such as `3d` or `1h 30m`, or a time in the syntax of
/// [`parse_time`].
///
/// Returns microseconds since 1970-01-01 UTC.
pub fn parse_past(text: &str, now: u64) -> Result<u64> {
    match text.trim().parse::<Span>() {
        Ok(span) => before(text, &span, now),
        Err(_) => parse_time(text),
    }
}

/// Parses the minimum age of something: a duration before `now`, such as `30d` or `1h 30m`, or a
/// time in the syntax of [`parse_time`]. A bare date means its beginning (UTC), so that nothing of
/// that day is older.
///
/// Returns microseconds since 1970-01-01 UTC, never later than `now`.
pub fn parse_older_than(text: &str, now: u64) -> Result<u64> {
    let text = text.trim();
    let cutoff = match text.parse::<Span>() {
        Ok(span) => before(text, &span, now)?,
        Err(_) => match text.parse::<jiff::civil::Date>() {
            Ok(_) if text.len() == "2026-08-20".len() => parse_time(&format!("{text}T00:00:00Z"))?,
            _ => parse_time(text).map_err(|_| wrong_age(text))?,
        },
    };
    if cutoff > now {
        return Err(Error::invalid(format!("`{text}` is in the future: {}", format_time(cutoff))));
    }
    Ok(cutoff)
}

fn before(text: &str, span: &Span, now: u64) -> Result<u64> {
    // Months and years have no fixed length.
    let micros = span.total((Unit::Microsecond, SpanRelativeTo::days_are_24_hours())).map_err(|_| wrong_age(text))?;
    if micros < 0.0 || span.is_negative() {
        return Err(wrong_age(text));
    }
    Ok(now.saturating_sub(micros as u64))
}

fn wrong_age(text: &str) -> Error {
    Error::invalid(format!(
        "`{text}` is not a valid age: write a duration (30d, 12h, 1w 3d), a time (2026-08-20T14:30:00Z), or a date"
    ))
}

/// Sets the modification time of `file` to `time`, and leaves its access time.
pub fn set_modified(file: &File, time: Timespec) -> Result<(), Errno> {
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    rustix::fs::futimens(file, &Timestamps { last_access, last_modification: time })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339() {
        assert_eq!(format_time(1_795_160_189_135_747), "2026-11-20T07:36:29.135747+00:00");
        assert_eq!(format_time(1_795_160_189_000_000), "2026-11-20T07:36:29+00:00");
        assert_eq!(format_time(1_795_160_189_000_007), "2026-11-20T07:36:29.000007+00:00");
        assert_eq!(format_time(u64::MAX), "18446744073709551615 microseconds after 1970");
        assert_eq!(format_local_time(u64::MAX), format_time(u64::MAX));
        assert_eq!(format_local_time(1_795_160_189_135_747).len(), "2026-11-20 07:36:29 +00:00".len());
    }

    #[test]
    fn moments_are_ages_or_times() {
        let now = 1_795_160_189_000_000;
        let day = 86_400_000_000;
        for (text, expected) in [
            ("3d", now - 3 * day),
            ("1 day", now - day),
            ("2026-11-20T07:36:29Z", now),
            ("2026-11-20 07:36:29", now),
            ("2026-11-20 07:36", now - 29_000_000),
            ("20261120", parse_time("2026-11-20").unwrap()),
        ] {
            assert_eq!(parse_past(text, now).unwrap(), expected, "{text}");
        }
        for text in ["soon", "-3d", "2026-11-20 07:36[Europe/Berlin]", "2026-11-20+01:00", "2026-13-01 00:00"] {
            assert!(parse_past(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(parse_time("2026-11-20T07:36:29.135747+00:00").unwrap(), 1_795_160_189_135_747);
        assert_eq!(parse_time("2026-11-20T08:36:29+01:00").unwrap(), 1_795_160_189_000_000);
        assert_eq!(parse_time("2026-11-20T07:36:29Z").unwrap(), 1_795_160_189_000_000);
        assert_eq!(format_time(parse_time("2026-11-20").unwrap()), "2026-11-20T23:59:59.999999+00:00");
        assert!(parse_time("9999-12-31").unwrap() > parse_time("9999-12-29").unwrap());
        for wrong in ["", "yesterday", "2026-13-01", "1969-12-31"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ages_are_read_as_people_write_them() {
        let now = parse_time("2026-11-20T12:00:00Z").unwrap();
        let cutoff = |text| parse_older_than(text, now).map(format_time);
        for (text, expected) in [
            ("30d", "2026-10-21T12:00:00+00:00"),
            ("12h", "2026-11-20T00:00:00+00:00"),
            ("1w 1d", "2026-11-12T12:00:00+00:00"),
            ("90m", "2026-11-20T10:30:00+00:00"),
            ("0s", "2026-11-20T12:00:00+00:00"),
            ("2026-11-20", "2026-11-20T00:00:00+00:00"),
            ("2026-11-19T01:02:03Z", "2026-11-19T01:02:03+00:00"),
        ] {
            assert_eq!(cutoff(text).unwrap(), expected, "{text}");
        }
        for wrong in ["", "30", "-1d", "1mo", "1y", "yesterday", "2026-11-21", "2026-11-20T12:00:01Z", "d"] {
            assert!(cutoff(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_older_than("100000w", now).unwrap_or(0), 0);
    }
}
