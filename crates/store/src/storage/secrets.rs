//! Secrets of a store: keys, tokens, passwords and headers.
//!
//! Secrets come from the environment or from a file. Every user of the machine can read a command
//! line in `/proc/PID/cmdline`, and overwriting that memory afterwards comes too late. The options
//! that once took secrets are therefore known only to be refused, with the name of the variable
//! that takes the secret.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Secrets, by option name, with their environment variables.
const NAMES: [(&str, &str); 6] = [
    ("secret-access-key", "ICECHUNKFS_SECRET_ACCESS_KEY"),
    ("session-token", "ICECHUNKFS_SESSION_TOKEN"),
    ("account-key", "ICECHUNKFS_ACCOUNT_KEY"),
    ("sas-token", "ICECHUNKFS_SAS_TOKEN"),
    ("password", "ICECHUNKFS_PASSWORD"),
    ("header", "ICECHUNKFS_HEADER"),
];
/// Access key id: not secret, but a file may hold both halves of a key.
const KEY_ID: &str = "access-key-id";
/// Option that names the file of secrets.
const FILE: &str = "secrets";
/// Maximum size of a file of secrets, in bytes.
const MAX_FILE: u64 = 64 << 10;
/// Mode bits that give users other than the owner access to a file.
const OTHERS: u32 = 0o077;

/// Secrets of a store, which must not be shown to other users.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    /// s3: Access key id in the file, which belongs to the secret key there.
    pub access_key_id: Option<String>,
    /// s3: Secret access key.
    pub secret_access_key: Option<String>,
    /// s3: Session token of a temporary key.
    pub session_token: Option<String>,
    /// az: Key of the account.
    pub account_key: Option<String>,
    /// az: Shared access signature.
    pub sas_token: Option<String>,
    /// Password of the user name in the URL of a web server.
    pub password: Option<String>,
    /// Headers for every request, as `NAME: VALUE`.
    pub header: Vec<String>,
    /// File with further secrets.
    pub file: Option<PathBuf>,
}

impl Secrets {
    /// Returns true if `name`, in either spelling, is a secret.
    pub fn is_secret(name: &str) -> bool {
        variable(&name.replace('_', "-")).is_some()
    }

    /// Returns these secrets completed by those of the file, which take precedence.
    ///
    /// Errors: [`ErrorKind::PermissionDenied`] if users other than its owner may read or write the
    /// file.
    pub fn with_file(self) -> Result<Self> {
        let Some(path) = self.file.clone() else { return Ok(self) };
        Ok(read(&path)?.or(Secrets { file: None, ..self }))
    }

    /// Returns these secrets, completed by those of `other`.
    pub fn or(self, other: Secrets) -> Self {
        Secrets {
            access_key_id: self.access_key_id.or(other.access_key_id),
            secret_access_key: self.secret_access_key.or(other.secret_access_key),
            session_token: self.session_token.or(other.session_token),
            account_key: self.account_key.or(other.account_key),
            sas_token: self.sas_token.or(other.sas_token),
            password: self.password.or(other.password),
            header: if self.header.is_empty() { other.header } else { self.header },
            file: self.file.or(other.file),
        }
    }

    /// Returns true if there is a key or a token for a bucket.
    pub fn has_credentials(&self) -> bool {
        [&self.access_key_id, &self.secret_access_key, &self.account_key, &self.sas_token].iter().any(|it| it.is_some())
    }

    /// Returns the headers, split at the colon.
    pub fn headers(&self) -> Result<Vec<(&str, &str)>> {
        let split = self.header.iter().map(|header| header.split_once(':'));
        let parts: Option<Vec<_>> = split.map(|parts| parts.map(|(name, value)| (name.trim(), value.trim()))).collect();
        parts.ok_or_else(|| Error::invalid("a header must be `NAME: VALUE`; one has no colon"))
    }

    /// Sets the secret `name`, in either spelling. Returns false if there is no secret of that
    /// name.
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        let place = match name.replace('_', "-").as_str() {
            KEY_ID => &mut self.access_key_id,
            "secret-access-key" => &mut self.secret_access_key,
            "session-token" => &mut self.session_token,
            "account-key" => &mut self.account_key,
            "sas-token" => &mut self.sas_token,
            "password" => &mut self.password,
            "header" => {
                self.header.push(value.to_owned());
                return true;
            }
            _ => return false,
        };
        *place = Some(value.to_owned());
        true
    }

    /// Returns the error for a secret `name` on a command line.
    pub fn command_line_error(name: &str) -> Error {
        let key = name.replace('-', "_");
        let name = name.replace('_', "-");
        Error::invalid(format!(
            "{name}: a secret on a command line can be read by every user of this machine: set {}, or `{key} = ...` in \
             the file of --secrets FILE (-o secrets=FILE)",
            variable(&name).unwrap_or_default()
        ))
    }
}

/// Reads a file of lines `NAME = VALUE`.
fn read(path: &Path) -> Result<Secrets> {
    let what = format!("--secrets {}", path.display());
    let mut file = File::open(path).map_err(|e| Error::io(&what, e))?;
    let about = file.metadata().map_err(|e| Error::io(&what, e))?;
    let user = rustix::process::geteuid().as_raw();
    if about.mode() & OTHERS != 0 || (about.uid() != user && about.uid() != 0) {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            format!("{what}: other users may read or change it: run chmod 600 on it"),
        ));
    }
    let mut text = String::new();
    let count = file.by_ref().take(MAX_FILE + 1).read_to_string(&mut text);
    if count.map_err(|e| Error::io(&what, e))? as u64 > MAX_FILE {
        return Err(Error::invalid(format!("{what}: it has more than {MAX_FILE} bytes")));
    }
    let mut secrets = Secrets::default();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line itself may be a secret.
        let parts = line.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        if !parts.is_some_and(|(name, value)| secrets.set(name, value)) {
            return Err(Error::invalid(format!(
                "{what}: line {} is not `NAME = VALUE` with one of the names {KEY_ID}, {}",
                n + 1,
                NAMES.map(|(name, _)| name).join(", ")
            )));
        }
    }
    Ok(secrets)
}

fn variable(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, variable)| *variable)
}

impl Args for Secrets {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new(FILE).long(FILE).value_name("FILE").env("ICECHUNKFS_SECRETS").hide_env(true).help(
            "Read secrets from FILE, which must be yours alone: lines `NAME = VALUE` with access_key_id, \
             secret_access_key, session_token (s3), account_key, sas_token (az), password (https) or header (`NAME: \
             VALUE`, for every request; repeatable). Each is also a variable, such as ICECHUNKFS_HEADER. A command \
             line must not contain secrets",
        );
        let hidden = |name| Arg::new(name).long(name).hide(true).hide_env(true).allow_hyphen_values(true);
        command.arg(file).args(NAMES.map(|(name, variable)| hidden(name).env(variable)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Secrets::augment_args(command)
    }
}

impl FromArgMatches for Secrets {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let mut secrets = Secrets::default();
        for (name, _) in NAMES {
            if matches.value_source(name) == Some(ValueSource::CommandLine) {
                let message = format!("--{}", Secrets::command_line_error(name));
                return Err(clap::Error::raw(clap::error::ErrorKind::InvalidValue, message));
            }
            let Some(value) = matches.get_one::<String>(name).filter(|value| !value.is_empty()) else { continue };
            // Headers are separated by newlines.
            let lines = if name == "header" { value.lines().collect() } else { vec![value.as_str()] };
            for line in lines.into_iter().filter(|line| !line.trim().is_empty()) {
                secrets.set(name, line);
            }
        }
        let file = matches.get_one::<String>(FILE).filter(|file| !file.is_empty());
        // A daemon leaves the directory that a relative path refers to.
        secrets.file = file.map(|file| std::path::absolute(file).unwrap_or_else(|_| file.into()));
        Ok(secrets)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Secrets::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Omits the secrets, so that no log contains them.
impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").field("file", &self.file).finish_non_exhaustive()
    }
}
