//! Compares stored objects with reachable ones.

use std::collections::HashSet;

use serde::Serialize;

use super::chunks::{ChunkSet, Object};
use super::manifests::Manifests;
use super::reach::Reach;
use super::{ByKind, Size, Stats};
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::storage::{ObjectInfo, Storage};

/// Stored objects, by listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// Chunk objects, manifests, snapshots and transaction logs.
    #[serde(flatten)]
    pub kinds: ByKind,
    /// `repo`, or the files of refs and the configuration of version 1.
    pub refs: Size,
    /// Earlier states of `repo`.
    pub backups: Size,
    /// Earlier states that a garbage collection removes when they are old enough: all that the
    /// operations log does not continue in.
    pub removable_backups: Size,
}

impl Stored {
    /// Returns the sum of everything.
    pub fn total(&self) -> Size {
        [self.kinds.total(), self.refs, self.backups].into_iter().sum()
    }
}

fn id_of(key: &str, folder: &str) -> Option<ObjectId> {
    key.strip_prefix(folder)?.parse().ok()
}

/// Counts stored, reachable and missing objects except chunk objects. The operations log continues
/// in `log_files`.
pub(super) async fn count_metadata_objects(
    storage: &dyn Storage,
    reach: &mut Reach,
    manifests: &Manifests,
    log_files: &HashSet<String>,
    stats: &mut Stats,
) -> Result<()> {
    for (folder, which) in [("manifests/", 0), ("snapshots/", 1), ("transactions/", 2)] {
        let (stored, reachable, unreachable) =
            (of(&mut stats.stored.kinds, which), of(&mut stats.reachable, which), of(&mut stats.unreachable, which));
        let mut look = |ObjectInfo { key, size, .. }: ObjectInfo| {
            stored.add(size);
            let holder = id_of(&key, folder).and_then(|id| match which {
                0 => manifests.get(&id).map(|held| held.holder),
                1 => reach.holder(&id),
                _ => reach.holder(&id).or_else(|| reach.pruned_logs.get(&id).copied()),
            });
            match holder {
                Some(holder) => {
                    reachable.add(size);
                    reach.count(holder, size);
                }
                None => unreachable.add(size),
            }
        };
        storage.for_each(folder, &mut look).await?;
    }
    // Not every alpha wrote transaction logs.
    let logs = if stats.spec_version == 0 { 0 } else { reach.needed_logs() };
    for (which, needed) in [(0, manifests.len() as u64), (1, reach.commits().count() as u64), (2, logs)] {
        of(&mut stats.missing, which).objects = needed.saturating_sub(of(&mut stats.reachable, which).objects);
    }
    storage.for_each("refs/", &mut |object| stats.stored.refs.add(object.size)).await?;
    let mut look = |object: ObjectInfo| {
        stats.stored.backups.add(object.size);
        let name = object.key.strip_prefix("overwritten/").unwrap_or(&object.key);
        if name.starts_with("repo.") && !log_files.contains(name) {
            stats.stored.removable_backups.add(object.size);
        }
    };
    storage.for_each("overwritten/", &mut look).await?;
    for key in ["repo", "config.yaml"] {
        match storage.get(key, icechunkfs_repo::repo::MAX_SNAPSHOT).await {
            Ok(bytes) => stats.stored.refs.add(bytes.len() as u64),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn of(kinds: &mut ByKind, which: u8) -> &mut Size {
    match which {
        0 => &mut kinds.manifests,
        1 => &mut kinds.snapshots,
        _ => &mut kinds.transactions,
    }
}

/// Counts stored, reachable and missing chunk objects of one pass: those with ids in the range of
/// `set`.
pub(super) async fn chunks(storage: &dyn Storage, set: ChunkSet, reach: &mut Reach, stats: &mut Stats) -> Result<()> {
    let range = set.range;
    let ([(native, native_bytes), (virtuals, virtual_bytes)], objects) = set.into_objects();
    stats.chunks.native += native;
    stats.chunks.native_bytes = stats.chunks.native_bytes.saturating_add(native_bytes);
    stats.chunks.r#virtual += virtuals;
    stats.chunks.virtual_bytes = stats.chunks.virtual_bytes.saturating_add(virtual_bytes);
    let mut found = 0;
    let mut look = |ObjectInfo { key, size, .. }: ObjectInfo| {
        let id = id_of(&key, "chunks/");
        // An object without an id is unreachable and counted in the first pass.
        if !id.map_or(range.is_first(), |id| range.has(id)) {
            return;
        }
        stats.stored.kinds.chunks.add(size);
        let at = id.and_then(|id| objects.binary_search_by_key(&id, |object| object.id).ok());
        let Some(Object { used, holder, .. }) = at.and_then(|at| objects.get(at)) else {
            stats.unreachable.chunks.add(size);
            return;
        };
        found += 1;
        stats.reachable.chunks.add(size);
        reach.count(*holder, size);
        let dead = size.saturating_sub(*used);
        if dead > 0 {
            stats.dead_in += 1;
            stats.dead_bytes = stats.dead_bytes.saturating_add(dead);
        }
    };
    storage.for_each("chunks/", &mut look).await?;
    stats.missing.chunks.objects += (objects.len() as u64).saturating_sub(found);
    Ok(())
}
