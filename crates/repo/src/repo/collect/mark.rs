//! Detection of a garbage collection that ran while a commit was being prepared.
//!
//! Objects that a commit stores before it is published look like garbage. A collection therefore
//! writes `repo` before it removes anything, and keeps everything published by then; and a commit
//! is published only if no collection has written `repo` since the commit began to store. Otherwise
//! the commit stores everything anew, under other names.

pub use icechunkfs_format::format::generated::icechunk as fb;
use icechunkfs_format::format::repo_info::RepoInfo;
use icechunkfs_format::format::repo_state::{Operation, RepoState};

/// Longest time that a collection may take to remove what it has found: a day, in microseconds.
pub const MAX_COLLECTION_TIME: u64 = 86_400 * 1_000_000;

/// A point in the operations log of a version 2 repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    /// Time of the newest operation, in microseconds since 1970-01-01 UTC; operation times always
    /// rise.
    newest: u64,
}

impl LogPosition {
    /// Returns the point that the log of `info` has reached.
    pub fn of(info: &RepoInfo) -> Self {
        LogPosition { newest: info.root().latest_updates().iter().next().map_or(0, |update| update.updated_at()) }
    }

    /// Returns true if garbage may have been collected between this position and `state`.
    pub fn may_have_collected_since(self, state: &RepoState) -> bool {
        let updates = state.updates.iter().map(|update| (update.updated_at, update.operation == Operation::GcRan));
        collected_since(updates, state.repo_before_updates.is_some(), self.newest.saturating_add(1))
    }
}

/// Returns true if garbage was collected at or after `time`, or may have been because the log of
/// `info` does not reach back that far.
pub fn may_have_run_since(info: &RepoInfo, time: u64) -> bool {
    let root = info.root();
    let updates = root.latest_updates();
    let updates =
        updates.iter().map(|update| (update.updated_at(), update.update_type_type() == fb::UpdateType::GCRanUpdate));
    collected_since(updates, root.repo_before_updates().is_some(), time)
}

/// Returns the times at or after `time` at which collections wrote `info`, newest first, and true
/// if the log of `info` does not reach back that far: there may have been others before.
pub(super) fn begun_since(info: &RepoInfo, time: u64) -> (Vec<u64>, bool) {
    let root = info.root();
    let updates = root.latest_updates();
    let mut begun = Vec::new();
    for update in updates.iter() {
        let at = update.updated_at();
        if at < time {
            return (begun, false);
        }
        begun.extend((update.update_type_type() == fb::UpdateType::GCRanUpdate).then_some(at));
    }
    (begun, root.repo_before_updates().is_some())
}

/// Searches `updates`: times, newest first, each with true for a collection.
fn collected_since(updates: impl Iterator<Item = (u64, bool)>, has_more: bool, time: u64) -> bool {
    for (at, is_collection) in updates {
        if at < time {
            return false;
        }
        if is_collection {
            return true;
        }
    }
    has_more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ran_since_counts() {
        let log = [(9, false), (7, true), (5, false)];
        let since = |time, has_more| collected_since(log.into_iter(), has_more, time);
        assert!(since(7, false) && since(6, false) && since(1, false));
        assert!(!since(8, true) && !since(10, true));
        let quiet = [(9, false), (5, false)];
        assert!(!collected_since(quiet.into_iter(), false, 1));
        assert!(collected_since(quiet.into_iter(), true, 1), "the log does not reach so far back");
        assert!(!collected_since(quiet.into_iter(), true, 6));
    }
}
