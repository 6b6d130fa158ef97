//! Records for copies of amended commits, from the operations log of the source.
//!
//! The reference implementation amends a commit without a record of the one before, which may have
//! been a merge; only the operations log has it. The destination has a log of its own. So the
//! descriptions of such commits in its file `repo` get the record that an amend by this program
//! would have written: a merge there then knows what a merge here knows. The snapshots stay as they
//! are, and so does a description that would add nothing: the commit before was no merge, and no
//! other branch has it.

use std::collections::{HashMap, HashSet};

use super::history::Outstanding;
use crate::commit::replace_record::{Records, records_of_amended};
use crate::repo::Repository;
use crate::repo::history::walk_all;
use crate::repo::operations::amended_since;
use crate::repo::refs::Refs;
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_base::memory::{Meter, SharedReservation};
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{RawItem, SnapshotRecord};
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Steps back for each entry of a log. Each commit is amended once in a branch, so that chains of
/// an honest log share nearly nothing and take one; in a made up log, many chains could share a
/// long one.
const STEPS_PER_ENTRY: usize = 4;

/// Metadata items of commits for the descriptions in another repository.
#[derive(Debug, Default)]
pub(super) struct Amended {
    items: HashMap<ObjectId, Vec<RawItem>>,
    _memory: SharedReservation,
}

impl Amended {
    /// Reads what the log tells of the commits `outstanding` of `source`. Version 1 has no amended
    /// commits. `destination` is what they are copied to, if it is a repository already.
    pub(super) async fn read(
        source: &Repository,
        outstanding: &Outstanding,
        destination: Option<&Repository>,
    ) -> Result<Self> {
        let times = outstanding.commits.iter().map(|commit| commit.flushed_at);
        let Some(since) = times.min() else { return Ok(Amended::default()) };
        let mut meter = Meter::new("the amended commits");
        let previous: HashMap<ObjectId, ObjectId> =
            amended_since(source, since, &mut meter).await?.into_iter().collect();
        let amended: Vec<ObjectId> =
            outstanding.commits.iter().map(|commit| commit.id).filter(|id| previous.contains_key(id)).collect();
        let mut items = HashMap::new();
        if !amended.is_empty() {
            let known = known_elsewhere([Some(source), destination], &mut meter).await?;
            let mut steps = STEPS_PER_ENTRY * previous.len();
            for id in amended {
                let found = items_of(source, id, &previous, &known, &mut steps).await?;
                meter.count(found.iter().map(|item| (item.name.len() + item.value.len()) as u64).sum())?;
                items.insert(id, found);
            }
        }
        Ok(Amended { items, _memory: meter.into() })
    }

    /// Adds to the description of commit `id` what the log tells of it.
    pub(super) fn describe(&self, id: ObjectId, record: &mut SnapshotRecord) {
        let Some(items) = self.items.get(&id) else { return };
        record.metadata.retain(|item| items.iter().all(|other| other.name != item.name));
        record.metadata.extend(items.iter().cloned());
    }
}

/// Returns the commits that the refs of `repositories` lead to, and those that these have merged or
/// replaced.
async fn known_elsewhere(repositories: [Option<&Repository>; 2], meter: &mut Meter) -> Result<HashSet<ObjectId>> {
    let mut known = HashSet::new();
    for repository in repositories.into_iter().flatten() {
        let Refs { branches, tags, .. } = repository.refs().await?;
        let tips: HashSet<ObjectId> = branches.into_values().chain(tags.into_values()).collect();
        let visit = |commit: SnapshotInfo| {
            for id in Records::of(&commit)?.commits().chain([commit.id]) {
                meter.count_items::<ObjectId>(2)?;
                known.insert(id);
            }
            Ok(true)
        };
        walk_all(repository, tips, visit).await?;
    }
    Ok(known)
}

/// Returns the items of commit `id`; none if they would add nothing. `previous` has the commit in
/// the place of which one was made, `known` those that are part of a branch. Takes no more than
/// `steps` back; what is before is taken for unknown, as what a collection has removed is.
async fn items_of(
    source: &Repository,
    id: ObjectId,
    previous: &HashMap<ObjectId, ObjectId>,
    known: &HashSet<ObjectId>,
    steps: &mut usize,
) -> Result<Vec<RawItem>> {
    let commit = Records::of(&source.commit(id).await?)?;
    let mut replaced = Vec::new();
    let mut are_all_known = true;
    let mut adds = false;
    let mut seen = HashSet::from([id]);
    let mut next = previous.get(&id);
    while let Some(before) = next.filter(|before| seen.insert(**before)) {
        if *steps == 0 {
            are_all_known = false;
            replaced.push(Records::unknown(*before));
            break;
        }
        *steps -= 1;
        let records = match source.commit(*before).await {
            Ok(found) => Records::of(&found)?,
            // A collection has removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                are_all_known = false;
                Records::unknown(*before)
            }
            Err(error) => return Err(error),
        };
        adds |= known.contains(before) || !records.is_empty();
        replaced.push(records);
        next = previous.get(before);
    }
    if are_all_known && !adds {
        return Ok(Vec::new());
    }
    let records = records_of_amended(&commit, &replaced, are_all_known);
    records.iter().map(|(name, value)| RawItem::new(SpecVersion::V2, name, value)).collect()
}
