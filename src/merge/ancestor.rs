//! The common ancestor of two snapshots.
//!
//! A commit has one parent; a merge records the merged snapshot in its metadata ([`RECORD`]), as a second one. A branch can therefore be
//! merged again and again, in both directions, and only what is new since the last merge is compared.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::commit::rebase::read_log;
use crate::error::{ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::repo::{MAX_SNAPSHOT, Repository};

/// Name of the metadata item of a merge: `{"source": REF, "snapshot": ID}`.
pub const RECORD: &str = "icechunkfs.merge";

/// Returns the value of [`RECORD`] for a merge of `snapshot`, which was given as `source`.
pub(super) fn record(source: &str, snapshot: ObjectId) -> Value {
    json!({"source": source, "snapshot": snapshot})
}

/// Returns the snapshot that a commit has merged.
fn merged(commit: &SnapshotInfo) -> Option<ObjectId> {
    commit.metadata.get(RECORD)?.get("snapshot")?.as_str()?.parse().ok()
}

/// Commits of a repository, with what they were made from.
pub(super) struct History {
    commits: HashMap<ObjectId, SnapshotInfo>,
}

impl History {
    /// Reads the histories of `tips`, and those of all snapshots that were merged into them.
    pub(super) async fn read(repository: &Repository, tips: [ObjectId; 2]) -> Result<Self> {
        let mut commits = HashMap::new();
        let mut left = tips.to_vec();
        while let Some(tip) = left.pop() {
            if commits.contains_key(&tip) {
                continue;
            }
            let found = match repository.histories([tip]).await {
                Ok(found) => found,
                // A merged snapshot may have expired since. It is then no common ancestor any more.
                Err(error) if error.kind() == ErrorKind::NotFound && !tips.contains(&tip) => continue,
                Err(error) => return Err(error),
            };
            left.extend(found.iter().filter_map(merged));
            commits.extend(found.into_iter().map(|commit| (commit.id, commit)));
        }
        Ok(History { commits })
    }

    pub(super) fn get(&self, id: ObjectId) -> Option<&SnapshotInfo> {
        self.commits.get(&id)
    }

    fn parents(&self, id: ObjectId) -> impl Iterator<Item = ObjectId> {
        let commit = self.commits.get(&id);
        let both = [commit.and_then(|commit| commit.parent), commit.and_then(merged)];
        both.into_iter().flatten().filter(|id| self.commits.contains_key(id))
    }

    /// Returns `tip` and all that it was made from.
    pub(super) fn ancestors(&self, tip: ObjectId) -> HashSet<ObjectId> {
        let (mut found, mut left) = (HashSet::new(), vec![tip]);
        while let Some(id) = left.pop() {
            if found.insert(id) {
                left.extend(self.parents(id));
            }
        }
        found
    }

    /// Returns the newest snapshot that both were made from. If there are several, of which none was made from another, that is the one
    /// that was committed last.
    pub(super) fn common_ancestor(&self, one: ObjectId, other: ObjectId) -> Option<ObjectId> {
        let (one, other) = (self.ancestors(one), self.ancestors(other));
        let common: HashSet<ObjectId> = one.intersection(&other).copied().collect();
        let older: HashSet<ObjectId> = common.iter().flat_map(|id| self.parents(*id)).collect();
        common.difference(&older).copied().max_by_key(|id| (self.get(*id).map(|commit| commit.flushed_at), *id))
    }

    /// Returns a commit of `tips`' histories before which commits have expired, if there is one and `base` is a root. An expiration makes the
    /// root the parent of the oldest commit that stays, so that the root looks like the common ancestor, and all that an expired one had as
    /// if both sides had made it. Such a commit names the logs of those before it, or its own log does not make all nodes that it has.
    pub(super) async fn shortened(
        &self,
        repository: &Repository,
        base: ObjectId,
        tips: [ObjectId; 2],
    ) -> Result<Option<&SnapshotInfo>> {
        if self.get(base).is_none_or(|base| base.parent.is_some()) {
            return Ok(None);
        }
        let before = repository.snapshot(base, MAX_SNAPSHOT).await?.node_ids();
        let both: HashSet<ObjectId> = tips.into_iter().flat_map(|tip| self.ancestors(tip)).collect();
        let first = both.iter().filter_map(|id| self.get(*id)).filter(|commit| commit.parent == Some(base));
        for commit in first {
            if !commit.pruned_ancestor_tx_logs.is_empty() {
                return Ok(Some(commit));
            }
            let made = read_log(&**repository.storage(), commit.id).await?.made();
            let nodes = repository.snapshot(commit.id, MAX_SNAPSHOT).await?.node_ids();
            if nodes.iter().any(|node| !before.contains(node) && !made.contains(node)) {
                return Ok(Some(commit));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub(in crate::merge) fn object_id(n: u8) -> ObjectId {
        ObjectId([n; 12])
    }

    /// Makes a history of commits by number, each with its parent and what it merged: `4<2+3`.
    pub(in crate::merge) fn history(commits: &str) -> History {
        let number = |text: &str| text.parse::<u8>().unwrap();
        let made = commits.split(' ').map(|commit| {
            let (commit, merged) =
                commit.split_once('+').map_or((commit, None), |(commit, merged)| (commit, Some(merged)));
            let (id, parent) = commit.split_once('<').map_or((commit, None), |(id, parent)| (id, Some(parent)));
            let (id, parent) = (number(id), parent.map(|parent| object_id(number(parent))));
            let mut commit = SnapshotInfo::new(object_id(id), parent, u64::from(id), "");
            if let Some(merged) = merged {
                commit.metadata.insert(RECORD.to_owned(), record("dev", object_id(number(merged))));
            }
            (commit.id, commit)
        });
        History { commits: made.collect() }
    }

    #[test]
    fn merges_count_as_parents() {
        // 1 - 2 - 4 - 6 - 8      main
        //  \     /       /
        //   3 - + - 5 - + - 7    dev
        let history = history("1 2<1 3<1 4<2+3 5<3 6<4 7<5 8<6+5");
        let ancestor = |one, other| history.common_ancestor(object_id(one), object_id(other)).unwrap();
        assert_eq!(ancestor(2, 3), object_id(1));
        assert_eq!(ancestor(4, 5), object_id(3));
        assert_eq!(ancestor(6, 5), object_id(3));
        assert_eq!(ancestor(8, 7), object_id(5));
        assert_eq!(ancestor(7, 8), object_id(5));
        assert_eq!(ancestor(3, 3), object_id(3));
    }

    #[test]
    fn a_merge_back_is_an_ancestor_too() {
        // dev (3, 5) got main's 2 by the merge 5; main went on to 4.
        let history = history("1 2<1 3<1 4<2 5<3+2");
        assert_eq!(history.common_ancestor(object_id(5), object_id(4)), Some(object_id(2)));
        // A record of a snapshot that is gone counts for nothing, nor does nonsense.
        let history = history_with_nonsense();
        assert_eq!(history.common_ancestor(object_id(2), object_id(3)), Some(object_id(1)));
    }

    fn history_with_nonsense() -> History {
        let mut history = history("1 2<1+9 3<1");
        let commit = history.commits.get_mut(&object_id(3)).unwrap();
        commit.metadata.insert(RECORD.to_owned(), json!({"snapshot": "no id"}));
        history
    }
}
