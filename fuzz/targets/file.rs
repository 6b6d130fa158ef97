/// A file of version 2, uncompressed, around a payload.
fn icechunkfs_fuzz_file(file_type: u8, payload: &[u8]) -> Vec<u8> {
    let mut file = b"ICE\xF0\x9F\xA7\x8ACHUNKfuzz                    ".to_vec();
    file.extend_from_slice(&[2, file_type, 0]);
    file.extend_from_slice(payload);
    file
}
