//! Azure Blob Storage.
//!
//! Credentials, the first that there are: `--account-key` or `--sas-token`, `AZURE_STORAGE_CONNECTION_STRING`, the other
//! `AZURE_*` variables (keys, service principals, workload identity), the Azure CLI's (`AZURE_USE_AZURE_CLI`), the machine's
//! own (managed identity). The library renews them.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use super::super::location::Bucket;
use super::{Line, not_made};
use crate::error::{Error, Result};

pub(super) fn connect(container: &Bucket, account: Option<&str>, line: &Line<'_>) -> Result<Arc<dyn ObjectStore>> {
    let settings = line.settings;
    let mut builder = if line.ambient { MicrosoftAzureBuilder::from_env() } else { MicrosoftAzureBuilder::new() };
    builder =
        builder.with_container_name(&container.name).with_retry(line.retry()).with_http_connector(line.connector());
    let mut endpoint = None;
    if let Some(words) = line.variable("AZURE_STORAGE_CONNECTION_STRING") {
        for (name, value) in words.split(';').filter_map(|part| part.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "accountname" => builder = builder.with_account(value),
                "accountkey" => builder = builder.with_access_key(value),
                "blobendpoint" => endpoint = Some(value.to_owned()),
                "sharedaccesssignature" => builder = builder.with_config(AzureConfigKey::SasKey, value),
                _ => {}
            }
        }
    }
    if let Some(account) = settings.account.as_deref().or(account) {
        builder = builder.with_account(account);
    }
    if settings.anonymous {
        builder = builder.with_skip_signature(true);
    } else if let Some(key) = &settings.account_key {
        builder = builder.with_access_key(key);
    } else if let Some(token) = &settings.sas_token {
        builder = builder.with_config(AzureConfigKey::SasKey, token.trim_start_matches('?'));
    }
    let emulated = builder.get_config_value(&AzureConfigKey::UseEmulator).is_some_and(|value| value == "true");
    if builder.get_config_value(&AzureConfigKey::AccountName).is_none() && !emulated {
        return Err(Error::invalid(
            "az: no storage account: say it with --account or AZURE_STORAGE_ACCOUNT_NAME, or name the repository \
             abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX",
        ));
    }
    let known = builder.get_config_value(&AzureConfigKey::Endpoint);
    let endpoint = settings.endpoint_url.clone().or(endpoint).or(known);
    builder = builder.with_client_options(line.client(endpoint.as_deref())?);
    if emulated {
        builder = builder.with_allow_http(true);
    } else if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(Arc::new(builder.build().map_err(|e| not_made("az", e))?))
}
