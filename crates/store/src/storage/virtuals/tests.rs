#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::storage::secrets::Secrets;
use icechunkfs_format::format::config::ContainerStore;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn container(name: &str, url_prefix: &str, store: ContainerStore) -> Container {
    Container { name: name.into(), url_prefix: url_prefix.into(), store }
}

fn s3(endpoint_url: Option<&str>) -> ContainerStore {
    ContainerStore {
        kind: "s3_compatible".into(),
        region: Some("eu".into()),
        endpoint_url: endpoint_url.map(str::to_owned),
        ..ContainerStore::default()
    }
}

fn virtuals(allow: &[&str], map: &[&str], option: &[&str], containers: Vec<Container>) -> VirtualChunks {
    let permissions = Permissions::parse(&words(allow), &words(map), &words(option), &[]).unwrap();
    VirtualChunks::new(permissions, containers, &Settings::default())
}

#[test]
fn containers_give_names_and_no_permission() {
    let containers = || {
        vec![
            container("src", "file:///srv/nc/", ContainerStore::default()),
            container("odd", "https://", ContainerStore::default()),
            container("word", "az/", ContainerStore::default()),
        ]
    };
    let none = virtuals(&[], &[], &[], containers());
    let error = none.find("vcc://src/a/x.nc", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::VirtualNotAllowed);
    let error = error.to_string();
    assert!(error.contains("file:///srv/nc/a/x.nc") && error.contains("--allow-virtual 'file:///srv/nc/'"), "{error}");
    let some = virtuals(&["/srv/nc"], &["vcc://gone=/copy"], &[], containers());
    let location = |text: &str| some.find(text, None).map(|object| object.location().to_owned());
    assert_eq!(location("vcc://src/a/x.nc").unwrap(), "file:///srv/nc/a/x.nc");
    assert_eq!(location("VCC://src/a%2Fx.nc").unwrap(), "file:///srv/nc/a/x.nc");
    assert_eq!(location("vcc://gone/a").unwrap(), "file:///copy/a");
    for text in
        ["vcc://src/../x", "vcc://src/%2e%2e/x", "vcc://src//x", "vcc://nobody/x", "vcc://odd/evil/x", "vcc://word/x"]
    {
        let error = some.find(text, None).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::VirtualNotAllowed | ErrorKind::Corrupt), "{text}: {error}");
    }
    let error = some.find("vcc://nobody/x", None).unwrap_err().to_string();
    assert!(error.contains("--virtual-map 'vcc://nobody/=PLACE'"), "{error}");
}

#[test]
fn the_configuration_of_a_store_is_used_without_credentials() {
    let settings = |option: &[&str], store: ContainerStore| {
        let all = virtuals(&["s3://b"], &[], option, vec![container("c", "s3://b/", store)]);
        let object = all.find("s3://b/x", None).unwrap();
        let Target::Distant(address, number) = &object.target else { unreachable!("a bucket") };
        all.settings(address, *number).map(|reached| (reached.settings, reached.advice, reached.trusted))
    };
    let (plain, advice, trusted) = settings(&[], s3(None)).unwrap();
    assert_eq!((plain.region, plain.anonymous, advice, trusted), ("eu".parse().ok(), false, None, true));
    let (elsewhere, advice, trusted) = settings(&[], s3(Some("https://store.example"))).unwrap();
    assert!(elsewhere.anonymous && !trusted && advice.unwrap().contains("endpoint_url"));
    assert_eq!(elsewhere.addressing.as_deref(), Some("virtual"));
    let anonymous = || ContainerStore { anonymous: true, ..s3(None) };
    assert!(settings(&[], anonymous()).unwrap().0.anonymous);
    assert!(!settings(&["s3://b,profile=p"], anonymous()).unwrap().0.anonymous);
    // The container's kind of store differs from that of the prefix.
    let odd = ContainerStore { kind: "gcs".into(), ..s3(Some("https://store.example")) };
    assert_eq!(settings(&[], odd).unwrap().0.endpoint_url, None);
}

#[test]
fn the_repositorys_own_settings_are_not_sent_to_others() {
    let own = Settings {
        secrets: Secrets {
            secret_access_key: Some("hidden".into()),
            header: vec!["x: hidden".into()],
            file: Some("/nonexistent".into()),
            ..Secrets::default()
        },
        endpoint_url: Some("https://own.example".into()),
        max_requests: Some(7),
        ..Settings::default()
    };
    let permissions = Permissions::parse(&words(&["s3://b", "https://h"]), &[], &[], &[]).unwrap();
    let all = VirtualChunks::new(permissions, Vec::new(), &own);
    for location in ["s3://b/x", "https://h/x"] {
        let settings = all.settings(&Address::object(location).unwrap(), None).unwrap().settings;
        assert!(settings.secrets == Secrets::default() && settings.endpoint_url.is_none());
        assert_eq!(settings.max_requests, Some(7));
    }
}

#[tokio::test]
async fn connections_are_bounded() {
    let all = virtuals(&["https://h"], &[], &[], Vec::new());
    for n in 0..MAX_CONNECTED.get() + 10 {
        all.connection(&Address::object(&format!("https://h{n}/x")).unwrap(), None).await.unwrap();
    }
    assert_eq!(all.connected.lock().as_ref().unwrap().len(), MAX_CONNECTED.get());
}

/// Returns containers that a hostile repository may have in its configuration.
fn hostile_containers() -> Vec<Container> {
    let prefixes =
        ["file:///srv/data/", "file:///srv/data/../", "https://", "s3://bucket/data/%2e%2e/", "file:////", "vcc://c0/"];
    let named = prefixes.iter().enumerate();
    named.map(|(n, prefix)| container(&format!("c{n}"), prefix, ContainerStore::default())).collect()
}

/// Returns true if `location` leads to an allowed place, or is refused.
fn stays_inside(all: &VirtualChunks, location: &str) -> bool {
    let Ok(object) = all.find(location, None) else { return true };
    let place = format!("{}/", object.location());
    let allowed = ["file:///srv/data/", "file:///srv/moved/", "s3://bucket/data/", "https://host:8443/a/"];
    let odd = ["//", "/./", "/../", "\\"];
    let path = place.split_once("://").map_or("", |(_, path)| path);
    allowed.iter().any(|prefix| place.starts_with(prefix)) && !odd.iter().any(|odd| path.contains(odd))
}

const GOOD: [&str; 6] = [
    "file:///srv/data/a%20b/x.nc",
    "s3://bucket/data/x.nc",
    "https://host:8443/a/b.nc?q#f",
    "vcc://c0/x/y.nc",
    "vcc://moved/x/y.nc",
    "file://localhost/srv/data/x",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    /// Checks that a location damaged by accident or by intent leads to no other place.
    #[test]
    fn no_location_leads_out_of_what_is_allowed(
        which in 0..GOOD.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..4_u8, "[a-zA-Z0-9/.%@:\\\\?# é]|\\.\\.|%2[eEfF]|//|://|/\\.\\./"), 1..5),
    ) {
        let all = virtuals(&["/srv/data", "s3://bucket/data", "https://host:8443/a"], &["vcc://moved=/srv/moved"], &[], hostile_containers());
        let mut letters: Vec<char> = GOOD.get(which).unwrap().chars().collect();
        for (at, how, text) in changes {
            let at = at.index(letters.len() + 1);
            let end = (at + usize::from(how)).min(letters.len());
            letters.splice(at..end, text.chars());
        }
        let location: String = letters.into_iter().collect();
        prop_assert!(stays_inside(&all, &location), "{location}");
    }
}

#[test]
fn what_is_allowed_is_found_among_hostile_containers() {
    let all = virtuals(
        &["/srv/data", "s3://bucket/data", "https://host:8443/a"],
        &["vcc://moved=/srv/moved"],
        &[],
        hostile_containers(),
    );
    for location in GOOD {
        assert!(all.find(location, None).is_ok() && stays_inside(&all, location), "{location}");
    }
    for location in ["vcc://c1/x", "vcc://c2/host/x", "vcc://c3/x", "vcc://c4/srv/data/x", "vcc://c5/x"] {
        let error = all.find(location, None).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::VirtualNotAllowed | ErrorKind::Corrupt), "{location}: {error}");
    }
}
