//! An input in the place of a file that is imported.

use icechunkfs::error::{Error, Result};
use icechunkfs::ingest::source::Source;

#[derive(Clone)]
pub(super) struct Input<T>(pub(super) T);

impl<T: AsRef<[u8]>> Source for Input<T> {
    fn length(&self) -> u64 {
        self.0.as_ref().len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = self.0.as_ref().get(start..start.saturating_add(into.len()));
        into.copy_from_slice(found.ok_or_else(|| Error::io("the file", end()))?);
        Ok(())
    }

    /// Indexes of distant files are read in another way.
    fn is_distant(&self) -> bool {
        self.0.as_ref().len().is_multiple_of(2)
    }
}
