//! Profiles of `~/.aws/config` and `~/.aws/credentials`, which the library does not support.
//!
//! Keys come from the files, or from the output of a program (`credential_process`). The files are
//! read again every [`LOOK_AGAIN`], since other tools renew their keys, and the program is run
//! again before its keys expire. Roles and single sign-on need further services, which
//! [`super::sign_on`] asks; a program without that feature describes the alternative.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;
use serde::Deserialize;

use super::variable;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Time for which keys of a file are used before the file is read again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Time before their expiry at which keys are renewed.
pub(super) const AHEAD: Duration = Duration::from_secs(300);
/// Time limit of a `credential_process`, which may ask a service, but not a person.
const PROCESS: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
pub(super) struct Profile {
    name: String,
    key_id: Option<String>,
    secret: Option<String>,
    token: Option<String>,
    process: Option<String>,
    /// Description of an unsupported way in which the profile gets its keys.
    other: Option<&'static str>,
    pub(super) region: Option<String>,
    pub(super) endpoint_url: Option<String>,
}

impl Profile {
    pub(super) fn has_credentials(&self) -> bool {
        self.key_id.is_some() || self.process.is_some() || self.other.is_some()
    }

    pub(super) fn without_credentials(self) -> Self {
        Profile { key_id: None, secret: None, token: None, process: None, other: None, ..self }
    }
}

/// Reads profile `name`. Returns `None` if neither file has it.
pub(super) fn read(name: &str) -> Result<Option<Profile>> {
    let mut found = None;
    let files = [("AWS_CONFIG_FILE", "config", true), ("AWS_SHARED_CREDENTIALS_FILE", "credentials", false)];
    for (variable_name, file, is_config) in files {
        let path = variable(variable_name).map(PathBuf::from);
        let Some(path) = path.or_else(|| Some(std::env::home_dir()?.join(".aws").join(file))) else { continue };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => continue,
            Err(e) => return Err(Error::io(path.display().to_string(), e)),
        };
        let section = if is_config && name != "default" { format!("profile {name}") } else { name.to_owned() };
        if let Some(values) = sections(&text).remove(&section) {
            let profile = found.get_or_insert_with(|| Profile { name: name.to_owned(), ..Profile::default() });
            take(profile, values);
        }
    }
    Ok(found)
}

pub(super) fn missing(name: &str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("there is no profile `{name}` in ~/.aws/config or ~/.aws/credentials: check --profile and AWS_PROFILE"),
    )
}

/// Applies `values` to `profile`. The config file is read first, so that keys of the credentials
/// file take precedence.
fn take(profile: &mut Profile, values: HashMap<String, String>) {
    for (key, value) in values {
        let place = match key.as_str() {
            "aws_access_key_id" => &mut profile.key_id,
            "aws_secret_access_key" => &mut profile.secret,
            "aws_session_token" => &mut profile.token,
            "credential_process" => &mut profile.process,
            "region" => &mut profile.region,
            "endpoint_url" => &mut profile.endpoint_url,
            "role_arn" => {
                profile.other = Some("assumes a role (role_arn)");
                continue;
            }
            "sso_session" | "sso_start_url" => {
                profile.other = Some("signs in with AWS IAM Identity Center (sso)");
                continue;
            }
            _ => continue,
        };
        *place = Some(value);
    }
}

/// Parses the sections of a file, with their settings. Indented lines belong to nested settings,
/// which are ignored.
fn sections(text: &str) -> HashMap<String, HashMap<String, String>> {
    let mut sections: HashMap<String, HashMap<String, String>> = HashMap::new();
    let mut current = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            sections.entry(name.clone()).or_default();
            current = Some(name);
        } else if let (Some(section), Some((key, value)), false) =
            (&current, trimmed.split_once('='), line.starts_with([' ', '\t']))
        {
            // A comment begins after a space.
            let value = value.split(" #").next().unwrap_or_default().split(" ;").next().unwrap_or_default();
            let values = sections.entry(section.clone()).or_default();
            values.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    sections
}

/// Keys of a profile, renewed when necessary.
pub(super) struct ProfileCredentials {
    name: String,
    kept: Mutex<Option<Kept>>,
    #[cfg(feature = "aws-sign-on")]
    sign_on: super::sign_on::SignOn,
    /// Lock for one renewal at a time: a program that prints keys may ask a service for them.
    turn: tokio::sync::Mutex<()>,
}

/// Keys, and the time until which they are used.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) credential: Arc<AwsCredential>,
    pub(super) until: SystemTime,
}

impl std::fmt::Debug for ProfileCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProfileCredentials").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ProfileCredentials {
    /// Creates the provider for `profile`, which must name a source of keys.
    pub(super) fn new(profile: Profile) -> Result<Self> {
        check(&profile)?;
        Ok(ProfileCredentials {
            #[cfg(feature = "aws-sign-on")]
            sign_on: super::sign_on::SignOn::new(&profile)?,
            name: profile.name,
            kept: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    fn current(&self) -> Option<Arc<AwsCredential>> {
        let kept = self.kept.lock();
        kept.as_ref().filter(|kept| kept.until > SystemTime::now()).map(|kept| Arc::clone(&kept.credential))
    }

    async fn renew(&self) -> Result<Kept> {
        let profile = read(&self.name)?.ok_or_else(|| missing(&self.name))?;
        check(&profile)?;
        if let Some(command) = &profile.process {
            return run(command).await;
        }
        #[cfg(feature = "aws-sign-on")]
        if profile.other.is_some() {
            return self.sign_on.renew(&self.name).await;
        }
        let Profile { key_id: Some(key_id), secret: Some(secret_key), token, .. } = profile else {
            return Err(missing_key(&self.name));
        };
        let credential = Arc::new(AwsCredential { key_id, secret_key, token });
        Ok(Kept { credential, until: SystemTime::now() + LOOK_AGAIN })
    }
}

#[async_trait]
impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let _turn = self.turn.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let kept = self.renew().await.map_err(|e| object_store::Error::Unauthenticated {
            path: format!("profile {}", self.name),
            source: Box::new(e),
        })?;
        let credential = Arc::clone(&kept.credential);
        *self.kept.lock() = Some(kept);
        Ok(credential)
    }
}

fn check(profile: &Profile) -> Result<()> {
    let name = &profile.name;
    if profile.process.is_some() {
        return Ok(());
    }
    // A role counts before the keys beside it, which may have other rights.
    match profile.other {
        Some(_) if cfg!(feature = "aws-sign-on") => Ok(()),
        Some(how) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "profile `{name}` {how}, which needs the AWS CLI: use another profile with the line \
                 `credential_process = aws configure export-credentials --profile {name}`"
            ),
        )),
        None if profile.key_id.is_some() && profile.secret.is_some() => Ok(()),
        None => Err(missing_key(name)),
    }
}

fn missing_key(name: &str) -> Error {
    Error::invalid(format!(
        "profile `{name}` does not have keys: add aws_access_key_id and aws_secret_access_key, or credential_process"
    ))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Runs a `credential_process` and parses its output.
async fn run(command: &str) -> Result<Kept> {
    let failed =
        |why: String| Error::new(ErrorKind::PermissionDenied, format!("credential_process `{command}`: {why}"));
    let child = tokio::process::Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PROCESS, child).await;
    let output = output.map_err(|_| failed(format!("it did not end within {} s", PROCESS.as_secs())))?;
    let output = output.map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("{}: {}", output.status, said.lines().last().unwrap_or("it said nothing"))));
    }
    // The output is secret, even if it is wrong.
    let printed: Printed =
        serde_json::from_slice(&output.stdout).map_err(|_| failed("it did not print keys as JSON".to_owned()))?;
    if printed.version != 1 {
        return Err(failed(format!("it printed version {}, not 1", printed.version)));
    }
    let until = match &printed.expiration {
        Some(text) => {
            let time: jiff::Timestamp = text
                .parse()
                .map_err(|_| failed(format!("it states that the keys expire at `{text}`, which is not a time")))?;
            SystemTime::from(time).checked_sub(AHEAD).unwrap_or(SystemTime::UNIX_EPOCH)
        }
        None => SystemTime::now() + Duration::from_secs(3600),
    };
    let credential = AwsCredential {
        key_id: printed.access_key_id,
        secret_key: printed.secret_access_key,
        token: printed.session_token,
    };
    // Keys that are due for renewal at once are used for 10 s all the same.
    Ok(Kept { credential: Arc::new(credential), until: until.max(SystemTime::now() + Duration::from_secs(10)) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn files_have_sections_of_settings() {
        let text = "# comment\n[default]\nregion = eu-west-1 # here\naws_access_key_id=AKIA\n\n[profile  big  one]\n\
                    s3 =\n  max_concurrent_requests = 3\nendpoint_url = http://x=y\n[broken\nno equals sign\n";
        let sections = sections(text);
        assert_eq!(sections["default"]["region"], "eu-west-1");
        assert_eq!(sections["default"]["aws_access_key_id"], "AKIA");
        assert_eq!(sections["profile big one"]["endpoint_url"], "http://x=y");
        assert!(!sections["profile big one"].contains_key("max_concurrent_requests"));
    }

    #[test]
    fn what_cannot_be_done_is_told() {
        let profile = |values: &[(&str, &str)]| {
            let mut profile = Profile { name: "p".into(), ..Profile::default() };
            take(&mut profile, values.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
            check(&profile)
        };
        assert!(profile(&[("aws_access_key_id", "a"), ("aws_secret_access_key", "b")]).is_ok());
        assert!(profile(&[("aws_access_key_id", "a")]).unwrap_err().to_string().contains("aws_secret_access_key"));
        let role = ("role_arn", "r");
        for values in [&[role][..], &[role, ("aws_access_key_id", "a"), ("aws_secret_access_key", "b")]] {
            let role = profile(values);
            assert!(if cfg!(feature = "aws-sign-on") {
                role.is_ok()
            } else {
                role.unwrap_err().to_string().contains("credential_process")
            });
        }
    }

    #[tokio::test]
    async fn programs_print_keys() {
        let keys =
            r#"echo '{"Version":1,"AccessKeyId":"a","SecretAccessKey":"b","Expiration":"2100-01-01T00:00:00Z"}'"#;
        let kept = run(keys).await.unwrap();
        assert_eq!(kept.credential.key_id, "a");
        assert!(kept.until > SystemTime::now() + Duration::from_secs(3600));
        let failed = run("echo 'no login' >&2; exit 3").await.map(drop).unwrap_err();
        assert!(failed.to_string().contains("no login"), "{failed}");
        let secret = run("echo secret").await.map(drop).unwrap_err();
        assert!(!secret.to_string().contains(": secret"), "{secret}");
    }
}
