//! History of a snapshot of an alpha.
//!
//! Each snapshot names its parent, and up to 0.1.0 it lists further ancestors too. That list is
//! needed: alpha 2 named the first commit of a repository and wrote no file for it.

use super::read;
use crate::repo::MAX_SNAPSHOT;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_format::format::alpha::snapshot::Commit;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::RawItem;
use icechunkfs_format::format::snapshot_info::{CommitText, SnapshotInfo};
use icechunkfs_store::storage::Storage;

/// Walk over a snapshot and its ancestors.
#[derive(Debug)]
pub(in crate::repo) struct Ancestry<'a> {
    storage: &'a dyn Storage,
    next: Option<ObjectId>,
    /// Commits according to the last list that was read, and the position of `next` in it.
    listed: Metered<Vec<Commit>>,
    at: usize,
}

impl<'a> Ancestry<'a> {
    pub(in crate::repo) fn new(storage: &'a dyn Storage, tip: ObjectId) -> Self {
        Ancestry { storage, next: Some(tip), listed: Metered::default(), at: 0 }
    }

    /// Returns the id of the commit that the next step returns.
    pub(in crate::repo) fn next_id(&self) -> Option<ObjectId> {
        self.next
    }

    /// Returns the next commit, from the newest to the oldest. The caller has to detect cycles.
    pub(in crate::repo) async fn step(&mut self) -> Result<Option<SnapshotInfo>> {
        let Some(id) = self.next else { return Ok(None) };
        // The list describes this commit only if it is its first entry.
        let listed = self.listed.get(self.at).filter(|commit| commit.id == id);
        self.at += 1;
        let snapshot = match read(self.storage, id, MAX_SNAPSHOT).await {
            Ok(snapshot) => snapshot,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let missing =
                    |error: Error| error.not_found_as_corrupt(format!("snapshot {id} is missing from the repository"));
                let commit = listed.ok_or_else(|| missing(error))?;
                self.next = self.listed.get(self.at).map(|commit| commit.id);
                let text = CommitText::read(commit.message.clone(), Vec::new(), SpecVersion::V1)?;
                let info = SnapshotInfo::new(commit.id, self.next, commit.flushed_at, "");
                return Ok(Some(SnapshotInfo { text, ..info }));
            }
            Err(error) => return Err(error),
        };
        self.next = snapshot.parent();
        let (commit, properties, listed) = snapshot.into_history();
        if !listed.is_empty() {
            (self.listed, self.at) = (listed, 0);
        }
        let items = RawItem::list(SpecVersion::V1, &properties)?;
        let Commit { id, flushed_at, message } = commit;
        let text = CommitText::read(message, items, SpecVersion::V1)?;
        Ok(Some(SnapshotInfo { text, ..SnapshotInfo::new(id, self.next, flushed_at, "") }))
    }
}
