//! HTTP client that follows no redirect to another origin.
//!
//! The usual client follows a redirect to any address, this machine's own network included, and
//! takes headers along. This client follows redirects within the origin of the request (scheme,
//! host and port), or none at all; headers that the user gave for a store are sent to that store,
//! and not to services that provide credentials for it.

use std::time::Duration;

use async_trait::async_trait;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientOptions, HeaderMap, HeaderValue};
use reqwest::redirect::{Attempt, Policy};
use url::{Origin, Url};

use super::super::transport::Transport;
use super::{CONNECT, IDLE, USER_AGENT};

const MAX_REDIRECTS: usize = 5;

/// Beginning of the error for a redirect that is not followed. What comes after it is the server's.
pub(in crate::storage) const REDIRECTED_ELSEWHERE: &str = "the server redirects to another origin";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redirects {
    /// Redirects within the origin of the request.
    SameOrigin,
    /// No redirects: the caller checks their targets first.
    None,
}

/// Factory of HTTP clients, whose requests go through `transport`.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) transport: Transport,
    pub(super) redirects: Redirects,
    /// Origin of the store, the only one that gets the user's headers. `None` if every origin may
    /// get them.
    pub(super) home: Option<Origin>,
    /// Certificates that are trusted besides the system's.
    pub(super) certificates: Vec<reqwest::Certificate>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed =
            |source: reqwest::Error| object_store::Error::Generic { store: "HTTP client", source: Box::new(source) };
        let says_yes = |key| options.get_config_value(&key).is_some_and(|value| value == "true");
        let policy = match self.redirects {
            Redirects::SameOrigin => Policy::custom(within_origin),
            Redirects::None => Policy::none(),
        };
        // Only the first call of a process has an effect.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::ClientBuilder::new()
            .redirect(policy)
            .user_agent(HeaderValue::from_static(USER_AGENT))
            .connect_timeout(duration(options, ClientConfigKey::ConnectTimeout).unwrap_or(CONNECT))
            .pool_idle_timeout(IDLE)
            .http1_only()
            .https_only(!says_yes(ClientConfigKey::AllowHttp));
        if !self.certificates.is_empty() {
            builder = builder.tls_certs_merge(self.certificates.clone());
        }
        let mut client = HttpClient::new(builder.build().map_err(failed)?);
        if let Some(headers) = options.get_default_headers() {
            client = HttpClient::new(WithHeaders { client, headers: headers.clone(), home: self.home.clone() });
        }
        Ok(self.transport.wrap(client))
    }
}

/// Parses a duration of `options`, which has units.
fn duration(options: &ClientOptions, key: ClientConfigKey) -> Option<Duration> {
    let text = options.get_config_value(&key)?;
    text.parse::<jiff::SignedDuration>().ok()?.try_into().ok()
}

fn within_origin(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let Some(first) = attempt.previous().first() else { return attempt.stop() };
    if first.origin() != attempt.url().origin() {
        let origin = attempt.url().origin().ascii_serialization();
        let origin = if origin == "null" { "which is not a web server" } else { &origin };
        return attempt
            .error(format!("{REDIRECTED_ELSEWHERE}, {origin}: if the data is there, name that place in the URL"));
    }
    if attempt.previous().len() > MAX_REDIRECTS {
        return attempt.error(format!("the server redirects more than {MAX_REDIRECTS} times"));
    }
    attempt.follow()
}

/// Client that adds headers to requests to one origin.
#[derive(Debug)]
struct WithHeaders {
    client: HttpClient,
    headers: HeaderMap,
    home: Option<Origin>,
}

#[async_trait]
impl HttpService for WithHeaders {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let origin = || Url::parse(&request.uri().to_string()).map(|url| url.origin());
        if self.home.as_ref().is_none_or(|home| origin().is_ok_and(|origin| origin == *home)) {
            let there = request.headers_mut();
            // The store's client has set the headers that it signed.
            let missing: Vec<_> = self.headers.keys().filter(|name| !there.contains_key(*name)).collect();
            for name in missing {
                for value in self.headers.get_all(name) {
                    there.append(name, value.clone());
                }
            }
        }
        self.client.execute(request).await
    }
}
