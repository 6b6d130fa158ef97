//! Parsing of "older than" arguments: times in the past.

use jiff::{Span, SpanRelativeTo, Unit};

use super::history::{format_time, parse_time};
use crate::error::{Error, Result};

/// Parses the minimum age of something: a duration before `now`, such as `30d` or `1h 30m`, or a time in the syntax of [`parse_time`]. A
/// bare date means its beginning (UTC), so that nothing of that day is older.
///
/// Returns microseconds since 1970-01-01 UTC, never later than `now`.
pub fn parse_older_than(text: &str, now: u64) -> Result<u64> {
    let text = text.trim();
    let cutoff = match text.parse::<Span>() {
        Ok(span) => before(text, &span, now)?,
        Err(_) => match text.parse::<jiff::civil::Date>() {
            Ok(_) if text.len() == "2026-08-20".len() => parse_time(&format!("{text}T00:00:00Z"))?,
            _ => parse_time(text).map_err(|_| wrong(text))?,
        },
    };
    if cutoff > now {
        return Err(Error::invalid(format!("`{text}` is in the future: {}", format_time(cutoff))));
    }
    Ok(cutoff)
}

fn before(text: &str, span: &Span, now: u64) -> Result<u64> {
    // Months and years have no fixed length.
    let micros = span.total((Unit::Microsecond, SpanRelativeTo::days_are_24_hours())).map_err(|_| wrong(text))?;
    if micros < 0.0 || span.is_negative() {
        return Err(wrong(text));
    }
    Ok(now.saturating_sub(micros as u64))
}

fn wrong(text: &str) -> Error {
    Error::invalid(format!(
        "`{text}` is no age: write a duration as in 30d, 12h or 1w 3d (s, m, h, d, w), a time as in 2026-08-20T14:30:00Z, or a date"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
