//! Rebase: moves the working tree to another snapshot by a three-way merge of paths.
//!
//! A refresh, the move after a commit, resuming at a mount and finishing an interrupted commit are
//! all this operation. Only the last of its three steps changes anything:
//!
//! 1. [`TreeMoves::plan_rebase`] builds the state that the tree would have on the new base: a
//!    [`Candidate`].
//! 2. The caller checks the candidate: the changes detected in it must be those detected before, or
//!    none after a commit. The layer above decides whether a file is a chunk, a document or
//!    untracked, so it also makes this check.
//! 3. [`TreeMoves::install`] writes the candidate's journal, durably, and then shows the
//!    candidate.
//!
//! **The merge** goes by path ([`merge`]). Each directory of the working tree is put over the new
//! base's directory of the same path; one that was moved here is put over the same node, wherever
//! that is. Files that programs wrote keep their paths and bytes. A whiteout hides exactly the
//! nodes and chunks that it hid when it was made ([`whiteout`]): entries created under the same
//! name by a concurrent commit show.
//!
//! The tree lock is held for writing throughout, so that no program changes anything. Reads
//! continue and lookup counts change: decisions that depend on them are made last, under the lock.
//! Files of the base that programs have open keep their bytes ([`open_readers`]).

mod additions;
mod candidate;
mod documents;
mod files;
mod merge;
pub(super) mod open_readers;
#[cfg(test)]
mod tests;
mod whiteout;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

pub use self::candidate::Candidate;
use self::merge::{Merge, Merged};
use super::content::FileContents;
use super::invalidation::Invalidation;
use super::kernel_view::ChangedNumbers;
use super::locked::records;
use super::opens::OpenFiles;
use super::replace::TreeGuard;
use super::state::State;
use super::upper::Upper;
use super::{Base, Ino, Locked};
use crate::scratch::journal::RewriteError;
use crate::scratch::record::{DataFileId, EntryId, Name};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::numbering::Numbering;

/// State of the changes with respect to the new base.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// The changes stay uncommitted.
    Keep {
        /// Untracked files, by directory and name: no commit takes them.
        untracked: &'a HashSet<(EntryId, Name)>,
        /// Documents that the new base has changed, too, by path: they get the changes of both.
        documents: &'a MergedFiles,
    },
    /// The changes are in the new base: all deletions, all moves, and the bytes of `tracked`.
    Published {
        /// Files whose bytes the commit took, by directory and name.
        tracked: &'a HashSet<(EntryId, Name)>,
        /// Numbers of the old base in whose places the commit has put other bytes.
        changed: &'a [Ino],
        /// Commits of others that are in the new base, too.
        others: Others<'a>,
    },
}

/// Contents of files, by path.
pub type MergedFiles = HashMap<String, Bytes>;

/// Commits of others in the base that a commit of this mount has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others<'a> {
    /// There are none: what was not changed here is as before.
    Absent,
    /// There are some.
    Merged {
        /// Data files of chunks that were changed here and may have given way to theirs.
        given_up: &'a HashSet<DataFileId>,
    },
}

/// Name of the working tree that no merge can join with the new base's entry of that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Collision {
    /// Path of the name.
    pub path: String,
    /// True if the name is untracked here.
    pub is_untracked: bool,
}

/// Moves of the tree to another snapshot or state: planned beside the live state, then installed.
#[derive(Debug)]
pub struct TreeMoves {
    pub(super) upper: Arc<Upper>,
    pub(super) contents: Arc<FileContents>,
    /// Inode numbers that the bases had so far.
    pub(super) numbering: Mutex<Numbering>,
}

impl TreeMoves {
    pub(super) fn new(contents: &Arc<FileContents>, numbering: Numbering) -> Self {
        TreeMoves {
            upper: Arc::clone(&contents.upper),
            contents: Arc::clone(contents),
            numbering: Mutex::new(numbering),
        }
    }
}

impl TreeMoves {
    /// Plans to move to `tree`. Nothing is changed yet. The caller has called
    /// [`TreeMoves::preserve`].
    pub async fn plan_rebase(
        &self,
        _guard: &TreeGuard<'_>,
        tree: &Arc<Tree>,
        purpose: Purpose<'_>,
    ) -> Result<Candidate> {
        let (old, opens, generation) = self.snapshot();
        let from = self.upper.base();
        let to = Arc::new(Base::new(Arc::clone(tree)));
        let mut merge = Merge::new(&old, &opens, &from, Arc::clone(&to), purpose);
        merge.is_listed = self.upper.listings.is_any_in_progress();
        merge.directories().await?;
        let mut new_data = Vec::new();
        match self.materialize(&merge, &mut new_data).await {
            Ok(parted) => merge.place_files(parted),
            Err(error) => return Err(self.without_files(new_data, error)),
        }
        if let Err(error) = self.write_documents(&mut merge, &mut new_data) {
            return Err(self.without_files(new_data, error));
        }
        merge.prune_directories().await?;
        let is_published = matches!(purpose, Purpose::Published { .. });
        let given_up = match purpose {
            // A document may have been merged with theirs.
            Purpose::Published { others: Others::Merged { given_up }, tracked, .. } => {
                given_up.iter().copied().chain(self.merged_documents(&old, tracked, &to.tree)).collect()
            }
            _ => HashSet::new(),
        };
        let keeps_rest = matches!(purpose, Purpose::Published { others: Others::Absent, .. })
            && !merge.has_moved
            && to.tree.table().has_numbers_of(from.tree.table());
        let changed = match purpose {
            Purpose::Published { changed, .. } if merge.has_moved => changed,
            _ => &[],
        };
        let Merged { state, collisions, invalidations, disposable } = merge.finish();
        let same_backings = self.same_backings((&old, &from), (&state, &to)).await;
        let candidate = Candidate::of(state, to, &old, generation);
        let numbers = ChangedNumbers { of_other_files: changed.to_vec(), ..ChangedNumbers::default() };
        let candidate = Candidate { is_published, given_up, keeps_rest, same_backings, numbers, ..candidate };
        Ok(Candidate { collisions, invalidations, disposable, new_data, ..candidate })
    }

    /// Removes data files of a plan that failed with `error`, which is returned.
    fn without_files(&self, new_data: Vec<DataFileId>, error: Error) -> Error {
        new_data.into_iter().for_each(|number| self.upper.files.remove(number));
        error
    }

    /// Returns the names that would collide with `tree`, with uncommitted changes of which no
    /// commit takes `untracked`.
    pub async fn collisions(&self, tree: &Arc<Tree>, untracked: &HashSet<(EntryId, Name)>) -> Result<Vec<Collision>> {
        let (old, opens, _) = self.snapshot();
        let to = Arc::new(Base::new(Arc::clone(tree)));
        let purpose = Purpose::Keep { untracked, documents: &MergedFiles::new() };
        let mut merge = Merge::new(&old, &opens, &self.upper.base(), to, purpose);
        merge.directories().await?;
        Ok(merge.finish().collisions)
    }

    /// Returns the open files with backings that a commit left to passthrough handles, as far as
    /// the state and base of `from` and those of `to` show the same bytes.
    pub(super) async fn same_backings(&self, from: (&State, &Arc<Base>), to: (&State, &Arc<Base>)) -> HashSet<Ino> {
        let backed: Vec<Ino> = {
            let locked = self.upper.lock();
            let backed = locked.open_files.iter().filter(|(_, open)| open.backing.is_some());
            backed.map(|(number, _)| *number).collect()
        };
        let mut same = HashSet::new();
        for number in backed {
            let (Some(before), Some(after)) = (from.0.base_number(number), to.0.base_number(number)) else { continue };
            let is_same = Arc::ptr_eq(from.1, to.1) && before == after
                || matches!(
                    (from.1.tree.payload_of(before).await, to.1.tree.payload_of(after).await),
                    (Ok(Some(before)), Ok(Some(after))) if before == after
                );
            if is_same {
                same.insert(number);
            }
        }
        same
    }

    /// Copies the state, with the inode numbers of open files and the generation.
    pub(super) fn snapshot(&self) -> (State, HashSet<Ino>, u64) {
        let locked = self.upper.lock();
        (locked.state.clone(), locked.open_files.keys().copied().collect(), locked.generation)
    }

    /// Shows `candidate` after writing its journal durably. Returns the invalidations for the
    /// kernel. The caller has called [`TreeMoves::keep_open_files`].
    ///
    /// If the journal cannot be written, nothing changes, unless the changes are published: the
    /// tree then moves all the same, and accepts no changes until the journal can be written. So it
    /// does if the new journal is in place, but not certain to outlive a power cut.
    pub fn install(&self, _guard: &TreeGuard<'_>, candidate: Candidate) -> Result<Vec<Invalidation>> {
        let mut locked = self.upper.lock();
        if locked.generation != candidate.generation {
            drop(locked);
            self.abandon(candidate);
            return Err(Error::new(ErrorKind::Stale, "the working tree changed while it was moved: try again"));
        }
        let Candidate { mut state, base, disposable, invalidations, gone, new_data, is_published, .. } = candidate;
        let given_up = candidate.given_up;
        let same_backings = candidate.same_backings;
        let ChangedNumbers { old_versions, vacant, mut of_other_files } = candidate.numbers;
        take_counts(&mut state, &locked.state);
        if is_published {
            state.forget_restored();
        } else {
            // Commits that may still become visible: none of them has exactly these changes. They
            // may become visible over another base too, since each is made for the branch's tip.
            let given_up = &locked.state;
            state.unpublished = given_up.unpublished.iter().chain(&given_up.publishing).cloned().collect();
        }
        if !self.upper.listings.is_any_in_progress() {
            drop_unused(&mut state, disposable, &locked.open_files);
        }
        if let Some(id) = state.nameless_shown(&base.tree) {
            let error = Error::new(
                ErrorKind::Io,
                format!("{id} would be in the place of a file of the snapshot, without a name"),
            );
            tracing::error!("{error}");
            if !is_published {
                drop(locked);
                new_data.into_iter().for_each(|number| self.upper.files.remove(number));
                return Err(error.context("the working tree was not moved"));
            }
            state.bind(id, None);
        }
        let replaced = locked.journal.supersede(&records(&locked.origin, &state, &base));
        let (is_written, is_in_place) =
            replaced.as_ref().map_or_else(|failed| (false, failed.is_in_place), |()| (true, true));
        if let Err(RewriteError { error, .. }) = replaced {
            if !is_published && !is_in_place {
                drop(locked);
                new_data.into_iter().for_each(|number| self.upper.files.remove(number));
                return Err(error.context("the scratch directory takes no new journal: nothing was moved"));
            }
            // The next mount reaches the same state: it reads the new journal, or the old one,
            // which records that the commit was about to be published. After a power cut it may
            // read the old one in either case. That one needs its files.
            tracing::error!("{error}; nothing more can be changed until the scratch directory takes its journal again");
        }
        locked.is_stale = !is_in_place;
        let old = std::mem::replace(&mut locked.state, state);
        locked.base = base;
        // A file elsewhere has its number as before.
        of_other_files.retain(|number| !locked.state.is_elsewhere(*number));
        locked.kernel.move_on(vacant, of_other_files.into_iter());
        locked.take_old_versions(old_versions, &old);
        let passthrough_data = locked.release_old_files(&old, is_published.then_some(&given_up), &same_backings);
        // The journal on disk does not need them. Files that passthrough handles still use are
        // removed when those are closed.
        let gone = gone.into_iter().filter(|number| !passthrough_data.contains(number));
        if is_written {
            self.upper.files.remove_in_background(gone.collect());
        } else if is_in_place {
            // They are unlinked once the directory or the next journal has been flushed.
            for number in gone {
                self.upper.durable.retire(number);
            }
        }
        drop(locked);
        self.upper.durable.keep_reserve();
        Ok(invalidations)
    }

    /// Drops a candidate and the data files created for it.
    pub fn abandon(&self, candidate: Candidate) {
        candidate.new_data.into_iter().for_each(|number| self.upper.files.remove(number));
    }
}

impl Locked {
    /// Releases the data files of open files whose bytes are elsewhere now, after the state `old`,
    /// and the backings of passthrough handles that do not have the file's bytes any more: only
    /// their handles use them then. `given_up` and `same_backings` are those of the candidate;
    /// without `given_up` the changes are not in the base. Returns the data files of the remaining
    /// backings.
    fn release_old_files(
        &mut self,
        old: &State,
        given_up: Option<&HashSet<DataFileId>>,
        same_backings: &HashSet<Ino>,
    ) -> HashSet<DataFileId> {
        let Locked { state, open_files, kernel, .. } = self;
        let mut backings = HashSet::new();
        for (number, open) in open_files.iter_mut() {
            let data_file = |state: &State| state.by_number(*number).and_then(|id| state.get(id)?.data_file());
            let before = data_file(old);
            let current = data_file(state);
            if current.is_none() {
                open.file = None;
            }
            open.backing = open.backing.take().filter(|(data, _)| match (before, current) {
                (_, Some(current)) => *data == current,
                (Some(before), None) => *data == before && given_up.is_some_and(|given_up| !given_up.contains(data)),
                (None, None) => same_backings.contains(number) || kernel.is_old_version(*number),
            });
            backings.extend(open.backing.as_ref().map(|(data, _)| *data));
        }
        backings
    }
}

/// Drops those of the `disposable` entries that nobody knows of any more, so that the base is seen.
fn drop_unused(state: &mut State, disposable: Vec<(EntryId, Name, EntryId)>, open_files: &OpenFiles) {
    for (parent, name, id) in disposable {
        // Another inode may have got the name since.
        let entry = state.get(parent).and_then(|parent| parent.directory()?.get(&name));
        if entry.is_none_or(|entry| entry.id != Some(id)) {
            continue;
        }
        let is_known = state.get(id).is_some_and(|inode| {
            let has_entries = inode.directory().is_some_and(|directory| !directory.is_empty());
            // The number of the base would be that of a file without a name, which programs have
            // open.
            let is_taken = inode.lower_number.is_some_and(|number| state.is_nameless(number));
            has_entries || is_taken || inode.lookup_count > 0 || open_files.contains_key(&inode.number)
        });
        if !is_known {
            state.leave(parent, &name);
            state.drop_inode(id);
        }
    }
}

/// Takes the lookup counts, and the numbers used since `live` was copied, over into `state`.
fn take_counts(state: &mut State, live: &State) {
    for (id, inode) in live.iter() {
        if let Some(new) = state.get_mut(id) {
            new.lookup_count = inode.lookup_count;
        }
    }
    state.fresh.follow(live.fresh);
}
