//! `icechunkfs refs`: lists branches and tags with their snapshot ids.

use clap::Args;
use serde_json::json;

use super::repo_args::RepoArgs;
use super::{open, print, print_json};
use crate::error::Result;
use crate::printable;

#[derive(Debug, Args)]
pub(crate) struct RefsArgs {
    /// Print {"branches": {NAME: ID}, "tags": {NAME: ID}}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Prints all refs.
pub(crate) fn run(arguments: &RefsArgs) -> Result<()> {
    let refs = open::runtime()?.block_on(async { arguments.repo.open().await?.refs().await })?;
    if arguments.json {
        return print_json(&json!({"branches": refs.branches, "tags": refs.tags}));
    }
    let mut text = String::new();
    for (kind, ids) in [("branch", &refs.branches), ("tag", &refs.tags)] {
        for (name, id) in ids {
            text += &format!("{id}  {kind:<6}  {}\n", printable::line(name));
        }
    }
    print(&text)
}
