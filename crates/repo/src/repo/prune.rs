//! Removal of commits from a history: later commits get another parent and keep the transaction
//! logs of the removed ones.
//!
//! Expiration and garbage collection both remove commits. A kept log records the changes between a
//! commit and its new parent: without it, a mount whose base was removed could not be rebased, and
//! differences would be incomplete.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::history::cycle;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::SnapshotRecord;

/// All commits that `repo` lists.
pub(super) type Records = BTreeMap<ObjectId, SnapshotRecord>;

/// Removes `gone` from `records`. A commit that stays and whose parent goes gets as its parent the
/// nearest ancestor that `stays`, or else `fallback`, and keeps the logs of the ancestors before
/// that one. Returns these commits.
pub(super) fn remove(
    records: &mut Records,
    gone: &BTreeSet<ObjectId>,
    stays: impl Fn(ObjectId, &SnapshotRecord) -> bool,
    fallback: Option<ObjectId>,
) -> Result<BTreeSet<ObjectId>> {
    // Computed before anything is changed: one chain may hold several edited commits.
    let mut edited = BTreeMap::new();
    for (id, record) in records.iter() {
        if !gone.contains(id) && record.parent.is_some_and(|parent| gone.contains(&parent)) {
            edited.insert(*id, reparented(records, *id, &stays)?);
        }
    }
    records.retain(|id, _| !gone.contains(id));
    for (id, (parent, logs)) in &mut edited {
        if let Some(record) = records.get_mut(id) {
            record.parent = parent.or(fallback.filter(|fallback| fallback != id));
            record.pruned_ancestor_tx_logs = std::mem::take(logs);
        }
    }
    Ok(edited.into_keys().collect())
}

/// Returns the ancestors of `id`, nearest first. Fails on a cycle, or on a parent that is not
/// listed.
fn ancestors(records: &Records, id: ObjectId) -> Result<Vec<ObjectId>> {
    let mut seen = HashSet::from([id]);
    let mut found = Vec::new();
    let mut next = records.get(&id).and_then(|record| record.parent);
    while let Some(parent) = next {
        if !seen.insert(parent) {
            return Err(cycle(id, parent));
        }
        let record = records.get(&parent);
        let record = record
            .ok_or_else(|| Error::corrupt(format!("repo: snapshot {parent}, an ancestor of {id}, is not listed")))?;
        found.push(parent);
        next = record.parent;
    }
    Ok(found)
}

/// Returns the new parent and logs of `id` after the ancestors before the nearest one that `stays`
/// are removed. The parent is that ancestor, or none. The logs are oldest first and include those
/// of ancestors that were removed earlier.
fn reparented(
    records: &Records,
    id: ObjectId,
    stays: impl Fn(ObjectId, &SnapshotRecord) -> bool,
) -> Result<(Option<ObjectId>, Vec<ObjectId>)> {
    let mut gone = Vec::new();
    let mut parent = None;
    for ancestor in ancestors(records, id)? {
        let Some(record) = records.get(&ancestor) else { continue };
        if stays(ancestor, record) {
            parent = Some(ancestor);
            break;
        }
        gone.push((ancestor, record));
    }
    let mut logs = Vec::new();
    for (ancestor, record) in gone.into_iter().rev() {
        logs.extend(&record.pruned_ancestor_tx_logs);
        logs.push(ancestor);
    }
    logs.extend(records.get(&id).into_iter().flat_map(|record| &record.pruned_ancestor_tx_logs));
    Ok((parent, logs))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_format::format::testing::id;

    fn records(list: &[(u8, Option<u8>, &[u8])]) -> Records {
        let record = |(n, parent, logs): &(u8, Option<u8>, &[u8])| {
            let pruned_ancestor_tx_logs = logs.iter().map(|n| id(*n)).collect();
            let parent = parent.map(id);
            (id(*n), SnapshotRecord { parent, pruned_ancestor_tx_logs, ..SnapshotRecord::default() })
        };
        list.iter().map(record).collect()
    }

    #[test]
    fn logs_of_what_was_taken_out_before_are_kept_in_order() {
        let records =
            records(&[(1, None, &[]), (2, Some(1), &[]), (4, Some(2), &[3]), (6, Some(4), &[5]), (8, Some(6), &[7])]);
        let to = |boundary: u8| reparented(&records, id(8), |ancestor, _| ancestor == id(boundary)).unwrap();
        assert_eq!(to(2), (Some(id(2)), [3, 4, 5, 6, 7].map(id).to_vec()));
        assert_eq!(to(6), (Some(id(6)), vec![id(7)]));
        assert_eq!(to(9), (None, [1, 2, 3, 4, 5, 6, 7].map(id).to_vec()));
    }

    #[test]
    fn cycles_and_gaps_are_errors() {
        let cycle = records(&[(1, Some(2), &[]), (2, Some(1), &[]), (3, Some(2), &[])]);
        assert!(ancestors(&cycle, id(3)).unwrap_err().to_string().contains("cycle"));
        let gap = records(&[(2, Some(1), &[])]);
        assert!(ancestors(&gap, id(2)).unwrap_err().to_string().contains("not listed"));
    }
}
