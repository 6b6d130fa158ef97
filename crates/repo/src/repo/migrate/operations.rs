//! Reconstruction of an operations log, for a repository that kept none, from the contents of the
//! repository.
//!
//! The reference implementation reconstructs the same log when it migrates (format notes 4). Times
//! are those of the commits; a branch or tag dates from a millisecond after the commit that it
//! points to. No entry names a copy of an older `repo`, since there was none.

use std::collections::HashSet;

use super::Contents;
use crate::repo::refs::DEFAULT_BRANCH;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{LogEntry, Operation};
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Time between a commit and the creation of a ref to it, in microseconds.
const AFTER_COMMIT: u64 = 1000;

/// Returns the reconstructed log, newest first.
pub fn reconstruct_log(contents: &Contents) -> Result<Vec<LogEntry>> {
    let main = contents.main()?;
    let began = main.last().map_or(0, |root| root.flushed_at);
    let mut entries = vec![(Operation::RepoInitialized, began)];
    let mut listed: HashSet<ObjectId> = main.last().iter().map(|root| root.id).collect();
    commits(DEFAULT_BRANCH, &main, &mut listed, &mut entries);
    for (name, tip) in contents.branches.iter().filter(|(name, _)| *name != DEFAULT_BRANCH) {
        let history = contents.history(*tip);
        let at = history.first().map_or(began, |tip| tip.flushed_at);
        entries.push((Operation::BranchCreated { name: name.clone() }, at.saturating_add(AFTER_COMMIT)));
        commits(name, &history, &mut listed, &mut entries);
    }
    let made = |target: &ObjectId| {
        contents.commits.get(target).map_or(began, |commit| commit.flushed_at).saturating_add(AFTER_COMMIT)
    };
    for (name, target) in &contents.tags {
        entries.push((Operation::TagCreated { name: name.clone() }, made(target)));
    }
    for (name, target) in &contents.deleted_tags {
        let Some(target) = target else { continue };
        let at = made(target);
        entries.push((Operation::TagCreated { name: name.clone() }, at));
        let deleted = Operation::TagDeleted { name: name.clone(), previous: *target };
        entries.push((deleted, at.saturating_add(AFTER_COMMIT)));
    }
    // The sort is stable: operations of the same time keep the order above.
    entries.sort_by_key(|(_, at)| *at);
    let mut last = None;
    let mut updates: Vec<LogEntry> = Vec::with_capacity(entries.len());
    for (operation, at) in entries {
        // Readers require that times rise.
        let updated_at = last.map_or(at, |last: u64| at.max(last.saturating_add(1)));
        last = Some(updated_at);
        updates.push(LogEntry { operation, updated_at, backup_path: None });
    }
    updates.reverse();
    Ok(updates)
}

/// Adds the commits of `history` that have no entry yet, as commits to `branch`.
fn commits(
    branch: &str,
    history: &[&SnapshotInfo],
    listed: &mut HashSet<ObjectId>,
    entries: &mut Vec<(Operation, u64)>,
) {
    for commit in history.iter().rev() {
        if listed.insert(commit.id) {
            let operation = Operation::NewCommit { branch: branch.to_owned(), new: commit.id };
            entries.push((operation, commit.flushed_at));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_format::format::testing::id;

    fn commit(n: u8, parent: Option<u8>, flushed_at: u64) -> (ObjectId, SnapshotInfo) {
        (id(n), SnapshotInfo::new(id(n), parent.map(id), flushed_at, ""))
    }

    #[test]
    fn it_tells_what_must_have_happened() {
        let contents = Contents {
            branches: [("main".into(), id(2)), ("dev".into(), id(3))].into(),
            tags: [("v1".into(), id(1))].into(),
            deleted_tags: [("old".into(), Some(id(3))), ("unknown".into(), None)].into(),
            commits: [commit(1, None, 10), commit(2, Some(1), 5000), commit(3, Some(1), 4000)].into(),
        };
        let updates = reconstruct_log(&contents).unwrap();
        let listed: Vec<(u64, &Operation)> = updates.iter().rev().map(|u| (u.updated_at, &u.operation)).collect();
        let committed = |branch: &str, n| Operation::NewCommit { branch: branch.into(), new: id(n) };
        assert_eq!(
            listed,
            [
                (10, &Operation::RepoInitialized),
                (1010, &Operation::TagCreated { name: "v1".into() }),
                (4000, &committed("dev", 3)),
                (5000, &committed("main", 2)),
                (5001, &Operation::BranchCreated { name: "dev".into() }),
                (5002, &Operation::TagCreated { name: "old".into() }),
                (6000, &Operation::TagDeleted { name: "old".into(), previous: id(3) }),
            ]
        );
        assert!(updates.iter().all(|update| update.backup_path.is_none()));
        assert!(reconstruct_log(&Contents::default()).is_err());
    }
}
