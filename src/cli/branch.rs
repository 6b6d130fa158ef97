//! `icechunkfs branch`: refs that move with each commit.

use clap::{Args, Subcommand};

use super::confirm::ConfirmArgs;
use super::ref_commands::{self, CreateArgs, DeleteArgs, ListArgs};
use super::{open, print, print_json};
use crate::error::Result;
use crate::format::ids::ObjectId;
use crate::printable;
use crate::repo::change_refs::RefKind;
use crate::storage::settings::Settings;
use crate::times::system_clock;

#[derive(Debug, Args)]
pub(crate) struct BranchArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    repo: String,
    #[command(subcommand)]
    action: BranchAction,
}

/// Actions on branches.
#[derive(Debug, Subcommand)]
pub(crate) enum BranchAction {
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

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    /// The name of the branch.
    name: String,
    /// The new target: a branch, a tag, a snapshot id, or one of these and ~N for N commits before it.
    #[arg(long, value_name = "REF")]
    to: String,
    /// Reset only if the branch points to this snapshot [default: the one that it points to when the command starts].
    #[arg(long, value_name = "ID")]
    expect: Option<String>,
    /// Print {"name", "previous", "snapshot"}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    store: Settings,
}

pub(crate) fn run(arguments: &BranchArgs) -> Result<()> {
    let repo = &arguments.repo;
    open::runtime()?.block_on(async {
        match &arguments.action {
            BranchAction::List(list) => ref_commands::list(repo, RefKind::Branch, list).await,
            BranchAction::Create(create) => ref_commands::create(repo, RefKind::Branch, create).await,
            BranchAction::Delete(delete) => ref_commands::delete(repo, RefKind::Branch, delete, "").await,
            BranchAction::Reset(reset) => reset_branch(repo, reset).await,
        }
    })
}

async fn reset_branch(repo: &str, arguments: &ResetArgs) -> Result<()> {
    let repository = open::repository(repo, &arguments.store).await?;
    let name = &arguments.name;
    let previous = ref_commands::target(&repository, RefKind::Branch, name, arguments.expect.as_deref()).await?;
    let to = repository.resolve_revision(&arguments.to).await?.id;
    if to == previous {
        return print_reset(arguments, previous, to, format!("branch `{name}` points to {to} already"));
    }
    let mut refs = repository.refs().await?;
    refs.branches.insert(name.clone(), to);
    let lost =
        ref_commands::lost_commits(&repository, previous, refs.branches.into_values().chain(refs.tags.into_values()))?;
    let mounted = ref_commands::mounted(&repository, name);
    // Commits that stay on a branch or tag are not lost. Changes in a mount would need another branch to be committed to.
    if lost.is_some() || mounted.is_some() {
        let mut question = format!(
            "branch `{}` will go from {} to {}.",
            printable::line(name),
            ref_commands::describe_commit(&repository, previous).await,
            ref_commands::describe_commit(&repository, to).await
        );
        lost.iter().for_each(|lost| question += &format!("\n{lost}"));
        ref_commands::ask(arguments.confirm, question, mounted)?;
    }
    repository.reset_branch(name, to, previous, system_clock).await?;
    print_reset(arguments, previous, to, format!("branch `{name}` points to {to}; before it was {previous}"))
}

fn print_reset(arguments: &ResetArgs, previous: ObjectId, to: ObjectId, text: String) -> Result<()> {
    if arguments.json {
        return print_json(&serde_json::json!({"name": arguments.name, "previous": previous, "snapshot": to}));
    }
    print(&format!("{}\n", printable::line(&text)))
}
