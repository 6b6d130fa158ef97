//! The common ancestors of two snapshots.
//!
//! A commit has one parent. It was also made from others: a merge records the merged snapshot in
//! its metadata ([`MergeRecord`]), with the commits that came with it, and a commit that replaced
//! others records those ([`Records`]); where the reference implementation amended, the operations
//! log tells. A branch can therefore be merged again and again, in both directions, also after its
//! history was rewritten, and only what is new since the last merge is compared.
//!
//! Records are claims: [`super::claims`] compares them with the snapshots, and the history leaves
//! out those that are rejected.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use crate::commit::merge_record::{MergeCommit, MergeRecord};
use crate::commit::rebase::read_log;
use crate::commit::replace_record::Records;
use crate::repo::operations::amended_since;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::repo_state::Operation;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Commits, besides its parent, that a commit is said to have been made from.
#[derive(Clone, Debug, Default)]
struct Claim {
    /// The commits. Of those that one record lists, the first has what the others have.
    commits: Vec<ObjectId>,
    /// True if a record does not list all of them.
    is_incomplete: bool,
}

impl Claim {
    fn of(commit: &SnapshotInfo) -> Result<Option<Self>> {
        let records = Records::of(commit)?;
        let claim = || Claim { commits: records.commits().collect(), is_incomplete: !records.are_complete() };
        Ok((!records.is_empty()).then(claim))
    }
}

/// Commits of a repository, with what they were made from.
pub(super) struct History {
    commits: HashMap<ObjectId, SnapshotInfo>,
    /// Snapshots that something was made from and that are not there any more: what they were made
    /// from is unknown.
    missing: HashSet<ObjectId>,
    claims: HashMap<ObjectId, Claim>,
    /// Commits whose claims are false, or cannot be shown.
    rejected: HashSet<ObjectId>,
    memory: Meter,
}

impl History {
    fn new() -> Self {
        History {
            commits: HashMap::new(),
            missing: HashSet::new(),
            claims: HashMap::new(),
            rejected: HashSet::new(),
            memory: Meter::new("the history of both sides"),
        }
    }

    /// Reads the histories of `tips`, and those of all snapshots that went into them.
    pub(super) async fn read(repository: &Repository, tips: [ObjectId; 2]) -> Result<Self> {
        let mut history = History::new();
        history.add(repository, tips.to_vec(), &tips).await?;
        let amended = history.amended(repository, tips).await?;
        let mut previous = Vec::new();
        for &(new, before) in &amended {
            history.memory.count_items::<(ObjectId, Claim)>(1)?;
            // One that was replaced itself may be no ancestor of either tip any more.
            history.claims.entry(new).or_default().commits.push(before);
            previous.push(before);
        }
        history.add(repository, previous, &tips).await?;
        for (new, before) in amended {
            // It may have been a merge.
            let is_unknown = history.is_missing(before);
            history.claims.entry(new).or_default().is_incomplete |= is_unknown;
        }
        Ok(history)
    }

    /// Adds the histories of `left`, and those of all snapshots that went into them. Those of
    /// `tips` must be there.
    async fn add(&mut self, repository: &Repository, mut left: Vec<ObjectId>, tips: &[ObjectId]) -> Result<()> {
        while let Some(tip) = left.pop() {
            if self.commits.contains_key(&tip) || self.missing.contains(&tip) {
                continue;
            }
            let mut found = Vec::new();
            let visit = |commit: SnapshotInfo| {
                let is_new = !self.commits.contains_key(&commit.id);
                if is_new {
                    self.memory.count_items::<(ObjectId, SnapshotInfo)>(1)?;
                    commit.count(&mut self.memory)?;
                    found.push(commit);
                }
                Ok(is_new)
            };
            let walked = repository.try_walk(tip, visit).await;
            if let Err(error) = walked {
                // A merged snapshot may have expired since, or its branch was deleted. In version
                // 1, a collection may have removed an older commit and not yet a newer one.
                let gone = found.last().map_or(Some(tip), |last: &SnapshotInfo| last.parent);
                match gone {
                    Some(gone) if !tips.contains(&tip) && is_gone(repository, gone, &error).await? => {
                        self.missing.insert(gone);
                    }
                    _ => return Err(error),
                }
            }
            for commit in found {
                if let Some(claim) = Claim::of(&commit)? {
                    self.memory.count_items::<(ObjectId, Claim)>(1)?;
                    self.memory.count_items::<ObjectId>(2 * claim.commits.len())?;
                    // The first of each comes last, and so is read first: mostly its history has
                    // the other commits.
                    left.extend(claim.commits.iter().rev());
                    let known = self.claims.entry(commit.id).or_default();
                    known.is_incomplete |= claim.is_incomplete;
                    known.commits.extend(claim.commits);
                }
                self.commits.insert(commit.id, commit);
            }
        }
        Ok(())
    }

    /// Returns the commits that were amended since what `tips` have in common was made, by the
    /// operations log: the new commit and the one before.
    async fn amended(&mut self, repository: &Repository, tips: [ObjectId; 2]) -> Result<Vec<(ObjectId, ObjectId)>> {
        let common = self.common_ancestors(&tips[..1], &tips[1..]);
        let since = common.iter().filter_map(|id| self.get(*id)).map(|commit| commit.flushed_at).min().unwrap_or(0);
        amended_since(repository, since, &mut self.memory).await
    }

    /// Returns true if all that `tips` were made from since `base` was made in this repository, by
    /// its operations log, so that no record of it is lost: what the reference implementation
    /// amended elsewhere may have had one. Version 1 has no commits that replace others.
    pub(super) async fn were_made_here(
        &self,
        repository: &Repository,
        base: ObjectId,
        tips: [ObjectId; 2],
    ) -> Result<bool> {
        if repository.state()?.is_none() {
            return Ok(true);
        }
        let before = self.ancestors(base);
        let mut left: HashSet<ObjectId> = tips.into_iter().flat_map(|tip| self.ancestors(tip)).collect();
        left.retain(|id| !before.contains(id));
        let mut operations = repository.operations()?;
        while !left.is_empty() {
            let Some(entry) = operations.next().await? else { return Ok(false) };
            match entry.operation {
                Ok(Operation::NewCommit { new, .. } | Operation::CommitAmended { new, .. }) => drop(left.remove(&new)),
                Ok(Operation::RepoMigrated { .. }) => {
                    left.retain(|id| self.get(*id).is_none_or(|commit| commit.flushed_at > entry.updated_at));
                }
                _ => {}
            }
        }
        Ok(true)
    }

    pub(super) fn get(&self, id: ObjectId) -> Option<&SnapshotInfo> {
        self.commits.get(&id)
    }

    /// Returns the parent of a commit, and the commits that it was made from besides. Those that
    /// are gone lead to none, so that the others count, too.
    fn parents(&self, id: ObjectId) -> impl Iterator<Item = ObjectId> {
        let parent = self.commits.get(&id).and_then(|commit| commit.parent);
        let all = parent.into_iter().chain(self.claimed_commits(id).iter().copied());
        all.filter(|id| self.commits.contains_key(id) || self.missing.contains(id))
    }

    /// Returns the parent of a commit, and its parent, and so on, beginning with the commit itself.
    pub(super) fn first_parents(&self, id: ObjectId) -> impl Iterator<Item = &SnapshotInfo> {
        let mut seen = HashSet::new();
        let mut next = self.get(id);
        std::iter::from_fn(move || {
            let commit = next.filter(|commit| seen.insert(commit.id))?;
            next = commit.parent.and_then(|parent| self.get(parent));
            Some(commit)
        })
    }

    /// Returns those of the commits that `id` claims to have been made from that none of the others
    /// was made from, as far as they are there.
    pub(super) fn claimed(&self, id: ObjectId) -> Vec<ObjectId> {
        let claimed = self.claimed_commits(id).iter().copied();
        let there: Vec<ObjectId> = claimed.filter(|id| self.commits.contains_key(id)).collect();
        let older: HashSet<ObjectId> = there.iter().flat_map(|id| self.older(*id)).collect();
        there.into_iter().filter(|id| !older.contains(id)).collect()
    }

    /// Returns the commits that `id` claims to have been made from besides its parent, if that is
    /// believed.
    pub(super) fn claimed_commits(&self, id: ObjectId) -> &[ObjectId] {
        let claim = self.claims.get(&id).filter(|_| !self.rejected.contains(&id));
        claim.map(|claim| claim.commits.as_slice()).unwrap_or_default()
    }

    /// Returns all that `id` was made from, without itself.
    fn older(&self, id: ObjectId) -> HashSet<ObjectId> {
        let mut found = HashSet::new();
        let mut left: Vec<ObjectId> = self.parents(id).collect();
        while let Some(id) = left.pop() {
            if found.insert(id) {
                left.extend(self.parents(id));
            }
        }
        found
    }

    /// Returns the commits of `tips` and before whose claims lead to one of `bases`, and can be
    /// compared with their snapshots. Of one that is gone, only the operations log claims
    /// something.
    pub(super) fn claimants(&self, tips: [ObjectId; 2], bases: &[ObjectId]) -> Vec<ObjectId> {
        let leads = |id: &ObjectId| {
            self.claimed_commits(*id)
                .iter()
                .any(|claimed| bases.iter().any(|base| self.ancestors(*claimed).contains(base)))
        };
        let below: HashSet<ObjectId> = bases.iter().flat_map(|id| self.ancestors(*id)).collect();
        let above: HashSet<ObjectId> = tips.into_iter().flat_map(|tip| self.ancestors(tip)).collect();
        let mut found: Vec<ObjectId> =
            above.difference(&below).filter(|id| !self.is_missing(**id) && leads(id)).copied().collect();
        found.sort_unstable();
        found
    }

    /// Leaves out what commit `id` claims.
    pub(super) fn reject(&mut self, id: ObjectId) {
        self.rejected.insert(id);
    }

    /// Returns the commits whose claims are left out.
    pub(super) fn rejected(&self) -> &HashSet<ObjectId> {
        &self.rejected
    }

    /// Takes the claims of `rejected` for true again.
    pub(super) fn accept_all(&mut self) {
        self.rejected.clear();
    }

    /// Returns a commit of `of` that was made from something of which nothing is known: it is gone,
    /// and the record does not have all commits that came with it.
    pub(super) fn with_unknown_merge(&self, of: &HashSet<ObjectId>) -> Option<&SnapshotInfo> {
        let is_unknown = |commit: &&SnapshotInfo| {
            self.claims
                .get(&commit.id)
                .is_some_and(|claim| claim.is_incomplete && claim.commits.iter().any(|id| self.is_missing(*id)))
        };
        of.iter().filter_map(|id| self.get(*id)).filter(is_unknown).min_by_key(|commit| (commit.flushed_at, commit.id))
    }

    /// Returns true if `id` was merged or replaced, and is not there any more.
    pub(super) fn is_missing(&self, id: ObjectId) -> bool {
        self.missing.contains(&id)
    }

    /// Returns `tip` and all that it was made from.
    pub(super) fn ancestors(&self, tip: ObjectId) -> HashSet<ObjectId> {
        let mut found = self.older(tip);
        found.insert(tip);
        found
    }

    /// Returns `tip` and the commits that it was made from, without those in `known`, newest first;
    /// those that are gone come last. All that one of `known` was made from is in it, too.
    pub(super) fn beyond(&self, tip: ObjectId, known: &HashSet<ObjectId>) -> Vec<ObjectId> {
        let mut found = HashSet::new();
        let mut left = vec![tip];
        while let Some(id) = left.pop() {
            if !known.contains(&id) && found.insert(id) {
                left.extend(self.parents(id));
            }
        }
        let mut commits: Vec<ObjectId> = found.into_iter().collect();
        commits.sort_by_cached_key(|id| Reverse((self.get(*id).map(|commit| commit.flushed_at), *id)));
        commits
    }

    /// Returns the commits of `tip` and before, without those in `known`, whose claims bring
    /// commits that are not parents of `tip`.
    pub(super) fn adding(&self, tip: ObjectId, known: &HashSet<ObjectId>) -> Vec<ObjectId> {
        let brought = self.beyond(tip, known);
        let line: HashSet<ObjectId> = self.first_parents(tip).map(|commit| commit.id).collect();
        let others: HashSet<ObjectId> = brought.iter().copied().filter(|id| !line.contains(id)).collect();
        let adds = |id: &ObjectId| self.claimed_commits(*id).iter().any(|id| others.contains(id));
        brought.into_iter().filter(|id| !self.is_missing(*id) && adds(id)).collect()
    }

    /// Describes a merge of `snapshot`, given as `source`, into a branch that has `known`.
    pub(super) fn merge(&self, source: &str, snapshot: ObjectId, known: &HashSet<ObjectId>) -> MergeCommit {
        let commits = self.beyond(snapshot, known);
        let mut record = MergeRecord::new(source, snapshot, commits.iter().copied());
        let brings = HashSet::from_iter(commits);
        record.is_complete &= self.with_unknown_merge(&brings).is_none();
        MergeCommit { record, brings }
    }

    /// Returns the snapshots that one of `some` and one of `others` were made from and of which no
    /// other such one was made, newest first. They are several after merges that crossed, or if
    /// both sides merged a third one by themselves. One may be missing.
    pub(super) fn common_ancestors(&self, some: &[ObjectId], others: &[ObjectId]) -> Vec<ObjectId> {
        let all = |tips: &[ObjectId]| tips.iter().flat_map(|tip| self.ancestors(*tip)).collect::<HashSet<_>>();
        let common: HashSet<ObjectId> = all(some).intersection(&all(others)).copied().collect();
        let older: HashSet<ObjectId> = common.iter().flat_map(|id| self.parents(*id)).collect();
        let mut newest: Vec<ObjectId> = common.difference(&older).copied().collect();
        newest.sort_by_key(|id| Reverse((self.get(*id).map(|commit| commit.flushed_at), *id)));
        newest
    }

    /// Returns a commit before which commits have expired that both of `tips` may have had,
    /// although `bases`, their common ancestors, lack them.
    ///
    /// An expiration makes the root the parent of the oldest commit that stays, so that an older
    /// ancestor looks like the newest, and all that an expired commit had as if both sides had made
    /// it. What is hidden behind a shortened commit that the bases do not have may be known to the
    /// other side if that one is shortened, too, or has older commits that the bases lack; and if
    /// the root is what they have in common.
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

    /// Returns true if commits before `commit` have expired: it names their logs, or it follows a
    /// root and its own log does not make all nodes that it has. `roots` has the nodes of roots
    /// that were read.
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
        let made = read_log(&**repository.storage(), commit.id).await?.made()?;
        let snapshot = repository.snapshot(commit.id, MAX_SNAPSHOT).await?;
        let _room = snapshot.room_for_table()?;
        let nodes = snapshot.node_ids();
        Ok(nodes.iter().any(|node| !before.contains(node) && !made.contains(node)))
    }
}

/// Returns true if snapshot `id` is not there, which version 1 finds out only when it reads the
/// file.
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
    use serde_json::{Value, json};

    use super::*;
    use crate::commit::merge_record::MERGE_RECORD;
    use icechunkfs_format::format::envelope::SpecVersion;
    use icechunkfs_format::format::repo_state::RawItem;
    use icechunkfs_format::format::snapshot_info::CommitText;

    pub(in crate::merge) fn object_id(n: u8) -> ObjectId {
        ObjectId([n; 12])
    }

    /// Makes a history of commits by number, each with its parent and what it merged: `4<2+3`.
    pub(in crate::merge) fn history(commits: &str) -> History {
        let number = |text: &str| text.parse::<u8>().unwrap();
        let mut history = History::new();
        for commit in commits.split(' ') {
            let (commit, merged) =
                commit.split_once('+').map_or((commit, None), |(commit, merged)| (commit, Some(merged)));
            let (id, parent) = commit.split_once('<').map_or((commit, None), |(id, parent)| (id, Some(parent)));
            let id = number(id);
            let parent = parent.map(|parent| object_id(number(parent)));
            let merged = merged.map(|merged| json!({"source": "dev", "snapshot": object_id(number(merged))}));
            history.insert(commit_with(id, parent, merged));
        }
        history
    }

    /// Makes a commit with this record of a merge.
    fn commit_with(id: u8, parent: Option<ObjectId>, record: Option<Value>) -> SnapshotInfo {
        let items = record.map(|record| (MERGE_RECORD.to_owned(), record)).into_iter().collect();
        let text = CommitText::own(String::new(), RawItem::list(SpecVersion::V2, &items).unwrap(), SpecVersion::V2);
        SnapshotInfo { text, ..SnapshotInfo::new(object_id(id), parent, u64::from(id), "") }
    }

    impl History {
        fn insert(&mut self, commit: SnapshotInfo) {
            self.claims.extend(Claim::of(&commit).unwrap().map(|claim| (commit.id, claim)));
            self.commits.insert(commit.id, commit);
        }
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
        let mut history = super::tests::history("1 2<1+9");
        history.insert(commit_with(3, Some(object_id(1)), Some(json!({"snapshot": "no id"}))));
        assert!(!history.claims.contains_key(&object_id(3)));
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
        // One that both have merged counts although it is gone, unless they have something that was
        // made of it.
        let mut gone = history("1 2<1+9 3<1+9 4<2 5<2");
        gone.missing.insert(object_id(9));
        assert_eq!(ancestors(&gone, 2, 3), [1, 9]);
        assert!(gone.is_missing(object_id(9)) && !gone.is_missing(object_id(1)));
        assert_eq!(ancestors(&gone, 4, 5), [2]);
    }
}
