//! Discard: removes the changes at a path and everywhere below.
//!
//! The state is rebuilt from the parts that stay, which is easier to verify than undoing single
//! changes:
//!
//! - changes outside the path stay, but nodes that were moved there from below the path go back
//!   ([`super::returned`]);
//! - below the path only untracked files stay, since no commit would take them; those in a moved
//!   directory go back with it;
//! - the base's entries below the path show again in their places, and so do entries moved from
//!   elsewhere to below the path.

use std::collections::HashSet;

use futures_util::FutureExt;

use super::invalidation::Invalidation;
use super::listing::join;
use super::node::{Directory, Entry, Ino, Inode};
use super::returned::Returned;
use super::state::{State, numbered};
use crate::scratch::record::{EntryId, Meta, Name, ROOT, Time};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_repo::compare::scope::is_below;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::TreePlace;

/// Plan of a discard, before anything is changed.
pub(super) struct Discard<'a> {
    pub(super) state: &'a State,
    /// Inode numbers of open files.
    pub(super) opens: &'a HashSet<Ino>,
    pub(super) tree: &'a Tree,
    pub(super) path: &'a str,
    /// Base paths that show the base again.
    pub(super) returned: &'a Returned,
    /// Inodes with a name that stays.
    pub(super) staying: &'a HashSet<EntryId>,
    /// Untracked files that do not take the place of an entry of the base.
    pub(super) untracked: &'a HashSet<(EntryId, Name)>,
    /// Entries that stay, with directory and name.
    pub(super) kept: Vec<(EntryId, Name, Entry)>,
    /// Untracked files that stay, with their final paths. They keep their places in listings.
    pub(super) relocated: Vec<(String, EntryId, u64)>,
}

impl Discard<'_> {
    /// Finds the entries and untracked files that stay.
    pub(super) fn walk(&mut self) {
        // Directories, with their path, their final path, and whether they stay in place.
        let mut pending = vec![(ROOT, "/".to_owned(), "/".to_owned(), true)];
        let mut seen = HashSet::new();
        while let Some((parent, path, home, stays)) = pending.pop() {
            let Some(inode) = self.state.get(parent).filter(|_| seen.insert(parent)) else { continue };
            for (name, entry) in inode.directory().into_iter().flat_map(Directory::entries) {
                let at = join(&path, &name.to_string());
                let natural = inode.lower.as_ref().and_then(|place| self.tree.child_place(place, name.text()?));
                let Some(id) = entry.id else {
                    if stays && self.stays_hidden(&at, natural) {
                        self.kept.push((parent, name.clone(), entry));
                    }
                    continue;
                };
                let Some(child) = self.state.get(id) else { continue };
                let stays = stays && self.returned.stays(self.tree, &at, child);
                let own_home = match &child.lower {
                    Some(place) => self.tree.path_of(place),
                    None => join(&home, &name.to_string()),
                };
                if stays {
                    self.kept.push((parent, name.clone(), entry));
                }
                if child.is_directory() {
                    pending.push((id, at, own_home, stays));
                } else if !stays && self.untracked.contains(&(parent, name.clone())) {
                    self.relocated.push((join(&home, &name.to_string()), id, entry.order));
                }
            }
        }
    }

    /// Returns true if a whiteout stays: it is outside the path, and the inode that had the name is
    /// gone or stays elsewhere.
    fn stays_hidden(&self, path: &str, natural: Option<TreePlace>) -> bool {
        if is_below(path, self.path) {
            return false;
        }
        let moved = natural.and_then(|place| self.state.at_place(self.tree, &place));
        moved.is_none_or(|id| {
            self.staying.contains(&id) || self.state.get(id).is_none_or(|inode| inode.names.is_empty())
        })
    }

    /// Returns the new state, and the invalidations that it requires. `meta` returns the attributes
    /// of directories that have to be created.
    ///
    /// Fails with [`ErrorKind::NotADirectory`], without a change, if a file that stays has no
    /// directory to be in.
    pub(super) fn carry_out(self, meta: impl Fn(&TreePlace) -> Meta) -> Result<(State, Vec<Invalidation>)> {
        self.check_ancestors()?;
        let invalidations = self.invalidations();
        let mut new = self.state.successor();
        let root = self.state.get(ROOT).ok_or_else(|| Error::corrupt("a state without a root"))?;
        new.adopt(ROOT, root, root.meta, root.lower.clone().map(|place| (place, Ino::ROOT)));
        let mut taken: HashSet<EntryId> = HashSet::new();
        for (parent, name, entry) in &self.kept {
            if let Some(id) = &entry.id
                && taken.insert(*id)
                && let Some(inode) = self.state.get(*id)
            {
                self.take_over(&mut new, *id, inode, inode.lower.clone().map(|place| numbered(self.tree, place)));
            }
            new.put_entry(*parent, name.clone(), entry.id, entry.covers, Some(entry.order));
        }
        for (path, id, order) in &self.relocated {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            let parent = self.directory(&mut new, above, &meta)?;
            if taken.insert(*id)
                && let Some(inode) = self.state.get(*id)
            {
                self.take_over(&mut new, *id, inode, None);
            }
            new.put_entry(parent, Name::new(name.as_bytes()), Some(*id), false, Some(*order));
        }
        self.keep_open_files(&mut new, &taken);
        Ok((new, invalidations))
    }

    /// Takes `inode` over to `new`, at `lower`. One that is open keeps its number, by which its
    /// handles know it: what the base has in the place of that number gets another one.
    fn take_over(&self, new: &mut State, id: EntryId, inode: &Inode, lower: Option<(TreePlace, Ino)>) {
        if self.opens.contains(&inode.number) && !inode.is_directory() {
            new.insert_bare(id, inode.number, inode.body.clone(), inode.meta, inode.lookup_count);
            new.bind(id, lower);
        } else {
            new.adopt(id, inode, inode.meta, lower);
        }
    }

    /// Refuses a path below a directory that was deleted or replaced: the base's entries could not
    /// show again there.
    fn check_ancestors(&self) -> Result<()> {
        if !self.tree.place_of(self.path).is_some_and(|place| self.is_there(&place)) {
            return Ok(());
        }
        let mut at = ROOT;
        let mut above = String::new();
        let parts: Vec<&str> = self.path.split('/').filter(|part| !part.is_empty()).collect();
        for part in parts.iter().take(parts.len().saturating_sub(1)) {
            above = format!("{above}/{part}");
            let Some(inode) = self.state.get(at) else { return Ok(()) };
            let natural = inode.lower.as_ref().and_then(|place| self.tree.child_place(place, part));
            let entry = inode.directory().and_then(|directory| directory.get(&Name::new(part.as_bytes())));
            match entry.map(|entry| entry.id) {
                None => return Ok(()),
                Some(Some(id)) if self.state.get(id).is_some_and(|child| child.lower == natural) => at = id,
                Some(_) => {
                    let message = format!(
                        "{above} was deleted, moved or recreated: discard that, which restores everything below it"
                    );
                    return Err(Error::new(ErrorKind::NotFound, message));
                }
            }
        }
        Ok(())
    }

    /// Returns the directory at `path` of the new state, created or promoted if needed.
    fn directory(&self, new: &mut State, path: &str, meta: &impl Fn(&TreePlace) -> Meta) -> Result<EntryId> {
        let mut at = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let name = Name::new(part.as_bytes());
            let inode = new.get(at).ok_or_else(|| Error::corrupt("a directory that is not there"))?;
            let natural = inode.lower.as_ref().and_then(|place| self.tree.child_place(place, part));
            let entry = inode.directory().and_then(|directory| directory.get(&name)).and_then(|entry| entry.id);
            at = match (entry, natural) {
                (Some(id), _) => id,
                (None, Some(place)) if self.tree.is_directory_place(&place) => {
                    let meta = meta(&place);
                    new.make_directory(at, name, meta, Some(numbered(self.tree, place)))
                }
                (None, Some(place)) if self.is_there(&place) => {
                    return Err(Error::new(
                        ErrorKind::NotADirectory,
                        format!("{path} is a file in the snapshot and has files below it now: move those away first"),
                    ));
                }
                (None, _) => {
                    let now = Time::now();
                    let root = Meta { atime: now, mtime: now, ctime: now, ..meta(&TreePlace::Directory(0)) };
                    new.make_directory(at, name, root, None)
                }
            };
            if !new.get(at).is_some_and(Inode::is_directory) {
                return Err(Error::new(ErrorKind::NotADirectory, format!("{path}: {part} is a file")));
            }
        }
        Ok(at)
    }

    /// Returns true unless the base is known, without waiting, to have nothing at `place`.
    fn is_there(&self, place: &TreePlace) -> bool {
        match place {
            TreePlace::Chunk(node, coords) => {
                let Some(chunks) = self.tree.chunks(*node) else { return false };
                if self.tree.is_directory_place(place) {
                    return !matches!(chunks.any_below(coords).now_or_never(), Some(Ok(false)));
                }
                !matches!(chunks.find(coords).now_or_never(), Some(Ok(None)))
            }
            _ => true,
        }
    }

    /// Keeps discarded files that are open, for their handles.
    fn keep_open_files(&self, new: &mut State, kept: &HashSet<EntryId>) {
        for (id, inode) in self.state.iter().filter(|(id, _)| *id != ROOT && !kept.contains(id)) {
            if !self.opens.contains(&inode.number) || inode.is_directory() {
                continue;
            }
            // Its handles know it by its number. The bytes are of no other inode.
            new.insert_bare(id, inode.number, inode.body.clone(), inode.meta, inode.lookup_count);
        }
    }

    /// Lists everything that may have another meaning now: all names, and the files of the base
    /// that were promoted.
    fn invalidations(&self) -> Vec<Invalidation> {
        let mut invalidations = Vec::new();
        for (_, inode) in self.state.iter() {
            if inode.number.is_of_base() && !inode.is_directory() {
                invalidations.push(Invalidation::Inode(inode.number));
            }
            for (name, _) in inode.directory().into_iter().flat_map(Directory::entries) {
                invalidations.push(Invalidation::Entry(inode.number, name.clone()));
            }
        }
        invalidations
    }
}
