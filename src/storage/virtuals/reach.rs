//! How a store of virtual chunks is reached, and whether it may have the credentials of the environment.
//!
//! What the user says counts first. What only the repository says is believed, as far as it is a name by the provider's rule;
//! but a store at an address of the repository's, or in an account of its, gets nothing that lies about on this machine.

use super::Virtuals;
use super::address::{Address, Scheme, quoted};
use crate::endpoint::Endpoint;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::config::ContainerStore;
use crate::shell;
use crate::storage::connect;
use crate::storage::settings::Settings;
use crate::store_names::Account;

/// Where Tigris answers.
const TIGRIS: &str = "https://t3.storage.dev";

/// How a store is reached.
pub(super) struct Reached {
    pub(super) settings: Settings,
    /// What to say when it refuses.
    pub(super) advice: Option<String>,
    /// Whether the user said where it is, or everybody knows: then it may have the credentials that are on this machine.
    pub(super) trusted: bool,
}

impl Reached {
    /// Marks it as a store that only the repository names, for `why`: it gets no credentials unless the user gave some for it.
    fn distrust(&mut self, why: impl FnOnce() -> String) {
        self.trusted = false;
        if !has_credentials(&self.settings) && !self.settings.anonymous {
            self.settings.anonymous = true;
            self.advice = Some(format!("it was asked without credentials, since only the repository says {}", why()));
        }
    }
}

impl Virtuals {
    /// Returns how `address` is reached: as the user says, else as the container says.
    ///
    /// Errors: [`ErrorKind::VirtualNotAllowed`] if the container says something that no store can have.
    pub(super) fn settings(&self, address: &Address, container: Option<usize>) -> Result<Reached> {
        let settings = self.permissions.settings(address).or(self.common.clone());
        let mut reached = Reached { settings, advice: None, trusted: true };
        let store = container.and_then(|number| self.containers.get(number)).map(|(_, container)| &container.store);
        let store = store.filter(|store| is_for(&store.kind, address.scheme()));
        set_endpoint(&mut reached, address, store)?;
        let Some(store) = store else { return Ok(reached) };
        let settings = &mut reached.settings;
        settings.anonymous |= store.anonymous && !has_credentials(settings);
        if let (None, Some(region)) = (&settings.region, &store.region) {
            settings.region = Some(region.parse().context(|| wrong(address, "region"))?);
        }
        // One in the location is the user's own word: without it nothing there is allowed.
        if let (None, Some(account), false) = (&settings.account, &store.account, address.authority().contains('@')) {
            let account: Account = account.parse().context(|| wrong(address, "account"))?;
            settings.account = Some(account.clone());
            if connect::account_of_environment().as_ref() != Some(&account) {
                reached.distrust(|| {
                    format!(
                        "that it is in the account {account}: if that is right, say --virtual-option {}",
                        option(address, &format!("account={account}"))
                    )
                });
            }
        }
        Ok(reached)
    }
}

/// Takes the store's address over from the configuration, unless the user says where it is.
fn set_endpoint(reached: &mut Reached, address: &Address, store: Option<&ContainerStore>) -> Result<()> {
    let said = store.and_then(|store| store.endpoint_url.clone());
    let tigris = || (address.scheme() == Scheme::Tigris).then(|| TIGRIS.to_owned());
    let (None, Some(text)) = (&reached.settings.endpoint_url, said.or_else(tigris)) else { return Ok(()) };
    let endpoint: Endpoint = text.parse().context(|| wrong(address, "endpoint_url"))?;
    if endpoint.is_plain() && store.is_none_or(|store| !store.allow_http) {
        return Err(Error::new(
            ErrorKind::VirtualNotAllowed,
            format!(
                "{address}: the repository's configuration has it at {}, and says that nothing goes unencrypted: if it may, say \
                 --virtual-option {}",
                quoted(endpoint.as_str()),
                option(address, "endpoint_url=URL")
            ),
        ));
    }
    reached.distrust(|| {
        format!(
            "that the store is at {}: if it is, say --virtual-option {}, or give it credentials of its own with --virtual-option {}",
            quoted(endpoint.as_str()),
            option(address, "endpoint_url=URL"),
            option(address, "profile=NAME")
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

/// Whether there are credentials that the user gave for a store.
fn has_credentials(settings: &Settings) -> bool {
    let named = [&settings.access_key_id, &settings.profile, &settings.credentials];
    named.iter().any(|said| said.is_some()) || settings.secrets.has_credentials()
}

/// Whether a container's store of `kind` is one for locations of `scheme`.
fn is_for(kind: &str, scheme: Scheme) -> bool {
    match scheme {
        Scheme::S3 | Scheme::Tigris => matches!(kind, "s3" | "s3_compatible" | "tigris"),
        Scheme::Gs => kind == "gcs",
        Scheme::Az => kind == "azure",
        Scheme::File | Scheme::Http | Scheme::Https | Scheme::Container => false,
    }
}

/// Returns `PREFIX,SETTING`, quoted for a shell.
pub(super) fn option(address: &Address, setting: &str) -> String {
    shell::quoted(&format!("{},{setting}", address.parent().as_prefix().replace(',', "%2C")))
}

/// Returns what stands before the reason why a setting of the configuration cannot be used.
fn wrong(address: &Address, name: &str) -> String {
    format!(
        "{address}: the repository's configuration has a {name} that no store can have: give the right one with --virtual-option {}",
        option(address, &format!("{name}=..."))
    )
}
