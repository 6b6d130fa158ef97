//! `icechunkfs branch`: refs that move with each commit.

use clap::{Args, Subcommand};

use super::confirm::ConfirmArgs;
use super::ref_commands::{self, CreateArgs, DeleteArgs, ListArgs, OpenRepository};
use super::{print, print_json};
use crate::error::Result;
use crate::format::ids::ObjectId;
use crate::printable;
use crate::repo::change_refs::RefKind;
use crate::repo::update::system_clock;
use crate::storage::settings::Settings;

/// Arguments of `icechunkfs branch`.
#[derive(Debug, Args)]
pub struct BranchArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// The action to run.
    #[command(subcommand)]
    pub action: BranchAction,
}

/// Actions on branches.
#[derive(Debug, Subcommand)]
pub enum BranchAction {
    /// List branches and their newest commits.
    List(ListArgs),
    /// Create a branch.
    Create(CreateArgs),
    /// Delete a branch. Its commits stay until garbage is collected.
    Delete(DeleteArgs),
    /// Make a branch point to another snapshot. Asks first if commits are then on no branch or tag; refuses if the branch moves in
    /// the meantime.
    Reset(ResetArgs),
}

/// Arguments of `icechunkfs branch REPO reset`.
#[derive(Debug, Args)]
pub struct ResetArgs {
    /// The name of the branch.
    pub name: String,
    /// The new target: a branch, a tag, a snapshot id, or one of these and ~N for N commits before it.
    #[arg(long, value_name = "REF")]
    pub to: String,
    /// Reset only if the branch points to this snapshot [default: the one that it points to when the command starts].
    #[arg(long, value_name = "ID")]
    pub expect: Option<String>,
    /// Print {"name", "previous", "snapshot"}.
    #[arg(long)]
    pub json: bool,
    /// Confirmation.
    #[command(flatten)]
    pub confirm: ConfirmArgs,
    /// Store settings.
    #[command(flatten)]
    pub store: Settings,
}

/// Runs the action.
pub fn run(arguments: &BranchArgs) -> Result<()> {
    let repo = &arguments.repo;
    match &arguments.action {
        BranchAction::List(list) => ref_commands::list(repo, RefKind::Branch, list),
        BranchAction::Create(create) => ref_commands::create(repo, RefKind::Branch, create),
        BranchAction::Delete(delete) => ref_commands::delete(repo, RefKind::Branch, delete, ""),
        BranchAction::Reset(reset) => reset_branch(repo, reset),
    }
}

fn reset_branch(repo: &str, arguments: &ResetArgs) -> Result<()> {
    let work = OpenRepository::begin(repo, &arguments.store)?;
    let name = &arguments.name;
    let previous = work.target(RefKind::Branch, name, arguments.expect.as_deref())?;
    let to = work.runtime.block_on(work.repository.find(&arguments.to))?.id;
    if to == previous {
        return print_reset(arguments, previous, to, format!("branch `{name}` points to {to} already"));
    }
    let mut refs = work.runtime.block_on(work.repository.refs())?;
    refs.branches.insert(name.clone(), to);
    let lost = work.lost_commits(previous, refs.branches.into_values().chain(refs.tags.into_values()))?;
    let mounted = ref_commands::mounted(&work.repository, name);
    // Commits that stay on a branch or tag are not lost. Changes in a mount would need another branch to be committed to.
    if lost.is_some() || mounted.is_some() {
        let mut question = format!(
            "branch `{}` will go from {} to {}.",
            printable::line(name),
            work.describe_commit(previous),
            work.describe_commit(to)
        );
        lost.iter().for_each(|lost| question += &format!("\n{lost}"));
        ref_commands::ask(arguments.confirm, question, mounted)?;
    }
    work.runtime.block_on(work.repository.reset_branch(name, to, previous, system_clock))?;
    print_reset(arguments, previous, to, format!("branch `{name}` points to {to}; before it was {previous}"))
}

fn print_reset(arguments: &ResetArgs, previous: ObjectId, to: ObjectId, text: String) -> Result<()> {
    if arguments.json {
        return print_json(&serde_json::json!({"name": arguments.name, "previous": previous, "snapshot": to}));
    }
    print(&format!("{}\n", printable::line(&text)))
}
