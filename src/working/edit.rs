//! Edits of the state that are no single step: they are followed by writing the journal anew ([`super::replace`]).

use super::state::{Node, State, UPPER};
use crate::scratch::record::{Id, Name, ROOT, Source};
use crate::tree::Tree;
use crate::tree::nodes::Place;

impl State {
    /// Leaves `name` of directory `parent` to the snapshot. What had it has a name less.
    pub(super) fn leave(&mut self, parent: Id, name: &Name) {
        let Some(Node::Directory(directory)) = self.get_mut(parent).map(|inode| &mut inode.node) else { return };
        let id = directory.get(name).and_then(|entry| entry.id);
        directory.clear(name);
        if let Some(inode) = id.and_then(|id| self.get_mut(id)) {
            inode.names.retain(|(p, n)| !(*p == parent && n == name));
        }
    }

    /// A file's bytes are those of `place` of `tree` from now on.
    pub(super) fn become_lower(&mut self, id: Id, place: Option<Place>, tree: &Tree) {
        self.bind(id, numbered(place, tree));
        if let Some(inode) = self.get_mut(id) {
            inode.node = Node::File(Source::Lower);
        }
    }

    /// An inode shows `lower` of `tree` from now on. One that has the number of another place gets a number of its own.
    pub(super) fn set_lower(&mut self, id: Id, lower: Option<Place>, tree: &Tree) {
        let lower = numbered(lower, tree);
        let number = lower.as_ref().map(|(_, number)| *number);
        self.bind(id, lower);
        if id != ROOT && self.get(id).is_some_and(|inode| inode.number < UPPER && number != Some(inode.number)) {
            self.renumber(id);
        }
    }

    /// Files that showed something of the snapshot which is gone go too; directories stay as they are.
    pub(super) fn drop_vanished(&mut self) {
        let vanished: Vec<Id> = self
            .iter()
            .filter(|(_, inode)| inode.lower.is_none() && inode.source() == Some(&Source::Lower))
            .map(|(id, _)| id)
            .collect();
        for id in vanished {
            let names = self.get(id).map(|inode| inode.names.clone()).unwrap_or_default();
            for (parent, name) in names {
                self.leave(parent, &name);
            }
            self.drop_inode(id);
        }
    }
}

fn numbered(place: Option<Place>, tree: &Tree) -> Option<(Place, u64)> {
    place.map(|place| {
        let number = tree.table().inode(&place);
        (place, number)
    })
}
