//! `icechunkfs ops`: prints the operations log of a repository.

use clap::Args;
use serde_json::{Map, Value, json};

use super::open;
use super::output::{Lines, print_json_list};
use super::repo_args::RepoArgs;
use icechunkfs_base::error::Result;
use icechunkfs_base::times::format_time;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::operations_log::DisplayedEntry;
use icechunkfs_format::format::repo_state::{Operation, Status};
use icechunkfs_repo::repo::operations::Operations;

#[derive(Debug, Args)]
pub(crate) struct OpsArgs {
    /// Show at most this many operations.
    #[arg(short = 'n', value_name = "N")]
    count: Option<usize>,
    /// Print a list of {"at", "operation", "file"} and the members of the operation: "branch",
    /// "tag", "snapshot", "previous", "from_version", "to_version", "flag", "value", "status",
    /// "reason", "kind". "file" is the copy of the repository's state then, null for the newest.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Prints the operations, newest first. Entries before a damaged file are printed.
pub(crate) fn run(arguments: &OpsArgs) -> Result<()> {
    open::run(async {
        let repository = arguments.repo.open().await?;
        let operations = repository.operations()?;
        if arguments.json {
            return print_json_list(async |print| {
                each(operations, arguments.count, &mut |entry| print(&as_json(entry))).await
            })
            .await;
        }
        let mut lines = Lines::new();
        let done = each(operations, arguments.count, &mut |entry| lines.line(format_args!("{}", as_text(entry)))).await;
        lines.end().and(done)
    })
}

/// Calls `take` for the newest operations, at most `count`.
async fn each(
    mut operations: Operations,
    count: Option<usize>,
    take: &mut dyn FnMut(&DisplayedEntry) -> Result<()>,
) -> Result<()> {
    for _ in 0..count.unwrap_or(usize::MAX) {
        match operations.next().await? {
            Some(entry) => take(&entry)?,
            None => break,
        }
    }
    if let Some(key) = operations.missing() {
        tracing::warn!("{}: the log continues in {key}, which no longer exists", operations.location());
    }
    Ok(())
}

/// Kind and name of a ref.
type Subject<'a> = Option<(&'static str, &'a str)>;
/// Details of an operation, as text and for programs.
type Details = (String, Value);

/// Returns an operation's name for programs and for display, its subject, and further details.
fn describe(operation: &Operation) -> (&'static str, &'static str, Subject<'_>, Details) {
    let none = || (String::new(), json!({}));
    let was = |id: &ObjectId| (format!("was {id}"), json!({"previous": id}));
    match operation {
        Operation::RepoInitialized => ("repo_initialized", "repository created", None, none()),
        Operation::RepoMigrated { from_version: from, to_version: to } => {
            let versions = json!({"from_version": from, "to_version": to});
            ("repo_migrated", "migrated", None, (format!("version {from} to {to}"), versions))
        }
        Operation::ConfigChanged => ("config_changed", "configuration changed", None, none()),
        Operation::MetadataChanged => ("metadata_changed", "metadata changed", None, none()),
        Operation::TagCreated { name } => ("tag_created", "tag created", Some(("tag", name)), none()),
        Operation::TagDeleted { name, previous } => ("tag_deleted", "tag deleted", Some(("tag", name)), was(previous)),
        Operation::BranchCreated { name } => ("branch_created", "branch created", Some(("branch", name)), none()),
        Operation::BranchDeleted { name, previous } => {
            ("branch_deleted", "branch deleted", Some(("branch", name)), was(previous))
        }
        Operation::BranchReset { name, previous } => {
            ("branch_reset", "branch reset", Some(("branch", name)), was(previous))
        }
        Operation::NewCommit { branch, new } => {
            ("new_commit", "commit", Some(("branch", branch)), (new.to_string(), json!({"snapshot": new})))
        }
        Operation::CommitAmended { branch, previous, new } => {
            let details = (format!("{new}, was {previous}"), json!({"previous": previous, "snapshot": new}));
            ("commit_amended", "commit amended", Some(("branch", branch)), details)
        }
        Operation::NewDetachedSnapshot { new } => {
            ("new_detached_snapshot", "snapshot", None, (format!("{new}, on no branch"), json!({"snapshot": new})))
        }
        Operation::GcRan => ("gc_ran", "garbage collected", None, none()),
        Operation::ExpirationRan => ("expiration_ran", "commits expired", None, none()),
        Operation::FeatureFlagChanged { id, new_value, is_set } => {
            let to = match (is_set, new_value) {
                (false, _) => "to its default",
                (true, true) => "on",
                (true, false) => "off",
            };
            let value = json!({"flag": id, "value": is_set.then_some(new_value)});
            ("feature_flag_changed", "feature flag changed", None, (format!("{id} {to}"), value))
        }
        Operation::StatusChanged { status } => {
            let availability = status.as_ref().map(Status::name);
            let reason = status.as_ref().and_then(|status| status.reason.as_deref());
            let text = [availability, reason].into_iter().flatten().collect::<Vec<_>>().join(": ");
            ("status_changed", "status changed", None, (text, json!({"status": availability, "reason": reason})))
        }
    }
}

/// Returns the name of an operation for programs.
pub(super) fn name(operation: &Operation) -> &'static str {
    describe(operation).0
}

/// Describes an operation. Names in it are not escaped.
fn as_text(entry: &DisplayedEntry) -> String {
    let line = match &entry.operation {
        Ok(operation) => {
            let (_, what, subject, (details, _)) = describe(operation);
            // A name may be empty or end with a space.
            let subject = subject.map_or(String::new(), |(_, name)| format!("`{name}`"));
            format!("{what:<21}  {subject:<12}  {details}")
        }
        Err(kind) => format!("operation of kind {kind}, which this version does not know"),
    };
    format!("{}  {}", format_time(entry.updated_at), line.trim_end())
}

fn as_json(entry: &DisplayedEntry) -> Value {
    let (operation, subject, details) = match &entry.operation {
        Err(kind) => ("unknown", None, json!({"kind": kind})),
        Ok(operation) => {
            let (name, _, subject, (_, details)) = describe(operation);
            (name, subject, details)
        }
    };
    let mut out = Map::from_iter([("at".to_owned(), json!(format_time(entry.updated_at)))]);
    out.insert("operation".to_owned(), json!(operation));
    out.extend(subject.map(|(kind, name)| (kind.to_owned(), json!(name))));
    out.extend(details.as_object().cloned().unwrap_or_default());
    out.insert("file".to_owned(), json!(entry.backup_path));
    out.into()
}
