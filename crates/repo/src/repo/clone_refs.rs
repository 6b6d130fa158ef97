//! The refs and everything else beside the objects that a clone of a repository has.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::{self, StreamExt};

use super::clock::is_of_future;
use super::ref_files::{Layout, MAX_REF_FILE, REFS_AT_ONCE, branch_key, tombstone};
use super::refs::{DEFAULT_BRANCH, Refs};
use super::v1::{self, CONFIG_KEY, MAX_CONFIG_FILE};
use super::{MAX_REPO_FILE, Repository, check_storage_writable};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{LogEntry, Operation, RepoState, SnapshotRecord, Status};
use icechunkfs_store::storage::{Condition, Storage};

/// Attempts to read refs twice in a row without a change between.
const TRIES: usize = 5;

/// Refs of one state of a repository.
#[derive(Debug)]
pub struct ClonedRefs {
    refs: Refs,
    /// Files of version 1, in which each ref has one.
    files: Option<Files>,
}

/// Files of a repository of version 1 that are not objects.
#[derive(Debug)]
struct Files {
    /// Deleted tags, with their targets where these are known.
    deleted: Vec<(String, Option<ObjectId>)>,
    /// Content of the configuration.
    config: Option<Bytes>,
}

impl ClonedRefs {
    /// Reads the refs of `source`. In version 1, where each has a file, reads them until nothing
    /// has changed between. Beside writers who never pause, that is given up: the tags are those of
    /// a moment, and the branches are as of then or newer, so that a tag of a commit on a branch
    /// still is one.
    pub async fn read(source: &Repository) -> Result<Self> {
        let (mut refs, mut deleted) = read_once(source).await?;
        if source.version() == SpecVersion::V2 {
            return Ok(ClonedRefs { refs, files: None });
        }
        let config = match source.storage().get(CONFIG_KEY, MAX_CONFIG_FILE).await {
            Ok(config) => Some(config),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut earlier = BTreeMap::new();
        for _ in 0..TRIES {
            let next = read_once(source).await?;
            if (&next.0, &next.1) == (&refs, &deleted) {
                return Ok(ClonedRefs { refs, files: Some(Files { deleted, config }) });
            }
            let before = std::mem::replace(&mut refs, next.0);
            (earlier, deleted) = (before.tags, next.1);
        }
        // A tag that both have was there between the two; every branch was read after that.
        refs.tags.retain(|name, target| earlier.get(name) == Some(target));
        Ok(ClonedRefs { refs, files: Some(Files { deleted, config }) })
    }

    /// Returns the keys of the files beside the objects that [`ClonedRefs::write`] writes before
    /// the place is a repository.
    pub fn early_files(&self) -> HashSet<String> {
        let Some(Files { deleted, config }) = &self.files else { return HashSet::new() };
        let branches = self.refs.branches.keys().filter(|name| *name != DEFAULT_BRANCH).map(|name| branch_key(name));
        let tags =
            self.refs.tags.keys().chain(deleted.iter().map(|(name, _)| name)).map(|name| Layout::V1.tag_key(name));
        let tombstones = deleted.iter().map(|(name, _)| tombstone(&Layout::V1.tag_key(name)));
        let config = config.iter().map(|_| CONFIG_KEY.to_owned());
        branches.chain(tags).chain(tombstones).chain(config).collect()
    }

    /// Returns true if the file `key` in `destination`, one of [`ClonedRefs::early_files`], can be
    /// one that an earlier clone wrote. Its target may be an older one.
    pub async fn is_leftover(&self, destination: &dyn Storage, key: &str) -> Result<bool> {
        let config = self.files.as_ref().and_then(|files| files.config.as_ref()).filter(|_| key == CONFIG_KEY);
        let limit = config.map_or(MAX_REF_FILE, |config| config.len() as u64);
        let there = match destination.get(key, limit).await {
            Ok(there) => there,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            // It is longer than what a clone writes.
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(match config {
            Some(config) => there == *config,
            None if key.ends_with(".deleted") => there.is_empty(),
            None => v1::parse_ref(key, &there).is_ok(),
        })
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

    /// Makes `destination`, which has the objects of the commits `kept`, a repository with these
    /// refs. `describe` changes the description of each commit.
    ///
    /// Fails with [`ErrorKind::AlreadyExists`] if there is one already.
    pub async fn write(
        &self,
        source: &Repository,
        destination: &dyn Storage,
        kept: &[ObjectId],
        describe: impl Fn(ObjectId, &mut SnapshotRecord),
        clock: Clock,
    ) -> Result<()> {
        check_storage_writable(destination)?;
        match (source.state()?, &self.files) {
            (Some(state), _) => self.write_repo(state, destination, kept, describe, clock).await,
            (None, Some(files)) => self.write_files(files, destination).await,
            (None, None) => Err(Error::corrupt("the source has changed its version: clone again")),
        }
    }

    async fn write_repo(
        &self,
        mut state: RepoState,
        destination: &dyn Storage,
        kept: &[ObjectId],
        describe: impl Fn(ObjectId, &mut SnapshotRecord),
        clock: Clock,
    ) -> Result<()> {
        let kept: HashSet<&ObjectId> = kept.iter().collect();
        state.snapshots.retain(|id, _| kept.contains(id));
        state.snapshots.iter_mut().for_each(|(id, record)| describe(*id, record));
        (state.branches, state.tags) = (self.refs.branches.clone(), self.refs.tags.clone());
        // The log begins after the commits, but not in the future, where nobody could write: those
        // that claim to be from there do not count.
        let times = state.snapshots.values().map(|record| record.flushed_at);
        let newest = times.filter(|time| !is_of_future(*time, clock)).max().unwrap_or_default();
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

    async fn write_files(&self, files: &Files, destination: &dyn Storage) -> Result<()> {
        if let Some(config) = &files.config {
            match destination.put(CONFIG_KEY, config.clone(), Condition::Absent).await {
                Err(error) if error.kind() == ErrorKind::Contended => {
                    if !self.is_leftover(destination, CONFIG_KEY).await? {
                        return Err(appeared());
                    }
                }
                done => done?,
            }
        }
        let deleted = files.deleted.iter().map(|(name, target)| (Layout::V1.tag_key(name), *target, true));
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

async fn read_once(source: &Repository) -> Result<(Refs, Vec<(String, Option<ObjectId>)>)> {
    let deleted = async {
        match source.version() {
            SpecVersion::V2 => Ok(Vec::new()),
            SpecVersion::V1 => Ok(Layout::V1.deleted_tags(&**source.storage()).await?.into_iter().collect()),
        }
    };
    futures_util::try_join!(source.complete_refs(), deleted)
}

/// Writes the file of a ref. What an earlier attempt left is replaced as long as there is no
/// repository.
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
    match destination.put(key, file.clone().into(), Condition::Absent).await {
        Err(error) if error.kind() == ErrorKind::Contended => {
            // A file that is no ref is another program's.
            v1::parse_ref(key, &destination.get(key, MAX_REF_FILE).await?)?;
            destination.put(key, file.into(), Condition::Always).await
        }
        done => done,
    }
}
