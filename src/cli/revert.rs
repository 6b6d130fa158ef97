//! `icechunkfs revert`: takes commits back, in a mount or on a branch.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};

use super::merge::Whose;
use super::open::MemoryLimits;
use super::replace_commits::{self, listed_conflicts};
use super::{control_client, open, print_json, print_result, progress};
use crate::fuse::open_mount;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::printable;
use icechunkfs_base::times::system_clock;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::commit::engine::{Engine, EngineOptions};
use icechunkfs_repo::merge::revert::{self, RevertOptions, RevertPlan};
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::repo::refs::DEFAULT_BRANCH;
use icechunkfs_store::storage::settings::Settings;
use icechunkfs_working::operations::request::Command;

#[derive(Debug, Args)]
pub(crate) struct RevertArgs {
    /// The mountpoint of a branch, where the result is an uncommitted change; or a repository (a
    /// path or a URL), where it is committed at once.
    #[arg(value_name = "MOUNTPOINT|REPO")]
    place: OsString,
    /// The commits to take back, which follow one another: snapshot ids, branches or tags, or one
    /// of these and ~N for N commits before it.
    #[arg(value_name = "COMMIT", required = true)]
    commits: Vec<String>,
    /// The branch that gets the commit [default: main]; a mount has its own.
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    /// The commit message [default: Revert "MESSAGE OF THE COMMIT"].
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Set a metadata item of the commit; VALUE is JSON, otherwise text. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Resolve conflicts between chunks that were changed again since: ours keeps those of the
    /// branch, theirs takes those from before the commits, as in git [default: refuse].
    #[arg(long, value_name = "WHOSE")]
    on_conflict: Option<Whose>,
    /// Only show what would change, and conflicts.
    #[arg(long)]
    dry_run: bool,
    /// Print {"branch", "snapshot", "reverted", "nodes", "chunks", "conflicts"}: the new snapshot
    /// (null if there is none), the ids of the commits (newest first), counts of the changes, and
    /// conflicts as in `status --json`. In a mount without "branch" and "conflicts".
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Settings,
}

/// Takes the commits back.
pub(crate) fn run(arguments: &RevertArgs) -> Result<()> {
    if open_mount::is_mountpoint(Path::new(&arguments.place)) { in_mount(arguments) } else { on_branch(arguments) }
}

/// Takes commits back in the working tree of a mount.
fn in_mount(arguments: &RevertArgs) -> Result<()> {
    let only_repo = [
        ("--branch", arguments.branch.is_some()),
        ("--message", arguments.message.is_some()),
        ("--metadata", !arguments.metadata.is_empty()),
    ];
    if let Some((option, _)) = only_repo.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Error::invalid(format!(
            "{option} does not go with a mount, where a revert is an uncommitted change: revert without it, then commit"
        )));
    }
    let mount = control_client::open_writable(Path::new(&arguments.place))?;
    let command = Command::Revert {
        commits: arguments.commits.clone(),
        on_conflict: Whose::treatment(arguments.on_conflict),
        dry_run: arguments.dry_run,
    };
    control_client::print_answer(&control_client::execute(&mount, &command)?, arguments.json)
}

/// Takes commits back on a branch of a repository, with a commit.
fn on_branch(arguments: &RevertArgs) -> Result<()> {
    let metadata = replace_commits::metadata(&arguments.metadata)?;
    replace_commits::check_not_reserved(metadata.keys())?;
    let location =
        arguments.place.as_os_str().to_str().ok_or_else(|| Error::invalid("the repository's name is not UTF-8"))?;
    let branch = arguments.branch.clone().unwrap_or_else(|| DEFAULT_BRANCH.to_owned());
    open::run(async {
        let repository = open::repository(location, &arguments.store).await?;
        let mut commits = Vec::new();
        for word in &arguments.commits {
            commits.push(repository.resolve_revision(word).await?.id);
        }
        let on_conflict = Whose::treatment(arguments.on_conflict);
        let options = RevertOptions { commits, branch, message: arguments.message.clone(), metadata, on_conflict };
        let limits = MemoryLimits::default();
        let storage = Arc::clone(repository.storage());
        let reader = Arc::new(Reader::new(Arc::clone(&storage), limits.budget(0)?));
        let bar = progress::bar("{spinner} comparing {elapsed}");
        let outcome = if arguments.dry_run {
            revert::plan_on_branch(&repository, &reader, &options).await.map(|(_, plan)| (plan, None))
        } else {
            repository.check_changes_allowed().await?;
            let engine_options = EngineOptions { memory: limits.uploads(), ..EngineOptions::default() };
            let engine = Engine::new(Arc::clone(&storage), Arc::clone(&reader), system_clock, engine_options);
            revert::revert(repository, &reader, &engine, &options).await
        };
        bar.finish_and_clear();
        let (plan, snapshot) = outcome.context(|| storage.location().to_owned())?;
        let report = report(&plan, &options.branch, snapshot);
        if !plan.conflicts.is_empty() {
            if arguments.json {
                print_json(&report)?;
            }
            return Err(revert::refusal(&plan, &listed_conflicts(&plan.conflicts)));
        }
        print_result(arguments.json, &report, || describe(&plan, &options.branch, snapshot))
    })
}

fn report(plan: &RevertPlan, branch: &str, snapshot: Option<ObjectId>) -> Value {
    let RevertPlan { reverted, changes, conflicts, .. } = plan;
    json!({
        "branch": branch,
        "snapshot": snapshot,
        "reverted": reverted.iter().map(|commit| commit.id).collect::<Vec<_>>(),
        "nodes": changes.node_count(),
        "chunks": changes.chunk_count(),
        "conflicts": conflicts,
    })
}

fn describe(plan: &RevertPlan, branch: &str, snapshot: Option<ObjectId>) -> String {
    let branch = printable::line(branch);
    let what = match plan.reverted.as_slice() {
        [commit] => format!("commit {} \"{}\"", commit.id, printable::line(&commit.title())),
        commits => format!("{} commits", commits.len()),
    };
    let counts = format!("{} nodes, {} chunks", plan.changes.node_count(), plan.changes.chunk_count());
    match snapshot {
        Some(snapshot) => format!("took back {what} on {branch}: snapshot {snapshot}: {counts}\n"),
        None if plan.changes.is_empty() => format!("branch `{branch}` has nothing left of {what}\n"),
        None => format!("{what} of branch `{branch}` can be taken back: {counts}\n"),
    }
}
