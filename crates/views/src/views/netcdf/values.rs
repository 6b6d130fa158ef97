//! Values of an array's chunks in two snapshots, compared element by element.
//!
//! Chunks are decoded by the codecs of the view. Elements are the same if their numbers are, as
//! numpy compares them, except that a NaN is the same as another.

use bytes::Bytes;

use super::data_type::{ElementType, Shown};
use super::decode::Chain;
use super::decode::chain::{Elements, Values};
use super::decode::number::{Number, NumberType};
use super::document;
use super::fill_value;
use super::hdf5::model::DataType;
use super::look::Obstacle;
use super::times::NOT_A_TIME;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::{memory, printable};
use icechunkfs_format::zarr::array::ArrayMetadata;

/// Differences whose places are kept.
pub const FIRST: usize = 10;
/// Characters of a text in a difference.
const MAX_TEXT: usize = 40;
/// Most bytes of the texts of one chunk, and the part of the memory that the process may take which
/// they may have. An array with more is not compared.
const MAX_TEXTS: u64 = 64 << 20;
const TEXTS_PART: u64 = 16;
/// Characters of a reason.
const MAX_REASON: usize = 200;

/// Array whose chunks can be decoded.
#[derive(Debug)]
pub struct ArrayValues {
    element: ElementType,
    shape: Vec<u64>,
    /// Elements per dimension of a chunk.
    chunk: Vec<u64>,
    fill: Vec<u8>,
    chain: Chain,
}

/// Elements of an array that differ.
#[derive(Debug, Default, PartialEq)]
pub struct ValueDifferences {
    /// Elements that both arrays have, of the chunks that were compared.
    pub compared: u64,
    /// Elements of these that differ.
    pub differing: u64,
    /// Largest difference of two finite numbers; none without numbers.
    pub largest: Option<f64>,
    /// The differences with the least indexes, in their order, at most [`FIRST`].
    pub first: Vec<ElementDifference>,
}

impl ValueDifferences {
    /// Adds the differences of other chunks of the same array.
    pub fn add(&mut self, other: ValueDifferences) {
        self.compared = self.compared.saturating_add(other.compared);
        self.differing = self.differing.saturating_add(other.differing);
        self.largest = self.largest.into_iter().chain(other.largest).reduce(f64::max);
        self.keep(other.first);
    }

    fn keep(&mut self, more: impl IntoIterator<Item = ElementDifference>) {
        self.first.extend(more);
        self.first.sort_by(|one, other| one.index.cmp(&other.index));
        self.first.truncate(FIRST);
    }
}

/// An element that differs.
#[derive(Debug, PartialEq, Eq)]
pub struct ElementDifference {
    /// Index in the array.
    pub index: Vec<u64>,
    /// Value before, as text.
    pub before: String,
    /// Value after, as text.
    pub after: String,
}

/// Decoded elements of a chunk.
enum Decoded<'a> {
    Fixed(Vec<u8>, usize),
    Texts(Values),
    /// A chunk that is not stored.
    Fill(&'a [u8]),
}

impl Decoded<'_> {
    /// Returns the elements in C order; those of a chunk that is not stored without end.
    fn iter(&self) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        match self {
            Decoded::Fixed(bytes, size) => Box::new(bytes.chunks_exact((*size).max(1))),
            Decoded::Texts(values) => Box::new(values.iter()),
            Decoded::Fill(fill) => Box::new(std::iter::repeat(*fill)),
        }
    }
}

impl ArrayValues {
    /// Parses an array's `zarr.json`. Returns the reason if its chunks cannot be decoded.
    ///
    /// Errors: [`ErrorKind::OutOfMemory`].
    pub fn parse(zarr_json: &[u8]) -> Result<std::result::Result<Self, String>> {
        let short = |reason: String| printable::line(&printable::shorten(&reason, MAX_REASON));
        Ok(Self::parse_whole(zarr_json)?.map_err(short))
    }

    fn parse_whole(zarr_json: &[u8]) -> Result<std::result::Result<Self, String>> {
        let shape = match ArrayMetadata::parse(zarr_json) {
            Ok(metadata) => metadata.shape,
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error),
            Err(error) => return Ok(Err(error.to_string())),
        };
        match document::parse_array(zarr_json) {
            Ok((document, _)) => Ok(Self::of(&document, shape)),
            Err(Obstacle::OfArray(reason)) => Ok(Err(reason)),
            Err(Obstacle::OfAccess(error)) => Err(error),
        }
    }

    fn of(document: &serde_json::Value, shape: Vec<u64>) -> std::result::Result<Self, String> {
        let member = |name: &str| document.get(name).ok_or_else(|| format!("zarr.json has no `{name}`"));
        if document.get("storage_transformers").and_then(|all| all.as_array()).is_some_and(|all| !all.is_empty()) {
            return Err("storage transformers".to_owned());
        }
        let grid = member("chunk_grid")?;
        let chunk = grid.pointer("/configuration/chunk_shape").and_then(|lengths| lengths.as_array());
        let chunk = chunk.filter(|_| grid.get("name").is_some_and(|name| name == "regular"));
        let chunk: Option<Vec<u64>> = chunk.and_then(|all| all.iter().map(serde_json::Value::as_u64).collect());
        let chunk = chunk.filter(|chunk| chunk.len() == shape.len()).ok_or("chunks of several shapes")?;
        let element = ElementType::parse(member("data_type")?, false)?;
        let fill = fill_value::parse(document.get("fill_value").unwrap_or(&serde_json::Value::Null), &element);
        let fill = fill.ok_or("a fill value that does not fit the data type")?;
        let chain = Chain::parse(member("codecs")?, &chunk, element.item())?;
        if chain.is_variable() != matches!(element.shown, Shown::Texts) {
            return Err("codecs that do not fit the data type".to_owned());
        }
        Ok(ArrayValues { element, shape, chunk, fill, chain })
    }

    /// Returns why the elements of this array cannot be compared with those of `after`, place by
    /// place; none if they can.
    pub fn obstacle(&self, after: &Self) -> Option<&'static str> {
        if self.element != after.element {
            Some("the data type differs")
        } else if self.chunk != after.chunk {
            Some("the shape of chunks differs")
        } else {
            None
        }
    }

    /// Returns true if elements that are not stored have another value in `after`.
    pub fn has_other_fill(&self, after: &Self) -> bool {
        self.differs([&self.fill, &after.fill])
    }

    /// Returns true if the same stored bytes have other values in `after`.
    pub fn has_other_codecs(&self, after: &Self) -> bool {
        self.chain != after.chain
    }

    /// Returns true if both arrays have elements of chunk `coords`.
    pub fn overlaps(&self, after: &Self, coords: &[u32]) -> bool {
        std::iter::zip(self.start(coords), self.ends(after)).all(|(start, end)| start < end)
    }

    /// Returns the index of the first element of a chunk.
    fn start(&self, coords: &[u32]) -> Vec<u64> {
        let start = |(length, coord): (&u64, &u32)| length.saturating_mul(u64::from(*coord));
        std::iter::zip(&self.chunk, coords).map(start).collect()
    }

    /// Returns the lengths of the part that both arrays have.
    fn ends(&self, after: &Self) -> Vec<u64> {
        std::iter::zip(&self.shape, &after.shape).map(|(one, other)| *one.min(other)).collect()
    }

    /// Returns the most bytes of memory that decoding a chunk of `stored` bytes takes, these
    /// included; a chunk that is not stored takes none.
    pub fn memory(&self, stored: Option<u64>) -> u64 {
        let Some(stored) = stored else { return 0 };
        let decoded = match (self.count(), self.chain.is_variable()) {
            (Some(count), true) => self.chain.variable_memory(count, max_texts()),
            (Some(count), false) => {
                let size = self.element.size;
                let length = count.saturating_mul(size);
                // Input and output of a codec live at the same time.
                let extra = self.chain.extra_memory(length, size);
                let shard = self.chain.decompressed_shard(length, size);
                length.saturating_mul(2).saturating_add(extra).saturating_add(shard) as u64
            }
            (None, _) => u64::MAX,
        };
        decoded.saturating_add(stored.saturating_mul(2))
    }

    /// Returns the elements of a chunk; none if they are too many for this machine.
    fn count(&self) -> Option<usize> {
        let count = self.chunk.iter().try_fold(1_u64, |count, length| count.checked_mul(*length))?;
        usize::try_from(count).ok()
    }

    fn decode(&self, stored: Option<Bytes>) -> Result<Decoded<'_>> {
        let Some(stored) = stored else { return Ok(Decoded::Fill(&self.fill)) };
        if self.chain.is_variable() {
            let count = self.count().ok_or_else(|| Error::corrupt("a chunk of 2^64 elements"))?;
            return self.chain.decode_variable(stored, count, max_texts()).map(Decoded::Texts);
        }
        let elements =
            Elements { size: self.element.size, number: self.element.number, shape: &self.chunk, fill: &self.fill };
        Ok(Decoded::Fixed(self.chain.decode(stored, elements)?, self.element.size))
    }

    /// Compares chunk `coords`, as it is `stored` before and after, and adds what differs to
    /// `found`. There must be no [`ArrayValues::obstacle`], and the caller has memory for both.
    pub fn compare(
        &self,
        after: &Self,
        coords: &[u32],
        stored: [Option<Bytes>; 2],
        found: &mut ValueDifferences,
    ) -> Result<()> {
        let [old, new] = stored;
        let old = self.decode(old)?;
        let new = after.decode(new)?;
        let start = self.start(coords);
        // Elements beyond either shape are no elements of that array.
        let ends = self.ends(after);
        let within = std::iter::zip(std::iter::zip(&start, &ends), &self.chunk)
            .map(|((start, end), length)| end.saturating_sub(*start).min(*length));
        found.compared = found.compared.saturating_add(within.product());
        if self.count() == Some(0) || !self.overlaps(after, coords) {
            return Ok(());
        }
        let mut within = vec![0; self.chunk.len()];
        let both = std::iter::zip(old.iter(), new.iter()).take(self.count().unwrap_or(0));
        for (old, new) in both {
            if old != new {
                let index = std::iter::zip(&start, &within).map(|(start, at): (&u64, &u64)| start.saturating_add(*at));
                let index: Vec<u64> = index.collect();
                if std::iter::zip(&index, &ends).all(|(at, end)| at < end) {
                    self.take(index, [old, new], found);
                }
            }
            step(&mut within, &self.chunk);
        }
        Ok(())
    }

    /// Adds an element whose bytes differ to `found`, if its value does.
    fn take(&self, index: Vec<u64>, elements: [&[u8]; 2], found: &mut ValueDifferences) {
        if !self.differs(elements) {
            return;
        }
        let [old, new] = elements.map(|element| self.numbers(element).unwrap_or_default());
        let difference = std::iter::zip(&old, &new).filter_map(|(old, new)| distance(*old, *new)).reduce(f64::max);
        found.differing += 1;
        found.largest = difference.into_iter().chain(found.largest).reduce(f64::max);
        let is_late = |last: &ElementDifference| found.first.len() >= FIRST && last.index < index;
        if !found.first.last().is_some_and(is_late) {
            let [before, after] = elements.map(|element| self.text(element));
            found.keep([ElementDifference { index, before, after }]);
        }
    }

    /// Returns true if two elements have different values.
    fn differs(&self, elements: [&[u8]; 2]) -> bool {
        let [old, new] = elements;
        match elements.map(|element| self.numbers(element)) {
            [Some(old), Some(new)] => std::iter::zip(&old, &new).any(|(old, new)| !is_same(*old, *new)),
            _ => old != new,
        }
    }

    /// Returns the numbers that an element consists of; none if it is no number.
    fn numbers(&self, element: &[u8]) -> Option<Vec<Number>> {
        let (number, size) = match &self.element.shown {
            Shown::Widened { is_bfloat: true } => {
                let bits = u16::from_le_bytes(element.try_into().ok()?);
                return Some(vec![Number::Float(f64::from(f32::from_bits(u32::from(bits) << 16)))]);
            }
            Shown::Complex(DataType::Float32) => (NumberType::Float32, 4),
            Shown::Complex(_) => (NumberType::Float64, 8),
            Shown::Time(_) if element == NOT_A_TIME.to_le_bytes() => return None,
            Shown::Time(_) => (NumberType::Int { size: 8, signed: true }, 8),
            _ => (self.element.item().number?, self.element.size.max(1)),
        };
        Some(element.chunks(size).map(|part| number.get(part)).collect())
    }

    fn text(&self, element: &[u8]) -> String {
        // A character has four bytes at most.
        let element = element.get(..4 * (MAX_TEXT + 1)).unwrap_or(element);
        let quoted = |text: &str| {
            let text = text.trim_end_matches('\0');
            format!("\"{}\"", printable::line(&printable::shorten(text, MAX_TEXT)))
        };
        // As short as the type allows: 0.1 and not 0.10000000149011612.
        let is_short = matches!(
            self.element.shown,
            Shown::Number(DataType::Float32) | Shown::Complex(DataType::Float32) | Shown::Widened { .. }
        );
        let number = |number: &Number| match number {
            Number::Int(number) => number.to_string(),
            Number::Float(number) if is_short => format!("{:?}", *number as f32),
            Number::Float(number) => format!("{number:?}"),
        };
        match (&self.element.shown, self.numbers(element).as_deref()) {
            (Shown::Boolean, Some([Number::Int(value)])) => (*value != 0).to_string(),
            (Shown::Complex(_), Some([real, imaginary])) => format!("{}{}j", number(real), Signed(number(imaginary))),
            (_, Some([one])) => number(one),
            (Shown::Time(_), None) => "NaT".to_owned(),
            (Shown::Utf32, _) => {
                let letters =
                    element.chunks_exact(4).filter_map(|bits| Some(u32::from_le_bytes(bits.try_into().ok()?)));
                quoted(
                    &letters
                        .map(|bits| char::from_u32(bits).unwrap_or(char::REPLACEMENT_CHARACTER))
                        .collect::<String>(),
                )
            }
            _ => quoted(&String::from_utf8_lossy(element)),
        }
    }
}

/// Number of a complex one, which is shown with its sign.
struct Signed(String);

impl std::fmt::Display for Signed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.0.starts_with('-') { "" } else { "+" };
        write!(f, "{sign}{}", self.0)
    }
}

/// Moves the index within a chunk of `shape` to the next element in C order.
fn step(index: &mut [u64], shape: &[u64]) {
    for (at, length) in std::iter::zip(index.iter_mut(), shape).rev() {
        *at += 1;
        if *at < *length {
            return;
        }
        *at = 0;
    }
}

fn is_same(old: Number, new: Number) -> bool {
    match (old, new) {
        (Number::Float(old), Number::Float(new)) => old == new || (old.is_nan() && new.is_nan()),
        (old, new) => old == new,
    }
}

/// Returns the difference of two finite numbers.
fn distance(old: Number, new: Number) -> Option<f64> {
    let difference = match (old, new) {
        (Number::Int(old), Number::Int(new)) => old.abs_diff(new) as f64,
        (Number::Float(old), Number::Float(new)) => (old - new).abs(),
        _ => return None,
    };
    match (old, new) {
        (Number::Float(old), Number::Float(new)) if !(old.is_finite() && new.is_finite()) => None,
        // The difference of two large numbers may be too large for one.
        _ => Some(difference.min(f64::MAX)),
    }
}

/// Returns the most bytes that the texts of a chunk may have.
fn max_texts() -> usize {
    MAX_TEXTS.min(memory::reservable() / TEXTS_PART) as usize
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::{Value, json};

    fn array(data_type: Value, shape: &[u64], fill: Value) -> ArrayValues {
        let codec = if data_type == "string" { "vlen-utf8" } else { "bytes" };
        let document = json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": vec![2; shape.len()]}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": fill, "codecs": [{"name": codec}]});
        ArrayValues::parse(document.to_string().as_bytes()).unwrap().unwrap()
    }

    fn differing(values: [&ArrayValues; 2], coords: &[u32], stored: [Option<Vec<u8>>; 2]) -> ValueDifferences {
        let mut found = ValueDifferences::default();
        values[0].compare(values[1], coords, stored.map(|bytes| bytes.map(Bytes::from)), &mut found).unwrap();
        found
    }

    fn floats(all: &[f32]) -> Option<Vec<u8>> {
        Some(all.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        let values = array(json!("float32"), &[4, 4], json!(0.0));
        let old = floats(&[0.1, f32::NAN, 0.0, 5.0]);
        let new = floats(&[0.3, f32::from_bits(0x7FC0_0001), -0.0, f32::INFINITY]);
        let found = differing([&values, &values], &[1, 0], [old, new]);
        assert_eq!((found.compared, found.differing), (4, 2));
        assert!((found.largest.unwrap() - 0.2).abs() < 1e-6, "{found:?}");
        let first: Vec<_> = found.first.iter().map(|one| (&one.index[..], &one.before[..], &one.after[..])).collect();
        assert_eq!(first, [(&[2, 0][..], "0.1", "0.3"), (&[3, 1], "5.0", "inf")]);
        let wide = array(json!("uint64"), &[2], json!(0));
        let found = differing([&wide, &wide], &[0], [Some(vec![0; 16]), Some([vec![0xFF; 8], vec![0; 8]].concat())]);
        assert_eq!((found.differing, &found.first[0].after[..]), (1, "18446744073709551615"));
        let times = array(
            json!({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}),
            &[2],
            json!("NaT"),
        );
        let found = differing([&times, &times], &[0], [None, Some([5_i64, i64::MIN].map(i64::to_le_bytes).concat())]);
        assert_eq!((found.differing, found.largest, &found.first[0].before[..]), (1, None, "NaT"));
        let complex = array(json!("complex64"), &[2], json!([0.0, 0.0]));
        let found =
            differing([&complex, &complex], &[0], [floats(&[1.0, 2.0, 0.0, 0.0]), floats(&[1.0, -2.5, 0.0, 0.0])]);
        assert_eq!((&found.first[0].before[..], &found.first[0].after[..]), ("1.0+2.0j", "1.0-2.5j"));
        assert_eq!(found.largest, Some(4.5));
    }

    #[test]
    fn elements_beyond_a_shape_and_chunks_that_are_not_stored_are_known() {
        let short = array(json!("int16"), &[3], json!(7));
        let long = array(json!("int16"), &[6], json!(7));
        let bytes = |all: [i16; 2]| Some(all.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
        // The second element of this chunk is in one of them only.
        let found = differing([&short, &long], &[1], [None, bytes([7, 9])]);
        assert_eq!((found.compared, found.differing), (1, 0));
        let found = differing([&short, &long], &[1], [None, bytes([6, 9])]);
        assert_eq!((found.differing, found.largest), (1, Some(1.0)));
        assert_eq!(differing([&short, &long], &[2], [None, bytes([1, 2])]), ValueDifferences::default());
        let other = array(json!("int32"), &[3], json!(7));
        assert_eq!(short.obstacle(&other), Some("the data type differs"));
        assert!(short.obstacle(&long).is_none() && short.has_other_fill(&array(json!("int16"), &[3], json!(8))));
    }

    #[test]
    fn texts_are_compared_and_escaped() {
        let values = array(json!("string"), &[2], json!("x"));
        let chunk = |texts: [&str; 2]| {
            let each = texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat());
            Some(2_u32.to_le_bytes().into_iter().chain(each).collect::<Vec<u8>>())
        };
        let found = differing([&values, &values], &[0], [chunk(["x", "same"]), chunk(["a\u{1b}[31m", "same"])]);
        assert_eq!((found.differing, found.largest), (1, None));
        assert_eq!(found.first[0].after, "\"a\\u{1b}[31m\"");
        let found = differing([&values, &values], &[0], [None, chunk(["x", "y"])]);
        assert_eq!((found.differing, &found.first[0].before[..]), (1, "\"x\""));
    }

    #[test]
    fn the_first_differences_of_all_chunks_are_kept_in_order() {
        let values = array(json!("uint8"), &[40], json!(0));
        let mut found = ValueDifferences::default();
        for chunk in (0..20).rev() {
            let more = differing([&values, &values], &[chunk], [None, Some(vec![1, 1])]);
            found.add(more);
        }
        assert_eq!((found.compared, found.differing, found.first.len()), (40, 40, FIRST));
        assert!(found.first.iter().zip(0_u64..).all(|(one, n)| one.index == [n]));
    }
}
