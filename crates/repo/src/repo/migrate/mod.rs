//! Migration of a repository of an older generation to version 2.
//!
//! [`in_place`] migrates version 1, whose files stay as they are: only the object `repo` is
//! written, and the objects it replaces are removed ([`old_refs`]). [`elsewhere`] makes a new
//! repository in another location, which is the way for releases before 0.2. [`operations`]
//! reconstructs the operations log, which older generations did not keep.

pub mod elsewhere;
pub mod in_place;
mod late_refs;
pub(super) mod old_refs;
pub mod operations;

use std::collections::BTreeMap;

use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Contents of a repository of an older generation: everything that a migration must not lose.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// Branches and their tips.
    pub branches: BTreeMap<String, ObjectId>,
    /// Tags that are not deleted.
    pub tags: BTreeMap<String, ObjectId>,
    /// Deleted tags, whose names must not be used again, and their targets where known.
    pub deleted_tags: BTreeMap<String, Option<ObjectId>>,
    /// All commits that refs lead to, by id.
    pub commits: BTreeMap<ObjectId, SnapshotInfo>,
}

impl Contents {
    /// Returns the commits from `tip` to a root, newest first.
    fn history(&self, tip: ObjectId) -> Vec<&SnapshotInfo> {
        let mut history: Vec<&SnapshotInfo> = Vec::new();
        let mut next = self.commits.get(&tip);
        // Cycles were refused when the commits were gathered; the limit ends the loop all the same.
        while let Some(commit) = next.filter(|_| history.len() < self.commits.len()) {
            history.push(commit);
            next = commit.parent.and_then(|parent| self.commits.get(&parent));
        }
        history
    }

    /// Returns the commits of branch `main`, newest first.
    fn main(&self) -> Result<Vec<&SnapshotInfo>> {
        let none = || Error::corrupt("the repository does not have a branch `main`, which version 2 needs");
        let tip = self.branches.get(super::refs::DEFAULT_BRANCH).ok_or_else(none)?;
        Ok(self.history(*tip))
    }
}
