//! Reads `$ROOT/repo`, the entry point of a version 2 repository (spec, "Repo Info File").
//!
//! Refs and parents are indices into the list of snapshots. Names are found by linear search, not
//! by the binary search that the sort order allows: a list has few entries, and an unsorted one
//! (its writer broke a rule) is then read correctly instead of losing refs. Snapshots, which may be
//! very many, are found by binary search where the list is sorted.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::config::RepoConfig;
use super::envelope::{self, FileType, SpecVersion};
use super::generated::icechunk as fb;
use super::ids::ObjectId;
use super::metadata::{self, Items};
use super::repo_state::Status;
use super::snapshot_info::{CommitText, SnapshotInfo};
use super::verified::VerifiedFlatbuffer;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;

/// Limit of the payload of `repo`, in bytes. The reference implementation cannot hold a million
/// tables in it, some 100 MiB.
const MAX_SIZE: u64 = 1 << 30;

/// Feature flags that are read of each list.
const MAX_FLAGS: usize = 1 << 16;

/// Decoded `repo` object.
#[derive(Debug)]
pub struct RepoInfo {
    pub(super) buffer: VerifiedFlatbuffer<fb::Repo<'static>>,
    /// Positions of the snapshots, once one was looked for that a binary search does not find in an
    /// unsorted list.
    unsorted: OnceLock<Option<HashMap<ObjectId, usize>>>,
}

impl RepoInfo {
    /// Decodes the bytes of `repo`.
    pub fn decode(file: &[u8]) -> Result<Self> {
        let (header, payload) = envelope::decode(file, FileType::RepoInfo, MAX_SIZE)?;
        if header.version != SpecVersion::V2 {
            return Err(Error::corrupt("a repo file of format version 1: only version 2 has one"));
        }
        let buffer = VerifiedFlatbuffer::<fb::Repo<'static>>::new(payload)?;
        let version = buffer.root().spec_version();
        if version > 2 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "a repository of format version {version}: this program reads up to 2; a newer one may read it"
                ),
            ));
        }
        Ok(RepoInfo { buffer, unsorted: OnceLock::new() })
    }

    /// Returns true if the file has the identifier of Icechunk's files.
    pub fn has_identifier(&self) -> bool {
        self.buffer.has_identifier()
    }

    /// Returns the root table, for [`super::repo_state`] and `icechunkfs_repo::repo::verify`.
    pub fn root(&self) -> fb::Repo<'_> {
        self.buffer.root()
    }

    /// Returns the id of the parent of the snapshot at `position`; `None` for a root.
    pub fn parent_id(&self, position: usize) -> Result<Option<ObjectId>> {
        self.parent_position(position)?.map(|parent| Ok(ObjectId::from(self.entry(parent)?.id()))).transpose()
    }

    /// Returns branch names and the snapshots they point to, in the file's order (by name). One
    /// damaged ref does not affect the rest.
    pub fn branches(&self) -> impl Iterator<Item = (&str, Result<ObjectId>)> {
        self.refs(self.buffer.root().branches())
    }

    /// Returns tag names and the snapshots they point to, like [`RepoInfo::branches`].
    pub fn tags(&self) -> impl Iterator<Item = (&str, Result<ObjectId>)> {
        self.refs(self.buffer.root().tags())
    }

    /// Returns the snapshot that branch `name` points to.
    pub fn branch(&self, name: &str) -> Option<Result<ObjectId>> {
        self.find(self.buffer.root().branches(), name)
    }

    /// Returns the snapshot that tag `name` points to.
    pub fn tag(&self, name: &str) -> Option<Result<ObjectId>> {
        self.find(self.buffer.root().tags(), name)
    }

    /// Returns the names of deleted tags, which may not be used again.
    pub fn deleted_tags(&self) -> impl Iterator<Item = &str> {
        self.buffer.root().deleted_tags().iter()
    }

    /// Returns the number of snapshots.
    pub fn snapshot_count(&self) -> usize {
        self.buffer.root().snapshots().len()
    }

    /// Returns the position of `id` in the list of snapshots.
    pub fn position(&self, id: ObjectId) -> Option<usize> {
        let snapshots = self.buffer.root().snapshots();
        // Clients sort the list. One that is not sorted is read correctly, too.
        let at = super::partition_point(snapshots.len(), |at| snapshots.get(at).id().0 < id.0);
        let is_there = at < snapshots.len() && snapshots.get(at).id().0 == id.0;
        if is_there { Some(at) } else { self.unsorted()?.get(&id).copied() }
    }

    /// Returns the positions of all snapshots, if the list is not sorted. They take less memory
    /// than the file does.
    fn unsorted(&self) -> Option<&HashMap<ObjectId, usize>> {
        let index = self.unsorted.get_or_init(|| {
            let snapshots = self.buffer.root().snapshots();
            let id = |at| ObjectId::from(snapshots.get(at).id());
            let is_sorted = (0..snapshots.len()).is_sorted_by_key(id);
            // Of equal ones the first counts, which comes last here.
            (!is_sorted).then(|| (0..snapshots.len()).rev().map(|at| (id(at), at)).collect())
        });
        index.as_ref()
    }

    /// Returns the position of the parent of the snapshot at `position`; `None` for a root.
    pub fn parent_position(&self, position: usize) -> Result<Option<usize>> {
        let snapshots = self.buffer.root().snapshots();
        let entry = self.entry(position)?;
        match usize::try_from(entry.parent_offset()) {
            Err(_) => Ok(None),
            Ok(parent) if parent < snapshots.len() => Ok(Some(parent)),
            Ok(parent) => Err(Error::corrupt(format!(
                "repo: snapshot {} names parent number {parent}, but there are {} snapshots",
                ObjectId::from(entry.id()),
                snapshots.len()
            ))),
        }
    }

    /// Returns the entry at `position` of the list of snapshots. Its text stays in this value.
    pub fn snapshot(self: &Arc<Self>, position: usize) -> Result<SnapshotInfo> {
        let entry = self.entry(position)?;
        Ok(SnapshotInfo {
            id: ObjectId::from(entry.id()),
            parent: self.parent_id(position)?,
            flushed_at: entry.flushed_at(),
            pruned_ancestor_tx_logs: entry.pruned_ancestor_tx_logs().iter().flatten().map(ObjectId::from).collect(),
            text: CommitText::in_repo(self, position),
        })
    }

    /// Returns the message of the entry at `position` of the list of snapshots; empty if there is
    /// none.
    pub(super) fn message(&self, position: usize) -> &str {
        self.entry(position).map(|entry| entry.message()).unwrap_or_default()
    }

    /// Returns the metadata of the entry at `position` of the list of snapshots, as stored.
    pub(super) fn metadata_items(&self, position: usize) -> Option<Items<'_>> {
        self.entry(position).ok()?.metadata()
    }

    /// Returns the bytes of memory that the file takes.
    pub fn size(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Returns the metadata of the repository.
    pub fn metadata(&self) -> Result<Metered<Map<String, Value>>> {
        metadata::to_json(self.buffer.root().metadata(), SpecVersion::V2)
    }

    /// Returns the availability for writes.
    pub fn status(&self) -> Status {
        Status::of(self.buffer.root().status())
    }

    /// Returns the ids of the feature flags that are switched on, and of those that are switched
    /// off; none where no list is stored.
    pub fn feature_flags(&self) -> (Option<Vec<u16>>, Option<Vec<u16>>) {
        let root = self.buffer.root();
        // Clients know a few flags: of a longer list, the rest means nothing.
        let list = |flags: flatbuffers::Vector<'_, u16>| flags.iter().take(MAX_FLAGS).collect();
        (root.enabled_feature_flags().map(list), root.disabled_feature_flags().map(list))
    }

    /// Returns the persisted configuration; the default one if none is stored.
    pub fn config(&self) -> Result<RepoConfig> {
        match self.buffer.root().config() {
            Some(bytes) => RepoConfig::from_flexbuffer(bytes.bytes()).context(|| "repo: config"),
            None => Ok(RepoConfig::default()),
        }
    }

    fn entry(&self, position: usize) -> Result<fb::SnapshotInfo<'_>> {
        let snapshots = self.buffer.root().snapshots();
        if position >= snapshots.len() {
            return Err(Error::corrupt(format!("repo: snapshot number {position} of {}", snapshots.len())));
        }
        Ok(snapshots.get(position))
    }

    fn target(&self, reference: fb::Ref<'_>) -> Result<ObjectId> {
        let index = reference.snapshot_index() as usize;
        let entry = self.entry(index).context(|| format!("ref `{}`", reference.name()))?;
        Ok(ObjectId::from(entry.id()))
    }

    fn refs<'a>(&'a self, list: RefList<'a>) -> impl Iterator<Item = (&'a str, Result<ObjectId>)> {
        list.iter().map(|r| (r.name(), self.target(r)))
    }

    fn find(&self, list: RefList<'_>, name: &str) -> Option<Result<ObjectId>> {
        list.iter().find(|r| r.name() == name).map(|r| self.target(r))
    }
}

type RefList<'a> = flatbuffers::Vector<'a, flatbuffers::ForwardsUOffset<fb::Ref<'a>>>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::format::testing::{self, id};

    #[test]
    fn unsorted_refs_are_found_all_the_same() {
        let file = testing::repo(&[(id(1), -1), (id(2), 0)], &[("z", 0), ("main", 1), ("a", 0)]);
        let info = RepoInfo::decode(&file).unwrap();
        assert_eq!(info.branch("main").unwrap().unwrap(), id(2));
        assert_eq!(info.branch("a").unwrap().unwrap(), id(1));
        assert!(info.branch("b").is_none());
    }

    #[test]
    fn indices_beyond_the_list_are_errors() {
        let file = testing::repo(&[(id(1), 7), (id(2), i32::MIN)], &[("main", 9)]);
        let info = Arc::new(RepoInfo::decode(&file).unwrap());
        assert!(info.branch("main").unwrap().unwrap_err().to_string().contains("snapshot number 9 of 2"));
        assert!(info.snapshot(0).unwrap_err().to_string().contains("names parent number 7"));
        assert_eq!(info.snapshot(1).unwrap().parent, None);
        assert!(info.branches().all(|(name, target)| name == "main" && target.is_err()));
    }

    #[test]
    fn files_of_version_1_are_refused() {
        let mut old = testing::repo(&[(id(1), -1)], &[("main", 0)]);
        *old.get_mut(36).unwrap() = 1;
        assert!(RepoInfo::decode(&old).unwrap_err().to_string().contains("version 1"));
    }
}
