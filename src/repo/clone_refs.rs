//! The refs and everything else beside the objects that a clone of a repository has.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::{self, StreamExt};

use super::ref_files::{Layout, MAX_REF_FILE, REFS_AT_ONCE, branch_key, tombstone};
use super::refs::{DEFAULT_BRANCH, Refs};
use super::v1::{self, CONFIG_KEY, MAX_CONFIG_FILE};
use super::{MAX_REPO_FILE, Repository, check_storage_writable};
use crate::error::{Error, ErrorKind, Result};
use crate::format::envelope::SpecVersion;
use crate::format::ids::ObjectId;
use crate::format::repo_state::{LogEntry, Operation, RepoState, Status};
use crate::storage::{Condition, Storage};
use crate::times::Clock;

/// Attempts to read refs twice in a row without a change between.
const TRIES: usize = 5;

/// Refs of one state of a repository.
#[derive(Debug)]
pub struct ClonedRefs {
    refs: Refs,
    /// Deleted tags of version 1, with their targets where these are known.
    deleted: Vec<(String, Option<ObjectId>)>,
}

/// Returns true if `key` is one of the files of version 1 that an unfinished clone may have left.
pub fn is_ref_file(key: &str) -> bool {
    key == CONFIG_KEY || (key.starts_with("refs/") && key != branch_key(DEFAULT_BRANCH))
}

impl ClonedRefs {
    /// Reads the refs of `source`. In version 1, where each has a file, reads them until nothing has changed between. Beside writers who
    /// never pause, that is given up: the tags are those of a moment, and the branches are as of then or newer, so that a tag of a commit
    /// on a branch still is one.
    pub async fn read(source: &Repository) -> Result<Self> {
        let mut last = Self::read_once(source).await?;
        if source.version() == SpecVersion::V2 {
            return Ok(last);
        }
        let mut earlier = BTreeMap::new();
        for _ in 0..TRIES {
            let next = Self::read_once(source).await?;
            if (&next.refs, &next.deleted) == (&last.refs, &last.deleted) {
                return Ok(last);
            }
            let before = std::mem::replace(&mut last, next);
            earlier = before.refs.tags;
        }
        // A tag that both have was there between the two; every branch was read after that.
        last.refs.tags.retain(|name, target| earlier.get(name) == Some(target));
        Ok(last)
    }

    async fn read_once(source: &Repository) -> Result<Self> {
        let deleted = async {
            match source.version() {
                SpecVersion::V2 => Ok(Vec::new()),
                SpecVersion::V1 => Ok(Layout::V1.deleted_tags(&**source.storage()).await?.into_iter().collect()),
            }
        };
        let (refs, deleted) = futures_util::try_join!(source.refs(), deleted)?;
        Ok(ClonedRefs { refs, deleted })
    }

    /// Returns the targets of all refs.
    pub fn targets(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.refs.branches.values().chain(self.refs.tags.values()).copied()
    }

    /// Returns the number of branches.
    pub fn branch_count(&self) -> usize {
        self.refs.branches.len()
    }

    /// Returns the number of tags.
    pub fn tag_count(&self) -> usize {
        self.refs.tags.len()
    }

    /// Makes `destination`, which has the objects of the commits `kept`, a repository with these refs.
    ///
    /// Fails with [`ErrorKind::AlreadyExists`] if there is one already.
    pub async fn write(
        &self,
        source: &Repository,
        destination: &dyn Storage,
        kept: &[ObjectId],
        clock: Clock,
    ) -> Result<()> {
        check_storage_writable(destination)?;
        match source.state()? {
            Some(state) => self.write_repo(state, destination, kept, clock).await,
            None => self.write_files(source, destination).await,
        }
    }

    async fn write_repo(
        &self,
        mut state: RepoState,
        destination: &dyn Storage,
        kept: &[ObjectId],
        clock: Clock,
    ) -> Result<()> {
        let kept: std::collections::HashSet<&ObjectId> = kept.iter().collect();
        state.snapshots.retain(|id, _| kept.contains(id));
        (state.branches, state.tags) = (self.refs.branches.clone(), self.refs.tags.clone());
        let newest = state.snapshots.values().map(|record| record.flushed_at).max().unwrap_or_default();
        let now = clock().max(newest.saturating_add(1));
        state.status = Status { set_at: now, ..Status::default() };
        state.updates = vec![LogEntry { operation: Operation::RepoInitialized, updated_at: now, backup_path: None }];
        state.repo_before_updates = None;
        if let Some(log) = state.snapshots.keys().next() {
            destination.check_conditions(&format!("snapshots/{log}"), super::MAX_SNAPSHOT).await?;
        }
        let file = Bytes::from(state.encode()?);
        match destination.put("repo", file.clone(), Condition::Absent).await {
            Err(error) if error.kind() == ErrorKind::Contended => {
                // The answer to an earlier attempt may have been lost.
                let there = destination.get("repo", MAX_REPO_FILE).await?;
                if there == file { Ok(()) } else { Err(appeared()) }
            }
            done => done,
        }
    }

    async fn write_files(&self, source: &Repository, destination: &dyn Storage) -> Result<()> {
        let config = match source.storage().get(CONFIG_KEY, MAX_CONFIG_FILE).await {
            Ok(config) => Some(config),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if let Some(config) = config {
            destination.put(CONFIG_KEY, config, Condition::Always).await?;
        }
        let deleted = self.deleted.iter().map(|(name, target)| (Layout::V1.tag_key(name), *target, true));
        let tags = self.refs.tags.iter().map(|(name, target)| (Layout::V1.tag_key(name), Some(*target), false));
        let branches = self.refs.branches.iter().filter(|(name, _)| *name != DEFAULT_BRANCH);
        let branches = branches.map(|(name, target)| (branch_key(name), Some(*target), false));
        let write = async |key: String, target: Option<ObjectId>, is_deleted: bool| {
            if let Some(target) = target {
                write_ref(destination, &key, target).await?;
            }
            if !is_deleted {
                return Ok(());
            }
            match destination.put(&tombstone(&key), Bytes::new(), Condition::Absent).await {
                Err(error) if error.kind() == ErrorKind::Contended => Ok(()),
                done => done,
            }
        };
        let files = deleted.chain(tags).chain(branches);
        let writes: Vec<_> = files.map(|(key, target, is_deleted)| write(key, target, is_deleted)).collect();
        stream::iter(writes).buffer_unordered(REFS_AT_ONCE).try_collect::<()>().await?;
        // With this one, it is a repository.
        match self.refs.branches.get(DEFAULT_BRANCH) {
            Some(main) => write_ref(destination, &branch_key(DEFAULT_BRANCH), *main).await,
            None => Err(Error::corrupt(format!("the source has no branch `{DEFAULT_BRANCH}`"))),
        }
    }
}

fn appeared() -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        "another program has made a repository there meanwhile: nothing was changed in it",
    )
}

/// Writes the file of a ref. What an earlier attempt left is replaced as long as there is no repository.
async fn write_ref(destination: &dyn Storage, key: &str, target: ObjectId) -> Result<()> {
    let file = v1::ref_file(target);
    if key == branch_key(DEFAULT_BRANCH) {
        return match destination.put(key, file.into(), Condition::Absent).await {
            Err(error) if error.kind() == ErrorKind::Contended => {
                let there = destination.get(key, MAX_REF_FILE).await?;
                if v1::parse_ref(key, &there)? == target { Ok(()) } else { Err(appeared()) }
            }
            done => done,
        };
    }
    destination.put(key, file.into(), Condition::Always).await
}
