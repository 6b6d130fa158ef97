//! Chunks that were written again with the bytes that they had: a copy of a whole array, or a
//! program that writes coordinates each time.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::changes::{ChangeSet, ChunkChange};
use super::references::References;
use crate::reader::Reader;
use crate::reader::same_bytes::{can_be_compared, have_same_bytes, is_same_file};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::Coords;

/// Chunks that are compared at the same time. Most differ in their lengths, or in their first
/// bytes.
pub(super) const CONCURRENT_CHUNKS: usize = 16;

/// Drops the chunks of `changes`, made for `base`, that have the bytes of the base. Returns their
/// number.
///
/// Only chunks of the same length are read.
pub async fn drop_unchanged(reader: &Arc<Reader>, base: &Snapshot, changes: &mut ChangeSet) -> Result<usize> {
    let references = References::new(base, reader, |node| changes.chunks.contains_key(node));
    let chunks = changes.chunks.iter().filter(|(node, _)| references.has_array(**node));
    let chunks = chunks.flat_map(|(node, chunks)| chunks.iter().map(move |(coords, change)| (*node, coords, change)));
    let references = &references;
    let compared = chunks.map(|(node, coords, change)| async move {
        let is_unchanged = match references.find(node, coords).await? {
            Some(payload) => has_bytes_of(reader, change, &payload).await?,
            None => false,
        };
        Ok::<_, Error>(is_unchanged.then(|| (node, coords.clone())))
    });
    // Collected first: the compiler cannot prove that a stream that borrows like this one is
    // `Send`.
    let compared: Vec<_> = compared.collect();
    let unchanged: Vec<Option<(NodeId, Coords)>> =
        stream::iter(compared).buffer_unordered(CONCURRENT_CHUNKS).try_collect().await?;
    let unchanged: Vec<(NodeId, Coords)> = unchanged.into_iter().flatten().collect();
    for (node, coords) in &unchanged {
        if let Some(chunks) = changes.chunks.get_mut(node) {
            chunks.remove(coords);
        }
    }
    changes.chunks.retain(|_, chunks| !chunks.is_empty());
    Ok(unchanged.len())
}

/// Returns true if `change` leaves the bytes of `payload`. A chunk that cannot be read is another
/// one.
pub(super) async fn has_bytes_of(reader: &Arc<Reader>, change: &ChunkChange, payload: &ChunkPayload) -> Result<bool> {
    let is_same = match change {
        ChunkChange::Stored(own) if own == payload => return Ok(true),
        _ if !can_be_compared(payload) => return Ok(false),
        ChunkChange::Delete => return Ok(false),
        ChunkChange::Stored(own) => can_be_compared(own) && have_same_bytes(reader, own, payload).await?,
        ChunkChange::File(file) if file.length != payload.length() => return Ok(false),
        ChunkChange::File(file) => is_same_file(reader, file.open()?, file.length, payload).await?,
    };
    Ok(is_same)
}
