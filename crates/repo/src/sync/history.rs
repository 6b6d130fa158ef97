//! The commits that are copied to a destination, or compared with it.

use std::collections::HashSet;

use crate::repo::Repository;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::{Meter, SharedReservation};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Commits that are to be copied or compared.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// The commits; a parent is before its children, or agreed about.
    pub(super) commits: Vec<SnapshotInfo<()>>,
    /// Commits that these follow, about which both places agree.
    pub(super) boundary: HashSet<ObjectId>,
    _memory: SharedReservation,
}

impl Outstanding {
    /// Finds the commits of `source` that lead to `targets` and are not in `agreed`.
    pub(super) async fn find(
        source: &Repository,
        targets: impl IntoIterator<Item = ObjectId>,
        agreed: &HashSet<ObjectId>,
    ) -> Result<Outstanding> {
        let mut missing = Outstanding::default();
        let mut seen = HashSet::new();
        let mut meter = Meter::new("the commits to be copied or compared");
        for target in targets {
            if agreed.contains(&target) || seen.contains(&target) {
                continue;
            }
            let mut chain = Vec::new();
            let visit = |commit: SnapshotInfo| {
                if agreed.contains(&commit.id) {
                    missing.boundary.insert(commit.id);
                    return Ok(false);
                }
                let is_new = seen.insert(commit.id);
                if is_new {
                    // Ancestors that have expired in the source.
                    let expired = commit.pruned_ancestor_tx_logs.iter();
                    missing.boundary.extend(expired.rev().find(|ancestor| agreed.contains(ancestor)));
                    meter.count_items::<ObjectId>(2)?;
                    commit.count(&mut meter)?;
                    chain.push(commit.without_text());
                }
                Ok(is_new)
            };
            source.try_walk(target, visit).await?;
            missing.commits.extend(chain.into_iter().rev());
        }
        missing._memory = meter.into();
        Ok(missing)
    }
}
