//! Listing of objects, and removal of those that are garbage.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{Collected, Keep, Progress, is_older};
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::failpoints;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::storage::{ObjectInfo, Storage};

/// Objects removed by one call.
pub(super) const BATCH: usize = 1000;
/// Calls in flight at a time.
const AT_ONCE: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    pub(super) size: u64,
    /// Time of storing, in microseconds since 1970-01-01 UTC.
    pub(super) stored: u64,
}

/// Kind of object, in the order of removal: referring objects first, so that an interruption leaves
/// no reference to a removed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Snapshot,
    Log,
    Manifest,
    Chunk,
}

impl Kind {
    fn folder(self) -> &'static str {
        match self {
            Kind::Snapshot => "snapshots/",
            Kind::Log => "transactions/",
            Kind::Manifest => "manifests/",
            Kind::Chunk => "chunks/",
        }
    }

    /// Returns the kind and the id of the object with this key; none if it is no object of these
    /// kinds.
    pub(super) fn of(key: &str) -> Option<(Self, ObjectId)> {
        [Kind::Snapshot, Kind::Log, Kind::Manifest, Kind::Chunk]
            .into_iter()
            .find_map(|kind| Some((kind, key.strip_prefix(kind.folder())?.parse().ok()?)))
    }
}

type Objects = HashMap<(Kind, ObjectId), Object>;

/// All objects that could be removed.
#[derive(Debug, Default)]
pub(super) struct Listed {
    objects: Objects,
    unknown: u64,
}

#[derive(Debug)]
pub(super) struct Garbage(Objects);

impl Listed {
    pub(super) async fn get(storage: &Arc<dyn Storage>) -> Result<Self> {
        let mut listed = Listed::default();
        // Listed in the order in which a commit stores them. Of a commit stored during the listing,
        // chunks are then missed, and so kept, rather than the files that refer to them.
        for kind in [Kind::Chunk, Kind::Manifest, Kind::Log, Kind::Snapshot] {
            let mut add = |object: ObjectInfo| {
                let name = object.key.strip_prefix(kind.folder()).unwrap_or_default();
                match name.parse::<ObjectId>() {
                    // Parsing accepts other spellings of an id, but removal uses the canonical one.
                    Ok(id) if id.to_string() == name => {
                        listed.objects.insert((kind, id), Object { size: object.size, stored: object.modified });
                    }
                    _ => listed.unknown += 1,
                }
            };
            storage.for_each(kind.folder(), &mut add).await?;
        }
        Ok(listed)
    }

    /// Returns the time of storing of each snapshot file.
    pub(super) fn snapshot_times(&self) -> HashMap<ObjectId, u64> {
        let snapshots = self.objects.iter().filter(|((kind, _), _)| *kind == Kind::Snapshot);
        snapshots.map(|((_, id), object)| (*id, object.stored)).collect()
    }

    /// Returns those of `snapshots` that have a file.
    pub(super) fn existing(&self, snapshots: &BTreeSet<ObjectId>) -> impl Iterator<Item = ObjectId> {
        snapshots.iter().copied().filter(|id| self.objects.contains_key(&(Kind::Snapshot, *id)))
    }

    /// Takes out objects older than `older_than` that are not to `keep`.
    pub(super) fn garbage(&mut self, keep: &Keep, older_than: u64) -> Garbage {
        let is_garbage = |(kind, id): &(Kind, ObjectId), object: &mut Object| {
            is_older(object.stored, older_than) && !keep.is_needed(*kind, id)
        };
        Garbage(self.objects.extract_if(is_garbage).collect())
    }
}

impl Garbage {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops objects from the garbage that are to `keep` after all.
    pub(super) fn retain_unneeded(&mut self, keep: &Keep) {
        self.0.retain(|(kind, id), _| !keep.is_needed(*kind, id));
    }

    /// Counts the garbage, and the dead bytes and unrecognized objects of `listed`.
    pub(super) fn count(&self, listed: &Listed, keep: &Keep) -> Collected {
        let mut counted = Collected { unknown: listed.unknown, ..Collected::default() };
        for ((kind, _), object) in &self.0 {
            let count = match kind {
                Kind::Snapshot => &mut counted.snapshots,
                Kind::Log => &mut counted.transaction_logs,
                Kind::Manifest => &mut counted.manifests,
                Kind::Chunk => &mut counted.chunks,
            };
            count.add(object.size);
        }
        for ((_, id), object) in listed.objects.iter().filter(|((kind, _), _)| *kind == Kind::Chunk) {
            let dead = keep.needed.chunks.dead(id, object.size);
            if dead > 0 {
                counted.packs.add(dead);
            }
        }
        counted
    }

    /// Removes the garbage in the order of [`Kind`].
    pub(super) async fn remove(&self, storage: &Arc<dyn Storage>, progress: &Progress) -> Result<()> {
        progress.begin_removing();
        progress.expect(self.0.len());
        let kinds = [
            (Kind::Snapshot, "gc.snapshots.done"),
            (Kind::Log, "gc.logs.done"),
            (Kind::Manifest, "gc.manifests.done"),
            (Kind::Chunk, "gc.chunks.done"),
        ];
        for (kind, point) in kinds {
            let ids: Vec<ObjectId> = self.0.keys().filter(|(found, _)| *found == kind).map(|(_, id)| *id).collect();
            let batches: Vec<Vec<ObjectId>> = ids.chunks(BATCH).map(<[ObjectId]>::to_vec).collect();
            let removals = stream::iter(batches).map(|batch| async move {
                let keys: Vec<String> = batch.iter().map(|id| format!("{}{id}", kind.folder())).collect();
                storage.delete(&keys).await?;
                progress.step(keys.len());
                Ok(())
            });
            let removed: Result<()> = removals.buffer_unordered(AT_ONCE).try_collect().await;
            removed.context(|| "some objects could not be removed; run this again to continue")?;
            failpoints::pass(point)?;
        }
        Ok(())
    }
}
