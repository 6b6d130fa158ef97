//! The merge of directories: finds the place of the new base that each directory is over, and the
//! whiteouts that remain.
//!
//! Directories are visited from the root down, without recursion, because programs nest them to any
//! depth. Files are only collected here ([`super::files`] places them): the result for a file
//! depends on all of its names.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::super::invalidation::Invalidation;
use super::super::listing::join;
use super::super::node::{Directory, Entry, Inode};
use super::super::replace::{node_ids, translate};
use super::super::state::{State, numbered};
use super::super::{Base, Ino};
use super::additions::{is_of_node, names_in};
use super::whiteout::{Visibility, Whiteouts};
use super::{Collision, Purpose};
use crate::scratch::record::{EntryId, Meta, Name, ROOT, Source};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_tree::tree::nodes::{NodeIds, TreePlace};

/// Result of a merge.
#[derive(Default)]
pub(super) struct Merged {
    pub(super) state: State,
    pub(super) collisions: Vec<Collision>,
    pub(super) invalidations: Vec<Invalidation>,
    /// Entries that the base has too, kept only if the kernel knows their inodes by numbers of the
    /// working tree.
    pub(super) disposable: Vec<(EntryId, Name, EntryId)>,
}

/// Merge in progress.
pub(super) struct Merge<'a> {
    pub(super) old: &'a State,
    /// Inode numbers of open files.
    pub(super) opens: &'a HashSet<Ino>,
    pub(super) from: Arc<Base>,
    pub(super) to: Arc<Base>,
    pub(super) purpose: Purpose<'a>,
    /// True if names keep their offsets for listings in progress.
    pub(super) is_listed: bool,
    pub(super) out: Merged,
    /// Names of files, by inode.
    pub(super) names: BTreeMap<EntryId, Vec<FileName>>,
    /// True if the new base has files of the old one under other names: numbers follow from places,
    /// so that they mean other bytes there.
    pub(super) has_moved: bool,
    /// Nodes of the new base.
    pub(super) ids: Arc<NodeIds>,
    /// Directories, in order of creation.
    pub(super) created: Vec<CreatedDirectory>,
    /// Directories whose entries are still to be visited.
    pub(super) pending: Vec<Visit>,
    /// Files that get other bytes: directory and name in the new state.
    pub(super) documents: Vec<(EntryId, Name, Bytes)>,
}

/// Name of a file, with the result of the merge for it.
#[derive(Debug)]
pub(super) struct FileName {
    pub(super) parent: EntryId,
    pub(super) name: Name,
    pub(super) entry: Entry,
    /// True if the bytes under the name are the base's: they were published, or never changed.
    pub(super) is_base: bool,
    /// True if the file is where the old base has it.
    pub(super) is_home: bool,
    /// True if no commit takes the file.
    pub(super) is_untracked: bool,
    /// Place of the new base under the name.
    pub(super) place: Option<TreePlace>,
}

/// Directory of the new state.
pub(super) struct CreatedDirectory {
    pub(super) id: EntryId,
    /// Parent and name; `None` for the root.
    pub(super) name: Option<(EntryId, Name)>,
    /// True if the new base has something at its place.
    pub(super) has_base: bool,
    /// Place of the old base that it was over; `None` if it was created here.
    pub(super) old_lower: Option<TreePlace>,
    /// True if it must stay even without entries: it hides something, or was moved here.
    pub(super) is_needed: bool,
}

/// Directory whose entries are still to be visited.
pub(super) struct Visit {
    /// Inode in the old state; `None` if only whiteouts are translated below.
    pub(super) old: Option<EntryId>,
    pub(super) new: EntryId,
    pub(super) path: String,
    /// Place of the old base that the entries are relative to.
    pub(super) lower_old: Option<TreePlace>,
    /// Place of the new base that the directory is over.
    pub(super) lower_new: Option<TreePlace>,
    /// True if everything of the old base here that has no entry was hidden.
    pub(super) hides_rest: bool,
    /// True if nothing shows that the old base did not have here: the directory is of no node and
    /// was moved, so that what others have added to it stays where they put it.
    pub(super) hides_new: bool,
    /// True if the directory is not over `lower_new`, since a directory that was moved away is:
    /// each entry that others have added to that place is an entry of its own.
    pub(super) is_detached: bool,
}

/// Place of a directory on the new base.
struct Placement {
    lower: Option<TreePlace>,
    has_base: bool,
    covers: bool,
    /// Place of the old base that the entries are relative to; `hides_rest` if all of it was
    /// hidden.
    lower_old: Option<TreePlace>,
    hides_rest: bool,
    hides_new: bool,
    /// True if another directory is over `lower`, so that this one is not.
    is_detached: bool,
    is_moved: bool,
}

impl<'a> Merge<'a> {
    pub(super) fn new(
        old: &'a State,
        opens: &'a HashSet<Ino>,
        from: &Arc<Base>,
        to: Arc<Base>,
        purpose: Purpose<'a>,
    ) -> Self {
        let ids = node_ids(&to.tree);
        let out = Merged { state: old.successor(), ..Merged::default() };
        Merge {
            old,
            opens,
            from: Arc::clone(from),
            to,
            purpose,
            is_listed: false,
            out,
            names: BTreeMap::new(),
            has_moved: false,
            ids,
            created: Vec::new(),
            pending: Vec::new(),
            documents: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> Merged {
        let mut out = self.out;
        out.collisions.sort();
        out.collisions.dedup();
        out
    }

    pub(super) fn is_published(&self) -> bool {
        matches!(self.purpose, Purpose::Published { .. })
    }

    /// Puts all directories on the new base, translates whiteouts and collects files.
    pub(super) async fn directories(&mut self) -> Result<()> {
        let from = Arc::clone(&self.from);
        let to = Arc::clone(&self.to);
        let whiteouts = Whiteouts::new(&from.tree, &to.tree);
        let root = self.old.get(ROOT).ok_or_else(|| Error::corrupt("a state without a root"))?;
        let top = TreePlace::Directory(0);
        self.adopt(ROOT, root, Some(&top));
        self.created.push(CreatedDirectory {
            id: ROOT,
            name: None,
            has_base: true,
            old_lower: Some(top.clone()),
            is_needed: true,
        });
        self.pending.push(Visit {
            old: Some(ROOT),
            new: ROOT,
            path: "/".to_owned(),
            lower_old: Some(top.clone()),
            lower_new: Some(top),
            hides_rest: false,
            hides_new: false,
            is_detached: false,
        });
        while let Some(visit) = self.pending.pop() {
            let entries = self.entries(&visit).await?;
            self.hide_new(&visit, &entries).await?;
            self.show_new(&visit, &entries).await?;
            for (name, entry) in entries {
                let step = |tree: &Tree, place: &Option<TreePlace>| tree.child_place(place.as_ref()?, name.text()?);
                let old_place = step(&from.tree, &visit.lower_old);
                let new_place = step(&to.tree, &visit.lower_new);
                let has_new = match &new_place {
                    Some(place) => to.tree.has(place).await? && self.shows(&visit, old_place.as_ref(), place).await?,
                    None => false,
                };
                let path = join(&visit.path, &name.to_string());
                let child = entry.id.and_then(|id| Some((id, self.old.get(id)?)));
                let here =
                    EntryContext { visit: &visit, whiteouts: &whiteouts, name, path, old_place, new_place, has_new };
                match child {
                    None => self.whiteout(here, entry.covers).await?,
                    Some((id, inode)) if inode.is_directory() => {
                        self.directory(here, Child { id, inode, entry }).await?;
                    }
                    Some((id, inode)) => self.file(here, Child { id, inode, entry }).await?,
                }
            }
        }
        Ok(())
    }

    /// Returns the entries of a directory. With `hides_rest`, a whiteout is added for each other
    /// name of the old base.
    async fn entries(&self, visit: &Visit) -> Result<Vec<(Name, Entry)>> {
        let directory = visit.old.and_then(|id| self.old.get(id)).and_then(Inode::directory);
        let mut entries: Vec<(Name, Entry)> =
            directory.into_iter().flat_map(Directory::entries).map(|(name, entry)| (name.clone(), entry)).collect();
        if let (true, Some(place)) = (visit.hides_rest, &visit.lower_old) {
            let names = names_in(&self.from.tree, place).await?;
            let own: HashSet<&Name> = entries.iter().map(|(name, _)| name).collect();
            let rest: Vec<Name> = names.into_iter().filter(|name| !own.contains(name)).collect();
            entries.iter_mut().for_each(|(_, entry)| entry.covers = true);
            entries.extend(rest.into_iter().map(|name| (name, Entry::whiteout())));
        }
        // In listing order, so that a listing in progress continues after the last entry that it
        // returned.
        entries.sort_by_key(|(_, entry)| entry.order);
        Ok(entries)
    }

    async fn whiteout(&mut self, here: EntryContext<'_>, covers: bool) -> Result<()> {
        let parent = here.visit.new;
        let Some(place) = here.new_place.clone().filter(|_| here.has_new) else { return Ok(()) };
        // The published base does not have anything that was deleted here.
        let visibility = match here.old_place.as_ref().filter(|_| covers && !self.is_published()) {
            Some(old) => here.whiteouts.visibility(Some(old), &place).await?,
            None => Visibility::All,
        };
        let is_detached = here.visit.is_detached;
        let is_elsewhere = self.is_elsewhere(&here, None);
        // A node takes along what others have added to it.
        let goes_along = is_elsewhere && here.old_place.as_ref().is_some_and(|old| is_of_node(&self.from.tree, old));
        if visibility == Visibility::Nothing || (visibility == Visibility::Some && goes_along) {
            if !is_detached {
                self.out.state.put_entry(parent, here.name, None, true, None);
            }
            return Ok(());
        }
        self.invalidate_name(parent, &here.name);
        if visibility == Visibility::All && is_detached {
            self.show(parent, here.name, &place);
            return Ok(());
        }
        if visibility == Visibility::Some && self.to.tree.is_directory_place(&place) {
            if is_elsewhere {
                self.detach(here, place);
                return Ok(());
            }
            let id = self.make_over(parent, here.name, here.old_place.clone(), &place);
            self.pending.push(Visit {
                old: None,
                new: id,
                path: here.path,
                lower_old: here.old_place,
                lower_new: Some(place),
                hides_rest: true,
                hides_new: here.visit.hides_new,
                is_detached: false,
            });
        }
        Ok(())
    }

    async fn directory(&mut self, here: EntryContext<'_>, child: Child<'_>) -> Result<()> {
        let Child { id, inode, entry } = child;
        let Some(placement) = self.placement(&here, child).await? else {
            self.out.collisions.push(Collision { path: here.path, is_untracked: false });
            return Ok(());
        };
        let before = inode.lower.clone();
        let number_before = inode.lower_number;
        self.has_moved |= self.is_published() && before.is_some() && before != here.old_place;
        let is_other = before != placement.lower || !Arc::ptr_eq(&self.from.tree, &self.to.tree);
        if is_other {
            self.out.invalidations.push(Invalidation::Inode(inode.number));
        }
        self.adopt(id, inode, placement.lower.as_ref().filter(|_| !placement.is_detached));
        let parent = here.visit.new;
        let is_other = |new: &Inode| {
            // The base's files in it have other numbers, if it kept its own.
            new.number != inode.number || (number_before.is_some() && new.lower_number != number_before)
        };
        if self.out.state.get(id).is_some_and(is_other) {
            self.invalidate_name(parent, &here.name);
            self.invalidate_children(id, before.as_ref(), placement.lower.as_ref()).await?;
        }
        self.out.state.put_entry(parent, here.name.clone(), Some(id), placement.covers, Some(entry.order));
        let is_needed =
            placement.is_moved || placement.is_detached || here.visit.is_detached || (placement.covers && here.has_new);
        let name = Some((parent, here.name));
        self.created.push(CreatedDirectory { id, name, has_base: placement.has_base, old_lower: before, is_needed });
        self.pending.push(Visit {
            old: Some(id),
            new: id,
            path: here.path,
            lower_old: placement.lower_old,
            lower_new: placement.lower,
            hides_rest: placement.hides_rest,
            hides_new: placement.hides_new,
            is_detached: placement.is_detached,
        });
        Ok(())
    }

    /// Invalidates all names in directory `id`, which was over place `before` of the old base and
    /// is over `after` of the new one. With the name of the directory the kernel drops those below
    /// it, but not such as programs use at the moment; and when it finds the directory again, these
    /// are there again, with the numbers of other files.
    async fn invalidate_children(
        &mut self,
        id: EntryId,
        before: Option<&TreePlace>,
        after: Option<&TreePlace>,
    ) -> Result<()> {
        let mut names = HashSet::new();
        if let Some(directory) = self.old.get(id).and_then(Inode::directory) {
            names.extend(directory.entries().map(|(name, _)| name.clone()));
        }
        for (tree, place) in [(&self.from.tree, before), (&self.to.tree, after)] {
            let Some(place) = place else { continue };
            names.extend(names_in(tree, place).await?);
        }
        names.into_iter().for_each(|name| self.invalidate_name(id, &name));
        Ok(())
    }

    /// Returns the placement of a directory; `None` if it cannot be joined with the new base's
    /// entry of that name.
    async fn placement(&self, here: &EntryContext<'_>, child: Child<'_>) -> Result<Option<Placement>> {
        let Child { id, inode, entry } = child;
        let tree = &self.to.tree;
        let is_directory = here.new_place.as_ref().is_some_and(|place| tree.is_directory_place(place));
        if self.is_published() {
            if here.has_new && !is_directory {
                return Ok(None);
            }
            let lower = here.new_place.clone().filter(|_| is_directory);
            return Ok(Some(Placement::over(lower, here.has_new, inode.lower.clone())));
        }
        let is_home = inode.lower.is_some() && inode.lower == here.old_place;
        if let (Some(place), false) = (&inode.lower, is_home) {
            // Moved here: it is over the same node, and nothing of its new place may show.
            if here.has_new && !self.is_covered(here, entry).await? {
                return Ok(None);
            }
            let lower =
                translate(&self.from.tree, tree, &self.ids, place).filter(|place| tree.is_directory_place(place));
            let has_base = match &lower {
                Some(place) => tree.has(place).await?,
                None => false,
            };
            let hides_new = !is_of_node(&self.from.tree, place);
            let placement = Placement::over(lower, has_base, inode.lower.clone());
            return Ok(Some(Placement { covers: entry.covers, is_moved: has_base, hides_new, ..placement }));
        }
        if here.has_new && !is_directory {
            // The file that the base has there was removed, or moved away with its directory.
            let is_covered = self.is_covered(here, entry).await?;
            return Ok(is_covered.then(|| Placement { covers: true, ..Placement::over(None, false, None) }));
        }
        let lower = here.new_place.clone().filter(|_| is_directory);
        if inode.lower.is_none() && here.has_new && self.is_elsewhere(here, Some(id)) {
            let placement = Placement::over(lower, true, here.old_place.clone());
            return Ok(Some(Placement { covers: true, hides_rest: true, is_detached: true, ..placement }));
        }
        if is_home || !entry.covers || here.old_place.is_none() {
            let hides_new =
                is_home && here.visit.hides_new && lower.as_ref().is_some_and(|place| !is_of_node(tree, place));
            let placement = Placement::over(lower, here.has_new, inode.lower.clone());
            return Ok(Some(Placement { hides_new, ..placement }));
        }
        // Created here in the place of a removed entry.
        if here.has_new && !self.is_covered(here, entry).await? {
            let placement = Placement::over(lower, true, here.old_place.clone());
            return Ok(Some(Placement { hides_rest: true, ..placement }));
        }
        Ok(Some(Placement { covers: here.has_new, ..Placement::over(None, false, None) }))
    }

    /// Returns true if nothing shows of the new base's entry: all of it was removed here.
    async fn is_covered(&self, here: &EntryContext<'_>, entry: Entry) -> Result<bool> {
        match &here.new_place {
            Some(place) if here.has_new => {
                let old = here.old_place.as_ref().filter(|_| entry.covers);
                Ok(here.whiteouts.visibility(old, place).await? == Visibility::Nothing)
            }
            _ => Ok(true),
        }
    }

    async fn file(&mut self, here: EntryContext<'_>, child: Child<'_>) -> Result<()> {
        let Child { id, inode, entry } = child;
        let key = here.visit.old.map(|directory| (directory, here.name.clone()));
        let is_in = |set: &HashSet<(EntryId, Name)>| key.as_ref().is_some_and(|key| set.contains(key));
        let (is_published, is_untracked) = match self.purpose {
            Purpose::Keep { untracked, .. } => (false, is_in(untracked)),
            Purpose::Published { tracked, .. } => (is_in(tracked), false),
        };
        let is_home = inode.lower.is_some() && inode.lower == here.old_place;
        self.has_moved |= is_published && inode.lower.is_some() && !is_home;
        let place = here.new_place.clone().filter(|_| here.has_new);
        // A chunk whose array became a group by the commit is not a chunk any more, and stays as it
        // is.
        let follows = !self.is_published() || place.is_some();
        let is_base = is_published || (is_home && follows && inode.source() == Some(&Source::Lower));
        if let (Some(new), false) = (&place, is_base) {
            // A file changed in its place finds its old form there; anything else must have been
            // removed here.
            let is_own =
                is_home && here.whiteouts.visibility(here.old_place.as_ref(), new).await? == Visibility::Nothing;
            if !is_own && !self.is_covered(&here, entry).await? {
                let is_file = !self.to.tree.is_directory_place(new);
                // A chunk or document created on both sides: conflict detection has already dealt
                // with it.
                if !is_file || is_untracked || inode.source().is_none() {
                    self.out.collisions.push(Collision { path: here.path, is_untracked: true });
                    return Ok(());
                }
            }
        }
        let place = place.filter(|place| !self.to.tree.is_directory_place(place));
        let parent = here.visit.new;
        let name = here.name;
        if let Purpose::Keep { documents, .. } = self.purpose
            && let Some(document) = documents.get(&here.path)
        {
            self.documents.push((parent, name.clone(), document.clone()));
        }
        if let (true, true, 1, Some(place)) = (here.visit.is_detached, is_base, inode.names.len(), &place) {
            self.show_again(parent, name, place, child);
            return Ok(());
        }
        // Files that remain after a commit are those that it did not take.
        let is_untracked = is_untracked || (self.is_published() && !is_base);
        let file = FileName { parent, name, entry, is_base, is_home, is_untracked, place };
        self.names.entry(id).or_default().push(file);
        Ok(())
    }

    /// Drops directories without entries if the base shows them anyway, or if they only showed
    /// entries that the base has lost.
    pub(super) async fn prune_directories(&mut self) -> Result<()> {
        // Children come after their parents.
        while let Some(created) = self.created.pop() {
            let (Some((parent, name)), false) = (created.name, created.is_needed) else { continue };
            let Some(inode) = self.out.state.get(created.id) else { continue };
            if inode.directory().is_none_or(|directory| !directory.is_empty()) {
                continue;
            }
            let number = inode.number;
            let meta = inode.meta;
            if created.has_base {
                let is_plain = self.is_published() || same_but_times(&meta, &self.to.meta(0o755));
                match (number.is_of_base(), is_plain) {
                    (true, true) => self.drop_entry(parent, &name, created.id),
                    (true, false) => {}
                    (false, _) => self.out.disposable.push((parent, name, created.id)),
                }
            } else if self.has_shown_base(created.id, created.old_lower.as_ref()).await? {
                // The base's entries are gone, and there are no other entries.
                self.invalidate_name(parent, &name);
                self.drop_entry(parent, &name, created.id);
            }
        }
        Ok(())
    }

    /// Returns true if directory `id` showed anything of the old base.
    async fn has_shown_base(&self, id: EntryId, lower: Option<&TreePlace>) -> Result<bool> {
        let (Some(place), Some(inode)) = (lower, self.old.get(id)) else { return Ok(false) };
        let tree = &self.from.tree;
        let mut shown = false;
        let mut sink = |entry: icechunkfs_tree::tree::directory::Entry<'_>| {
            if matches!(entry.name, "." | "..") {
                return true;
            }
            let name = Name::new(entry.name.as_bytes());
            let own = inode.directory().and_then(|directory| directory.get(&name));
            // A promoted inode with the base's content shows the base.
            let stands_for = own.and_then(|own| self.old.get(own.id?)).is_some_and(|inode| {
                let is_base = inode.is_directory() || inode.source() == Some(&Source::Lower);
                is_base && inode.lower.is_some() && inode.lower == tree.child_place(place, entry.name)
            });
            shown = own.is_none() || stands_for;
            !shown
        };
        tree.list(tree.table().inode(place), 0, Extent::All, &mut sink).await?;
        Ok(shown)
    }

    pub(super) fn drop_entry(&mut self, parent: EntryId, name: &Name, id: EntryId) {
        self.out.state.leave(parent, name);
        self.out.state.drop_inode(id);
    }

    /// Takes an inode over without names and entries, at place `lower` of the new base.
    pub(super) fn adopt(&mut self, id: EntryId, inode: &Inode, lower: Option<&TreePlace>) {
        let lower = lower.map(|place| numbered(&self.to.tree, place.clone()));
        let meta = self.moved_meta(inode.meta);
        self.out.state.adopt(id, inode, meta, lower);
    }

    /// Replaces times that no program set by those of the new base.
    fn moved_meta(&self, meta: Meta) -> Meta {
        let moved = |time| if time == self.from.time { self.to.time } else { time };
        Meta { atime: moved(meta.atime), mtime: moved(meta.mtime), ctime: moved(meta.ctime), ..meta }
    }

    /// Invalidates `name` of the new state's directory `parent`, for each number by which the
    /// kernel may know the directory.
    pub(super) fn invalidate_name(&mut self, parent: EntryId, name: &Name) {
        let numbers = [self.old.get(parent), self.out.state.get(parent)].into_iter().flatten();
        let numbers: HashSet<Ino> = numbers.map(|inode| inode.number).collect();
        self.out.invalidations.extend(numbers.into_iter().map(|number| Invalidation::Entry(number, name.clone())));
    }
}

/// Entry of a directory that the merge looks at, with the inode that it is of.
#[derive(Clone, Copy)]
pub(super) struct Child<'a> {
    pub(super) id: EntryId,
    pub(super) inode: &'a Inode,
    pub(super) entry: Entry,
}

/// Entry of a directory, and the places of both bases under its name.
pub(super) struct EntryContext<'a> {
    pub(super) visit: &'a Visit,
    pub(super) whiteouts: &'a Whiteouts<'a>,
    pub(super) name: Name,
    pub(super) path: String,
    pub(super) old_place: Option<TreePlace>,
    pub(super) new_place: Option<TreePlace>,
    /// True if the new base has something there.
    pub(super) has_new: bool,
}

impl Placement {
    fn over(lower: Option<TreePlace>, has_base: bool, lower_old: Option<TreePlace>) -> Self {
        Placement {
            lower,
            has_base,
            covers: false,
            lower_old,
            hides_rest: false,
            hides_new: false,
            is_detached: false,
            is_moved: false,
        }
    }
}

pub(super) fn same_but_times(one: &Meta, other: &Meta) -> bool {
    (one.mode, one.uid, one.gid) == (other.mode, other.uid, other.gid)
}
