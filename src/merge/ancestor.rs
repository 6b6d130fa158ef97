//! The common ancestors of two snapshots.
//!
//! A commit has one parent; a merge records the merged snapshot in its metadata ([`MergeRecord`]), as a second one, with the commits that came
//! with it. A branch can therefore be merged again and again, in both directions, and only what is new since the last merge is compared.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use crate::commit::merge_record::{MergeCommit, MergeRecord};
use crate::commit::rebase::read_log;
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::{NodeId, ObjectId};
use crate::format::repo_info::SnapshotInfo;
use crate::repo::{MAX_SNAPSHOT, Repository};

/// Returns the snapshot that a commit has merged.
pub(super) fn merged(commit: &SnapshotInfo) -> Option<ObjectId> {
    MergeRecord::of(commit).map(|merge| merge.snapshot)
}

/// Commits of a repository, with what they were made from.
pub(super) struct History {
    commits: HashMap<ObjectId, SnapshotInfo>,
    /// Snapshots that were merged and are not there any more: what they were made from is unknown.
    missing: HashSet<ObjectId>,
}

impl History {
    /// Reads the histories of `tips`, and those of all snapshots that were merged into them.
    pub(super) async fn read(repository: &Repository, tips: [ObjectId; 2]) -> Result<Self> {
        let (mut commits, mut missing) = (HashMap::new(), HashSet::new());
        let mut left = tips.to_vec();
        while let Some(tip) = left.pop() {
            if commits.contains_key(&tip) || missing.contains(&tip) {
                continue;
            }
            let found = match repository.histories([tip]).await {
                Ok(found) => found,
                // A merged snapshot may have expired since, or its branch was deleted.
                Err(error) if !tips.contains(&tip) && is_gone(repository, tip, &error).await? => {
                    missing.insert(tip);
                    continue;
                }
                Err(error) => return Err(error),
            };
            // The snapshot of each comes last, and so is read first: mostly its history has the other commits.
            for merge in found.iter().filter_map(MergeRecord::of) {
                left.extend(merge.commits.into_iter().rev().chain([merge.snapshot]));
            }
            commits.extend(found.into_iter().map(|commit| (commit.id, commit)));
        }
        Ok(History { commits, missing })
    }

    pub(super) fn get(&self, id: ObjectId) -> Option<&SnapshotInfo> {
        self.commits.get(&id)
    }

    /// Returns the parent of a commit, and the commits that it has merged. Those that are gone lead to none, so that the others count, too.
    fn parents(&self, id: ObjectId) -> impl Iterator<Item = ObjectId> {
        let commit = self.commits.get(&id);
        let merged = commit.and_then(MergeRecord::of);
        let merged: Vec<ObjectId> = merged.iter().flat_map(MergeRecord::all).collect();
        let all = commit.and_then(|commit| commit.parent).into_iter().chain(merged);
        all.filter(|id| self.commits.contains_key(id) || self.missing.contains(id))
    }

    /// Returns a commit of `of` that has merged something of which nothing is known: it is gone, and the record does not have all commits that
    /// came with it.
    pub(super) fn with_unknown_merge(&self, of: &HashSet<ObjectId>) -> Option<&SnapshotInfo> {
        let is_unknown = |commit: &&SnapshotInfo| {
            MergeRecord::of(commit).is_some_and(|merge| !merge.is_complete && merge.all().any(|id| self.is_missing(id)))
        };
        of.iter().filter_map(|id| self.get(*id)).filter(is_unknown).min_by_key(|commit| (commit.flushed_at, commit.id))
    }

    /// Returns true if `id` was merged and is not there any more.
    pub(super) fn is_missing(&self, id: ObjectId) -> bool {
        self.missing.contains(&id)
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

    /// Returns `tip` and the commits that it was made from, without those in `known`, newest first; those that are gone come last. All that one
    /// of `known` was made from is in it, too.
    pub(super) fn beyond(&self, tip: ObjectId, known: &HashSet<ObjectId>) -> Vec<ObjectId> {
        let (mut found, mut left) = (HashSet::new(), vec![tip]);
        while let Some(id) = left.pop() {
            if !known.contains(&id) && found.insert(id) {
                left.extend(self.parents(id));
            }
        }
        let mut commits: Vec<ObjectId> = found.into_iter().collect();
        commits.sort_by_cached_key(|id| Reverse((self.get(*id).map(|commit| commit.flushed_at), *id)));
        commits
    }

    /// Describes a merge of `snapshot`, given as `source`, into a branch that has `known`.
    pub(super) fn merge(&self, source: &str, snapshot: ObjectId, known: &HashSet<ObjectId>) -> MergeCommit {
        let commits = self.beyond(snapshot, known);
        let mut record = MergeRecord::new(source, snapshot, commits.iter().copied());
        let brings = HashSet::from_iter(commits);
        record.is_complete &= self.with_unknown_merge(&brings).is_none();
        MergeCommit { record, brings }
    }

    /// Returns the snapshots that one of `some` and one of `others` were made from and of which no other such one was made, newest first.
    /// They are several after merges that crossed, or if both sides merged a third one by themselves. One may be missing.
    pub(super) fn common_ancestors(&self, some: &[ObjectId], others: &[ObjectId]) -> Vec<ObjectId> {
        let all = |tips: &[ObjectId]| tips.iter().flat_map(|tip| self.ancestors(*tip)).collect::<HashSet<_>>();
        let common: HashSet<ObjectId> = all(some).intersection(&all(others)).copied().collect();
        let older: HashSet<ObjectId> = common.iter().flat_map(|id| self.parents(*id)).collect();
        let mut newest: Vec<ObjectId> = common.difference(&older).copied().collect();
        newest.sort_by_key(|id| Reverse((self.get(*id).map(|commit| commit.flushed_at), *id)));
        newest
    }

    /// Returns a commit before which commits have expired that both of `tips` may have had, although `bases`, their common ancestors, lack them.
    ///
    /// An expiration makes the root the parent of the oldest commit that stays, so that an older ancestor looks like the newest, and all that an
    /// expired commit had as if both sides had made it. What is hidden behind a shortened commit that the bases do not have may be known to the
    /// other side if that one is shortened, too, or has older commits that the bases lack; and if the root is what they have in common.
    pub(super) async fn shortened(
        &self,
        repository: &Repository,
        bases: &[ObjectId],
        tips: [ObjectId; 2],
    ) -> Result<Option<&SnapshotInfo>> {
        let below: HashSet<ObjectId> = bases.iter().flat_map(|id| self.ancestors(*id)).collect();
        let above = tips.map(|tip| {
            let above = self.ancestors(tip).into_iter().filter(|id| !below.contains(id));
            above.filter_map(|id| self.get(id)).collect::<Vec<_>>()
        });
        let is_root_common = bases.iter().any(|id| self.get(*id).is_some_and(|base| base.parent.is_none()));
        let [one, other] = &above;
        let mut before = HashMap::new();
        let mut found = [None, None];
        for ((side, others), found) in [(one, other), (other, one)].into_iter().zip(&mut found) {
            for commit in side {
                if self.is_shortened(repository, commit, &mut before).await? {
                    if is_root_common || others.iter().any(|other| other.flushed_at < commit.flushed_at) {
                        return Ok(Some(commit));
                    }
                    *found = Some(*commit);
                }
            }
        }
        let [one, other] = found;
        Ok(one.and(other))
    }

    /// Returns true if commits before `commit` have expired: it names their logs, or it follows a root and its own log does not make all nodes
    /// that it has. `roots` has the nodes of roots that were read.
    async fn is_shortened(
        &self,
        repository: &Repository,
        commit: &SnapshotInfo,
        roots: &mut HashMap<ObjectId, HashSet<NodeId>>,
    ) -> Result<bool> {
        if !commit.pruned_ancestor_tx_logs.is_empty() {
            return Ok(true);
        }
        let Some(root) = commit.parent.and_then(|id| self.get(id)).filter(|parent| parent.parent.is_none()) else {
            return Ok(false);
        };
        let before = match roots.entry(root.id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(repository.snapshot(root.id, MAX_SNAPSHOT).await?.node_ids()),
        };
        let made = read_log(&**repository.storage(), commit.id).await?.made();
        let nodes = repository.snapshot(commit.id, MAX_SNAPSHOT).await?.node_ids();
        Ok(nodes.iter().any(|node| !before.contains(node) && !made.contains(node)))
    }
}

/// Returns true if snapshot `id` is not there, which version 1 finds out only when it reads the file.
async fn is_gone(repository: &Repository, id: ObjectId, error: &Error) -> Result<bool> {
    if error.kind() != ErrorKind::Corrupt {
        return Ok(error.kind() == ErrorKind::NotFound);
    }
    match repository.storage().get_range(&format!("snapshots/{id}"), 0, 1).await {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::commit::merge_record::MERGE_RECORD;

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
                let record = json!({"source": "dev", "snapshot": object_id(number(merged))});
                commit.metadata.insert(MERGE_RECORD.to_owned(), record);
            }
            (commit.id, commit)
        });
        History { commits: made.collect(), missing: HashSet::new() }
    }

    fn ancestors(history: &History, one: u8, other: u8) -> Vec<u8> {
        let found = history.common_ancestors(&[object_id(one)], &[object_id(other)]);
        found.into_iter().map(|id| id.0[0]).collect()
    }

    #[test]
    fn merges_count_as_parents() {
        // 1 - 2 - 4 - 6 - 8      main
        //  \     /       /
        //   3 - + - 5 - + - 7    dev
        let history = history("1 2<1 3<1 4<2+3 5<3 6<4 7<5 8<6+5");
        assert_eq!(ancestors(&history, 2, 3), [1]);
        assert_eq!(ancestors(&history, 4, 5), [3]);
        assert_eq!(ancestors(&history, 6, 5), [3]);
        assert_eq!(ancestors(&history, 8, 7), [5]);
        assert_eq!(ancestors(&history, 7, 8), [5]);
        assert_eq!(ancestors(&history, 3, 3), [3]);
    }

    #[test]
    fn a_merge_back_is_an_ancestor_too() {
        // dev (3, 5) got main's 2 by the merge 5; main went on to 4.
        let history = history("1 2<1 3<1 4<2 5<3+2");
        assert_eq!(ancestors(&history, 5, 4), [2]);
        // A record of a snapshot that is gone counts for nothing on one side, and nonsense on none.
        let mut history = history_with_nonsense();
        history.missing.insert(object_id(9));
        assert_eq!(ancestors(&history, 2, 3), [1]);
    }

    #[test]
    fn several_ancestors_may_be_the_newest() {
        // Both merged 2 and 3 by themselves, or each other at the same time.
        for commits in ["1 2<1 3<1 4<2+3 5<3+2", "1 2<1 3<1 4<1+2 5<4+3 6<1+3 7<6+2 8<7 9<5"] {
            let history = history(commits);
            let last = history.commits.keys().map(|id| id.0[0]).max().unwrap();
            assert_eq!(ancestors(&history, last, last - 1), [3, 2], "{commits}");
        }
        // One that both have merged counts although it is gone, unless they have something that was made of it.
        let mut gone = history("1 2<1+9 3<1+9 4<2 5<2");
        gone.missing.insert(object_id(9));
        assert_eq!(ancestors(&gone, 2, 3), [1, 9]);
        assert!(gone.is_missing(object_id(9)) && !gone.is_missing(object_id(1)));
        assert_eq!(ancestors(&gone, 4, 5), [2]);
    }

    fn history_with_nonsense() -> History {
        let mut history = history("1 2<1+9 3<1");
        let commit = history.commits.get_mut(&object_id(3)).unwrap();
        commit.metadata.insert(MERGE_RECORD.to_owned(), json!({"snapshot": "no id"}));
        history
    }
}
