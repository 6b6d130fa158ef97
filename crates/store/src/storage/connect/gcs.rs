//! Google Cloud Storage.
//!
//! Credentials are the first ones found: `--credentials`, `GOOGLE_APPLICATION_CREDENTIALS` and
//! similar variables, those of `gcloud auth application-default login`, those of the machine
//! (metadata server). The library renews them.

use std::sync::Arc;

use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ObjectStore, StaticCredentialProvider};

use super::super::location::Bucket;
use super::{StoreParameters, build_error, endpoint_of};
use icechunkfs_base::endpoint::Endpoint;
use icechunkfs_base::error::Result;

const GOOGLE: (&str, &str) = ("storage", ".googleapis.com");

pub(super) fn connect(bucket: &Bucket, parameters: &StoreParameters) -> Result<Arc<dyn ObjectStore>> {
    let settings = &parameters.settings;
    // Google's own libraries know this variable of the emulator, which takes no credentials.
    let emulator = parameters.variable("STORAGE_EMULATOR_HOST").filter(|_| settings.endpoint_url.is_none());
    let emulator = emulator.map(|host| if host.contains("://") { host } else { format!("http://{host}") });
    let emulator = endpoint_of("STORAGE_EMULATOR_HOST", emulator)?;
    let mut builder = if parameters.use_environment {
        GoogleCloudStorageBuilder::from_env()
    } else {
        GoogleCloudStorageBuilder::new()
    };
    let known = endpoint_of("GOOGLE_BASE_URL", builder.get_config_value(&GoogleConfigKey::BaseUrl))?;
    let endpoint = match settings.endpoint()?.or_else(|| emulator.clone()).or(known) {
        Some(endpoint) => endpoint,
        None => Endpoint::with_domain(GOOGLE.0, GOOGLE.1)?,
    };
    builder = builder
        .with_bucket_name(&bucket.name)
        .with_retry(parameters.retry())
        .with_http_connector(parameters.connector(Some(endpoint.origin()))?)
        .with_client_options(parameters.client(endpoint.is_plain())?)
        .with_base_url(endpoint.as_str());
    if settings.anonymous || emulator.is_some() {
        // Writes need a token even so, and would ask the machine's metadata server for it.
        let nobody = StaticCredentialProvider::new(GcpCredential { bearer: String::new() });
        builder = builder.with_skip_signature(true).with_credentials(Arc::new(nobody));
    } else if let Some(path) = &settings.credentials {
        builder = builder.with_application_credentials(path);
    }
    Ok(Arc::new(builder.build().map_err(|e| build_error("gs: credentials", e))?))
}
