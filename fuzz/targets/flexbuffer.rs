//! FlexBuffers: configuration and metadata values.
#![no_main]
use icechunkfs::format::{config::RepoConfig, flexbuffer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = flexbuffer::to_json(bytes);
    if let Ok(config) = RepoConfig::from_flexbuffer(bytes) {
        let _ = (config.inline_threshold(), config.virtual_containers().len());
    }
});
