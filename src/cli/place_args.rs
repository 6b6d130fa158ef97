//! The arguments of commands whose result is an uncommitted change in a mount, and a commit on a
//! branch without one.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;
use serde_json::{Map, Value};

use super::{control_client, replace_commits};
use crate::fuse::open_mount::{self, OpenMount};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_repo::repo::refs::DEFAULT_BRANCH;
use icechunkfs_store::storage::settings::Settings;

/// A mount or a repository, and what is only for a commit. Flattened last, because the help heading
/// of the settings applies to all later options.
#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    /// The mountpoint of a branch, for an uncommitted change; or a repository (a path or a URL),
    /// for a commit at once.
    #[arg(index = 1, value_name = "MOUNTPOINT|REPO")]
    place: OsString,
    /// The branch that gets the commit [default: main]; a mount has its own.
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    /// Set a metadata item; VALUE is JSON or text. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    #[command(flatten)]
    pub(super) store: Settings,
}

impl PlaceArgs {
    /// Returns true if the place is a mountpoint.
    pub(super) fn is_mount(&self) -> bool {
        open_mount::is_mountpoint(Path::new(&self.place))
    }

    /// Opens the writable mount. Fails if there are options for a commit: those here, or the
    /// `message` of command `name`.
    pub(super) fn open_mount(&self, message: Option<&str>, name: &str) -> Result<OpenMount> {
        let for_commits = [
            ("--branch", self.branch.is_some()),
            ("--message", message.is_some()),
            ("--metadata", !self.metadata.is_empty()),
        ];
        if let Some((option, _)) = for_commits.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Error::invalid(format!(
                "{option} cannot be used with a mount, where a {name} is an uncommitted change: {name} without it, \
                 then commit"
            )));
        }
        control_client::open_writable(Path::new(&self.place))
    }

    /// Returns the location of the repository.
    ///
    /// Errors: if it is a path in a mount. Whether the mount or its branch was meant is not clear:
    /// one result is published at once, and the other is not.
    pub(super) fn location(&self) -> Result<&str> {
        let place = self.place.to_str().ok_or_else(|| Error::invalid("the repository's name is not UTF-8"))?;
        let Some(mount) = OpenMount::containing(Path::new(place)) else { return Ok(place) };
        let mountpoint = mount.mount().mountpoint.display();
        Err(Error::invalid(format!(
            "{place} is in the mount {mountpoint}: name {mountpoint} for an uncommitted change there, or the repository for a \
             commit"
        )))
    }

    /// Returns the metadata of the commit as it was given.
    pub(super) fn metadata_items(&self) -> &[String] {
        &self.metadata
    }

    /// Returns the branch that gets the commit.
    pub(super) fn branch(&self) -> String {
        self.branch.clone().unwrap_or_else(|| DEFAULT_BRANCH.to_owned())
    }

    /// Returns the metadata of the commit. Fails if an item is reserved.
    pub(super) fn metadata(&self) -> Result<Map<String, Value>> {
        let metadata = replace_commits::metadata(&self.metadata)?;
        replace_commits::check_not_reserved(metadata.keys())?;
        Ok(metadata)
    }
}
