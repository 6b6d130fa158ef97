//! `icechunkfs branch`: refs that move with each commit.

use clap::{Args, Subcommand};

use super::open;
use super::ref_commands::{self, CreateArgs, DeleteArgs, ListArgs, RefChangeArgs};
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::repo::change_refs::RefKind;

#[derive(Debug, Args)]
pub(crate) struct BranchArgs {
    /// The repository: a path or a URL.
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
    /// Make a branch point to another snapshot. Asks first if commits are then on no branch or tag;
    /// refuses if the branch moves in the meantime.
    Reset(ResetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    /// The name of the branch.
    name: String,
    /// The new target: a branch, a tag, an id, or an earlier commit such as main~2.
    #[arg(long, value_name = "REF")]
    to: String,
    #[command(flatten)]
    change: RefChangeArgs,
}

pub(crate) fn run(arguments: &BranchArgs) -> Result<()> {
    let repo = &arguments.repo;
    open::run(async {
        match &arguments.action {
            BranchAction::List(list) => ref_commands::list(repo, RefKind::Branch, list).await,
            BranchAction::Create(create) => ref_commands::create(repo, RefKind::Branch, create).await,
            BranchAction::Delete(delete) => ref_commands::delete(repo, RefKind::Branch, delete).await,
            BranchAction::Reset(reset) => reset_branch(repo, reset).await,
        }
    })
}

async fn reset_branch(repo: &str, ResetArgs { name, to, change }: &ResetArgs) -> Result<()> {
    let (repository, previous) = change.open(repo, RefKind::Branch, name).await?;
    let to = repository.resolve_revision(to).await?.id;
    let reset = |text: &str| ref_commands::print_ref(change.json, name, Some(previous), to, text);
    if to == previous {
        return reset(&format!("branch `{name}` points to {to} already"));
    }
    let mut refs = repository.refs().await?;
    refs.branches.insert(name.clone(), to);
    let others = refs.branches.into_values().chain(refs.tags.into_values());
    let lost = ref_commands::lost_commits(&repository, previous, others)?;
    let mounted = ref_commands::mounted(&repository, name);
    // Commits that stay on a branch or tag are not lost. Changes in a mount would need another
    // branch to be committed to.
    if lost.is_some() || mounted.is_some() {
        let question = format!(
            "branch `{}` will go from {} to {}.",
            printable::line(name),
            ref_commands::describe_commit(&repository, previous).await,
            ref_commands::describe_commit(&repository, to).await
        );
        ref_commands::ask(change.confirm, [Some(question), lost], mounted)?;
    }
    repository.reset_branch(name, to, previous, system_clock).await?;
    reset(&format!("branch `{name}` points to {to}; before it was {previous}"))
}
