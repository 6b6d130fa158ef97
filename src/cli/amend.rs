//! `icechunkfs amend`: replaces the message or metadata of a branch's newest commit, without a
//! mount.

use clap::Args;
use serde_json::json;

use super::confirm::ConfirmArgs;
use super::repo_args::RepoArgs;
use super::{open, print_result, replace_commits};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_repo::commit::squash::{self, SquashOptions};
use icechunkfs_repo::repo::refs::DEFAULT_BRANCH;

#[derive(Debug, Args)]
pub(crate) struct AmendArgs {
    /// The branch whose newest commit is replaced.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_BRANCH)]
    branch: String,
    /// The new commit message.
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Set a metadata item; VALUE is JSON or text. Other items stay. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Remove a metadata item. Repeatable.
    #[arg(long, value_name = "KEY")]
    unset: Vec<String>,
    /// Print {"branch", "snapshot", "replaced", "parent", "kept"}: the new snapshot (null if
    /// nothing changes), the ids that it replaces (newest first), and the refs that still point to
    /// one of them.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Replaces the newest commit of a branch.
pub(crate) fn run(arguments: &AmendArgs) -> Result<()> {
    let AmendArgs { branch, .. } = arguments;
    let set = replace_commits::metadata(&arguments.metadata)?;
    if arguments.message.is_none() && set.is_empty() && arguments.unset.is_empty() {
        return Err(Error::invalid("nothing to amend: give --message, --metadata or --unset"));
    }
    replace_commits::check_not_reserved(set.keys().chain(&arguments.unset))?;
    open::run(async {
        let repository = arguments.repo.open().await?;
        squash::check(&repository).await?;
        let tip = repository.commit(replace_commits::tip(&repository, branch).await?).await?;
        let before = replace_commits::amended_metadata(&tip)?;
        let mut metadata = before.clone();
        for key in &arguments.unset {
            if metadata.shift_remove(key).is_none() {
                return Err(Error::invalid(format!("--unset {key}: the commit does not have this metadata")));
            }
        }
        metadata.extend(set);
        let message = arguments.message.clone().unwrap_or_else(|| tip.message().to_owned());
        if metadata == *before && message == tip.message() {
            let nothing = json!({"branch": branch, "snapshot": null, "replaced": [], "parent": tip.parent, "kept": []});
            return print_result(arguments.json, &nothing, || "nothing to amend\n".to_owned());
        }
        let question = replace_commits::question(branch, &tip);
        let options = SquashOptions { branch, commits: std::slice::from_ref(&tip), message, metadata };
        let replaced = tip.id.to_string();
        replace_commits::replace(&repository, &options, &question, &replaced, arguments.confirm, arguments.json).await
    })
}
