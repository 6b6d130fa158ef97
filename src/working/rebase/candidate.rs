//! A state that the working tree may take on, to be looked at before it does.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::super::frozen::{Contents, Frozen, FrozenFile};
use super::super::replace::Invalidation;
use super::super::state::State;
use super::super::{Base, WorkingTree};
use super::Collision;
use super::merge::Merged;
use crate::commit::changes::ChunkFile;
use crate::error::Result;
use crate::scratch::record::{Id, Name, Source};

/// A state on another base.
#[derive(Debug)]
pub struct Candidate {
    /// Names that stand in each other's way. With any, it must not be installed.
    pub collisions: Vec<Collision>,
    /// Files that a discard must keep.
    pub kept: HashSet<Id>,
    pub(in super::super) state: State,
    pub(in super::super) base: Arc<Base>,
    /// Entries that are the base's own: kept only for inodes that the kernel knows by numbers of ours.
    pub(in super::super) disposable: Vec<(Id, Name, Id)>,
    /// What the kernel must be told.
    pub(in super::super) invalidations: Vec<Invalidation>,
    /// Data files that nobody needs any more.
    pub(in super::super) gone: Vec<u64>,
    /// Data files that were made for it.
    pub(in super::super) new_data: Vec<u64>,
    /// Whether the changes are in the base. Then programs that read a file by the kernel's own means go on with the same bytes.
    pub(in super::super) is_published: bool,
    /// The generation of the state that it was made of.
    pub(in super::super) generation: u64,
}

impl Candidate {
    pub(super) fn new(merged: Merged, base: Arc<Base>, old: &State, new_data: Vec<u64>, generation: u64) -> Self {
        let Merged { state, collisions, invalidations, disposable } = merged;
        Candidate::of(state, base, old, generation).with(collisions, invalidations, disposable, new_data)
    }

    /// A candidate of `state` over `base`, in the place of `old`.
    pub(in super::super) fn of(mut state: State, base: Arc<Base>, old: &State, generation: u64) -> Self {
        let used = data_of(&state);
        state.forget_borrowed(&used);
        let gone = data_of(old).difference(&used).copied().collect();
        let (collisions, invalidations, disposable, new_data, kept) = Default::default();
        let is_published = false;
        Candidate { collisions, kept, state, base, disposable, invalidations, gone, new_data, is_published, generation }
    }

    fn with(
        self,
        collisions: Vec<Collision>,
        invalidations: Vec<Invalidation>,
        disposable: Vec<(Id, Name, Id)>,
        new_data: Vec<u64>,
    ) -> Self {
        Candidate { collisions, invalidations, disposable, new_data, ..self }
    }

    /// What differs from its base.
    pub fn frozen(&self) -> Frozen {
        Frozen::of_state(&self.state)
    }

    /// Its base.
    pub fn base(&self) -> &Arc<Base> {
        &self.base
    }

    /// The bytes of its files, of which `working` has those that wait in the scratch directory.
    pub fn contents<'a>(&'a self, working: &'a WorkingTree) -> CandidateContents<'a> {
        CandidateContents { working, base: Arc::clone(&self.base) }
    }
}

fn data_of(state: &State) -> HashSet<u64> {
    let data = state.iter().filter_map(|(_, inode)| match inode.source() {
        Some(Source::Data(number)) => Some(*number),
        _ => None,
    });
    data.collect()
}

/// The bytes of a candidate's files.
pub struct CandidateContents<'a> {
    working: &'a WorkingTree,
    base: Arc<Base>,
}

#[async_trait]
impl Contents for CandidateContents<'_> {
    fn changed(&self, number: u64) -> Result<Option<ChunkFile>> {
        self.working.changed(number)
    }

    async fn whole(&self, file: &FrozenFile, limit: u64) -> Result<Bytes> {
        self.working.whole_over(&self.base, file, limit).await
    }
}
