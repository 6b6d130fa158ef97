//! Listing of objects, and removal of those that are garbage.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};

use super::{Collected, Count, Keep, Progress, is_older};
use crate::error::{Context, Result};
use crate::failpoints;
use crate::format::ids::ObjectId;
use crate::storage::{ObjectInfo, Storage};

/// Objects removed by one call.
const BATCH: usize = 1000;
/// Calls in flight at a time.
const AT_ONCE: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    pub(super) size: u64,
    /// Time of storing, in microseconds since 1970-01-01 UTC.
    pub(super) stored: u64,
}

pub(super) type Objects = HashMap<ObjectId, Object>;

/// All objects that could be removed.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) snapshots: Objects,
    logs: Objects,
    manifests: Objects,
    chunks: Objects,
    unknown: u64,
}

#[derive(Debug, Default)]
pub(super) struct Garbage {
    snapshots: Objects,
    logs: Objects,
    manifests: Objects,
    chunks: Objects,
}

impl Listed {
    pub(super) async fn get(storage: &Arc<dyn Storage>) -> Result<Self> {
        let mut listed = Listed::default();
        // Listed in the order in which a commit stores them. Of a commit stored during the listing, chunks are then missed, and so kept,
        // rather than the files that refer to them.
        listed.chunks = listed.list(storage, "chunks/").await?;
        listed.manifests = listed.list(storage, "manifests/").await?;
        listed.logs = listed.list(storage, "transactions/").await?;
        listed.snapshots = listed.list(storage, "snapshots/").await?;
        Ok(listed)
    }

    async fn list(&mut self, storage: &Arc<dyn Storage>, folder: &str) -> Result<Objects> {
        let mut objects = Objects::new();
        let mut keep = |object: ObjectInfo| {
            let name = object.key.strip_prefix(folder).unwrap_or_default();
            match name.parse::<ObjectId>() {
                // Parsing accepts other spellings of an id, but removal uses the canonical one.
                Ok(id) if id.to_string() == name => {
                    objects.insert(id, Object { size: object.size, stored: object.modified });
                }
                _ => self.unknown += 1,
            }
        };
        storage.for_each(folder, &mut keep).await?;
        Ok(objects)
    }

    /// Returns the time of storing of each snapshot file.
    pub(super) fn snapshot_times(&self) -> HashMap<ObjectId, u64> {
        self.snapshots.iter().map(|(id, object)| (*id, object.stored)).collect()
    }

    /// Takes out objects older than `older_than` that `found` does not need.
    pub(super) fn garbage(&mut self, found: &Keep, older_than: u64) -> Garbage {
        let needed = &found.needed;
        let take = |objects: &mut Objects, is_needed: &dyn Fn(&ObjectId) -> bool| {
            objects.extract_if(|id, object| is_older(object.stored, older_than) && !is_needed(id)).collect()
        };
        Garbage {
            snapshots: take(&mut self.snapshots, &|id| needed.snapshots.contains(id)),
            logs: take(&mut self.logs, &|id| needed.snapshots.contains(id) || found.logs.contains(id)),
            manifests: take(&mut self.manifests, &|id| needed.manifests.contains(id)),
            chunks: take(&mut self.chunks, &|id| needed.chunks.has(id)),
        }
    }
}

impl Garbage {
    pub(super) fn is_empty(&self) -> bool {
        [&self.snapshots, &self.logs, &self.manifests, &self.chunks].iter().all(|objects| objects.is_empty())
    }

    /// Drops objects from the garbage that `found` needs after all.
    pub(super) fn spare(&mut self, found: &Keep) {
        let needed = &found.needed;
        self.snapshots.retain(|id, _| !needed.snapshots.contains(id));
        self.logs.retain(|id, _| !needed.snapshots.contains(id) && !found.logs.contains(id));
        self.manifests.retain(|id, _| !needed.manifests.contains(id));
        self.chunks.retain(|id, _| !needed.chunks.has(id));
    }

    /// Counts the garbage, and the dead bytes and unrecognized objects of `listed`.
    pub(super) fn count(&self, listed: &Listed, found: &Keep) -> Collected {
        let count = |objects: &Objects| {
            objects.values().fold(Count::default(), |mut sum, object| {
                sum.add(object.size);
                sum
            })
        };
        let mut packs = Count::default();
        for (id, object) in &listed.chunks {
            let dead = found.needed.chunks.dead(id, object.size);
            if dead > 0 {
                packs.add(dead);
            }
        }
        Collected {
            snapshots: count(&self.snapshots),
            transaction_logs: count(&self.logs),
            manifests: count(&self.manifests),
            chunks: count(&self.chunks),
            packs,
            unknown: listed.unknown,
            ..Collected::default()
        }
    }

    /// Removes the garbage, referring objects first, so that an interruption leaves no reference to a removed object.
    pub(super) async fn remove(&self, storage: &Arc<dyn Storage>, progress: &Progress) -> Result<()> {
        progress.begin_removing();
        let kinds = [
            ("snapshots", &self.snapshots, "gc.snapshots.done"),
            ("transactions", &self.logs, "gc.logs.done"),
            ("manifests", &self.manifests, "gc.manifests.done"),
            ("chunks", &self.chunks, "gc.chunks.done"),
        ];
        progress.expect(kinds.iter().map(|(_, objects, _)| objects.len()).sum());
        for (folder, objects, point) in kinds {
            let keys: Vec<String> = objects.keys().map(|id| format!("{folder}/{id}")).collect();
            let batches: Vec<BoxFuture<'_, Result<()>>> = keys
                .chunks(BATCH)
                .map(|batch| {
                    Box::pin(async move {
                        storage.delete(batch).await?;
                        progress.steps(batch.len());
                        Ok(())
                    }) as _
                })
                .collect();
            let removed: Result<()> = futures_util::stream::iter(batches).buffer_unordered(AT_ONCE).try_collect().await;
            removed.context(|| "some objects could not be removed; run this again to go on")?;
            failpoints::reach(point)?;
        }
        Ok(())
    }
}
