//! The commits that a destination lacks.

use std::collections::HashSet;

use crate::error::Result;
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::repo::Repository;

/// Commits that are to be copied.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// The commits; a parent is before its children, or at the destination.
    pub(super) commits: Vec<SnapshotInfo>,
    /// Commits at the destination that these follow.
    pub(super) boundary: HashSet<ObjectId>,
}

impl Missing {
    /// Finds the commits of `source` that lead to `targets` and are not in `present`.
    pub(super) async fn find(
        source: &Repository,
        targets: impl IntoIterator<Item = ObjectId>,
        present: &HashSet<ObjectId>,
    ) -> Result<Missing> {
        let (mut missing, mut seen) = (Missing::default(), HashSet::new());
        for target in targets {
            if present.contains(&target) || seen.contains(&target) {
                continue;
            }
            let mut chain = Vec::new();
            let visit = |commit: SnapshotInfo| {
                if present.contains(&commit.id) {
                    missing.boundary.insert(commit.id);
                    return false;
                }
                let is_new = seen.insert(commit.id);
                if is_new {
                    // Ancestors that have expired in the source.
                    let expired = commit.pruned_ancestor_tx_logs.iter();
                    missing.boundary.extend(expired.rev().find(|ancestor| present.contains(ancestor)));
                    chain.push(commit);
                }
                is_new
            };
            source.walk(target, visit).await?;
            missing.commits.extend(chain.into_iter().rev());
        }
        Ok(missing)
    }
}
