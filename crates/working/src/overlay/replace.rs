//! Parts of a move to another snapshot besides the merge ([`super::rebase`]): quiescing operations,
//! copying up bytes that would be lost, rewriting the journal, and invalidations.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::discard::Discard;
use super::invalidation::Invalidation;
use super::node::Inode;
use super::rebase::Candidate;
use super::rebase::TreeMoves;
use super::returned::{Returned, check_shown_once};
use super::state::State;
use super::{Base, Ino};
use crate::scratch::record::{Body, DataFileId, EntryId, Name, Source};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::is_prefix_in_grid;
use icechunkfs_repo::reader::Reader;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIds, NodeIndex, NodeTable, TreePlace};

/// Exclusive access to the working tree: no operation changes it while this is held.
#[derive(Debug)]
pub struct TreeGuard<'a> {
    pub(super) _lock: RwLockWriteGuard<'a, ()>,
}

/// Shared access to the working tree: operations change it, and nothing replaces it while this is
/// held.
#[derive(Debug)]
pub(super) struct SharedTreeGuard<'a> {
    pub(super) _lock: RwLockReadGuard<'a, ()>,
    /// True if the tree was replaced while the operation waited for access.
    pub(super) is_late: bool,
}

/// Proof that the tree is not replaced meanwhile.
pub(super) trait TreeAccess {
    /// Returns true if the numbers that the operation has are those from before a move.
    fn is_late(&self) -> bool;
}

impl TreeAccess for TreeGuard<'_> {
    fn is_late(&self) -> bool {
        false
    }
}

impl TreeAccess for SharedTreeGuard<'_> {
    fn is_late(&self) -> bool {
        self.is_late
    }
}

impl TreeMoves {
    /// Creates a tree of `snapshot`, with inode numbers that continue those that the kernel knows.
    pub fn tree_of(&self, snapshot: Arc<Snapshot>, reader: Arc<Reader>) -> Result<Arc<Tree>> {
        let before = Arc::clone(&self.upper.base().tree);
        let table = NodeTable::build_after(&snapshot, &mut self.numbering.lock(), before.snapshot(), before.table())?;
        Ok(Arc::new(Tree::new(snapshot, table, reader)))
    }

    /// Copies up all bytes that only the base has and no commit will keep: untracked files and
    /// their missing ranges, deleted files that are still open, and `foreign` chunks, which show
    /// where they are none. Returns true if there were any: their other names then refer to the
    /// copies and not to the base.
    pub async fn preserve(
        &self,
        guard: &TreeGuard<'_>,
        untracked: &HashSet<(EntryId, Name)>,
        foreign: &[TreePlace],
    ) -> Result<bool> {
        let base = self.upper.base();
        let mut wanted: Vec<EntryId> = Vec::new();
        {
            let mut locked = self.upper.lock();
            for place in foreign {
                wanted.push(locked.promote_at(guard, place)?);
            }
            let lacks = |inode: &Inode| inode.data_file().is_some_and(|data| locked.state.borrowed(data).is_some());
            // A file with a name where the base has its bytes is parted by the rebase.
            let lost = |inode: &Inode| {
                let is_untracked = inode.names.iter().any(|name| untracked.contains(name));
                (is_untracked && lacks(inode))
                    || inode.source() == Some(&Source::Lower)
                        && !has_home_name(&base.tree, &locked.state, inode, untracked)
                        && (is_untracked || locked.open_files.contains_key(&inode.number))
            };
            wanted.extend(locked.state.iter().filter(|(_, inode)| lost(inode)).map(|(id, _)| id));
        }
        let is_needed = !wanted.is_empty();
        for id in wanted {
            let owned = self.contents.own(id).await;
            // A file without a name is gone when the last program closes it, and needs no bytes
            // then.
            if self.upper.lock().state.get(id).is_some() {
                owned?;
            }
        }
        Ok(is_needed)
    }

    /// Adds the other numbers by which the kernel knows the inodes: one that was created here and
    /// committed keeps the number it had, and the name of an old version has got another one.
    pub fn for_kernel(&self, mut invalidations: Vec<Invalidation>) -> Vec<Invalidation> {
        let locked = self.upper.lock();
        let more: Vec<Invalidation> = invalidations
            .iter()
            .flat_map(|invalidation| {
                let (Invalidation::Entry(number, _) | Invalidation::Inode(number) | Invalidation::Attributes(number)) =
                    invalidation;
                locked.state.other_numbers(*number).map(move |number| match invalidation {
                    Invalidation::Entry(_, name) => Invalidation::Entry(number, name.clone()),
                    Invalidation::Inode(_) => Invalidation::Inode(number),
                    Invalidation::Attributes(_) => Invalidation::Attributes(number),
                })
            })
            .collect();
        invalidations.extend(more);
        invalidations
    }

    /// Returns the numbers of `places` of the base, except of those that were changed in their
    /// places: a commit of these shows the bytes that the kernel has.
    pub fn unless_in_place(&self, places: impl Iterator<Item = TreePlace>) -> Vec<Ino> {
        let base = self.upper.base();
        let locked = self.upper.lock();
        let tree = &base.tree;
        let state = &locked.state;
        let none = HashSet::new();
        let is_in_place = |number: Ino| {
            let found = state.at_number(number).filter(|(_, inode)| inode.source() != Some(&Source::Lower));
            found.is_some_and(|(_, inode)| has_home_name(tree, state, inode, &none))
        };
        places.map(|place| tree.table().inode(&place)).filter(|number| !is_in_place(*number)).collect()
    }

    /// Plans to discard the changes at and below `path`, except for files of `untracked`. Those in
    /// the place of an entry of the base, which comes back, are removed from the set and discarded
    /// too.
    pub async fn plan_discard(
        &self,
        _guard: &TreeGuard<'_>,
        path: &str,
        untracked: &mut HashSet<(EntryId, Name)>,
    ) -> Result<Candidate> {
        let mut new_data = Vec::new();
        match self.discarded(path, untracked, &mut new_data).await {
            Ok(candidate) => Ok(Candidate { new_data, ..candidate }),
            Err(error) => {
                new_data.into_iter().for_each(|number| self.upper.files.remove(number));
                Err(error)
            }
        }
    }

    /// Creates the candidate of [`TreeMoves::plan_discard`]. Adds the numbers of new data files
    /// to `new_data`, even if it fails.
    async fn discarded(
        &self,
        path: &str,
        untracked: &mut HashSet<(EntryId, Name)>,
        new_data: &mut Vec<DataFileId>,
    ) -> Result<Candidate> {
        let base = self.upper.base();
        let (mut old, opens, generation) = self.snapshot();
        self.part_untracked(&mut old, &base, untracked, new_data).await?;
        let (returned, staying) = Returned::find(&old, &base.tree, path);
        self.part_staying(&mut old, &opens, &base, &returned, &staying, new_data).await?;
        let mut standing = Vec::new();
        for entry in untracked.iter() {
            let parent = old.get(entry.0).and_then(|parent| parent.lower.as_ref());
            let place = parent.zip(entry.1.text()).and_then(|(place, name)| base.tree.child_place(place, name));
            if let Some(place) = place
                && base.tree.has(&place).await?
            {
                standing.push(entry.clone());
            }
        }
        for entry in &standing {
            untracked.remove(entry);
        }
        let kept = |(parent, name): &(EntryId, Name)| old.get(*parent)?.directory()?.get(name)?.id;
        let mut kept: HashSet<EntryId> = untracked.iter().filter_map(kept).collect();
        let stays = Vec::new();
        let relocated = Vec::new();
        let tree = &base.tree;
        let mut discard = Discard {
            state: &old,
            opens: &opens,
            tree,
            path,
            returned: &returned,
            staying: &staying.inodes,
            untracked,
            kept: stays,
            relocated,
        };
        discard.walk();
        let mut in_the_way = HashSet::new();
        for (home, id, _) in &discard.relocated {
            if let Some(place) = base.tree.place_of(home)
                && base.tree.has(&place).await?
            {
                in_the_way.insert(*id);
            }
        }
        // Entries of the base come back in their places.
        discard.relocated.retain(|(_, id, _)| !in_the_way.contains(id));
        kept.retain(|id| !in_the_way.contains(id));
        let (state, invalidations) = discard.carry_out(|place| base.meta_of(place))?;
        check_shown_once(&state, &base.tree)?;
        let same_backings = self.same_backings((&old, &base), (&state, &base)).await;
        let candidate = Candidate::of(state, base, &old, generation);
        Ok(Candidate { invalidations, kept, returned, same_backings, ..candidate })
    }

    /// Parts untracked names from files that have another name where the base has them: the
    /// untracked names keep the bytes.
    async fn part_untracked(
        &self,
        state: &mut State,
        base: &Base,
        untracked: &HashSet<(EntryId, Name)>,
        new_data: &mut Vec<DataFileId>,
    ) -> Result<()> {
        for (parent, name) in untracked {
            let entry = state.get(*parent).and_then(|inode| inode.directory()?.get(name));
            let Some(entry) = entry else { continue };
            let inode = entry.id.and_then(|id| state.get(id)).filter(|inode| inode.source() == Some(&Source::Lower));
            let Some(inode) = inode else { continue };
            let source = self.part(&base.tree, inode, true, new_data).await?;
            let meta = inode.meta;
            let id = state.fresh.next_entry();
            state.leave(*parent, name);
            state.insert_bare(id, id.ino(), Body::File(source), meta, 0);
            state.put_entry(*parent, name.clone(), Some(id), entry.covers, Some(entry.order));
        }
        Ok(())
    }
}

/// Returns true if a name of the file that is not in `untracked` is where the base has the file.
fn has_home_name(tree: &Tree, state: &State, inode: &Inode, untracked: &HashSet<(EntryId, Name)>) -> bool {
    inode.names.iter().filter(|name| !untracked.contains(name)).any(|(parent, name)| {
        let parent = state.get(*parent).and_then(|parent| parent.lower.as_ref());
        let home = parent.zip(name.text()).and_then(|(place, name)| tree.child_place(place, name));
        home.is_some() && home == inode.lower
    })
}

/// Returns the nodes of the snapshot by id.
pub fn node_ids(tree: &Tree) -> Arc<NodeIds> {
    tree.table().ids(tree.snapshot())
}

/// Returns the id of node `index`; `None` for a directory without a node.
pub(super) fn node_id(tree: &Tree, index: NodeIndex) -> Option<NodeId> {
    tree.table().id(tree.snapshot(), index)
}

/// Translates `place` of `from` to the place of the same node in `to`.
pub(super) fn translate(
    from: &Tree,
    to: &Tree,
    ids: &HashMap<NodeId, NodeIndex>,
    place: &TreePlace,
) -> Option<TreePlace> {
    let index = match place {
        TreePlace::Directory(index) | TreePlace::Metadata(index) | TreePlace::Chunk(index, _) => *index,
    };
    if from.table().get(index)?.stored.is_none() {
        // A directory without a node is found by its path.
        return to.place_of(&from.path_of(place));
    }
    let id = node_id(from, index)?;
    if index == 0 && !ids.contains_key(&id) {
        return matches!(place, TreePlace::Directory(_)).then_some(TreePlace::Directory(0));
    }
    let index = *ids.get(&id)?;
    match place {
        TreePlace::Directory(_) => Some(TreePlace::Directory(index)),
        TreePlace::Metadata(_) => Some(TreePlace::Metadata(index)),
        TreePlace::Chunk(_, coords) => {
            let array = to.table().array(index)?;
            is_prefix_in_grid(coords, &array.grid).then(|| TreePlace::Chunk(index, coords.clone()))
        }
    }
}
