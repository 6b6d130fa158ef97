//! Files of rows of references in Parquet, read in the process apart.

use std::collections::HashMap;

use bytes::Bytes;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row};

use super::records::Rows;
use super::{Reference, not_kerchunk};
use crate::source::Source;

/// Most bytes of a file: a million references have some 20 MiB.
const MAX_LENGTH: u64 = 256 << 20;

/// Returns the rows of the file.
///
/// Errors: [`ErrorKind::Corrupt`] if it is damaged or does not have the columns of references,
/// [`ErrorKind::Unsupported`] if it is too long; others as for reading. Memory is that of a process
/// whose address space is bounded.
pub(crate) fn rows(file: &impl Source) -> Result<Rows> {
    let length = file.length();
    if length > MAX_LENGTH {
        let most = MAX_LENGTH >> 20;
        return Err(Error::new(ErrorKind::Unsupported, format!("a file of references has at most {most} MiB")));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read(0, &mut bytes)?;
    let mut reading = Reading::default();
    let file = SerializedFileReader::new(Bytes::from(bytes)).map_err(damaged)?;
    for row in file.get_row_iter(None).map_err(damaged)? {
        let reference = reading.reference(&row.map_err(damaged)?)?;
        reading.rows.references.push(reference);
    }
    Ok(reading.rows)
}

fn damaged(error: ParquetError) -> Error {
    Error::with_source(ErrorKind::Corrupt, "it is not a file of references in Parquet", error)
}

/// Rows that are read so far.
#[derive(Default)]
struct Reading {
    rows: Rows,
    /// Positions of the URLs.
    numbers: HashMap<String, usize>,
}

impl Reading {
    /// Returns what a row refers to; none for a chunk that is not there. As `fsspec` reads them,
    /// bytes come before a file, and a range of zero bytes at zero is the whole file.
    fn reference(&mut self, row: &Row) -> Result<Option<Reference>> {
        let mut url = None;
        let mut bytes = None;
        let [mut offset, mut length] = [0, 0];
        let mut is_known = false;
        for (name, field) in row.get_column_iter() {
            match name.as_str() {
                "path" => url = text(field)?,
                "raw" => bytes = raw(field)?,
                "offset" => offset = number(field)?,
                "size" => length = number(field)?,
                _ => continue,
            }
            is_known |= matches!(name.as_str(), "path" | "raw");
        }
        if !is_known {
            return Err(not_kerchunk("it has neither a column `path` nor a column `raw`"));
        }
        if let Some(bytes) = bytes {
            return Ok(Some(Reference::Inline(bytes)));
        }
        let Some(url) = url else { return Ok(None) };
        let file = match self.numbers.get(url) {
            Some(number) => *number,
            None => {
                let number = self.rows.files.len();
                self.rows.files.push(url.to_owned());
                self.numbers.insert(url.to_owned(), number);
                number
            }
        };
        let is_whole = (offset, length) == (0, 0);
        Ok(Some(if is_whole { Reference::Whole(file) } else { Reference::Range { file, offset, length } }))
    }
}

fn text(field: &Field) -> Result<Option<&str>> {
    match field {
        Field::Null => Ok(None),
        Field::Str(text) => Ok(Some(text)),
        // Not all programs say that these bytes are text.
        Field::Bytes(bytes) => {
            bytes.as_utf8().map(Some).map_err(|_| not_kerchunk("a value in the column `path` is not text"))
        }
        _ => Err(not_kerchunk("the column `path` does not have text")),
    }
}

fn raw(field: &Field) -> Result<Option<Vec<u8>>> {
    match field {
        Field::Null => Ok(None),
        Field::Bytes(bytes) => Ok(Some(bytes.data().to_vec())),
        Field::Str(text) => Ok(Some(text.clone().into_bytes())),
        _ => Err(not_kerchunk("the column `raw` does not have bytes")),
    }
}

fn number(field: &Field) -> Result<u64> {
    let number = match field {
        Field::Null => Some(0),
        Field::Int(number) => u64::try_from(*number).ok(),
        Field::Long(number) => u64::try_from(*number).ok(),
        Field::UInt(number) => Some(u64::from(*number)),
        Field::ULong(number) => Some(*number),
        _ => None,
    };
    number.ok_or_else(|| not_kerchunk("the columns `offset` and `size` do not have numbers of bytes"))
}
