//! Invalidation of the kernel's caches.

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::Session;
use crate::commit::rebase::read_log;
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::format::transaction_log::Change::{
    DeletedArrays, DeletedGroups, NewArrays, NewGroups, UpdatedArrays, UpdatedGroups,
};
use crate::format::transaction_log::Move;
use crate::overlay::Ino;
use crate::overlay::replace::{Invalidation, node_ids};
use crate::repo::Repository;
use crate::scratch::record::Name;
use crate::tree::Tree;
use crate::tree::nodes::TreePlace;
use crate::zarr::Coords;

/// Receiver of invalidations for changes that did not come through the kernel. Calls may wait for requests to be answered: the
/// caller may hold no lock, and nothing that a request needs.
pub trait Invalidator: Send + Sync {
    /// Sends an invalidation to the kernel. An invalidation of an unknown name or inode has no effect.
    fn invalidate(&self, invalidation: &Invalidation);
}

/// Sends invalidations to the kernel, on a thread that may block. Returns when the kernel has carried them out.
pub async fn invalidate_all(kernel: Arc<dyn Invalidator>, invalidations: Vec<Invalidation>) -> Result<()> {
    let sent = tokio::task::spawn_blocking(move || {
        invalidations.iter().for_each(|invalidation| kernel.invalidate(invalidation));
    });
    sent.await.map_err(|e| Error::with_source(ErrorKind::Io, "invalidating the caches of the kernel", e))
}

impl Session {
    pub(super) async fn invalidate(&self, invalidations: Vec<Invalidation>) -> Result<()> {
        let Some(kernel) = self.kernel.get().map(Arc::clone).filter(|_| !invalidations.is_empty()) else {
            return Ok(());
        };
        invalidate_all(kernel, self.working.for_kernel(invalidations)).await
    }

    /// Returns invalidations for the remote changes in `commits`, between `old` and `new`; `moved` are the local moves.
    pub(super) async fn remote_invalidations(
        &self,
        repository: &Repository,
        (old, new): (&Tree, &Tree),
        commits: &[ObjectId],
        moved: &[Move],
    ) -> Result<Vec<Invalidation>> {
        let mut trees = [(old, node_ids(old)), (new, node_ids(new))];
        let [_, (_, ids)] = &mut trees;
        for one in moved {
            // A move that the format does not allow creates another node, which gets the remote changes to the old one.
            if let (Entry::Vacant(free), Some(TreePlace::Directory(index))) =
                (ids.entry(one.node), new.place_of(&one.to))
            {
                free.insert(index);
            }
        }
        let mut invalidations = HashSet::new();
        for id in commits {
            // Without a transaction log, everything may have changed.
            let Ok(log) = read_log(&**repository.storage(), *id).await else { return Ok(everything(old, new)) };
            let mut nodes: HashSet<_> = log.moves()?.iter().map(|moved| moved.node).collect();
            for change in [NewGroups, NewArrays, DeletedGroups, DeletedArrays, UpdatedGroups, UpdatedArrays] {
                nodes.extend(log.nodes(change));
            }
            for (tree, ids) in &trees {
                for index in nodes.iter().filter_map(|node| ids.get(node)) {
                    name_of(tree, &TreePlace::Directory(*index), &mut invalidations);
                    name_of(tree, &TreePlace::Metadata(*index), &mut invalidations);
                }
                for (node, chunks) in log.updated_chunks() {
                    let Some(index) = ids.get(&node) else { continue };
                    let Some(array) = tree.table().array(*index) else { continue };
                    let inside = |coords: &Vec<u32>| {
                        coords.len() == array.grid.len() && std::iter::zip(coords, &array.grid).all(|(c, n)| c < n)
                    };
                    for coords in chunks.filter(inside) {
                        for depth in 0..=coords.len() {
                            let prefix = coords.get(..depth).unwrap_or_default();
                            name_of(tree, &TreePlace::Chunk(*index, Coords::from_slice(prefix)), &mut invalidations);
                        }
                    }
                }
            }
        }
        Ok(invalidations.into_iter().collect())
    }
}

fn name_of(tree: &Tree, place: &TreePlace, invalidations: &mut HashSet<Invalidation>) {
    invalidations.insert(Invalidation::Inode(Ino::of_place(tree, place)));
    if let Some((above, name)) = tree.parent_of(place) {
        invalidations.insert(Invalidation::Entry(Ino::of_place(tree, &above), Name::new(name.as_bytes())));
    }
}

/// Returns invalidations for every node of both trees. Entries below a directory go with it.
fn everything(old: &Tree, new: &Tree) -> Vec<Invalidation> {
    let mut invalidations = HashSet::new();
    for tree in [old, new] {
        for index in 0..tree.table().len() {
            let Ok(index) = u32::try_from(index) else { continue };
            name_of(tree, &TreePlace::Directory(index), &mut invalidations);
            name_of(tree, &TreePlace::Metadata(index), &mut invalidations);
        }
    }
    invalidations.into_iter().collect()
}
