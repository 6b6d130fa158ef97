//! Times as the CF conventions write them: numbers of a unit since a moment of a calendar (CF 4.4,
//! "Time Coordinate").

use crate::element::Numeric;

/// Microseconds of a second.
const SECOND: i128 = 1_000_000;
const HOUR: i128 = 3600 * SECOND;
const DAY: i128 = 24 * HOUR;
/// First day of the Gregorian calendar in the mixed one.
const GREGORIAN: (i64, i64, i64) = (1582, 10, 15);
/// Most microseconds between a time and its reference: sums of them stay far below the bound of
/// their type.
const MOST: f64 = 9e18;

/// Calendar of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calendar {
    /// Julian before 1582-10-15, Gregorian from then on.
    Standard,
    Proleptic,
    NoLeap,
    AllLeap,
    /// Twelve months of thirty days.
    Days360,
}

impl Calendar {
    fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "standard" | "gregorian" => Calendar::Standard,
            "proleptic_gregorian" => Calendar::Proleptic,
            "noleap" | "365_day" => Calendar::NoLeap,
            "all_leap" | "366_day" => Calendar::AllLeap,
            "360_day" => Calendar::Days360,
            _ => return None,
        })
    }

    /// Returns the days from a fixed one to that date; none if the calendar has no such date, or if
    /// the date is Julian.
    fn days(self, year: i64, month: i64, day: i64) -> Option<i64> {
        /// Days of a year before each month, and of the year.
        const BEFORE: [i64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];
        let is_leap = match self {
            Calendar::Standard | Calendar::Proleptic => year % 4 == 0 && (year % 100 != 0 || year % 400 == 0),
            Calendar::NoLeap | Calendar::Days360 => false,
            Calendar::AllLeap => true,
        };
        if !(1..=9999).contains(&year) || (self == Calendar::Standard && (year, month, day) < GREGORIAN) {
            return None;
        }
        if self == Calendar::Days360 {
            let is_date = (1..=12).contains(&month) && (1..=30).contains(&day);
            return is_date.then(|| 360 * year + 30 * (month - 1) + day - 1);
        }
        let place = usize::try_from(month).ok()?;
        let of_leap = |month: i64| i64::from(is_leap && month > 2);
        let before = BEFORE.get(place.checked_sub(1)?)? + of_leap(month);
        let end = BEFORE.get(place)? + of_leap(month + 1);
        let last = year - 1;
        let years = match self {
            Calendar::NoLeap => 365 * last,
            Calendar::AllLeap => 366 * last,
            _ => 365 * last + last / 4 - last / 100 + last / 400,
        };
        (1..=end - before).contains(&day).then(|| years + before + day - 1)
    }
}

/// Meaning of numbers that are times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimeUnits {
    /// Microseconds of one.
    unit: i128,
    /// Microseconds from a fixed moment of the calendar to zero.
    reference: i128,
    calendar: Calendar,
}

impl TimeUnits {
    /// Returns what `units` mean in the `calendar`, which is the standard one if none is named;
    /// none if they are not times, or not of one length, as months are.
    pub(super) fn parse(units: &str, calendar: Option<&str>) -> Option<Self> {
        let calendar = Calendar::named(calendar.unwrap_or("standard"))?;
        let (unit, reference) = units.split_once(" since ")?;
        let unit = match unit.trim().to_ascii_lowercase().as_str() {
            "microseconds" | "microsecond" | "microsecs" | "microsec" => 1,
            "milliseconds" | "millisecond" | "millisecs" | "millisec" | "msecs" | "msec" | "ms" => SECOND / 1000,
            "seconds" | "second" | "secs" | "sec" | "s" => SECOND,
            "minutes" | "minute" | "mins" | "min" => 60 * SECOND,
            "hours" | "hour" | "hrs" | "hr" | "h" => HOUR,
            "days" | "day" | "d" => DAY,
            _ => return None,
        };
        let reference = reference.trim();
        let end = reference.find(['T', ' ']).unwrap_or(reference.len());
        let (date, time) = reference.split_at(end);
        let [year, month, day] = parts(date, '-')?;
        let is_date = year?.len() == 4;
        let days = calendar.days(whole(year?, 4)?, whole(month?, 2)?, whole(day?, 2)?).filter(|_| is_date)?;
        let micros = if time.is_empty() { 0 } else { time_of_day(time.get(1..)?)? };
        Some(TimeUnits { unit, reference: i128::from(days) * DAY + micros, calendar })
    }

    /// Returns the time `number` in the units `other`, for an element that may have fractions if
    /// `is_float`. None if it has no such number there: it would be another time.
    pub(super) fn convert(&self, number: Numeric, other: &TimeUnits, is_float: bool) -> Option<Numeric> {
        let since = match number {
            Numeric::Integer(number) => number.checked_mul(self.unit).filter(|micros| (*micros as f64).abs() < MOST)?,
            Numeric::Float(number) => {
                let micros = (number * self.unit as f64).round();
                (micros.abs() < MOST).then_some(micros as i128)?
            }
        };
        let micros = since + self.reference;
        let first = {
            let (year, month, day) = GREGORIAN;
            i128::from(Calendar::Standard.days(year, month, day)?) * DAY
        };
        match (self.calendar, other.calendar) {
            (one, other) if one == other => {}
            (Calendar::Standard, Calendar::Proleptic) | (Calendar::Proleptic, Calendar::Standard)
                if micros >= first => {}
            _ => return None,
        }
        let micros = micros - other.reference;
        if is_float {
            return Some(Numeric::Float(micros as f64 / other.unit as f64));
        }
        (micros % other.unit == 0).then_some(Numeric::Integer(micros / other.unit))
    }
}

/// Returns the microseconds of a time of day, which is that of Greenwich. Of what else programs
/// write, some read another time than others.
fn time_of_day(text: &str) -> Option<i128> {
    const ZONES: [&str; 7] = ["", "Z", "z", "UTC", "GMT", "+00:00", "+00"];
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ':' && c != '.').unwrap_or(text.len());
    let (time, zone) = text.split_at(end);
    if !ZONES.contains(&zone.strip_prefix(' ').unwrap_or(zone)) {
        return None;
    }
    let [hour, minute, second] = parts(time, ':')?;
    let (second, fraction) = second.map_or((Some("0"), None), |second| match second.split_once('.') {
        Some((second, fraction)) => (Some(second), Some(fraction)),
        None => (Some(second), None),
    });
    let micros = match fraction {
        Some(fraction) => whole(fraction, 6)? * 10_i64.pow(6 - u32::try_from(fraction.len()).ok()?),
        None => 0,
    };
    let [hour, minute, second] = [whole(hour?, 2)?, whole(minute?, 2)?, whole(second?, 2)?];
    let seconds = i128::from(hour * 3600 + minute * 60 + second);
    (hour < 24 && minute < 60 && second < 60).then(|| seconds * SECOND + i128::from(micros))
}

/// Returns the texts between `separator`, three at most.
fn parts(text: &str, separator: char) -> Option<[Option<&str>; 3]> {
    let mut all = text.split(separator);
    let parts = [all.next(), all.next(), all.next()];
    all.next().is_none().then_some(parts)
}

/// Returns the number that at most `most` digits are.
fn whole(digits: &str, most: usize) -> Option<i64> {
    let is_number = (1..=most).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn converted(number: Numeric, from: (&str, &str), to: (&str, &str), is_float: bool) -> Option<Numeric> {
        let [from, to] = [from, to].map(|(units, calendar)| TimeUnits::parse(units, Some(calendar)).unwrap());
        from.convert(number, &to, is_float)
    }

    /// Days between dates as `cftime` 1.6 has them.
    #[test]
    fn dates_are_those_of_their_calendars() {
        let days = |from: &str, to: &str, calendar: &str| {
            let units = |date: &str| format!("days since {date}");
            converted(Numeric::Integer(0), (&units(from), calendar), (&units(to), calendar), false)
        };
        for (calendar, from, to, expected) in [
            ("standard", "2000-03-01", "1900-01-01", 36_584),
            ("gregorian", "1900-03-01", "1582-10-15", 115_919),
            ("proleptic_gregorian", "1582-10-15", "0001-01-01", 577_735),
            ("noleap", "2000-03-01", "1900-01-01", 36_559),
            ("365_day", "2001-01-01", "2000-12-31", 1),
            ("all_leap", "2001-03-01", "2001-02-29", 1),
            ("366_day", "2001-01-01", "2000-01-01", 366),
            ("360_day", "2001-02-30", "2001-01-01", 59),
        ] {
            assert_eq!(days(from, to, calendar), Some(Numeric::Integer(expected)), "{calendar} {from} {to}");
            assert_eq!(days(to, from, calendar), Some(Numeric::Integer(-expected)), "{calendar} {to} {from}");
        }
    }

    #[test]
    fn times_stay_the_same_moments_or_have_no_number() {
        let standard = |units| (units, "standard");
        let hours = |number| {
            converted(number, standard("hours since 2026-01-01 06:00"), standard("days since 2026-01-01"), true)
        };
        assert_eq!(hours(Numeric::Integer(18)), Some(Numeric::Float(1.0)));
        assert_eq!(hours(Numeric::Float(-3.0)), Some(Numeric::Float(0.125)));
        let whole = |number| {
            converted(number, standard("hours since 2026-01-01T06:00:00Z"), standard("days since 2026-1-1"), false)
        };
        assert_eq!(whole(Numeric::Integer(42)), Some(Numeric::Integer(2)));
        assert_eq!(whole(Numeric::Integer(1)), None, "seven in the morning is no day");
        let far = standard("milliseconds since 1970-01-01");
        assert_eq!(converted(Numeric::Integer(i64::MAX.into()), standard("days since 1970-01-01"), far, true), None);
        assert_eq!(converted(Numeric::Float(f64::NAN), standard("days since 1970-01-01"), far, true), None);
        let mixed = |days| {
            converted(
                Numeric::Integer(days),
                standard("days since 1600-01-01"),
                ("days since 1600-01-01", "proleptic_gregorian"),
                false,
            )
        };
        assert_eq!((mixed(0), mixed(-10_000)), (Some(Numeric::Integer(0)), None), "the calendars differ before 1582");
        assert_eq!(
            converted(
                Numeric::Integer(0),
                standard("days since 2000-01-01"),
                ("days since 2000-01-01", "noleap"),
                false
            ),
            None
        );
    }

    #[test]
    fn units_that_are_not_known_are_not_guessed() {
        for units in [
            "days",
            "months since 2000-01-01",
            "years since 2000-01-01",
            "days since 2000-02-30",
            "days since 2000-13-01",
            "days since 0000-01-01",
            "days since -001-01-01",
            "days since 2000-01",
            "days since 2000-01-01-01",
            "days since 2000-01-01 25:00",
            "days since 2000-01-01 00:00 +01:00",
            "days since 2000-01-01 00:00 CET",
            "days since 2000-01-01 0:0:0.1234567",
            "days since 99999999999999999999-01-01",
            "days since 1500-01-01",
            // Of these, xarray reads another moment, or another one by each calendar.
            "days since 2000-1-1 12",
            "days since 1-1-1",
            "days since 2000-01-01  06:00",
            "days since 2000-01-01 T06:00",
            "days since 2000-01-01 006:00",
            "days since 2000-01-01 06:00 0:00",
            "days since 2000-01-01 12:30.5",
        ] {
            assert_eq!(TimeUnits::parse(units, None), None, "{units}");
        }
        assert_eq!(TimeUnits::parse("days since 2000-01-01", Some("julian")), None);
        let same = [
            "days since 2000-01-01",
            "Days since 2000-1-1 00:00:0.0",
            "day since 2000-01-01T00:00:00Z",
            "d since 2000-01-01 0:0 UTC",
        ];
        let all: Vec<_> = same.iter().map(|units| TimeUnits::parse(units, None)).collect();
        assert!(all.iter().all(|one| one.is_some() && Some(one) == all.first()), "{all:?}");
    }
}
