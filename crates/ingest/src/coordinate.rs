//! The coordinate along which files are appended: their order, gaps between them, and what is there
//! already.

use std::cmp::Ordering;

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::{Meter, Metered};

use crate::element::Numeric;
use crate::plan::{Array, Plan};
use crate::source::Source;

/// A step between two files that is longer than the usual one by this factor is a gap. Months are
/// not equally long.
const GAP: f64 = 1.5;
/// Part of a value by which programs differ that compute the same one. In seconds since 1970, it is
/// less than a microsecond.
const NEAR: f64 = 2.0 * f64::EPSILON;
/// Steps of which the median is the usual one. Of more, it is the longest of nine tenths: a gap
/// that was allowed once is not usual, and two days without trade are.
const FEW: usize = 20;
/// Bytes of a value in memory, and of the steps between values.
const VALUE: u64 = size_of::<Numeric>() as u64 + 8;

/// Values of a coordinate, in their order.
#[derive(Debug)]
pub struct Coordinate {
    values: Metered<Vec<Numeric>>,
}

impl Coordinate {
    /// Reads the coordinate of `dimension`, the variable of its name, in the file `source` with
    /// `plan`; none if there is no such variable of numbers along this dimension alone.
    ///
    /// Errors: as for reading.
    pub fn read(plan: &Plan, dimension: &str, source: &dyn Source) -> Result<Option<Self>> {
        let Some(array) = variable(plan, dimension) else { return Ok(None) };
        let length = array.shape().first().copied().unwrap_or_default();
        let mut meter = Meter::new("the coordinate of a file");
        meter.count(length.saturating_mul(array.element.size() + VALUE))?;
        let mut bytes = Vec::new();
        array.data.read(source, std::slice::from_ref(&(0..length)), &mut bytes)?;
        Ok(Some(Coordinate::decode(array, bytes, meter)))
    }

    /// Returns the coordinate of `dimension` whose elements are `bytes`, of the type and in the
    /// byte order that it has in `plan`; none as for [`Coordinate::read`].
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::OutOfMemory`] if there are too many.
    pub fn of_bytes(plan: &Plan, dimension: &str, bytes: &[u8]) -> Result<Option<Self>> {
        let Some(array) = variable(plan, dimension) else { return Ok(None) };
        let mut meter = Meter::new("the coordinate of an archive");
        meter.count((bytes.len() as u64 / array.element.size()).saturating_mul(VALUE))?;
        Ok(Some(Coordinate::decode(array, bytes.to_vec(), meter)))
    }

    /// Decodes elements of `array`, whose values `meter` counts.
    fn decode(array: &Array, mut bytes: Vec<u8>, meter: Meter) -> Self {
        let size = usize::try_from(array.element.size()).unwrap_or(1);
        array.order.to_big_endian(&mut bytes, size);
        let values = bytes.chunks_exact(size).filter_map(|bytes| array.element.number(bytes)).collect();
        Coordinate { values: meter.finish(values) }
    }

    /// Returns true if `other`, whose values go in one direction, has any value of this one.
    pub fn meets(&self, other: &Coordinate) -> bool {
        self.values.iter().any(|value| other.has(*value))
    }

    /// Returns true if `other`, whose values go in one direction, has all values of this one.
    pub fn is_in(&self, other: &Coordinate) -> bool {
        self.values.iter().all(|value| other.has(*value))
    }

    fn has(&self, value: Numeric) -> bool {
        let first = self.values.first().zip(self.values.last());
        let direction = first.and_then(|(first, last)| compare(*first, *last)).unwrap_or(Ordering::Equal);
        let by = |there: &Numeric| {
            if is_near(*there, value) {
                return Ordering::Equal;
            }
            let order = compare(*there, value).unwrap_or(Ordering::Less);
            if direction == Ordering::Greater { order.reverse() } else { order }
        };
        self.values.binary_search_by(by).is_ok()
    }

    /// Returns the direction in which the values go, 0 of fewer than two; none if they do not all
    /// go in one direction, or if there is one that is not a number.
    fn direction(&self) -> Option<Ordering> {
        let mut direction = Ordering::Equal;
        for (one, next) in self.values.iter().zip(self.values.iter().skip(1)) {
            let here = compare(*one, *next)?;
            if here == Ordering::Equal || (direction != Ordering::Equal && here != direction) {
                return None;
            }
            direction = here;
        }
        let is_number = |value: &Numeric| compare(*value, *value).is_some();
        self.values.iter().all(is_number).then_some(direction)
    }

    fn steps(&self) -> impl Iterator<Item = f64> {
        self.values.iter().zip(self.values.iter().skip(1)).map(|(one, next)| step(*one, *next))
    }
}

/// Returns the variable with the values of `dimension`.
fn variable<'a>(plan: &'a Plan, dimension: &str) -> Option<&'a Array> {
    let is_it = |array: &&Array| array.name == dimension && array.dimension_names == [dimension];
    plan.arrays.iter().find(is_it).filter(|array| array.element.is_number())
}

/// Order in which files are appended, and what is odd about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order {
    /// Files by position, in the order in which they follow each other.
    pub files: Vec<usize>,
    /// Places where values are missing, as far as the usual step tells.
    pub gaps: Vec<Between>,
    /// Files whose values do not follow those before.
    pub overlaps: Vec<Between>,
}

/// Place before a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Between {
    /// File, by position.
    pub file: usize,
    /// File before it; none for the archive.
    pub after: Option<usize>,
    /// Last value before it, for display.
    pub last: String,
    /// Its first value, for display.
    pub first: String,
}

/// Orders `files` by their values, behind the `archive`.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if the values of a file, or of the
/// archive, do not all go in one direction, with the position of that file; none of the archive.
pub fn order(archive: Option<&Coordinate>, files: &[Coordinate]) -> Result<Order, (Option<usize>, Error)> {
    let mut direction = Ordering::Equal;
    let places = archive.map(|archive| (None, archive)).into_iter();
    for (place, values) in places.chain(files.iter().enumerate().map(|(file, values)| (Some(file), values))) {
        let own = values.direction().ok_or_else(|| (place, not_ordered()))?;
        if direction == Ordering::Equal {
            direction = own;
        }
        if own != Ordering::Equal && own != direction {
            return Err((place, not_ordered()));
        }
    }
    // Files of one value each go upwards, unless the archive says otherwise.
    let direction = if direction == Ordering::Equal { Ordering::Less } else { direction };
    let first = |file: &usize| files.get(*file).and_then(|values| values.values.first()).copied();
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by(|one, other| match (first(one), first(other)) {
        (Some(one), Some(other)) => {
            let found = compare(one, other).unwrap_or(Ordering::Equal);
            if direction == Ordering::Less { found } else { found.reverse() }
        }
        (one, other) => one.is_some().cmp(&other.is_some()),
    });
    let mut made = Order { files: order, ..Order::default() };
    let usual = usual_step(archive, files, &made.files);
    let mut before: Option<(Option<usize>, Numeric)> =
        archive.and_then(|values| values.values.last()).map(|last| (None, *last));
    for file in &made.files {
        let Some((own_first, own_last)) =
            files.get(*file).and_then(|values| Some((*values.values.first()?, *values.values.last()?)))
        else {
            continue;
        };
        if let Some((after, last)) = before {
            let between = || Between { file: *file, after, last: shown(last), first: shown(own_first) };
            if compare(last, own_first) != Some(direction) || is_near(last, own_first) {
                made.overlaps.push(between());
            } else if usual.is_some_and(|usual| step(last, own_first) > GAP * usual) {
                made.gaps.push(between());
            }
        }
        before = Some((Some(*file), own_last));
    }
    Ok(made)
}

/// Returns the usual step within the archive and the files; if each has one value, that between
/// them.
fn usual_step(archive: Option<&Coordinate>, files: &[Coordinate], order: &[usize]) -> Option<f64> {
    let mut steps: Vec<f64> = archive.into_iter().chain(files).flat_map(Coordinate::steps).collect();
    if steps.is_empty() {
        let first = |file: &usize| files.get(*file).and_then(|values| values.values.first()).copied();
        let last = archive.and_then(|values| values.values.last()).copied();
        let firsts: Vec<Numeric> = last.into_iter().chain(order.iter().filter_map(first)).collect();
        steps = firsts.iter().zip(firsts.iter().skip(1)).map(|(one, next)| step(*one, *next)).collect();
    }
    steps.sort_by(f64::total_cmp);
    let usual = if steps.len() <= FEW { steps.len().div_ceil(2) } else { (steps.len() * 9).div_ceil(10) };
    steps.get(usual.saturating_sub(1)).copied()
}

fn not_ordered() -> Error {
    Error::invalid("the values of its coordinate do not all go in one direction, or one is not a number")
}

fn compare(one: Numeric, other: Numeric) -> Option<Ordering> {
    match (one, other) {
        (Numeric::Integer(one), Numeric::Integer(other)) => Some(one.cmp(&other)),
        (Numeric::Float(one), Numeric::Float(other)) => one.partial_cmp(&other),
        _ => None,
    }
}

/// Returns true if both are one value, as far as programs compute it alike.
fn is_near(one: Numeric, other: Numeric) -> bool {
    match (one, other) {
        (Numeric::Float(one), Numeric::Float(other)) if one.is_finite() => (one - other).abs() <= NEAR * one.abs(),
        _ => one == other,
    }
}

fn step(one: Numeric, next: Numeric) -> f64 {
    match (one, next) {
        (Numeric::Integer(one), Numeric::Integer(next)) => next.abs_diff(one) as f64,
        (Numeric::Float(one), Numeric::Float(next)) => (next - one).abs(),
        _ => f64::NAN,
    }
}

fn shown(value: Numeric) -> String {
    match value {
        Numeric::Integer(value) => value.to_string(),
        Numeric::Float(value) => value.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Coordinate {
        let values = values.iter().map(|value| Numeric::Float(*value)).collect();
        Coordinate { values: Meter::new("a test").finish(values) }
    }

    fn places(between: &[Between]) -> Vec<(usize, Option<usize>)> {
        between.iter().map(|one| (one.file, one.after)).collect()
    }

    #[test]
    fn files_follow_each_other_by_their_values() {
        let files = [of(&[60.0, 90.0]), of(&[0.0, 30.0]), of(&[])];
        let found = order(None, &files).unwrap();
        assert_eq!(found.files, [2, 1, 0]);
        assert!(found.gaps.is_empty() && found.overlaps.is_empty(), "{found:?}");
        let down = [of(&[3.0, 2.0]), of(&[9.0, 8.0])];
        assert_eq!(order(None, &down).unwrap().files, [1, 0]);
        assert_eq!(order(Some(&of(&[20.0, 10.0])), &[of(&[4.0]), of(&[7.0])]).unwrap().files, [1, 0]);
    }

    #[test]
    fn gaps_and_overlaps_are_found() {
        let archive = of(&[0.0, 1.0, 2.0]);
        let found = order(Some(&archive), &[of(&[5.0, 6.0]), of(&[3.0, 4.0]), of(&[6.0, 7.0]), of(&[9.0])]).unwrap();
        assert_eq!(found.files, [1, 0, 2, 3]);
        assert_eq!((places(&found.overlaps), places(&found.gaps)), (vec![(2, Some(0))], vec![(3, Some(2))]));
        let behind = order(Some(&archive), &[of(&[1.0, 2.0])]).unwrap();
        assert_eq!(places(&behind.overlaps), [(0, None)]);
        assert_eq!((behind.overlaps[0].last.as_str(), behind.overlaps[0].first.as_str()), ("2", "1"));
        // Months, one in each file: April is missing.
        let days = [0.0, 31.0, 59.0, 120.0, 151.0, 181.0, 212.0, 243.0, 273.0, 304.0, 334.0, 365.0];
        let months: Vec<Coordinate> = days.iter().map(|day| of(&[*day])).collect();
        assert_eq!(places(&order(None, &months).unwrap().gaps), [(3, Some(2))]);
        // Also among few.
        let few: Vec<Coordinate> = [0.0, 1.0, 2.0, 9.0, 10.0].iter().map(|day| of(&[*day])).collect();
        assert_eq!(places(&order(None, &few).unwrap().gaps), [(3, Some(2))]);
        assert_eq!(places(&order(Some(&of(&[0.0])), &[of(&[1.0]), of(&[5.0])]).unwrap().gaps), [(1, Some(0))]);
        assert_eq!(places(&order(Some(&of(&[0.0, 1.0, 2.0, 30.0])), &[of(&[60.0])]).unwrap().gaps), [(0, None)]);
        // A gap in the archive makes none of the next ones usual.
        let mut archive: Vec<f64> = (0..40).map(f64::from).collect();
        archive.push(90.0);
        let found = order(Some(&of(&archive)), &[of(&[100.0])]).unwrap();
        assert_eq!(places(&found.gaps), [(0, None)]);
    }

    #[test]
    fn values_in_no_order_are_refused() {
        for values in [&[1.0, 1.0][..], &[1.0, 2.0, 1.5], &[f64::NAN], &[0.0, f64::NAN]] {
            assert_eq!(order(None, &[of(&[0.0]), of(values)]).unwrap_err().0, Some(1), "{values:?}");
            assert_eq!(order(Some(&of(values)), &[of(&[9.0])]).unwrap_err().0, None, "{values:?}");
        }
        assert_eq!(order(Some(&of(&[0.0, 1.0])), &[of(&[9.0, 8.0])]).unwrap_err().0, Some(0));
        let computed = of(&[0.1 + 0.2, 1e9]);
        assert!(computed.is_in(&of(&[0.3, 1e9])) && !of(&[0.3 + 1e-12]).is_in(&computed), "the same in other digits");
        let order = order(Some(&of(&[0.1, 0.1 + 0.2])), &[of(&[0.3, 0.4])]).unwrap();
        assert_eq!(places(&order.overlaps), [(0, None)]);
        let close = 1.7e9;
        assert!(of(&[close, close + 1e-6, close + 2e-6]).direction().is_some(), "microseconds are values");
        let endless = of(&[f64::NEG_INFINITY, 9.0]);
        assert_eq!(endless.direction(), Some(Ordering::Less));
        assert!(!of(&[5.0]).is_in(&endless) && of(&[f64::NEG_INFINITY]).is_in(&endless));
        assert!(of(&[0.3, 0.1 + 0.2]).direction().is_some(), "values of one file are compared by all digits");
        assert!(of(&[3.0, 1.0]).is_in(&of(&[4.0, 3.0, 2.0, 1.0])) && !of(&[5.0]).is_in(&of(&[4.0, 3.0])));
        assert!(of(&[1.0]).is_in(&of(&[0.0, 1.0])) && !of(&[1.0, 2.0]).is_in(&of(&[0.0, 1.0])));
    }
}
