//! Lookups: the meaning of a name, and how often the kernel has got it.

use std::sync::Arc;

use super::attributes::Attributes;
use super::namespace::Namespace;
use super::{Ino, Lookup, no_such, not_a_directory};
use crate::scratch::record::{Body, Name};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_tree::tree::nodes::MAX_NAME;

impl Namespace {
    /// Finds the meaning of `name` in directory `parent`.
    pub(super) async fn find(&self, parent: Ino, name: &Name) -> Result<Option<Lookup>> {
        if name.0.len() > MAX_NAME {
            return Err(Error::new(ErrorKind::NameTooLong, format!("a name of {} bytes", name.0.len())));
        }
        let (lower, base) = {
            let locked = self.upper.lock();
            let lower = match locked.state.by_number(parent).and_then(|id| locked.state.get(id)) {
                None => None,
                Some(inode) => {
                    let directory = inode.directory().ok_or_else(|| not_a_directory(parent))?;
                    if let Some(entry) = directory.get(name) {
                        return Ok(entry.id.map(Lookup::Upper));
                    }
                    match &inode.lower {
                        Some(place) => Some(place.clone()),
                        None => return Ok(None),
                    }
                }
            };
            (lower, Arc::clone(&locked.base))
        };
        let number = lower.map_or(parent, |place| base.tree.table().inode(&place));
        // Every name in a snapshot is UTF-8.
        let Some(text) = name.text() else { return Ok(None) };
        let Some(found) = base.tree.lookup(number, text).await? else { return Ok(None) };
        let place = base.tree.table().place(found.inode).ok_or_else(|| no_such(found.inode))?;
        Ok(Some(Lookup::Lower(place, found)))
    }

    /// Returns the attributes of entry `name` of directory `parent`; `None` if there is none.
    /// Raises the lookup count, which [`Namespace::forget`] lowers.
    ///
    /// They are those after all moves so far, however long the storage takes: the kernel does not
    /// know the inode yet, and an invalidation that is sent while the storage is asked would have
    /// no effect on it.
    pub async fn lookup(&self, parent: Ino, name: &Name) -> Result<Option<Attributes>> {
        let mut gone = None;
        loop {
            let moment = self.upper.moment();
            let found = self.find(parent, name).await?;
            let known = match &found {
                Some(Lookup::Upper(id)) => Some(self.upper.attributes_of(*id).await),
                _ => None,
            };
            let mut locked = self.upper.lock();
            if self.upper.moment() != moment {
                continue;
            }
            match found {
                None => return Ok(None),
                Some(Lookup::Lower(_, attributes)) => {
                    locked.refuse_other_file(attributes.inode)?;
                    locked.kernel.on_lookup(attributes.inode);
                    return Ok(Some(locked.base.attributes(attributes)));
                }
                // If there is no such inode, another file has got the name meanwhile, and this one
                // is gone.
                Some(Lookup::Upper(id)) => {
                    if locked.state.increment_lookups(id)
                        && let Some(known) = known
                    {
                        if let Some(number) = locked.state.get(id).map(|inode| inode.number) {
                            locked.kernel.on_lookup(number);
                        }
                        return known.map(Some);
                    }
                    if gone.replace(id) == Some(id) {
                        return Err(Error::corrupt(format!("{name} is a name of {id}, which is not there")));
                    }
                }
            }
        }
    }

    /// Raises the lookup count of inode `number`.
    pub fn increment_lookups_of(&self, number: Ino) {
        let mut locked = self.upper.lock();
        locked.kernel.on_lookup(number);
        if let Some(inode) = locked.state.by_kernel_number(number) {
            inode.lookup_count += 1;
        }
    }

    /// Lowers the lookup count of inode `number` by `times`.
    pub fn forget(&self, number: Ino, times: u64) {
        let mut locked = self.upper.lock();
        if let Some(inode) = locked.state.by_kernel_number(number) {
            inode.lookup_count = inode.lookup_count.saturating_sub(times);
            if let Some(id) = locked.state.by_number(number) {
                locked.drop_if_gone(id);
            }
        }
    }

    /// Returns the target of symbolic link `number`.
    pub fn read_link(&self, number: Ino) -> Result<Name> {
        let locked = self.upper.lock();
        let inode = locked.state.by_number(number).and_then(|id| locked.state.get(id));
        match inode.map(|inode| &inode.body) {
            Some(Body::Symlink(target)) => Ok(target.clone()),
            _ => Err(Error::invalid("not a symbolic link")),
        }
    }
}
