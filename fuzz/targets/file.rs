//! Files of version 2 around a payload.

/// Name and versions, up to the type of the file.
const MAGIC: &[u8] = b"ICE\xF0\x9F\xA7\x8ACHUNKfuzz                    ";

/// Returns a file around a payload that is not compressed: compression would hide it from the
/// fuzzer.
pub(crate) fn around(file_type: u8, payload: &[u8]) -> Vec<u8> {
    [MAGIC, &[2, file_type, 0], payload].concat()
}

/// Returns a file around a compressed payload.
pub(crate) fn compressed(file_type: u8, payload: &[u8]) -> Vec<u8> {
    [MAGIC, &[2, file_type, 1], payload].concat()
}
