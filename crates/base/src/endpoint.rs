//! Address of a store: the host that requests and their credentials are sent to.
//!
//! The setters of [`url::Url`] build the address, and the result is checked afterwards: a name that
//! is put in front of a provider's domain must have become part of the host, and nothing else.

use std::fmt;
use std::str::FromStr;

use url::{Host, Origin, Url};

use crate::error::{Error, ErrorKind, Result};

/// Placeholder whose host is replaced.
const BLANK: &str = "https://host.invalid/";

/// Address of a store: `http` or `https`, a host, and optionally a port and a path. Contains no
/// secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(Url);

impl Endpoint {
    /// Returns the address of host `name` below the provider's `domain`, which begins with a dot.
    /// Fails with [`ErrorKind::InvalidInput`] if the name does not become part of the host.
    pub fn with_domain(name: &str, domain: &'static str) -> Result<Self> {
        let blank = Url::parse(BLANK).map_err(|e| Error::with_source(ErrorKind::Io, "the address of a store", e))?;
        let host = [name, domain].concat();
        Endpoint(blank).with_host(&host).filter(|endpoint| endpoint.host().ends_with(domain)).ok_or_else(|| {
            Error::invalid(format!("`{name}` does not fit into a host below {}", domain.trim_start_matches('.')))
        })
    }

    /// Returns the address with the bucket as the first label of the host.
    pub fn with_bucket(&self, bucket: &str) -> Result<Self> {
        let host = format!("{bucket}.{}", self.host());
        let is_name = matches!(self.0.host(), Some(Host::Domain(_)));
        self.clone().with_host(&host).filter(|_| is_name).ok_or_else(|| {
            Error::invalid(format!(
                "bucket `{bucket}` cannot be a part of the host {}: use --addressing path",
                self.host()
            ))
        })
    }

    fn with_host(mut self, host: &str) -> Option<Self> {
        if host.split('.').any(str::is_empty) {
            return None;
        }
        self.0.set_host(Some(host)).ok()?;
        (self.0.host_str() == Some(host)).then_some(self)
    }

    /// Returns the host.
    pub fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }

    /// Returns true if the host is a name with a dot in it.
    pub fn has_domain(&self) -> bool {
        matches!(self.0.host(), Some(Host::Domain(name)) if name.contains('.'))
    }

    /// Returns true if requests are not encrypted.
    pub fn is_plain(&self) -> bool {
        self.0.scheme() == "http"
    }

    /// Returns the scheme, host and port.
    pub fn origin(&self) -> Origin {
        self.0.origin()
    }

    /// Returns the URL without a slash at the end.
    pub fn as_str(&self) -> &str {
        self.0.as_str().trim_end_matches('/')
    }
}

/// Error messages never repeat the text: it may contain a password.
impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("the endpoint's URL {why}"));
        let url = Url::parse(text).map_err(|_| wrong("is not valid: expected https://HOST"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(
                "does not begin with https:// or http://: write which of them, as in http://localhost:9000",
            ));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(
                "has a name or a password in it, which logs and other users could see: set ICECHUNKFS_HEADER to `Authorization: ...` instead",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("has a part after ? or #"));
        }
        Ok(Endpoint(url))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_becomes_a_host_of_the_domain_or_nothing() {
        let at = |name: &str| Endpoint::with_domain(name, ".amazonaws.com").map(|endpoint| endpoint.to_string());
        assert_eq!(at("s3.eu-west-1").unwrap(), "https://s3.eu-west-1.amazonaws.com");
        for name in [
            "a@evil.example/",
            "evil.example/",
            "evil.example#",
            "evil.example?",
            "evil.example\\",
            "a:80",
            "A",
            "ä",
            "a b",
            "a\n",
            "%61",
        ] {
            assert!(at(name).is_err(), "{name}");
        }
        let endpoint: Endpoint = "https://store.example:8443/base/".parse().unwrap();
        assert_eq!(endpoint.with_bucket("b").unwrap().to_string(), "https://b.store.example:8443/base");
        for bucket in ["B", "a_b/", "a@b", "", "a..b/"] {
            assert!(endpoint.with_bucket(bucket).is_err(), "{bucket}");
        }
        assert!("http://127.0.0.1:1".parse::<Endpoint>().unwrap().with_bucket("b").is_err());
    }

    #[test]
    fn an_endpoint_has_nothing_secret() {
        for text in [
            "http://u:secret@h",
            "http://secret@h",
            "ftp://secret",
            "secret",
            "https://h/?secret",
            "https://h/#secret",
            "",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(5000) })]

        #[test]
        fn no_text_leads_out_of_the_domain(name in prop_oneof![".{0,40}", "[a-z@:./%\\\\?#0-9 \\[\\]-]{0,30}"]) {
            if let Ok(endpoint) = Endpoint::with_domain(&name, ".blob.core.windows.net") {
                let url = Url::parse(endpoint.as_str()).unwrap();
                prop_assert!(url.host_str().unwrap().ends_with(".blob.core.windows.net"), "{}", name);
                prop_assert!(url.username().is_empty() && url.port().is_none() && url.path() == "/" && url.scheme() == "https");
            }
        }
    }
}
