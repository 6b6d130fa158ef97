//! The merge of files: assigns names on the new base to inodes, and finds the names that the base
//! alone shows again.
//!
//! Each name of a file is merged separately: a name whose bytes are the base's follows the base,
//! other names keep the bytes that they had. Names that differ then are parted: one file becomes
//! two.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::super::Ino;
use super::super::content::copy_steps;
use super::super::node::{IN_PLACE, Inode};
use super::super::state::numbered;
use super::Purpose;
use super::TreeMoves;
use super::merge::{FileName, Merge, same_but_times};
use crate::overlay::invalidation::Invalidation;
use crate::scratch::journal::fits_in_journal;
use crate::scratch::record::{Body, DataFileId, EntryId, Source, Stored};
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::TreePlace;

/// Files that show bytes of the old base and have names elsewhere.
#[derive(Default)]
pub(super) struct Parted {
    /// New sources of parted files, by inode and by whether they are for untracked names.
    sources: HashMap<(EntryId, bool), Source>,
    /// Files that the new base has unchanged: all names stay names of one file.
    same: HashMap<EntryId, TreePlace>,
}

impl TreeMoves {
    /// Collects the bytes of files of the old base under names where the new base does not show the
    /// same: a reference to the same chunk, or a copy. Adds the numbers of new data files to
    /// `new_data`.
    pub(super) async fn materialize(&self, merge: &Merge<'_>, new_data: &mut Vec<DataFileId>) -> Result<Parted> {
        let mut parted = Parted::default();
        for (id, names) in &merge.names {
            let Some(inode) = merge.old.get(*id).filter(|inode| inode.source() == Some(&Source::Lower)) else {
                continue;
            };
            if let Some(place) = same_in_new(merge, inode, names).await? {
                parted.same.insert(*id, place);
                continue;
            }
            for is_untracked in [false, true] {
                if names.iter().any(|name| !name.is_base && name.is_untracked == is_untracked) {
                    let source = self.part(&merge.from.tree, inode, is_untracked, new_data).await?;
                    parted.sources.insert((*id, is_untracked), source);
                }
            }
        }
        Ok(parted)
    }

    /// Returns a source, independent of `tree`, for the bytes of `inode`, which are in `tree`.
    pub(in super::super) async fn part(
        &self,
        tree: &Arc<Tree>,
        inode: &Inode,
        is_untracked: bool,
        new_data: &mut Vec<DataFileId>,
    ) -> Result<Source> {
        let place = inode.lower.as_ref().ok_or_else(|| Error::corrupt("a file of the base without a place in it"))?;
        let number = tree.table().inode(place);
        // Garbage collection may delete a chunk that no commit refers to: an untracked name needs a
        // copy.
        if !is_untracked {
            let payload = match place {
                TreePlace::Chunk(..) => tree.stored(number).await?,
                TreePlace::Metadata(node) | TreePlace::Directory(node) => {
                    tree.zarr_json(*node).map(|bytes| ChunkPayload::Inline(Bytes::copy_from_slice(bytes)))
                }
            };
            if let Some(payload) = payload.filter(fits_in_journal) {
                return Ok(Source::Stored(Stored(payload)));
            }
        }
        let data = self.upper.lock().state.fresh.next_data_file();
        let file = self.upper.files.create(data)?;
        new_data.push(data);
        let read = |at, size| tree.read(number, at, size);
        copy_steps(0..u64::MAX, &file, 0, read).await.context(|| tree.path_of(place))?;
        self.upper.files.set_times(data, inode.meta.atime, inode.meta.mtime)?;
        // The journal that names the file is durable at once, and soon no other copy of the bytes
        // exists.
        file.sync_data().map_err(|e| Error::io("flushing a scratch file", e))?;
        Ok(Source::Data(data))
    }
}

/// Returns the new base's place of `inode`, which one of `names` is at, if the bytes are the same
/// as in the old base.
async fn same_in_new(merge: &Merge<'_>, inode: &Inode, names: &[FileName]) -> Result<Option<TreePlace>> {
    let home = names.iter().find(|name| name.is_base && name.is_home).and_then(|name| name.place.clone());
    let (Some(old), Some(new)) = (&inode.lower, home) else { return Ok(None) };
    if names.iter().all(|name| name.is_base) || matches!(merge.purpose, Purpose::Published { .. }) {
        return Ok(None);
    }
    let from = &merge.from.tree;
    let to = &merge.to.tree;
    let is_same = match (old, &new) {
        (TreePlace::Metadata(old), TreePlace::Metadata(new)) => from.zarr_json(*old) == to.zarr_json(*new),
        (TreePlace::Chunk(..), TreePlace::Chunk(..)) => {
            from.stored(from.table().inode(old)).await? == to.stored(to.table().inode(&new)).await?
        }
        _ => false,
    };
    Ok(is_same.then_some(new))
}

impl Merge<'_> {
    /// Gives every file its names on the new base. `parted` is the result of
    /// [`TreeMoves::materialize`].
    pub(super) fn place_files(&mut self, mut parted: Parted) {
        for (id, names) in std::mem::take(&mut self.names) {
            let Some(inode) = self.old.get(id) else { continue };
            if let Some(place) = parted.same.remove(&id) {
                self.adopt(id, inode, Some(&place));
                let is_renumbered = self.out.state.get(id).is_some_and(|new| new.number != inode.number);
                for name in names {
                    if is_renumbered {
                        self.invalidate_name(name.parent, &name.name);
                    }
                    let covers = name.entry.covers && !name.is_base;
                    self.out.state.put_entry(name.parent, name.name, Some(id), covers, Some(name.entry.order));
                }
                continue;
            }
            let (base, own): (Vec<FileName>, Vec<FileName>) = names.into_iter().partition(|name| name.is_base);
            let is_known_as_base = base.iter().any(|name| self.number_at(name) == Some(inode.number));
            if own.is_empty() {
                self.release_to_base(id, inode, base);
                continue;
            }
            for name in &base {
                self.invalidate_name(name.parent, &name.name);
            }
            if !base.is_empty() {
                self.out.invalidations.push(Invalidation::Attributes(inode.number));
            }
            // The number stays with the file that the base shows under it, if it is still this one:
            // another one there gets another number.
            let mut is_split = is_known_as_base;
            if inode.source() != Some(&Source::Lower) {
                self.place_own(id, inode, inode.body.clone(), own, is_split);
                continue;
            }
            let (untracked, tracked): (Vec<_>, Vec<_>) = own.into_iter().partition(|name| name.is_untracked);
            for (names, of_untracked) in [(tracked, false), (untracked, true)] {
                if let Some(source) = parted.sources.remove(&(id, of_untracked)).filter(|_| !names.is_empty()) {
                    self.place_own(id, inode, Body::File(source), names, is_split);
                    is_split = true;
                }
            }
        }
        let nameless = self.old.iter().filter(|(_, inode)| inode.names.is_empty() && !inode.is_directory());
        for (id, inode) in nameless {
            // Open handles use it until they are closed. An old version, whose bytes are the
            // repository's, can be opened as long as the kernel knows it.
            let is_stored = matches!(inode.source(), Some(Source::Stored(_)));
            let is_known = is_stored && !inode.number.is_of_base() && inode.lookup_count > 0;
            if is_known || self.opens.contains(&inode.number) {
                self.out.state.insert_bare(id, inode.number, inode.body.clone(), inode.meta, inode.lookup_count);
            }
        }
    }

    /// Returns the number of the new base's entry under a name.
    fn number_at(&self, name: &FileName) -> Option<Ino> {
        Some(self.to.tree.table().inode(name.place.as_ref()?))
    }

    /// Keeps the names of a file with bytes in the working tree. With `is_split` the file becomes
    /// another inode.
    fn place_own(&mut self, id: EntryId, inode: &Inode, body: Body, names: Vec<FileName>, is_split: bool) {
        let home = names.iter().find(|name| name.is_home).and_then(|name| name.place.clone());
        let lower = home.filter(|_| !is_split).map(|place| numbered(&self.to.tree, place));
        let stays = !inode.number.is_of_base() || lower.as_ref().is_some_and(|(_, number)| *number == inode.number);
        let new = if is_split { self.out.state.fresh.next_entry() } else { id };
        let number = if is_split { new.ino() } else { inode.number };
        let lookup_count = if is_split { 0 } else { inode.lookup_count };
        self.out.state.insert_bare(new, number, body, inode.meta, lookup_count);
        self.out.state.bind(new, lower);
        // Open handles know the file by the number that it was opened with.
        let is_renumbered = !is_split && !stays && !self.opens.contains(&inode.number);
        if is_renumbered {
            self.out.state.renumber(new);
            // The number has the bytes of the base from now on.
            self.out.invalidations.push(Invalidation::Inode(inode.number));
        }
        for name in names {
            let covers = name.entry.covers && (name.place.is_some() || self.hides(&name));
            if is_split || is_renumbered {
                self.invalidate_name(name.parent, &name.name);
            }
            self.out.state.put_entry(name.parent, name.name, Some(new), covers, Some(name.entry.order));
        }
    }

    /// Returns true if the file is in the place of a directory of the new base that was removed
    /// here as a whole.
    fn hides(&self, name: &FileName) -> bool {
        let parent = self.out.state.get(name.parent).and_then(|inode| inode.lower.as_ref());
        parent.zip(name.name.text()).and_then(|(place, name)| self.to.tree.child_place(place, name)).is_some()
    }

    /// Makes `name` a name of the base's file at `place`, with the number and the offset that it
    /// has.
    fn show_in_place(&mut self, id: EntryId, inode: &Inode, name: FileName, place: &TreePlace) {
        self.adopt(id, inode, Some(place));
        if let Some(inode) = self.out.state.get_mut(id) {
            inode.body = Body::File(Source::Lower);
        }
        self.out.state.put_entry(name.parent, name.name.clone(), Some(id), false, Some(name.entry.order));
        self.out.disposable.push((name.parent, name.name, id));
    }

    /// Leaves all names of a file to the base. The inode stays if the kernel knows it by a number
    /// of the working tree.
    fn release_to_base(&mut self, id: EntryId, inode: &Inode, names: Vec<FileName>) {
        let is_open = self.opens.contains(&inode.number);
        let is_published = matches!(self.purpose, Purpose::Published { .. });
        let natural = names.iter().position(|name| self.number_at(name) == Some(inode.number));
        let keeper = natural.or_else(|| names.iter().position(|name| name.place.is_some()));
        let mut is_kept = false;
        for (at, name) in names.into_iter().enumerate() {
            let Some(place) = name.place.clone().filter(|_| Some(at) == keeper) else {
                self.invalidate_name(name.parent, &name.name);
                self.out.invalidations.push(Invalidation::Inode(inode.number));
                continue;
            };
            // The kernel may have another file, which had the name before, by the number that the
            // name gets.
            let other = self.to.tree.table().inode(&place);
            if other != inode.number {
                self.out.invalidations.push(Invalidation::Inode(other));
            }
            if natural == Some(at) {
                if is_published {
                    self.out.invalidations.push(Invalidation::Attributes(inode.number));
                    if self.is_listed && name.entry.order != IN_PLACE {
                        self.show_in_place(id, inode, name, &place);
                        is_kept = true;
                    }
                } else if !same_but_times(&inode.meta, &self.to.meta(0o644)) || inode.meta.mtime != self.from.time {
                    // Modes, owners and times that programs set last until a commit.
                    self.adopt(id, inode, Some(&place));
                    self.out.state.put_entry(name.parent, name.name, Some(id), false, Some(name.entry.order));
                    is_kept = true;
                }
            } else if inode.number.is_of_base() {
                self.invalidate_name(name.parent, &name.name);
                // Another name has the number and other bytes from now on, and the kernel may keep
                // the pages: a program watches the file, say.
                self.out.invalidations.push(Invalidation::Inode(inode.number));
            } else {
                self.show_in_place(id, inode, name, &place);
                is_kept = true;
            }
        }
        let loses_all = natural.is_none() && !is_kept;
        if is_open && loses_all && inode.source() != Some(&Source::Lower) {
            // Handles that are still open read it to the end.
            self.out.state.insert_bare(id, inode.number, inode.body.clone(), inode.meta, inode.lookup_count);
        }
    }
}
