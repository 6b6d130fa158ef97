//! Describes commits: entries of the list of snapshots in `repo`, or what snapshot files of older
//! versions say of themselves.
//!
//! A history may have very many commits, and each a message and metadata of megabytes, which cost
//! next to nothing where they are stored: they compress well, and parts may be shared. So a
//! description does not have them. It knows where they are ([`CommitText`]) and reads them when
//! they are asked for, one commit after another.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::envelope::SpecVersion;
use super::ids::ObjectId;
use super::metadata;
use super::repo_info::RepoInfo;
use super::repo_state::RawItem;
use super::snapshot::Snapshot;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_base::printable;

const WHAT: &str = "the message and metadata of a commit";
/// Longest title of a commit, in characters.
const MAX_TITLE: usize = 200;

/// Commit: all that history needs, without fetching snapshot files. `T` is its text, or nothing
/// where that is not needed.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotInfo<T = CommitText> {
    /// Id of the snapshot.
    pub id: ObjectId,
    /// Id of the parent; `None` for a root.
    pub parent: Option<ObjectId>,
    /// Time of the commit, in microseconds since 1970-01-01 UTC.
    pub flushed_at: u64,
    /// Transaction logs of ancestors that expiration removed, oldest first.
    pub pruned_ancestor_tx_logs: Vec<ObjectId>,
    /// Message and metadata.
    pub text: T,
}

/// Message and metadata of a commit, where they are stored.
#[derive(Clone)]
pub struct CommitText(TextPlace);

#[derive(Clone)]
enum TextPlace {
    /// Entry of the list of snapshots in `repo`.
    Repo(Arc<RepoInfo>, usize),
    /// Copied from a snapshot file, or made by this program.
    Own(Arc<Metered<OwnText>>),
}

/// Text of a commit, as its file has it.
struct OwnText {
    message: String,
    metadata: Vec<RawItem>,
    version: SpecVersion,
}

impl<T> SnapshotInfo<T> {
    /// Returns the ids of the pruned logs, oldest first, and of the snapshot's own log.
    pub fn log_ids(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.pruned_ancestor_tx_logs.iter().copied().chain([self.id])
    }

    /// Returns the commit without its text.
    pub fn without_text(self) -> SnapshotInfo<()> {
        let SnapshotInfo { id, parent, flushed_at, pruned_ancestor_tx_logs, .. } = self;
        SnapshotInfo { id, parent, flushed_at, pruned_ancestor_tx_logs, text: () }
    }

    /// Counts the memory of the commit in a list, apart from its text.
    pub fn count(&self, meter: &mut Meter) -> Result<()> {
        meter.count_items::<Self>(1)?;
        meter.count_items::<ObjectId>(self.pruned_ancestor_tx_logs.len())
    }
}

impl SnapshotInfo {
    /// Describes a commit without metadata and pruned logs, for a message that this program has
    /// made.
    pub fn new(id: ObjectId, parent: Option<ObjectId>, flushed_at: u64, message: impl Into<String>) -> Self {
        let text = CommitText::own(message.into(), Vec::new(), SpecVersion::V2);
        SnapshotInfo { id, parent, flushed_at, pruned_ancestor_tx_logs: Vec::new(), text }
    }

    /// Describes the commit of a snapshot file. Its text is copied.
    pub fn of_snapshot(snapshot: &Snapshot) -> Result<Self> {
        let text = CommitText::of_snapshot(snapshot)?;
        Ok(SnapshotInfo {
            text,
            parent: snapshot.parent_id(),
            ..Self::new(snapshot.id(), None, snapshot.flushed_at(), "")
        })
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        self.text.message()
    }

    /// Returns the beginning of the first line of the message, for lists of commits.
    pub fn title(&self) -> String {
        title(self.message())
    }

    /// Reads the metadata.
    pub fn metadata(&self) -> Result<Metered<Map<String, Value>>> {
        self.text.metadata().context(|| format!("snapshot {}", self.id))
    }

    /// Reads the metadata item called `name`.
    pub fn metadata_item(&self, name: &str) -> Result<Option<Metered<Value>>> {
        self.text.metadata_item(name).context(|| format!("snapshot {}", self.id))
    }
}

/// Returns the beginning of the first line of a commit's message, for lists of commits.
pub fn title(message: &str) -> String {
    printable::shorten(message.lines().next().unwrap_or_default(), MAX_TITLE).into_owned()
}

impl CommitText {
    /// Returns the text of the entry at `position` of the list of snapshots in `repo`.
    pub fn in_repo(repo: &Arc<RepoInfo>, position: usize) -> Self {
        CommitText(TextPlace::Repo(Arc::clone(repo), position))
    }

    /// Returns a text that this program has made; `metadata` is encoded as in `version`.
    pub fn own(message: String, metadata: Vec<RawItem>, version: SpecVersion) -> Self {
        CommitText(TextPlace::Own(Arc::new(Metered::own(OwnText { message, metadata, version }))))
    }

    /// Returns a text that was read from a file of a release before 0.2, whose `metadata` is
    /// encoded again as in `version`.
    pub fn read(message: String, metadata: Vec<RawItem>, version: SpecVersion) -> Result<Self> {
        let mut meter = Meter::new(WHAT);
        meter.count(message.len() as u64)?;
        meter.count_items::<RawItem>(metadata.len())?;
        meter.count(metadata.iter().map(|item| (item.name.len() + item.value.capacity()) as u64).sum())?;
        Ok(CommitText(TextPlace::Own(Arc::new(meter.finish(OwnText { message, metadata, version })))))
    }

    /// Copies the text that a snapshot file has.
    fn of_snapshot(snapshot: &Snapshot) -> Result<Self> {
        let mut meter = Meter::new(WHAT).beside(snapshot.bytes().len() as u64);
        meter.count(snapshot.message().len() as u64)?;
        let metadata = RawItem::read_all(Some(snapshot.root().metadata()), &mut meter)?;
        let text = OwnText { message: snapshot.message().to_owned(), metadata, version: snapshot.version() };
        Ok(CommitText(TextPlace::Own(Arc::new(meter.finish(text)))))
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        match &self.0 {
            TextPlace::Repo(repo, position) => repo.message(*position),
            TextPlace::Own(own) => &own.message,
        }
    }

    /// Reads the metadata.
    pub fn metadata(&self) -> Result<Metered<Map<String, Value>>> {
        match &self.0 {
            // Copies in `repo` are FlexBuffers, whatever the version of the snapshot file.
            TextPlace::Repo(repo, position) => metadata::to_json(repo.metadata_items(*position), SpecVersion::V2),
            TextPlace::Own(own) => metadata::raw_to_json(&own.metadata, own.version),
        }
    }

    /// Reads the metadata item called `name`.
    pub fn metadata_item(&self, name: &str) -> Result<Option<Metered<Value>>> {
        match &self.0 {
            TextPlace::Repo(repo, position) => {
                metadata::item_to_json(repo.metadata_items(*position), SpecVersion::V2, name)
            }
            TextPlace::Own(own) => metadata::raw_item_to_json(&own.metadata, own.version, name),
        }
    }

    /// Returns the names of the metadata items, in their order.
    pub fn metadata_names(&self) -> impl Iterator<Item = &str> {
        let (stored, own) = match &self.0 {
            TextPlace::Repo(repo, position) => (repo.metadata_items(*position), None),
            TextPlace::Own(own) => (None, Some(&own.metadata)),
        };
        let own = own.into_iter().flatten().map(|item| item.name.as_str());
        stored.into_iter().flatten().map(|item| item.name()).chain(own)
    }

    /// Returns the metadata as `repo` stores it: each item decoded and encoded again where it is
    /// stored in another way. `meter` counts it.
    pub fn metadata_for_repo(&self, meter: &mut Meter) -> Result<Vec<RawItem>> {
        match &self.0 {
            TextPlace::Repo(repo, position) => RawItem::read_all(repo.metadata_items(*position), meter),
            TextPlace::Own(own) => own.metadata.iter().map(|item| item.in_version_2(own.version, meter)).collect(),
        }
    }
}

impl PartialEq for CommitText {
    /// Compares the message, and the metadata as stored.
    fn eq(&self, other: &Self) -> bool {
        fn items(text: &CommitText) -> impl Iterator<Item = (&str, &[u8])> {
            let (stored, own) = match &text.0 {
                TextPlace::Repo(repo, position) => (repo.metadata_items(*position), None),
                TextPlace::Own(own) => (None, Some(&own.metadata)),
            };
            let own = own.into_iter().flatten().map(|item| (item.name.as_str(), item.value.as_slice()));
            stored.into_iter().flatten().map(|item| (item.name(), item.value().bytes())).chain(own)
        }
        self.message() == other.message() && items(self).eq(items(other))
    }
}

impl fmt::Debug for CommitText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitText({:?})", title(self.message()))
    }
}
