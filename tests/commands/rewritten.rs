//! Merges after the history was rewritten, and what a record of a merge proves.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use icechunk::Store;
use icechunk::format::format_constants::SpecVersionBin;
use serde_json::json;
use tokio::sync::RwLock;

use super::hostile_source::edit;
use super::merge::{Setup, chunk, setup};
use crate::common::writing::{Reference, Writable, array, put};
use crate::common::{block_on, copy_tree, place, run_on};

/// Takes a chunk away from a branch.
fn remove(repo: &Setup, branch: &str, key: &str) {
    let before = repo.keys(branch);
    let mut less = before.clone();
    less.remove(key);
    Reference::open(&repo.place).on(branch).change(&before, &less);
}

/// The reference implementation replaces the newest commit of `main`, which drops its metadata.
fn amend_by_the_reference(repo: &Setup, key: &str, content: &[u8]) {
    block_on(async {
        let repository = place::reference(&repo.place).await;
        let session = Arc::new(RwLock::new(repository.writable_session("main").await.unwrap()));
        let store = Store::from_session(Arc::clone(&session)).await;
        store.set(key, content.to_vec().into()).await.unwrap();
        session.write().await.commit("amended by them").amend().execute().await.unwrap();
    });
}

fn rewrite(repo: &Setup, how: &str) {
    match how {
        "squash" => {
            repo.commit("main", &[("a/c/4", b"more")]);
            run_on(&repo.place, &["squash", "--last", "2", "--yes"]).success();
        }
        "amend" => drop(run_on(&repo.place, &["amend", "-m", "a better message", "--yes"]).success()),
        "rewrite-manifests" => drop(run_on(&repo.place, &["rewrite-manifests", "--amend", "--yes"]).success()),
        "amend twice" => {
            rewrite(repo, "amend");
            rewrite(repo, "rewrite-manifests");
        }
        "mount" => {
            let mount = Writable::of(&repo.place, &[]);
            put(&mount.root().join("a/c/4"), b"more").unwrap();
            run_on(mount.root(), &["commit", "--amend", "-m", "better"]).success();
        }
        _ => amend_by_the_reference(repo, "a/c/4", b"more"),
    }
}

/// Both branches have a commit, `dev` takes back what it wrote, and `main` replaces it.
#[test]
fn what_was_deleted_stays_deleted_after_every_rewrite() {
    for how in ["squash", "amend", "rewrite-manifests", "amend twice", "mount", "reference"] {
        for (source, into) in [("dev", "main"), ("main", "dev")] {
            let repo = setup(SpecVersionBin::V2);
            repo.commit("main", &[("a/c/2", b"shared")]);
            repo.merge(&["main", "--into", "dev"]).success();
            remove(&repo, "dev", "a/c/2");
            rewrite(&repo, how);
            repo.merge(&[source, "--into", into]).success();
            assert_eq!(chunk(&repo.keys(into), "a/c/2"), None, "{how}, {source} into {into}");
            run_on(&repo.place, &["verify"]).success();
        }
    }
}

/// A merge that the reference implementation amended, so that its record is gone; `main` then took
/// back what it had merged.
fn merged_amended_and_taken_back() -> Setup {
    let repo = setup(SpecVersionBin::V2);
    repo.commit("dev", &[("a/c/2", b"dev")]);
    repo.commit("main", &[("a/c/3", b"main")]);
    repo.merge(&["dev"]).success();
    amend_by_the_reference(&repo, "a/c/4", b"more");
    remove(&repo, "main", "a/c/2");
    repo.commit("dev", &[("a/c/5", b"dev again")]);
    repo
}

#[test]
fn the_operations_log_tells_what_the_reference_amended() {
    let repo = merged_amended_and_taken_back();
    repo.merge(&["dev"]).success();
    let keys = repo.keys("main");
    assert_eq!((chunk(&keys, "a/c/2"), chunk(&keys, "a/c/5")), (None, Some(&b"dev again"[..])));
}

/// Makes a copy that knows nothing of the operations before it, as older releases made them.
fn copy_without_operations(place: &Path, copy: &Path) {
    copy_tree(place, copy);
    edit(copy, |state| drop(state.updates.drain(..state.updates.len() - 1)));
}

/// Nothing but the snapshots tells that `dev` was merged.
#[test]
fn a_lost_record_is_noticed_where_it_would_change_the_result() {
    let repo = merged_amended_and_taken_back();
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    copy_without_operations(&repo.place, &copy);
    let why = run_on(&copy, &["merge", "dev", "--into", "main"]).failure();
    assert!(why.contains("--ancestor"), "{why}");
    let dev = Reference::open(&copy).on("dev").history();
    let (merged, _) = &dev[1];
    run_on(&copy, &["merge", "dev", "--into", "main", "--ancestor", merged]).success();
    let keys = Reference::open(&copy).keys();
    assert_eq!((chunk(&keys, "a/c/2"), chunk(&keys, "a/c/5")), (None, Some(&b"dev again"[..])));
}

/// `main` has merged an array of `dev`, and the reference implementation amended that merge, so
/// that it never seems to have had the array.
fn merge_and_amend_away(repo: &Setup) {
    repo.commit("dev", &[("n/zarr.json", array(&[2], &[1]).as_bytes()), ("n/c/0", b"n")]);
    repo.commit("main", &[("a/c/3", b"main")]);
    repo.merge(&["dev"]).success();
    block_on(async {
        let repository = place::reference(&repo.place).await;
        let session = Arc::new(RwLock::new(repository.writable_session("main").await.unwrap()));
        let store = Store::from_session(Arc::clone(&session)).await;
        store.delete("n/c/0").await.unwrap();
        store.delete("n/zarr.json").await.unwrap();
        session.write().await.commit("without it").amend().execute().await.unwrap();
    });
    repo.commit("dev", &[("a/c/5", b"dev again")]);
}

/// Copies have the log of operations of their own: what that of the source tells of amended commits
/// comes with the commits.
#[test]
fn a_copy_knows_what_the_reference_amended() {
    for how in ["clone", "push", "clone of a clone", "amended there"] {
        let directory = tempfile::tempdir().unwrap();
        let [copy, other] = ["copy", "other"].map(|name| directory.path().join(name));
        let copy_to = |from: &Path, to: &Path| run_on(from, &["clone", to.to_str().unwrap()]).success();
        let repo = setup(SpecVersionBin::V2);
        if how == "push" {
            copy_to(&repo.place, &copy);
            merge_and_amend_away(&repo);
            run_on(&repo.place, &["push", copy.to_str().unwrap()]).success();
        } else {
            merge_and_amend_away(&repo);
            copy_to(&repo.place, &copy);
        }
        let mut place = copy;
        if how == "clone of a clone" {
            copy_to(&place, &other);
            place = other;
        }
        if how == "amended there" {
            run_on(&place, &["amend", "-m", "better", "--yes"]).success();
        }
        run_on(&place, &["merge", "dev", "--into", "main"]).success();
        let keys = Reference::open(&place).keys();
        assert_eq!((chunk(&keys, "n/c/0"), chunk(&keys, "a/c/5")), (None, Some(&b"dev again"[..])), "{how}");
        let verified = run_on(&place, &["verify"]).text();
        assert!(!verified.contains("another metadata"), "{verified}");
    }
}

/// A collection has removed the merge: nothing tells what `main` had.
#[test]
fn what_was_made_from_an_amended_commit_that_was_collected_is_in_doubt() {
    let repo = setup(SpecVersionBin::V2);
    merge_and_amend_away(&repo);
    run_on(&repo.place, &["gc", "--older-than", "0s", "--yes"]).success();
    let why = repo.merge(&["dev"]).failure();
    assert!(why.contains("--ancestor"), "{why}");
}

/// A resolution of conflicts says nothing of a chunk that only seems to be in conflict.
#[test]
fn a_lost_record_is_noticed_where_a_resolution_would_bring_back_what_was_changed() {
    let repo = setup(SpecVersionBin::V2);
    repo.commit("dev", &[("a/c/2", b"dev"), ("a/c/3", b"dev")]);
    repo.commit("main", &[("a/c/4", b"main")]);
    repo.merge(&["dev"]).success();
    amend_by_the_reference(&repo, "a/c/2", b"corrected");
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    copy_without_operations(&repo.place, &copy);
    let merge = ["merge", "dev", "--into", "main", "--on-conflict", "theirs"];
    let why = run_on(&copy, &merge).failure();
    assert!(why.contains("--ancestor"), "{why}");
    // The operations log of the original tells.
    run_on(&repo.place, &merge).success();
    for place in [&copy, &repo.place] {
        assert_eq!(chunk(&Reference::open(place).keys(), "a/c/2"), Some(&b"corrected"[..]));
    }
}

/// The amended commit is on no branch, and collected: its record in a merge still leads to what it
/// stood for.
#[test]
fn a_merge_of_an_amended_commit_that_was_collected_is_merged_further() {
    let repo = setup(SpecVersionBin::V2);
    run_on(&repo.place, &["branch", "create", "release", "--at", "main"]).success();
    run_on(&repo.place, &["amend", "--branch", "dev", "-m", "better", "--yes"]).success();
    repo.merge(&["dev"]).success();
    repo.commit("dev", &[("a/c/2", b"dev")]);
    run_on(&repo.place, &["squash", "--branch", "dev", "--last", "2", "--yes"]).success();
    run_on(&repo.place, &["gc", "--older-than", "0s", "--yes"]).success();
    repo.commit("main", &[("a/c/3", b"main")]);
    repo.merge(&["main", "--into", "release"]).success();
    assert_eq!(chunk(&repo.keys("release"), "a/c/3"), Some(&b"main"[..]));
}

/// As a cherry-pick of the reference implementation copies metadata with a part of the changes.
#[test]
fn a_record_in_another_commit_says_nothing() {
    for names_its_commit in [true, false] {
        let repo = setup(SpecVersionBin::V2);
        run_on(&repo.place, &["branch", "create", "release", "--at", "main"]).success();
        repo.commit("dev", &[("a/c/2", b"dev"), ("a/c/5", b"dev")]);
        repo.commit("main", &[("a/c/3", b"main")]);
        repo.merge(&["dev"]).success();
        let mut record = repo.newest()["metadata"]["icechunkfs.merge"].clone();
        if !names_its_commit {
            // As of older releases.
            record.as_object_mut().unwrap().remove("commit");
        }
        let metadata = BTreeMap::from([("icechunkfs.merge".to_owned(), record)]);
        Reference::open(&repo.place).on("release").commit_with(&[("a/c/5", b"dev")], "picked", metadata);
        let merged = repo.merge(&["dev", "--into", "release"]);
        if names_its_commit || merged.status.success() {
            merged.success();
            assert_eq!(chunk(&repo.keys("release"), "a/c/2"), Some(&b"dev"[..]));
        } else {
            assert!(merged.failure().contains("--ancestor"));
        }
    }
}

/// A branch of a stranger says that it had merged `main`: what it never had is not what it has
/// deleted.
#[test]
fn a_forged_record_is_not_believed() {
    for name in ["icechunkfs.merge", "icechunkfs.replaces"] {
        let repo = setup(SpecVersionBin::V2);
        repo.commit("main", &[("a/c/2", b"main")]);
        repo.commit("main", &[("a/c/3", b"main")]);
        let commits: Vec<String> = repo.history("main").into_iter().map(|(id, _)| id).take(2).collect();
        let record = json!({"source": "main", "snapshot": commits[0], "commits": commits});
        let metadata = BTreeMap::from([(name.to_owned(), record)]);
        Reference::open(&repo.place).on("dev").commit_with(&[("a/c/7", b"stranger")], "forged", metadata);
        // Refused or right: nothing is deleted.
        let merged = repo.merge(&["dev"]);
        let keys = repo.keys("main");
        let main = Some(&b"main"[..]);
        assert_eq!((chunk(&keys, "a/c/2"), chunk(&keys, "a/c/3")), (main, main), "{name}: {}", merged.stderr);
    }
}

#[test]
fn deletions_are_listed_first() {
    let repo = setup(SpecVersionBin::V2);
    remove(&repo, "dev", "a/c/1");
    repo.commit("dev", &[("a/c/2", b"dev")]);
    let said = repo.merge(&["dev", "--dry-run"]).text();
    assert!(said.lines().next().is_some_and(|line| line == "deletes 1 chunk of /a"), "{said}");
    let said = repo.merge(&["dev", "--dry-run", "--json"]).json();
    assert_eq!(said["deletes"], json!([{"path": "/a", "chunks": 1}]));
}
