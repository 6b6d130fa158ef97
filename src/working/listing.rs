//! Directory listings: the snapshot's entries that still show, then those that came since.
//!
//! Offsets of the former are the snapshot's own ([`crate::tree::directory`]); the latter follow in the order in which they
//! came, from [`UPPER_OFFSET`] on. A listing shows no entry that came after it began: a program that renames what it reads
//! would otherwise read for ever.

use super::WorkingTree;
use super::attributes::Attributes;
use crate::error::Result;
use crate::scratch::record::{Name, ROOT};
use crate::tree::directory::Extent;

/// Offsets from here on are places among the entries that are not the snapshot's.
const UPPER_OFFSET: u64 = 3 << 61;
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// One entry of a listing.
#[derive(Debug)]
pub struct Listed<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its attributes. Size and times of a file are those known without looking, unless attributes were asked for.
    pub attributes: Attributes,
    /// Where the listing goes on behind it.
    pub offset: u64,
}

impl WorkingTree {
    /// A bound for the entries that a listing which begins now may show.
    pub fn listing_limit(&self) -> u64 {
        self.lock().state.take_next()
    }

    /// Feeds the entries of directory `number` that come behind `offset` and before `limit` to `sink`, until it returns false:
    /// it is full, and the entry was not taken.
    pub async fn list(
        &self,
        number: u64,
        offset: u64,
        limit: u64,
        extent: Extent,
        sink: &mut (impl FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<()> {
        let base = self.base();
        let Some(id) = self.upper_directory(number) else {
            let mut forward = |entry: crate::tree::directory::Entry<'_>| {
                let attributes = base.attributes(entry.attributes);
                sink(Listed { name: entry.name.as_bytes(), attributes, offset: entry.offset })
            };
            return base.tree.list(number, offset, extent, &mut forward).await;
        };
        let (lower, own, parent) = {
            let locked = self.lock();
            let inode = locked.state.get(id).ok_or_else(|| super::no_such(number))?;
            let parent = inode.names.first().map_or(ROOT, |(parent, _)| *parent);
            let parent = locked.state.get(parent).map_or(number, |parent| parent.number);
            (inode.lower.clone(), inode.number, parent)
        };
        for (at, name, number) in [(DOT, ".", own), (DOT_DOT, "..", parent)] {
            let attributes = Attributes { number, kind: libc::S_IFDIR, ..base.attributes(directory(number)) };
            if at > offset && !sink(Listed { name: name.as_bytes(), attributes, offset: at }) {
                return Ok(());
            }
        }
        if let Some(place) = lower.filter(|_| offset < UPPER_OFFSET) {
            let mut full = false;
            let mut forward = |entry: crate::tree::directory::Entry<'_>| {
                if entry.offset <= DOT_DOT {
                    return true;
                }
                let name = Name::new(entry.name.as_bytes());
                let replaced = self.lock().state.get(id).and_then(|inode| inode.directory()?.get(&name)).is_some();
                if replaced {
                    return true;
                }
                let attributes = base.attributes(entry.attributes);
                full = !sink(Listed { name: entry.name.as_bytes(), attributes, offset: entry.offset });
                !full
            };
            base.tree.list(base.tree.table().inode(&place), offset, extent, &mut forward).await?;
            // Chunks that were left out come in the next part, before what follows here.
            if full || extent == Extent::BeforeChunks {
                return Ok(());
            }
        }
        let mut from = offset.max(UPPER_OFFSET).saturating_sub(UPPER_OFFSET) + u64::from(offset >= UPPER_OFFSET);
        loop {
            // A page at a time: attributes may have to be waited for.
            let page: Vec<(u64, Name, u64)> = {
                let locked = self.lock();
                let directory = locked.state.get(id).and_then(super::state::Inode::directory);
                let entries = directory.into_iter().flat_map(|directory| directory.from(from));
                let entries = entries.take_while(|(order, ..)| *order < limit).take(256);
                entries.map(|(order, name, id)| (order, name.clone(), id)).collect()
            };
            let Some((last, ..)) = page.last() else { return Ok(()) };
            from = last + 1;
            for (order, name, id) in page {
                // Removed meanwhile.
                let Ok(attributes) = self.attributes_of(id).await else { continue };
                if !sink(Listed { name: &name.0, attributes, offset: UPPER_OFFSET + order }) {
                    return Ok(());
                }
            }
        }
    }
}

/// `name` below `path`.
pub(super) fn join(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

fn directory(inode: u64) -> crate::tree::Attributes {
    crate::tree::Attributes { inode, kind: crate::tree::Kind::Directory, size: 0 }
}
