//! `icechunkfs ops`: prints the operations log of a repository.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::repo_args::RepoArgs;
use super::{open, print, print_json};
use crate::error::Result;
use crate::format::operations_log::DisplayedEntry;
use crate::format::repo_state::Operation;
use crate::printable;
use crate::times::format_time;

/// Arguments of `icechunkfs ops`.
#[derive(Debug, Args)]
pub struct OpsArgs {
    /// Show at most this many operations.
    #[arg(short = 'n', value_name = "N")]
    pub count: Option<usize>,
    /// Print a list of {"at", "operation", "file"} and the members of the operation: "branch", "tag", "snapshot", "previous",
    /// "from_version", "to_version", "flag", "value", "status", "reason", "kind". "file" is the copy of the repository's state
    /// at that time; null for the newest.
    #[arg(long)]
    pub json: bool,
    /// The repository. Last, because the help heading of its settings applies to all later options.
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// Prints the operations, newest first.
pub fn run(arguments: &OpsArgs) -> Result<()> {
    open::runtime()?.block_on(async {
        let repository = arguments.repo.open().await?;
        let mut operations = repository.operations()?;
        let limit = arguments.count.unwrap_or(usize::MAX);
        let mut entries = Vec::new();
        // Entries before a damaged file are shown.
        let ended = loop {
            if entries.len() == limit {
                break Ok(());
            }
            match operations.next().await {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if let Some(key) = operations.missing() {
            tracing::warn!("{}: the log continues in {key}, which no longer exists", repository.storage().location());
        }
        if arguments.json {
            print_json(&entries.iter().map(as_json).collect::<Vec<_>>())?;
        } else {
            print(&as_text(&entries))?;
        }
        ended
    })
}

/// Returns the name of an operation, its subject, and details as text.
fn describe(operation: &Operation) -> (&'static str, Option<&str>, String) {
    match operation {
        Operation::RepoInitialized => ("repository created", None, String::new()),
        Operation::RepoMigrated { from_version, to_version } => {
            ("migrated", None, format!("version {from_version} to {to_version}"))
        }
        Operation::ConfigChanged => ("configuration changed", None, String::new()),
        Operation::MetadataChanged => ("metadata changed", None, String::new()),
        Operation::TagCreated { name } => ("tag created", Some(name), String::new()),
        Operation::TagDeleted { name, previous } => ("tag deleted", Some(name), format!("was {previous}")),
        Operation::BranchCreated { name } => ("branch created", Some(name), String::new()),
        Operation::BranchDeleted { name, previous } => ("branch deleted", Some(name), format!("was {previous}")),
        Operation::BranchReset { name, previous } => ("branch reset", Some(name), format!("was {previous}")),
        Operation::NewCommit { branch, new } => ("commit", Some(branch), new.to_string()),
        Operation::CommitAmended { branch, previous, new } => {
            ("commit amended", Some(branch), format!("{new}, was {previous}"))
        }
        Operation::NewDetachedSnapshot { new } => ("snapshot", None, format!("{new}, on no branch")),
        Operation::GcRan => ("garbage collected", None, String::new()),
        Operation::ExpirationRan => ("commits expired", None, String::new()),
        Operation::FeatureFlagChanged { id, new_value, is_set } => {
            let to = match (is_set, new_value) {
                (false, _) => "to its default",
                (true, true) => "on",
                (true, false) => "off",
            };
            ("feature flag changed", None, format!("{id} {to}"))
        }
        Operation::StatusChanged { status } => {
            let text = status.as_ref().map_or(String::new(), |status| {
                let reason = status.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
                format!("{}{reason}", availability(status.availability))
            });
            ("status changed", None, text)
        }
    }
}

fn availability(number: u8) -> &'static str {
    match number {
        0 => "online",
        1 => "read_only",
        2 => "offline",
        _ => "unknown",
    }
}

fn as_text(entries: &[DisplayedEntry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let line = match &entry.operation {
            Ok(operation) => {
                let (what, name, more) = describe(operation);
                // A name may be empty or end with a space.
                let name = name.map_or(String::new(), |name| format!("`{name}`"));
                format!("{what:<21}  {name:<12}  {more}")
            }
            Err(kind) => format!("operation of kind {kind}, which this version does not know"),
        };
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{}  {}", format_time(entry.updated_at), printable::line(line.trim_end()));
    }
    text
}

fn as_json(entry: &DisplayedEntry) -> Value {
    let (operation, mut more) = match &entry.operation {
        Err(kind) => ("unknown", json!({"kind": kind})),
        Ok(operation) => match operation {
            Operation::RepoInitialized => ("repo_initialized", json!({})),
            Operation::RepoMigrated { from_version, to_version } => {
                ("repo_migrated", json!({"from_version": from_version, "to_version": to_version}))
            }
            Operation::ConfigChanged => ("config_changed", json!({})),
            Operation::MetadataChanged => ("metadata_changed", json!({})),
            Operation::TagCreated { name } => ("tag_created", json!({"tag": name})),
            Operation::TagDeleted { name, previous } => ("tag_deleted", json!({"tag": name, "previous": previous})),
            Operation::BranchCreated { name } => ("branch_created", json!({"branch": name})),
            Operation::BranchDeleted { name, previous } => {
                ("branch_deleted", json!({"branch": name, "previous": previous}))
            }
            Operation::BranchReset { name, previous } => {
                ("branch_reset", json!({"branch": name, "previous": previous}))
            }
            Operation::NewCommit { branch, new } => ("new_commit", json!({"branch": branch, "snapshot": new})),
            Operation::CommitAmended { branch, previous, new } => {
                ("commit_amended", json!({"branch": branch, "previous": previous, "snapshot": new}))
            }
            Operation::NewDetachedSnapshot { new } => ("new_detached_snapshot", json!({"snapshot": new})),
            Operation::GcRan => ("gc_ran", json!({})),
            Operation::ExpirationRan => ("expiration_ran", json!({})),
            Operation::FeatureFlagChanged { id, new_value, is_set } => {
                ("feature_flag_changed", json!({"flag": id, "value": is_set.then_some(new_value)}))
            }
            Operation::StatusChanged { status } => {
                let availability = status.as_ref().map(|status| availability(status.availability));
                let reason = status.as_ref().and_then(|status| status.reason.as_deref());
                ("status_changed", json!({"status": availability, "reason": reason}))
            }
        },
    };
    let mut out = json!({"at": format_time(entry.updated_at), "operation": operation});
    if let (Some(out), Some(more)) = (out.as_object_mut(), more.as_object_mut()) {
        out.append(more);
        out.insert("file".to_owned(), json!(entry.backup_path));
    }
    out
}
