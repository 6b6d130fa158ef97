//! Directory listings: the base's visible entries, then the entries that were created since.
//!
//! The base's entries have the base's offsets ([`icechunkfs_tree::tree::directory`]); the other
//! entries follow in order of creation, from [`UPPER_OFFSET`] on. A listing shows no entry that was
//! created after it began: a program that renames the entries that it reads would otherwise never
//! finish. But a name that was there when it began, and is there when it ends, is shown once: a
//! file that replaces another one takes its place, and one that replaces an entry of the base is
//! shown in that one's place if the listing is older.

use std::sync::Arc;

use super::attributes::Attributes;
use super::kernel_view::Moment;
use super::namespace::Namespace;
use super::{Base, Ino};
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

/// Part of a listing that comes from one base.
struct OfBase {
    base: Arc<Base>,
    /// True if programs have files open.
    has_open: bool,
    /// State of the tree that is listed.
    moment: Moment,
    /// Upper bound for the entries that may be shown.
    limit: u64,
    /// Offset from which the program wants entries. The base loads manifests ahead for a listing
    /// that begins at 0.
    from: u64,
    /// Offset of the last entry that the program took.
    taken: u64,
    end: End,
}

/// Reason why a part of a listing ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing is left.
    Done,
    /// The program takes no more.
    Full,
    /// The tree moved.
    Moved,
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
        let mut part = OfBase { base, has_open, moment, limit, from: offset, taken: offset, end: End::Done };
        let Some((id, lower, own, parent)) = upper else {
            self.list_base(&mut part, number, extent, None, sink).await?;
            return Ok((part.end == End::Moved).then_some(part.taken));
        };
        for (at, name, number) in [(DOT, ".", own), (DOT_DOT, "..", parent)] {
            let lower = tree::Attributes { inode: number, kind: tree::Kind::Directory, size: 0 };
            let attributes = part.base.attributes(lower);
            if at > offset && !sink(Listed::new(name.as_bytes(), attributes, at)) {
                return Ok(None);
            }
            part.taken = part.taken.max(at);
        }
        if let Some(place) = lower.filter(|_| offset < UPPER_OFFSET) {
            let number = part.base.tree.table().inode(&place);
            self.list_base(&mut part, number, extent, Some(id), sink).await?;
            // Omitted chunks come in the next part, before the entries that follow here.
            match part.end {
                End::Moved => return Ok(Some(part.taken)),
                End::Done if extent != Extent::BeforeChunks => {}
                End::Done | End::Full => return Ok(None),
            }
        }
        self.list_own(id, offset, limit, sink).await.map(|()| None)
    }

    /// Lists directory `number` of the base, without the entries that directory `upper` has
    /// instead.
    async fn list_base(
        &self,
        part: &mut OfBase,
        number: Ino,
        extent: Extent,
        upper: Option<EntryId>,
        sink: &mut (impl FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<()> {
        let base = Arc::clone(&part.base);
        let from = part.from;
        let mut forward = |entry: Entry<'_>| {
            if upper.is_some() && entry.offset <= DOT_DOT {
                return true;
            }
            let found = self.found_in_base(part, upper, &entry);
            // Lengths of the one base must not come with names of the other.
            if self.upper.moment() != part.moment {
                part.end = End::Moved;
                return false;
            }
            let Some((attributes, is_sized)) = found else { return true };
            if !sink(Listed { is_sized, ..Listed::new(entry.name.as_bytes(), attributes, entry.offset) }) {
                part.end = End::Full;
                return false;
            }
            part.taken = entry.offset;
            true
        };
        base.tree.list(number, from, extent, &mut forward).await
    }

    /// Returns the attributes of an entry of the base, and whether its size is known; none if
    /// directory `upper` has another entry by its name.
    fn found_in_base(&self, part: &OfBase, upper: Option<EntryId>, entry: &Entry<'_>) -> Option<(Attributes, bool)> {
        let own = upper.and_then(|id| {
            let name = Name::new(entry.name.as_bytes());
            let locked = self.upper.lock();
            locked.state.get(id).and_then(|inode| inode.directory()?.get(&name))
        });
        if let Some(own) = own {
            // Replaced since the listing began: not among the entries that follow, which are older.
            // So is what is listed in place of the base's ([`super::node::IN_PLACE`]).
            return own.id.filter(|_| own.order >= part.limit).and_then(|id| self.listed_in_place(id, entry));
        }
        // The kernel may have the attributes of another file by this number, which a program has
        // open; to look up the name is refused then.
        let other = if part.has_open { self.upper.lock().other_file(entry.attributes.inode) } else { None };
        Some(match other.and_then(|id| self.upper.listed_attributes_now(id)) {
            Some((attributes, _)) => (attributes, false),
            None => (part.base.attributes(entry.attributes), entry.is_sized),
        })
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
