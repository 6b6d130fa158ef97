//! Reachability of commits from refs.
//!
//! Histories are walked from each ref until they meet a commit that several refs lead to: all older
//! ones are then shared, too. So each commit is met at most three times, however many refs there
//! are.

use std::collections::HashMap;

use super::{RefStats, Size};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::repo::Repository;

/// The refs that lead to an object: one ref by its number, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RefSet(pub(super) u32);

impl RefSet {
    pub(super) const SEVERAL: RefSet = RefSet(u32::MAX);

    /// Returns the holder of an object that both lead to.
    pub(super) fn and(self, other: RefSet) -> RefSet {
        if self == other { self } else { RefSet::SEVERAL }
    }
}

#[derive(Clone, Debug)]
struct Commit {
    holder: RefSet,
    /// Commits of its history, itself included.
    depth: u64,
}

/// All commits that refs lead to.
#[derive(Debug, Default)]
pub(super) struct Reach {
    commits: HashMap<ObjectId, Commit>,
    /// Transaction logs of expired commits, with the holder of the commits that keep them.
    pub(super) pruned_logs: HashMap<ObjectId, RefSet>,
    /// Statistics of all refs, to be completed.
    pub(super) refs: Vec<RefStats>,
    pub(super) shared: Size,
}

/// Walks all histories of `repository`.
pub(super) async fn find(repository: &Repository) -> Result<Reach> {
    let refs = repository.refs().await?;
    let mut reach = Reach::default();
    let branches = refs.branches.into_iter().map(|(name, id)| ("branch", name, id));
    for (kind, name, id) in branches.chain(refs.tags.into_iter().map(|(name, id)| ("tag", name, id))) {
        let holder = RefSet(u32::try_from(reach.refs.len()).unwrap_or(u32::MAX - 1));
        reach.walk(repository, id, holder).await?;
        let commits = reach.commits.get(&id).map_or(0, |commit| commit.depth);
        let snapshot = id.to_string();
        let only_here = Size::default();
        reach.refs.push(RefStats { kind, name, snapshot, commits, nodes: 0, references: 0, only_here });
    }
    Ok(reach)
}

impl Reach {
    async fn walk(&mut self, repository: &Repository, tip: ObjectId, holder: RefSet) -> Result<()> {
        let mut new = Vec::new();
        let mut depth = 0;
        let commits = &mut self.commits;
        let logs = &mut self.pruned_logs;
        let visit = |info: icechunkfs_format::format::snapshot_info::SnapshotInfo| {
            for log in &info.pruned_ancestor_tx_logs {
                let known = logs.entry(*log).or_insert(holder);
                *known = known.and(holder);
            }
            match commits.get_mut(&info.id) {
                Some(known) => {
                    if new.len() as u64 > depth && depth == 0 {
                        depth = known.depth;
                    }
                    let go_on = known.holder != RefSet::SEVERAL && known.holder != holder;
                    known.holder = known.holder.and(holder);
                    go_on
                }
                None => {
                    new.push(info.id);
                    true
                }
            }
        };
        repository.walk(tip, visit).await?;
        for id in new.into_iter().rev() {
            depth += 1;
            self.commits.insert(id, Commit { holder, depth });
        }
        Ok(())
    }

    /// Returns the commits with their holders.
    pub(super) fn commits(&self) -> impl Iterator<Item = (ObjectId, RefSet)> + '_ {
        self.commits.iter().map(|(id, commit)| (*id, commit.holder))
    }

    /// Returns the holder of commit `id`; none if no ref leads to it.
    pub(super) fn holder(&self, id: &ObjectId) -> Option<RefSet> {
        self.commits.get(id).map(|commit| commit.holder)
    }

    /// Returns the number of transaction logs that must exist: old releases wrote none for the
    /// first commit.
    pub(super) fn needed_logs(&self) -> u64 {
        let later = self.commits.values().filter(|commit| commit.depth > 1).count();
        (later + self.pruned_logs.len()) as u64
    }

    /// Counts an object of `bytes` for its holder.
    pub(super) fn count(&mut self, holder: RefSet, bytes: u64) {
        match self.refs.get_mut(holder.0 as usize) {
            Some(one) => one.only_here.add(bytes),
            None => self.shared.add(bytes),
        }
    }
}
