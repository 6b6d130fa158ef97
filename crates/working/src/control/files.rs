//! The control files: names, inode numbers, contents.

use super::DIRECTORY;
use crate::operations::Session;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Metered;
use icechunkfs_base::printable;
use icechunkfs_tree::inodes::CONTROL;

/// A control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlFile {
    /// Writing commits; reading returns the outcome.
    Commit,
    /// Summary of the uncommitted changes, as text.
    Status,
    /// Summary of the uncommitted changes, as JSON.
    StatusJson,
    /// Uncommitted changes of each node.
    Diff,
    /// Commits that led to the base.
    Log,
    /// Conflicts of the last commit or refresh.
    Conflicts,
    /// Recent failures that programs met.
    RecentErrors,
    /// Facts about the mount, as JSON.
    Info,
    /// Writing discards changes.
    Discard,
    /// Writing rebases the working tree onto the branch tip.
    Refresh,
    /// Progress of a running commit.
    Progress,
    /// A command of `icechunkfs` as JSON; reading the same handle returns the answer. Not listed.
    Request,
    /// Branch and base snapshot.
    Head,
    /// Counts of what the daemon has done.
    Stats,
}

/// Files in the order of [`ControlFile`], with their names.
const ALL: [(ControlFile, &str); 14] = [
    (ControlFile::Commit, "commit"),
    (ControlFile::Status, "status"),
    (ControlFile::StatusJson, "status.json"),
    (ControlFile::Diff, "diff"),
    (ControlFile::Log, "log"),
    (ControlFile::Conflicts, "conflicts"),
    (ControlFile::RecentErrors, "errors"),
    (ControlFile::Info, "info.json"),
    (ControlFile::Discard, "discard"),
    (ControlFile::Refresh, "refresh"),
    (ControlFile::Progress, "progress"),
    (ControlFile::Request, "request"),
    (ControlFile::Head, "HEAD"),
    (ControlFile::Stats, "stats"),
];

/// The directory has the first number.
const _: () = assert!((ALL.len() as u64) < CONTROL.count());

impl ControlFile {
    /// Returns the file with inode number `number`.
    pub fn at(number: u64) -> Option<Self> {
        let place = usize::try_from(number.checked_sub(DIRECTORY + 1)?).ok()?;
        ALL.get(place).map(|(file, _)| *file)
    }

    /// Returns the file called `name`.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|(_, other)| *other == name).map(|(file, _)| *file)
    }

    /// Returns the files that listings show.
    pub fn listed() -> impl Iterator<Item = Self> {
        ALL.iter().map(|(file, _)| *file).filter(|file| *file != ControlFile::Request)
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        ALL.get(self as usize).map_or("", |(_, name)| name)
    }

    /// Returns the inode number.
    pub fn number(self) -> u64 {
        DIRECTORY + 1 + self as u64
    }

    /// Renders the current content; empty for the files whose content [`super::Control`] has.
    pub async fn render(self, session: &Session) -> Result<Metered<String>> {
        let text = match self {
            ControlFile::Status => session.status().await?.to_text(),
            ControlFile::StatusJson => json(&session.status().await?)?,
            ControlFile::Diff => session.diff().await?.to_text(),
            ControlFile::Log => return session.log().await,
            ControlFile::Conflicts => session.conflicts_text(),
            ControlFile::Info => json(&session.info())?,
            ControlFile::Head => session.head(),
            ControlFile::Stats => session.stats().await?,
            ControlFile::Progress => json(&session.progress())?,
            _ => String::new(),
        };
        Ok(Metered::own(text))
    }
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| printable::json(&text) + "\n").map_err(|e| {
        icechunkfs_base::error::Error::with_source(icechunkfs_base::error::ErrorKind::Io, "writing JSON", e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_belong_together() {
        for (file, name) in ALL {
            assert_eq!(ControlFile::named(name), Some(file));
            assert_eq!(ControlFile::at(file.number()), Some(file));
        }
        assert_eq!(ControlFile::at(DIRECTORY), None);
        assert_eq!(ControlFile::named("x"), None);
    }
}
