//! Reads numbers, names and lists of a header one after another.

use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::Meter;

use crate::source::Source;

/// Bytes that are read at a time. Most headers are smaller.
const WINDOW: u64 = 64 << 10;
/// Longest header in bytes: 100,000 variables with attributes have a tenth of it.
const MAX_HEADER: u64 = 64 << 20;
/// Longest name in bytes (`NC_MAX_NAME`).
const MAX_NAME: u64 = 256;

/// Numbers of a header are of 32 or of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Bits32,
    Bits64,
}

/// Position in the header of a file.
pub(super) struct Cursor<'a> {
    source: &'a dyn Source,
    /// Bytes that were read, from `start` on.
    window: Vec<u8>,
    start: u64,
    position: u64,
    /// Width of counts, and of offsets.
    pub(super) counts: Width,
    pub(super) offsets: Width,
    /// Counts what is made of the header.
    pub(super) meter: Meter,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a dyn Source) -> Self {
        Cursor {
            source,
            window: Vec::new(),
            start: 0,
            position: 0,
            counts: Width::Bits32,
            offsets: Width::Bits32,
            meter: Meter::new("the header of a NetCDF file"),
        }
    }

    /// Returns the bytes of the header so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the bytes that follow in the file.
    pub(super) fn rest(&self) -> u64 {
        self.source.length().saturating_sub(self.position)
    }

    /// Reads as many bytes.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if the file has fewer.
    pub(super) fn bytes(&mut self, length: u64) -> Result<Vec<u8>> {
        if length > self.rest() {
            return Err(Error::corrupt(format!("the header ends at byte {}, in the middle", self.source.length())));
        }
        let end = self.position.saturating_add(length);
        if end > MAX_HEADER {
            return Err(Error::corrupt(format!("a header of more than {MAX_HEADER} bytes")));
        }
        self.meter.count(length)?;
        if self.position < self.start || end > self.start + self.window.len() as u64 {
            let window = length.max(WINDOW).min(self.rest());
            self.meter.count(window)?;
            let mut read = vec![0; usize::try_from(window).unwrap_or_default()];
            self.source.read(self.position, &mut read)?;
            self.window = read;
            self.start = self.position;
        }
        let from = usize::try_from(self.position - self.start).unwrap_or_default();
        let to = usize::try_from(end - self.start).unwrap_or_default();
        self.position = end;
        Ok(self.window.get(from..to).unwrap_or_default().to_vec())
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        let bytes = self.bytes(4)?;
        bytes.try_into().map(u32::from_be_bytes).map_err(|_| Error::corrupt("a short number"))
    }

    fn u64(&mut self) -> Result<u64> {
        let bytes = self.bytes(8)?;
        bytes.try_into().map(u64::from_be_bytes).map_err(|_| Error::corrupt("a short number"))
    }

    fn number(&mut self, width: Width) -> Result<u64> {
        match width {
            Width::Bits32 => Ok(self.u32()?.into()),
            Width::Bits64 => self.u64(),
        }
    }

    /// Reads a count of anything.
    pub(super) fn count(&mut self) -> Result<u64> {
        self.number(self.counts)
    }

    pub(super) fn offset(&mut self) -> Result<u64> {
        self.number(self.offsets)
    }

    /// Reads `length` bytes and those that pad them to a multiple of 4.
    pub(super) fn padded(&mut self, length: u64) -> Result<Vec<u8>> {
        let bytes = self.bytes(length)?;
        self.bytes(length.next_multiple_of(4) - length)?;
        Ok(bytes)
    }

    /// Reads a name. One that is not UTF-8 is returned as its bytes.
    pub(super) fn name(&mut self) -> Result<Name> {
        let length = self.count()?;
        if length > MAX_NAME {
            return Err(Error::corrupt(format!("a name of {length} bytes")));
        }
        let bytes = self.padded(length).context(|| "a name")?;
        Ok(Name(bytes))
    }

    /// Reads the tag and the count of a list whose items have at least `least` bytes each.
    pub(super) fn list(&mut self, tag: u32, least: u64) -> Result<u64> {
        let found = self.u32()?;
        let count = self.count()?;
        match found {
            0 if count == 0 => Ok(0),
            found if found != tag => Err(Error::corrupt(format!("tag {found} where {tag} was expected"))),
            _ if count > self.rest() / least => Err(Error::corrupt(format!("a list of {count} items"))),
            _ => Ok(count),
        }
    }
}

/// Name of a dimension, an attribute or a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name(Vec<u8>);

impl Name {
    /// Returns the name as text, and true if it is that text.
    pub(super) fn text(self) -> (String, bool) {
        match String::from_utf8(self.0) {
            Ok(text) => (text, true),
            Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), false),
        }
    }
}
