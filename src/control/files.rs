//! The files of the control directory.

use super::DIRECTORY;
use crate::error::Result;
use crate::printable;
use crate::session::Session;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlFile {
    /// Writing commits; reading tells how that went.
    Commit,
    /// What differs, in words.
    Status,
    /// What differs, for programs.
    StatusJson,
    /// The changes of each node.
    Diff,
    /// The commits that led here.
    Log,
    /// What the last commit or refresh collided with.
    Conflicts,
    /// Failures that programs met.
    Errors,
    /// What this mount is.
    Info,
    /// Writing gives changes up.
    Discard,
    /// Writing moves to the branch's newest commit.
    Refresh,
    /// How far a running commit is.
    Progress,
    /// A command of `icechunkfs` as JSON; reading the same handle gives the answer. Not listed.
    Request,
}

const ALL: [(ControlFile, &str); 12] = [
    (ControlFile::Commit, "commit"),
    (ControlFile::Status, "status"),
    (ControlFile::StatusJson, "status.json"),
    (ControlFile::Diff, "diff"),
    (ControlFile::Log, "log"),
    (ControlFile::Conflicts, "conflicts"),
    (ControlFile::Errors, "errors"),
    (ControlFile::Info, "info.json"),
    (ControlFile::Discard, "discard"),
    (ControlFile::Refresh, "refresh"),
    (ControlFile::Progress, "progress"),
    (ControlFile::Request, "request"),
];
const LISTED: [ControlFile; 11] = [
    ControlFile::Commit,
    ControlFile::Status,
    ControlFile::StatusJson,
    ControlFile::Diff,
    ControlFile::Log,
    ControlFile::Conflicts,
    ControlFile::Errors,
    ControlFile::Info,
    ControlFile::Discard,
    ControlFile::Refresh,
    ControlFile::Progress,
];

impl ControlFile {
    /// The file with inode number `number`.
    pub fn at(number: u64) -> Option<Self> {
        let place = usize::try_from(number.checked_sub(DIRECTORY + 1)?).ok()?;
        ALL.get(place).map(|(file, _)| *file)
    }

    /// The file called `name`.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|(_, other)| *other == name).map(|(file, _)| *file)
    }

    /// Those that listings show.
    pub fn listed() -> &'static [Self] {
        &LISTED
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(file, _)| *file == self).map_or("", |(_, name)| name)
    }

    /// Its inode number.
    pub fn number(self) -> u64 {
        DIRECTORY + 1 + ALL.iter().position(|(file, _)| *file == self).unwrap_or(0) as u64
    }

    /// What it says now.
    pub async fn render(self, session: &Session) -> Result<String> {
        match self {
            ControlFile::Status => Ok(session.status().await?.in_words()),
            ControlFile::StatusJson => json(&session.status().await?),
            ControlFile::Diff => session.diff().await.map(|diff| diff.in_words()),
            ControlFile::Log => session.log().await,
            ControlFile::Conflicts => Ok(session.conflicts_in_words()),
            ControlFile::Info => json(&session.info()),
            ControlFile::Progress => json(&session.progress()),
            ControlFile::Commit | ControlFile::Errors | ControlFile::Discard | ControlFile::Refresh => {
                Ok(String::new())
            }
            ControlFile::Request => Ok(String::new()),
        }
    }
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| printable::json(&text) + "\n")
        .map_err(|e| crate::error::Error::with_source(crate::error::ErrorKind::Io, "writing JSON", e))
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
