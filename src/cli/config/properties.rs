//! `icechunkfs config REPO status`, `metadata` and `flags`: properties of a repository as a whole.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use crate::cli::{open, print_result, replace_commits};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::printable;
use icechunkfs_base::times::{format_time, system_clock};
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::flags::FeatureFlag;
use icechunkfs_store::storage::settings::Settings;

#[derive(Debug, Args)]
pub(in crate::cli) struct StatusArgs {
    /// The new status: `read-only` refuses commits, changes of refs and collections by all
    /// programs, at once; only the status can then be changed.
    #[arg(value_name = "STATUS")]
    new: Option<NewStatus>,
    /// The reason, which refused programs show.
    #[arg(long, value_name = "TEXT", requires = "new")]
    reason: Option<String>,
    /// Print {"status" (online, read_only or offline), "reason", "set_at"}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Settings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum NewStatus {
    Online,
    ReadOnly,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct MetadataArgs {
    /// Set an item; VALUE is JSON or text. Repeatable.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Remove an item. Repeatable.
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
    /// Print the items as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Settings,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct FlagsArgs {
    /// Allow move_node, create_tag or delete_tag. Repeatable.
    #[arg(long, value_name = "FLAG", value_parser = flag)]
    on: Vec<FeatureFlag>,
    /// Refuse it, in all programs. Repeatable.
    #[arg(long, value_name = "FLAG", value_parser = flag)]
    off: Vec<FeatureFlag>,
    /// Use the default again, which is on. Repeatable.
    #[arg(long, value_name = "FLAG", value_parser = flag)]
    unset: Vec<FeatureFlag>,
    /// Print {FLAG: {"on", "is_set"}}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Settings,
}

fn flag(name: &str) -> Result<FeatureFlag> {
    let known = || FeatureFlag::ALL.map(FeatureFlag::name).join(", ");
    FeatureFlag::named(name).ok_or_else(|| Error::invalid(format!("this flag is not known: use one of {}", known())))
}

pub(super) async fn status(repo: &str, arguments: &StatusArgs) -> Result<()> {
    let mut repository = open::repository(repo, &arguments.store).await?;
    if let Some(new) = arguments.new {
        let is_read_only = new == NewStatus::ReadOnly;
        repository.properties()?.set_status(system_clock, is_read_only, arguments.reason.as_deref()).await?;
        repository = open::repository(repo, &arguments.store).await?;
    }
    let found = repository.properties()?.status();
    let name = found.name();
    let set_at = format_time(found.set_at);
    print_result(arguments.json, &json!({"status": name, "reason": found.reason, "set_at": set_at}), || {
        let reason = found.reason.as_ref().map(|reason| format!(": {}", printable::line(reason)));
        format!("{} since {set_at}{}\n", name.replace("_", "-"), reason.unwrap_or_default())
    })
}

pub(super) async fn metadata(repo: &str, arguments: &MetadataArgs) -> Result<()> {
    let set: Map<String, Value> = replace_commits::metadata(&arguments.set)?;
    if let Some(name) = arguments.unset.iter().find(|name| set.contains_key(*name)) {
        return Err(Error::invalid(format!("{name}: both --set and --unset")));
    }
    let mut changes: Vec<(String, Option<Value>)> = set.into_iter().map(|(name, value)| (name, Some(value))).collect();
    changes.extend(arguments.unset.iter().map(|name| (name.clone(), None)));
    let mut repository = open::repository(repo, &arguments.store).await?;
    if !changes.is_empty() {
        repository.properties()?.change_metadata(system_clock, &changes).await?;
        repository = open::repository(repo, &arguments.store).await?;
    }
    let found = repository.properties()?.metadata()?;
    print_result(arguments.json, &Value::Object(found.clone()), || {
        let line = |(name, value): (&String, &Value)| printable::line(&format!("{name} = {value}")) + "\n";
        found.iter().map(line).collect()
    })
}

pub(super) async fn flags(repo: &str, arguments: &FlagsArgs) -> Result<()> {
    let lists = [(&arguments.on, Some(true)), (&arguments.off, Some(false)), (&arguments.unset, None)];
    let changes: Vec<(FeatureFlag, Option<bool>)> =
        lists.into_iter().flat_map(|(flags, to)| flags.iter().map(move |flag| (*flag, to))).collect();
    let twice =
        changes.iter().enumerate().find(|(at, (flag, _))| changes.iter().skip(at + 1).any(|(other, _)| other == flag));
    if let Some((_, (flag, _))) = twice {
        return Err(Error::invalid(format!("{}: named more than once", flag.name())));
    }
    let mut repository = open::repository(repo, &arguments.store).await?;
    for (flag, to) in changes {
        repository.properties()?.set_feature_flag(system_clock, flag, to).await?;
        repository = open::repository(repo, &arguments.store).await?;
    }
    show_flags(&repository, arguments.json)
}

fn show_flags(repository: &Repository, json: bool) -> Result<()> {
    let found = repository.properties()?.feature_flags()?;
    let all: Map<String, Value> = found
        .iter()
        .map(|(flag, is_on, is_set)| (flag.name().to_owned(), json!({"on": is_on, "is_set": is_set})))
        .collect();
    print_result(json, &Value::Object(all), || {
        let line = |(flag, is_on, is_set): &(FeatureFlag, bool, bool)| {
            let default = if *is_set { "" } else { " (not set)" };
            format!("{} {}{default}\n", flag.name(), if *is_on { "on" } else { "off" })
        };
        found.iter().map(line).collect()
    })
}
