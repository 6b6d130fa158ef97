//! Pushes to a repository whose garbage is being collected: no ref leads to an object that the
//! collection removes afterwards.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::repo::Repository;
use icechunkfs::repo::collect::{GcOptions, Uncommitted, UncommittedFinder, collect};
use icechunkfs::repo::progress::Progress;
use icechunkfs::storage;
use icechunkfs::times::{format_time, system_clock};
use serde_json::{Value, json};

use super::refs::same_operations;
use super::sync::{add_chunks, assert_is_copy, clone, objects, push, refs, repository};
use crate::common::distant::Distant;
use crate::common::writing::Reference;
use crate::common::{copy_tree, place, run_on, run_with_fault, wait_until};

/// Repositories with the same branch `extra`, which the second one has deleted.
struct Pair {
    source: PathBuf,
    copy: PathBuf,
    directory: tempfile::TempDir,
}

fn pair() -> Pair {
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    Reference::open(&source).create_branch("extra");
    let mut extra = Reference::open(&source);
    add_chunks(extra.on("extra"), 7);
    let copy = directory.path().join("copy");
    clone(&source, &copy).success();
    run_on(&copy, &["branch", "delete", "extra", "--yes"]).success();
    Pair { source, copy, directory }
}

fn has_extra(place: &Path) -> bool {
    refs(place)["branches"].as_object().unwrap().contains_key("extra")
}

fn gc(place: &Path, older_than: &str) {
    run_on(place, &["gc", "--older-than", older_than, "--yes"]).success();
}

/// Returns the objects that a collection removes.
fn garbage(pair: &Pair) -> Vec<String> {
    let probe = pair.directory.path().join("probe");
    copy_tree(&pair.copy, &probe);
    gc(&probe, "0s");
    let left = objects(&probe);
    let garbage: Vec<String> = objects(&pair.copy).into_keys().filter(|name| !left.contains_key(name)).collect();
    assert!(["chunks/", "snapshots/"].iter().all(|folder| garbage.iter().any(|name| name.starts_with(folder))));
    garbage
}

#[test]
fn a_push_uses_nothing_that_a_collection_may_still_remove() {
    if !place::needs_directory() {
        return;
    }
    let pair = pair();
    let garbage = garbage(&pair);
    assert!(!run_with_fault(&pair.copy, &["gc", "--older-than", "0s", "--yes"], "gc.repo.done=abort").status.success());
    // Objects that it does not need are no reason to wait.
    add_chunks(&Reference::open(&pair.source), 9);
    push(&pair.source, &pair.copy, &["main"]).success();
    let before = refs(&pair.copy);
    let why = push(&pair.source, &pair.copy, &["extra"]).failure();
    assert!(why.contains("a collection of garbage began at") && why.contains("no ref was moved"), "{why}");
    assert_eq!(refs(&pair.copy), before);
    for name in &garbage {
        std::fs::remove_file(pair.copy.join(name)).unwrap();
    }
    run_on(&pair.copy, &["verify"]).success();
    push(&pair.source, &pair.copy, &[]).success();
    assert_is_copy("after the collection", &pair.copy, &pair.source);
}

/// The log of the destination reaches back for some operations only, and so does not tell that
/// garbage was never collected.
#[test]
fn a_push_waits_for_no_collection_that_nothing_tells_of() {
    let pair = pair();
    run_on(&pair.copy, &["config", "set", "num_updates_per_repo_info_file", "3"]).success();
    for number in 0..8 {
        run_on(&pair.copy, &["tag", "create", &format!("t{number}")]).success();
    }
    push(&pair.source, &pair.copy, &["extra"]).success();
    assert!(has_extra(&pair.copy));
    run_on(&pair.copy, &["verify"]).success();
}

/// Each ref is an operation of the log: a push of more of them than the log keeps in one file is
/// one change all the same, after which the reference reads the log.
#[test]
fn a_push_of_many_refs_is_one_change() {
    let pair = pair();
    let operations = || tokio::runtime::Runtime::new().unwrap().block_on(same_operations(&pair.copy));
    run_on(&pair.copy, &["config", "set", "num_updates_per_repo_info_file", "3"]).success();
    for number in 0..8 {
        run_on(&pair.source, &["tag", "create", &format!("t{number}")]).success();
    }
    let copies = || std::fs::read_dir(pair.copy.join("overwritten")).unwrap().count();
    let before = copies();
    push(&pair.source, &pair.copy, &[]).success();
    if place::needs_directory() {
        assert_eq!(copies(), before + 1);
    }
    assert_eq!(refs(&pair.copy), refs(&pair.source));
    assert!(operations() > 9);
    run_on(&pair.copy, &["tag", "create", "later"]).success();
    run_on(&pair.copy, &["verify"]).success();
    operations();
    Reference::open(&pair.copy).create_tag("by the reference");
    assert!(operations() > 11);
}

/// The collection takes some seconds to remove its garbage.
#[test]
fn a_push_waits_for_a_collection_at_work() {
    if !place::needs_directory() {
        return;
    }
    let pair = pair();
    garbage(&pair);
    std::thread::scope(|scope| {
        let copy = pair.copy.clone();
        let collection = scope.spawn(move || {
            let distant = Distant::new(storage::open_directory(&copy).unwrap(), Duration::from_millis(400));
            let nothing: UncommittedFinder = Arc::new(|| Box::pin(async { Ok(Uncommitted::default()) }));
            let options = GcOptions { older_than: system_clock(), dry_run: false };
            tokio::runtime::Runtime::new().unwrap().block_on(async {
                let repository = Repository::open(Arc::new(distant)).await.unwrap();
                collect(&repository, options, system_clock, &nothing, &Progress::default()).await.unwrap()
            })
        });
        wait_until("the collection removes", || {
            run_on(&pair.copy, &["ops", "--json"]).json()[0]["operation"] == "gc_ran"
        });
        assert!(!collection.is_finished());
        push(&pair.source, &pair.copy, &["extra"]).success();
        assert!(collection.join().unwrap().total().objects > 0);
    });
    assert_is_copy("after the collection", &pair.copy, &pair.source);
}

/// Objects that an earlier push has left are older than a collection that spares them and has
/// ended.
#[test]
fn a_push_goes_on_after_a_collection_that_has_ended() {
    if !place::needs_directory() {
        return;
    }
    let pair = pair();
    std::thread::sleep(Duration::from_millis(20));
    let cut = format_time(system_clock());
    std::thread::sleep(Duration::from_millis(20));
    add_chunks(&Reference::open(&pair.source), 9);
    let known = objects(&pair.copy);
    let mut left = objects(&pair.source);
    left.retain(|name, _| !known.contains_key(name) && name.starts_with("chunks/"));
    assert!(left.len() > 5);
    for (name, bytes) in &left {
        std::fs::write(pair.copy.join(name), bytes).unwrap();
    }
    gc(&pair.copy, &cut);
    let removed = known.keys().filter(|name| !pair.copy.join(name).exists()).count();
    assert!(removed > 0 && left.keys().all(|name| pair.copy.join(name).exists()));
    let said: Value = push(&pair.source, &pair.copy, &["main", "--json"]).json();
    // A snapshot, a log and a manifest.
    assert_eq!((&said["commits"], &said["objects"]), (&json!(1), &json!(3)), "{said}");
    push(&pair.source, &pair.copy, &[]).success();
    assert!(has_extra(&pair.copy));
    assert_is_copy("after the collection", &pair.copy, &pair.source);
    // Records of ended collections do not pile up.
    let records = || std::fs::read_dir(pair.copy.join("collected")).unwrap().count();
    assert_eq!(records(), 1);
    std::fs::write(pair.copy.join("collected").join(format!("{:020}", 7)), "finished").unwrap();
    run_on(&pair.copy, &["branch", "delete", "extra", "--yes"]).success();
    gc(&pair.copy, "0s");
    assert_eq!(records(), 2);
}
