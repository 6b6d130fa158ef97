//! Comparison of two change sets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::repacked;
use super::sides::ChunkSet;
use crate::commit::changes::{ChangeSet, ChunkChange, WrittenNode};
use crate::reader::Reader;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::{Node, Snapshot};
use icechunkfs_format::zarr::Coords;

/// Returns true if two change sets, made from `source`, change the same in `tip`, from which the
/// source differs by `different`. Chunks that turn out to have the same bytes in both are dropped
/// from that.
pub(super) async fn come_to_the_same(
    reader: &Arc<Reader>,
    [one, other]: [&ChangeSet; 2],
    tip: &Snapshot,
    source: &Snapshot,
    different: &mut ChangeSet,
) -> Result<bool> {
    let pair = |different: &ChangeSet| [one, other].map(|changes| effective(changes, tip, different));
    let [first, second] = pair(different);
    if are_same(reader, &first, &second).await? {
        return Ok(true);
    }
    let suspects = in_one(&first, &second);
    if suspects.is_empty() {
        return Ok(false);
    }
    repacked::drop_unchanged(reader, tip, source, different, suspects).await?;
    let [first, second] = pair(different);
    are_same(reader, &first, &second).await
}

/// Returns the chunks that only one of two change sets changes.
fn in_one(one: &ChangeSet, other: &ChangeSet) -> ChunkSet {
    let mut found = ChunkSet::new();
    for (these, those) in [(one, other), (other, one)] {
        for (node, chunks) in &these.chunks {
            let others = those.chunks.get(node);
            let alone = chunks.keys().filter(|coords| others.is_none_or(|others| !others.contains_key(*coords)));
            found.entry(*node).or_default().extend(alone.cloned());
        }
    }
    found.retain(|_, chunks| !chunks.is_empty());
    found
}

/// Returns those of `changes`, made from a source, that change something in `tip`, from which the
/// source differs by `different`.
fn effective(changes: &ChangeSet, tip: &Snapshot, different: &ChangeSet) -> ChangeSet {
    let there: HashMap<NodeId, Node<'_>> = tip.nodes().map(|node| (node.id, node)).collect();
    let is_new = |node: &WrittenNode| {
        there.get(&node.id).is_none_or(|there| there.zarr_json != &*node.zarr_json || there.path != node.path)
    };
    let is_changed = |node: &WrittenNode| there.get(&node.id).is_none_or(|there| there.zarr_json != &*node.zarr_json);
    let mut left = changes.clone();
    left.deleted.retain(|node| there.contains_key(&node.id));
    left.created.retain(is_new);
    left.updated.retain(is_changed);
    left.moved.retain(|moved| there.get(&moved.node).is_none_or(|there| there.path != moved.to));
    for (node, chunks) in &mut left.chunks {
        let different = different.chunks.get(node);
        // A chunk that both have with the same bytes has the place of the tip's.
        chunks.retain(|coords, change| {
            different.and_then(|chunks| chunks.get(coords)).is_some_and(|other| other.stored() == change.stored())
        });
    }
    left.chunks.retain(|_, chunks| !chunks.is_empty());
    left
}

/// Returns true if two change sets change the same. A chunk may be stored twice, as it is where a
/// commit meets a collection of garbage.
pub(super) async fn are_same(reader: &Arc<Reader>, one: &ChangeSet, other: &ChangeSet) -> Result<bool> {
    if outline(one) != outline(other) {
        return Ok(false);
    }
    // Chunks are in one order, since the outlines are equal.
    let pairs = std::iter::zip(payloads(one), payloads(other)).filter(|(one, other)| one != other);
    repacked::are_all_same(reader, pairs.collect()).await
}

/// Returns the payloads of the chunks that are there after `changes`.
fn payloads(changes: &ChangeSet) -> impl Iterator<Item = &ChunkPayload> {
    changes.chunk_changes().filter_map(ChunkChange::stored)
}

/// Changes of nodes, and the chunks that change: equal for equal changes.
#[derive(PartialEq)]
struct Outline<'a> {
    deleted: BTreeSet<NodeId>,
    written: BTreeMap<NodeId, (&'a str, &'a [u8])>,
    moved: BTreeMap<NodeId, &'a str>,
    /// Chunks of each array, with the length of those that are there afterwards.
    chunks: BTreeMap<NodeId, Vec<(&'a Coords, Option<u64>)>>,
}

fn outline<'a>(changes: &'a ChangeSet) -> Outline<'a> {
    let written = changes.created.iter().chain(&changes.updated);
    let chunks = changes.chunks.iter().filter(|(_, chunks)| !chunks.is_empty()).map(|(id, chunks)| {
        let length = |change: &'a ChunkChange| change.stored().map(ChunkPayload::length);
        (*id, chunks.iter().map(|(coords, change)| (coords, length(change))).collect())
    });
    Outline {
        deleted: changes.deleted.iter().map(|node| node.id).collect(),
        written: written.map(|node| (node.id, (node.path.as_str(), &*node.zarr_json))).collect(),
        moved: changes.moved.iter().map(|moved| (moved.node, moved.to.as_str())).collect(),
        chunks: chunks.collect(),
    }
}
