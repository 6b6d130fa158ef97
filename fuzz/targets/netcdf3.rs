//! Files of the classic formats of NetCDF: a plan whose chunks can be read, or none.

use icechunkfs::error::{Error, Result};
use icechunkfs::ingest::netcdf3;
use icechunkfs::ingest::source::Source;

struct File<'a>(&'a [u8]);

impl Source for File<'_> {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = self.0.get(start..start.saturating_add(into.len())).ok_or_else(|| Error::io("the file", end()))?;
        into.copy_from_slice(found);
        Ok(())
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let Ok(plan) = netcdf3::plan(&File(bytes)) else { return };
    plan.check(bytes.len() as u64).expect("data in the file");
    for array in &plan.arrays {
        let document: serde_json::Value = serde_json::from_slice(&array.document().expect("a document")).expect("JSON");
        assert_eq!(document["shape"].as_array().map(Vec::len), Some(array.shape().len()));
        let grid = array.grid().expect("chunks that can be numbered");
        let Some(last) = grid.iter().map(|count| count.checked_sub(1)).collect::<Option<Vec<u32>>>() else { continue };
        let mut chunk = Vec::new();
        array.read_chunk(&File(bytes), &last, &mut chunk).expect("elements in the file");
        assert_eq!(chunk.len() as u64, array.chunk_bytes());
    }
}
