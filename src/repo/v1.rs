//! Changes of the refs of version 1, and its configuration.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use serde::Deserialize;

use super::change_refs::{RefKind, check_target, exists, ref_not_found, tag_was_deleted};
use super::ref_files::{Layout, MAX_REF_FILE, branch_key, is_absence, tombstone};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::config::RepoConfig;
use crate::format::ids::ObjectId;
use crate::storage::{Condition, Storage, Version};

pub(super) const CONFIG_KEY: &str = "config.yaml";
/// Maximum size of the configuration, in bytes.
pub(super) const MAX_CONFIG_FILE: u64 = 1 << 24;
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

/// Points branch `name` to `new` if it points to `expected`. Returns the branch's target: `new` on success. Reads the branch first, unless
/// it was read as `known`.
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

/// Points branch `name` to `new`, or deletes it if that is none. Returns the branch's target if that is not `expected`.
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
            Some(new) => storage.put(&key, ref_file(new).into(), Condition::Unchanged(version)).await,
            None => storage.delete_unchanged(&key, MAX_REF_FILE, &version).await,
        };
        match done {
            Err(error) if error.kind() == ErrorKind::Contended => {}
            done => return done.map(|()| None),
        }
    }
    Err(Error::new(ErrorKind::Contended, format!("{key}: concurrent writes came first {TRIES} times")))
}

/// Creates a ref with the given target. Fails with [`ErrorKind::AlreadyExists`] if it exists, also for a deleted tag, whose file stays.
pub(super) async fn create_ref(storage: &dyn Storage, kind: RefKind, name: &str, target: ObjectId) -> Result<()> {
    let key = if kind == RefKind::Tag { Layout::V1.tag_key(name) } else { branch_key(name) };
    for _ in 0..TRIES {
        match storage.put(&key, ref_file(target).into(), Condition::Absent).await {
            Err(error) if error.kind() == ErrorKind::Contended => {}
            done => return done,
        }
        // Without a file, it existed and is gone: a concurrent deletion.
        let Some(there) = Layout::V1.read(storage, &key).await? else { continue };
        let is_deleted = kind == RefKind::Tag && storage.get(&tombstone(&key), MAX_REF_FILE).await.is_ok();
        return Err(if is_deleted { tag_was_deleted(name) } else { exists(kind, name, there) });
    }
    Err(Error::new(ErrorKind::Contended, format!("{key}: it was written and deleted concurrently {TRIES} times")))
}

/// Points branch `name` to `new`, or deletes it if that is none. Unlike [`move_branch`], fails if the branch points anywhere but to
/// `expected`, `new` included.
///
/// On a local disk, no commit of this program can fall between the check and a deletion. Object stores delete unconditionally: a commit
/// that falls between the two requests is on no branch afterwards, as with the reference implementation.
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
    match storage.put(&tombstone(&key), Bytes::new(), Condition::Absent).await {
        Err(error) if error.kind() == ErrorKind::Contended => Err(ref_not_found(RefKind::Tag, name)),
        done => done,
    }
}

pub(super) fn ref_file(target: ObjectId) -> String {
    format!("{{\"snapshot\":\"{target}\"}}")
}

pub(super) fn parse_ref(key: &str, bytes: &[u8]) -> Result<ObjectId> {
    let file: RefFile =
        serde_json::from_slice(bytes).map_err(|e| Error::with_source(ErrorKind::Corrupt, key.to_owned(), e))?;
    file.snapshot.parse().map_err(|e: Error| Error::corrupt(format!("{key}: {e}")))
}
