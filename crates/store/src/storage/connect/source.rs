//! Description of where the credentials of a store come from, in the order in which [`super::s3`],
//! [`super::gcs`] and [`super::azure`] look for them. It contains no secret.

use super::super::location::StorePlace;
use super::super::settings::Settings;
use super::{profile, variable};
use icechunkfs_base::error::Result;

/// Sources of a cluster, by their variables.
const CLUSTER: [(&str, &str); 3] = [
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "the web identity of this container"),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "the credentials of this container"),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "the credentials of this container"),
];
/// Variables of keys for Azure.
const AZURE_KEYS: [&str; 4] = [
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_KEY",
];
/// Variables of keys for Google.
const GOOGLE_KEYS: [&str; 4] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
];

/// Describes the source of the credentials for `place`.
pub(in crate::storage) fn credential_source(place: &StorePlace, settings: &Settings) -> Result<String> {
    let settings = settings.clone().with_secrets_of_file()?;
    if settings.anonymous {
        return Ok("none (--anonymous)".to_owned());
    }
    match place {
        StorePlace::S3(_) => s3(&settings),
        StorePlace::Gcs(_) => Ok(gcs(&settings)),
        StorePlace::Azure(..) => Ok(azure(&settings)),
        StorePlace::Web(_) if settings.secrets.password.is_some() => {
            Ok("the password of ICECHUNKFS_PASSWORD".to_owned())
        }
        StorePlace::Web(_) | StorePlace::Local(_) => Ok("none".to_owned()),
    }
}

fn s3(settings: &Settings) -> Result<String> {
    if let Some(id) = &settings.access_key_id {
        return Ok(format!(
            "the access key {} of --access-key-id, --secrets or ICECHUNKFS_ACCESS_KEY_ID",
            beginning(id)
        ));
    }
    if let Some(name) = &settings.profile {
        return Ok(format!("profile `{name}` of --profile"));
    }
    if let Some(id) = variable("AWS_ACCESS_KEY_ID") {
        let token =
            if variable("AWS_SESSION_TOKEN").is_some() { ", which is temporary (AWS_SESSION_TOKEN)" } else { "" };
        return Ok(format!("the access key {} of AWS_ACCESS_KEY_ID{token}", beginning(&id)));
    }
    if let Some((name, what)) = CLUSTER.iter().find(|(name, _)| variable(name).is_some()) {
        return Ok(format!("{what} ({name})"));
    }
    let (name, by) = match variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE")) {
        Some(name) => (name, " of AWS_PROFILE"),
        None => ("default".to_owned(), ""),
    };
    Ok(match profile::read(&name)? {
        Some(profile) if profile.has_credentials() => format!("profile `{name}`{by}"),
        _ => "the metadata service of this machine, since nothing else is set".to_owned(),
    })
}

fn gcs(settings: &Settings) -> String {
    if let Some(path) = &settings.credentials {
        return format!("{path} (--credentials)");
    }
    if let Some(name) = GOOGLE_KEYS.iter().find(|name| variable(name).is_some()) {
        return format!("the variable {name}");
    }
    let file = std::env::home_dir().map(|home| home.join(".config/gcloud/application_default_credentials.json"));
    match file.filter(|file| file.exists()) {
        Some(file) => format!("{} (gcloud auth application-default login)", file.display()),
        None => "the metadata service of this machine, since nothing else is set".to_owned(),
    }
}

fn azure(settings: &Settings) -> String {
    if settings.secrets.account_key.is_some() {
        return "the account key of ICECHUNKFS_ACCOUNT_KEY or --secrets".to_owned();
    }
    if settings.secrets.sas_token.is_some() {
        return "the shared access signature of ICECHUNKFS_SAS_TOKEN or --secrets".to_owned();
    }
    if let Some(name) = AZURE_KEYS.iter().find(|name| variable(name).is_some()) {
        return format!("the variable {name}");
    }
    if variable("AZURE_CLIENT_SECRET").is_some() || variable("AZURE_FEDERATED_TOKEN_FILE").is_some() {
        return "the service principal or workload identity of AZURE_CLIENT_ID".to_owned();
    }
    if variable("AZURE_USE_AZURE_CLI").is_some() {
        return "the Azure CLI (AZURE_USE_AZURE_CLI)".to_owned();
    }
    "the managed identity of this machine, since nothing else is set".to_owned()
}

/// Returns the first letters of a key id, which suffice to recognize it.
fn beginning(id: &str) -> String {
    let shown: String = id.chars().take(4).collect();
    format!("{shown}...")
}
