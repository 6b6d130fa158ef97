//! The record of a commit that stands for others, which it replaced, in its metadata.
//!
//! A squash, an amend and a rewritten manifest give a branch a new commit in the place of others.
//! Other branches may still have those: without the record, the newest commit that both have would
//! be an older one, and what was taken back since would look as if it had never been there. The
//! replaced commits may be collected one day, so that the record also has those that they had
//! replaced themselves.
//!
//! As with [`super::merge_record`], the record names its own commit. Where the reference
//! implementation amends, the operations log tells; a copy of the repository has another log, and
//! gets a record in the description of the commit ([`records_of_amended`]).

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::engine::RESERVED;
use super::merge_record::{MERGE_RECORD, MergeRecord, OWNER, id, is_owned};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Metadata item of a commit that replaced others: `{"commit": ID, "commits": [ID, ..]}`, newest
/// first, and `"incomplete": true` if there were more.
pub const REPLACE_RECORD: &str = "icechunkfs.replaces";

/// Most commits that a record has: 23 KB, as the file `repo` has the metadata of every commit.
const MAX_COMMITS: usize = 1000;

/// Names of metadata items that belong to implementations, and cannot be set by users.
pub const RESERVED_ITEMS: [&str; 3] = [RESERVED, MERGE_RECORD, REPLACE_RECORD];

/// Commits for which another one stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaceRecord {
    /// The commits, newest first. The content of the first one is a part of the new commit's.
    pub commits: Vec<ObjectId>,
    /// True if there are no others.
    pub is_complete: bool,
}

impl ReplaceRecord {
    /// Returns the record of `commit`; none if it replaced nothing that is known, or has the record
    /// of another commit.
    pub fn of(commit: &SnapshotInfo) -> Result<Option<Self>> {
        let item = commit.metadata_item(REPLACE_RECORD)?;
        Ok(item.and_then(|value| Self::parse(&value, commit.id)))
    }

    fn parse(value: &Value, owner: ObjectId) -> Option<Self> {
        let listed = value.get("commits")?.as_array()?;
        if !is_owned(value, owner) || listed.is_empty() {
            return None;
        }
        let commits: Vec<ObjectId> = listed.iter().filter_map(id).collect();
        let is_complete = value.get("incomplete").is_none() && commits.len() == listed.len();
        (!commits.is_empty()).then_some(ReplaceRecord { commits, is_complete })
    }

    fn to_value(&self, owner: ObjectId) -> Value {
        let text = |id: &ObjectId| Value::String(id.to_string());
        let mut members = Map::new();
        members.insert(OWNER.to_owned(), text(&owner));
        members.insert("commits".to_owned(), self.commits.iter().map(text).collect());
        if !self.is_complete {
            members.insert("incomplete".to_owned(), Value::Bool(true));
        }
        Value::Object(members)
    }
}

/// Records of a commit: the commits that it was made from, besides its parent.
#[derive(Clone, Debug)]
pub struct Records {
    id: ObjectId,
    merged: Option<MergeRecord>,
    replaced: Option<ReplaceRecord>,
}

impl Records {
    /// Reads the records of a commit from its description, which may have more than the snapshot's
    /// file ([`records_of_amended`]).
    pub fn of(commit: &SnapshotInfo) -> Result<Self> {
        Ok(Records { id: commit.id, merged: MergeRecord::of(commit)?, replaced: ReplaceRecord::of(commit)? })
    }

    /// Describes commit `id`, whose records are not known.
    pub fn unknown(id: ObjectId) -> Self {
        Records { id, merged: None, replaced: None }
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.merged.is_none() && self.replaced.is_none()
    }

    /// Returns the commits that it merged, and those that it replaced. Of each of both, the first
    /// has what the others have.
    pub fn commits(&self) -> impl Iterator<Item = ObjectId> {
        let merged = self.merged.iter().flat_map(MergeRecord::all);
        merged.chain(self.replaced.iter().flat_map(|record| record.commits.iter().copied()))
    }

    /// Returns true if the records list all of these.
    pub fn are_complete(&self) -> bool {
        self.merged.as_ref().is_none_or(|record| record.is_complete) && self.lists_all_replaced()
    }

    fn lists_all_replaced(&self) -> bool {
        self.replaced.as_ref().is_none_or(|record| record.is_complete)
    }
}

/// Returns the records of commit `owner`, which replaces `commits`, newest first: what it stands
/// for, and all that any of them merged, since the branch still has it.
pub(super) fn records_of_replacement(owner: ObjectId, commits: &[Records]) -> Vec<(String, Value)> {
    records(owner, commits.iter(), true)
}

/// Returns the records of `commit`, which another program made in the place of `replaced`, newest
/// first, for a repository whose operations log does not tell so. `are_all_known` is false if what
/// one of `replaced` was made from is not known.
pub fn records_of_amended(commit: &Records, replaced: &[Records], are_all_known: bool) -> Vec<(String, Value)> {
    records(commit.id, std::iter::once(commit).chain(replaced), are_all_known)
}

/// Returns the records of commit `owner`, which has what `commits` had, and stands for those of
/// them that it is not itself.
fn records<'a>(
    owner: ObjectId,
    commits: impl Iterator<Item = &'a Records> + Clone,
    are_all_known: bool,
) -> Vec<(String, Value)> {
    let mut seen = HashSet::new();
    let own = commits.clone().map(|commit| commit.id).filter(|id| *id != owner);
    let earlier = commits.clone().filter_map(|commit| commit.replaced.as_ref());
    let mut all = own.chain(earlier.flat_map(|record| record.commits.iter().copied())).filter(|id| seen.insert(*id));
    let listed: Vec<ObjectId> = all.by_ref().take(MAX_COMMITS).collect();
    let is_complete = are_all_known && all.next().is_none() && commits.clone().all(Records::lists_all_replaced);
    let mut records = Vec::new();
    if !listed.is_empty() {
        let record = ReplaceRecord { commits: listed, is_complete };
        records.push((REPLACE_RECORD.to_owned(), record.to_value(owner)));
    }
    if let Some(merged) = MergeRecord::unite(commits.filter_map(|commit| commit.merged.clone())) {
        records.push((MERGE_RECORD.to_owned(), merged.to_value(owner)));
    }
    records
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_format::format::envelope::SpecVersion;
    use icechunkfs_format::format::repo_state::RawItem;
    use icechunkfs_format::format::snapshot_info::CommitText;

    fn object_id(n: u8) -> ObjectId {
        ObjectId([n; 12])
    }

    fn commit(n: u8, records: impl IntoIterator<Item = (String, Value)>) -> SnapshotInfo {
        let items = RawItem::list(SpecVersion::V2, &records.into_iter().collect()).unwrap();
        let text = CommitText::own(String::new(), items, SpecVersion::V2);
        SnapshotInfo { text, ..SnapshotInfo::new(object_id(n), None, 0, "") }
    }

    fn replaced(commit: &SnapshotInfo) -> Records {
        Records::of(commit).unwrap()
    }

    fn record_of(commit: &SnapshotInfo) -> Option<ReplaceRecord> {
        ReplaceRecord::of(commit).unwrap()
    }

    #[test]
    fn a_commit_stands_for_those_that_its_predecessors_stood_for() {
        let first = commit(1, []);
        let second = commit(2, records_of_replacement(object_id(2), &[replaced(&first)]));
        assert_eq!(record_of(&second).unwrap().commits, [object_id(1)]);
        let other = commit(3, []);
        let squashed = commit(4, records_of_replacement(object_id(4), &[replaced(&other), replaced(&second)]));
        let record = record_of(&squashed).unwrap();
        assert_eq!((record.commits, record.is_complete), ([3, 2, 1].map(object_id).to_vec(), true));
        assert_eq!(MergeRecord::of(&squashed).unwrap(), None);
    }

    #[test]
    fn a_commit_in_the_place_of_merges_has_all_that_they_had() {
        let merged = MergeRecord::new("branch `dev`", object_id(7), [object_id(6)]);
        let merge = commit(1, [(MERGE_RECORD.to_owned(), merged.to_value(object_id(1)))]);
        let amended = commit(2, records_of_replacement(object_id(2), &[replaced(&merge)]));
        assert_eq!(MergeRecord::of(&amended).unwrap(), Some(merged));
    }

    #[test]
    fn what_another_program_put_in_the_place_of_a_merge_has_what_it_had() {
        let merged = MergeRecord::new("branch `dev`", object_id(7), [object_id(6)]);
        let merge = commit(1, [(MERGE_RECORD.to_owned(), merged.to_value(object_id(1)))]);
        // It copies the metadata, or drops them.
        for metadata in [merge.metadata().unwrap().into_inner(), Map::new()] {
            let amended = commit(2, metadata);
            let described = commit(2, records_of_amended(&replaced(&amended), &[replaced(&merge)], true));
            assert_eq!(MergeRecord::of(&described).unwrap(), Some(merged.clone()));
            let record = record_of(&described).unwrap();
            assert_eq!((record.commits, record.is_complete), (vec![object_id(1)], true));
        }
        let unknown = records_of_amended(&Records::unknown(object_id(2)), &[Records::unknown(object_id(1))], false);
        assert!(!record_of(&commit(2, unknown)).unwrap().is_complete);
    }

    #[test]
    fn records_that_were_copied_say_nothing() {
        let first = commit(1, []);
        let second = commit(2, records_of_replacement(object_id(2), &[replaced(&first)]));
        let copy = commit(3, second.metadata().unwrap().into_inner());
        assert_eq!(record_of(&copy), None);
        assert_eq!(record_of(&commit(4, [(REPLACE_RECORD.to_owned(), Value::from("nonsense"))])), None);
    }

    #[test]
    fn a_record_is_bounded() {
        let many: Vec<Records> = (0..=MAX_COMMITS)
            .map(|n| {
                let mut id = [0; 12];
                id[..8].copy_from_slice(&(n as u64).to_be_bytes());
                Records::unknown(ObjectId(id))
            })
            .collect();
        let commit = commit(9, records_of_replacement(object_id(9), &many));
        let record = record_of(&commit).unwrap();
        assert_eq!((record.commits.len(), record.is_complete), (MAX_COMMITS, false));
    }
}
