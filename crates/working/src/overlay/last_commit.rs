//! Knowledge about the last commit of a mount.

use std::sync::atomic::{AtomicU8, Ordering};

use super::replace::TreeGuard;
use super::upper::Upper;
use crate::scratch::record::Record;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::ObjectId;

/// Standing of the last commit, in the order of what may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is known whether it was published.
    Known,
    /// It was not found, but slow storage may still complete it. Until the next change, that commit
    /// has all of the uncommitted changes.
    MayLand,
    /// It is not known whether it was published, or the tree could not follow it: nothing may
    /// change until it is known.
    Undecided,
}

/// Standing of the last commit, to be asked for without a lock. It is changed by commits and what
/// resolves them, one at a time, and by the first change after a commit that may land.
#[derive(Debug)]
pub(super) struct LastCommit(AtomicU8);

impl LastCommit {
    /// Nothing was committed yet.
    pub(super) fn new() -> Self {
        LastCommit(AtomicU8::new(Standing::Known as u8))
    }

    pub(super) fn standing(&self) -> Standing {
        match self.0.load(Ordering::Acquire) {
            known if known == Standing::Known as u8 => Standing::Known,
            may_land if may_land == Standing::MayLand as u8 => Standing::MayLand,
            _ => Standing::Undecided,
        }
    }

    /// The outcome is being found out, or could not be.
    pub(super) fn set(&self, standing: Standing) {
        self.0.store(standing as u8, Ordering::Release);
    }

    /// A change was made and recorded after a commit that may land. One that is undecided stays so.
    pub(super) fn on_change(&self) {
        let may_land = Standing::MayLand as u8;
        let known = Standing::Known as u8;
        let _ = self.0.compare_exchange(may_land, known, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl Upper {
    /// Records, durably, that a commit is about to publish `snapshot`, unless bytes that it stored
    /// could not be written to the disk.
    pub fn about_to_publish(&self, snapshot: ObjectId) -> Result<()> {
        self.check_disk(false)?;
        self.lock().record(Record::Publishing { snapshot: snapshot.to_string() })?;
        self.durable.flush()
    }

    /// Returns true if the last commit, which was not found, may still become visible, and nothing
    /// has changed since.
    pub fn may_land(&self) -> bool {
        self.last_commit.standing() == Standing::MayLand
    }

    /// Records, durably, that later changes are not part of the last commit, should that become
    /// visible after all.
    pub(super) async fn record_unpublished(&self) -> Result<()> {
        {
            let mut locked = self.lock();
            if let Some(snapshot) = locked.state.publishing.clone() {
                locked.record(Record::Unpublished { snapshot })?;
            }
        }
        self.make_durable().await?;
        self.last_commit.on_change();
        Ok(())
    }

    /// Returns true if the outcome of the last commit is unknown. Later changes must not be taken
    /// for a part of it.
    pub fn is_undecided(&self) -> bool {
        self.last_commit.standing() == Standing::Undecided
    }

    /// Records that the outcome of the last commit is unknown, until
    /// [`Upper::clear_publishing`] or [`Upper::set_may_land`].
    pub fn set_undecided(&self, _guard: &TreeGuard<'_>) {
        self.last_commit.set(Standing::Undecided);
    }

    /// Records that the commit that was about to be published never will be, or that the tree
    /// shows it.
    pub fn clear_publishing(&self) {
        self.last_commit.set(Standing::Known);
        self.lock().state.publishing = None;
    }

    /// Records that the commit that was about to be published is not visible so far.
    pub fn set_may_land(&self) {
        let is_known = self.lock().state.publishing.is_some();
        self.last_commit.set(if is_known { Standing::MayLand } else { Standing::Known });
    }

    /// Returns the snapshot that a commit was about to publish, if its outcome is unknown.
    pub fn publishing(&self) -> Option<ObjectId> {
        self.lock().state.publishing.as_deref()?.parse().ok()
    }

    /// Returns the snapshots of commits that were not found, including the last one. Each may
    /// become visible until the branch moves.
    pub fn unpublished(&self) -> Vec<ObjectId> {
        let locked = self.lock();
        let given_up = locked.state.unpublished.iter().chain(&locked.state.publishing);
        given_up.filter_map(|snapshot| snapshot.parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_ends_only_what_may_land() {
        let last = LastCommit::new();
        assert_eq!(last.standing(), Standing::Known);
        for (before, after) in [
            (Standing::Known, Standing::Known),
            (Standing::MayLand, Standing::Known),
            (Standing::Undecided, Standing::Undecided),
        ] {
            last.set(before);
            last.on_change();
            assert_eq!(last.standing(), after, "{before:?}");
        }
    }
}
