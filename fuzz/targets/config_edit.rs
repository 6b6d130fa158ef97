//! Changes of an untrusted configuration: the written document has the intended meaning. The input
//! is the name of a setting, a value, and a document, each on a line except the last.

use icechunkfs::format::config::RepoConfig;
use icechunkfs::format::config_edit::{self, encode, problems};

pub(crate) fn run(input: &[u8]) {
    let mut parts = input.splitn(3, |byte| *byte == b'\n');
    let (Some(key), Some(value), Some(document)) = (parts.next(), parts.next(), parts.next()) else { return };
    let (Ok(key), Ok(value)) = (std::str::from_utf8(key), std::str::from_utf8(value)) else { return };
    let Ok(config) = RepoConfig::from_yaml(document) else { return };
    let _ = (problems::find(config.members()), config_edit::all(config.members()));
    let _ = config_edit::get(config.members(), key);
    let _ = config_edit::unset(config.members(), key);
    let Ok(Some(changed)) = config_edit::set(config.members(), key, value) else { return };
    if let Ok(text) = encode::yaml(&changed.members, Some(document)) {
        assert_eq!(RepoConfig::from_yaml(&text).ok().map(|read| read.members().clone()), Some(changed.members.clone()));
    }
    let _ = encode::flexbuffer(&changed.members);
}
