//! Directory listings: the base's visible entries, then the entries that were created since.
//!
//! The base's entries have the base's offsets ([`icechunkfs_tree::tree::directory`]); the other
//! entries follow in order of creation, from [`UPPER_OFFSET`] on. A listing shows no entry that was
//! created after it began: a program that renames the entries that it reads would otherwise never
//! finish. But a name that was there when it began, and is there when it ends, is shown once: a
//! file that replaces another one takes its place, and one that replaces an entry of the base is
//! shown in that one's place if the listing is older.

use std::sync::Arc;

use super::Ino;
use super::attributes::Attributes;
use super::namespace::Namespace;
use crate::scratch::record::{EntryId, Name, ROOT, Source};
use icechunkfs_base::error::Result;
use icechunkfs_tree::tree;
use icechunkfs_tree::tree::directory::{Entry, Extent};

/// First offset of entries that are not the base's.
const UPPER_OFFSET: u64 = 3 << 61;
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// A listing in progress, from the first entry that a program reads on.
///
/// While there is one, a commit leaves the names that it makes names of the base in the upper
/// layer, with their offsets: in the base they may be before the point from which the listing
/// continues, and would be missing in it.
#[derive(Debug)]
pub struct Listing {
    /// Upper bound for the entries that it may show.
    limit: u64,
    _in_progress: Arc<()>,
}

/// Counts the listings in progress.
#[derive(Debug, Default)]
pub(super) struct Listings(Arc<()>);

impl Listings {
    /// Returns true if there is a listing in progress. One can begin only under the lock.
    pub(super) fn is_any_in_progress(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Entry of a listing.
#[derive(Debug)]
pub struct Listed<'a> {
    /// Name.
    pub name: &'a [u8],
    /// Attributes. Size and times of a file are those known without waiting, unless attributes were
    /// requested.
    pub attributes: Attributes,
    /// Offset from which the listing continues after the entry.
    pub offset: u64,
    /// False if the size of a file is not known: a program that needs it has to ask for it anew,
    /// and gets the reason if there is none.
    pub is_sized: bool,
}

impl<'a> Listed<'a> {
    /// Creates an entry all of whose attributes are known.
    pub fn new(name: &'a [u8], attributes: Attributes, offset: u64) -> Self {
        Listed { name, attributes, offset, is_sized: true }
    }
}

impl Namespace {
    /// Begins a listing, of what is there now.
    pub fn begin_listing(&self) -> Listing {
        let mut locked = self.upper.lock();
        Listing { limit: locked.state.fresh.take(), _in_progress: Arc::clone(&self.upper.listings.0) }
    }

    /// Passes the entries of directory `number` after `offset` that `listing` may show to `sink`,
    /// until it returns false: it is full and did not take the entry.
    pub async fn list(
        &self,
        number: Ino,
        offset: u64,
        listing: &Listing,
        extent: Extent,
        sink: &mut (impl FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<()> {
        let mut from = offset;
        while let Some(rest) = self.list_of_one_state(number, from, listing.limit, extent, sink).await? {
            from = rest;
        }
        Ok(())
    }

    /// Lists as [`Namespace::list`] does, until the tree moves: then it returns the offset from
    /// which the rest has to be listed.
    async fn list_of_one_state(
        &self,
        number: Ino,
        offset: u64,
        limit: u64,
        extent: Extent,
        sink: &mut (impl FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<Option<u64>> {
        let moment = self.upper.moment();
        // Lengths of the one base must not come with names of the other.
        let mut taken = offset;
        let mut has_moved = false;
        let (base, has_open, upper) = {
            let locked = self.upper.lock();
            let upper = locked.state.by_number(number).and_then(|id| {
                let inode = locked.state.get(id).filter(|inode| inode.is_directory())?;
                let parent = inode.names.first().map_or(ROOT, |(parent, _)| *parent);
                let parent = locked.state.get(parent).map_or(number, |parent| parent.number);
                Some((id, inode.lower.clone(), inode.number, parent))
            });
            (Arc::clone(&locked.base), !locked.open_files.is_empty(), upper)
        };
        // Attributes of an entry of the base, and whether its size is known. The kernel may have
        // those of another file by this number, which a program has open; to look up the name is
        // refused then.
        let of_base = |entry: &Entry<'_>| {
            let other = if has_open { self.upper.lock().other_file(entry.attributes.inode) } else { None };
            match other.and_then(|id| self.upper.listed_attributes_now(id)) {
                Some((attributes, _)) => (attributes, false),
                None => (base.attributes(entry.attributes), entry.is_sized),
            }
        };
        let Some((id, lower, own, parent)) = upper else {
            let mut forward = |entry: Entry<'_>| {
                let (attributes, is_sized) = of_base(&entry);
                has_moved = self.upper.moment() != moment;
                let is_taken = !has_moved
                    && sink(Listed { is_sized, ..Listed::new(entry.name.as_bytes(), attributes, entry.offset) });
                taken = if is_taken { entry.offset } else { taken };
                is_taken
            };
            base.tree.list(number, offset, extent, &mut forward).await?;
            return Ok(has_moved.then_some(taken));
        };
        for (at, name, number) in [(DOT, ".", own), (DOT_DOT, "..", parent)] {
            let lower = tree::Attributes { inode: number, kind: tree::Kind::Directory, size: 0 };
            let attributes = base.attributes(lower);
            if at > offset && !sink(Listed::new(name.as_bytes(), attributes, at)) {
                return Ok(None);
            }
            taken = taken.max(at);
        }
        if let Some(place) = lower.filter(|_| offset < UPPER_OFFSET) {
            let mut full = false;
            let mut forward = |entry: Entry<'_>| {
                if entry.offset <= DOT_DOT {
                    return true;
                }
                let name = Name::new(entry.name.as_bytes());
                let own = self.upper.lock().state.get(id).and_then(|inode| inode.directory()?.get(&name));
                let found = match own {
                    None => Some(of_base(&entry)),
                    // Replaced since the listing began: not among the entries that follow, which
                    // are older. So is what is listed in place of the base's
                    // ([`super::node::IN_PLACE`]).
                    Some(own) if own.order >= limit => own.id.and_then(|id| self.listed_in_place(id, &entry)),
                    Some(_) => None,
                };
                has_moved = self.upper.moment() != moment;
                if has_moved {
                    return false;
                }
                let Some((attributes, is_sized)) = found else { return true };
                full = !sink(Listed { is_sized, ..Listed::new(entry.name.as_bytes(), attributes, entry.offset) });
                taken = if full { taken } else { entry.offset };
                !full
            };
            base.tree.list(base.tree.table().inode(&place), offset, extent, &mut forward).await?;
            if has_moved {
                return Ok(Some(taken));
            }
            // Omitted chunks come in the next part, before the entries that follow here.
            if full || extent == Extent::BeforeChunks {
                return Ok(None);
            }
        }
        self.list_own(id, offset, limit, sink).await.map(|()| None)
    }

    /// Lists the entries of directory `id` that are not in the places of the base's.
    async fn list_own(
        &self,
        id: EntryId,
        offset: u64,
        limit: u64,
        sink: &mut (impl FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<()> {
        let mut from = offset.max(UPPER_OFFSET).saturating_sub(UPPER_OFFSET) + u64::from(offset >= UPPER_OFFSET);
        loop {
            // One page at a time, because attributes may have to be waited for.
            let page: Vec<(u64, Name, EntryId)> = {
                let locked = self.upper.lock();
                let directory = locked.state.get(id).and_then(super::node::Inode::directory);
                let entries = directory.into_iter().flat_map(|directory| directory.from(from));
                let entries = entries.take_while(|(order, ..)| *order < limit).take(256);
                entries.map(|(order, name, id)| (order, name.clone(), id)).collect()
            };
            let Some((last, ..)) = page.last() else { return Ok(()) };
            from = last + 1;
            for (order, name, id) in page {
                // None if the entry was removed meanwhile. One whose size cannot be found out is
                // listed all the same: it is in the tree.
                let Some((attributes, is_sized)) = self.upper.listed_attributes(id).await else { continue };
                if !sink(Listed { is_sized, ..Listed::new(&name.0, attributes, UPPER_OFFSET + order) }) {
                    return Ok(());
                }
            }
        }
    }

    /// Returns the attributes of `id`, which is listed in the place of `entry` of the base, and
    /// whether the size is known. A file with the bytes of the base has the entry's size: the
    /// kernel would cut what programs have open and mapped if it was told another one.
    fn listed_in_place(&self, id: EntryId, entry: &Entry<'_>) -> Option<(Attributes, bool)> {
        let (attributes, is_sized) = self.upper.listed_attributes_now(id)?;
        let is_entry = || {
            let locked = self.upper.lock();
            let inode = locked.state.get(id).filter(|inode| inode.source() == Some(&Source::Lower));
            inode.is_some_and(|inode| inode.lower_number == Some(entry.attributes.inode))
        };
        if !is_sized && is_entry() {
            Some((attributes.sized(entry.attributes.size), entry.is_sized))
        } else {
            Some((attributes, is_sized))
        }
    }
}

/// Appends `name` to `path`.
pub fn join(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}
