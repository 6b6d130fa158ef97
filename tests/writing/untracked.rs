//! Untracked files: named by `status` and `commit` whatever happened in the mount before, and never
//! lost.

use serde_json::{Value, json};

use crate::common::writing::{GROUP, Writable, array, put};
use crate::common::{icechunkfs, run_on};

/// Events before the move of a chunk directory: after some of them the chunks are inodes of the
/// working tree, after others not.
const EVENTS: [&str; 5] = ["commit", "discard", "remount", "read", "discard again"];

/// A mount with arrays of four chunks, and a group.
fn mounted(event: &str) -> Writable {
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("g/zarr.json"), GROUP).unwrap();
    for name in ["a", "b", "d", "e"] {
        put(&root.join(name).join("zarr.json"), array(&[4, 4], &[1, 4])).unwrap();
        for n in 0..4_u8 {
            put(&root.join(name).join(format!("c/{n}/0")), [n; 5]).unwrap();
        }
    }
    mount.commit("first").unwrap();
    match event {
        "commit" => {}
        "discard" => {
            put(&root.join("a/c/0/0"), [9; 7]).unwrap();
            mount.touch("discard").unwrap();
        }
        "remount" => mount.remount(),
        "read" => {
            mount.remount();
            assert_eq!(std::fs::read(root.join("a/c/3/0")).unwrap(), [3; 5]);
        }
        "discard again" => {
            std::fs::rename(root.join("a/c"), root.join("a/old")).unwrap();
            mount.touch("discard").unwrap();
        }
        other => panic!("{other}"),
    }
    mount
}

fn status(mount: &Writable) -> Value {
    run_on(mount.root(), &["status", "--json"]).json()
}

fn paths(files: &Value) -> Vec<String> {
    let path = |file: &Value| file["path"].as_str().or(file.as_str()).unwrap().to_owned();
    files.as_array().unwrap().iter().map(path).collect()
}

#[test]
fn chunks_that_are_moved_away_are_untracked_whatever_happened_before() {
    // Within the array, to a group, and to another array.
    let moves = [("a/c", "a/old"), ("d/c", "g/old"), ("e/c", "b/old")];
    for event in EVENTS {
        let mount = mounted(event);
        let mut expected = Vec::new();
        for (from, to) in moves {
            std::fs::rename(mount.root().join(from), mount.root().join(to)).unwrap();
            expected.extend((0..4).map(|n| format!("/{to}/{n}/0")));
        }
        expected.sort();
        let before = status(&mount);
        assert_eq!(paths(&before["untracked"]), expected, "{event}");
        assert_eq!((&before["chunks_deleted"], &before["faults"]), (&json!(12), &json!([])), "{event}");
        let committed = icechunkfs(["commit", mount.root().to_str().unwrap(), "-m", "moved", "--json"]).json();
        assert_eq!(paths(&committed["untracked"]), expected, "{event}");
        mount.remount();
        let after = status(&mount);
        assert_eq!((paths(&after["untracked"]), &after["clean"]), (expected, &json!(true)), "{event}");
        for (_, to) in moves {
            for n in 0..4_u8 {
                assert_eq!(std::fs::read(mount.root().join(format!("{to}/{n}/0"))).unwrap(), [n; 5], "{event}");
            }
        }
    }
}

/// Names that look like chunks of the array are refused with the reason, and another array takes
/// what has its names.
#[test]
fn moved_chunks_are_classified_by_their_new_names() {
    for event in EVENTS {
        let mount = mounted(event);
        std::fs::rename(mount.root().join("a/c/3"), mount.root().join("a/c/7")).unwrap();
        let faults = status(&mount)["faults"].clone();
        assert_eq!(paths(&faults), ["/a/c/7/0"], "{event}");
        assert!(faults[0]["why"].as_str().unwrap().contains("outside the array's grid"), "{event}: {faults}");

        let mount = mounted(event);
        std::fs::remove_dir_all(mount.root().join("b/c")).unwrap();
        std::fs::rename(mount.root().join("a/c"), mount.root().join("b/c")).unwrap();
        let before = status(&mount);
        assert_eq!((&before["untracked"], &before["faults"]), (&json!([]), &json!([])), "{event}");
        assert_eq!((&before["chunks_written"], &before["chunks_deleted"]), (&json!(4), &json!(4)), "{event}");
    }
}

/// A document that gives chunks other names makes a new array, whose chunks must not get lost.
#[test]
fn chunks_of_an_array_with_another_encoding_are_violations_whatever_happened_before() {
    for event in EVENTS {
        let mount = mounted(event);
        let document = std::fs::read_to_string(mount.root().join("a/zarr.json")).unwrap();
        let mut document: Value = serde_json::from_str(&document).unwrap();
        document["chunk_key_encoding"] = json!({"name": "v2", "configuration": {"separator": "."}});
        std::fs::write(mount.root().join("a/zarr.json"), document.to_string()).unwrap();
        let found = status(&mount);
        let expected: Vec<String> = (0..4).map(|n| format!("/a/c/{n}/0")).collect();
        assert_eq!((paths(&found["faults"]), &found["untracked"]), (expected, &json!([])), "{event}: {found:#}");
    }
}
