//! The arguments for virtual chunks, of every command that reads chunks.

use clap::Args;

use super::open;
use icechunkfs_base::error::Result;
use icechunkfs_repo::repo::Repository;
use icechunkfs_store::storage::settings::Settings;
use icechunkfs_store::storage::virtuals::permissions::Permissions;

/// Variable with further values of `--virtual-option`. It is not clap's: options may be secret only
/// in the environment.
const VARIABLE: &str = "ICECHUNKFS_VIRTUAL_OPTION";

/// Virtual chunks that may be read, and the access to them.
#[derive(Clone, Default, Args)]
#[command(next_help_heading = "Virtual chunks (each is also a variable ICECHUNKFS_..., one value per line)")]
pub(crate) struct VirtualArgs {
    /// Read virtual chunks below PREFIX: a URL (s3://bucket/data, https://host/path, file:///data)
    /// or a path. No other file outside the repository is read. Repeatable.
    #[arg(long, value_name = "PREFIX", env = "ICECHUNKFS_ALLOW_VIRTUAL", hide_env = true, value_delimiter = '\n')]
    pub(super) allow_virtual: Vec<String>,
    /// Read virtual chunks below FROM (a URL; vcc://NAME is a container) from TO instead, a path or
    /// a URL of moved or copied data. Allows FROM. Repeatable.
    #[arg(long, value_name = "FROM=TO", env = "ICECHUNKFS_VIRTUAL_MAP", hide_env = true, value_delimiter = '\n')]
    pub(super) virtual_map: Vec<String>,
    /// Set an option of object stores for everything below PREFIX, such as region, endpoint_url,
    /// profile, anonymous or secrets (a file). `PREFIX,unchecked` reads objects even if they
    /// changed after the reference was made. Allows nothing. Repeatable. Secrets, such as header,
    /// are accepted only in the variable, which adds to the option.
    #[arg(long, value_name = "PREFIX,KEY=VALUE", value_delimiter = '\n')]
    pub(super) virtual_option: Vec<String>,
}

impl VirtualArgs {
    /// Returns the permissions. Invalid arguments fail before anything is opened.
    pub(crate) fn permissions(&self) -> Result<Permissions> {
        let environment = std::env::var(VARIABLE).unwrap_or_default();
        let environment: Vec<String> = environment.lines().filter(|word| !word.is_empty()).map(str::to_owned).collect();
        Permissions::parse(&self.allow_virtual, &self.virtual_map, &self.virtual_option, &environment)
    }

    /// Opens the repository that `repo` names for a command that reads chunks: virtual ones as far
    /// as these arguments allow it.
    pub(crate) async fn open(&self, repo: &str, settings: &Settings) -> Result<Repository> {
        let permissions = self.permissions()?;
        Ok(open::repository(repo, settings).await?.allowing(permissions, settings))
    }
}

/// Omits the values of options, which may be secret.
impl std::fmt::Debug for VirtualArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualArgs")
            .field("allow_virtual", &self.allow_virtual)
            .field("virtual_map", &self.virtual_map)
            .finish_non_exhaustive()
    }
}
