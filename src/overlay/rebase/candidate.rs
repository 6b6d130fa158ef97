//! A candidate: a state for the working tree that is checked before it is installed.

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

/// State over another base.
#[derive(Debug)]
pub struct Candidate {
    /// Names that collide. With any, the candidate must not be installed.
    pub collisions: Vec<Collision>,
    /// Files that a discard must keep.
    pub kept: HashSet<Id>,
    pub(in super::super) state: State,
    pub(in super::super) base: Arc<Base>,
    /// Entries that the base has too, kept only if the kernel knows their inodes by numbers of the working tree.
    pub(in super::super) disposable: Vec<(Id, Name, Id)>,
    /// Invalidations that the installation requires.
    pub(in super::super) invalidations: Vec<Invalidation>,
    /// Data files that are not needed any more.
    pub(in super::super) gone: Vec<u64>,
    /// Data files that were created for the candidate.
    pub(in super::super) new_data: Vec<u64>,
    /// True if the changes are in the base. Passthrough handles then continue with the same bytes.
    pub(in super::super) is_published: bool,
    /// Generation of the state that the candidate was made from.
    pub(in super::super) generation: u64,
}

impl Candidate {
    pub(super) fn new(merged: Merged, base: Arc<Base>, old: &State, new_data: Vec<u64>, generation: u64) -> Self {
        let Merged { state, collisions, invalidations, disposable } = merged;
        Candidate::of(state, base, old, generation).with(collisions, invalidations, disposable, new_data)
    }

    /// Creates a candidate of `state` over `base`, to replace `old`.
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

    /// Returns the differences from the base.
    pub fn frozen(&self) -> Frozen {
        Frozen::of_state(&self.state)
    }

    /// Returns the base.
    pub fn base(&self) -> &Arc<Base> {
        &self.base
    }

    /// Returns access to the bytes of the files, of which `working` has the data files.
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

/// Bytes of a candidate's files.
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
