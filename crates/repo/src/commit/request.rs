//! Options of a commit and of the engine that makes it, and the outcome.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::changes::{ChangeSet, ChunkChange};
use super::conflict::Conflict;
use super::conflicts::ChunkSet;
use super::merge_record::MergeCommit;
use super::settlements::Settlements;
use crate::repo::Repository;
use crate::repo::collect::mark::LogPosition;
use crate::repo::history::is_kept;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;

/// Limits of commits: chunk sizes, retries and memory.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Chunks smaller than this share objects, in bytes.
    pub pack_below: u64,
    /// Size at which a pack is closed, in bytes.
    pub pack_size: u64,
    /// Inline threshold in bytes, if not the repository's setting.
    pub inline_threshold: Option<u16>,
    /// Number of retries after a lost race or a garbage collection.
    pub max_rebases: u32,
    /// Limit on the bytes of chunks that are packed or uploaded at the same time.
    pub memory: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            pack_below: 256 << 10,
            pack_size: 8 << 20,
            inline_threshold: None,
            max_rebases: 1000,
            memory: 32 << 20,
        }
    }
}

impl EngineOptions {
    /// Returns the sizes that decide how a chunk is stored in a repository with `config`.
    pub fn sizes(&self, config: &RepoConfig) -> Sizes {
        let inline = self.inline_threshold.map_or(config.inline_threshold(), u64::from);
        Sizes { inline, pack_below: self.pack_below, pack_size: self.pack_size }
    }
}

/// Size thresholds, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Chunks up to this size are stored inline, in the manifest.
    pub inline: u64,
    /// Larger chunks below this size are packed.
    pub pack_below: u64,
    /// A pack is closed when it reaches this size.
    pub pack_size: u64,
}

/// Program that commits, as far as the engine asks it on the way.
#[async_trait]
pub trait CommitHost: Send + Sync {
    /// Called with the id of the new snapshot before each attempt to publish, which an error stops.
    /// A caller that dies before it receives the outcome looks for the id in the history. May
    /// block.
    fn on_publish(&self, _snapshot: ObjectId) -> Result<()> {
        Ok(())
    }

    /// Called with the name of each [`super::changes::ChunkFile`] of a failed commit whose bytes
    /// could not be written to the disk.
    fn on_flush_failure(&self, _file: &str) {}

    /// Called before the changes are rebased onto the newer commit `tip`; `has_landed` is true if
    /// that is or follows one of [`Request::unconfirmed`]. Returns further conflicts.
    async fn conflicts_with(&self, _tip: &Arc<Snapshot>, _has_landed: bool) -> Result<Vec<Conflict>> {
        Ok(Vec::new())
    }
}

/// Options of a commit.
#[derive(Clone, Default)]
pub struct Request {
    /// Branch to commit to.
    pub branch: String,
    /// Commit message.
    pub message: String,
    /// Commit metadata, without [`super::replace_record::RESERVED_ITEMS`].
    pub metadata: Map<String, Value>,
    /// Merge that the commit makes, if it is one. It conflicts with concurrent merges of the same
    /// commits.
    pub merge: Option<MergeCommit>,
    /// True to replace the branch's tip, which must be the base of the changes.
    pub amend: bool,
    /// Sides that win conflicts.
    pub settlements: Settlements,
    /// True to make a commit although there are no changes: its metadata records something.
    pub records: bool,
    /// Set to write all manifests again, as the reference implementation's `rewrite_manifests`
    /// does: then there may be no changes at all, and chunks in the changes are the same bytes in
    /// other places ([`super::changes::ChunkChange::Stored`]).
    pub rewrite: Option<Rewrite>,
    /// Chunk objects that the caller guarantees to exist. Other objects are checked, and stored
    /// again in cases of doubt.
    pub known_objects: Option<KnownObjects>,
    /// Commits of earlier states of the changes that were discarded because their publication was
    /// never confirmed. If such a commit is on the branch all the same, it is no concurrent commit.
    pub unconfirmed: Vec<ObjectId>,
    /// The caller, if it keeps anything that depends on the outcome.
    pub host: Option<Arc<dyn CommitHost>>,
}

impl Request {
    /// Returns true if a commit is made although nothing was changed.
    pub(super) fn may_be_empty(&self) -> bool {
        self.amend || self.records || self.rewrite.is_some()
    }

    /// Returns true if there is nothing to do for `changes`, wherever the branch points by now.
    pub(super) fn is_nothing_for(&self, changes: &ChangeSet) -> bool {
        changes.is_empty() && !self.may_be_empty() && self.unconfirmed.is_empty()
    }
}

/// Options for writing all manifests again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Splitting rules, in the format of `manifest.splitting` in the configuration; none for the
    /// repository's.
    pub splitting: Option<Value>,
}

/// Chunk objects that are in the store.
#[derive(Clone, Debug)]
pub struct KnownObjects {
    /// GC mark until which no collection can have removed the objects; none in version 1, which
    /// records no collections.
    pub mark: Option<LogPosition>,
    /// Ids of the objects.
    pub chunks: HashSet<ObjectId>,
}

impl KnownObjects {
    /// Returns the objects that `changes` refer to, all of which `snapshot` needs, or were stored
    /// after `repository` was opened. None if there are none, or if it is not known that the
    /// repository keeps what that snapshot needs.
    pub async fn of(repository: &Repository, snapshot: ObjectId, changes: &ChangeSet) -> Result<Option<Self>> {
        match Self::referred(repository, changes) {
            Some(known) if is_kept(repository, snapshot).await? => Ok(Some(known)),
            _ => Ok(None),
        }
    }

    /// Returns the objects that `changes` refer to, which the caller knows to be there; none if
    /// there are none.
    pub fn referred(repository: &Repository, changes: &ChangeSet) -> Option<Self> {
        let stored = changes.chunk_changes().filter_map(ChunkChange::stored);
        let chunks: HashSet<ObjectId> = stored.filter_map(ChunkPayload::range).map(|(chunk, ..)| chunk).collect();
        (!chunks.is_empty()).then(|| KnownObjects { mark: repository.log_position(), chunks })
    }
}

/// Treatment of chunks and members of documents that concurrent commits have changed too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnConflict {
    /// Refuse the commit.
    #[default]
    Fail,
    /// Keep those of the change set.
    Ours,
    /// Keep those of the concurrent commits.
    Theirs,
}

/// Outcome of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// There was nothing to commit, or all changes gave way to those of concurrent commits.
    Nothing,
    /// The branch points to the new snapshot.
    Committed {
        /// New snapshot.
        snapshot: ObjectId,
        /// Concurrent commits that the changes were rebased over, oldest first.
        rebased_over: Vec<ObjectId>,
        /// Chunks of the change set that did not give way to the ones of these commits; collected
        /// only if some may have given way.
        kept: ChunkSet,
    },
    /// Concurrent commits touched the same things. Nothing was committed.
    Conflicts(Vec<Conflict>),
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request({:?} to {:?})", self.message, self.branch)
    }
}
