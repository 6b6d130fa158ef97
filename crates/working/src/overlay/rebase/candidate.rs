//! A candidate: a state for the working tree that is checked before it is installed.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::super::content::FileContents;
use super::super::frozen::{Contents, Frozen, FrozenFile};
use super::super::invalidation::Invalidation;
use super::super::kernel_view::ChangedNumbers;
use super::super::returned::Returned;
use super::super::state::State;
use super::super::{Base, Ino};
use super::Collision;
use crate::scratch::record::{DataFileId, EntryId, Name};
use icechunkfs_base::error::Result;
use icechunkfs_repo::commit::changes::ChunkFile;

/// State over another base.
#[derive(Debug)]
pub struct Candidate {
    /// Names that collide. With any, the candidate must not be installed.
    pub collisions: Vec<Collision>,
    /// Files that a discard must keep.
    pub kept: HashSet<EntryId>,
    /// Nodes that a discard puts back.
    pub returned: Returned,
    pub(in super::super) state: State,
    pub(in super::super) base: Arc<Base>,
    /// Entries that the base has too, kept only if the kernel knows their inodes by numbers of the
    /// working tree.
    pub(in super::super) disposable: Vec<(EntryId, Name, EntryId)>,
    /// Invalidations that the installation requires.
    pub(in super::super) invalidations: Vec<Invalidation>,
    /// Data files that are not needed any more.
    pub(in super::super) gone: Vec<DataFileId>,
    /// Data files that were created for the candidate.
    pub(in super::super) new_data: Vec<DataFileId>,
    /// True if the changes are in the base.
    pub(in super::super) is_published: bool,
    /// Data files whose bytes the base need not have, though the changes are in it. New passthrough
    /// handles of the others continue with the backing of those before.
    pub(in super::super) given_up: HashSet<DataFileId>,
    /// True if all files that are not changed have the same numbers and bytes in the base as
    /// before.
    pub(in super::super) keeps_rest: bool,
    /// Files with a backing that a commit left to its passthrough handles, if both bases have the
    /// same bytes of them.
    pub(in super::super) same_backings: HashSet<Ino>,
    /// Files that were open to read and that the candidate was compared with.
    pub(in super::super) seen: HashSet<Ino>,
    /// Numbers that the kernel knows with another meaning.
    pub(in super::super) numbers: ChangedNumbers,
    /// Generation of the state that the candidate was made from.
    pub(in super::super) generation: u64,
}

impl Candidate {
    /// Creates a candidate of `state` over `base`, to replace `old`.
    pub(in super::super) fn of(mut state: State, base: Arc<Base>, old: &State, generation: u64) -> Self {
        let used = state.data_files();
        state.forget_borrowed(&used);
        let gone = old.data_files().difference(&used).copied().collect();
        Candidate {
            collisions: Vec::new(),
            kept: HashSet::new(),
            returned: Returned::default(),
            state,
            base,
            disposable: Vec::new(),
            invalidations: Vec::new(),
            gone,
            new_data: Vec::new(),
            is_published: false,
            given_up: HashSet::new(),
            keeps_rest: false,
            same_backings: HashSet::new(),
            seen: HashSet::new(),
            numbers: ChangedNumbers::default(),
            generation,
        }
    }

    /// Returns the differences from the base.
    pub fn frozen(&self) -> Frozen {
        Frozen::of_state(&self.state)
    }

    /// Returns the base.
    pub fn base(&self) -> &Arc<Base> {
        &self.base
    }

    /// Returns access to the bytes of the files, of which `contents` has the data files.
    pub fn contents<'a>(&'a self, contents: &'a FileContents) -> CandidateContents<'a> {
        CandidateContents { contents, base: Arc::clone(&self.base) }
    }
}

/// Bytes of a candidate's files.
pub struct CandidateContents<'a> {
    contents: &'a FileContents,
    base: Arc<Base>,
}

#[async_trait]
impl Contents for CandidateContents<'_> {
    fn changed(&self, data: DataFileId) -> Result<Option<ChunkFile>> {
        self.contents.changed(data)
    }

    fn has_flush_failed(&self, data: DataFileId) -> bool {
        self.contents.has_flush_failed(data)
    }

    async fn whole(&self, file: &FrozenFile, limit: u64) -> Result<Bytes> {
        self.contents.whole_over(&self.base, file, limit).await
    }
}
