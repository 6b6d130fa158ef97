//! Differences between two snapshots, in the terms of a file system.
//!
//! Nodes are compared in memory. Chunks that may differ are those in the transaction logs of the commits between, or, where the
//! branch was reset, amended or has moved too far, those of all manifests that differ. Each is then looked up in both snapshots,
//! so that a rewrite of the same bytes in the same place does not count.

use std::collections::{HashMap, HashSet};
use std::fmt;

use tracing::warn;

use crate::compare::chunks::ChunkDifferences;
use crate::compare::logs;
use crate::error::Result;
use crate::format::chunk_payload::ChunkPayload;
use crate::format::ids::NodeId;
use crate::overlay::Ino;
use crate::overlay::replace::{Invalidation, node_ids};
use crate::repo::Repository;
use crate::scratch::record::Name;
use crate::tree::Tree;
use crate::tree::nodes::{Array, NodeIndex, TreePlace, ZARR_JSON};
use crate::zarr::Coords;

/// Commits whose logs are read. Beyond, the manifests tell as much with fewer requests.
const MOST_LOGS: usize = 100;
/// Chunks that are listed at a time.
const PAGE: usize = 4096;

/// Names and files that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Names that have appeared, disappeared or changed their meaning, by the directory's inode number.
    names: HashSet<(u64, String)>,
    /// Old inode numbers of files whose bytes have changed, or that are gone.
    files: HashSet<u64>,
    /// Nodes of the old tree of which every file has changed.
    whole: HashSet<NodeIndex>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} names and the bytes of {} files differ", self.names.len(), self.files.len())
    }
}

impl Difference {
    /// Returns true if file `number` of `old` has other bytes, or is gone.
    pub fn is_changed(&self, old: &Tree, number: u64) -> bool {
        let in_whole = || match old.table().place(number) {
            Some(TreePlace::Metadata(node) | TreePlace::Chunk(node, _)) => self.whole.contains(&node),
            Some(TreePlace::Directory(_)) | None => false,
        };
        self.files.contains(&number) || in_whole()
    }

    /// Returns the invalidations before the switch; the kernel may keep the bytes of `open` files.
    pub(super) fn before(&self, old: &Tree, open: &HashSet<u64>) -> Vec<Invalidation> {
        let mut invalidations = self.of_names();
        invalidations
            .extend(self.files.iter().filter(|file| !open.contains(file)).map(|file| Invalidation::Inode(Ino(*file))));
        invalidations
            .extend(open.iter().filter(|file| self.is_changed(old, **file)).filter_map(|file| name_of(old, *file)));
        invalidations
    }

    /// Returns the invalidations after the switch: of listings made meanwhile, and of files that were read.
    pub(super) fn after(&self, old: &Tree, stale: &HashSet<u64>, retired: &[u64]) -> Vec<Invalidation> {
        // Repeats the names: their invalidation takes the directory's lock, and so waits for older listings.
        let mut invalidations = self.of_names();
        invalidations.extend(stale.iter().map(|file| Invalidation::Inode(Ino(*file))));
        invalidations.extend(retired.iter().filter_map(|file| name_of(old, *file)));
        invalidations
    }

    fn of_names(&self) -> Vec<Invalidation> {
        let entry =
            |(directory, name): &(u64, String)| Invalidation::Entry(Ino(*directory), Name::new(name.as_bytes()));
        let mut invalidations: Vec<Invalidation> = self.names.iter().map(entry).collect();
        let directories: HashSet<u64> = self.names.iter().map(|(directory, _)| *directory).collect();
        invalidations.extend(directories.into_iter().map(|directory| Invalidation::Inode(Ino(directory))));
        invalidations
    }

    fn name(&mut self, tree: &Tree, place: &TreePlace) {
        if let Some((above, name)) = tree.parent_of(place) {
            self.names.insert((tree.table().inode(&above), name));
        }
    }
}

fn name_of(tree: &Tree, file: u64) -> Option<Invalidation> {
    let (above, name) = tree.parent_of(&tree.table().place(file)?)?;
    Some(Invalidation::Entry(Ino::of_place(tree, &above), Name::new(name.as_bytes())))
}

/// Compares `old` and `new`, two snapshots of `repository`.
pub(super) async fn difference(repository: &Repository, old: &Tree, new: &Tree) -> Result<Difference> {
    let mut found = Difference::default();
    directories(old, new, &mut found);
    let (old_ids, new_ids) = (node_ids(old), node_ids(new));
    let mut arrays = Vec::new();
    for (id, before) in &old_ids {
        match new_ids.get(id) {
            None => drop(found.whole.insert(*before)),
            Some(after) => {
                document(old, new, *before, *after, &mut found);
                arrays.extend(array(old, new, *before, *after, &mut found));
            }
        }
    }
    // The root has the same number whatever its ID.
    let same_root = old_ids.iter().any(|(id, index)| *index == 0 && new_ids.get(id) == Some(&0));
    if !same_root {
        document(old, new, 0, 0, &mut found);
    }
    if !same_root || found.whole.contains(&0) {
        for tree in [old, new].into_iter().filter(|tree| tree.chunks(0).is_some()) {
            of_root(tree, &mut found).await?;
        }
    }
    if arrays.is_empty() {
        return Ok(found);
    }
    let written = logs::written(repository, old.snapshot().id(), new.snapshot().id(), MOST_LOGS).await?;
    for pair in arrays {
        if let Err(error) = pair.compare(old, new, written.as_ref(), &mut found).await {
            // Readers get the error; here the whole array counts as changed.
            warn!("{}: {error}", old.path_of(&TreePlace::Directory(pair.before)));
            pair.everything(old, new, &mut found);
        }
    }
    Ok(found)
}

/// Adds directories of nodes that have appeared, disappeared, or been replaced under the same name.
fn directories(old: &Tree, new: &Tree, found: &mut Difference) {
    let paths = |tree: &Tree| -> HashMap<String, NodeIndex> {
        let indices = (0..tree.table().len()).filter_map(|at| NodeIndex::try_from(at).ok());
        indices.map(|index| (tree.table().path(index), index)).collect()
    };
    let number = |tree: &Tree, index: &NodeIndex| tree.table().inode(&TreePlace::Directory(*index));
    let (before, after) = (paths(old), paths(new));
    for (path, index) in &before {
        if after.get(path).map(|other| number(new, other)) != Some(number(old, index)) {
            found.name(old, &TreePlace::Directory(*index));
        }
    }
    for (path, index) in &after {
        if before.get(path).map(|other| number(old, other)) != Some(number(new, index)) {
            found.name(new, &TreePlace::Directory(*index));
        }
    }
}

/// Compares the `zarr.json` of a node.
fn document(old: &Tree, new: &Tree, before: NodeIndex, after: NodeIndex, found: &mut Difference) {
    let (was, is) = (old.zarr_json(before), new.zarr_json(after));
    if was == is {
        return;
    }
    let number = old.table().inode(&TreePlace::Metadata(before));
    if was.is_some() {
        found.files.insert(number);
    }
    if was.is_some() != is.is_some() {
        found.names.insert((old.table().inode(&TreePlace::Directory(before)), ZARR_JSON.to_owned()));
    }
}

/// Compares two arrays of one ID. Returns none if no chunk can differ, or if all do.
fn array(old: &Tree, new: &Tree, before: NodeIndex, after: NodeIndex, found: &mut Difference) -> Option<Pair> {
    let pair = Pair { before, after };
    match (old.table().array(before), new.table().array(after)) {
        (None, None) => None,
        (Some(was), Some(is)) if was.first_number == is.first_number && was.encoding == is.encoding => {
            (was.grid != is.grid || was.manifests != is.manifests).then_some(pair)
        }
        _ => {
            pair.everything(old, new, found);
            None
        }
    }
}

/// Adds the names in an array that is the root: no single name stands for all of it.
async fn of_root(tree: &Tree, found: &mut Difference) -> Result<()> {
    found.name(tree, &TreePlace::Chunk(0, Coords::new()));
    let Some(chunks) = tree.chunks(0) else { return Ok(()) };
    let mut after: Option<Coords> = None;
    loop {
        let rank = tree.table().array(0).map_or(0, |array| array.grid.len());
        let page = chunks.page(&[], rank, after.as_deref(), PAGE).await?;
        for (coords, _) in &page {
            (1..=rank).for_each(|depth| {
                let coords = Coords::from_slice(coords.get(..depth).unwrap_or_default());
                found.name(tree, &TreePlace::Chunk(0, coords));
            });
        }
        match page.last() {
            Some((last, _)) if page.len() == PAGE && rank > 0 => after = Some(last.clone()),
            _ => return Ok(()),
        }
    }
}

struct Pair {
    before: NodeIndex,
    after: NodeIndex,
}

/// Returns true if a chunk outside the grid of `array` may be inside that of `is` without having been written.
fn uncovers(array: &Array, is: &Array) -> bool {
    let shrank = std::iter::zip(&array.grid, &is.grid).any(|(was, is)| was > is);
    let beyond = |(extent, length): (&(u32, u32), &u32)| extent.1 > *length;
    let hidden = array.manifests.iter().any(|m| std::iter::zip(&m.extents, &array.grid).any(beyond));
    shrank || hidden
}

impl Pair {
    /// Marks every file of the array as changed; its name has to be looked up again.
    fn everything(&self, old: &Tree, new: &Tree, found: &mut Difference) {
        found.whole.insert(self.before);
        for (tree, index) in [(old, self.before), (new, self.after)] {
            found.name(tree, &TreePlace::Directory(index));
            if index == 0 {
                found.name(tree, &TreePlace::Chunk(0, Coords::new()));
            }
        }
    }

    async fn compare(
        &self,
        old: &Tree,
        new: &Tree,
        written: Option<&HashMap<NodeId, HashSet<Coords>>>,
        found: &mut Difference,
    ) -> Result<()> {
        let (Some(was), Some(is)) = (old.table().array(self.before), new.table().array(self.after)) else {
            return Ok(());
        };
        let mut part = Difference::default();
        match written.filter(|_| was.grid == is.grid || !uncovers(was, is)) {
            Some(written) => {
                for coords in written.get(&was.id).into_iter().flatten() {
                    let (was, is) = (payload(old, self.before, coords).await?, payload(new, self.after, coords).await?);
                    if was != is {
                        self.chunk(old, new, coords, (was.is_some(), is.is_some()), &mut part).await?;
                    }
                }
            }
            None => {
                let mut all = ChunkDifferences::new(old.chunk_list(was), new.chunk_list(is));
                while let Some(page) = all.page().await? {
                    for chunk in page {
                        let there = (chunk.before.is_some(), chunk.after.is_some());
                        self.chunk(old, new, &chunk.coords, there, &mut part).await?;
                    }
                }
            }
        }
        if was.manifests.is_empty() != is.manifests.is_empty() {
            self.name(old, new, &Coords::new(), &mut part);
        }
        found.names.extend(part.names);
        found.files.extend(part.files);
        Ok(())
    }

    /// Adds the name of a chunk, or of a directory above chunks.
    fn name(&self, old: &Tree, new: &Tree, coords: &Coords, found: &mut Difference) {
        for (tree, index) in [(old, self.before), (new, self.after)] {
            let within = |array: &Array| {
                coords.len() <= array.grid.len() && std::iter::zip(coords, &array.grid).all(|(c, n)| c < n)
            };
            if tree.table().array(index).is_some_and(within) {
                found.name(tree, &TreePlace::Chunk(index, coords.clone()));
            }
        }
    }

    /// Adds a chunk that differs; `there` is whether it existed before, and whether it exists now.
    async fn chunk(
        &self,
        old: &Tree,
        new: &Tree,
        coords: &Coords,
        there: (bool, bool),
        found: &mut Difference,
    ) -> Result<()> {
        if there.0 {
            found.files.insert(old.table().inode(&TreePlace::Chunk(self.before, coords.clone())));
        }
        if there.0 == there.1 {
            return Ok(());
        }
        self.name(old, new, coords, found);
        // Directories that have appeared or disappeared with the chunk.
        let mut above = coords.clone();
        while above.pop().is_some() && !above.is_empty() {
            let any = async |tree: &Tree, index| match tree.chunks(index) {
                Some(chunks) => chunks.any_below(&above).await,
                None => Ok(false),
            };
            if any(old, self.before).await? == any(new, self.after).await? {
                break;
            }
            self.name(old, new, &above, found);
        }
        Ok(())
    }
}

async fn payload(tree: &Tree, node: NodeIndex, coords: &Coords) -> Result<Option<ChunkPayload>> {
    let Some(chunks) = tree.chunks(node) else { return Ok(None) };
    match chunks.find(coords).await? {
        Some(_) => tree.stored(tree.table().inode(&TreePlace::Chunk(node, coords.clone()))).await,
        None => Ok(None),
    }
}
