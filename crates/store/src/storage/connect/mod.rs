//! Connection to the store of a place: credentials, endpoint and client.
//!
//! Each kind of store has a file. All send their requests through one [`Transport`], which limits
//! the requests in flight and the time of each, and all retry transient failures the same way.

mod azure;
mod client;
mod gcs;
mod profile;
mod s3;
#[cfg(feature = "aws-sign-on")]
mod sign_on;
mod slash_prefixed;
mod source;
mod web;

pub(super) use self::azure::account_of_environment;
pub(super) use self::client::REDIRECTED_ELSEWHERE;
pub(super) use self::source::credential_source;

use std::sync::Arc;
use std::time::Duration;

use object_store::client::{HttpClient, HttpConnector};
use object_store::{BackoffConfig, ClientOptions, HeaderMap, HeaderValue, ObjectStore, RetryConfig};
use url::Origin;

use self::client::{Connector, Redirects};
pub(super) use self::s3::S3Service;
use self::s3::S3Stores;
use super::location::StorePlace;
use super::settings::Settings;
use super::transport::Transport;
use icechunkfs_base::endpoint::Endpoint;
use icechunkfs_base::error::{Error, ErrorKind, Result};

const USER_AGENT: &str = concat!("icechunkfs/", env!("CARGO_PKG_VERSION"));
/// Time limit for establishing a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Lifetime of an unused connection: less than the minute after which many servers close it.
const IDLE: Duration = Duration::from_secs(45);
/// First and longest pause before a retry. The client adds jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of retries of one request; the time limit ends most of them earlier.
const MAX_RETRIES: usize = 30;

/// Suffix of the names of Amazon's directory buckets, which list in no order.
const DIRECTORY_BUCKET: &str = "--x-s3";

/// Store, and the part of it that is the repository.
pub(super) struct Connected {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Access to the same store by keys that begin with a slash, if a repository there may have
    /// such keys.
    pub(super) slash_prefixed: Option<Arc<dyn ObjectStore>>,
    pub(super) prefix: String,
    pub(super) read_only: Option<&'static str>,
    /// True if the store lists by name.
    pub(super) is_ordered: bool,
    /// True if entity tags are MD5 sums ([`super::Capabilities::has_md5_tags`]).
    pub(super) has_md5_tags: bool,
    /// Address that requests go to, where it is not the provider's only one.
    pub(super) endpoint: Option<String>,
    /// Service that has the bucket, for one of Amazon's protocol.
    pub(super) service: Option<S3Service>,
    pub(super) transport: Transport,
}

/// Parameters that every store is built with.
pub(super) struct StoreParameters {
    settings: Settings,
    transport: Transport,
    redirects: Redirects,
    /// True if the store may get the credentials and settings of this machine: environment
    /// variables, profiles, tokens.
    use_environment: bool,
}

impl StoreParameters {
    /// Creates the parameters for `settings`, with the secrets of the file that they name.
    fn new(settings: &Settings, redirects: Redirects) -> Result<Self> {
        let transport = Transport::new(settings);
        let settings = settings.clone().with_secrets_of_file()?;
        Ok(StoreParameters { settings, transport, redirects, use_environment: true })
    }

    /// Returns an environment variable, if the store may get its value.
    fn variable(&self, name: &str) -> Option<String> {
        variable(name).filter(|_| self.use_environment)
    }

    /// Returns the factory of clients for the store at `home`, and for the services that provide
    /// credentials for it.
    fn connector(&self, home: Option<Origin>) -> Result<Connector> {
        let transport = self.transport.clone();
        let certificates = self.certificates()?;
        Ok(Connector { transport, redirects: self.redirects, home, certificates })
    }

    /// Reads the certificates that are trusted besides the system's.
    fn certificates(&self) -> Result<Vec<reqwest::Certificate>> {
        let path = self.settings.ca_bundle.clone().or_else(|| variable("AWS_CA_BUNDLE"));
        let Some(path) = path else { return Ok(Vec::new()) };
        let what = format!("the certificates in {path}");
        let pem = std::fs::read(&path).map_err(|e| Error::io(&what, e))?;
        reqwest::Certificate::from_pem_bundle(&pem).map_err(|e| Error::with_source(ErrorKind::InvalidInput, what, e))
    }

    /// Returns the rule for retries of a request. They end a pause and a response before the
    /// operation's time limit, so that the user sees the last failure and not only a timeout.
    fn retry(&self) -> RetryConfig {
        let budget = self.settings.budget();
        let max_backoff = LONGEST_PAUSE.min(budget / 8);
        RetryConfig {
            backoff: BackoffConfig { init_backoff: FIRST_PAUSE.min(max_backoff), max_backoff, base: 2.0 },
            max_retries: MAX_RETRIES,
            retry_timeout: budget.mul_f64(0.75),
        }
    }

    /// Returns the client's options. [`Transport`] sets the deadlines of requests.
    fn client(&self, is_plain: bool) -> Result<ClientOptions> {
        let mut options = ClientOptions::new()
            .with_user_agent(HeaderValue::from_static(USER_AGENT))
            .with_connect_timeout(CONNECT.min(self.settings.budget()))
            .with_pool_idle_timeout(IDLE)
            .with_timeout_disabled()
            // A user who names an unencrypted address wants it.
            .with_allow_http(is_plain);
        let mut headers = HeaderMap::new();
        for (name, value) in self.settings.secrets.headers()? {
            let name: http::HeaderName = name
                .parse()
                .map_err(|_| Error::invalid("a header must be `NAME: VALUE`; one does not have a valid name"))?;
            let mut value = HeaderValue::from_str(value)
                .map_err(|_| Error::invalid(format!("the header `{name}` has a value that cannot be sent")))?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        if !headers.is_empty() {
            options = options.with_default_headers(headers);
        }
        Ok(options)
    }
}

/// Connects to `place`, which is not on this machine.
pub(super) async fn connect(place: &StorePlace, settings: &Settings) -> Result<Connected> {
    connect_over(place, &StoreParameters::new(settings, Redirects::SameOrigin)?).await
}

/// Connects like [`connect`], but follows no redirect. Unless it is `trusted`, the store gets only
/// what is in `settings`.
pub(super) async fn connect_without_redirects(
    place: &StorePlace,
    settings: &Settings,
    trusted: bool,
) -> Result<Connected> {
    let parameters = StoreParameters::new(settings, Redirects::None)?;
    connect_over(place, &StoreParameters { use_environment: trusted, ..parameters }).await
}

/// Creates a client for web servers that follows no redirect and does not retry, with the rule for
/// retries.
pub(super) fn web_client(settings: &Settings) -> Result<(HttpClient, Transport, RetryConfig)> {
    let parameters = StoreParameters::new(settings, Redirects::None)?;
    // Each URL decides on encryption.
    let options = parameters.client(true)?;
    let client =
        parameters.connector(None)?.connect(&options).map_err(|e| build_error("the client for web servers", e))?;
    let retry = parameters.retry();
    Ok((client, parameters.transport, retry))
}

async fn connect_over(place: &StorePlace, parameters: &StoreParameters) -> Result<Connected> {
    let slash_prefixed = None;
    let read_only = None;
    let below = |store, prefix: &str| {
        let prefix = prefix.to_owned();
        let transport = parameters.transport.clone();
        let endpoint = parameters.settings.endpoint_url.clone();
        Connected {
            store,
            slash_prefixed,
            prefix,
            read_only,
            is_ordered: true,
            has_md5_tags: false,
            endpoint,
            service: None,
            transport,
        }
    };
    match place {
        StorePlace::S3(bucket) => {
            let S3Stores { store, slash_prefixed, endpoint, service } = s3::connect(bucket, parameters).await?;
            let is_ordered = !bucket.name.ends_with(DIRECTORY_BUCKET);
            Ok(Connected {
                slash_prefixed: Some(slash_prefixed),
                is_ordered,
                has_md5_tags: true,
                endpoint: Some(endpoint),
                service: Some(service),
                ..below(store, &bucket.prefix)
            })
        }
        StorePlace::Gcs(bucket) => Ok(below(gcs::connect(bucket, parameters)?, &bucket.prefix)),
        StorePlace::Azure(container, account) => {
            Ok(below(azure::connect(container, account.as_ref(), parameters)?, &container.prefix))
        }
        StorePlace::Web(url) => {
            let read_only = Some("repositories on web servers are read-only");
            Ok(Connected { read_only, is_ordered: false, ..below(web::connect(url, parameters)?, "") })
        }
        StorePlace::Local(path) => Err(Error::invalid(format!("{} is on this machine", path.display()))),
    }
}

/// Returns an environment variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Parses an endpoint that the environment or a profile names; `what` is its source.
fn endpoint_of(what: &str, text: Option<String>) -> Result<Option<Endpoint>> {
    text.map(|text| text.parse().map_err(|e: Error| e.context(what))).transpose()
}

fn build_error(what: &str, error: object_store::Error) -> Error {
    Error::with_source(ErrorKind::InvalidInput, what.to_owned(), error)
}
