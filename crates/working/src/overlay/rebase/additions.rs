//! Entries that others have added to a directory that was moved here.
//!
//! A group or an array has an identity: what others add to it goes where it goes. A directory of no
//! node has none, so that what they have added to it stays where they put it, and only what was in
//! it has moved. The moved directory is over the old place, with a whiteout for each addition; the
//! directory at the old place is over nothing (a place of the base shows once), and has an entry
//! for each addition.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::invalidation::Invalidation;
use super::super::listing::join;
use super::super::node::{Entry, Inode};
use super::super::replace::translate;
use super::super::state::numbered;
use super::merge::{Child, CreatedDirectory, EntryContext, Merge, Visit};
use crate::scratch::record::{Body, EntryId, Name, Source};
use icechunkfs_base::error::Result;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_tree::tree::nodes::TreePlace;

impl Merge<'_> {
    /// Returns true if `new`, a place of the new base under a name that the old base had at `old`,
    /// may show in the visited directory.
    pub(super) async fn shows(&self, visit: &Visit, old: Option<&TreePlace>, new: &TreePlace) -> Result<bool> {
        if !visit.hides_new {
            return Ok(true);
        }
        let from = &self.from.tree;
        let to = &self.to.tree;
        let Some(old) = old else { return Ok(false) };
        if !from.has(old).await? {
            return Ok(false);
        }
        let are_plain = !is_of_node(from, old) && !is_of_node(to, new);
        Ok(are_plain || translate(from, to, &self.ids, old).as_ref() == Some(new))
    }

    /// Hides what the new base has in the visited directory under other names than those of its
    /// `entries` and the old base did not have there.
    pub(super) async fn hide_new(&mut self, visit: &Visit, entries: &[(Name, Entry)]) -> Result<()> {
        if !visit.hides_new {
            return Ok(());
        }
        let from = Arc::clone(&self.from);
        let to = Arc::clone(&self.to);
        for (name, new) in self.others_in(visit, entries).await? {
            let old = visit.lower_old.as_ref().and_then(|place| from.tree.child_place(place, name.text()?));
            if !self.shows(visit, old.as_ref(), &new).await? {
                self.invalidate_name(visit.new, &name);
                self.out.state.put_entry(visit.new, name, None, true, None);
            } else if to.tree.is_directory_place(&new) && !is_of_node(&to.tree, &new) {
                let id = self.make_over(visit.new, name.clone(), old.clone(), &new);
                self.pending.push(Visit {
                    old: None,
                    new: id,
                    path: join(&visit.path, &name.to_string()),
                    lower_old: old,
                    lower_new: Some(new),
                    hides_rest: false,
                    hides_new: true,
                    is_detached: false,
                });
            }
        }
        Ok(())
    }

    /// Shows what the new base has in the visited directory and the old base did not have there,
    /// each as an entry, if the directory is detached.
    pub(super) async fn show_new(&mut self, visit: &Visit, entries: &[(Name, Entry)]) -> Result<()> {
        if !visit.is_detached {
            return Ok(());
        }
        for (name, new) in self.others_in(visit, entries).await? {
            self.invalidate_name(visit.new, &name);
            self.show(visit.new, name, &new);
        }
        Ok(())
    }

    /// Returns what the new base has in the visited directory under other names than those of its
    /// `entries`.
    async fn others_in(&self, visit: &Visit, entries: &[(Name, Entry)]) -> Result<Vec<(Name, TreePlace)>> {
        let Some(place) = &visit.lower_new else { return Ok(Vec::new()) };
        let tree = &self.to.tree;
        let own: HashSet<&Name> = entries.iter().map(|(name, _)| name).collect();
        let names = names_in(tree, place).await?.into_iter().filter(|name| !own.contains(name));
        let others = names.filter_map(|name| {
            let new = tree.child_place(place, name.text()?)?;
            Some((name, new))
        });
        Ok(others.collect())
    }

    /// Makes a directory over `new`, a place of the new base, for entries that differ from it. It
    /// is dropped if there are none in the end.
    pub(super) fn make_over(
        &mut self,
        parent: EntryId,
        name: Name,
        old: Option<TreePlace>,
        new: &TreePlace,
    ) -> EntryId {
        let meta = self.to.meta_of(new);
        let lower = numbered(&self.to.tree, new.clone());
        let id = self.out.state.make_directory(parent, name.clone(), meta, Some(lower));
        let name = Some((parent, name));
        self.created.push(CreatedDirectory { id, name, has_base: true, old_lower: old, is_needed: false });
        id
    }

    /// Makes a directory over nothing for what others have added to `place` of the new base.
    pub(super) fn detach(&mut self, here: EntryContext<'_>, place: TreePlace) {
        let id = self.out.state.fresh.next_entry();
        self.out.state.insert_bare(id, id.ino(), Body::Directory, self.to.meta_of(&place), 0);
        self.out.state.put_entry(here.visit.new, here.name, Some(id), true, None);
        self.pending.push(Visit {
            old: None,
            new: id,
            path: here.path,
            lower_old: here.old_place,
            lower_new: Some(place),
            hides_rest: true,
            hides_new: false,
            is_detached: true,
        });
    }

    /// Gives `name` of directory `parent` to what the new base has at `place`.
    pub(super) fn show(&mut self, parent: EntryId, name: Name, place: &TreePlace) {
        let meta = self.to.meta_of(place);
        let lower = numbered(&self.to.tree, place.clone());
        if self.to.tree.is_directory_place(place) {
            self.out.state.make_directory(parent, name, meta, Some(lower));
            return;
        }
        let id = self.out.state.fresh.next_entry();
        self.out.state.insert_bare(id, lower.1, Body::File(Source::Lower), meta, 0);
        self.out.state.bind(id, Some(lower));
        self.out.state.put_entry(parent, name, Some(id), false, None);
    }

    /// Keeps an entry of a detached directory for a file of the base: the directory does not show
    /// it otherwise.
    pub(super) fn show_again(&mut self, parent: EntryId, name: Name, place: &TreePlace, child: Child<'_>) {
        let Child { id, inode, entry } = child;
        self.adopt(id, inode, Some(place));
        if self.out.state.get(id).is_some_and(|new| new.number != inode.number) {
            self.invalidate_name(parent, &name);
        }
        self.out.invalidations.push(Invalidation::Inode(inode.number));
        self.out.state.put_entry(parent, name, Some(id), entry.covers, Some(entry.order));
    }

    /// Returns true if a directory other than `id` shows the old base's place of an entry: it was
    /// moved, or something above it.
    pub(super) fn is_elsewhere(&self, here: &EntryContext<'_>, id: Option<EntryId>) -> bool {
        let Some(place) = here.old_place.as_ref().filter(|_| !self.is_published()) else { return false };
        let other = self.old.at_place(&self.from.tree, place).filter(|other| Some(*other) != id);
        let is_over = |inode: &Inode| inode.lower.as_ref() == Some(place) && !inode.names.is_empty();
        here.visit.is_detached || other.and_then(|other| self.old.get(other)).is_some_and(is_over)
    }
}

/// Returns the names in directory `place` of a base.
pub(super) async fn names_in(tree: &Tree, place: &TreePlace) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    let mut sink = |entry: icechunkfs_tree::tree::directory::Entry<'_>| {
        if !matches!(entry.name, "." | "..") {
            names.push(Name::new(entry.name.as_bytes()));
        }
        true
    };
    tree.list(tree.table().inode(place), 0, Extent::All, &mut sink).await?;
    Ok(names)
}

/// Returns true if `place` is the directory of a group or an array, and not one of chunks or of
/// names alone.
pub(super) fn is_of_node(tree: &Tree, place: &TreePlace) -> bool {
    matches!(place, TreePlace::Directory(index) if tree.table().is_stored(*index))
}
