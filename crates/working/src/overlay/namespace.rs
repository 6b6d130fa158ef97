//! Operations on names: create, link, remove, rename.
//!
//! Each operation first looks names up, which may wait for a manifest, and then acts under the lock
//! in one step: one line of the journal. The kernel keeps two operations on one name from running
//! at the same time.

use std::sync::Arc;

use super::attributes::Attributes;
use super::node::{Directory, Inode};
use super::opens::add_handle;
use super::replace::SharedTreeGuard;
use super::upper::Upper;
use super::{Ino, Locked, Lookup, generations, gone, no_such, not_a_directory};
use crate::scratch::record::{Body, DataFileId, EntryId, Meta, Name, ROOT, Record, Source, Time};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_tree::tree;
use icechunkfs_tree::tree::directory::{Entry, Extent};

/// Links that a file may have: the limit of ext4.
const MAX_LINKS: usize = 65_000;

/// Attributes of a new inode.
#[derive(Clone, Debug)]
pub struct CreateAttrs {
    /// Mode, including file type bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory has the set-group-id bit.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: Option<Name>,
    /// Gives a regular file its data file with the first write: a copy by reference then needs
    /// none.
    pub without_data: bool,
}

/// Mode of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// An inode with the new name is replaced.
    Replace,
    /// The new name must be free.
    NoReplace,
    /// The two names are exchanged.
    Exchange,
}

/// Name of a directory, with what it means.
struct FoundName<T> {
    parent: Ino,
    name: Name,
    found: T,
}

/// Names: creating, removing, moving, finding and listing them.
#[derive(Debug)]
pub struct Namespace {
    pub(super) upper: Arc<Upper>,
}

impl Namespace {
    pub(super) fn new(upper: &Arc<Upper>) -> Self {
        Namespace { upper: Arc::clone(upper) }
    }
}

impl Namespace {
    /// Creates an inode from `new` as `name` in directory `parent`; a regular file that is to be
    /// `open` is opened for writing.
    pub async fn create(&self, parent: Ino, name: Name, new: CreateAttrs, open: bool) -> Result<Attributes> {
        let guard = self.upper.enter().await?;
        let id = self.create_inode(&guard, parent, name, new).await?;
        let attributes = self.upper.attributes_of(id).await?;
        let mut locked = self.upper.lock();
        locked.state.increment_lookups(id);
        if open {
            add_handle(&mut locked.open_files, attributes.number, true);
        }
        Ok(attributes)
    }

    async fn create_inode(
        &self,
        guard: &SharedTreeGuard<'_>,
        parent: Ino,
        name: Name,
        new: CreateAttrs,
    ) -> Result<EntryId> {
        if self.find(parent, &name).await?.is_some() {
            return Err(exists(&name));
        }
        let mut locked = self.upper.lock();
        let parent = locked.promote(guard, parent)?;
        let directory = locked.living_directory(parent)?;
        let set_group = u32::from(directory.mode) & libc::S_ISGID != 0;
        let kind = new.mode & libc::S_IFMT;
        let mut mode = u16::try_from(new.mode & 0o7777).unwrap_or(0);
        if set_group && kind == libc::S_IFDIR {
            mode |= libc::S_ISGID as u16;
        }
        let now = Time::now();
        let gid = if set_group { directory.gid } else { new.gid };
        let meta = Meta { mode, uid: new.uid, gid, atime: now, mtime: now, ctime: now };
        let id = locked.state.fresh.next_entry();
        let body = match kind {
            libc::S_IFDIR => Body::Directory,
            libc::S_IFLNK => Body::Symlink(new.target.unwrap_or_else(|| Name::new(b""))),
            libc::S_IFREG | 0 if new.without_data => Body::File(Source::empty()),
            libc::S_IFREG | 0 => {
                // The first data file of an inode has its number.
                self.upper.files.create(DataFileId(id.0))?;
                Body::File(Source::Data(DataFileId(id.0)))
            }
            kind => Body::Special { kind, rdev: new.rdev },
        };
        let has_data = matches!(body, Body::File(Source::Data(_)));
        let recorded = locked.record(Record::Create { parent, name, id, meta, body });
        if recorded.is_err() && has_data {
            self.upper.files.remove(DataFileId(id.0));
        }
        recorded.map(|()| id)
    }

    /// Gives file `number` an additional name.
    pub async fn link(&self, number: Ino, parent: Ino, name: Name) -> Result<Attributes> {
        let guard = self.upper.enter().await?;
        if self.find(parent, &name).await?.is_some() {
            return Err(exists(&name));
        }
        let id = {
            let mut locked = self.upper.lock();
            locked.kernel.may_change(number)?;
            let id = locked.promote(&guard, number)?;
            let inode = locked.state.get(id).ok_or_else(|| no_such(number))?;
            if inode.is_directory() {
                return Err(Error::new(ErrorKind::NotPermitted, "a directory cannot have several names"));
            }
            if inode.names.is_empty() {
                return Err(Error::new(ErrorKind::NotFound, "the file has been removed"));
            }
            if inode.names.len() >= MAX_LINKS {
                let full = std::io::Error::from_raw_os_error(libc::EMLINK);
                return Err(Error::with_source(ErrorKind::Io, format!("`{name}`"), full));
            }
            let parent = locked.promote(&guard, parent)?;
            locked.living_directory(parent)?;
            locked.record(Record::Link { parent, name, id, at: Time::now() })?;
            self.upper.uploads.enqueue_closed(id);
            id
        };
        self.upper.lock().state.increment_lookups(id);
        self.upper.attributes_of(id).await
    }

    /// Removes `name` of directory `parent`: an empty directory if `is_directory`, otherwise a
    /// file.
    pub async fn remove(&self, parent: Ino, name: Name, is_directory: bool) -> Result<()> {
        let guard = self.upper.enter().await?;
        let found = self.find(parent, &name).await?.ok_or_else(|| missing(&name))?;
        self.check_removable(&found, &name, is_directory).await?;
        let hide = self.lower_shows(parent, &name).await?;
        {
            let mut locked = self.upper.lock();
            locked.journal.set_frees_space(true);
            let removed = locked.remove_found(&guard, parent, name, found, hide);
            locked.journal.set_frees_space(false);
            removed?;
        }
        self.upper.unlink_if_nearly_full().await;
        Ok(())
    }

    fn is_directory(&self, found: &Lookup) -> bool {
        match found {
            Lookup::Upper(id) => self.upper.lock().state.get(*id).is_some_and(Inode::is_directory),
            Lookup::Lower(place, _) => self.upper.base().tree.is_directory_place(place),
        }
    }

    /// Returns true if the base has an entry `name` in directory `parent`, hidden or not.
    async fn lower_shows(&self, parent: Ino, name: &Name) -> Result<bool> {
        let base = self.upper.base();
        let lower = {
            let locked = self.upper.lock();
            match locked.state.by_number(parent).and_then(|id| locked.state.get(id)) {
                Some(inode) => inode.lower.as_ref().map(|place| base.tree.table().inode(place)),
                None => Some(parent),
            }
        };
        match (lower, name.text()) {
            (Some(lower), Some(name)) => Ok(base.tree.lookup(lower, name).await?.is_some()),
            _ => Ok(false),
        }
    }

    /// Checks that `found` is an empty directory if `is_directory`, otherwise a file.
    async fn check_removable(&self, found: &Lookup, name: &Name, is_directory: bool) -> Result<()> {
        match (is_directory, self.is_directory(found)) {
            (true, true) => self.check_empty(found, name).await,
            (false, false) => Ok(()),
            (true, false) => Err(Error::new(ErrorKind::NotADirectory, format!("`{name}` is not a directory"))),
            (false, true) => Err(Error::new(ErrorKind::IsADirectory, format!("`{name}` is a directory"))),
        }
    }

    async fn check_empty(&self, found: &Lookup, name: &Name) -> Result<()> {
        let not_empty = || Error::new(ErrorKind::NotEmpty, format!("directory `{name}` is not empty"));
        let base = self.upper.base();
        let (lower, id) = match found {
            Lookup::Lower(place, _) => (Some(base.tree.table().inode(place)), None),
            Lookup::Upper(id) => {
                let locked = self.upper.lock();
                let inode = locked.state.get(*id).ok_or_else(|| no_such(*id))?;
                if inode.directory().is_some_and(Directory::has_visible_entries) {
                    return Err(not_empty());
                }
                (inode.lower.as_ref().map(|place| base.tree.table().inode(place)), Some(*id))
            }
        };
        let Some(lower) = lower else { return Ok(()) };
        let mut shown = false;
        let mut sink = |entry: Entry<'_>| {
            if matches!(entry.name, "." | "..") {
                return true;
            }
            let name = Name::new(entry.name.as_bytes());
            let locked = self.upper.lock();
            let hidden = id.and_then(|id| locked.state.get(id)?.directory()?.get(&name)).is_some();
            shown = !hidden;
            hidden
        };
        base.tree.list(lower, 0, Extent::All, &mut sink).await?;
        if shown { Err(not_empty()) } else { Ok(()) }
    }

    /// Renames `name` of directory `parent`.
    pub async fn rename(
        &self,
        parent: Ino,
        name: Name,
        new_parent: Ino,
        new_name: Name,
        how: RenameMode,
    ) -> Result<()> {
        let guard = self.upper.enter().await?;
        let source = self.find(parent, &name).await?.ok_or_else(|| missing(&name))?;
        let target = self.find(new_parent, &new_name).await?;
        self.refuse_unknown(&source)?;
        if let (Some(target), RenameMode::Exchange) = (&target, how) {
            self.refuse_unknown(target)?;
        }
        match (&target, how) {
            (Some(_), RenameMode::NoReplace) => return Err(exists(&new_name)),
            (None, RenameMode::Exchange) => return Err(missing(&new_name)),
            // Two names of one file: there is nothing to replace or to exchange.
            (Some(target), _) if self.is_same(&source, target) => return Ok(()),
            (Some(target), RenameMode::Replace) => {
                self.check_removable(target, &new_name, self.is_directory(&source)).await?;
            }
            _ => {}
        }
        let hide = self.lower_shows(parent, &name).await?;
        let replaces =
            if target.is_some() && how == RenameMode::Replace { self.upper.lock().data_of(&source) } else { None };
        if let Some(data) = replaces {
            self.upper.durable.write_out_early(data);
        }
        let from = FoundName { parent, name, found: source };
        let to = FoundName { parent: new_parent, name: new_name, found: target };
        self.rename_found(&guard, from, to, how, hide, replaces)?;
        self.upper.unlink_if_nearly_full().await;
        Ok(())
    }

    /// Refuses to move a file that the kernel does not know: it has an older one by the name, from
    /// before the tree was moved, which it would show under the new name. It then looks the name up
    /// again.
    fn refuse_unknown(&self, found: &Lookup) -> Result<()> {
        let Lookup::Upper(id) = found else { return Ok(()) };
        let locked = self.upper.lock();
        match locked.state.get(*id) {
            Some(inode) if !inode.number.is_of_base() && inode.lookup_count == 0 => Err(gone(inode.number)),
            _ => Ok(()),
        }
    }

    /// Renames after both names have been looked up.
    fn rename_found(
        &self,
        guard: &SharedTreeGuard<'_>,
        from: FoundName<Lookup>,
        to: FoundName<Option<Lookup>>,
        how: RenameMode,
        hide: bool,
        replaces: Option<DataFileId>,
    ) -> Result<()> {
        let FoundName { parent, name, found: source } = from;
        let FoundName { parent: new_parent, name: new_name, found: target } = to;
        let mut locked = self.upper.lock();
        let id = locked.promote_found(guard, &source)?;
        let replaced = match &target {
            Some(Lookup::Upper(id)) => Some(*id),
            Some(found @ Lookup::Lower(_, attributes)) => {
                let needed = how == RenameMode::Exchange || locked.open_files.contains_key(&attributes.inode);
                if needed { Some(locked.promote_found(guard, found)?) } else { None }
            }
            None => None,
        };
        let parent = locked.promote(guard, parent)?;
        let new_parent = locked.promote(guard, new_parent)?;
        locked.living_directory(new_parent)?;
        locked.refuse_loop(id, new_parent)?;
        let exchange = how == RenameMode::Exchange;
        let at = Time::now();
        if exchange && let Some(other) = replaced {
            locked.refuse_loop(other, parent)?;
        }
        let directory = target.filter(|_| !exchange).and_then(|target| locked.number_of_directory(&target));
        let record = Record::Rename { parent, name, new_parent, new_name, exchange, hide, at };
        locked.record_replacing(record, replaces)?;
        directory.into_iter().for_each(generations::removed);
        for id in std::iter::once(id).chain(replaced.filter(|_| exchange)) {
            if locked.state.get(id).is_some_and(Inode::is_directory) {
                self.upper.uploads.requeue_set_aside()
            } else {
                self.upper.uploads.enqueue_closed(id)
            }
        }
        if let Some(id) = replaced.filter(|_| !exchange) {
            locked.drop_if_gone(id);
        }
        Ok(())
    }

    fn is_same(&self, one: &Lookup, other: &Lookup) -> bool {
        match (one, other) {
            (Lookup::Upper(one), Lookup::Upper(other)) => one == other,
            (Lookup::Lower(_, one), Lookup::Lower(_, other)) => one.inode == other.inode,
            _ => false,
        }
    }
}

impl Locked {
    /// Returns the attributes of a directory, unless it has been removed.
    fn living_directory(&self, id: EntryId) -> Result<Meta> {
        let inode = self.state.get(id).ok_or_else(|| no_such(id))?;
        if !inode.is_directory() {
            return Err(not_a_directory(inode.number));
        }
        if inode.names.is_empty() && id != ROOT {
            return Err(Error::new(ErrorKind::NotFound, "the directory has been removed"));
        }
        Ok(inode.meta)
    }

    /// Removes `name`, which has been looked up.
    fn remove_found(
        &mut self,
        guard: &SharedTreeGuard<'_>,
        parent: Ino,
        name: Name,
        found: Lookup,
        hide: bool,
    ) -> Result<()> {
        // An open file must be found by its handles later.
        let id = match found {
            Lookup::Upper(id) => Some(id),
            Lookup::Lower(_, attributes) if self.open_files.contains_key(&attributes.inode) => {
                Some(self.promote(guard, attributes.inode)?)
            }
            Lookup::Lower(..) => None,
        };
        let directory = self.number_of_directory(&found);
        let parent = self.promote(guard, parent)?;
        self.record(Record::Remove { parent, name, hide, at: Time::now() })?;
        directory.into_iter().for_each(generations::removed);
        if let Some(id) = id {
            self.drop_unless_open(id);
        }
        Ok(())
    }

    fn promote_found(&mut self, guard: &SharedTreeGuard<'_>, found: &Lookup) -> Result<EntryId> {
        match found {
            Lookup::Upper(id) => Ok(*id),
            Lookup::Lower(_, attributes) => self.promote(guard, attributes.inode),
        }
    }

    /// Returns the number of `found` if it is a directory.
    fn number_of_directory(&self, found: &Lookup) -> Option<Ino> {
        match found {
            Lookup::Upper(id) => self.state.get(*id).filter(|inode| inode.is_directory()).map(|inode| inode.number),
            Lookup::Lower(_, attributes) => (attributes.kind == tree::Kind::Directory).then_some(attributes.inode),
        }
    }

    /// Refuses to move a directory below itself. The kernel checks this too, as far as it knows the
    /// directories.
    fn refuse_loop(&self, id: EntryId, new_parent: EntryId) -> Result<()> {
        let mut at = new_parent;
        while at != ROOT {
            if at == id {
                return Err(Error::invalid("a directory cannot be moved below itself"));
            }
            let above = self.state.get(at).and_then(|inode| inode.names.first());
            at = above.map(|(parent, _)| *parent).ok_or_else(|| no_such(at))?;
        }
        Ok(())
    }
}

fn exists(name: &Name) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("`{name}` is there already"))
}

fn missing(name: &Name) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no `{name}`"))
}
