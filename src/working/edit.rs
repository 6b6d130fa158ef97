//! Edits of a state that are no single step: they are followed by writing the journal anew ([`super::rebase`]).

use super::state::{Node, State};
use crate::scratch::record::{Id, Name, Source};
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
}

fn numbered(place: Option<Place>, tree: &Tree) -> Option<(Place, u64)> {
    place.map(|place| {
        let number = tree.table().inode(&place);
        (place, number)
    })
}
