//! Amazon S3, and everything that speaks its protocol.
//!
//! Credentials, the first that there are: the command line's; those of the profile that `--profile` names; `AWS_ACCESS_KEY_ID`
//! and its like; what a cluster gives its containers (web identity, container credentials); the profile that `AWS_PROFILE`
//! names, or `default`; the machine's own (instance metadata). All of the last four are asked again before they expire.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, S3ConditionalPut, resolve_bucket_region};
use object_store::{ObjectStore, StaticCredentialProvider};

use super::super::location::Bucket;
use super::profile::{self, Profile, ProfileCredentials};
use super::slashed::Slashed;
use super::{Line, not_made, variable};
use crate::error::{Error, ErrorKind, Result};

/// Where there are credentials without a profile.
const OTHER_SOURCES: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The bucket, and the bucket by keys that begin with a slash.
pub(super) async fn connect(bucket: &Bucket, line: &Line<'_>) -> Result<(Arc<dyn ObjectStore>, Arc<dyn ObjectStore>)> {
    let settings = line.settings;
    let mut builder = if line.ambient { AmazonS3Builder::from_env() } else { AmazonS3Builder::new() };
    builder = builder
        .with_bucket_name(&bucket.name)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(line.retry())
        .with_http_connector(line.connector());
    let named = settings.profile.as_deref();
    let profile = if named.is_some() || line.ambient { chosen_profile(named)? } else { None };
    let of_profile = |pick: fn(&Profile) -> Option<&String>| profile.as_ref().and_then(pick).cloned();

    let from_env = |builder: &AmazonS3Builder, key| builder.get_config_value(&key);
    let endpoint = settings
        .endpoint_url
        .clone()
        .or_else(|| from_env(&builder, AmazonS3ConfigKey::S3Endpoint))
        .or_else(|| from_env(&builder, AmazonS3ConfigKey::Endpoint))
        .or_else(|| of_profile(|profile| profile.endpoint_url.as_ref()));
    let options = line.client(endpoint.as_deref())?;

    builder = with_credentials(builder, line, profile.clone())?;
    let region = settings
        .region
        .clone()
        .or_else(|| from_env(&builder, AmazonS3ConfigKey::Region))
        .or_else(|| from_env(&builder, AmazonS3ConfigKey::DefaultRegion))
        .or_else(|| of_profile(|profile| profile.region.as_ref()));
    let region = match (region, &endpoint) {
        (Some(region), _) => region,
        // Other stores take any.
        (None, Some(_)) => "us-east-1".to_owned(),
        (None, None) => {
            let asked = resolve_bucket_region(&bucket.name, &options);
            let region = tokio::time::timeout(settings.budget(), asked).await;
            let unknown = || format!("the region of bucket `{}` is not known: say it with --region", bucket.name);
            let region = region.map_err(|_| Error::new(ErrorKind::Timeout, unknown()))?;
            region.map_err(|e| Error::with_source(ErrorKind::NotFound, unknown(), e))?
        }
    };
    builder = builder.with_region(&region);
    let by_host = settings.addressing.as_deref() == Some("virtual");
    builder = builder.with_virtual_hosted_style_request(by_host).with_client_options(options);
    if settings.requester_pays {
        builder = builder.with_request_payer(true);
    }
    let mut plain = builder.clone();
    if let Some(endpoint) = &endpoint {
        plain = plain.with_endpoint(if by_host { of_bucket(endpoint, &bucket.name)? } else { endpoint.clone() });
    }
    // Beyond what the client takes for the whole address of the bucket: the slash that keys begin with.
    let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let endpoint = endpoint.trim_end_matches('/');
    let address = if by_host { of_bucket(endpoint, &bucket.name)? } else { format!("{endpoint}/{}", bucket.name) };
    let slashed = builder.with_virtual_hosted_style_request(true).with_endpoint(format!("{address}/"));
    let slashed = slashed.with_disable_bulk_delete(true);
    let slashed = Slashed::new(slashed.build().map_err(|e| not_made("s3", e))?);
    Ok((Arc::new(plain.build().map_err(|e| not_made("s3", e))?), Arc::new(slashed)))
}

fn with_credentials(builder: AmazonS3Builder, line: &Line<'_>, profile: Option<Profile>) -> Result<AmazonS3Builder> {
    let settings = line.settings;
    if settings.anonymous {
        return Ok(builder.with_skip_signature(true));
    }
    match (&settings.access_key_id, &settings.secret_access_key) {
        (Some(id), Some(secret)) => {
            // As a whole: a token of the environment belongs to another key.
            let (key_id, secret_key, token) = (id.clone(), secret.clone(), settings.session_token.clone());
            let credential = AwsCredential { key_id, secret_key, token };
            return Ok(builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential))));
        }
        (Some(_), None) => return Err(Error::invalid("--access-key-id is given, and no --secret-access-key")),
        (None, Some(_)) => return Err(Error::invalid("--secret-access-key is given, and no --access-key-id")),
        (None, None) => {}
    }
    let half = line.variable("AWS_ACCESS_KEY_ID").is_some() != line.variable("AWS_SECRET_ACCESS_KEY").is_some();
    if half && settings.profile.is_none() {
        return Err(Error::invalid("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set: a key is both"));
    }
    match profile.filter(|profile| profile.has_credentials()) {
        Some(profile) => Ok(builder.with_credentials(Arc::new(ProfileCredentials::new(profile)?))),
        None => Ok(builder),
    }
}

/// The profile that is to be used: the one that is named, or the usual one unless there are credentials elsewhere.
fn chosen_profile(named: Option<&str>) -> Result<Option<Profile>> {
    if let Some(name) = named {
        return profile::read(name)?.map(Some).ok_or_else(|| profile::missing(name));
    }
    let usual = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
    let found = match &usual {
        Some(name) => Some(profile::read(name)?.ok_or_else(|| profile::missing(name))?),
        None => profile::read("default")?,
    };
    let elsewhere = OTHER_SOURCES.iter().any(|name| variable(name).is_some());
    Ok(found.map(|profile| if elsewhere { profile.without_credentials() } else { profile }))
}

/// `https://host` as `https://bucket.host`.
fn of_bucket(endpoint: &str, bucket: &str) -> Result<String> {
    let wrong = || Error::invalid(format!("--endpoint-url: `{endpoint}` is no URL"));
    let (scheme, host) = endpoint.split_once("://").ok_or_else(wrong)?;
    Ok(format!("{scheme}://{bucket}.{host}"))
}
