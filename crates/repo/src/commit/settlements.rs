//! Conflicts that the user has settled: whose chunks and members of documents win.
//!
//! A settlement is about what the user has seen: a chunk or a member, and the commits that changed
//! it. A later commit that changes it again makes another conflict, which is asked about again.

use std::collections::{BTreeMap, BTreeSet};

use super::conflict::{Conflict, ConflictKind};
use super::request::OnConflict;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::zarr::three_way::Side;

/// Settlements by the path of a node and a part of it that both sides changed.
type Settled<T> = BTreeMap<(String, T), Settlement>;

/// Settlement of a conflict with some commits.
#[derive(Clone, Debug)]
struct Settlement {
    side: Side,
    with: BTreeSet<ObjectId>,
}

/// The sides that win: of single conflicts, and of all others.
#[derive(Clone, Debug, Default)]
pub struct Settlements {
    others: OnConflict,
    chunks: Settled<Vec<u32>>,
    members: Settled<String>,
}

impl From<OnConflict> for Settlements {
    fn from(others: OnConflict) -> Self {
        Settlements { others, ..Settlements::default() }
    }
}

impl Settlements {
    /// Returns the same with `others` for the conflicts that are not settled one by one.
    pub fn with_others(&self, others: OnConflict) -> Self {
        Settlements { others, ..self.clone() }
    }

    /// Settles `conflict`. Returns false if it is of a kind that no side can win: only the user
    /// can change one of them.
    pub fn settle(&mut self, conflict: &Conflict, side: Side) -> bool {
        let path = &conflict.path;
        match conflict.kind {
            ConflictKind::ChunkDoubleUpdate => {
                conflict.coords.iter().for_each(|coords| add(&mut self.chunks, path, coords, side, conflict.other));
            }
            ConflictKind::ZarrMetadataDoubleUpdate if !conflict.members.iter().any(String::is_empty) => {
                conflict.members.iter().for_each(|member| add(&mut self.members, path, member, side, conflict.other));
            }
            _ => return false,
        }
        true
    }

    /// Forgets what is settled for the node at `path`.
    pub fn forget(&mut self, path: &str) {
        self.chunks.retain(|(node, _), _| node != path);
        self.members.retain(|(node, _), _| node != path);
    }

    /// Returns true if a chunk of the changes may give way to another one.
    pub fn may_give_way(&self) -> bool {
        self.others == OnConflict::Theirs || self.chunks.values().any(|settlement| settlement.side == Side::Theirs)
    }

    /// Returns the side that wins the chunk at `coords` of the array at `path`, which the commits
    /// `with` changed, too.
    pub(super) fn chunk(&self, path: &str, coords: &[u32], with: &[ObjectId]) -> Option<Side> {
        self.side(self.chunks.get(&(path.to_owned(), coords.to_vec())), with)
    }

    /// Returns the side that wins `member` of the document at `path`, which commit `with` changed,
    /// too. No side wins a document as a whole: chunks of the other one may need what it has.
    pub(super) fn member(&self, path: &str, member: &str, with: ObjectId) -> Option<Side> {
        if member.is_empty() {
            return None;
        }
        self.side(self.members.get(&(path.to_owned(), member.to_owned())), &[with])
    }

    fn side(&self, settlement: Option<&Settlement>, with: &[ObjectId]) -> Option<Side> {
        match settlement {
            Some(settlement) if with.iter().all(|commit| settlement.with.contains(commit)) => Some(settlement.side),
            _ => match self.others {
                OnConflict::Fail => None,
                OnConflict::Ours => Some(Side::Ours),
                OnConflict::Theirs => Some(Side::Theirs),
            },
        }
    }
}

/// Adds a settlement with commit `with`. With another side than before it is the only one.
fn add<T: Clone + Ord>(settled: &mut Settled<T>, path: &str, what: &T, side: Side, with: ObjectId) {
    let new = || Settlement { side, with: BTreeSet::new() };
    let settlement = settled.entry((path.to_owned(), what.clone())).or_insert_with(new);
    if settlement.side != side {
        *settlement = new();
    }
    settlement.with.insert(with);
}

#[cfg(test)]
mod tests {
    use super::super::conflict::OwnChange;
    use super::*;

    fn commit(number: u8) -> ObjectId {
        ObjectId([number; 12])
    }

    fn conflict(kind: ConflictKind, coords: &[u32], member: &str, other: u8) -> Conflict {
        let coords = coords.iter().map(|at| vec![*at]).collect();
        let members = vec![member.to_owned()];
        Conflict {
            kind,
            path: "/a".to_owned(),
            coords,
            members,
            other: commit(other),
            message: String::new(),
            own: OwnChange::default(),
        }
    }

    #[test]
    fn what_is_settled_is_what_was_seen() {
        let mut settlements = Settlements::default();
        let chunks = |coords: &[u32], other| conflict(ConflictKind::ChunkDoubleUpdate, coords, "", other);
        assert!(settlements.settle(&chunks(&[0, 1], 1), Side::Ours));
        assert!(settlements.settle(&chunks(&[2], 1), Side::Theirs));
        assert_eq!(settlements.chunk("/a", &[0], &[commit(1)]), Some(Side::Ours));
        assert_eq!(settlements.chunk("/a", &[2], &[commit(1)]), Some(Side::Theirs));
        assert_eq!(settlements.chunk("/a", &[3], &[commit(1)]), None);
        assert_eq!(settlements.chunk("/b", &[0], &[commit(1)]), None);
        // A later commit changed it again.
        assert_eq!(settlements.chunk("/a", &[0], &[commit(1), commit(2)]), None);
        assert!(settlements.settle(&chunks(&[0], 2), Side::Ours));
        assert_eq!(settlements.chunk("/a", &[0], &[commit(1), commit(2)]), Some(Side::Ours));
        assert_eq!(settlements.chunk("/a", &[1], &[commit(1), commit(2)]), None);
    }

    #[test]
    fn the_last_word_counts() {
        let mut settlements = Settlements::default();
        let member = conflict(ConflictKind::ZarrMetadataDoubleUpdate, &[], "attributes/units", 1);
        for side in [Side::Ours, Side::Theirs, Side::Ours] {
            assert!(settlements.settle(&member, side));
            assert_eq!(settlements.member("/a", "attributes/units", commit(1)), Some(side));
        }
        assert_eq!(settlements.member("/a", "attributes", commit(1)), None);
        assert_eq!(settlements.member("/a", "attributes/units", commit(2)), None);
        assert!(!settlements.may_give_way());
    }

    #[test]
    fn others_are_settled_as_a_whole() {
        let mut settlements = Settlements::from(OnConflict::Theirs);
        assert!(settlements.may_give_way());
        let chunk = conflict(ConflictKind::ChunkDoubleUpdate, &[0], "", 1);
        assert!(settlements.settle(&chunk, Side::Ours));
        assert_eq!(settlements.chunk("/a", &[0], &[commit(1)]), Some(Side::Ours));
        assert_eq!(settlements.chunk("/a", &[1], &[commit(1)]), Some(Side::Theirs));
        assert_eq!(settlements.with_others(OnConflict::Fail).chunk("/a", &[1], &[commit(1)]), None);
    }

    #[test]
    fn no_side_wins_other_kinds() {
        let mut settlements = Settlements::default();
        assert!(!settlements.settle(&conflict(ConflictKind::DeleteOfUpdatedArray, &[], "", 1), Side::Ours));
        assert!(!settlements.settle(&conflict(ConflictKind::ZarrMetadataDoubleUpdate, &[], "", 1), Side::Ours));
        assert_eq!(Settlements::from(OnConflict::Ours).member("/a", "", commit(1)), None);
        assert!(!settlements.may_give_way());
    }
}
