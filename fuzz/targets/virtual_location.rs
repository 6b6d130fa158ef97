//! Locations of virtual chunks, and prefixes: one spelling each, and no way around a permission.

use icechunkfs::format::config::RepoConfig;
use icechunkfs::storage::settings::Settings;
use icechunkfs::storage::virtuals::VirtualChunks;
use icechunkfs::storage::virtuals::address::Address;
use icechunkfs::storage::virtuals::permissions::Permissions;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // A location, and a configuration with containers.
    let (location, config) = text.split_once('\n').unwrap_or((text, ""));
    if let Ok(address) = Address::object(location) {
        assert!(Address::object(&address.to_string()).is_ok_and(|again| again == address), "{address}");
    }
    let containers =
        RepoConfig::from_yaml(config.as_bytes()).map(|config| config.virtual_containers()).unwrap_or_default();
    let allowed = ["file:///srv/data", "s3://bucket/data", "https://host:8443/a"].map(str::to_owned);
    let maps = ["vcc://moved=/srv/moved".to_owned()];
    let Ok(permissions) = Permissions::parse(&allowed, &maps, &[], &[]) else { unreachable!("they are right") };
    let virtuals = VirtualChunks::new(permissions, containers, &Settings::default());
    if let Ok(object) = virtuals.find(location, None) {
        let place = object.location();
        let inside = ["file:///srv/data/", "file:///srv/moved/", "s3://bucket/data/", "https://host:8443/a/"];
        assert!(inside.iter().any(|prefix| format!("{place}/").starts_with(prefix)), "{place}");
        assert!(!format!("{place}/").contains("/../") && !format!("{place}/").contains("/./"), "{place}");
    }
    let words = [location.to_owned()];
    let _ = Permissions::parse(&words, &words, &words, &words);
}
