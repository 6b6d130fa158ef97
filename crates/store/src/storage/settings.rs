//! Settings for reaching a repository that is not on this machine.
//!
//! Each setting is a command line option, by the same name an option of `-o` (with `_` for `-`),
//! and an environment variable (`ICECHUNKFS_REGION`). Each kind of store also knows the variables
//! and files of the store's tools: see [`super::connect`]. The command line takes precedence.

use std::time::Duration;

use clap::builder::{FalseyValueParser, Resettable};
use clap::{Args, Command, FromArgMatches};

use super::secrets::Secrets;
use icechunkfs_base::endpoint::Endpoint;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::size;
use icechunkfs_base::store_names::{Account, Region};

/// Default time budget of one operation.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Default number of concurrent requests.
const DEFAULT_REQUESTS: u16 = 64;
/// Largest accepted number of concurrent requests: each may have a connection, and a process has
/// few thousand descriptors.
pub(super) const MAX_REQUESTS: u16 = 4096;

/// Errors for rates of 0.
const NO_UPLOAD: &str = "--upload-limit must be greater than 0: omit it for no limit";
const NO_TRANSFER: &str = "--min-rate must be greater than 0: a transfer that stands still must end";

/// Settings for reaching an object store.
#[derive(Clone, Default, Args)]
#[command(next_help_heading = "Object stores (each is also a variable ICECHUNKFS_...)")]
pub struct Settings {
    /// s3: Region of the bucket [also: AWS_REGION, AWS_DEFAULT_REGION, the profile; default:
    /// detected].
    #[arg(long, value_name = "NAME", env = "ICECHUNKFS_REGION", hide_env = true)]
    pub region: Option<Region>,
    /// s3, gs, az: Send requests to this endpoint [also: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL,
    /// STORAGE_EMULATOR_HOST, AZURE_STORAGE_ENDPOINT].
    #[arg(long, value_name = "URL", env = "ICECHUNKFS_ENDPOINT_URL", hide_env = true)]
    pub endpoint_url: Option<String>,
    /// s3: Use this profile of ~/.aws/credentials and ~/.aws/config [also: AWS_PROFILE].
    #[arg(long, value_name = "NAME", env = "ICECHUNKFS_PROFILE", hide_env = true)]
    pub profile: Option<String>,
    /// s3, gs, az: Send no credentials.
    #[arg(long, alias = "no-sign-request", value_parser = FalseyValueParser::new(), env = "ICECHUNKFS_ANONYMOUS", hide_env = true)]
    pub anonymous: bool,
    /// s3: Pay for the requests.
    #[arg(long, value_parser = FalseyValueParser::new(), env = "ICECHUNKFS_REQUESTER_PAYS", hide_env = true)]
    pub requester_pays: bool,
    /// s3: Address a bucket as `https://HOST/BUCKET` (path) or `https://BUCKET.HOST` (virtual).
    #[arg(long, value_name = "STYLE", value_parser = ["path", "virtual"], env = "ICECHUNKFS_ADDRESSING", hide_env = true)]
    pub addressing: Option<String>,
    /// s3: Access key id [also: AWS_ACCESS_KEY_ID].
    #[arg(long, value_name = "ID", env = "ICECHUNKFS_ACCESS_KEY_ID", hide_env = true)]
    pub access_key_id: Option<String>,
    /// gs: Read credentials from this file, of a service account or of `gcloud` [also:
    /// GOOGLE_APPLICATION_CREDENTIALS].
    #[arg(long, value_name = "FILE", env = "ICECHUNKFS_CREDENTIALS", hide_env = true)]
    pub credentials: Option<String>,
    /// az: Storage account [also: AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_CONNECTION_STRING].
    #[arg(long, value_name = "NAME", env = "ICECHUNKFS_ACCOUNT", hide_env = true)]
    pub account: Option<Account>,
    /// Secrets of the store.
    #[command(flatten)]
    pub secrets: Secrets,
    /// Trust the certificates in this file too [also: AWS_CA_BUNDLE].
    #[arg(long, value_name = "FILE", env = "ICECHUNKFS_CA_BUNDLE", hide_env = true)]
    pub ca_bundle: Option<String>,
    /// Time limit of one operation with its retries; bytes that move at --min-rate extend it
    /// [default: 60].
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ICECHUNKFS_TIMEOUT", hide_env = true)]
    pub timeout: Option<Duration>,
    /// Stop a transfer that moves fewer bytes per second than this over --timeout; parallel
    /// transfers share the rate [default: 64K].
    #[arg(long, value_name = "SIZE", value_parser = positive(NO_TRANSFER), env = "ICECHUNKFS_MIN_RATE", hide_env = true)]
    pub min_rate: Option<u64>,
    /// Refuse a listing of more objects [default: as many as half of --memory holds, or a quarter
    /// of this machine's memory].
    #[arg(long, value_name = "N", env = "ICECHUNKFS_MAX_LISTED", hide_env = true)]
    pub max_listed: Option<u64>,
    /// Send at most this many requests at a time [default: the repository's
    /// max_concurrent_requests, or 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_REQUESTS)), env = "ICECHUNKFS_MAX_REQUESTS", hide_env = true)]
    pub max_requests: Option<u16>,
    /// Cache bytes from the network in this directory, for later mounts and other programs.
    #[arg(long, value_name = "DIR", env = "ICECHUNKFS_CACHE", hide_env = true)]
    pub cache: Option<String>,
    /// Limit the size of the cache, such as 100G [default: 10G]. A twentieth of its disk, at most 4
    /// GiB, always stays free.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, env = "ICECHUNKFS_CACHE_SIZE", hide_env = true)]
    pub cache_size: Option<u64>,
    /// Contact no store, and show the cached part. `icechunkfs prefetch` brings chunks into the
    /// cache. The first commit or refresh of a writable mount asks the store, and the mount is then
    /// online.
    #[arg(long, value_parser = FalseyValueParser::new(), env = "ICECHUNKFS_OFFLINE", hide_env = true)]
    pub offline: bool,
    /// Upload at most this many bytes per second, such as 10M.
    #[arg(long, value_name = "SIZE", value_parser = positive(NO_UPLOAD), env = "ICECHUNKFS_UPLOAD_LIMIT", hide_env = true)]
    pub upload_limit: Option<u64>,
    /// Commit to a store that cannot compare before it writes, or to a file system whose locks
    /// other machines may not see. If two programs commit at the same time, one commit is lost.
    #[arg(long, value_parser = FalseyValueParser::new(), env = "ICECHUNKFS_UNSAFE_SINGLE_WRITER", hide_env = true)]
    pub unsafe_single_writer: bool,
}

/// Source of settings given as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Command line, which every user of the machine can read.
    CommandLine,
    /// Environment variable.
    Environment,
}

impl Settings {
    /// Returns the time budget of one operation.
    pub fn budget(&self) -> Duration {
        self.timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// Returns the maximum number of concurrent requests.
    pub fn requests(&self) -> u16 {
        self.max_requests.unwrap_or(DEFAULT_REQUESTS)
    }

    /// Returns the endpoint of the store, if it is set.
    ///
    /// Errors: [`ErrorKind::InvalidInput`](icechunkfs_base::error::ErrorKind::InvalidInput) if the
    /// endpoint is not valid.
    pub fn endpoint(&self) -> Result<Option<Endpoint>> {
        self.endpoint_url.as_deref().map(str::parse).transpose()
    }

    /// Returns true if there is a setting `name`, in either spelling.
    pub fn is_setting(name: &str) -> bool {
        let name = name.replace('_', "-");
        Settings::augment_args(Command::new("")).get_arguments().any(|argument| argument.get_long() == Some(&name))
    }

    /// Parses `words` of the form `name` or `name=value`, in either spelling, without settings of
    /// the environment. Secrets are accepted only from [`Source::Environment`].
    pub fn parse(words: &[String], source: Source) -> Result<Self> {
        let mut secrets = Secrets::default();
        let mut spelled = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            if Secrets::is_secret(name) {
                if source == Source::CommandLine {
                    return Err(Secrets::command_line_error(name));
                }
                secrets.set(name, value.unwrap_or_default());
                continue;
            }
            let name = name.replace('_', "-");
            spelled.push(value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")));
        }
        let command = Settings::augment_args(Command::new("").no_binary_name(true).disable_help_flag(true));
        let command = command.mut_args(|argument| argument.env(Resettable::Reset));
        let found = command.try_get_matches_from(spelled).and_then(|matches| Settings::from_arg_matches(&matches));
        // The invalid part may be a misplaced secret: the error repeats only the names.
        let names = words.iter().filter_map(|word| word.split('=').next()).collect::<Vec<_>>().join(", ");
        let mut found = found.map_err(|error| Error::invalid(format!("the options {names}: {}", error.kind())))?;
        found.endpoint()?;
        found.secrets = secrets.or(found.secrets);
        Ok(found)
    }

    /// Returns the options that say which store it is and who asks, as [`Settings::parse`] takes
    /// them: without secrets, and without what is of this machine or of one command (limits,
    /// caches).
    pub fn of_access(&self) -> Vec<String> {
        let absolute = |file: &String| Some(std::path::absolute(file).ok()?.to_str()?.to_owned());
        let values = [
            ("region", self.region.as_ref().map(ToString::to_string)),
            ("endpoint-url", self.endpoint_url.clone()),
            ("profile", self.profile.clone()),
            ("addressing", self.addressing.clone()),
            ("credentials", self.credentials.as_ref().and_then(absolute)),
            ("account", self.account.as_ref().map(|account| account.as_str().to_owned())),
            ("ca-bundle", self.ca_bundle.as_ref().and_then(absolute)),
        ];
        let flags = [("anonymous", self.anonymous), ("requester-pays", self.requester_pays)];
        let values = values.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        values.chain(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.to_owned())).collect()
    }

    /// Returns these settings, completed by those of `other`, of which who asks is left out if that
    /// is said here: a flag cannot be taken back.
    pub fn or_of_access(self, other: Settings) -> Self {
        let is_said = self.anonymous
            || self.profile.is_some()
            || self.credentials.is_some()
            || self.access_key_id.is_some()
            || self.secrets.has_credentials();
        if !is_said {
            return self.or(other);
        }
        self.or(Settings { anonymous: false, profile: None, credentials: None, access_key_id: None, ..other })
    }

    /// Returns these settings with the secrets of the file that they name.
    pub fn with_secrets_of_file(mut self) -> Result<Self> {
        self.secrets = self.secrets.with_file()?;
        self.access_key_id = self.secrets.access_key_id.take().or(self.access_key_id);
        Ok(self)
    }

    /// Returns these settings, completed by those of `other`.
    pub fn or(self, other: Settings) -> Self {
        Settings {
            region: self.region.or(other.region),
            endpoint_url: self.endpoint_url.or(other.endpoint_url),
            profile: self.profile.or(other.profile),
            anonymous: self.anonymous || other.anonymous,
            requester_pays: self.requester_pays || other.requester_pays,
            addressing: self.addressing.or(other.addressing),
            access_key_id: self.access_key_id.or(other.access_key_id),
            credentials: self.credentials.or(other.credentials),
            account: self.account.or(other.account),
            secrets: self.secrets.or(other.secrets),
            ca_bundle: self.ca_bundle.or(other.ca_bundle),
            timeout: self.timeout.or(other.timeout),
            min_rate: self.min_rate.or(other.min_rate),
            max_listed: self.max_listed.or(other.max_listed),
            max_requests: self.max_requests.or(other.max_requests),
            cache: self.cache.or(other.cache),
            cache_size: self.cache_size.or(other.cache_size),
            offline: self.offline || other.offline,
            upload_limit: self.upload_limit.or(other.upload_limit),
            unsafe_single_writer: self.unsafe_single_writer || other.unsafe_single_writer,
        }
    }
}

/// Omits secrets, so that no log contains them.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("region", &self.region)
            .field("profile", &self.profile)
            .field("anonymous", &self.anonymous)
            .field("account", &self.account)
            .finish_non_exhaustive()
    }
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds: f64 =
        text.parse().map_err(|_| Error::invalid(format!("`{text}` is not a valid number of seconds")))?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| Error::invalid(format!("`{text}`: a timeout must be positive and finite")))
}

/// Returns a parser of a rate, with the error for 0.
fn positive(zero: &'static str) -> impl Fn(&str) -> Result<u64> + Clone {
    move |text| match size::parse(text)? {
        0 => Err(Error::invalid(zero)),
        rate => Ok(rate),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn words(words: &[&str]) -> Result<Settings> {
        Settings::parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>(), Source::Environment)
    }

    #[test]
    fn options_are_settings_in_either_spelling() {
        let settings = words(&[
            "endpoint_url=http://h:1/=x",
            "anonymous",
            "header=a: b",
            "header=c: d",
            "timeout=2.5",
            "upload_limit=10M",
        ])
        .unwrap();
        assert_eq!(settings.endpoint_url.as_deref(), Some("http://h:1/=x"));
        assert!(settings.anonymous && !settings.requester_pays);
        assert_eq!(settings.secrets.headers().unwrap(), [("a", "b"), ("c", "d")]);
        assert_eq!((settings.budget(), settings.upload_limit), (Duration::from_millis(2500), Some(10 << 20)));
        assert!(words(&["upload_limit=0"]).is_err() && words(&["upload_limit=fast"]).is_err());
        assert!(Settings::is_setting("endpoint_url") && Settings::is_setting("region") && !Settings::is_setting("ro"));
    }

    #[test]
    fn secrets_are_not_repeated() {
        let wrong = words(&["account_key=hidden", "timeout=never"]).map(drop).unwrap_err().to_string();
        assert!(wrong.contains("account_key") && !wrong.contains("hidden"), "{wrong}");
        let settings = words(&["secret_access_key=hidden", "header=x: hidden", "profile=shown"]).unwrap();
        let shown = format!("{settings:?}");
        assert!(shown.contains("shown") && !shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn what_is_remembered_of_a_store_has_no_secrets_and_reaches_it_again() {
        let given = words(&[
            "region=eu-west-1",
            "endpoint-url=http://h:1",
            "profile=p",
            "anonymous",
            "account=name",
            "ca-bundle=/certificates",
            "credentials=/file",
            "addressing=path",
            "requester-pays",
            "secret-access-key=hidden",
            "access-key-id=hidden",
            "header=x: hidden",
            "timeout=3",
            "cache=/cache",
        ])
        .unwrap();
        let remembered = given.of_access();
        assert!(
            !remembered.iter().any(|option| option.contains("hidden") || option.contains("cache=")),
            "{remembered:?}"
        );
        let again = Settings::parse(&remembered, Source::CommandLine).unwrap();
        assert_eq!((again.of_access(), again.timeout), (remembered, None));
        assert_eq!(Settings::default().of_access(), [""; 0]);
    }

    #[test]
    fn who_asks_is_said_as_a_whole() {
        let remembered = || words(&["anonymous", "region=r", "profile=old"]).unwrap();
        let with = |given: &[&str]| words(given).unwrap().or_of_access(remembered());
        assert!(with(&[]).anonymous && with(&["endpoint-url=http://h:1"]).anonymous);
        let given = with(&["profile=new"]);
        assert_eq!((given.anonymous, given.profile.as_deref(), given.region.is_some()), (false, Some("new"), true));
        assert!(!with(&["secret-access-key=x"]).anonymous);
    }

    #[test]
    fn what_is_said_first_counts() {
        let settings = words(&["region=a"]).unwrap().or(words(&["region=b", "profile=p"]).unwrap());
        let region = settings.region.map(|region| region.to_string());
        assert_eq!((region.as_deref(), settings.profile.as_deref()), (Some("a"), Some("p")));
    }
}
