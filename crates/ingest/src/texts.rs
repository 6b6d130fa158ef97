//! Texts of any length, and the chunks that have them (codec `vlen-utf8`: the number of the texts,
//! and each with its length, in little-endian numbers of four bytes).
//!
//! Texts are numbers in a table as long as elements are put in their places: elements of four bytes
//! like others. Only the chunk in the end has the texts themselves.

use std::ops::Range;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::run::{Run, product, size};
use crate::source::Source;
#[cfg(feature = "apart")]
use crate::{
    chunking::{self, Sizes},
    data, plan,
    run::advance,
};

/// Bytes of the number of a text.
pub(crate) const NUMBER: u64 = 4;
/// Number of the text that elements have that nobody wrote.
pub(crate) const FILL: [u8; NUMBER as usize] = [0xff; NUMBER as usize];
/// Most bytes of a chunk: those of an archive are read as a whole.
pub(crate) const MAX_CHUNK: u64 = 16 << 20;

/// Texts of an array, which have no place of their own in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Texts {
    shape: Vec<u64>,
    /// Text of elements that nobody wrote.
    fill: String,
    /// In the order of C.
    #[serde(skip)]
    pub(crate) all: Vec<String>,
}

impl Texts {
    /// Returns the texts of an array of `shape`.
    #[cfg(feature = "apart")]
    pub(crate) fn new(shape: Vec<u64>, fill: String, all: Vec<String>) -> Self {
        Texts { shape, fill, all }
    }

    /// Returns the elements per dimension.
    pub(crate) fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the text of elements that nobody wrote.
    pub(crate) fn fill(&self) -> &str {
        &self.fill
    }

    /// Appends the numbers of the texts in `region` to `out`.
    ///
    /// Errors: as for [`Run::read`].
    pub(crate) fn read(&self, region: &[Range<u64>], out: &mut Vec<u8>) -> Result<()> {
        Run::new(self.shape.clone(), NUMBER, 0, None)?.read(&Numbers { count: self.all.len() as u64 }, region, out)
    }

    /// Returns the most bytes that a text takes in a chunk, with its length.
    pub(crate) fn widest(&self) -> u64 {
        let longest = self.all.iter().chain([&self.fill]).map(String::len).max();
        NUMBER + longest.unwrap_or_default() as u64
    }

    /// Returns the elements per dimension of chunks, of which none is too long, wherever the long
    /// texts are; none if one text is.
    #[cfg(feature = "apart")]
    pub(crate) fn chunk_shape(&self) -> Option<Vec<u64>> {
        let mut size = self.bytes().div_ceil(self.all.len().max(1) as u64).max(1);
        loop {
            let chunk = chunking::chunk_shape(&self.shape, size, Sizes::USUAL);
            if self.longest(&chunk)? <= MAX_CHUNK {
                return Some(chunk);
            }
            size = size.checked_mul(2).filter(|size| *size <= 2 * MAX_CHUNK)?;
        }
    }

    /// Returns at least the bytes of the longest of chunks of this shape; none if there are too
    /// many.
    #[cfg(feature = "apart")]
    fn longest(&self, chunk: &[u64]) -> Option<u64> {
        let grid = plan::grid(&self.shape, chunk)?;
        let count = data::chunk_count(&self.shape, chunk).filter(|count| *count <= plan::MAX_CHUNKS)?;
        let filled = product(chunk, NUMBER + self.fill.len() as u64)?;
        let mut bytes = vec![0_u64; usize::try_from(count).ok()?];
        let mut place = vec![0_u64; self.shape.len()];
        for text in &self.all {
            let coord = |(at, length): (&u64, &u64)| u32::try_from(at / length).ok();
            let coords = std::iter::zip(&place, chunk).map(coord).collect::<Option<Vec<_>>>()?;
            let position = usize::try_from(data::position_of(&coords, &grid)?).ok()?;
            *bytes.get_mut(position)? += NUMBER + text.len() as u64;
            advance(&mut place, &self.shape);
        }
        Some(bytes.into_iter().max().unwrap_or_default().saturating_add(filled))
    }

    /// Returns the bytes of all texts, each with its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.all.iter().map(|text| NUMBER + text.len() as u64).sum()
    }

    /// Returns true if there are as many texts as elements.
    pub(crate) fn is_whole(&self) -> bool {
        product(&self.shape, 1) == Some(self.all.len() as u64)
    }

    /// Returns the bytes that the texts take in memory.
    pub(crate) fn cost(&self) -> u64 {
        self.all.iter().map(|text| cost_of(text.len() as u64)).sum()
    }
}

/// Returns the bytes that a text of so many takes in memory.
pub(crate) fn cost_of(bytes: u64) -> u64 {
    size_of::<String>() as u64 + bytes
}

/// File that has the numbers of all texts, one after another.
struct Numbers {
    count: u64,
}

impl Source for Numbers {
    fn length(&self) -> u64 {
        self.count.saturating_mul(NUMBER)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        for (number, bytes) in (offset / NUMBER..).zip(into.chunks_mut(NUMBER as usize)) {
            let number = u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
            bytes.iter_mut().zip(number).for_each(|(to, from)| *to = from);
        }
        Ok(())
    }
}

/// Texts by their numbers.
pub(crate) struct Table<'a> {
    fill: &'a str,
    texts: Vec<&'a str>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(fill: &'a str) -> Self {
        Table { fill, texts: Vec::new() }
    }

    /// Adds the texts that have these `numbers` among `texts`, and changes the numbers into those
    /// of the table.
    ///
    /// Errors: [`ErrorKind::InvalidInput`] if they are too many.
    pub(crate) fn add(&mut self, texts: &'a Texts, numbers: &mut [u8]) -> Result<()> {
        for number in numbers.as_chunks_mut().0 {
            let found = usize::try_from(u32::from_le_bytes(*number)).ok().and_then(|at| texts.all.get(at));
            if let Some(text) = found {
                let own = u32::try_from(self.texts.len()).ok().filter(|own| *own != u32::MAX);
                *number = own.ok_or_else(|| Error::invalid("more texts than can be counted"))?.to_le_bytes();
                self.texts.push(text);
            }
        }
        Ok(())
    }

    /// Reads the texts of a chunk, with as many elements as `shape` has. Returns their numbers.
    ///
    /// Errors: [`ErrorKind::Corrupt`] if it is not such a chunk.
    pub(crate) fn decode(&mut self, chunk: &'a [u8], shape: &[u64]) -> Result<Vec<u8>> {
        let wrong = || Error::corrupt("a chunk that does not have the texts of its elements");
        let (head, mut rest) = chunk.split_first_chunk().ok_or_else(wrong)?;
        if product(shape, 1) != Some(u32::from_le_bytes(*head).into()) {
            return Err(wrong());
        }
        let mut numbers = Vec::new();
        for _ in 0..u32::from_le_bytes(*head) {
            let (length, behind) = rest.split_first_chunk().ok_or_else(wrong)?;
            let text = size(u32::from_le_bytes(*length).into()).ok().and_then(|length| behind.split_at_checked(length));
            let (text, behind) = text.ok_or_else(wrong)?;
            rest = behind;
            numbers.extend((self.texts.len() as u32).to_le_bytes());
            self.texts.push(str::from_utf8(text).map_err(|_| wrong())?);
        }
        if rest.is_empty() { Ok(numbers) } else { Err(wrong()) }
    }

    fn of(&self, numbers: &[u8]) -> impl Iterator<Item = &'a str> {
        let text = |number: &[u8; NUMBER as usize]| usize::try_from(u32::from_le_bytes(*number)).ok();
        let numbers = numbers.as_chunks().0.iter();
        numbers.map(move |number| text(number).and_then(|number| self.texts.get(number)).copied().unwrap_or(self.fill))
    }

    /// Appends the chunk with the texts that have these `numbers` to `out`.
    ///
    /// Errors: [`ErrorKind::Unsupported`] if it is too long.
    pub(crate) fn encode(&self, numbers: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let bytes = self.of(numbers).fold(NUMBER, |bytes, text| bytes.saturating_add(NUMBER + text.len() as u64));
        if bytes > MAX_CHUNK {
            let why = format!(
                "texts of {bytes} bytes in one chunk, and {MAX_CHUNK} are supported: write it with xarray, in a mount"
            );
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        out.extend((numbers.len() as u32 / NUMBER as u32).to_le_bytes());
        for text in self.of(numbers) {
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        Ok(())
    }

    /// Returns true if two elements, by their numbers, have the same texts.
    pub(crate) fn are_same(&self, one: &[u8], other: &[u8]) -> bool {
        self.of(one).eq(self.of(other))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn texts(shape: &[u64], all: &[&str]) -> Texts {
        Texts {
            shape: shape.to_vec(),
            fill: "none".to_owned(),
            all: all.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    fn encode(texts: &Texts, numbers: &mut [u8], out: &mut Vec<u8>) -> Result<()> {
        let mut table = Table::new(texts.fill());
        table.add(texts, numbers)?;
        table.encode(numbers, out)
    }

    fn decoded(chunk: &[u8], shape: &[u64]) -> Vec<String> {
        let mut table = Table::new("");
        let numbers = table.decode(chunk, shape).unwrap();
        table.of(&numbers).map(str::to_owned).collect()
    }

    #[test]
    fn a_chunk_has_the_texts_of_its_region() {
        let texts = texts(&[2, 3], &["", "a", "grüße", "three", "four", "5"]);
        assert!(texts.is_whole());
        let mut numbers = Vec::new();
        texts.read(&[0..2, 1..3], &mut numbers).unwrap();
        numbers.extend(FILL);
        let mut chunk = Vec::new();
        encode(&texts, &mut numbers, &mut chunk).unwrap();
        assert_eq!(chunk.get(..9).unwrap(), [5, 0, 0, 0, 1, 0, 0, 0, b'a']);
        assert_eq!(decoded(&chunk, &[5]), ["a", "grüße", "four", "5", "none"]);
        assert!(texts.read(&[0..2, 1..4], &mut Vec::new()).is_err());
    }

    #[cfg(feature = "apart")]
    #[test]
    fn chunks_are_not_too_long_wherever_the_long_texts_are() {
        assert_eq!(texts(&[], &["x"]).chunk_shape().unwrap(), Vec::<u64>::new());
        assert_eq!(texts(&[0, 3], &[]).chunk_shape().unwrap(), [1, 3]);
        // Short ones, and then 40 MiB in long ones.
        let long = "x".repeat(1 << 20);
        let mut all = vec!["short"; 400_000];
        all.extend([long.as_str(); 40]);
        let texts = texts(&[400_040], &all);
        let chunk = texts.chunk_shape().unwrap();
        assert!(texts.longest(&chunk).unwrap() <= MAX_CHUNK && chunk[0] >= 8, "{chunk:?}");
        let one = "x".repeat(MAX_CHUNK as usize);
        let texts = Texts { shape: vec![1], fill: String::new(), all: vec![one] };
        assert_eq!(texts.chunk_shape(), None);
    }

    #[test]
    fn texts_of_several_tables_keep_their_numbers_apart() {
        let [one, other] = [texts(&[2], &["a", "b"]), texts(&[2], &["c", "d"])];
        let mut table = Table::new("fill");
        let mut all = Vec::new();
        for texts in [&one, &other] {
            let mut numbers = FILL.to_vec();
            texts.read(std::slice::from_ref(&(0..2)), &mut numbers).unwrap();
            table.add(texts, &mut numbers).unwrap();
            all.append(&mut numbers);
        }
        assert_eq!(table.of(&all).collect::<Vec<_>>(), ["fill", "a", "b", "fill", "c", "d"]);
        assert!(table.are_same(&all, &all) && !table.are_same(&[0, 0, 0, 0], &[1, 0, 0, 0]));
    }

    #[test]
    fn a_chunk_that_says_other_things_than_its_shape_is_refused() {
        let mut chunk = Vec::new();
        encode(&texts(&[2], &["a", "ü"]), &mut [0, 0, 0, 0, 1, 0, 0, 0], &mut chunk).unwrap();
        assert_eq!(decoded(&chunk, &[2, 1]), ["a", "ü"]);
        let is_refused = |chunk: &[u8], shape: &[u64]| Table::new("").decode(chunk, shape).is_err();
        assert!(is_refused(&chunk, &[3]) && is_refused(&chunk, &[u64::MAX, 3]) && is_refused(&[], &[0]));
        for length in 0..chunk.len() {
            assert!(is_refused(chunk.get(..length).unwrap(), &[2]), "{length}");
        }
        assert!(is_refused(&[chunk.as_slice(), &[0]].concat(), &[2]));
        // Half of a letter.
        *chunk.last_mut().unwrap() = b'x';
        assert!(is_refused(&chunk, &[2]));
    }

    #[test]
    fn a_chunk_is_no_longer_than_one_that_can_be_read() {
        let long = "x".repeat(1 << 20);
        let texts = texts(&[16], &[long.as_str(); 16]);
        let mut numbers = Vec::new();
        texts.read(std::slice::from_ref(&(0..16)), &mut numbers).unwrap();
        let mut some = numbers.get(..60).unwrap().to_vec();
        assert!(encode(&texts, &mut some, &mut Vec::new()).is_ok());
        assert_eq!(encode(&texts, &mut numbers, &mut Vec::new()).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
