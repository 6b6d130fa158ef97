//! Untrusted names and URLs, made into the addresses that requests and credentials go to: of the
//! provider, or refused.

use icechunkfs::endpoint::Endpoint;
use icechunkfs::storage::location::Location;
use icechunkfs::store_names::{Account, Provider, Region};

/// Domains of the providers' own stores.
const DOMAINS: [&str; 3] = [".amazonaws.com", ".blob.core.windows.net", ".storage.googleapis.com"];

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for domain in DOMAINS {
        let Ok(endpoint) = Endpoint::with_domain(text, domain) else { continue };
        expect_host(endpoint.as_str(), &format!("{text}{domain}"));
        let Ok(bucket) = endpoint.with_bucket(text) else { continue };
        expect_host(bucket.as_str(), &format!("{text}.{text}{domain}"));
    }
    if let Ok(region) = text.parse::<Region>() {
        let endpoint =
            Endpoint::with_domain(&format!("s3.{}", region.as_str()), DOMAINS[0]).expect("a region is part of a host");
        expect_host(endpoint.as_str(), &format!("s3.{text}.amazonaws.com"));
    }
    if let Ok(account) = text.parse::<Account>() {
        let endpoint = Endpoint::with_domain(account.as_str(), DOMAINS[1]).expect("an account is part of a host");
        expect_host(endpoint.as_str(), &format!("{text}.blob.core.windows.net"));
    }
    for provider in [Provider::S3, Provider::Gcs, Provider::Azure] {
        let is_strange = |byte: u8| byte <= b' ' || b"/\\@?#%:&'\"<>".contains(&byte) || byte >= 0x7f;
        assert!(
            !provider.is_bucket(text) || !(text.is_empty() || text.bytes().any(is_strange)),
            "{provider:?}: {text:?}"
        );
    }
    if let Ok(endpoint) = text.parse::<Endpoint>() {
        let url = url::Url::parse(endpoint.as_str()).expect("an address");
        assert!(url.username().is_empty() && url.password().is_none() && url.query().is_none(), "{text:?}");
    }
    let _ = Location::parse(text);
}

/// Checks with another URL parser: nothing but the host, encrypted.
fn expect_host(address: &str, host: &str) {
    let rest = address.strip_prefix("https://").expect("encrypted");
    assert_eq!(rest.trim_end_matches('/'), host);
    assert!(
        !host.contains(['/', '@', ':', '?', '#', '\\', '%']) && host.bytes().all(|byte| byte.is_ascii_graphic()),
        "{host:?}"
    );
    assert_eq!(url::Url::parse(address).expect("an address").host_str(), Some(host));
}
