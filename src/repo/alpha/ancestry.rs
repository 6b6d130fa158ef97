//! History of a snapshot of an alpha.
//!
//! Each snapshot names its parent, and up to 0.1.0 it lists further ancestors too. That list is needed: alpha 2 named the first commit of
//! a repository and wrote no file for it.

use std::collections::VecDeque;

use super::read;
use crate::error::{Error, ErrorKind, Result};
use crate::format::alpha::snapshot::Commit;
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::repo::MAX_SNAPSHOT;
use crate::storage::Storage;

/// Walk over a snapshot and its ancestors.
#[derive(Debug)]
pub(in crate::repo) struct Ancestry<'a> {
    storage: &'a dyn Storage,
    next: Option<ObjectId>,
    /// Commits from `next` on, according to the last list that was read.
    listed: VecDeque<Commit>,
}

impl<'a> Ancestry<'a> {
    pub(in crate::repo) fn new(storage: &'a dyn Storage, tip: ObjectId) -> Self {
        Ancestry { storage, next: Some(tip), listed: VecDeque::new() }
    }

    /// Returns the id of the commit that the next step returns.
    pub(in crate::repo) fn next_id(&self) -> Option<ObjectId> {
        self.next
    }

    /// Returns the next commit, from the newest to the oldest. The caller has to detect cycles.
    pub(in crate::repo) async fn step(&mut self) -> Result<Option<SnapshotInfo>> {
        let Some(id) = self.next else { return Ok(None) };
        // The list describes this commit only if it is its first entry.
        let listed = self.listed.pop_front().filter(|commit| commit.id == id);
        let snapshot = match read(self.storage, id, MAX_SNAPSHOT).await {
            Ok(snapshot) => snapshot,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let missing =
                    |error: Error| error.not_found_as_corrupt(format!("snapshot {id} is missing from the repository"));
                let commit = listed.ok_or_else(|| missing(error))?;
                self.next = self.listed.front().map(|commit| commit.id);
                return Ok(Some(SnapshotInfo::new(commit.id, self.next, commit.flushed_at, commit.message)));
            }
            Err(error) => return Err(error),
        };
        self.next = snapshot.parent();
        if !snapshot.ancestors().is_empty() {
            self.listed = snapshot.ancestors().iter().cloned().collect();
        }
        let Commit { id, flushed_at, message } = snapshot.commit;
        let info = SnapshotInfo::new(id, self.next, flushed_at, message);
        Ok(Some(SnapshotInfo { metadata: snapshot.properties, ..info }))
    }
}
