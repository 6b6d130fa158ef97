//! Merges a source commit by commit: each becomes a commit of the branch, with its message and
//! metadata.
//!
//! A commit is applied as what it changed since its parent, compared with all that the branch has
//! and the parent has not ([`crate::commit::three_way`]). Commits that change nothing there any
//! more are left out. They are stored one after another and published together
//! ([`crate::commit::chain`]): the branch has all of them, or none.
//!
//! Each new commit records the one that it was made of, and the last one the source, so that a
//! later merge knows what the branch has.

use std::collections::HashSet;
use std::sync::Arc;

use tracing::debug;

use super::ancestor::History;
use super::base::{self, Surroundings};
use super::sameness::are_same;
use super::sides::{self, Applied};
use super::{MergeOptions, Merged, Plan};
use crate::commit::chain::StoredCommit;
use crate::commit::conflict::Conflict;
use crate::commit::engine::{Engine, OnConflict, Request};
use crate::commit::merge_record::{MergeCommit, MergeRecord};
use crate::commit::replace_record::RESERVED_ITEMS;
use crate::commit::request::KnownObjects;
use crate::compare::changes::changes_between;
use crate::reader::Reader;
use crate::repo::history::{cycle, is_kept};
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Makes the commits of `plan` commits of the branch, published together. [`MergeOptions::message`]
/// is not used; the metadata is added to each. Returns none if other commits came first.
///
/// Nothing is changed if one of them conflicts: then [`Merged::plan`] has its conflicts, and
/// [`Merged::refused`] names it.
pub(super) async fn carry_out(
    mut plan: Plan,
    history: &History,
    repository: &Repository,
    reader: &Arc<Reader>,
    engine: &Engine,
    options: &MergeOptions,
) -> Result<Option<Merged>> {
    let commits = commits(history, options.source, plan.tip.id(), options)?;
    let around = Surroundings { repository, reader, engine, history };
    let chain = match store(around, (&plan, &commits), options).await? {
        Ok(chain) => chain,
        Err((refused, conflicts)) => {
            plan.conflicts = conflicts;
            return Ok(Some(Merged { refused: Some(refused), ..Merged::nothing(plan) }));
        }
    };
    let is_published = engine.publish_chain(repository, &options.into, plan.tip.id(), &chain).await?;
    Ok(is_published.then(|| Merged::made(chain.iter().map(StoredCommit::id).collect(), plan)))
}

/// Returns the commits that lead from one that branch tip `into` was made from to `source`, oldest
/// first: the parent of the first one, then the commits.
fn commits(
    history: &History,
    source: ObjectId,
    into: ObjectId,
    options: &MergeOptions,
) -> Result<(ObjectId, Vec<SnapshotInfo>)> {
    let known = history.ancestors(into);
    let mut next = source;
    let mut commits = Vec::new();
    let mut passed = HashSet::new();
    while !known.contains(&next) {
        if !passed.insert(next) {
            return Err(cycle(source, next));
        }
        let commit = history.get(next).ok_or_else(|| Error::corrupt(format!("{next} is not in its own history")))?;
        commits.push(commit.clone());
        next = commit.parent.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "the commits of {} do not lead back to one of branch `{}`, since older ones have expired: merge without --keep-commits",
                    options.source_name, options.into
                ),
            )
        })?;
    }
    commits.reverse();
    Ok((next, commits))
}

/// Commit that conflicts, and its conflicts.
type Refused = (ObjectId, Vec<Conflict>);

/// Stores the commits on top of the branch's tip.
async fn store(
    around: Surroundings<'_>,
    (plan, (first_parent, commits)): (&Plan, &(ObjectId, Vec<SnapshotInfo>)),
    options: &MergeOptions,
) -> Result<Result<Vec<StoredCommit>, Refused>> {
    let Surroundings { repository, reader, engine, history } = around;
    let known = history.ancestors(plan.tip.id());
    let mut before = Arc::new(repository.snapshot(*first_parent, MAX_SNAPSHOT).await?);
    let mut tip = Arc::clone(&plan.tip);
    let mut chain = Vec::new();
    let mut last = None;
    // With the last commit, all before it are.
    let is_kept = is_kept(repository, options.source).await?;
    // Commits that the branch and the chain have, by the records of the chain.
    let mut recorded = known.clone();
    for commit in commits {
        let after = Arc::new(repository.snapshot(commit.id, MAX_SNAPSHOT).await?);
        if brings_known(history, commit, &known) {
            // As a change since its parent it would bring what the branch had once, in the place of
            // what it has now.
            if !is_plain_merge(around, commit, &before, &after, &known).await?
                && !is_known(around, commit.id, &after, &known).await?
            {
                return Err(no_merge(commit.id, options));
            }
            before = after;
            continue;
        }
        let Applied { changes, conflicts, .. } =
            sides::apply(reader, &before, &after, &tip, &plan.tip_commit, options.on_conflict).await?;
        if !conflicts.is_empty() {
            return Ok(Err((commit.id, conflicts)));
        }
        let merge = history.merge(&options.source_name, commit.id, &recorded);
        let brings = merge.brings.clone();
        let request = request(commit, merge, options)?;
        let request =
            Request { known_objects: KnownObjects::referred(repository, &changes).filter(|_| is_kept), ..request };
        match engine.store_after(repository, &tip, &changes, &request).await? {
            Some(stored) => {
                let parent = std::mem::replace(&mut tip, Arc::clone(&stored.snapshot));
                chain.push(stored);
                recorded.extend(&brings);
                last = Some((parent, changes, commit, brings));
            }
            None => debug!("commit {} changes nothing in branch {}", commit.id, options.into),
        }
        before = after;
    }
    // The last one stands also for those after it, so that the branch is known to have all of the
    // source.
    if let Some((parent, changes, commit, brings)) = last
        && commit.id != options.source
    {
        recorded.retain(|id| !brings.contains(id));
        let merge = history.merge(&options.source_name, options.source, &recorded);
        let request = request(commit, merge, options)?;
        let request =
            Request { known_objects: KnownObjects::referred(repository, &changes).filter(|_| is_kept), ..request };
        if let Some(stored) = engine.store_after(repository, &parent, &changes, &request).await? {
            chain.pop();
            tip = Arc::clone(&stored.snapshot);
            chain.push(stored);
        }
    }
    check(around, plan, &tip, options).await.map(|()| Ok(chain))
}

/// Returns true if `commit` was made from something that `known` has, besides what its parent had,
/// or may have been: it is a merge, or stands for another commit.
fn brings_known(history: &History, commit: &SnapshotInfo, known: &HashSet<ObjectId>) -> bool {
    let had = commit.parent.map(|parent| history.ancestors(parent)).unwrap_or_default();
    let mut claimed = history.claimed_commits(commit.id).iter().flat_map(|id| history.ancestors(*id));
    let brings = claimed.any(|id| known.contains(&id) && !had.contains(&id));
    brings || history.with_unknown_merge(&HashSet::from([commit.id])).is_some()
}

/// Returns true if `after`, the snapshot of `commit`, is what one of `known` is that it stands for:
/// the branch needs nothing of it.
async fn is_known(
    around: Surroundings<'_>,
    commit: ObjectId,
    after: &Snapshot,
    known: &HashSet<ObjectId>,
) -> Result<bool> {
    let Surroundings { repository, reader, history, .. } = around;
    for id in history.claimed_commits(commit).iter().filter(|id| known.contains(*id) && history.get(**id).is_some()) {
        let replaced = repository.snapshot(*id, MAX_SNAPSHOT).await?;
        if changes_between(reader, &replaced, after).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if `after`, the snapshot of `commit`, is what merging `before` into the snapshot
/// that it has merged comes to without a conflict, and the branch has that snapshot: the branch
/// needs nothing of it.
async fn is_plain_merge(
    around: Surroundings<'_>,
    commit: &SnapshotInfo,
    before: &Snapshot,
    after: &Snapshot,
    known: &HashSet<ObjectId>,
) -> Result<bool> {
    let Surroundings { repository, reader, history, .. } = around;
    let merged = MergeRecord::of(commit)?.map(|merge| merge.snapshot);
    let Some(merged) = merged.filter(|merged| known.contains(merged)) else { return Ok(false) };
    let Some(merged_commit) = history.get(merged) else { return Ok(false) };
    let common = history.common_ancestors(&[before.id()], &[merged]);
    if common.is_empty() || common.iter().any(|id| history.is_missing(*id)) {
        return Ok(false);
    }
    let base = base::merged(around, &common, 0).await?.snapshot;
    let merged = repository.snapshot(merged, MAX_SNAPSHOT).await?;
    let (applied, made) = tokio::try_join!(
        sides::apply(reader, &base, before, &merged, merged_commit, OnConflict::Fail),
        changes_between(reader, &merged, after)
    )?;
    Ok(applied.conflicts.is_empty() && are_same(reader, &applied.changes, &made).await?)
}

fn no_merge(commit: ObjectId, options: &MergeOptions) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "commit {commit} of {} is a merge or stands for other commits, and branch `{}` has only some of them: \
             nothing was merged; merge without --keep-commits",
            options.source_name, options.into
        ),
    )
}

/// Describes the commit that is made of `commit` and makes `merge`.
fn request(commit: &SnapshotInfo, merge: MergeCommit, options: &MergeOptions) -> Result<Request> {
    let mut metadata = commit.metadata()?.into_inner();
    metadata.retain(|name, _| !RESERVED_ITEMS.contains(&name.as_str()));
    // Commits that change nothing are left out.
    Ok(Request { records: false, ..super::request(options, commit.message(), metadata, merge) })
}

/// Fails unless the commits together, of which `last` is the last, change just what one commit of
/// all would. Where conflicts are to be resolved, each commit's are, which may come to something
/// else; but not if all together have no conflict: then one that was resolved long ago, in a merge
/// that the source has, was now resolved in another way.
async fn check(around: Surroundings<'_>, plan: &Plan, last: &Snapshot, options: &MergeOptions) -> Result<()> {
    let Surroundings { repository, reader, engine, .. } = around;
    let unresolved;
    let expected = if options.on_conflict == OnConflict::Fail {
        plan
    } else {
        let options = MergeOptions { on_conflict: OnConflict::Fail, ..options.clone() };
        unresolved = super::plan(repository, reader, engine, &options).await?;
        &unresolved
    };
    if !expected.conflicts.is_empty() {
        return Ok(());
    }
    let made = changes_between(reader, &plan.tip, last).await?;
    if are_same(reader, &made, &expected.changes).await? {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "the commits of {}, applied one by one, do not give the same result as together: nothing was merged; merge \
             without --keep-commits",
            options.source_name
        ),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::ancestor::tests::{history, object_id};
    use super::*;

    #[test]
    fn commits_lead_from_one_that_the_branch_has() {
        // 5 is the branch; 8 and 9 are each other's parent.
        let history = history("1 2<1 3<1 4<3 5<2 6 8<9 9<8");
        let options = MergeOptions {
            source: object_id(4),
            source_name: "branch `dev`".to_owned(),
            into: "main".to_owned(),
            keep_commits: true,
            message: String::new(),
            metadata: serde_json::Map::new(),
            on_conflict: OnConflict::Fail,
            ancestor: None,
        };
        let from = |source| {
            let found = commits(&history, object_id(source), object_id(5), &options);
            found.map(|(first, commits)| (first, commits.iter().map(|commit| commit.id).collect::<Vec<_>>()))
        };
        assert_eq!(from(4).unwrap(), (object_id(1), vec![object_id(3), object_id(4)]));
        assert_eq!(from(2).unwrap(), (object_id(2), vec![]));
        assert!(from(6).unwrap_err().to_string().contains("older ones have expired"));
        assert!(from(8).unwrap_err().to_string().contains("a cycle"));
    }
}
