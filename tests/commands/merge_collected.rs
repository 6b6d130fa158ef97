//! Merges within a day of a collection of garbage that may still be at work, as nothing tells when
//! one of the reference has ended: they give what they would give without it.

use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::times::system_clock;
use serde_json::json;

use super::merge::{Setup, chunk, objects, setup};
use crate::common::writing::{Reference, Writable};
use crate::common::{block_on, lab, place, run_on};

/// Longer than what was once read of a chunk.
const LARGE: usize = (1 << 20) + 7;

/// Lets the reference collect the garbage of a deleted branch.
fn collect(repo: &Setup) {
    let reference = Reference::open(&repo.place);
    reference.create_branch("gone");
    repo.commit("gone", &[("a/c/7", &[1; 1000])]);
    run_on(&repo.place, &["branch", "delete", "gone", "--yes"]).success();
    let removed = block_on(lab::collect_by_reference(&repo.place, system_clock() + 1_000_000));
    assert!(removed.chunks_deleted > 0, "{removed:?}");
}

/// Makes chunk `a/c/1` of `main` other bytes and then, by a mount's restore, the same as before:
/// the commit stores them a second time.
fn store_again(repo: &Setup, branch: &str) {
    let before = repo.keys(branch);
    repo.commit(branch, &[("a/c/1", b"other")]);
    let known = objects(&repo.place).len();
    let mount = Writable::of(&repo.place, &["--branch", branch]);
    run_on(mount.root(), &["restore", "a/c/1", "--from", &format!("{branch}~1")]).success();
    run_on(mount.root(), &["commit", "-m", "Back"]).success();
    drop(mount);
    assert_eq!(repo.keys(branch), before);
    assert!(objects(&repo.place).len() > known, "the bytes were not stored again");
}

/// Returns a repository whose chunk `a/c/1` is large on both branches.
fn with_large_chunk() -> Setup {
    let repo = setup(SpecVersionBin::V2);
    repo.commit("main", &[("a/c/1", &[1; LARGE])]);
    run_on(&repo.place, &["branch", "delete", "dev", "--yes"]).success();
    Reference::open(&repo.place).create_branch("dev");
    repo
}

#[test]
fn a_merge_after_a_collection_copies_no_chunk() {
    if !place::needs_directory() {
        return;
    }
    for keep_commits in [&[][..], &["--keep-commits"]] {
        let repo = setup(SpecVersionBin::V2);
        repo.commit("dev", &[("a/c/2", &[2; LARGE])]);
        repo.commit("dev", &[("a/c/3", &[3; 2000]), ("a/c/2", &[4; LARGE])]);
        repo.commit("main", &[("a/c/0", b"main")]);
        collect(&repo);
        let before = objects(&repo.place);
        let said = repo.merge(&[&["dev", "--json"], keep_commits].concat()).json();
        assert_eq!(said["made"].as_array().unwrap().len(), if keep_commits.is_empty() { 1 } else { 2 });
        assert_eq!(objects(&repo.place), before, "{keep_commits:?}");
        let keys = repo.keys("main");
        assert_eq!(chunk(&keys, "a/c/2"), Some(&[4; LARGE][..]));
        assert_eq!((chunk(&keys, "a/c/3"), chunk(&keys, "a/c/0")), (Some(&[3; 2000][..]), Some(&b"main"[..])));
        // The source goes on: what the merge brought is no change of main.
        repo.commit("dev", &[("a/c/2", &[5; LARGE])]);
        repo.merge(&["dev", "--on-conflict", "ours"]).success();
        assert_eq!(chunk(&repo.keys("main"), "a/c/2"), Some(&[5; LARGE][..]));
        run_on(&repo.place, &["verify"]).success();
    }
}

#[test]
fn a_restore_and_a_repacking_after_a_collection_copy_no_chunk() {
    if !place::needs_directory() {
        return;
    }
    let repo = setup(SpecVersionBin::V2);
    let chunks: Vec<(String, Vec<u8>)> = (0..8).map(|n| (format!("a/c/{n}"), vec![n + 1; 2000])).collect();
    let chunks: Vec<(&str, &[u8])> = chunks.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
    repo.commit("main", &chunks);
    let keys = repo.keys("main");
    repo.commit("main", &[("a/c/1", b"other")]);
    collect(&repo);
    let before = objects(&repo.place);
    run_on(&repo.place, &["restore", "a/c/1", "--from", "main~1"]).success();
    assert_eq!(repo.keys("main"), keys);
    assert_eq!(objects(&repo.place), before);
    let said = run_on(&repo.place, &["rewrite-manifests", "--repack", "--yes", "--json"]).json();
    assert_eq!((&said["repacked"]["chunks"], &said["repacked"]["objects"]["after"]), (&json!(8), &json!(1)), "{said}");
    assert_eq!(objects(&repo.place).len(), before.len() + 1);
    assert_eq!(repo.keys("main"), keys);
}

#[test]
fn a_chunk_that_was_stored_again_is_no_change() {
    if !place::needs_directory() {
        return;
    }
    for words in [&[][..], &["--on-conflict", "ours"], &["--on-conflict", "theirs"], &["--keep-commits"]] {
        for deletes in [false, true] {
            let repo = with_large_chunk();
            collect(&repo);
            store_again(&repo, "main");
            let before = repo.keys("dev");
            let mut wanted = before.clone();
            if deletes {
                wanted.retain(|key, _| !key.starts_with("a/"))
            } else {
                drop(wanted.insert("a/c/1".to_owned(), vec![2; LARGE]))
            }
            Reference::open(&repo.place).on("dev").change(&before, &wanted);
            run_on(&repo.place, &["branch", "create", "back", "--at", "dev"]).success();
            repo.merge(&[&["dev"], words].concat()).success();
            assert_eq!(repo.keys("main"), wanted, "{words:?}");
            repo.merge(&[&["main~1", "--into", "back"], words].concat()).success();
            assert_eq!(repo.keys("back"), wanted, "{words:?}");
        }
    }
}

#[test]
fn a_chunk_that_both_sides_changed_to_the_same_bytes_is_no_conflict() {
    if !place::needs_directory() {
        return;
    }
    let repo = with_large_chunk();
    repo.commit("main", &[("a/c/1", &[2; LARGE])]);
    repo.commit("dev", &[("a/c/1", &[2; LARGE]), ("a/c/2", b"dev")]);
    repo.merge(&["dev"]).success();
    let keys = repo.keys("main");
    assert_eq!((chunk(&keys, "a/c/1"), chunk(&keys, "a/c/2")), (Some(&[2; LARGE][..]), Some(&b"dev"[..])));
    // One byte makes the difference.
    let mut other = vec![3; LARGE];
    repo.commit("main", &[("a/c/1", &other)]);
    other[LARGE - 1] = 0;
    repo.commit("dev", &[("a/c/1", &other)]);
    assert!(repo.merge(&["dev"]).failure().contains("ChunkDoubleUpdate"));
}

/// Merges that cross, after which both sides restore the same chunk: as without a collection, there
/// is nothing to decide.
#[test]
fn disputed_chunks_that_were_stored_again_are_the_same() {
    if !place::needs_directory() {
        return;
    }
    let repo = with_large_chunk();
    repo.commit("main", &[("a/c/0", b"main"), ("a/c/2", b"main")]);
    repo.commit("dev", &[("a/c/0", b"dev"), ("a/c/3", b"dev")]);
    let old = repo.history("main")[0].0.clone();
    repo.merge(&["dev", "--on-conflict", "ours"]).success();
    repo.merge(&[&old, "--into", "dev", "--on-conflict", "ours"]).success();
    repo.commit("main", &[("a/c/0", &[9; LARGE])]);
    assert!(repo.merge(&["dev"]).failure().contains("several common ancestors"));
    repo.commit("dev", &[("a/c/0", &[9; LARGE]), ("a/c/5", b"dev")]);
    repo.merge(&["dev"]).success();
    let keys = repo.keys("main");
    assert_eq!((chunk(&keys, "a/c/0"), chunk(&keys, "a/c/5")), (Some(&[9; LARGE][..]), Some(&b"dev"[..])));
}
