//! Version 1's refs: `refs/branch.NAME/ref.json`, `refs/tag.NAME/ref.json`, and `ref.json.deleted` beside a deleted tag's.
//!
//! Names are spelled in keys as `object_store` spells them on a local disk: characters outside its set are percent-encoded.
//! Users see and say the real names. The format forbids `/` in them.

use std::collections::BTreeMap;

use bytes::Bytes;
use object_store::path::PathPart;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use tracing::warn;

use super::change_refs::{RefKind, check_target, exists, gone, was_deleted};
use super::refs::{DEFAULT_BRANCH, Refs};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::config::RepoConfig;
use crate::format::ids::ObjectId;
use crate::storage::{Condition, ObjectInfo, Storage, Version};

/// Bytes of a `ref.json`: it holds one id.
pub(super) const MAX_REF_FILE: u64 = 1 << 16;
/// The object that holds the configuration.
pub(super) const CONFIG_KEY: &str = "config.yaml";
/// Bytes of it.
pub(super) const MAX_CONFIG_FILE: u64 = 1 << 24;
/// How often a lost race for a branch's file is run again, while the branch still points where it did.
const TRIES: u32 = 100;
const BRANCH: &str = "branch.";
const TAG: &str = "tag.";

/// A repository of version 1. Branch `main` must exist for it to be one, so it was read on opening.
#[derive(Debug, Default)]
pub(super) struct Layout {
    main: Option<ObjectId>,
}

#[derive(Deserialize)]
struct RefFile {
    snapshot: String,
}

impl Layout {
    /// A repository of version 1 as it should be, if `storage`, which has no object `repo`, holds one.
    pub(super) async fn of_main(storage: &dyn Storage) -> Result<Option<Self>> {
        Ok(read_ref(storage, BRANCH, DEFAULT_BRANCH).await?.map(|main| Layout { main: Some(main) }))
    }

    /// One without its branch `main`, if `objects` in the folder `refs/` are of one.
    pub(super) fn without_main(objects: &[ObjectInfo]) -> Option<Self> {
        objects.iter().any(|object| object.key.ends_with("/ref.json")).then_some(Layout { main: None })
    }

    pub(super) async fn branch(&self, storage: &dyn Storage, name: &str) -> Result<Option<ObjectId>> {
        match self.main {
            Some(main) if name == DEFAULT_BRANCH => Ok(Some(main)),
            _ => read_ref(storage, BRANCH, name).await,
        }
    }

    pub(super) async fn tag(&self, storage: &dyn Storage, name: &str) -> Result<Option<ObjectId>> {
        let Some(id) = read_ref(storage, TAG, name).await? else { return Ok(None) };
        // The file of a deleted tag stays, so that its name cannot be used again.
        match storage.get(&tombstone(name), MAX_REF_FILE).await {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(id)),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn refs(&self, storage: &dyn Storage) -> Result<Refs> {
        let objects = storage.list("refs/").await?;
        let deleted: std::collections::HashSet<&str> =
            objects.iter().filter_map(|object| object.key.strip_suffix("/ref.json.deleted")).collect();
        let mut refs = Refs::default();
        for object in &objects {
            let Some(folder) = object.key.strip_suffix("/ref.json") else { continue };
            let Some(folder_name) = folder.strip_prefix("refs/") else { continue };
            let (names, encoded) = if let Some(encoded) = folder_name.strip_prefix(BRANCH) {
                (&mut refs.branches, encoded)
            } else if let (Some(encoded), false) = (folder_name.strip_prefix(TAG), deleted.contains(folder)) {
                (&mut refs.tags, encoded)
            } else {
                continue;
            };
            match read_ref_file(storage, &object.key).await {
                Ok(Some(id)) => drop(names.insert(decode(encoded), id)),
                // Deleted since the listing.
                Ok(None) => {}
                Err(why) if why.kind() == ErrorKind::Corrupt => warn!("{why}; it is left out"),
                Err(error) => return Err(error),
            }
        }
        Ok(refs)
    }
}

/// The deleted tags, and what they pointed to where that can be read.
pub(super) async fn deleted_tags(storage: &dyn Storage) -> Result<BTreeMap<String, Option<ObjectId>>> {
    let mut deleted = BTreeMap::new();
    for object in storage.list("refs/").await? {
        let Some(key) = object.key.strip_suffix(".deleted") else { continue };
        let folder = key.strip_prefix("refs/").and_then(|key| key.strip_suffix("/ref.json"));
        let Some(encoded) = folder.and_then(|folder| folder.strip_prefix(TAG)) else { continue };
        let target = match read_ref_file(storage, key).await {
            Err(why) if why.kind() == ErrorKind::Corrupt => None,
            target => target?,
        };
        deleted.insert(decode(encoded), target);
    }
    Ok(deleted)
}

/// The configuration in `config.yaml`, if there is one.
pub(super) async fn config(storage: &dyn Storage) -> Result<Option<RepoConfig>> {
    match storage.get(CONFIG_KEY, MAX_CONFIG_FILE).await {
        Ok(bytes) => RepoConfig::from_yaml(&bytes).map(Some).context(|| CONFIG_KEY),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes branch `name` point to `new` if it points to `expected`. Returns what it points to: `new` on success.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such branch.
pub async fn move_branch(storage: &dyn Storage, name: &str, expected: ObjectId, new: ObjectId) -> Result<ObjectId> {
    let key = key(BRANCH, name);
    for _ in 0..TRIES {
        let (bytes, version) = storage.get_versioned(&key, MAX_REF_FILE).await?;
        let tip = parse_ref(&key, &bytes)?;
        if tip != expected {
            return Ok(tip);
        }
        match storage.put(&key, ref_file(new).into(), Condition::Unchanged(version)).await {
            Ok(()) => return Ok(new),
            Err(error) if error.kind() == ErrorKind::Contended => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(ErrorKind::Contended, format!("{key}: others wrote it first, {TRIES} times")))
}

/// Makes branch `name`, which points to `target`. [`ErrorKind::AlreadyExists`] if there is one.
pub(super) async fn create_branch(storage: &dyn Storage, name: &str, target: ObjectId) -> Result<()> {
    create_ref(storage, BRANCH, name, target).await?.map_or(Ok(()), |there| Err(exists(RefKind::Branch, name, there)))
}

/// Makes tag `name`. The file of a deleted one is still there, so that this fails for it too.
pub(super) async fn create_tag(storage: &dyn Storage, name: &str, target: ObjectId) -> Result<()> {
    let Some(there) = create_ref(storage, TAG, name, target).await? else { return Ok(()) };
    let deleted = storage.get(&tombstone(name), MAX_REF_FILE).await.is_ok();
    Err(if deleted { was_deleted(name) } else { exists(RefKind::Tag, name, there) })
}

/// Writes a ref's file if there is none; returns what the one that is there points to.
async fn create_ref(storage: &dyn Storage, kind: &str, name: &str, target: ObjectId) -> Result<Option<ObjectId>> {
    let key = key(kind, name);
    for _ in 0..TRIES {
        match storage.put(&key, ref_file(target).into(), Condition::Absent).await {
            Ok(()) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Contended => {}
            Err(error) => return Err(error),
        }
        if let Some(there) = read_ref_file(storage, &key).await? {
            return Ok(Some(there));
        }
        // It was there and is gone: somebody deletes it at the same time.
    }
    Err(Error::new(ErrorKind::Contended, format!("{key}: others wrote and deleted it meanwhile, {TRIES} times")))
}

/// As [`move_branch`], of a branch that must point to `expected` and nowhere else, not to `to` either.
pub(super) async fn reset_branch(storage: &dyn Storage, name: &str, to: ObjectId, expected: ObjectId) -> Result<()> {
    let key = key(BRANCH, name);
    for _ in 0..TRIES {
        let version = expect_branch(storage, &key, name, expected).await?;
        match storage.put(&key, ref_file(to).into(), Condition::Unchanged(version)).await {
            Err(error) if error.kind() == ErrorKind::Contended => {}
            done => return done,
        }
    }
    Err(Error::new(ErrorKind::Contended, format!("{key}: others wrote it first, {TRIES} times")))
}

/// The version of the file of branch `name`, which must point to `expected`.
async fn expect_branch(storage: &dyn Storage, key: &str, name: &str, expected: ObjectId) -> Result<Version> {
    match storage.get_versioned(key, MAX_REF_FILE).await {
        Ok((bytes, version)) => {
            check_target(RefKind::Branch, name, Some(parse_ref(key, &bytes)?), expected)?;
            Ok(version)
        }
        Err(error) if is_absence(&error) => Err(gone(RefKind::Branch, name)),
        Err(error) => Err(error),
    }
}

/// Deletes branch `name` if it points to `expected`.
///
/// On a local disk nobody of ours can commit between the look and the deletion. Object stores delete without comparing: a
/// commit that falls between the two requests is not on a branch any more, as it would be with the reference.
pub(super) async fn delete_branch(storage: &dyn Storage, name: &str, expected: ObjectId) -> Result<()> {
    let key = key(BRANCH, name);
    for _ in 0..TRIES {
        let version = expect_branch(storage, &key, name, expected).await?;
        match storage.delete_unchanged(&key, MAX_REF_FILE, &version).await {
            Err(error) if error.kind() == ErrorKind::Contended => {}
            done => return done,
        }
    }
    Err(Error::new(ErrorKind::Contended, format!("{key}: others wrote it first, {TRIES} times")))
}

/// Deletes tag `name` if it points to `expected`: an empty file beside its own says so.
pub(super) async fn delete_tag(storage: &dyn Storage, name: &str, expected: ObjectId) -> Result<()> {
    // Tags never change, so that there is nothing to race with but another deletion.
    let found = read_ref(storage, TAG, name).await?;
    check_target(RefKind::Tag, name, found, expected)?;
    match storage.put(&tombstone(name), Bytes::new(), Condition::Absent).await {
        Err(error) if error.kind() == ErrorKind::Contended => Err(gone(RefKind::Tag, name)),
        done => done,
    }
}

fn tombstone(name: &str) -> String {
    format!("{}.deleted", key(TAG, name))
}

fn ref_file(target: ObjectId) -> String {
    format!("{{\"snapshot\":\"{target}\"}}")
}

fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The key of the file that says where branch `name` points.
pub(super) fn branch_key(name: &str) -> String {
    key(BRANCH, name)
}

fn key(kind: &str, name: &str) -> String {
    // The whole component is encoded, as the reference does it: a name of dots only is then no special case.
    format!("refs/{}/ref.json", PathPart::from(format!("{kind}{name}")).as_ref())
}

fn decode(encoded: &str) -> String {
    percent_decode_str(encoded).decode_utf8().map_or_else(|_| encoded.to_owned(), |name| name.into_owned())
}

async fn read_ref(storage: &dyn Storage, kind: &str, name: &str) -> Result<Option<ObjectId>> {
    if name.is_empty() || name.contains(['/', '\0']) {
        return Ok(None);
    }
    read_ref_file(storage, &key(kind, name)).await
}

pub(super) async fn read_ref_file(storage: &dyn Storage, key: &str) -> Result<Option<ObjectId>> {
    let bytes = match storage.get(key, MAX_REF_FILE).await {
        Ok(bytes) => bytes,
        Err(error) if is_absence(&error) => return Ok(None),
        Err(error) => return Err(error.context(storage.location())),
    };
    parse_ref(key, &bytes).map(Some)
}

pub(super) fn parse_ref(key: &str, bytes: &[u8]) -> Result<ObjectId> {
    let file: RefFile =
        serde_json::from_slice(bytes).map_err(|e| Error::with_source(ErrorKind::Corrupt, key.to_owned(), e))?;
    file.snapshot.parse().map_err(|e: Error| Error::corrupt(format!("{key}: {e}")))
}
