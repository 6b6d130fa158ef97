//! Refs before version 2: small files, whose names changed with the releases.
//!
//! In an alpha, a branch is a folder of numbered files, each of which points to a snapshot; the
//! newest sorts first, because its number counts down. A second file beside a tag's marks it as
//! deleted, from 0.1.0 on.
//!
//! | layout | branch | tag |
//! |---|---|---|
//! | first | `r/NAME/ZZZZZZZZ.json` | `r/NAME.json` |
//! | alpha 1 | `refs/branch:NAME/ZZZZZZZZ.json` | `refs/tag:NAME/ref.json` |
//! | to 0.1.3 | `refs/branch.NAME/ZZZZZZZZ.json` | `refs/tag.NAME/ref.json` |
//! | version 1 | `refs/branch.NAME/ref.json` | `refs/tag.NAME/ref.json` |
//!
//! Names in keys are percent-encoded as `object_store` encodes them on a local disk. Users see and
//! enter the decoded names. The format forbids `/` in them.

use std::collections::{BTreeMap, HashSet};

use futures_util::TryStreamExt;
use futures_util::stream::{self, StreamExt};
use object_store::path::PathPart;
use percent_encoding::percent_decode_str;
use tracing::warn;

use super::change_refs::RefKind;
use super::refs::{DEFAULT_BRANCH, Damaged, Refs};
use super::v1::parse_ref;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::alpha::reference;
use icechunkfs_format::format::ids::{ObjectId, is_digit};
use icechunkfs_store::storage::Storage;

/// Maximum size of a ref's file, which holds one id, in bytes.
pub(super) const MAX_REF_FILE: u64 = 1 << 16;
/// Files of refs that are read or written at a time. There is a file for each, and each takes a
/// round trip to the store.
pub(super) const REFS_AT_ONCE: usize = 32;
/// Length of the number in the name of a branch's file in an alpha.
const SEQUENCE_LENGTH: usize = 8;

/// Layout of the refs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Used by no release.
    First,
    /// Used by alpha 1.
    Colon,
    /// Used from alpha 2 to 0.1.3.
    Dot,
    /// Used from 0.2 to 1.x.
    V1,
}

impl Layout {
    /// Returns the folder of all refs.
    pub(super) fn folder(self) -> &'static str {
        if self == Layout::First { "r/" } else { "refs/" }
    }

    /// Returns the prefixes of the names of branches and of tags.
    fn prefixes(self) -> (&'static str, &'static str) {
        match self {
            Layout::First => ("", ""),
            Layout::Colon => ("branch:", "tag:"),
            Layout::Dot | Layout::V1 => ("branch.", "tag."),
        }
    }

    /// Returns the encoded branch name if `key` is a file of a branch.
    pub(super) fn branch_of(self, key: &str) -> Option<&str> {
        let key = key.strip_prefix(self.folder())?.strip_prefix(self.prefixes().0)?;
        let name = if self == Layout::V1 {
            key.strip_suffix("/ref.json")?
        } else {
            let (name, file) = key.split_once('/')?;
            let digits = file.strip_suffix(".json")?;
            (digits.len() == SEQUENCE_LENGTH && digits.bytes().all(is_digit)).then_some(name)?
        };
        (!name.is_empty()).then_some(name)
    }

    /// Returns the encoded tag name if `key` is the file of a tag.
    fn tag_of(self, key: &str) -> Option<&str> {
        let key = key.strip_prefix(self.folder())?.strip_prefix(self.prefixes().1)?;
        let name = match self {
            Layout::First => key.strip_suffix(".json").filter(|name| !name.contains('/')),
            _ => key.strip_suffix("/ref.json"),
        };
        name.filter(|name| !name.is_empty())
    }

    /// Returns the kind and the decoded name of the ref whose target the file `key` holds; none if
    /// it is no such file.
    pub(super) fn name_of(self, key: &str) -> Option<(RefKind, String)> {
        let branch = self.branch_of(key).map(|name| (RefKind::Branch, decode_name(name)));
        branch.or_else(|| self.tag_of(key).map(|name| (RefKind::Tag, decode_name(name))))
    }

    // The whole component is encoded, as in the reference implementation, so that a name of only
    // dots is no special case.
    fn component(self, prefix: &str, name: &str) -> String {
        format!("{}{}", self.folder(), PathPart::from(format!("{prefix}{name}")).as_ref())
    }

    pub(super) fn tag_key(self, name: &str) -> String {
        match self {
            Layout::First => self.component("", &format!("{name}.json")),
            _ => format!("{}/ref.json", self.component(self.prefixes().1, name)),
        }
    }

    /// Returns the key of the file that holds the target of branch `name`: in an alpha the newest
    /// one, to which each commit adds one. None if there is no such branch.
    pub(super) async fn branch_file(self, storage: &dyn Storage, name: &str) -> Result<Option<String>> {
        if !can_be_name(name) {
            return Ok(None);
        }
        if self == Layout::V1 {
            return Ok(Some(branch_key(name)));
        }
        let folder = format!("{}/", self.component(self.prefixes().0, name));
        let files = match storage.list(&folder).await {
            Ok(files) => files,
            Err(error) if is_absence(&error) => return Ok(None),
            Err(error) => return Err(error.context(storage.location())),
        };
        let files = files.into_iter().map(|object| object.key).filter(|key| self.branch_of(key).is_some());
        Ok(files.min())
    }

    pub(super) async fn branch(self, storage: &dyn Storage, name: &str) -> Result<Option<ObjectId>> {
        match self.branch_file(storage, name).await? {
            Some(key) => self.read(storage, &key).await,
            None => Ok(None),
        }
    }

    /// Returns the target of tag `name`; none if it is deleted. The file of a deleted tag stays, so
    /// that its name cannot be used again.
    pub(super) async fn tag(self, storage: &dyn Storage, name: &str) -> Result<Option<ObjectId>> {
        if !can_be_name(name) {
            return Ok(None);
        }
        let key = self.tag_key(name);
        let Some(id) = self.read(storage, &key).await? else { return Ok(None) };
        match storage.get(&tombstone(&key), MAX_REF_FILE).await {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(id)),
            Err(error) => Err(error),
        }
    }

    /// Returns all branches and tags. A ref whose file is damaged is treated as `damaged` says.
    pub(super) async fn refs(self, storage: &dyn Storage, damaged: Damaged) -> Result<Refs> {
        let objects = storage.list(self.folder()).await?;
        let deleted: HashSet<&str> = objects.iter().filter_map(|object| object.key.strip_suffix(".deleted")).collect();
        let mut newest: BTreeMap<&str, &str> = BTreeMap::new();
        for object in &objects {
            if let Some(name) = self.branch_of(&object.key) {
                let key = newest.entry(name).or_insert(&object.key);
                *key = (*key).min(&object.key);
            }
        }
        let tags = objects.iter().filter(|object| !deleted.contains(object.key.as_str()));
        let tags = tags.filter_map(|object| Some((self.tag_of(&object.key)?, object.key.as_str())));
        let branches = self.read_all(storage, newest.into_iter(), damaged).await?;
        let tags = self.read_all(storage, tags, damaged).await?;
        let refs = Refs { branches, tags, ..Refs::default() };
        if self != Layout::V1 && !refs.branches.contains_key(DEFAULT_BRANCH) {
            warn!("{}: there is no branch `{DEFAULT_BRANCH}`, which every repository must have", storage.location());
        }
        Ok(refs)
    }

    /// Returns the decoded names and the targets of the refs `files`, which are pairs of an encoded
    /// name and a key. A ref without a file is left out: it was deleted since it was listed.
    async fn read_all<'a>(
        self,
        storage: &dyn Storage,
        files: impl Iterator<Item = (&'a str, &'a str)>,
        damaged: Damaged,
    ) -> Result<BTreeMap<String, ObjectId>> {
        let read = async |name, key| {
            let target = damaged.treat_file(self.read(storage, key).await)?;
            Ok(target.map(|id| (decode_name(name), id)))
        };
        let reads: Vec<_> = files.map(|(name, key)| read(name, key)).collect();
        let read: Vec<_> = stream::iter(reads).buffer_unordered(REFS_AT_ONCE).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// Returns the deleted tags, and their targets where these can be read.
    pub(super) async fn deleted_tags(self, storage: &dyn Storage) -> Result<BTreeMap<String, Option<ObjectId>>> {
        let objects = storage.list(self.folder()).await?;
        let tags = objects.iter().filter_map(|object| {
            let key = object.key.strip_suffix(".deleted")?;
            Some((self.tag_of(key)?, key))
        });
        let read = async |name, key| {
            let target = match self.read(storage, key).await {
                Err(why) if why.kind() == ErrorKind::Corrupt => None,
                target => target?,
            };
            Ok((decode_name(name), target))
        };
        let reads: Vec<_> = tags.map(|(name, key)| read(name, key)).collect();
        stream::iter(reads).buffer_unordered(REFS_AT_ONCE).try_collect().await
    }

    /// Returns the target in the file of a ref; none if there is no such file.
    pub(super) async fn read(self, storage: &dyn Storage, key: &str) -> Result<Option<ObjectId>> {
        match storage.get(key, MAX_REF_FILE).await {
            Ok(bytes) if self == Layout::V1 => parse_ref(key, &bytes).map(Some),
            Ok(bytes) => reference::parse(&bytes).context(|| key.to_owned()).map(Some),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error.context(storage.location())),
        }
    }
}

/// Returns the key of the marker of a deleted tag, whose file is `key`.
pub(super) fn tombstone(key: &str) -> String {
    format!("{key}.deleted")
}

/// Returns the key of the file that holds the target of branch `name` in version 1.
pub(super) fn branch_key(name: &str) -> String {
    format!("{}/ref.json", Layout::V1.component(Layout::V1.prefixes().0, name))
}

/// Returns true if there is no object of that key.
pub(super) fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Decodes a name in a key.
fn decode_name(encoded: &str) -> String {
    percent_decode_str(encoded).decode_utf8().map_or_else(|_| encoded.to_owned(), |name| name.into_owned())
}

/// Returns false for a name that no ref can have, since its key would be another's.
fn can_be_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        for (layout, key, branch, tag) in [
            (Layout::Dot, "refs/branch.main/ZZZZZZZW.json", Some("main"), None),
            (Layout::Dot, "refs/branch.a.b/00000000.json", Some("a.b"), None),
            (Layout::Dot, "refs/branch.main/ref.json", None, None),
            (Layout::Dot, "refs/branch.main/ZZZZZZZ.json", None, None),
            (Layout::Dot, "refs/branch./ZZZZZZZZ.json", None, None),
            // U is no digit.
            (Layout::Dot, "refs/branch.main/ZZZZZZUZ.json", None, None),
            (Layout::Dot, "refs/tag.v1.0/ref.json", None, Some("v1.0")),
            (Layout::Dot, "refs/tag.x/ref.json.deleted", None, None),
            (Layout::Colon, "refs/branch:x/ZZZZZZZZ.json", Some("x"), None),
            (Layout::First, "r/main/ZZZZZZWV.json", Some("main"), None),
            (Layout::First, "r/v1.json", None, Some("v1")),
        ] {
            assert_eq!((layout.branch_of(key), layout.tag_of(key)), (branch, tag), "{key}");
        }
    }
}
