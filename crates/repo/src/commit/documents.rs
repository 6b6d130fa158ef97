//! Documents that both sides of a commit changed, and what a new document leaves of chunks.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::changes::{ChangeSet, WrittenNode};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::array::ArrayMetadata;
use icechunkfs_format::zarr::document;
use icechunkfs_format::zarr::three_way::{self, MergedDocument, Side};
use icechunkfs_format::zarr::{Coords, is_in_grid};

/// Merged contents of `zarr.json` files, by node.
pub type MergedDocuments = BTreeMap<NodeId, Bytes>;

/// Path that stands for the whole of a document.
const WHOLE: &str = "";

/// Merges the document of `node` with the one that commits made of `before`. Of members that both
/// changed in different ways, `side_of` says whose are taken, if it is known.
pub(super) fn merge_document(
    node: &WrittenNode,
    before: Option<&[u8]>,
    after: Option<&[u8]>,
    side_of: &dyn Fn(&str) -> Option<Side>,
) -> Result<MergedDocument> {
    let conflict = || Ok(MergedDocument::Conflict(vec![WHOLE.to_owned()]));
    let (Some(before), Some(after)) = (before, after) else { return conflict() };
    let room = document::reserve_merge([before, &node.zarr_json, after])?;
    let merged = match three_way::merge(before, &node.zarr_json, after, side_of) {
        // Another layout of the same members is no change of theirs.
        MergedDocument::Whole(document) if is_same_json(document.as_bytes(), after) => {
            MergedDocument::Whole(String::from_utf8(after.to_vec()).unwrap_or(document))
        }
        merged => merged,
    };
    drop(room);
    // Each member is one side's, but together they need not make an array.
    if let MergedDocument::Whole(document) = &merged
        && node.is_array
        && ArrayMetadata::parse(document.as_bytes()).is_err()
    {
        return conflict();
    }
    Ok(merged)
}

/// Returns true if both documents have the same members.
fn is_same_json(one: &[u8], other: &[u8]) -> bool {
    let parsed = |document| serde_json::from_slice::<serde_json::Value>(document).ok();
    parsed(one).is_some_and(|one| Some(one) == parsed(other))
}

/// Change of an array's `zarr.json` by one side, while the other side changed chunks.
pub(super) struct DocumentChange<'a> {
    pub(super) old: &'a [u8],
    pub(super) new: &'a [u8],
    /// Document that says which chunks the array has in the end.
    pub(super) grid_of: &'a [u8],
}

/// Chunks that an array has with another `zarr.json`, with bytes that mean the same.
pub(super) enum KeptPlaces {
    Grid(Vec<u32>),
    /// None: their bytes mean something else.
    Nothing,
}

impl DocumentChange<'_> {
    pub(super) fn kept_places(&self) -> Result<KeptPlaces> {
        // A chunk's bytes and its name have a meaning only together with these members.
        let meaning = ["data_type", "chunk_grid", "codecs", "storage_transformers", "chunk_key_encoding"];
        if document::first_difference(self.new, self.old, &meaning)?.is_some() {
            return Ok(KeptPlaces::Nothing);
        }
        Ok(KeptPlaces::Grid(ArrayMetadata::parse(self.grid_of)?.grid))
    }
}

impl KeptPlaces {
    pub(super) fn has(&self, coords: &Coords) -> bool {
        match self {
            KeptPlaces::Grid(grid) => is_in_grid(coords, grid),
            KeptPlaces::Nothing => false,
        }
    }
}

/// Gives the updated nodes of `changes` their `merged` documents. A document that `tip` has
/// already is no change any more.
pub fn take_merged(changes: &mut ChangeSet, merged: MergedDocuments, tip: &Snapshot) {
    if merged.is_empty() {
        return;
    }
    let nodes = tip.nodes().filter(|node| merged.contains_key(&node.id));
    let there: HashMap<NodeId, &[u8]> = nodes.map(|node| (node.id, node.zarr_json)).collect();
    for node in &mut changes.updated {
        if let Some(document) = merged.get(&node.id) {
            node.zarr_json = document.clone();
        }
    }
    changes.updated.retain(|node| there.get(&node.id).is_none_or(|there| *there != &*node.zarr_json));
}
