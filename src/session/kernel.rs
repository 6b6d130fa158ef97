//! Telling the kernel what changed.

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
use crate::repo::Repository;
use crate::scratch::record::Name;
use crate::tree::Tree;
use crate::tree::nodes::Place;
use crate::working::replace::{Notice, node_ids};
use crate::zarr::Coords;

/// Where changes are told that did not come through the kernel. Calls may wait for requests to be answered: no lock may be
/// held, and nothing that a request needs.
pub trait Kernel: Send + Sync {
    /// Carries a notice to the kernel. One about something that it does not know is fine.
    fn tell(&self, notice: &Notice);
}

impl Session {
    /// Tells the kernel, and returns when it knows.
    pub(super) async fn tell(&self, notices: Vec<Notice>) -> Result<()> {
        let Some(kernel) = self.kernel.get().map(Arc::clone).filter(|_| !notices.is_empty()) else { return Ok(()) };
        let notices = self.working.for_kernel(notices);
        let told = tokio::task::spawn_blocking(move || {
            for notice in &notices {
                kernel.tell(notice);
            }
        });
        told.await.map_err(|e| Error::with_source(ErrorKind::Io, "telling the kernel", e))
    }

    /// What others changed between `old` and `new` in commits `commits`. What is `moved` from one to the other was moved here.
    pub(super) async fn others_changes(
        &self,
        repository: &Repository,
        (old, new): (&Tree, &Tree),
        commits: &[ObjectId],
        moved: &[Move],
    ) -> Result<Vec<Notice>> {
        let mut trees = [(old, node_ids(old)), (new, node_ids(new))];
        let [_, (_, ids)] = &mut trees;
        for one in moved {
            // A move that the format does not allow makes another node of it, which has what others wrote to the old one.
            if let (Entry::Vacant(free), Some(Place::Directory(index))) = (ids.entry(one.node), new.place_of(&one.to)) {
                free.insert(index);
            }
        }
        let mut notices = HashSet::new();
        for id in commits {
            // Without a log, everything may have changed.
            let Ok(log) = read_log(&**repository.storage(), *id).await else { return Ok(everything(old, new)) };
            let mut nodes: HashSet<_> = log.moves()?.iter().map(|moved| moved.node).collect();
            for change in [NewGroups, NewArrays, DeletedGroups, DeletedArrays, UpdatedGroups, UpdatedArrays] {
                nodes.extend(log.nodes(change));
            }
            for (tree, ids) in &trees {
                for index in nodes.iter().filter_map(|node| ids.get(node)) {
                    name_of(tree, &Place::Directory(*index), &mut notices);
                    name_of(tree, &Place::Metadata(*index), &mut notices);
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
                            name_of(tree, &Place::Chunk(*index, Coords::from_slice(prefix)), &mut notices);
                        }
                    }
                }
            }
        }
        Ok(notices.into_iter().collect())
    }
}

fn name_of(tree: &Tree, place: &Place, notices: &mut HashSet<Notice>) {
    notices.insert(Notice::Inode(tree.table().inode(place)));
    if let Some((above, name)) = tree.parent_of(place) {
        notices.insert(Notice::Entry(tree.table().inode(&above), Name::new(name.as_bytes())));
    }
}

/// Every node of both: what is below goes with its directory.
fn everything(old: &Tree, new: &Tree) -> Vec<Notice> {
    let mut notices = HashSet::new();
    for tree in [old, new] {
        for index in 0..tree.table().len() {
            let Ok(index) = u32::try_from(index) else { continue };
            name_of(tree, &Place::Directory(index), &mut notices);
            name_of(tree, &Place::Metadata(index), &mut notices);
        }
    }
    notices.into_iter().collect()
}
