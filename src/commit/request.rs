//! What is wanted of a commit, and what comes of it.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use super::changes::ChangeSet;
use super::conflicts::Conflict;
use crate::error::Result;
use crate::format::ids::ObjectId;
use crate::format::snapshot::Snapshot;
use crate::repo::collect::mark::Mark;

/// Called with the id of a snapshot that is about to be published.
pub type AboutToPublish = Arc<dyn Fn(ObjectId) -> Result<()> + Send + Sync>;

/// Called with a newer commit that the changes are about to be applied to, and whether that has, or follows, one of
/// [`Request::unpublished`]: whatever else keeps them from it.
pub type MayRebaseOnto = Arc<dyn Fn(Arc<Snapshot>, bool) -> BoxFuture<'static, Result<Vec<Conflict>>> + Send + Sync>;

/// What is wanted of a commit.
#[derive(Clone, Default)]
pub struct Request {
    /// The branch that gets it.
    pub branch: String,
    /// Its message.
    pub message: String,
    /// Its metadata.
    pub metadata: Map<String, Value>,
    /// Whether it takes the place of the branch's newest commit, which must be the base of the changes.
    pub amend: bool,
    /// What to do about chunks that others have changed too.
    pub on_conflict: OnConflict,
    /// Whether all manifests are written anew, as the reference's `rewrite_manifests` does: then there may be no changes at all,
    /// and chunks in the changes are the same bytes in other places ([`super::changes::ChunkChange::Stored`]).
    pub rewrite: Option<Rewrite>,
    /// What the caller vouches for. Other chunk objects that the changes refer to are looked at, and stored anew in cases of doubt.
    pub known_objects: Option<KnownObjects>,
    /// Called with the id of the new snapshot before each attempt to publish, so that the caller can write it down: if it
    /// comes to an end before it hears of the outcome, it finds out by looking for the id in the history.
    pub about_to_publish: Option<AboutToPublish>,
    /// Commits of earlier states of the changes that were given up because nobody heard whether they were published. One that is on
    /// the branch all the same is no commit of others.
    pub unpublished: Vec<ObjectId>,
    /// Asked before the changes are applied to a newer commit.
    pub may_rebase_onto: Option<MayRebaseOnto>,
}

impl Request {
    /// Returns whether a commit is made though nothing was changed.
    pub(super) fn may_be_empty(&self) -> bool {
        self.amend || self.rewrite.is_some()
    }

    /// Returns whether there is nothing to do for `changes`, whatever the branch has by now.
    pub(super) fn is_nothing_for(&self, changes: &ChangeSet) -> bool {
        changes.is_empty() && !self.may_be_empty() && self.unpublished.is_empty()
    }
}

/// How manifests are written anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The rules by which they are cut, as the configuration has them under `manifest.splitting`; none for the repository's own.
    pub splitting: Option<Value>,
}

/// Chunk objects that are in the store although nothing refers to them yet.
#[derive(Clone, Debug)]
pub struct KnownObjects {
    /// A moment until which no collection of garbage can have taken them.
    pub mark: Mark,
    /// The objects.
    pub chunks: HashSet<ObjectId>,
}

/// What to do about chunks that others have changed too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// Refuse the commit.
    #[default]
    Fail,
    /// Ours replace theirs.
    Ours,
    /// Theirs stay.
    Theirs,
}

/// What came of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There was nothing to commit, or all of it has given way to others' chunks.
    Nothing,
    /// The branch points to the new snapshot.
    Committed {
        /// The new snapshot.
        snapshot: ObjectId,
        /// Commits of others that it was applied to, oldest first.
        rebased_over: Vec<ObjectId>,
    },
    /// Others have touched the same things. Nothing was committed.
    Conflicts(Vec<Conflict>),
}

/// How changes relate to a branch's newest commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The branch's newest commit.
    pub tip: ObjectId,
    /// What keeps the changes from being applied to it.
    pub conflicts: Vec<Conflict>,
    /// The commits after the base of the changes, oldest first.
    pub commits_between: Vec<ObjectId>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request({:?} to {:?})", self.message, self.branch)
    }
}
