//! Selection of the commits that a collection removes in version 2.

use std::collections::{BTreeSet, HashMap};

use super::is_older;
use crate::repo::prune;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::RepoState;

/// Plan for the commits of one state of `repo`.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// All commits that the state lists.
    known: BTreeSet<ObjectId>,
    /// Commits to remove.
    pub(super) dropped: BTreeSet<ObjectId>,
}

/// Result of applying a plan to a newer state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Applied {
    /// The commits were removed. Holds the commits that are new since the plan.
    Done(Vec<ObjectId>),
    /// A ref or a new commit depends on a commit to remove: a new plan is needed.
    Conflict,
}

impl Plan {
    /// Plans to remove the commits of `state` that neither a ref nor any of `roots` leads to, and
    /// whose files, which `listed` has with their times of storing, are older than `older_than`.
    pub(super) fn of(
        state: &RepoState,
        roots: &BTreeSet<ObjectId>,
        listed: &HashMap<ObjectId, u64>,
        older_than: u64,
    ) -> Self {
        let mut reachable: BTreeSet<ObjectId> = BTreeSet::new();
        for tip in state.branches.values().chain(state.tags.values()).chain(roots) {
            let mut next = Some(*tip);
            // Ends at a commit that was met before, which includes the start of a cycle.
            while let Some(id) = next.filter(|id| state.snapshots.contains_key(id) && reachable.insert(*id)) {
                next = state.snapshots.get(&id).and_then(|record| record.parent);
            }
        }
        let goes = |id: &ObjectId, flushed_at: u64| {
            !reachable.contains(id)
                && match listed.get(id) {
                    Some(stored) => is_older(*stored, older_than),
                    // A commit whose file is gone is unusable anyway.
                    None => flushed_at < older_than,
                }
        };
        let dropped =
            state.snapshots.iter().filter(|(id, record)| goes(id, record.flushed_at)).map(|(id, _)| *id).collect();
        Plan { known: state.snapshots.keys().copied().collect(), dropped }
    }

    /// Returns true if commit `id` stays listed.
    pub(super) fn keeps(&self, id: ObjectId) -> bool {
        self.known.contains(&id) && !self.dropped.contains(&id)
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.known.difference(&self.dropped).copied()
    }

    /// Removes the commits from `state`, or changes nothing if that is not possible. A commit whose
    /// parent is removed gets the nearest ancestor that stays as its parent, or else the initial
    /// snapshot, or else none.
    pub(super) fn apply(&self, state: &mut RepoState) -> Result<Applied> {
        let is_dropped = |id: &ObjectId| self.dropped.contains(id);
        if state.branches.values().chain(state.tags.values()).any(is_dropped) {
            return Ok(Applied::Conflict);
        }
        let new: Vec<ObjectId> = state.snapshots.keys().filter(|id| !self.known.contains(id)).copied().collect();
        let parent = |id: &ObjectId| state.snapshots.get(id).and_then(|record| record.parent);
        if new.iter().any(|id| parent(id).as_ref().is_some_and(is_dropped)) {
            return Ok(Applied::Conflict);
        }
        let first = Some(ObjectId::INITIAL).filter(|id| state.snapshots.contains_key(id) && !is_dropped(id));
        prune::remove(&mut state.snapshots, &self.dropped, |ancestor, _| !is_dropped(&ancestor), first)?;
        Ok(Applied::Done(new))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_format::format::repo_state::SnapshotRecord;

    use icechunkfs_format::format::testing::id;

    fn state(commits: &[(u8, Option<u8>)], branches: &[(&str, u8)]) -> RepoState {
        let record = |(n, parent): &(u8, Option<u8>)| {
            let parent = parent.map(id);
            let flushed_at = u64::from(*n);
            (id(*n), SnapshotRecord { parent, flushed_at, ..SnapshotRecord::default() })
        };
        RepoState {
            branches: branches.iter().map(|(name, n)| ((*name).to_owned(), id(*n))).collect(),
            snapshots: commits.iter().map(record).collect(),
            ..RepoState::default()
        }
    }

    /// Returns the history of format notes 6.5: a branch was reset, and the commits it left have
    /// different ages.
    fn reset() -> (RepoState, HashMap<ObjectId, u64>) {
        let state = state(&[(1, None), (2, Some(1)), (3, Some(2)), (4, Some(3)), (5, Some(4))], &[("main", 2)]);
        let listed = [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)].into_iter().map(|(n, at)| (id(n), at * 1_000_001));
        (state, listed.collect())
    }

    #[test]
    fn what_is_young_stays_and_hangs_on_what_stays() {
        let (mut state, listed) = reset();
        let plan = Plan::of(&state, &BTreeSet::new(), &listed, 41_000_000);
        assert_eq!(plan.dropped, BTreeSet::from([id(3), id(4)]));
        assert_eq!(plan.apply(&mut state).unwrap(), Applied::Done(Vec::new()));
        let left = state.snapshots.get(&id(5)).unwrap();
        assert_eq!((left.parent, left.pruned_ancestor_tx_logs.as_slice()), (Some(id(2)), [id(3), id(4)].as_slice()));
        assert_eq!(state.snapshots.len(), 3);
    }

    #[test]
    fn what_work_is_based_on_stays() {
        let (state, listed) = reset();
        let plan = Plan::of(&state, &BTreeSet::from([id(4)]), &listed, 1_000_000_000);
        assert_eq!(plan.dropped, BTreeSet::from([id(5)]));
    }

    #[test]
    fn what_came_meanwhile_stays_or_needs_a_new_plan() {
        let (mut state, listed) = reset();
        let plan = Plan::of(&state, &BTreeSet::new(), &listed, 1_000_000_000);
        let record =
            |parent: u8| SnapshotRecord { parent: Some(id(parent)), ..state.snapshots.get(&id(5)).unwrap().clone() };
        let good = record(2);
        let bad = record(5);
        let mut hangs = state.clone();
        hangs.snapshots.insert(id(6), bad);
        let before = hangs.clone();
        assert_eq!(plan.apply(&mut hangs).unwrap(), Applied::Conflict);
        assert_eq!(hangs, before);
        let mut points = state.clone();
        points.branches.insert("x".into(), id(4));
        assert_eq!(plan.apply(&mut points).unwrap(), Applied::Conflict);
        state.snapshots.insert(id(6), good);
        assert_eq!(plan.apply(&mut state).unwrap(), Applied::Done(vec![id(6)]));
        assert_eq!(state.snapshots.keys().copied().collect::<Vec<_>>(), [id(1), id(2), id(6)]);
    }
}
