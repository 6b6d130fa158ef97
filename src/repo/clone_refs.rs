//! The refs and everything else beside the objects that a clone of a repository has.

use bytes::Bytes;

use super::ref_files::{Layout, MAX_REF_FILE, branch_key, tombstone};
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
const TRIES: usize = 10;

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
    /// Reads the refs of `source`. In version 1, where each has a file, reads them until nothing has changed between.
    pub async fn read(source: &Repository) -> Result<Self> {
        let mut last = Self::read_once(source).await?;
        if source.version() == SpecVersion::V2 {
            return Ok(last);
        }
        for _ in 0..TRIES {
            let next = Self::read_once(source).await?;
            if (&next.refs, &next.deleted) == (&last.refs, &last.deleted) {
                return Ok(last);
            }
            last = next;
        }
        Err(Error::new(ErrorKind::Contended, format!("its refs have changed {TRIES} times while they were read")))
    }

    async fn read_once(source: &Repository) -> Result<Self> {
        let refs = source.refs().await?;
        let deleted = match source.version() {
            SpecVersion::V2 => Vec::new(),
            SpecVersion::V1 => Layout::V1.deleted_tags(&**source.storage()).await?.into_iter().collect(),
        };
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
        for (name, target) in &self.deleted {
            let key = Layout::V1.tag_key(name);
            if let Some(target) = target {
                write_ref(destination, &key, *target).await?;
            }
            match destination.put(&tombstone(&key), Bytes::new(), Condition::Absent).await {
                Err(error) if error.kind() == ErrorKind::Contended => {}
                done => done?,
            }
        }
        for (name, target) in &self.refs.tags {
            write_ref(destination, &Layout::V1.tag_key(name), *target).await?;
        }
        for (name, target) in self.refs.branches.iter().filter(|(name, _)| *name != DEFAULT_BRANCH) {
            write_ref(destination, &branch_key(name), *target).await?;
        }
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
