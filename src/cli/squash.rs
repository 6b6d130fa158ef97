//! `icechunkfs squash`: combines the newest commits of a branch into one.

use clap::Args;
use serde_json::Map;

use super::confirm::ConfirmArgs;
use super::export::listed;
use super::repo_args::RepoArgs;
use super::{open, replace_commits};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_base::printable;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_repo::commit::squash::{self, SquashOptions};
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::refs::DEFAULT_BRANCH;

#[derive(Debug, Args)]
pub(crate) struct SquashArgs {
    /// The branch whose newest commits are combined.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_BRANCH)]
    branch: String,
    #[command(flatten)]
    range: RangeArgs,
    /// The new commit message [default: the messages of all commits, oldest first].
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Set a metadata item; VALUE is JSON or text. Other items stay, the newest of each name.
    /// Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Print {"branch", "snapshot", "replaced", "parent", "kept"}: the new snapshot, the ids that
    /// it replaces (newest first), and the refs that still point to one of them.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Beginning of the commits to combine, which end with the branch's newest.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct RangeArgs {
    /// Combine this many commits.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    last: Option<u32>,
    /// Combine this commit and all after it: a branch, a tag, an id, or an earlier commit such as
    /// main~2.
    #[arg(long, value_name = "REF")]
    from: Option<String>,
    /// Combine all commits after this one.
    #[arg(long, value_name = "REF")]
    since: Option<String>,
}

/// Combines several commits into one.
pub(crate) fn run(arguments: &SquashArgs) -> Result<()> {
    let SquashArgs { branch, .. } = arguments;
    let set = replace_commits::metadata(&arguments.metadata)?;
    replace_commits::check_not_reserved(set.keys())?;
    open::run(async {
        let repository = arguments.repo.open().await?;
        squash::check(&repository).await?;
        let commits = range(&repository, branch, &arguments.range).await?;
        let question = format!(
            "{} commits of branch {} become one:\n{}\nMounts and programs based on one of them must be restarted.",
            commits.len(),
            printable::line(branch),
            listed(
                commits.iter().map(|commit| format!("  {}", replace_commits::commit_line(commit))),
                commits.len() as u64
            )
        );
        let mut metadata = Map::new();
        let mut meter = Meter::new("the message and metadata of the new commit");
        for commit in commits.iter().rev() {
            let kept = replace_commits::kept_metadata(commit)?;
            meter.count(kept.reserved())?;
            metadata.extend(kept.into_inner());
        }
        metadata.extend(set);
        let message = match &arguments.message {
            Some(message) => message.clone(),
            None => joined_messages(&commits, &mut meter)?,
        };
        let options = SquashOptions { branch, commits: &commits, message, metadata };
        let replaced = format!("{} commits", commits.len());
        replace_commits::replace(&repository, &options, &question, &replaced, arguments.confirm, arguments.json).await
    })
}

/// Returns the messages of `commits`, which are newest first, oldest first. `meter` counts them.
fn joined_messages(commits: &[SnapshotInfo], meter: &mut Meter) -> Result<String> {
    let mut joined = String::new();
    for commit in commits.iter().rev() {
        let message = commit.message().trim_end();
        meter.count(2 * message.len() as u64)?;
        if !message.is_empty() {
            joined += if joined.is_empty() { "" } else { "\n\n" };
            joined += message;
        }
    }
    Ok(joined)
}

/// Returns the commits to combine, newest first.
async fn range(repository: &Repository, branch: &str, range: &RangeArgs) -> Result<Metered<Vec<SnapshotInfo>>> {
    let tip = replace_commits::tip(repository, branch).await?;
    let commits = if let Some(last) = range.last {
        let commits = repository.history(tip, last as usize).await?;
        if commits.len() < last as usize {
            return Err(Error::invalid(format!("--last {last}: branch `{branch}` has only {} commits", commits.len())));
        }
        commits
    } else if let Some(word) = range.from.as_ref().or(range.since.as_ref()) {
        let first = repository.resolve_revision(word).await?.id;
        let mut commits = repository.history(tip, usize::MAX).await?;
        let Some(at) = commits.iter().position(|commit| commit.id == first) else {
            return Err(Error::invalid(format!("{first} (`{word}`) is not in the history of branch `{branch}`")));
        };
        commits.truncate(if range.from.is_some() { at + 1 } else { at });
        commits
    } else {
        Metered::default()
    };
    match commits.as_slice() {
        [] | [_] => Err(Error::invalid(format!(
            "that is only one commit of branch `{branch}`: `icechunkfs amend` gives it another message"
        ))),
        [.., oldest] if oldest.parent.is_none() => Err(Error::invalid(format!(
            "{} is the commit that the repository begins with, which stays: begin with the one after it",
            oldest.id
        ))),
        _ => Ok(commits),
    }
}
