//! An array's `zarr.json`: grid, key encoding, and names back and forth.

use icechunkfs::zarr::array::ArrayMetadata;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(array) = ArrayMetadata::parse(bytes) else { return };
    let coords: Vec<u32> = array.grid.iter().map(|length| length.saturating_sub(1)).collect();
    let key = array.key_encoding.key(&coords);
    let name = array.key_encoding.file_name(&coords);
    assert!(key.ends_with(&name));
}
