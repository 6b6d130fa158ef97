//! `icechunkfs revert`: takes commits back, in a mount or on a branch.

use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};

use super::export::listed;
use super::merge::Whose;
use super::place_args::PlaceArgs;
use super::{control_client, open, print_json, print_result, progress};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::{printable, shell};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::commit::engine::OnConflict;
use icechunkfs_repo::merge::revert::{self, RevertOptions, RevertPlan, nothing_left};
use icechunkfs_repo::merge::ways_out::{Step, Way, headline, since, ways_out};
use icechunkfs_working::operations::request::Command;

#[derive(Debug, Args)]
pub(crate) struct RevertArgs {
    /// The commits to take back, one after another in the history: branches, tags, ids, or earlier
    /// commits such as main~2.
    #[arg(index = 2, value_name = "COMMIT", required = true)]
    commits: Vec<String>,
    /// The commit message [default: Revert "MESSAGE OF THE COMMIT"].
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Take one side in conflicts with later changes of chunks and of members of zarr.json: ours is
    /// the branch, theirs the state before the commits [default: refuse].
    #[arg(long, value_name = "WHOSE")]
    on_conflict: Option<Whose>,
    /// Only show what would change, and conflicts.
    #[arg(long)]
    dry_run: bool,
    /// Print {"branch", "snapshot", "reverted", "nodes", "chunks", "conflicts"}: the new snapshot
    /// (null if there is none), the commits (newest first), counts of changes, and conflicts as in
    /// `status --json`. In a mount without "branch" and "conflicts".
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
            return Err(Error::multi_line(ErrorKind::Stale, &refusal(storage.location(), arguments, &plan)));
        }
        print_result(arguments.json, &report, || describe(&plan, &options, snapshot))
    })
}

/// Returns the conflicts, and the commands that lead on.
fn refusal(place: &str, arguments: &RevertArgs, plan: &RevertPlan) -> String {
    let mut text = headline(plan, arguments.dry_run) + "\n";
    text +=
        &listed(plan.conflicts.iter().map(|conflict| format!("  {}", since(conflict))), plan.conflicts.len() as u64);
    text.push('\n');
    // Of a store, the options are needed, too.
    let with_options = if place.contains("://") { " (each command with the options of this one)" } else { "" };
    for Way { does, besides, steps } in ways_out(plan) {
        text += &format!("To {does}{with_options}:\n");
        for commit in &besides {
            text += &format!("  {} \"{}\"\n", commit.id, printable::line(&commit.title()));
        }
        let commands: Vec<String> = steps.iter().map(|step| command(place, arguments, plan, step)).collect();
        text += &format!("    {}\n", commands.join(" &&\n    "));
    }
    text
}

/// Returns the command that makes `step` on the branch.
fn command(place: &str, arguments: &RevertArgs, plan: &RevertPlan, step: &Step) -> String {
    let repo = shell::quote(place);
    let branch = format!("--branch={}", shell::quote(&arguments.place.branch()));
    let message = arguments.message.iter().map(|message| format!(" --message={}", shell::quote(message)));
    let metadata = arguments.place.metadata_items().iter().map(|item| format!(" --metadata={}", shell::quote(item)));
    let of_commit: String = message.chain(metadata).collect();
    match step {
        Step::Revert(commits, side) => {
            let ids: Vec<String> = commits.iter().map(|commit| commit.id.to_string()).collect();
            let mut command = format!("icechunkfs revert {repo} {} {branch}", ids.join(" "));
            // Those of this command are for this commit.
            if commits.iter().map(|commit| commit.id).eq(plan.reverted.iter().map(|commit| commit.id)) {
                command += &of_commit;
            }
            side.map_or(command.clone(), |side| format!("{command} --on-conflict={side}"))
        }
        Step::Remove(path) => {
            let message = shell::quote(&format!("Remove {}", printable::line(path)));
            let path = shell::quote(path.trim_start_matches('/'));
            format!("icechunkfs run {repo} {branch} -m {message} -- rm -r -- {path}")
        }
        Step::Restore(path) => {
            format!("icechunkfs restore {repo} {} --from={} {branch}{of_commit}", shell::quote(path), plan.before)
        }
        Step::List(path) => format!("icechunkfs log {repo} {} {branch}", shell::quote(path)),
    }
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
