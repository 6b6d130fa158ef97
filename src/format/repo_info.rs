//! Reads `$ROOT/repo`, the entry point of a version 2 repository (spec, "Repo Info File").
//!
//! Refs and parents are indices into the list of snapshots. Names are found by linear search, not by the binary search that the sort order
//! allows: a list has few entries, and an unsorted one (its writer broke a rule) is then read correctly instead of losing refs.

use serde_json::{Map, Value};

use super::config::RepoConfig;
use super::envelope::{self, FileType, SpecVersion};
use super::generated::icechunk as fb;
use super::ids::ObjectId;
use super::metadata;
use super::repo_state::Status;
use super::verified::VerifiedFlatbuffer;
use crate::error::{Context, Error, ErrorKind, Result};

/// Limit of the payload of `repo`, in bytes. The reference implementation cannot hold a million tables in it, some 100 MiB.
const MAX_SIZE: u64 = 1 << 30;

/// Decoded `repo` object.
#[derive(Debug)]
pub struct RepoInfo {
    pub(crate) buffer: VerifiedFlatbuffer<fb::Repo<'static>>,
}

/// Entry of the list of snapshots: all that history needs, without fetching snapshot files.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotInfo {
    /// Id of the snapshot.
    pub id: ObjectId,
    /// Id of the parent; `None` for a root.
    pub parent: Option<ObjectId>,
    /// Time of the commit, in microseconds since 1970-01-01 UTC.
    pub flushed_at: u64,
    /// Commit message.
    pub message: String,
    /// Metadata of the commit.
    pub metadata: Map<String, Value>,
    /// Transaction logs of ancestors that expiration removed, oldest first.
    pub pruned_ancestor_tx_logs: Vec<ObjectId>,
}

impl SnapshotInfo {
    /// Describes a commit without metadata and pruned logs.
    pub fn new(id: ObjectId, parent: Option<ObjectId>, flushed_at: u64, message: impl Into<String>) -> Self {
        let (message, metadata) = (message.into(), Map::new());
        SnapshotInfo { id, parent, flushed_at, message, metadata, pruned_ancestor_tx_logs: Vec::new() }
    }

    /// Returns the ids of the pruned logs, oldest first, and of the snapshot's own log.
    pub fn log_ids(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.pruned_ancestor_tx_logs.iter().copied().chain([self.id])
    }
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
        Ok(RepoInfo { buffer })
    }

    /// Returns the root table, for [`super::repo_state`] and [`crate::repo::verify`].
    pub(crate) fn root(&self) -> fb::Repo<'_> {
        self.buffer.root()
    }

    /// Returns the id of the parent of the snapshot at `position`; `None` for a root.
    pub(crate) fn parent_id(&self, position: usize) -> Result<Option<ObjectId>> {
        self.parent_position(position)?.map(|parent| Ok(ObjectId::from(self.entry(parent)?.id()))).transpose()
    }

    /// Returns branch names and the snapshots they point to, in the file's order (by name). One damaged ref does not affect the rest.
    pub fn branches(&self) -> Vec<(String, Result<ObjectId>)> {
        self.refs(self.buffer.root().branches())
    }

    /// Returns tag names and the snapshots they point to, like [`RepoInfo::branches`].
    pub fn tags(&self) -> Vec<(String, Result<ObjectId>)> {
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
    pub fn deleted_tags(&self) -> Vec<String> {
        self.buffer.root().deleted_tags().iter().map(str::to_owned).collect()
    }

    /// Returns the number of snapshots.
    pub fn snapshot_count(&self) -> usize {
        self.buffer.root().snapshots().len()
    }

    /// Returns the position of `id` in the list of snapshots.
    pub fn position(&self, id: ObjectId) -> Option<usize> {
        self.buffer.root().snapshots().iter().position(|s| s.id().0 == id.0)
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

    /// Returns the entry at `position` of the list of snapshots.
    pub fn snapshot(&self, position: usize) -> Result<SnapshotInfo> {
        let entry = self.entry(position)?;
        let id = ObjectId::from(entry.id());
        let parent = self.parent_id(position)?;
        Ok(SnapshotInfo {
            id,
            parent,
            flushed_at: entry.flushed_at(),
            message: entry.message().to_owned(),
            // Copies in `repo` are FlexBuffers, whatever the version of the snapshot file.
            metadata: metadata::to_json(entry.metadata(), SpecVersion::V2)
                .context(|| format!("repo: snapshot {id}"))?,
            pruned_ancestor_tx_logs: entry.pruned_ancestor_tx_logs().iter().flatten().map(ObjectId::from).collect(),
        })
    }

    /// Returns the metadata of the repository.
    pub fn metadata(&self) -> Result<Map<String, Value>> {
        metadata::to_json(self.buffer.root().metadata(), SpecVersion::V2)
    }

    /// Returns the availability for writes.
    pub fn status(&self) -> Status {
        Status::of(self.buffer.root().status())
    }

    /// Returns the ids of the feature flags that are switched on, and of those that are switched off; none where no list is stored.
    pub fn feature_flags(&self) -> (Option<Vec<u16>>, Option<Vec<u16>>) {
        let root = self.buffer.root();
        let list = |flags: flatbuffers::Vector<'_, u16>| flags.iter().collect();
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

    fn refs(&self, list: RefList<'_>) -> Vec<(String, Result<ObjectId>)> {
        list.iter().map(|r| (r.name().to_owned(), self.target(r))).collect()
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
        let info = RepoInfo::decode(&file).unwrap();
        assert!(info.branch("main").unwrap().unwrap_err().to_string().contains("snapshot number 9 of 2"));
        assert!(info.snapshot(0).unwrap_err().to_string().contains("names parent number 7"));
        assert_eq!(info.snapshot(1).unwrap().parent, None);
        assert!(info.branches().iter().all(|(name, target)| name == "main" && target.is_err()));
    }

    #[test]
    fn files_of_version_1_are_refused() {
        let mut old = testing::repo(&[(id(1), -1)], &[("main", 0)]);
        *old.get_mut(36).unwrap() = 1;
        assert!(RepoInfo::decode(&old).unwrap_err().to_string().contains("version 1"));
    }
}
