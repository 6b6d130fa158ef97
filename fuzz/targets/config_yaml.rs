//! `config.yaml` of version 1.
#![no_main]
use icechunkfs::format::config::RepoConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(config) = RepoConfig::from_yaml(bytes) {
        let _ = (config.inline_threshold(), config.virtual_containers().len());
    }
});
