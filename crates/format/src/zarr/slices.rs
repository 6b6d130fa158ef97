//! Array slices in Python's notation, and the chunks that they touch: `0:100,:,-5` is elements 0 to
//! 99 of the first dimension, all of the second, and the fifth from the end of the third.

use std::ops::Range;

use super::array::{self, Dimension};
use icechunkfs_base::error::{Error, Result};

/// A part of an array: one range per dimension. Omitted dimensions are whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slices(Vec<Slice>);

/// First element, and the one after the last; negative numbers count from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slice {
    start: Option<i64>,
    stop: Option<i64>,
}

impl Slices {
    /// Parses slices such as `0:100,:,-5`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |part: &str| {
            Error::invalid(format!(
                "`{part}` is not a valid slice: write START:STOP, START:, :STOP, : or INDEX, separated by commas"
            ))
        };
        let slices = text.split(',').map(|part| {
            let number = |text: &str| match text.trim() {
                "" => Ok(None),
                digits => digits.parse::<i64>().map(Some).map_err(|_| wrong(part)),
            };
            match part.split_once(':') {
                Some((start, stop)) => Ok(Slice { start: number(start)?, stop: number(stop)? }),
                None => {
                    let start = number(part)?.ok_or_else(|| wrong(part))?;
                    Ok(Slice { start: Some(start), stop: start.checked_add(1).filter(|stop| *stop != 0) })
                }
            }
        });
        slices.collect::<Result<_>>().map(Slices)
    }

    /// Returns the chunks that the slices touch, one range per dimension; `zarr_json` is the
    /// array's.
    pub fn chunks(&self, zarr_json: &[u8]) -> Result<Vec<Range<u32>>> {
        let (shape, grid) = array::dimensions(zarr_json)?;
        if self.0.len() > shape.len() {
            let count = self.0.len();
            let rank = shape.len();
            return Err(Error::invalid(format!("{count} slices for an array of {rank} dimensions")));
        }
        let mut remaining = self.0.iter();
        let all = Slice { start: None, stop: None };
        let ranges = std::iter::zip(shape, &grid).map(|(length, dimension)| {
            let elements = remaining.next().unwrap_or(&all).within(length);
            dimension.chunks_of(elements)
        });
        Ok(ranges.collect())
    }
}

impl Slice {
    fn within(self, length: u64) -> Range<u64> {
        let place = |at: i64| match u64::try_from(at) {
            Ok(at) => at.min(length),
            Err(_) => length.saturating_sub(at.unsigned_abs()),
        };
        self.start.map_or(0, place)..self.stop.map_or(length, place)
    }
}

impl Dimension {
    fn chunks_of(&self, elements: Range<u64>) -> Range<u32> {
        if elements.is_empty() {
            return 0..0;
        }
        let chunk_of = |element: u64| {
            let mut at = 0_u64;
            let mut chunks = 0_u64;
            for &(size, times) in &self.runs {
                let end = at.saturating_add(size.saturating_mul(times));
                if size > 0 && element < end {
                    return chunks + (element - at) / size;
                }
                (at, chunks) = (end, chunks.saturating_add(times));
            }
            chunks
        };
        let number = |chunk: u64| u32::try_from(chunk).unwrap_or(u32::MAX);
        number(chunk_of(elements.start))..number(chunk_of(elements.end - 1).saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn chunks(text: &str, shape: serde_json::Value, grid: serde_json::Value) -> Vec<Range<u32>> {
        let document = json!({"shape": shape, "chunk_grid": grid});
        Slices::parse(text).unwrap().chunks(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn slices_are_chunks() {
        let regular = json!({"name": "regular", "configuration": {"chunk_shape": [10, 7]}});
        let of = |text| chunks(text, json!([95, 21]), regular.clone());
        assert_eq!(of(":"), [0..10, 0..3]);
        assert_eq!(of("0:10,7:8"), [0..1, 1..2]);
        assert_eq!(of("9:11"), [0..2, 0..3]);
        assert_eq!(of("-1, -7:"), [9..10, 2..3]);
        assert_eq!(of(":-90,20"), [0..1, 2..3]);
        assert_eq!(of("5:5"), [0..0, 0..3]);
        assert_eq!(of("200:300"), [0..0, 0..3]);
    }

    #[test]
    fn chunks_of_different_sizes_are_counted() {
        let grid = json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[1, [3, 2], 5], 4]}});
        assert_eq!(chunks("0:4,3:5", json!([12, 9]), grid.clone()), [0..2, 0..2]);
        assert_eq!(chunks("4:8", json!([12, 9]), grid), [2..4, 0..3]);
    }

    #[test]
    fn invalid_slices_are_refused() {
        for wrong in ["", "a", "1:2:3", "1,,2", "1.5"] {
            assert!(Slices::parse(wrong).is_err(), "{wrong}");
        }
        let line = json!({"shape": [3], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}});
        assert!(Slices::parse("1,2").unwrap().chunks(line.to_string().as_bytes()).is_err());
    }
}
