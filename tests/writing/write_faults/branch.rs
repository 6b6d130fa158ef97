//! Concurrent changes of the repository; deletion and reset of the branch.

use crate::common::writing::{GROUP, Reference, Writable, array, create, put};
use crate::common::{errno, read_files, watchdog};

/// Creates a repository with arrays `a` and `b` on `main` and on `dev`, which has one commit more.
fn repository() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    create(&place);
    let document = array(&[8], &[1]);
    let reference = Reference::open(&place);
    let keys: [(&str, &[u8]); 4] = [
        ("zarr.json", GROUP.as_bytes()),
        ("a/zarr.json", document.as_bytes()),
        ("b/zarr.json", document.as_bytes()),
        ("b/c/0", b"b0"),
    ];
    reference.commit(&keys, "arrays");
    reference.create_branch("dev");
    (directory, place)
}

#[test]
fn commits_of_others_between_any_two_steps_are_merged() {
    watchdog();
    let (_directory, place) = repository();
    let mount = Writable::of(&place, &[]);
    let reference = Reference::open(&place);
    let theirs = |n: usize| {
        let name = format!("b/c/{}", n % 8);
        reference.commit(&[(&name, format!("theirs {n}").as_bytes())], &format!("theirs {n}"));
    };
    let root = mount.root();
    let mut ours = Vec::new();
    // The place in a round of write, look, refresh, commit, look at which the concurrent commit
    // comes.
    for n in 0..6_usize {
        let before = reference.history().len();
        let between = |at: usize| {
            if at == n % 6 {
                theirs(n)
            }
        };
        between(0);
        let name = format!("a/c/{}", n % 8);
        put(&root.join(&name), format!("ours {n}")).unwrap();
        ours.push((name, format!("ours {n}")));
        between(1);
        assert_eq!(mount.read_control("status").contains("moved on"), n < 2, "{n}: {}", mount.read_control("status"));
        between(2);
        mount.touch("refresh").unwrap();
        between(3);
        mount.commit(&format!("ours {n}")).unwrap();
        between(4);
        mount.touch("refresh").unwrap();
        assert_eq!(reference.history().len(), before + if n < 5 { 2 } else { 1 }, "{n}");
    }
    theirs(6);
    mount.touch("refresh").unwrap();
    let keys = reference.keys();
    assert!(ours.iter().all(|(name, text)| keys[name] == text.as_bytes()));
    assert!(read_files(&root) == keys);
    assert!(mount.read_control("status").contains("nothing to commit"));
}

#[test]
fn a_chunk_that_others_changed_too_is_a_conflict() {
    watchdog();
    let (_directory, place) = repository();
    let mount = Writable::of(&place, &[]);
    let reference = Reference::open(&place);
    put(&mount.root().join("b/c/0"), "ours").unwrap();
    put(&mount.root().join("a/c/0"), "ours too").unwrap();
    reference.commit(&[("b/c/0", b"theirs")], "theirs");
    let shown = read_files(&mount.root());
    let keys = reference.keys();
    for way in ["commit", "refresh"] {
        assert_eq!(errno(mount.touch(way)), libc::ESTALE, "{way}");
        assert!(mount.read_control("conflicts").contains("/b"), "{}", mount.read_control("conflicts"));
        assert!(read_files(&mount.root()) == shown && reference.keys() == keys, "{way}");
    }
    // Discarding that chunk alone is enough.
    crate::common::writing::echo(&mount.control("discard"), "b/c/0").unwrap();
    mount.touch("commit").unwrap();
    let keys = reference.keys();
    assert!(keys["b/c/0"] == b"theirs" && keys["a/c/0"] == b"ours too");
    assert!(read_files(&mount.root()) == keys);
}

fn on_dev(place: &std::path::Path) -> Writable {
    let mount = Writable::of(place, &["--branch", "dev"]);
    put(&mount.root().join("a/c/0"), vec![1; 300_000]).unwrap();
    mount.commit("on dev").unwrap();
    put(&mount.root().join("a/c/1"), vec![2; 300_000]).unwrap();
    std::fs::remove_file(mount.root().join("b/c/0")).unwrap();
    put(&mount.root().join("notes"), "mine").unwrap();
    mount
}

/// Checks that commit and refresh are refused with this message, and nothing is lost; nor by the
/// next mount, which prints `next`.
#[track_caller]
fn assert_stale(mount: &Writable, words: &str, next: &str) {
    let shown = read_files(&mount.root());
    for (round, way) in ["commit", "refresh", "commit", "refresh"].into_iter().enumerate() {
        assert_eq!(errno(mount.touch(way)), libc::ESTALE, "{way}");
        assert!(mount.read_control("commit").contains(words), "{way}: {}", mount.read_control("commit"));
        assert!(mount.read_control("errors").contains(words), "{way}: {}", mount.read_control("errors"));
        assert!(mount.read_control("status").contains("1 chunk, 1 chunk deleted"), "{}", mount.read_control("status"));
        assert!(read_files(&mount.root()) == shown, "{way}");
        if round == 1 {
            mount.unmount();
            let output = mount.mount_again(None);
            let told = output.all();
            assert!(output.status.success() && told.contains(next), "`{next}` is not in: {told}");
            assert!(read_files(&mount.root()) == shown);
        }
    }
}

#[test]
fn a_deleted_branch_refuses_commits_and_keeps_the_work() {
    watchdog();
    let (_directory, place) = repository();
    let mount = on_dev(&place);
    let reference = Reference::open(&place);
    reference.delete_branch("dev");
    assert_stale(&mount, "branch `dev` has been deleted", "the branch was deleted");
    // Created again elsewhere, it is another branch; at the base of the changes, it is as before.
    let base = mount.control_json("info.json");
    reference.create_branch_at("dev", base["snapshot"].as_str().unwrap());
    mount.commit("the branch is back").unwrap();
    let fresh = Writable::of(&place, &["--branch", "dev"]);
    assert_eq!(std::fs::read(fresh.root().join("a/c/1")).unwrap(), vec![2; 300_000]);
    assert!(!fresh.root().join("b/c/0").exists());
}

#[test]
fn a_reset_branch_refuses_commits_and_keeps_the_work() {
    watchdog();
    let (_directory, place) = repository();
    let mount = on_dev(&place);
    Reference::open(&place).reset_branch("dev");
    assert_stale(&mount, "branch `dev` has been reset", "the branch was reset");
    // Discarding everything leads to the branch's present commit.
    let shown = read_files(&mount.root());
    mount.touch("discard").unwrap();
    assert_eq!(shown["a/c/0"], std::fs::read(mount.root().join("a/c/0")).unwrap(), "its base is still what it was");
    mount.remount();
    assert!(!mount.root().join("a/c/0").exists(), "without changes it is on the branch again");
    assert_eq!(std::fs::read(mount.root().join("b/c/0")).unwrap(), b"b0");
    assert_eq!(std::fs::read(mount.root().join("notes")).unwrap(), b"mine");
    put(&mount.root().join("a/c/2"), "new").unwrap();
    mount.commit("on the branch as it is").unwrap();
}
