//! Common ancestors that no record tells of.
//!
//! A repository can lose what a commit was made from: the reference implementation amends a merge
//! and drops its record, and a copy by another program or by an older release does not have the
//! operations log that tells of it. The common ancestor that is known is then too old, and a merge
//! with it would bring back what one side has taken away since, or take away what it has brought.
//! The snapshots give that away: one side has, or had at one of its commits, something that the
//! other had at some commit, and has changed the rest.
//!
//! Such a commit is a *candidate*. It may also be chance, so that it is not believed: the merge is
//! computed with it, too, and refused if the result differs.

use std::collections::HashSet;
use std::time::Duration;

use super::base::Surroundings;
use super::claims::{MAX_LOGS, Touched};
use super::repacked;
use super::sides::{Places, chunks_of, in_both};
use crate::commit::changes::{ChangeSet, ChunkChange};
use crate::compare::changes::changes_between;
use crate::repo::MAX_SNAPSHOT;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::zarr::Coords;

/// Difference between clocks within which the order of two commits says nothing, in microseconds.
const CLOCK_TOLERANCE: u64 = Duration::from_secs(600).as_micros() as u64;

/// Most commits of a line that are compared with one of the other line: a comparison reads
/// manifests.
const MAX_LOOKED_AT: usize = 64;

/// One side of a merge.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) tip: &'a Snapshot,
    /// Commits since the common ancestor, along the parents, newest first.
    pub(super) line: &'a [&'a SnapshotInfo],
}

/// Returns the newest commit of `side` since the common ancestor `before` that `other` may have
/// been made from, if there is one.
pub(super) async fn candidate(
    around: Surroundings<'_>,
    before: &Snapshot,
    side: Side<'_>,
    other: Side<'_>,
) -> Result<Option<ObjectId>> {
    let Surroundings { repository, reader, .. } = around;
    let Some(newest) = other.line.first() else { return Ok(None) };
    let Some(touched) = Touched::read(repository, other.line).await? else { return Ok(None) };
    let mut earlier = EarlierCommits { line: other.line.get(1..).unwrap_or_default(), touched: Vec::new() };
    let mut own = Touched::new();
    let mut found = None;
    for commit in side.line.iter().rev().take(MAX_LOGS) {
        if !own.add(repository, &[commit]).await? {
            break;
        }
        // A line does not have from the other one anything that it never touched.
        if !touched.covers(&own) {
            break;
        }
        if commit.flushed_at > newest.flushed_at.saturating_add(CLOCK_TOLERANCE) {
            break;
        }
        let then = repository.snapshot(commit.id, MAX_SNAPSHOT).await?;
        let mut changed = changes_between(reader, before, &then).await?;
        let has_common = has_common_at(around, &changed, &then, other.tip).await?;
        // Both may well have deleted the same, and one has it again: only what was written has
        // bytes that tell.
        changed.deleted.clear();
        changed
            .chunks
            .values_mut()
            .for_each(|chunks| chunks.retain(|_, change| !matches!(change, ChunkChange::Delete)));
        if has_common || earlier.had_common(around, &changed, &then, &own).await? {
            found = Some(commit.id);
        }
    }
    Ok(found)
}

/// Returns true if snapshot `at` has one of the changes that led to `then`.
async fn has_common_at(around: Surroundings<'_>, changed: &ChangeSet, then: &Snapshot, at: &Snapshot) -> Result<bool> {
    let reader = around.reader;
    let mut differs = changes_between(reader, then, at).await?;
    let both = in_both(&differs, &chunks_of(changed));
    repacked::drop_unchanged(reader, then, at, &mut differs, both).await?;
    has_common(changed, &differs)
}

/// Commits of a line before its tip. Each log is read once, when it is needed first.
struct EarlierCommits<'a> {
    line: &'a [&'a SnapshotInfo],
    /// Changes of the first commits of the line.
    touched: Vec<Touched>,
}

impl EarlierCommits<'_> {
    /// Returns true if one of the changes that led to `then` was there at one of the commits; the
    /// line may have taken it back since. `own` has the nodes and chunks of the changes.
    async fn had_common(
        &mut self,
        around: Surroundings<'_>,
        changed: &ChangeSet,
        then: &Snapshot,
        own: &Touched,
    ) -> Result<bool> {
        let repository = around.repository;
        let mut looked_at = 0;
        for (position, commit) in self.line.iter().enumerate() {
            if position == self.touched.len() {
                let touched = Touched::read(repository, &[commit]).await?;
                self.touched.push(touched.unwrap_or_else(Touched::new));
            }
            if !self.touched.get(position).is_some_and(|touched| touched.meets(own)) {
                continue;
            }
            looked_at += 1;
            if looked_at > MAX_LOOKED_AT {
                break;
            }
            let at = repository.snapshot(commit.id, MAX_SNAPSHOT).await?;
            if has_common_at(around, changed, then, &at).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns true if one of `changed` is also the state from which nothing `differs`.
fn has_common(changed: &ChangeSet, differs: &ChangeSet) -> Result<bool> {
    let places = Places::after(differs)?;
    let created = differs.created.iter().map(|node| node.id);
    let deleted = differs.deleted.iter().map(|node| node.id);
    let existence: HashSet<_> = created.chain(deleted).chain(differs.moved.iter().map(|moved| moved.node)).collect();
    let documents: HashSet<_> = differs.updated.iter().map(|node| node.id).collect();
    let is_same = |node| !existence.contains(node);
    let is_same_chunk = |node: &NodeId, coords: &Coords, change: &ChunkChange| {
        let is_listed = differs.chunks.get(node).is_some_and(|chunks| chunks.contains_key(coords));
        !is_listed && !places.lack(*node, coords, change)
    };
    Ok(changed.created.iter().any(|node| is_same(&node.id))
        || changed.deleted.iter().any(|node| is_same(&node.id))
        || changed.moved.iter().any(|moved| is_same(&moved.node))
        || changed.updated.iter().any(|node| is_same(&node.id) && !documents.contains(&node.id))
        || changed.chunks.iter().any(|(node, chunks)| {
            is_same(node) && chunks.iter().any(|(coords, change)| is_same_chunk(node, coords, change))
        }))
}
