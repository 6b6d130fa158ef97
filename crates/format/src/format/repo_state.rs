//! Represents `repo` as a value that can be changed and written again.
//!
//! Positions in the file (of parents and of the targets of refs) change with every insertion, so
//! the value has ids instead, and encoding computes new positions. Content that this program does
//! not interpret is kept as bytes: configuration, metadata values, feature flags. Losing
//! `pruned_ancestor_tx_logs` would break the diffs of expired repositories.
//!
//! The operations log has rules that the specification does not state, and the reference
//! implementation asserts some of them; [`RepoState::record`] follows them.

mod operation;

use std::collections::{BTreeMap, BTreeSet};

use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, WIPOffset};

pub(super) use self::operation::read_entry;
pub use self::operation::{LogEntry, Operation};
use self::operation::{entry_text, read_known_entry, write_entry};
use super::config::RepoConfig;
use super::draft::SnapshotDraft;
use super::envelope::{self, FileType, SpecVersion};
use super::generated::icechunk as fb;
use super::ids::ObjectId;
use super::json::TEXT;
use super::metadata;
use super::repo_info::RepoInfo;
use super::unknown;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{self, Meter, SharedReservation};

/// Bytes that an entry of a map takes besides its name and value.
const ENTRY: u64 = 128;
/// Bytes that a value takes at most while it is encoded, its text apart.
const ENCODED: u64 = 64;
/// Bytes that encoding takes for each byte of the state: the builder doubles its buffer, and has
/// the old one and the new one meanwhile.
const WRITTEN: u64 = 3;

/// Default number of updates in one file, as in the reference implementation.
pub const DEFAULT_UPDATES_PER_FILE: usize = 1000;

/// Named value as a file stores it, uninterpreted: a FlexBuffer in version 2, MessagePack in
/// version 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawItem {
    /// Name of the item.
    pub name: String,
    /// Encoded value.
    pub value: Vec<u8>,
}

impl RawItem {
    /// Copies stored items, which `meter` counts.
    pub(super) fn read_all(items: Option<metadata::Items<'_>>, meter: &mut Meter) -> Result<Vec<Self>> {
        let mut copies = Vec::new();
        for item in items.iter().flatten() {
            let name = item.name();
            let value = item.value().bytes();
            meter.count_items::<Self>(1)?;
            meter.count(2 * TEXT + (name.len() + value.len()) as u64)?;
            copies.push(RawItem { name: name.to_owned(), value: value.to_vec() });
        }
        Ok(copies)
    }

    /// Returns this item of a file of `version` as one of version 2, which `meter` counts.
    pub(super) fn in_version_2(&self, version: SpecVersion, meter: &mut Meter) -> Result<Self> {
        if version == SpecVersion::V2 {
            meter.count(2 * TEXT + (self.name.len() + self.value.len()) as u64)?;
            return Ok(self.clone());
        }
        let mut brief = Meter::brief("a metadata item");
        let value = metadata::value(&self.name, &self.value, version, &mut brief)?;
        let item = RawItem::new(SpecVersion::V2, &self.name, &value)?;
        meter.count(2 * TEXT + (item.name.len() + item.value.capacity()) as u64)?;
        Ok(item)
    }

    /// Encodes a JSON value as an item of a file of `version`.
    pub fn new(version: SpecVersion, name: &str, value: &serde_json::Value) -> Result<Self> {
        let mut meter = Meter::brief("a metadata item, to be encoded,");
        count_encoded(value, &mut meter)?;
        let encoded: std::result::Result<_, Box<dyn std::error::Error + Send + Sync>> = match version {
            SpecVersion::V1 => rmp_serde::to_vec(value).map_err(Into::into),
            SpecVersion::V2 => flexbuffers::to_vec(value).map_err(Into::into),
        };
        let failed = |e| Error::with_source(ErrorKind::InvalidInput, format!("metadata item `{name}`"), e);
        Ok(RawItem { name: name.to_owned(), value: encoded.map_err(failed)? })
    }

    /// Encodes each member of a JSON object like [`RawItem::new`].
    pub fn list(version: SpecVersion, members: &serde_json::Map<String, serde_json::Value>) -> Result<Vec<Self>> {
        members.iter().map(|(name, value)| RawItem::new(version, name, value)).collect()
    }
}

/// Counts what encoding `value` takes. Recursion is bounded by the depth of values, which the
/// readers of all encodings bound.
fn count_encoded(value: &serde_json::Value, meter: &mut Meter) -> Result<()> {
    use serde_json::Value;
    meter.count(ENCODED)?;
    match value {
        Value::String(text) => meter.count(2 * text.len() as u64),
        Value::Array(items) => items.iter().try_for_each(|item| count_encoded(item, meter)),
        Value::Object(members) => members.iter().try_for_each(|(name, value)| {
            meter.count(ENCODED + 2 * name.len() as u64)?;
            count_encoded(value, meter)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Snapshot as `repo` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// Parent; `None` for a root.
    pub parent: Option<ObjectId>,
    /// Time of the commit, in microseconds since 1970-01-01 UTC.
    pub flushed_at: u64,
    /// Commit message.
    pub message: String,
    /// Metadata of the commit.
    pub metadata: Vec<RawItem>,
    /// Transaction logs of ancestors that expiration removed, oldest first.
    pub pruned_ancestor_tx_logs: Vec<ObjectId>,
}

impl SnapshotRecord {
    /// Describes a new commit.
    pub fn of(draft: &SnapshotDraft, parent: Option<ObjectId>) -> Self {
        SnapshotRecord {
            parent,
            flushed_at: draft.flushed_at,
            message: draft.message.clone(),
            metadata: draft.metadata.clone(),
            pruned_ancestor_tx_logs: Vec::new(),
        }
    }
}

impl SnapshotRecord {
    /// Counts a copy of the record.
    pub fn count(&self, meter: &mut Meter) -> Result<()> {
        let texts = self.metadata.iter().map(|item| (item.name.len() + item.value.len()) as u64 + 2 * TEXT);
        meter.count(ENTRY + TEXT + self.message.len() as u64 + texts.sum::<u64>())?;
        meter.count_items::<Self>(1)?;
        meter.count_items::<RawItem>(self.metadata.len())?;
        meter.count_items::<ObjectId>(self.pruned_ancestor_tx_logs.len())
    }
}

/// Availability of the repository for writes, and its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Availability: 0 online, 1 read-only, 2 offline.
    pub availability: u8,
    /// Time of the last change, in microseconds since 1970-01-01 UTC.
    pub set_at: u64,
    /// Reason that the user gave.
    pub reason: Option<String>,
}

impl Status {
    pub(super) fn of(stored: fb::RepoStatus<'_>) -> Self {
        Status {
            availability: stored.availability().0,
            set_at: stored.set_at(),
            reason: stored.limited_availability_reason().map(str::to_owned),
        }
    }

    /// Returns true unless the repository is online: nothing can be written then but the status
    /// itself. What is offline, or in a state that a newer release has, can be read.
    pub fn is_read_only(&self) -> bool {
        self.availability != fb::RepoAvailability::Online.0
    }

    /// Returns the name of the availability.
    pub fn name(&self) -> &'static str {
        match fb::RepoAvailability(self.availability) {
            fb::RepoAvailability::Online => "online",
            fb::RepoAvailability::ReadOnly => "read_only",
            fb::RepoAvailability::Offline => "offline",
            _ => "unknown",
        }
    }
}

/// Content of `repo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepoState {
    /// Tags and their targets.
    pub tags: BTreeMap<String, ObjectId>,
    /// Branches and their targets; encoding requires `main`.
    pub branches: BTreeMap<String, ObjectId>,
    /// Names of deleted tags, which may not be used again.
    pub deleted_tags: BTreeSet<String>,
    /// All snapshots.
    pub snapshots: BTreeMap<ObjectId, SnapshotRecord>,
    /// Availability for writes.
    pub status: Status,
    /// Metadata of the repository.
    pub metadata: Vec<RawItem>,
    /// Operations log, newest first; never empty.
    pub updates: Vec<LogEntry>,
    /// Bare name of the file that holds the preceding entries.
    pub repo_before_updates: Option<String>,
    /// Persisted configuration, a FlexBuffer.
    pub config: Option<Vec<u8>>,
    /// Feature flags switched on by the user.
    pub enabled_feature_flags: Option<Vec<u16>>,
    /// Feature flags switched off by the user.
    pub disabled_feature_flags: Option<Vec<u16>>,
    /// Bytes reserved by the format.
    pub extra: Option<Vec<u8>>,
    /// Memory of what was read.
    pub memory: SharedReservation,
}

impl RepoState {
    /// Reads the state from `info`. Fails if an index is out of range, or if an operation or a
    /// member is unknown, which would be lost when the state is written.
    pub fn from_info(info: &RepoInfo) -> Result<Self> {
        let root = info.root();
        unknown::check_repo(root)?;
        let mut meter = Meter::new("the content of `repo`");
        let mut snapshots = BTreeMap::new();
        for (position, stored) in root.snapshots().iter().enumerate() {
            let pruned = stored.pruned_ancestor_tx_logs();
            meter.count(ENTRY + TEXT + stored.message().len() as u64)?;
            meter.count_items::<SnapshotRecord>(1)?;
            meter.count_items::<ObjectId>(pruned.as_ref().map_or(0, |logs| logs.len()))?;
            let record = SnapshotRecord {
                parent: info.parent_id(position)?,
                flushed_at: stored.flushed_at(),
                message: stored.message().to_owned(),
                metadata: RawItem::read_all(stored.metadata(), &mut meter)?,
                pruned_ancestor_tx_logs: pruned.iter().flatten().map(ObjectId::from).collect(),
            };
            snapshots.insert(ObjectId::from(stored.id()), record);
        }
        let mut updates = Vec::new();
        for stored in root.latest_updates() {
            meter.count_items::<LogEntry>(1)?;
            meter.count(entry_text(stored))?;
            updates.push(read_known_entry(stored)?);
        }
        let enabled = root.enabled_feature_flags();
        let disabled = root.disabled_feature_flags();
        let blobs = [root.config().map_or(0, |bytes| bytes.len()), root.extra().map_or(0, |bytes| bytes.len())];
        meter.count(blobs.iter().sum::<usize>() as u64)?;
        meter.count_items::<u16>([&enabled, &disabled].into_iter().flatten().map(|flags| flags.len()).sum())?;
        let mut deleted_tags = BTreeSet::new();
        for name in info.deleted_tags() {
            meter.count(ENTRY + name.len() as u64)?;
            deleted_tags.insert(name.to_owned());
        }
        let list = |flags: flatbuffers::Vector<'_, u16>| flags.iter().collect();
        Ok(RepoState {
            tags: read_refs(info.tags(), &mut meter)?,
            branches: read_refs(info.branches(), &mut meter)?,
            deleted_tags,
            snapshots,
            status: Status::of(root.status()),
            metadata: RawItem::read_all(root.metadata(), &mut meter)?,
            updates,
            repo_before_updates: root.repo_before_updates().map(str::to_owned),
            config: root.config().map(|bytes| bytes.bytes().to_vec()),
            enabled_feature_flags: enabled.map(list),
            disabled_feature_flags: disabled.map(list),
            extra: root.extra().map(|bytes| bytes.bytes().to_vec()),
            memory: meter.into(),
        })
    }

    /// Records `operations`, oldest first, of one change at time `now`, for a file whose
    /// predecessor was copied to `overwritten/{backup}`. Their times rise by a microsecond; the
    /// last is at `now` if the entry before leaves room for that.
    ///
    /// The reference implementation refuses times that do not rise, and panics if the newest entry
    /// has a backup: therefore the *previous* newest entry gets the name of the copy, which ended
    /// with it. A full list is cut before an entry that has a copy, and the copy's name leads to
    /// the older entries; entries without a copy (from a migration, or within one change) cannot be
    /// a cut.
    pub fn record(&mut self, operations: Vec<Operation>, now: u64, backup: &str, per_file: usize) -> Result<()> {
        let mut earliest = 0;
        if let Some(newest) = self.updates.first_mut() {
            if now <= newest.updated_at {
                return Err(Error::new(
                    ErrorKind::Io,
                    format!(
                        "this machine's clock is behind the repository's last change by {} s: set the clock, or wait",
                        (newest.updated_at - now).div_ceil(1_000_000)
                    ),
                ));
            }
            newest.backup_path = Some(backup.to_owned());
            earliest = newest.updated_at + 1;
        }
        let span = (operations.len() as u64).saturating_sub(1);
        let first = now.saturating_sub(span).max(earliest);
        if first.checked_add(span).is_none() {
            return Err(Error::new(ErrorKind::Unsupported, "the log of operations has reached the end of time"));
        }
        let times = first..=first + span;
        let entry = |(operation, updated_at)| LogEntry { operation, updated_at, backup_path: None };
        let mut kept: Vec<LogEntry> = operations.into_iter().zip(times).map(entry).collect();
        kept.reverse();
        for update in std::mem::take(&mut self.updates) {
            if kept.len() >= per_file.max(1)
                && let Some(backup) = update.backup_path
            {
                self.repo_before_updates = Some(backup);
                break;
            }
            kept.push(update);
        }
        self.updates = kept;
        Ok(())
    }

    /// Encodes the file. Fails with [`ErrorKind::InvalidInput`] if the state breaks a rule that
    /// readers rely on.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if !self.branches.contains_key("main") {
            return Err(Error::invalid("a repository without branch `main` cannot be written"));
        }
        let needed = self.memory.bytes().saturating_mul(WRITTEN);
        let _room = memory::reserve_blocking(needed, "`repo`, to be written,")?;
        let mut b = FlatBufferBuilder::new();
        let positions: BTreeMap<ObjectId, u32> =
            self.snapshots.keys().zip(0_u32..).map(|(id, position)| (*id, position)).collect();
        let tags = refs(&mut b, &self.tags, &positions)?;
        let branches = refs(&mut b, &self.branches, &positions)?;
        let deleted_tags = tables(&mut b, &self.deleted_tags, |b, name| b.create_string(name));
        let mut infos = Vec::with_capacity(self.snapshots.len());
        for (id, record) in &self.snapshots {
            infos.push(snapshot_info(&mut b, id, record, &positions)?);
        }
        let snapshots = b.create_vector(&infos);
        let status = write_status(&mut b, &self.status);
        let metadata = write_items(&mut b, &self.metadata);
        let latest_updates = tables(&mut b, &self.updates, write_entry);
        let args = fb::RepoArgs {
            spec_version: SpecVersion::V2.number(),
            tags: Some(tags),
            branches: Some(branches),
            deleted_tags: Some(deleted_tags),
            snapshots: Some(snapshots),
            status: Some(status),
            metadata: Some(metadata),
            latest_updates: Some(latest_updates),
            repo_before_updates: self.repo_before_updates.as_ref().map(|path| b.create_string(path)),
            config: self.config.as_ref().map(|bytes| b.create_vector(bytes)),
            enabled_feature_flags: self.enabled_feature_flags.as_ref().map(|flags| b.create_vector(flags)),
            disabled_feature_flags: self.disabled_feature_flags.as_ref().map(|flags| b.create_vector(flags)),
            extra: self.extra.as_ref().map(|bytes| b.create_vector(bytes)),
        };
        let root = fb::Repo::create(&mut b, &args);
        b.finish(root, Some(envelope::FILE_IDENTIFIER));
        let config = self.config.as_deref().and_then(|bytes| RepoConfig::from_flexbuffer(bytes).ok());
        let compression = config.map(|config| config.compression()).unwrap_or_default();
        envelope::encode(SpecVersion::V2, FileType::RepoInfo, b.finished_data(), compression)
    }
}

pub(super) type Builder = FlatBufferBuilder<'static>;

/// Copies refs, which `meter` counts. Fails if one has no target.
fn read_refs<'a>(
    refs: impl Iterator<Item = (&'a str, Result<ObjectId>)>,
    meter: &mut Meter,
) -> Result<BTreeMap<String, ObjectId>> {
    let mut copies = BTreeMap::new();
    for (name, target) in refs {
        meter.count(ENTRY + name.len() as u64)?;
        copies.insert(name.to_owned(), target?);
    }
    Ok(copies)
}

/// Vector of tables in a buffer under construction.
pub(super) type Tables<T> = WIPOffset<flatbuffers::Vector<'static, ForwardsUOffset<T>>>;

/// Writes a vector of tables.
pub(super) fn tables<I: IntoIterator, T>(
    b: &mut Builder,
    items: I,
    mut write: impl FnMut(&mut Builder, I::Item) -> WIPOffset<T>,
) -> Tables<T> {
    let written: Vec<_> = items.into_iter().map(|item| write(b, item)).collect();
    b.create_vector(&written)
}

/// Writes `items`, sorted by name as files have them.
pub(super) fn write_items(b: &mut Builder, items: &[RawItem]) -> Tables<fb::MetadataItem<'static>> {
    let mut sorted: Vec<&RawItem> = items.iter().collect();
    sorted.sort_by(|x, y| x.name.cmp(&y.name));
    tables(b, sorted, |b, item| {
        let name = Some(b.create_string(&item.name));
        let value = Some(b.create_vector(&item.value));
        fb::MetadataItem::create(b, &fb::MetadataItemArgs { name, value })
    })
}

fn position(positions: &BTreeMap<ObjectId, u32>, id: &ObjectId, what: &str) -> Result<u32> {
    let unlisted = || Error::invalid(format!("{what} points to snapshot {id}, which is not listed"));
    positions.get(id).copied().ok_or_else(unlisted)
}

fn refs(
    b: &mut Builder,
    refs: &BTreeMap<String, ObjectId>,
    positions: &BTreeMap<ObjectId, u32>,
) -> Result<Tables<fb::Ref<'static>>> {
    let mut written = Vec::with_capacity(refs.len());
    for (name, id) in refs {
        let snapshot_index = position(positions, id, &format!("ref `{name}`"))?;
        let name = Some(b.create_string(name));
        written.push(fb::Ref::create(b, &fb::RefArgs { name, snapshot_index }));
    }
    Ok(b.create_vector(&written))
}

fn snapshot_info(
    b: &mut Builder,
    id: &ObjectId,
    record: &SnapshotRecord,
    positions: &BTreeMap<ObjectId, u32>,
) -> Result<WIPOffset<fb::SnapshotInfo<'static>>> {
    let parent_offset = match &record.parent {
        None => -1,
        Some(parent) => i32::try_from(position(positions, parent, &format!("snapshot {id}"))?)
            .map_err(|e| Error::with_source(ErrorKind::Unsupported, "more than 2^31 snapshots", e))?,
    };
    let pruned = record.pruned_ancestor_tx_logs.iter().map(|id| fb::ObjectId12(id.0));
    let args = fb::SnapshotInfoArgs {
        id: Some(&fb::ObjectId12(id.0)),
        parent_offset,
        flushed_at: record.flushed_at,
        message: Some(b.create_string(&record.message)),
        metadata: Some(write_items(b, &record.metadata)),
        // Absent when empty: the reference implementation never writes an empty list.
        pruned_ancestor_tx_logs: (pruned.len() > 0).then(|| b.create_vector_from_iter(pruned)),
    };
    Ok(fb::SnapshotInfo::create(b, &args))
}

fn write_status(b: &mut Builder, status: &Status) -> WIPOffset<fb::RepoStatus<'static>> {
    let limited_availability_reason = status.reason.as_ref().map(|reason| b.create_string(reason));
    let availability = fb::RepoAvailability(status.availability);
    fb::RepoStatus::create(b, &fb::RepoStatusArgs { availability, set_at: status.set_at, limited_availability_reason })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::format::testing::id;

    fn state() -> RepoState {
        let record = |parent, flushed_at| SnapshotRecord {
            parent,
            flushed_at,
            message: format!("at {flushed_at}"),
            metadata: vec![RawItem::new(SpecVersion::V2, "k", &serde_json::json!({"a": 1})).unwrap()],
            pruned_ancestor_tx_logs: if flushed_at > 1 { vec![id(0x77)] } else { Vec::new() },
        };
        let operations = [
            Operation::StatusChanged {
                status: Some(Status { availability: 1, set_at: 3, reason: Some("why".into()) }),
            },
            Operation::FeatureFlagChanged { id: 3, new_value: true, is_set: false },
            Operation::CommitAmended { branch: "b".into(), previous: id(1), new: id(2) },
            Operation::NewCommit { branch: "b".into(), new: id(2) },
            Operation::BranchReset { name: "b".into(), previous: id(1) },
            Operation::BranchDeleted { name: "b".into(), previous: id(1) },
            Operation::BranchCreated { name: "b".into() },
            Operation::TagDeleted { name: "t".into(), previous: id(1) },
            Operation::TagCreated { name: "t".into() },
            Operation::NewDetachedSnapshot { new: id(2) },
            Operation::MetadataChanged,
            Operation::ConfigChanged,
            Operation::GcRan,
            Operation::ExpirationRan,
            Operation::RepoMigrated { from_version: 1, to_version: 2 },
            Operation::RepoInitialized,
        ];
        let updates = operations.into_iter().enumerate().map(|(n, operation)| LogEntry {
            operation,
            updated_at: 1000 - n as u64,
            backup_path: (n > 0).then(|| format!("repo.{n}")),
        });
        RepoState {
            tags: BTreeMap::from([("t".into(), id(1))]),
            branches: BTreeMap::from([("main".into(), id(2)), ("ветка".into(), id(1))]),
            deleted_tags: BTreeSet::from(["gone".into()]),
            snapshots: BTreeMap::from([(id(2), record(Some(id(1)), 2)), (id(1), record(None, 1))]),
            status: Status { availability: 0, set_at: 5, reason: None },
            metadata: vec![RawItem::new(SpecVersion::V2, "m", &serde_json::json!(null)).unwrap()],
            updates: updates.collect(),
            repo_before_updates: Some("repo.old".into()),
            config: Some(vec![1, 2, 3]),
            enabled_feature_flags: Some(vec![3]),
            disabled_feature_flags: Some(vec![4, 5]),
            extra: Some(vec![9]),
            memory: SharedReservation::default(),
        }
    }

    #[test]
    fn everything_survives_the_round_trip() {
        let state = state();
        let info = RepoInfo::decode(&state.encode().unwrap()).unwrap();
        assert_eq!(RepoState::from_info(&info).unwrap(), state);
        assert_eq!(info.branch("ветка").unwrap().unwrap(), id(1));
    }

    #[test]
    fn states_that_break_readers_are_refused() {
        let mut without_main = state();
        without_main.branches.remove("main");
        assert!(without_main.encode().is_err());
        let mut dangling = state();
        dangling.tags.insert("x".into(), id(9));
        assert!(dangling.encode().unwrap_err().to_string().contains("ref `x`"));
    }

    #[test]
    fn the_newest_operation_has_no_backup_and_the_one_before_has() {
        let mut state = state();
        state.record(vec![Operation::GcRan], 2000, "repo.new", 1000).unwrap();
        let backups: Vec<Option<&str>> = state.updates.iter().take(3).map(|u| u.backup_path.as_deref()).collect();
        assert_eq!(backups, [None, Some("repo.new"), Some("repo.1")]);
        let error = state.record(vec![Operation::GcRan], 2000, "repo.newer", 1000).unwrap_err();
        assert!(error.to_string().contains("clock is behind"), "{error}");
    }

    #[test]
    fn a_full_log_is_cut_and_names_the_older_file() {
        let mut state = state();
        state.record(vec![Operation::GcRan], 2000, "repo.new", 4).unwrap();
        assert_eq!(state.updates.len(), 4);
        assert_eq!(state.repo_before_updates.as_deref(), Some("repo.3"));
        // The log cannot be cut at entries without a copy, such as those of a migration.
        let mut migrated = super::tests::state();
        migrated.updates.iter_mut().for_each(|update| update.backup_path = None);
        migrated.record(vec![Operation::GcRan], 2000, "repo.new", 4).unwrap();
        assert_eq!((migrated.updates.len(), migrated.repo_before_updates.as_deref()), (17, Some("repo.old")));
    }
}
