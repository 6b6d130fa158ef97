//! Edits of a state that no single record describes: the journal is rewritten after them ([`super::rebase`]).

use super::state::{Node, State};
use crate::scratch::record::{Id, Name, Source};
use crate::tree::Tree;
use crate::tree::nodes::TreePlace;

impl State {
    /// Removes the entry `name` of directory `parent`, and the name from its inode, so that the base's entry shows.
    pub(super) fn leave(&mut self, parent: Id, name: &Name) {
        let Some(Node::Directory(directory)) = self.get_mut(parent).map(|inode| &mut inode.node) else { return };
        let id = directory.get(name).and_then(|entry| entry.id);
        directory.clear(name);
        if let Some(inode) = id.and_then(|id| self.get_mut(id)) {
            inode.names.retain(|(p, n)| !(*p == parent && n == name));
        }
    }

    /// Makes the bytes at `place` of `tree` those of a file.
    pub(super) fn become_lower(&mut self, id: Id, place: Option<TreePlace>, tree: &Tree) {
        self.bind(id, numbered(place, tree));
        if let Some(inode) = self.get_mut(id) {
            inode.node = Node::File(Source::Lower);
        }
    }
}

fn numbered(place: Option<TreePlace>, tree: &Tree) -> Option<(TreePlace, u64)> {
    place.map(|place| {
        let number = tree.table().inode(&place);
        (place, number)
    })
}
