//! MessagePack: metadata values of version 1.

use icechunkfs::memory::Meter;

pub(crate) fn run(bytes: &[u8]) {
    let _ = icechunkfs::format::metadata::from_message_pack(bytes, &mut Meter::new("a value"));
}
