//! The record of a merge in the metadata of its commit.
//!
//! A commit has one parent; the record stands for the others. It has the snapshot that was merged
//! and the other commits that came with it, since that snapshot may be gone one day (its branch was
//! deleted, a clone does not have it) while some of these commits are still there. Older releases
//! read the snapshot alone.
//!
//! Clients copy metadata from commit to commit, as a cherry-pick does, so that a record names the
//! commit that it belongs to; in the metadata of another one it says nothing. Records of older
//! releases do not name theirs. A client can write any record, so that [`crate::merge`] compares
//! what one says with the snapshots before it relies on it.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::conflict::{Conflict, ConflictKind, OwnChange};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Metadata item of a merge: `{"commit": ID, "source": REF, "snapshot": ID, "commits": [ID, ..]}`,
/// and `"incomplete": true` if it does not have all commits. `commit` is the commit that has the
/// record. A commit that replaces merges has a record of all that they merged.
pub const MERGE_RECORD: &str = "icechunkfs.merge";

/// Member of a record: the commit that has it.
pub(super) const OWNER: &str = "commit";

/// Most commits that the record of one merge has besides the snapshot: 5 KB, as the file `repo` has
/// the metadata of every commit.
const MAX_COMMITS: usize = 200;

/// Description of what a commit has merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeRecord {
    /// Name of the source, for people.
    pub source: String,
    /// Snapshot that was merged.
    pub snapshot: ObjectId,
    /// Other commits that the branch got by the merge, newest first.
    pub commits: Vec<ObjectId>,
    /// True if the branch got no others. Not so for records of older releases, and for very many
    /// commits.
    pub is_complete: bool,
}

impl MergeRecord {
    /// Describes a merge of `snapshot`, by which the branch gets `commits`, newest first.
    pub fn new(source: &str, snapshot: ObjectId, commits: impl IntoIterator<Item = ObjectId>) -> Self {
        let mut commits = commits.into_iter().filter(|id| *id != snapshot);
        let some: Vec<ObjectId> = commits.by_ref().take(MAX_COMMITS).collect();
        MergeRecord { source: source.to_owned(), snapshot, commits: some, is_complete: commits.next().is_none() }
    }

    /// Returns the record of `commit`; none if it is no merge, or has the record of another commit.
    pub fn of(commit: &SnapshotInfo) -> Result<Option<Self>> {
        let item = commit.metadata_item(MERGE_RECORD)?;
        Ok(item.and_then(|value| Self::parse(&value, commit.id)))
    }

    /// Returns the record that commit `owner` has as the `value` of this item.
    pub(super) fn parse(value: &Value, owner: ObjectId) -> Option<Self> {
        if !is_owned(value, owner) {
            return None;
        }
        let snapshot = id(value.get("snapshot")?)?;
        let source = value.get("source").and_then(Value::as_str).unwrap_or_default().to_owned();
        let listed = value.get("commits").and_then(Value::as_array);
        let commits: Vec<ObjectId> = listed.into_iter().flatten().filter_map(id).collect();
        let is_complete = value.get("incomplete").is_none() && listed.is_some_and(|all| all.len() == commits.len());
        Some(MergeRecord { source, snapshot, commits, is_complete })
    }

    /// Returns the record of one commit in the place of several merges, whose records are given
    /// newest first. None if there are none.
    pub fn unite(records: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut records = records.into_iter();
        let mut united = records.next()?;
        let mut known: HashSet<ObjectId> = united.all().collect();
        for record in records {
            united.commits.extend(record.all().filter(|id| known.insert(*id)));
            united.is_complete &= record.is_complete;
        }
        Some(united)
    }

    /// Returns the value of the metadata item of commit `owner`.
    pub fn to_value(&self, owner: ObjectId) -> Value {
        let text = |id: &ObjectId| Value::String(id.to_string());
        let mut members = Map::new();
        members.insert(OWNER.to_owned(), text(&owner));
        members.insert("source".to_owned(), Value::String(self.source.clone()));
        members.insert("snapshot".to_owned(), text(&self.snapshot));
        members.insert("commits".to_owned(), self.commits.iter().map(text).collect());
        if !self.is_complete {
            members.insert("incomplete".to_owned(), Value::Bool(true));
        }
        Value::Object(members)
    }

    /// Returns the snapshot and the other commits.
    pub fn all(&self) -> impl Iterator<Item = ObjectId> + '_ {
        std::iter::once(self.snapshot).chain(self.commits.iter().copied())
    }
}

/// Returns true if a record with this value is that of commit `owner`, or does not say whose it is,
/// as those of older releases.
pub(super) fn is_owned(value: &Value, owner: ObjectId) -> bool {
    value.get(OWNER).is_none_or(|of| id(of) == Some(owner))
}

pub(super) fn id(value: &Value) -> Option<ObjectId> {
    value.as_str()?.parse().ok()
}

/// Merge that a commit makes.
#[derive(Clone, Debug)]
pub struct MergeCommit {
    /// Record for its metadata.
    pub record: MergeRecord,
    /// All commits of the source that the branch did not have when the merge was planned.
    pub brings: HashSet<ObjectId>,
}

impl MergeCommit {
    /// Returns a conflict with the first of the concurrent `commits` by which the branch may have
    /// got commits that this merge brings.
    ///
    /// Then the branch and the source have another common ancestor than the one that the merge was
    /// planned with. What the logs say of nodes and chunks does not tell: both may have made the
    /// same node, or one has taken back what the other brings.
    pub(super) fn conflict_with(&self, commits: &[SnapshotInfo]) -> Result<Option<Conflict>> {
        for commit in commits {
            if self.may_be_brought_by(commit)? {
                return Ok(Some(Conflict {
                    kind: ConflictKind::MergedByBoth,
                    path: "/".to_owned(),
                    coords: Vec::new(),
                    members: Vec::new(),
                    other: commit.id,
                    message: commit.title(),
                    own: OwnChange::default(),
                }));
            }
        }
        Ok(None)
    }

    /// Returns true if the branch may have got by `commit` what this merge brings.
    fn may_be_brought_by(&self, commit: &SnapshotInfo) -> Result<bool> {
        // Expired commits may have been merges.
        if self.brings.contains(&commit.id) || !commit.pruned_ancestor_tx_logs.is_empty() {
            return Ok(true);
        }
        if !commit.text.metadata_names().any(|name| name == MERGE_RECORD) {
            return Ok(false);
        }
        let record = MergeRecord::of(commit)?;
        Ok(record.is_none_or(|merge| !merge.is_complete || merge.all().any(|id| self.brings.contains(&id))))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use icechunkfs_format::format::envelope::SpecVersion;
    use icechunkfs_format::format::repo_state::RawItem;
    use icechunkfs_format::format::snapshot_info::CommitText;

    const VERSION: SpecVersion = SpecVersion::V2;

    fn object_id(n: u8) -> ObjectId {
        ObjectId([n; 12])
    }

    fn parse(value: Value, owner: ObjectId) -> Option<MergeRecord> {
        MergeRecord::parse(&value, owner)
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let owner = ObjectId([9; 12]);
        for commits in [0, 1, MAX_COMMITS, MAX_COMMITS + 1] {
            let ids = (0..commits).map(|n| ObjectId([1 + (n % 250) as u8; 12]));
            let record = MergeRecord::new("branch `dev`", object_id(0), ids.chain([object_id(0)]));
            assert_eq!((record.is_complete, record.commits.len()), (commits <= MAX_COMMITS, commits.min(MAX_COMMITS)));
            assert_eq!(parse(record.to_value(owner), owner).unwrap(), record);
            assert_eq!(parse(record.to_value(owner), object_id(8)), None, "copied to another commit");
        }
        // An older release has no list, and what is no id cannot be looked for.
        for commits in [Value::Null, json!([object_id(3), "no id"]), json!({"0": object_id(3)})] {
            let value = json!({"source": "dev", "snapshot": object_id(1), "commits": commits});
            assert!(!parse(value.clone(), owner).unwrap().is_complete, "{value}");
        }
        assert_eq!(parse(json!({"snapshot": 1}), owner), None);
        assert_eq!(parse(json!({"snapshot": object_id(1), "commit": 7}), owner), None);
    }

    #[test]
    fn one_commit_in_the_place_of_merges_has_all_that_they_had() {
        let record = |name: &str, ids: &[u8]| {
            let [first, others @ ..] = ids else { unreachable!() };
            MergeRecord::new(name, object_id(*first), others.iter().map(|n| object_id(*n)))
        };
        assert_eq!(MergeRecord::unite([]), None);
        let united = MergeRecord::unite([record("new", &[4, 3]), record("old", &[2, 3, 1])]).unwrap();
        assert_eq!(united, record("new", &[4, 3, 2, 1]));
        let alone = parse(json!({"source": "older", "snapshot": object_id(6)}), object_id(9)).unwrap();
        let united = MergeRecord::unite([record("new", &[4, 3]), alone]).unwrap();
        assert_eq!(united, MergeRecord { is_complete: false, ..record("new", &[4, 3, 6]) });
    }

    #[test]
    fn a_merge_conflicts_with_one_that_may_bring_the_same_commits() {
        let merge = MergeCommit {
            record: MergeRecord::new("dev", object_id(2), [object_id(1)]),
            brings: [1, 2].map(object_id).into(),
        };
        let conflicts = |id: u8, record: Option<Value>, logs: Vec<ObjectId>| {
            let items = record.map(|record| (MERGE_RECORD.to_owned(), record)).into_iter().collect();
            let text = CommitText::own(String::new(), RawItem::list(VERSION, &items).unwrap(), VERSION);
            let commit = SnapshotInfo::new(object_id(id), None, 0, "");
            let commit = SnapshotInfo { pruned_ancestor_tx_logs: logs, text, ..commit };
            let others = [SnapshotInfo::new(object_id(9), None, 0, ""), commit];
            merge.conflict_with(&others).unwrap().map(|found| found.other)
        };
        let of = |commits: &[u8]| {
            let ids = commits.iter().map(|n| object_id(*n));
            Some(MergeRecord::new("other", object_id(5), ids).to_value(object_id(8)))
        };
        assert_eq!(conflicts(8, None, vec![]), None);
        assert_eq!(conflicts(8, of(&[3, 4]), vec![]), None);
        for (id, record, logs) in [
            (8, of(&[4, 1]), vec![]),
            (8, Some(json!({"source": "other", "snapshot": object_id(5)})), vec![]),
            (8, Some(json!("nonsense")), vec![]),
            (8, None, vec![object_id(7)]),
            (1, None, vec![]),
        ] {
            assert_eq!(conflicts(id, record.clone(), logs), Some(object_id(id)), "{record:?}");
        }
    }
}
