//! A client that goes nowhere but where it is sent.
//!
//! The usual one follows a redirect to wherever it leads, this machine's own network included. Whoever reads what somebody else
//! named must look first whether the place is allowed.

use object_store::client::{ClientConfigKey, HttpClient, HttpConnector};
use object_store::{ClientOptions, HeaderValue};

use super::{CONNECT, IDLE, USER_AGENT};

/// Makes such clients.
#[derive(Clone, Debug, Default)]
pub(super) struct Straight {
    /// Certificates that are trusted besides the system's: a file in PEM format.
    pub(super) bundle: Option<Vec<u8>>,
}

impl HttpConnector for Straight {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed =
            |source: reqwest::Error| object_store::Error::Generic { store: "HTTP client", source: Box::new(source) };
        let says_yes = |key| options.get_config_value(&key).is_some_and(|value| value == "true");
        let mut builder = reqwest::ClientBuilder::new()
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(HeaderValue::from_static(USER_AGENT))
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .http1_only()
            .https_only(!says_yes(ClientConfigKey::AllowHttp));
        if let Some(headers) = options.get_default_headers() {
            builder = builder.default_headers(headers.clone());
        }
        if let Some(bundle) = &self.bundle {
            builder = builder.tls_certs_merge(reqwest::Certificate::from_pem_bundle(bundle).map_err(failed)?);
        }
        Ok(HttpClient::new(builder.build().map_err(failed)?))
    }
}
