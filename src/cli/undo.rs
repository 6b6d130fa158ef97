//! `icechunkfs undo`: takes back the newest operation on a branch.

use clap::Args;
use serde_json::json;

use super::confirm::ConfirmArgs;
use super::repo_args::RepoArgs;
use super::{open, ops, print_result, ref_commands};
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;
use icechunkfs_base::shell;
use icechunkfs_base::times::{format_local_time, format_time, system_clock};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::Operation;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::undo::Undo;

#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    /// Take back the newest operation on this branch [default: the newest on any branch or tag].
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    /// Only show what would be taken back.
    #[arg(long)]
    dry_run: bool,
    /// Print {"operation", "at", "branch", "previous", "snapshot"}: the operation as in `ops
    /// --json`, and where the branch was and is (null if nowhere).
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Takes back the newest operation.
pub(crate) fn run(arguments: &UndoArgs) -> Result<()> {
    open::run(async {
        let repository = arguments.repo.open().await?;
        let undo = Undo::find(&repository, arguments.branch.as_deref()).await?;
        let what = describe(&repository, &undo).await;
        let result = json!({
            "operation": ops::name(&undo.operation),
            "at": format_time(undo.at),
            "branch": undo.branch,
            "previous": undo.now,
            "snapshot": undo.before,
        });
        let place = place(&undo);
        repository.check_changes_allowed().await?;
        if arguments.dry_run {
            return print_result(arguments.json, &result, || format!("{what} would be taken back: {place}\n"));
        }
        let question = format!("{what} will be taken back: {place}.");
        let mounted = ref_commands::mounted(&repository, &undo.branch);
        ref_commands::ask(arguments.confirm, [Some(question), lost(&repository, &undo).await?], mounted)?;
        undo.apply(&repository, system_clock).await?;
        let again = shell::quote(&arguments.repo.location);
        print_result(arguments.json, &result, || {
            format!("{what} is taken back: {place}; `icechunkfs undo {again}` takes this back in turn\n")
        })
    })
}

/// Describes the commits that no ref leads to afterwards.
async fn lost(repository: &Repository, undo: &Undo) -> Result<Option<String>> {
    let Some(now) = undo.now else { return Ok(None) };
    let mut refs = repository.refs().await?;
    refs.branches.remove(&undo.branch);
    let others = refs.branches.into_values().chain(refs.tags.into_values()).chain(undo.before);
    ref_commands::lost_commits(repository, now, others)
}

/// Describes an operation.
async fn describe(repository: &Repository, undo: &Undo) -> String {
    let branch = printable::line(&undo.branch);
    let commit = async |id: ObjectId| match repository.commit(id).await {
        Ok(commit) => format!("{id} \"{}\"", printable::line(commit.title().trim())),
        Err(_) => id.to_string(),
    };
    let what = match &undo.operation {
        Operation::NewCommit { new, .. } => format!("commit {} on branch `{branch}`", commit(*new).await),
        Operation::CommitAmended { new, .. } => {
            format!("the amendment {} of a commit on branch `{branch}`", commit(*new).await)
        }
        Operation::BranchCreated { .. } => format!("the creation of branch `{branch}`"),
        Operation::BranchDeleted { .. } => format!("the deletion of branch `{branch}`"),
        _ => format!("the reset of branch `{branch}`"),
    };
    format!("{what}, {}", format_local_time(undo.at))
}

/// Says where the branch is afterwards.
fn place(undo: &Undo) -> String {
    match (undo.before, undo.now) {
        (Some(before), Some(now)) => format!("the branch goes from {now} to {before}"),
        (Some(before), None) => format!("the branch is created at {before}"),
        (None, _) => "the branch is deleted".to_owned(),
    }
}
