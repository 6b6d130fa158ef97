//! Attributes files and refs of releases before 0.2.
#![no_main]
use icechunkfs::format::alpha::{attributes::AttributesFile, reference};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    if let Ok(attributes) = AttributesFile::decode(file, 1 << 24) {
        let _ = (attributes.at(0), attributes.at(u64::MAX));
    }
    let _ = reference::parse(file);
});
