//! Profiles that take on a role (`role_arn` with `source_profile` or `credential_source`) or sign
//! on with IAM Identity Center (`sso_session`, `sso_start_url`): Amazon's own library follows the
//! chain of profiles, and asks STS and the sign-on portal.
//!
//! `aws sso login` must have been called before: this program opens no browser. Its library reads
//! the files of profiles again at each renewal, a few minutes before the keys expire, so that a new
//! sign-on is taken up by a running mount.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_config::BehaviorVersion;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::timeout::TimeoutConfig;
use aws_credential_types::provider::ProvideCredentials;
use aws_smithy_http_client::tls;
use object_store::aws::AwsCredential;

use super::profile::{AHEAD, Kept, Profile};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::store_names::Region;

/// Longest wait for all services of a chain together.
const CHAIN: Duration = Duration::from_secs(60);
/// Time for which keys without an expiry are used.
const UNTOLD: Duration = Duration::from_secs(300);
/// Time for which keys are used that are due for renewal at once.
const LEAST: Duration = Duration::from_secs(10);
/// Region that is asked if the profile names none: STS and the portal have one in each.
const ANY_REGION: &str = "us-east-1";

/// Source of the keys of a role or of a sign-on.
pub(super) struct SignOn {
    region: Region,
}

impl fmt::Debug for SignOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignOn").field("region", &self.region).finish()
    }
}

impl SignOn {
    /// Creates the source for `profile`. Its region becomes part of a host name: a wrong one is
    /// refused.
    pub(super) fn new(profile: &Profile) -> Result<Self> {
        let region = profile.region.as_deref().unwrap_or(ANY_REGION).parse()?;
        Ok(SignOn { region })
    }

    /// Asks for keys of profile `name`.
    pub(super) async fn renew(&self, name: &str) -> Result<Kept> {
        let client = aws_smithy_http_client::Builder::new();
        let client = client.tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring)).build_https();
        let timeouts = TimeoutConfig::builder().operation_timeout(CHAIN).build();
        let config = ProviderConfig::default()
            .with_region(Some(aws_config::Region::new(self.region.to_string())))
            .with_behavior_version(Some(BehaviorVersion::latest()))
            .with_http_client(client)
            .with_timeout_config(timeouts);
        let provider = ProfileFileCredentialsProvider::builder().configure(&config).profile_name(name).build();
        let keys = tokio::time::timeout(CHAIN, provider.provide_credentials()).await.map_err(|_| too_slow(name))?;
        let keys = keys.map_err(|e| {
            let advice =
                format!("profile `{name}` does not give keys: try again after `aws sso login --profile {name}`");
            Error::with_source(ErrorKind::PermissionDenied, advice, e)
        })?;
        let until = match keys.expiry() {
            Some(expiry) => expiry.checked_sub(AHEAD).unwrap_or(SystemTime::UNIX_EPOCH),
            None => SystemTime::now() + UNTOLD,
        };
        let credential = AwsCredential {
            key_id: keys.access_key_id().to_owned(),
            secret_key: keys.secret_access_key().to_owned(),
            token: keys.session_token().map(str::to_owned),
        };
        Ok(Kept { credential: Arc::new(credential), until: until.max(SystemTime::now() + LEAST) })
    }
}

fn too_slow(name: &str) -> Error {
    let message = format!("profile `{name}`: the services of its chain did not answer within {} s", CHAIN.as_secs());
    Error::new(ErrorKind::Timeout, message)
}
