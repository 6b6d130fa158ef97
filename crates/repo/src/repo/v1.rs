//! Changes of the refs of version 1, and its configuration.
//!
//! **Beside `repo`, version 1 changes nothing any more**: a program that opened the repository
//! before it was migrated would change what nobody reads. On a local disk the look for `repo` and
//! the change are one step under the lock, which the migration holds when it makes `repo`. On a
//! store the look comes once more after the change. If `repo` is there then, the change counts as
//! made only if `repo` has it; else it is taken back, and fails.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use serde::Deserialize;

use super::change_refs::{RefKind, check_target, exists, ref_not_found, tag_was_deleted};
use super::migrate::old_refs::{Migrated, OldRef};
use super::ref_files::{Layout, MAX_REF_FILE, branch_key, is_absence, tombstone};
use super::update;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::json;
use icechunkfs_format::format::repo_state::RepoState;
use icechunkfs_store::storage::{Condition, Storage, Version};

pub(super) const CONFIG_KEY: &str = "config.yaml";
/// Maximum size of the configuration, in bytes.
pub(super) const MAX_CONFIG_FILE: u64 = 1 << 24;
/// Object of version 2, beside which nothing of version 1 is changed.
const SUCCESSOR: &str = "repo";
/// Longest wait for a migration to move a change to `repo`, and the pause between two looks.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// Attempts to write a ref's file, each but the first after a lost race.
const TRIES: u32 = 100;

#[derive(Deserialize)]
struct RefFile {
    snapshot: String,
}

/// Reads the configuration in `config.yaml`, if there is one.
pub(super) async fn config(storage: &dyn Storage) -> Result<Option<RepoConfig>> {
    match storage.get(CONFIG_KEY, MAX_CONFIG_FILE).await {
        Ok(bytes) => RepoConfig::from_yaml(&bytes).map(Some).context(|| CONFIG_KEY),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The configuration, read in the background.
#[derive(Clone, Debug)]
pub(super) struct ConfigRead(Shared<BoxFuture<'static, Option<RepoConfig>>>);

impl ConfigRead {
    /// Begins to read it.
    pub(super) fn begin(storage: &Arc<dyn Storage>) -> Self {
        let storage = Arc::clone(storage);
        let reading = tokio::spawn(async move { config(&*storage).await.map(Option::unwrap_or_default).ok() });
        ConfigRead(async move { reading.await.ok().flatten() }.boxed().shared())
    }

    /// Returns the configuration, which is read again from `storage` if that failed.
    pub(super) async fn get(&self, storage: &dyn Storage) -> Result<RepoConfig> {
        match self.0.clone().await {
            Some(config) => Ok(config),
            None => Ok(config(storage).await?.unwrap_or_default()),
        }
    }
}

/// Branch as it was read.
#[derive(Clone, Debug)]
pub struct BranchFile {
    pub(super) name: String,
    pub(super) tip: ObjectId,
    /// Version of the file, if it was read.
    pub(super) version: Option<Version>,
}

/// Reads branch `name`. Fails with [`ErrorKind::NotFound`] if there is no such branch.
pub(super) async fn read_branch(storage: &dyn Storage, name: &str) -> Result<BranchFile> {
    let key = branch_key(name);
    let (bytes, version) = storage.get_versioned(&key, MAX_REF_FILE).await?;
    Ok(BranchFile { name: name.to_owned(), tip: parse_ref(&key, &bytes)?, version: Some(version) })
}

/// Points branch `name` to `new` if it points to `expected`. Returns the branch's target: `new` on
/// success. Reads the branch first, unless it was read as `known`.
///
/// Fails with [`ErrorKind::NotFound`] if there is no such branch.
pub async fn move_branch(
    storage: &dyn Storage,
    name: &str,
    expected: ObjectId,
    new: ObjectId,
    known: Option<&BranchFile>,
) -> Result<ObjectId> {
    let known = known.filter(|branch| branch.name == name && branch.version.is_some()).cloned();
    Ok(swap_branch(storage, name, expected, Some(new), known).await?.unwrap_or(new))
}

/// Points branch `name` to `new`, or deletes it if that is none. Returns the branch's target if
/// that is not `expected`.
async fn swap_branch(
    storage: &dyn Storage,
    name: &str,
    expected: ObjectId,
    new: Option<ObjectId>,
    mut known: Option<BranchFile>,
) -> Result<Option<ObjectId>> {
    let key = branch_key(name);
    for _ in 0..TRIES {
        let branch = match known.take() {
            Some(branch) => branch,
            None => read_branch(storage, name).await?,
        };
        if branch.tip != expected {
            return Ok(Some(branch.tip));
        }
        let version = branch.version.unwrap_or_default();
        let done = match new {
            Some(new) => put(storage, &key, ref_file(new).into(), Condition::Unchanged(version)).await,
            None => storage.delete_unless(&key, MAX_REF_FILE, &version, SUCCESSOR).await,
        };
        match done {
            Err(error) if error.kind() == ErrorKind::Contended => {}
            Ok(()) => {
                let kind = RefKind::Branch;
                let change = RefChange { kind, name, key: &key, before: Some(expected), target: new };
                return change.check_still_version_1(storage).await.map(|()| None);
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(ErrorKind::Contended, format!("{key}: concurrent writes came first {TRIES} times")))
}

/// Creates a ref with the given target. Fails with [`ErrorKind::AlreadyExists`] if it exists, also
/// for a deleted tag, whose file stays.
pub(super) async fn create_ref(storage: &dyn Storage, kind: RefKind, name: &str, target: ObjectId) -> Result<()> {
    let key = if kind == RefKind::Tag { Layout::V1.tag_key(name) } else { branch_key(name) };
    for _ in 0..TRIES {
        match put(storage, &key, ref_file(target).into(), Condition::Absent).await {
            Err(error) if error.kind() == ErrorKind::Contended => {}
            Ok(()) => {
                let change = RefChange { kind, name, key: &key, before: None, target: Some(target) };
                return change.check_still_version_1(storage).await;
            }
            Err(error) => return Err(error),
        }
        // Without a file, it existed and is gone: a concurrent deletion.
        let Some(there) = Layout::V1.read(storage, &key).await? else { continue };
        let is_deleted = kind == RefKind::Tag && storage.get(&tombstone(&key), MAX_REF_FILE).await.is_ok();
        return Err(if is_deleted { tag_was_deleted(name) } else { exists(kind, name, there) });
    }
    Err(Error::new(ErrorKind::Contended, format!("{key}: it was written and deleted concurrently {TRIES} times")))
}

/// Points branch `name` to `new`, or deletes it if that is none. Unlike [`move_branch`], fails if
/// the branch points anywhere but to `expected`, `new` included.
///
/// On a local disk, no commit of this program can fall between the check and a deletion. Object
/// stores delete unconditionally: a commit that falls between the two requests is on no branch
/// afterwards, as with the reference implementation.
pub(super) async fn replace_branch(
    storage: &dyn Storage,
    name: &str,
    expected: ObjectId,
    new: Option<ObjectId>,
) -> Result<()> {
    match swap_branch(storage, name, expected, new, None).await {
        Ok(found) => check_target(RefKind::Branch, name, found.or(Some(expected)), expected),
        Err(error) if is_absence(&error) => Err(ref_not_found(RefKind::Branch, name)),
        Err(error) => Err(error),
    }
}

/// Deletes tag `name` if it points to `expected`, by an empty file beside the tag's own.
pub(super) async fn delete_tag(storage: &dyn Storage, name: &str, expected: ObjectId) -> Result<()> {
    // Tags never change, so that only another deletion can race with this one.
    let key = Layout::V1.tag_key(name);
    check_target(RefKind::Tag, name, Layout::V1.read(storage, &key).await?, expected)?;
    match put(storage, &tombstone(&key), Bytes::new(), Condition::Absent).await {
        Err(error) if error.kind() == ErrorKind::Contended => Err(ref_not_found(RefKind::Tag, name)),
        Ok(()) => {
            let change = RefChange { kind: RefKind::Tag, name, key: &key, before: Some(expected), target: None };
            change.check_still_version_1(storage).await
        }
        Err(error) => Err(error),
    }
}

/// Stores the file of a ref, or the configuration, if there is no `repo`.
pub(super) async fn put(storage: &dyn Storage, key: &str, bytes: Bytes, condition: Condition) -> Result<()> {
    storage.put_unless(key, bytes, condition, SUCCESSOR).await
}

/// Returns true if a change that was just made in a repository of version 1 was made beside `repo`,
/// which a store cannot prevent.
pub(super) async fn is_migrated(storage: &dyn Storage) -> Result<bool> {
    if storage.local_path().is_some() {
        return Ok(false);
    }
    // One byte: credentials that may read need not be allowed to ask for the description alone.
    match storage.get_range(SUCCESSOR, 0, 1).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        // The change is made: the caller has to look whether it is there.
        Err(error) => Err(Error::with_source(
            ErrorKind::Io,
            "the storage does not answer whether the repository was migrated meanwhile, so it may or may not have \
             changed: list the refs to see",
            error,
        )),
    }
}

/// Change of a ref that was made.
struct RefChange<'a> {
    kind: RefKind,
    name: &'a str,
    /// Key of the ref's file.
    key: &'a str,
    /// Target before, which a migration may not have read yet; none if the ref was made.
    before: Option<ObjectId>,
    /// New target; none if the ref was deleted.
    target: Option<ObjectId>,
}

impl RefChange<'_> {
    /// Fails with [`ErrorKind::Migrated`] if `repo` has appeared and does not have the change.
    async fn check_still_version_1(&self, storage: &dyn Storage) -> Result<()> {
        if !is_migrated(storage).await? {
            return Ok(());
        }
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let is_taken_back = self.is_taken_back(storage).await?;
            if self.is_in(&update::read_state(storage).await?) {
                return Ok(());
            }
            if is_taken_back || tokio::time::Instant::now() >= end {
                return Err(Error::new(
                    ErrorKind::Migrated,
                    format!(
                        "{} `{}`: the repository is being migrated to version 2, and does not have this change: try again",
                        self.kind, self.name
                    ),
                ));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn is_in(&self, state: &RepoState) -> bool {
        match (self.target, self.kind) {
            (Some(target), _) => {
                let key = self.key.to_owned();
                let name = self.name.to_owned();
                Migrated::new(state).has(&OldRef { key, kind: self.kind, name, target, version: Version::default() })
            }
            (None, RefKind::Branch) => !state.branches.contains_key(self.name),
            (None, RefKind::Tag) => state.deleted_tags.contains(self.name),
        }
    }

    /// Takes a new target back. Returns true if no migration can find it any more; false if one has
    /// removed the file, or the ref was deleted.
    async fn is_taken_back(&self, storage: &dyn Storage) -> Result<bool> {
        let Some(target) = self.target else { return Ok(false) };
        let (bytes, version) = match storage.get_versioned(self.key, MAX_REF_FILE).await {
            Err(error) if is_absence(&error) => return Ok(false),
            found => found?,
        };
        if parse_ref(self.key, &bytes)? != target {
            return Ok(false);
        }
        let done = match self.before {
            Some(before) => storage.put(self.key, ref_file(before).into(), Condition::Unchanged(version)).await,
            None => storage.delete_unchanged(self.key, MAX_REF_FILE, &version).await,
        };
        match done {
            Err(error) if error.kind() == ErrorKind::Contended => Ok(false),
            done => done.map(|()| true),
        }
    }
}

pub(super) fn ref_file(target: ObjectId) -> String {
    format!("{{\"snapshot\":\"{target}\"}}")
}

pub(super) fn parse_ref(key: &str, bytes: &[u8]) -> Result<ObjectId> {
    let file: RefFile = json::parse(bytes, &mut Meter::brief("a ref")).context(|| key)?;
    file.snapshot.parse().map_err(|e: Error| Error::corrupt(format!("{key}: {e}")))
}
