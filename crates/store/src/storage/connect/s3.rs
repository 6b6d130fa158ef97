//! Amazon S3 and compatible stores.
//!
//! Credentials are the first ones found: `--access-key-id` and its secret; those of the profile
//! that `--profile` names; `AWS_ACCESS_KEY_ID` and its secret; those that a cluster gives its
//! containers (web identity, container credentials); the profile that `AWS_PROFILE` names, or
//! `default`; those of the machine (instance metadata). Those of profiles, containers and the
//! machine are renewed before they expire.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, S3ConditionalPut};
use object_store::client::{HttpConnector, HttpRequestBody};
use object_store::{ObjectStore, StaticCredentialProvider};

use super::super::location::Bucket;
use super::client::Redirects;
use super::profile::{self, Profile, ProfileCredentials};
use super::slash_prefixed::SlashPrefixed;
use super::{StoreParameters, build_error, endpoint_of, variable};
use icechunkfs_base::endpoint::Endpoint;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::store_names::Region;

/// Variables of credentials that take precedence over the keys of a profile, unless `--profile`
/// names it.
const OTHER_SOURCES: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

const AMAZON: &str = ".amazonaws.com";
/// Name of the host that knows the region of any bucket.
const ANYWHERE: &str = "s3";
const BUCKET_REGION: &str = "x-amz-bucket-region";

/// Access to a bucket.
pub(super) struct S3Stores {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The same by keys that begin with a slash.
    pub(super) slash_prefixed: Arc<dyn ObjectStore>,
    /// Address that requests go to.
    pub(super) endpoint: String,
    pub(super) service: S3Service,
}

/// Service that has a bucket, as another program has to be told of it.
#[derive(Clone, Debug)]
pub(in super::super) struct S3Service {
    pub(in super::super) region: String,
    /// Address; none for Amazon's own.
    pub(in super::super) endpoint: Option<Endpoint>,
    /// True if the bucket is a part of the path, and not of the host's name.
    pub(in super::super) by_path: bool,
}

/// Connects to the bucket, and to the bucket by keys that begin with a slash.
pub(super) async fn connect(bucket: &Bucket, parameters: &StoreParameters) -> Result<S3Stores> {
    let settings = &parameters.settings;
    let mut builder = if parameters.use_environment { AmazonS3Builder::from_env() } else { AmazonS3Builder::new() };
    builder = builder
        .with_bucket_name(&bucket.name)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(parameters.retry());
    let named = settings.profile.as_deref();
    let profile = if named.is_some() || parameters.use_environment { chosen_profile(named)? } else { None };
    let from_env = |builder: &AmazonS3Builder, key| builder.get_config_value(&key);
    let endpoint = match settings.endpoint()? {
        Some(endpoint) => Some(endpoint),
        None => {
            let set = from_env(&builder, AmazonS3ConfigKey::S3Endpoint)
                .or_else(|| from_env(&builder, AmazonS3ConfigKey::Endpoint));
            let of_profile = profile.as_ref().and_then(|profile| profile.endpoint_url.clone());
            endpoint_of("AWS_ENDPOINT_URL", set)?.or(endpoint_of("the profile", of_profile)?)
        }
    };
    let region = match &settings.region {
        Some(region) => Some(region.clone()),
        None => {
            let set = from_env(&builder, AmazonS3ConfigKey::Region)
                .or_else(|| from_env(&builder, AmazonS3ConfigKey::DefaultRegion))
                .or_else(|| profile.as_ref().and_then(|profile| profile.region.clone()));
            set.map(|region| region.parse()).transpose()?
        }
    };
    let region: Region = match (region, &endpoint) {
        (Some(region), _) => region,
        // Other stores accept any region.
        (None, Some(_)) => "us-east-1".parse()?,
        (None, None) if settings.offline => {
            let name = &bucket.name;
            return Err(Error::invalid(format!(
                "the region of bucket `{name}` cannot be looked up offline: pass --region"
            )));
        }
        (None, None) => region_of(bucket, parameters).await?,
    };
    let other = endpoint.clone();
    let endpoint = match endpoint {
        Some(endpoint) => endpoint,
        None => Endpoint::with_domain(&format!("{ANYWHERE}.{region}"), AMAZON)?,
    };
    let by_host = settings.addressing.as_deref() == Some("virtual");
    let home = if by_host { endpoint.with_bucket(&bucket.name)? } else { endpoint };
    builder = with_credentials(builder, parameters, profile)?
        .with_region(region.as_str())
        .with_virtual_hosted_style_request(by_host)
        .with_http_connector(parameters.connector(Some(home.origin()))?)
        .with_client_options(parameters.client(home.is_plain())?);
    if settings.requester_pays {
        builder = builder.with_request_payer(true);
    }
    let plain = builder.clone().with_endpoint(home.as_str());
    // The slash that keys begin with follows the part that the client takes for the whole address
    // of the bucket.
    let address = if by_host { home.to_string() } else { format!("{home}/{}", bucket.name) };
    let slash_prefixed = builder.with_virtual_hosted_style_request(true).with_endpoint(format!("{address}/"));
    let slash_prefixed = slash_prefixed.with_disable_bulk_delete(true);
    let slash_prefixed = SlashPrefixed(slash_prefixed.build().map_err(|e| build_error("s3", e))?);
    Ok(S3Stores {
        store: Arc::new(plain.build().map_err(|e| build_error("s3", e))?),
        slash_prefixed: Arc::new(slash_prefixed),
        endpoint: home.to_string(),
        service: S3Service { region: region.to_string(), by_path: other.is_some() && !by_host, endpoint: other },
    })
}

/// Asks Amazon for the region of a bucket, without credentials.
async fn region_of(bucket: &Bucket, parameters: &StoreParameters) -> Result<Region> {
    let unknown = |why: &str| format!("the region of bucket `{}` is not known{why}: pass --region", bucket.name);
    let no_answer = |source| Error::with_source(ErrorKind::NotFound, unknown(""), source);
    // The bucket is in the path: a dot in its name would not match Amazon's certificate.
    let home = Endpoint::with_domain(ANYWHERE, AMAZON)?;
    let mut connector = parameters.connector(Some(home.origin()))?;
    // A redirect contains the region too.
    connector.redirects = Redirects::None;
    let client = connector.connect(&parameters.client(false)?).map_err(no_answer)?;
    let request = http::Request::head(format!("{home}/{}", bucket.name)).body(HttpRequestBody::empty());
    let request = request.map_err(|e| Error::with_source(ErrorKind::InvalidInput, unknown(""), e))?;
    let asked = tokio::time::timeout(parameters.settings.budget(), client.execute(request)).await;
    let not_reached = || {
        format!(
            "{home}, which knows the region of bucket `{}`, cannot be reached: check the network, or pass --region",
            bucket.name
        )
    };
    let asked = asked.map_err(|_| Error::new(ErrorKind::Timeout, not_reached()))?;
    let answer = asked.map_err(|e| Error::with_source(ErrorKind::NotFound, not_reached(), e))?;
    if answer.status() == http::StatusCode::NOT_FOUND {
        return Err(Error::new(ErrorKind::NotFound, unknown(", since the bucket does not exist")));
    }
    let told = answer.headers().get(BUCKET_REGION).and_then(|value| value.to_str().ok());
    told.ok_or_else(|| Error::new(ErrorKind::NotFound, unknown("")))?.parse()
}

fn with_credentials(
    builder: AmazonS3Builder,
    parameters: &StoreParameters,
    profile: Option<Profile>,
) -> Result<AmazonS3Builder> {
    let settings = &parameters.settings;
    let secrets = &parameters.settings.secrets;
    if settings.anonymous {
        return Ok(builder.with_skip_signature(true));
    }
    match (&settings.access_key_id, &secrets.secret_access_key) {
        (Some(id), Some(secret)) => {
            // The key is set with its token: a token of the environment belongs to another key.
            let key_id = id.clone();
            let secret_key = secret.clone();
            let token = secrets.session_token.clone();
            let credential = AwsCredential { key_id, secret_key, token };
            return Ok(builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential))));
        }
        (Some(_), None) => {
            return Err(Error::invalid(
                "--access-key-id is given without a secret: set ICECHUNKFS_SECRET_ACCESS_KEY or --secrets FILE",
            ));
        }
        (None, Some(_)) => return Err(Error::invalid("a secret access key is given without --access-key-id")),
        (None, None) => {}
    }
    let half =
        parameters.variable("AWS_ACCESS_KEY_ID").is_some() != parameters.variable("AWS_SECRET_ACCESS_KEY").is_some();
    if half && settings.profile.is_none() {
        return Err(Error::invalid("set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: only one is set"));
    }
    match profile.filter(|profile| profile.has_credentials()) {
        Some(profile) => Ok(builder.with_credentials(Arc::new(ProfileCredentials::new(profile)?))),
        None => Ok(builder),
    }
}

/// Returns the profile `named`, or else the default profile, without its keys if there are
/// credentials elsewhere.
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
