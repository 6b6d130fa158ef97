//! Rebase: putting the working tree on another snapshot, by a three-way merge of paths.
//!
//! A refresh, the move after a commit, resuming at a mount and finishing an interrupted commit are this one operation. It has
//! three steps, of which only the last one changes anything:
//!
//! 1. [`WorkingTree::plan_rebase`] builds the state that the tree would have on the new base: a [`Candidate`].
//! 2. The caller checks the candidate: the changes that are detected in it must be those that were detected before, or none
//!    after a commit. What a file is (a chunk, a document, untracked) is decided above this module, and so is the check.
//! 3. [`WorkingTree::install`] writes the candidate's journal, durably, and then shows it.
//!
//! **The merge** goes by path ([`merge`]). Each directory of the working tree is put over whatever the new base has under its
//! path, unless it was moved here: then over the same node, wherever that is. What programs wrote keeps its path and its bytes.
//! A whiteout hides what it hid when it was made, by node id and chunk coordinates, and nothing else ([`whiteout`]): whatever
//! others put under the same name since shows.
//!
//! The gate is held for writing throughout, so that no program changes anything meanwhile. Programs go on reading, the kernel
//! goes on counting: what depends on that is decided last, under the lock.

mod candidate;
mod files;
mod merge;
mod whiteout;

use std::collections::HashSet;
use std::sync::Arc;

pub use self::candidate::Candidate;
use self::merge::Merge;
use super::replace::{Invalidation, TreeGuard};
use super::state::{Node, UPPER};
use super::{Base, Locked, WorkingTree};
use crate::error::{Error, ErrorKind, Result};
use crate::scratch::record::{Id, Name, Source};
use crate::tree::Tree;

/// What becomes of the changes.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// They stay uncommitted. Of these names no commit takes anything.
    Keep {
        /// Untracked files, by directory and name.
        untracked: &'a HashSet<(Id, Name)>,
    },
    /// They are in the new base: the bytes of these names, by directory and name, and everything that was deleted or moved.
    Published {
        /// Files whose bytes the commit took.
        tracked: &'a HashSet<(Id, Name)>,
    },
}

/// A name of the working tree under which the new base has something else, which no merge can join with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Collision {
    /// Where.
    pub path: String,
    /// Whether the name is untracked here.
    pub is_untracked: bool,
}

impl WorkingTree {
    /// Plans to put the tree on `tree`. Nothing is changed yet; a dry run only finds collisions and must not be installed.
    ///
    /// The caller holds the tree guard, and has called [`WorkingTree::preserve`] unless it is a dry run.
    pub async fn plan_rebase(&self, tree: &Arc<Tree>, purpose: Purpose<'_>, is_dry_run: bool) -> Result<Candidate> {
        let (old, opens, generation) = {
            let locked = self.lock();
            (locked.state.clone(), locked.opens.numbers().collect(), locked.generation)
        };
        let (from, to) = (self.base(), Arc::new(Base::new(Arc::clone(tree))));
        let mut merge = Merge::new(&old, &opens, &from, Arc::clone(&to), purpose);
        merge.directories().await?;
        let mut new_data = Vec::new();
        if !is_dry_run {
            match self.materialize(&merge, &mut new_data).await {
                Ok(parted) => merge.place_files(parted),
                Err(error) => {
                    new_data.into_iter().for_each(|number| self.files.remove(number));
                    return Err(error);
                }
            }
            merge.prune_directories().await?;
        }
        let merged = merge.finish();
        let is_published = matches!(purpose, Purpose::Published { .. });
        Ok(Candidate { is_published, ..Candidate::new(merged, to, &old, new_data, generation) })
    }

    /// Shows `candidate`, after its journal is on disk. Returns what the kernel must be told.
    ///
    /// If the journal cannot be written, nothing is changed, unless the changes have been published: then the tree moves all the
    /// same, and takes no more changes until the journal can be written.
    pub fn install(&self, _guard: &TreeGuard<'_>, candidate: Candidate) -> Result<Vec<Invalidation>> {
        let mut locked = self.lock();
        if locked.generation != candidate.generation {
            drop(locked);
            self.abandon(candidate);
            return Err(Error::new(ErrorKind::Stale, "the working tree changed while it was moved: try again"));
        }
        let Candidate { mut state, base, disposable, invalidations, gone, new_data, is_published, .. } = candidate;
        state.take_counts(&locked.state);
        if !is_published {
            state.take_unpublished(&locked.state);
        }
        for (parent, name, id) in disposable {
            let is_known = state.get(id).is_some_and(|inode| {
                let has_entries = inode.directory().is_some_and(|directory| !directory.is_clean());
                has_entries || inode.lookups > 0 || locked.opens.get(inode.number).is_some()
            });
            if !is_known {
                state.leave(parent, &name);
                state.drop_inode(id);
            }
        }
        let replaced = self.replace_journal(&mut locked, &state, &base);
        let is_written = replaced.is_ok();
        if let Err(error) = replaced {
            if !is_published {
                drop(locked);
                new_data.into_iter().for_each(|number| self.files.remove(number));
                return Err(error.context("the scratch directory takes no new journal: nothing was moved"));
            }
            // The commit is there, and the journal of before says so: the next mount comes to the same. It still needs its files.
            locked.stale = true;
            tracing::error!("{error}; nothing more can be changed until the scratch directory takes its journal again");
        }
        locked.state = state;
        *self.base.write() = base;
        if !is_published {
            locked.drop_backings();
        }
        let backed = locked.forget_old_files();
        drop(locked);
        // The journal on disk needs them no longer. What the kernel still reads by itself goes when it is closed.
        if is_written {
            self.files.remove_in_background(gone.into_iter().filter(|number| !backed.contains(number)).collect());
        }
        self.lock().journal.keep_spare();
        Ok(invalidations)
    }

    /// Gives up a candidate.
    pub fn abandon(&self, candidate: Candidate) {
        candidate.new_data.into_iter().for_each(|number| self.files.remove(number));
    }
}

impl Locked {
    /// Open files whose bytes are elsewhere now let go of their data files. Returns the data files that the kernel still reads
    /// by itself.
    fn forget_old_files(&mut self) -> HashSet<u64> {
        let Locked { state, opens, .. } = self;
        let mut backed = HashSet::new();
        for (number, open) in opens.iter_mut() {
            let source = state.by_number(number).and_then(|id| state.get(id)?.source().cloned());
            match source {
                Some(Source::Data(_)) => {}
                _ => open.file = None,
            }
            if let Some((data, _)) = &open.backing {
                backed.insert(*data);
            }
        }
        backed
    }
}

impl super::state::State {
    /// Takes over how often the kernel was told of each inode, and the numbers given out since `live` was copied.
    fn take_counts(&mut self, live: &super::state::State) {
        let counts: Vec<(Id, u64)> = live.iter().map(|(id, inode)| (id, inode.lookups)).collect();
        for (id, lookups) in counts {
            if let Some(inode) = self.get_mut(id) {
                inode.lookups = lookups;
            }
        }
        self.go_on_from(live);
    }

    /// Takes over the commits of `old` that may yet become visible: none of them is of exactly these changes. They may do so over
    /// another base, too, since a commit of ours is made for the branch's newest one.
    fn take_unpublished(&mut self, old: &super::state::State) {
        self.unpublished = old.unpublished.iter().chain(&old.publishing).cloned().collect();
    }
}

/// Whether `number` is one that the base gives, not one of the working tree's own.
fn is_of_base(number: u64) -> bool {
    number < UPPER
}

/// The node of an inode without entries and names, for another state.
fn bare(node: &Node) -> Node {
    match node {
        Node::Directory(_) => Node::Directory(super::state::Directory::default()),
        Node::File(source) => Node::File(source.clone()),
        Node::Symlink(target) => Node::Symlink(target.clone()),
        Node::Special { kind, rdev } => Node::Special { kind: *kind, rdev: *rdev },
    }
}
