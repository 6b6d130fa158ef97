//! The differences from the base, in memory: inodes and their names.
//!
//! The state follows from [`Record`]s applied one after another: during a mount each is appended to
//! the journal first, when a mount begins they are read from it. A rebase or a discard installs
//! another state with a rewritten journal. A crash thus leaves the state that programs saw.
//!
//! An inode of the base is *promoted* when it, or anything below it, changes: it gets an [`Inode`]
//! here and keeps the number by which the kernel knows it. Ancestors are promoted first, so that
//! every change can be reached from the root. A promoted directory shows the base's entries except
//! those that it has or hides itself.

pub(super) mod fresh;
mod numbers;

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use self::fresh::FreshNumbers;
use super::node::{Directory, Entry, IN_PLACE, Ino, Inode, RestoredNode};
use super::sparse_copy::SparseCopy;
use crate::scratch::record::{Body, DataFileId, EntryId, Meta, Name, ROOT, Record, Source, Time};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::TreePlace;

/// All inodes that differ from the base.
#[derive(Clone, Debug, Default)]
pub struct State {
    inodes: HashMap<EntryId, Inode>,
    /// Inodes by kernel number, where that is one of the base's. A replaced inode keeps its number
    /// while it is open.
    promoted: HashMap<Ino, EntryId>,
    /// Inodes by the base's number of the entry that they show: promoted inodes, and new inodes
    /// that a commit has added to the base, which the kernel knows by another number.
    shown: HashMap<Ino, EntryId>,
    /// Numbers of inodes, data files and listing positions.
    pub(super) fresh: FreshNumbers,
    /// Missing ranges of sparse copies, by data file.
    borrowed: HashMap<DataFileId, SparseCopy>,
    /// Nodes that directories were restored from: each gets the id that it had.
    restored: HashMap<EntryId, RestoredNode>,
    /// Snapshot that a commit was about to publish when the journal ended.
    pub publishing: Option<String>,
    /// Snapshots that earlier commits were about to publish and that were not found.
    pub unpublished: Vec<String>,
    /// True while the journal of an old release is applied, which does not record which entries
    /// cover an entry of the base: all do.
    pub(super) all_entries_cover: bool,
}

impl State {
    /// Creates a state without differences.
    pub fn new() -> Self {
        State::default()
    }

    /// Returns an empty state whose numbers continue those of this one.
    pub(super) fn successor(&self) -> Self {
        let borrowed = self.borrowed.clone();
        let restored = self.restored.clone();
        State { fresh: self.fresh, borrowed, restored, ..State::default() }
    }

    /// Adds an inode without names that shows nothing of the base.
    pub(super) fn insert_bare(&mut self, id: EntryId, number: Ino, body: Body, meta: Meta, lookup_count: u64) {
        if number.is_of_base() {
            self.promoted.insert(number, id);
        }
        let entries = (body == Body::Directory).then(Box::default);
        let lower = None;
        let lower_number = None;
        let names = SmallVec::new();
        let inode = Inode { number, lower, lower_number, meta, body, entries, names, lookup_count };
        self.inodes.insert(id, inode);
    }

    /// Takes over an inode of another state, without names and entries, at place `lower` of the
    /// base. `meta` replaces its attributes.
    pub(super) fn adopt(&mut self, id: EntryId, inode: &Inode, meta: Meta, lower: Option<(TreePlace, Ino)>) {
        let is_known = lower.as_ref().is_some_and(|(_, number)| *number == inode.number);
        self.insert_bare(id, inode.number, inode.body.clone(), meta, inode.lookup_count);
        self.bind(id, lower);
        if inode.number.is_of_base() && !is_known && id != ROOT {
            self.renumber(id);
        }
    }

    /// Creates a directory over `lower`, a place of the base and its number there, or over nothing.
    pub(super) fn make_directory(
        &mut self,
        parent: EntryId,
        name: Name,
        meta: Meta,
        lower: Option<(TreePlace, Ino)>,
    ) -> EntryId {
        let id = self.fresh.next_entry();
        let number = lower.as_ref().map_or(id.ino(), |(_, number)| *number);
        self.insert_bare(id, number, Body::Directory, meta, 0);
        self.bind(id, lower);
        self.put_entry(parent, name, Some(id), false, None);
        id
    }

    /// Removes the entry `name` of directory `parent`, and the name from its inode, so that the
    /// base's entry shows.
    pub(super) fn leave(&mut self, parent: EntryId, name: &Name) {
        let Some(directory) = self.get_mut(parent).and_then(|inode| inode.entries.as_mut()) else { return };
        let id = directory.get(name).and_then(|entry| entry.id);
        directory.clear(name);
        if let Some(inode) = id.and_then(|id| self.get_mut(id)) {
            inode.drop_name(parent, name);
        }
    }

    /// Gives `name` of directory `parent` to `id`, or makes it a whiteout, at position `order` in
    /// listings or a new one.
    pub(super) fn put_entry(
        &mut self,
        parent: EntryId,
        name: Name,
        id: Option<EntryId>,
        covers: bool,
        order: Option<u64>,
    ) {
        // Only what shows the base's entry of the name is listed in its place.
        let shows_base =
            |inode: &Inode| inode.lower.is_some() && (inode.is_directory() || inode.source() == Some(&Source::Lower));
        let in_place = id.and_then(|id| self.get(id)).is_some_and(shows_base);
        let order = order.filter(|order| *order != IN_PLACE || in_place).unwrap_or_else(|| self.fresh.take());
        let is_directory = id.and_then(|id| self.get(id)).is_some_and(Inode::is_directory);
        if let Some(directory) = self.get_mut(parent).and_then(|inode| inode.entries.as_mut()) {
            directory.set(name.clone(), id, is_directory, covers, order);
        }
        if let Some(inode) = id.and_then(|id| self.get_mut(id)) {
            inode.names.push((parent, name));
        }
    }

    /// Makes directory `id` one of a restored node.
    pub(super) fn set_restored(&mut self, id: EntryId, node: RestoredNode) {
        self.restored.insert(id, node);
    }

    /// Returns the node that directory `id` was restored from.
    pub(super) fn restored(&self, id: EntryId) -> Option<RestoredNode> {
        self.restored.get(&id).copied()
    }

    /// Forgets what directories were restored from: the nodes are in the base.
    pub(super) fn forget_restored(&mut self) {
        self.restored.clear();
    }

    /// Returns the missing ranges of data file `data`, if it is a sparse copy.
    pub(super) fn borrowed(&self, data: DataFileId) -> Option<&SparseCopy> {
        self.borrowed.get(&data)
    }

    /// Drops the missing ranges of data files that are not in `used`.
    pub(super) fn forget_borrowed(&mut self, used: &HashSet<DataFileId>) {
        self.borrowed.retain(|data, _| used.contains(data));
    }

    /// Returns the data files of all inodes.
    pub fn data_files(&self) -> HashSet<DataFileId> {
        self.inodes.values().filter_map(Inode::data_file).collect()
    }

    /// Returns the number of inodes.
    pub fn count(&self) -> usize {
        self.inodes.len()
    }

    /// Returns the inode with id `id`.
    pub fn get(&self, id: EntryId) -> Option<&Inode> {
        self.inodes.get(&id)
    }

    /// Returns the inode with id `id`, for changes that need no record.
    pub fn get_mut(&mut self, id: EntryId) -> Option<&mut Inode> {
        self.inodes.get_mut(&id)
    }

    /// Raises the lookup count of inode `id`. Returns false if there is no such inode.
    pub(super) fn increment_lookups(&mut self, id: EntryId) -> bool {
        let inode = self.get_mut(id);
        inode.map(|inode| inode.lookup_count += 1).is_some()
    }

    /// Returns all inodes.
    pub fn iter(&self) -> impl Iterator<Item = (EntryId, &Inode)> {
        self.inodes.iter().map(|(id, inode)| (*id, inode))
    }

    /// Returns a path of the inode, for messages and classification. An inode without names has
    /// none.
    pub fn path(&self, id: EntryId) -> Option<String> {
        let mut parts = Vec::new();
        let mut at = id;
        while at != ROOT {
            // A cycle cannot arise, but a damaged journal can contain one.
            if parts.len() > self.inodes.len() {
                return None;
            }
            let (parent, name) = self.inodes.get(&at)?.names.first()?;
            parts.push(name.to_string());
            at = *parent;
        }
        parts.push(String::new());
        parts.reverse();
        Some(if parts.len() == 1 { "/".to_owned() } else { parts.join("/") })
    }

    /// Applies `record`, which is in the journal or about to be, on top of `tree`.
    ///
    /// Fails with [`icechunkfs_base::error::ErrorKind::Corrupt`], without a change, if the record
    /// does not fit the state.
    pub fn apply(&mut self, record: Record, tree: &Tree) -> Result<()> {
        match record {
            Record::Base { .. } => Err(Error::corrupt("a second first line")),
            Record::Publishing { snapshot } => {
                // The previous commit was not found and may still become visible.
                self.unpublished.extend(self.publishing.replace(snapshot));
                Ok(())
            }
            Record::Unpublished { snapshot } => {
                self.publishing = None;
                self.unpublished.push(snapshot);
                Ok(())
            }
            Record::Create { parent, name, id, meta, body } => {
                self.free_name(parent, &name)?;
                self.insert(id, None, meta, body)?;
                self.attach(parent, name, id, Some(meta.ctime))
            }
            Record::Promote { parent, name, id, lower, meta, body } => {
                let wrong = || Error::corrupt(format!("`{lower}` is not in the snapshot"));
                let place = tree.place_of(&lower).ok_or_else(wrong)?;
                if let Some(parent) = parent {
                    self.free_name(parent, &name)?;
                }
                self.insert(id, Some(numbered(tree, place)), meta, body)?;
                match parent {
                    Some(parent) => self.attach(parent, name, id, None),
                    None => Ok(()),
                }
            }
            Record::Link { parent, name, id, at } => {
                self.free_name(parent, &name)?;
                let inode = self.inodes.get_mut(&id).ok_or_else(|| unknown(id))?;
                inode.meta.ctime = at;
                self.attach(parent, name, id, Some(at))
            }
            Record::Remove { parent, name, hide, at } => {
                let id = self.directory(parent)?.get(&name).and_then(|entry| entry.id);
                self.clear_entry(parent, name.clone(), hide, Some(at))?;
                self.detach(id, parent, &name, at);
                Ok(())
            }
            Record::Rename { parent, name, new_parent, new_name, exchange, hide, at } => {
                self.rename((parent, name), (new_parent, new_name), exchange, hide, at)
            }
            Record::Attributes { id, meta } => {
                self.inodes.get_mut(&id).ok_or_else(|| unknown(id))?.meta = meta;
                Ok(())
            }
            Record::SetSource { id, source, at } => self.set_source(id, source, at),
            Record::Sparse { data, from, missing } => {
                // The number must not be reused, even if no inode ever got the data file.
                self.count_data(&Source::Data(data))?;
                match SparseCopy::new(from.0, &missing) {
                    Some(borrowed) => self.borrowed.insert(data, borrowed),
                    None => self.borrowed.remove(&data),
                };
                Ok(())
            }
            Record::Covered { data, begin, end } => {
                if self.borrowed.get_mut(&data).is_some_and(|borrowed| !borrowed.cover(&(begin..end))) {
                    self.borrowed.remove(&data);
                }
                Ok(())
            }
            // The journal's durability state has the mark itself.
            Record::FlushFailed { data } => {
                self.count_data(&Source::Data(data))?;
                Ok(())
            }
            Record::Whiteout { parent, name } => self.clear_entry(parent, name, true, None),
            Record::Restored { id, node, is_array } => {
                self.directory(id)?;
                self.set_restored(id, RestoredNode { id: node, is_array });
                Ok(())
            }
        }
    }

    fn set_source(&mut self, id: EntryId, source: Source, at: Time) -> Result<()> {
        self.count_data(&source)?;
        let inode = self.inodes.get_mut(&id).ok_or_else(|| unknown(id))?;
        let Body::File(old) = &mut inode.body else {
            return Err(Error::corrupt(format!("{id} has no bytes")));
        };
        *old = source;
        inode.meta.mtime = at;
        inode.meta.ctime = at;
        Ok(())
    }

    fn free_name(&self, parent: EntryId, name: &Name) -> Result<()> {
        match self.directory(parent)?.get(name) {
            Some(Entry { id: Some(_), .. }) => Err(Error::corrupt(format!("`{name}` is there already"))),
            _ => Ok(()),
        }
    }

    fn directory(&self, id: EntryId) -> Result<&Directory> {
        let directory = self.inodes.get(&id).and_then(Inode::directory);
        directory.ok_or_else(|| Error::corrupt(format!("{id} is not a directory")))
    }

    fn insert(&mut self, id: EntryId, lower: Option<(TreePlace, Ino)>, meta: Meta, body: Body) -> Result<()> {
        if self.inodes.contains_key(&id) || lower.as_ref().is_some_and(|(_, number)| self.shown.contains_key(number)) {
            return Err(Error::corrupt(format!("{id} is there already")));
        }
        if let Body::File(source) = &body {
            self.count_data(source)?;
        }
        self.fresh.reserve(id.0)?;
        let number = lower.as_ref().map_or(id.ino(), |(_, number)| *number);
        self.insert_bare(id, number, body, meta, 0);
        self.bind(id, lower);
        Ok(())
    }

    fn count_data(&mut self, source: &Source) -> Result<()> {
        match source {
            Source::Data(data) => self.fresh.reserve(data.0),
            Source::Lower | Source::Stored(_) => Ok(()),
        }
    }

    /// Gives `name` to `id`. The entry covers the base's if it replaces a whiteout.
    fn attach(&mut self, parent: EntryId, name: Name, id: EntryId, at: Option<Time>) -> Result<()> {
        let covers = self.directory(parent)?.get(&name).is_some_and(|entry| entry.covers);
        self.attach_over(parent, name, id, covers || self.all_entries_cover, at)
    }

    fn attach_over(&mut self, parent: EntryId, name: Name, id: EntryId, covers: bool, at: Option<Time>) -> Result<()> {
        // A name that is replaced keeps its place in listings: one that is under way would miss it
        // otherwise.
        let replaced = self.touch(parent, at)?.get(&name).filter(|entry| entry.id.is_some());
        let order = replaced.map(|entry| entry.order).filter(|order| *order != IN_PLACE);
        self.put_entry(parent, name, Some(id), covers, order);
        Ok(())
    }

    /// Makes `name` a whiteout if it has to `hide` the base's entry, otherwise removes the entry.
    fn clear_entry(&mut self, parent: EntryId, name: Name, hide: bool, at: Option<Time>) -> Result<()> {
        let directory = self.touch(parent, at)?;
        if hide {
            self.put_entry(parent, name, None, true, None);
        } else {
            directory.clear(&name);
        }
        Ok(())
    }

    /// Sets the times of directory `parent`, if any, and returns its entries.
    fn touch(&mut self, parent: EntryId, at: Option<Time>) -> Result<&mut Directory> {
        let inode = self.inodes.get_mut(&parent).ok_or_else(|| unknown(parent))?;
        if let Some(at) = at {
            (inode.meta.mtime, inode.meta.ctime) = (at, at);
        }
        inode.entries.as_deref_mut().ok_or_else(|| Error::corrupt(format!("{parent} is not a directory")))
    }

    fn detach(&mut self, id: Option<EntryId>, parent: EntryId, name: &Name, at: Time) {
        if let Some(inode) = id.and_then(|id| self.inodes.get_mut(&id)) {
            inode.drop_name(parent, name);
            inode.meta.ctime = at;
        }
    }

    fn rename(
        &mut self,
        from: (EntryId, Name),
        to: (EntryId, Name),
        exchange: bool,
        hide: bool,
        at: Time,
    ) -> Result<()> {
        let entry = |place: &(EntryId, Name)| Ok::<_, Error>(self.directory(place.0)?.get(&place.1).and_then(|e| e.id));
        let moved = entry(&from)?;
        let other = entry(&to)?;
        let moved = moved.ok_or_else(|| Error::corrupt(format!("there is no `{}`", from.1)))?;
        if exchange && other.is_none() {
            return Err(Error::corrupt(format!("there is no `{}`", to.1)));
        }
        self.detach(other, to.0, &to.1, at);
        match other.filter(|_| exchange) {
            Some(other) => self.attach_over(from.0, from.1.clone(), other, true, Some(at))?,
            None => self.clear_entry(from.0, from.1.clone(), hide, Some(at))?,
        }
        self.detach(Some(moved), from.0, &from.1, at);
        // This operation replaced any entry of that name.
        self.attach_over(to.0, to.1, moved, true, Some(at))
    }

    /// Drops an inode that has no names. The base's entry does not come back.
    pub fn drop_inode(&mut self, id: EntryId) -> Option<Inode> {
        let inode = self.inodes.remove(&id)?;
        unlist(&mut self.promoted, Some(inode.number), id);
        unlist(&mut self.shown, inode.lower_number, id);
        Some(inode)
    }

    /// Makes an inode show `lower`, a place of the base and its number there, or nothing of the
    /// base.
    pub(super) fn bind(&mut self, id: EntryId, lower: Option<(TreePlace, Ino)>) {
        let Some(inode) = self.inodes.get_mut(&id) else { return };
        let (place, number) = lower.unzip();
        inode.lower = place;
        let old = std::mem::replace(&mut inode.lower_number, number);
        unlist(&mut self.shown, old, id);
        if let Some(number) = number {
            self.shown.insert(number, id);
        }
    }

    /// Gives a promoted inode a number of the working tree.
    pub(super) fn renumber(&mut self, id: EntryId) {
        let Some(inode) = self.inodes.get_mut(&id) else { return };
        let old = std::mem::replace(&mut inode.number, id.ino());
        unlist(&mut self.promoted, Some(old), id);
    }

    /// Returns records that create this state from [`State::new`], on top of `tree`.
    pub fn dump(&self, tree: &Tree) -> Vec<Record> {
        let mut records = Vec::with_capacity(self.inodes.len());
        let mut seen = HashSet::from([ROOT]);
        let mut open = vec![ROOT];
        if let Some(root) = self.inodes.get(&ROOT) {
            records.push(root_record(root.meta));
        }
        while let Some(parent) = open.pop() {
            let Some(directory) = self.inodes.get(&parent).and_then(Inode::directory) else { continue };
            for (name, entry) in directory.entries() {
                if entry.covers {
                    records.push(Record::Whiteout { parent, name: name.clone() });
                }
                let (name, Some(id)) = (name.clone(), entry.id) else { continue };
                let Some(inode) = self.inodes.get(&id) else { continue };
                if !seen.insert(id) {
                    records.push(Record::Link { parent, name, id, at: inode.meta.ctime });
                    continue;
                }
                if inode.is_directory() {
                    open.push(id);
                }
                let meta = inode.meta;
                let body = inode.body.clone();
                records.push(match &inode.lower {
                    Some(place) => {
                        let lower = tree.path_of(place);
                        Record::Promote { parent: Some(parent), name, id, lower, meta, body }
                    }
                    None => Record::Create { parent, name, id, meta, body },
                });
            }
        }
        for (_, inode) in self.inodes.iter().filter(|(id, _)| seen.contains(*id)) {
            if let Some(data) = inode.data_file() {
                records.extend(self.borrowed.get(&data).map(|borrowed| borrowed.record(data)));
            }
        }
        let restored = self.restored.iter().filter(|(id, _)| seen.contains(*id));
        records.extend(restored.map(|(id, node)| Record::Restored { id: *id, node: node.id, is_array: node.is_array }));
        // The records above have changed the times of directories.
        let touched = self.inodes.iter().filter(|(id, inode)| inode.is_directory() && seen.contains(*id));
        records.extend(touched.map(|(id, inode)| Record::Attributes { id: *id, meta: inode.meta }));
        let given_up = self.unpublished.iter().map(|snapshot| Record::Unpublished { snapshot: snapshot.clone() });
        records.extend(given_up);
        records.extend(self.publishing.iter().map(|snapshot| Record::Publishing { snapshot: snapshot.clone() }));
        records
    }
}

/// Returns the record of the root, which every journal has.
pub(super) fn root_record(meta: Meta) -> Record {
    let name = Name::new(b"");
    let lower = "/".to_owned();
    Record::Promote { parent: None, name, id: ROOT, lower, meta, body: Body::Directory }
}

/// Returns `place` with its inode number in `tree`.
pub(super) fn numbered(tree: &Tree, place: TreePlace) -> (TreePlace, Ino) {
    let number = tree.table().inode(&place);
    (place, number)
}

/// Removes `id` from an index by number, unless another inode has the number there by now.
fn unlist(list: &mut HashMap<Ino, EntryId>, number: Option<Ino>, id: EntryId) {
    if let Some(number) = number.filter(|number| list.get(number) == Some(&id)) {
        list.remove(&number);
    }
}

fn unknown(id: EntryId) -> Error {
    Error::corrupt(format!("there is no {id}"))
}

#[cfg(test)]
mod tests;
