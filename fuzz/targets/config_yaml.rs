//! `config.yaml` of version 1.

use icechunkfs::format::config::RepoConfig;

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(config) = RepoConfig::from_yaml(bytes) {
        let _ = (config.inline_threshold(), config.virtual_containers().len());
    }
}
