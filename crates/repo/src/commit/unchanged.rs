//! Chunks that were written again with the bytes that they had: a copy of a whole array, or a
//! program that writes coordinates each time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::try_join_all;

use super::changes::{ChangeSet, ChunkChange};
use super::conflicts::ChunkSet;
use super::rebase::drop_chunks;
use super::references::References;
use super::upload::StoredChunks;
use crate::reader::Reader;
use crate::reader::same_bytes::{can_be_compared, has_content, have_same_bytes, is_same_file};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::Coords;

/// Chunks that are compared at the same time. Most differ in their lengths, or in their first
/// bytes. A change set may have millions: no more than these are on their way at any time.
pub(super) const CONCURRENT_CHUNKS: usize = 16;

/// Drops the chunks of `changes`, made for `base`, that have the bytes of the base. Returns their
/// number.
///
/// Only chunks of the same length are read.
pub async fn drop_unchanged(reader: &Arc<Reader>, base: &Snapshot, changes: &mut ChangeSet) -> Result<usize> {
    let references = &References::new(base, reader, |node| changes.chunks.contains_key(node));
    let in_base = changes.chunks.iter().filter(|(node, _)| references.has_array(**node));
    let written: Vec<(NodeId, &Coords, &ChunkChange)> = in_base
        .flat_map(|(node, chunks)| chunks.iter().map(|(coords, change)| (*node, coords, change)))
        .filter(|(_, _, change)| !matches!(change, ChunkChange::Delete))
        .collect();
    let mut unchanged = ChunkSet::new();
    for some in written.chunks(CONCURRENT_CHUNKS) {
        let compared: Vec<_> = some
            .iter()
            .map(|(node, coords, change)| async move {
                Ok::<_, Error>(match references.find(*node, coords).await? {
                    Some(payload) => has_bytes_of(reader, change, &payload).await,
                    None => false,
                })
            })
            .collect();
        for ((node, coords, _), is_same) in std::iter::zip(some, try_join_all(compared).await?) {
            if is_same {
                unchanged.entry(*node).or_default().insert((*coords).clone());
            }
        }
    }
    drop_chunks(changes, &mut StoredChunks::new(), &unchanged);
    Ok(unchanged.values().map(BTreeSet::len).sum())
}

/// Returns true if `change` leaves the bytes of `payload`. A chunk that cannot be read counts as
/// another one: it can be replaced, and what is wrong with a new one shows when it is stored.
pub(super) async fn has_bytes_of(reader: &Arc<Reader>, change: &ChunkChange, payload: &ChunkPayload) -> bool {
    if !can_be_compared(payload) {
        return matches!(change, ChunkChange::Stored(own) if own == payload);
    }
    let compared = match change {
        ChunkChange::Stored(own) if own == payload => Ok(true),
        ChunkChange::Stored(own) if can_be_compared(own) => have_same_bytes(reader, own, payload).await,
        ChunkChange::File(file) if file.length == payload.length() => match file.open() {
            Ok(file) => is_same_file(reader, file, payload).await,
            Err(error) => Err(error),
        },
        ChunkChange::Made(made) if made.length() == payload.length() && !made.is_new() => {
            let made = Arc::clone(made);
            let read = move |range: Range<u64>| {
                let mut own = Vec::new();
                made.read(range, &mut own)?;
                Ok(own)
            };
            has_content(reader, Arc::new(read), payload).await
        }
        ChunkChange::Delete | ChunkChange::Stored(_) | ChunkChange::File(_) | ChunkChange::Made(_) => Ok(false),
    };
    compared.unwrap_or_else(|error| {
        tracing::debug!("a chunk counts as changed, as it cannot be compared: {error}");
        false
    })
}
