//! `icechunkfs import` of trees of Zarr 2: equal in zarr-python and xarray, and the same tree again
//! in the view of version 2.

use std::fs;
use std::path::Path;

use super::netcdf::{compared, python};
use crate::common::lengths::{length, number};
use crate::common::{Mount, block_on, icechunkfs, lab, read_files, run, run_on};

/// Trees in the ordinary run, and in a full one.
const QUICK: usize = 4;
const FULL: usize = 150;

fn import(tree: &Path, repo: &Path, path: &str) -> serde_json::Value {
    icechunkfs(["import", tree.to_str().unwrap(), repo.to_str().unwrap(), "--path", path, "--json"]).json()
}

#[test]
fn trees_of_version_2_are_equal_in_version_3() {
    let first = number("ICECHUNKFS_SEED", 1);
    for seed in first..first + length("ICECHUNKFS_IMPORTS", QUICK, FULL) {
        let place = tempfile::tempdir().unwrap();
        run(python("import_zarr2.py").arg("make").arg(place.path()).arg(seed.to_string())).success();
        let repo = place.path().join("repo");
        for name in ["plain", "xarray"] {
            let tree = place.path().join(name);
            let report = import(&tree, &repo, name);
            let left_out = report["left_out"].as_array().unwrap();
            let is_known = |one: &serde_json::Value| {
                let [path, why] = ["path", "why"].map(|key| one[key].as_str().unwrap());
                let is_structure = path.ends_with("no_structure") && why.contains("structures");
                let is_number = why.contains("JSON has no number");
                is_structure
                    || is_number
                    || (path.ends_with("@_FillValue") && why.contains("xarray cannot open a group"))
            };
            assert!(left_out.iter().all(is_known), "seed {seed}: {report}");
            assert_eq!(report["untracked_count"], 0, "seed {seed}: {report}");
            // The same once more changes nothing.
            assert!(import(&tree, &repo, name)["snapshot"].is_null(), "seed {seed}");
        }
        run_on(&repo, &["verify", "--chunks"]).success();
        let mount = Mount::new(&repo, &[]);
        compared(python("import_zarr2.py").arg("compare").args([place.path(), &mount.path()]), &format!("seed {seed}"));
        // The reference has all chunks under the same keys.
        assert_eq!(block_on(lab::reference_keys(&repo)), read_files(&mount.path()), "seed {seed}");
    }
}

/// A tree with an array of 4 x 3 bytes in chunks of 2 x 3, in nested directories.
fn small(place: &Path) -> std::path::PathBuf {
    let tree = place.join("small");
    let files = [
        (".zgroup", r#"{"zarr_format": 2}"#),
        (".zmetadata", "{}"),
        (
            "a/.zarray",
            r#"{"zarr_format": 2, "shape": [4, 3], "chunks": [2, 3], "dtype": "|u1", "compressor": null, "fill_value": 0, "order": "C", "filters": null, "dimension_separator": "/"}"#,
        ),
        ("a/0/0", "abcdef"),
        ("a/1/0", "ghijkl"),
    ];
    for (name, text) in files {
        let file = tree.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    tree
}

#[test]
fn what_has_no_place_is_listed_and_what_is_damaged_refuses_all() {
    let place = tempfile::tempdir().unwrap();
    let tree = small(place.path());
    for name in ["a/2/0", "a/0/00", "a/0/0.5", "a/notes", "other/.zattrs", "README", "a/7"] {
        let file = tree.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "{}").unwrap();
    }
    let repo = place.path().join("repo");
    let report = import(&tree, &repo, "");
    let untracked: Vec<&str> =
        report["untracked"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert_eq!(untracked, ["README", "a/0/0.5", "a/0/00", "a/2/0", "a/7", "a/notes", "other/.zattrs"]);
    assert_eq!(report["chunks_written"], 2, "{report}");
    let mount = Mount::new(&repo, &[]);
    assert_eq!(fs::read(mount.path().join("a/c/1/0")).unwrap(), b"ghijkl");
    // A link in the place of a document is none.
    fs::remove_file(tree.join("a/.zarray")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", tree.join("a/.zarray")).unwrap();
    let report = import(&tree, &repo, "link");
    assert_eq!(report["chunks_written"], 0, "{report}");
    let before = run_on(&repo, &["log", "--json"]).json().as_array().unwrap().len();
    for damaged in ["", "[", "{}", r#"{"zarr_format": 2, "shape": [-1]}"#] {
        fs::remove_file(tree.join("a/.zarray")).unwrap();
        fs::write(tree.join("a/.zarray"), damaged).unwrap();
        let words = ["import", tree.to_str().unwrap(), repo.to_str().unwrap(), "--path", "damaged"];
        let why = icechunkfs(words).failure();
        assert!(why.contains("a: .zarray"), "{damaged}: {why}");
    }
    assert_eq!(run_on(&repo, &["log", "--json"]).json().as_array().unwrap().len(), before);
}
