//! The state follows from its records, and its dump is a shorter list of records for the same
//! state.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::*;
use icechunkfs_base::error::ErrorKind;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::testing::{self, group, id};
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::reader::memory::Budget;
use icechunkfs_store::storage::empty_storage;
use icechunkfs_tree::tree::nodes::NodeTable;

const A: EntryId = EntryId(2);
const FILE: EntryId = EntryId(3);
const OTHER: EntryId = EntryId(4);
const DATA: DataFileId = DataFileId(3);

fn tree() -> Tree {
    let snapshot = Snapshot::decode(&testing::snapshot(id(1), &[group(1, "/"), group(2, "/a")]), 1 << 20).unwrap();
    let table = NodeTable::build(&snapshot).unwrap();
    let reader = Reader::new(empty_storage("memory"), Budget::new(64 << 20, 0).unwrap());
    Tree::new(snapshot, table, Arc::new(reader))
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes())
}

fn meta(seconds: i64) -> Meta {
    let time = Time(seconds, 0);
    Meta { mode: 0o644, uid: 1, gid: 2, atime: time, mtime: time, ctime: time }
}

fn promote(parent: Option<EntryId>, text: &str, id: EntryId, lower: &str) -> Record {
    let name = name(text);
    let lower = lower.to_owned();
    let meta = meta(1);
    let body = Body::Directory;
    Record::Promote { parent, name, id, lower, meta, body }
}

fn create(parent: EntryId, text: &str, id: EntryId, source: Source) -> Record {
    Record::Create { parent, name: name(text), id, meta: meta(2), body: Body::File(source) }
}

fn replay(tree: &Tree, records: impl IntoIterator<Item = Record>) -> State {
    let mut state = State::new();
    for record in records {
        state.apply(record, tree).unwrap();
    }
    state
}

/// A promoted group with a new file of two names, and another file in the root.
fn records() -> Vec<Record> {
    vec![
        promote(None, "", ROOT, "/"),
        promote(Some(ROOT), "a", A, "/a"),
        create(A, "file", FILE, Source::Data(DATA)),
        create(ROOT, "other", OTHER, Source::Data(DataFileId(4))),
        Record::Link { parent: ROOT, name: name("link"), id: FILE, at: Time(3, 0) },
    ]
}

/// All names, with directory and inode.
fn names(state: &State) -> HashSet<(EntryId, Name, EntryId)> {
    let inodes = state.iter();
    inodes.flat_map(|(id, inode)| inode.names.iter().map(move |(parent, name)| (*parent, name.clone(), id))).collect()
}

#[test]
fn a_dump_creates_the_same_state() {
    let tree = tree();
    let mut state = replay(&tree, records());
    let remove = Record::Remove { parent: ROOT, name: name("gone"), hide: true, at: Time(4, 0) };
    state.apply(remove, &tree).unwrap();
    state.apply(Record::Publishing { snapshot: id(7).to_string() }, &tree).unwrap();
    let again = replay(&tree, state.dump(&tree));
    assert_eq!((names(&again), again.count()), (names(&state), state.count()));
    assert_eq!(again.data_files(), HashSet::from([DATA, DataFileId(4)]));
    assert_eq!(again.publishing, state.publishing);
    assert_eq!(again.get(FILE).unwrap().names.len(), 2);
    for (id, inode) in state.iter() {
        assert_eq!(again.get(id).map(|inode| (inode.number, inode.meta)), Some((inode.number, inode.meta)), "{id}");
    }
    let whiteout = again.get(ROOT).unwrap().directory().unwrap().get(&name("gone")).unwrap();
    assert_eq!((whiteout.id, whiteout.covers), (None, true));
}

#[test]
fn numbers_are_those_of_the_base_or_far_above() {
    let tree = tree();
    let state = replay(&tree, records());
    let number = tree.table().inode(&tree.place_of("/a").unwrap());
    assert_eq!(state.by_number(number), Some(A));
    assert_eq!(state.get(A).unwrap().number, number);
    assert!(!state.get(FILE).unwrap().number.is_of_base());
    assert_eq!(state.by_number(FILE.ino()), Some(FILE));
    assert_eq!(state.by_number(EntryId(99).ino()), None);
    assert_eq!(
        (FILE.to_string(), Ino(7).to_string(), DATA.to_string()),
        ("entry 3".into(), "inode 7".into(), "data file 3".into())
    );
}

#[test]
fn a_record_that_does_not_fit_is_refused() {
    let tree = tree();
    let mut state = replay(&tree, records());
    let before = state.dump(&tree).len();
    let wrong = [
        create(ROOT, "other", EntryId(9), Source::Lower),
        create(FILE, "below", EntryId(9), Source::Lower),
        Record::Attributes { id: EntryId(9), meta: meta(1) },
        Record::SetSource { id: A, source: Source::Lower, at: Time(1, 0) },
        promote(Some(ROOT), "b", EntryId(9), "/b"),
    ];
    for record in wrong {
        assert_eq!(state.apply(record.clone(), &tree).unwrap_err().kind(), ErrorKind::Corrupt, "{record:?}");
    }
    assert_eq!(state.dump(&tree).len(), before);
}
