//! What makes a repository the same one wherever it lies: its first snapshot, and when that was made.
//!
//! The first snapshot is never amended, never expires, and stays in the history of `main`. Its id alone says little, because
//! most repositories have the same one; its time is that of the repository's creation, in microseconds. A copy of a repository is
//! the same one by this measure, and has the same snapshots up to the moment when it was copied.

use std::fmt;
use std::str::FromStr;

use super::history::format_time;
use super::refs::DEFAULT_BRANCH;
use super::{Generation, MAX_SNAPSHOT, Repository};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::ObjectId;

/// A repository, wherever it lies. Its text is what [`FromStr`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The id of the first snapshot.
    first: ObjectId,
    /// When that was made: microseconds since 1970-01-01 UTC.
    created: u64,
}

impl Identity {
    /// When the repository was created, as people write it.
    pub fn created(&self) -> String {
        format_time(self.created)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.first, self.created)
    }
}

impl FromStr for Identity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::corrupt(format!("`{text}` identifies no repository"));
        let (first, created) = text.split_once('@').ok_or_else(wrong)?;
        Ok(Identity { first: first.parse()?, created: created.parse().map_err(|_| wrong())? })
    }
}

impl Repository {
    /// Returns what identifies the repository. None where that would take reading a whole history: in version 1 without a
    /// snapshot of the usual first id, as releases before 0.2.17 made them, and before 0.2.
    pub async fn identity(&self) -> Result<Option<Identity>> {
        let first = match &self.generation {
            Generation::Alpha(_) => return Ok(None),
            Generation::V1(_) => Some(ObjectId::INITIAL),
            Generation::V2(_) => {
                let mut first = None;
                if let Some(tip) = self.branch_tip(DEFAULT_BRANCH).await? {
                    self.walk(tip, |commit| {
                        first = Some(commit.id);
                        true
                    })
                    .await?;
                }
                first
            }
        };
        let Some(first) = first else { return Ok(None) };
        Ok(self.created_with(first).await?.map(|created| Identity { first, created }))
    }

    /// Whether this is the repository that `identity` is of.
    pub async fn is(&self, identity: &Identity) -> Result<bool> {
        Ok(self.created_with(identity.first).await? == Some(identity.created))
    }

    /// When snapshot `id` was made; none if the repository does not have it.
    async fn created_with(&self, id: ObjectId) -> Result<Option<u64>> {
        if let Generation::V2(info) = &self.generation {
            return info.position(id).map(|position| Ok(info.snapshot(position)?.flushed_at)).transpose();
        }
        match self.storage.get_range(&format!("snapshots/{id}"), 0, 1).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            _ => Ok(Some(self.snapshot(id, MAX_SNAPSHOT).await?.flushed_at())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn identities_are_read_as_they_are_written() {
        let identity = Identity { first: ObjectId::INITIAL, created: 1_700_000_000_123_456 };
        assert_eq!(identity.to_string().parse::<Identity>().unwrap(), identity);
        for text in ["", "@", "1CECHNKREP0F1RSTCMT0", "1CECHNKREP0F1RSTCMT0@x"] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }
}
