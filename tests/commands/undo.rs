//! `icechunkfs undo`: the newest operation on a branch is taken back, whatever program made it, and
//! the reference reads the result.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use icechunk::format::format_constants::SpecVersionBin;
use serde_json::json;

use super::restore::empty;
use crate::common::writing::{GROUP, Reference, array};
use crate::common::{Mount, run_on};

/// Names of branches and tags with their targets, as the program lists them.
fn refs(place: &std::path::Path) -> Vec<String> {
    let of = |kind: &str| run_on(place, &["refs", "--json"]).json()[kind].clone();
    ["branches", "tags"].iter().map(|kind| of(kind).to_string()).collect()
}

#[test]
fn each_operation_on_a_branch_is_taken_back_and_brought_again() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    let document = array(&[4], &[1]);
    let files: [(&str, &[u8]); 3] =
        [("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes()), ("a/c/0", b"0")];
    reference.commit(&files, "the array");
    let undo = |words: &[&str]| run_on(&place, &[&["undo"], words].concat());
    let steps: [&[&str]; 6] = [
        &["branch", "create", "trial"],
        &["branch", "reset", "trial", "--to", "main~1"],
        &["branch", "delete", "trial", "--yes"],
        &["amend", "-m", "another message", "--yes"],
        &["revert", "main", "-m", "nothing"],
        &["branch", "reset", "main", "--to", "main~1", "--yes"],
    ];
    for words in steps {
        let before = (refs(&place), Reference::open(&place).keys());
        run_on(&place, words).success();
        let after = (refs(&place), Reference::open(&place).keys());
        assert_ne!(before.0, after.0, "{words:?}");
        // Without a terminal it says what it would take back, and does nothing.
        if words[1] != "delete" {
            assert!(undo(&[]).failure().contains("--yes"), "{words:?}");
            assert_eq!(refs(&place), after.0);
        }
        undo(&["--dry-run"]).success();
        assert_eq!(refs(&place), after.0);
        let done = undo(&["--yes", "--json"]).json();
        assert_eq!((refs(&place), Reference::open(&place).keys()), before, "{words:?} {done}");
        undo(&["--yes"]).success();
        assert_eq!((refs(&place), Reference::open(&place).keys()), after, "{words:?}");
    }
}

#[test]
fn a_commit_of_the_reference_or_of_a_mount_is_taken_back() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "one");
    let one = refs(&place);
    reference.commit(&[("g/zarr.json", GROUP.as_bytes())], "two");
    let text = run_on(&place, &["undo", "--yes"]).text();
    assert!(text.contains("\"two\"") && text.contains("takes this back in turn"), "{text}");
    assert_eq!(refs(&place), one);
    let mount = Mount::new(&place, &[]);
    std::fs::create_dir(mount.path().join("h")).unwrap();
    std::fs::write(mount.path().join("h/zarr.json"), GROUP).unwrap();
    run_on(mount.path(), &["commit", "-m", "three"]).success();
    std::fs::write(mount.path().join("h/zarr.json"), GROUP.replace("{}", "{\"a\":1}")).unwrap();
    // A mount of the branch with uncommitted changes is named.
    let refused = run_on(&place, &["undo"]).failure();
    assert!(refused.contains("\"three\"") && refused.contains("not committed"), "{refused}");
    mount.unmount();
    // A push of several commits is one operation.
    let copy = place.with_file_name("copy");
    let words = [place.to_str().unwrap(), copy.to_str().unwrap()];
    run_on(&place, &["clone", words[1]]).success();
    let before = refs(&copy);
    for message in ["four", "five"] {
        reference.commit(&[(&format!("{message}/zarr.json"), GROUP.as_bytes())], message);
    }
    run_on(&place, &["push", words[1]]).success();
    assert_ne!(refs(&copy), before);
    run_on(&copy, &["undo", "--yes"]).success();
    assert_eq!(refs(&copy), before);
}

/// A mount with uncommitted changes keeps them and stays where it is.
#[test]
fn a_mount_without_changes_follows_an_amended_commit() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "one");
    let mount = Mount::new(&place, &[]);
    run_on(&place, &["amend", "-m", "another message", "--yes"]).success();
    let moved = run_on(mount.path(), &["refresh"]).text();
    assert!(moved.starts_with("moved to ") && !moved.contains("copy"), "{moved}");
    assert!(run_on(mount.path(), &["log"]).text().contains("another message"));
}

#[test]
fn a_mount_without_changes_follows_by_refresh() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (_directory, place, reference) = empty(version);
        let document = array(&[4], &[1]);
        let files: [(&str, &[u8]); 5] = [
            ("zarr.json", GROUP.as_bytes()),
            ("a/zarr.json", document.as_bytes()),
            ("a/c/0", b"0"),
            ("b/zarr.json", document.as_bytes()),
            ("b/c/0", b"old"),
        ];
        reference.commit(&files, "one");
        let later: [(&str, &[u8]); 4] =
            [("a/c/0", b"1"), ("a/c/1", b"1"), ("b/c/0", b"new"), ("g/zarr.json", GROUP.as_bytes())];
        reference.commit(&later, "two");
        let mount = Mount::new(&place, &[]);
        let chunk = |name: &str| std::fs::read(mount.path().join("a/c").join(name)).ok();
        std::fs::write(mount.path().join("notes"), "untracked").unwrap();
        let open = std::fs::File::open(mount.path().join("a/c/0")).unwrap();
        // It keeps the inode with its pages, as a watch does, and is no open file.
        let held = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(mount.path().join("b/c/0")).unwrap();
        assert_eq!(std::fs::read(mount.path().join("b/c/0")).unwrap(), b"new");
        assert_eq!((chunk("0"), chunk("1")), (Some(b"1".to_vec()), Some(b"1".to_vec())));
        run_on(&place, &["branch", "reset", "main", "--to", "main~1", "--yes"]).success();
        let status = run_on(mount.path(), &["status"]).text();
        assert!(status.contains("`refresh` shows that"), "{status}");
        let moved = run_on(mount.path(), &["refresh"]).text();
        assert!(moved.contains("to which main was reset"), "{moved}");
        assert_eq!((chunk("0"), chunk("1")), (Some(b"0".to_vec()), None));
        assert!(!mount.path().join("g").exists());
        assert_eq!(std::fs::read(mount.path().join("b/c/0")).unwrap(), b"old", "version {version:?}");
        drop(held);
        assert_eq!(std::fs::read(mount.path().join("notes")).unwrap(), b"untracked");
        drop(open);
        std::fs::write(mount.path().join("a/c/2"), "2").unwrap();
        run_on(mount.path(), &["commit", "-m", "three"]).success();
        let keys = Reference::open(&place).keys();
        assert_eq!((keys.get("a/c/0"), keys.get("a/c/1")), (Some(&b"0".to_vec()), None));
        assert_eq!(keys.get("a/c/2"), Some(&b"2".to_vec()));
        std::fs::write(mount.path().join("a/c/3"), "3").unwrap();
        run_on(&place, &["branch", "reset", "main", "--to", "main~1", "--yes"]).success();
        let refused = run_on(mount.path(), &["refresh"]).failure();
        assert!(refused.contains("reset or amended"), "{refused}");
        assert_eq!(chunk("3"), Some(b"3".to_vec()));
    }
}

/// One update of `repo` brings all refs of a push, and only the newest entry of it has a copy.
#[test]
fn a_push_of_several_branches_is_taken_back_branch_by_branch() {
    let (_directory, place, mut reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "one");
    run_on(&place, &["branch", "create", "dev"]).success();
    let copy = place.with_file_name("copy");
    run_on(&place, &["clone", copy.to_str().unwrap()]).success();
    let before = refs(&copy);
    for branch in ["main", "dev"] {
        for name in ["a", "b"] {
            reference.on(branch).commit(&[(&format!("{branch}-{name}/zarr.json"), GROUP.as_bytes())], name);
        }
    }
    run_on(&place, &["push", copy.to_str().unwrap()]).success();
    for branch in ["main", "dev"] {
        run_on(&copy, &["undo", "--branch", branch, "--yes"]).success();
    }
    assert_eq!(refs(&copy), before);
}

/// A migration makes up the log of what came before it.
#[test]
fn nothing_before_a_migration_is_taken_back() {
    let (_directory, place, mut reference) = empty(SpecVersionBin::V1);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "one");
    run_on(&place, &["branch", "create", "dev"]).success();
    reference.on("dev").commit(&[("a/zarr.json", GROUP.as_bytes())], "two");
    run_on(&place, &["migrate", "--yes"]).success();
    let before = refs(&place);
    for words in [&["undo", "--yes"][..], &["undo", "--branch", "dev", "--yes"]] {
        assert!(run_on(&place, words).failure().contains("no operation on"), "{words:?}");
    }
    assert_eq!(refs(&place), before);
}

#[test]
fn what_cannot_be_taken_back_says_why() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    let undo = |words: &[&str]| run_on(&place, &[&["undo"], words].concat());
    assert!(undo(&["--yes"]).failure().contains("no operation on a branch"));
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "one");
    let one = refs(&place);
    reference.commit(&[("g/zarr.json", GROUP.as_bytes())], "two");
    run_on(&place, &["tag", "create", "v1"]).success();
    let refused = undo(&["--yes"]).failure();
    assert!(refused.contains("created tag `v1`") && refused.contains("--branch NAME"), "{refused}");
    run_on(&place, &["tag", "delete", "v1", "--yes"]).success();
    assert!(undo(&["--yes"]).failure().contains("--at "));
    assert!(undo(&["--branch", "nowhere", "--yes"]).failure().contains("branch `nowhere`"));
    // Operations that change no branch are passed over.
    run_on(&place, &["config", "set", "inline_chunk_threshold_bytes", "100"]).success();
    undo(&["--branch", "main", "--yes"]).success();
    assert_eq!(json!(refs(&place)[0]), json!(one[0]));
    // The copy of the state before is gone.
    reference.commit(&[("h/zarr.json", GROUP.as_bytes())], "three");
    let now = refs(&place);
    std::fs::remove_dir_all(place.join("overwritten")).unwrap();
    let refused = undo(&["--yes"]).failure();
    assert!(refused.contains("branch REPO reset"), "{refused}");
    assert_eq!(refs(&place), now);
    let (_directory, old, _) = empty(SpecVersionBin::V1);
    let refused = run_on(&old, &["undo", "--yes"]).failure();
    assert!(refused.contains("version 2"), "{refused}");
}
