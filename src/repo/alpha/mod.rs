//! Alphas: repositories of releases before 0.2, and of the first layout. They are read, never written.
//!
//! A branch was a folder of numbered files, each of which points to a snapshot; the newest sorts first, because its number counts down. A
//! tag was a file; from 0.1.0 on, a second file beside it marked a deleted tag. The folders' names changed:
//!
//! | | branch | tag | the rest |
//! |---|---|---|---|
//! | first layout ([`first`]) | `r/NAME/ZZZZZZZZ.json` | `r/NAME.json` | `s/ m/ a/ c/` |
//! | alpha 1 | `refs/branch:NAME/ZZZZZZZZ.json` | `refs/tag:NAME/ref.json` | as today |
//! | to 0.1.3 | `refs/branch.NAME/ZZZZZZZZ.json` | `refs/tag.NAME/ref.json` | as today |
//!
//! [`crate::format::alpha`] decodes the files; the floors above see snapshots and manifests of version 1.

mod ancestry;
mod first;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use object_store::path::PathPart;
use tracing::warn;

pub(super) use self::ancestry::Ancestry;
use super::refs::{DEFAULT_BRANCH, Refs, skip_damaged};
use super::v1::{MAX_REF_FILE, can_be_name, decode_name, is_absence, unless_deleted};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::alpha::attributes::AttributesFile;
use crate::format::alpha::reference;
use crate::format::alpha::snapshot::AlphaSnapshot;
use crate::format::ids::{ObjectId, is_digit};
use crate::format::repo_info::SnapshotInfo;
use crate::storage::{ObjectInfo, Storage, decoded};

/// Length of the number in the name of a branch's file.
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
}

/// Detects an alpha in `storage`, whose folder `refs/` contains `objects`. The returned storage presents files under today's keys.
pub(super) async fn detect(
    storage: &Arc<dyn Storage>,
    objects: &[ObjectInfo],
) -> Result<Option<(Layout, Arc<dyn Storage>)>> {
    for layout in [Layout::Dot, Layout::Colon] {
        if objects.iter().any(|object| layout.branch_of(&object.key).is_some()) {
            return Ok(Some((layout, Arc::clone(storage))));
        }
    }
    if !objects.is_empty() {
        return Ok(None);
    }
    let objects = storage.list(Layout::First.folder()).await.context(|| storage.location().to_owned())?;
    let is_one = objects.iter().any(|object| Layout::First.branch_of(&object.key).is_some());
    Ok(is_one.then(|| (Layout::First, first::present_current_keys(Arc::clone(storage)))))
}

/// Returns the error for an attempt to write.
pub(super) fn read_only(location: &str) -> Error {
    Error::new(
        ErrorKind::ReadOnly,
        format!(
            "{location} is of a release before 0.2, which is read-only: `icechunkfs migrate` makes a \
             repository of the current format from it"
        ),
    )
}

impl Layout {
    fn folder(self) -> &'static str {
        match self {
            Layout::First => "r/",
            Layout::Colon | Layout::Dot => "refs/",
        }
    }

    fn branch_prefix(self) -> &'static str {
        match self {
            Layout::First => "r/",
            Layout::Colon => "refs/branch:",
            Layout::Dot => "refs/branch.",
        }
    }

    /// Returns the encoded branch name and the file name if `key` is a file of a branch.
    fn branch_of(self, key: &str) -> Option<(&str, &str)> {
        let (name, file) = key.strip_prefix(self.branch_prefix())?.split_once('/')?;
        let digits = file.strip_suffix(".json")?;
        (digits.len() == SEQUENCE_LENGTH && digits.bytes().all(is_digit) && !name.is_empty()).then_some((name, file))
    }

    /// Returns the encoded tag name if `key` is the file of a tag.
    fn tag_of(self, key: &str) -> Option<&str> {
        let name = match self {
            Layout::First => key.strip_prefix("r/")?.strip_suffix(".json").filter(|name| !name.contains('/')),
            Layout::Colon => key.strip_prefix("refs/tag:")?.strip_suffix("/ref.json"),
            Layout::Dot => key.strip_prefix("refs/tag.")?.strip_suffix("/ref.json"),
        };
        name.filter(|name| !name.is_empty())
    }

    fn tag_key(self, name: &str) -> String {
        match self {
            Layout::First => format!("r/{}", encode(&format!("{name}.json"))),
            Layout::Colon => format!("refs/{}/ref.json", encode(&format!("tag:{name}"))),
            Layout::Dot => format!("refs/{}/ref.json", encode(&format!("tag.{name}"))),
        }
    }

    /// Returns the key of the newest file of branch `name`, to which each commit adds one; none if there is no such branch.
    pub(super) async fn branch_file(self, storage: &dyn Storage, name: &str) -> Result<Option<String>> {
        if !can_be_name(name) {
            return Ok(None);
        }
        let folder = match self {
            Layout::First => format!("r/{}/", encode(name)),
            Layout::Colon => format!("refs/{}/", encode(&format!("branch:{name}"))),
            Layout::Dot => format!("refs/{}/", encode(&format!("branch.{name}"))),
        };
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
            Some(key) => read_ref(storage, &key).await,
            None => Ok(None),
        }
    }

    pub(super) async fn tag(self, storage: &dyn Storage, name: &str) -> Result<Option<ObjectId>> {
        if !can_be_name(name) {
            return Ok(None);
        }
        let key = self.tag_key(name);
        match read_ref(storage, &key).await? {
            Some(id) => unless_deleted(storage, &key, id).await,
            None => Ok(None),
        }
    }

    /// Returns all branches and tags. A ref whose file is damaged is left out, with a warning.
    pub(super) async fn refs(self, storage: &dyn Storage) -> Result<Refs> {
        self.all(storage).await.map(|(refs, _)| refs)
    }

    /// Returns all branches and tags, and the deleted tags with their targets.
    pub(super) async fn all(self, storage: &dyn Storage) -> Result<(Refs, BTreeMap<String, ObjectId>)> {
        let objects = storage.list(self.folder()).await?;
        let deleted: HashSet<&str> = objects.iter().filter_map(|object| object.key.strip_suffix(".deleted")).collect();
        let mut newest: BTreeMap<&str, &str> = BTreeMap::new();
        for object in &objects {
            if let Some((name, _)) = self.branch_of(&object.key) {
                let key = newest.entry(name).or_insert(&object.key);
                *key = (*key).min(&object.key);
            }
        }
        let (mut refs, mut deleted_tags) = (Refs::default(), BTreeMap::new());
        for (name, key) in newest {
            if let Some(id) = skip_damaged(read_ref(storage, key).await)? {
                refs.branches.insert(decode_name(name), id);
            }
        }
        for object in &objects {
            let Some(name) = self.tag_of(&object.key) else { continue };
            let Some(id) = skip_damaged(read_ref(storage, &object.key).await)? else { continue };
            let is_deleted = deleted.contains(object.key.as_str());
            let names = if is_deleted { &mut deleted_tags } else { &mut refs.tags };
            names.insert(decode_name(name), id);
        }
        if !refs.branches.contains_key(DEFAULT_BRANCH) {
            warn!("{}: there is no branch `{DEFAULT_BRANCH}`, which every repository must have", storage.location());
        }
        Ok((refs, deleted_tags))
    }
}

/// Reads snapshot `id` and the attributes stored outside of it; each file may take `limit` bytes of memory.
pub(super) async fn read(storage: &dyn Storage, id: ObjectId, limit: u64) -> Result<AlphaSnapshot> {
    let key = format!("snapshots/{id}");
    let decode = move |file: &[u8]| AlphaSnapshot::decode(file, limit);
    let mut snapshot = decoded::fixed(storage, &key, limit, decode).await?.value;
    if snapshot.commit.id != id {
        return Err(Error::corrupt(format!("{key}: the file states that it is snapshot {}", snapshot.commit.id)));
    }
    for file in snapshot.attribute_files() {
        let key = format!("attributes/{file}");
        let decode = move |file: &[u8]| AttributesFile::decode(file, limit);
        let attributes = decoded::fixed(storage, &key, limit, decode).await;
        let attributes = attributes
            .map_err(|error| error.not_found_as_corrupt(format!("{key}: missing, though snapshot {id} names it")))?;
        snapshot.set_attributes(file, &attributes.value).context(|| key)?;
    }
    Ok(snapshot)
}

/// Returns commit `id` if it is the first of a repository of `layout` and has no file: alpha 2 wrote none for the first commit, which is
/// empty. Later snapshots describe it.
pub(super) async fn first_without_file(
    storage: &dyn Storage,
    layout: Layout,
    id: ObjectId,
) -> Result<Option<SnapshotInfo>> {
    let refs = layout.refs(storage).await?;
    let mut seen = HashSet::new();
    for tip in refs.branches.into_values().chain(refs.tags.into_values()) {
        let mut ancestry = Ancestry::new(storage, tip);
        while ancestry.next_id().is_some_and(|next| seen.insert(next)) {
            let Some(commit) = ancestry.step().await? else { break };
            if commit.id == id {
                return Ok(Some(commit).filter(|commit| commit.parent.is_none()));
            }
        }
    }
    Ok(None)
}

pub(super) async fn read_ref(storage: &dyn Storage, key: &str) -> Result<Option<ObjectId>> {
    match storage.get(key, MAX_REF_FILE).await {
        Ok(bytes) => reference::parse(&bytes).context(|| key.to_owned()).map(Some),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(error.context(storage.location())),
    }
}

/// Encodes a name for a key, as in version 1: the releases left the encoding to `object_store`.
fn encode(component: &str) -> String {
    PathPart::from(component).as_ref().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        let dot = Layout::Dot;
        assert_eq!(dot.branch_of("refs/branch.main/ZZZZZZZW.json"), Some(("main", "ZZZZZZZW.json")));
        assert_eq!(dot.branch_of("refs/branch.a.b/00000000.json"), Some(("a.b", "00000000.json")));
        for key in ["refs/branch.main/ref.json", "refs/branch.main/ZZZZZZZ.json", "refs/branch./ZZZZZZZZ.json"] {
            assert_eq!(dot.branch_of(key), None, "{key}");
        }
        assert_eq!(dot.branch_of("refs/branch.main/ZZZZZZUZ.json"), None, "U is no digit");
        assert_eq!(Layout::Colon.branch_of("refs/branch:x/ZZZZZZZZ.json"), Some(("x", "ZZZZZZZZ.json")));
        assert_eq!(Layout::First.branch_of("r/main/ZZZZZZWV.json"), Some(("main", "ZZZZZZWV.json")));
        assert_eq!(Layout::First.tag_of("r/v1.json"), Some("v1"));
        assert_eq!(Layout::First.tag_of("r/main/ZZZZZZWV.json"), None);
        assert_eq!(
            (dot.tag_of("refs/tag.v1.0/ref.json"), dot.tag_of("refs/tag.x/ref.json.deleted")),
            (Some("v1.0"), None)
        );
    }
}
