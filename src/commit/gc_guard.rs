//! GC guard: keeps garbage collection from removing chunk objects that changes refer to.
//!
//! A chunk that was copied whole is a reference to the object of the original chunk. That object stays as long as a commit
//! refers to it; but the copy may be older than the current base, and the commit that it was made from may have expired. If
//! garbage was never collected, nothing can be missing. If it was, the objects are looked up; and if the collection may still
//! be removing objects, their bytes are stored again under new names, which no collection knows.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};

use super::changes::{ChangeSet, ChunkChange};
use super::upload::CONCURRENT_OBJECTS;
use crate::error::{Error, ErrorKind, Result};
use crate::format::chunk_payload::ChunkPayload;
use crate::format::ids::ObjectId;
use crate::memory::MemoryLimit;
use crate::repo::Repository;
use crate::storage::Storage;

/// Location of a chunk: object, offset, length.
type ChunkLocation = (ObjectId, u64, u64);

/// Keeps garbage collection from removing what `changes` refer to in `repository`. The objects in `known_objects` are safe already.
///
/// Errors: [`ErrorKind::Stale`] if an object is already gone.
pub(super) async fn guard(
    repository: &Repository,
    changes: &mut ChangeSet,
    known_objects: &HashSet<ObjectId>,
    now: u64,
    memory: &MemoryLimit,
) -> Result<()> {
    let is_doubtful =
        |payload: &ChunkPayload| payload.range().is_some_and(|(chunk, ..)| !known_objects.contains(&chunk));
    let stored: Vec<&mut ChunkPayload> = changes
        .chunk_changes_mut()
        .filter_map(|change| match change {
            ChunkChange::Stored(payload) if is_doubtful(payload) => Some(payload),
            _ => None,
        })
        .collect();
    if stored.is_empty() || !repository.may_have_been_collected_since(0) {
        return Ok(());
    }
    if repository.unfinished_collection(now).await?.is_some() {
        return store_anew(repository.storage(), stored, memory).await;
    }
    look_for(repository.storage(), stored).await
}

/// Stores the bytes of chunks of the repository again, and points `stored` to the new objects.
async fn store_anew(storage: &Arc<dyn Storage>, stored: Vec<&mut ChunkPayload>, memory: &MemoryLimit) -> Result<()> {
    let places: BTreeSet<ChunkLocation> = stored.iter().filter_map(|payload| payload.range()).collect();
    type Copying<'a> = BoxFuture<'a, Result<(ChunkLocation, ObjectId)>>;
    let copying = places.into_iter().map(|(chunk, offset, length)| -> Copying<'_> {
        Box::pin(async move {
            let _permit = memory.take(length).await;
            let bytes = storage.get_range(&format!("chunks/{chunk}"), offset, length).await.map_err(collected)?;
            let new = ObjectId::random()?;
            storage.put_new(&format!("chunks/{new}"), bytes).await?;
            Ok(((chunk, offset, length), new))
        })
    });
    let copying: Vec<Copying<'_>> = copying.collect();
    let copies: BTreeMap<ChunkLocation, ObjectId> =
        futures_util::stream::iter(copying).buffer_unordered(CONCURRENT_OBJECTS).try_collect().await?;
    for payload in stored {
        if let Some(new) = payload.range().and_then(|place| copies.get(&place)) {
            *payload = ChunkPayload::Native { chunk: *new, offset: 0, length: payload.length() };
        }
    }
    Ok(())
}

/// Fails if a chunk object that `stored` refers to is missing.
async fn look_for(storage: &Arc<dyn Storage>, stored: Vec<&mut ChunkPayload>) -> Result<()> {
    let ends: BTreeSet<(ObjectId, u64)> = stored
        .iter()
        .filter_map(|payload| payload.range())
        .map(|(chunk, offset, length)| (chunk, offset + length))
        .collect();
    let looks = ends.into_iter().map(|(chunk, end)| -> BoxFuture<'_, Result<()>> {
        // The last byte exists only if all others do.
        Box::pin(async move {
            let last = storage.get_range(&format!("chunks/{chunk}"), end.saturating_sub(1), end.min(1)).await;
            last.map(drop).map_err(collected)
        })
    });
    let looks: Vec<BoxFuture<'_, Result<()>>> = looks.collect();
    futures_util::stream::iter(looks).buffer_unordered(CONCURRENT_OBJECTS).try_collect().await
}

fn collected(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::with_source(
            ErrorKind::Stale,
            "a chunk that was copied within the repository is not there any more: its commit had expired, and garbage was collected \
             by a machine that did not know of this work. Write that chunk again, or discard it",
            error,
        ),
        _ => error,
    }
}
