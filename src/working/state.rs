//! What differs from the snapshot, in memory: inodes and their names.
//!
//! Everything here comes about by applying [`Record`]s, one after another: while the mount lives, each is written to the
//! journal first; when it begins, they are read from there. So what a crash leaves is what the program saw.
//!
//! An inode of the snapshot below is *promoted* when something about it or below it changes: it gets an [`Inode`] here and
//! keeps the number by which the kernel knows it. Its ancestors are promoted before it, so that every change can be reached
//! from the root. A promoted directory shows the snapshot's entries but those that it has itself or hides.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use super::borrowed::Borrowed;
use crate::error::{Error, Result};
use crate::scratch::record::{Body, Id, Meta, Name, ROOT, Record, Source, Time};
use crate::tree::Tree;
use crate::tree::nodes::Place;

/// Inode numbers of what was never in the snapshot are this and its [`Id`]. Those of the snapshot are far below.
pub const UPPER: u64 = 1 << 62;

/// All inodes that differ.
#[derive(Clone, Debug, Default)]
pub struct State {
    inodes: HashMap<Id, Inode>,
    /// Inodes by their own number, where that is one of the snapshot's. One that was replaced keeps it as long as it is open.
    promoted: HashMap<u64, Id>,
    /// Inodes by the number that the snapshot has for what they show: promoted ones, and new ones that a commit has made part
    /// of it, which the kernel knows by another.
    shown: HashMap<u64, Id>,
    /// Ids of inodes, numbers of data files and places in listings are taken from here.
    next: u64,
    /// What data files lack, by their numbers.
    borrowed: HashMap<u64, Borrowed>,
    /// The snapshot that a commit was about to become when the journal ended.
    pub publishing: Option<String>,
    /// Snapshots that commits were about to become before: they were not found.
    pub unpublished: Vec<String>,
    /// The journal is of a release that did not write down which entries cover something: all do.
    pub(super) trusts_all: bool,
}

/// Something that differs from the snapshot, or may.
#[derive(Clone, Debug)]
pub struct Inode {
    /// By which the kernel knows it.
    pub number: u64,
    /// What of the snapshot it shows.
    pub lower: Option<Place>,
    /// The number that the snapshot has for that.
    lower_number: Option<u64>,
    /// Its attributes.
    pub meta: Meta,
    /// What it is.
    pub node: Node,
    /// The names it has; a directory has one, and the root none.
    pub names: SmallVec<[(Id, Name); 1]>,
    /// How often the kernel was told about it and has not forgotten.
    pub lookups: u64,
}

/// What an inode is.
#[derive(Clone, Debug)]
pub enum Node {
    /// A directory and those of its entries that are not the snapshot's.
    Directory(Directory),
    /// A regular file.
    File(Source),
    /// A symbolic link.
    Symlink(Name),
    /// A device, FIFO or socket.
    Special {
        /// File type bits.
        kind: u32,
        /// Device number.
        rdev: u32,
    },
}

/// Entries of a directory.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    entries: HashMap<Name, Entry>,
    /// In the order in which they came, which is the order of listings.
    order: BTreeMap<u64, Name>,
    /// How many of the entries that show are directories.
    directories: u32,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in listings.
    pub order: u64,
    /// The inode; none if the name is hidden.
    pub id: Option<Id>,
    /// Whether the inode is a directory.
    is_directory: bool,
    /// Whether an operation of this mount removed or replaced what the base has under the name. Only such an entry may hide
    /// something of the base: what is merely in the way of it was never deleted here.
    pub covers: bool,
}

impl Entry {
    /// A whiteout: what the base has under the name does not show.
    pub(super) fn whiteout() -> Self {
        Entry { order: 0, id: None, is_directory: false, covers: true }
    }
}

impl Directory {
    /// The entry of a name, if it is not the snapshot's affair.
    pub fn get(&self, name: &Name) -> Option<Entry> {
        self.entries.get(name).copied()
    }

    /// All entries, hidden ones too, in no certain order.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, Option<Id>)> {
        self.entries.iter().map(|(name, entry)| (name, entry.id))
    }

    /// All entries, whiteouts included, in no certain order.
    pub fn entries(&self) -> impl Iterator<Item = (&Name, Entry)> {
        self.entries.iter().map(|(name, entry)| (name, *entry))
    }

    /// Entries that show, from a place in the listing on.
    pub fn from(&self, order: u64) -> impl Iterator<Item = (u64, &Name, Id)> {
        self.order.range(order..).filter_map(|(order, name)| Some((*order, name, self.entries.get(name)?.id?)))
    }

    /// Whether it has an entry that shows.
    pub fn shows_any(&self) -> bool {
        self.entries.values().any(|entry| entry.id.is_some())
    }

    /// Whether it has nothing of its own, hidden names included.
    pub fn is_clean(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many directories it has of its own.
    pub fn directories(&self) -> u32 {
        self.directories
    }

    pub(super) fn set(&mut self, name: Name, id: Option<Id>, is_directory: bool, covers: bool, order: u64) {
        self.clear(&name);
        if id.is_some() {
            self.order.insert(order, name.clone());
        }
        self.directories += u32::from(is_directory);
        self.entries.insert(name, Entry { order, id, is_directory, covers });
    }

    /// Leaves a name to the snapshot.
    pub fn clear(&mut self, name: &Name) {
        if let Some(entry) = self.entries.remove(name) {
            self.order.remove(&entry.order);
            self.directories -= u32::from(entry.is_directory);
        }
    }
}

impl Inode {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.node, Node::Directory(_))
    }

    /// Its entries, if it is a directory.
    pub fn directory(&self) -> Option<&Directory> {
        match &self.node {
            Node::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// Where its bytes are, if it is a regular file.
    pub fn source(&self) -> Option<&Source> {
        match &self.node {
            Node::File(source) => Some(source),
            _ => None,
        }
    }
}

impl State {
    /// The state in which nothing differs, on top of `tree`.
    pub fn new() -> Self {
        State { next: ROOT + 1, ..State::default() }
    }

    /// An empty state whose numbers go on from those of this one.
    pub(super) fn successor(&self) -> Self {
        State { next: self.next, borrowed: self.borrowed.clone(), ..State::default() }
    }

    /// Adds an inode without names that shows nothing of the snapshot.
    pub(super) fn take_over(&mut self, id: Id, number: u64, node: Node, meta: Meta, lookups: u64) {
        if number < UPPER {
            self.promoted.insert(number, id);
        }
        let inode = Inode { number, lower: None, lower_number: None, meta, node, names: SmallVec::new(), lookups };
        self.inodes.insert(id, inode);
    }

    /// Gives `name` of directory `parent` to `id`, or makes it a whiteout. Listings have it at `order`, if it had one before.
    pub(super) fn put_entry(&mut self, parent: Id, name: Name, id: Option<Id>, covers: bool, order: Option<u64>) {
        let order = order.unwrap_or_else(|| self.take_next());
        let is_directory = id.and_then(|id| self.get(id)).is_some_and(Inode::is_directory);
        if let Some(Node::Directory(directory)) = self.get_mut(parent).map(|inode| &mut inode.node) {
            directory.set(name.clone(), id, is_directory, covers, order);
        }
        if let Some(inode) = id.and_then(|id| self.get_mut(id)) {
            inode.names.push((parent, name));
        }
    }

    /// Numbers that `other` has given out are not given out again.
    pub(super) fn go_on_from(&mut self, other: &State) {
        self.next = self.next.max(other.next);
    }

    /// A number that was never used.
    pub fn take_next(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// What data file `data` lacks, if it lacks something.
    pub(super) fn borrowed(&self, data: u64) -> Option<&Borrowed> {
        self.borrowed.get(&data)
    }

    /// Forgets what data files lack that are nobody's any more: they are not in `used`.
    pub(super) fn forget_borrowed(&mut self, used: &std::collections::HashSet<u64>) {
        self.borrowed.retain(|data, _| used.contains(data));
    }

    /// How many inodes there are.
    pub fn count(&self) -> usize {
        self.inodes.len()
    }

    /// The inode with id `id`.
    pub fn get(&self, id: Id) -> Option<&Inode> {
        self.inodes.get(&id)
    }

    /// The inode with id `id`, to change what is not worth a record.
    pub fn get_mut(&mut self, id: Id) -> Option<&mut Inode> {
        self.inodes.get_mut(&id)
    }

    /// All inodes.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &Inode)> {
        self.inodes.iter().map(|(id, inode)| (*id, inode))
    }

    /// The inode that the kernel knows by `number`, if it differs from the snapshot's or is not in there.
    pub fn by_number(&self, number: u64) -> Option<Id> {
        if number >= UPPER {
            let id = number - UPPER;
            return self.inodes.contains_key(&id).then_some(id);
        }
        self.promoted.get(&number).or_else(|| self.shown.get(&number)).copied()
    }

    /// The inode whose own number is `number`: the one that the kernel means when it counts.
    pub fn known_as(&mut self, number: u64) -> Option<&mut Inode> {
        let id = self.by_number(number)?;
        self.inodes.get_mut(&id).filter(|inode| inode.number == number)
    }

    /// A path of the inode, for messages and for telling what it is. An inode without names has none.
    pub fn path(&self, id: Id) -> Option<String> {
        let mut parts = Vec::new();
        let mut at = id;
        while at != ROOT {
            // A cycle cannot come about, but a journal can say anything.
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

    /// Carries out `record`, which was or is being written to the journal, on top of `tree`.
    ///
    /// An error of kind [`crate::error::ErrorKind::Corrupt`] if it makes no sense, which changes nothing.
    pub fn apply(&mut self, record: Record, tree: &Tree) -> Result<()> {
        match record {
            Record::Base { .. } => Err(Error::corrupt("a second first line")),
            Record::Publishing { snapshot } => {
                // The one before it was not found, and may still become visible.
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
                self.insert(id, UPPER + id, None, meta, body)?;
                self.attach(parent, name, id, Some(meta.ctime))
            }
            Record::Promote { parent, name, id, lower, meta, body } => {
                let wrong = || Error::corrupt(format!("`{lower}` is not in the snapshot"));
                let place = tree.place_of(&lower).ok_or_else(wrong)?;
                if let Some(parent) = parent {
                    self.free_name(parent, &name)?;
                }
                self.insert(id, tree.table().inode(&place), Some(place), meta, body)?;
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
                self.set_entry(parent, name.clone(), hide, None, Some(at))?;
                if let Some(id) = id {
                    self.detach(id, parent, &name, at);
                }
                Ok(())
            }
            Record::Rename { parent, name, new_parent, new_name, exchange, hide, at } => {
                self.rename((parent, name), (new_parent, new_name), exchange, hide, at)
            }
            Record::Attributes { id, meta } => {
                self.inodes.get_mut(&id).ok_or_else(|| unknown(id))?.meta = meta;
                Ok(())
            }
            Record::Moved { id, source, at } => {
                self.count_data(&source);
                let inode = self.inodes.get_mut(&id).ok_or_else(|| unknown(id))?;
                let Node::File(old) = &mut inode.node else {
                    return Err(Error::corrupt(format!("inode {id} has no bytes")));
                };
                *old = source;
                (inode.meta.mtime, inode.meta.ctime) = (at, at);
                Ok(())
            }
            Record::Borrowed { data, from, missing } => {
                // The number must not be given to another file, even if this one never became anybody's.
                self.count_data(&Source::Data(data));
                match Borrowed::new(from.0, &missing) {
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
            Record::Hidden { parent, name } => self.set_entry(parent, name, true, None, None),
        }
    }

    fn free_name(&self, parent: Id, name: &Name) -> Result<()> {
        match self.directory(parent)?.get(name) {
            Some(Entry { id: Some(_), .. }) => Err(Error::corrupt(format!("`{name}` is there already"))),
            _ => Ok(()),
        }
    }

    fn directory(&self, id: Id) -> Result<&Directory> {
        let directory = self.inodes.get(&id).and_then(Inode::directory);
        directory.ok_or_else(|| Error::corrupt(format!("inode {id} is no directory")))
    }

    fn insert(&mut self, id: Id, number: u64, lower: Option<Place>, meta: Meta, body: Body) -> Result<()> {
        if self.inodes.contains_key(&id) || (lower.is_some() && self.shown.contains_key(&number)) {
            return Err(Error::corrupt(format!("inode {id} is there already")));
        }
        let node = match body {
            Body::Directory => Node::Directory(Directory::default()),
            Body::File(source) => {
                self.count_data(&source);
                Node::File(source)
            }
            Body::Symlink(target) => Node::Symlink(target),
            Body::Special { kind, rdev } => Node::Special { kind, rdev },
        };
        if lower.is_some() {
            self.promoted.insert(number, id);
            self.shown.insert(number, id);
        }
        self.next = self.next.max(id.saturating_add(1));
        let lower_number = lower.is_some().then_some(number);
        self.inodes.insert(id, Inode { number, lower, lower_number, meta, node, names: SmallVec::new(), lookups: 0 });
        Ok(())
    }

    fn count_data(&mut self, source: &Source) {
        if let Source::Data(number) = source {
            self.next = self.next.max(number.saturating_add(1));
        }
    }

    /// Gives `name` to `id`. The entry covers the base's if it takes the place of a whiteout.
    fn attach(&mut self, parent: Id, name: Name, id: Id, at: Option<Time>) -> Result<()> {
        let covers = self.directory(parent)?.get(&name).is_some_and(|entry| entry.covers);
        self.attach_over(parent, name, id, covers || self.trusts_all, at)
    }

    fn attach_over(&mut self, parent: Id, name: Name, id: Id, covers: bool, at: Option<Time>) -> Result<()> {
        self.set_entry(parent, name.clone(), covers, Some(id), at)?;
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.names.push((parent, name));
        }
        Ok(())
    }

    /// Gives `name` to `id`, makes a whiteout of it (no `id`, `covers`), or leaves it to the snapshot.
    fn set_entry(&mut self, parent: Id, name: Name, covers: bool, id: Option<Id>, at: Option<Time>) -> Result<()> {
        let order = self.take_next();
        let is_directory = id.and_then(|id| self.inodes.get(&id)).is_some_and(Inode::is_directory);
        let inode = self.inodes.get_mut(&parent).ok_or_else(|| unknown(parent))?;
        if let Some(at) = at {
            (inode.meta.mtime, inode.meta.ctime) = (at, at);
        }
        let Node::Directory(directory) = &mut inode.node else {
            return Err(Error::corrupt(format!("inode {parent} is no directory")));
        };
        if covers || id.is_some() {
            directory.set(name, id, is_directory, covers, order)
        } else {
            directory.clear(&name)
        }
        Ok(())
    }

    fn detach(&mut self, id: Id, parent: Id, name: &Name, at: Time) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.names.retain(|(p, n)| !(*p == parent && n == name));
            inode.meta.ctime = at;
        }
    }

    fn rename(&mut self, from: (Id, Name), to: (Id, Name), exchange: bool, hide: bool, at: Time) -> Result<()> {
        let entry = |place: &(Id, Name)| Ok::<_, Error>(self.directory(place.0)?.get(&place.1).and_then(|e| e.id));
        let (moved, other) = (entry(&from)?, entry(&to)?);
        let moved = moved.ok_or_else(|| Error::corrupt(format!("there is no `{}`", from.1)))?;
        match other {
            Some(other) if exchange => {
                self.set_entry(from.0, from.1.clone(), true, Some(other), Some(at))?;
                self.detach(other, to.0, &to.1, at);
                if let Some(inode) = self.inodes.get_mut(&other) {
                    inode.names.push(from.clone());
                }
            }
            None if exchange => return Err(Error::corrupt(format!("there is no `{}`", to.1))),
            other => {
                self.set_entry(from.0, from.1.clone(), hide, None, Some(at))?;
                if let Some(other) = other {
                    self.detach(other, to.0, &to.1, at);
                }
            }
        }
        self.detach(moved, from.0, &from.1, at);
        // Whatever had the name was replaced by this very operation.
        self.attach_over(to.0, to.1, moved, true, Some(at))
    }

    /// Forgets an inode that has no names. What it had of the snapshot does not come back.
    pub fn drop_inode(&mut self, id: Id) -> Option<Inode> {
        let inode = self.inodes.remove(&id)?;
        unlist(&mut self.promoted, Some(inode.number), id);
        unlist(&mut self.shown, inode.lower_number, id);
        Some(inode)
    }

    /// An inode shows `lower`, which the snapshot numbers `number`, from now on; or nothing of the snapshot.
    pub(super) fn bind(&mut self, id: Id, lower: Option<(Place, u64)>) {
        let Some(inode) = self.inodes.get_mut(&id) else { return };
        let (place, number) = lower.unzip();
        inode.lower = place;
        let old = std::mem::replace(&mut inode.lower_number, number);
        unlist(&mut self.shown, old, id);
        if let Some(number) = number {
            self.shown.insert(number, id);
        }
    }

    /// Gives a promoted inode a number of its own.
    pub(super) fn renumber(&mut self, id: Id) {
        let Some(inode) = self.inodes.get_mut(&id) else { return };
        let old = std::mem::replace(&mut inode.number, UPPER + id);
        unlist(&mut self.promoted, Some(old), id);
    }

    /// Records that make this state out of [`State::new`], on top of `tree`.
    pub fn dump(&self, tree: &Tree) -> Vec<Record> {
        let mut records = Vec::with_capacity(self.inodes.len());
        let mut seen = std::collections::HashSet::from([ROOT]);
        let mut open = vec![ROOT];
        if let Some(root) = self.inodes.get(&ROOT) {
            records.push(Record::Promote {
                parent: None,
                name: Name::new(b""),
                id: ROOT,
                lower: "/".to_owned(),
                meta: root.meta,
                body: Body::Directory,
            });
        }
        while let Some(parent) = open.pop() {
            let Some(directory) = self.inodes.get(&parent).and_then(Inode::directory) else { continue };
            for (name, entry) in directory.entries() {
                if entry.covers {
                    records.push(Record::Hidden { parent, name: name.clone() });
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
                let (meta, body) = (inode.meta, inode.body());
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
            if let Some(Source::Data(data)) = inode.source() {
                records.extend(self.borrowed.get(data).map(|borrowed| borrowed.record(*data)));
            }
        }
        // Directories got the times of their entries meanwhile.
        let touched = self.inodes.iter().filter(|(id, inode)| inode.is_directory() && seen.contains(*id));
        records.extend(touched.map(|(id, inode)| Record::Attributes { id: *id, meta: inode.meta }));
        let given_up = self.unpublished.iter().map(|snapshot| Record::Unpublished { snapshot: snapshot.clone() });
        records.extend(given_up);
        records.extend(self.publishing.iter().map(|snapshot| Record::Publishing { snapshot: snapshot.clone() }));
        records
    }
}

impl Inode {
    fn body(&self) -> Body {
        match &self.node {
            Node::Directory(_) => Body::Directory,
            Node::File(source) => Body::File(source.clone()),
            Node::Symlink(target) => Body::Symlink(target.clone()),
            Node::Special { kind, rdev } => Body::Special { kind: *kind, rdev: *rdev },
        }
    }
}

/// Takes `id` out of a list by number; another inode may have the number there by now.
fn unlist(list: &mut HashMap<u64, Id>, number: Option<u64>, id: Id) {
    if let Some(number) = number.filter(|number| list.get(number) == Some(&id)) {
        list.remove(&number);
    }
}

fn unknown(id: Id) -> Error {
    Error::corrupt(format!("there is no inode {id}"))
}
