//! Containers for virtual chunks: Icechunk reads only those of files in one of the configuration.

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::shell;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::config::{Container, RepoConfig};
use icechunkfs_format::format::config_edit::containers::CONTAINERS_KEY;
use icechunkfs_format::format::config_edit::{self, key::format_key};
use icechunkfs_repo::repo::Repository;
use icechunkfs_store::storage::virtuals::VirtualChunks;
use icechunkfs_store::storage::virtuals::address::Address;
use serde_json::{Value, json};

/// Prefixes that are in no container yet, each with its store, as the configuration has it.
#[derive(Clone, Debug, Default)]
pub struct MissingContainers(Vec<(Address, Value)>);

impl MissingContainers {
    /// Takes `missing`, prefixes that are in no container, each with a directory of files below it,
    /// in stores as `virtuals` reaches them; none if only directories of this machine can be added.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if there are any and none
    /// `may_be_added`, or if no container can have such a prefix; others as for connecting.
    pub async fn of(
        missing: Vec<(Address, Address)>,
        may_be_added: bool,
        virtuals: Option<&VirtualChunks>,
    ) -> Result<Self> {
        let mut all = Vec::new();
        for (prefix, directory) in missing {
            let next = match (prefix.is_file() || virtuals.is_some(), may_be_added) {
                (true, true) => None,
                (true, false) => Some("add --set-container".to_owned()),
                (false, _) => Some(format!("`icechunkfs config REPO set {}` adds one", shell::quote(&key(&prefix)))),
            };
            if let Some(next) = next {
                return Err(Error::invalid(format!(
                    "the configuration has no container for {}, and Icechunk would not read virtual chunks there: {next}",
                    prefix.as_prefix()
                )));
            }
            check_name(&prefix)?;
            let store = match virtuals.filter(|_| !prefix.is_file()) {
                Some(virtuals) => virtuals.container_store(&directory).await?,
                None => json!({"local_file_system": decoded_prefix(&prefix).trim_start_matches("file://")}),
            };
            all.push((prefix, store));
        }
        Ok(MissingContainers(all))
    }

    /// Adds them to the configuration.
    pub async fn add(&self, repository: &Repository, clock: Clock) -> Result<()> {
        for (prefix, store) in &self.0 {
            let container = json!({"url_prefix": decoded_prefix(prefix), "store": store}).to_string();
            let add = |stored: &RepoConfig| config_edit::set(stored.members(), &key(prefix), &container);
            repository.change_config(clock, add).await?;
        }
        Ok(())
    }
}

fn key(prefix: &Address) -> String {
    format_key(&[CONTAINERS_KEY.to_owned(), decoded_prefix(prefix)])
}

/// Returns true if files below `directory` are in one of `containers`. Icechunk compares the
/// prefixes of these, as they are, with decoded locations.
pub fn is_in_any(directory: &Address, containers: &[Container]) -> bool {
    containers.iter().any(|container| decoded_prefix(directory).starts_with(&container.url_prefix))
}

/// Returns the prefix of a container, which is compared with locations after these are decoded.
fn decoded_prefix(directory: &Address) -> String {
    directory.components().iter().fold(directory.root().as_prefix(), |prefix, name| prefix + name + "/")
}

/// Fails if the prefix is none that a container can have.
fn check_name(prefix: &Address) -> Result<()> {
    let is_root = prefix.is_file() && prefix.components().is_empty();
    if is_root || decoded_prefix(prefix).contains(['%', '?', '#', '\\']) {
        return Err(Error::invalid(format!(
            "a container cannot be at {}: move the files to a directory with a plain name",
            prefix.as_prefix()
        )));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn containers_are_wanted_where_there_are_none_and_have_plain_names() {
        let there = Container { url_prefix: "file:///a b/".to_owned(), ..Container::default() };
        let is_there = |path: &str| is_in_any(&Address::prefix(path).unwrap(), std::slice::from_ref(&there));
        assert_eq!(["file:///a%20b/c", "file:///a%20b", "file:///a"].map(is_there), [true, true, false]);
        for (path, may_be_added, why) in [
            ("file:///a", true, ""),
            ("file:///a", false, "--set-container"),
            ("s3://bucket/x", true, "virtual_chunk_containers.s3://bucket/x/"),
            ("file:///50%25", true, "plain name"),
            ("file:///", true, "plain name"),
        ] {
            let prefix = Address::prefix(path).unwrap();
            let found = MissingContainers::of(vec![(prefix.clone(), prefix)], may_be_added, None).await;
            let told = found.map_or_else(|error| error.to_string(), |missing| "x".repeat(missing.0.len() - 1));
            assert!(told.contains(why) && told.is_empty() == why.is_empty(), "{path}: {told}");
        }
    }
}
