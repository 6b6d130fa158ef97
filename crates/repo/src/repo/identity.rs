//! Identity of a repository, independent of its location: the id and the time of its first
//! snapshot.
//!
//! The first snapshot is never amended, never expires, and stays in the history of `main`. Its id
//! alone identifies little, because most repositories share it; its time, in microseconds, is that
//! of the repository's creation. By this measure a copy of a repository is the same repository, and
//! has the same snapshots up to the moment of copying.

use std::fmt;
use std::str::FromStr;

use super::refs::DEFAULT_BRANCH;
use super::{Generation, MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::times::format_time;
use icechunkfs_format::format::ids::ObjectId;

/// Location-independent identity of a repository. Its text form is parsed by [`FromStr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    first: ObjectId,
    /// Time of the first snapshot, in microseconds since 1970-01-01 UTC.
    created: u64,
}

impl Identity {
    /// Returns the identity of `repository`. None if that would require reading a whole history:
    /// for alphas, and for version 1 without a snapshot of the usual first id, as releases before
    /// 0.2.17 created it.
    pub async fn of(repository: &Repository) -> Result<Option<Self>> {
        let first = match &repository.generation {
            Generation::Alpha(_) => return Ok(None),
            Generation::V1(_) => Some(ObjectId::INITIAL),
            Generation::V2(_) => {
                let mut first = None;
                if let Some(tip) = repository.branch_tip(DEFAULT_BRANCH).await? {
                    repository
                        .walk(tip, |commit| {
                            first = Some(commit.id);
                            true
                        })
                        .await?;
                }
                first
            }
        };
        let Some(first) = first else { return Ok(None) };
        Ok(snapshot_time(repository, first).await?.map(|created| Identity { first, created }))
    }

    /// Returns true if this is the identity of `repository`.
    pub async fn is_of(&self, repository: &Repository) -> Result<bool> {
        Ok(snapshot_time(repository, self.first).await? == Some(self.created))
    }

    /// Returns the creation time of the repository as RFC 3339.
    pub fn creation_time(&self) -> String {
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
        let wrong = || Error::corrupt(format!("`{text}` does not identify a repository"));
        let (first, created) = text.split_once('@').ok_or_else(wrong)?;
        Ok(Identity { first: first.parse()?, created: created.parse().map_err(|_| wrong())? })
    }
}

/// Returns the time of snapshot `id`; none if `repository` does not have it.
async fn snapshot_time(repository: &Repository, id: ObjectId) -> Result<Option<u64>> {
    if let Generation::V2(info) = &repository.generation {
        return info.position(id).map(|position| Ok(info.snapshot(position)?.flushed_at)).transpose();
    }
    match repository.storage.get_range(&format!("snapshots/{id}"), 0, 1).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        _ => Ok(Some(repository.snapshot(id, MAX_SNAPSHOT).await?.flushed_at())),
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
