//! MessagePack: metadata values of version 1.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = icechunkfs::format::metadata::from_message_pack(bytes);
});
