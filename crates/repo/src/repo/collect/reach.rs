//! Objects that the remaining snapshots need: their manifests, and the chunk objects that these
//! name.
//!
//! A file that cannot be read ends the collection, because the objects that it needs are unknown.
//! All are read from the store itself: a cache may hold files of another repository that was at
//! this place before. A migration to another place, for example, keeps the ids of commits, and its
//! snapshots have other manifests.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::Progress;
use crate::repo::MAX_SNAPSHOT;
use crate::repo::needs::{Part, chunks_in, manifests_in};
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::together::try_for_each;
use icechunkfs_format::format::MAX_FILE;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::storage::{Storage, decoded};

/// Files read at a time. An unusually large one may take some hundred MiB of memory.
const AT_ONCE: usize = 8;

#[derive(Debug, Default)]
pub(super) struct ReachableObjects {
    pub(super) snapshots: HashSet<ObjectId>,
    pub(super) manifests: HashSet<ObjectId>,
    pub(super) chunks: Chunks,
}

/// Chunk objects that something refers to, and the parts of them that are referred to.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// Lengths of the only known chunk in each object, if it begins where the object does.
    single: HashMap<ObjectId, u64>,
    /// Offsets and lengths of the chunks in all other objects.
    packed: HashMap<ObjectId, BTreeMap<u64, u64>>,
    /// Objects that uncommitted work refers to, to unknown parts of them.
    unknown: HashSet<ObjectId>,
}

impl Chunks {
    /// Adds an object of which any part may be referred to.
    pub(super) fn add_unknown_parts(&mut self, chunk: ObjectId) {
        self.unknown.insert(chunk);
    }

    pub(super) fn add(&mut self, chunk: ObjectId, offset: u64, length: u64) {
        if let Some(parts) = self.packed.get_mut(&chunk) {
            add_part(parts, offset, length);
            return;
        }
        match self.single.get(&chunk) {
            Some(known) if offset == 0 && *known == length => {}
            None if offset == 0 => drop(self.single.insert(chunk, length)),
            known => {
                let mut parts = BTreeMap::new();
                if let Some(known) = known {
                    parts.insert(0, *known);
                }
                add_part(&mut parts, offset, length);
                self.single.remove(&chunk);
                self.packed.insert(chunk, parts);
            }
        }
    }

    pub(super) fn has(&self, chunk: &ObjectId) -> bool {
        self.single.contains_key(chunk) || self.packed.contains_key(chunk) || self.unknown.contains(chunk)
    }

    /// Returns the bytes of object `chunk`, of `size` bytes, that certainly nothing refers to.
    pub(super) fn dead(&self, chunk: &ObjectId, size: u64) -> u64 {
        if self.unknown.contains(chunk) {
            return 0;
        }
        let used = match (self.single.get(chunk), self.packed.get(chunk)) {
            (Some(length), _) => *length,
            (None, Some(parts)) => union(parts),
            (None, None) => return 0,
        };
        size.saturating_sub(used)
    }
}

fn add_part(parts: &mut BTreeMap<u64, u64>, offset: u64, length: u64) {
    let known = parts.entry(offset).or_default();
    *known = length.max(*known);
}

/// Returns the number of bytes in at least one part.
fn union(parts: &BTreeMap<u64, u64>) -> u64 {
    let mut total = 0_u64;
    let mut end = 0_u64;
    for (offset, length) in parts {
        let from = (*offset).max(end);
        let to = offset.saturating_add(*length);
        total += to.saturating_sub(from);
        end = end.max(to);
    }
    total
}

impl ReachableObjects {
    /// Adds the objects that `snapshots` need. Snapshots that were added before are not read again.
    pub(super) async fn add(
        &mut self,
        storage: &Arc<dyn Storage>,
        snapshots: impl IntoIterator<Item = ObjectId>,
        progress: &Progress,
    ) -> Result<()> {
        let new: Vec<ObjectId> = snapshots.into_iter().filter(|id| self.snapshots.insert(*id)).collect();
        progress.expect(new.len());
        let mut manifests: HashSet<ObjectId> = HashSet::new();
        let take = |found: HashSet<ObjectId>| {
            progress.step(1);
            manifests.extend(found.into_iter().filter(|id| !self.manifests.contains(id)));
            Ok(())
        };
        try_for_each(new, AT_ONCE, |id| manifests_of(storage, id), take).await?;
        progress.expect(manifests.len());
        let take = |found: Vec<Part>| {
            progress.step(1);
            for (chunk, offset, length) in found {
                self.chunks.add(chunk, offset, length);
            }
            Ok(())
        };
        try_for_each(manifests.clone(), AT_ONCE, |id| chunks_of(storage, id), take).await?;
        self.manifests.extend(manifests);
        Ok(())
    }
}

async fn manifests_of(storage: &Arc<dyn Storage>, id: ObjectId) -> Result<HashSet<ObjectId>> {
    read(storage, &format!("snapshots/{id}"), MAX_SNAPSHOT, move |file: &[u8]| manifests_in(id, file)).await
}

async fn chunks_of(storage: &Arc<dyn Storage>, id: ObjectId) -> Result<Vec<Part>> {
    read(storage, &format!("manifests/{id}"), MAX_FILE, move |file: &[u8]| chunks_in(id, file)).await
}

async fn read<T: Send + 'static>(
    storage: &Arc<dyn Storage>,
    key: &str,
    limit: u64,
    decode: impl Fn(&[u8]) -> Result<T> + Clone + Send + 'static,
) -> Result<T> {
    let found = decoded::changing(&**storage, key, limit, decode).await;
    let found = found.map_err(|error| error.not_found_as_corrupt(format!("{key} is missing")));
    let why = "the objects to keep are not known, and nothing was removed (`icechunkfs verify` has details)";
    Ok(found.context(|| why)?.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use icechunkfs_format::format::testing::id;

    #[test]
    fn dead_bytes_of_packs_are_counted() {
        let mut chunks = Chunks::default();
        chunks.add(id(1), 0, 100);
        chunks.add(id(1), 0, 100);
        chunks.add(id(2), 0, 10);
        chunks.add(id(2), 20, 10);
        chunks.add(id(2), 25, 10);
        chunks.add(id(2), 20, 10);
        chunks.add(id(3), 50, 10);
        assert_eq!((chunks.dead(&id(1), 100), chunks.dead(&id(1), 150)), (0, 50));
        assert_eq!((chunks.dead(&id(2), 40), chunks.dead(&id(3), 100)), (15, 90));
        assert!(chunks.has(&id(3)) && !chunks.has(&id(4)));
        assert_eq!((chunks.single.len(), chunks.packed.len()), (1, 2));
        // Uncommitted work may refer to the rest of one, and to one that no commit needs.
        [id(2), id(4)].into_iter().for_each(|id| chunks.add_unknown_parts(id));
        assert!(chunks.has(&id(4)));
        assert_eq!((chunks.dead(&id(2), 40), chunks.dead(&id(4), 40)), (0, 0));
    }
}
