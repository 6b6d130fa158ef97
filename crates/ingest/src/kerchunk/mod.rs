//! References of kerchunk: a hierarchy of Zarr 2 without chunks of its own, which are ranges of
//! other files. They are in one file of JSON ([`json`]), or in a directory of Parquet files
//! ([`records`]).

pub mod json;
#[cfg(feature = "apart")]
pub(crate) mod parquet;
pub mod records;

use std::collections::{BTreeMap, HashMap};

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_base::printable;
use serde::{Deserialize, Serialize};

use crate::zarr2;

/// Most names of a key: each is a directory that has the path up to it.
const MAX_DEPTH: usize = 128;

/// Content of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reference {
    /// The bytes themselves.
    Inline(Vec<u8>),
    /// Bytes of a file.
    Range {
        /// Position of the file in [`References::files`].
        file: usize,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// The whole file with this position.
    Whole(usize),
}

/// Keys of a hierarchy of Zarr 2, with what is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Keys in their order: names with slashes between, as Zarr 2 has them.
    pub entries: BTreeMap<String, Reference>,
    /// Paths and URLs of the files, each once.
    pub files: Vec<String>,
}

/// References that are read so far, and their memory.
struct Collected {
    found: References,
    /// Positions of the files.
    numbers: HashMap<String, usize>,
    meter: Meter,
}

impl Collected {
    fn new() -> Self {
        let meter = Meter::new("the references of an import");
        Collected { found: References::default(), numbers: HashMap::new(), meter }
    }

    /// Returns the position of a file.
    fn file(&mut self, url: String) -> Result<usize> {
        check_length(url.len())?;
        // It is kept twice, and may be longer than what the file of references has of it.
        self.meter.count(2 * url.len() as u64)?;
        let next = self.numbers.len();
        let number = *self.numbers.entry(url.clone()).or_insert(next);
        if number == next {
            self.found.files.push(url);
        }
        Ok(number)
    }

    /// Adds a key, whose memory is counted.
    ///
    /// Errors: for a key that is no path below a directory, and for a range that no file has.
    fn add(&mut self, key: String, reference: Reference) -> Result<()> {
        let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
        if !key.split('/').all(is_name) || key.split('/').count() > MAX_DEPTH {
            return Err(Error::corrupt(format!("{}: not a valid key", shown(&key))));
        }
        if let Reference::Range { offset, length, .. } = reference {
            let end = offset.checked_add(length);
            end.ok_or_else(|| Error::corrupt(format!("{}: a range of no file", shown(&key))))?;
        }
        self.found.entries.insert(key, reference);
        Ok(())
    }

    fn finish(self) -> Result<Metered<References>> {
        let is_node = |key: &String| key.ends_with(zarr2::ARRAY) || key.ends_with(zarr2::GROUP);
        if !self.found.entries.keys().any(is_node) {
            return Err(not_kerchunk("no key is that of a .zarray or .zgroup"));
        }
        Ok(self.meter.finish(self.found))
    }
}

fn not_kerchunk(why: &str) -> Error {
    Error::corrupt(format!("it has no kerchunk references: {why}"))
}

/// Fails for a URL of so many bytes: templates could make any.
fn check_length(length: usize) -> Result<()> {
    /// Most bytes of a URL.
    const LONGEST: usize = 8 << 10;
    if length > LONGEST { Err(Error::corrupt("a URL that is too long")) } else { Ok(()) }
}

fn shown(key: &str) -> String {
    /// Characters that are shown.
    const SHOWN: usize = 100;
    printable::line(&key.chars().take(SHOWN).collect::<String>())
}
