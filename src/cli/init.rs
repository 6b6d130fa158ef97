//! `icechunkfs init`: creates an empty repository.

use super::args::InitArgs;
use super::open;
use crate::error::Result;
use crate::repo::create;
use crate::storage;
use crate::times::system_clock;

/// Creates a repository.
pub fn run(arguments: &InitArgs) -> Result<()> {
    open::runtime()?.block_on(async {
        let storage = storage::open_new(&arguments.repo, &arguments.store).await?;
        create::create(&*storage, arguments.zarr_group, system_clock).await
    })
}
