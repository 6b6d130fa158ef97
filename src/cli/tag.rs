//! `icechunkfs tag`: refs that never change.

use clap::{Args, Subcommand};

use super::ref_commands::{self, CreateArgs, DeleteArgs, ListArgs, OpenRepository};
use super::{print, print_json};
use crate::error::Result;
use crate::printable;
use crate::repo::change_refs::RefKind;

/// Arguments of `icechunkfs tag`.
#[derive(Debug, Args)]
pub struct TagArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// The action to run.
    #[command(subcommand)]
    pub action: TagAction,
}

/// Actions on tags.
#[derive(Debug, Subcommand)]
pub enum TagAction {
    /// List tags and their snapshots.
    List(ListTagsArgs),
    /// Create a tag. The name must be new; the name of a deleted tag cannot be used again.
    Create(CreateArgs),
    /// Delete a tag. Its name cannot be used again.
    Delete(DeleteArgs),
}

/// Arguments of `icechunkfs tag REPO list`.
#[derive(Debug, Args)]
pub struct ListTagsArgs {
    /// List the names of deleted tags instead, which cannot be used again; with --json as a list.
    #[arg(long, conflicts_with = "long")]
    pub deleted: bool,
    /// Arguments common with branches.
    #[command(flatten)]
    pub list: ListArgs,
}

/// Runs the action.
pub fn run(arguments: &TagArgs) -> Result<()> {
    let repo = &arguments.repo;
    match &arguments.action {
        TagAction::List(list) if list.deleted => deleted(repo, &list.list),
        TagAction::List(list) => ref_commands::list(repo, RefKind::Tag, &list.list),
        TagAction::Create(create) => ref_commands::create(repo, RefKind::Tag, create),
        TagAction::Delete(delete) => {
            ref_commands::delete(repo, RefKind::Tag, delete, "The name of a deleted tag cannot be used again.")
        }
    }
}

fn deleted(repo: &str, arguments: &ListArgs) -> Result<()> {
    let work = OpenRepository::begin(repo, &arguments.store)?;
    let names = work.runtime.block_on(work.repository.deleted_tags())?;
    if arguments.json {
        return print_json(&names);
    }
    let lines: String = names.iter().map(|name| format!("{}\n", printable::line(name))).collect();
    print(&lines)
}
