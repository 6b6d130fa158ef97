//! FlexBuffers: configuration and metadata values.

use icechunkfs::format::{config::RepoConfig, flexbuffer};

pub(crate) fn run(bytes: &[u8]) {
    let _ = flexbuffer::to_json(bytes);
    if let Ok(config) = RepoConfig::from_flexbuffer(bytes) {
        let _ = (config.inline_threshold(), config.virtual_containers().len());
    }
}
