//! `icechunkfs restore`: a path becomes what an older snapshot has there, in a mount or on a
//! branch.

use clap::Args;

use super::place_args::PlaceArgs;
use super::replace_commits::listed_conflicts;
use super::{control_client, open, print_json, print_result, progress};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::commit::conflict::Conflict;
use icechunkfs_repo::commit::engine::CommitOutcome;
use icechunkfs_repo::restore::{self, Plan, RestoreOptions, absolute_path};
use icechunkfs_working::operations::request::Command;

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The path to restore, with everything below it: a group, an array, a chunk, a directory of
    /// chunks, or a zarr.json; `.` for everything.
    #[arg(index = 2)]
    path: String,
    /// The source: a branch, a tag, an id, an earlier commit such as main~2, or a time (RFC 3339 or
    /// a date) for the branch's newest commit then.
    #[arg(long, value_name = "REF")]
    from: String,
    /// The commit message [default: Restore PATH from REF].
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
    /// Print {"path", "found_at", "from", "branch", "snapshot", "created", "deleted", "updated",
    /// "moved", "chunks", "elsewhere", "parents", "conflicts"}: the path, its name in REF, the
    /// snapshots restored from and committed (null if there is none), the paths of nodes, the
    /// number of chunks, nodes that were copied because they are elsewhere now, and restored groups
    /// above the path.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Restores a path.
pub(crate) fn run(arguments: &RestoreArgs) -> Result<()> {
    if arguments.place.is_mount() { in_mount(arguments) } else { on_branch(arguments) }
}

/// Restores a path in the working tree of a mount.
fn in_mount(arguments: &RestoreArgs) -> Result<()> {
    let mount = arguments.place.open_mount(arguments.message.as_deref(), "restore")?;
    let path = control_client::repository_path(&mount, &arguments.path)?;
    let command = Command::Restore { path, from: arguments.from.clone(), dry_run: arguments.dry_run };
    control_client::print_answer(&control_client::execute(&mount, &command)?, arguments.json)
}

/// Restores a path on a branch of a repository, with a commit.
fn on_branch(arguments: &RestoreArgs) -> Result<()> {
    let metadata = arguments.place.metadata()?;
    let path = absolute_path(&arguments.path)?;
    let branch = arguments.place.branch();
    open::run(async {
        let repository = open::repository(arguments.place.location()?, &arguments.place.store).await?;
        let source = restore::resolve_source(&repository, &arguments.from, &branch).await?.id;
        let message = arguments.message.clone();
        let message = message.unwrap_or_else(|| format!("Restore {} from {}", path, arguments.from));
        let options = RestoreOptions { path, source, branch, message, metadata };
        let (reader, engine) = open::engine(&repository)?;
        let bar = progress::begin("comparing");
        let outcome = if arguments.dry_run {
            restore::plan_on_branch(&repository, &reader, &options)
                .await
                .map(|(_, plan)| (plan, CommitOutcome::Nothing))
        } else {
            repository.check_changes_allowed().await?;
            restore::restore(&repository, &reader, &engine, &options).await
        };
        drop(bar);
        let (plan, outcome) = outcome.context(|| repository.storage().location().to_owned())?;
        let (snapshot, conflicts) = match outcome {
            CommitOutcome::Committed { snapshot, .. } => (Some(snapshot), Vec::new()),
            CommitOutcome::Nothing => (None, Vec::new()),
            CommitOutcome::Conflicts(conflicts) => (None, conflicts),
        };
        let report = plan.report(&options.path, options.source, &options.branch, snapshot, &conflicts);
        if !conflicts.is_empty() {
            if arguments.json {
                print_json(&report)?;
            }
            return Err(Error::multi_line(ErrorKind::Stale, &refusal(&conflicts, &options.branch)));
        }
        print_result(arguments.json, &report, || describe(&plan, &options, snapshot))
    })
}

fn refusal(conflicts: &[Conflict], branch: &str) -> String {
    let text = format!(
        "commits to branch `{}` changed the same things meanwhile ({} conflicts): nothing was restored; restore again\n",
        printable::line(branch),
        conflicts.len()
    );
    text + &listed_conflicts(conflicts)
}

fn describe(plan: &Plan, options: &RestoreOptions, snapshot: Option<ObjectId>) -> String {
    let path = printable::line(&options.path);
    let branch = printable::line(&options.branch);
    let counts = plan.counts();
    let first = match snapshot {
        Some(snapshot) => {
            format!("restored {path} on {branch} from {}: snapshot {snapshot}: {counts}\n", options.source)
        }
        None if plan.changes.is_empty() => format!("{path} of branch `{branch}` is as in {} already\n", options.source),
        None => format!("{path} of branch `{branch}` can be restored from {}: {counts}\n", options.source),
    };
    first + &plan.remarks()
}
