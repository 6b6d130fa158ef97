//! Knowledge about the last commit of a mount.

use std::sync::atomic::{AtomicU8, Ordering};

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
