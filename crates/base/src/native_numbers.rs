//! Numbers in what the kernel writes, in the byte order of the machine.

/// Returns the number of 32 bits at byte `at`; 0 beyond the end.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Returns the number of 64 bits at byte `at`; 0 beyond the end.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}
