//! Files of the classic formats of NetCDF: a plan whose chunks can be read, or none.

use super::input::Input;
use icechunkfs::ingest::netcdf3;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(plan) = netcdf3::plan(&Input(bytes)) else { return };
    plan.check(bytes.len() as u64).expect("data in the file");
    for array in &plan.arrays {
        let document: serde_json::Value = serde_json::from_slice(&array.document().expect("a document")).expect("JSON");
        assert_eq!(document["shape"].as_array().map(Vec::len), Some(array.shape().len()));
        let grid = array.grid().expect("chunks that can be numbered");
        let Some(last) = grid.iter().map(|count| count.checked_sub(1)).collect::<Option<Vec<u32>>>() else { continue };
        let mut chunk = Vec::new();
        array.read_chunk(&Input(bytes), &last, &mut chunk).expect("elements in the file");
        assert_eq!(chunk.len() as u64, array.chunk_bytes());
    }
}
