//! `icechunkfs refs`: lists branches and tags with their snapshot ids.

use std::fmt::Write;

use clap::Args;
use serde_json::json;

use super::repo_args::RepoArgs;
use super::{open, print, print_json};
use crate::error::Result;
use crate::printable;

/// Arguments of `icechunkfs refs`.
#[derive(Debug, Args)]
pub struct RefsArgs {
    /// Print {"branches": {NAME: ID}, "tags": {NAME: ID}}.
    #[arg(long)]
    pub json: bool,
    /// The repository. Last, because the help heading of its settings applies to all later options.
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// Prints all refs.
pub fn run(arguments: &RefsArgs) -> Result<()> {
    let refs = open::runtime()?.block_on(async { arguments.repo.open().await?.refs().await })?;
    if arguments.json {
        return print_json(&json!({"branches": refs.branches, "tags": refs.tags}));
    }
    let mut text = String::new();
    for (kind, ids) in [("branch", &refs.branches), ("tag", &refs.tags)] {
        for (name, id) in ids {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{id}  {kind:<6}  {}", printable::line(name));
        }
    }
    print(&text)
}
