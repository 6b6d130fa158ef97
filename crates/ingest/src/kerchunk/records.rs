//! References in a directory of Parquet files, as `LazyReferenceMapper` of fsspec writes them.
//!
//! `.zmetadata` has the documents of the hierarchy and the number of rows of a file. The chunks of
//! the array `a`, in the order of its grid, are the rows of `a/refs.0.parq`, `a/refs.1.parq` and so
//! on. A file that is not there has no chunks.

use std::collections::BTreeMap;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Collected, Reference, References, not_kerchunk, shown};
use crate::source::Source;
use crate::zarr2::{self, text};

/// First bytes of a file of Parquet.
const MAGIC: [u8; 4] = *b"PAR1";
/// Memory of a key beside its characters: in the map, and what it refers to.
const KEY_COST: u64 = 128;

/// Rows of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Paths and URLs that the rows name by their positions here.
    pub files: Vec<String>,
    /// References; none for a chunk that is not there.
    pub references: Vec<Option<Reference>>,
}

/// Directory whose documents are read, and files as far as they are [added](Records::add).
pub struct Records {
    collected: Collected,
    arrays: BTreeMap<String, Layout>,
    /// Rows of a file.
    rows: u64,
}

/// Chunks of an array, and their keys.
struct Layout {
    /// Number of chunks along each dimension.
    grid: Vec<u64>,
    /// Number of all chunks.
    count: u64,
    separator: &'static str,
}

#[derive(Deserialize)]
struct Directory<'a> {
    record_size: u64,
    #[serde(borrow)]
    metadata: BTreeMap<String, &'a RawValue>,
}

/// Members of `.zarray` that say where chunks are.
#[derive(Deserialize)]
struct Shape {
    shape: Vec<u64>,
    chunks: Vec<u64>,
    dimension_separator: Option<String>,
}

/// Says whether a file of rows is one of Parquet.
///
/// Errors: as for reading.
pub(crate) fn is_parquet<S: Source + ?Sized>(file: &S) -> Result<bool> {
    let mut first = [0; MAGIC.len()];
    if file.length() < first.len() as u64 {
        return Ok(false);
    }
    file.read(0, &mut first)?;
    Ok(first == MAGIC)
}

impl Records {
    /// Parses `.zmetadata`.
    ///
    /// Errors: [`ErrorKind::Corrupt`] if it is damaged, [`ErrorKind::OutOfMemory`].
    pub fn parse(zmetadata: &[u8]) -> Result<Self> {
        let mut collected = Collected::new();
        collected.meter.count(zarr2::cost(zmetadata))?;
        let wrong = |e| Error::with_source(ErrorKind::Corrupt, "it has no kerchunk references", e);
        // Python writes numbers that JSON does not have; the documents are taken as they are.
        let masked = text::with_masked_numbers(zmetadata);
        let Directory { record_size: rows, metadata } = serde_json::from_slice(&masked).map_err(wrong)?;
        if rows == 0 {
            return Err(not_kerchunk("`record_size` is 0"));
        }
        let mut arrays = BTreeMap::new();
        for (key, document) in metadata {
            let document = document.get();
            let (path, name) = key.rsplit_once('/').unwrap_or(("", &key));
            if name == zarr2::ARRAY {
                let shape = serde_json::from_str(document).map_err(wrong)?;
                let layout = Layout::of(shape).ok_or_else(|| not_kerchunk(&format!("{}: its chunks", shown(&key))))?;
                arrays.insert(path.to_owned(), layout);
            }
            let first = document.as_ptr().addr().saturating_sub(masked.as_ptr().addr());
            let bytes = zmetadata.get(first..first.saturating_add(document.len())).unwrap_or_default().to_vec();
            collected.add(key, Reference::Inline(bytes))?;
        }
        Ok(Records { collected, arrays, rows })
    }

    /// Returns the directories in which the files are: the paths of the arrays.
    pub fn directories(&self) -> Vec<String> {
        self.arrays.keys().cloned().collect()
    }

    /// Returns the number of the file with this name; none if it is another file.
    pub fn number_of(name: &str) -> Option<u64> {
        let number = name.strip_prefix("refs.")?.strip_suffix(".parq")?.parse().ok()?;
        (name == format!("refs.{number}.parq")).then_some(number)
    }

    /// Adds the rows of the file with this `number` in `directory`.
    ///
    /// Errors: [`ErrorKind::Corrupt`] for a chunk that the array does not have,
    /// [`ErrorKind::OutOfMemory`].
    pub fn add(&mut self, directory: &str, number: u64, rows: Rows) -> Result<()> {
        let layout = self.arrays.get(directory).ok_or_else(|| Error::invalid("a directory of no array"))?;
        let first = number.checked_mul(self.rows);
        if rows.references.len() as u64 > self.rows {
            return Err(not_kerchunk("it has more rows than `record_size`"));
        }
        let files = rows.files.into_iter().map(|url| self.collected.file(url)).collect::<Result<Vec<_>>>()?;
        let known = |file: usize| files.get(file).copied().ok_or_else(|| Error::corrupt("a row of no file"));
        for (place, reference) in rows.references.into_iter().enumerate() {
            let Some(reference) = reference else { continue };
            let chunk = first.and_then(|first| first.checked_add(place as u64));
            let key = chunk.and_then(|chunk| layout.key(chunk));
            let key = key.ok_or_else(|| not_kerchunk(&format!("row {place} is of a chunk that the array lacks")))?;
            let key = if directory.is_empty() { key } else { format!("{directory}/{key}") };
            self.collected.meter.count(key.len() as u64 + KEY_COST)?;
            let reference = match reference {
                Reference::Inline(bytes) => {
                    self.collected.meter.count(bytes.len() as u64)?;
                    Reference::Inline(bytes)
                }
                Reference::Range { file, offset, length } => Reference::Range { file: known(file)?, offset, length },
                Reference::Whole(file) => Reference::Whole(known(file)?),
            };
            self.collected.add(key, reference)?;
        }
        Ok(())
    }

    /// Returns all references.
    ///
    /// Errors: [`ErrorKind::Corrupt`] if there is neither a group nor an array.
    pub fn finish(self) -> Result<Metered<References>> {
        self.collected.finish()
    }
}

impl Layout {
    /// Returns none if no array has such chunks.
    fn of(document: Shape) -> Option<Self> {
        let Shape { shape, chunks, dimension_separator } = document;
        if shape.len() != chunks.len() || chunks.contains(&0) {
            return None;
        }
        let separator = match dimension_separator.as_deref() {
            None | Some(".") => ".",
            Some("/") => "/",
            Some(_) => return None,
        };
        let grid: Vec<u64> = std::iter::zip(&shape, &chunks).map(|(length, chunk)| length.div_ceil(*chunk)).collect();
        let count = grid.iter().try_fold(1_u64, |count, along| count.checked_mul(*along))?;
        Some(Layout { grid, count, separator })
    }

    /// Returns the key of the chunk at this place in the order of the grid; none if there is none.
    fn key(&self, chunk: u64) -> Option<String> {
        if chunk >= self.count {
            return None;
        }
        let mut rest = chunk;
        let mut coords = Vec::with_capacity(self.grid.len());
        for along in self.grid.iter().rev() {
            coords.push(rest.checked_rem(*along)?.to_string());
            rest = rest.checked_div(*along)?;
        }
        coords.reverse();
        Some(if coords.is_empty() { "0".to_owned() } else { coords.join(self.separator) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn directory(shape: &str, chunks: &str) -> Records {
        let array = format!(r#"{{"shape": {shape}, "chunks": {chunks}, "dimension_separator": "/"}}"#);
        let text = format!(r#"{{"record_size": 4, "metadata": {{".zgroup": {{}}, "a/.zarray": {array}}}}}"#);
        Records::parse(text.as_bytes()).unwrap()
    }

    fn rows(references: Vec<Option<Reference>>) -> Rows {
        Rows { files: vec!["x.nc".to_owned()], references }
    }

    #[test]
    fn rows_are_chunks_in_the_order_of_the_grid() {
        let mut records = directory("[5, 3]", "[2, 1]");
        assert_eq!(records.directories(), ["a"]);
        let range = Reference::Range { file: 0, offset: 7, length: 2 };
        records.add("a", 0, rows(vec![Some(Reference::Whole(0)), None, None, Some(range.clone())])).unwrap();
        records.add("a", 2, rows(vec![Some(Reference::Inline(vec![1])), None, None])).unwrap();
        let found = records.finish().unwrap().into_inner();
        let keys: Vec<&str> = found.entries.keys().map(String::as_str).collect();
        assert_eq!(keys, [".zgroup", "a/.zarray", "a/0/0", "a/1/0", "a/2/2"]);
        assert_eq!(found.entries.get("a/1/0"), Some(&range));
        assert_eq!(found.files, ["x.nc"]);
    }

    #[test]
    fn documents_are_taken_as_they_are() {
        let text = br#"{"record_size": 1, "metadata": {".zattrs": {"a": -Infinity, "b": "NaN"}, ".zgroup": {}}}"#;
        let found = Records::parse(text).unwrap().finish().unwrap();
        let attributes = Reference::Inline(br#"{"a": -Infinity, "b": "NaN"}"#.to_vec());
        assert_eq!(found.entries.get(".zattrs"), Some(&attributes));
    }

    #[test]
    fn an_array_without_dimensions_has_one_chunk() {
        let mut records = directory("[]", "[]");
        records.add("a", 0, rows(vec![Some(Reference::Whole(0)), None])).unwrap();
        assert!(records.finish().unwrap().entries.contains_key("a/0"));
        let mut records = directory("[]", "[]");
        records.add("a", 0, rows(vec![None, Some(Reference::Whole(0))])).unwrap_err();
    }

    #[test]
    fn what_no_array_has_is_refused() {
        let whole = || Some(Reference::Whole(0));
        for (number, references, why) in [
            (2, vec![None, whole()], "a chunk that the array lacks"),
            (u64::MAX, vec![whole()], "a chunk that the array lacks"),
            (0, vec![None; 5], "more rows"),
            (0, vec![Some(Reference::Whole(1))], "a row of no file"),
            (0, vec![Some(Reference::Range { file: 0, offset: 1, length: u64::MAX })], "a range of no file"),
        ] {
            let refused = directory("[9]", "[1]").add("a", number, rows(references)).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        for text in [
            "{}",
            r#"{"record_size": 0, "metadata": {}}"#,
            r#"{"record_size": 1, "metadata": {"a/.zarray": {"shape": [1], "chunks": [0]}}}"#,
            r#"{"record_size": 1, "metadata": {"a/.zarray": {"shape": [1], "chunks": []}}}"#,
            r#"{"record_size": 1, "metadata": {"../.zarray": {"shape": [], "chunks": []}}}"#,
            r#"{"record_size": 1, "metadata": {"a/.zarray": {"shape": [18446744073709551615, 2], "chunks": [1, 1]}}}"#,
        ] {
            assert!(Records::parse(text.as_bytes()).is_err(), "{text}");
        }
        let none = Records::parse(br#"{"record_size": 1, "metadata": {".zattrs": {}}}"#).unwrap();
        assert!(none.finish().is_err());
    }

    #[test]
    fn names_of_files_have_one_form() {
        assert_eq!(Records::number_of("refs.12.parq"), Some(12));
        for name in ["refs.012.parq", "refs.+1.parq", "refs..parq", "refs.1.parquet", ".zmetadata"] {
            assert_eq!(Records::number_of(name), None, "{name}");
        }
    }
}
