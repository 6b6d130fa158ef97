//! Appends, corrections and attributes of several people, on one array: a series that grows.

use serde_json::Value;

use super::scenarios::{Pair, assert_clean, commit, line, read, refresh, remount, write};
use crate::common::writing::Writable;
use crate::common::{icechunkfs, run_on};

/// Gives the array `a` of eight chunks another length, as a program does that appends to it.
fn resize(mount: &Writable, length: u64) {
    change(mount, |document| document["shape"] = vec![length].into());
}

fn set(mount: &Writable, name: &str, value: &str) {
    change(mount, |document| document["attributes"][name] = value.into());
}

fn change(mount: &Writable, change: impl Fn(&mut Value)) {
    let mut document: Value = serde_json::from_str(&read(mount, "a/zarr.json").unwrap()).unwrap();
    change(&mut document);
    write(mount, "a/zarr.json", document.to_string());
}

fn document(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn append(mount: &Writable) {
    resize(mount, 9);
    write(mount, "a/c/8", "appended");
}

fn correct(mount: &Writable) {
    write(mount, "a/c/0", "corrected");
}

fn set_units(mount: &Writable) {
    set(mount, "units", "K");
}

fn set_title(mount: &Writable) {
    set(mount, "title", "SST");
}

/// Changes of two people that go together.
const TOGETHER: [[fn(&Writable); 2]; 6] = [
    [append, correct],
    [correct, append],
    [append, set_units],
    [set_units, append],
    [set_units, set_title],
    [correct, set_units],
];

fn series() -> Pair {
    Pair::with(&[("a/zarr.json", line()), ("a/c/0", "0".into()), ("a/c/7", "7".into())])
}

/// Checks that the branch, and both mounts, have what `work` does to the series, one after the
/// other.
#[track_caller]
fn check(pair: &Pair, work: [fn(&Writable); 2]) {
    let alone = series();
    work.iter().for_each(|work| work(&alone.a));
    commit(&alone.a, "alone");
    let expected = alone.committed();
    let found = pair.committed();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, text) in &expected {
        let is_same =
            if key.ends_with("zarr.json") { document(&found[key]) == document(text) } else { found[key] == *text };
        assert!(is_same, "{key}: {} instead of {text}", found[key]);
    }
    for mount in [&pair.a, &pair.b] {
        refresh(mount);
        assert_clean(mount);
        for (key, text) in &found {
            assert_eq!(read(mount, key).unwrap(), *text, "{key}");
        }
    }
}

#[test]
fn an_append_and_a_correction_merge_in_every_order() {
    for work in TOGETHER {
        // By a commit over the other one.
        let pair = series();
        work[0](&pair.a);
        commit(&pair.a, "first");
        work[1](&pair.b);
        commit(&pair.b, "second");
        check(&pair, work);
    }
}

#[test]
fn a_document_changed_on_both_sides_has_the_changes_of_both_after_a_refresh_or_a_commit() {
    for work in TOGETHER {
        for remounts in [false, true] {
            let pair = series();
            // The kernel has the pages of the document.
            read(&pair.b, "a/zarr.json").unwrap();
            work[0](&pair.a);
            commit(&pair.a, "first");
            work[1](&pair.b);
            refresh(&pair.b);
            if remounts {
                remount(&pair.b);
            }
            let shown = read(&pair.b, "a/zarr.json").unwrap();
            commit(&pair.b, "second");
            assert_eq!(pair.committed()["a/zarr.json"], shown, "what the refresh showed is committed");
            check(&pair, work);
        }
    }
}

#[test]
fn branches_with_an_append_and_a_correction_merge() {
    for work in TOGETHER {
        let pair = series();
        let repository = pair.a.repository().to_str().unwrap().to_owned();
        icechunkfs(["branch", &repository, "create", "trial"]).success();
        let trial = Writable::of(pair.a.repository(), &["--branch", "trial"]);
        work[1](&trial);
        commit(&trial, "on the branch");
        work[0](&pair.a);
        commit(&pair.a, "on main");
        icechunkfs(["merge", &repository, "trial"]).success();
        check(&pair, work);
    }
}

/// An open document keeps its bytes, and a name that leads to it gets the new ones.
#[test]
fn an_open_document_is_read_to_its_end_while_others_change_it() {
    use std::io::Read;

    let pair = series();
    let before = read(&pair.b, "a/zarr.json").unwrap();
    let mut open = std::fs::File::open(pair.b.root().join("a/zarr.json")).unwrap();
    append(&pair.a);
    commit(&pair.a, "first");
    correct(&pair.b);
    commit(&pair.b, "second");
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, before);
    assert_eq!(document(&read(&pair.b, "a/zarr.json").unwrap())["shape"], Value::from(vec![9]));
}

#[test]
fn two_appends_conflict_and_name_the_member() {
    let pair = series();
    append(&pair.a);
    commit(&pair.a, "first");
    resize(&pair.b, 10);
    write(&pair.b, "a/c/9", "mine");
    let before = read(&pair.b, "a/zarr.json").unwrap();
    for command in ["commit", "refresh"] {
        let said = run_on(pair.b.root(), &[command]).failure();
        assert!(said.contains("changed the same things"), "{said}");
        let conflicts = pair.b.read_control("conflicts");
        assert!(conflicts.contains("/a: ZarrMetadataDoubleUpdate") && conflicts.contains("shape"), "{conflicts}");
        assert_eq!(read(&pair.b, "a/zarr.json").unwrap(), before, "a refusal changes nothing");
    }
    // The same append by two people is one.
    let pair = series();
    append(&pair.a);
    commit(&pair.a, "first");
    append(&pair.b);
    commit(&pair.b, "second");
    check(&pair, [append, append]);
}

/// A document with another name would be changed under that, too.
#[test]
fn a_document_with_two_names_is_not_merged() {
    let pair = series();
    set_units(&pair.a);
    commit(&pair.a, "first");
    set_title(&pair.b);
    let root = pair.b.root();
    std::fs::hard_link(root.join("a/zarr.json"), root.join("a/backup")).unwrap();
    let before = read(&pair.b, "a/zarr.json").unwrap();
    pair.b.touch("refresh").unwrap_err();
    assert!(pair.b.read_control("commit").contains("hard links"), "{}", pair.b.read_control("commit"));
    for name in ["a/zarr.json", "a/backup"] {
        assert_eq!(read(&pair.b, name).unwrap(), before, "{name}");
    }
    std::fs::remove_file(root.join("a/backup")).unwrap();
    refresh(&pair.b);
    commit(&pair.b, "second");
    check(&pair, [set_units, set_title]);
}
