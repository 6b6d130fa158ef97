//! Azure Blob Storage.
//!
//! Credentials are the first ones found: the secrets `account-key` or `sas-token`,
//! `AZURE_STORAGE_CONNECTION_STRING`, the other `AZURE_*` variables (keys, service principals,
//! workload identity), the Azure CLI's (`AZURE_USE_AZURE_CLI`), those of the machine (managed
//! identity). The library renews them.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use super::super::location::Bucket;
use super::{StoreParameters, build_error, endpoint_of};
use icechunkfs_base::endpoint::Endpoint;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::store_names::Account;

/// Variable with the account, its key and its endpoint.
const CONNECTION: &str = "AZURE_STORAGE_CONNECTION_STRING";

/// Suffixes of the hosts of accounts, and of those of Microsoft Fabric.
const HOSTS: &str = ".blob.core.windows.net";
const FABRIC_HOSTS: &str = ".blob.fabric.microsoft.com";

pub(super) fn connect(
    container: &Bucket,
    account: Option<&Account>,
    parameters: &StoreParameters,
) -> Result<Arc<dyn ObjectStore>> {
    let settings = &parameters.settings;
    let secrets = &parameters.settings.secrets;
    let mut builder =
        if parameters.use_environment { MicrosoftAzureBuilder::from_env() } else { MicrosoftAzureBuilder::new() };
    builder = builder.with_container_name(&container.name).with_retry(parameters.retry());
    let mut endpoint = None;
    if let Some(words) = parameters.variable(CONNECTION) {
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
    if let Some(account) = settings.account.as_ref().or(account) {
        builder = builder.with_account(account.as_str());
    }
    if settings.anonymous {
        builder = builder.with_skip_signature(true);
    } else if let Some(key) = &secrets.account_key {
        builder = builder.with_access_key(key);
    } else if let Some(token) = &secrets.sas_token {
        builder = builder.with_config(AzureConfigKey::SasKey, token.trim_start_matches('?'));
    }
    let is_set = |key| builder.get_config_value(&key).is_some_and(|value| value == "true");
    let emulated = is_set(AzureConfigKey::UseEmulator);
    let fabric = is_set(AzureConfigKey::UseFabricEndpoint);
    let name = builder.get_config_value(&AzureConfigKey::AccountName);
    if name.is_none() && !emulated {
        return Err(Error::invalid(
            "az: no storage account: pass --account, set AZURE_STORAGE_ACCOUNT_NAME, or name the repository \
             abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX",
        ));
    }
    let name: Option<Account> = name.map(|name| name.parse()).transpose()?;
    let known = builder.get_config_value(&AzureConfigKey::Endpoint);
    let mut endpoint = match settings.endpoint()? {
        Some(endpoint) => Some(endpoint),
        None => endpoint_of(CONNECTION, endpoint)?.or(endpoint_of("AZURE_STORAGE_ENDPOINT", known)?),
    };
    if let (None, Some(name), false) = (&endpoint, &name, emulated) {
        endpoint = Some(Endpoint::with_domain(name.as_str(), if fabric { FABRIC_HOSTS } else { HOSTS })?);
    }
    let home = endpoint.as_ref().map(Endpoint::origin);
    let is_plain = endpoint.as_ref().is_some_and(Endpoint::is_plain);
    builder = builder
        .with_http_connector(parameters.connector(home)?)
        .with_client_options(parameters.client(is_plain || emulated)?);
    if let (Some(endpoint), false) = (&endpoint, emulated) {
        builder = builder.with_endpoint(endpoint.as_str().to_owned());
    }
    Ok(Arc::new(builder.build().map_err(|e| build_error("az", e))?))
}

pub(in crate::storage) fn account_of_environment() -> Option<Account> {
    let connection = super::variable(CONNECTION);
    let named = connection.as_deref().and_then(|words| {
        let mut parts = words.split(';').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| name.trim().eq_ignore_ascii_case("accountname")).map(|(_, value)| value.to_owned())
    });
    named.or_else(|| MicrosoftAzureBuilder::from_env().get_config_value(&AzureConfigKey::AccountName))?.parse().ok()
}
