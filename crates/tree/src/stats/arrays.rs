//! Statistics of the arrays of one snapshot.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use crate::tree::Tree;
use crate::tree::nodes::NodeIndex;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_format::format::manifest::PayloadKind;

/// Statistics of one array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ArrayStats {
    /// Path of the array.
    pub path: String,
    /// Elements per dimension.
    pub shape: Vec<u64>,
    /// Chunks in the grid, stored or not.
    pub places: u64,
    /// Stored chunks.
    pub chunks: u64,
    /// Bytes of the stored chunks.
    pub bytes: u64,
    /// Bytes of native chunks, in objects of the repository.
    pub native_bytes: u64,
    /// Bytes of inline chunks, in manifests.
    pub inline_bytes: u64,
    /// Bytes of virtual chunks, in files outside the repository.
    pub virtual_bytes: u64,
    /// Manifests that list chunks of the array, possibly beside those of other arrays.
    pub manifests: u64,
    /// Bytes of those manifests.
    pub manifest_bytes: u64,
}

/// Collects the statistics of all arrays of `tree`, sorted by path, `jobs` of them concurrently.
pub(super) async fn collect_arrays(tree: &Arc<Tree>, jobs: usize) -> Result<Vec<ArrayStats>> {
    let arrays = tree.table().subtree(0).filter(|index| tree.table().array(*index).is_some());
    stream::iter(arrays).map(|index| one(tree, index)).buffered(jobs.max(1)).try_collect().await
}

async fn one(tree: &Arc<Tree>, index: NodeIndex) -> Result<ArrayStats> {
    let path = format!("/{}", tree.table().path(index));
    let (Some(array), Some(chunks)) = (tree.table().array(index), tree.chunks(index)) else {
        return Ok(ArrayStats { path, ..ArrayStats::default() });
    };
    let mut out = ArrayStats {
        shape: array.shape.to_vec(),
        places: array.grid.iter().fold(1, |places: u64, length| places.saturating_mul(u64::from(*length))),
        manifests: array.manifests.len() as u64,
        manifest_bytes: array.manifests.iter().map(|manifest| tree.table().manifest(manifest.id).size).sum(),
        ..ArrayStats::default()
    };
    let looked = chunks.each(|refs, at| {
        let length = refs.length(at);
        let bytes = match refs.kind(at) {
            PayloadKind::Native => &mut out.native_bytes,
            PayloadKind::Inline => &mut out.inline_bytes,
            PayloadKind::Virtual => &mut out.virtual_bytes,
        };
        *bytes = bytes.saturating_add(length);
        out.bytes = out.bytes.saturating_add(length);
        out.chunks += 1;
    });
    looked.await.context(|| path.clone())?;
    Ok(ArrayStats { path, ..out })
}
