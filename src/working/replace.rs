//! Putting the tree on another snapshot: after a commit, a refresh, a discard.
//!
//! All three edit the state in memory and then write the journal anew, in one step. If that fails (a full disk, most often),
//! the journal on disk is that of before, which is valid; nothing more is changed until writing it anew succeeds.
//!
//! The gate is held for writing throughout, so that nothing changes underneath and no file is open for writing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::RwLockWriteGuard;

use super::discard::{Discard, Discarded};
use super::frozen::{Frozen, FrozenEntry};
use super::state::{Inode, State, UPPER};
use super::{Base, Locked, WorkingTree, first_line};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::{NodeId, ObjectId};
use crate::format::snapshot::Snapshot;
use crate::reader::Reader;
use crate::scratch::record::{Id, Name, Record, Source};
use crate::tree::Tree;
use crate::tree::nodes::{NodeIndex, NodeTable, Place};

/// What the kernel must be told after something changed without its doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// A name means something else now, or nothing.
    Entry(u64, Name),
    /// Bytes and attributes are others.
    Inode(u64),
    /// Attributes are others; the bytes are the same.
    Attributes(u64),
}

/// Holds the tree still.
pub type Still<'a> = RwLockWriteGuard<'a, ()>;

impl WorkingTree {
    /// Waits until nobody changes anything, and keeps it so.
    pub async fn still(&self) -> Still<'_> {
        self.gate.write().await
    }

    /// A tree of `snapshot`, whose inode numbers go on from those that the kernel knows.
    pub fn tree_of(&self, snapshot: Arc<Snapshot>, reader: Arc<Reader>) -> Result<Arc<Tree>> {
        let table = NodeTable::build_after(&snapshot, &mut self.numbering.lock())?;
        Ok(Arc::new(Tree::new(snapshot, table, reader)))
    }

    /// Writes down, durably, that a commit is about to become visible as `snapshot`.
    pub fn about_to_publish(&self, snapshot: ObjectId) -> Result<()> {
        let mut locked = self.lock();
        self.record(&mut locked, Record::Publishing { snapshot: snapshot.to_string() })?;
        let durable = Arc::clone(locked.journal.durable());
        drop(locked);
        durable.flush()
    }

    /// Copies into the scratch directory whatever only the snapshot has and no commit will keep: files of `untracked`, or what they
    /// lack, files that are deleted and still open, and files below the directories `foreign`, which are chunks in the wrong place.
    pub async fn preserve(&self, untracked: &HashSet<Id>, foreign: &[(Id, Vec<Place>)]) -> Result<()> {
        let base = self.base();
        let mut wanted: Vec<Id> = Vec::new();
        {
            let mut locked = self.lock();
            for (_, places) in foreign {
                for place in places {
                    let id = self.promote(&mut locked, base.tree.table().inode(place))?;
                    wanted.push(id);
                }
            }
            let lacks = |inode: &Inode| match inode.source() {
                Some(Source::Data(data)) => locked.state.borrowed(*data).is_some(),
                _ => false,
            };
            let lost = |id: Id, inode: &Inode| {
                (untracked.contains(&id) && lacks(inode))
                    || inode.source() == Some(&Source::Lower)
                        && (untracked.contains(&id)
                            || inode.names.is_empty()
                            || (locked.opens.get(inode.number).is_some() && !at_home(&base.tree, &locked.state, id)))
            };
            wanted.extend(locked.state.iter().filter(|(id, inode)| lost(*id, inode)).map(|(id, _)| id));
        }
        for id in wanted {
            self.own(id).await?;
        }
        Ok(())
    }

    /// The tree is on `tree` now, which a commit has made out of it: what `tracked` names is in there.
    pub async fn settle(
        &self,
        _still: &Still<'_>,
        tree: Arc<Tree>,
        tracked: &HashSet<(Id, Name)>,
    ) -> Result<Vec<Notice>> {
        let frozen = self.freeze();
        let paths = paths(&frozen);
        let places = self.places_in(&tree, &frozen, &paths).await?;
        let mut notices = Vec::new();
        let mut gone = Vec::new();
        let mut settled: HashSet<Id> = frozen.directories().iter().map(|directory| directory.id).collect();
        let mut locked = self.lock();
        // From the leaves up, so that a directory's entries are settled before it is looked at.
        for position in (0..frozen.directories().len()).rev() {
            let (Some(directory), Some(path)) = (frozen.get(position), paths.get(&position)) else { continue };
            let number = locked.state.get(directory.id).map_or(0, |inode| inode.number);
            for (name, entry) in &directory.entries {
                match entry {
                    FrozenEntry::Hidden => locked.state.leave(directory.id, name),
                    FrozenEntry::Other(_) | FrozenEntry::Directory(_) => {}
                    FrozenEntry::File(file) if tracked.contains(&(directory.id, name.clone())) => {
                        let place = name.text().and_then(|name| tree.place_of(&super::listing::join(path, name)));
                        let inside = locked.settle_file(&tree, directory.id, name, file.id, place);
                        if inside.stale {
                            notices.push(Notice::Entry(number, name.clone()));
                        }
                        notices.extend(inside.reset.map(Notice::Attributes));
                        if inside.kept {
                            settled.insert(file.id);
                        }
                        gone.extend(inside.gone);
                    }
                    FrozenEntry::File(_) => {}
                }
            }
            notices.extend(locked.settle_directory(&tree, directory.id, places.get(&position).cloned()));
        }
        // Everything else is this tree's own affair now: its place belonged to the old snapshot.
        notices.extend(locked.detach_others(&settled));
        let written = self.put_on(&mut locked, tree);
        drop(locked);
        // Otherwise the journal of before still needs them; the next mount finds them left over.
        if written {
            self.files().remove_in_background(gone);
        }
        self.lock().journal.keep_spare();
        Ok(notices)
    }

    /// Where each directory of `frozen` is in `tree`, and whether there is certainly something.
    async fn places_in(
        &self,
        tree: &Arc<Tree>,
        frozen: &Frozen,
        paths: &HashMap<usize, String>,
    ) -> Result<HashMap<usize, (Place, bool)>> {
        let mut places = HashMap::new();
        for position in 0..frozen.directories().len() {
            let Some(path) = paths.get(&position).filter(|path| !path.contains('\u{fffd}')) else { continue };
            let Some(place) = tree.place_of(path).filter(|place| tree.is_directory_place(place)) else { continue };
            let certain = match &place {
                Place::Chunk(index, prefix) => match tree.chunks(*index) {
                    Some(chunks) => chunks.any_below(prefix).await?,
                    None => false,
                },
                _ => true,
            };
            places.insert(position, (place, certain));
        }
        Ok(places)
    }

    /// Makes `tree` the snapshot below, and the journal say so; false if that could not be written.
    fn put_on(&self, locked: &mut Locked, tree: Arc<Tree>) -> bool {
        locked.state.publishing = None;
        let base = Arc::new(Base::new(tree));
        *self.base.write() = Arc::clone(&base);
        match self.rewrite(locked) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(
                    "{error}; nothing more can be changed until the scratch directory takes its journal again"
                );
                false
            }
        }
    }

    /// Writes the journal anew.
    pub(super) fn rewrite(&self, locked: &mut Locked) -> Result<()> {
        locked.stale = true;
        let base = self.base();
        let first = first_line(&self.origin, base.id());
        let mut records = locked.state.dump(&base.tree);
        records.insert(0, first);
        locked.journal.rewrite(&records)?;
        locked.stale = false;
        Ok(())
    }

    /// Moves what differs onto `tree`, a newer commit of the branch into which it fits. What others did shows.
    ///
    /// An error of kind [`ErrorKind::Stale`] if others moved what was changed here: nothing is changed then.
    pub fn rebase(&self, _still: &Still<'_>, tree: Arc<Tree>) -> Result<Vec<Notice>> {
        let base = self.base();
        let mut locked = self.lock();
        let ids: HashMap<NodeId, NodeIndex> = node_ids(&tree);
        let moved = |place: &Place| translate(&base.tree, &tree, &ids, place);
        for (id, inode) in locked.state.iter() {
            let Some(place) = &inode.lower else { continue };
            // Only what is where it was; what we moved ourselves is where we want it.
            let path = base.tree.path_of(place);
            let here = locked.state.path(id).is_none_or(|now| now == path);
            match moved(place) {
                Some(other) if here && tree.path_of(&other) != path => {
                    return Err(Error::new(
                        ErrorKind::Stale,
                        format!(
                            "{path} was moved to {} by others: commit, or discard what differs",
                            tree.path_of(&other)
                        ),
                    ));
                }
                _ => {}
            }
        }
        let lowers: Vec<(Id, Option<Place>)> =
            locked.state.iter().map(|(id, inode)| (id, inode.lower.as_ref().and_then(moved))).collect();
        let mut notices = Vec::new();
        for (id, lower) in lowers {
            let before = locked.state.get(id).map(|inode| inode.number);
            locked.state.set_lower(id, lower, &tree);
            let Some(inode) = locked.state.get(id).filter(|inode| Some(inode.number) != before) else { continue };
            // The grid changed, and with it the number.
            let above = inode.names.first().and_then(|(above, name)| Some((locked.state.get(*above)?.number, name)));
            notices.extend(above.map(|(above, name)| Notice::Entry(above, name.clone())));
        }
        locked.state.drop_vanished();
        locked.drop_backings();
        self.put_on(&mut locked, tree);
        Ok(notices)
    }

    /// Arrays whose chunks have other numbers in `new` than in `old`: the kernel must look all of their files up again.
    pub fn renumbered(&self, old: &Tree, new: &Tree) -> Vec<Notice> {
        let ids = node_ids(new);
        let mut notices = Vec::new();
        for (id, index) in node_ids(old) {
            let (Some(before), Some(now)) = (old.table().array(index), ids.get(&id)) else { continue };
            let Some(after) = new.table().array(*now).filter(|after| after.first_number != before.first_number) else {
                continue;
            };
            let top = match new.parent_of(&Place::Directory(*now)) {
                // What is below goes with it.
                Some((above, name)) => Notice::Entry(new.table().inode(&above), Name::new(name.as_bytes())),
                None => Notice::Entry(crate::tree::ROOT, Name::new(if after.encoding.prefixed { b"c" } else { b"0" })),
            };
            notices.push(top);
        }
        notices
    }

    /// `notices` with the numbers by which the kernel knows what they are about: what was made here and committed keeps its
    /// own, besides the snapshot's.
    pub fn for_kernel(&self, mut notices: Vec<Notice>) -> Vec<Notice> {
        let locked = self.lock();
        let own = |number: u64| {
            let inode = locked.state.get(locked.state.by_number(number)?)?;
            Some(inode.number).filter(|own| *own != number)
        };
        let more: Vec<Notice> = notices
            .iter()
            .filter_map(|notice| match notice {
                Notice::Entry(parent, name) => Some(Notice::Entry(own(*parent)?, name.clone())),
                Notice::Inode(number) => own(*number).map(Notice::Inode),
                Notice::Attributes(number) => own(*number).map(Notice::Attributes),
            })
            .collect();
        notices.extend(more);
        notices
    }

    /// Gives up what differs at and below `path`, but not files of `untracked`. Returns what the kernel must be told.
    pub fn discard(&self, _still: &Still<'_>, path: &str, untracked: &HashSet<(Id, Name)>) -> Result<Vec<Notice>> {
        let base = self.base();
        let mut locked = self.lock();
        let discard = Discard::new(&locked.state, &locked.opens, &base.tree, path, untracked);
        let Discarded { state, notices, gone } = discard.carry_out(|place| base.meta_of(place))?;
        locked.state = state;
        locked.drop_backings();
        if let Err(error) = self.rewrite(&mut locked) {
            return Err(error.context("the changes are given up, but the scratch directory could not be told"));
        }
        drop(locked);
        for number in gone {
            self.files().remove(number);
        }
        self.lock().journal.keep_spare();
        Ok(notices)
    }
}

/// Whether a promoted inode is where its place in the snapshot is.
fn at_home(tree: &Tree, state: &State, id: Id) -> bool {
    let lower = state.get(id).and_then(|inode| inode.lower.as_ref());
    lower.is_some_and(|place| state.path(id).is_some_and(|path| path == tree.path_of(place)))
}

/// Paths of directories, by position.
pub fn paths(frozen: &Frozen) -> HashMap<usize, String> {
    let mut paths = HashMap::from([(Frozen::ROOT, "/".to_owned())]);
    // A directory's position is behind its parent's.
    for (position, directory) in frozen.directories().iter().enumerate() {
        let Some(path) = paths.get(&position).cloned() else { continue };
        for (name, entry) in &directory.entries {
            if let FrozenEntry::Directory(child) = entry {
                paths.insert(*child, super::listing::join(&path, &name.to_string()));
            }
        }
    }
    paths
}

/// Nodes that the snapshot has, by id.
pub fn node_ids(tree: &Tree) -> HashMap<NodeId, NodeIndex> {
    let table = tree.table();
    let indices = (0..table.len()).filter_map(|at| NodeIndex::try_from(at).ok());
    let id = |index: NodeIndex| Some((tree.snapshot().node(table.get(index)?.stored? as usize)?.id, index));
    indices.filter_map(id).collect()
}

/// The place of `from` that is `place`, in `to`.
fn translate(from: &Tree, to: &Tree, ids: &HashMap<NodeId, NodeIndex>, place: &Place) -> Option<Place> {
    let index = match place {
        Place::Directory(index) | Place::Metadata(index) | Place::Chunk(index, _) => *index,
    };
    let stored = from.table().get(index)?.stored;
    let Some(stored) = stored else {
        // A directory without a node: by its path.
        return to.place_of(&from.path_of(place));
    };
    let id = from.snapshot().node(stored as usize)?.id;
    if index == 0 && !ids.contains_key(&id) {
        return matches!(place, Place::Directory(_)).then_some(Place::Directory(0));
    }
    let index = *ids.get(&id)?;
    match place {
        Place::Directory(_) => Some(Place::Directory(index)),
        Place::Metadata(_) => Some(Place::Metadata(index)),
        Place::Chunk(_, coords) => {
            let array = to.table().array(index)?;
            let fits = coords.len() <= array.grid.len() && std::iter::zip(coords, &array.grid).all(|(c, n)| c < n);
            fits.then(|| Place::Chunk(index, coords.clone()))
        }
    }
}

/// What settling a file left to do.
#[derive(Default)]
struct Settled {
    /// The kernel knows the name by another number.
    stale: bool,
    /// A data file that nobody needs any more.
    gone: Option<u64>,
    /// The inode stays, and shows the snapshot's bytes.
    kept: bool,
    /// The number of an inode that has the snapshot's attributes again.
    reset: Option<u64>,
}

impl Locked {
    /// Inodes besides `settled` are from no snapshot any more. Returns what the kernel must be told.
    fn detach_others(&mut self, settled: &HashSet<Id>) -> Vec<Notice> {
        let others: Vec<Id> = self
            .state
            .iter()
            .filter(|(id, inode)| inode.lower.is_some() && !settled.contains(id))
            .map(|(id, _)| id)
            .collect();
        let mut notices = Vec::new();
        for id in others {
            self.state.bind(id, None);
            let Some(inode) = self.state.get(id) else { continue };
            // One without a name is known by its number only.
            if inode.number >= UPPER || inode.names.is_empty() {
                continue;
            }
            let names = inode.names.clone();
            self.state.renumber(id);
            for (parent, name) in names {
                let parent = self.state.get(parent).map_or(0, |inode| inode.number);
                notices.push(Notice::Entry(parent, name));
            }
        }
        notices
    }

    /// A file whose bytes are in the snapshot now, at `place`.
    fn settle_file(&mut self, tree: &Tree, parent: Id, name: &Name, id: Id, place: Option<Place>) -> Settled {
        let number = self.state.get(id).map_or(0, |inode| inode.number);
        let mut settled = self.settle_name(tree, parent, name, id, place);
        if let (Some(data), Some(open)) = (settled.gone, self.opens.get_mut(number)) {
            open.file = None;
            // Whoever reads it by the kernel's own means goes on doing so.
            settled.gone = Some(data).filter(|data| open.backing.as_ref().is_none_or(|(backing, _)| backing != data));
        }
        settled
    }

    /// Drops the backings of files whose bytes are others now: what they were is theirs alone who still read it. The next
    /// mount finds the data files left over, if the journal does not say otherwise.
    fn drop_backings(&mut self) {
        let Locked { state, opens, .. } = self;
        for (number, open) in opens.iter_mut() {
            let source = state.by_number(number).and_then(|id| state.get(id)?.source());
            if let Some((data, _)) = &open.backing
                && source != Some(&Source::Data(*data))
            {
                open.backing = None;
            }
        }
    }

    fn settle_name(&mut self, tree: &Tree, parent: Id, name: &Name, id: Id, place: Option<Place>) -> Settled {
        let Some(inode) = self.state.get(id) else { return Settled::default() };
        let (number, open, names) = (inode.number, self.opens.get(inode.number).is_some(), inode.names.len());
        let data = match inode.source() {
            Some(Source::Data(data)) => Some(*data),
            _ => None,
        };
        let natural = place.as_ref().is_some_and(|place| tree.table().inode(place) == number);
        if names > 1 {
            // Another name keeps the inode. The kernel must not take this one for it any longer.
            self.state.leave(parent, name);
            return Settled { stale: true, reset: Some(number), ..Settled::default() };
        }
        if natural {
            self.state.leave(parent, name);
            self.state.drop_inode(id);
            return Settled { gone: data, reset: Some(number), ..Settled::default() };
        }
        if number >= UPPER {
            if inode.lookups > 0 || open {
                // The kernel goes on knowing it by its number.
                self.state.become_lower(id, place, tree);
                return Settled { gone: data, kept: true, ..Settled::default() };
            }
            self.state.leave(parent, name);
            self.state.drop_inode(id);
            return Settled { gone: data, ..Settled::default() };
        }
        // It has the number of another place of the snapshot.
        self.state.leave(parent, name);
        if open {
            return Settled { stale: true, ..Settled::default() };
        }
        self.state.drop_inode(id);
        Settled { stale: true, gone: data, ..Settled::default() }
    }

    /// A directory, whose place in the snapshot is `place` if it has one, with whether there is anything. Returns what the
    /// kernel must be told.
    fn settle_directory(&mut self, tree: &Tree, id: Id, place: Option<(Place, bool)>) -> Option<Notice> {
        let inode = self.state.get(id)?;
        let natural = place.as_ref().is_some_and(|(place, _)| tree.table().inode(place) == inode.number);
        let (own, inode_number) = (inode.number >= UPPER, inode.number);
        let clean = inode.directory().is_some_and(|directory| directory.is_clean());
        let unknown = natural || !own || inode.lookups == 0;
        let certain = place.as_ref().is_some_and(|(_, certain)| *certain);
        let above = inode.names.first().cloned();
        let notice = above.as_ref().filter(|_| !natural && !own).and_then(|(parent, name)| {
            let parent = self.state.get(*parent)?.number;
            Some(Notice::Entry(parent, name.clone()))
        });
        match above {
            Some((parent, name)) if clean && certain && unknown => {
                self.state.leave(parent, &name);
                self.state.drop_inode(id);
                return notice.or(Some(Notice::Attributes(inode_number)));
            }
            _ => self.state.set_lower(id, place.map(|(place, _)| place), tree),
        }
        notice
    }
}
