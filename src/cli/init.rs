//! `icechunkfs init`: creates an empty repository.

use clap::Args;

use super::open;
use crate::error::Result;
use crate::repo::create;
use crate::storage::{self, settings::Settings};
use crate::times::system_clock;

/// Arguments of `icechunkfs init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The location: a path or a URL (s3://, gs://, az://, abfs://, file://). It must be empty or not exist.
    pub repo: String,
    /// Add a first commit with a root group.
    #[arg(long)]
    pub zarr_group: bool,
    /// Store settings. Last, because their help heading applies to all later options.
    #[command(flatten)]
    pub store: Settings,
}

/// Creates a repository.
pub fn run(arguments: &InitArgs) -> Result<()> {
    open::runtime()?.block_on(async {
        let storage = storage::open_new(&arguments.repo, &arguments.store).await?;
        create::create(&*storage, arguments.zarr_group, system_clock).await
    })
}
