//! The part of two snapshots that a comparison is about: what is at or below a path in either of
//! them.
//!
//! The path may be that of the old snapshot or of the new one. A node that was moved there, or
//! away, is followed: `/b`, which was `/a` before, stands for all that was below `/a` and all that
//! is below `/b`.

use std::collections::BTreeSet;

use super::positions;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::snapshot::Snapshot;

/// Part of two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComparisonScope {
    /// Paths in the old snapshot; none for all of it.
    old: Option<BTreeSet<String>>,
    /// Paths in the new snapshot, likewise.
    new: Option<BTreeSet<String>>,
}

impl ComparisonScope {
    /// Returns the scope of `path`, which is absolute.
    ///
    /// Fails with [`ErrorKind::NotFound`] if neither snapshot has a node there.
    pub fn of(path: &str, old: &Snapshot, new: &Snapshot) -> Result<Self> {
        let at = |snapshot: &Snapshot| snapshot.nodes().find(|node| node.path == path).map(|node| node.id);
        let before = at(old);
        let after = at(new);
        if before.is_none() && after.is_none() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "{path}: neither snapshot has a node of that path; `icechunkfs ls --recursive` lists what there is"
                ),
            ));
        }
        let followed = |snapshot: &Snapshot| {
            let positions = positions(snapshot);
            let moved = [before, after].into_iter().flatten().filter_map(|id| snapshot.node(*positions.get(&id)?));
            Some(moved.map(|node| node.path.to_owned()).chain([path.to_owned()]).collect())
        };
        Ok(ComparisonScope { old: followed(old), new: followed(new) })
    }

    /// Returns true if a node is in the scope that had one path in the old snapshot, and has one in
    /// the new snapshot.
    pub fn contains(&self, before: Option<&str>, after: Option<&str>) -> bool {
        let is_in = |tops: &Option<BTreeSet<String>>, path: Option<&str>| {
            path.is_some_and(|path| tops.as_ref().is_none_or(|tops| tops.iter().any(|top| is_below(path, top))))
        };
        is_in(&self.old, before) || is_in(&self.new, after)
    }
}

/// Returns true if `path` is `top` or below it. Both are absolute.
pub fn is_below(path: &str, top: &str) -> bool {
    top == "/" || path == top || path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
}
