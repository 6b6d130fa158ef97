//! `icechunkfs init`: creates an empty repository.

use clap::Args;

use super::open;
use super::sync_args::notes;
use icechunkfs_base::error::Result;
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::repo::create;
use icechunkfs_store::storage::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The location, empty or new: a path or a URL (s3://, gs://, az://, abfs://).
    repo: String,
    /// Add a first commit with a root group.
    #[arg(long)]
    zarr_group: bool,
    #[command(flatten)]
    store: Settings,
}

/// Creates a repository.
pub(crate) fn run(arguments: &InitArgs) -> Result<()> {
    open::run(async {
        let storage = open::new_place(&arguments.repo, &arguments.store).await?;
        create::create(&*storage, arguments.zarr_group, system_clock).await?;
        // Of a clone that was there before.
        notes().inspect(|notes| notes.remove(&*storage));
        Ok(())
    })
}
