//! Consolidated metadata that are made while they are read.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::reshard::{Files, GROUP, array, encodings, made, script, text};
use super::zarr2_hostile::create;
use crate::common::{Mount, icechunkfs, python, read_files, run};

fn document(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path.join("zarr.json")).unwrap()).unwrap()
}

fn entries(path: &Path) -> Vec<String> {
    let document = document(path);
    let metadata = &document["consolidated_metadata"];
    assert_eq!((&metadata["kind"], &metadata["must_understand"]), (&json!("inline"), &json!(false)));
    metadata["metadata"].as_object().unwrap().keys().cloned().collect()
}

#[test]
#[ignore = "needs zarr-python 2, takes long: scripts/test --full"]
fn programs_read_them_as_if_zarr_python_had_written_them() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    script(&python, "make.py", &[text(&repo)]);
    for modifier in [&[][..], &["--unshard"], &["--shard", "3,2"]] {
        let mount = Mount::new(&repo, &[&["--view", "zarr", "--consolidated"], modifier].concat());
        let bare = Mount::new(&repo, &[&["--view", "zarr", "--read-only"], modifier].concat());
        let copy = directory.path().join(modifier.concat() + "copy");
        run(Command::new("cp").arg("-r").arg(bare.path()).arg(&copy)).success();
        let found = script(&python, "consolidated.py", &[text(&mount.path()), text(&copy)]);
        assert!(
            found["nodes"].as_u64().unwrap() > 200 && found["groups"].as_u64().unwrap() > 10,
            "{modifier:?}: {found}"
        );
    }
}

#[test]
fn each_group_has_what_is_below_it_now() {
    let slash = &encodings()[0];
    let plain = array(&[4], &[2], slash, &json!([{"name": "bytes"}]));
    let stale = json!({"zarr_format": 3, "node_type": "group", "attributes": {"title": "x"},
        "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": {"gone": {}}}});
    let files = Files::from([
        ("zarr.json".to_owned(), stale.to_string().into_bytes()),
        ("a/zarr.json".to_owned(), plain.clone()),
        ("g/zarr.json".to_owned(), stale.to_string().into_bytes()),
        ("g/h/zarr.json".to_owned(), GROUP.as_bytes().to_vec()),
        ("g/h/b/zarr.json".to_owned(), plain.clone()),
        ("g/h-i/zarr.json".to_owned(), GROUP.as_bytes().to_vec()),
        // A directory without a document, with an array below.
        ("implicit/deep/c/zarr.json".to_owned(), plain.clone()),
    ]);
    let directory = tempfile::tempdir().unwrap();
    let repo = made(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "zarr", "--consolidated"]);
    let root = mount.path();
    assert_eq!(entries(&root), ["a", "g", "g/h", "g/h/b", "g/h-i", "implicit", "implicit/deep", "implicit/deep/c"]);
    assert_eq!(entries(&root.join("g")), ["h", "h/b", "h-i"]);
    assert_eq!(entries(&root.join("g/h")), ["b"]);
    assert_eq!(entries(&root.join("g/h-i")), [""; 0]);
    let shown = document(&root);
    assert_eq!(shown["attributes"], json!({"title": "x"}));
    let empty = json!({"kind": "inline", "must_understand": false, "metadata": {}});
    for path in ["g", "g/h", "implicit"] {
        assert_eq!(shown["consolidated_metadata"]["metadata"][path]["consolidated_metadata"], empty, "{path}");
    }
    assert_eq!(shown["consolidated_metadata"]["metadata"]["a"], serde_json::from_slice::<Value>(&plain).unwrap());
    assert_eq!(document(&root.join("a")), serde_json::from_slice::<Value>(&plain).unwrap());
    // Sizes are those of the documents, also in listings, which need no document before.
    let again = Mount::new(&repo, &["--view", "zarr", "--consolidated"]);
    let listed = run(Command::new("find").arg(again.path()).args(["-name", "zarr.json", "-printf", "%P %s\n"])).text();
    assert_eq!(listed.lines().count(), 7, "{listed}");
    for line in listed.lines() {
        let (path, size) = line.split_once(' ').unwrap();
        assert_eq!(fs::read(root.join(path)).unwrap().len().to_string(), size, "{path}");
    }
    let printed = icechunkfs(["cat", text(&repo), "g/zarr.json", "--consolidated"]).success();
    assert!(printed == fs::read(root.join("g/zarr.json")).unwrap());
    // Stale ones do not show where chunks are others than those that they describe.
    let mount = Mount::new(&repo, &["--view", "zarr", "--shard", "2"]);
    assert_eq!(document(&mount.path()), json!({"zarr_format": 3, "node_type": "group", "attributes": {"title": "x"}}));
    // Without a modifier, everything is as stored.
    assert_eq!(document(&Mount::new(&repo, &["--read-only"]).path()), stale);
}

#[test]
fn entries_that_programs_cannot_parse_are_left_out_and_reported() {
    let slash = &encodings()[0];
    let plain = String::from_utf8(array(&[4], &[2], slash, &json!([{"name": "bytes"}]))).unwrap();
    let with = |attributes: &str| plain.replace("\"attributes\":{}", &format!("\"attributes\":{attributes}"));
    let long = "1".repeat(5000);
    let deep = "[".repeat(120) + &"]".repeat(120);
    let bad = [
        ("number", with(&format!("{{\"x\":{long}}}"))),
        ("deep", with(&format!("{{\"x\":{deep}}}"))),
        ("version", plain.replace("\"zarr_format\":3", "\"zarr_format\":4")),
        ("member", GROUP.replacen('{', "{\"ext\":{\"name\":\"x\"},", 1)),
        // Below an array.
        ("good/below", plain.clone()),
    ];
    let ignored = GROUP.replacen('{', "{\"ext\":{\"must_understand\":false},", 1);
    let mut files = Files::from([("zarr.json".to_owned(), GROUP.as_bytes().to_vec())]);
    files.insert("good/zarr.json".to_owned(), plain.clone().into_bytes());
    files.insert("ignored/zarr.json".to_owned(), ignored.into_bytes());
    files.insert("ignored/inner/zarr.json".to_owned(), plain.clone().into_bytes());
    for (name, document) in &bad {
        files.insert(format!("{name}/zarr.json"), document.clone().into_bytes());
    }
    let place = tempfile::tempdir().unwrap();
    let repo = place.path();
    create(repo, &files.into_iter().collect::<Vec<_>>());
    let mount = Mount::new(repo, &["--view", "zarr", "--consolidated", "-o", "memory=64M"]);
    let report = fs::read_to_string(mount.path().join(".icechunk/zarr")).unwrap();
    assert_eq!(entries(&mount.path()), ["good", "ignored", "ignored/inner"], "{report}");
    // zarr-python fails upon a group with a member that it does not know.
    let shown = &document(&mount.path())["consolidated_metadata"]["metadata"]["ignored"];
    assert!(shown.get("ext").is_none() && shown["node_type"] == "group", "{shown}");
    for (name, document) in bad {
        assert!(report.contains(&format!("/{name}\tleft out of consolidated metadata\t")), "{name}: {report}");
        let shown = read_files(&mount.path());
        // A group has metadata of its own.
        assert!(name == "member" || shown[&format!("{name}/zarr.json")] == document.into_bytes(), "{name}");
    }
}
