//! Inodes by their numbers, and by the places of the base that they show.

use super::super::node::{Ino, Inode};
use super::State;
use crate::scratch::record::{EntryId, Name, ROOT, Source};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::TreePlace;

impl State {
    /// Returns the inode that the kernel knows by `number`, if it is in the working tree.
    pub fn by_number(&self, number: Ino) -> Option<EntryId> {
        if let Some(id) = EntryId::of_ino(number) {
            return self.inodes.contains_key(&id).then_some(id);
        }
        self.promoted.get(&number).or_else(|| self.shown.get(&number)).copied()
    }

    /// Returns the number of the base's file whose bytes file `number` shows; none if its bytes are
    /// elsewhere.
    pub(in super::super) fn base_number(&self, number: Ino) -> Option<Ino> {
        match self.by_number(number).and_then(|id| self.get(id)) {
            Some(inode) => inode.lower_number.filter(|_| inode.source() == Some(&Source::Lower)),
            None => Some(number).filter(|number| number.is_of_base()),
        }
    }

    /// Returns the inode whose kernel number is `number`: the one that lookup counts are about.
    pub fn by_kernel_number(&mut self, number: Ino) -> Option<&mut Inode> {
        let id = self.by_number(number)?;
        self.inodes.get_mut(&id).filter(|inode| inode.number == number)
    }

    /// Returns the inode whose kernel number is `number`, to look at.
    pub(in super::super) fn at_number(&self, number: Ino) -> Option<(EntryId, &Inode)> {
        let id = self.by_number(number)?;
        Some((id, self.get(id).filter(|inode| inode.number == number)?))
    }

    /// Returns true if `number` is that of an inode without a name.
    pub(in super::super) fn is_nameless(&self, number: Ino) -> bool {
        self.at_number(number).is_some_and(|(id, _)| self.is_without_name(id))
    }

    /// Returns true if inode `id` has no name.
    pub(in super::super) fn is_without_name(&self, id: EntryId) -> bool {
        id != ROOT && self.get(id).is_some_and(|inode| inode.names.is_empty())
    }

    /// Returns the numbers of all inodes without a name.
    pub(in super::super) fn nameless(&self) -> impl Iterator<Item = Ino> {
        self.iter().filter(|(id, _)| self.is_without_name(*id)).map(|(_, inode)| inode.number)
    }

    /// Returns true if `number` is the base's of a place where the file that has it is not, as
    /// programs have it open: it has no name, or others.
    pub(in super::super) fn is_elsewhere(&self, number: Ino) -> bool {
        number.is_of_base()
            && self.at_number(number).is_some_and(|(id, inode)| {
                self.is_without_name(id) || (!inode.is_directory() && inode.lower_number != Some(number))
            })
    }

    /// Returns the numbers of all files that are not in the place of the base that has their
    /// number.
    pub(in super::super) fn elsewhere(&self) -> impl Iterator<Item = Ino> {
        self.iter().map(|(_, inode)| inode.number).filter(|number| self.is_elsewhere(*number))
    }

    /// Returns an inode without a name in the place of a file of the base that shows. None may be
    /// there: what is written to it would be lost.
    pub(in super::super) fn nameless_shown(&self, tree: &Tree) -> Option<EntryId> {
        let nameless = self.shown.values().filter(|id| **id != ROOT).find(|id| {
            let inode = self.get(**id).filter(|inode| inode.names.is_empty());
            inode.and_then(|inode| inode.lower.as_ref()).is_some_and(|place| self.shows_base_at(tree, place))
        });
        nameless.copied()
    }

    /// Returns the inode that shows `place` of the base: not another one that only has its number,
    /// with an old version of the file.
    pub(in super::super) fn at_place(&self, tree: &Tree, place: &TreePlace) -> Option<EntryId> {
        let number = tree.table().inode(place);
        self.shown.get(&number).or_else(|| self.promoted.get(&number)).copied()
    }

    /// Returns the numbers, other than `number`, of inodes that have it or show the base's entry
    /// with it.
    pub(in super::super) fn other_numbers(&self, number: Ino) -> impl Iterator<Item = Ino> {
        let ids = [self.promoted.get(&number), self.shown.get(&number)];
        let numbers = ids.into_iter().flatten().filter_map(|id| Some(self.get(*id)?.number));
        numbers.filter(move |other| *other != number)
    }

    /// Returns true if the base's entry at `place` shows: no entry of the working tree is in its
    /// place, nor above it.
    pub(in super::super) fn shows_base_at(&self, tree: &Tree, place: &TreePlace) -> bool {
        let mut at = place.clone();
        while let Some((above, name)) = tree.parent_of(&at) {
            if let Some(id) = self.by_number(tree.table().inode(&above)) {
                let living = self.get(id).filter(|inode| id == ROOT || !inode.names.is_empty());
                let directory = living.and_then(Inode::directory);
                return directory.is_some_and(|directory| directory.get(&Name::new(name.as_bytes())).is_none());
            }
            at = above;
        }
        false
    }
}
