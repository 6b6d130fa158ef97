//! Refs of version 1: `refs/branch.NAME/ref.json`, `refs/tag.NAME/ref.json`, and `ref.json.deleted` beside a deleted tag's file.
//!
//! Names in keys are percent-encoded as `object_store` encodes them on a local disk. Users see and enter the decoded names. The format
//! forbids `/` in them.

use std::collections::BTreeMap;

use bytes::Bytes;
use object_store::path::PathPart;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::change_refs::{RefKind, check_target, exists, ref_not_found, tag_was_deleted};
use super::refs::{DEFAULT_BRANCH, Refs, skip_damaged};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::config::RepoConfig;
use crate::format::ids::ObjectId;
use crate::storage::{Condition, ObjectInfo, Storage};

/// Maximum size of a `ref.json`, which holds one id, in bytes.
pub(super) const MAX_REF_FILE: u64 = 1 << 16;
pub(super) const CONFIG_KEY: &str = "config.yaml";
/// Maximum size of the configuration, in bytes.
pub(super) const MAX_CONFIG_FILE: u64 = 1 << 24;
/// Attempts to write a ref's file, each but the first after a lost race.
const TRIES: u32 = 100;
pub(super) const BRANCH: &str = "branch.";
pub(super) const TAG: &str = "tag.";

/// Refs of version 1. Branch `main` is read on opening, because a version 1 repository is recognized by it.
#[derive(Debug, Default)]
pub(super) struct Layout {
    main: Option<ObjectId>,
}

#[derive(Deserialize)]
struct RefFile {
    snapshot: String,
}

impl Layout {
    /// Returns the layout if `storage`, which has no object `repo`, holds a version 1 repository with branch `main`.
    pub(super) async fn detect(storage: &dyn Storage) -> Result<Option<Self>> {
        Ok(read_ref(storage, BRANCH, DEFAULT_BRANCH).await?.map(|main| Layout { main: Some(main) }))
    }

    /// Returns the layout of a repository without branch `main` if `objects`, the listing of `refs/`, contains a ref of version 1.
    pub(super) fn detect_without_main(objects: &[ObjectInfo]) -> Option<Self> {
        objects.iter().any(|object| object.key.ends_with("/ref.json")).then_some(Layout { main: None })
    }

    pub(super) async fn branch(&self, storage: &dyn Storage, name: &str) -> Result<Option<ObjectId>> {
        match self.main {
            Some(main) if name == DEFAULT_BRANCH => Ok(Some(main)),
            _ => read_ref(storage, BRANCH, name).await,
        }
    }

    pub(super) async fn tag(&self, storage: &dyn Storage, name: &str) -> Result<Option<ObjectId>> {
        match read_ref(storage, TAG, name).await? {
            Some(id) => unless_deleted(storage, &key(TAG, name), id).await,
            None => Ok(None),
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
            // A ref without a file was deleted since the listing.
            if let Some(id) = skip_damaged(read_ref_file(storage, &object.key).await)? {
                names.insert(decode_name(encoded), id);
            }
        }
        Ok(refs)
    }
}

/// Returns the deleted tags, and their targets where these can be read.
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
        deleted.insert(decode_name(encoded), target);
    }
    Ok(deleted)
}

/// Reads the configuration in `config.yaml`, if there is one.
pub(super) async fn config(storage: &dyn Storage) -> Result<Option<RepoConfig>> {
    match storage.get(CONFIG_KEY, MAX_CONFIG_FILE).await {
        Ok(bytes) => RepoConfig::from_yaml(&bytes).map(Some).context(|| CONFIG_KEY),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Points branch `name` to `new` if it points to `expected`. Returns the branch's target: `new` on success.
///
/// Fails with [`ErrorKind::NotFound`] if there is no such branch.
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
    Err(lost_races(&key))
}

fn lost_races(key: &str) -> Error {
    Error::new(ErrorKind::Contended, format!("{key}: concurrent writes came first {TRIES} times"))
}

/// Creates branch `name` with the given target. Fails with [`ErrorKind::AlreadyExists`] if it exists.
pub(super) async fn create_branch(storage: &dyn Storage, name: &str, target: ObjectId) -> Result<()> {
    create_ref(storage, BRANCH, name, target).await?.map_or(Ok(()), |there| Err(exists(RefKind::Branch, name, there)))
}

/// Creates tag `name`. Fails for a deleted tag too, because its file still exists.
pub(super) async fn create_tag(storage: &dyn Storage, name: &str, target: ObjectId) -> Result<()> {
    let Some(there) = create_ref(storage, TAG, name, target).await? else { return Ok(()) };
    let deleted = storage.get(&tombstone(&key(TAG, name)), MAX_REF_FILE).await.is_ok();
    Err(if deleted { tag_was_deleted(name) } else { exists(RefKind::Tag, name, there) })
}

/// Writes a ref's file if there is none; otherwise returns the target in the existing file.
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
        // The file existed and is gone: a concurrent deletion.
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
    let key = key(BRANCH, name);
    for _ in 0..TRIES {
        let (bytes, version) = match storage.get_versioned(&key, MAX_REF_FILE).await {
            Err(error) if is_absence(&error) => return Err(ref_not_found(RefKind::Branch, name)),
            found => found?,
        };
        check_target(RefKind::Branch, name, Some(parse_ref(&key, &bytes)?), expected)?;
        let done = match new {
            Some(new) => storage.put(&key, ref_file(new).into(), Condition::Unchanged(version)).await,
            None => storage.delete_unchanged(&key, MAX_REF_FILE, &version).await,
        };
        match done {
            Err(error) if error.kind() == ErrorKind::Contended => {}
            done => return done,
        }
    }
    Err(lost_races(&key))
}

/// Deletes tag `name` if it points to `expected`, by an empty file beside the tag's own.
pub(super) async fn delete_tag(storage: &dyn Storage, name: &str, expected: ObjectId) -> Result<()> {
    // Tags never change, so that only another deletion can race with this one.
    let found = read_ref(storage, TAG, name).await?;
    check_target(RefKind::Tag, name, found, expected)?;
    match storage.put(&tombstone(&key(TAG, name)), Bytes::new(), Condition::Absent).await {
        Err(error) if error.kind() == ErrorKind::Contended => Err(ref_not_found(RefKind::Tag, name)),
        done => done,
    }
}

/// Returns the key of the marker of a deleted tag, whose file is `key`.
fn tombstone(key: &str) -> String {
    format!("{key}.deleted")
}

fn ref_file(target: ObjectId) -> String {
    format!("{{\"snapshot\":\"{target}\"}}")
}

/// Returns true if there is no object of that key.
pub(super) fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns the key of the file that holds the target of branch `name`.
pub(super) fn branch_key(name: &str) -> String {
    key(BRANCH, name)
}

fn key(kind: &str, name: &str) -> String {
    // The whole component is encoded, as in the reference implementation, so that a name of only dots is no special case.
    format!("refs/{}/ref.json", PathPart::from(format!("{kind}{name}")).as_ref())
}

/// Decodes a name in a key.
pub(super) fn decode_name(encoded: &str) -> String {
    percent_decode_str(encoded).decode_utf8().map_or_else(|_| encoded.to_owned(), |name| name.into_owned())
}

/// Returns false for a name that no ref can have, since its key would be another's.
pub(super) fn can_be_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0'])
}

/// Returns the target `id` of the tag in file `key`; none if the tag is deleted. The file of a deleted tag stays, so that its name cannot
/// be used again.
pub(super) async fn unless_deleted(storage: &dyn Storage, key: &str, id: ObjectId) -> Result<Option<ObjectId>> {
    match storage.get(&tombstone(key), MAX_REF_FILE).await {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(id)),
        Err(error) => Err(error),
    }
}

async fn read_ref(storage: &dyn Storage, kind: &str, name: &str) -> Result<Option<ObjectId>> {
    if !can_be_name(name) {
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
