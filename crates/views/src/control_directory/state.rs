//! Contents of the control files that every mount has.

use async_trait::async_trait;
use serde::Serialize;

use super::files::ControlFile;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_base::printable;
use icechunkfs_base::recent_errors::RecentErrors;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_tree::mount_facts::MountFacts;

/// State of a mount.
#[async_trait]
pub trait MountState: Sync {
    /// Returns the facts about the mount.
    fn facts(&self) -> &MountFacts;

    /// Returns the snapshot that the mount shows, or is based on.
    fn snapshot(&self) -> ObjectId;

    /// Returns the most recent failures.
    fn errors(&self) -> &RecentErrors;

    /// Summarizes what the mount shows.
    async fn status(&self) -> Result<String>;

    /// Returns the commits that led to the snapshot, newest first.
    async fn log(&self) -> Result<Metered<String>>;

    /// Returns counts of what the daemon has done.
    async fn stats(&self) -> Result<String>;
}

/// Renders the current content of a file that every mount has; empty for other files.
pub async fn render(file: ControlFile, mount: &impl MountState) -> Result<Metered<String>> {
    Ok(Metered::own(match file {
        ControlFile::Info => json(&mount.facts().info(mount.snapshot()))?,
        ControlFile::Head => mount.facts().head(mount.snapshot()),
        ControlFile::Status => mount.status().await?,
        ControlFile::RecentErrors => mount.errors().render(),
        ControlFile::Stats => mount.stats().await?,
        ControlFile::Log => return mount.log().await,
        ControlFile::Commit
        | ControlFile::StatusJson
        | ControlFile::Diff
        | ControlFile::Conflicts
        | ControlFile::Discard
        | ControlFile::Refresh
        | ControlFile::Cancel
        | ControlFile::Progress
        | ControlFile::Request => String::new(),
    }))
}

/// Returns `value` as text for people and programs.
pub fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| printable::json(&text) + "\n").map_err(|e| Error::with_source(ErrorKind::Io, "writing JSON", e))
}
