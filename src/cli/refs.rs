//! `icechunkfs refs`: lists branches and tags with their snapshot ids.

use clap::Args;
use serde_json::json;

use super::repo_args::RepoArgs;
use super::{open, print_result};
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;

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
    let refs = open::run(async { arguments.repo.open().await?.refs().await })?;
    print_result(arguments.json, &json!({"branches": refs.branches, "tags": refs.tags}), || {
        let branches = refs.branches.iter().map(|ref_| ("branch", ref_));
        let all = branches.chain(refs.tags.iter().map(|ref_| ("tag", ref_)));
        all.map(|(kind, (name, id))| format!("{id}  {kind:<6}  {}\n", printable::line(name))).collect()
    })
}
