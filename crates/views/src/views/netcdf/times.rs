//! Times and time spans (`numpy.datetime64`, `numpy.timedelta64`) as numbers with a unit that
//! programs know.
//!
//! Few programs know units below the second, and some take them for others: the nanoseconds of
//! pandas are the year 52007 for one of them. So a file has whole numbers of days, hours, minutes
//! or seconds, of the longest of these units in which all times of an array are whole numbers; if
//! there is none, `double` seconds. The times are looked at for that ([`super::look`]): for stored
//! units of at least a second to know whether any is missing.

use serde_json::Value;

use super::partition::greatest_common_divisor;
use icechunkfs_base::error::{Error, Result};

/// Seconds of the units that a file can have, the longest first.
const UNITS: [(Unit, u64); 4] = [(Unit::Days, 86_400), (Unit::Hours, 3600), (Unit::Minutes, 60), (Unit::Seconds, 1)];
/// Largest multiple of a unit that numpy has.
const MAX_MULTIPLE: u64 = i32::MAX as u64;
/// Value of a time that is missing.
pub(super) const NOT_A_TIME: i64 = i64::MIN;

/// Unit of the times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Days,
    Hours,
    Minutes,
    Seconds,
}

/// Times of an array, and their form in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) is_span: bool,
    stored: StoredUnit,
    pub(super) form: Form,
}

/// Unit of stored times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredUnit {
    /// None that a file can have: spans of months, and times without a unit.
    Unknown,
    /// This number of months.
    Months(u64),
    /// This number of seconds.
    Seconds(u64),
    /// The first number by the second of them is a second or less.
    Fraction(u64, u64),
}

/// Form of times in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Stored integers, without a unit.
    Plain,
    /// Whole numbers of a unit.
    Whole(Unit),
    /// Floating-point seconds.
    DoubleSeconds,
}

/// Properties that all times of an array share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Common {
    /// Greatest common divisor of the stored numbers; 0 if all are 0.
    divisor: u64,
    /// Largest of them, without sign.
    largest: u64,
    /// True if any time is missing.
    pub(super) has_missing: bool,
}

impl Unit {
    /// Returns the name of the unit, as the attribute `units` has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Unit::Days => "days",
            Unit::Hours => "hours",
            Unit::Minutes => "minutes",
            Unit::Seconds => "seconds",
        }
    }

    fn seconds(self) -> u64 {
        UNITS.iter().find(|(unit, _)| *unit == self).map_or(1, |(_, seconds)| *seconds)
    }
}

impl Times {
    /// Parses the configuration of data type `numpy.datetime64`, or `numpy.timedelta64` if
    /// `is_span` is true. The form is one that has all times whatever they are.
    pub(super) fn parse(configuration: Option<&Value>, is_span: bool) -> Self {
        let setting = |key: &str| configuration.and_then(|configuration| configuration.get(key));
        let multiple = setting("scale_factor").map_or(Some(1), Value::as_u64);
        let multiple = multiple.filter(|multiple| (1..=MAX_MULTIPLE).contains(multiple));
        let unit = setting("unit").and_then(Value::as_str);
        let stored = match (unit, multiple) {
            (Some(unit), Some(multiple)) => stored_unit(unit, multiple),
            _ => StoredUnit::Unknown,
        };
        let stored = if is_span && matches!(stored, StoredUnit::Months(_)) { StoredUnit::Unknown } else { stored };
        let form = match stored {
            StoredUnit::Unknown => Form::Plain,
            StoredUnit::Months(_) => Form::Whole(Unit::Days),
            StoredUnit::Seconds(seconds) => {
                let unit = UNITS.iter().find(|(_, of_unit)| seconds.is_multiple_of(*of_unit));
                Form::Whole(unit.map_or(Unit::Seconds, |(unit, _)| *unit))
            }
            StoredUnit::Fraction(..) => Form::DoubleSeconds,
        };
        Times { is_span, stored, form }
    }

    /// Returns the same times in another form.
    #[must_use]
    pub(super) fn with_form(self, form: Form) -> Self {
        Times { form, ..self }
    }

    /// Returns the form of these times if they have `common` in common.
    pub(super) fn form_of(&self, common: &Common) -> Form {
        let StoredUnit::Fraction(seconds, parts) = self.stored else { return self.form };
        let number = u128::from(common.divisor) * u128::from(seconds);
        let is_whole = |of_unit: u64| number.is_multiple_of(u128::from(of_unit) * u128::from(parts));
        let unit = UNITS.iter().find(|(_, of_unit)| is_whole(*of_unit));
        unit.map_or(Form::DoubleSeconds, |(unit, _)| Form::Whole(*unit))
    }

    /// Returns the attribute `units`; none for plain integers.
    pub(super) fn units(&self) -> Option<String> {
        let unit = match self.form {
            Form::Plain => return None,
            Form::Whole(unit) => unit,
            Form::DoubleSeconds => Unit::Seconds,
        };
        Some(if self.is_span { unit.name().to_owned() } else { format!("{} since 1970-01-01 00:00:00", unit.name()) })
    }

    /// Returns the type that xarray gives to time spans: it has no longer unit than a second, and
    /// no shorter one than a nanosecond.
    pub(super) fn span_type(&self) -> &'static str {
        match self.stored {
            StoredUnit::Fraction(_, parts) if parts > 1_000_000 => "timedelta64[ns]",
            StoredUnit::Fraction(_, parts) if parts > 1000 => "timedelta64[us]",
            StoredUnit::Fraction(..) => "timedelta64[ms]",
            _ => "timedelta64[s]",
        }
    }

    /// Returns the largest error of rounded times in seconds, if they have `common` in common.
    pub(super) fn error(&self, common: &Common) -> f64 {
        let StoredUnit::Fraction(seconds, parts) = self.stored else { return 0.0 };
        let largest = common.largest as f64 * seconds as f64 / parts as f64;
        // Half of the distance of two numbers.
        largest * f64::EPSILON / 2.0
    }

    /// Returns true if a file has other numbers than those that are stored.
    pub(super) fn is_converted(&self) -> bool {
        match (self.form, self.stored) {
            (Form::Plain, _) => false,
            (Form::Whole(unit), StoredUnit::Seconds(seconds)) => unit.seconds() != seconds,
            _ => true,
        }
    }

    /// Converts stored times to the numbers of a file.
    pub(super) fn convert(&self, stored: &[u8]) -> Result<Vec<u8>> {
        let all = stored.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
        match self.form {
            Form::Plain => Ok(stored.to_vec()),
            Form::DoubleSeconds => Ok(all.flat_map(|time| self.double_seconds(time).to_le_bytes()).collect()),
            Form::Whole(unit) => {
                let mut whole = Vec::with_capacity(stored.len());
                for time in all {
                    whole.extend(self.whole(time, unit)?.to_le_bytes());
                }
                Ok(whole)
            }
        }
    }

    fn double_seconds(&self, time: i64) -> f64 {
        if time == NOT_A_TIME {
            return f64::NAN;
        }
        match self.stored {
            // Rounded once: the parts of a second are exact up to 2^53.
            StoredUnit::Fraction(seconds, parts) => {
                let number = i128::from(time) * i128::from(seconds);
                let parts = i128::from(parts);
                let whole = number.div_euclid(parts);
                let rest = number.rem_euclid(parts);
                whole as f64 + rest as f64 / parts as f64
            }
            _ => time as f64,
        }
    }

    /// Returns a time as a whole number of `unit`.
    fn whole(&self, time: i64, unit: Unit) -> Result<i64> {
        if time == NOT_A_TIME {
            return Ok(NOT_A_TIME);
        }
        let of_unit = i128::from(unit.seconds());
        let number = match self.stored {
            StoredUnit::Unknown => return Ok(time),
            StoredUnit::Months(months) => days_before_month(i128::from(time) * i128::from(months)),
            StoredUnit::Seconds(seconds) => exact(i128::from(time) * i128::from(seconds), of_unit)?,
            StoredUnit::Fraction(seconds, parts) => {
                exact(i128::from(time) * i128::from(seconds), of_unit * i128::from(parts))?
            }
        };
        i64::try_from(number)
            .map_err(|_| Error::corrupt(format!("the time {time} is beyond 64 bits in {}", unit.name())))
    }
}

impl Common {
    /// Adds stored times, little-endian.
    pub(super) fn add(&mut self, stored: &[u8]) {
        for bytes in stored.as_chunks::<8>().0 {
            let time = i64::from_le_bytes(*bytes);
            if time == NOT_A_TIME {
                continue;
            }
            self.divisor = greatest_common_divisor(self.divisor, time.unsigned_abs());
            self.largest = self.largest.max(time.unsigned_abs());
        }
    }

    /// Looks for missing ones among stored times.
    pub(super) fn look_for_missing(&mut self, stored: &[u8]) {
        let mut times = stored.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
        self.has_missing |= times.any(|time| time == NOT_A_TIME);
    }
}

fn stored_unit(unit: &str, multiple: u64) -> StoredUnit {
    let seconds = |seconds: u64| StoredUnit::Seconds(seconds.saturating_mul(multiple));
    let fraction = |parts: u64| {
        if multiple.is_multiple_of(parts) {
            StoredUnit::Seconds(multiple / parts)
        } else {
            StoredUnit::Fraction(multiple, parts)
        }
    };
    match unit {
        "Y" => StoredUnit::Months(multiple.saturating_mul(12)),
        "M" => StoredUnit::Months(multiple),
        "W" => seconds(7 * 86_400),
        "D" => seconds(86_400),
        "h" => seconds(3600),
        "m" => seconds(60),
        "s" => seconds(1),
        "ms" => fraction(1000),
        "us" | "μs" | "µs" => fraction(1_000_000),
        "ns" => fraction(1_000_000_000),
        "ps" => fraction(1_000_000_000_000),
        "fs" => fraction(1_000_000_000_000_000),
        "as" => fraction(1_000_000_000_000_000_000),
        _ => StoredUnit::Unknown,
    }
}

/// Returns `number` by `divisor`, if that is a whole number.
fn exact(number: i128, divisor: i128) -> Result<i128> {
    match number.checked_rem(divisor) {
        Some(0) => Ok(number / divisor),
        _ => Err(Error::corrupt("a time that is not a whole number of the unit of all others")),
    }
}

/// Returns the days from the beginning of 1970 to that of a month, counted from January 1970, of
/// the Gregorian calendar.
fn days_before_month(month: i128) -> i128 {
    // Years that begin with March have their leap day at the end.
    let from_march = month - 2;
    let year = 1970 + from_march.div_euclid(12);
    let month = from_march.rem_euclid(12);
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // From March 1 of year 0.
    year * 365 + leap_days + (153 * month + 2) / 5 - 719_468
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn times(unit: &str, multiple: u64, is_span: bool) -> Times {
        Times::parse(Some(&json!({"unit": unit, "scale_factor": multiple})), is_span)
    }

    fn bytes(all: &[i64]) -> Vec<u8> {
        all.iter().flat_map(|time| time.to_le_bytes()).collect()
    }

    /// Returns times with the form that they have in a file.
    fn looked_at(unit: &str, all: &[i64]) -> Times {
        let times = times(unit, 1, false);
        let mut common = Common::default();
        common.add(&bytes(all));
        times.with_form(times.form_of(&common))
    }

    fn whole(times: Times, all: &[i64]) -> Vec<i64> {
        let converted = times.convert(&bytes(all)).unwrap();
        converted.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn units_of_a_second_and_more_stay_whole_numbers() {
        for (unit, multiple, units, stored, shown) in [
            ("D", 1, "days", 3, 3),
            ("h", 1, "hours", 3, 3),
            ("m", 1, "minutes", 3, 3),
            ("s", 1, "seconds", 3, 3),
            ("W", 2, "days", 3, 42),
            ("D", 10, "days", -3, -30),
            ("h", 48, "days", 3, 6),
            ("s", 90, "seconds", 2, 180),
            ("ms", 60_000, "minutes", 7, 7),
            ("M", 1, "days", 1, 31),
            ("M", 3, "days", 1, 90),
            ("Y", 1, "days", 30, 10_957),
        ] {
            let times = times(unit, multiple, false);
            assert_eq!(times.units().unwrap(), format!("{units} since 1970-01-01 00:00:00"), "{unit}");
            assert_eq!(whole(times, &[stored, NOT_A_TIME]), [shown, NOT_A_TIME], "{unit}");
            assert_eq!(times.is_converted(), stored != shown, "{unit}");
        }
    }

    #[test]
    fn shorter_units_have_the_longest_in_which_all_times_are_whole() {
        let day = 86_400_000;
        for (all, units, shown) in [
            (vec![day, -2 * day, 0], "days", vec![1, -2, 0]),
            (vec![day, day + 7_200_000], "hours", vec![24, 26]),
            (vec![day, day + 60_000], "minutes", vec![1440, 1441]),
            (vec![1000, NOT_A_TIME], "seconds", vec![1, NOT_A_TIME]),
            (vec![NOT_A_TIME, 0], "days", vec![NOT_A_TIME, 0]),
        ] {
            let times = looked_at("ms", &all);
            assert_eq!(times.units().unwrap(), format!("{units} since 1970-01-01 00:00:00"));
            assert_eq!(whole(times, &all), shown);
        }
        let nanoseconds = looked_at("ns", &[1_579_046_400_000_000_000]);
        assert_eq!(nanoseconds.form, Form::Whole(Unit::Days));
        assert_eq!(times("ns", 1, true).form, Form::DoubleSeconds);
        // A time that was not looked at, and does not fit, is no other time.
        assert!(nanoseconds.convert(&bytes(&[1])).is_err());
    }

    #[test]
    fn fractions_of_seconds_are_double() {
        let times = looked_at("ms", &[1500, 1]);
        assert_eq!(times.units().unwrap(), "seconds since 1970-01-01 00:00:00");
        let shown = times.convert(&bytes(&[1500, -1500, NOT_A_TIME])).unwrap();
        let shown: Vec<f64> = shown.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        assert_eq!(shown.get(..2).unwrap(), [1.5, -1.5]);
        assert!(shown.last().unwrap().is_nan());
        let mut common = Common::default();
        common.add(&bytes(&[1_600_000_000_000]));
        assert!((1e-7..2e-7).contains(&times.error(&common)));
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        let months = times("M", 1, false);
        // 1900 and 2100 have no leap day, 2000 has one.
        let all =
            [0, 1, 2, -1, (2000 - 1970) * 12 + 2, (1900 - 1970) * 12 + 2, (2100 - 1970) * 12 + 2, (1 - 1970) * 12];
        assert_eq!(whole(months, &all), [0, 31, 59, -31, 11_017, -25_508, 47_541, -719_162]);
        assert!(months.convert(&bytes(&[i64::MAX])).is_err());
        // A span of months has no number of days.
        assert_eq!(times("M", 1, true).form, Form::Plain);
    }

    #[test]
    fn units_that_are_unknown_are_plain_integers() {
        for (unit, multiple) in [("generic", 1), ("", 1), ("s", 0), ("s", u64::MAX)] {
            let times = times(unit, multiple, false);
            assert_eq!((times.form, times.units(), times.is_converted()), (Form::Plain, None, false));
        }
        assert_eq!(Times::parse(None, false).form, Form::Plain);
    }

    #[test]
    fn spans_have_the_type_that_xarray_gives_them() {
        for (unit, wanted) in [("D", "s"), ("s", "s"), ("ms", "ms"), ("us", "us"), ("ns", "ns"), ("ps", "ns")] {
            assert_eq!(times(unit, 1, true).span_type(), format!("timedelta64[{wanted}]"), "{unit}");
        }
        assert_eq!(looked_at("ms", &[1000]).units().unwrap(), "seconds since 1970-01-01 00:00:00");
    }
}
