//! Containers for virtual chunks: Icechunk reads only those of files in one of the configuration.

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::shell;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::config::{Container, RepoConfig};
use icechunkfs_format::format::config_edit::containers::CONTAINERS_KEY;
use icechunkfs_format::format::config_edit::{self, key::format_key};
use icechunkfs_repo::repo::Repository;
use icechunkfs_store::storage::virtuals::address::Address;
use serde_json::json;

/// Directories that are in no container yet.
#[derive(Clone, Debug)]
pub struct MissingContainers(Vec<Address>);

impl MissingContainers {
    /// Takes `missing`, prefixes that are in no container.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if there are any and none
    /// `may_be_added`, or if no container can have such a prefix.
    pub fn of(missing: Vec<Address>, may_be_added: bool) -> Result<Self> {
        let next = |directory: &Address| match directory.is_file() {
            true if may_be_added => None,
            true => Some("add --set-container".to_owned()),
            false => Some(format!("`icechunkfs config REPO set {}` adds one", shell::quote(&key(directory)))),
        };
        if let Some((first, next)) = missing.iter().find_map(|directory| Some((directory, next(directory)?))) {
            return Err(Error::invalid(format!(
                "the configuration has no container for {}, and Icechunk would not read virtual chunks there: {next}",
                first.as_prefix()
            )));
        }
        missing.iter().try_for_each(check_name)?;
        Ok(MissingContainers(missing))
    }

    /// Adds them to the configuration.
    pub async fn add(&self, repository: &Repository, clock: Clock) -> Result<()> {
        for directory in &self.0 {
            let prefix = decoded_prefix(directory);
            let path = prefix.trim_start_matches("file://");
            let container = json!({"url_prefix": prefix, "store": {"local_file_system": path}}).to_string();
            let add = |stored: &RepoConfig| config_edit::set(stored.members(), &key(directory), &container);
            repository.change_config(clock, add).await?;
        }
        Ok(())
    }
}

fn key(directory: &Address) -> String {
    format_key(&[CONTAINERS_KEY.to_owned(), decoded_prefix(directory)])
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

/// Fails if the directory is none that a container can have.
fn check_name(directory: &Address) -> Result<()> {
    if directory.components().is_empty() || decoded_prefix(directory).contains(['%', '?', '#', '\\']) {
        return Err(Error::invalid(format!(
            "no container can be at {}: move the files to a directory with a plain name",
            directory.as_prefix()
        )));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_wanted_where_there_are_none_and_have_plain_names() {
        let there = Container { url_prefix: "file:///a b/".to_owned(), ..Container::default() };
        let is_there = |path: &str| is_in_any(&Address::prefix(path).unwrap(), std::slice::from_ref(&there));
        assert_eq!(["file:///a%20b/c", "file:///a%20b", "file:///a"].map(is_there), [true, true, false]);
        let missing = |path: &str, may_be_added| {
            let found = MissingContainers::of(vec![Address::prefix(path).unwrap()], may_be_added);
            found.map(|missing| missing.0.len()).map_err(|error| error.to_string())
        };
        assert_eq!(missing("file:///a", true), Ok(1));
        assert!(missing("file:///a", false).unwrap_err().contains("--set-container"));
        assert!(missing("s3://bucket/x", true).unwrap_err().contains("virtual_chunk_containers.s3://bucket/x/"));
        assert!(missing("file:///50%25", true).unwrap_err().contains("plain name"));
        assert!(missing("file:///", true).unwrap_err().contains("plain name"));
    }
}
