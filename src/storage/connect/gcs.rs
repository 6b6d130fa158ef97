//! Google Cloud Storage.
//!
//! Credentials, the first that there are: `--credentials`, `GOOGLE_APPLICATION_CREDENTIALS` and its like, what `gcloud auth
//! application-default login` left, the machine's own (metadata server). The library renews them.

use std::sync::Arc;

use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ObjectStore, StaticCredentialProvider};

use super::super::location::Bucket;
use super::{Line, not_made};
use crate::error::Result;

pub(super) fn connect(bucket: &Bucket, line: &Line<'_>) -> Result<Arc<dyn ObjectStore>> {
    let settings = line.settings;
    // The emulator's variable that Google's own libraries know; it takes no credentials.
    let emulator = line.variable("STORAGE_EMULATOR_HOST").filter(|_| settings.endpoint_url.is_none());
    let emulator = emulator.map(|host| if host.contains("://") { host } else { format!("http://{host}") });
    let mut builder =
        if line.ambient { GoogleCloudStorageBuilder::from_env() } else { GoogleCloudStorageBuilder::new() };
    builder = builder.with_bucket_name(&bucket.name).with_retry(line.retry()).with_http_connector(line.connector());
    let endpoint = settings.endpoint_url.clone().or(emulator.clone());
    let known = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    builder = builder.with_client_options(line.client(endpoint.as_deref().or(known.as_deref()))?);
    if let Some(endpoint) = &endpoint {
        builder = builder.with_base_url(endpoint.trim_end_matches('/'));
    }
    if settings.anonymous || emulator.is_some() {
        // What writes wants a token even so, and would ask the machine's metadata server for it.
        let nobody = StaticCredentialProvider::new(GcpCredential { bearer: String::new() });
        builder = builder.with_skip_signature(true).with_credentials(Arc::new(nobody));
    } else if let Some(path) = &settings.credentials {
        builder = builder.with_application_credentials(path);
    }
    Ok(Arc::new(builder.build().map_err(|e| not_made("gs: credentials", e))?))
}
