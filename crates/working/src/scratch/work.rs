//! Finds out from a journal alone whether it holds uncommitted work: changes or untracked files.
//!
//! A journal is never empty: a mount records the inodes that it shows and their attributes, also of
//! files that are as the base has them. What counts is the difference at the end. An entry that was
//! created and removed again, or moved and moved back, is none, and neither is a mode or a time,
//! which no commit takes. A commit that may have been published counts: its outcome is not known.

use std::collections::{HashMap, HashSet};

use super::record::{Body, EntryId, Name, Record, Source};

/// Entries that are remembered. A journal of more counts as work.
const MAX_ENTRIES: usize = 200_000;

/// Inode of a journal.
#[derive(Debug)]
struct KnownEntry {
    /// Path in the base; none for an inode that was created.
    lower: Option<String>,
    /// True if its bytes are not those of the base.
    has_content: bool,
}

/// Search for uncommitted work in the records of a journal, which are added in their order.
#[derive(Debug, Default)]
pub struct WorkSearch {
    entries: HashMap<EntryId, KnownEntry>,
    names: HashMap<(EntryId, Name), EntryId>,
    whiteouts: HashSet<(EntryId, Name)>,
    is_publishing: bool,
    is_too_large: bool,
}

impl WorkSearch {
    /// Adds the next record.
    pub fn add(&mut self, record: &Record) {
        if self.is_too_large {
            return;
        }
        match record {
            Record::Base { .. } | Record::Attributes { .. } => {}
            Record::Sparse { .. } | Record::Covered { .. } | Record::FlushFailed { .. } => {}
            Record::Create { parent, name, id, .. } => {
                self.entries.insert(*id, KnownEntry { lower: None, has_content: true });
                self.names.insert((*parent, name.clone()), *id);
            }
            Record::Promote { parent, name, id, lower, body, .. } => {
                let has_content = matches!(body, Body::File(source) if *source != Source::Lower);
                self.entries.insert(*id, KnownEntry { lower: Some(lower.clone()), has_content });
                self.names.extend(parent.map(|parent| ((parent, name.clone()), *id)));
            }
            Record::Link { parent, name, id, .. } => drop(self.names.insert((*parent, name.clone()), *id)),
            Record::Remove { parent, name, hide, .. } => {
                let key = (*parent, name.clone());
                self.names.remove(&key);
                self.hide(key, *hide);
            }
            Record::Rename { parent, name, new_parent, new_name, exchange, hide, .. } => {
                let old = (*parent, name.clone());
                let new = (*new_parent, new_name.clone());
                let replaced = self.names.remove(&new).filter(|_| *exchange);
                let moved = self.names.remove(&old);
                self.names.extend(replaced.map(|id| (old.clone(), id)));
                self.names.extend(moved.map(|id| (new, id)));
                self.hide(old, *hide);
            }
            Record::SetSource { id, source, .. } => {
                if let Some(entry) = self.entries.get_mut(id) {
                    entry.has_content = *source != Source::Lower;
                }
            }
            Record::Whiteout { parent, name } => self.hide((*parent, name.clone()), true),
            Record::Restored { .. } => {}
            Record::Publishing { .. } => self.is_publishing = true,
            Record::Unpublished { .. } => self.is_publishing = false,
        }
        self.is_too_large = self.entries.len().max(self.names.len()).max(self.whiteouts.len()) > MAX_ENTRIES;
    }

    fn hide(&mut self, key: (EntryId, Name), hide: bool) {
        if hide {
            self.whiteouts.insert(key);
        }
    }

    /// Returns true if the records leave anything that a commit would take, or that the user would
    /// miss.
    pub fn has_work(&self) -> bool {
        self.is_publishing
            || self.is_too_large
            || self.names.iter().any(|(key, id)| !self.is_as_in_base(key, *id))
            || self.whiteouts.iter().any(|key| !self.names.contains_key(key))
    }

    /// Returns true if inode `id` is what the base has under this name of this directory.
    fn is_as_in_base(&self, (parent, name): &(EntryId, Name), id: EntryId) -> bool {
        let lower = |id: &EntryId| self.entries.get(id)?.lower.as_deref();
        let (Some(above), Some(own), Some(name)) = (lower(parent), lower(&id), name.text()) else { return false };
        let rest = own.strip_prefix(above.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
        rest == Some(name) && self.entries.get(&id).is_some_and(|entry| !entry.has_content)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::record::{DataFileId, Meta, ROOT, Time};
    use super::*;

    const META: Meta = Meta { mode: 0o644, uid: 0, gid: 0, atime: Time(0, 0), mtime: Time(0, 0), ctime: Time(0, 0) };
    const AT: Time = Time(0, 0);

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes())
    }

    /// Entry `id` of the base at `lower`, below `parent`.
    fn promote(parent: Option<u64>, text: &str, id: u64, lower: &str, body: Body) -> Record {
        Record::Promote {
            parent: parent.map(EntryId),
            name: name(text),
            id: EntryId(id),
            lower: lower.into(),
            meta: META,
            body,
        }
    }

    fn create(parent: u64, text: &str, id: u64) -> Record {
        let body = Body::File(Source::Data(DataFileId(id)));
        Record::Create { parent: EntryId(parent), name: name(text), id: EntryId(id), meta: META, body }
    }

    fn remove(parent: u64, text: &str, hide: bool) -> Record {
        Record::Remove { parent: EntryId(parent), name: name(text), hide, at: AT }
    }

    fn rename(from: &str, to: &str, hide: bool, exchange: bool) -> Record {
        let new_name = name(to);
        let name = name(from);
        Record::Rename { parent: ROOT, name, new_parent: ROOT, new_name, exchange, hide, at: AT }
    }

    fn set(id: u64, source: Source) -> Record {
        Record::SetSource { id: EntryId(id), source, at: AT }
    }

    /// Tells whether there is work after `records`, in a tree whose inodes 2 and 4 are `/a` and
    /// `/b`, and 3 is `/a/zarr.json`.
    fn has_work(records: &[Record]) -> bool {
        let mut search = WorkSearch::default();
        let base = Record::Base {
            format: 2,
            repository: "/r".into(),
            branch: "main".into(),
            snapshot: "x".into(),
            identity: None,
        };
        let shown = [
            base,
            promote(None, "", 1, "/", Body::Directory),
            promote(Some(1), "a", 2, "/a", Body::Directory),
            promote(Some(2), "zarr.json", 3, "/a/zarr.json", Body::File(Source::Lower)),
            promote(Some(1), "b", 4, "/b", Body::Directory),
            Record::Attributes { id: EntryId(2), meta: META },
        ];
        shown.iter().chain(records).for_each(|record| search.add(record));
        search.has_work()
    }

    #[test]
    fn inodes_that_are_as_in_the_base_are_no_work() {
        assert!(!has_work(&[]));
        assert!(!has_work(&[create(2, "x", 9), remove(2, "x", false)]));
        assert!(!has_work(&[rename("a", "c", true, false), rename("c", "a", false, false)]));
        assert!(!has_work(&[set(3, Source::Data(DataFileId(5))), set(3, Source::Lower)]));
        assert!(!has_work(&[
            Record::Publishing { snapshot: "y".into() },
            Record::Unpublished { snapshot: "y".into() }
        ]));
    }

    #[test]
    fn what_differs_from_the_base_is_work() {
        let link = Record::Link { parent: ROOT, name: name("l"), id: EntryId(3), at: AT };
        for records in [
            vec![create(1, "notes", 9)],
            vec![create(1, "x", 9), rename("x", "y", false, false)],
            vec![create(1, "x", 9), link.clone(), remove(1, "x", false)],
            vec![set(3, Source::Data(DataFileId(5)))],
            vec![promote(Some(1), "c", 9, "/c", Body::File(Source::Data(DataFileId(5))))],
            vec![remove(2, "zarr.json", true)],
            vec![Record::Whiteout { parent: ROOT, name: name("c") }],
            vec![rename("a", "c", true, false)],
            vec![rename("a", "b", false, true)],
            vec![promote(Some(1), "c", 9, "/d", Body::Directory)],
            vec![link],
            vec![Record::Publishing { snapshot: "y".into() }],
        ] {
            assert!(has_work(&records), "{records:?}");
        }
    }

    #[test]
    fn a_journal_of_too_many_entries_counts_as_work() {
        let many: Vec<Record> = (10..10 + MAX_ENTRIES as u64)
            .map(|n| promote(Some(2), &n.to_string(), n, &format!("/a/{n}"), Body::File(Source::Lower)))
            .collect();
        assert!(has_work(&many) && !has_work(many.get(..1000).unwrap()));
    }
}
