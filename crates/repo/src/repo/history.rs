//! History of a snapshot: walks over its ancestors.
//!
//! A history may have any length, and each commit a text of any length. A walk holds one commit at
//! a time; lists of commits are counted.

use std::collections::HashSet;

use super::alpha::Ancestry;
use super::{Generation, Repository};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Commits that are read to find out if a ref leads to a snapshot where each is a request, as in
/// version 1.
const FEW_COMMITS: usize = 1000;
/// Name of lists of commits in errors.
const HISTORY: &str = "the history";

impl Repository {
    /// Returns `tip` and its ancestors back to a root, newest first; at most `limit` of them. Where
    /// the text of a commit is in a file of its own, as in version 1, it is copied: [`Self::walk`]
    /// and [`Self::ancestors`] take less memory.
    ///
    /// Fails with [`ErrorKind::Corrupt`] if the parents form a cycle, which a damaged repository
    /// can have.
    pub async fn history(&self, tip: ObjectId, limit: usize) -> Result<Metered<Vec<SnapshotInfo>>> {
        collect(self, tip, limit, |commit| commit).await
    }

    /// Returns `tip` and its ancestors like [`Self::history`], without their texts.
    pub async fn ancestors(&self, tip: ObjectId, limit: usize) -> Result<Metered<Vec<SnapshotInfo<()>>>> {
        collect(self, tip, limit, SnapshotInfo::without_text).await
    }

    /// Returns commit `id` with its text.
    pub async fn commit(&self, id: ObjectId) -> Result<SnapshotInfo> {
        let mut found = None;
        self.walk(id, |commit| {
            found = Some(commit);
            false
        })
        .await?;
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no snapshot {id} in the repository")))
    }

    /// Calls `visit` for `tip` and its ancestors in order until `visit` returns false. No commit is
    /// kept.
    pub async fn walk(&self, tip: ObjectId, mut visit: impl FnMut(SnapshotInfo) -> bool) -> Result<()> {
        self.try_walk(tip, |commit| Ok(visit(commit))).await
    }

    /// Calls `visit` like [`Self::walk`], until it fails.
    pub async fn try_walk(&self, tip: ObjectId, mut visit: impl FnMut(SnapshotInfo) -> Result<bool>) -> Result<()> {
        match &self.generation {
            Generation::V2(info) => {
                let mut next = Some(info.position(tip).ok_or_else(|| {
                    Error::new(ErrorKind::NotFound, format!("there is no snapshot {tip} in the repository"))
                })?);
                let mut steps = 0;
                while let Some(position) = next {
                    let commit = info.snapshot(position).context(|| format!("history of {tip}"))?;
                    steps += 1;
                    if steps > info.snapshot_count() {
                        return Err(cycle(tip, commit.id));
                    }
                    next = info.parent_position(position)?;
                    if !visit(commit)? {
                        break;
                    }
                }
            }
            generation => {
                let mut seen = HashSet::new();
                let mut ancestry = Ancestry::new(&*self.storage, tip);
                let mut next = Some(tip);
                while let Some(id) = next {
                    if !seen.insert(id) {
                        return Err(cycle(tip, id));
                    }
                    let commit = match generation {
                        Generation::Alpha(_) => ancestry.step().await?,
                        _ => Some(read_commit(self, id).await?),
                    };
                    let Some(commit) = commit else { break };
                    next = commit.parent;
                    if !visit(commit)? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Creates the meter of a list of commits, which is made beside the file `repo`.
fn meter_of_history(repository: &Repository) -> Meter {
    let size = if let Generation::V2(info) = &repository.generation { info.size() } else { 0 };
    Meter::new(HISTORY).beside(size)
}

async fn collect<T>(
    repository: &Repository,
    tip: ObjectId,
    limit: usize,
    reduce: impl Fn(SnapshotInfo) -> SnapshotInfo<T>,
) -> Result<Metered<Vec<SnapshotInfo<T>>>> {
    let mut meter = meter_of_history(repository);
    let mut commits = Vec::new();
    repository
        .try_walk(tip, |commit| {
            if commits.len() < limit {
                let commit = reduce(commit);
                commit.count(&mut meter)?;
                commits.push(commit);
            }
            Ok(commits.len() < limit)
        })
        .await?;
    Ok(meter.finish(commits))
}

/// Calls `visit` for all commits reachable from `tips`, each once, until `visit` returns false.
pub async fn walk_all(
    repository: &Repository,
    tips: impl IntoIterator<Item = ObjectId>,
    mut visit: impl FnMut(SnapshotInfo) -> Result<bool>,
) -> Result<()> {
    let mut seen = HashSet::new();
    let mut meter = meter_of_history(repository);
    let mut is_ended = false;
    for tip in tips {
        if seen.contains(&tip) {
            continue;
        }
        let visit_new = |commit: SnapshotInfo| {
            meter.count_items::<ObjectId>(2)?;
            if !seen.insert(commit.id) {
                return Ok(false);
            }
            is_ended = !visit(commit)?;
            Ok(!is_ended)
        };
        repository.try_walk(tip, visit_new).await?;
        if is_ended {
            break;
        }
    }
    Ok(())
}

/// Returns the commits after `base` up to `tip`, oldest first; none if `base` is not among
/// `tip` and its ancestors.
///
/// A base removed by expiration counts as an ancestor of the commit that now holds its
/// transaction log; that commit is returned with only those logs that follow the log of `base`.
pub async fn commits_after(
    repository: &Repository,
    base: ObjectId,
    tip: ObjectId,
) -> Result<Option<Metered<Vec<SnapshotInfo>>>> {
    let mut meter = meter_of_history(repository);
    let mut commits = Vec::new();
    let mut found = false;
    repository
        .try_walk(tip, |mut commit| {
            if commit.id == base {
                found = true;
                return Ok(false);
            }
            if let Some(at) = commit.pruned_ancestor_tx_logs.iter().position(|log| *log == base) {
                commit.pruned_ancestor_tx_logs.drain(..=at);
                found = true;
            } else {
                // Version 1 would have to read the base.
                found = commit.parent == Some(base);
            }
            commit.count(&mut meter)?;
            commits.push(commit);
            Ok(!found)
        })
        .await?;
    commits.reverse();
    Ok(found.then(|| meter.finish(commits)))
}

/// Returns true if `base` is `tip` or one of its ancestors; one that has expired counts.
pub async fn is_ancestor(repository: &Repository, base: ObjectId, tip: ObjectId) -> Result<bool> {
    let mut found = false;
    repository
        .walk(tip, |commit| {
            let is_before = commit.parent == Some(base) || commit.pruned_ancestor_tx_logs.contains(&base);
            found = commit.id == base || is_before;
            !found
        })
        .await?;
    Ok(found)
}

/// Returns true if collections of garbage are known to keep what snapshot `id` needs. One that
/// `repository` has recorded keeps what listed commits need, however long it goes on removing, and
/// a later one is noticed by the mark ([`Repository::log_position`]). Version 1 records none: there
/// they keep what refs lead to.
pub async fn is_kept(repository: &Repository, id: ObjectId) -> Result<bool> {
    match &repository.generation {
        Generation::V2(info) => Ok(info.position(id).is_some()),
        Generation::Alpha(_) | Generation::V1(_) => is_on_a_ref(repository, id).await,
    }
}

/// Returns true if a branch or tag is known to lead to snapshot `id`, so that no collection of
/// garbage has removed anything that it needs. In version 1, where each commit is a request,
/// only the newest commits of each ref are examined.
pub async fn is_on_a_ref(repository: &Repository, id: ObjectId) -> Result<bool> {
    let refs = repository.refs().await?;
    let tips: Vec<ObjectId> = refs.branches.into_values().chain(refs.tags.into_values()).collect();
    if tips.contains(&id) {
        return Ok(true);
    }
    let limit = if matches!(repository.generation, Generation::V2(_)) { usize::MAX } else { FEW_COMMITS };
    let mut seen = HashSet::new();
    for tip in tips {
        let mut steps = 0;
        let walked = repository.walk(tip, |commit| {
            steps += 1;
            steps < limit && seen.insert(commit.id) && commit.id != id
        });
        // A damaged history leads to the commits before the damage.
        if let Err(error) = walked.await {
            tracing::debug!("looking for snapshot {id}: {error}");
        }
        if seen.contains(&id) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Counts the commits reachable from `tip` and from none of `others`. None before version 2,
/// where counting would cost a request for each commit of the repository.
pub fn commits_beyond(
    repository: &Repository,
    tip: ObjectId,
    others: impl IntoIterator<Item = ObjectId>,
) -> Result<Option<usize>> {
    let Generation::V2(info) = &repository.generation else { return Ok(None) };
    let mut seen = vec![false; info.snapshot_count()];
    // Each commit is passed once, whatever the number of refs, and a cycle of damaged parents
    // ends.
    let mut pass = |from: ObjectId| -> Result<usize> {
        let mut next = info.position(from);
        let mut count = 0;
        while let Some(position) = next {
            match seen.get_mut(position) {
                Some(seen) if !*seen => *seen = true,
                _ => break,
            }
            count += 1;
            next = info.parent_position(position)?;
        }
        Ok(count)
    };
    for other in others {
        pass(other)?;
    }
    pass(tip).map(Some)
}

/// Returns the newest of `tip` and its ancestors that is not after `time` (microseconds since
/// 1970-01-01 UTC).
pub(super) async fn newest_not_after(repository: &Repository, tip: ObjectId, time: u64) -> Result<Option<ObjectId>> {
    let mut found = None;
    repository
        .walk(tip, |commit| {
            if commit.flushed_at <= time {
                found = Some(commit.id);
            }
            found.is_none()
        })
        .await?;
    Ok(found)
}

/// Reads the description of a commit from its snapshot file, where version 1 keeps it; from the
/// store itself, because an expiration writes the file again with another parent. Offline, from
/// the cache.
pub(super) async fn read_commit(repository: &Repository, id: ObjectId) -> Result<SnapshotInfo> {
    let snapshot = match repository.snapshot_in(id, super::MAX_SNAPSHOT, true).await {
        Err(error) if error.kind() == ErrorKind::Offline => repository.snapshot(id, super::MAX_SNAPSHOT).await?,
        read => read?,
    };
    SnapshotInfo::of_snapshot(&snapshot)
}

/// Returns the error for a history that does not end.
pub(crate) fn cycle(tip: ObjectId, id: ObjectId) -> Error {
    Error::corrupt(format!("the history of snapshot {tip} is a cycle: {id} is its own ancestor"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::repo::testing::open;
    use icechunkfs_format::format::testing::{id, repo};

    #[tokio::test]
    async fn cycles_end() {
        let repository = open(repo(&[(id(1), 2), (id(2), 0), (id(3), 1)], &[("main", 2)])).await;
        let error = repository.history(id(3), usize::MAX).await.unwrap_err();
        assert!(error.to_string().contains("a cycle"), "{error}");
        assert_eq!(repository.history(id(3), 2).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn commits_that_only_one_ref_leads_to_are_counted() {
        // 1 - 2 - 3, and 2 - 4.
        let commits = [(id(1), -1), (id(2), 0), (id(3), 1), (id(4), 1)];
        let repository = open(repo(&commits, &[("main", 2), ("other", 3)])).await;
        let beyond = |tip, others: &[u8]| commits_beyond(&repository, id(tip), others.iter().map(|&n| id(n))).unwrap();
        assert_eq!(beyond(3, &[4]), Some(1));
        assert_eq!(beyond(3, &[]), Some(3));
        assert_eq!(beyond(2, &[4]), Some(0));
        assert_eq!(beyond(3, &[1, 3]), Some(0));
        assert_eq!(beyond(9, &[1]), Some(0));
        let cycle = open(repo(&[(id(1), 1), (id(2), 0)], &[("main", 1)])).await;
        assert_eq!(commits_beyond(&cycle, id(2), []).unwrap(), Some(2));
    }
}
