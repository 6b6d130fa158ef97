//! `icechunkfs amend`: replaces the message or metadata of a branch's newest commit, without a mount.

use clap::Args;
use serde_json::json;

use super::args::CommonArgs;
use super::confirm::ConfirmArgs;
use super::{open, print, print_json, ref_commands, replace_commits};
use crate::commit::engine::RESERVED;
use crate::commit::squash::{self, SquashOptions};
use crate::error::{Error, Result};
use crate::printable;
use crate::repo::refs::DEFAULT_BRANCH;
use crate::storage::settings::Settings;
use crate::times::system_clock;

/// Arguments of `icechunkfs amend`.
#[derive(Debug, Args)]
pub struct AmendArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, file://).
    pub repo: String,
    /// The branch whose newest commit is replaced.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_BRANCH)]
    pub branch: String,
    /// The new commit message.
    #[arg(short, long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Set a metadata item; VALUE is JSON, otherwise text. Other items stay. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub metadata: Vec<String>,
    /// Remove a metadata item. Repeatable.
    #[arg(long, value_name = "KEY")]
    pub unset: Vec<String>,
    /// Print {"branch", "snapshot", "replaced", "parent", "kept"}: the new snapshot's id, the ids that it replaces (newest
    /// first), and refs that still point to one of them. Snapshot is null if nothing changes.
    #[arg(long)]
    pub json: bool,
    /// Confirmation.
    #[command(flatten)]
    pub confirm: ConfirmArgs,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Store settings. Last, because their help heading applies to all later options.
    #[command(flatten)]
    pub store: Settings,
}

/// Replaces the newest commit of a branch.
pub fn run(arguments: &AmendArgs) -> Result<()> {
    let AmendArgs { branch, .. } = arguments;
    let set = replace_commits::metadata(&arguments.metadata)?;
    if arguments.message.is_none() && set.is_empty() && arguments.unset.is_empty() {
        return Err(Error::invalid("nothing to amend: give --message, --metadata or --unset"));
    }
    if set.keys().chain(&arguments.unset).any(|key| key == RESERVED) {
        return Err(Error::invalid(format!("metadata `{RESERVED}` is reserved: choose another name")));
    }
    open::runtime()?.block_on(async {
        let repository = open::repository(&arguments.repo, &arguments.store).await?;
        squash::check(&repository).await?;
        let commits = repository.history(replace_commits::tip(&repository, branch).await?, 1).await?;
        let Some(tip) = commits.first() else { return Err(Error::invalid("the branch has no commit")) };
        let mut metadata = tip.metadata.clone();
        for key in &arguments.unset {
            if metadata.shift_remove(key).is_none() {
                return Err(Error::invalid(format!("--unset {key}: the commit has no such metadata")));
            }
        }
        metadata.extend(set);
        let message = arguments.message.clone().unwrap_or_else(|| tip.message.clone());
        let parent = tip.parent.map(|id| id.to_string());
        if metadata == tip.metadata && message == tip.message {
            let nothing = json!({"branch": branch, "snapshot": null, "replaced": [], "parent": parent, "kept": []});
            return if arguments.json { print_json(&nothing) } else { print("it says so already\n") };
        }
        let kept = replace_commits::others(&repository, branch, &commits).await?;
        let shown = printable::line(branch);
        let question = format!(
            "Branch {shown} gets another newest commit in the place of\n  {}\nMounts and programs that work on that one have \
             to begin anew.\n{}",
            replace_commits::line(tip),
            replace_commits::kept(&kept)
        );
        ref_commands::ask(arguments.confirm, question.trim_end().to_owned(), ref_commands::mounted(&repository, branch))?;
        let wanted = SquashOptions { branch, commits: &commits, message, metadata };
        let id = squash::squash(&repository, system_clock, &wanted).await?.to_string();
        if arguments.json {
            let replaced = [tip.id.to_string()];
            let done = json!({"branch": branch, "snapshot": id, "replaced": replaced, "parent": parent, "kept": kept});
            return print_json(&done);
        }
        let text = format!("branch {shown}: {id} in the place of {}\n{}", tip.id, replace_commits::kept(&kept));
        print(&text)
    })
}
