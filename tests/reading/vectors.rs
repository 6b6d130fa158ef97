//! Zarr Vectors stores, written by the `zarr-vectors` package: copied into a mount or written
//! through it, committed, and read from another mount; the current layout and the older one, in
//! which coordinates are names of arrays.
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::writing::{self, GROUP, Reference, Writable, needed, put};
use crate::common::{FixtureSet, Mount, project, read_files, run, run_on};
use serde_json::{Value, json};

/// The package's current release, or the last one with the older layout.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    Current,
    Old,
}

struct Package {
    python: PathBuf,
    old: PathBuf,
}

impl Package {
    fn find() -> Option<Package> {
        let target = project("target");
        let python = target.join("venv/bin/python");
        let old = target.join("zarr-vectors-0.2.0");
        let there = python.exists() && old.exists();
        needed(there, "target/venv: scripts/setup --python makes it").then_some(Package { python, old })
    }

    /// Runs a command of `tests/python/vectors.py`.
    #[track_caller]
    fn run<S: AsRef<OsStr>>(&self, release: Release, command: &str, words: impl IntoIterator<Item = S>) {
        let script = project("tests/python/vectors.py");
        let mut python = Command::new(&self.python);
        python.env("PYTHONDONTWRITEBYTECODE", "1").arg(script).arg(command).args(words);
        if release == Release::Old {
            python.env("PYTHONPATH", &self.old);
        }
        run(&mut python).success();
    }

    /// Checks that stores have the values in `expected`.
    #[track_caller]
    fn check(&self, expected: &Value, stores: &[PathBuf]) {
        let words = std::iter::once(OsString::from(expected.to_string())).chain(stores.iter().map(OsString::from));
        self.run(Release::Current, "check", words);
    }

    /// Checks stores of the older layout, which have 120 points each.
    #[track_caller]
    fn check_old(&self, stores: &[PathBuf]) {
        self.run(
            Release::Old,
            "old-check",
            std::iter::once(OsString::from("120")).chain(stores.iter().map(OsString::from)),
        );
    }
}

fn sh(script: &str, places: &[&Path]) {
    run(Command::new("bash").args(["-euo", "pipefail", "-c", script, "bash"]).args(places)).success();
}

/// Returns the files of a directory, without untracked ones.
fn tracked(mount: &Writable) -> BTreeMap<String, Vec<u8>> {
    let status = run_on(mount.root(), &["status", "--json"]).json();
    let mut files = read_files(&mount.root());
    for name in status["untracked"].as_array().unwrap() {
        files.remove(name["path"].as_str().unwrap().trim_start_matches('/')).unwrap();
    }
    files
}

/// Commits, and expects that another mount and the reference read the same.
fn commit_and_compare(mount: &Writable, message: &str) -> BTreeMap<String, Vec<u8>> {
    let files = tracked(mount);
    mount.commit(message).unwrap();
    assert!(mount.fresh() == files, "{message}");
    let kept = Reference::open(mount.repository()).keys();
    assert_eq!(kept.keys().collect::<Vec<_>>(), files.keys().collect::<Vec<_>>(), "{message}");
    assert!(kept == files, "{message}");
    files
}

#[test]
fn a_zarr_vectors_store_stays_the_same_in_a_commit_and_can_be_extended() {
    let (Some(shared), Some(package)) = (FixtureSet::shared(), Package::find()) else { return };
    let store = shared.expected_path("x").parent().unwrap().parent().unwrap().join("zarr-vectors-store");
    let sums = store.with_file_name("zarr-vectors-store.sha256");
    let expected = std::fs::read(store.with_file_name("zarr-vectors-store.expect.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();

    let mount = Writable::new(&[]);
    // At the mount's root, which was empty, and in a group.
    sh("cp -r \"$1/.\" \"$2\" && cp -r \"$1\" \"$2/inner\"", &[&store, &mount.root()]);
    commit_and_compare(&mount, "a store");
    Reference::open(mount.repository()).create_tag("copied");

    let tagged = Mount::new(mount.repository(), &["--tag", "copied"]);
    let places = [tagged.path(), tagged.path().join("inner")];
    for place in &places {
        sh("cd \"$1\" && sha256sum --quiet -c \"$2\"", &[place, &sums]);
    }
    package.check(&expected, &places);

    package.run(Release::Current, "pyramid", [mount.root().join("inner")]);
    let files = commit_and_compare(&mount, "a pyramid");
    assert!(files.keys().any(|name| name.starts_with("inner/2/vertices/c/")), "{:?}", files.keys());
    let after = Mount::new(mount.repository(), &["-o", "ro"]);
    let mut more = expected.clone();
    more["levels"] = json!([0, 1, 2]);
    package.check(&more, &[after.path().join("inner")]);
    package.check(&expected, &[after.path()]);
    // The tag is what it was.
    sh("cd \"$1\" && sha256sum --quiet -c \"$2\"", &[&tagged.path().join("inner"), &sums]);
}

#[test]
fn zarr_vectors_writes_stores_through_a_mount() {
    let Some(package) = Package::find() else { return };
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    let kinds = ["points", "polylines", "mesh", "graph"];
    let words = std::iter::once(mount.root()).chain(kinds.map(PathBuf::from));
    package.run(Release::Current, "write", words);
    package.run(Release::Old, "old-write", [mount.root()]);
    let files = commit_and_compare(&mount, "stores");
    // A name like a chunk's key is an array here, and one like a number a group.
    for node in ["points/0", "graph/0/links/0/0.0.0", "old/0/vertices/0.0.0", "old graph/0/links/0/0.0.1"] {
        assert!(files.contains_key(&format!("{node}/zarr.json")), "{node}");
    }
    assert!(files.contains_key("old/0/vertices/0.0.0/c/0"));
    let fresh = Mount::new(mount.repository(), &["-o", "ro"]);
    package.check(&json!({"n": 120, "levels": [0]}), &kinds.map(|kind| fresh.path().join(kind)));
    package.check_old(&["old", "old graph"].map(|name| fresh.path().join(name)));
}

/// A store of the older layout, copied into a mount.
#[test]
fn a_zarr_vectors_store_of_the_older_layout_stays_the_same_in_a_commit() {
    let Some(package) = Package::find() else { return };
    let place = tempfile::tempdir().unwrap();
    let store = place.path().to_owned();
    package.run(Release::Old, "old-write", [&store]);
    let mount = Writable::new(&[]);
    sh("cp -r \"$1/.\" \"$2\"", &[&store, &mount.root()]);
    assert!(commit_and_compare(&mount, "a store") == read_files(&store));
    Reference::open(mount.repository()).create_tag("copied");
    let tagged = Mount::new(mount.repository(), &["--tag", "copied"]);
    assert!(read_files(&tagged.path()) == read_files(&store));
    package.check_old(&["old", "old graph"].map(|name| tagged.path().join(name)));
}

/// A node makes its name a node's, and an array makes a name a chunk's.
#[test]
fn names_are_classified_by_metadata_and_not_by_spelling() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    let array = |separator: &str| {
        let mut document: Value = serde_json::from_str(&writing::array(&[2, 2, 2], &[1, 1, 1])).unwrap();
        let name = if separator == "." { "v2" } else { "default" };
        document["chunk_key_encoding"] = json!({"name": name, "configuration": {"separator": separator}});
        document.to_string()
    };
    let groups =
        ["", "0/", "0/links/", "0/links/+1/", "0/vertices/", "0/object_index/", "+1/", "data/", "0.0.0/", "c/"];
    for group in groups {
        put(&root.join(format!("{group}zarr.json")), GROUP).unwrap();
    }
    let arrays = [
        "0/links/+1/0.0.0",
        "0/links/+1/+1.0.-1",
        "0/vertices/1.0.0",
        "0/object_index/data",
        "data/0",
        "0.0.0/1",
        "c/0",
    ];
    for name in arrays {
        put(&root.join(name).join("zarr.json"), array("/")).unwrap();
        put(&root.join(name).join("c/1/0/1"), name).unwrap();
    }
    // An array may name its chunks so.
    put(&root.join("dotted/zarr.json"), array(".")).unwrap();
    put(&root.join("dotted/1.0.1"), "a chunk").unwrap();
    // A literal reading of the format's document: bytes in a group.
    let raw = ["0/vertices/0.0.0", "0/object_index/raw", "+1/0", "data/data", "data/+1.0.-1", "c/1"];
    for name in raw {
        put(&root.join(name), name).unwrap();
    }
    let status = |mount: &Writable| {
        let output = run_on(mount.root(), &["status", "--json"]).json();
        let mut names: Vec<String> = output["untracked"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name["path"].as_str().unwrap().trim_start_matches('/').to_owned())
            .collect();
        names.sort();
        names
    };
    let mut expected: Vec<String> = raw.iter().map(|name| name.to_string()).collect();
    expected.sort();
    assert_eq!(status(&mount), expected);

    let files = tracked(&mount);
    mount.commit("names").unwrap();
    assert!(mount.fresh() == files);
    assert_eq!(files["0/links/+1/+1.0.-1/c/1/0/1"], b"0/links/+1/+1.0.-1");
    assert_eq!(mount.fresh()["dotted/1.0.1"], b"a chunk");
    // The reference has chunks by their coordinates, whatever their names.
    let kept = Reference::open(mount.repository()).keys();
    assert_eq!(kept["dotted/c/1/0/1"], b"a chunk");
    assert_eq!(kept.len(), files.len());
    // Files that are no part of the store are still there, and listed.
    assert_eq!(status(&mount), expected);
    for name in raw {
        assert_eq!(std::fs::read(root.join(name)).unwrap(), name.as_bytes());
    }
    let output = run_on(&root, &["status"]).success();
    assert!(String::from_utf8(output).unwrap().contains("0/vertices/0.0.0"));
}
