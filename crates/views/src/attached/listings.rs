//! Listings of directories of names, each of which goes on with the names that it began with.
//!
//! Refs change while programs list them, and an offset is a position in a list. Each list therefore
//! has a number, which is the upper half of its offsets: a listing that begins later does not move
//! the positions of one that is under way.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Found;
use super::refs::NameKind;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;

/// Lists that are kept of a directory. One that a program still reads is lost when so many others,
/// each after a change of refs, were read since its last request.
const KEPT: usize = 16;
/// Lower bits of an offset, with the position.
const POSITION_BITS: u32 = 32;
/// Offsets are positive as signed numbers, too.
const MAX_NUMBER: u64 = (1 << (63 - POSITION_BITS)) - 1;

/// Entries of a directory, of which a repository may have any number.
pub(super) type Names = Metered<Vec<(String, Found)>>;

/// Entries of one listing, with its number.
#[derive(Clone, Debug)]
pub(super) struct NameList {
    number: u64,
    /// The entries.
    pub(super) names: Arc<Names>,
}

impl NameList {
    /// Returns the offset of position `position`.
    pub(super) fn offset(&self, position: u64) -> u64 {
        self.number << POSITION_BITS | position
    }
}

/// Returns the position that `offset` means in its list.
pub(super) fn position(offset: u64) -> u64 {
    offset & ((1 << POSITION_BITS) - 1)
}

/// Last lists of each directory, the one that was used last at the end.
#[derive(Debug, Default)]
pub(super) struct Listings(Mutex<HashMap<NameKind, Lists>>);

#[derive(Debug, Default)]
struct Lists {
    /// Number of the newest list, from 1 on.
    newest: u64,
    kept: VecDeque<NameList>,
}

impl Listings {
    /// Returns the list of `kind` to which `offset`, which is not 0, belongs.
    ///
    /// Fails with [`ErrorKind::Stale`] if it is not kept any more.
    pub(super) fn find(&self, kind: NameKind, offset: u64) -> Result<NameList> {
        let mut all = self.0.lock();
        let kept = &mut all.entry(kind).or_default().kept;
        let at = kept.iter().position(|list| list.number == offset >> POSITION_BITS);
        let list = at.and_then(|at| kept.remove(at)).ok_or_else(|| {
            let why = "the names changed too often since this listing began: list the directory again";
            Error::new(ErrorKind::Stale, format!(".icechunk/at/{}: {why}", kind.directory()))
        })?;
        kept.push_back(list.clone());
        Ok(list)
    }

    /// Adds the list of a listing that begins. One with the same entries as the newest list has its
    /// number.
    pub(super) fn add(&self, kind: NameKind, names: Names) -> NameList {
        let mut all = self.0.lock();
        let Lists { newest, kept } = all.entry(kind).or_default();
        let is_same = |list: &NameList| list.number == *newest && is_same(&list.names, &names);
        match kept.iter().position(is_same) {
            Some(at) => drop(kept.remove(at)),
            None => *newest = *newest % MAX_NUMBER + 1,
        }
        let list = NameList { number: *newest, names: Arc::new(names) };
        kept.push_back(list.clone());
        while kept.len() > KEPT {
            kept.pop_front();
        }
        list
    }
}

fn is_same(one: &Names, another: &Names) -> bool {
    let key = |(name, found): &(String, Found)| (name.clone(), found.attributes.inode);
    one.len() == another.len() && one.iter().map(key).eq(another.iter().map(key))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::SystemTime;

    use super::*;
    use icechunkfs_tree::inodes::Ino;
    use icechunkfs_tree::tree::{Attributes, Kind};

    fn names(all: &[&str]) -> Names {
        let attributes = Attributes { inode: Ino(7), kind: Kind::Directory, size: 0 };
        let found = Found::fixed(attributes, SystemTime::UNIX_EPOCH);
        Metered::own(all.iter().map(|name| ((*name).to_owned(), found)).collect())
    }

    fn first(list: &NameList) -> &str {
        list.names.first().map_or("", |(name, _)| name.as_str())
    }

    #[test]
    fn a_listing_goes_on_with_its_names_until_many_others_have_begun() {
        let listings = Listings::default();
        let old = listings.add(NameKind::Tag, names(&["a", "b"]));
        let offset = old.offset(1);
        assert!(offset > 0 && i64::try_from(offset).is_ok() && position(offset) == 1);
        assert_eq!(listings.add(NameKind::Tag, names(&["a", "b"])).offset(1), offset);
        for n in 0..100 {
            let newer = listings.add(NameKind::Tag, names(&[&n.to_string(), "a"]));
            assert_ne!(newer.offset(1), offset);
            assert_eq!(first(&listings.find(NameKind::Tag, offset).unwrap()), "a", "it is in use");
            assert_eq!(first(&listings.find(NameKind::Tag, newer.offset(2)).unwrap()), n.to_string());
        }
        assert_eq!(listings.find(NameKind::Branch, offset).unwrap_err().kind(), ErrorKind::Stale);
        (0..=KEPT).for_each(|n| drop(listings.add(NameKind::Tag, names(&["x", &n.to_string()]))));
        assert_eq!(listings.find(NameKind::Tag, offset).unwrap_err().kind(), ErrorKind::Stale);
    }
}
