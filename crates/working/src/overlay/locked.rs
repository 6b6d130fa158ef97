//! The part of a working tree under one lock: inodes, open files and the journal. Nothing here
//! waits for storage.

use std::sync::Arc;

use super::kernel_view::KernelView;
use super::node::{Ino, Inode};
use super::opens::OpenFiles;
use super::replace::TreeAccess;
use super::state::State;
use super::{Base, Lookup, Origin, gone};
use crate::scratch::journal::{FORMAT, Journal};
use crate::scratch::record::{Body, DataFileId, EntryId, Name, ROOT, Record, Source};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_tree::tree::nodes::TreePlace;

/// State guarded by the lock `inner` of a [`super::upper::Upper`].
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) state: State,
    pub(super) open_files: OpenFiles,
    pub(super) journal: Journal,
    /// True if the journal is not about the present state, because it could not be rewritten.
    pub(super) is_stale: bool,
    /// True if the disk is nearly full and data files wait to be unlinked.
    pub(super) is_nearly_full: bool,
    pub(super) origin: Origin,
    /// Base of the state.
    pub(super) base: Arc<Base>,
    /// Changes with every record: a plan made from an older state must not be installed.
    pub(super) generation: u64,
    /// Beliefs of the kernel about the numbers.
    pub(super) kernel: KernelView,
}

impl Locked {
    /// Returns the location of the bytes of file `number`; `None` if the file is the base's and
    /// unchanged.
    pub(super) fn source_of(&self, number: Ino) -> Option<Source> {
        self.state.get(self.state.by_number(number)?)?.source().cloned()
    }

    /// Returns true if `number`, which no inode of the working tree has, is that of a file that the
    /// base shows. One in whose place another file is, or none, may have been changed before it
    /// lost its name: the base's bytes are not what the program has found then.
    pub(super) fn is_base_file(&self, number: Ino) -> bool {
        let place = Some(number).filter(|number| number.is_of_base());
        let place = place.and_then(|number| self.base.tree.table().place(number));
        place.is_some_and(|place| self.state.shows_base_at(&self.base.tree, &place))
    }

    /// Returns the data file of file `number`, if it has one that lacks nothing.
    pub(super) fn complete_data(&self, number: Ino) -> Option<DataFileId> {
        let data = self.state.get(self.state.by_number(number)?)?.data_file()?;
        self.state.borrowed(data).is_none().then_some(data)
    }

    /// Returns the data file of `found`, if it has one.
    pub(super) fn data_of(&self, found: &Lookup) -> Option<DataFileId> {
        let Lookup::Upper(id) = found else { return None };
        self.state.get(*id)?.data_file()
    }

    /// Appends `record` to the journal and applies it.
    pub(super) fn record(&mut self, record: Record) -> Result<()> {
        let begins = matches!(&record, Record::SetSource { id, .. } if self.is_unwritten(*id));
        let replaces = replaces(&record).filter(|_| !begins);
        self.record_replacing(record, replaces)
    }

    /// Appends `record` to the journal and applies it. With it, the bytes of data file `replaces`
    /// take the place of other bytes.
    pub(super) fn record_replacing(&mut self, record: Record, replaces: Option<DataFileId>) -> Result<()> {
        if self.is_stale || self.journal.durable().needs_rewrite() {
            // Nothing is appended until this succeeds.
            self.is_stale = true;
            self.journal.rewrite(&records(&self.origin, &self.state, &self.base))?;
            self.is_stale = false;
        }
        // An inode without a name does not outlive the mount, and a rewritten journal does not have
        // it.
        let is_nameless = match &record {
            Record::Attributes { id, .. } | Record::SetSource { id, .. } => {
                *id != ROOT && self.state.get(*id).is_some_and(|inode| inode.names.is_empty())
            }
            _ => false,
        };
        if !is_nameless {
            self.journal.append(&record, replaces)?;
        }
        self.generation += 1;
        self.state.apply(record, &self.base.tree)
    }

    /// Returns true if nothing was written to file `id`: its first bytes take the place of nothing,
    /// and may reach the disk later than the journal's line, as those of any new file.
    pub(super) fn is_unwritten(&self, id: EntryId) -> bool {
        self.state.get(id).and_then(Inode::source).is_some_and(Source::is_empty)
    }

    /// Retires data file `data`, which the journal no longer needs.
    pub(super) fn retire(&mut self, data: DataFileId) {
        self.is_nearly_full |= self.journal.durable().retire(data);
    }

    /// Refuses `number` if it is that of a file that programs have open since it was removed,
    /// replaced or moved, and the base shows another file by this number since a commit or a
    /// refresh. What is read and written would be of the wrong one, and the program that has the
    /// old one open would get the size of the new one.
    pub(super) fn refuse_other_file(&mut self, number: Ino) -> Result<()> {
        if self.other_file(number).is_none() {
            return Ok(());
        }
        self.kernel.on_refused(number);
        Err(Error::new(
            ErrorKind::Busy,
            "a program has the file open that had this name before a commit or a refresh: close it there first",
        ))
    }

    /// Returns the file that has `number` though the base shows another one by it.
    pub(super) fn other_file(&self, number: Ino) -> Option<EntryId> {
        let id = self.state.by_number(number).filter(|_| number.is_of_base())?;
        let inode = self.state.get(id).filter(|inode| inode.number == number && !inode.is_directory());
        let place = inode.and_then(|_| self.base.tree.table().place(number))?;
        // Numbers of old grids keep their meaning, and are those of no name.
        if self.kernel.knows_elsewhere(number) || self.base.tree.table().inode(&place) != number {
            return None;
        }
        self.state.shows_base_at(&self.base.tree, &place).then_some(id)
    }

    /// Drops inode `id`, with its bytes, if it has no names and nobody can ask for it any more.
    ///
    /// Not while it is open, nor while the kernel knows it: a program that opens a name has its
    /// number before another program replaces the name, and must get the bytes of one of both
    /// files. Most lookups of what the base has are not counted, but the kernel forgets all of them
    /// at once. A number of the base that an old version has is another file's as soon as nobody
    /// has that open.
    pub(super) fn drop_if_gone(&mut self, id: EntryId) {
        let Some(inode) = self.state.get(id) else { return };
        let is_lent = inode.number.is_of_base() && self.kernel.is_old_version(inode.number);
        if is_lent || inode.lookup_count == 0 {
            self.drop_unless_open(id);
        }
    }

    /// Drops inode `id`, with its bytes, if it has no names and is not open: its name is gone, and
    /// not another file's.
    pub(super) fn drop_unless_open(&mut self, id: EntryId) {
        let nameless = self.state.get(id).filter(|inode| inode.names.is_empty());
        if nameless.is_some_and(|inode| !self.open_files.contains_key(&inode.number)) {
            self.drop_inode(id);
        }
    }

    /// Drops all inodes without names that are not open, as their space is needed.
    pub(super) fn drop_nameless(&mut self) {
        let nameless = self.state.iter().filter(|(id, inode)| *id != ROOT && inode.names.is_empty());
        let nameless: Vec<EntryId> = nameless.map(|(id, _)| id).collect();
        nameless.into_iter().for_each(|id| self.drop_unless_open(id));
    }

    fn drop_inode(&mut self, id: EntryId) {
        let Some(inode) = self.state.drop_inode(id) else { return };
        let had_own = !inode.is_directory() && inode.source() != Some(&Source::Lower);
        self.kernel.on_gone(inode.number, had_own);
        if let Some(data) = inode.data_file() {
            self.retire(data);
        }
    }

    /// Returns the inode of `number`, promoted if only the base had it.
    pub(super) fn promote(&mut self, guard: &impl TreeAccess, number: Ino) -> Result<EntryId> {
        self.kernel.may_use(number, guard.is_late())?;
        if let Some(id) = self.state.by_number(number) {
            return Ok(id);
        }
        let base = Arc::clone(&self.base);
        let place = base.tree.table().place(number).ok_or_else(|| gone(number))?;
        self.promote_place(&base, place)
    }

    /// Returns the inode of `place`, promoted if only the base had it.
    pub(super) fn promote_at(&mut self, _guard: &impl TreeAccess, place: &TreePlace) -> Result<EntryId> {
        let base = Arc::clone(&self.base);
        match self.state.at_place(&base.tree, place) {
            Some(id) => Ok(id),
            None => self.promote_place(&base, place.clone()),
        }
    }

    fn promote_place(&mut self, base: &Base, place: TreePlace) -> Result<EntryId> {
        // From the nearest promoted ancestor down; the root is always promoted.
        let mut missing = Vec::new();
        let mut at = place;
        let mut parent = loop {
            if let Some(id) = self.state.by_number(base.tree.table().inode(&at)) {
                break id;
            }
            let (above, name) = base.tree.parent_of(&at).ok_or_else(|| Error::corrupt("a place without a parent"))?;
            missing.push((std::mem::replace(&mut at, above), name));
        };
        for (place, name) in missing.into_iter().rev() {
            let name = Name::new(name.as_bytes());
            // Removed while it was open: it does not come back.
            if self.state.get(parent).and_then(|inode| inode.directory()?.get(&name)).is_some() {
                return Err(gone(base.tree.table().inode(&place)));
            }
            let id = self.state.fresh.next_entry();
            let body = if base.tree.is_directory_place(&place) { Body::Directory } else { Body::File(Source::Lower) };
            let record = Record::Promote {
                parent: Some(parent),
                name,
                id,
                lower: base.tree.path_of(&place),
                meta: base.meta_of(&place),
                body,
            };
            self.record(record)?;
            parent = id;
        }
        Ok(parent)
    }

    /// Returns a path of inode `number` for messages.
    pub(super) fn describe(&self, number: Ino) -> String {
        match self.state.by_number(number) {
            Some(id) => self.state.path(id).unwrap_or_else(|| "a deleted file".to_owned()),
            None => self.describe_lower(number),
        }
    }

    /// Returns the path at which an inode of the base shows: below a directory that may have been
    /// moved.
    fn describe_lower(&self, number: Ino) -> String {
        let base = &self.base;
        let Some(mut place) = base.tree.table().place(number) else { return number.to_string() };
        let mut below = String::new();
        while let Some((above, name)) = base.tree.parent_of(&place) {
            below = format!("/{name}{below}");
            if let Some(id) = self.state.by_number(base.tree.table().inode(&above)) {
                let path = self.state.path(id).unwrap_or_default();
                return format!("{}{below}", path.trim_end_matches('/'));
            }
            place = above;
        }
        below
    }
}

/// Returns the data file whose bytes replace other bytes with `record`, as far as the record shows
/// it.
fn replaces(record: &Record) -> Option<DataFileId> {
    match record {
        Record::SetSource { source: Source::Data(data), .. } => Some(*data),
        Record::Covered { data, .. } => Some(*data),
        _ => None,
    }
}

/// Returns the records of a journal of `state` over `base`.
pub(super) fn records(origin: &Origin, state: &State, base: &Base) -> Vec<Record> {
    let mut records = vec![first_line(origin, base.id())];
    records.extend(state.dump(&base.tree));
    records
}

/// Returns the first line of a journal.
pub(super) fn first_line(origin: &Origin, snapshot: ObjectId) -> Record {
    Record::Base {
        format: FORMAT,
        repository: origin.repository.clone(),
        branch: origin.branch.clone(),
        snapshot: snapshot.to_string(),
        identity: origin.identity.map(|identity| identity.to_string()),
    }
}
