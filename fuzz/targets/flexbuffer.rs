//! FlexBuffers: configuration and metadata values.

use icechunkfs::format::{config::RepoConfig, flexbuffer};
use icechunkfs::memory::Meter;

pub(crate) fn run(bytes: &[u8]) {
    let _ = flexbuffer::to_json(bytes, &mut Meter::new("a value"));
    if let Ok(config) = RepoConfig::from_flexbuffer(bytes) {
        let _ = (config.inline_threshold(), config.virtual_containers().len());
    }
}
