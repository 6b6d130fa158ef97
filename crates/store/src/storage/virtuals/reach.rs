//! Settings for reaching a store of virtual chunks, and the decision whether it gets the
//! credentials of this machine.
//!
//! The user's settings take precedence. Settings that only the repository has are believed if they
//! are names by the provider's rule; but a store at an address or in an account that only the
//! repository names gets no credentials of this machine.

use super::address::{Address, Scheme, quoted};
use super::remote::Remote;
use super::{Connection, VirtualChunks, no_store};
use crate::storage::connect::{self, S3Service};
use crate::storage::settings::Settings;
use icechunkfs_base::endpoint::Endpoint;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::shell;
use icechunkfs_base::store_names::Account;
use icechunkfs_format::format::config::ContainerStore;
use serde_json::{Value, json};

/// Endpoint of Tigris.
const TIGRIS: &str = "https://t3.storage.dev";

pub(super) struct StoreSettings {
    pub(super) settings: Settings,
    /// Advice for the user if the store refuses.
    pub(super) advice: Option<String>,
    /// True if the user named the store, or if it is well known: then it may get the credentials of
    /// this machine.
    pub(super) trusted: bool,
}

impl StoreSettings {
    /// Marks the store as one that only the repository names, because of `why`: it gets no
    /// credentials unless the user gave some for it.
    fn distrust(&mut self, why: impl FnOnce() -> String) {
        self.trusted = false;
        if !has_credentials(&self.settings) && !self.settings.anonymous {
            self.settings.anonymous = true;
            self.advice = Some(format!("it was asked without credentials, since only the repository states {}", why()));
        }
    }
}

impl VirtualChunks {
    /// Returns how `address` is reached: by the user's settings, else by those of the container.
    ///
    /// Errors: [`ErrorKind::VirtualNotAllowed`] for an endpoint without encryption that neither the
    /// user nor the container allows, [`ErrorKind::InvalidInput`] for a name in the configuration
    /// that no store can have.
    pub(super) fn settings(&self, address: &Address, container: Option<usize>) -> Result<StoreSettings> {
        let settings = self.permissions.settings(address).or(self.common.clone());
        let mut reached = StoreSettings { settings, advice: None, trusted: true };
        let store = container.and_then(|number| self.containers.get(number)).map(|(_, container)| &container.store);
        let store = store.filter(|store| serves_scheme(&store.kind, address.scheme()));
        set_endpoint(&mut reached, address, store)?;
        let Some(store) = store else { return Ok(reached) };
        let settings = &mut reached.settings;
        settings.anonymous |= store.anonymous && !has_credentials(settings);
        if let (None, Some(region)) = (&settings.region, &store.region) {
            settings.region = Some(region.parse().context(|| wrong(address, "region"))?);
        }
        // An account in the location is one that the user named: no permission covers it otherwise.
        if let (None, Some(account), false) = (&settings.account, &store.account, address.authority().contains('@')) {
            let account: Account = account.parse().context(|| wrong(address, "account"))?;
            settings.account = Some(account.clone());
            if connect::account_of_environment().as_ref() != Some(&account) {
                reached.distrust(|| {
                    format!(
                        "that it is in the account {account}: if that is right, pass --virtual-option {}",
                        option_text(address, &format!("account={account}"))
                    )
                });
            }
        }
        Ok(reached)
    }

    /// Returns the store of a container for objects directly below `address`: what another program
    /// needs to reach it, without anything that is secret. No object is read.
    ///
    /// Errors: as for connecting to it.
    pub async fn container_store(&self, address: &Address) -> Result<Value> {
        let container = self.container_of(address);
        let settings = self.settings(address, container)?.settings;
        let connection = self.connection(address, container).await?;
        Ok(match (address.scheme(), connection.get()) {
            (Scheme::S3 | Scheme::Tigris, Some(Connection::Bucket(Remote { service: Some(service), .. }, _))) => {
                let S3Service { region, endpoint, by_path } = service;
                let kind = match (address.scheme(), endpoint) {
                    (Scheme::Tigris, _) => "tigris",
                    (_, Some(_)) => "s3_compatible",
                    _ => "s3",
                };
                json!({kind: {
                    "region": region,
                    "endpoint_url": endpoint.as_ref().map(Endpoint::as_str),
                    "anonymous": settings.anonymous,
                    "allow_http": endpoint.as_ref().is_some_and(Endpoint::is_plain),
                    "force_path_style": by_path,
                    "requester_pays": settings.requester_pays,
                }})
            }
            (Scheme::Gs, _) => json!({"gcs": {}}),
            (Scheme::Az, _) => {
                let of_location = address.authority().split_once('@').map(|(_, account)| account.to_owned());
                let of_settings = settings.account.or_else(connect::account_of_environment);
                match of_location.or(of_settings.map(|account| account.to_string())) {
                    Some(account) => json!({"azure": {"account": account}}),
                    None => json!({"azure": {}}),
                }
            }
            (Scheme::Http, _) => json!({"http": {"allow_http": "true"}}),
            (Scheme::Https, _) => json!({"http": {}}),
            _ => return Err(no_store(address)),
        })
    }

    /// Returns a text that is the same for places that are reached by the same options of the user.
    pub fn options_of(&self, address: &Address) -> String {
        self.permissions.options_of(address).join(" ")
    }
}

/// Takes the store's endpoint from the configuration, unless the user names one.
fn set_endpoint(reached: &mut StoreSettings, address: &Address, store: Option<&ContainerStore>) -> Result<()> {
    let said = store.and_then(|store| store.endpoint_url.clone());
    let tigris = || (address.scheme() == Scheme::Tigris).then(|| TIGRIS.to_owned());
    let (None, Some(text)) = (&reached.settings.endpoint_url, said.or_else(tigris)) else { return Ok(()) };
    let endpoint: Endpoint = text.parse().context(|| wrong(address, "endpoint_url"))?;
    if endpoint.is_plain() && store.is_none_or(|store| !store.allow_http) {
        return Err(Error::new(
            ErrorKind::VirtualNotAllowed,
            format!(
                "{address}: the repository's configuration has it at {}, and forbids unencrypted requests: to allow them, pass \
                 --virtual-option {}",
                quoted(endpoint.as_str()),
                option_text(address, "endpoint_url=URL")
            ),
        ));
    }
    reached.distrust(|| {
        format!(
            "that the store is at {}: if it is, pass --virtual-option {}, or give it its own credentials with --virtual-option {}",
            quoted(endpoint.as_str()),
            option_text(address, "endpoint_url=URL"),
            option_text(address, "profile=NAME")
        )
    });
    let settings = &mut reached.settings;
    // Certificates do not cover dots in the name of a bucket.
    let by_host = endpoint.has_domain() && !address.authority().contains('.');
    if store.is_some_and(|store| !store.force_path_style) && by_host {
        settings.addressing.get_or_insert_with(|| "virtual".to_owned());
    }
    settings.endpoint_url = Some(text);
    Ok(())
}

fn has_credentials(settings: &Settings) -> bool {
    let named = [&settings.access_key_id, &settings.profile, &settings.credentials];
    named.iter().any(|said| said.is_some()) || settings.secrets.has_credentials()
}

/// Returns true if a container's store of `kind` is for locations of `scheme`.
fn serves_scheme(kind: &str, scheme: Scheme) -> bool {
    match scheme {
        Scheme::S3 | Scheme::Tigris => matches!(kind, "s3" | "s3_compatible" | "tigris"),
        Scheme::Gs => kind == "gcs",
        Scheme::Az => kind == "azure",
        Scheme::File | Scheme::Http | Scheme::Https | Scheme::Container => false,
    }
}

/// Returns `PREFIX,SETTING`, quoted for a shell.
pub(super) fn option_text(address: &Address, setting: &str) -> String {
    shell::quote(&format!("{},{setting}", address.parent().as_prefix().replace(',', "%2C")))
}

/// Returns the beginning of the error for a setting of the configuration that cannot be used.
fn wrong(address: &Address, name: &str) -> String {
    format!(
        "{address}: the repository's configuration has a {name} that is not valid: pass the right one with \
         --virtual-option {}",
        option_text(address, &format!("{name}=..."))
    )
}
