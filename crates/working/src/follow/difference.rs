//! Differences between two snapshots, in the terms of a file system.
//!
//! Nodes are compared in memory. Chunks that may differ are those in the transaction logs of the
//! commits between, or, where the branch was reset, amended or has moved too far, those of all
//! manifests that differ. Each is then looked up in both snapshots, so that a rewrite of the same
//! bytes in the same place does not count.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tracing::warn;

use crate::overlay::invalidation::Invalidation;
use crate::overlay::replace::node_ids;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::manifest::ArrayRefs;
use icechunkfs_format::zarr::{Coords, is_prefix_in_grid};
use icechunkfs_repo::compare::chunks::ChunkDifferences;
use icechunkfs_repo::compare::logs;
use icechunkfs_repo::repo::Repository;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::array::Array;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};

/// Commits whose logs are read. Beyond, the manifests tell as much with fewer requests.
const MAX_LOGS: usize = 100;

/// Names and files that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Names that have appeared, disappeared or changed their meaning.
    pub(super) names: HashSet<Invalidation>,
    /// Old inode numbers of files whose bytes have changed, or that are gone.
    pub(super) files: HashSet<Ino>,
    /// Nodes of the old tree of which every file has changed.
    whole: HashSet<NodeIndex>,
}

impl Difference {
    /// Returns true if file `number` of `old` has other bytes, or is gone.
    pub fn is_changed(&self, old: &Tree, number: Ino) -> bool {
        let in_whole = || match old.table().place(number) {
            Some(TreePlace::Metadata(node) | TreePlace::Chunk(node, _)) => self.whole.contains(&node),
            Some(TreePlace::Directory(_)) | None => false,
        };
        self.files.contains(&number) || in_whole()
    }

    /// Returns the invalidations before the switch; the kernel may keep the bytes of `open` files.
    pub(super) fn before(&self, old: &Tree, open: &HashSet<Ino>) -> Vec<Invalidation> {
        let mut invalidations = self.name_invalidations();
        invalidations
            .extend(self.files.iter().filter(|file| !open.contains(file)).map(|file| Invalidation::Inode(*file)));
        invalidations
            .extend(open.iter().filter(|file| self.is_changed(old, **file)).filter_map(|file| name_of(old, *file)));
        invalidations
    }

    /// Returns the invalidations after the switch: of listings made meanwhile, and of files that
    /// were read.
    pub(super) fn after(&self, old: &Tree, stale: &HashSet<Ino>, retired: &[Ino]) -> Vec<Invalidation> {
        // Repeats the names: their invalidation takes the directory's lock, and so waits for older
        // listings and lookups. Those may have told the kernel of changed files that it did not
        // know before the switch, with their old sizes.
        let mut invalidations = self.name_invalidations();
        let files: HashSet<Ino> = self.files.iter().chain(retired).copied().collect();
        invalidations.extend(files.iter().filter_map(|file| name_of(old, *file)));
        invalidations.extend(stale.iter().map(|file| Invalidation::Inode(*file)));
        invalidations
    }

    fn name_invalidations(&self) -> Vec<Invalidation> {
        let directory = |name: &Invalidation| match name {
            Invalidation::Entry(directory, _) => Some(Invalidation::Inode(*directory)),
            _ => None,
        };
        let directories: HashSet<Invalidation> = self.names.iter().filter_map(directory).collect();
        self.names.iter().cloned().chain(directories).collect()
    }

    fn add_name(&mut self, tree: &Tree, place: &TreePlace) {
        self.names.extend(Invalidation::entry(tree, place));
    }
}

fn name_of(tree: &Tree, file: Ino) -> Option<Invalidation> {
    Invalidation::entry(tree, &tree.table().place(file)?)
}

/// Compares `old` and `new`, two snapshots of `repository`.
pub(super) async fn difference(repository: &Repository, old: &Tree, new: &Tree) -> Result<Difference> {
    let mut found = Difference::default();
    compare_directories(old, new, &mut found);
    let old_ids = node_ids(old);
    let new_ids = node_ids(new);
    let mut arrays = Vec::new();
    for (id, before) in &*old_ids {
        match new_ids.get(id) {
            None => drop(found.whole.insert(*before)),
            Some(after) => {
                let pair = Pair { old, before: *before, new, after: *after };
                pair.compare_documents(&mut found);
                if pair.may_have_other_chunks(&mut found) {
                    arrays.push(pair);
                }
            }
        }
    }
    // The root has the same number whatever its ID.
    let same_root = old_ids.iter().any(|(id, index)| *index == 0 && new_ids.get(id) == Some(&0));
    if !same_root {
        Pair { old, before: 0, new, after: 0 }.compare_documents(&mut found);
    }
    if !same_root || found.whole.contains(&0) {
        for tree in [old, new].into_iter().filter(|tree| tree.chunks(0).is_some()) {
            add_root_chunks(tree, &mut found).await?;
        }
    }
    if arrays.is_empty() {
        return Ok(found);
    }
    let written = logs::written(repository, old.snapshot().id(), new.snapshot().id(), MAX_LOGS).await?;
    for pair in arrays {
        if let Err(error) = pair.compare_chunks(written.as_ref(), &mut found).await {
            // Readers get the error; here the whole array counts as changed.
            warn!("{}: {error}", old.path_of(&TreePlace::Directory(pair.before)));
            pair.mark_all(&mut found);
        }
    }
    Ok(found)
}

/// Adds directories of nodes that have appeared, disappeared, or been replaced under the same name.
fn compare_directories(old: &Tree, new: &Tree, found: &mut Difference) {
    // Index and number by path.
    let paths = |tree: &Tree| -> HashMap<String, (NodeIndex, Ino)> {
        let number = |index| tree.table().inode(&TreePlace::Directory(index));
        tree.table().subtree(0).map(|index| (tree.table().path(index), (index, number(index)))).collect()
    };
    let before = paths(old);
    let after = paths(new);
    for (tree, own, others) in [(old, &before, &after), (new, &after, &before)] {
        for (path, (index, number)) in own {
            if others.get(path).map(|(_, other)| other) != Some(number) {
                found.add_name(tree, &TreePlace::Directory(*index));
            }
        }
    }
}

/// Adds the names in an array that is the root: no single name stands for all of it.
async fn add_root_chunks(tree: &Tree, found: &mut Difference) -> Result<()> {
    found.add_name(tree, &TreePlace::Chunk(0, Coords::new()));
    let (Some(chunks), Some(array)) = (tree.chunks(0), tree.table().array(0)) else { return Ok(()) };
    let add = |refs: &ArrayRefs<'_>, at| {
        for depth in 1..=array.grid.len() {
            found.add_name(tree, &TreePlace::Chunk(0, refs.coords(at).iter().take(depth).collect()));
        }
    };
    chunks.each(add).await
}

/// Node of both trees: its index before, in `old`, and after, in `new`.
struct Pair<'a> {
    old: &'a Tree,
    before: NodeIndex,
    new: &'a Tree,
    after: NodeIndex,
}

/// Returns true if a chunk outside the grid of `array` may be inside that of `is` without having
/// been written.
fn uncovers(array: &Array, is: &Array) -> bool {
    let shrank = std::iter::zip(&array.grid, &is.grid).any(|(was, is)| was > is);
    let beyond = |(extent, length): (&(u32, u32), &u32)| extent.1 > *length;
    let hidden = array.manifests.iter().any(|m| std::iter::zip(&m.extents, &array.grid).any(beyond));
    shrank || hidden
}

impl<'a> Pair<'a> {
    fn sides(&self) -> [(&'a Tree, NodeIndex); 2] {
        [(self.old, self.before), (self.new, self.after)]
    }

    /// Compares the `zarr.json` of the node.
    fn compare_documents(&self, found: &mut Difference) {
        let was = self.old.zarr_json(self.before);
        let is = self.new.zarr_json(self.after);
        if was == is {
            return;
        }
        let place = TreePlace::Metadata(self.before);
        if was.is_some() {
            found.files.insert(self.old.table().inode(&place));
        }
        if was.is_some() != is.is_some() {
            found.add_name(self.old, &place);
        }
    }

    /// Returns true if the node is an array of which some chunks may differ. If all of them do,
    /// adds them.
    fn may_have_other_chunks(&self, found: &mut Difference) -> bool {
        match (self.old.table().array(self.before), self.new.table().array(self.after)) {
            (None, None) => false,
            (Some(was), Some(is)) if was.first_number == is.first_number && was.encoding == is.encoding => {
                was.grid != is.grid || was.manifests != is.manifests
            }
            _ => {
                self.mark_all(found);
                false
            }
        }
    }

    /// Marks every file of the array as changed; its name has to be looked up again.
    fn mark_all(&self, found: &mut Difference) {
        found.whole.insert(self.before);
        for (tree, index) in self.sides() {
            found.add_name(tree, &TreePlace::Directory(index));
            if index == 0 {
                found.add_name(tree, &TreePlace::Chunk(0, Coords::new()));
            }
        }
    }

    async fn compare_chunks(
        &self,
        written: Option<&BTreeMap<NodeId, BTreeSet<Coords>>>,
        found: &mut Difference,
    ) -> Result<()> {
        let Pair { old, before, new, after } = *self;
        let (Some(was), Some(is)) = (old.table().array(before), new.table().array(after)) else { return Ok(()) };
        let mut part = Difference::default();
        match written.filter(|_| was.grid == is.grid || !uncovers(was, is)) {
            Some(written) => {
                for coords in written.get(&was.id).into_iter().flatten() {
                    let was = old.payload_at(before, coords).await?;
                    let is = new.payload_at(after, coords).await?;
                    if was != is {
                        self.add_chunk(coords, (was.is_some(), is.is_some()), &mut part).await?;
                    }
                }
            }
            None => {
                let mut all = ChunkDifferences::new(old.chunk_list(was), new.chunk_list(is));
                while let Some(page) = all.page().await? {
                    for chunk in page {
                        let there = (chunk.before.is_some(), chunk.after.is_some());
                        self.add_chunk(&chunk.coords, there, &mut part).await?;
                    }
                }
            }
        }
        if was.manifests.is_empty() != is.manifests.is_empty() {
            self.add_name(&Coords::new(), &mut part);
        }
        found.names.extend(part.names);
        found.files.extend(part.files);
        Ok(())
    }

    /// Adds the name of a chunk, or of a directory above chunks.
    fn add_name(&self, coords: &Coords, found: &mut Difference) {
        for (tree, index) in self.sides() {
            if tree.table().array(index).is_some_and(|array| is_prefix_in_grid(coords, &array.grid)) {
                found.add_name(tree, &TreePlace::Chunk(index, coords.clone()));
            }
        }
    }

    /// Adds a chunk that differs; `there` is whether it existed before, and whether it exists now.
    async fn add_chunk(&self, coords: &Coords, there: (bool, bool), found: &mut Difference) -> Result<()> {
        if there.0 {
            found.files.insert(self.old.table().inode(&TreePlace::Chunk(self.before, coords.clone())));
        }
        if there.0 == there.1 {
            return Ok(());
        }
        self.add_name(coords, found);
        // Directories that have appeared or disappeared with the chunk.
        let mut above = coords.clone();
        while above.pop().is_some() && !above.is_empty() {
            let any = async |tree: &Tree, index| match tree.chunks(index) {
                Some(chunks) => chunks.any_below(&above).await,
                None => Ok(false),
            };
            if any(self.old, self.before).await? == any(self.new, self.after).await? {
                break;
            }
            self.add_name(&above, found);
        }
        Ok(())
    }
}
