//! The words about virtual chunks, for every command that reads chunks.

use std::sync::Arc;

use clap::Args;
use tracing::warn;

use crate::error::Result;
use crate::repo::Repository;
use crate::storage::settings::Settings;
use crate::storage::virtuals::Virtuals;
use crate::storage::virtuals::permissions::Permissions;

/// The variable with more of `--virtual-option`. It is not clap's: only in the environment may an option be secret.
const VARIABLE: &str = "ICECHUNKFS_VIRTUAL_OPTION";

/// Which virtual chunks may be read, and how.
#[derive(Clone, Default, Args)]
#[command(next_help_heading = "Virtual chunks (each is also a variable ICECHUNKFS_..., with one word a line)")]
pub struct VirtualArgs {
    /// Read virtual chunks that lie below PREFIX: a URL (s3://bucket/data, https://host/path, file:///data) or a path. Nothing
    /// else of other people's files is read. Repeatable.
    #[arg(long, value_name = "PREFIX", env = "ICECHUNKFS_ALLOW_VIRTUAL", hide_env = true, value_delimiter = '\n')]
    pub allow_virtual: Vec<String>,
    /// Read what references say is below FROM (a URL; vcc://NAME is a container) below TO instead, a path or a URL: data that
    /// has moved, or a copy of it. Allows FROM. Repeatable.
    #[arg(long, value_name = "FROM=TO", env = "ICECHUNKFS_VIRTUAL_MAP", hide_env = true, value_delimiter = '\n')]
    pub virtual_map: Vec<String>,
    /// How what is below PREFIX is reached: KEY is an option of object stores, such as region, endpoint_url, profile, anonymous
    /// or secrets (a file). `PREFIX,unchecked` takes the bytes as they are, whatever state the reference was made to. Allows nothing.
    /// Repeatable. Secrets, such as header, are taken only from the variable, which counts beside the option.
    #[arg(long, value_name = "PREFIX,KEY=VALUE", value_delimiter = '\n')]
    pub virtual_option: Vec<String>,
}

impl VirtualArgs {
    /// What the words permit. Wrong ones are told before anything is opened.
    pub fn permissions(&self) -> Result<Permissions> {
        let environment = std::env::var(VARIABLE).unwrap_or_default();
        let environment: Vec<String> = environment.lines().filter(|word| !word.is_empty()).map(str::to_owned).collect();
        Permissions::from_words(&self.allow_virtual, &self.virtual_map, &self.virtual_option, &environment)
    }
}

/// `repository` with those virtual chunks that `permissions` allow, reached as its configuration and `settings` say.
pub async fn allow(repository: Repository, permissions: Permissions, settings: &Settings) -> Repository {
    let containers = match repository.config().await {
        Ok(config) => config.virtual_containers(),
        Err(error) => {
            // All that is not virtual can be read.
            warn!("containers of virtual chunks are not known: the configuration cannot be read: {error}");
            Vec::new()
        }
    };
    repository.with_virtuals(Arc::new(Virtuals::new(permissions, containers, settings)))
}

/// Without the words of options, which may be secret.
impl std::fmt::Debug for VirtualArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualArgs")
            .field("allow_virtual", &self.allow_virtual)
            .field("virtual_map", &self.virtual_map)
            .finish_non_exhaustive()
    }
}
