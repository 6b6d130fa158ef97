//! `icechunkfs tag`: refs that never change.

use clap::{Args, Subcommand};

use super::ref_commands::{self, CreateArgs, DeleteArgs, ListArgs};
use super::{open, print_result};
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;
use icechunkfs_repo::repo::change_refs::RefKind;

#[derive(Debug, Args)]
pub(crate) struct TagArgs {
    /// The repository: a path or a URL.
    repo: String,
    #[command(subcommand)]
    action: TagAction,
}

/// Actions on tags.
#[derive(Debug, Subcommand)]
pub(crate) enum TagAction {
    /// List tags and their snapshots.
    List(ListTagsArgs),
    /// Create a tag. The name must be new; the name of a deleted tag cannot be used again.
    Create(CreateArgs),
    /// Delete a tag. Its name cannot be used again.
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListTagsArgs {
    /// List the names of deleted tags instead, which cannot be used again.
    #[arg(long, conflicts_with = "long")]
    deleted: bool,
    #[command(flatten)]
    list: ListArgs,
}

pub(crate) fn run(arguments: &TagArgs) -> Result<()> {
    let repo = &arguments.repo;
    open::run(async {
        match &arguments.action {
            TagAction::List(list) if list.deleted => deleted(repo, &list.list).await,
            TagAction::List(list) => ref_commands::list(repo, RefKind::Tag, &list.list).await,
            TagAction::Create(create) => ref_commands::create(repo, RefKind::Tag, create).await,
            TagAction::Delete(delete) => ref_commands::delete(repo, RefKind::Tag, delete).await,
        }
    })
}

async fn deleted(repo: &str, arguments: &ListArgs) -> Result<()> {
    let repository = open::repository(repo, &arguments.store).await?;
    let names = repository.deleted_tags().await?;
    let text = || names.iter().map(|name| printable::line(name) + "\n").collect();
    print_result(arguments.json, &*names, text)
}
