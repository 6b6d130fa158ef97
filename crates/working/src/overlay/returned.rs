//! The result of a discard: the base paths that show the base again, and the entries that stay.
//!
//! A directory that does not stay leaves its base path to the base. Everything that comes from
//! below that path would then be in two places with one inode number, so it does not stay either: a
//! directory goes back too, which can free further base paths, and the names of a file are parted
//! from it ([`TreeMoves::part_staying`]).

use std::collections::HashSet;

use super::Base;
use super::listing::join;
use super::node::{Directory, Ino, Inode};
use super::rebase::TreeMoves;
use super::state::State;
use crate::scratch::record::{Body, DataFileId, EntryId, Name, ROOT, Source};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_repo::compare::scope::is_below;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{TreePlace, ZARR_JSON};

/// Paths of nodes that a discard puts back, for the check of its result.
#[derive(Clone, Debug, Default)]
pub struct Returned {
    /// The discarded path.
    path: String,
    /// Base paths that show the base again.
    homes: HashSet<String>,
    /// Present paths of moved nodes that have one of their two paths at or below the discarded
    /// path, or are in such a node.
    discarded: HashSet<String>,
    /// Present paths of all nodes that go back.
    moved: HashSet<String>,
}

/// Entries that stay in a discard.
#[derive(Debug, Default)]
pub(super) struct Staying {
    /// Directories that stay in their places.
    directories: HashSet<EntryId>,
    /// Inodes with a name that stays.
    pub(super) inodes: HashSet<EntryId>,
}

impl Returned {
    /// Finds the directories of `state` that go back if the changes at and below `path` are
    /// discarded, and what stays.
    pub(super) fn find(state: &State, tree: &Tree, path: &str) -> (Self, Staying) {
        let mut returned =
            Returned { path: path.to_owned(), homes: HashSet::from([path.to_owned()]), ..Self::default() };
        loop {
            let known = returned.homes.len();
            let staying = returned.walk(state, tree);
            if known == 1 {
                returned.discarded.clone_from(&returned.moved);
            }
            if returned.homes.len() == known {
                return (returned, staying);
            }
        }
    }

    /// Adds the base paths of the directories that do not stay. Returns what stays, if no path was
    /// added.
    fn walk(&mut self, state: &State, tree: &Tree) -> Staying {
        let mut staying = Staying::default();
        // Additions take effect in the next walk, so that the first one knows only the discarded
        // path.
        let mut homes = Vec::new();
        let mut pending = vec![(ROOT, "/".to_owned(), true)];
        let mut seen = HashSet::new();
        while let Some((parent, path, stays)) = pending.pop() {
            let Some(inode) = state.get(parent).filter(|_| seen.insert(parent)) else { continue };
            if stays {
                staying.directories.insert(parent);
            }
            for (name, entry) in inode.directory().into_iter().flat_map(Directory::entries) {
                let Some((id, child)) = entry.id.and_then(|id| Some((id, state.get(id)?))) else { continue };
                let at = join(&path, &name.to_string());
                let stays = stays && self.stays(tree, &at, child);
                if stays {
                    staying.inodes.insert(id);
                }
                if !child.is_directory() {
                    continue;
                }
                if !stays && let Some(place) = &child.lower {
                    if matches!(place, TreePlace::Directory(_)) {
                        self.moved.insert(at.clone());
                    }
                    homes.push(tree.path_of(place));
                }
                pending.push((id, at, stays));
            }
        }
        for home in homes {
            if !is_in(&self.homes, &home) {
                self.homes.insert(home);
            }
        }
        staying
    }

    /// Returns true if an inode at `at` stays there, provided that the directory above does.
    pub(super) fn stays(&self, tree: &Tree, at: &str, inode: &Inode) -> bool {
        !is_below(at, &self.path) && !self.goes_back(tree, inode)
    }

    /// Returns true if the base shows the place of the inode again.
    fn goes_back(&self, tree: &Tree, inode: &Inode) -> bool {
        inode.lower.as_ref().is_some_and(|place| is_in(&self.homes, &tree.path_of(place)))
    }

    /// Returns true if a discard may drop a change at `now`, a path that was `before` in the base.
    pub fn may_drop(&self, now: &str, before: Option<&str>) -> bool {
        let is_at_path = |path: &str| is_below(path, &self.path);
        is_at_path(now) || before.is_some_and(is_at_path) || is_in(&self.discarded, now)
    }

    /// Returns the node whose document alone is discarded, if any.
    pub fn document_of(&self) -> Option<&str> {
        let node = self.path.strip_suffix(ZARR_JSON)?.strip_suffix('/')?;
        Some(if node.is_empty() { "/" } else { node })
    }

    /// Returns true if a discard may take back a move.
    pub fn may_return(&self, from: &str, to: &str) -> bool {
        is_below(to, &self.path) || is_in(&self.homes, from) || is_in(&self.moved, to)
    }
}

/// Returns true if `paths` has `path` or a path above it.
fn is_in(paths: &HashSet<String>, path: &str) -> bool {
    let mut at = path;
    loop {
        if paths.contains(at) {
            return true;
        }
        at = match at.rsplit_once('/') {
            Some(("", "")) | None => return false,
            Some(("", _)) => "/",
            Some((above, _)) => above,
        };
    }
}

impl TreeMoves {
    /// Parts the names that stay from files whose place shows the base again: they keep their bytes
    /// as files that are not of the base.
    ///
    /// Fails with [`ErrorKind::Busy`] if such a file is open: its handles would follow the other
    /// file.
    pub(super) async fn part_staying(
        &self,
        state: &mut State,
        opens: &HashSet<Ino>,
        base: &Base,
        returned: &Returned,
        staying: &Staying,
        new_data: &mut Vec<DataFileId>,
    ) -> Result<()> {
        let goes_back = |inode: &Inode| !inode.is_directory() && returned.goes_back(&base.tree, inode);
        let files: Vec<EntryId> = state.iter().filter(|(_, inode)| goes_back(inode)).map(|(id, _)| id).collect();
        for id in files {
            let Some(inode) = state.get(id).cloned() else { continue };
            let path_of = |(parent, name): &(EntryId, Name)| {
                Some(join(&state.path(*parent).unwrap_or_default(), &name.to_string()))
                    .filter(|path| staying.directories.contains(parent) && !is_below(path, &returned.path))
            };
            let names: Vec<((EntryId, Name), String)> =
                inode.names.iter().filter_map(|name| Some((name.clone(), path_of(name)?))).collect();
            let (Some((_, path)), Body::File(source)) = (names.first(), &inode.body) else { continue };
            if opens.contains(&inode.number) {
                let message = format!("{path} is open, and comes from what is discarded: close it first");
                return Err(Error::new(ErrorKind::Busy, message));
            }
            let source = match source {
                Source::Lower => self.part(&base.tree, &inode, false, new_data).await?,
                Source::Stored(_) | Source::Data(_) => source.clone(),
            };
            let new = state.fresh.next_entry();
            state.insert_bare(new, new.ino(), Body::File(source), inode.meta, 0);
            for ((parent, name), _) in names {
                let Some(entry) = state.get(parent).and_then(|inode| inode.directory()?.get(&name)) else { continue };
                state.leave(parent, &name);
                state.put_entry(parent, name, Some(new), entry.covers, Some(entry.order));
            }
            // A data file belongs to one inode. The other names show the base again.
            if let Some(inode) = state.get_mut(id) {
                inode.body = Body::File(Source::Lower);
            }
        }
        Ok(())
    }
}

/// Fails if the base shows a place again that an inode shows elsewhere: two files would have
/// one inode number.
pub(super) fn check_shown_once(state: &State, tree: &Tree) -> Result<()> {
    for (id, inode) in state.iter().filter(|(id, inode)| *id != ROOT && !inode.names.is_empty()) {
        if let Some(place) = inode.lower.as_ref().filter(|place| state.shows_base_at(tree, place)) {
            let now = state.path(id).unwrap_or_default();
            let home = tree.path_of(place);
            let message = format!(
                "{now} comes from {home}, which would be there too: discard {now} first, or commit; nothing was changed"
            );
            return Err(Error::new(ErrorKind::Stale, message));
        }
    }
    Ok(())
}
