//! Common ancestors that no record tells of.
//!
//! A repository can lose what a commit was made from: the reference implementation amends a merge and drops its record, a clone does not have the operations log
//! that tells of it, a collection has removed the replaced commit. The common ancestor that is known is then too old, and a merge with it would
//! bring back what one side has taken away since, or take away what it has brought. The snapshots give that away: one side has everything
//! that the other had at some commit, or has changed the same things.
//!
//! Such a commit is a *candidate*. It may also be chance, so that it is not believed: the merge is computed with it, too, and refused if the result
//! differs.

use std::collections::HashSet;
use std::time::Duration;

use super::base::Surroundings;
use super::claims::{MAX_LOGS, Touched, read_logs};
use super::repacked;
use super::sides::{ChunkSet, in_both};
use crate::commit::changes::ChangeSet;
use crate::compare::changes::changes_between;
use crate::error::Result;
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::format::snapshot::Snapshot;
use crate::repo::MAX_SNAPSHOT;

/// Difference between clocks within which the order of two commits says nothing, in microseconds.
const CLOCK_TOLERANCE: u64 = Duration::from_secs(600).as_micros() as u64;

/// One side of a merge.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) tip: &'a Snapshot,
    /// Commits since the common ancestor, along the parents, newest first.
    pub(super) line: &'a [&'a SnapshotInfo],
}

/// Returns the newest commit of `side` since the common ancestor `before` that `other` may have been made from, if there is one.
pub(super) async fn candidate(
    around: Surroundings<'_>,
    before: &Snapshot,
    side: Side<'_>,
    other: Side<'_>,
) -> Result<Option<ObjectId>> {
    let Surroundings { repository, reader, .. } = around;
    let Some(newest) = other.line.first() else { return Ok(None) };
    let Some(touched) = Touched::read(repository, other.line).await? else { return Ok(None) };
    let mut own = Touched::default();
    let mut found = None;
    for commit in side.line.iter().rev().take(MAX_LOGS) {
        let Some(logs) = read_logs(repository, &[commit]).await? else { break };
        for log in &logs {
            own.add(log)?;
        }
        // What one line never touched, it does not have from the other.
        if !touched.covers(&own) {
            break;
        }
        if commit.flushed_at > newest.flushed_at.saturating_add(CLOCK_TOLERANCE) {
            break;
        }
        let then = repository.snapshot(commit.id, MAX_SNAPSHOT).await?;
        let (changed, mut differs) =
            tokio::try_join!(changes_between(reader, before, &then), changes_between(reader, &then, other.tip))?;
        let both = in_both(&differs, &chunks_of(&changed));
        repacked::drop_unchanged(reader, (&then, other.tip), &mut differs, both).await?;
        if has_common(&changed, &differs) {
            found = Some(commit.id);
        }
    }
    Ok(found)
}

fn chunks_of(changes: &ChangeSet) -> ChunkSet {
    changes.chunks.iter().map(|(node, chunks)| (*node, chunks.keys().cloned().collect())).collect()
}

/// Returns true if one of `changed` is also the state from which nothing `differs`.
fn has_common(changed: &ChangeSet, differs: &ChangeSet) -> bool {
    let created = differs.created.iter().map(|node| node.id);
    let deleted = differs.deleted.iter().map(|node| node.id);
    let existence: HashSet<_> = created.chain(deleted).chain(differs.moved.iter().map(|moved| moved.node)).collect();
    let documents: HashSet<_> = differs.updated.iter().map(|node| node.id).collect();
    let is_same = |node| !existence.contains(node);
    changed.created.iter().any(|node| is_same(&node.id))
        || changed.deleted.iter().any(|node| is_same(&node.id))
        || changed.moved.iter().any(|moved| is_same(&moved.node))
        || changed.updated.iter().any(|node| is_same(&node.id) && !documents.contains(&node.id))
        || changed.chunks.iter().any(|(node, chunks)| {
            let others = differs.chunks.get(node);
            is_same(node) && chunks.keys().any(|coords| others.is_none_or(|others| !others.contains_key(coords)))
        })
}
