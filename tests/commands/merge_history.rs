//! Merges after something of the history is gone: merged branches, expired commits, squashed
//! merges.

use std::collections::BTreeMap;

use icechunk::format::format_constants::SpecVersionBin;
use serde_json::{Value, json};

use super::merge::{Setup, chunk, setup, versions};
use crate::common::writing::Reference;
use crate::common::{place, run_on};

/// Takes keys away from a branch.
fn remove(repo: &Setup, branch: &str, keys: &[&str]) {
    let before = repo.keys(branch);
    let mut less = before.clone();
    less.retain(|key, _| !keys.contains(&key.as_str()));
    Reference::open(&repo.place).on(branch).change(&before, &less);
}

fn collect(repo: &Setup) {
    run_on(&repo.place, &["gc", "--older-than", "0s", "--yes"]).success();
}

#[test]
fn commits_that_came_with_a_merge_stay_known_without_its_source() {
    if !place::is_local() {
        return;
    }
    for version in versions() {
        let repo = setup(version);
        repo.commit("dev", &[("a/c/2", b"dev 1")]);
        run_on(&repo.place, &["branch", "create", "feature", "--at", "dev"]).success();
        repo.commit("dev", &[("a/c/3", b"dev 2")]);
        run_on(&repo.place, &["branch", "create", "kept", "--at", "main"]).success();
        repo.merge(&["dev", "--into", "kept", "--keep-commits"]).success();
        repo.merge(&["dev", "--delete-source"]).success();
        remove(&repo, "main", &["a/c/2"]);
        remove(&repo, "kept", &["a/c/2"]);
        repo.commit("feature", &[("a/c/4", b"feature")]);
        let directory = tempfile::tempdir().unwrap();
        let clone = directory.path().join("clone");
        run_on(&repo.place, &["clone", clone.to_str().unwrap()]).success();
        collect(&repo);
        for (place, into) in [(&repo.place, "main"), (&repo.place, "kept"), (&clone, "main"), (&clone, "kept")] {
            run_on(place, &["merge", "feature", "--into", into]).success();
            let keys = Reference::open(place).on(into).keys();
            assert_eq!(
                ["a/c/2", "a/c/3", "a/c/4"].map(|name| chunk(&keys, name)),
                [None, Some(&b"dev 2"[..]), Some(&b"feature"[..])],
                "{version}: {into} of {}",
                place.display()
            );
        }
    }
}

/// As of a release that recorded the snapshot alone.
#[test]
fn a_merge_whose_source_is_gone_without_a_record_of_its_commits_is_asked_for() {
    if !place::is_local() {
        return;
    }
    for version in versions() {
        let repo = setup(version);
        let fork = repo.history("main")[0].0.clone();
        repo.commit("dev", &[("a/c/2", b"dev 1")]);
        run_on(&repo.place, &["branch", "create", "feature", "--at", "dev"]).success();
        repo.commit("dev", &[("a/c/3", b"dev 2")]);
        let record = json!({"source": "branch `dev`", "snapshot": repo.history("dev")[0].0});
        let metadata = BTreeMap::from([("icechunkfs.merge".to_owned(), record)]);
        Reference::open(&repo.place).commit_with(&[("a/c/2", b"dev 1"), ("a/c/3", b"dev 2")], "Merge", metadata);
        remove(&repo, "main", &["a/c/2"]);
        repo.commit("feature", &[("a/c/4", b"feature")]);
        // As long as the snapshot is there, its history is known.
        run_on(&repo.place, &["branch", "create", "other", "--at", "main"]).success();
        repo.merge(&["feature", "--into", "other"]).success();
        assert_eq!(chunk(&repo.keys("other"), "a/c/2"), None, "{version}");
        run_on(&repo.place, &["branch", "delete", "other", "--yes"]).success();
        run_on(&repo.place, &["branch", "delete", "dev", "--yes"]).success();
        collect(&repo);
        let before = repo.keys("main");
        for words in [&["feature"][..], &["main", "--into", "feature"], &["feature", "--keep-commits"]] {
            let why = repo.merge(words).failure();
            let is_named = why.contains("was made from a snapshot that no longer exists");
            assert!(is_named && why.contains(&format!("--ancestor {fork}")), "{version}: {why}");
        }
        assert_eq!(repo.keys("main"), before);
        // Commits after that merge have it on both sides.
        run_on(&repo.place, &["branch", "create", "more", "--at", "main"]).success();
        repo.commit("more", &[("a/c/6", b"more")]);
        repo.merge(&["more"]).success();
        // The user may know better. What such a merge brings is not known in full, either.
        repo.merge(&["main", "--into", "feature", "--ancestor", &fork]).success();
        let newest = run_on(&repo.place, &["log", "--branch", "feature", "--json", "-n", "1"]).json();
        assert_eq!(newest[0]["metadata"]["icechunkfs.merge"]["incomplete"], Value::Bool(true), "{version}");
    }
}

/// Both sides have merged a third branch, which is still there: that is no reason to take it for
/// all that they have in common.
#[test]
fn a_third_branch_does_not_hide_that_common_commits_have_expired() {
    if !place::is_local() {
        return;
    }
    for version in versions() {
        let repo = setup(version);
        run_on(&repo.place, &["branch", "create", "third", "--at", "main"]).success();
        repo.commit("third", &[("a/c/7", b"third")]);
        repo.commit("main", &[("a/c/2", b"both")]);
        run_on(&repo.place, &["branch", "create", "late", "--at", "main"]).success();
        let cut = icechunkfs::times::format_time(icechunkfs::times::system_clock());
        std::thread::sleep(std::time::Duration::from_millis(20));
        repo.merge(&["third"]).success();
        repo.merge(&["third", "--into", "late"]).success();
        remove(&repo, "main", &["a/c/2"]);
        repo.commit("late", &[("a/c/6", b"late")]);
        repo.merge(&["late", "--dry-run"]).success();
        run_on(&repo.place, &["expire", "--older-than", &cut, "--yes"]).success();
        let before = (repo.keys("main"), repo.keys("late"));
        for words in [&["late"][..], &["main", "--into", "late"]] {
            let why = repo.merge(words).failure();
            assert!(why.contains("the history before commit") && why.contains("has expired"), "{version}: {why}");
        }
        assert_eq!((repo.keys("main"), repo.keys("late")), before);
        // Later commits of the third branch are merged as before.
        repo.commit("third", &[("a/c/7", b"again")]);
        repo.merge(&["third"]).success();
        let keys = repo.keys("main");
        assert_eq!((chunk(&keys, "a/c/7"), chunk(&keys, "a/c/2")), (Some(&b"again"[..]), None), "{version}");
    }
}

#[test]
fn squashed_merges_are_all_remembered() {
    let repo = setup(SpecVersionBin::V2);
    run_on(&repo.place, &["branch", "create", "two", "--at", "main"]).success();
    repo.commit("dev", &[("a/c/2", b"dev")]);
    repo.commit("two", &[("a/c/3", b"two")]);
    repo.merge(&["dev"]).success();
    repo.merge(&["two"]).success();
    run_on(&repo.place, &["squash", "--last", "2", "--yes"]).success();
    remove(&repo, "main", &["a/c/2", "a/c/3"]);
    for (branch, name) in [("dev", "a/c/5"), ("two", "a/c/6")] {
        repo.commit(branch, &[(name, b"more")]);
        repo.merge(&[branch]).success();
    }
    let keys = repo.keys("main");
    assert_eq!(
        ["a/c/2", "a/c/3", "a/c/5", "a/c/6"].map(|name| chunk(&keys, name)),
        [None, None, Some(&b"more"[..]), Some(&b"more"[..])]
    );
}

/// The chunks that a smaller shape drops are in no list of changes, which is no reason to take them
/// for something that both sides have.
#[test]
fn what_a_smaller_shape_has_dropped_is_nothing_in_common() {
    for version in versions() {
        let repo = setup(version);
        let before = repo.keys("dev");
        let mut after = before.clone();
        let mut document: Value = serde_json::from_slice(&before["a/zarr.json"]).unwrap();
        document["shape"] = json!([1]);
        after.insert("a/zarr.json".to_owned(), document.to_string().into_bytes());
        after.retain(|key, _| !key.starts_with("a/c/"));
        after.insert("a/c/0".to_owned(), b"smaller".to_vec());
        Reference::open(&repo.place).on("dev").change(&before, &after);
        repo.commit("main", &[("a/c/0", b"larger")]);
        repo.merge(&["dev", "--on-conflict", "theirs"]).success();
        assert_eq!(chunk(&repo.keys("main"), "a/c/0"), Some(&b"smaller"[..]), "{version}");
        repo.commit("dev", &[("a/c/0", b"new")]);
        repo.merge(&["dev"]).success();
        assert_eq!(chunk(&repo.keys("main"), "a/c/0"), Some(&b"new"[..]), "{version}");
    }
}
