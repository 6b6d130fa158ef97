//! Virtual chunks that the user allows to be read, described by the repository's configuration.
//!
//! They are made when they are first needed: until then, what is read to open a tree need not wait
//! for the configuration.

use std::sync::Arc;

use tokio::sync::OnceCell;
use tracing::warn;

use super::Repository;
use icechunkfs_store::storage::settings::Settings;
use icechunkfs_store::storage::virtuals::VirtualChunks;
use icechunkfs_store::storage::virtuals::permissions::Permissions;

/// Virtual chunks that may be read.
#[derive(Debug)]
pub(super) struct AllowedVirtuals {
    permissions: Permissions,
    settings: Settings,
    made: OnceCell<Arc<VirtualChunks>>,
}

/// None, for which the configuration is not read.
impl Default for AllowedVirtuals {
    fn default() -> Self {
        let (permissions, settings) = Default::default();
        AllowedVirtuals { permissions, settings, made: OnceCell::new_with(Some(Arc::default())) }
    }
}

impl Repository {
    /// Allows virtual chunks as `permissions` tell, reached as the configuration and `settings`
    /// define.
    #[must_use]
    pub fn allowing(self, permissions: Permissions, settings: &Settings) -> Self {
        let allowed = AllowedVirtuals { permissions, settings: settings.clone(), made: OnceCell::new() };
        Repository { allowed: Arc::new(allowed), ..self }
    }

    /// Returns the virtual chunks that may be read.
    pub async fn virtuals(&self) -> Arc<VirtualChunks> {
        let AllowedVirtuals { permissions, settings, made } = &*self.allowed;
        let make = || async {
            let containers = match self.config().await {
                Ok(config) => config.virtual_containers(),
                Err(error) => {
                    // Everything that is not virtual can be read.
                    warn!("containers of virtual chunks are not known: the configuration cannot be read: {error}");
                    Vec::new()
                }
            };
            Arc::new(VirtualChunks::new(permissions.clone(), containers, settings))
        };
        Arc::clone(made.get_or_init(make).await)
    }
}
