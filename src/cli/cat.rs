//! `icechunkfs cat`: writes the bytes of one key.

use clap::Args;

use super::repo_args::{RefArgs, RepoArgs};
use super::view_args::ViewArgs;
use super::virtual_args::VirtualArgs;
use super::{open, print_raw};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_tree::tree::Kind;
use icechunkfs_views::views;

/// Bytes per read.
const STEP: u32 = 1 << 20;

#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    /// The key: a path in the mount, such as group/array/zarr.json or group/array/c/0/1.
    #[arg(index = 2)]
    key: String,
    #[command(flatten)]
    reference: RefArgs,
    #[command(flatten)]
    view: ViewArgs,
    #[command(flatten)]
    repo: RepoArgs,
    #[command(flatten)]
    virtuals: VirtualArgs,
}

/// Writes the bytes of a key to standard output.
pub(crate) fn run(arguments: &CatArgs) -> Result<()> {
    let spec = arguments.reference.spec()?;
    open::run(async {
        let repository = arguments.repo.open_with(&arguments.virtuals).await?;
        let tree = open::tree(&repository, &spec, open::MemoryLimits::default()).await?;
        let view = arguments.view.options()?.make(tree, repository.storage().location()).await?;
        let file = views::resolve(&*view, &arguments.key).await.context(|| spec.to_string())?;
        if file.kind == Kind::Directory {
            let message = format!(
                "`{}` is a directory: name a file in it, such as zarr.json or a chunk; `icechunkfs ls` lists groups and arrays",
                arguments.key
            );
            return Err(Error::new(ErrorKind::IsADirectory, message));
        }
        let mut offset = 0;
        while offset < file.size {
            let data = view.read(file.inode, offset, STEP).await?;
            print_raw(&data)?;
            offset += u64::from(STEP);
        }
        Ok(())
    })
}
