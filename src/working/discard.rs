//! Giving changes up: at a path and everywhere below.
//!
//! What the snapshot has shows again, in its own place: what was moved goes back, what was deleted returns. What was made since
//! goes, except files that no commit would take: those are nobody's changes.

use std::collections::HashSet;

use super::opens::Opens;
use super::replace::Notice;
use super::state::{State, UPPER};
use crate::error::{Error, ErrorKind, Result};
use crate::scratch::record::{Id, Name, ROOT, Source};
use crate::tree::Tree;
use crate::tree::nodes::Place;

/// A discard under way.
pub(super) struct Discard<'a> {
    state: &'a mut State,
    opens: &'a mut Opens,
    tree: &'a Tree,
    untracked: &'a HashSet<(Id, Name)>,
    notices: HashSet<Notice>,
    /// Data files that nobody needs any more.
    gone: Vec<u64>,
}

impl<'a> Discard<'a> {
    pub(super) fn new(
        state: &'a mut State,
        opens: &'a mut Opens,
        tree: &'a Tree,
        untracked: &'a HashSet<(Id, Name)>,
    ) -> Self {
        Discard { state, opens, tree, untracked, notices: HashSet::new(), gone: Vec::new() }
    }

    /// What the kernel must be told, and data files to remove.
    pub(super) fn done(self) -> (Vec<Notice>, Vec<u64>) {
        (self.notices.into_iter().collect(), self.gone)
    }

    /// Gives up what differs at `path` and below.
    pub(super) fn path(&mut self, path: &str) -> Result<()> {
        let mut at = ROOT;
        let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
        while let Some(name) = names.next() {
            let name = Name::new(name.as_bytes());
            let Some(directory) = self.state.get(at).and_then(|inode| inode.directory()) else {
                return Err(Error::new(ErrorKind::NotADirectory, format!("{path}: a component is not a directory")));
            };
            match (directory.get(&name), names.peek()) {
                // Nothing differs there.
                (None, _) => return Ok(()),
                (Some(entry), Some(_)) => match entry.id {
                    Some(id) => at = id,
                    None => {
                        return Err(Error::new(
                            ErrorKind::NotFound,
                            format!("{path}: a directory above it is deleted"),
                        ));
                    }
                },
                (Some(_), None) => {
                    self.entry(at, &name);
                    return Ok(());
                }
            }
        }
        self.directory(at);
        Ok(())
    }

    /// Everything in directory `id`, which stays.
    fn directory(&mut self, id: Id) {
        let mut pending = vec![id];
        let mut seen = HashSet::new();
        while let Some(id) = pending.pop().filter(|id| seen.insert(*id)) {
            let Some(directory) = self.state.get(id).and_then(|inode| inode.directory()) else { continue };
            let names: Vec<Name> = directory.iter().map(|(name, _)| name.clone()).collect();
            for name in names {
                pending.extend(self.entry_here(id, &name));
            }
        }
        // Directories that only had changes in them, from the leaves up.
        let mut emptied: Vec<Id> = seen.into_iter().filter(|other| *other != ROOT).collect();
        emptied.sort_by_key(|id| std::cmp::Reverse(self.state.path(*id).map_or(0, |path| path.matches('/').count())));
        for id in emptied {
            self.drop_if_clean(id);
        }
    }

    fn entry(&mut self, parent: Id, name: &Name) {
        if let Some(below) = self.entry_here(parent, name) {
            self.directory(below);
        }
    }

    /// One entry. Returns a directory whose entries have to be looked at.
    fn entry_here(&mut self, parent: Id, name: &Name) -> Option<Id> {
        let number = self.state.get(parent)?.number;
        let natural = self.natural(parent, name);
        let entry = self.state.get(parent)?.directory()?.get(name)?;
        let Some(id) = entry.id else {
            self.unhide(parent, name, number, natural);
            return None;
        };
        let inode = self.state.get(id)?;
        let (lower, is_directory, own) = (inode.lower.clone(), inode.is_directory(), inode.number);
        if lower.is_some() && lower == natural {
            if is_directory {
                self.notices.insert(Notice::Inode(own));
                return Some(id);
            }
            self.notices.insert(Notice::Inode(own));
            self.notices.insert(Notice::Entry(number, name.clone()));
            self.drop_name(parent, name, id);
            return None;
        }
        if let Some(lower) = lower {
            self.send_back(parent, name, id, &lower);
            return is_directory.then_some(id);
        }
        if is_directory {
            return Some(id);
        }
        // A file in the place of a chunk of the snapshot is a change to that, whatever it has become since.
        if !self.untracked.contains(&(parent, name.clone())) || natural.is_some() {
            self.notices.insert(Notice::Entry(number, name.clone()));
            self.drop_name(parent, name, id);
        }
        None
    }

    /// What the snapshot has under a name.
    fn natural(&self, parent: Id, name: &Name) -> Option<Place> {
        let place = self.state.get(parent)?.lower.as_ref()?;
        self.tree.step(place, name.text()?)
    }

    /// A hidden name shows again, unless what had it is elsewhere now.
    fn unhide(&mut self, parent: Id, name: &Name, number: u64, natural: Option<Place>) {
        let moved = natural.and_then(|place| {
            let id = self.state.by_number(self.tree.table().inode(&place))?;
            let above = self.state.get(id)?.names.first().cloned()?;
            Some((id, above, place))
        });
        self.notices.insert(Notice::Entry(number, name.clone()));
        match moved {
            Some((id, (above, other), place)) => {
                self.send_back(above, &other, id, &place);
                self.directory(id);
            }
            None => self.state.leave(parent, name),
        }
    }

    /// Something of the snapshot goes back to where it was, if its name there is free.
    fn send_back(&mut self, parent: Id, name: &Name, id: Id, lower: &Place) {
        let home = self.tree.parent_of(lower).and_then(|(above, name)| {
            let number = self.tree.table().inode(&above);
            Some((self.state.by_number(number)?, Name::new(name.as_bytes())))
        });
        let Some((home, own_name)) = home else { return };
        let taken = self.state.get(home).and_then(|inode| inode.directory()?.get(&own_name)?.id);
        let numbers = (self.state.get(parent).map(|i| i.number), self.state.get(home).map(|i| i.number));
        if let (Some(number), Some(home_number)) = numbers {
            self.notices.insert(Notice::Entry(number, name.clone()));
            self.notices.insert(Notice::Entry(home_number, own_name.clone()));
        }
        if let Some(taken) = taken.filter(|taken| *taken != id) {
            // What stands there was made since.
            if !self.untracked.contains(&(home, own_name.clone())) {
                self.drop_name(home, &own_name, taken);
            }
        }
        self.state.bring_back(id, (parent, name), (home, own_name));
    }

    fn drop_name(&mut self, parent: Id, name: &Name, id: Id) {
        self.state.leave(parent, name);
        let Some(inode) = self.state.get(id) else { return };
        if !inode.names.is_empty() || self.opens.get(inode.number).is_some() {
            return;
        }
        if let Some(inode) = self.state.drop_inode(id)
            && let Some(Source::Data(data)) = inode.source()
        {
            self.gone.push(*data);
        }
    }

    /// A directory without entries of its own: it goes if it was made since, and is the snapshot's again otherwise.
    fn drop_if_clean(&mut self, id: Id) {
        let Some(inode) = self.state.get(id) else { return };
        if !inode.directory().is_some_and(|directory| directory.is_clean()) {
            return;
        }
        let Some((parent, name)) = inode.names.first().cloned() else { return };
        let new = inode.number >= UPPER;
        let number = self.state.get(parent).map_or(0, |inode| inode.number);
        if new {
            self.notices.insert(Notice::Entry(number, name.clone()));
        }
        self.state.leave(parent, &name);
        self.state.drop_inode(id);
    }
}
