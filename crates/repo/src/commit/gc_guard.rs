//! GC guard: keeps garbage collection from removing chunk objects that changes refer to.
//!
//! A chunk that was copied whole is a reference to the object of the original chunk. That object
//! stays as long as a commit refers to it; but the copy may be older than the current base, and the
//! commit that it was made from may have expired, or have been on no branch or tag. If garbage was
//! never collected, nothing can be missing. If it was, the objects are looked up; and if the
//! collection may still be removing objects, their bytes are stored again under new names, which no
//! collection knows. Version 1 records no collections: there the objects are always looked up.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};

use super::changes::{ChangeSet, ChunkChange};
use super::upload::CONCURRENT_OBJECTS;
use crate::repo::Repository;
use crate::repo::collect::finished::unfinished_collection;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::MemoryLimit;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_store::storage::Storage;

/// Location of a chunk: object, offset, length.
type ChunkLocation = (ObjectId, u64, u64);

/// Keeps garbage collection from removing what `changes`, made for `base`, refer to in
/// `repository`. The objects in `known_objects` are safe already.
///
/// Errors: [`ErrorKind::Stale`] if an object is already gone.
pub(super) async fn guard(
    repository: &Repository,
    base: &Snapshot,
    changes: &mut ChangeSet,
    known_objects: &HashSet<ObjectId>,
    now: u64,
    memory: &MemoryLimit,
) -> Result<()> {
    let is_recorded = repository.version() == SpecVersion::V2;
    if doubtful(changes, known_objects).next().is_none()
        || (is_recorded && !repository.may_have_been_collected_since(0))
    {
        return Ok(());
    }
    let storage = repository.storage();
    let failed = if unfinished_collection(repository, now).await?.is_some() {
        store_anew(storage, changes, known_objects, memory).await
    } else {
        look_for(storage, changes, known_objects).await
    };
    failed.map_err(|failure| {
        let place = failure.describe(base, changes);
        match failure.error.kind() {
            ErrorKind::NotFound => Error::with_source(
                ErrorKind::Stale,
                format!(
                    "{place} was copied within the repository and no longer exists: no branch or tag led to its \
                     commit, and another machine collected garbage without knowing of this work. Write that chunk \
                     again, or discard it"
                ),
                failure.error,
            ),
            _ => failure.error.context(place),
        }
    })
}

/// Checks that the chunk objects that `changes`, made for `base`, refer to are in `storage`.
///
/// Fails with [`ErrorKind::Corrupt`] and the name of the first chunk whose object is missing.
pub async fn check_objects(storage: &Arc<dyn Storage>, base: &Snapshot, changes: &ChangeSet) -> Result<()> {
    look_for(storage, changes, &HashSet::new()).await.map_err(|failure| {
        let place = failure.describe(base, changes);
        failure.error.not_found_as_corrupt(format!("its object chunks/{} is missing", failure.chunk)).context(place)
    })
}

/// Failure to read a chunk object.
struct Failure {
    chunk: ObjectId,
    error: Error,
}

impl Failure {
    /// Returns the name of the first chunk in `changes` whose bytes are in the object.
    fn describe(&self, base: &Snapshot, changes: &ChangeSet) -> String {
        match changes.chunk_in(base, self.chunk) {
            Some((path, coords)) => format!("chunk {coords:?} of {path}"),
            None => format!("chunks/{}", self.chunk),
        }
    }
}

/// Stores the bytes of chunks of the repository again, and points `changes` to the new objects.
async fn store_anew(
    storage: &Arc<dyn Storage>,
    changes: &mut ChangeSet,
    known_objects: &HashSet<ObjectId>,
    memory: &MemoryLimit,
) -> Result<(), Failure> {
    let places: BTreeSet<ChunkLocation> = doubtful(changes, known_objects).collect();
    type Copying<'a> = BoxFuture<'a, Result<(ChunkLocation, ObjectId), Failure>>;
    let copying = places.into_iter().map(|(chunk, offset, length)| -> Copying<'_> {
        Box::pin(async move {
            let _permit = memory.take(length).await;
            let copied = async {
                let bytes = storage.get_range(&format!("chunks/{chunk}"), offset, length).await?;
                let new = ObjectId::random()?;
                storage.put_new(&format!("chunks/{new}"), bytes).await?;
                Ok(((chunk, offset, length), new))
            };
            copied.await.map_err(|error| Failure { chunk, error })
        })
    });
    let copying: Vec<Copying<'_>> = copying.collect();
    let copies: BTreeMap<ChunkLocation, ObjectId> =
        futures_util::stream::iter(copying).buffer_unordered(CONCURRENT_OBJECTS).try_collect().await?;
    for change in changes.chunk_changes_mut() {
        if let ChunkChange::Stored(payload) = change
            && let Some(new) = payload.range().and_then(|place| copies.get(&place))
        {
            *payload = ChunkPayload::Native { chunk: *new, offset: 0, length: payload.length() };
        }
    }
    Ok(())
}

/// Fails with the first chunk object that `changes` refer to and that is missing.
async fn look_for(
    storage: &Arc<dyn Storage>,
    changes: &ChangeSet,
    known_objects: &HashSet<ObjectId>,
) -> Result<(), Failure> {
    let ends: BTreeSet<(ObjectId, u64)> = doubtful(changes, known_objects)
        .map(|(chunk, offset, length)| (chunk, offset.saturating_add(length)))
        .collect();
    let looks = ends.into_iter().map(|(chunk, end)| -> BoxFuture<'_, Result<(), Failure>> {
        // The last byte exists only if all others do.
        Box::pin(async move {
            let last = storage.get_range(&format!("chunks/{chunk}"), end.saturating_sub(1), end.min(1)).await;
            last.map(drop).map_err(|error| Failure { chunk, error })
        })
    });
    let looks: Vec<BoxFuture<'_, Result<(), Failure>>> = looks.collect();
    futures_util::stream::iter(looks).buffered(CONCURRENT_OBJECTS).try_collect().await
}

/// Returns the locations of the stored chunks in `changes`, except those in `known_objects`.
fn doubtful(changes: &ChangeSet, known_objects: &HashSet<ObjectId>) -> impl Iterator<Item = ChunkLocation> {
    let stored = changes.chunk_changes().filter_map(ChunkChange::stored);
    stored.filter_map(ChunkPayload::range).filter(|(chunk, ..)| !known_objects.contains(chunk))
}
