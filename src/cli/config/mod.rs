//! `icechunkfs config`: the configuration stored in a repository, which applies to all programs
//! that open it, and its properties.

mod properties;

use std::io::Read;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tracing::warn;

use self::properties::{FlagsArgs, MetadataArgs, StatusArgs};
use super::{open, print, print_json, table};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::times::system_clock;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::config_edit::{self, ConfigChange, Setting, problems};
use icechunkfs_store::storage::settings::Settings;

/// Maximum bytes of a value on standard input. A configuration has some thousand.
const MAX_INPUT: u64 = 1 << 20;

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The repository: a path or a URL.
    repo: String,
    #[command(subcommand)]
    action: ConfigAction,
}

/// Actions on a configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigAction {
    /// Show the settings.
    Get(GetArgs),
    /// Set one setting. Values that readers would reject are refused.
    ///
    /// A virtual chunk container is named by its URL prefix or by its name, and a new one is set as
    /// a whole: set virtual_chunk_containers.ocean '{"url_prefix": "s3://ocean/", "store": {"s3":
    /// {"region": "us-east-1"}}}'
    Set(SetArgs),
    /// Unset one setting: its default applies again.
    Unset(UnsetArgs),
    /// Show whether the repository takes writes, or change that (version 2).
    Status(StatusArgs),
    /// Show the metadata of the repository, or change it (version 2).
    Metadata(MetadataArgs),
    /// Show what the repository allows, or change that (version 2).
    Flags(FlagsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// A setting, such as manifest.splitting or virtual_chunk_containers.NAME.url_prefix, with
    /// double quotes around a part that contains a dot [default: all that are set].
    key: Option<String>,
    /// Show all settings, with their defaults.
    #[arg(long, conflicts_with = "key")]
    all: bool,
    /// Print the value as JSON, null if it is not set; without KEY the stored configuration; with
    /// --all a list of {"key", "value", "default", "kind"}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Settings,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// The setting. `get --all` lists them.
    key: String,
    /// The value: JSON, otherwise text; - for standard input.
    #[arg(allow_hyphen_values = true)]
    value: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UnsetArgs {
    /// The setting.
    key: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of every change.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print {"key", "old", "new"}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Settings,
}

pub(crate) fn run(arguments: &ConfigArgs) -> Result<()> {
    let repo = &arguments.repo;
    open::run(async {
        match &arguments.action {
            ConfigAction::Get(get) => show(repo, get).await,
            ConfigAction::Set(SetArgs { key, value, output }) => {
                let value = if value == "-" { input()? } else { value.clone() };
                change(repo, key, output, |stored| config_edit::set(stored.members(), key, &value)).await
            }
            ConfigAction::Unset(UnsetArgs { key, output }) => {
                change(repo, key, output, |stored| config_edit::unset(stored.members(), key)).await
            }
            ConfigAction::Status(arguments) => properties::status(repo, arguments).await,
            ConfigAction::Metadata(arguments) => properties::metadata(repo, arguments).await,
            ConfigAction::Flags(arguments) => properties::flags(repo, arguments).await,
        }
    })
}

fn input() -> Result<String> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_INPUT + 1).read_to_string(&mut text);
    let count = read.map_err(|e| Error::io("standard input", e))?;
    if count as u64 > MAX_INPUT {
        let message = format!("standard input has more than {MAX_INPUT} bytes: that is not a valid value");
        return Err(Error::invalid(message));
    }
    Ok(text.trim_end_matches('\n').to_owned())
}

async fn show(repo: &str, arguments: &GetArgs) -> Result<()> {
    let repository = open::repository(repo, &arguments.store).await?;
    let stored = repository.config().await?;
    let members = stored.members();
    for problem in problems::find(members) {
        warn!("{}", printable::line(&problem));
    }
    if let Some(key) = &arguments.key {
        let setting = config_edit::get(members, key)?;
        return show_one(&setting, arguments.json);
    }
    if arguments.json && !arguments.all {
        return print_json(members);
    }
    let settings = config_edit::all(members);
    if arguments.json {
        let as_json = |setting: &Setting| {
            json!({
                "key": setting.key,
                "value": setting.value,
                "default": setting.default,
                "kind": setting.kind.map(config_edit::schema::ValueKind::describe),
            })
        };
        return print_json(&settings.iter().map(as_json).collect::<Vec<_>>());
    }
    let value = |setting: &Setting| setting.value.as_ref().map(|value| printable::line(&value.to_string()));
    if arguments.all {
        let mut rows = vec![["SETTING", "VALUE", "DEFAULT"].map(str::to_owned).to_vec()];
        rows.extend(settings.iter().map(|setting| {
            let default = setting.default.map(str::to_owned).unwrap_or_default();
            vec![setting.key.clone(), value(setting).unwrap_or_else(|| "-".to_owned()), default]
        }));
        return print(
            &table::lines(&rows, 0..0).into_iter().map(|line| line.trim_end().to_owned() + "\n").collect::<String>(),
        );
    }
    let mut text = String::new();
    for setting in &settings {
        if let Some(value) = value(setting) {
            text += &format!("{} = {value}\n", setting.key);
        }
    }
    if text.is_empty() {
        text = "nothing is set: the defaults apply (get --all shows them)\n".to_owned();
    }
    print(&text)
}

fn show_one(setting: &Setting, json: bool) -> Result<()> {
    match &setting.value {
        value if json => print_json(value),
        Some(Value::String(text)) => print(&format!("{text}\n")),
        Some(value) => print(&format!("{value}\n")),
        None => {
            let default = setting.default.map_or(String::new(), |default| format!("; the default is: {default}"));
            Err(Error::new(ErrorKind::NotFound, format!("`{}` is not set{default}", setting.key)))
        }
    }
}

/// Warns about allowed changes that can make other programs lose commits.
fn warn_of(changed: &ConfigChange) {
    let is_off = |name: &str| {
        changed.members.get("storage").and_then(|storage| storage.get(name)) == Some(&Value::Bool(false))
            && changed.key.starts_with("storage")
    };
    for name in ["unsafe_use_conditional_update", "unsafe_use_conditional_create"] {
        if is_off(name) {
            warn!("storage.{name} is off: programs that obey it lose commits if two of them write at the same time");
        }
    }
}

/// Changes the setting `key` by `edit`, and prints the change.
async fn change(
    repo: &str,
    key: &str,
    output: &OutputArgs,
    edit: impl Fn(&RepoConfig) -> Result<Option<ConfigChange>>,
) -> Result<()> {
    let repository = open::repository(repo, &output.store).await?;
    let changed = match repository.change_config(system_clock, edit).await? {
        Some(changed) => {
            if changed.new.is_some() {
                warn_of(&changed);
            }
            changed
        }
        // Nothing changed: the new value is the old one.
        None => {
            let stored = repository.config().await?;
            let setting = config_edit::get(stored.members(), key)?;
            let new = setting.value.clone();
            ConfigChange { members: stored.members().clone(), key: setting.key, old: setting.value, new }
        }
    };
    if output.json {
        return print_json(&json!({"key": changed.key, "old": changed.old, "new": changed.new}));
    }
    let spelled = |value: &Option<Value>| value.as_ref().map_or("not set".to_owned(), Value::to_string);
    let old = spelled(&changed.old);
    let new = spelled(&changed.new);
    let line = match (changed.old == changed.new, &changed.new) {
        (true, None) => format!("{} is not set", changed.key),
        (true, Some(_)) => format!("{} = {new} already", changed.key),
        (false, None) => format!("{} is not set any more; it was {old}", changed.key),
        (false, Some(_)) if changed.old.is_none() => format!("{} = {new}; it was not set", changed.key),
        (false, Some(_)) => format!("{} = {new}; it was {old}", changed.key),
    };
    print(&format!("{}\n", printable::line(&line)))
}
