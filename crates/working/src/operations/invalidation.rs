//! Invalidation of the kernel's caches.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tracing::warn;

use super::Session;
use crate::overlay::invalidation::Invalidation;
use crate::overlay::replace::node_ids;
use crate::overlay::{Ino, WorkingTree};
use crate::scratch::record::Name;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::transaction_log::{Move, TransactionLog};
use icechunkfs_format::zarr::{Coords, is_in_grid};
use icechunkfs_repo::commit::changes::ChangeSet;
use icechunkfs_repo::commit::rebase::read_log;
use icechunkfs_repo::compare::changes::changes_between;
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::repo::Repository;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};

/// Receiver of invalidations for changes that did not come through the kernel. Calls may wait for
/// requests to be answered: the caller may hold no lock, and nothing that a request needs.
pub trait Invalidator: Send + Sync {
    /// Sends an invalidation to the kernel. An invalidation of an unknown name or inode has no
    /// effect.
    fn invalidate(&self, invalidation: &Invalidation);

    /// Has the kernel forget the names below `.icechunk` that mean another tree since the mount
    /// shows another snapshot, and then tells programs that watch `.icechunk/HEAD`.
    fn head_moved(&self);
}

/// Tells programs that the mount shows another snapshot, on a thread that may block.
pub async fn announce_head(kernel: Arc<dyn Invalidator>) -> Result<()> {
    blocking(move || {
        kernel.head_moved();
        Ok(())
    })
    .await
}

/// Sends invalidations to the kernel, on a thread that may block. Returns when the kernel has
/// carried them out.
pub async fn invalidate_all(kernel: Arc<dyn Invalidator>, invalidations: Vec<Invalidation>) -> Result<()> {
    blocking(move || {
        invalidations.iter().for_each(|invalidation| kernel.invalidate(invalidation));
        Ok(())
    })
    .await
}

impl Session {
    /// Has the kernel forget bytes and attributes of inodes `numbers`.
    pub async fn forget(&self, numbers: Vec<Ino>) {
        if let Some(kernel) = self.kernel.get().filter(|_| !numbers.is_empty()) {
            let inodes = numbers.into_iter().map(Invalidation::Inode).collect();
            let _ = invalidate_all(Arc::clone(kernel), self.working.moves().for_kernel(inodes)).await;
        }
    }

    pub(super) async fn invalidate(&self, mut invalidations: Vec<Invalidation>) -> Result<()> {
        let Some(kernel) = self.kernel.get().map(Arc::clone) else { return Ok(()) };
        invalidations.extend(self.working.moves().take_outdated().into_iter().map(Invalidation::Inode));
        if !invalidations.is_empty() {
            let all = self.working.moves().for_kernel(invalidations).into_iter();
            let (names, files): (Vec<_>, Vec<_>) = all.partition(|one| matches!(one, Invalidation::Entry(..)));
            invalidate_all(Arc::clone(&kernel), files.clone()).await?;
            let again = if names.is_empty() { Vec::new() } else { files };
            invalidate_all(Arc::clone(&kernel), names).await?;
            // Lookups and listings that had been answered before the move are through by now, and
            // may have brought inodes that the kernel did not know before, with their old lengths.
            // No file may be opened before: where an invalidation overtakes a program's `fstat`,
            // the kernel gives the program the new length and keeps the old one.
            invalidate_all(Arc::clone(&kernel), again).await?;
        }
        self.working.moves().settle();
        let base = self.working.upper().base().id();
        // The files of the new base are visible before it is announced.
        if self.announced.lock().replace(base).is_some_and(|before| before != base) {
            announce_head(kernel).await?;
        }
        Ok(())
    }
}

/// Returns the numbers of the chunks of the base that a commit of `changes` gives other bytes.
/// Numbers follow from places, and the kernel has the bytes of these chunks as they were, as long
/// as a program watches them, say: it must forget them. Of those that were changed in their places,
/// which are left out, it has the new ones. To be asked before the move.
pub(super) fn changed_numbers(working: &WorkingTree, changes: &ChangeSet) -> Vec<Ino> {
    let base = working.upper().base();
    let ids = node_ids(&base.tree);
    let of_base = changes.chunks.iter().filter_map(|(id, chunks)| Some((*ids.get(id)?, chunks)));
    let places = of_base.flat_map(|(index, chunks)| {
        let grid = base.tree.table().array(index).map_or(&[][..], |array| &array.grid);
        let had = chunks.keys().filter(|coords| is_in_grid(coords, grid));
        had.map(move |coords| TreePlace::Chunk(index, coords.clone()))
    });
    working.moves().unless_in_place(places)
}

/// Returns what the kernel must forget when the base moves from `old` to `new`: arrays whose chunks
/// have other numbers, and the remote changes in `commits`. `moved` are the local moves. To be
/// asked before the move, during which files are not opened.
pub(super) async fn base_invalidations(
    repository: &Repository,
    old: &Tree,
    new: &Tree,
    commits: &[ObjectId],
    moved: &[Move],
) -> Vec<Invalidation> {
    // A commit of chunks, without any by others.
    if commits.is_empty() && new.table().has_numbers_of(old.table()) {
        return Vec::new();
    }
    let old_ids = node_ids(old);
    let mut new_ids = Arc::unwrap_or_clone(node_ids(new));
    let renumbered = old_ids.iter().filter_map(|(id, before)| renumbered_array(old, new, *before, *new_ids.get(id)?));
    let mut invalidations: HashSet<Invalidation> = renumbered.collect();
    for one in moved {
        // A move that the format does not allow creates another node, which gets the remote changes
        // to the old one.
        if let (Entry::Vacant(free), Some(TreePlace::Directory(index))) =
            (new_ids.entry(one.node), new.place_of(&one.to))
        {
            free.insert(index);
        }
    }
    let sides = [(old, &*old_ids), (new, &new_ids)];
    let mut memory = Meter::new("the changes of other writers");
    for id in commits {
        let log = read_log(&**repository.storage(), *id).await;
        // Without a transaction log, or room for all that it names, everything may have changed.
        if log.and_then(|log| add_logged(&log, sides, &mut memory, &mut invalidations)).is_err() {
            // The commit is made: what cannot be compared is left to the names of its nodes.
            if let Err(error) = add_compared(old.reader(), old, new, &mut memory, &mut invalidations).await {
                warn!("comparing the snapshots of a move without its log: {error}");
            }
            break;
        }
    }
    invalidations.into_iter().collect()
}

/// Returns what the kernel must forget when the base moves from `old` to `new`, in whose history it
/// is not: all nodes of both, and the chunks that differ. Fails if these cannot be found out, or
/// memory does not suffice: then the base must not move.
pub(super) async fn invalidations_between(reader: &Arc<Reader>, old: &Tree, new: &Tree) -> Result<Vec<Invalidation>> {
    let mut memory = Meter::new("the changes of other writers");
    let mut invalidations = HashSet::new();
    add_compared(reader, old, new, &mut memory, &mut invalidations).await?;
    Ok(invalidations.into_iter().collect())
}

/// Adds all nodes of both trees, and the chunks that differ between them.
async fn add_compared(
    reader: &Arc<Reader>,
    old: &Tree,
    new: &Tree,
    memory: &mut Meter,
    invalidations: &mut HashSet<Invalidation>,
) -> Result<()> {
    add_all(old, invalidations);
    add_all(new, invalidations);
    let changes = changes_between(reader, old.snapshot(), new.snapshot()).await?;
    for (tree, ids) in [(old, node_ids(old)), (new, node_ids(new))] {
        for (node, chunks) in &changes.chunks {
            let Some(index) = ids.get(node) else { continue };
            for coords in chunks.keys() {
                add_chunk(tree, *index, coords, memory, invalidations)?;
            }
        }
    }
    Ok(())
}

/// Adds a chunk of the array at `index`, and the directories on the way to it.
fn add_chunk(
    tree: &Tree,
    index: NodeIndex,
    coords: &Coords,
    memory: &mut Meter,
    invalidations: &mut HashSet<Invalidation>,
) -> Result<()> {
    let Some(array) = tree.table().array(index) else { return Ok(()) };
    if coords.len() != array.grid.len() || !is_in_grid(coords, &array.grid) {
        return Ok(());
    }
    for depth in 0..=coords.len() {
        memory.count(PLACE)?;
        let prefix = coords.get(..depth).unwrap_or_default();
        add(tree, &TreePlace::Chunk(index, Coords::from_slice(prefix)), invalidations);
    }
    Ok(())
}

/// Memory of a place, in bytes: two entries of a set that is copied into a list.
const PLACE: u64 = 6 * size_of::<Invalidation>() as u64;

/// Adds what `log` names in either tree.
fn add_logged(
    log: &TransactionLog,
    sides: [(&Tree, &HashMap<NodeId, NodeIndex>); 2],
    memory: &mut Meter,
    invalidations: &mut HashSet<Invalidation>,
) -> Result<()> {
    let moves = log.moves()?;
    let nodes = || log.changed_nodes().map(|(_, node)| node).chain(moves.iter().map(|moved| moved.node));
    for (tree, ids) in sides {
        for index in nodes().filter_map(|node| ids.get(&node)) {
            memory.count(2 * PLACE)?;
            add_node(tree, *index, invalidations);
        }
        for (node, chunks) in log.updated_chunks() {
            let Some(index) = ids.get(&node) else { continue };
            let Some(array) = tree.table().array(*index) else { continue };
            for chunk in chunks.filter(|chunk| chunk.coords().len() == array.grid.len()) {
                add_chunk(tree, *index, &chunk.coords().collect(), memory, invalidations)?;
            }
        }
    }
    Ok(())
}

/// Returns the invalidation of an array, node `before` of `old` and `after` of `new`, if its chunks
/// have other numbers now: all its files must be looked up again.
fn renumbered_array(old: &Tree, new: &Tree, before: NodeIndex, after: NodeIndex) -> Option<Invalidation> {
    let was = old.table().array(before)?;
    let is = new.table().array(after)?;
    if was.first_number == is.first_number {
        return None;
    }
    // Everything below an entry is invalidated with it.
    Some(
        Invalidation::entry(new, &TreePlace::Directory(after)).unwrap_or_else(|| {
            Invalidation::Entry(Ino::ROOT, Name::new(if is.encoding.prefixed { b"c" } else { b"0" }))
        }),
    )
}

fn add(tree: &Tree, place: &TreePlace, invalidations: &mut HashSet<Invalidation>) {
    invalidations.insert(Invalidation::Inode(tree.table().inode(place)));
    invalidations.extend(Invalidation::entry(tree, place));
}

fn add_node(tree: &Tree, index: NodeIndex, invalidations: &mut HashSet<Invalidation>) {
    add(tree, &TreePlace::Directory(index), invalidations);
    add(tree, &TreePlace::Metadata(index), invalidations);
}

/// Adds every node of `tree`. Entries below a directory go with it.
fn add_all(tree: &Tree, invalidations: &mut HashSet<Invalidation>) {
    for index in (0..tree.table().len()).filter_map(|at| NodeIndex::try_from(at).ok()) {
        add_node(tree, index, invalidations);
    }
}
