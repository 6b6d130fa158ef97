//! `icechunkfs revert`: takes commits back, in a mount or on a branch.

use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};

use super::merge::Whose;
use super::place_args::PlaceArgs;
use super::replace_commits::listed_conflicts;
use super::{control_client, open, print_json, print_result, progress};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::{printable, shell, size};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::commit::engine::OnConflict;
use icechunkfs_repo::merge::revert::{self, RevertOptions, RevertPlan, nothing_left};
use icechunkfs_working::operations::request::Command;

#[derive(Debug, Args)]
pub(crate) struct RevertArgs {
    /// The commits to take back, which follow one another: snapshot ids, branches or tags, or one
    /// of these and ~N for N commits before it.
    #[arg(index = 2, value_name = "COMMIT", required = true)]
    commits: Vec<String>,
    /// The commit message [default: Revert "MESSAGE OF THE COMMIT"].
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Resolve conflicts of chunks and of members of zarr.json that were changed again since: ours
    /// keeps those of the branch, theirs takes those from before the commits, as in git [default:
    /// refuse].
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
    place: PlaceArgs,
}

/// Takes the commits back.
pub(crate) fn run(arguments: &RevertArgs) -> Result<()> {
    if arguments.place.is_mount() { in_mount(arguments) } else { on_branch(arguments) }
}

/// Takes commits back in the working tree of a mount.
fn in_mount(arguments: &RevertArgs) -> Result<()> {
    let mount = arguments.place.open_mount(arguments.message.as_deref(), "revert")?;
    let command = Command::Revert {
        commits: arguments.commits.clone(),
        on_conflict: Whose::treatment(arguments.on_conflict),
        dry_run: arguments.dry_run,
    };
    control_client::print_answer(&control_client::execute(&mount, &command)?, arguments.json)
}

/// Takes commits back on a branch of a repository, with a commit.
fn on_branch(arguments: &RevertArgs) -> Result<()> {
    let metadata = arguments.place.metadata()?;
    let branch = arguments.place.branch();
    open::run(async {
        let repository = open::repository(arguments.place.location()?, &arguments.place.store).await?;
        let mut commits = Vec::new();
        for word in &arguments.commits {
            commits.push(repository.resolve_revision(word).await?.id);
        }
        let on_conflict = Whose::treatment(arguments.on_conflict);
        let options = RevertOptions { commits, branch, message: arguments.message.clone(), metadata, on_conflict };
        let storage = Arc::clone(repository.storage());
        let (reader, engine) = open::engine(&repository)?;
        let bar = progress::begin("comparing");
        let outcome = if arguments.dry_run {
            revert::plan_on_branch(&repository, &reader, &options).await.map(|(_, plan)| (plan, None))
        } else {
            repository.check_changes_allowed().await?;
            revert::revert(repository, &reader, &engine, &options).await
        };
        drop(bar);
        let (plan, snapshot) = outcome.context(|| storage.location().to_owned())?;
        let report = report(&plan, &options.branch, snapshot);
        if !plan.conflicts.is_empty() {
            if arguments.json {
                print_json(&report)?;
            }
            return Err(Error::multi_line(ErrorKind::Stale, &refusal(storage.location(), &options.branch, &plan)));
        }
        print_result(arguments.json, &report, || describe(&plan, &options, snapshot))
    })
}

/// Returns the conflicts, and the commands that lead on.
fn refusal(place: &str, branch: &str, plan: &RevertPlan) -> String {
    let count = size::counted(plan.conflicts.len() as u64, "conflict");
    let mut text = format!("later commits changed the same things ({count}): nothing was taken back\n");
    text += &listed_conflicts(&plan.conflicts);
    // Of a store, the options are needed, too.
    let with_options = if place.contains("://") { " (each command with the options of this one)" } else { "" };
    let [repo, quoted_branch] = [place, branch].map(shell::quote);
    let reverted: Vec<String> = plan.reverted.iter().map(|commit| commit.id.to_string()).collect();
    let this = format!("icechunkfs revert {repo} {} --branch={quoted_branch}", reverted.join(" "));
    match (plan.obstacles.as_slice(), plan.conflicts.first()) {
        ([], Some(conflict)) => {
            let path = shell::quote(&conflict.path);
            text += &format!(
                "Take the later commits that this lists back first{with_options}, then repeat this command:\n"
            );
            text += &format!("  icechunkfs log {repo} {path} --branch={quoted_branch}\n");
        }
        (obstacles, _) => {
            text += &format!("Take these back first, with all that they changed, then this commit{with_options}:\n");
            for commit in obstacles {
                // Not every shell takes this for a comment, and others have written it.
                let title = shell::quote(&commit.title());
                text += &format!("  icechunkfs revert {repo} {} --branch={quoted_branch}  # {title}\n", commit.id);
            }
            text += &format!("  {this}\n");
        }
    }
    for (side, does) in plan.decisions() {
        text += &format!("Or {does}:\n  {this} --on-conflict={side}\n");
    }
    if let (Some(conflict), Some(newest)) = (plan.undecidable(), reverted.first()) {
        let [path, quoted_path] = [printable::line(&conflict.path), shell::quote(&conflict.path)];
        text += &format!(
            "Or mount the branch, change {path} there as you want it, and commit: --on-conflict does not decide that. The \
             commit changed:\n  icechunkfs diff {repo} {} {newest} {quoted_path}\n",
            plan.before
        );
    }
    text
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

fn describe(
    plan: &RevertPlan,
    RevertOptions { branch, on_conflict, .. }: &RevertOptions,
    snapshot: Option<ObjectId>,
) -> String {
    let branch = printable::line(branch);
    let is_ours = *on_conflict == OnConflict::Theirs;
    let what = match plan.reverted.as_slice() {
        [commit] => format!("commit {} \"{}\"", commit.id, printable::line(&commit.title())),
        commits => format!("{} commits", commits.len()),
    };
    let counts = plan.changes.counted();
    match snapshot {
        Some(snapshot) => format!("took back {what} on {branch}: snapshot {snapshot}: {counts}\n"),
        None if plan.changes.is_empty() => {
            format!("nothing to take back of {what}: {}\n", nothing_left(is_ours))
        }
        None => format!("{what} of branch `{branch}` can be taken back: {counts}\n"),
    }
}
